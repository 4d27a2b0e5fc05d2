"""Errors that a user can mend: one line with what is wrong, where, and the nearest valid name."""

import difflib
from collections.abc import Collection, Iterable
from pathlib import PurePath
from typing import Any, TypeVar

SHOWN_CHARACTERS = 60
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
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + "..."
    return f"'{text}'"


def nearest(value: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `value`, whatever its case, or None.

    A name that holds `value` as whole parts comes first: `k40` is near to `tesla-k40`, not `a40`.
    """
    by_lower = {name.lower(): name for name in known}
    wanted = value.lower()[:200]
    holding = [name for name in by_lower if f"-{wanted}-" in f"-{name}-"]
    found = holding or difflib.get_close_matches(wanted, by_lower, n=1)
    return by_lower[min(found, key=len)] if found else None


def unknown(
    what: str,
    value: object,
    known: Iterable[str],
    where: str = "",
    alike: Collection[str] | None = None,
) -> InputError:
    """Return the error for an unknown name: what, where, and the nearest valid name.

    The nearest is one of those that are `alike`, if they are given.
    """
    names = list(known)
    close = nearest(str(value), names if alike is None else alike)
    if close:
        hint = f"did you mean '{close}'?"
    elif not names:
        hint = "there is none"
    elif len(names) <= 12:
        hint = "known: " + ", ".join(names)
    else:
        hint = "known: " + ", ".join(names[:8]) + f", ... ({len(names)} in all)"
    place = f"{where}: " if where else ""
    return InputError(f"{place}unknown {what} {shorten(value)}; {hint}")


def one_of(what: str, value: Name, known: Collection[Any], where: str = "") -> Name:
    """Return a name that is among the known ones; raises `InputError` for another (`unknown`)."""
    if value not in known:
        raise unknown(what, value, known, where)
    return value
