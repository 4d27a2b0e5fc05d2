"""Where the time of a step goes: op by op, kind by kind, measured beside predicted.

The rows of one op are those of records whose `scope` names it: measured by a profiler, predicted,
or published. A share is one of the time of a step, and over several networks the mean of theirs, in
which a network without such an op counts as 0.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.breakdown_cells import (
    GROUP_NAMES,
    MEASURED,
    NO_OP_NAME,
    PREDICTED,
    SIDES,
    NetworkOps,
    OpGroup,
    Side,
    list_cells,
    list_op_passes,
    sum_present,
)
from steptime.analysis.breakdown_words import describe_breakdown
from steptime.core.answer import AnswerRow
from steptime.core.errors import InputError, check_choice
from steptime.core.tables.table import Column, Row, Table
from steptime.records.data import Data
from steptime.records.row import divide, group_by

MAX_BARS = 40  # networks of a picture
Amount = Literal["time_s", "time_share", "flop", "traffic_bytes", "peak_time_share"]


class BreakdownRow(AnswerRow, frozen=True, kw_only=True):
    """A group of ops over one network or several.

    Attributes:
        network: name of the network; None for the mean of several.
        platform: name of the platform.
        name: name of the group: a kind, a layer or an op.
        networks: number of networks.
        measured_share: its share of the measured step, the mean over the networks.
        measured_s: its measured time.
        ops: number of its ops.
        predicted_share: its share of the predicted step.
        predicted_s: its predicted time.
        ratio: measured / predicted time.
        flop_share: its share of the FLOP.
        bytes_share: its share of the traffic.
        intensity_flop_per_byte: FLOP per byte of traffic.
        peak_fraction: share of the peak that it reaches in its measured time.
        predicted_peak_fraction: share of the peak that it reaches in its predicted time.
    """

    network: str | None
    platform: str
    name: str
    networks: int
    measured_share: float | None
    measured_s: float | None
    ops: int
    predicted_share: float | None
    predicted_s: float | None
    ratio: float | None
    flop_share: float | None
    bytes_share: float | None
    intensity_flop_per_byte: float | None
    peak_fraction: float | None
    predicted_peak_fraction: float | None


class BreakdownSummary(AnswerRow, frozen=True, kw_only=True):
    """Numbers of all rows together.

    Attributes:
        by: what a row is: kind, layer or op.
        networks: number of networks that are compared.
        measured_networks: number of compared networks with measured ops.
        measured_no_op_share: share of the measured step that no op accounts for.
        predicted_networks: number of networks with predicted ops.
        predicted_no_op_share: share of the predicted step that no op accounts for.
        profiling_overhead_share: how much longer a step takes under the profiler.
        of_profiled_step: number of networks whose shares refer to the step under the profiler.
        omitted_networks: number of networks with ops on one side only, which are left out.
    """

    by: str
    networks: int
    measured_networks: int
    measured_no_op_share: float | None
    predicted_networks: int
    predicted_no_op_share: float | None
    profiling_overhead_share: float | None
    of_profiled_step: int
    omitted_networks: int


class BreakdownAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The time of steps by group.

    Attributes:
        rows: the groups of each platform, or of each network, the longest first.
        summary: numbers of all rows together.
    """

    rows: tuple[BreakdownRow, ...]
    summary: BreakdownSummary


def break_down(cells: Sequence[NetworkOps], kind: str, *, by_network: bool) -> BreakdownAnswer:
    """Return the time of steps by group; the remainder is of no op.

    Several networks of a platform are compared only if each has its ops on both sides; those with
    ops on one side alone are left out, unless no network has both.

    Args:
        cells: networks on platforms, with their ops by `kind`.
        kind: what a row is: kind, layer or op.
        by_network: whether each network has rows of its own.
    """
    rows: list[BreakdownRow] = []
    compared: list[NetworkOps] = []
    tables = group_by(cells, lambda cell: (cell.network if by_network else None, cell.platform))
    for table_cells in tables.values():
        comparable = _keep_comparable(table_cells)  # drops one-sided networks
        compared += comparable
        rows += _make_rows(comparable, by_network)
    omitted_networks = len(cells) - len(compared)
    summary = _summarise(compared, kind, omitted_networks)
    return BreakdownAnswer(rows=tuple(rows), summary=summary)


