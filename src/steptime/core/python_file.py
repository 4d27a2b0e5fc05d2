"""A name in a Python file that a person typed, `file.py:NAME`: run here, and nowhere else."""

import runpy
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten, unknown


def is_code(text: str) -> bool:
    """Whether a text is `file.py:NAME`."""
    file, _, name = text.rpartition(":")
    return file.endswith(".py") and name.isidentifier()


def run_file(text: str, place: str) -> Any:
    """Return the function that `file.py:NAME` defines; the file is run.

    Raises `InputError`, which begins with `place`, for a file that is absent or does not run, and
    for a name that is not a function of it.
    """
    file, _, name = text.rpartition(":")
    if not Path(file).is_file():
        raise InputError(f"{place} {shorten(text)}: there is no file {shorten(file)}")
    try:
        names = runpy.run_path(file)
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"{place} {shorten(text)}: {line_of(error)}") from error
    functions = [key for key, value in names.items() if callable(value)]
    if name not in functions:
        raise unknown("function", name, functions, f"{place} {shorten(file)}")
    return names[name]


def line_of(error: Exception) -> str:
    """Return an error of somebody's code as one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]
