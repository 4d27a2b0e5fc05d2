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
from steptime.core.errors import InputError, one_of
from steptime.core.table import Column, Table
from steptime.core.units import counted
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.record import NO_OP
from steptime.records.row import Row, grouped, over
from steptime.records.sides import Sides

REST = f"{NO_OP} (host, gaps)"
MOST_BARS = 40  # networks of a picture
CONTAINERS = ("while", "conditional", "call")
"""Kinds whose ops run other ops, which a profile lists too: https://openxla.org/xla/operation_semantics."""

NAMES = {  # by what: the SQL of a row's name
    "kind": "CASE pass WHEN 'update' THEN pass ELSE op_kind END",
    "layer": r"CASE pass WHEN 'update' THEN pass ELSE regexp_replace(scope, '[/.][^/.]*$', '') END",
    "op": "CASE pass WHEN 'update' THEN pass ELSE scope END",
}
SIDES = ("measured", "predicted")
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
_WHOLE = "scope = '' AND workload_key IN (SELECT workload_key FROM flat WHERE scope <> '')"
_NAMES = """
WITH named AS (SELECT workload_key, any_value(name) AS name FROM results GROUP BY 1)
SELECT workload_key, any_value(coalesce(
    named.name, model || coalesce(', batch ' || batch, ''))) AS name
FROM flat LEFT JOIN named USING (workload_key) WHERE scope <> '' GROUP BY 1 ORDER BY min(seq)
"""


