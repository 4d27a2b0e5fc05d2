"""Whether a step fits a device, the largest batch that does, and the best."""

from collections.abc import Sequence
from typing import Any, Unpack

from steptime.build import tokens_per_example
from steptime.core.answer import AnswerRow
from steptime.core.assumed import assumed_row
from steptime.core.kinds import text_of
from steptime.core.table import Column, Table, head_step_columns, make_facts_table
from steptime.core.units import percent, seconds, size
from steptime.grids.batches import KNEE, MAX_BATCH, doubling, knee, largest_batch
from steptime.launch.job import Facts
from steptime.prediction.assumed import assumed_of
from steptime.prediction.conformal import TOO_CLOSE, judge_memory
from steptime.prediction.step_model import StepModel
from steptime.questions import kinds
from steptime.questions.fit.commands import fitting_commands
from steptime.questions.fit.memory_savings import list_savings
from steptime.questions.launched.answer import LaunchedAnswer
from steptime.questions.launched.question import answer_launched, read_launched
from steptime.questions.step_options import StepKeywords, StepOptions
from steptime.questions.training import TrainingTime, predict_training, tokens_per_s, training_rows

COLUMNS = (
    Column("batch"),
    Column("step_s", "step", ends=("low_s", "high_s")),
    Column("examples_per_s", "speed"),
    Column("tokens_per_s", "tokens/s", is_spare=True),
    Column("needed_bytes", "memory"),
    Column("what", ""),
)
SMALLEST_SAVING = 0.01  # share of the needed memory from which on a saving is shown


class FitRow(AnswerRow, frozen=True, kw_only=True):
    """A step at one batch.

    Attributes:
        batch: examples of a step.
        fits: whether the step fits the device by what it is predicted to need.
        verdict: whether it fits with its interval: yes, no, too close to call, or unknown.
        step_s: seconds of a step.
        low_s: lower end of the 80 % interval of `step_s`; null where the method has none.
        high_s: upper end of the 80 % interval of `step_s`; null where the method has none.
        examples_per_s: throughput.
        tokens_per_s: throughput in tokens that are text; null of a network that reads none.
        peak_bytes: size of all tensors at the worst moment.
        needed_bytes: memory that the process needs.
        needed_low_bytes: lower end of the 80 % interval of `needed_bytes`.
        needed_high_bytes: upper end of the same.
    """

    batch: int
    fits: bool
    verdict: str
    step_s: float
    low_s: float | None
    high_s: float | None
    examples_per_s: float | None
    tokens_per_s: float | None
    peak_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int


class Saving(AnswerRow, frozen=True, kw_only=True):
    """A change that saves memory at the worst moment.

    Attributes:
        change: the change, such as `full recompute`.
        saves_bytes: by how much the changed step needs less.
        fits: whether the changed step fits; null where the memory of the device is unknown.
    """

    change: str
    saves_bytes: int
    fits: bool | None


