"""The rows of the answers of `evaluate`: errors of methods, of groups, and of single cases."""

import msgspec

from steptime.calibration.evaluate import ErrorFigures
from steptime.core.answer import AnswerRow


class MethodErrors(ErrorFigures, frozen=True, kw_only=True):
    """Errors of a method on all cases, or on the cases of a group.

    Attributes:
        method: the method, and the cases on which it is scored.
        spread: the smallest and the largest `mape` of the draws, None without draws.
        constants: number of constants of the method, or with `--calibrate-with` of those that
            calibration moved.
        points: cases of each device that calibrated it; 0 without `--calibrate-with`.
    """

    method: str
    spread: tuple[float, float] | None
    constants: float | None
    points: int


class GroupErrors(MethodErrors, frozen=True, kw_only=True):
    """Errors of a method on the cases of a group; what `--by` does not name is None.

    Attributes:
        kind: the kind of op, or `step`.
        device: the device.
        family: the family of network.
        condition: what was timed: `isolated`, one op; `repeated`, a kernel in a loop; `step`, a
            whole step.
        regime: range of the measured time: `below 0.1 ms`, `0.1 to 10 ms` or `above 10 ms`.
    """

    kind: str | None = None
    device: str | None = None
    family: str | None = None
    condition: str | None = None
    regime: str | None = None


class MissedOp(AnswerRow, frozen=True, kw_only=True):
    """The predicted time of an op of a case.

    Attributes:
        kind: the kind of op.
        pass_: forward or backward.
        sizes: sizes of its matrix products, or the bytes that it moves.
        count: how often the op runs in the case.
        step_s: seconds of the op in the whole case.
        compute_s: seconds of its arithmetic.
        memory_s: seconds of its memory traffic.
    """

    kind: str
    pass_: str = msgspec.field(name="pass")
    sizes: tuple[int | tuple[int, ...], ...]
    count: int
    step_s: float
    compute_s: float
    memory_s: float


class CaseErrors(AnswerRow, frozen=True, kw_only=True):
    """A case, measured and predicted.

    Attributes:
        place: where the case stands: file and line.
        kind: the kind of op, or `step`.
        device: the device.
        family: the family of network.
        condition: what was timed: `isolated`, one op; `repeated`, a kernel in a loop; `step`, a
            whole step.
        regime: range of the measured time: `below 0.1 ms`, `0.1 to 10 ms` or `above 10 ms`.
        measured_s: measured seconds.
        predicted_s: predicted seconds.
        low_s: lower end of the 80 % interval of `predicted_s`, None without one.
        high_s: upper end of the 80 % interval of `predicted_s`, None without one.
        ratio: predicted / measured.
        ops: its slowest ops by predicted time.
    """

    place: str
    kind: str
    device: str
    family: str
    condition: str
    regime: str
    measured_s: float
    predicted_s: float
    low_s: float | None
    high_s: float | None
    ratio: float
    ops: tuple[MissedOp, ...]


class UnaskedRows(AnswerRow, frozen=True, kw_only=True):
    """Rows for which no prediction is possible.

    Attributes:
        cause: why not.
        rows: number of rows.
        example: the place (file and line) of one such row.
    """

    cause: str
    rows: int
    example: str


class TrainingErrors(ErrorFigures, frozen=True, kw_only=True):
    """Errors of a quantity of steps of trainings in a set.

    Attributes:
        set: the set of rows.
        quantity: the quantity.
        fits: share of rows for which the prediction is right on whether the plan fits into memory;
            None if no row states it.
    """

    set: str
    quantity: str
    fits: float | None


class SetErrors(TrainingErrors, frozen=True, kw_only=True):
    """Errors of a quantity in a whole set.

    Attributes:
        row_count: rows of the set, also those without a prediction.
    """

    row_count: int


class TrainingGroupErrors(TrainingErrors, frozen=True, kw_only=True):
    """Errors of a quantity in a group of a set; what `--by` does not name is None.

    Attributes:
        model: the network.
        device: the device.
        block: what is new, compared with the trainings that the constants of the stack were fitted
            to: `unseen model`, `unseen device`, `larger scale`; `seen` if nothing is; `not said` if
            the stack does not name these trainings.
        stack: the software that ran the steps.
        dtype: data type.
        device_count: number of devices.
    """

    model: str | None = None
    device: str | None = None
    block: str | None = None
    stack: str | None = None
    dtype: str | None = None
    device_count: str | None = None


class CalibratedErrors(TrainingErrors, frozen=True, kw_only=True):
    """Errors of the rows of a device and stack that were not used to calibrate it.

    Attributes:
        device: the device.
        stack: the software that ran the steps.
        points: rows that calibrated it.
        before: `mape` without calibration.
        spread: the smallest and the largest `mape` of the draws.
    """

    device: str
    stack: str
    points: int
    before: float
    spread: tuple[float, float]


class TrainingCase(AnswerRow, frozen=True, kw_only=True):
    """A quantity of a step of a training, in the SI unit of the quantity.

    Attributes:
        set: the set of rows.
        place: where the row stands: file and line.
        model: the network.
        device: the device.
        dtype: data type.
        stack: the software that ran the step, None if the row does not say.
        device_count: number of devices.
        block: what is new, compared with the trainings that the constants of the stack were fitted
            to: `unseen model`, `unseen device`, `larger scale`; `seen` if nothing is; `not said` if
            the stack does not name these trainings.
        quantity: the quantity.
        measured: measured value.
        predicted: predicted value.
        low: lower end of the 80 % interval of `predicted`, None without one.
        high: upper end of the 80 % interval of `predicted`, None without one.
        ratio: predicted / measured.
        fits: whether the prediction is right on whether the plan fits into memory; None if the row
            does not state it.
        parts: predicted seconds of the parts of a step.
    """

    set: str
    place: str
    model: str | None
    device: str | None
    dtype: str | None
    stack: str | None
    device_count: int
    block: str | None
    quantity: str
    measured: float
    predicted: float
    low: float | None
    high: float | None
    ratio: float
    fits: bool | None
    parts: dict[str, float]


class UnaskedTrainings(AnswerRow, frozen=True, kw_only=True):
    """Rows of a set for which no prediction is possible.

    Attributes:
        set: the set.
        rows: number of rows.
        reason: why not.
        first: the place (file and line) of the first such row.
    """

    set: str
    rows: int
    reason: str
    first: str
