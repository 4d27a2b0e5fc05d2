"""One row a network: what was measured, what was predicted, and how close that is to the roof."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from steptime.analysis.statistics import Summary, summarize_steps
from steptime.analysis.tables import (
    exchange_name,
    exchange_of,
    headline,
    input_of,
    runs_of,
    said,
    short_names,
)
from steptime.core.record import Record
from steptime.store import identity

Row = dict[str, Any]

UNSAID = ("host", "predicted_by")  # None where nobody said it, not for a default
BARE = ("platform", "gpu", "method", "predicted_by")  # known by their values
NAMED = ("strategy", "overlap", "gpu")  # by the name of a row, or before the other options


def results(records: Sequence[Record]) -> list[Row]:
    """Give one row for each workload, platform, strategy, measuring and predicting method.

    Numbers are SI; one that is unknown is None. `ratio` is measured / predicted time of a step,
    `flop_per_s` the predicted FLOP of a replica over the measured time, `peak_fraction` that over
    the peak of the dtype, `roof_fraction` that over the lower of peak and intensity x bandwidth
    (Williams, Waterman, Patterson 2009). A row without a measured time says why in `status`,
    `cause` and `note`; `status` is None where nothing was tried.
    """
    whole = [record for record in records if not record.scope]
    names = short_names(record.workload for record in whole)
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in whole:
        key = (record.workload.key, record.platform, *exchange_of(record))
        cells.setdefault(key, []).append(record)
    rows = [
        _row(names[key] + exchange_name(found[0]), tried, predicted)
        for (key, *_), found in cells.items()
        for tried in _by_method(found, "measured") or [[]]
        for predicted in _latest(found) or [None]
        if tried or predicted
    ]
    telling = differing(rows)
    for row in rows:
        known = {n: row["settings"][n] for n in telling if row["settings"].get(n) is not None}
        words = (str(v) if n in BARE else said(n, v) for n, v in known.items())
        row["label"] = ", ".join([row["name"], *words])
    return rows


def differing(rows: Sequence[Row], *, of_a_network: bool = True) -> list[str]:
    """Return the settings in which rows of one network, or all rows, differ: `["platform", "gpu"]`.

    An option that a measurement does not name is at its default, another value than any named one.
    """
    names = dict.fromkeys(name for row in rows for name in row["settings"])
    seen: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for name in names:
            value = row["settings"].get(name)
            if value is not None or (row["method"] and name not in UNSAID):
                key = row["workload_key"] if of_a_network else ""
                seen.setdefault((name, key), set()).add(str(value))
    return [n for n in names if any(len(v) > 1 for (name, _), v in seen.items() if name == n)]


def _settings(platform: str, tried: Sequence[Record], predicted: Record | None) -> Row:
    """Return where and how a step was run or predicted; what is None was not said."""
    last = tried[-1] if tried else None
    options = dict(last.method.options) if last else {}
    hosts = dict.fromkeys(str(r.env["host"]) for r in tried if r.env.get("host"))
    first = {
        "platform": platform,
        "gpu": options.get("gpu"),
        "host": ", ".join(hosts) or None,
        "method": f"{last.method.name} {last.method.version}" if last else None,
        "predicted_by": predicted.method.name if predicted else None,
    }
    rest = {name: value for name, value in options.items() if name not in NAMED}
    return first | rest | (input_of(last) if last else {})


def _by_method(records: Iterable[Record], origin: str) -> list[list[Record]]:
    methods: dict[str, list[Record]] = {}
    for record in records:
        if record.origin == origin:
            methods.setdefault(identity(record.method), []).append(record)
    return list(methods.values())


def _latest(records: Iterable[Record]) -> list[Record | None]:
    """Give the last prediction of each method name: a device file may have been probed again."""
    return list({r.method.name: r for r in records if r.origin == "predicted"}.values())


def good(records: Iterable[Record], quantity: str = "step_s") -> list[Record]:
    """Give the records that hold `quantity`, those that failed left out."""
    return [r for r in records if r.status == "ok" and quantity in r.quantities]


def runs(records: Iterable[Record], quantity: str = "step_s") -> list[list[float]]:
    """Give the samples of `quantity` by run; a run of one record is never one of another."""
    found: list[list[float]] = []
    for record in good(records, quantity):
        held = record.quantities[quantity]
        by_run: dict[int, list[float]] = {}
        for run, sample in zip(runs_of(held), held.samples, strict=True):
            by_run.setdefault(run, []).append(sample)
        found += by_run.values()
    return found


def pooled(records: Sequence[Record]) -> Summary | None:
    """Give the statistics of all samples [s] of the step in records of one cell, or None."""
    found = runs(records)
    if not found:
        return None
    workload = records[0].workload
    samples = [sample for run in found for sample in run]
    of_run = [index for index, run in enumerate(found) for _ in run]
    return summarize_steps(samples, of_run, workload.global_batch)


def _row(name: str, tried: Sequence[Record], predicted: Record | None) -> Row:
    some = [*([predicted] if predicted else []), *tried][-1]
    workload = some.workload
    last = (good(tried) or list(tried))[-1] if tried else None
    row = {
        "name": name,
        "model": workload.label,
        "family": workload.model,
        "batch": workload.batch_per_replica,
        "replicas": workload.plan.data,
        "strategy": exchange_of(some)[0] or None,
        "overlap": exchange_of(some)[1],
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        "platform": some.platform,
        "workload_key": workload.key,
        "settings": _settings(some.platform, tried, predicted),
        "method": last.method.name if last else None,
        **(input_of(last) if last else {"input": None, "loaders": None}),
        "predicted_by": predicted.method.name if predicted else None,
        "status": last.status if last else None,
        "cause": (last.cause or None) if last else None,
        "note": (last.note or None) if last else None,
        **_measured(tried),
        **_predicted(predicted),
    }
    return {**row, **_derived(row)}


def _measured(tried: Sequence[Record]) -> Row:
    summary = pooled(good(tried))
    memory = [_value(r, "peak_memory_bytes") for r in good(tried, "peak_memory_bytes")]
    known = [value for value in memory if value is not None]
    return {
        "measured_s": summary.median_s if summary else None,
        "measured_low_s": summary.low_s if summary else None,
        "measured_high_s": summary.high_s if summary else None,
        "measured_min_s": summary.min_s if summary else None,
        "interval": summary.interval if summary else None,
        "examples_per_s": summary.speed_mean if summary else None,
        "steady": summary.steady if summary else None,
        "runs": len(runs(tried)),
        "samples_n": sum(map(len, runs(tried))),
        "measured_memory_bytes": max(known, default=None),
    }


def _value(record: Record | None, name: str) -> float | None:
    quantity = record.quantities.get(name) if record else None
    return headline(quantity) if quantity else None


def _predicted(record: Record | None) -> Row:
    options = record.method.options if record else {}
    return {
        "predicted_s": _value(record, "step_s"),
        "flop": _value(record, "flop"),
        "traffic_bytes": _value(record, "traffic_bytes"),
        "predicted_memory_bytes": _value(record, "peak_memory_bytes"),
        "peak_flop_per_s": options.get("peak_flop_per_s"),
        "memory_bytes_per_s": options.get("memory_bytes_per_s"),
    }


def _derived(row: Row) -> Row:
    intensity = over(row["flop"], row["traffic_bytes"])
    speed = over(row["flop"], row["measured_s"])
    roof = roof_flop_per_s(intensity, row["peak_flop_per_s"], row["memory_bytes_per_s"])
    return {
        "ratio": over(row["measured_s"], row["predicted_s"]),
        "ratio_low": over(row["measured_low_s"], row["predicted_s"]),
        "ratio_high": over(row["measured_high_s"], row["predicted_s"]),
        "intensity": intensity,
        "flop_per_s": speed,
        "predicted_flop_per_s": over(row["flop"], row["predicted_s"]),
        "roof_flop_per_s": roof,
        "peak_fraction": over(speed, row["peak_flop_per_s"]),
        "roof_fraction": over(speed, roof),
    }


def over(a: float | None, b: float | None) -> float | None:
    """Give a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None


def roof_flop_per_s(
    intensity: float | None, peak: float | None, bandwidth: float | None
) -> float | None:
    """Give the lower of the two roofs [FLOP/s] at an intensity [FLOP/byte], None where unknown."""
    if intensity is None or peak is None or bandwidth is None:
        return None
    return min(peak, intensity * bandwidth)
