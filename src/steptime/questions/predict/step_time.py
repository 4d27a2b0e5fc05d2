"""How long one step takes, as an answer: its numbers, those of its ops, and its table."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.build import tokens_per_example
from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_row
from steptime.core.graph import PASSES
from steptime.core.signatures.kinds import File
from steptime.core.tables.printers import html
from steptime.core.tables.table import (
    EXTRAPOLATED_FOOTNOTE,
    Column,
    Table,
    make_facts_table,
    make_frame,
)
from steptime.core.units import format_bytes, format_interval, format_seconds, format_value
from steptime.hardware.device import Device
from steptime.prediction.assumed import assumed_of
from steptime.prediction.outcome import Prediction
from steptime.prediction.power import step_energy
from steptime.prediction.records import record_method
from steptime.prediction.schedule import RowTime
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.predict.run_energy import NO_RUN, EnergyRequest, RunEnergy, run_rows
from steptime.questions.training import (
    StepInterval,
    TrainingTime,
    describe_speed,
    predict_training,
    tokens_per_s,
    training_rows,
)

NOTEBOOK_OPS = 10  # slowest ops that a notebook shows
HOST_BOUND_SHARE = 0.99  # of the step, from which on the host decides it
OP_COLUMNS = (
    Column("name", "op"),
    Column("step_s", "step"),
    Column("kind", is_spare=True),
    *(Column(f"{name}_s", name) for name in PASSES),
    Column("parameters", is_spare=True),
    Column("flop", "forward FLOP"),
)


class OpTime(AnswerRow, frozen=True, kw_only=True):
    """The time of an op of a network in one step.

    Attributes:
        name: the op.
        kind: its kind (`steptime list ops`).
        step_s: seconds of all its passes.
        low_s: lower end of the 80 % interval of `step_s`; null where the method has none.
        high_s: upper end of the 80 % interval of `step_s`; null where the method has none.
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
        update_s: seconds of the optimizer.
        forward_compute_s: seconds of the forward pass at the peak of the device.
        forward_memory_s: seconds of the forward pass's traffic at the bandwidth of the memory.
        backward_compute_s: seconds of the backward pass at the peak of the device.
        backward_memory_s: seconds of the backward pass's traffic at the bandwidth of the memory.
        parameters: number of its parameters.
        flop: work of the forward pass; a multiply-add is 2.
    """

    name: str
    kind: str
    step_s: float
    low_s: float | None
    high_s: float | None
    forward_s: float
    backward_s: float
    update_s: float
    forward_compute_s: float | None
    forward_memory_s: float | None
    backward_compute_s: float | None
    backward_memory_s: float | None
    parameters: int
    flop: int


class StepTime(Answer, frozen=True, kw_only=True):
    """How long one step of a network takes on a device.

    Attributes:
        model: the network.
        device: the device.
        device_note: remark on the device's data, "" without one.
        device_unverified: numbers of the device that nobody has verified.
        method: the cost model.
        options: options of the method that decide the answer.
        batch: examples of one replica in a step.
        tokens: tokens of a step, without padding; null for a network that reads no tokens.
        phase: train or infer.
        dtype: data type of weights and activations.
        optimizer: the optimizer.
        tuning: the part of the network that is trained; null if all of it is.
        step_s: seconds of a step.
        low_s: lower end of the 80 % interval of `step_s`; null where the method has none.
        high_s: upper end of the 80 % interval of `step_s`; null where the method has none.
        examples_per_s: throughput.
        tokens_per_s: throughput in tokens, without padding; null for a network that reads no
            tokens.
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
        update_s: seconds of the optimizer.
        host_s: seconds in which the host issues the kernels, mostly while the device works; null
            where the method has none.
        is_extrapolated: whether the answer goes beyond the measurements that the constants were
            fitted on: kernels of the step (such as those of attention), or the device's maker,
            architecture, memory or power, were not among them.
        assumed: settings that were not given and decide the time, by the option that changes them.
        parameters: number of parameters.
        flop: FLOP of a step; a multiply-add is 2.
        executed_flop: FLOP that the kernels execute: `flop` and additional work, such as
            activations that are computed again.
        traffic_bytes: bytes that the kernels read and write.
        peak_bytes: size of all tensors at the worst moment.
        needed_bytes: memory that the process needs.
        blocks_bytes: memory that the allocator holds beyond tensors; null where unknown.
        workspace_bytes: memory of the library of matrix products; null where unknown.
        context_bytes: memory of driver and kernels; null where unknown.
        usable_bytes: memory that a process may use of the device; null where unknown.
        fits: whether the step fits the device.
        utilisation: share of the peak that the step reaches; null where no peak is known.
        energy_j: energy of a step; null where the power of the device is unknown.
        energy_low_j: lower end of the 80 % interval of `energy_j`.
        energy_high_j: upper end of the 80 % interval of `energy_j`.
        energy_max_j: energy of a step at the highest power of the device.
        energy_note: figures of the device that are missing for the energy, or not verified.
        run: the energy of a run; null without `--steps`.
        training: time and cost of a training on `--tokens`; null without it.
        status: ok, or oom where the step does not fit.
        unmodelled: names of layers of unknown type, which count as no work.
        notes: remarks that change how the answer is read.
        ops: every op, in the order of execution.
    """

    model: str
    device: str
    device_note: str
    device_unverified: tuple[str, ...]
    method: str
    options: Mapping[str, Any]
    batch: int
    tokens: int | None
    phase: str
    dtype: str
    optimizer: str
    tuning: str | None
    step_s: float
    low_s: float | None
    high_s: float | None
    examples_per_s: float | None
    tokens_per_s: float | None
    forward_s: float
    backward_s: float
    update_s: float
    host_s: float | None
    is_extrapolated: bool
    assumed: dict[str, str]
    parameters: int
    flop: int
    executed_flop: int
    traffic_bytes: int
    peak_bytes: int
    needed_bytes: int
    blocks_bytes: int | None
    workspace_bytes: int | None
    context_bytes: int | None
    usable_bytes: float | None
    fits: bool
    utilisation: float | None
    energy_j: float | None
    energy_low_j: float | None
    energy_high_j: float | None
    energy_max_j: float | None
    energy_note: str
    run: RunEnergy | None
    training: TrainingTime | None
    status: str
    unmodelled: tuple[str, ...]
    notes: tuple[str, ...]
    ops: tuple[OpTime, ...]
    _by_op: bool = False
    _sources: tuple[str, ...] = ()

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each op; needs pandas."""
        return make_frame(op.to_dict() for op in self.ops)

    def csv_rows(self) -> Sequence[AnswerRow | Answer]:
        """Return the ops where they are asked for, else the step."""
        return self.ops if self._by_op else (self,)

    def remarks(self) -> list[str]:
        """Return the lines that a reader must know beside the tables."""
        unverified = ", ".join(self.device_unverified)
        lines = [f"not verified: {unverified} of {self.device}"] if unverified else []
        return [*lines, *super().remarks()]

    def tables(self) -> list[Table]:
        """Return the step, and every op where that is wanted."""
        return [self._totals(), *([_op_table(self.ops)] if self._by_op else [])]

    def _repr_html_(self) -> str:
        slowest = sorted(self.ops, key=lambda op: -op.step_s)[:NOTEBOOK_OPS]
        return html(self._totals()) + html(_op_table(slowest))

    @property
    def title(self) -> str:
        """The question in a line: network, batch, phase, dtype, device and method."""
        tuning = f", {self.tuning}" if self.tuning else ""
        return (
            f"{self.model}{tuning}, batch {self.batch}, {self.phase}, {self.dtype} "
            f"on {self.device} ({self.method})"
        )

    def _totals(self) -> Table:
        """Return the table of the step's time, speed, memory, energy and price."""
        rows: list[tuple[str, Any]] = [
            *assumed_row(self.assumed),
            ("step", self._describe_step()),
            ("  forward", format_seconds(self.forward_s)),
            ("  backward", format_seconds(self.backward_s)),
            ("  update", format_seconds(self.update_s)),
            ("speed", describe_speed(self.examples_per_s, self.tokens_per_s)),
            (
                "achieved",
                format_value("flop_per_s", self.flop / self.step_s) if self.step_s else None,
            ),
            ("peak memory", _describe_memory(self)),
            ("energy", _describe_energy(self)),
            *run_rows(self.run),
            *training_rows(self.training),
            *(("device data", text) for text in self._sources),
        ]
        verdict = ""
        if self.status != "ok":
            lacking_bytes = self.needed_bytes - (self.usable_bytes or 0)
            verdict = f" - out of memory by {format_bytes(lacking_bytes)}"
        footnotes = [EXTRAPOLATED_FOOTNOTE] if self.is_extrapolated else []
        table = make_facts_table(f"{self.title}{verdict}", "one step", rows)
        return Table(table.columns, table.rows, table.title, footnotes)

    def _describe_step(self) -> str:
        """Describe the step's time: `~12 ms (10 to 14 ms), as long as the host takes ...`."""
        text = format_interval("step_s", self.step_s, self.low_s, self.high_s)
        if self.is_extrapolated:
            text = f"~{text}"  # the mark of the footnote on extrapolation
        is_host_bound = self.host_s is not None and self.host_s >= HOST_BOUND_SHARE * self.step_s
        if is_host_bound:
            text += ", as long as the host takes to issue it"
        return text


