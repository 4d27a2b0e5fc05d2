"""The way from Paleo's number to ours, correction by correction (`why --from paleo`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptime.build import build_step
from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_line, assumed_text
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_seconds
from steptime.core.workload import Workload
from steptime.hardware.device import Device
from steptime.paleo.explain import CorrectedStep, explain
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.assumed import assumed_of
from steptime.prediction.schedule import Timeline
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.options import describe_unmodelled
from steptime.questions.pictures import draw_waterfall

COLUMNS = (
    Column("correction"),
    Column("step_s", "step"),
    Column("change"),
    Column("meaning", "correct rule"),
)


class Correction(AnswerRow, frozen=True, kw_only=True):
    """The step after one correction, on top of those before it.

    Attributes:
        correction: its name; paleo is the step as published.
        meaning: the correct rule.
        step_s: seconds of the step.
        low_s: the step itself, which is a lower bound; null where the method has no bound.
        high_s: null: a lower bound has no upper end.
        change_s: seconds that the correction adds.
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
        update_s: seconds of the optimizer.
    """

    correction: str
    meaning: str
    step_s: float
    low_s: float | None
    high_s: float | None
    change_s: float
    forward_s: float
    backward_s: float
    update_s: float


class CorrectedOp(AnswerRow, frozen=True, kw_only=True):
    """The time of an op by the analytic and by the calibrated method.

    Attributes:
        name: the op.
        kind: its kind (`steptime list ops`).
        step_s: seconds of all its passes, calibrated.
        low_s: lower end of the 80 % interval of `step_s`.
        high_s: upper end of the 80 % interval of `step_s`.
        forward_s: seconds of the forward pass, calibrated.
        backward_s: seconds of the backward pass, calibrated.
        update_s: seconds of the optimizer, calibrated.
        analytic_s: seconds of all its passes by the analytic method; null where it has no such op.
    """

    name: str
    kind: str
    step_s: float
    low_s: float | None
    high_s: float | None
    forward_s: float
    backward_s: float
    update_s: float
    analytic_s: float | None


class CorrectionsAnswer(Answer, frozen=True, kw_only=True):
    """The way from Paleo's number to the analytic and the calibrated one.

    Attributes:
        model: the network.
        device: the device.
        batch: examples of a step.
        phase: train or infer.
        dtype: data type of weights and activations.
        optimizer: the optimizer.
        options: options of the method that were set.
        assumed: settings that were not given and decide the calibrated step, by the option that
            changes them.
        paleo_s: seconds of a step by Paleo as published.
        analytic_s: seconds of a step by the analytic method.
        calibrated_s: seconds of a step by the calibrated method.
        low_s: lower end of the 80 % interval of `calibrated_s`.
        high_s: upper end of the 80 % interval of `calibrated_s`.
        is_extrapolated: whether the answer goes beyond the measurements that the constants were
            fitted on: kernels of the step (such as those of attention), or the device's maker,
            architecture, memory or power, were not among them.
        rows: the step after each correction, from Paleo's to the analytic one.
        ops: every op.
        unmodelled: names of layers of unknown type, which count as no work.
        headline: the three numbers in a line.
        notes: remarks that change how the answer is read.
    """

    model: str
    device: str
    batch: int
    phase: str
    dtype: str
    optimizer: str
    options: dict[str, str]
    assumed: dict[str, str]
    paleo_s: float
    analytic_s: float
    calibrated_s: float
    low_s: float | None
    high_s: float | None
    is_extrapolated: bool
    rows: tuple[Correction, ...]
    ops: tuple[CorrectedOp, ...]
    unmodelled: tuple[str, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    _uses_tf32: bool = False

    def printed_headline(self) -> list[str]:
        """Return no line: the table says what the headline says."""
        return []

    @property
    def title(self) -> str:
        """The question in a line: network, batch, phase, dtype and device."""
        step = f"{self.model}, batch {self.batch}, {self.phase}, {self.dtype}"
        return f"{step} on {self.device}"

    def tables(self) -> list[Table]:
        """Return a row for each correction, and one for the calibrated step."""
        rows = [
            {
                "correction": row.correction,
                "step_s": row.step_s,
                # The first row is Paleo's own step.
                "change": None if index == 0 else _format_change(row.change_s),
                "meaning": row.meaning,
            }
            for index, row in enumerate(self.rows)
        ]
        tf32 = ", convolutions in TF32" if self._uses_tf32 else ""
        interval = f"{format_seconds(self.low_s or 0.0)} to {format_seconds(self.high_s or 0.0)}"
        calibrated_row = {
            "correction": "calibrated",
            "step_s": self.calibrated_s,
            "change": _format_change(self.calibrated_s - self.analytic_s),
            "meaning": f"real kernels, power and host{tf32}; 80 % interval {interval}",
        }
        title = f"{self.title}: from paleo to analytic, and to calibrated"
        footnotes = assumed_line([(self.device, assumed_text(self.assumed))])
        return [Table(COLUMNS, [*rows, calibrated_row], title, footnotes)]


def _format_change(change_s: float) -> str:
    """Format a change of seconds: `+4.8 ms`."""
    return f"{'-' if change_s < 0 else '+'}{format_seconds(abs(change_s))}"


def _correction_rows(steps: Sequence[CorrectedStep]) -> tuple[Correction, ...]:
    """Return the rows of the corrected steps, each with its change from the step before."""
    rows = []
    previous_s = steps[0].timeline.step_s
    for name, meaning, timeline in steps:
        rows.append(
            Correction(
                correction=name,
                meaning=meaning,
                step_s=timeline.step_s,
                low_s=timeline.low_s,
                high_s=timeline.high_s,
                change_s=timeline.step_s - previous_s,
                forward_s=timeline.forward_s,
                backward_s=timeline.backward_s,
                update_s=timeline.update_s,
            )
        )
        previous_s = timeline.step_s
    return tuple(rows)


def explain_corrections(
    workload: Workload, device: Device, options: Mapping[str, str], out: Path | None
) -> CorrectionsAnswer:
    """Return the corrections that lead from Paleo's number to ours.

    Args:
        workload: the step.
        device: its device.
        options: options of the methods.
        out: a file for a picture of the corrections; None for no picture.

    Raises:
        InputError: as either method does, and where the file cannot be written.
    """
    graph = build_step(workload)
    corrections = _correction_rows(explain(workload, graph, device, options))
    calibrated_options = {
        name: text for name, text in options.items() if name in cost_model(DEFAULT).options
    }
    calibrated = StepModel(workload, device, options=calibrated_options, graph=graph)
    analytic = StepModel(workload, device, method="analytic", options=options, graph=graph)
    calibrated_timeline = calibrated.timeline()
    paleo_s, analytic_s = corrections[0].step_s, corrections[-1].step_s
    headline = (
        f"{format_seconds(paleo_s)} by Paleo as published, {format_seconds(analytic_s)} corrected "
        f"(analytic), {format_seconds(calibrated_timeline.step_s)} calibrated"
    )
    answer = CorrectionsAnswer(
        model=workload.label,
        device=device.name,
        batch=workload.batch_per_replica,
        phase=workload.phase,
        dtype=workload.dtype,
        optimizer=workload.optimizer,
        options=dict(options),
        assumed=assumed_of(calibrated),
        paleo_s=paleo_s,
        analytic_s=analytic_s,
        calibrated_s=calibrated_timeline.step_s,
        low_s=calibrated_timeline.low_s,
        high_s=calibrated_timeline.high_s,
        is_extrapolated=calibrated_timeline.is_extrapolated,
        rows=corrections,
        ops=_join_ops(calibrated_timeline, analytic.timeline()),
        unmodelled=tuple(graph.unmodelled),
        headline=(headline,),
        notes=tuple(describe_unmodelled(graph.unmodelled)),
        _uses_tf32=_uses_tf32(calibrated),
    )
    if out is not None:
        _draw(corrections, answer.title, device, out)
    return answer


def _join_ops(calibrated: Timeline, analytic: Timeline) -> tuple[CorrectedOp, ...]:
    """Return the ops of a step with their calibrated and their analytic times."""
    analytic_s_by_op = {row.row.name: row.step_s for row in analytic.rows}
    return tuple(
        CorrectedOp(**row.seconds._asdict(), analytic_s=analytic_s_by_op.get(row.row.name))
        for row in calibrated.rows
    )


def _uses_tf32(model: StepModel) -> bool:
    """Return whether kernels of float32 run in TF32 on a device that has a peak for it."""
    if "tf32" not in model.device.datasheet.peak_flop_per_s:
        return False
    return any(kernel.tf32 and kernel.dtype == "float32" for kernel in model.lower_step().kernels)


def _draw(corrections: Sequence[Correction], title: str, device: Device, out: Path) -> None:
    """Draw the corrections as a waterfall."""
    caption = [
        "From Paleo as published to the analytic model; each correction on top of those above.",
        f"Device data: {device.datasheet.source}",
    ]
    changes: list[tuple[str, Any]] = [(row.correction, row.step_s) for row in corrections]
    draw_waterfall(changes, "analytic", title, caption, out)
