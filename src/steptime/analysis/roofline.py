"""Networks or ops under the ceilings of their devices (Williams, Waterman, Patterson 2009)."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.ceilings import DRAM, RATES, ceiling, ceilings_of, computed_in, ridges
from steptime.core.errors import InputError, unknown
from steptime.core.table import Column, Table
from steptime.core.units import counted, format_value, percent, si
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.row import Row, grouped, over

MOST_ROWS = 20_000  # of more points some are rows, chosen by chance; all are counted
MORE = 2  # times the rows that people see: points of a picture
LARGEST = 2**64 - 1  # of a hash
FACTS = ("model", "family", "platform", "dtype", "batch", "origin", "method")
SAME = ("replicas", "phase", "optimizer")  # and the hyperparameters: of what a line is the same
OWN = "coalesce(scope, '') = ''"
PUBLISHED = {  # what a published record may state: its column, what the query calls it
    "published_flop_per_s": "speed",
    "published_flop": "flop",
    "published_flop_share": "share",
    "published_intensity_flop_per_byte": "intensity",
    "step_s": "step_s",
    "flop": "own_flop",
    "traffic_bytes": "traffic_bytes",
}
OF_RESULTS = (
    *("measured_s", "predicted_s", "flop", "traffic_bytes", "intensity", "flop_per_s"),
    *("predicted_flop_per_s", "peak_flop_per_s", "memory_bytes_per_s"),
)
NETWORKS = """
s AS NOT MATERIALIZED (SELECT {results}, workload_key FROM results),
p AS (SELECT DISTINCT ON (workload_key, platform) * FROM s WHERE flop > 0),
r AS (SELECT {records}, workload_key FROM records WHERE {published} AND origin = 'published'
      AND status = 'ok' AND {own} AND coalesce(env ->> 'duplicate_of', '') = ''),
points AS (
  SELECT coalesce(p.label, r.model || coalesce(', batch ' || r.batch, '')) AS name, {of_r},
    coalesce(r.intensity, p.intensity) AS intensity,
    coalesce(r.speed, coalesce(r.flop, p.flop) / nullif(r.step_s, 0)) AS flop_per_s, r.share,
    p.predicted_flop_per_s, p.peak_flop_per_s AS peak, p.memory_bytes_per_s AS rate
  FROM r LEFT JOIN p USING (workload_key, platform)
  UNION ALL BY NAME SELECT label AS name, {told}, intensity, flop_per_s,
    predicted_flop_per_s, peak_flop_per_s AS peak, memory_bytes_per_s AS rate
  FROM s WHERE origin <> 'published' AND (measured_s > 0 OR predicted_s > 0))"""
OPS = """
every AS (SELECT {records}, workload_key, scope, method_options FROM records
      WHERE NOT ({own}) AND status = 'ok'),
p AS (SELECT DISTINCT ON (workload_key, platform, scope) * FROM every WHERE origin = 'predicted'),
r AS (FROM every WHERE origin <> 'predicted'),
points AS (
  SELECT scope || ' in ' || coalesce(r.model, p.model) AS name, {either},
    coalesce(r.intensity, p.own_flop / nullif(p.traffic_bytes, 0)) AS intensity,
    coalesce(r.speed, coalesce(r.flop, p.own_flop) / nullif(r.step_s, 0)) AS flop_per_s, r.share,
    p.own_flop / nullif(p.step_s, 0) AS predicted_flop_per_s,
    {peak} AS peak, {rate} AS rate
  FROM r FULL JOIN p USING (workload_key, platform, scope))"""
UNDER = """,
roofs AS (SELECT unnest(?) AS platform, unnest(?) AS dtype, unnest(?) AS top, unnest(?) AS side),
drawn AS (
  SELECT * REPLACE (nullif(coalesce(flop_per_s, share * top), 0) AS flop_per_s,
    nullif(intensity, 0) AS intensity),
    CASE WHEN intensity > 0 THEN least(top, intensity * side) END AS roof_flop_per_s
  FROM points LEFT JOIN roofs USING (platform, dtype))"""
ROOFS = (
    "SELECT platform, dtype, max(peak) AS peak, max(rate) AS rate FROM points "
    "GROUP BY ALL ORDER BY ALL"
)
GROUPS = """
SELECT platform, dtype, any_value(top) AS peak_flop_per_s, any_value(side) AS memory_bytes_per_s,
  any_value(top / side) AS ridge_flop_per_byte, count(*) AS points,
  count(intensity) AS with_intensity,
  count(coalesce(flop_per_s, predicted_flop_per_s)) AS with_speed,
  avg(CAST(intensity >= top / side AS INTEGER)) AS above_ridge_share,
  1 - above_ridge_share AS below_ridge_share, arg_max(name, flop_per_s) AS best,
  max(flop_per_s) AS best_flop_per_s, max(flop_per_s / top) AS best_peak_fraction,
  max(flop_per_s / roof_flop_per_s) AS best_roof_fraction,
  count(*) FILTER (flop_per_s > top) AS above_peak FROM drawn GROUP BY ALL ORDER BY ALL"""
ROWS = """
SELECT name, model, family, platform, dtype, batch, origin, method, more.*, intensity, flop_per_s,
  predicted_flop_per_s, roof_flop_per_s, top AS peak_flop_per_s, side AS memory_bytes_per_s,
  coalesce(flop_per_s, predicted_flop_per_s) / top AS peak_fraction,
  coalesce(flop_per_s, predicted_flop_per_s) / roof_flop_per_s AS roof_fraction,
  CASE WHEN intensity >= top / side THEN 'compute' WHEN intensity < top / side THEN 'memory' END
    AS bound FROM drawn
