"""The measured and the predicted time of the ops of each network on each platform."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import polars as pl

from steptime.records.data import Data
from steptime.records.frames.frame_columns import other_number
from steptime.records.pooled_step import IS_PREDICTED, IS_STEP, pooled_step_s
from steptime.records.record import NO_OP
from steptime.records.row import Row, group_by

NO_OP_NAME = f"{NO_OP} (host, gaps)"
MEASURED, PREDICTED = SIDES = ("measured", "predicted")
CONTAINERS = ("while", "conditional", "call")
"""Kinds whose ops run other ops, which a profile lists too: https://openxla.org/xla/operation_semantics."""

IS_UPDATE = pl.col("pass") == "update"
LAYER = pl.col("scope").str.replace(r"[/.][^/.]*$", "")  # all but the last part of a name
GROUP_NAMES = {  # the name of the group of an op and a pass, by the kind of the groups
    "kind": pl.when(IS_UPDATE).then("pass").otherwise("op_kind"),
    "layer": pl.when(IS_UPDATE).then("pass").otherwise(LAYER),
    "op": pl.when(IS_UPDATE).then("pass").otherwise("scope"),
}
STEP_KEYS = ("workload_key", "platform", "strategy", "side", "method_of_side", "method_options")
CELL_KEYS = STEP_KEYS[:3]
GROUP_KEYS = (
    *CELL_KEYS,
    "side",
    "origin",
    "method_of_side",
    "method_options",
    "peak_flop_per_s",
    "name",
)
PASS_COLUMNS = ("scope", "pass", "op_kind")  # further keys of the passes of single ops
NO_PASS = ""  # of an op that is recorded as a whole
AMOUNTS = ("time_s", "time_share", "flop", "traffic_bytes", "peak_time_share")


class OpGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of one name on one side of a cell, together.

    Attributes:
        ops: number of ops.
        time_s: their time; None if only a share is published.
        time_share: their published share of the step.
        flop: their FLOP.
        traffic_bytes: bytes that they read and write.
        peak_time_share: sum of their published shares of the step times those of the peak.
    """

    ops: int
    time_s: float | None
    time_share: float | None
    flop: float | None
    traffic_bytes: float | None
    peak_time_share: float | None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The measured or predicted step of a cell.

    Attributes:
        groups: the ops by name of their group.
        totals: the FLOP and the traffic of all groups, None where unknown.
        shares: the share of the step by name, with that of no op.
        basis_s: the time of which shares are; None if shares are published.
        no_op_s: the time of no op.
        overhead_share: how much longer the step takes under the profiler; None if unknown.
        is_profiled: whether `basis_s` is the step under the profiler although another is known.
        peak_flop_per_s: peak of the device.
    """

    groups: Mapping[str, OpGroup]
    totals: Mapping[str, float | None]
    shares: Mapping[str, float]
    basis_s: float | None
    no_op_s: float | None
    overhead_share: float | None
    is_profiled: bool
    peak_flop_per_s: float | None


class NetworkOps(msgspec.Struct, frozen=True, kw_only=True):
    """A network on a platform with its sides.

    Attributes:
        workload_key: key of the network.
        platform: name of the platform.
        strategy: how replicas reduce gradients; "" for none.
        network: name of the network.
        sides: the sides by name.
    """

    workload_key: str
    platform: str
    strategy: str
    network: str
    sides: Mapping[str, Side]


class OpPass(msgspec.Struct, frozen=True, kw_only=True):
    """A pass of one op.

    Attributes:
        platform: name of the platform.
        side: measured or predicted.
        scope: name of the op.
        pass_name: forward, backward, update, or "" for all.
        op_kind: kind of the op.
        time_s: its time; None if only a share is published.
        time_share: its published share of the step.
    """

    platform: str
    side: str
    scope: str
    pass_name: str
    op_kind: str
    time_s: float | None
    time_share: float | None


