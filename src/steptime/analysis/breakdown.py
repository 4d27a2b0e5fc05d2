"""Where the time of a step goes: op by op, kind by kind, measured beside predicted.

The rows of one op are those of `records` whose `scope` names it: measured by a profiler, predicted,
or published. A share is one of the time of a step, and over several networks the mean of theirs, in
which a network without such an op counts as 0.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from statistics import fmean

import numpy as np

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.breakdown_words import SIDES, describe
from steptime.core.errors import InputError, check_choice
from steptime.core.table import Column, Table
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.record import NO_OP
from steptime.records.row import Row, grouped, over
from steptime.records.sides import Sides

NO_OP_NAME = f"{NO_OP} (host, gaps)"
MAX_BARS = 40  # networks of a picture
CONTAINERS = ("while", "conditional", "call")
"""Kinds whose ops run other ops, which a profile lists too: https://openxla.org/xla/operation_semantics."""

NAMES = {  # by what: the SQL of a row's name
    "kind": "CASE pass WHEN 'update' THEN pass ELSE op_kind END",
    "layer": r"CASE pass WHEN 'update' THEN pass ELSE regexp_replace(scope, '[/.][^/.]*$', '') END",
    "op": "CASE pass WHEN 'update' THEN pass ELSE scope END",
}

PUBLISHED = tuple(
    f"published_{name}"
    for name in ("time_share", "traffic_bytes", "intensity_flop_per_byte", "flop_share")
)
CELL = ("workload_key", "platform", "strategy")

_SQL = """
WITH ops AS (
    SELECT * REPLACE (coalesce(op_kind, scope) AS op_kind, coalesce(strategy, '') AS strategy),
        {side} AS side, {by_method} AS by_method,
        method || method_options || coalesce(env ->> 'source_sha256', '') AS way
    FROM records
    WHERE scope <> '' AND coalesce(env ->> 'duplicate_of', '') = ''
        AND NOT (origin = 'published' AND lower(coalesce(op_kind, scope)) IN {containers})
        AND ($1::VARCHAR IS NULL OR workload_key = $1::VARCHAR)
    QUALIFY taken_at IS NOT DISTINCT FROM max(taken_at) OVER (PARTITION BY {cell}, side)
), last AS (
    SELECT * FROM ops QUALIFY way = max(way) OVER (PARTITION BY {cell}, side)
), parts AS (
    SELECT {cell}, side, origin, by_method, scope, op_kind, method_options,
        {peak} AS peak_flop_per_s,
        unnest(['forward', 'backward', 'update', '']) AS pass,
        unnest([forward_s, backward_s, update_s,
            CASE WHEN forward_s IS NULL THEN step_s END]) AS time_s,
        unnest([NULL, NULL, NULL, {published_time_share}]) AS share,
        unnest([forward_flop, flop - forward_flop, NULL, CASE WHEN forward_s IS NULL THEN coalesce(
            flop, {published_traffic_bytes} * {published_intensity_flop_per_byte}) END]) AS flop,
        unnest([traffic_bytes, NULL, NULL, CASE WHEN forward_s IS NULL THEN coalesce(
            traffic_bytes, {published_traffic_bytes}) END]) AS bytes,
        unnest([NULL, NULL, NULL, {published_flop_share}]) AS of_peak,
    FROM last
)
SELECT {cell}, side, origin, by_method, method_options, peak_flop_per_s,
    CASE op_kind WHEN '{no_op}' THEN op_kind ELSE {name} END AS name, {more}
    sum(time_s) AS time_s, sum(share) AS share, sum(flop) AS flop, sum(bytes) AS bytes,
    sum(of_peak * share) AS of_peak, count(DISTINCT scope) AS ops
FROM parts WHERE time_s > 0 OR share IS NOT NULL OR flop > 0
GROUP BY ALL ORDER BY ALL
"""
_OF_STEP = {
    **{name: name for name in CELL},
    "strategy": "coalesce(strategy, '')",
    "side": "if(origin = 'predicted', 'predicted', 'measured')",
    "by_method": "if(origin = 'predicted', method, '')",
    "method_options": "method_options",
}
_STEPS_WITH_OPS = "scope = '' AND workload_key IN (SELECT workload_key FROM flat WHERE scope <> '')"
_NAMES = """
WITH named AS (SELECT workload_key, any_value(name) AS name FROM results GROUP BY 1)
SELECT workload_key, any_value(coalesce(
    named.name, model || coalesce(', batch ' || batch, ''))) AS name
FROM flat LEFT JOIN named USING (workload_key) WHERE scope <> '' GROUP BY 1 ORDER BY min(seq)
"""