class FitAnswer(LaunchedAnswer, frozen=True, kw_only=True):
    """Whether a step fits a device: what it needs, and which batches would fit.

    Attributes:
        model: the network.
        device: the device.
        method: the cost model.
        phase: train or infer.
        dtype: data type of weights and activations.
        optimizer: the optimizer.
        tuning: what of the network is trained; null where all is.
        batch: examples of the step that was asked for.
        assumed: settings that decide the answer, by the option that changes them.
        fits: whether it fits by what it is predicted to need; null where the memory of the device
            is unknown.
        verdict: whether it fits with its interval: yes, no, too close to call, or unknown.
        largest_batch: the largest batch that fits, 0 if none does; null where the memory of the
            device is unknown, or the search ended at its cap.
        capped_batch: the batch at the cap of the search, which fits; null where the search ended
            before. Larger ones may fit.
        best_batch: the smallest batch with 90 % of the best speed; null if none fits.
        usable_bytes: memory that a process may use of the device; null where unknown.
        peak_bytes: size of all tensors at the worst moment.
        needed_bytes: memory that the process needs.
        needed_low_bytes: lower end of the 80 % interval of `needed_bytes`, as far as measured runs
            of others were from predictions.
        needed_high_bytes: upper end of the same.
        worst_moment: the op at which the tensors are largest.
        parts: sizes of what is in memory at the worst moment, in bytes, by what it is.
        helps: changes that save memory, the largest saving first.
        weights_bytes: size of the weights at the worst moment.
        state_bytes: size of the optimizer's states.
        inputs_bytes: size of the inputs.
        gradients_bytes: size of the gradients.
        copies_bytes: size of copies of weights in another type.
        activations_bytes: size of what the backward pass reads again.
        temporaries_bytes: size of what one op makes and drops.
        blocks_bytes: memory that the allocator holds beyond tensors; null where unknown.
        workspace_bytes: memory of the library of matrix products; null where unknown.
        context_bytes: memory of driver and kernels; null where unknown.
        rows: the step at batches of powers of two up to the largest, and at the one asked for.
        would_fit: of a step that does not fit, commands of changed ones that do, the cheapest
            first.
        training: the time and the cost of so many tokens; null without `--tokens`.
        notes: remarks that change how the answer is read.
    """

    model: str
    device: str
    method: str
    phase: str
    dtype: str
    optimizer: str
    tuning: str | None
    batch: int
    assumed: dict[str, str]
    fits: bool | None
    verdict: str
    largest_batch: int | None
    capped_batch: int | None
    best_batch: int | None
    usable_bytes: float | None
    peak_bytes: int
    needed_bytes: int
    needed_low_bytes: int
    needed_high_bytes: int
    worst_moment: str
    parts: dict[str, int]
    helps: tuple[Saving, ...]
    weights_bytes: int
    state_bytes: int
    inputs_bytes: int
    gradients_bytes: int
    copies_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    blocks_bytes: int | None
    workspace_bytes: int | None
    context_bytes: int | None
    rows: tuple[FitRow, ...]
    would_fit: tuple[str, ...]
    training: TrainingTime | None
    notes: tuple[str, ...]

    def remarks(self) -> list[str]:
        """Return the notes beside the tables, which say themselves how much memory lacks."""
        return [line for line in super().remarks() if not line.startswith("note: out of memory")]

    def tables(self) -> list[Table]:
        """Return the answer as a table, and batches as another."""
        kind = (self.model, self.tuning, self.phase, self.dtype, self.optimizer)
        title = f"{', '.join(filter(None, kind))} on {self.device} ({self.method})"
        steps = {row.batch: row.step_s for row in self.rows}
        best = self.best_batch
        savings = _describe_savings(self)
        lines = [
            *assumed_row(self.assumed),
            ("fits", _describe_verdict(self)),
            ("  most", self.worst_moment),
            ("  that is", ", ".join(f"{name} {size(value)}" for name, value in self.parts.items())),
            *([("  what helps", savings)] if savings else []),
            *(("would fit" if i == 0 else "", line) for i, line in enumerate(self.would_fit)),
            *training_rows(self.training),
            _largest_row(self),
            ("best batch", None if best is None else f"{best:,}, a step of {seconds(steps[best])}"),
        ]
        rows = [{**row.to_dict(), "what": _describe_row(self, row)} for row in self.rows]
        return [make_facts_table(title, "", lines), Table(head_step_columns(COLUMNS, rows), rows)]


def _describe_verdict(answer: FitAnswer) -> str:
    """Describe the verdict: `no: batch 64 needs 30 GB of 24 GB, out of memory by 6 GB`.

    One that is too close to call says its interval in place of what lacks.
    """
    needs, usable = answer.needed_bytes, answer.usable_bytes
    capacity = "" if usable is None else f" of {size(usable)}"
    addition = f", out of memory by {size(needs - (usable or 0))}" if answer.verdict == "no" else ""
    if answer.verdict == TOO_CLOSE:
        addition = f" ({size(answer.needed_low_bytes)} to {size(answer.needed_high_bytes)})"
    return f"{answer.verdict}: batch {answer.batch} needs {size(needs)}{capacity}{addition}"


