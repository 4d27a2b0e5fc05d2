"""What a calibration has measured so far, kept as it is measured: a kill loses one point at most.

The first line of the file holds the ceilings and what they are of, each further one the answer of
a point. A calibration that comes to its end, or is interrupted, takes the file away.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from steptime.core.files import append_line, read_lines
from steptime.core.record import now

LONGEST = timedelta(hours=12)  # after which a machine may be another one

Answers = Mapping[str, list[Mapping[str, Any]]]  # of points by name, in their order


def begin(path: Path, of: Mapping[str, Any], table: Mapping[str, Any]) -> None:
    """Keep the ceilings of a machine, `table`, with all that they are `of`."""
    path.unlink(missing_ok=True)
    append_line(path, {"of": of, "table": table, "at": now()})


def keep(path: Path, name: str, answer: Mapping[str, Any]) -> None:
    """Keep the answer of a point."""
    append_line(path, {"point": name, "answer": answer})


def resume(path: Path, of: Mapping[str, Any]) -> tuple[dict[str, Any] | None, Answers]:
    """Return the ceilings and answers that are kept; None where too old, or of other software."""
    first, *lines = read_lines(path) or [{}]
    at = datetime.fromisoformat(first.get("at", datetime.min.replace(tzinfo=UTC).isoformat()))
    answers: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    if first.get("of") != of or datetime.now(UTC) - at > LONGEST:
        return None, answers
    for line in lines:
        answers[line["point"]].append(line["answer"])
    with path.open("a", encoding="utf-8") as file:
        file.write("\n")  # the last line may be torn
    return first["table"], answers
