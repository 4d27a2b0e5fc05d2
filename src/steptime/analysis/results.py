"""Records of one cell: what was tried, what was predicted, how close that is to the roofline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from steptime.analysis.row import Row, grouped, headline, samples_by_run
from steptime.analysis.statistics import summarize
from steptime.core.progress import watched
from steptime.core.record import Quantity, Record, stack_of
from steptime.stacks import apart
from steptime.store import identity

FACTS = (  # that a pair takes from the last record of its cell
    "model",
    "family",
    "batch",
    "replicas",
    "strategy",
    "overlap",
    "dtype",
    "phase",
    "optimizer",
    "platform",
    "workload_key",
)


def pairs(records: Iterable[Record]) -> Iterator[tuple[list[Record], Record | None]]:
    """Return what each row of `results` is made from: measurements, and the prediction if any."""
    cells = grouped((record for record in records if not record.scope), cell_of)
    for held in watched(list(cells.values()), "networks"):
        every, predictions = by_method(tried(held, alone=True)), _latest(held)
        paired: list[Record] = []
        for attempts in every:
            beside = [one for one in predictions if not apart(attempts[-1], one)]
            paired += beside
            yield from ((attempts, one) for one in beside)
            if not beside:
                yield attempts, None
        yield from (([], one) for one in predictions if not any(one is it for it in paired))


def tried(held: Sequence[Record], *, alone: bool = False) -> list[Record]:
    """Return the measurements of a cell; where there are none, the published steps.

    Those stand beside a prediction only, or with `alone` without one, too, and those that failed.
    """
    origins = {record.origin for record in held}
    if "measured" in origins or not ({"predicted"} <= origins or alone):
        return [record for record in held if record.origin == "measured"]
    published = [r for r in held if r.origin == "published" and not r.env.get("duplicate_of")]
    return [r for r in published if "step_s" in r.quantities or (alone and r.status != "ok")]


def cell_of(record: Record) -> tuple[str, str, str, bool]:
    """Return what records have in common that are of one workload, platform and exchange."""
    options = record.method.options
    exchange = (options.get("strategy", ""), options.get("overlap", True))
    return (record.workload.key, record.platform, *exchange)


def by_method(records: Iterable[Record]) -> list[list[Record]]:
    """Return the records of each method and its options."""
    return list(grouped(records, lambda record: identity(record.method)).values())


def _latest(records: Iterable[Record]) -> list[Record]:
    """Return the last prediction by each method name of a stack: a device may be probed again."""
    told = (record for record in records if record.origin == "predicted")
    return list({(one.method.name, stack_of(one)): one for one in told}.values())


def good(records: Iterable[Record], quantity: str = "step_s") -> list[Record]:
    """Return the records that hold `quantity`, those that failed left out."""
    return [r for r in records if r.status == "ok" and quantity in r.quantities]


def runs(records: Iterable[Record], quantity: str = "step_s") -> list[list[float]]:
    """Return the samples of `quantity` by run; a run of one record is never one of another."""
    held = [record.quantities[quantity] for record in good(records, quantity)]
    return [run for one in held for run in samples_by_run(one)]


def pooled(records: Sequence[Record], quantity: str = "step_s") -> Row:
    """Return `summarize` of all samples [s] of `quantity` in records of one cell; empty if none."""
    found = runs(records, quantity)
    return summarize(found, records[0].workload.global_batch) if found else {}


def share_of_roof(tried: Sequence[Record], predicted: Record) -> Row:
    """Return `flop_per_s`, `peak_fraction` and `roof_fraction` as `results` does."""
    samples = [sample for run in runs(tried) for sample in run]
    measured_s = median(samples) if samples else _published_s(tried)
    derived = _derived({"measured_s": measured_s, **_predicted(predicted)})
    return {name: derived[name] for name in ("flop_per_s", "peak_fraction", "roof_fraction")}


def hosts(records: Iterable[Record]) -> str | None:
    """Return the machines that records are from, None where none says so."""
    named = dict.fromkeys(str(r.env["host"]) for r in records if r.env.get("host"))
    return ", ".join(named) or None


def _published_s(tried: Sequence[Record]) -> float | None:
    """Return the step that the last record states as one value, None if none does."""
    return _value(next(reversed(good(tried)), None), "step_s")


def _value(record: Record | None, name: str) -> float | None:
    return headline(record.quantities.get(name, Quantity())) if record else None


def _predicted(record: Record | None) -> Row:
    options = record.method.options if record else {}
    step = record.quantities.get("step_s") if record else None
    return {
        "predicted_s": _value(record, "step_s"),
        **{f"predicted_{end}_s": getattr(step, end, None) for end in ("low", "high")},
        **{name: _value(record, name) for name in ("flop", "traffic_bytes")},
        "predicted_memory_bytes": _value(record, "peak_memory_bytes"),
        **{name: options.get(name) for name in ("peak_flop_per_s", "memory_bytes_per_s")},
    }


def _derived(row: Row) -> Row:
    intensity = over(row["flop"], row["traffic_bytes"])
    speed = over(row["flop"], row["measured_s"])
    roof = roof_flop_per_s(intensity, row["peak_flop_per_s"], row["memory_bytes_per_s"])
    return {
        "ratio": over(row["measured_s"], row["predicted_s"]),
        "ratio_low": over(row.get("measured_low_s"), row["predicted_s"]),
        "ratio_high": over(row.get("measured_high_s"), row["predicted_s"]),
        "intensity": intensity,
        "flop_per_s": speed,
        "predicted_flop_per_s": over(row["flop"], row["predicted_s"]),
        "roof_flop_per_s": roof,
        "peak_fraction": over(speed, row["peak_flop_per_s"]),
        "roof_fraction": over(speed, roof),
    }


def over(a: float | None, b: float | None) -> float | None:
    """Return a / b, or None where either is unknown or b is 0."""
    return a / b if a is not None and b else None


def roof_flop_per_s(
    intensity: float | None, peak: float | None, bandwidth: float | None
) -> float | None:
    """Return the lower ceiling [FLOP/s] at an intensity [FLOP/byte], None where unknown."""
    if intensity is None or peak is None or bandwidth is None:
        return None
    return min(peak, intensity * bandwidth)
