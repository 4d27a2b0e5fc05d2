"""Records side by side: measured and predicted, two platforms, two folders.

Side A is what side B is held against: `ratio` is B / A, and a verdict is on B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from steptime.analysis.results import good, over, results, runs
from steptime.analysis.statistics import estimate
from steptime.analysis.tables import exchange_name, exchange_of, headline, short_names
from steptime.analysis.verdict import Comparison, compare_runs, verdicts
from steptime.core.errors import InputError, unknown
from steptime.core.record import Record
from steptime.store import identity

Row = dict[str, Any]
Group = list[Record]  # records of one cell and one method: their samples are pooled
Key = Callable[[Record], Hashable]


@dataclass(frozen=True)
class Pairing:
    """Pairs as rows, and what has no partner, with the reason."""

    quantity: str
    pairs: list[Row]
    unpaired: list[Row]


def predicted_and_measured(records: Sequence[Record], quantity: str = "step_s") -> Pairing:
    """Give every measurement (B) beside every prediction (A) of workload, platform and strategy.

    A row of a whole step also has `flop_per_s`, `peak_fraction` and `roof_fraction` as `results`
    gives them. Raises `InputError` for a quantity that no record holds.
    """
    _check_quantity(records, quantity)

    def key(record: Record) -> Hashable:
        return record.workload.key, record.platform, record.scope, exchange_of(record)

    latest = {(key(r), r.method.name): r for r in records if r.origin == "predicted"}
    a = _cells(latest.values(), key)
    b = _cells((r for r in records if r.origin == "measured"), key)
    matched = [(x, y) for cell in a for x in a[cell] for y in b.get(cell, ())]
    lonely = [("a", group, "not measured") for cell in a if cell not in b for group in a[cell]]
    lonely += [("b", group, "not predicted") for cell in b if cell not in a for group in b[cell]]
    pairing = _pairing(matched, lonely, quantity, {"a": "predicted", "b": "measured"})
    told = ("workload_key", "platform", "strategy", "overlap", "predicted_by")
    roofs = {tuple(row[name] for name in told): row for row in results(records)}
    for row in pairing.pairs:
        if row["scope"] == "":
            roof = roofs[(*(row[name] for name in told[:-1]), row["a"]["method"])]
            row |= {name: roof[name] for name in ("flop_per_s", "peak_fraction", "roof_fraction")}
    return pairing


def two_platforms(
    records: Sequence[Record],
    a: str,
    b: str,
    quantity: str = "step_s",
    *,
    any_dtype: bool = False,
) -> Pairing:
    """Give platform `b` beside platform `a`, measured with measured, predicted with predicted.

    With `any_dtype` a network in one type is paired with itself in another. Raises `InputError` for
    a platform or a quantity that no record has.
    """
    known = dict.fromkeys(record.platform for record in records)
    for platform in (a, b):
        if platform not in known:
            raise unknown("platform", platform, known)
    if a == b:
        raise InputError(f"a platform is compared with another, not '{a}' with itself")
    _check_quantity(records, quantity)
    return _alike(
        [record for record in records if record.platform == a],
        [record for record in records if record.platform == b],
        lambda r: (
            (replace(r.workload, dtype="") if any_dtype else r.workload).key,
            r.scope,
            r.origin,
            r.method.name,
        ),
        quantity,
        {"a": f"on {a}", "b": f"on {b}"},
        any_dtype=any_dtype,
    )


def two_folders(a: Sequence[Record], b: Sequence[Record], quantity: str = "step_s") -> Pairing:
    """Give the records `b` of one folder beside those `a` of another, on the same platforms."""
    _check_quantity([*a, *b], quantity)
    return _alike(
        a,
        b,
        lambda r: (r.workload.key, r.platform, r.scope, r.origin, r.method.name),
        quantity,
        {"a": "in the first folder", "b": "in the second folder"},
    )


def errors(pairs: Iterable[Row], worst: int = 3) -> Row:
    """Give how far A is off from B: what a prediction is judged by.

    `median_error` is the median of |A / B - 1|, `geometric_mean_ratio` that of B / A,
    `within_factor_2` a share; `worst` holds the pairs whose ratio is farthest from 1. All are None
    or empty without a pair that has a ratio.
    """
    known = [row for row in pairs if row["ratio"]]
    ratios = [row["ratio"] for row in known]
    farthest = sorted(known, key=lambda row: -abs(math.log(row["ratio"])))[:worst]
    return {
        "pairs": len(known),
        "median_error": median(abs(1 / ratio - 1) for ratio in ratios) if ratios else None,
        "geometric_mean_ratio": math.exp(fmean(map(math.log, ratios))) if ratios else None,
        "within_factor_2": fmean(0.5 <= ratio <= 2 for ratio in ratios) if ratios else None,
        "worst": [
            {name: row[name] for name in ("name", "model", "batch", "ratio")} for row in farthest
        ],
    }


def _check_quantity(records: Sequence[Record], quantity: str) -> None:
    known = dict.fromkeys(name for record in records for name in record.quantities)
    if quantity not in known:
        raise unknown("quantity", quantity, known)


def _cells(records: Iterable[Record], key: Key) -> dict[Hashable, list[Group]]:
    found: dict[Hashable, dict[str, Group]] = {}
    for record in records:
        methods = found.setdefault(key(record), {})
        methods.setdefault(identity(record.method), []).append(record)
    return {cell: list(methods.values()) for cell, methods in found.items()}


def _alike(
    a_records: Sequence[Record],
    b_records: Sequence[Record],
    key: Key,
    quantity: str,
    sides: Mapping[str, str],
    *,
    any_dtype: bool = False,
) -> Pairing:
    """Pair groups of equal options; where each side has a single one, these whatever they are."""
    a, b = _cells(a_records, key), _cells(b_records, key)
    matched: list[tuple[Group, Group]] = []
    lonely: list[tuple[str, Group, str]] = []
    for cell in dict.fromkeys([*a, *b]):
        left, right = a.get(cell, []), b.get(cell, [])
        same = [(x, y) for x in left for y in right if _options(x) == _options(y)]
        if not same and len(left) == len(right) == 1:
            same = [(left[0], right[0])]
        matched += same
        for side, groups, others in (("a", left, right), ("b", right, left)):
            other = sides["b" if side == "a" else "a"]
            why = f"not with these options {other}" if others else f"not {other}"
            paired = [group for pair in same for group in pair]
            lonely += [
                (side, group, why) for group in groups if not any(group is p for p in paired)
            ]
    return _pairing(matched, lonely, quantity, sides, any_dtype=any_dtype)


def _options(group: Group) -> Mapping[str, Any]:
    return group[0].method.options


def _pairing(
    matched: Sequence[tuple[Group, Group]],
    lonely: Sequence[tuple[str, Group, str]],
    quantity: str,
    sides: Mapping[str, str],
    *,
    any_dtype: bool = False,
) -> Pairing:
    everything = [record for x, y in matched for record in (*x, *y)]
    everything += [record for _, group, _ in lonely for record in group]
    workloads = {record.workload.key: record.workload for record in everything}
    if any_dtype:  # the two of a pair have one name
        workloads = {key: replace(one, dtype="") for key, one in workloads.items()}
    short = short_names(workloads.values())
    names = {key: short[one.key] for key, one in workloads.items()}
    rows: list[Row] = []
    compared: list[Comparison | None] = []
    unpaired = [_about(group, names) | {"side": side, "reason": why} for side, group, why in lonely]
    for a, b in matched:
        reasons = [
            f"{sides[side]}: {_missing(group, quantity)}"
            for side, group in (("a", a), ("b", b))
            if not (_value(group, quantity)["value"] or 0) > 0
        ]
        if reasons:
            about = _about(b, names)
            unpaired.append(about | {"side": "both", "reason": "; ".join(reasons)})
            continue
        comparison = _compared(a, b, quantity)
        compared.append(comparison)
        rows.append(_about(b, names) | _pair(a, b, quantity, comparison))
    _judge(rows, compared)
    return Pairing(quantity, rows, [row for row in unpaired if row["scope"] == ""])


def _missing(group: Group, quantity: str) -> str:
    last = group[-1]
    if last.status != "ok":
        return last.status + (f" ({last.cause})" if last.cause else "")
    if any(quantity in record.quantities for record in group):
        return f"{quantity} is not above 0"
    return f"no {quantity}"


def _compared(a: Group, b: Group, quantity: str) -> Comparison | None:
    """Compare samples with samples; folders and platforms were not interleaved, so unpaired."""
    a_runs, b_runs = runs(a, quantity), runs(b, quantity)
    if not (a_runs and b_runs and _positive(a_runs) and _positive(b_runs)):
        return None
    return compare_runs(a_runs, b_runs, paired=False)


def _positive(sampled: Sequence[Sequence[float]]) -> bool:
    """Whether samples are times; differences of times may be anything, and have no interval."""
    return all(sample > 0 for run in sampled for sample in run)


def _judge(rows: Sequence[Row], compared: Sequence[Comparison | None]) -> None:
    """Put the verdicts in, the false discovery rate held over all pairs at once."""
    both = [(row, found) for row, found in zip(rows, compared, strict=True) if found]
    for (row, _), word in zip(both, verdicts([found for _, found in both]), strict=True):
        row["verdict"] = word


def _about(group: Group, names: Mapping[str, str]) -> Row:
    workload = group[-1].workload
    return {
        "name": names[workload.key] + exchange_name(group[-1]),
        "model": workload.label,
        "family": workload.model,
        "batch": workload.batch_per_replica,
        "replicas": workload.plan.data,
        "strategy": exchange_of(group[-1])[0] or None,
        "overlap": exchange_of(group[-1])[1],
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        "workload_key": workload.key,
        "scope": group[-1].scope,
        "platform": group[-1].platform,
    }


def _pair(a: Group, b: Group, quantity: str, comparison: Comparison | None) -> Row:
    left, right = _value(a, quantity), _value(b, quantity)
    if comparison:
        ratio = (comparison.ratio, comparison.low, comparison.high)
    else:
        # the widest that both intervals allow; an exact value is its own interval
        ratio = (
            right["value"] / left["value"],
            over(_end(right, "low"), _end(left, "high")),
            over(_end(right, "high"), _end(left, "low")),
        )
        if left["low"] is None and right["low"] is None:
            ratio = (ratio[0], None, None)
    options = (_options(a), _options(b))
    differ = [k for k in {**options[0], **options[1]} if options[0].get(k) != options[1].get(k)]
    return {
        "quantity": quantity,
        "dtype": left["dtype"] if left["dtype"] == right["dtype"] else None,
        "a": left,
        "b": right,
        "ratio": ratio[0],
        "ratio_low": ratio[1],
        "ratio_high": ratio[2],
        "verdict": None,
        "p_value": comparison.p_value if comparison else None,
        "interval": comparison.interval if comparison else right["interval"],
        "options_that_differ": differ if left["origin"] == right["origin"] == "measured" else [],
    }


def _end(side: Row, name: str) -> float | None:
    end: float | None = side["value"] if side[name] is None else side[name]
    return end


def _value(group: Group, quantity: str) -> Row:
    """Give value and interval of a side: pooled samples, or the last of its single values."""
    last = group[-1]
    about = {
        "origin": last.origin,
        "method": last.method.name,
        "version": last.method.version,
        "platform": last.platform,
        "dtype": last.workload.dtype,
    }
    # a prediction that says "does not fit" still says how long a step would take
    held = good(group, quantity) if last.origin == "measured" else group
    sampled = runs(held, quantity)
    if sampled and _positive(sampled):
        found = estimate(sampled)
        value = median(sample for run in sampled for sample in run)
        ends = (found.low, found.high) if found.low is not None else (None, None)
        low = None if ends[0] is None else min(ends[0], value)
        high = None if ends[1] is None else max(ends[1], value)
        return {
            **about,
            "value": value,
            "low": low,
            "high": high,
            "interval": found.interval,
            "runs": len(sampled),
        }
    quantities = [r.quantities[quantity] for r in held if quantity in r.quantities]
    latest = quantities[-1] if quantities else None
    return {
        **about,
        "value": headline(latest) if latest else None,
        "low": latest.low if latest else None,
        "high": latest.high if latest else None,
        "interval": None,
        "runs": None,
    }