def _keep_comparable(cells: list[NetworkOps]) -> list[NetworkOps]:
    """Return the networks with ops on both sides, or else all networks of the first side."""
    paired = [cell for cell in cells if len(cell.sides) == len(SIDES)]
    measured = [cell for cell in cells if MEASURED in cell.sides]
    return paired or measured or cells


def _make_rows(cells: Sequence[NetworkOps], by_network: bool) -> list[BreakdownRow]:
    """Return a row for each group of these cells, the longest first, the time of no op last."""
    names = {name for cell in cells for side in cell.sides.values() for name in side.groups}
    rows = [_make_row(name, cells, by_network) for name in (*names, NO_OP_NAME)]
    is_measured = any(MEASURED in cell.sides for cell in cells)

    def sort_key(row: BreakdownRow) -> tuple[bool, float, str]:
        share = row.measured_share if is_measured else row.predicted_share
        return row.name == NO_OP_NAME, -(share or 0.0), row.name  # False sorts first

    return sorted(rows, key=sort_key)


def _make_row(name: str, cells: Sequence[NetworkOps], by_network: bool) -> BreakdownRow:
    """Return the row of one group: its shares, times and costs over these cells."""
    measured = _list_sides(cells, MEASURED)
    predicted = _list_sides(cells, PREDICTED)
    measured_s = _sum_times(name, measured)
    predicted_s = _sum_times(name, predicted)
    # `ratio` is only meaningful if both sums are over the same networks.
    is_paired = all(len(cell.sides) == len(SIDES) for cell in cells)
    costs = [_cost_side(cell).groups.get(name) for cell in cells]
    return BreakdownRow(
        network=cells[0].network if by_network else None,
        platform=cells[0].platform,
        name=name,
        networks=len(cells),
        measured_share=_mean([side.shares.get(name, 0.0) for side in measured]),
        measured_s=measured_s,
        ops=max(_count_ops(name, measured), _count_ops(name, predicted)),
        predicted_share=_mean([side.shares.get(name, 0.0) for side in predicted]),
        predicted_s=predicted_s,
        ratio=divide(measured_s, predicted_s) if is_paired else None,
        flop_share=_mean_cost_share(name, cells, "flop"),
        bytes_share=_mean_cost_share(name, cells, "traffic_bytes"),
        intensity_flop_per_byte=_ratio_of_sums(costs, "flop", "traffic_bytes"),
        peak_fraction=_find_peak_fraction(name, cells, MEASURED),
        predicted_peak_fraction=_find_peak_fraction(name, cells, PREDICTED),
    )


def _list_sides(cells: Sequence[NetworkOps], side: str) -> list[Side]:
    return [cell.sides[side] for cell in cells if side in cell.sides]


def _sum_times(name: str, sides: Sequence[Side]) -> float | None:
    """Return the time of a group over the networks, None if it is unknown."""
    if name == NO_OP_NAME:
        return sum_present(side.no_op_s for side in sides)
    return sum_present(side.groups[name].time_s for side in sides if name in side.groups)


def _count_ops(name: str, sides: Sequence[Side]) -> int:
    return sum(side.groups[name].ops for side in sides if name in side.groups)


def _mean(numbers: Sequence[float]) -> float | None:
    return fmean(numbers) if numbers else None


def _cost_side(cell: NetworkOps) -> Side:
    """Return the side of a cell whose FLOP and bytes count: the prediction, if there is one."""
    return cell.sides[PREDICTED if PREDICTED in cell.sides else MEASURED]


