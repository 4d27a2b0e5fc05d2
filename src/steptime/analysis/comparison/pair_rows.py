"""Rows of pairs and of what has no partner, made of the columns of a pairing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import polars as pl

from steptime.analysis.frame_rows import CHUNK_ROWS, MAX_ROWS_IN_MEMORY
from steptime.core.garbage import no_collection
from steptime.core.tables.printers import encode_row
from steptime.core.tables.table import JsonRows, LazySequence
from steptime.core.units import format_value
from steptime.records.groups.group_columns import GroupColumns
from steptime.records.groups.group_members import Ids
from steptime.records.groups.record_groups import Cells, finite_cells
from steptime.records.pair_keys import PLATFORM_OPTIONS, STACK_OPTIONS
from steptime.records.row import Row, load_json
from steptime.records.statistics import BETWEEN, WITHIN

if TYPE_CHECKING:
    from steptime.analysis.comparison.pairing import PairColumns, Pairing

ABOUT = (  # columns of the last record of a group
    *("model", "family", "batch", "replicas", "strategy", "overlap", "dtype", "phase"),
    *("optimizer", "platform", "workload_key", "scope", "op_kind"),
)
SIDE_COLUMNS = ("origin", "method", "method_version", "platform", "dtype")
ROOF_COLUMNS = ("flop", "traffic_bytes", "peak_flop_per_s", "memory_bytes_per_s")
SHARES = ("flop_per_s", "peak_fraction", "roof_fraction")
GOOD_STEP_S = pl.coalesce("good_s", pl.when(pl.col("status") == "ok").then(pl.col("step_s")))
CELLS_OF_A: Cells = {name: name for name in (*SIDE_COLUMNS, *ROOF_COLUMNS)}
CELLS_OF_B: Cells = {**{name: name for name in (*ABOUT, *SIDE_COLUMNS)}, "good_s": GOOD_STEP_S}
CELLS_OF_UNPAIRED: Cells = {name: name for name in (*ABOUT, "status", "cause")}
Item = TypeVar("Item")


class _PairParts(NamedTuple):
    """What the row of a pair consists of.

    Attributes:
        name: the name of the pair.
        level: the level of B.
        facts_a: columns of the record of A.
        facts_b: columns of the record of B.
        side_a: how A was measured, and its number.
        side_b: how B was measured, and its number.
        verdict: the ratio with its interval and verdict.
        differences: in what the sides differ.
        shares: the speed, and its shares of peak and roof.
    """

    name: str
    level: str
    facts_a: Row
    facts_b: Row
    side_a: Row
    side_b: Row
    verdict: Row
    differences: Row
    shares: Row


def pair_rows(pairing: Pairing, indices: Ids) -> list[Row]:
    """Return the pairs at these indices as rows."""
    groups = pairing.groups
    a = pairing.columns.a[indices]
    b = pairing.columns.b[indices]
    # Many pairs differ in the same: each distinct difference is described once.
    difference_index, differences = pairing.list_differences(a, b)
    facts_a = _list_facts(pairing, a, CELLS_OF_A)
    facts_b = _list_facts(pairing, b, CELLS_OF_B)
    sides_b = _make_side_rows(facts_b, groups.columns, b)
    columns = (  # in the order of the fields of `_PairParts`
        pairing.names(b),
        groups.level_of(b).tolist(),
        facts_a,
        facts_b,
        _make_side_rows(facts_a, groups.columns, a),
        sides_b,
        _make_verdict_rows(pairing.columns, indices, sides_b),
        [differences[index] for index in difference_index],
        _make_share_rows(facts_a, facts_b),
    )
    return [_join_parts(pairing, _PairParts(*parts)) for parts in zip(*columns, strict=True)]


def _list_facts(pairing: Pairing, ids: Ids, cells: Cells) -> list[Row]:
    """Return columns of the last record of each group."""
    facts = pairing.groups.facts(ids, cells)
    return [facts[group] for group in ids.tolist()]


def _join_parts(pairing: Pairing, parts: _PairParts) -> Row:
    """Return the row of a pair, its keys in the order in which tables and files have them."""
    facts_a = parts.facts_a
    facts_b = parts.facts_b
    row: Row = {"name": parts.name} | {name: facts_b[name] for name in ABOUT}
    row |= {"a": parts.side_a, "b": parts.side_b, "quantity": pairing.groups.quantity}
    row["ratio"] = parts.verdict["ratio"]  # before the level; the rest of the verdict is behind it
    if pairing.column:
        row |= {"level": parts.level, "against": pairing.against}
    row["dtype"] = facts_a["dtype"] if facts_a["dtype"] == facts_b["dtype"] else None
    row |= parts.verdict | parts.differences
    # Shares of peak and roof need both: FLOP are predicted, times are measured.
    is_prediction_judged = facts_a["origin"] == "predicted" and facts_b["origin"] != "predicted"
    is_step = not facts_b["scope"]
    if is_prediction_judged and is_step:
        row |= parts.shares
    return row


def _make_side_rows(facts: Sequence[Row], columns: GroupColumns, ids: Ids) -> list[Row]:
    """Return the side of each pair: how it was measured, and its number with an interval."""
    numbers = (columns.value, columns.low, columns.high, columns.runs)
    cells = zip(*(finite_cells(column[ids]) for column in numbers), strict=True)
    return [
        {
            **{name: about[name] for name in ("origin", "method", "platform", "dtype")},
            "version": about["method_version"],
            "value": value,
            "low": low,
            "high": high,
            "interval": _interval_kind(runs),
            "runs": None if runs is None else int(runs),
        }
        for about, (value, low, high, runs) in zip(facts, cells, strict=True)
    ]


def _interval_kind(runs: float | None) -> str | None:
    """Return over what an interval is, None for a value without runs."""
    if runs is None:
        return None
    return BETWEEN if runs > 1 else WITHIN


def _make_verdict_rows(columns: PairColumns, indices: Ids, sides_b: Sequence[Row]) -> list[Row]:
    """Return the ratio of each pair with its interval and verdict."""
    cells = {
        "ratio": finite_cells(columns.ratio[indices]),
        "ratio_low": finite_cells(columns.low[indices]),
        "ratio_high": finite_cells(columns.high[indices]),
        "verdict": finite_cells(columns.verdict[indices]),
        "p_value": finite_cells(columns.p_value[indices]),
        "smallest_slowdown": finite_cells(columns.smallest_worsening[indices]),
        "interval": [
            _ratio_interval_kind(columns, index, side)
            for index, side in zip(indices.tolist(), sides_b, strict=True)
        ],
        "steady": [
            None if is_steady is None else bool(is_steady)
            for is_steady in finite_cells(columns.steady[indices])
        ],
    }
    return [dict(zip(cells, values, strict=True)) for values in zip(*cells.values(), strict=True)]


def _ratio_interval_kind(columns: PairColumns, index: int, side_b: Row) -> str | None:
    """Return over what the interval of a ratio is: that of samples, or as side B states it."""
    if not columns.is_sampled[index]:
        kind: str | None = side_b["interval"]
        return kind
    # Judged by samples: only several runs show how much runs differ from each other.
    return WITHIN if columns.is_single[index] else BETWEEN


def _make_share_rows(predicted: Sequence[Row], measured: Sequence[Row]) -> list[Row]:
    """Return the speeds of steps and their shares of peak and roof, as results have them."""
    from steptime.records.results import add_shares

    columns = {name: [row[name] for row in predicted] for name in ROOF_COLUMNS}
    columns["measured_s"] = [row["good_s"] for row in measured]
    frame = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Float64()))
    return add_shares(frame).select(SHARES).to_dicts()


def unpaired_rows(pairing: Pairing, indices: Ids) -> list[Row]:
    """Return the entries of `unpaired` at these indices as rows, with the reason."""
    unpaired = pairing.unpaired
    ids = unpaired.group[indices]
    all_ids = np.r_[ids, unpaired.a[indices], unpaired.b[indices]]
    exists = all_ids >= 0  # `a` and `b` are -1 where the cell has no partner at all
    facts = pairing.groups.facts(all_ids[exists], CELLS_OF_UNPAIRED)
    names = pairing.names(ids)
    rows = []
    for name, group, index in zip(names, ids.tolist(), indices.tolist(), strict=True):
        row = {"name": name} | {column: facts[group][column] for column in ABOUT}
        if unpaired.is_both[index]:
            row |= _explain_numberless(pairing, index, facts)
        else:
            side = "a" if unpaired.is_a[index] else "b"
            row |= {"side": side, "reason": unpaired.reason[index]}
        rows.append(row)
    return rows


def _explain_numberless(pairing: Pairing, index: int, facts: Mapping[int, Row]) -> Row:
    """Return the sides of an unpaired entry that have a group without a number, and why."""
    value = pairing.groups.columns.value
    group_by_side = {
        "a": int(pairing.unpaired.a[index]),
        "b": int(pairing.unpaired.b[index]),
    }
    lacking = {side: group for side, group in group_by_side.items() if not value[group] > 0}
    reasons = [_explain_missing(pairing, group, facts[group]) for group in lacking.values()]
    return {"side": "both", "lacks": [*lacking], "reason": "; ".join(reasons)}


def _explain_missing(pairing: Pairing, group: int, facts: Row) -> str:
    """Return the reason why a group has no number: "measured: oom (killed)"."""
    columns = pairing.groups.columns
    level = pairing.groups.levels[columns.level[group]]
    if facts["status"] != "ok":
        reason = facts["status"] + (f" ({facts['cause']})" if facts["cause"] else "")
    elif columns.has_value[group]:
        reason = f"{pairing.quantity} is not above 0"
    else:
        reason = f"no {pairing.quantity}"
    return f"{pairing.level_words.get(level, level)}: {reason}"


def describe_differences(left: Row, right: Row, column: str) -> Row:
    """Return in what two steps that ran differ but in `column`: names of options, and words."""
    left_options = load_json(left["method_options"])
    right_options = load_json(right["method_options"])
    left_way = _describe_way(left, left_options)
    right_way = _describe_way(right, right_options)
    names = [name for name in left_way | right_way if left_way.get(name) != right_way.get(name)]
    if "predicted" in (left["origin"], right["origin"]):
        names = []  # a prediction and a measurement always differ in how they are made
    silent_names = _names_implied_by(column)
    texts = [
        f"{name} {format_value(name, left_way.get(name))} | "
        f"{format_value(name, right_way.get(name))}"
        for name in names
        if name not in silent_names
    ]
    option_names = left_options | right_options
    return {
        "differing_options": [name for name in names if name in option_names],
        "differ": texts,
    }


def _names_implied_by(column: str) -> set[str]:
    """Return the settings that differ because a column is compared, itself among them."""
    _gpu, *platform_options = PLATFORM_OPTIONS  # `gpu` itself is shown
    names = {column, *platform_options}
    # Another method or stack has its own versions and options.
    if column in ("stack", "method"):
        names |= {"version", *STACK_OPTIONS}
    return names


def _describe_way(side: Row, method_options: Row) -> Row:
    """Return the host of a side, the version of its method and the method's options."""
    return {"host": side["host"] or None, "version": side["method_version"], **method_options}


