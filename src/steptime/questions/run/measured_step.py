"""The answer of `run`: one network, measured on this machine."""

from collections.abc import Mapping
from typing import Any

import msgspec

from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_row
from steptime.core.tables.table import UNSUCCESSFUL, Printout, Table, make_facts_table
from steptime.core.units import format_bytes, format_percent, format_seconds, format_value
from steptime.questions import options

Scalar = str | int | float | bool | None
UNKNOWN_PEAK = {
    "probed": "unknown; steptime calibrate measures it",
    "datasheet": "unknown; steptime list devices",
}


class StepStatistics(AnswerRow, frozen=True, kw_only=True):
    """Statistics of the seconds of a step.

    Attributes:
        median: the median.
        mean: the mean.
        low_s: lower end of the 95 % interval of the median, None if unknown.
        high_s: upper end of the 95 % interval of the median, None if unknown.
        min: the minimum.
        p5: the 5th percentile.
        p95: the 95th percentile.
        interval: the variation that the interval covers: `within-run` of a single run, else
            `between-runs`; two runs are too few for an interval.
        samples: the samples: each the mean seconds of a step in a block of steps that fills 10 ms.
        run_of_sample: the run of each sample, from 0 on.
    """

    median: float
    mean: float
    low_s: float | None
    high_s: float | None
    min: float
    p5: float
    p95: float
    interval: str
    samples: tuple[float, ...]
    run_of_sample: tuple[int, ...]


class Speed(AnswerRow, frozen=True, kw_only=True):
    """Throughput in examples per second, of all replicas.

    Attributes:
        mean: the mean.
        uncertainty: standard error of the mean.
        jitter: spread of the samples: 1.4826 times the median absolute deviation of their speeds.
    """

    mean: float
    uncertainty: float
    jitter: float


class StepParts(AnswerRow, frozen=True, kw_only=True):
    """Seconds of the parts of a step, None for parts that were not timed.

    Attributes:
        forward_s: the forward pass.
        backward_s: the backward pass.
        update_s: the update of the weights.
    """

    forward_s: float | None = None
    backward_s: float | None = None
    update_s: float | None = None


class PeakShares(AnswerRow, frozen=True, kw_only=True):
    """Achieved FLOP/s of a replica over peaks, None for unknown ones.

    Attributes:
        probed: over the peak that `steptime calibrate` measured on this machine.
        datasheet: over the peak that the datasheet of the device states.
    """

    probed: float | None
    datasheet: float | None


class MeasuringMethod(AnswerRow, frozen=True, kw_only=True):
    """The software that ran the steps.

    Attributes:
        name: the backend.
        version: its version.
        options: every option that changes the numbers.
    """

    name: str
    version: str
    options: dict[str, Scalar]


