"""The diagnosis of predicted and of measured steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import msgspec

from steptime.build import tokens_per_example
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT
from steptime.prediction.assumed import assumed_of
from steptime.prediction.records import options_of
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.bound import BOUNDS, Binding, InputFeed, ceilings_s
from steptime.questions.training import tokens_per_s
from steptime.questions.why.answer import Evidence, ExpensiveOp, Shares, WhyAnswer
from steptime.questions.why.improvements import find_improvements
from steptime.questions.why.measurement import MeasuredStep, read_measurement
from steptime.questions.why.sentences import (
    SMALLEST_WAIT,
    describe_evidence,
    describe_improvements,
    describe_ops,
    describe_step,
)
from steptime.questions.why.setup import Setup
from steptime.records.record import Record
from steptime.records.record import stack_of as record_stack
from steptime.records.row import group_by

MAX_OPS = 3
KERNEL_BOUNDS = BOUNDS[:3]  # compute, memory and host: what a kernel can wait for
EQUAL_TIME_DIGITS = 12  # ops whose seconds agree so far take as long


def diagnose_step(setup: Setup) -> WhyAnswer:
    """Diagnose a predicted step: what it waits for, and what would help.

    Raises:
        InputError: as a prediction does.
    """
    shares = Shares(**setup.path.shares)
    answer = make_answer(setup, "predicted", setup.path.step_s, shares, setup.replicas)
    needs = setup.model.needs()
    if not needs.fit(setup.device):
        notes = (needs.too_large(setup.device), *answer.notes)
        answer = msgspec.structs.replace(answer, notes=notes)
    return add_improvements(answer, setup)


def diagnose_record(
    record: Record,
    device: Device | None = None,
    method: str = DEFAULT,
    options: Mapping[str, str] | None = None,
    *,
    finds_improvements: bool = True,
) -> WhyAnswer:
    """Diagnose a measured or published step: what it waited for.

    Input and communication are as measured. The model shares out the remaining time, up to the
    upper end of its interval; time above that is unexplained.

    Args:
        record: the record of the step.
        device: its device. Default: that of the record's platform.
        method: the cost model.
        options: its options.
        finds_improvements: predict changes that would help too, not the step alone.

    Raises:
        InputError: for a step that did not succeed, and where the device is not known.
    """
    step = read_measurement(record)
    setup = _setup_of(record, device or find_device(record.platform), method, options or {})
    predicted = setup.path
    # The model explains time up to the upper end of its interval, and no time above it.
    if predicted.high_s is None:
        explained_s = step.worked_s
    else:
        explained_s = min(step.worked_s, predicted.high_s)
    share_by_bound = {
        bound: explained_s * share / step.step_s for bound, share in predicted.shares.items()
    }
    # These two are as measured.
    share_by_bound["input"] = step.input_s / step.step_s
    share_by_bound["communication"] = (step.communication_s or 0.0) / step.step_s
    unexplained_share = (step.worked_s - explained_s) / step.step_s
    answer = make_answer(
        setup,
        record.origin,
        step.step_s,
        Shares(**share_by_bound, unexplained=unexplained_share),
        record.workload.plan.data,
        _compare(record, step, setup),
    )
    if not finds_improvements:
        return answer
    measured_setup = replace(
        setup,
        feed=_measured_feed(step),
        factor=explained_s / predicted.step_s if predicted.step_s else 1.0,
        communication_s=step.communication_s or 0.0,
        unexplained_s=step.worked_s - explained_s,
    )
    return add_improvements(answer, measured_setup)


def _measured_feed(step: MeasuredStep) -> InputFeed:
    """Return the input pipeline behind the measured waits of a step."""
    if step.input_s < SMALLEST_WAIT * step.step_s:  # the step hardly waits for it
        return InputFeed(0.0, step.reads_ahead)
    # A loader that reads ahead and is waited for delivers one batch a step. Without reading ahead
    # the wait is the time of reading alone.
    period_s = step.step_s if step.reads_ahead else step.input_s
    return InputFeed(period_s, step.reads_ahead)


def diagnose_records(
    records: Iterable[Record],
    device: Device | None = None,
    method: str = DEFAULT,
    options: Mapping[str, str] | None = None,
) -> Iterator[WhyAnswer | str]:
    """Yield the diagnosis of each record without improvements, or the reason why there is none.

    A thousand networks take about five seconds.
    """

    @cache
    def find_or_error(platform: str) -> Device | InputError:  # unknown names take longest
        try:
            return device or find_device(platform)
        except InputError as error:
            return error

    for record in records:
        device_of_record = find_or_error(record.platform)
        if isinstance(device_of_record, InputError):
            yield str(device_of_record)
            continue
        try:
            yield diagnose_record(
                record, device_of_record, method, options, finds_improvements=False
            )
        except InputError as error:
            yield str(error)


def find_device(platform: str) -> Device:
    """Return the device of a record's platform.

    Raises:
        InputError: where no device file has its name.
    """
    try:
        return catalog.device(platform)
    except InputError:
        line = f"no device file has the name of platform '{platform}': say which (--device)"
        raise InputError(line) from None


def _setup_of(record: Record, device: Device, method: str, options: Mapping[str, str]) -> Setup:
    """Return the step of a record on one device, under the settings with which it ran."""
    # On one device (`Plan()`): communication is not predicted, but as the record has it.
    setup = Setup(replace(record.workload, plan=Plan()), device, method, options)
    model = setup.model
    # What the user sets wins over what the record says.
    recorded = {
        name: text
        for name, text in options_of(record, model.device).items()
        if name in model.method.options and name not in model.options
    }
    return setup.with_options(**recorded)


def _compare(record: Record, step: MeasuredStep, setup: Setup) -> Evidence:
    """Return the numbers of a measurement beside those of its prediction."""
    predicted = setup.path
    # None: the method gives no interval, so nothing can lie within it.
    is_within_predicted = None
    if predicted.low_s is not None and predicted.high_s is not None:
        # `worked_s` leaves out waiting for input and communication, as the prediction does.
        is_within_predicted = predicted.low_s <= step.worked_s <= predicted.high_s
    peaks = setup.model.effective_device.datasheet.peak_flop_per_s
    # The effective device lists the peak of the step's own data type first.
    dtype_peak_flop_per_s = next(iter(peaks.values()))
    achieved_flop_per_s = setup.model.lower_step().executed_flop / step.step_s
    return Evidence(
        stack=record_stack(record),
        predicted_s=predicted.step_s,
        ratio=step.worked_s / predicted.step_s if predicted.step_s else None,
        is_within_interval=is_within_predicted,
        input_share=step.input_share,
        communication_s=step.communication_s,
        sample_count=step.sample_count,
        disturbed_sample_count=step.disturbed_sample_count,
        # Of the measured step, not of the prediction.
        low_s=step.low_s,
        high_s=step.high_s,
        peak_share=achieved_flop_per_s / dtype_peak_flop_per_s,
    )


def make_answer(
    setup: Setup,
    origin: str,
    step_s: float,
    shares: Shares,
    replicas: int,
    evidence: Evidence | None = None,
) -> WhyAnswer:
    """Return the diagnosis of a step, without improvements."""
    workload = setup.workload
    predicted = setup.path
    model = setup.model
    needs = model.needs()
    examples_per_s = workload.batch_per_replica * replicas / step_s if step_s else None
    answer = WhyAnswer(
        model=workload.label,
        device=setup.device.name,
        batch=workload.batch_per_replica,
        replicas=replicas,
        dtype=workload.dtype,
        method=setup.method,
        assumed=assumed_of(model),
        origin=origin,
        step_s=step_s,
        low_s=predicted.low_s,  # of the prediction, even where the step was measured
        high_s=predicted.high_s,
        examples_per_s=examples_per_s,
        tokens_per_s=tokens_per_s(tokens_per_example(workload), examples_per_s),
        peak_bytes=needs.peak_bytes,
        needed_bytes=needs.total_bytes,
        bound=max(BOUNDS, key=lambda name: getattr(shares, name)),
        shares=shares,
        ops=_find_expensive_ops(model, predicted.bindings, predicted.device_s),
        helps=(),
        evidence=evidence,
        headline=(),
        notes=tuple(" ".join(text.split()) for text in model.remarks()),
    )
    busy_share = predicted.device_s / predicted.step_s if predicted.step_s else 1.0
    headline = describe_step(answer, busy_share)
    if evidence is not None:
        headline += describe_evidence(evidence, shares)
    headline.append(describe_ops(answer.ops))
    return msgspec.structs.replace(answer, headline=tuple(headline))


def add_improvements(answer: WhyAnswer, setup: Setup) -> WhyAnswer:
    """Return a diagnosis with the changes that would help."""
    improvements = find_improvements(setup)
    line = describe_improvements(improvements, answer.shares)
    return msgspec.structs.replace(answer, helps=improvements, headline=(*answer.headline, line))


def _find_expensive_ops(
    model: StepModel, bindings: Sequence[Binding], device_s: float
) -> tuple[ExpensiveOp, ...]:
    """Return the ops with the largest shares of the device's time; equal ones are one row.

    Args:
        model: the step on its device.
        bindings: its kernels, each with its time and what binds it.
        device_s: seconds in which the device works.
    """
    bindings_by_op = group_by(bindings, lambda binding: binding.kernel.op)

    def equality_key(name: str) -> tuple[str, float, int]:
        """Return the kind, the time and the number of kernels of an op: equal ops agree in them."""
        step_s = sum(binding.time.value for binding in bindings_by_op[name])
        kind = bindings_by_op[name][0].kernel.kind
        return kind, round(step_s, EQUAL_TIME_DIGITS), len(bindings_by_op[name])

    ops = []
    for equal_names in group_by(bindings_by_op, equality_key).values():
        name = equal_names[0]  # the first stands for all
        op_bindings = bindings_by_op[name]
        step_s = sum(binding.time.value for binding in op_bindings)
        ceiling_s = sum(max(ceilings_s(model, binding.kernel)) for binding in op_bindings)
        op = ExpensiveOp(
            # A kernel without an op updates the weights of several ops at once.
            op=name or "update",
            kind=op_bindings[0].kernel.kind,
            step_s=step_s,
            time_share=step_s / (device_s or 1.0),
            bound=_longest_bound(op_bindings),
            ceiling_share=ceiling_s / step_s if step_s else None,
            equal_count=len(equal_names) - 1,
        )
        ops.append(op)
    # `step_s` is one op's; equal ops rank by the time of all.
    ranked_ops = sorted(ops, key=lambda op: -op.step_s * (1 + op.equal_count))
    return tuple(ranked_ops[:MAX_OPS])


def _longest_bound(bindings: Sequence[Binding]) -> str:
    """Return the bound of most of the time of an op's kernels."""
    seconds_by_bound = dict.fromkeys(KERNEL_BOUNDS, 0.0)
    for binding in bindings:
        if binding.bound in seconds_by_bound:
            seconds_by_bound[binding.bound] += binding.time.value
    return max(seconds_by_bound, key=seconds_by_bound.__getitem__)
