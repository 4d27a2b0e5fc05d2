"""The sources of a report's numbers: platforms, methods with their options, environments."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl

from steptime.core.units import first_of
from steptime.records.data import Data
from steptime.records.record import UTC_ENDINGS
from steptime.reports.networks import ENVIRONMENT, text_of

MAX_VALUES = 8  # of a setting


def describe_sources(data: Data) -> str:
    """Return a line: platforms, phases, types, optimizers, and the first and last time."""
    parts = [
        _join_first(_list_distinct_values(data, name))
        for name in ("platform", "phase", "dtype", "optimizer")
    ]
    taken_at = pl.col("taken_at")
    ends = data.scan().select(
        taken_at.min().alias("first"),
        taken_at.max().alias("last"),
    )
    times = dict.fromkeys(format_time(end) for end in ends.collect().row(0) if end)
    return " · ".join(filter(None, (*parts, " to ".join(times))))


def format_time(taken_at: str) -> str:
    """Return a time of a record as people read it: "2026-01-01 09:30 UTC", or "2026-01-01".

    A time without a zone has none here either.
    """
    time = taken_at[:16].replace("T", " ")
    return f"{time} UTC" if taken_at.endswith(UTC_ENDINGS) else time


def list_sources(data: Data) -> list[tuple[str, str]]:
    """Return methods with all values of their options, and the environments of the records."""
    keys = ["origin", "method", "method_version"]
    options = pl.col("method_options").unique()
    methods = data.scan().group_by(keys).agg(options)
    lines = []
    for origin, method, version, texts in methods.sort(keys).collect().iter_rows():
        name = f"{origin} with {method} {version}"
        lines.append((name, _describe_options(texts)))
    return lines + _environment_lines(data)


def _describe_options(texts: Sequence[str]) -> str:
    """Describe options of a method and all their values: `compile = true or false, runs = 5`."""
    values_by_option: dict[str, list[str]] = {}
    for text in sorted(texts):
        options = json.loads(text)
        for name, value in options.items():
            is_set = value not in (None, "", {}, [])  # false and 0 are values
            if is_set:
                values_by_option.setdefault(name, []).append(text_of(value))
    return ", ".join(
        f"{name} = {_join_first(dict.fromkeys(values), ' or ')}"
        for name, values in values_by_option.items()
    )


def _environment_lines(data: Data) -> list[tuple[str, str]]:
    """Return the environments of the records by setting, the most frequent values first."""
    names = [name for name in ENVIRONMENT if name != "load"]  # which differs from run to run
    counts = {name: Counter[str]() for name in names}
    environments = data.scan().group_by("env").len()
    for text, number in environments.sort("env").collect().iter_rows():
        env = json.loads(text)
        for name in names:
            value = env.get(name)
            if value is None:
                continue
            value_text = value if isinstance(value, str) else json.dumps(value)
            counts[name][value_text] += number
    lines = []
    for name in names:
        if counts[name]:
            heading = name.replace("_", " ")
            lines.append((heading, _join_first(_by_count(counts[name]))))
    return lines


def _by_count(counts: Counter[str]) -> list[str]:
    """Return the values that are counted, the most frequent first."""
    return sorted(counts, key=lambda value: (-counts[value], value))


def present_time() -> str:
    """Return the present time: "2026-01-01 09:30 UTC"."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _list_distinct_values(data: Data, column: str) -> list[Any]:
    """Return the values of a column of the records, the most frequent first."""
    values = data.scan().select(column).drop_nulls().group_by(column).len()
    return values.sort("len", column, descending=[True, False]).collect()[column].to_list()


def _join_first(values: Iterable[Any], between: str = ", ") -> str:
    """Return the first values as a text: `a, b and 3 more`."""
    return first_of((str(value) for value in values if value != ""), MAX_VALUES, between)