def breakdown_table(data: Data, by: str, model: str | None, each: bool) -> Table:
    """Return the time of steps by kind, layer or op; the remainder is of no op.

    Several networks of a platform are compared only if each has its ops on both sides; those with
    ops on one side alone are left out (`omitted_networks`), unless no network has both.
    """
    check_choice("breakdown", by, NAMES)
    cells = _select_cells(_load_cells(data, by), model)
    if model is not None and not cells:
        raise InputError(f"no network with ops here has '{model}' in its name")
    group_keys = ["network", "platform"] if each else ["platform"]
    groups = [_keep_comparable(group) for group in grouped(cells, itemgetter(*group_keys)).values()]
    rows = [row for group in groups for row in _make_rows(group, each)]
    has_platforms = len({row["platform"] for row in rows}) > 1
    headings = (
        *([Column("network")] if each else []),
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
        Column("predicted_peak_fraction", "of peak, predicted", is_spare=True),
    )
    kind_cells = cells if by == "kind" else _select_cells(_load_cells(data, "kind"), model)
    compared_cells = [cell for group in groups for cell in group]
    summary = _summarise(compared_cells, by)
    return Table(
        [heading for heading in headings if any(row.get(heading.key) is not None for row in rows)],
        rows,
        csv_columns=tuple(map(Column, rows[0] if rows else ())),
        summary={**summary, "omitted_networks": len(cells) - len(compared_cells)},
        chart_rows=_list_chart_rows(data, kind_cells),
    )


def _select_cells(cells: list[Row], model: str | None) -> list[Row]:
    text = (model or "").casefold()
    return [cell for cell in cells if text in cell["network"].casefold()]


def _keep_comparable(cells: list[Row]) -> list[Row]:
    """Return the networks with ops on both sides, or else all networks of the first side."""
    paired = [cell for cell in cells if all(side in cell for side in SIDES)]
    if paired:
        return paired
    return [cell for cell in cells if "measured" in cell] or cells


def _load_op_rows(data: Data, by: str, key: str | None = None, extra: str = "") -> list[Row]:
    """Return a row for each cell, side and group, and for each value of the columns `extra`."""
    existing = data.columns("records")
    sql = _SQL.format(
        peak=flat.rate("method_options ->> 'peak_flop_per_s'"),
        side=_OF_STEP["side"],
        by_method=_OF_STEP["by_method"],
        cell=", ".join(CELL),
        name=NAMES[by],
        containers=CONTAINERS,
        more=extra,
        no_op=NO_OP,
        **{name: name if name in existing else "NULL" for name in PUBLISHED},
    )
    return data.rows(sql, key)


def _load_cells(data: Data, by: str) -> list[Row]:
    """Return a row for each network and platform, with the groups of each side by their name.

    Networks are in the order in which they were recorded.
    """
    op_rows = _load_op_rows(data, by)
    if not op_rows:
        return []
    step_times = _load_step_times(data)
    names = {row["workload_key"]: row["name"] for row in data.rows(_NAMES)}
    cells = []
    for place, cell_rows in grouped(op_rows, itemgetter(*CELL)).items():
        cell: Row = dict(zip(CELL, place, strict=True)) | {"network": names[place[0]]}
        for side, rows in grouped(cell_rows, itemgetter("side")).items():
            is_published = rows[0]["origin"] == "published"
            step_s = step_times.get(itemgetter(*_OF_STEP)(rows[0]))
            cell[side] = _make_side(rows, None if is_published else step_s)
        cells.append(cell)
    for same in grouped(cells, itemgetter("network", "platform")).values():
        for cell in same if len(same) > 1 else ():
            cell["network"] += f", {cell['strategy'] or 'no strategy'}"
    positions = {key: position for position, key in enumerate(names)}
    return sorted(cells, key=lambda cell: positions[cell["workload_key"]])


def _load_step_times(data: Data) -> dict[tuple[str, ...], float]:
    """Return the times of whole steps of networks with ops, all samples of one method pooled."""
    way = f"hash({', '.join(_OF_STEP.values())})"
    sides = Sides(data, "step_s", _OF_STEP["side"], way, _STEPS_WITH_OPS, kin="NULL", way="''")
    ids = np.flatnonzero(sides.groups["value"] > 0)
    rows = sides.rows(ids, _OF_STEP, {"step_s": "value"})
    return {itemgetter(*_OF_STEP)(row): row["step_s"] for row in rows}


