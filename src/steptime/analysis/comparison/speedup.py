"""Speed-ups: the levels of a column against one of them, network by network.

All pairs are columns (`speedups`); rows are made of those that are shown.
"""

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import polars as pl

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.comparison.pair_rows import structs_on_demand
from steptime.analysis.comparison.speedup_answer import LevelSpeedups, SpeedupAnswer, SpeedupRow
from steptime.analysis.comparison.speedup_rows import (
    list_difference_texts,
    make_point_columns,
    make_speedup_rows,
)
from steptime.analysis.comparison.speedup_words import describe_speedups
from steptime.analysis.comparison.speedups import (
    Speedups,
    compute_speedups,
    find_worst_level,
    plain_values,
    summarise_by_value,
    summarise_distribution,
)
from steptime.analysis.frame_rows import MAX_ROWS_IN_MEMORY
from steptime.core.errors import check_choice, unknown
from steptime.core.tables.json_tables import join_columns
from steptime.core.tables.table import Column, LazySequence, Table, describe_hidden_rows
from steptime.records.data import Data
from steptime.records.groups.group_members import Grouping, Ids
from steptime.records.groups.record_groups import RecordGroups
from steptime.records.pair_keys import (
    LEVEL_OPTIONS,
    cell_columns,
    check_quantity,
    find_level,
    quantity_value,
    sort_levels,
)
from steptime.records.pooled_step import IS_STEP
from steptime.records.row import Row
from steptime.records.statistics import rank_correlation

EXTREME_COUNT = 5  # lowest and highest speed-ups of the summary
MAX_PRINTED_PAIRS = 12
HISTOGRAM_BARS = 24
MAX_POINTS = 3000  # of a picture; of more pairs some are drawn, evenly spread
EXTREME_COLUMNS = ("name", "level", "speedup", "verdict")
ORIGINS = ("measured", "published", "predicted")
SUCCEEDED = pl.col("status") == "ok"


class Levels(NamedTuple):
    """The levels that can be compared.

    Attributes:
        origin: the first origin with several levels; "" if there is none.
        names: its levels in order.
        has_common_dtype: whether some data type is in all of them.
    """

    origin: str = ""
    names: Sequence[str] = ()
    has_common_dtype: bool = True


def speedup_table(
    data: Data,
    by: str,
    against: str | None,
    quantity: str,
    x: str | None,
    color: str | None,
    any_dtype: bool,
) -> Table:
    """Return a row for each network that `against` and another level of the column `by` both have.

    `against` is by default the level that is worst in the mean. Rows stand from both ends to the
    middle; `chart_rows` are the points and bars of a picture. Types are told apart, unless the
    levels have none in common.

    Raises:
        InputError: for a column, level, quantity or hyperparameter that is not there.
    """
    level = find_level(data, by)
    check_quantity(data, quantity)
    levels = _find_levels(data, quantity, level)
    # Levels without a common data type can only be paired across types.
    crosses_dtypes = any_dtype or (not levels.has_common_dtype and by != "dtype")
    if against is not None and against not in levels.names:
        raise unknown(by, against, levels.names, "--against")
    grouping = Grouping(
        quantity=quantity,
        level=level,
        cell=cell_columns(data, by, (by, "dtype") if crosses_dtypes else (by,)),
        takes_part=(pl.col("origin") == levels.origin) & IS_STEP & SUCCEEDED,
        # Options that follow from the level: partners may differ in them.
        level_options=LEVEL_OPTIONS.get(by, (by,)),
    )
    groups = RecordGroups(data, grouping)
    baseline = against or find_worst_level(groups)
    speedups = compute_speedups(data, groups, baseline, by) if baseline else None
    if baseline is None or speedups is None:
        answer = SpeedupAnswer(by_column=by, against=baseline, quantity=quantity)
        return Table((Column("name", "network"),), [], summary=answer.summary())
    axes = _choose_axes(speedups, x, color)
    answer = SpeedupAnswer(
        by_column=by,
        against=baseline,
        quantity=quantity,
        origin=levels.origin,
        any_dtype=crosses_dtypes,
        x=axes.x,
        color=axes.color,
        distribution=summarise_distribution(speedups),
        by=summarise_by_value(speedups, axes.x),
        levels=_summarise_levels(speedups, axes.x),
        failed=_count_failed(data, level, groups.levels),
    )
    return _make_table(data, answer, speedups)


class _ChartAxes(NamedTuple):
    """The hyperparameters of a picture: across, and in colours; None for none."""

    x: str | None
    color: str | None


def _choose_axes(speedups: Speedups, x: str | None, color: str | None) -> _ChartAxes:
    """Return the axes that the user names, else the first varying and the strongest feature."""
    features = speedups.features.columns
    x_feature = _check_feature(x, "--x", features) or next(iter(speedups.varying_features), None)
    color_feature = _check_feature(color, "--color", features)
    return _ChartAxes(x_feature, color_feature or _find_strongest_feature(speedups, x_feature))


