"""A step as a trace shows it, on another device or with other settings: the answer."""

from collections.abc import Sequence

from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_row
from steptime.core.graph import PASSES
from steptime.core.tables.table import Column, Table, make_facts_table
from steptime.core.units import format_percent, format_seconds, format_value

MAX_TEXT_ROWS = 12  # rows of the table that people read
KIND_COLUMNS = (
    Column("kind", "op"),
    Column("pass_", "pass"),
    Column("calls"),
    Column("measured_s", "measured"),
    Column("measured_over_predicted", "ratio"),
    Column("step_s", "target"),
)


class TracedKind(AnswerRow, frozen=True, kw_only=True):
    """All ops of one name in a pass of the step.

    Attributes:
        kind: the op as PyTorch names it, without `aten::`.
        pass_: forward, backward or update.
        calls: how often such ops run in a step.
        measured_s: their seconds in the trace.
        predicted_s: their predicted seconds on `from_device`.
        measured_over_predicted: `measured_s` over `predicted_s`.
        step_s: their predicted seconds on `device`, corrected by this ratio where `is_carried`.
    """

    kind: str
    pass_: str
    calls: float
    measured_s: float
    predicted_s: float
    measured_over_predicted: float
    step_s: float


class TracedStepTime(Answer, frozen=True, kw_only=True):
    """How long the step of a trace takes on a device.

    Attributes:
        trace: the file of the trace.
        device: the device of the prediction.
        from_device: the device on which the trace was taken.
        method: the cost model.
        batch: examples of a step; null where neither the trace nor an option says it.
        from_batch: examples of a step of the trace; null where unknown.
        dtype: the data type of `--dtype`; null for the data type of the trace.
        traced_steps: number of steps in the trace.
        measured_s: seconds of a step in the trace.
        step_s: seconds of a step on `device`.
        forward_s: seconds of the ops of the forward pass.
        backward_s: seconds of the ops of the backward pass.
        update_s: seconds of the ops of the optimizer.
        unshaped_s: seconds of ops without shapes, scaled by the bandwidth of memory.
        host_s: seconds of a step in which no op runs, because the host has not issued the next.
        unshaped_share: share of the traced step in ops without shapes.
        examples_per_s: throughput; null where the batch is unknown.
        is_carried: whether `step_s` is corrected by the ratio of measured to predicted time of each
            op on `from_device`; not between a CPU and a GPU.
        predicted_s: seconds of a step on `device` by the shapes of its ops alone, without this
            correction.
        predicted_low_s: lower end of the 80 % interval of `predicted_s`; null where unknown.
        predicted_high_s: upper end of the 80 % interval of `predicted_s`.
        flop: FLOP of the forward and the backward pass, of the ops whose FLOP are known.
        utilisation: share of the device's peak that `flop` reach in `predicted_s` (MFU); null for a
            step without time.
        uncounted_share: share of `predicted_s` in ops whose FLOP are unknown.
        assumed: settings that were not given and decide the time, by the option that changes them.
        notes: remarks that change how the answer is read.
        rows: the ops by name and pass, the longest first.
    """

    trace: str
    device: str
    from_device: str
    method: str
    batch: int | None
    from_batch: int | None
    dtype: str | None
    traced_steps: int
    measured_s: float
    step_s: float
    forward_s: float
    backward_s: float
    update_s: float
    unshaped_s: float
    host_s: float
    unshaped_share: float
    examples_per_s: float | None
    is_carried: bool
    predicted_s: float
    predicted_low_s: float | None
    predicted_high_s: float | None
    flop: float
    utilisation: float | None
    uncounted_share: float
    assumed: dict[str, str]
    notes: tuple[str, ...]
    rows: tuple[TracedKind, ...]
    _by_op: bool = False

    def csv_rows(self) -> Sequence[AnswerRow | Answer]:
        """Return the ops where they are asked for, else the step."""
        return self.rows if self._by_op else (self,)

    def tables(self) -> list[Table]:
        """Return the step, and the ops that take longest or all of them."""
        return [self._totals(), self._kind_table()]

    def _totals(self) -> Table:
        batch = "" if self.batch is None else f", batch {self.batch}"
        dtype = "" if self.dtype is None else f", {self.dtype}"
        title = f"{self.trace}{batch}{dtype} on {self.device} ({self.method})"
        speed = None
        if self.examples_per_s is not None:
            speed = format_value("examples_per_s", self.examples_per_s)
        rows = [
            *assumed_row(self.assumed),
            ("step", format_seconds(self.step_s)),
            *((f"  {name}", format_seconds(getattr(self, f"{name}_s"))) for name in PASSES),
            (
                "  ops without shapes",
                format_seconds(self.unshaped_s) if self.unshaped_share else None,
            ),
            ("  between ops", format_seconds(self.host_s)),
            ("speed", speed),
            (f"measured on {self.from_device}", format_seconds(self.measured_s)),
        ]
        text_rows = [(name, text) for name, text in rows if text is not None]
        return make_facts_table(title, "one step", text_rows)

    def _kind_table(self) -> Table:
        row_count = len(self.rows) if self._by_op else MAX_TEXT_ROWS
        printed_rows = self.rows[:row_count]
        hidden_rows = self.rows[row_count:]
        hidden_s = sum(row.step_s for row in hidden_rows)
        footnotes = []
        if hidden_s:
            hidden_share = format_percent(hidden_s / self.step_s)
            footnotes = [f"{len(hidden_rows)} more ops, {hidden_share} of the step: --by-op"]
        return Table(KIND_COLUMNS, [row.to_dict() for row in printed_rows], "ops", footnotes)
