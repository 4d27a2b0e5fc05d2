"""Why a step takes as long as it does, in a few sentences with numbers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from steptime.core.errors import InputError
from steptime.core.table import Result, Table, columns, facts
from steptime.core.units import interval, percent, seconds
from steptime.core.workload import Plan, Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device, Link
from steptime.prediction import DEFAULT
from steptime.prediction.assumed import assumed_of, assumed_row
from steptime.prediction.records import options_of
from steptime.prediction.step_model import StepModel
from steptime.questions.bound import BOUNDS, Input, Path, ceilings_s
from steptime.questions.help import WORTH, Setup, helps
from steptime.records.record import Quantity, Record
from steptime.records.record import stack_of as record_stack
from steptime.records.row import UNKNOWN, Row, by_run, grouped, headline
from steptime.records.statistics import estimate

SHOWN = 3  # ops, and changes in a sentence
TABLED = "The most expensive ops of the device's time:", "Would help, in examples a second by"
UNEXPLAINED = "unexplained"  # share of a measured step that no share of the model can be
DISTURBED = 0.25  # of the samples: more is said
NO_WAIT = 0.01  # of a step: less than that is no wait for input
_OF = {
    "compute": "arithmetic",
    "memory": "memory traffic",
    "host": "calls and launches of the host",
    "input": "waiting for input",
    "communication": "exposed communication",
    UNEXPLAINED: "not explained by the model",
}


@dataclass(frozen=True)
class Diagnosis(Result):
    """What a step waits for: `bound` by the largest of `shares`; why, and what would help.

    `step_s` is measured where `origin` says so, else predicted; `low_s` and `high_s` bound the
    prediction, which needs `needed_bytes` of the device, `peak_bytes` of them for tensors.
    `ops` are the most expensive ones with those `alike`, each of which takes as long;
    `ceiling_fraction` is how near an op comes to what the peaks allow. `help` has what the model
    says of one change each. `evidence` are numbers of the measurement, {} without one.
    """

    model: str
    device: str
    batch: int
    replicas: int
    dtype: str
    method: str
    origin: str
    step_s: float
    low_s: float | None
    high_s: float | None
    bound: str
    shares: Mapping[str, float]
    ops: Sequence[Row]
    help: Sequence[Row]
    evidence: Mapping[str, Any]
    sentences: Sequence[str]
    assumed: Mapping[str, str] = field(default_factory=dict)
    peak_bytes: int | None = None
    needed_bytes: int | None = None
    tabled = TABLED

    def tables(self) -> list[Table]:
        """Return the diagnosis as tables."""
        title = f"{self.model}, batch {self.batch}, {self.dtype} on {self.device} ({self.method})"
        ends = (self.low_s, self.high_s) if self.origin == "predicted" else (None, None)
        step = interval("step_s", self.step_s, *ends)
        rows = [*assumed_row(self.assumed), ("step", step), ("bound by", self.bound)]
        rows += [(f"  {name}", percent(share)) for name, share in self.shares.items() if share]
        told = ("op", "?kind", "alike", "step_s=each", "all_share=device time")
        ops = columns(*told, "bound=bottleneck", "?ceiling_fraction=of its ceiling")
        every = [{**row, "all_share": row["time_share"] * (1 + row["alike"])} for row in self.ops]
        more = columns("change", "step_s=step", "speedup=examples/s")
        changes = [Table(more, self.help, "what would help, by the model")] if self.help else []
        return [
            facts(title, self.origin, rows),
            Table(ops, every, "most expensive ops, with those alike"),
            *changes,
        ]

    def _repr_html_(self) -> str:
        from steptime.core.printers import html

        return "".join([*(f"<p>{one}</p>" for one in self.sentences), *map(html, self.tables())])


def why(
    workload: Workload,
    device: Device,
    method: str = DEFAULT,
    options: Mapping[str, str] | None = None,
    link: Link | None = None,
    replicas: int = 1,
    input_per_s: float | None = None,
) -> Diagnosis:
    """Return why a step is predicted to take as long as it does.

    `input_per_s` are the examples a second that input brings for all replicas, None where it never
    makes a step wait. Raises `InputError` as a prediction does.
    """
    period_s = workload.batch_per_replica * replicas / input_per_s if input_per_s else 0.0
    asked = Setup(workload, device, method, options or {}, link, replicas, Input(period_s))
    found = asked.path
    made = _diagnosis(asked, "predicted", found.step_s, found.shares, {}, replicas)
    return _with_help(made, asked)


def why_measured(
    record: Record,
    device: Device | None = None,
    method: str = DEFAULT,
    options: Mapping[str, str] | None = None,
    *,
    helping: bool = True,
) -> Diagnosis:
    """Return why a step took as long as was measured, or published.

    Waiting for input and communication are as measured; the rest is shared among the others as the
    model shares it, up to the upper end of its interval: more is unexplained. `device` is that of
    the record's platform unless it is said; without `helping` only the step itself is predicted.
    Raises `InputError` for a step that did not succeed, and where the device is not known.
    """
    workload, told = record.workload, _numbers(record)
    published = told.get("published_speed_per_s")
    step_s = told.get("step_s") or (told["global_batch"] or 0) / (published or float("inf"))
    if record.status != "ok" or not step_s:
        why = "none is recorded" if record.status == "ok" else record.status
        raise InputError(f"no time of a step: {why}")
    where = device or device_of(record.platform)
    infeed = told["infeed"] if told["infeed"] is not None else told.get("published_infeed_share")
    wait_s, exchange_s = (infeed or 0.0) * step_s, told.get("communication_s") or 0.0
    alone = replace(workload, plan=Plan())
    asked = Setup(alone, where, method, options or {})
    asked = asked.under(**_options(record, asked.model))
    predicted = asked.path
    rest_s = max(0.0, step_s - wait_s - exchange_s)
    low, high = predicted.low_s, predicted.high_s
    known_s = rest_s if high is None else min(rest_s, high)
    shares = {name: known_s * share / step_s for name, share in predicted.shares.items()}
    shares |= {"input": wait_s / step_s, "communication": exchange_s / step_s}
    shares[UNEXPLAINED] = (rest_s - known_s) / step_s
    peak = next(iter(asked.model.seen.peak_flop_per_s.values()))  # that of the type stands first
    evidence: dict[str, Any] = {
        "stack": record_stack(record),
        "predicted_s": predicted.step_s,
        "ratio": rest_s / predicted.step_s if predicted.step_s else None,
        "within": None if low is None or high is None else low <= rest_s <= high,
        "infeed": infeed,
        "exchange_s": told.get("communication_s"),
        "samples_n": told.get("samples_n"),
        "samples_disturbed": told.get("samples_disturbed"),
        "interval_s": [told["low"], told["high"]],
        "peak_fraction": asked.model.lowered().executed_flop / step_s / peak,
    }
    made = _diagnosis(asked, record.origin, step_s, shares, evidence, workload.plan.data)
    if not helping:
        return made
    ahead = bool(told["loaders"]) or told["infeed"] is None
    period_s = step_s if ahead else wait_s
    if wait_s < NO_WAIT * step_s:
        period_s = 0.0
    factor = rest_s / predicted.step_s if predicted.step_s else 1.0
    feed = Input(period_s, ahead)
    return _with_help(made, replace(asked, feed=feed, factor=factor, fixed_s=exchange_s))


def _numbers(record: Record) -> Row:
    held = record.quantities
    told: Row = {name: headline(quantity) for name, quantity in held.items()}
    known = record.env.get("batch_source") != UNKNOWN
    told["global_batch"] = record.workload.global_batch if known else None
    told["loaders"], told["infeed"] = record.method.options.get("loaders"), None
    step = held.get("step_s", Quantity())
    if not step.samples:
        return told | {"low": step.low, "high": step.high}
    found = estimate(by_run(step.samples, step.runs))
    told |= {"samples_n": len(step.samples), "low": found["low"], "high": found["high"]}
    told["samples_disturbed"] = sum(step.marks)
    if len(held.get("input_s", step).samples) == len(step.samples) and "input_s" in held:
        told["infeed"] = sum(held["input_s"].samples) / sum(step.samples)
    return told


def device_of(platform: str) -> Device:
    """Return the device of a record's platform; raises `InputError` where no file has its name."""
    try:
        return catalog.device(platform)
    except InputError:
        line = f"no device file has the name of platform '{platform}': say which (--device)"
        raise InputError(line) from None


