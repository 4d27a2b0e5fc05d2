"""The answer to `why`: the shares of a step by what it waits for, its ops, what would help."""

from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_row
from steptime.core.tables.printers import html
from steptime.core.tables.table import Column, Table, make_facts_table
from steptime.core.units import format_interval, format_percent, format_seconds
from steptime.questions.training import describe_speed
from steptime.questions.why.causes import MAX_LISTED, LikelyCause

UNEXPLAINED = "unexplained"  # the share of a measured step above the interval of the model
OPS_LINE = "The most expensive ops of the device's time:"
IMPROVEMENTS_LINE = "Would help, in examples a second by"
LINES_OF_TABLES = (OPS_LINE, IMPROVEMENTS_LINE)  # of the headline; the tables hold the same
OP_COLUMNS = (
    Column("op"),
    Column("kind", is_spare=True),
    Column("op_count", "count"),
    Column("step_s", "time each"),
    Column("total_share", "device time"),
    Column("bound", "bottleneck"),
    Column("ceiling_share", "share of ceiling", is_spare=True),
)
CAUSE_COLUMNS = (
    Column("cause"),
    Column("weight"),
    Column("range", "a step would take"),
    Column("check", "how to check"),
)
IMPROVEMENT_COLUMNS = (Column("change"), Column("step_s", "step"), Column("speedup", "examples/s"))


class Shares(AnswerRow, frozen=True, kw_only=True):
    """The shares of a step by what it waits for; they add up to 1.

    Attributes:
        compute: arithmetic.
        memory: memory traffic.
        host: calls and kernel launches of the host.
        input: waiting for input.
        communication: exposed communication.
        unexplained: time beyond the upper end of the predicted interval; null for a prediction.
    """

    compute: float
    memory: float
    host: float
    input: float
    communication: float
    unexplained: float | None = None


class ExpensiveOp(AnswerRow, frozen=True, kw_only=True):
    """An op that takes much of the device's time, with all that are equal to it.

    Attributes:
        op: the op; `update` is the optimizer.
        kind: its kind (`steptime list ops`).
        step_s: its seconds in a step.
        time_share: its share of the device's time.
        bound: what most of its time waits for: compute, memory or host.
        ceiling_share: the shortest time that the device's peaks allow, over the op's time; null for
            an op without time.
        equal_count: number of further ops of its kind that take as long.
    """

    op: str
    kind: str
    step_s: float
    time_share: float
    bound: str
    ceiling_share: float | None
    equal_count: int

    @property
    def total_share(self) -> float:
        """The share of the device's time of the op and those equal to it."""
        return self.time_share * (1 + self.equal_count)


class Improvement(AnswerRow, frozen=True, kw_only=True):
    """A change that would help a step, by another prediction.

    Attributes:
        change: the change.
        step_s: seconds of the changed step.
        speedup: the factor by which examples a second of all replicas grow.
        per_device_speedup: the factor by which examples a second of one replica grow.
    """

    change: str
    step_s: float
    speedup: float
    per_device_speedup: float


class Evidence(AnswerRow, frozen=True, kw_only=True):
    """The numbers of a measurement, and of the prediction beside it.

    Attributes:
        stack: the software that ran; null where unknown.
        predicted_s: seconds that the model predicts for the step without input and communication.
        ratio: the measured seconds over the predicted ones; null where nothing is predicted.
        is_within_interval: whether the measured seconds lie in the interval of the prediction;
            null where the method has none.
        input_share: share of the step that waits for input; null where unknown.
        communication_s: seconds of communication; null where unknown.
        sample_count: number of samples; null for a published number.
        disturbed_sample_count: number of samples that other work disturbed; null for a published
            number.
        low_s: lower end of the interval of the measured step; null where unknown.
        high_s: upper end of the interval of the measured step; null where unknown.
        peak_share: share of the peak that the executed work reaches.
    """

    stack: str | None
    predicted_s: float
    ratio: float | None
    is_within_interval: bool | None
    input_share: float | None
    communication_s: float | None
    sample_count: int | None
    disturbed_sample_count: int | None
    low_s: float | None
    high_s: float | None
    peak_share: float


