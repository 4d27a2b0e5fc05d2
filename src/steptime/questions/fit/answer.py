"""The answer of `fit`: what a step needs, which batches fit, and what would help."""

from steptime.core.answer import AnswerRow
from steptime.core.assumed import assumed_row
from steptime.core.tables.table import Column, Table, head_step_columns, make_facts_table
from steptime.core.units import format_bytes, format_seconds
from steptime.prediction.conformal import TOO_CLOSE
from steptime.questions.launched.answer import LaunchedAnswer
from steptime.questions.training import TrainingTime, training_rows

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
        fits: whether the step is predicted to fit.
        verdict: yes, no, too close to call (the interval of the needed memory reaches both sides),
            or unknown.
        step_s: seconds of a step.
        low_s: lower end of the 80 % interval of `step_s`; null where the method has none.
        high_s: upper end of the 80 % interval of `step_s`; null where the method has none.
        examples_per_s: throughput.
        tokens_per_s: throughput in tokens, without padding; null for a network that reads no
            tokens.
        peak_bytes: size of all tensors at the worst moment.
        needed_bytes: memory that the process needs.
        needed_low_bytes: lower end of the 80 % interval of `needed_bytes`.
        needed_high_bytes: upper end of the 80 % interval of `needed_bytes`.
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
        saves_bytes: memory that the change saves.
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
        tuning: the part of the network that is trained; null if all of it is.
        batch: examples of the step.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        fits: whether the step is predicted to fit; null where the memory of the device is unknown.
        verdict: yes, no, too close to call (the interval of the needed memory reaches both sides),
            or unknown.
        largest_batch: the largest batch that fits, 0 if none does; null where the memory of the
            device is unknown, and where `capped_batch` has a number.
        capped_batch: the batch at which the search stopped though it fits, so larger ones may fit;
            null otherwise.
        best_batch: the smallest batch with 90 % of the best speed; null if none fits.
        usable_bytes: memory that a process may use of the device; null where unknown.
        peak_bytes: size of all tensors at the worst moment.
        needed_bytes: memory that the process needs.
        needed_low_bytes: lower end of the 80 % interval of `needed_bytes`, from the errors of
            published runs.
        needed_high_bytes: upper end of the 80 % interval of `needed_bytes`.
        worst_moment: the op at which all tensors together are largest.
        parts: bytes in memory at the worst moment, by what they hold.
        helps: changes that save memory, the largest saving first.
        weights_bytes: size of the weights at the worst moment.
        state_bytes: size of the optimizer's states.
        inputs_bytes: size of the inputs.
        gradients_bytes: size of the gradients.
        copies_bytes: size of copies of weights in another type (mixed precision).
        activations_bytes: size of the saved activations, which the backward pass reads.
        temporaries_bytes: size of tensors that live within an op or two.
        blocks_bytes: memory that the allocator holds beyond tensors; null where unknown.
        workspace_bytes: memory of the library of matrix products; null where unknown.
        context_bytes: memory of driver and kernels; null where unknown.
        rows: the step at powers of two up to the largest batch, and at the given batch.
        would_fit: for a step that does not fit: commands of changed steps that fit, the cheapest
            first.
        training: time and cost of a training on `--tokens`; null without it.
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
        step_words = (self.model, self.tuning, self.phase, self.dtype, self.optimizer)
        title = f"{', '.join(filter(None, step_words))} on {self.device} ({self.method})"
        facts = [
            *assumed_row(self.assumed),
            *_make_memory_rows(self),
            *training_rows(self.training),
            _make_largest_batch_row(self),
            ("best batch", _describe_best_batch(self)),
        ]
        batch_rows = [{**row.to_dict(), "what": _describe_batch(self, row)} for row in self.rows]
        batch_table = Table(head_step_columns(COLUMNS, batch_rows), batch_rows)
        return [make_facts_table(title, "", facts), batch_table]


def _make_memory_rows(answer: FitAnswer) -> list[tuple[str, str]]:
    """Return whether the step fits, what fills the memory, and which commands would fit.

    Labels that begin with spaces, and empty ones, belong to the row above.
    """
    parts = ", ".join(
        f"{name} {format_bytes(part_bytes)}" for name, part_bytes in answer.parts.items()
    )
    rows = [
        ("fits", _describe_verdict(answer)),
        ("  peak", answer.worst_moment),
        ("  made of", parts),
    ]
    savings = _describe_savings(answer)
    if savings:
        rows.append(("  what helps", savings))
    for index, command in enumerate(answer.would_fit):
        rows.append(("would fit" if index == 0 else "", command))
    return rows


def _describe_best_batch(answer: FitAnswer) -> str | None:
    """Return the best batch with its step: `64, a step of 210 ms`; None where no batch fits."""
    if answer.best_batch is None:
        return None
    step_s_by_batch = {row.batch: row.step_s for row in answer.rows}
    step = format_seconds(step_s_by_batch[answer.best_batch])
    return f"{answer.best_batch:,}, a step of {step}"


def _describe_verdict(answer: FitAnswer) -> str:
    """Describe the verdict: `no: batch 64 needs 30 GB of 24 GB, out of memory by 6 GB`.

    One that is too close to call says its interval in place of what lacks.
    """
    needed_bytes = answer.needed_bytes
    usable_bytes = answer.usable_bytes
    capacity = "" if usable_bytes is None else f" of {format_bytes(usable_bytes)}"
    remark = ""
    if answer.verdict == "no":
        # A verdict of "no" needs a known capacity.
        remark = f", out of memory by {format_bytes(needed_bytes - (usable_bytes or 0))}"
    elif answer.verdict == TOO_CLOSE:
        low, high = format_bytes(answer.needed_low_bytes), format_bytes(answer.needed_high_bytes)
        remark = f" ({low} to {high})"
    needs = f"batch {answer.batch} needs {format_bytes(needed_bytes)}"
    return f"{answer.verdict}: {needs}{capacity}{remark}"


def _describe_savings(answer: FitAnswer) -> str:
    """Describe what would save memory: `batch 32 saves 4 GB; full recompute saves 7 GB`."""
    is_out_of_memory = answer.fits is False
    if not is_out_of_memory:
        return ""
    smallest_bytes = SMALLEST_SAVING * answer.needed_bytes
    savings = (saving for saving in answer.helps if saving.saves_bytes >= smallest_bytes)
    return "; ".join(
        f"{saving.change} saves {format_bytes(saving.saves_bytes)}" for saving in savings
    )


def _describe_batch(answer: FitAnswer, row: FitRow) -> str:
    """Describe a batch: `asked for, best`, or `does not fit`."""
    if row.verdict == "no":
        return "does not fit"
    batch_marks = (
        (answer.batch, "asked for"),
        (answer.best_batch, "best"),
        (answer.largest_batch, "largest"),
        (answer.capped_batch, "no larger one tried"),
    )
    words = [mark for batch, mark in batch_marks if batch == row.batch]
    if row.verdict == TOO_CLOSE:
        words.append(TOO_CLOSE)
    return ", ".join(words)


def _make_largest_batch_row(answer: FitAnswer) -> tuple[str, str | None]:
    """Return the row of the largest batch, `1,024`, or of the batch at the cap of the search."""
    if answer.capped_batch is not None:
        return "fits at least", f"batch {answer.capped_batch:,}; no larger one was tried"
    if answer.largest_batch is None:
        return "largest batch", None
    # 0 if not even one example fits; None above, if the memory of the device is unknown.
    return "largest batch", f"{answer.largest_batch:,}" if answer.largest_batch else "none fits"
