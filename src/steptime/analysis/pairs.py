"""Records side by side: measured and predicted, two folders, the levels of any column.

Side A is what side B is held against: `ratio` is B / A, and a verdict is on B.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from steptime import stacks
from steptime.analysis import results
from steptime.analysis.row import BESIDES, Row, facts, grouped, headline, labels
from steptime.analysis.verdict import Comparison, compare_runs, verdicts
from steptime.core.errors import unknown
from steptime.core.progress import watched
from steptime.core.record import Method, Record, stack_of
from steptime.core.units import shown
from steptime.core.workload import Workload
from steptime.store import identity

OF_PLATFORM = ("gpu", "allocation")  # options that say by what word a platform was asked for
OF_STACK = ("compile", "stack")  # options that say a stack
PLACES = ("platform", "gpu", "threads", "host")  # that may give a platform another name
APART = {  # options in which the levels of a column may differ
    **dict.fromkeys(("platform", "gpu"), OF_PLATFORM),
    **dict.fromkeys(("stack", "method"), OF_STACK),
}
Group = list[Record]  # records of one cell and one method: their samples are pooled
Key = Callable[[Record], Hashable]
Matched = list[tuple[Group, Group, Mapping[str, str]]]  # a, b, and what each side is in words
Lonely = list[tuple[str, Group, str]]


@dataclass(frozen=True)
class Pairing:
    """Pairs as rows, and what has no partner, with the reason; `levels` sums up each side B."""

    quantity: str
    pairs: list[Row]
    unpaired: list[Row]
    against: str = ""
    levels: list[Row] = field(default_factory=list)


def predicted_and_measured(records: Sequence[Record], quantity: str = "step_s") -> Pairing:
    """Return every measurement (B) beside every prediction (A) of workload, platform and strategy.

    What others published stands for a measurement where there is none.
    A row of a whole step also has `flop_per_s`, `peak_fraction` and `roof_fraction` as `results`
    gives them. Raises `InputError` for a quantity that no record holds.
    """
    check_quantity(records, quantity)

    def key(record: Record) -> Hashable:
        return results.cell_of(record), record.scope

    predictions = (record for record in records if record.origin == "predicted")
    latest = {(key(r), r.method.name, stack_of(r)): r for r in predictions}
    a = _cells(latest.values(), key)
    every = grouped(records, key)
    b = _cells((r for held in every.values() for r in results.tried(held)), key)
    sides = {"a": "predicted", "b": "measured"}
    matched: Matched = [
        (x, y, sides)
        for cell in a
        for x in a[cell]
        for y in b.get(cell, ())
        if not stacks.apart(y[-1], x[-1])
    ]
    paired = {id(group) for x, y, _ in matched for group in (x, y)}
    lonely = [
        (side, group, f"not {other}{' for this stack' if cell in others else ''}")
        for side, cells, others, other in (("a", a, b, "measured"), ("b", b, a, "predicted"))
        for cell in cells
        for group in cells[cell]
        if id(group) not in paired
    ]
    return pairing(matched, lonely, quantity)


def two_folders(a: Sequence[Record], b: Sequence[Record], quantity: str = "step_s") -> Pairing:
    """Return the records `b` of one folder beside those `a` of another, on the same platforms."""
    check_quantity([*a, *b], quantity)
    sides = {"a": "in the first folder", "b": "in the second folder"}
    return pairing(*alike(a, b, like("folder"), sides), quantity)


def like(column: str, any_dtype: bool = False) -> Key:
    """Return the key that is equal for records that may be paired, whatever their `column` says."""
    free = {column, "dtype"} if any_dtype else {column}

    def key(record: Record) -> Hashable:
        return (
            _network(record.workload, free),
            "" if column in PLACES else record.platform,
            record.scope,
            record.origin,
            "" if column in free_of_method(record.origin) else record.method.name,
        )

    return key


def free_of_method(origin: str) -> tuple[str, ...]:
    """Return the columns whose levels are of several methods; a prediction of a stack has one."""
    return ("method", "predicted_by", *(() if origin == "predicted" else ("stack",)))


def _network(workload: Workload, free: Collection[str]) -> str:
    """Return a key of the workload that is the same whatever its settings `free` are."""
    plain: dict[str, Any] = {name: "" for name in ("dtype", "phase", "optimizer") if name in free}
    if "batch" in free:
        plain["batch_per_replica"] = 1
    if "replicas" in free:
        plain["plan"] = replace(workload.plan, data=1)
    if free & workload.params.keys():
        plain["params"] = {k: v for k, v in workload.params.items() if k not in free}
    return replace(workload, **plain).key if plain else workload.key


def check_quantity(records: Sequence[Record], quantity: str) -> None:
    """Raise `InputError` for a quantity that no record holds."""
    known = dict.fromkeys(name for record in records for name in record.quantities)
    if quantity not in known:
        raise unknown("quantity", quantity, known)


def _cells(records: Iterable[Record], key: Key) -> dict[Hashable, list[Group]]:
    return {cell: results.by_method(held) for cell, held in grouped(records, key).items()}


def alike(
    a_records: Sequence[Record],
    b_records: Sequence[Record],
    key: Key,
    sides: Mapping[str, str],
    apart: Collection[str] = (),
) -> tuple[Matched, Lonely]:
    """Pair groups of equal options, but those `apart`; a single one a side whatever they are."""
    a, b = _cells(a_records, key), _cells(b_records, key)
    matched: Matched = []
    lonely: Lonely = []
    for cell in dict.fromkeys([*a, *b]):
        left, right = a.get(cell, []), b.get(cell, [])
        by_options = grouped(right, lambda group: _options_text(group, apart))
        same = [(x, y) for x in left for y in by_options.get(_options_text(x, apart), ())]
        if not same and len(left) == len(right) == 1:
            same = [(left[0], right[0])]
        matched += [(x, y, sides) for x, y in same]
        paired = {id(group) for pair in same for group in pair}
        for side, groups, others in (("a", left, right), ("b", right, left)):
            other = sides["b" if side == "a" else "a"]
            why = f"not with these options {other}" if others else f"not {other}"
            lonely += [(side, group, why) for group in groups if id(group) not in paired]
    return matched, lonely


def _options_text(group: Group, apart: Collection[str]) -> str:
    options = group[0].method.options
    return identity(Method("", "", {k: v for k, v in options.items() if k not in apart}))


def pairing(
    matched: Matched,
    lonely: Lonely,
    quantity: str,
    column: str = "",
    *,
    any_dtype: bool = False,
) -> Pairing:
    """Return matched groups as rows with verdicts, and what has no partner; see `by_column`."""
    alone = [one for one in lonely if one[1][-1].scope == ""]
    free = [column, "dtype"] if any_dtype else [column]
    about = _about([b for _, b, _ in matched] + [group for _, group, _ in alone], free)
    rows: list[Row] = []
    judged: list[tuple[Row, Comparison]] = []
    unpaired = [
        row | {"side": side, "reason": why}
        for row, (side, _, why) in zip(about[len(matched) :], alone, strict=True)
    ]
    for row, (a, b, sides) in zip(about, watched(matched, "pairs"), strict=False):
        left, right = _value(a, quantity), _value(b, quantity)
        reasons = {
            side: f"{sides[side]}: {_missing(group, quantity)}"
            for side, group, value in (("a", a, left["value"]), ("b", b, right["value"]))
            if not (value or 0) > 0
        }
        if reasons:
            if not row["scope"]:
                why = "; ".join(reasons.values())
                unpaired.append(row | {"side": "both", "reason": why, "lacks": list(reasons)})
            continue
        ratio = right["value"] / left["value"]
        comparison = _compared(a, b, quantity, ratio)
        row |= {"a": left, "b": right, "quantity": quantity, "ratio": ratio}
        row |= {name: sides[name] for name in ("level", "against") if column}
        rows.append(row | _judgement(left, right, comparison) | _apart(a, b, column))
        if comparison:
            judged.append((rows[-1], comparison))
    # the false discovery rate is held over all pairs at once
    for (row, _), word in zip(judged, verdicts([found for _, found in judged]), strict=True):
        row["verdict"] = word
    return Pairing(quantity, rows, unpaired)


def _missing(group: Group, quantity: str) -> str:
    last = group[-1]
    if last.status != "ok":
        return last.status + (f" ({last.cause})" if last.cause else "")
    if any(quantity in record.quantities for record in group):
        return f"{quantity} is not above 0"
    return f"no {quantity}"


def _compared(a: Group, b: Group, quantity: str, ratio: float) -> Comparison | None:
    """Compare samples with samples; folders and platforms were not interleaved, so unpaired."""
    a_runs, b_runs = results.runs(a, quantity), results.runs(b, quantity)
    if not (a_runs and b_runs and _positive(a_runs) and _positive(b_runs)):
        return None
    return compare_runs(a_runs, b_runs, paired=False).holding(ratio)


def _positive(sampled: Sequence[Sequence[float]]) -> bool:
    """Whether samples are times; differences of times may be anything, and have no interval."""
    return all(sample > 0 for run in sampled for sample in run)


def _about(groups: Sequence[Group], free: Collection[str]) -> list[Row]:
    """Return name and facts of each group; what is `free` tells none apart, as in a pair."""
    told = [facts(group[-1]) | {"host": results.hosts(group)} for group in groups]
    blank = dict.fromkeys(set(free) - set(BESIDES))
    named = [
        one
        | blank
        | {"settings": {k: "" if k in free else v for k, v in one["settings"].items()}}
        | {"options": {k: v for k, v in one["options"].items() if k not in free}}
        for one in told
    ]
    return [
        {"name": name, **{key: one[key] for key in (*results.FACTS, "scope", "op_kind")}}
        for name, one in zip(labels(named, besides=(*BESIDES, "scope")), told, strict=True)
    ]


def _judgement(left: Row, right: Row, comparison: Comparison | None) -> Row:
    """Return the interval of a ratio: of the samples, else the widest that both sides allow."""
    low, high = None, None
    if comparison:
        low, high = comparison.low, comparison.high
    elif left["low"] is not None or right["low"] is not None:
        low = results.over(_end(right, "low"), _end(left, "high"))
        high = results.over(_end(right, "high"), _end(left, "low"))
    return {
        "dtype": left["dtype"] if left["dtype"] == right["dtype"] else None,
        "ratio_low": low,
        "ratio_high": high,
        "verdict": None,
        "p_value": comparison.p_value if comparison else None,
        "interval": comparison.interval if comparison else right["interval"],
        "steady": comparison.steady if comparison else None,
    }


def _apart(a: Group, b: Group, column: str) -> Row:
    """Return in what measurements differ; of a measured step its share of the roof.

    `differ` says it in words, `threads 1 | 2`, but for the `column` by which they are compared.
    """
    origins = (a[-1].origin, b[-1].origin)
    left, right = ({"host": results.hosts(g), **_way(g[0])} for g in (a, b))
    differ = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    if "measured" not in origins or "predicted" in origins:
        differ = []
    known = ("version", *OF_STACK) if column in ("stack", "method") else ()
    told = [name for name in differ if name not in (column, *OF_PLATFORM[1:], *known)]
    options = {**a[0].method.options, **b[0].method.options}
    row: Row = {
        "options_that_differ": [name for name in differ if name in options],
        "differ": [f"{n} {shown(n, left.get(n))} | {shown(n, right.get(n))}" for n in told],
    }
    whole = origins[0] == "predicted" != origins[1] and not b[-1].scope
    return row | results.share_of_roof(b, a[-1]) if whole else row


def _way(record: Record) -> Row:
    return {"version": record.method.version, **record.method.options}


def _end(side: Row, name: str) -> float | None:
    """Return an end of a side's interval; an exact value is its own."""
    end: float | None = side["value"] if side[name] is None else side[name]
    return end


def _value(group: Group, quantity: str) -> Row:
    """Return value and interval of a side: pooled samples, or the last of its single values."""
    last = group[-1]
    about = {
        "origin": last.origin,
        "method": last.method.label,
        "version": last.method.version,
        "platform": last.platform,
        "dtype": last.workload.dtype,
    }
    # a prediction that says "does not fit" still says how long a step would take
    held = results.good(group, quantity) if last.origin == "measured" else group
    if _positive(results.runs(held, quantity)) and (found := results.pooled(held, quantity)):
        ends = {name: found[f"step_s_{name}"] for name in ("low", "high", "interval")}
        return about | {"value": found["step_s"], **ends, "runs": found["runs"]}
    latest = next((r.quantities[quantity] for r in held[::-1] if quantity in r.quantities), None)
    ends = {name: latest and getattr(latest, name) for name in ("low", "high")}
    value = latest and headline(latest)
    return about | {"value": value, **ends, "interval": None, "runs": None}
