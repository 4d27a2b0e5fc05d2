"""Errors that a user can mend: one line with what is wrong, where, and the nearest valid name."""

from collections.abc import Collection, Iterable
from pathlib import PurePath
from typing import Any, TypeVar

from steptime.core.spelling import by_likeness, meant_by

SHOWN_CHARACTERS = 60
_MOST_MEANT, _MOST_KNOWN = 8, 18  # names in a question back, and in a list
Name = TypeVar("Name")


class InputError(Exception):
    """Wrong input; its message is the one line that the user reads. The command exits with 2."""


class OutsideError(Exception):
    """What is not the fault of input: a full disk, a silent scheduler. The command exits with 1."""


class InterruptError(KeyboardInterrupt):
    """Ctrl-C where something was kept; its message is the line that says what. Exits with 130."""


def one_line(text: str) -> str:
    """Return `text` with nothing that moves a terminal's cursor: no escape, no end of a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\u00a0" else "?" for c in text)


def shorten(value: object) -> str:
    """Return `value` as a user typed it, in quotes, on one line, at most 60 characters of it."""
    try:
        text = str(value) if isinstance(value, str | PurePath) else repr(value)
    except (ValueError, RecursionError):  # Python does not write out 4300 digits, or deep nesting
        text = f"{type(value).__name__} too long to show"
    text = one_line(text)
    return f"'{text[:SHOWN_CHARACTERS]}{'...' * (len(text) > SHOWN_CHARACTERS)}'"


def unknown(what: str, value: object, known: Iterable[str], where: str = "") -> InputError:
    """Return the error for an unknown name: what, where, and the nearest valid names."""
    names = list(known)
    close = meant_by(str(value), names)
    if 0 < len(close) <= _MOST_MEANT:
        said = [f"'{name}'" for name in close]
        hint = f"did you mean {' or '.join(filter(None, (', '.join(said[:-1]), said[-1])))}?"
    elif not names:
        hint = "there is none"
    elif len(names) <= _MOST_KNOWN:
        hint = "known: " + ", ".join(names)
    else:
        first = by_likeness(str(value), names)[:8]
        hint = f"known: {', '.join(first)}, ... ({len(names)} in all)"
    place = f"{where}: " if where else ""
    return InputError(f"{place}unknown {what} {shorten(value)}; {hint}")


def one_of(what: str, value: Name, known: Collection[Any], where: str = "") -> Name:
    """Return a name that is among the known ones; raises `InputError` for another (`unknown`)."""
    if value not in known:
        raise unknown(what, value, known, where)
    return value