def rows_on_demand(indices: Ids, make: Callable[[Ids], list[Row]]) -> Sequence[Row]:
    """Return rows of these indices: made at once if they are few, else on each pass."""
    if len(indices) <= MAX_ROWS_IN_MEMORY:
        return make(indices) if len(indices) else []
    # Chunks are encoded as they are asked for: few rows are in memory at once. The first chunk is
    # small, since people read no more.
    chunks = np.split(indices, [*range(MAX_ROWS_IN_MEMORY, len(indices), CHUNK_ROWS)])

    def encode_rows(chunk: Ids) -> list[str]:
        with no_collection():
            return [encode_row(row) for row in make(chunk)]

    def encode_all_rows() -> Iterator[Sequence[str]]:
        return map(encode_rows, chunks)

    return JsonRows(len(indices), encode_all_rows)


def structs_on_demand(indices: Ids, make: Callable[[Ids], list[Item]]) -> Sequence[Item]:
    """Return structs of these indices: made at once if they are few, else on each pass."""
    first_indices = indices[:MAX_ROWS_IN_MEMORY]
    # Only the first items of very many stay in memory; a pass over all makes them anew.
    first_items = make(first_indices) if len(first_indices) else []
    if len(indices) <= MAX_ROWS_IN_MEMORY:
        return first_items

    def make_items() -> Iterator[Item]:
        for start in range(0, len(indices), CHUNK_ROWS):
            yield from make(indices[start : start + CHUNK_ROWS])

    return LazySequence(len(indices), make_items, first_items)