def _make_side(rows: Sequence[Row], step_s: float | None) -> Row:
    """Return the groups of one side of a cell by name, with the time that their shares are of."""
    groups = {row["name"]: row for row in rows if row["name"] != NO_OP}
    idle_s = sum(row["time_s"] for row in rows if row["name"] == NO_OP)
    ops_s = sum(row["time_s"] or 0.0 for row in groups.values())
    basis_s = _choose_basis_s(step_s, ops_s, idle_s)
    if basis_s:
        shares = {name: (row["time_s"] or 0.0) / basis_s for name, row in groups.items()}
    else:
        shares = {name: row["share"] or 0.0 for name, row in groups.items()}
    return {
        "groups": groups,
        "shares": {**shares, NO_OP_NAME: 1 - sum(shares.values())},
        "basis_s": basis_s or None,
        "no_op_s": basis_s - ops_s if basis_s else None,
        "overhead_share": (ops_s + idle_s) / step_s - 1 if step_s and idle_s else None,
        "is_profiled": bool(step_s) and basis_s != step_s,
        "peak": rows[0]["peak_flop_per_s"],
    }


def _choose_basis_s(step_s: float | None, ops_s: float, idle_s: float) -> float:
    """Return the time that shares are of: the step without a profiler, where it can be trusted.

    It cannot where ops alone take longer under the profiler, or where the profiled step was
    shorter, because other work disturbed the step without it. Then it is the profiled step.
    """
    profiled_s = ops_s + idle_s
    if step_s is None or (idle_s and not ops_s <= step_s <= profiled_s):
        return profiled_s
    return step_s


def _make_rows(cells: Sequence[Row], each: bool) -> list[Row]:
    """Return a row for each group of these cells, the longest first, the time of no op last."""
    names = dict.fromkeys(
        name for cell in cells for side in SIDES if side in cell for name in cell[side]["groups"]
    )
    rows = [_make_row(name, cells, each) for name in (*names, NO_OP_NAME)]
    key = "measured_share" if any("measured" in cell for cell in cells) else "predicted_share"
    return sorted(
        rows, key=lambda row: (row["name"] == NO_OP_NAME, -(row[key] or 0.0), row["name"])
    )


def _make_row(name: str, cells: Sequence[Row], each: bool) -> Row:
    """Return the row of one group: its shares, times and costs over these cells."""
    row: Row = {"network": cells[0]["network"]} if each else {}
    row |= {"platform": cells[0]["platform"], "name": name, "networks": len(cells)}
    for side in SIDES:
        sides = [cell[side] for cell in cells if side in cell]
        parts = [part["groups"][name] for part in sides if name in part["groups"]]
        shares = [part["shares"].get(name, 0.0) for part in sides]
        row[f"{side}_share"] = fmean(shares) if shares else None
        times = (
            [side["no_op_s"] for side in sides]
            if name == NO_OP_NAME
            else [p["time_s"] for p in parts]
        )
        row[f"{side}_s"] = _sum_values(times)
        row["ops"] = max(row.get("ops", 0), sum(part["ops"] for part in parts))
    is_paired = all(side in cell for cell in cells for side in SIDES)
    row["ratio"] = over(row["measured_s"], row["predicted_s"]) if is_paired else None
    row["flop_share"] = _mean_cost_share(name, cells, "flop")
    row["bytes_share"] = _mean_cost_share(name, cells, "bytes")
    row["intensity_flop_per_byte"] = _intensity(name, cells)
    row["peak_fraction"] = _peak_fraction(name, cells, "measured")
    row["predicted_peak_fraction"] = _peak_fraction(name, cells, "predicted")
    return row


def _cost_side(cell: Row) -> Row:
    """Return the side of a cell whose FLOP and bytes count: the prediction, where there is one."""
    side: Row = cell["predicted" if "predicted" in cell else "measured"]
    return side


def _intensity(name: str, cells: Sequence[Row]) -> float | None:
    """Return the FLOP per byte of a group, over the networks in which both are known."""
    groups = [_cost_side(cell)["groups"].get(name) for cell in cells]
    return _ratio_of_sums(groups, "flop", "bytes")