def _ratio_of_sums(
    groups: Sequence[OpGroup | None], amount: Amount, divisor: Amount
) -> float | None:
    """Return the sum of an amount over that of another one, of the groups that have both."""
    complete = [
        group
        for group in groups
        if group and getattr(group, amount) is not None and getattr(group, divisor) is not None
    ]
    amount_sum = sum_present(getattr(group, amount) for group in complete)
    divisor_sum = sum_present(getattr(group, divisor) for group in complete)
    return divide(amount_sum, divisor_sum)


def _find_peak_fraction(name: str, cells: Sequence[NetworkOps], side: str) -> float | None:
    """Return the share of the peak that a group reaches in the times of a side.

    FLOP and times are of the same networks: those with the group on this side and in the
    prediction, each with its own peak. Without a peak it is the published share.
    """
    sums = _sum_flop(name, cells, side)
    if sums.peak_flop:
        return divide(sums.flop, sums.peak_flop)
    if side == PREDICTED:
        return None  # a prediction has FLOP, never a published share
    # Published shares of the peak: `peak_time_share` is the product with the share of the time.
    published_steps = _list_sides(cells, side)
    groups = [step.groups.get(name) for step in published_steps]  # of one step of each network
    return _ratio_of_sums(groups, "peak_time_share", "time_share")


class _FlopSums(NamedTuple):
    """FLOP of a group over networks, and those that the devices could do in the same time."""

    flop: float
    peak_flop: float


def _sum_flop(name: str, cells: Sequence[NetworkOps], side: str) -> _FlopSums:
    """Return the predicted FLOP of a group, and its times on a side multiplied by the peaks."""
    flop = 0.0  # of the prediction: a measurement of an op has none
    peak_flop = 0.0  # what the device could have computed in the time of the ops
    for cell in cells:
        if PREDICTED not in cell.sides or side not in cell.sides:
            continue
        peak_flop_per_s = cell.sides[PREDICTED].peak_flop_per_s
        predicted_group = cell.sides[PREDICTED].groups.get(name)
        timed_group = cell.sides[side].groups.get(name)
        if predicted_group is None or predicted_group.flop is None or peak_flop_per_s is None:
            continue
        if timed_group is not None and timed_group.time_s is not None:
            flop += predicted_group.flop
            peak_flop += timed_group.time_s * peak_flop_per_s
    return _FlopSums(flop, peak_flop)


def _mean_cost_share(name: str, cells: Sequence[NetworkOps], cost: Amount) -> float | None:
    """Return the mean over networks of a group's share of FLOP or bytes, None where unknown."""
    if name == NO_OP_NAME:
        return None
    shares = []
    for cell in cells:
        side = _cost_side(cell)
        network_cost = side.totals[cost]
        if not network_cost:
            continue
        group = side.groups.get(name)
        if group is None:
            shares.append(0.0)  # the network has no such op
        elif getattr(group, cost) is not None:
            shares.append(getattr(group, cost) / network_cost)
    return _mean(shares)


def _summarise(cells: Sequence[NetworkOps], kind: str, omitted_networks: int) -> BreakdownSummary:
    """Return numbers of all rows together: networks, time of no op, cost of profiling."""
    measured, predicted = (_list_sides(cells, side) for side in SIDES)
    overheads = [side.overhead_share for side in measured if side.overhead_share is not None]
    return BreakdownSummary(
        by=kind,
        networks=len(cells),
        measured_networks=len(measured),
        measured_no_op_share=_mean([side.shares[NO_OP_NAME] for side in measured]),
        predicted_networks=len(predicted),
        predicted_no_op_share=_mean([side.shares[NO_OP_NAME] for side in predicted]),
        profiling_overhead_share=_mean(overheads),
        of_profiled_step=sum(side.is_profiled for side in measured),
        omitted_networks=omitted_networks,
    )