def predict_step(
    model: StepModel,
    run: EnergyRequest = NO_RUN,
    *,
    tokens: Any = None,
    prices: File | None = None,
    by_op: bool = False,
    sources: bool = False,
) -> StepTime:
    """Predict the time, memory and energy of a step.

    Args:
        model: the step on its device.
        run: a run of many steps whose energy is asked for.
        tokens: tokens of a training whose time and cost are asked for; None without one.
        prices: a file of prices; None for the shipped ones.
        by_op: show every op in the tables.
        sources: show where the numbers of the device come from.

    Raises:
        InputError: where the method cannot price the step on the device.
    """
    workload = model.workload
    device = model.device
    prediction = model.predict()
    times, needs = prediction.times, prediction.needs
    lowered = prediction.lowered
    energy = step_energy(times, model.effective_device, lowered.columns)
    step_interval = StepInterval(times.step_s, times.low_s, times.high_s)
    length = tokens_per_example(workload)
    examples_per_s = workload.batch_per_replica / times.step_s if times.step_s else None
    return StepTime(
        model=workload.label,
        device=device.name,
        device_note=device.datasheet.note,
        device_unverified=tuple(device.datasheet.unverified),
        method=model.method.name,
        options=dict(record_method(model).options),
        batch=workload.batch_per_replica,
        tokens=None if length is None else length * workload.batch_per_replica,
        phase=workload.phase,
        dtype=workload.dtype,
        optimizer=workload.optimizer,
        tuning=workload.tuning.text or None,
        step_s=times.step_s,
        low_s=times.low_s,
        high_s=times.high_s,
        examples_per_s=examples_per_s,
        tokens_per_s=tokens_per_s(length, examples_per_s),
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        update_s=times.update_s,
        host_s=times.host_s,
        is_extrapolated=times.is_extrapolated,
        assumed=assumed_of(model),
        parameters=lowered.parameters,
        flop=round(prediction.flop),
        executed_flop=round(lowered.executed_flop),
        traffic_bytes=round(lowered.traffic_bytes),
        peak_bytes=prediction.peak_bytes,
        needed_bytes=needs.total_bytes,
        blocks_bytes=needs.blocks_bytes,
        workspace_bytes=needs.workspace_bytes,
        context_bytes=needs.context_bytes,
        usable_bytes=device.datasheet.usable_bytes,
        fits=prediction.fits,
        utilisation=energy.utilisation,
        energy_j=energy.energy_j,
        energy_low_j=energy.low_j,
        energy_high_j=energy.high_j,
        energy_max_j=energy.max_j,
        energy_note=energy.note,
        run=run.of_run(times.step_s, energy),
        training=predict_training(tokens, prices, workload, device.name, step_interval),
        status=prediction.status,
        unmodelled=tuple(model.graph().unmodelled),
        notes=tuple(" ".join(text.split()) for text in prediction.remarks),
        ops=_op_times(prediction),
        _by_op=by_op,
        _sources=_source_texts(device) if sources else (),
    )