def _ratio_of_sums(groups: Sequence[Row | None], column: str, divisor: str) -> float | None:
    """Return the sum of a column over that of another one, of the groups that have both."""
    pairs = [(group[column], group[divisor]) for group in groups if group]
    complete = [pair for pair in pairs if None not in pair]
    return over(
        _sum_values(value for value, _ in complete), _sum_values(value for _, value in complete)
    )


def _peak_fraction(name: str, cells: Sequence[Row], side: str) -> float | None:
    """Return the share of the peak that a group reaches in the times of a side.

    FLOP and times are of the same networks: those with the group on this side and in the
    prediction, each with its own peak. Without a peak it is the published share.
    """
    flop = 0.0
    peak_flop = 0.0  # that the device could do in the same time
    for cell in cells:
        costs = cell.get("predicted", {})
        group = costs.get("groups", {}).get(name)
        timed = cell.get(side, {}).get("groups", {}).get(name)
        if group and timed and None not in (group["flop"], timed["time_s"], costs["peak"]):
            flop += group["flop"]
            peak_flop += timed["time_s"] * costs["peak"]
    if peak_flop or side == "predicted":
        return over(flop, peak_flop)
    groups = [cell[side]["groups"].get(name) for cell in cells if side in cell]
    return _ratio_of_sums(groups, "of_peak", "share")


def _mean_cost_share(name: str, cells: Sequence[Row], cost: str) -> float | None:
    """Return the mean over networks of a group's share of FLOP or bytes, None where unknown."""
    if name == NO_OP_NAME:
        return None
    shares = []
    for cell in cells:
        groups = _cost_side(cell)["groups"]
        total = _sum_values(group[cost] for group in groups.values())
        if not total:
            continue
        if name not in groups:
            shares.append(0.0)
        elif groups[name][cost] is not None:
            shares.append(groups[name][cost] / total)
    return fmean(shares) if shares else None


def _sum_values(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


def _summarise(cells: Sequence[Row], by: str) -> Row:
    """Return numbers of all rows together: networks, time of no op, cost of profiling."""
    summary: Row = {"by": by, "networks": len(cells)}
    for side in SIDES:
        sides = [cell[side] for cell in cells if side in cell]
        idle_shares = [part["shares"][NO_OP_NAME] for part in sides]
        summary[f"{side}_networks"] = len(sides)
        summary[f"{side}_no_op_share"] = fmean(idle_shares) if idle_shares else None
    measured = [cell["measured"] for cell in cells if "measured" in cell]
    overheads = [side["overhead_share"] for side in measured if side["overhead_share"] is not None]
    summary["profiling_overhead_share"] = fmean(overheads) if overheads else None
    summary["of_profiled_step"] = sum(side["is_profiled"] for side in measured)
    return summary


def _list_chart_rows(data: Data, cells: Sequence[Row]) -> list[Row]:
    """Return the rows of the chart: the passes of one network's ops, or shares of each network."""
    if not 0 < len(cells) <= MAX_BARS:
        return []
    if len(cells) > 1:
        return [
            {
                "network": cell["network"],
                "platform": cell["platform"],
                "side": side,
                "name": name,
                "share": share,
            }
            for cell in cells
            for side in SIDES
            if side in cell
            for name, share in cell[side]["shares"].items()
        ]
    (cell,) = cells
    chart_rows = []
    for row in _load_op_rows(data, "op", cell["workload_key"], "scope, pass, op_kind,"):
        if row["platform"] == cell["platform"] and row["name"] != NO_OP:
            basis_s = cell[row["side"]]["basis_s"]
            fields = {name: row[name] for name in ("side", "scope", "pass", "op_kind", "time_s")}
            share = row["time_s"] / basis_s if basis_s else row["share"]
            chart_rows.append({"network": cell["network"], **fields, "share": share})
    return chart_rows


ANALYSIS = Analysis(
    """Print where the time of a step goes, op by op.

    Measured stands beside predicted. A share is one of a step's time, over
    several networks the mean of theirs. What no op accounts for is the
    host's work and gaps. FLOP, bytes and intensity are those of the
    prediction.
    """,
    breakdown_table,
    describe,
    section="Where the time goes",
    chart="steptime.reports.charts.breakdown:chart",
    settings=(
        Setting("by", f"Rows: {', '.join(NAMES)}.", "kind"),
        Setting("model", "Networks with TEXT in their name.", metavar="TEXT"),
        Setting("each", "Rows of each network, not of their mean.", False, bool),
    ),
)
