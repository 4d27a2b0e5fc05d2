"""Errors that a user can correct: one line with the fault, its place and the nearest valid name."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from typing import Any, TypeVar

from steptime.core.spelling import by_likeness, find_similar_names

MAX_VALUE_CHARACTERS = 60
MAX_SUGGESTIONS = 8  # names after "did you mean"
MAX_LISTED_NAMES = 18  # up to here a message lists all valid names
NEAREST_NAMES = 8  # names of a longer list that a message shows
LISTED_NOUNS = ("device", "link", "model", "stack")  # kinds of names that `steptime list` lists
Name = TypeVar("Name")


class InputError(Exception):
    """Wrong input; its message is the one line that the user reads. The command exits with 2."""


class DetailedInputError(InputError):
    """Wrong input of which a part was understood.

    Args:
        line: the one line that the user reads.
        details: what was understood, as JSON values; with `--json` the command prints them.
    """

    def __init__(self, line: str, details: Mapping[str, object]) -> None:
        super().__init__(line)
        self.details = details


class OutsideError(Exception):
    """What is not the fault of input: a full disk, a silent scheduler. The command exits with 1."""


class InterruptError(KeyboardInterrupt):
    """Ctrl-C where something was kept; its message is the line that says what. Exits with 130."""


def escape_controls(text: str) -> str:
    """Return `text` with `?` for each control character, which could move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\u00a0" else "?" for c in text)


def shorten(value: object) -> str:
    """Return `value` as a user typed it, in quotes, on one line, at most 60 characters of it."""
    try:
        text = str(value) if isinstance(value, str | PurePath) else repr(value)
    except (ValueError, RecursionError):  # Python does not write out 4300 digits, or deep nesting
        text = f"{type(value).__name__} too long to show"
    text = escape_controls(text)
    is_too_long = len(text) > MAX_VALUE_CHARACTERS
    ellipsis = "..." if is_too_long else ""
    return f"'{text[:MAX_VALUE_CHARACTERS]}{ellipsis}'"


def unknown(noun: str, value: object, valid_names: Iterable[str], place: str = "") -> InputError:
    """Return the error for an unknown name, with the nearest valid names.

    Args:
        noun: the kind of name: `device`.
        value: the unknown name.
        valid_names: the names that are valid.
        place: the option, key or file with which the message begins.
    """
    names = list(valid_names)
    suggestions = [f"'{name}'" for name in find_similar_names(str(value), names)]
    if 0 < len(suggestions) <= MAX_SUGGESTIONS:
        *first_suggestions, last_suggestion = suggestions
        alternatives = last_suggestion
        if first_suggestions:
            alternatives = f"{', '.join(first_suggestions)} or {last_suggestion}"
        hint = f"did you mean {alternatives}?"
    else:
        hint = describe_names(names, noun, str(value))
    prefix = f"{place}: " if place else ""
    return InputError(f"{prefix}unknown {noun} {shorten(value)}; {hint}")


def describe_names(names: list[str], noun: str, typed: str = "") -> str:
    """Describe the names that are valid: `known: sgd, adam`, of many the most similar to a text.

    Args:
        names: the names that are valid.
        noun: the kind of name, which tells whether `steptime list` lists them.
        typed: the text that the user typed.
    """
    if not names:
        return "there is none"
    if len(names) <= MAX_LISTED_NAMES:
        return "known: " + ", ".join(names)
    nearest_names = by_likeness(typed, names)[:NEAREST_NAMES]
    lister = f": steptime list {noun}s" if noun in LISTED_NOUNS else ""
    return f"known: {', '.join(nearest_names)}, ... ({len(names)} in all{lister})"


def check_choice(noun: str, value: Name, valid_names: Collection[Any], place: str = "") -> Name:
    """Return a name if it is valid; raises `InputError` (`unknown`) if it is not."""
    if value not in valid_names:
        raise unknown(noun, value, valid_names, place)
    return value