WHERE (flop_per_s IS NOT NULL OR (intensity IS NOT NULL AND predicted_flop_per_s IS NOT NULL))
  AND (hash(name) <= ?::UBIGINT OR name IN ?)
ORDER BY drawn.flop_per_s DESC NULLS LAST, drawn.predicted_flop_per_s DESC, drawn.name"""


def roofline(
    data: Data, device: str | None, ops: bool, color: str | None, line: str | None
) -> Table:
    """Return a row a network, or an op: its intensity, speed, ceiling and share of the ceiling.

    Without a folder a row for each ridge point of the devices. The summary has all `ceilings`,
    `ridges` and `platforms`: for each with a dtype its points, their share on each side of the
    ridge, and the best. Raises `InputError` for an unknown device or column.
    """
    given = [catalog.device(name.strip()) for name in device.split(",")] if device else []
    if not data.names:
        if not given:
            raise InputError("roofline: give folders of records, or devices with --device")
        return _of_devices(_ceilings(given, []))
    with_points = _points(data, ops, [name for name in (color, line) if name])
    found = data.rows(f"WITH {with_points} {ROOFS}")
    known = {one.name: one for one in given}
    for name in dict.fromkeys(group["platform"] for group in found):
        try:
            known.setdefault(name, catalog.device(name))
        except InputError:
            continue  # the records may say its ceilings
    roofs = [_roof(group, known.get(group["platform"])) for group in found]
    ceilings = _ceilings([*known.values()], roofs)
    under = with_points + UNDER
    lists = [[roof[key] for roof in roofs] for key in ("platform", "dtype", "peak", "rate")]
    groups = data.rows(f"WITH {under} {GROUPS}", *lists) if roofs else []
    most = min(MOST_ROWS, MORE * (data.most or MOST_ROWS))
    every = -(-sum(group["points"] for group in groups) // most) or 1
    fastest = [group["best"] for group in groups if group["best"] is not None]
    rows = data.rows(f"WITH {under} {ROWS}", *lists, LARGEST // every, fastest) if roofs else []
    if not rows and given:
        return _of_devices(ceilings)
    told = [group | _highest(group, ceilings) for group in groups]
    best: Row = max(told, key=lambda one: one["best_flop_per_s"] or 0, default={})
    placed = [one for one in told if one["above_ridge_share"] is not None]
    number = sum(one["with_intensity"] for one in placed)
    above = over(sum(one["with_intensity"] * one["above_ridge_share"] for one in placed), number)
    same = {one["ridge_flop_per_byte"] for one in told}
    summary = {
        "points": sum(one["points"] for one in told),
        "ridge_flop_per_byte": same.pop() if len(same) == 1 else None,
        "above_ridge_share": above,
        "below_ridge_share": None if above is None else 1 - above,
        **{key: best.get(key) for key in ("best", "best_flop_per_s", "best_peak_fraction")},
        "platforms": told,
        "ceilings": ceilings,
        "ridges": ridges(ceilings),
        "ops": ops,
        "color": color,
        "line": line,
        "every": every,
    }
    shown_columns = (
        (Column("name", "op") if ops else Column("name", "network")),
        Column("platform", is_spare=True),
        Column("dtype", "type", is_spare=True),
        Column("origin", is_spare=True),
        Column("intensity", "FLOP per byte", form=".4g"),
        Column("flop_per_s", "speed"),
        Column("predicted_flop_per_s", "predicted"),
        Column("roof_flop_per_s", "ceiling"),
        Column("roof_fraction", "of ceiling"),
        Column("peak_fraction", "of peak"),
    )
    keys = tuple(map(Column, rows[0] if rows else ()))
    return Table(shown_columns, rows, max_rows=20, csv_columns=keys, summary=summary)


def _of_devices(ceilings: Sequence[Row]) -> Table:
    """Return the ridge points of devices, for which there are no points."""
    rows = ridges(ceilings)
    shown_columns = (
        Column("platform"),
        Column("unit"),
        Column("dtype", "type"),
        Column("peak_flop_per_s", "peak"),
        Column("level", "memory"),
        Column("memory_bytes_per_s", "bandwidth"),
        Column("ridge_flop_per_byte", "ridge point"),
    )
    summary = {"points": 0, "platforms": [], "ceilings": ceilings, "ridges": rows}
    return Table(shown_columns, rows, summary=summary)


def _points(data: Data, ops: bool, names: Sequence[str]) -> str:
    """Return the SQL of the table `points` with columns of these names.

    Raises `InputError` for what is not a column.
    """
    in_records, in_results = data.columns("records"), data.columns("results")
    everywhere = {**in_records, **in_results}
    for name in names:
        if name not in everywhere:
            raise unknown("column", name, [*data.hyperparameters, *everywhere])
    same = [name for name in (*SAME, *data.hyperparameters) if name in everywhere]
    # apart from what the query names itself: a hyperparameter may have any name
    more = dict.fromkeys(one for one in (*same, *names) if one not in ("name", *FACTS))

    def text(table: Mapping[str, str], name: str) -> str:
        known = flat.name(name)
        return known if name in table else f"CAST(NULL AS {everywhere.get(name, 'VARCHAR')})"

    def picked(table: Mapping[str, str], numbers: Mapping[str, str]) -> str:
        # TRY_CAST: a column that is nowhere known may be of another type
        found = [f"{text(table, name)} AS {name}" for name in (*FACTS, "label")]
        found += [f"TRY_CAST({text(table, n)} AS DOUBLE) AS {to}" for n, to in numbers.items()]
        return ", ".join([*found, f"{flat.struct({n: text(table, n) for n in more})} AS more"])

    def of(*sides: str) -> str:
        def either(name: str) -> str:
            return f"coalesce({', '.join(f'{side}.{name}' for side in sides)})"

        told = [n if n == "platform" else f"{either(n)} AS {n}" for n in FACTS]
        others = flat.struct({name: either(f"more.{flat.name(name)}") for name in more})
        return ", ".join([*told, f"{others} AS more"])

    return (OPS if ops else NETWORKS).format(
        peak=flat.rate("p.method_options ->> 'peak_flop_per_s'"),
        rate=flat.rate("p.method_options ->> 'memory_bytes_per_s'"),
        published="published" in data.origins,  # a join of nothing costs nothing
        own=OWN,
        told=", ".join((*FACTS, "more")),
        results=picked(in_results, {name: name for name in OF_RESULTS}),
        records=picked(in_records, PUBLISHED),
        of_r=of("r"),
        either=of("r", "p"),
    )


def _roof(group: Row, device: Device | None) -> Row:
    """Return the peak and bandwidth of a platform and dtype: the records' own, else the file's."""
    peaks = device.peak_flop_per_s if device else {}
    return {
        **group,
        "peak": group["peak"] or peaks.get(computed_in(group["dtype"])),
        "rate": group["rate"] or (device.memory_bytes_per_s if device else None),
    }


def _ceilings(devices: Sequence[Device], roofs: Sequence[Row]) -> list[Row]:
    """Return the ceilings of all devices, and those that only the records state."""
    found = [row for device in devices for row in ceilings_of(device)]
    files = {device.name for device in devices}
    for roof in roofs:
        place = roof["platform"]
        said = {row[kind] for row in found if row["platform"] == place for kind in RATES}
        recorded = " as recorded" if place in files else ""
        top = {"unit": "matrix" + recorded, "dtype": computed_in(roof["dtype"])}
        if roof["peak"] not in (None, *said):
            found.append(ceiling(place, **top, flop_per_s=roof["peak"]))
        if roof["rate"] not in (None, *said):
            found.append(ceiling(place, level=DRAM + recorded, bytes_per_s=roof["rate"]))
    return found


def _highest(group: Row, ceilings: Sequence[Row]) -> Row:
    """Return the highest peak of a platform, and how near to it the best point comes."""
    tops = [c for c in ceilings if c["platform"] == group["platform"] and c["flop_per_s"]]
    floats = [c for c in tops if "int" not in c["dtype"]]
    top: Row = max(floats, key=lambda one: float(one["flop_per_s"]), default={})
    return {
        "highest_peak_dtype": top.get("dtype"),
        "highest_peak_flop_per_s": top.get("flop_per_s"),
        "best_highest_peak_fraction": over(group["best_flop_per_s"], top.get("flop_per_s")),
    }


def _says(table: Table) -> list[str]:
    what = "op" if table.summary.get("ops") else "network"
    if not table.rows:
        missing = _lacking(table.summary.get("platforms", []), what)
        return [f"no {what} here has both FLOP and a time", *missing]
    told = table.summary["platforms"]
    said = [line for one in told for line in _of_group(one, what)] + _lacking(told, what)
    if not told:
        over_dram = grouped((r for r in table.rows if r["level"] == DRAM), itemgetter("platform"))
        said = [
            f"{name}: ridge over {DRAM} in FLOP/byte: "
            + ", ".join(f"{r['unit']} {r['dtype']} {r['ridge_flop_per_byte']:.4g}" for r in rows)
            for name, rows in over_dram.items()
        ]
    if table.summary.get("every", 1) > 1:
        some = f"About one point in {table.summary['every']} is shown, chosen by chance"
        said.append(f"{some}, and the fastest; all are counted.")
    return said


def _of_group(one: Row, what: str) -> list[str]:
    place = f"{one['platform']}, {one['dtype']}"
    said = []
    if one["above_ridge_share"] is not None:
        side = f"{percent(one['above_ridge_share'])} of {counted(one['with_intensity'], what)}"
        ridge = format_value("flop_per_byte", one["ridge_flop_per_byte"])
        said.append(f"{place}: {side} above the ridge point of {ridge}, where compute bounds.")
    if one["best_flop_per_s"] and one["best_peak_fraction"] is None:
        said.append(f"{place}: best {si(one['best_flop_per_s'], 'FLOP/s')}; its peak is unknown.")
    elif one["best_flop_per_s"]:
        of = f"{percent(one['best_peak_fraction'])} of {si(one['peak_flop_per_s'], 'FLOP/s')}"
        said.append(
            f"{place}: best {si(one['best_flop_per_s'], 'FLOP/s', 5)}, {of}: {one['best']}."
        )
    if one["above_peak"]:
        dtype = computed_in(one["dtype"])
        higher = one["highest_peak_dtype"] != dtype and one["best_highest_peak_fraction"] <= 1
        used = (
            f"matrix units were used, as for {one['highest_peak_dtype']}, of whose "
            f"{si(one['highest_peak_flop_per_s'], 'FLOP/s')} the best is "
            f"{percent(one['best_highest_peak_fraction'])}"
        )
        wrong = "the figures of the device or the shares are not of what ran"
        many = counted(one["above_peak"], what)
        said.append(f"{place}: {many} above the peak of {dtype}: {used if higher else wrong}.")
    return said


def _lacking(told: Sequence[Row], what: str) -> list[str]:
    """Return which records lack what, and what adds it."""
    said = []
    for one in told:
        place = f"of {counted(one['points'], what)} on {one['platform']} ({one['dtype']})"
        lack = {
            "FLOP per byte of memory": one["points"] - one["with_intensity"],
            "a speed in FLOP/s": one["points"] - one["with_speed"],
        }
        missing = [f"{number:,} lack {name}" for name, number in lack.items() if number]
        if missing:
            added = "`steptime predict --in DIR` adds the FLOP and bytes of a network"
            said.append(f"{place}: {', '.join(missing)}" + ("." if what == "op" else f"; {added}."))
        if not (one["peak_flop_per_s"] and one["memory_bytes_per_s"]):
            said.append(f"{place}: no ceiling is known; --device FILE.toml gives one.")
    return [line[0].upper() + line[1:] for line in said]


SETTINGS: Any = (
    Setting("device", "Draw these devices (names or FILE.toml, with commas).", metavar="DEVICE"),
    Setting("ops", "Single ops instead of whole networks.", default=False, kind=bool),
    Setting("color", "Colour by a column: a hyperparameter, batch, family, dtype."),
    Setting("line", "Join the networks that differ in this hyperparameter alone."),
)
ANALYSIS = Analysis(
    """Print networks or ops under the ceilings of their devices.

    A ceiling is a peak of a unit and dtype, or a bandwidth times FLOP per byte.
    A network's share of the lower one says how much faster it could be at best.
    Measured, published and predicted alike; with --device alone only ceilings.
    """,
    roofline,
    _says,
    section="Roofline",
    chart="steptime.reports.charts.roofline:chart",
    settings=SETTINGS,
    folders=16,
    min_folders=0,
)
