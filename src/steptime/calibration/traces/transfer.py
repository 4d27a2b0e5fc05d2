"""A traced step on another device, or with other settings of the same one.

Each op is predicted on the device of the trace and on the other one. What the prediction of the
first is off by is carried over, op by op as in Habitat (Yu et al. 2021):

    seconds = measured * predicted_on_target / predicted_on_origin

Between a CPU and a GPU nothing is carried over, since the code that runs is another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from steptime.calibration.traces.batch import BatchChange, WeightShapes, scale_batch
from steptime.calibration.traces.calls import table_call
from steptime.calibration.traces.kernels import find_dtype, kernels_of
from steptime.core.dtypes import SIZE_BYTES
from steptime.core.errors import InputError
from steptime.core.graph import PASSES, Part
from steptime.core.units import format_percent
from steptime.hardware.device import Device
from steptime.prediction.host import bound_step, count_calls, find_host
from steptime.prediction.kernel import Kernel, Settings
from steptime.prediction.kernels import Kernels
from steptime.prediction.method import Method
from steptime.prediction.price import peak_flop_per_s
from steptime.records.traces.traced_ops import OpKey, TracedStep

MAX_UNSHAPED_SHARE = 0.3  # of the step, beyond which a prediction would rest on bandwidth alone
DEVICE_BOUND_SHARE = 0.9  # of a step that kernels fill, from which on the host only bounds it


@dataclass(frozen=True)
class TracedStepChange:
    """What differs from the traced step.

    Attributes:
        batch: another batch; None for that of the trace.
        dtype: the type in place of all floating ones; None for those of the trace.
    """

    batch: BatchChange | None = None
    dtype: str | None = None


class MovedOp(NamedTuple):
    """An op of the trace on the other device.

    Attributes:
        key: the op as the trace has it.
        calls: how often it runs in a step.
        measured_s: its seconds in the trace, of all calls.
        predicted_s: their predicted seconds on the device of the trace.
        moved_s: its seconds on the other device.
    """

    key: OpKey
    calls: float
    measured_s: float
    predicted_s: float
    moved_s: float


class StepWork(NamedTuple):
    """The FLOP of the forward and the backward pass of a traced step.

    Attributes:
        flop: FLOP of the ops that the op table knows; a multiply-add is 2.
        peak_s: seconds that these take at the peak of the other device.
        uncounted_s: predicted seconds of all other ops of both passes, those without shapes too.
    """

    flop: float = 0.0
    peak_s: float = 0.0
    uncounted_s: float = 0.0


NO_WORK = StepWork()


@dataclass(frozen=True)
class MovedStep:
    """A traced step on the other device.

    Attributes:
        ops: its ops.
        unshaped_s: seconds of what has no shapes.
        host_s: seconds of a step in which no op runs.
        is_carried: whether what predictions are off by is carried over.
        priced_s: seconds of a step by the shapes of its ops, without the ratio of measured to
            predicted.
        work: the FLOP of a step.
    """

    ops: tuple[MovedOp, ...]
    unshaped_s: float
    host_s: float
    is_carried: bool
    priced_s: float = 0.0
    work: StepWork = NO_WORK

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return sum(op.moved_s for op in self.ops) + self.unshaped_s + self.host_s

    def pass_s(self, pass_: Part) -> float:
        """Return the seconds of the ops of a pass."""
        return sum(op.moved_s for op in self.ops if op.key.pass_ == pass_)


def check_shares(step: TracedStep) -> None:
    """Raise `InputError` where too much of a step has no shapes."""
    # Ops without recorded shapes, such as compiled ones, cannot be priced on another device.
    unshaped_s = sum(step.unshaped_s.values())
    if unshaped_s <= MAX_UNSHAPED_SHARE * step.undisturbed_s:
        return
    largest = max(step.unshaped_s, key=step.unshaped_s.__getitem__)
    raise InputError(
        f"{format_percent(unshaped_s / step.undisturbed_s)} of its step has no shapes, more than "
        f"{format_percent(MAX_UNSHAPED_SHARE)} ({largest} most of all): take it without "
        "torch.compile"
    )


def move_step(
    step: TracedStep, origin: Device, target: Device, change: TracedStepChange, method: Method
) -> MovedStep:
    """Return a traced step on another device.

    Args:
        step: the step.
        origin: the device of the trace.
        target: the other device.
        change: what else differs.
        method: the cost model.

    Raises:
        InputError: where a device has no peak of a data type, and where too much has no shapes.
    """
    check_shares(step)
    origin_keys = [op.key for op in step.ops]
    target_keys = _change_batch(step, change)
    origin_call_s = price_ops(origin_keys, origin, dtype=None, method=method)
    target_call_s = price_ops(target_keys, target, change.dtype, method)
    # The step is moved twice. `priced_ops` are the cost model's prediction alone, as if nothing had
    # been measured; `moved_ops` also use the measured seconds of the trace, and are the answer.
    priced_ops = _predict_ops(step, origin_call_s, target_call_s)
    is_carried = origin.is_cpu == target.is_cpu
    moved_ops = priced_ops
    if is_carried:
        moved_ops = _carry_measured_s(priced_ops, origin_call_s, target_call_s)
    unshaped_s = sum(step.unshaped_s.values()) * _traffic_ratio(step, origin, target, change)
    kernels = _repeated_kernels(step, target_keys, change.dtype, _settings(method, target))
    # How long the device waits for the host follows from the seconds of the ops, so it comes last.
    priced_step = MovedStep(priced_ops, unshaped_s, host_s=0.0, is_carried=False)
    priced_step_s = priced_step.step_s + _host_s(step, priced_step, target, method, kernels)
    moved_step = MovedStep(
        moved_ops,
        unshaped_s,
        host_s=0.0,
        is_carried=is_carried,
        priced_s=priced_step_s,
        # Utilisation is this work over `priced_s`: both come from the prediction alone.
        work=_count_work(priced_step, target_keys, target, change.dtype, method),
    )
    return replace(moved_step, host_s=_host_s(step, moved_step, target, method, kernels))


def _change_batch(step: TracedStep, change: TracedStepChange) -> list[OpKey]:
    """Return the ops of a step with the shapes that they have at the other batch."""
    keys = [op.key for op in step.ops]
    if change.batch is None:
        return keys
    weights = WeightShapes.from_ops(step.ops)
    return [scale_batch(key, change.batch, weights) for key in keys]


def _predict_ops(
    step: TracedStep, origin_call_s: Sequence[float], target_call_s: Sequence[float]
) -> tuple[MovedOp, ...]:
    """Return the ops of a step with predicted seconds on both devices.

    Args:
        step: the traced step.
        origin_call_s: predicted seconds of one call of each op on the device of the trace.
        target_call_s: likewise on the other device.
    """
    return tuple(
        MovedOp(
            key=op.key,
            calls=op.calls,
            measured_s=op.seconds,
            predicted_s=op.calls * origin_s,
            moved_s=op.calls * target_s,
        )
        for op, origin_s, target_s in zip(step.ops, origin_call_s, target_call_s, strict=True)
    )


def _carry_measured_s(
    ops: Sequence[MovedOp], origin_call_s: Sequence[float], target_call_s: Sequence[float]
) -> tuple[MovedOp, ...]:
    """Return ops that take their measured seconds times the ratio of both predictions."""
    return tuple(
        op._replace(moved_s=op.measured_s * target_s / origin_s)
        for op, origin_s, target_s in zip(ops, origin_call_s, target_call_s, strict=True)
    )


def _count_work(
    priced_step: MovedStep,
    keys: Sequence[OpKey],
    target: Device,
    dtype: str | None,
    method: Method,
) -> StepWork:
    """Return the FLOP of a step; an update counts as none, since it moves bytes alone."""
    settings = _settings(method, target)
    flop = 0.0
    peak_s = 0.0  # of these FLOP, at the peak of the target
    uncounted_s = priced_step.unshaped_s  # of ops whose FLOP are unknown
    for op, key in zip(priced_step.ops, keys, strict=True):
        if key.pass_ == "update":  # utilisation (MFU) is of forward and backward pass
            continue
        if table_call(key.name, key.inputs) is None:
            uncounted_s += op.moved_s
            continue
        for kernel in kernels_of(key, dtype, settings):
            flop += op.calls * kernel.flop
            peak_s += op.calls * kernel.flop / peak_flop_per_s(target, kernel.dtype)
    return StepWork(flop, peak_s, uncounted_s)


def price_ops(
    keys: Sequence[OpKey], device: Device, dtype: str | None, method: Method
) -> list[float]:
    """Return the predicted seconds of each op on a device."""
    settings = _settings(method, device)
    kernels_of_ops = [kernels_of(key, dtype, settings) for key in keys]
    columns = Kernels([kernel for op_kernels in kernels_of_ops for kernel in op_kernels])
    main_dtype = dtype or _main_dtype(keys)
    prices = method.prices(columns, method.derate(device, main_dtype, settings))
    # One price for each kernel, taken off op by op.
    kernel_s = iter(prices.value[columns.distinct_of_kernel].tolist())
    return [sum(next(kernel_s) for _ in op_kernels) for op_kernels in kernels_of_ops]


def _settings(method: Method, device: Device) -> Settings:
    return replace(method.settings, pages=device.is_cpu)


def _main_dtype(keys: Sequence[OpKey]) -> str:
    """Return the floating type of most ops."""
    dtypes = [find_dtype(key.inputs) for key in keys]
    return max(dict.fromkeys(dtypes), key=dtypes.count, default="float32")


def _traffic_ratio(
    step: TracedStep, origin: Device, target: Device, change: TracedStepChange
) -> float:
    """Return the ratio of the times of the same reads and writes, on the target and here."""
    ratio = origin.datasheet.memory_bytes_per_s / target.datasheet.memory_bytes_per_s
    if change.batch is not None:
        ratio *= change.batch.ratio
    if change.dtype is not None:
        ratio *= SIZE_BYTES[change.dtype] / SIZE_BYTES[_main_dtype([op.key for op in step.ops])]
    return ratio


def _repeated_kernels(
    step: TracedStep, keys: Sequence[OpKey], dtype: str | None, settings: Settings
) -> list[Kernel]:
    """Return all kernels of a step, those of an op as often as it runs."""
    return [
        kernel
        for op, key in zip(step.ops, keys, strict=True)
        for _ in range(round(op.calls))
        for kernel in kernels_of(key, dtype, settings)
    ]


def _host_s(
    step: TracedStep, moved: MovedStep, target: Device, method: Method, kernels: list[Kernel]
) -> float:
    """Return the seconds in which the device waits for the host.

    Between CPUs these are the gaps of the trace. Between GPUs the host issues the step as fast as
    in the trace, where it took the whole step unless kernels filled that. From a CPU to a GPU the
    host is the one that the cost model knows.
    """
    has_equal_kind = moved.is_carried  # CPU to CPU, or GPU to GPU
    if target.is_cpu:
        return step.gap_s if has_equal_kind else 0.0
    if has_equal_kind:
        is_device_bound = step.ops_s >= DEVICE_BOUND_SHARE * step.step_s
        # The same host issues the step on the target. If kernels fill the step, issuing them took
        # at most the step, else as long as the step.
        issue_s = min(step.issue_s, step.step_s) if is_device_bound else step.step_s
        return max(0.0, issue_s - moved.step_s)
    settings = _settings(method, target)
    priced_device = method.derate(target, _main_dtype([op.key for op in moved.ops]), settings)
    host = find_host(count_calls(kernels), priced_device.constants, settings.waits)
    parts_s = [moved.pass_s(pass_) for pass_ in PASSES]
    no_bounds = (None, None)
    passes_s, _, _ = bound_step(parts_s, no_bounds, host)
    return max(0.0, float(sum(passes_s)) - sum(parts_s))
