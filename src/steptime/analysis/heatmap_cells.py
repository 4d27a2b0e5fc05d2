"""The cells of a heatmap: medians of a quantity over two columns, and what failed there.

A network that failed, or is predicted not to fit, counts as failed: its time would never be seen.
A size in bytes stands even so, because it says why the network does not fit.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import polars as pl

from steptime.core.answer import AnswerRow
from steptime.core.errors import InputError
from steptime.core.units import format_value

Scalar = str | int | float | bool
SIZE_ENDING = "_bytes"
MAX_STEPS = 60  # of an axis; more numbers share steps
IS_OK = pl.col("status").fill_null("ok") == "ok"
VALUE = "value of a network"  # columns of the computation; no hyperparameter has such a name
AXES = ("x", "y", "panel")


class HeatmapCell(AnswerRow, frozen=True, kw_only=True):
    """A cell of the heatmap.

    Attributes:
        x: the value on the horizontal axis.
        y: the value on the vertical axis.
        panel: the value of the panel; None without panels.
        value: the median over the networks of the cell; None if all of them failed.
        networks: number of networks with a value.
        low: the lowest value of the cell's networks; None for one network.
        high: the highest value of the cell's networks; None for one network.
        failed: number of networks that failed or do not fit.
        status: the most frequent status of the failed networks.
        cause: the most frequent cause of the failed networks.
        text: the value as text, with its unit.
    """

    x: Scalar
    y: Scalar
    panel: Scalar | None
    value: float | None
    networks: int
    low: float | None
    high: float | None
    failed: int
    status: str | None
    cause: str | None
    text: str | None


class HeatmapSummary(AnswerRow, frozen=True, kw_only=True):
    """Numbers of all cells together.

    Attributes:
        x: column of the horizontal axis; None if no second hyperparameter varies.
        y: column of the vertical axis.
        panel: column whose values have a panel each.
        value: name of the quantity.
        only: the conditions of `--only`.
        cells: number of cells with a value.
        failed_cells: number of cells without a value.
        failed: number of cells without a value by status.
        partly_failed_cells: number of cells with a value in which some networks failed.
        lowest: the lowest value of a cell.
        highest: the highest value of a cell.
        max_networks: the largest number of networks of a cell.
        widest_ratio: the largest ratio of two networks of a cell.
        binned: columns whose many numbers are merged into steps of equal ratio.
    """

    x: str | None
    y: str | None
    panel: str | None = None
    value: str
    only: list[str] = msgspec.field(default_factory=list)
    cells: int = 0
    failed_cells: int = 0
    failed: dict[str, int] = msgspec.field(default_factory=dict)
    partly_failed_cells: int = 0
    lowest: float | None = None
    highest: float | None = None
    max_networks: int = 0
    widest_ratio: float | None = None
    binned: list[str] = msgspec.field(default_factory=list)


class HeatmapAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of a heatmap, by panel, row and column.

    Attributes:
        rows: one row a cell.
        summary: numbers of all cells together.
        platforms: platforms with a value.
    """

    rows: tuple[HeatmapCell, ...]
    summary: HeatmapSummary
    platforms: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The rows that count.

    Attributes:
        rows: a frame of records, or of results, with all columns that users name.
        schema: the types of those columns.
        hyperparameters: the columns that are hyperparameters.
        quantity: the quantity of the cells.
    """

    rows: pl.LazyFrame
    schema: Mapping[str, pl.DataType]
    hyperparameters: Sequence[str]
    quantity: pl.Expr

    def aggregate(self, *columns: pl.Expr) -> tuple[int | float, ...]:
        """Return the one row of aggregates over these rows."""
        (row,) = self.rows.select(*columns).collect().iter_rows()
        return tuple(row)


def find_cells(
    selection: Selection,
    axes: tuple[str | None, str | None],
    panel: str | None,
    value: str,
    only: Sequence[str],
) -> HeatmapAnswer:
    """Return the medians of a quantity over two columns, a cell each.

    A cell with neither a value nor a failure is no row. Several platforms are panels.

    Args:
        selection: the rows that count.
        axes: the columns across and up; None chooses the hyperparameter that varies most.
        panel: the column of panels; None for one panel.
        value: name of the quantity.
        only: the conditions that hold for the rows.

    Raises:
        InputError: if columns are the same, or if several platforms would share a cell.
    """
    x, y = _choose_axes(selection, axes, panel)
    if x is None or y is None:
        summary = HeatmapSummary(x=x, y=y, panel=panel, value=value, only=list(only))
        return HeatmapAnswer(rows=(), summary=summary)
    are_distinct = len({x, y, panel}) == 3
    if not are_distinct:
        raise InputError("heatmap: --x, --y and --over take columns that differ")
    platforms = _list_platforms(selection)
    # A median over platforms would be of no machine.
    would_share_cells = len(platforms) > 1 and "platform" not in (x, y, panel)
    if would_share_cells and panel:  # the panels are taken, so that they cannot be platforms
        names = ", ".join(platforms)
        raise InputError(f"--over {panel} needs --only platform=NAME: {names}")
    if would_share_cells:
        panel = "platform"
    binned_axes = [name for name in (x, y) if _needs_bins(selection, name)]
    columns = [_bin_axis(selection, n) if n in binned_axes else pl.col(n) for n in (x, y)]
    panel_value = pl.col(panel) if panel else pl.lit(None, pl.String())
    cells = _median_cells(selection, [*columns, panel_value], value)
    summary = HeatmapSummary(
        x=x,
        y=y,
        panel=panel,
        value=value,
        only=list(only),
        binned=binned_axes,
    )
    return HeatmapAnswer(rows=cells, summary=_summarise(summary, cells), platforms=platforms)


def _list_platforms(selection: Selection) -> tuple[str, ...]:
    """Return the platforms with a value, sorted by name."""
    rows_with_value = selection.rows.filter(selection.quantity.is_not_null())
    column = rows_with_value.select(pl.col("platform").unique().sort()).collect()
    return tuple(column["platform"])


def _choose_axes(
    selection: Selection, axes: tuple[str | None, str | None], panel: str | None
) -> list[str | None]:
    """Return the axes; a missing one is the hyperparameter of the most values, or the batch."""
    axis_names = list(axes)
    while None in axis_names:
        level_counts = _count_levels(selection, axis_names, panel)
        widest = max(level_counts, key=lambda name: level_counts[name], default="")
        # A single level is no axis: the others have no more, and the axis stays None.
        if level_counts.get(widest, 0) < 2:
            break
        axis_names[axis_names.index(None)] = widest
    return axis_names


def _count_levels(
    selection: Selection, axes: Sequence[str | None], panel: str | None
) -> dict[str, int | float]:
    """Return the number of values of each column that may be an axis.

    Rows that have the axes chosen so far count.
    """
    names = [
        name
        for name in (*selection.hyperparameters, "batch")
        if name in selection.schema and name not in (*axes, panel)
    ]
    if not names:
        return {}
    present = [pl.col(name).is_not_null() for name in axes if name]
    is_present = pl.all_horizontal(present) if present else pl.lit(value=True)
    counts = [pl.col(name).filter(is_present).drop_nulls().n_unique() for name in names]
    return dict(zip(names, selection.aggregate(*counts), strict=True))


def _needs_bins(selection: Selection, name: str) -> bool:
    """Whether an axis has too many numbers to draw; steps of equal ratio need numbers above 0."""
    column = pl.col(name)
    if not selection.schema[name].is_numeric():
        return False
    count, low = selection.aggregate(
        column.drop_nulls().n_unique().alias("count"), column.min().alias("low")
    )
    return count > MAX_STEPS and low > 0


def _bin_axis(selection: Selection, name: str) -> pl.Expr:
    """Return a column of numbers above 0 in `MAX_STEPS` steps of equal ratio."""
    column = pl.col(name)
    low, high = selection.aggregate(column.min().alias("low"), column.max().alias("high"))
    # A number becomes the nearest of a geometric series from low to high.
    log_ratio = math.log(high / low) / (MAX_STEPS - 1)
    step = _round((column / low).log() / log_ratio)
    return _round((step * log_ratio).exp() * low)


def _round(number: pl.Expr) -> pl.Expr:
    """Return the nearest whole number, of halves the one further from 0."""
    return number.round(mode="half_away_from_zero")


def _median_cells(
    selection: Selection, axes: Sequence[pl.Expr], value: str
) -> tuple[HeatmapCell, ...]:
    """Return the cells, sorted by panel, row and column: a median over their networks."""
    number = pl.col("value")
    has_spread = number.count() > 1
    cells = (
        _median_networks(selection, axes, value)
        .group_by(AXES, maintain_order=True)
        .agg(
            number.median(),
            number.count().alias("networks"),
            pl.when(has_spread).then(number.min()).alias("low"),
            pl.when(has_spread).then(number.max()).alias("high"),
            pl.col("status").count().alias("failed"),
            *(_mode_of(pl.col(name)).alias(name) for name in ("status", "cause")),
        )
        .filter((pl.col("networks") > 0) | (pl.col("failed") > 0))
        .sort("panel", "y", "x", nulls_last=True)
        .collect()
    )
    return tuple(_make_cell(value, cell) for cell in cells.iter_rows(named=True))


def _median_networks(selection: Selection, axes: Sequence[pl.Expr], value: str) -> pl.LazyFrame:
    """Return a row for each network: the median of its records, or why it failed."""
    # A step that ran out of memory still has a size, but no time that counts.
    counted_value = pl.col(VALUE) if value.endswith(SIZE_ENDING) else pl.col(VALUE).filter(IS_OK)
    # A network that succeeded once did not fail.
    succeeded = pl.col(VALUE).filter(IS_OK).count() > 0
    return (
        selection.rows.select(
            *(axis.alias(name) for axis, name in zip(axes, AXES, strict=True)),
            "platform",
            "workload_key",
            "status",
            "cause",
            selection.quantity.alias(VALUE),
        )
        .filter(pl.col("x").is_not_null() & pl.col("y").is_not_null())
        .group_by(*AXES, "platform", "workload_key", maintain_order=True)
        .agg(
            counted_value.median().alias("value"),
            *(
                pl.when(~succeeded).then(_mode_of(pl.col(name).filter(~IS_OK))).alias(name)
                for name in ("status", "cause")
            ),
        )
    )


def _mode_of(texts: pl.Expr) -> pl.Expr:
    """Return the most frequent text of a group, of equally frequent ones the first in order."""
    return texts.drop_nulls().mode().sort().first()


def _make_cell(value: str, cell: Mapping[str, Scalar | None]) -> HeatmapCell:
    number = cell["value"]
    text = None if number is None else format_value(value, number)
    return msgspec.convert({**cell, "text": text}, HeatmapCell)


def _summarise(summary: HeatmapSummary, rows: Sequence[HeatmapCell]) -> HeatmapSummary:
    """Return a summary with the numbers of all cells together."""
    cells = [row for row in rows if row.value is not None]
    failures = Counter(str(row.status) for row in rows if row.value is None)
    ratios = [row.high / row.low for row in cells if row.low and row.high and row.low > 0]
    values = [row.value for row in cells if row.value is not None]
    return msgspec.structs.replace(
        summary,
        cells=len(cells),
        failed_cells=sum(failures.values()),
        failed=dict(failures),
        partly_failed_cells=sum(row.failed > 0 for row in cells),
        lowest=min(values, default=None),
        highest=max(values, default=None),
        max_networks=max((row.networks for row in cells), default=0),
        widest_ratio=max(ratios, default=None),
    )