def _find_levels(data: Data, quantity: str, level: pl.Expr) -> Levels:
    """Return the levels of the first origin that has several."""
    has_value = quantity_value(quantity) > 0
    rows = (
        data.scan()
        .filter(IS_STEP & SUCCEEDED & has_value)
        .select("origin", "dtype", level.alias("level"))
        .filter(pl.col("level").is_not_null())
        .unique(maintain_order=True)
        .collect()
    )
    # The best origin with several levels: measured before published before predicted.
    for origin in ORIGINS:
        dtypes_by_level = _group_dtypes(rows.filter(pl.col("origin") == origin))
        if len(dtypes_by_level) > 1:
            common_dtypes = set.intersection(*dtypes_by_level.values())
            return Levels(origin, sort_levels(dtypes_by_level), bool(common_dtypes))
    return Levels()


def _group_dtypes(rows: pl.DataFrame) -> dict[str, set[str]]:
    """Return the data types of each level."""
    dtypes_by_level: dict[str, set[str]] = {}
    for level, dtype in rows["level", "dtype"].iter_rows():
        dtypes_by_level.setdefault(level, set()).add(dtype)
    return dtypes_by_level


def _check_feature(name: str | None, option: str, features: Collection[str]) -> str | None:
    """Return a hyperparameter that an option names, after a check that it is there."""
    return None if name is None else check_choice("hyperparameter", name, features, option)


def _find_strongest_feature(speedups: Speedups, x: str | None) -> str | None:
    """Return the number, other than `x`, that goes most with speed-ups."""
    # A column that cannot be correlated (texts, gaps) counts 0, so that some name is returned.
    correlations = {name: 0.0 for name in speedups.varying_features if name != x}
    ratio_varies = np.ptp(speedups.ratio) > 0
    for name in correlations:
        column = speedups.cells(name, speedups.b)
        is_number = column.dtype.is_numeric() or column.dtype == pl.Boolean()
        if is_number and not column.null_count() and ratio_varies:
            numbers = column.cast(pl.Float64()).to_numpy()
            correlations[name] = abs(rank_correlation(numbers, speedups.ratio))
    return max(correlations, key=lambda name: correlations[name], default=None)


def _summarise_levels(speedups: Speedups, x: str | None) -> list[LevelSpeedups]:
    """Return the speed-ups of each level."""
    summaries = []
    for level in speedups.levels:
        level_speedups = speedups.select(
            speedups.level_indices == speedups.groups.level_index(level)
        )
        summaries.append(
            LevelSpeedups(
                level=level,
                distribution=summarise_distribution(level_speedups),
                by=summarise_by_value(level_speedups, x),
            )
        )
    return summaries


def _count_failed(data: Data, level: pl.Expr, levels: Sequence[str]) -> dict[str, int]:
    """Return the number of networks of each level that have no value because they failed."""
    counts = (
        data.scan()
        .filter(IS_STEP & ~SUCCEEDED)
        .group_by(level.alias("level"))
        .agg(pl.col("workload_key").n_unique())
        .filter(pl.col("level").is_in(list(levels)))
        .sort("level")
        .collect()
    )
    return dict(counts.iter_rows())


def _make_table(data: Data, answer: SpeedupAnswer, speedups: Speedups) -> Table:
    """Return the table of the pairs, from the lowest and the highest to the middle."""
    ascending = np.argsort(speedups.ratio, kind="stable")
    printed_indices = _order_ends_first(ascending)[: data.max_rows]
    # There can be 10^6 pairs: only the first rows stay in memory, the others are made on each pass.
    structs = structs_on_demand(printed_indices, partial(make_speedup_rows, speedups))
    rows = LazySequence(
        len(structs),
        make_items=lambda: (row.to_columns() for row in structs),
        first_items=[row.to_columns() for row in structs[:MAX_ROWS_IN_MEMORY]],
    )
    extremes = {
        "lowest": _list_extremes(speedups, answer.quantity, ascending[:EXTREME_COUNT]),
        "highest": _list_extremes(speedups, answer.quantity, ascending[::-1][:EXTREME_COUNT]),
    }
    return Table(
        _list_columns(answer, speedups, printed_indices),
        rows,
        f"Speed-ups against {answer.against}, lowest and highest first",
        footnotes=describe_hidden_rows(len(speedups) - len(rows)),
        max_rows=MAX_PRINTED_PAIRS,
        summary={**answer.summary(), "extremes": extremes},
        chart_rows=_list_chart_rows(speedups, answer.x, answer.color),
        structs=structs,
    )


