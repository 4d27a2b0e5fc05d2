"""Where the numbers of a report are from: platforms, methods with their options, environments."""

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from steptime.core.units import first_of
from steptime.records.data import Data
from steptime.records.record import UTC_ENDINGS
from steptime.reports.networks import ENVIRONMENT, text_of

ENVIRONMENTS = """
    SELECT json_extract_string(env, ?::VARCHAR[]) AS told, sum(n)::BIGINT AS n
    FROM (SELECT env, count(*) AS n FROM flat GROUP BY env) GROUP BY 1 ORDER BY 2 DESC, 1
"""
MOST = 8  # values of one thing


def where(data: Data) -> str:
    """Return one line: platforms, phases, types, optimizers, and when."""
    parts = [_listed(_distinct(data, name)) for name in ("platform", "phase", "dtype", "optimizer")]
    ends = data.one("SELECT min(taken_at), max(taken_at) FROM records")
    times = dict.fromkeys(format_time(end) for end in ends if end)
    return " · ".join(filter(None, (*parts, " to ".join(times))))


def format_time(taken_at: str) -> str:
    """Return a time of a record as people read it: "2026-01-01 09:30 UTC", or "2026-01-01".

    A time without a zone has none here either.
    """
    time = taken_at[:16].replace("T", " ")
    return f"{time} UTC" if taken_at.endswith(UTC_ENDINGS) else time


def sources(data: Data) -> list[tuple[str, str]]:
    """Return methods with all values of their options, and what the records say of machines."""
    lines = []
    for one in data.rows(
        "SELECT origin, method, method_version, list(DISTINCT method_options) AS options "
        "FROM records GROUP BY ALL ORDER BY ALL"
    ):
        told: dict[str, list[str]] = {}
        for options in map(json.loads, sorted(one["options"])):
            for name, value in options.items():
                if value not in (None, "", {}, []):
                    told.setdefault(name, []).append(text_of(value))
        method = f"{one['origin']} with {one['method']} {one['method_version']}"
        said = (f"{name} = {_listed(dict.fromkeys(v), ' or ')}" for name, v in told.items())
        lines.append((method, ", ".join(said)))
    names = [name for name in ENVIRONMENT if name != "load"]
    every = data.rows(ENVIRONMENTS, [f"$.{name}" for name in names])
    for name, values in zip(names, zip(*(row["told"] for row in every), strict=True), strict=False):
        often: Counter[str] = Counter()
        for value, row in zip(values, every, strict=True):
            often[value] += row["n"] if value is not None else 0
        if known := [value for value, n in often.most_common() if n]:
            lines.append((name.replace("_", " "), _listed(known)))
    return lines


def made_now() -> str:
    """Return the time at which a report is made."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _distinct(data: Data, what: str) -> list[Any]:
    """Return the values of an expression over the records, the most frequent first."""
    sql = f"SELECT {what} AS value, count(*) AS n FROM records WHERE value IS NOT NULL"  # noqa: S608  # ours
    return [row["value"] for row in data.rows(f"{sql} GROUP BY value ORDER BY n DESC, value")]


def _listed(values: Iterable[Any], between: str = ", ") -> str:
    return first_of((str(value) for value in values if value != ""), MOST, between)