def _source_texts(device: Device) -> tuple[str, ...]:
    """Return the source of a device's data and the note on it, each on one line."""
    texts = (device.datasheet.source, device.datasheet.note)
    return tuple(" ".join(text.split()) for text in texts if text)


def _op_times(prediction: Prediction) -> tuple[OpTime, ...]:
    """Return the time and the forward work of each op."""
    op_times = []
    for row in prediction.times.rows:
        forward_flop = prediction.flop_by_row[row.row.name]["forward"]
        op_times.append(_op_time(row, round(forward_flop)))
    return tuple(op_times)


def _op_time(times: RowTime, flop: int) -> OpTime:
    """Return the time of an op from its times in the schedule."""
    op = times.row
    return OpTime(
        name=op.name,
        kind=op.kind,
        step_s=times.step_s,
        low_s=times.step.low,
        high_s=times.step.high,
        forward_s=times.forward.value,
        backward_s=times.backward.value,
        update_s=times.update.value,
        forward_compute_s=times.forward.compute_s,
        forward_memory_s=times.forward.memory_s,
        backward_compute_s=times.backward.compute_s,
        backward_memory_s=times.backward.memory_s,
        parameters=op.parameters,
        flop=flop,
    )


def _op_table(ops: Sequence[OpTime]) -> Table:
    return Table(OP_COLUMNS, [op.to_dict() for op in ops])


def _describe_memory(time: StepTime) -> str:
    """Describe the memory: `3.1 GB (optimizer sgd); the process needs 3.9 GB`."""
    purpose = "" if time.phase == "infer" else f" (optimizer {time.optimizer})"
    has_overhead = time.needed_bytes != time.peak_bytes
    process = f"; the process needs {format_bytes(time.needed_bytes)}" if has_overhead else ""
    return f"{format_bytes(time.peak_bytes)}{purpose}{process}"


def _describe_energy(time: StepTime) -> str:
    """Describe the energy: `12 J [10-14]`, `at most 30 J (T4: idle_W unknown)` or `unknown`."""
    text = "unknown"
    if time.energy_j is not None:
        text = format_interval("energy_j", time.energy_j, time.energy_low_j, time.energy_high_j)
    elif time.energy_max_j is not None:
        text = f"at most {format_value('energy_j', time.energy_max_j)}"
    return f"{text} ({time.energy_note})" if time.energy_note else text