def list_cells(data: Data, kind: str) -> list[NetworkOps]:
    """Return the cells with ops in the order of the records, groups of a `kind` (`GROUP_NAMES`)."""
    frame = sum_groups(data.scan(), kind)
    if frame.is_empty():
        return []
    step_times = _pool_step_times(data.scan())
    names = _name_networks(data)
    rows_by_cell = group_by(frame.iter_rows(named=True), _cell_key)
    cells = [
        NetworkOps(
            workload_key=workload_key,
            platform=platform,
            strategy=strategy,
            network=names[workload_key],
            sides=_make_sides(cell_rows, step_times),
        )
        for (workload_key, platform, strategy), cell_rows in rows_by_cell.items()
    ]
    record_order = {workload_key: position for position, workload_key in enumerate(names)}
    return sorted(_name_by_strategy(cells), key=lambda cell: record_order[cell.workload_key])


def _make_sides(
    rows: Sequence[Row], step_times: Mapping[tuple[str, ...], float]
) -> dict[str, Side]:
    """Return the sides of a cell: measured, predicted or both.

    `step_times` are the times of whole steps by `STEP_KEYS`.
    """
    sides = {}
    for side, side_rows in group_by(rows, lambda row: str(row["side"])).items():
        first_row = side_rows[0]
        # Published shares have their own total: a step that was timed here is not theirs.
        is_published = first_row["origin"] == "published"
        step_key = tuple(first_row[name] for name in STEP_KEYS)
        sides[side] = _make_side(side_rows, None if is_published else step_times.get(step_key))
    return sides


def list_op_passes(records: pl.LazyFrame, cell: NetworkOps) -> list[OpPass]:
    """Return the passes of the ops of a cell, without the time of no op."""
    is_network = pl.col("workload_key") == cell.workload_key
    frame = sum_groups(records.filter(is_network), "op", PASS_COLUMNS)
    is_on_platform = pl.col("platform") == cell.platform
    is_op = pl.col("name") != NO_OP
    columns = [name for name in OpPass.__struct_fields__ if name != "pass_name"]
    passes = frame.filter(is_on_platform & is_op).select(
        *columns, pl.col("pass").alias("pass_name")
    )
    return [msgspec.convert(op_pass, OpPass) for op_pass in passes.iter_rows(named=True)]


