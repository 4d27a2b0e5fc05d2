"""Rows of speed-ups, made of the columns of their pairs."""

from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from steptime.analysis.comparison.speedup_answer import SpeedupRow
from steptime.analysis.comparison.speedups import OUTCOMES, Speedups, plain_values
from steptime.core.tables.json_tables import join_columns
from steptime.records.groups.group_members import Ids
from steptime.records.groups.record_groups import finite_cells
from steptime.records.row import RUN_OPTIONS, Row, describe_value


def list_difference_texts(speedups: Speedups, indices: Ids) -> list[str]:
    """Return in words in what the runs of pairs differ: "threads 1 | 2"; "" for nothing."""
    a = speedups.a[indices]
    b = speedups.b[indices]
    difference_index, differences = speedups.pairing.list_differences(a, b)
    return [", ".join(differences[index]["differ"]) for index in difference_index.tolist()]


def make_speedup_rows(speedups: Speedups, indices: Ids) -> list[SpeedupRow]:
    """Return pairs as rows: name, speed-up, both sides, features, and in what they differ."""
    baseline_groups = speedups.a[indices]
    compared_groups = speedups.b[indices]
    option_names = [name for name in RUN_OPTIONS if name in speedups.features.columns]
    baseline_columns = _list_side_columns(speedups, baseline_groups)
    columns: dict[str, Sequence[Any]] = {
        **make_point_columns(speedups, indices),
        "outcome": [OUTCOMES[outcome] for outcome in speedups.outcomes[indices]],
        "differ": list_difference_texts(speedups, indices),
        "features": _list_features(speedups, speedups.features.columns, compared_groups),
        "against_options": _list_features(speedups, option_names, baseline_groups),
        **_list_side_columns(speedups, compared_groups),
        **{f"against_{name}": column for name, column in baseline_columns.items()},
    }
    return [
        SpeedupRow(quantity=speedups.groups.quantity, against=speedups.pairing.against, **row)
        for row in join_columns(columns)
    ]


def _list_features(speedups: Speedups, names: Sequence[str], ids: Ids) -> list[Row]:
    """Return some features of each group, a row a group."""
    columns = {name: plain_values(speedups.cells(name, ids)) for name in names}
    return join_columns(columns) or [{}] * len(ids)


def _list_side_columns(speedups: Speedups, ids: Ids) -> dict[str, Sequence[Any]]:
    """Return the value of each group with its interval, and the host."""
    groups = speedups.groups
    hosts = groups.facts(ids, {"host": pl.col("host").replace("", None)})
    return {
        "value": finite_cells(groups.columns.value[ids]),
        "low": finite_cells(groups.columns.low[ids]),
        "high": finite_cells(groups.columns.high[ids]),
        "host": [hosts[group]["host"] for group in ids.tolist()],
    }


def make_point_columns(speedups: Speedups, indices: Ids) -> dict[str, Sequence[Any]]:
    """Return the name, level, speed-up and verdict of pairs."""
    b = speedups.b[indices]
    # The batch stands last in a name.
    features = [name for name in speedups.varying_features if name not in ("family", "batch")]
    if "batch" in speedups.varying_features:
        features.append("batch")
    families = speedups.cells("family", b).to_list()
    cells = [plain_values(speedups.cells(name, b)) for name in features]
    names = [
        _name_network(family, zip(features, values, strict=True))
        for family, *values in zip(families, *cells, strict=True)
    ]
    return {
        "name": names,
        "level": speedups.groups.level_of(b).tolist(),
        "speedup": speedups.ratio[indices].tolist(),
        "verdict": speedups.verdict[indices].tolist(),
    }


def _name_network(family: str, features: Iterable[tuple[str, Any]]) -> str:
    """Return a network's family with its features: "fc layers 4, batch 64"."""
    words = ", ".join(describe_value(name, value) for name, value in features if value is not None)
    return f"{family} {words}".strip()