def diagnoses(
    records: Iterable[Record],
    device: Device | None = None,
    method: str = DEFAULT,
    options: Mapping[str, str] | None = None,
) -> Iterator[Diagnosis | str]:
    """Yield why the step of each record took as long as it did, without what would help.

    Where that cannot be told, why not. A thousand networks take some five seconds.
    """

    @cache
    def known(platform: str) -> Device | InputError:  # that there is none takes longest to find
        try:
            return device or device_of(platform)
        except InputError as error:
            return error

    for one in records:
        try:
            if isinstance(where := known(one.platform), InputError):
                raise where
            yield why_measured(one, where, method, options, helping=False)
        except InputError as error:
            yield str(error)


def _options(record: Record, model: StepModel) -> dict[str, str]:
    """Return the options of the method that say how a record ran."""
    return {key: value for key, value in options_of(record, model.device).items()
            if key in model.method.options and key not in model.options}  # fmt: skip


def _diagnosis(
    asked: Setup,
    origin: str,
    step_s: float,
    shares: Mapping[str, float],
    evidence: dict[str, Any],
    replicas: int,
) -> Diagnosis:
    workload, found = asked.workload, asked.path
    bound = max(BOUNDS, key=lambda name: shares[name])
    ops, needs = _ops(asked.model, found), asked.model.needs()
    made = Diagnosis(
        workload.label, asked.device.name, workload.batch_per_replica, replicas,
        workload.dtype, asked.method, origin, step_s, found.low_s, found.high_s, bound, shares,
        ops, (), evidence, (), assumed_of(asked.model), needs.peak_bytes, needs.total_bytes,
    )  # fmt: skip
    return replace(made, sentences=[*_of_step(made, found), *_of_evidence(made), _of_ops(made)])


