"""A log of a running calibration, written point by point: a kill loses one point at most.

The first line of the file holds the ceilings and the software they were measured with, each
further line the answer of a point. The file is deleted when the calibration ends or is interrupted.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from steptime.core.errors import InputError
from steptime.core.files import append_line, read_lines
from steptime.core.signatures.typed import Above0, Text, convert_table
from steptime.core.toml_files import format_path
from steptime.hardware.device_file import device_from_table
from steptime.records.record import current_time

MAX_AGE = timedelta(hours=12)  # after which the machine may have changed


class _LogHeading(Struct, forbid_unknown_fields=True):
    of: Mapping[str, Any]
    table: Mapping[str, Any]
    taken_at: Annotated[datetime, Meta(tz=True, description="a time with its zone")]


class _PointAnswer(Struct):
    """The checked keys of the answer of a point."""

    seconds: Mapping[str, Above0] = {}
    disturbed: float = 0.0
    note: Text | None = None


class _PointLine(Struct, forbid_unknown_fields=True):
    point: Text
    answer: _PointAnswer


Answers = Mapping[str, list[Mapping[str, Any]]]  # by the name of the point, in order


def begin_log(path: Path, software: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    """Start a new log with the ceilings of a machine.

    Args:
        path: the file of the log, replaced if it exists.
        software: the machine and the versions of software that were measured.
        table: the table of the device file.
    """
    path.unlink(missing_ok=True)
    append_line(path, {"of": software, "table": table, "taken_at": current_time()})


def append_answer(path: Path, name: str, answer: Mapping[str, Any]) -> None:
    """Append the answer of a point to the log."""
    append_line(path, {"point": name, "answer": answer})


def resume_log(path: Path, software: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, Answers]:
    """Read the ceilings and answers of a log.

    The ceilings are None, and the answers empty, if the log is too old or of other software.

    Raises:
        InputError: if somebody edited the file so that it is no log.
    """
    heading, *point_lines = read_lines(path) or [{}]
    answers: dict[str, list[Mapping[str, Any]]] = defaultdict(list)  # by point
    # Another version or driver may measure other times.
    has_other_software = heading.get("of") != software
    if has_other_software:
        return None, answers
    try:
        start_time = convert_table(heading, _LogHeading, format_path(path)).taken_at
        device_from_table(heading["table"], f"{format_path(path)}: table")  # raises for a wrong one
        for point_line in point_lines:
            convert_table(point_line, _PointLine, format_path(path))
            answers[point_line["point"]].append(point_line["answer"])
    except InputError as error:
        raise InputError(f"{error}; without this file the calibration begins anew") from None
    is_too_old = datetime.now(UTC) - start_time > MAX_AGE
    if is_too_old:
        return None, {}
    with path.open("a", encoding="utf-8") as file:
        file.write("\n")  # the last line may be torn
    return heading["table"], answers