def _cell_key(row: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the network, the platform and the strategy of a row."""
    return row["workload_key"], row["platform"], row["strategy"]


def _add_side(records: pl.LazyFrame) -> pl.LazyFrame:
    """Add `side` and `method_of_side`, which is empty for measurements, and fill `strategy`."""
    predicted, measured = pl.lit(PREDICTED), pl.lit(MEASURED)
    return records.with_columns(
        pl.col("strategy").fill_null(""),
        pl.when(IS_PREDICTED).then(predicted).otherwise(measured).alias("side"),
        pl.when(IS_PREDICTED).then("method").otherwise(pl.lit("")).alias("method_of_side"),
    )


def _select_newest_ops(records: pl.LazyFrame) -> pl.LazyFrame:
    """Return the ops of each side that were recorded last, of one way of recording them."""
    kind = pl.coalesce("op_kind", "scope")
    is_published = pl.col("origin") == "published"
    # A published container (a module of modules) holds the time of ops that are listed as well.
    is_container = is_published & kind.str.to_lowercase().is_in(CONTAINERS)
    is_original = pl.col("duplicate_of").is_null()
    source = pl.col("env").str.json_path_match("$.source_sha256").fill_null("")
    # One run of a profiler, a prediction or an imported file: by its method and its source.
    recording = pl.concat_str("method", "method_options", source)
    newest_date = pl.col("taken_at").max().over(*CELL_KEYS, "side")
    # Several recordings of one date would count each op several times: any single one is kept.
    single_recording = pl.col("recording").max().over(*CELL_KEYS, "side")
    return (
        _add_side(records)
        .filter(~IS_STEP & is_original & ~is_container)
        .with_columns(kind.alias("op_kind"), recording.alias("recording"))
        # Without a date, all records of the cell lack one (null equals null).
        .filter(pl.col("taken_at").eq_missing(newest_date))
        .filter(pl.col("recording") == single_recording)
    )


def _list_pass_columns() -> dict[str, dict[str, pl.Expr]]:
    """Return the columns of each pass; the pass "" is of ops whose passes are not told apart."""
    published_bytes = other_number("published_traffic_bytes")
    published_flop = published_bytes * other_number("published_intensity_flop_per_byte")
    has_no_passes = pl.col("forward_s").is_null()
    time_share = other_number("published_time_share")
    return {
        "forward": {
            "time_s": pl.col("forward_s"),
            "flop": pl.col("forward_flop"),
            "traffic_bytes": pl.col("traffic_bytes"),
        },
        # Traffic of the backward pass is not recorded.
        "backward": {
            "time_s": pl.col("backward_s"),
            "flop": pl.col("flop") - pl.col("forward_flop"),
        },
        "update": {"time_s": pl.col("update_s")},
        # An op that is not divided into passes, as in inference or in a publication: its whole
        # time and cost. Null for the other ops.
        NO_PASS: {
            "time_s": pl.when(has_no_passes).then("step_s"),
            "time_share": time_share,
            "flop": pl.when(has_no_passes).then(pl.coalesce("flop", published_flop)),
            "traffic_bytes": pl.when(has_no_passes).then(
                pl.coalesce("traffic_bytes", published_bytes)
            ),
            "peak_time_share": other_number("published_flop_share") * time_share,
        },
    }


def sum_groups(records: pl.LazyFrame, kind: str, keys: Sequence[str] = ()) -> pl.DataFrame:
    """Return the sums of the ops of each cell, side and group, and of further `keys`, sorted."""
    ops = _select_newest_ops(records)
    unknown = pl.lit(None, pl.Float64())
    passes = [
        ops.select(
            *(name for name in GROUP_KEYS if name != "name"),
            "scope",
            "op_kind",
            pl.lit(pass_name).alias("pass"),
            *(columns.get(column, unknown).alias(column) for column in AMOUNTS),
        )
        for pass_name, columns in _list_pass_columns().items()
    ]
    # The remainder of a step (`NO_OP`) is a group of its own, whatever the ops are grouped by.
    is_no_op = pl.col("op_kind") == NO_OP
    group_name = pl.when(is_no_op).then("op_kind").otherwise(GROUP_NAMES[kind])
    has_time = pl.col("time_share").is_not_null() | (pl.col("time_s") > 0)
    has_flop = pl.col("flop") > 0
    group_keys = (*GROUP_KEYS, *keys)
    return (
        # A row for each op and pass, without those that are unknown.
        pl.concat(passes)
        .filter(has_time | has_flop)
        .with_columns(group_name.alias("name"))
        .group_by(group_keys, maintain_order=True)
        # Amounts become lists first, and then sums: `sum` in `agg` adds in no fixed order.
        .agg(*AMOUNTS, pl.col("scope").n_unique().alias("ops"))
        .with_columns(map(_sum_of_list, AMOUNTS))
        .sort(group_keys, nulls_last=True)
        .collect()
    )


def _sum_of_list(name: str) -> pl.Expr:
    """Return the sum of a list's numbers, null if it has none.

    Sums inside of `group_by` add in the order in which threads end; a list has the order of rows.
    """
    numbers = pl.col(name).list.drop_nulls()
    return pl.when(numbers.list.len() > 0).then(numbers.list.sum())


def _name_networks(data: Data) -> dict[str, str]:
    """Return the names of the networks with ops by key, in the order of their records."""
    # Results have names of their own, which tell networks apart; the model is only a fallback.
    results = data.scan_results().select("workload_key", "name")
    names = dict(results.unique("workload_key", keep="first").collect().iter_rows())
    batch = pl.concat_str(pl.lit(", batch "), pl.col("batch").cast(pl.String())).fill_null("")
    networks = (
        data.scan()
        .filter(~IS_STEP)
        .unique("workload_key", keep="first", maintain_order=True)
        .select("workload_key", pl.concat_str("model", batch))
        .collect()
    )
    return {key: names.get(key) or model for key, model in networks.iter_rows()}


def _pool_step_times(records: pl.LazyFrame) -> dict[tuple[str, ...], float]:
    """Return the times of whole steps by `STEP_KEYS`, all samples pooled."""
    steps = (
        _add_side(records.filter(IS_STEP))
        .group_by(STEP_KEYS, maintain_order=True)
        .agg(pooled_step_s().alias("step_s"))
        .filter(pl.col("step_s") > 0)
        .collect()
    )
    return {tuple(key): step_s for *key, step_s in steps.iter_rows()}


def _name_by_strategy(cells: Sequence[NetworkOps]) -> list[NetworkOps]:
    """Add the strategy to the names of cells that have the same network and platform."""
    counts = Counter((cell.network, cell.platform) for cell in cells)
    return [
        msgspec.structs.replace(cell, network=f"{cell.network}, {cell.strategy or 'no strategy'}")
        if counts[cell.network, cell.platform] > 1
        else cell
        for cell in cells
    ]


def _make_side(rows: Sequence[Mapping[str, object]], step_s: float | None) -> Side:
    """Return one side of a cell, with the time of which its shares are."""
    groups = {str(row["name"]): msgspec.convert(row, OpGroup) for row in rows}
    no_op_group = groups.pop(NO_OP, None)
    idle_s = _time_of(no_op_group) if no_op_group else 0.0
    ops_s = sum(map(_time_of, groups.values()))
    # The denominator of all shares: the step without the profiler if its time is credible, else
    # the profiled step; 0 for a publication of shares without times.
    basis_s = _choose_basis_s(step_s, ops_s, idle_s)
    shares = {name: _share_of(group, basis_s) for name, group in groups.items()}
    peak = rows[0]["peak_flop_per_s"]
    # A step is timed without the profiler, its ops under it: the difference is the overhead.
    overhead_share = (ops_s + idle_s) / step_s - 1 if step_s and idle_s else None
    # The profiled step is the basis if the step without the profiler contradicts its ops.
    is_profiled = bool(step_s) and basis_s != step_s
    return Side(
        groups=groups,
        totals={
            "flop": sum_present(group.flop for group in groups.values()),
            "traffic_bytes": sum_present(group.traffic_bytes for group in groups.values()),
        },
        shares={**shares, NO_OP_NAME: 1 - sum(shares.values())},
        basis_s=basis_s or None,
        no_op_s=basis_s - ops_s if basis_s else None,
        overhead_share=overhead_share,
        is_profiled=is_profiled,
        peak_flop_per_s=peak if isinstance(peak, float) else None,
    )


def _share_of(group: OpGroup, basis_s: float) -> float:
    """Return the share of a step that ops take: of its time, or as it is published."""
    return _time_of(group) / basis_s if basis_s else group.time_share or 0.0


def _time_of(group: OpGroup) -> float:
    """Return the time of ops, 0 where only a share of the step is published."""
    return group.time_s or 0.0


def sum_present(numbers: Iterable[float | None]) -> float | None:
    """Return the sum of the numbers that are not None, None if all are."""
    present = [number for number in numbers if number is not None]
    return sum(present) if present else None


def _choose_basis_s(step_s: float | None, ops_s: float, idle_s: float) -> float:
    """Return the time that shares are of: the step without a profiler, where it can be trusted.

    It cannot where ops alone take longer under the profiler, or where the profiled step was
    shorter, because other work disturbed the step without it. Then it is the profiled step.
    """
    profiled_s = ops_s + idle_s
    if step_s is None:
        return profiled_s
    # A profiler only slows a step: without it the step takes less, but at least as long as its ops.
    is_profiled = idle_s > 0
    is_credible = ops_s <= step_s <= profiled_s
    return profiled_s if is_profiled and not is_credible else step_s
