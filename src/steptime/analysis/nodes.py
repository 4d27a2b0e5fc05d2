"""Which nodes are slow beyond noise, by how much, and for which kind of work."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import polars as pl

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.comparison.verdict import MARGIN
from steptime.analysis.nodes_answer import NodeRow, NodesAnswer, NodesSummary
from steptime.analysis.outliers import FALSE_ALARMS, THRESHOLD, Deviation, deviations
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_count, format_percent
from steptime.core.values import parse_number, parse_share
from steptime.records.data import Data
from steptime.records.pooled_step import IS_GOOD, IS_PREDICTED, IS_STEP, pooled_step_s
from steptime.records.warmup import Floats

MIN_NODES = 3  # of two nodes that differ, nobody can say which is slow
MAX_REGULAR_ROWS = 3  # nodes like the others that people see row by row
SLOW, FAST, NOT_MEASURED, REGULAR = "slow", "fast", "not measured", "like the others"
VERDICTS = (SLOW, FAST, NOT_MEASURED, REGULAR)  # in the order of the rows
KINDS = ("compute", "memory", "link")  # a cell is bound by one of these
ALL_KINDS = "all"
CELL = ("workload_key", "platform", "method", "method_options")
VISIT = (*CELL, "round")  # visits are judged one by one, so that a bad one is clipped alone


class Visits(msgspec.Struct, frozen=True, kw_only=True):
    """The times of the nodes in each visit of a cell that at least `MIN_NODES` nodes measured.

    Attributes:
        hosts: names of the nodes, sorted.
        logs: logarithm of the step time [visits, nodes], NaN where not measured.
        kinds: kind of work of each visit; None if unknown.
        cell_counts: number of different cells of each node.
        cell_count: number of different cells of all nodes.
    """

    hosts: Sequence[str]
    logs: Floats
    kinds: Sequence[str | None]
    cell_counts: Mapping[str, int]
    cell_count: int


def compare_nodes(records: pl.LazyFrame, margin: float, threshold: float) -> NodesAnswer:
    """Compare each node with the others that measured the same cells.

    Args:
        records: a frame of records (`frame_columns.SCHEMA`).
        margin: logarithm of the smallest ratio that is reported.
        threshold: robust z beyond which a node is an outlier.
    """
    is_measured = ~IS_PREDICTED & IS_STEP & pl.col("host").is_not_null()
    measured = records.filter(is_measured)
    steps = _pool_shared_steps(measured)
    no_nodes = NodesAnswer(rows=(), kinds=(), summary=_summarise([], 0, margin, None))
    if not (steps["step_s"] > 0).any():
        return no_nodes
    visits = _find_visits(steps, _find_bounds(records))
    if not visits.hosts:
        return no_nodes
    overall, by_kind = _judge_visits(visits, threshold)
    gpus = _find_gpus(measured)
    rows = [
        _make_row(host, column, overall, by_kind, margin, gpus.get(host), visits.cell_counts[host])
        for column, host in enumerate(visits.hosts)
    ]
    rows.sort(key=lambda row: -(row.slower_fraction or 0.0))  # by verdict below: sorts are stable
    rows += _list_failed_nodes(measured, gpus)
    rows.sort(key=lambda row: VERDICTS.index(row.verdict))
    summary = _summarise(rows, visits.cell_count, margin, math.expm1(overall.noise))
    return NodesAnswer(rows=tuple(rows), kinds=tuple(by_kind), summary=summary)


def _find_gpus(measured: pl.LazyFrame) -> dict[str, str | None]:
    """Return the GPU of each node that measured a step, None where no record names it."""
    successful = measured.filter(IS_GOOD & (pl.col("step_s") > 0))
    first_gpu = pl.col("gpu").drop_nulls().first()
    gpus = successful.group_by("host", maintain_order=True).agg(first_gpu)
    return dict(gpus.collect().iter_rows())


def _list_failed_nodes(measured: pl.LazyFrame, good_hosts: Iterable[str]) -> list[NodeRow]:
    """Return a row for each node all of whose steps failed, with the cause of the last."""
    failures = (
        measured.filter(~pl.col("host").is_in([*good_hosts]))
        .group_by("host", maintain_order=True)
        .agg(pl.col("gpu", "cause").last())
        .collect()
    )
    return [
        NodeRow(host=host, verdict=NOT_MEASURED, gpu=gpu, cells=0, cause=cause)
        for host, gpu, cause in failures.iter_rows()
    ]


def _pool_shared_steps(measured: pl.LazyFrame) -> pl.DataFrame:
    """Return the step of each node in each visit, of visits with records enough for `MIN_NODES`."""
    # Counting records is cheap, reading their samples is not. A visit with fewer records than
    # `MIN_NODES` cannot be one of so many nodes.
    visit_hash = pl.struct(*VISIT).hash()
    counts = measured.select(visit_hash.alias("visit")).group_by("visit").len()
    shared_visits = counts.filter(pl.col("len") >= MIN_NODES).select("visit").collect()
    return (
        measured.filter(visit_hash.is_in(shared_visits["visit"].implode()))
        .group_by(*VISIT, "host", maintain_order=True)
        .agg(pooled_step_s().alias("step_s"), pl.col("replicas").last())
        .collect()
    )


def _find_bounds(records: pl.LazyFrame) -> pl.DataFrame:
    """Return whether compute bounds each network on each platform, from its last prediction."""
    ridge = pl.col("peak_flop_per_s") / pl.col("memory_bytes_per_s")  # FLOP per byte
    is_compute_bound = pl.col("flop") / pl.col("traffic_bytes") >= ridge
    return (
        records.filter(IS_PREDICTED & IS_STEP & (pl.col("traffic_bytes") > 0))
        .group_by("workload_key", "platform", maintain_order=True)
        .agg(is_compute_bound.drop_nulls().last().alias("is_compute_bound"))
        .collect()
    )


def _find_visits(steps: pl.DataFrame, bounds: pl.DataFrame) -> Visits:
    """Return the visits that enough nodes share, in the order of their first records."""
    good = steps.filter(pl.col("step_s") > 0)
    visits = (
        good.group_by(VISIT, maintain_order=True)
        .agg(pl.len().alias("node_count"), pl.col("replicas").first())
        .filter(pl.col("node_count") >= MIN_NODES)
        .with_row_index("visit")
        .join(bounds, on=("workload_key", "platform"), how="left", maintain_order="left")
    )
    # Each step has its visit's number as row and its host's place as column of the matrix `logs`.
    entries = good.join(
        visits.select("visit", *VISIT), on=VISIT, nulls_equal=True, maintain_order="left"
    )
    hosts = entries["host"].unique().sort()
    host_columns = hosts.search_sorted(entries["host"])
    logs = np.full((len(visits), len(hosts)), np.nan)
    logs[entries["visit"].to_numpy(), host_columns.to_numpy()] = np.log(
        entries["step_s"].to_numpy()
    )
    cell_counts = entries.group_by("host").agg(pl.struct(CELL).n_unique())
    return Visits(
        hosts=hosts.to_list(),
        logs=logs,
        kinds=[_find_kind(*row) for row in visits["replicas", "is_compute_bound"].iter_rows()],
        cell_counts=dict(cell_counts.iter_rows()),
        cell_count=entries.select(CELL).n_unique(),
    )


def _find_kind(replicas: int | None, is_compute_bound: bool | None) -> str | None:
    """Return the bound of a cell: the links of its replicas, or its side of the roofline."""
    if (replicas or 1) > 1:
        return "link"
    if is_compute_bound is None:
        return None
    return "compute" if is_compute_bound else "memory"


def _judge_visits(visits: Visits, threshold: float) -> tuple[Deviation, dict[str, Deviation]]:
    """Return the deviation of nodes over all cells, and over the cells of each kind."""
    # Nodes are tested over all cells, and once more over the cells of each kind, since a node may
    # be slow only in, say, its memory. A single kind would be the same test again.
    kind_logs: dict[str, Floats] = {}
    has_several_kinds = len(set(visits.kinds)) > 1
    for kind in KINDS if has_several_kinds else ():
        logs = visits.logs[[visit_kind == kind for visit_kind in visits.kinds]]
        node_count = np.isfinite(logs).any(axis=0).sum()
        if node_count >= MIN_NODES:
            kind_logs[kind] = logs

    # The tests share the permitted chance of a false alarm, so that it holds for all together: the
    # test of a kind gets half as much as the test over all cells.
    kind_count = len(kind_logs)
    overall_alarms = FALSE_ALARMS / (1 + kind_count / 2)
    kind_alarms = (FALSE_ALARMS - overall_alarms) / max(kind_count, 1)
    by_kind = {kind: deviations(logs, kind_alarms, threshold) for kind, logs in kind_logs.items()}
    return deviations(visits.logs, overall_alarms, threshold), by_kind


def _make_row(
    host: str,
    column: int,
    overall: Deviation,
    by_kind: Mapping[str, Deviation],
    margin: float,
    gpu: str | None,
    cells: int,
) -> NodeRow:
    def is_slow(deviation: Deviation) -> bool:
        return bool(deviation.is_slow[column] and deviation.log_ratio[column] > margin)

    def fraction(values: Floats) -> float | None:
        return float(math.expm1(values[column])) if np.isfinite(values[column]) else None

    slow_kinds = [kind for kind, deviation in by_kind.items() if is_slow(deviation)]
    is_slow_node = is_slow(overall) or bool(slow_kinds)
    is_fast = bool(overall.is_fast[column] and overall.log_ratio[column] < -margin)
    verdict, slow_in = REGULAR, None
    if is_slow_node:
        verdict = SLOW
        # A node may be slow over all work though no kind of work alone shows it beyond noise.
        is_slow_in_all = not slow_kinds or len(slow_kinds) == len(by_kind)
        slow_in = ALL_KINDS if is_slow_in_all else ", ".join(slow_kinds)
    elif is_fast:
        verdict = FAST
    fractions = {kind: fraction(deviation.log_ratio) for kind, deviation in by_kind.items()}
    return NodeRow(
        host=host,
        slower_fraction=fraction(overall.log_ratio),
        low_fraction=float(math.expm1(overall.low[column])),
        high_fraction=float(math.expm1(overall.high[column])),
        verdict=verdict,
        slow_in=slow_in,
        compute_fraction=fractions.get("compute"),
        memory_fraction=fractions.get("memory"),
        link_fraction=fractions.get("link"),
        gpu=gpu,
        cells=cells,
    )


def _summarise(
    rows: Sequence[NodeRow], cells: int, margin: float, noise_fraction: float | None
) -> NodesSummary:
    def hosts_of(verdict: str) -> list[str]:
        return [row.host for row in rows if row.verdict == verdict]

    node_count = sum(row.verdict != NOT_MEASURED for row in rows)
    return NodesSummary(
        nodes=node_count,
        cells=cells,
        noise_fraction=noise_fraction,
        margin_fraction=math.expm1(margin),
        slow=hosts_of(SLOW),
        fast=hosts_of(FAST),
        not_measured=hosts_of(NOT_MEASURED),
        is_judged=node_count >= MIN_NODES,
    )


def node_table(data: Data, margin: str, threshold: str) -> Table:
    """Return a row for each node; none if fewer than `MIN_NODES` share a cell.

    Slow nodes come first. People see nodes like the others as one line.
    """
    log_margin = math.log1p(parse_share(margin, "--margin"))
    answer = compare_nodes(data.scan(), log_margin, parse_number(threshold, "--threshold"))
    table = Table(
        _list_columns(answer.kinds),
        [row.to_dict() for row in answer.rows],
        summary=answer.summary.to_dict(),
        structs=answer.rows,
    )
    # Many regular nodes are printed as one line, the table's title: they are its last rows, the
    # slowest first.
    fractions = [row.slower_fraction or 0.0 for row in answer.rows if row.verdict == REGULAR]
    if len(fractions) <= MAX_REGULAR_ROWS:
        return table
    ends = f"{format_percent(fractions[-1], '+')} to {format_percent(fractions[0], '+')}"
    return replace(
        table,
        title=f"{format_count(len(fractions), 'node')} {REGULAR}: {ends}",
        max_rows=max(1, len(answer.rows) - len(fractions)),
    )


def _list_columns(kinds: Sequence[str]) -> Sequence[Column]:
    return (
        Column("host", "node"),
        Column("gpu", is_spare=True),
        Column("cells"),
        Column("slower_fraction", "slower"),
        Column("low_fraction", "from"),
        Column("high_fraction", "to"),
        Column("verdict"),
        *([Column("slow_in", "slow in")] if kinds else []),
        *(Column(f"{kind}_fraction", kind, is_spare=True) for kind in kinds),
        Column("cause", is_spare=True),
    )


def describe_nodes(table: Table) -> list[str]:
    """Return sentences on the slow nodes: "n04 is 9.8 % slower than the others (...)"."""
    summary = table.summary
    if not summary["nodes"]:
        reason = "of two, nobody can say which is slow"
        return [f"no {MIN_NODES} nodes measured the same cells: {reason}"]
    rows = {row["host"]: row for row in table.rows}
    nodes = format_count(summary["nodes"], "node")
    lines = [_describe_slow_node(rows[host]) for host in summary["slow"]]
    lines = lines or [f"none of {nodes} is slow beyond noise"]
    if summary["fast"]:
        lines.append(f"fast beyond noise: {', '.join(summary['fast'])}")
    noise = format_percent(summary["noise_fraction"])
    margin = format_percent(summary["margin_fraction"])
    lines.append(
        f"{nodes} measured the same {format_count(summary['cells'], 'cell')}; noise moves a node "
        f"by {noise} (one sigma), and less than {margin} is not named"
    )
    failures = [f"{host} ({rows[host]['cause']})" for host in summary["not_measured"]]
    if failures:
        lines.append(f"no result: {', '.join(failures)}")
    return lines


def _describe_slow_node(row: Mapping[str, Any]) -> str:
    if row["slow_in"] == ALL_KINDS:
        low, high = format_percent(row["low_fraction"]), format_percent(row["high_fraction"])
        slower = format_percent(row["slower_fraction"])
        return f"{row['host']} is {slower} slower than the others ({low} to {high})"
    kinds = row["slow_in"].split(", ")  # a cell of the table: the kinds are one text there
    parts = [f"{kind} ({format_percent(row[f'{kind}_fraction'])} slower)" for kind in kinds]
    return f"{row['host']} is slow in what is bound by {' and '.join(parts)}"


ANALYSIS = Analysis(
    """Print which nodes are slow beyond noise.

    By how much, and in what. Every node is compared with the others that
    measured the same cells. What a cell is bound by is told by its replicas, or
    by its predicted side of the roofline.
    """,
    node_table,
    describe_nodes,
    row_struct=NodeRow,
    summary_struct=NodesSummary,
    section="Nodes",
    chart="steptime.reports.charts.nodes:chart",
    settings=(
        Setting("margin", "Name only nodes that are off by more.", f"{MARGIN:.0%}", str, "SHARE"),
        Setting("threshold", "Smallest z-score of a named node.", f"{THRESHOLD:g}", metavar="Z"),
    ),
    folders=1000,
    fails={
        "slow": ("slow",),
        "slower": ("slow",),
        "changed": ("slow", "fast", "not_measured"),
        "vanished": ("not_measured",),
    },
)
