"""Kinds of values: how a parameter of a question is written on the command line.

A parameter's annotation is its type for Python and, by `Annotated`, its `Kind` for the command
line: `Length = Annotated[int | str, Kind("N", names=("--length", "--seq-len"))]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten


@dataclass(frozen=True)
class Kind:
    """How a value is written on the command line.

    Args:
        metavar: what stands for the value in a help, such as `FILE`.
        names: names of the option where they are not the parameter's, such as `("--out", "-o")`.
        is_argument: the value stands without an option's name.
        completes: `module:attribute` of a table or a function with the names that a shell offers.
        choices: the only names that are valid, for a shell and the documents.
        panel: the heading under which a long help lists the option.
    """

    metavar: str = ""
    names: tuple[str, ...] = ()
    is_argument: bool = False
    completes: str = ""
    choices: tuple[str, ...] = ()
    panel: str = ""


File = str | PathLike[str]
Settings = Mapping[str, object] | Sequence[str]
"""`NAME=VALUE` texts, or a table of names and values."""


def text_of(value: Any) -> Any:
    """Return a value of Python as the text that the command line would have.

    Numbers become texts, sequences become texts with commas, tuples in them are joined by colons:
    `[1, 2]` is `1,2` and `[(4, "ethernet-25")]` is `4:ethernet-25`. None, truth values and objects
    such as a `Device` stay.
    """
    if isinstance(value, list | tuple | range):
        # A pair such as (8, "nvlink-4") is written 8:nvlink-4.
        items = [":".join(map(str, item)) if isinstance(item, tuple) else item for item in value]
        are_plain = all(isinstance(item, str | int | float | PathLike) for item in items)
        return ",".join(map(str, items)) if are_plain else value
    is_flag = isinstance(value, bool)  # which Python counts among the numbers
    if isinstance(value, int | float | PathLike) and not is_flag:
        return str(value)
    return value


def setting_texts(settings: Settings | None) -> list[str]:
    """Return settings as `NAME=VALUE` texts; truth values are written `true` and `false`.

    Raises:
        InputError: for a number or another value that holds no settings.
    """
    if settings is None:
        return []
    if isinstance(settings, str):
        return [settings]
    if isinstance(settings, Mapping):
        return [
            f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            for name, value in settings.items()
        ]
    if not isinstance(settings, Sequence):
        raise InputError(f"--option: must be a table of names and values, not {shorten(settings)}")
    return [str(text) for text in settings]


def paths_of(value: File | Sequence[File]) -> list[Path]:
    """Return a path of Python, or several, as a list of paths."""
    values = [value] if isinstance(value, str | PathLike) else value
    return [Path(item) for item in values]