def breakdown_table(data: Data, by: str, model: str | None, by_network: bool) -> Table:
    """Return the table of `break_down`.

    Raises:
        InputError: for an unknown kind of groups, and if no network has `model` in its name.
    """
    check_choice("breakdown", by, GROUP_NAMES)
    cells = _select_cells(list_cells(data, by), model)
    if model is not None and not cells:
        raise InputError(f"no network with ops here has '{model}' in its name")
    answer = break_down(cells, by, by_network=by_network)
    hidden = () if by_network else ("network",)
    rows = [
        {name: value for name, value in row.to_dict().items() if name not in hidden}
        for row in answer.rows
    ]
    has_platforms = len({row.platform for row in answer.rows}) > 1
    headings = (
        *([Column("network")] if by_network else []),
        *([Column("platform")] if has_platforms else []),
        Column("name", by),
        Column("ops", is_spare=True),
        Column("measured_share", "of measured step", form=".2%"),
        Column("predicted_share", "of predicted step", form=".2%"),
        Column("measured_s", "measured"),
        Column("predicted_s", "predicted"),
        Column("ratio", "measured / predicted"),
        Column("flop_share", "of FLOP", form=".1%"),
        Column("bytes_share", "of bytes", form=".1%", is_spare=True),
        Column("intensity_flop_per_byte", "intensity", is_spare=True),
        Column("peak_fraction", "of peak", is_spare=True),
        Column("predicted_peak_fraction", "of peak (predicted)", is_spare=True),
    )
    kind_cells = cells if by == "kind" else _select_cells(list_cells(data, "kind"), model)  # chart
    return Table(
        [heading for heading in headings if any(row[heading.key] is not None for row in rows)],
        rows,
        csv_columns=tuple(map(Column, rows[0] if rows else ())),
        summary=answer.summary.to_dict(),
        chart_rows=_list_chart_rows(data, kind_cells),
        structs=answer.rows,
    )


def _select_cells(cells: list[NetworkOps], model: str | None) -> list[NetworkOps]:
    text = (model or "").casefold()
    return [cell for cell in cells if text in cell.network.casefold()]


def _list_chart_rows(data: Data, cells: Sequence[NetworkOps]) -> list[Row]:
    """Return the rows of the chart: the passes of one network's ops, or shares of each network."""
    if not 0 < len(cells) <= MAX_BARS:
        return []
    # Several networks have a bar each, of kinds of ops; a single network is drawn op by op.
    if len(cells) > 1:
        return [
            {"network": cell.network, "platform": cell.platform, "side": side}
            | {"name": name, "share": share}
            for cell in cells
            for side in SIDES
            if side in cell.sides
            for name, share in cell.sides[side].shares.items()
        ]
    (cell,) = cells
    chart_rows: list[Row] = []
    for op in list_op_passes(data.scan(), cell):
        basis_s = cell.sides[op.side].basis_s
        row = {
            "network": cell.network,
            "side": op.side,
            "scope": op.scope,
            "pass": op.pass_name,
            "op_kind": op.op_kind,
            "time_s": op.time_s,
            "share": divide(op.time_s, basis_s) if basis_s else op.time_share,
        }
        chart_rows.append(row)
    return chart_rows


ANALYSIS = Analysis(
    """Print where the time of a step goes, op by op.

    Measured stands beside predicted. A share is one of a step's time, over
    several networks the mean of theirs. What no op accounts for is the
    host's work and gaps. FLOP, bytes and intensity are those of the
    prediction.
    """,
    breakdown_table,
    describe_breakdown,
    row_struct=BreakdownRow,
    summary_struct=BreakdownSummary,
    section="Where the time goes",
    chart="steptime.reports.charts.breakdown:chart",
    settings=(
        Setting("by", f"What a row is: {', '.join(GROUP_NAMES)}.", "kind"),
        Setting("model", "Only networks with TEXT in their name.", metavar="TEXT"),
        Setting("by_network", "Show each network, not the mean of all.", default=False, kind=bool),
    ),
)
