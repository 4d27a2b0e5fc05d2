"""Which nodes are slow beyond noise, by how much, and in what: all that measured the same cells."""

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.outliers import FALSE_ALARMS, THRESHOLD, Deviation, deviations
from steptime.analysis.verdict import MARGIN
from steptime.core.table import Column, Table
from steptime.core.units import counted, percent
from steptime.core.values import parse_number, parse_share
from steptime.records.data import Data
from steptime.records.row import Row, grouped
from steptime.records.sides import Sides

LEAST = 3  # nodes: of two that differ, nobody can say which is slow
ALIKE = "like the others"
MOST_ALIKE = 3  # nodes that people see one by one
KINDS = ("compute", "memory", "link")  # that a cell may be bound by
CELL = "hash(workload_key, platform, method, method_options)"
VISIT = f"hash({CELL}, round)"  # each by itself: one that went wrong is then clipped alone
MEASURED = "origin <> 'predicted' AND scope = '' AND host IS NOT NULL"
OF_VISIT = {name: name for name in ("workload_key", "platform", "replicas", "host", "gpu", "cause")}
GOOD = f"FROM flat WHERE {MEASURED} AND status = 'ok' AND step_s > 0 GROUP BY"
SIDES = """
    SELECT workload_key, platform, any_value(intensity::DOUBLE * memory_bytes_per_s::DOUBLE
    >= peak_flop_per_s::DOUBLE) AS compute FROM results GROUP BY ALL
"""


def node_table(data: Data, margin: str, threshold: str) -> Table:
    """Return a row for each node; none where fewer than `LEAST` share a cell.

    The slow come first, then what else is not like the others; of these people see a line.
    """
    at_least = math.log1p(parse_share(margin, "--margin"))
    least = parse_number(threshold, "--threshold")
    shared = data.rows(f"SELECT 1 {GOOD} {CELL} HAVING count(*) > 2 LIMIT 1")
    measured = _measured(data) if shared else []
    good = grouped((row for row in measured if row["step_s"]), itemgetter("visit"))
    visits = {visit: held for visit, held in good.items() if len(held) >= LEAST}
    if not visits:
        return Table(_columns(()), [], summary=_summary([], 0, at_least, None))
    sides = {(row["workload_key"], row["platform"]): row["compute"] for row in data.rows(SIDES)}
    kinds = [_kind(held[0], sides) for held in visits.values()]
    hosts = sorted({row["host"] for held in visits.values() for row in held})
    place = {host: at for at, host in enumerate(hosts)}
    logs = np.full((len(visits), len(hosts)), np.nan)
    cells: dict[str, set[Any]] = {host: set() for host in hosts}
    for at, held in enumerate(visits.values()):
        for row in held:
            logs[at, place[row["host"]]] = math.log(row["step_s"])
            cells[row["host"]].add(row["cell"])
    found, by_kind = _judged(logs, kinds, least)
    of_host = data.rows(f"SELECT host, any_value(gpu) AS gpu {GOOD} host")
    gpus = {row["host"]: row["gpu"] for row in of_host}
    rows = [
        _row(host, at, found, by_kind, at_least)
        | {"gpu": gpus[host], "cells": len(cells[host]), "cause": None}
        for at, host in enumerate(hosts)
    ]
    rows.sort(key=lambda row: -row["slower_fraction"])
    without = {row["host"]: row for row in measured if row["host"] not in gpus}
    rows += [
        dict.fromkeys(rows[0]) | {"host": host, "gpu": row["gpu"], "cells": 0}
        | {"verdict": "not measured", "cause": row["cause"]}
        for host, row in without.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: ("slow", "fast", "not measured", ALIKE).index(row["verdict"]))
    summary = _summary(rows, len(set().union(*cells.values())), at_least, math.expm1(found.noise))
    alike = [row["slower_fraction"] for row in rows if row["verdict"] == ALIKE]
    if len(alike) <= MOST_ALIKE:
        return Table(_columns(by_kind), rows, summary=summary)
    off = f"{percent(alike[-1], '+')} to {percent(alike[0], '+')}"
    said = f"{counted(len(alike), 'node')} {ALIKE}: {off}"
    most = max(1, len(rows) - len(alike))
    return Table(_columns(by_kind), rows, said, max_rows=most, summary=summary)


def _measured(data: Data) -> list[Row]:
    """Return what each node measured in each visit of a cell that failed or that several share."""
    sides = Sides(data, "step_s", "host", VISIT, MEASURED, kin="NULL", way="''")
    of = sides.groups
    hosts = np.bincount(of["cell"])[of["cell"]]
    ids = np.flatnonzero((hosts >= LEAST) | ~(of["value"] > 0))
    return sides.rows(ids, {**OF_VISIT, "cell": CELL}, {"step_s": "value", "visit": "cell"})


def _kind(row: Row, sides: dict[tuple[str, str], bool | None]) -> str | None:
    """Return what bounds a cell: what joins its replicas, or its side of the roofline."""
    if (row["replicas"] or 1) > 1:
        return "link"
    compute = sides.get((row["workload_key"], row["platform"]))
    if compute is None:
        return None
    return "compute" if compute else "memory"