class RunAnswer(Answer, frozen=True, kw_only=True):
    """A step of a network, measured on this machine.

    Attributes:
        status: ok, oom, timeout, unsupported or failed.
        cause: why nothing was measured: a word of the table of causes in docs/sweeps.md.
        note: the cause in a sentence.
        model: the network.
        batch: examples of one replica in a step.
        replicas: number of data-parallel copies.
        global_batch: examples of all replicas in a step.
        strategy: how replicas reduce gradients, None for one replica.
        phase: train or infer.
        dtype: data type.
        optimizer: the optimizer.
        assumed: data type and optimizer if they were not given, by the option that changes them.
        platform: the device that ran the steps.
        method: the software that ran the steps.
        step_s: seconds of a step, None if nothing was measured.
        speed: throughput, None if nothing was measured.
        parts: seconds of the parts of a step, each null without `--parts`; None if nothing was
            measured.
        communication_s: seconds of communication of a step, None if unknown.
        input_s: seconds of a step that waited for input, None where input is resident.
        infeed: share of a step that waited for input.
        accuracy: test accuracy after `--train-steps`, None without.
        loss: loss of the last step of `--train-steps`, None without.
        first_step_s: seconds of the first step.
        peak_bytes: peak of the tensors, None if unknown.
        planned_memory_bytes: peak that a compiler plans, None without one.
        energy_j: energy of a step, None without a meter.
        power_w: mean power, None without a meter.
        flop: work of a step of all replicas.
        flop_per_s: achieved rate of all replicas.
        fraction_of_peak: achieved rate of one replica, over the peaks of the device.
        disturbed: samples that other work disturbed, None if nothing was measured.
        env: what the record says of the machine and of the run.
        breakdown: the profiled ops by kind, empty without `--profile`.
        headline: the failure in words, and files that were written.
        notes: remarks that change how the answer is read.
    """

    status: str
    cause: str
    note: str
    model: str
    batch: int
    replicas: int
    global_batch: int
    strategy: str | None
    phase: str
    dtype: str
    optimizer: str
    assumed: dict[str, str]
    platform: str
    method: MeasuringMethod
    step_s: StepStatistics | None
    speed: Speed | None
    parts: StepParts | None
    communication_s: float | None
    input_s: float | None
    infeed: float | None
    accuracy: float | None
    loss: float | None
    first_step_s: float | None
    peak_bytes: float | None
    planned_memory_bytes: float | None
    energy_j: float | None
    power_w: float | None
    flop: float
    flop_per_s: float | None
    fraction_of_peak: PeakShares
    disturbed: int | None
    env: Mapping[str, Any]
    breakdown: tuple[Mapping[str, Any], ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    _tables: tuple[Table, ...] = ()

    @property
    def exit_code(self) -> int:
        """3 if nothing was measured."""
        return 0 if self.status == "ok" else UNSUCCESSFUL

    def tables(self) -> list[Table]:
        """Return the measured step as facts, and the breakdown of a profile."""
        if self.step_s is None or self.speed is None:
            return []
        title = f"{self.model}, batch {self.batch} on {self.platform}"
        if self.replicas > 1:
            title = f"{title}, {self.replicas} replicas, {self.strategy}"
        rows = [
            *assumed_row(self.assumed),
            *_describe_step(self.step_s),
            *_describe_replicas(self),
            *_describe_speed(self, self.speed),
            *_describe_training(self),
            *_describe_resources(self),
        ]
        count = f"{len(self.step_s.samples)}, {self.disturbed} of them disturbed"
        return [make_facts_table(title, "measured", [*rows, ("samples", count)]), *self._tables]


class RankAnswer(Answer, frozen=True, kw_only=True):
    """The answer of a rank other than 0, which prints nothing: rank 0 answers for all.

    Attributes:
        status: ok, or why the step was not measured.
    """

    status: str

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0, or 3 where the step was not measured."""
        return 0 if self.status == "ok" else UNSUCCESSFUL

    def printout(self) -> Printout:
        """Return an answer of which nothing is printed."""
        return Printout(None, code=self.exit_code)


Fact = tuple[str, str | None]


def _describe_step(step: StepStatistics) -> list[Fact]:
    bounds = [
        format_seconds(bound_s) for bound_s in (step.low_s, step.high_s) if bound_s is not None
    ]
    interval = f"{' .. '.join(bounds)} ({step.interval})" if bounds else "unknown"
    fast_and_slow = [format_seconds(sample_s) for sample_s in (step.min, step.p5, step.p95)]
    return [
        ("step, median", format_seconds(step.median)),
        ("  95 % interval", interval),
        ("  minimum, p5, p95", ", ".join(fast_and_slow)),
    ]


def _describe_replicas(answer: RunAnswer) -> list[Fact]:
    if answer.replicas == 1:
        return []
    hides_communication = answer.env["overlap"]  # the all-reduce runs during the backward pass
    label = "  not hidden, of communication" if hides_communication else "  communication"
    return [
        (label, format_value("communication_s", answer.communication_s)),
        ("global batch", format_value("batch", answer.global_batch)),
    ]


def _describe_speed(answer: RunAnswer, speed: Speed) -> list[Fact]:
    rows: list[Fact] = [
        ("speed", f"{speed.mean:.4g} examples/s"),
        ("  uncertainty, jitter", f"{speed.uncertainty:.3g}, {speed.jitter:.3g}"),
        ("work", format_value("flop_per_s", answer.flop_per_s)),
    ]
    share_by_peak = answer.fraction_of_peak.to_dict()
    for peak, share in share_by_peak.items():
        text = UNKNOWN_PEAK[peak] if share is None else format_percent(share)
        rows.append((f"  of the {peak} peak", text))
    return rows


def _describe_training(answer: RunAnswer) -> list[Fact]:
    rows: list[Fact] = []
    compile_s = answer.env.get("compile_s")
    if compile_s is not None and answer.first_step_s is not None:
        first_step = format_seconds(answer.first_step_s)
        rows.append(("compiling", f"{format_seconds(compile_s)}; the first step took {first_step}"))
    if answer.input_s is not None and answer.infeed is not None:
        input_share = f"{format_percent(answer.infeed)} of all steps' time"
        rows.append(("waiting for input", f"{format_seconds(answer.input_s)} ({input_share})"))
    if answer.accuracy is not None:
        training = answer.env["training"]
        duration = f"after {training['steps']:,} steps, {training['epochs']:.3g} epochs"
        rows.append(("test accuracy", f"{100 * answer.accuracy:.2f} % {duration}"))
        rows.append(("  loss of the last step", f"{answer.loss:.4g}"))
    return rows


def _describe_resources(answer: RunAnswer) -> list[Fact]:
    rows: list[Fact] = []
    if answer.planned_memory_bytes is not None:
        rows.append(("memory, as compiled", format_bytes(answer.planned_memory_bytes)))
    peak_memory = None
    if answer.peak_bytes is not None:
        peak_memory = options.describe_memory(msgspec.structs.asdict(answer))
    rows.append(("peak memory", peak_memory))
    if answer.energy_j is not None:
        mean_power = f"{format_value('power_w', answer.power_w)} ({answer.env['energy_meter']})"
        rows.append(("energy", format_value("energy_j", answer.energy_j)))
        rows.append(("  mean power", mean_power))
    return rows


def describe_measurement(document: Mapping[str, Any], **fields: Any) -> RunAnswer:
    """Return the answer of a document of `measurement`, with further fields of it."""
    headline: tuple[str, ...] = ()
    step_statistics = document["step_s"]
    if step_statistics is None:
        name = f"{document['model']}, batch {document['batch']} on {document['platform']}"
        failure = f"{document['status']} ({document['cause']}): {document['note']}"
        headline = (f"{name}: {failure}",)
    else:
        step_statistics = {
            **step_statistics,
            "low_s": step_statistics["low"],
            "high_s": step_statistics["high"],
        }
    answer_fields = {
        "assumed": {},
        **document,
        "step_s": step_statistics,
        "breakdown": (),
        "headline": headline,
        "notes": document["remarks"],
    }
    answer = msgspec.convert(answer_fields, RunAnswer, strict=False)
    return msgspec.structs.replace(answer, **fields) if fields else answer
