"""What a calibration has measured so far, kept as it is measured: a kill loses one point at most.

The first line of the file holds the ceilings and what they are of, each further one the answer of
a point. A calibration that comes to its end, or is interrupted, takes the file away.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from steptime.core.errors import InputError
from steptime.core.files import append_line, read_lines
from steptime.core.toml_files import format_path
from steptime.core.typed import Above0, Text, typed
from steptime.hardware.device_file import device_from_table
from steptime.records.record import current_time

LONGEST = timedelta(hours=12)  # after which a machine may be another one


class _First(Struct, forbid_unknown_fields=True):
    of: Mapping[str, Any]
    table: Mapping[str, Any]
    at: Annotated[datetime, Meta(tz=True, description="a time with its zone")]


class _Answer(Struct):
    """What is read of the answer of a point."""

    seconds: Mapping[str, Above0] = {}
    disturbed: float = 0.0
    note: Text | None = None


class _Point(Struct, forbid_unknown_fields=True):
    point: Text
    answer: _Answer


Answers = Mapping[str, list[Mapping[str, Any]]]  # of points by name, in their order


def begin(path: Path, of: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    """Keep the ceilings of a machine, `table`, with all that they are `of`."""
    path.unlink(missing_ok=True)
    append_line(path, {"of": of, "table": table, "at": current_time()})


def keep(path: Path, name: str, answer: Mapping[str, Any]) -> None:
    """Keep the answer of a point."""
    append_line(path, {"point": name, "answer": answer})


def resume(path: Path, of: Mapping[str, Any]) -> tuple[dict[str, Any] | None, Answers]:
    """Return the ceilings and answers that are kept; None where too old, or of other software.

    Raises `InputError` for what was edited into something else.
    """
    first, *lines = read_lines(path) or [{}]
    answers: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    if first.get("of") != of:
        return None, answers
    try:
        began = typed(first, _First, format_path(path)).at
        device_from_table(first["table"], f"{format_path(path)}: table")
        for line in lines:
            typed(line, _Point, format_path(path))
            answers[line["point"]].append(line["answer"])
    except InputError as error:
        raise InputError(f"{error}; without this file the calibration begins anew") from None
    if datetime.now(UTC) - began > LONGEST:
        return None, {}
    with path.open("a", encoding="utf-8") as file:
        file.write("\n")  # the last line may be torn
    return first["table"], answers