def breakdown_table(data: Data, by: str, model: str | None, each: bool) -> Table:
    """Return where the time of steps goes, by kind, layer or op; the rest is of no op."""
    one_of("breakdown", by, NAMES)
    cells = _chosen(_cells(data, by), model)
    if model is not None and not cells:
        raise InputError(f"no network with ops here has '{model}' in its name")
    told = ["network", "platform"] if each else ["platform"]
    groups = grouped(cells, itemgetter(*told)).values()
    rows = [row for held in groups for row in _rows(held, each)]
    several = (Column("platform"),) if len({row["platform"] for row in rows}) > 1 else ()
    heads = (
        *([Column("network")] if each else []),
        *several,
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
    shown = [one for one in heads if any(row.get(one.key) is not None for row in rows)]
    of_kind = cells if by == "kind" else _chosen(_cells(data, "kind"), model)
    beside = _drawn(data, of_kind)
    return Table(shown, rows, csv_columns=tuple(map(Column, rows[0] if rows else ())),
                 summary=_summary(cells, by), chart_rows=beside)  # fmt: skip


def _chosen(cells: list[Row], model: str | None) -> list[Row]:
    wanted = (model or "").casefold()
    return [one for one in cells if wanted in one["network"].casefold()]


def _found(data: Data, by: str, key: str | None = None, more: str = "") -> list[Row]:
    """Return a row for each cell, side and group, and for each value of the columns `more`."""
    known = data.columns("records")
    sql = _SQL.format(
        peak=flat.rate("method_options ->> 'peak_flop_per_s'"),
        side=_OF_STEP["side"], by_method=_OF_STEP["by_method"],
        cell=", ".join(CELL), name=NAMES[by], containers=CONTAINERS, more=more, no_op=NO_OP,
        **{name: name if name in known else "NULL" for name in PUBLISHED},
    )  # fmt: skip
    return data.rows(sql, key)


def _cells(data: Data, by: str) -> list[Row]:
    """Return a row for each network and platform, with the groups of each side by their name.

    Networks are in the order in which they were recorded.
    """
    found = _found(data, by)
    if not found:
        return []
    steps = _steps(data)
    names = {row["workload_key"]: row["name"] for row in data.rows(_NAMES)}
    cells = []
    for at, held in grouped(found, itemgetter(*CELL)).items():
        cell: Row = dict(zip(CELL, at, strict=True)) | {"network": names[at[0]]}
        for side, rows in grouped(held, itemgetter("side")).items():
            way = itemgetter(*_OF_STEP)(rows[0])
            cell[side] = _side(rows, None if rows[0]["origin"] == "published" else steps.get(way))
        cells.append(cell)
    places = {key: place for place, key in enumerate(names)}
    return sorted(cells, key=lambda one: places[one["workload_key"]])


def _steps(data: Data) -> dict[tuple[str, ...], float]:
    """Return what whole steps of networks with ops take, all samples of one way together."""
    way = f"hash({', '.join(_OF_STEP.values())})"
    sides = Sides(data, "step_s", _OF_STEP["side"], way, _WHOLE, kin="NULL", way="''")
    ids = np.flatnonzero(sides.groups["value"] > 0)
    rows = sides.rows(ids, _OF_STEP, {"step_s": "value"})
    return {itemgetter(*_OF_STEP)(row): row["step_s"] for row in rows}


def _side(rows: Sequence[Row], step_s: float | None) -> Row:
    """Return the groups of one side of a cell by name, with the time that their shares are of.

    That is the step without a profiler; where ops alone take longer under it, or the whole step was
    shorter (other work disturbed the rest), it is the profiled one.
    """
    named = {row["name"]: row for row in rows if row["name"] != NO_OP}
    idle_s = sum(row["time_s"] for row in rows if row["name"] == NO_OP)
    ops_s = sum(row["time_s"] or 0.0 for row in named.values())
    profiled_s = ops_s + idle_s
    trusted = step_s is not None and (not idle_s or ops_s <= step_s <= profiled_s)
    whole_s = step_s if step_s is not None and trusted else profiled_s
    if whole_s:
        shares = {name: (row["time_s"] or 0.0) / whole_s for name, row in named.items()}
    else:
        shares = {name: row["share"] or 0.0 for name, row in named.items()}
    return {
        "named": named,
        "shares": {**shares, REST: 1 - sum(shares.values())},
        "whole_s": whole_s or None,
        "rest_s": whole_s - ops_s if whole_s else None,
        "overhead_share": profiled_s / step_s - 1 if step_s and idle_s else None,
        "inflated": bool(step_s and not trusted),
        "peak": rows[0]["peak_flop_per_s"],
    }


def _rows(cells: Sequence[Row], each: bool) -> list[Row]:
    """Return a row for each group of these cells, the longest first, what is of no op last."""
    names = dict.fromkeys(n for one in cells for s in SIDES if s in one for n in one[s]["named"])
    rows = [_row(name, cells, each) for name in (*names, REST)]
    key = "measured_share" if any("measured" in one for one in cells) else "predicted_share"
    return sorted(rows, key=lambda row: (row["name"] == REST, -(row[key] or 0.0), row["name"]))


def _row(name: str, cells: Sequence[Row], each: bool) -> Row:
    held = {side: [one for one in cells if side in one] for side in SIDES}
    row: Row = {"network": cells[0]["network"]} if each else {}
    row |= {"platform": cells[0]["platform"], "name": name, "networks": len(cells)}
    found: dict[str, Row] = {}
    for side in SIDES:
        sides = [one[side] for one in held[side]]
        parts = [one["named"][name] for one in sides if name in one["named"]]
        row[f"{side}_share"] = (
            fmean(one["shares"].get(name, 0.0) for one in sides) if sides else None
        )
        times = [one["rest_s"] for one in sides] if name == REST else [p["time_s"] for p in parts]
        row[f"{side}_s"] = _sum(times)
        found[side] = {n: _sum(p[n] for p in parts) for n in ("flop", "bytes", "of_peak", "share")}
        row["ops"] = max(row.get("ops", 0), sum(p["ops"] for p in parts))
    same = held["measured"] == held["predicted"]
    row["ratio"] = over(row["measured_s"], row["predicted_s"]) if same else None
    costs = found["predicted"] if held["predicted"] else found["measured"]
    row["flop_share"], row["bytes_share"] = (_cost_share(name, cells, n) for n in ("flop", "bytes"))
    row["intensity_flop_per_byte"] = over(costs["flop"], costs["bytes"])
    peak = _sum(one["predicted"]["peak"] for one in held["predicted"][:1])
    for side, key in zip(SIDES, ("peak_fraction", "predicted_peak_fraction"), strict=True):
        row[key] = over(over(costs["flop"], row[f"{side}_s"]), peak)
    if peak is None:
        row["peak_fraction"] = over(found["measured"]["of_peak"], found["measured"]["share"])
    return row


def _cost_share(name: str, cells: Sequence[Row], cost: str) -> float | None:
    """Return the mean over networks of a group's share of FLOP or bytes, None where unknown."""
    shares = []
    for one in cells:
        parts = one[SIDES[1] if SIDES[1] in one else SIDES[0]]["named"]
        whole = _sum(part[cost] for part in parts.values())
        if whole and (name not in parts or parts[name][cost] is not None):
            shares.append((parts[name][cost] or 0.0) / whole if name in parts else 0.0)
    return fmean(shares) if shares and name != REST else None


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _summary(cells: Sequence[Row], by: str) -> Row:
    """Return what is true of all rows: networks, what is of no op, what profiling costs."""
    found: Row = {"by": by, "networks": len(cells)}
    for side in SIDES:
        sides = [one[side] for one in cells if side in one]
        found[f"{side}_networks"] = len(sides)
        rest = [one["shares"][REST] for one in sides]
        found[f"{side}_no_op_share"] = fmean(rest) if rest else None
    measured = [one["measured"] for one in cells if "measured" in one]
    slower = [one["overhead_share"] for one in measured if one["overhead_share"] is not None]
    found["profiling_overhead_share"] = fmean(slower) if slower else None
    return found | {"of_profiled_step": sum(one["inflated"] for one in measured)}


def _drawn(data: Data, cells: Sequence[Row]) -> list[Row]:
    """Return what the chart needs: each op's passes of one network, or shares of each network."""
    if not 0 < len(cells) <= MOST_BARS:
        return []
    if len(cells) > 1:
        return [
            {"network": one["network"], "platform": one["platform"], "side": side, "name": name}
            | {"share": share}
            for one in cells
            for side in SIDES
            if side in one
            for name, share in one[side]["shares"].items()
        ]
    (one,) = cells
    drawn = []
    for row in _found(data, "op", one["workload_key"], "scope, pass, op_kind,"):
        if row["platform"] == one["platform"] and row["name"] != NO_OP:
            whole_s = one[row["side"]]["whole_s"]
            share = row["time_s"] / whole_s if whole_s else row["share"]
            told = {name: row[name] for name in ("side", "scope", "pass", "op_kind", "time_s")}
            drawn.append({"network": one["network"], **told, "share": share})
    return drawn


def _says(table: Table) -> list[str]:
    found = table.summary
    if not table.rows:
        return [
            "no op is measured, predicted or published here",
            "'steptime run MODEL --profile --out DIR' measures them",
            "'steptime predict --in DIR --by-op' predicts them",
        ]
    said = []
    for side in SIDES:
        key = f"{side}_share"
        networks = found[f"{side}_networks"]
        if not networks:
            continue
        ranked = sorted((r for r in table.rows if r[key] is not None), key=lambda row: -row[key])
        told = [n for n in ("network", "platform") if len({r.get(n) for r in ranked}) > 1]
        places = [", ".join(row[name] for name in told) for row in ranked[:3]]
        parts = ", ".join(
            row["name"] + (f" ({place})" if place else "") + f" {100 * row[key]:.2f} %"
            for row, place in zip(ranked, places, strict=False)
        )
        several = networks > 1 and "network" not in told
        mean = f" in the mean of {counted(networks, 'network')}" if several else ""
        known = side == "predicted" or any(row["measured_s"] is not None for row in table.rows)
        said.append(f"Of the {side if known else 'published'} step{mean}: {parts}.")
    if (slower := found["profiling_overhead_share"]) is not None:
        said.append(f"A step under the profiler took {1 + slower:.3g} times as long as without it.")
    if inflated := found["of_profiled_step"]:
        said.append(
            f"{counted(inflated, 'network')} whose steps without profiler took longer than with it "
            "or less than the ops alone: shares are of the profiled step."
        )
    if not found["predicted_networks"]:
        said.append(
            "No prediction has its ops here: 'steptime predict --in DIR --by-op' adds them."
        )
    return said


ANALYSIS = Analysis(
    """Print where the time of a step goes, op by op.

    Measured stands beside predicted. A share is one of a step's time, over
    several networks the mean of theirs. What no op accounts for is the
    host's work and gaps. FLOP, bytes and intensity are those of the
    prediction.
    """,
    breakdown_table,
    _says,
    section="Where the time goes",
    chart="steptime.reports.charts.breakdown:chart",
    settings=(
        Setting("by", f"Rows: {', '.join(NAMES)}.", "kind"),
        Setting("model", "Networks with TEXT in their name.", metavar="TEXT"),
        Setting("each", "Rows of each network, not of their mean.", False, bool),
    ),
)