def _list_columns(answer: SpeedupAnswer, speedups: Speedups, indices: Ids) -> list[Column]:
    """Return the columns of the printed table, without those in which no pair has anything."""
    has_levels = len(speedups.levels) > 1
    columns = [Column("name", "network")]
    if has_levels:
        columns.append(Column("level"))
    if any(list_difference_texts(speedups, indices)):
        columns.append(Column("differ", "a | b", is_spare=True))
    columns += [
        Column(f"against_{answer.quantity}", answer.against),
        Column(answer.quantity, "its own" if has_levels else speedups.levels[0]),
        Column("speedup", "speed-up"),
    ]
    has_verdicts = any(verdict is not None for verdict in speedups.verdict[indices])
    if has_verdicts:
        columns.append(Column("verdict"))
    return columns


def _list_extremes(speedups: Speedups, quantity: str, indices: Ids) -> list[Row]:
    """Return pairs as the summary has them: name, level, speed-up, verdict and both values."""
    names = (*EXTREME_COLUMNS, f"against_{quantity}", quantity)
    rows = [row.to_columns() for row in make_speedup_rows(speedups, indices)]
    return [{name: row[name] for name in names} for row in rows]


def _order_ends_first(order: Ids) -> Ids:
    """Return indices in the order lowest, highest, second lowest, ..."""
    ends_first = np.empty_like(order)
    half = (len(order) + 1) // 2
    ends_first[::2] = order[:half]
    ends_first[1::2] = order[half:][::-1]
    return ends_first


def _list_chart_rows(speedups: Speedups, x: str | None, color: str | None) -> list[Row]:
    """Return the points of a picture, and the bars of the histogram of each level.

    The chart tells them apart by their keys.
    """
    return [*_list_points(speedups, x, color), *_list_bars(speedups)]


def _list_points(speedups: Speedups, x: str | None, color: str | None) -> list[Row]:
    """Return a point for each pair; of very many for some, evenly spread over the speed-ups."""
    order = np.argsort(speedups.ratio, kind="stable")
    pairs_per_point = -(-len(order) // MAX_POINTS)  # rounded up
    indices = order[::pairs_per_point]
    columns = make_point_columns(speedups, indices)
    # A pair stands at the x and in the color of its compared group, not of its baseline's.
    compared_groups = speedups.b[indices]
    for axis, name in (("x", x), ("color", color)):
        cells = plain_values(speedups.cells(name, compared_groups)) if name else None
        columns[axis] = [None] * len(indices) if cells is None else cells
    return join_columns(columns)


def _list_bars(speedups: Speedups) -> list[Row]:
    """Return the bars of the histogram of each level that hold a network."""
    logs = np.log(speedups.ratio)
    width = max(float(np.ptp([*logs, 0.0])), 0.1) / HISTOGRAM_BARS
    # Bars of log(speed-up) whose edges are multiples of the width: equal speeds (0) are an edge.
    edges = width * np.arange(math.floor(logs.min() / width), math.floor(logs.max() / width) + 2)
    bars: list[Row] = []
    for level in speedups.levels:
        is_level = speedups.level_indices == speedups.groups.level_index(level)
        counts, _ = np.histogram(logs[is_level], edges)
        bars += [
            {
                "level": level,
                "low": math.exp(edges[bar]),
                "high": math.exp(edges[bar + 1]),
                "networks": int(counts[bar]),
            }
            for bar in np.flatnonzero(counts)
        ]
    return bars


ANALYSIS = Analysis(
    """Compare platforms, stacks or predictions, network by network.

    Every level of a column stands against one of them. A speed-up above 1
    means that the level is better than the other: the distribution, its
    geometric mean, and medians by a hyperparameter.
    """,
    speedup_table,
    describe_speedups,
    row_struct=SpeedupRow,
    section="Speed-ups",
    chart="steptime.reports.charts.speedup:chart",
    settings=(
        Setting(
            "by",
            "Compare the values (levels) of a column: platform, gpu, threads, dtype, folder, ...",
            "platform",
            metavar="COLUMN",
        ),
        Setting(
            "against",
            "The level with which all others are compared. Default: the slowest (or worst).",
            metavar="VALUE",
        ),
        Setting(
            "quantity",
            "The quantity to compare: step_s, published_examples_per_s, peak_bytes, ...",
            "step_s",
        ),
        Setting(
            "x",
            "Show the median speed-up for each value of this hyperparameter.",
            metavar="HYPERPARAMETER",
        ),
        Setting("color", "The hyperparameter that colours the picture.", metavar="HYPERPARAMETER"),
        Setting(
            "any_dtype",
            "Also pair different data types. Default: only if the levels have none in common.",
            default=False,
            kind=bool,
        ),
    ),
    folders=64,
)