def _with_help(made: Diagnosis, asked: Setup) -> Diagnosis:
    found = helps(asked)
    faster = [row for row in found if row["speedup"] >= WORTH]
    shown = [f"{row['change']} ({row['speedup']:.3g}x)" for row in faster[: SHOWN + 1]]
    line = "Nothing that the model knows would make it 2 % faster."
    if shown:
        dark = made.shares.get(UNEXPLAINED, 0) > 0.5
        alike = ", were the unexplained to shrink alike" if dark else ""
        line = f"{TABLED[1]} the model{alike}: {', '.join(shown)}."
    return replace(made, help=found, sentences=[*made.sentences, line])


def _ops(model: StepModel, found: Path) -> list[Row]:
    whole = found.device_s or 1.0
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parts in grouped(found.parts, lambda part: part.kernel.op).items():
        taken = sum(part.time.value for part in parts)
        key = parts[0].kernel.kind, round(taken, 12), len(parts)
        if key in rows:
            rows[key]["alike"] += 1
            continue
        by = {bound: sum(one.time.value for one in parts if one.bound == bound)
              for bound in BOUNDS[:3]}  # fmt: skip
        ceiling_s = sum(max(ceilings_s(model, part.kernel)) for part in parts)
        rows[key] = {
            "op": name or "update",
            "kind": parts[0].kernel.kind,
            "step_s": taken,
            "time_share": taken / whole,
            "bound": max(by, key=by.__getitem__),
            "ceiling_fraction": ceiling_s / taken if taken else None,
            "alike": 0,
        }
    return sorted(rows.values(), key=lambda row: -row["step_s"] * (1 + row["alike"]))[:SHOWN]


def _of_step(made: Diagnosis, found: Path) -> list[str]:
    replicas = f" on {made.replicas} x {made.device}" if made.replicas > 1 else f" on {made.device}"
    told = sorted(((v, k) for k, v in made.shares.items() if v >= 0.005), reverse=True)
    parts = ", ".join(f"{percent(value)} {_OF[name]}" for value, name in told)
    name = f"{made.model}, batch {made.batch}, {made.dtype}{replicas}"
    stack = made.evidence.get("stack") or "torch"
    how = made.origin + ("" if stack == "torch" else f" with {stack}")
    took = f"a step takes {seconds(made.step_s)} ({how}): {parts}"
    unknown = made.shares.get(UNEXPLAINED, 0.0)
    mostly = f"the model leaves {percent(unknown)} unexplained; what it explains is "
    said = [f"{name}: {mostly if unknown > 0.5 else ''}bound by {made.bound}; {took}."]
    if made.bound == "host" and found.device_s < 0.9 * found.step_s:
        works = percent(found.device_s / found.step_s)
        said.append(f"The device works {works} of the time that the host takes to issue the step.")
    return said


def _of_evidence(made: Diagnosis) -> list[str]:
    told = made.evidence
    if not told:
        return []
    said = []
    waits = made.shares["input"] + made.shares["communication"]
    if told["ratio"] is not None:
        what = "the step" if waits < NO_WAIT else "what is neither input nor communication"
        within = {True: ", within the interval", False: ", outside of the interval", None: ""}
        predicted = f"The model predicts {seconds(told['predicted_s'])} for {what}"
        took = f"it took {told['ratio']:.3g} times as long{within[told['within']]}"
        said.append(f"{predicted}; {took}.")
    if told["infeed"]:
        said.append(f"{percent(told['infeed'])} of the step was measured as waiting for input.")
    if told["exchange_s"]:
        said.append(f"Communication was measured at {seconds(told['exchange_s'])} a step.")
    disturbed = (told["samples_disturbed"] or 0) / (told["samples_n"] or 1)
    if disturbed > DISTURBED:
        said.append(f"Other work disturbed {percent(disturbed)} of the samples.")
    return [*said, f"It executed its FLOP at {percent(told['peak_fraction'])} of the peak."]


def _of_ops(made: Diagnosis) -> str:
    told = []
    for row in made.ops:
        alike = row["alike"]
        share = row["time_share"] * (1 + row["alike"])
        told.append(
            f"{row['op']} ({row['kind']}{f', {alike} more alike' if alike else ''}) "
            f"{seconds(row['step_s'])}{' each' if alike else ''}, {percent(share)}, "
            f"{row['bound']}-bound at {percent(row['ceiling_fraction'] or 0.0)} of its ceiling"
        )
    return f"{TABLED[0]} {'; '.join(told)}."