def _describe_savings(answer: FitAnswer) -> str:
    """Describe what would save memory: `batch 32 saves 4 GB; full recompute saves 7 GB`."""
    if answer.fits is not False:
        return ""
    smallest = SMALLEST_SAVING * answer.needed_bytes
    large = (saving for saving in answer.helps if saving.saves_bytes >= smallest)
    return "; ".join(f"{saving.change} saves {size(saving.saves_bytes)}" for saving in large)


def _describe_row(answer: FitAnswer, row: FitRow) -> str:
    """Describe a batch: `asked for, best`, or `does not fit`."""
    if row.verdict == "no":
        return "does not fit"
    marks = (
        (answer.batch, "asked for"),
        (answer.best_batch, "best"),
        (answer.largest_batch, "largest"),
        (answer.capped_batch, "no larger one tried"),
    )
    words = [mark for batch, mark in marks if batch == row.batch]
    if row.verdict == TOO_CLOSE:
        words.append(TOO_CLOSE)
    return ", ".join(words)


def _largest_row(answer: FitAnswer) -> tuple[str, str | None]:
    """Return the row of the largest batch, `1,024`, or of the batch at the cap of the search."""
    if answer.capped_batch is not None:
        return "fits at least", f"batch {answer.capped_batch:,}; no larger one was tried"
    if answer.largest_batch is None:
        return "largest batch", None
    return "largest batch", f"{answer.largest_batch:,}" if answer.largest_batch else "none fits"


