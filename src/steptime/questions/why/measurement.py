"""The numbers of a record that say how long its step took, and what it waited for."""

from dataclasses import dataclass

from steptime.core.errors import InputError
from steptime.records.record import Quantity, Record
from steptime.records.row import UNKNOWN, by_run, headline
from steptime.records.statistics import estimate


@dataclass(frozen=True)
class MeasuredStep:
    """A step that was measured or published.

    Args:
        step_s: seconds of the step.
        input_share: share of the step that waits for input; None where unknown.
        communication_s: seconds of communication; None where unknown.
        reads_ahead: whether input is read while the step before it runs.
        sample_count: number of samples; None of a published number.
        disturbed_sample_count: number of samples that other work disturbed.
        low_s: lower end of the interval of `step_s`.
        high_s: upper end of the interval of `step_s`.
    """

    step_s: float
    input_share: float | None
    communication_s: float | None
    reads_ahead: bool
    sample_count: int | None
    disturbed_sample_count: int | None
    low_s: float | None
    high_s: float | None

    @property
    def input_s(self) -> float:
        """The seconds that the step waits for input."""
        return (self.input_share or 0.0) * self.step_s

    @property
    def worked_s(self) -> float:
        """The seconds of the step without waiting for input and without communication."""
        return max(0.0, self.step_s - self.input_s - (self.communication_s or 0.0))


def read_measurement(record: Record) -> MeasuredStep:
    """Return the numbers of a record's step.

    Raises:
        InputError: for a step that did not succeed, and where no time of it is recorded.
    """
    step_s = _step_seconds(record)
    is_ok = record.status == "ok"
    if not is_ok or not step_s:
        reason = "none is recorded" if is_ok else record.status
        raise InputError(f"no time of a step: {reason}")
    step = record.quantities.get("step_s", Quantity())
    measured_input_share = _measured_input_share(record, step)
    has_measured_waits = measured_input_share is not None
    has_loaders = bool(record.method.options.get("loaders"))
    # Where no waits of samples are recorded, input counts as read ahead.
    reads_ahead = has_loaders or not has_measured_waits
    input_share = measured_input_share
    if not has_measured_waits:
        input_share = _value_of(record, "published_infeed_share")
    low_s, high_s = _interval_of(step)
    return MeasuredStep(
        step_s=step_s,
        input_share=input_share,
        communication_s=_value_of(record, "communication_s"),
        reads_ahead=reads_ahead,
        sample_count=len(step.samples) or None,
        disturbed_sample_count=sum(step.disturbed_samples) if step.samples else None,
        low_s=low_s,
        high_s=high_s,
    )


def _interval_of(step: Quantity) -> tuple[float | None, float | None]:
    """Return the ends of the interval of a measured or published step."""
    if not step.samples:
        return step.low, step.high
    estimates = estimate(by_run(step.samples, step.runs))
    return estimates["low"], estimates["high"]


def _value_of(record: Record, name: str) -> float | None:
    """Return the number of a quantity: the median of its samples, or its value."""
    quantity = record.quantities.get(name)
    return None if quantity is None else headline(quantity)


def _step_seconds(record: Record) -> float | None:
    """Return the seconds of a step, of a published speed by the global batch."""
    step_s = _value_of(record, "step_s")
    if step_s:
        return step_s
    examples_per_s = _value_of(record, "published_examples_per_s")
    if not examples_per_s or record.env.get("batch_source") == UNKNOWN:
        return None
    return (record.workload.global_batch or 0) / examples_per_s


def _measured_input_share(record: Record, step: Quantity) -> float | None:
    """Return the share of the samples' time that waits for input, None where it is not known."""
    input_waits = record.quantities.get("input_s")
    if input_waits is None or not step.samples:
        return None
    are_waits_complete = len(input_waits.samples) == len(step.samples)
    if not are_waits_complete:
        return None
    return sum(input_waits.samples) / sum(step.samples)
