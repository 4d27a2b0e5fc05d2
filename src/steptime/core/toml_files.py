"""TOML files that users own: read with one line for each fault, and tables as their text."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.json_types import JsonObject

DATA = Path(__file__).parents[1] / "data"


def format_path(path: Path) -> str:
    """Return a path for a message."""
    text = str(path)
    return text if text.isprintable() and len(text) <= 300 else shorten(text)


def read_toml(path: Path) -> JsonObject:
    """Return the table of a TOML file; raises `InputError` with one line if there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{format_path(path)}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{format_path(path)}: not a text file in UTF-8") from None
    except RecursionError:
        raise InputError(f"{format_path(path)}: not TOML: nested too deeply") from None
    except ValueError as error:  # a TOMLDecodeError, a NUL in the path, an endless number
        raise InputError(f"{format_path(path)}: not TOML: {error}") from error


def read_toml_head(path: Path) -> JsonObject:
    """Return the values of a TOML file that stand before its first table; raises `InputError`.

    Parsing the head of a long file takes a fraction of the time.
    """
    try:
        head, _, _tables = path.read_text(encoding="utf-8").partition("\n[")
        return tomllib.loads(head)
    except (OSError, ValueError, RecursionError):  # the whole file may be right, or says the fault
        return read_toml(path)


@cache
def read_packaged_toml(name: str) -> Mapping[str, Any]:
    """Return the table of one of the package's own files, `data/NAME`."""
    return read_toml(DATA / name)


def toml_text(table: Mapping[str, Any]) -> str:
    """Return a table as TOML: its values first, then each inner table; `None` is left out."""
    inner_tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [
        *_format_lines({key: value for key, value in table.items() if key not in inner_tables})
    ]
    for key, value in inner_tables.items():
        lines += ["", f"[{_format_key(key)}]", *_format_lines(value)]
    return "\n".join(lines) + "\n"


def _format_lines(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if value is not None:
            yield f"{_format_key(key)} = {_format_value(value)}"


def _format_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _format_value(key)


def _format_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(_format_lines(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_format_value, value)) + "]"
    if isinstance(value, bool | str):  # TOML's texts are JSON's, but for the DEL character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"TOML has no {type(value).__name__}")