def _judged(
    logs: np.ndarray, kinds: Sequence[str | None], threshold: float
) -> tuple[Deviation, dict[str, Deviation]]:
    """Return how far nodes are off in all cells, and in those of each kind.

    False alarms are shared between the questions that are asked.
    """
    known = [kind for kind in KINDS if kind in kinds]
    parts = {kind: logs[[one == kind for one in kinds]] for kind in known}
    asked = {
        kind: part for kind, part in parts.items() if np.isfinite(part).any(0).sum() >= LEAST
    } if len(set(kinds)) > 1 else {}  # fmt: skip
    miss = FALSE_ALARMS / (1 + len(asked) / 2)
    each = FALSE_ALARMS - miss
    return deviations(logs, miss, threshold), {
        kind: deviations(part, each / len(asked), threshold) for kind, part in asked.items()
    }


def _row(
    host: str, at: int, found: Deviation, by_kind: dict[str, Deviation], at_least: float
) -> Row:
    def slow(one: Deviation) -> bool:
        return bool(one.slow[at] and one.value[at] > at_least)

    def off(one: Deviation) -> float | None:
        return float(math.expm1(one.value[at])) if np.isfinite(one.value[at]) else None

    where = [kind for kind, one in by_kind.items() if slow(one)]
    named = slow(found) or bool(where)
    fast = bool(found.fast[at] and found.value[at] < -at_least)
    everywhere = len(where) in (0, len(by_kind))
    return {
        "host": host,
        "slower_fraction": off(found),
        "low_fraction": float(math.expm1(found.low[at])),
        "high_fraction": float(math.expm1(found.high[at])),
        "verdict": "slow" if named else "fast" if fast else ALIKE,
        "slow_in": ("all" if everywhere else ", ".join(where)) if named else None,
        **{f"{kind}_fraction": off(by_kind[kind]) if kind in by_kind else None for kind in KINDS},
    }


def _summary(rows: Sequence[Row], cells: int, at_least: float, noise: float | None) -> Row:
    return {
        "nodes": sum(row["verdict"] != "not measured" for row in rows),
        "cells": cells,
        "noise_fraction": noise,
        "margin_fraction": math.expm1(at_least),
        **{
            word.replace(" ", "_"): [row["host"] for row in rows if row["verdict"] == word]
            for word in ("slow", "fast", "not measured")
        },
    }


def _columns(kinds: Sequence[str] | dict[str, Deviation]) -> Sequence[Column]:
    return (
        Column("host", "node"),
        Column("gpu", is_spare=True),
        Column("cells"),
        Column("slower_fraction", "slower"),
        Column("low_fraction", "from"),
        Column("high_fraction", "to"),
        Column("verdict"),
        *([Column("slow_in", "in")] if kinds else []),
        *(Column(f"{kind}_fraction", kind, is_spare=True) for kind in kinds),
        Column("cause", is_spare=True),
    )


def sentences(table: Table) -> list[str]:
    """Return which nodes are slow, by how much and in what, as sentences."""
    found = table.summary
    if not found["nodes"]:
        return [f"no {LEAST} nodes measured the same cells: of two, nobody can say which is slow"]
    rows = {row["host"]: row for row in table.rows}
    said = [_said(rows[host]) for host in found["slow"]]
    nodes = counted(found["nodes"], "node")
    if not said:
        said = [f"none of {nodes} is slow beyond noise"]
    if fast := found["fast"]:
        said.append(f"fast beyond noise: {', '.join(fast)}")
    noise = percent(found["noise_fraction"])
    same = counted(found["cells"], "cell")
    said.append(
        f"{nodes} measured {same} alike; noise moves a node by {noise} (one sigma), and less "
        f"than {percent(found['margin_fraction'])} is not named"
    )
    lost = [f"{host} ({rows[host]['cause']})" for host in found["not_measured"]]
    return [*said, *([f"no result: {', '.join(lost)}"] if lost else [])]


def _said(row: Mapping[str, Any]) -> str:
    if row["slow_in"] == "all":
        between = f"{percent(row['low_fraction'])} to {percent(row['high_fraction'])}"
        return (
            f"{row['host']} is {percent(row['slower_fraction'])} slower than the others ({between})"
        )
    kinds = row["slow_in"].split(", ")
    where = [f"{kind} ({percent(row[f'{kind}_fraction'])} slower)" for kind in kinds]
    return f"{row['host']} is slow in what is bound by {' and '.join(where)}"


ANALYSIS = Analysis(
    """Print which nodes are slow beyond noise.

    By how much, and in what. Every node is held against the others that
    measured the same cells. What a cell is bound by is told by its replicas, or
    by its predicted side of the roofline.
    """,
    node_table,
    sentences,
    section="Nodes",
    chart="steptime.reports.charts.nodes:chart",
    settings=(
        Setting("margin", "Name only those that are off by more.", f"{MARGIN:.0%}", str, "SHARE"),
        Setting("threshold", "And by more in robust deviations.", f"{THRESHOLD:g}", str, "Z"),
    ),
    folders=1000,
    fails={
        "slow": ("slow",),
        "slower": ("slow",),
        "changed": ("slow", "fast", "not_measured"),
        "vanished": ("not_measured",),
    },
)