def fit(
    model: kinds.Model,
    device: kinds.Device,
    batch: kinds.Batch | None = None,
    tokens: kinds.Count | None = None,
    prices: kinds.PriceFile | None = None,
    from_: kinds.LaunchFile | None = None,
    emit: kinds.EmittedTool | None = None,
    **step_options: Unpack[StepKeywords],
) -> FitAnswer:
    """Say whether a network fits a device, and with which batch.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); a training command or recipe of another tool.
        device: A device (steptime list devices), FILE.toml or local.
        batch: Batch size. Default: 64, transformers 1, a file's own.
        tokens: Tokens of a training of a language model: shows time and cost.
        prices: With --tokens: prices of devices. Default: the shipped ones, of their dates.
        from_: A training command or recipe of another tool, which names no model.
        emit: Print the step as a command or recipe: axolotl, trl, deepspeed, accelerate, megatron.
        **step_options: Which step it is, and how it is executed: `StepOptions`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    launched = read_launched("fit", model, from_)
    if launched is not None:
        options = {"batch": batch, "tokens": tokens, "prices": prices, "emit": emit, **step_options}
        return answer_launched(fit, launched, device, options)
    step = StepOptions.from_keywords(step_options, fit)
    step_model = step.on(model, batch, text_of(device))
    workload, usable_bytes = step_model.workload, step_model.device.usable_bytes
    prediction, needs = step_model.predict(), step_model.needs()
    largest = _largest_fitting(step_model)
    is_capped = largest is not None and largest >= MAX_BATCH
    batches = [] if largest == 0 else doubling(largest or workload.batch_per_replica)
    rows = tuple(
        _predict_row(step_model, size) for size in sorted({workload.batch_per_replica, *batches})
    )
    best = _best_batch([row for row in rows if row.batch in batches])
    worst, device = step_model.worst_moment(), step_model.device
    step_interval = (prediction.times.step_s, prediction.times.low_s, prediction.times.high_s)
    process_parts = {
        "blocks": needs.blocks_bytes,
        "workspace": needs.workspace_bytes,
        "context": needs.context_bytes,
    }
    sizes: Any = {f"{name}_bytes": value for name, value in worst.parts.items()}
    return FitAnswer(
        emitted=_emit_step(emit, step_model),
        model=workload.label,
        device=step_model.device.name,
        method=step_model.method.name,
        phase=workload.phase,
        dtype=workload.dtype,
        optimizer=workload.optimizer,
        tuning=workload.tuning.text or None,
        batch=workload.batch_per_replica,
        assumed=assumed_of(step_model),
        fits=None if usable_bytes is None else prediction.fits,
        **judge_memory(needs.total_bytes, usable_bytes, device).to_fields(),
        largest_batch=None if is_capped else largest,
        capped_batch=largest if is_capped else None,
        best_batch=best,
        usable_bytes=usable_bytes,
        peak_bytes=prediction.peak_bytes,
        needed_bytes=needs.total_bytes,
        worst_moment=worst.name,
        parts={name: value for name, value in {**worst.parts, **process_parts}.items() if value},
        helps=tuple(Saving(**saving._asdict()) for saving in list_savings(step_model)),
        **sizes,
        understood=None,
        not_used=(),
        blocks_bytes=needs.blocks_bytes,
        workspace_bytes=needs.workspace_bytes,
        context_bytes=needs.context_bytes,
        rows=rows,
        would_fit=(
            ()
            if prediction.fits
            else tuple(fitting_commands(step_model, step, model, largest or 0))
        ),
        training=predict_training(tokens, prices, workload, step_model.device.name, step_interval),
        notes=tuple(_make_notes(step_model, largest, best)),
    )


def _emit_step(tool: str | None, step_model: StepModel) -> str | None:
    """Return a step on one device as a command or recipe of a tool, None without a tool."""
    if tool is None:
        return None
    from steptime.questions.launched.emitted import emit_training

    workload = step_model.workload
    facts: Facts = {
        "micro_batch": workload.batch_per_replica,
        "accumulation": 1,
        "global_batch": workload.batch_per_replica,
        "devices": 1,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
    }
    if length := tokens_per_example(workload):
        facts["length"] = length
    return emit_training(tool, workload.label, facts, workload.tuning)


def _largest_fitting(step_model: StepModel) -> int | None:
    """Return the largest batch that fits, None where the memory of the device is unknown."""
    usable_bytes = step_model.device.usable_bytes
    if usable_bytes is None:
        return None
    largest = largest_batch(lambda size: step_model.needs(size).total_bytes, usable_bytes)
    is_capped = largest >= MAX_BATCH  # the search ended at its cap, not at the memory
    if is_capped and step_model.predict().fits:
        return max(largest, step_model.workload.batch_per_replica)
    return largest


def _best_batch(rows: Sequence[FitRow]) -> int | None:
    """Return the smallest batch with 90 % of the best speed, None without any."""
    if not rows:
        return None
    return knee([row.batch for row in rows], [row.step_s for row in rows])


def _make_notes(step_model: StepModel, largest: int | None, best: int | None) -> list[str]:
    """Return the remarks on a step, on its memory and on the batches."""
    device = step_model.device
    notes = list(step_model.predict().remarks)
    if device.kind == "gpu" and step_model.needs().context_bytes is None:
        driver = f"that of the driver of {device.name} under {step_model.stack.name} is not known"
        notes.append(f"memory is at least what is said: {driver}")
    if largest is None:
        notes.append(f"the memory of {device.name} is unknown, so every batch fits")
    elif largest >= MAX_BATCH:
        notes.append(f"batch {largest:,} fits, and no larger one was tried")
    if best is not None:
        notes.append(f"best batch: the least with {percent(KNEE)} of the best speed")
    return notes


def _predict_row(model: StepModel, batch: int) -> FitRow:
    """Predict a step at one batch."""
    prediction = model.predict(batch)
    times = prediction.times
    examples_per_s = batch / times.step_s if times.step_s else None
    needed_bytes = prediction.needs.total_bytes
    return FitRow(
        batch=batch,
        fits=prediction.fits,
        **judge_memory(needed_bytes, model.device.usable_bytes, model.device).to_fields(),
        step_s=times.step_s,
        low_s=times.low_s,
        high_s=times.high_s,
        examples_per_s=examples_per_s,
        tokens_per_s=tokens_per_s(tokens_per_example(model.workload), examples_per_s),
        peak_bytes=prediction.peak_bytes,
        needed_bytes=needed_bytes,
    )