class WhyAnswer(Answer, frozen=True, kw_only=True):
    """What a step waits for, and what would help it.

    Attributes:
        model: the network.
        device: the device.
        batch: examples of one replica in a step.
        replicas: number of data-parallel replicas.
        dtype: data type of weights and activations.
        method: the cost model.
        assumed: settings that were not given and decide the prediction, by the option that changes
            them.
        origin: predicted, measured or published: where `step_s` is from.
        step_s: seconds of a step.
        low_s: lower end of the 80 % interval of the prediction; null where the method has none.
        high_s: upper end of the 80 % interval of the prediction; null where the method has none.
        examples_per_s: throughput of all replicas; null where the step takes no time.
        tokens_per_s: throughput of all replicas in tokens, without padding; null for a network that
            reads no tokens.
        peak_bytes: predicted size of all tensors at the worst moment.
        needed_bytes: memory that the process needs, by the prediction.
        bound: the largest of the shares that the model explains.
        shares: shares of the step by what it waits for.
        ops: the most expensive ops.
        helps: changes that would help, the best first.
        evidence: numbers of the measurement; null for a prediction.
        causes: what may make the measured step slow, the first to check first; only with
            `--measured`.
        headline: the diagnosis in a few sentences.
        notes: remarks that change how the answer is read.
    """

    model: str
    device: str
    batch: int
    replicas: int
    dtype: str
    method: str
    assumed: dict[str, str]
    origin: str
    step_s: float
    low_s: float | None
    high_s: float | None
    examples_per_s: float | None
    tokens_per_s: float | None
    peak_bytes: int
    needed_bytes: int
    bound: str
    shares: Shares
    ops: tuple[ExpensiveOp, ...]
    helps: tuple[Improvement, ...]
    evidence: Evidence | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    causes: tuple[LikelyCause, ...] = ()

    def printed_headline(self) -> list[str]:
        """Return the lines of the headline that say more than the tables."""
        return [line for line in self.headline if not line.startswith(LINES_OF_TABLES)]

    def tables(self) -> list[Table]:
        """Return the diagnosis, the most expensive ops, and what would help."""
        title = f"{self.model}, batch {self.batch}, {self.dtype} on {self.device} ({self.method})"
        # The interval is that of the prediction, not of a measured step.
        ends = (self.low_s, self.high_s) if self.origin == "predicted" else (None, None)
        shares = self.shares.to_dict().items()
        rows = [
            *assumed_row(self.assumed),
            ("step", format_interval("step_s", self.step_s, *ends)),
            ("speed", describe_speed(self.examples_per_s, self.tokens_per_s)),
            ("bound by", self.bound),
            *((f"  {name}", format_percent(share)) for name, share in shares if share),
        ]
        ops = [
            op.to_dict() | {"op_count": 1 + op.equal_count, "total_share": op.total_share}
            for op in self.ops
        ]
        tables = [
            make_facts_table(title, self.origin, rows),
            Table(OP_COLUMNS, ops, "most expensive ops; equal ops share a row"),
        ]
        if self.causes:
            causes = [_cause_row(cause) for cause in self.causes[:MAX_LISTED]]
            tables.insert(1, Table(CAUSE_COLUMNS, causes, "what to check, in this order"))
        if self.helps:
            helps = [improvement.to_dict() for improvement in self.helps]
            tables.append(Table(IMPROVEMENT_COLUMNS, helps, "what would help, by the model"))
        return tables

    def _repr_html_(self) -> str:
        lines = (f"<p>{line}</p>" for line in self.headline)
        return "".join([*lines, *map(html, self.tables())])


def _cause_row(cause: LikelyCause) -> dict[str, str]:
    """Return the row of a cause in a table, with what a step would take under it."""
    low, high = format_seconds(cause.low_s), format_seconds(cause.high_s)
    return {
        "cause": cause.cause,
        "weight": format_percent(cause.weight),
        "range": low if low == high else f"{low} to {high}",
        "check": cause.check,
    }
