"""The answer of `scale`: a row for each number of replicas, with what each costs."""

from collections.abc import Iterator

from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_text
from steptime.core.tables.table import Column, Table, head_step_columns
from steptime.core.units import format_count, format_seconds
from steptime.hardware.prices import HOUR_S

BATCH_COLUMNS = (
    Column("replicas", is_answer=True),
    Column("cost_total", "cost", is_answer=True),
    Column("train_h", "training"),
    Column("global_batch", "global batch", is_spare=True),
)
STEP_COLUMNS = (
    Column("step_s", "step", ends=("low_s", "high_s")),
    Column("speedup", "speed-up"),
    Column("efficiency", is_spare=True),
    Column("examples_per_s", "speed", is_spare=True),
    Column("tokens_per_s", "tokens/s", is_spare=True),
    Column("epoch_s", "an epoch", is_spare=True),
)
COLUMNS: dict[str, tuple[Column, ...]] = {
    "data": (
        *BATCH_COLUMNS,
        Column("batch", "per replica", is_spare=True),
        Column("compute_s", "compute", is_spare=True),
        Column("exposed_communication_s", "communication"),
        Column("hidden_s", "hidden"),
        *STEP_COLUMNS,
    ),
    "model": (
        *BATCH_COLUMNS,
        Column("forward"),
        Column("backward"),
        Column("update_s", "update"),
        *STEP_COLUMNS,
    ),
    "hybrid": (
        *BATCH_COLUMNS,
        Column("batch", "per replica", is_spare=True),
        Column("data_s", "data parallel"),
        Column("model_s", "model parallel"),
        Column("sync_s", "communication"),
        *STEP_COLUMNS,
    ),
}
CSV_COLUMNS = (
    Column("replicas"),
    Column("global_batch"),
    Column("batch"),
    Column("forward_s"),
    Column("backward_s"),
    Column("update_s"),
    Column("compute_s"),
    Column("communication_s"),
    Column("overlap_s"),
    Column("exposed_communication_s"),
    Column("step_s", ends=("low_s", "high_s")),
    Column("speedup"),
    Column("efficiency"),
    Column("examples_per_s"),
    Column("tokens_per_s"),
    Column("epoch_s"),
    Column("train_s"),
    Column("device_hours"),
    Column("cost_total"),
    Column("peak_bytes"),
    Column("needed_bytes"),
)


class CollectiveTime(AnswerRow, frozen=True, kw_only=True):
    """The time of a reduction of gradients by one collective.

    Attributes:
        collective: the collective, such as `ring`.
        communication_s: seconds of the reduction.
    """

    collective: str
    communication_s: float


class SplitLayerTimes(AnswerRow, frozen=True, kw_only=True):
    """The passes of the layers that are split.

    Attributes:
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
        update_s: seconds of the optimizer.
    """

    forward_s: float
    backward_s: float
    update_s: float


class DataParallelTimes(SplitLayerTimes, frozen=True, kw_only=True):
    """The passes of the layers that are not split, and the reduction of their gradients.

    Attributes:
        sync_s: seconds of the reduction.
    """

    sync_s: float


class LayerTime(AnswerRow, frozen=True, kw_only=True):
    """A layer of a network whose file splits layers.

    Attributes:
        name: the layer.
        kind: its kind.
        device: number of the device that it runs on.
        forward_s: seconds of the forward pass.
        forward_compute_s: seconds of its work.
        forward_memory_s: seconds of its memory traffic, also from other devices.
        backward_s: seconds of the backward pass.
        backward_compute_s: seconds of its work.
        backward_memory_s: seconds of its memory traffic, also from other devices.
        update_s: seconds of the optimizer.
        fetch_s: seconds in which its inputs arrive from other devices.
        parameters: number of its parameters.
        flop: work of the forward pass; a multiply-add is 2.
    """

    name: str
    kind: str
    device: int
    forward_s: float
    forward_compute_s: float
    forward_memory_s: float
    backward_s: float
    backward_compute_s: float
    backward_memory_s: float
    update_s: float
    fetch_s: float
    parameters: int
    flop: int


class ScaleRow(AnswerRow, frozen=True, kw_only=True):
    """The step of a number of replicas; its passes are those of the largest batch of a replica.

    Attributes:
        replicas: number of replicas.
        global_batch: examples of a step of all replicas.
        batch: examples of a replica; the largest share where they differ.
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
        update_s: seconds of the optimizer.
        compute_s: seconds of all passes.
        communication_s: seconds of the reduction of gradients by the collective of the answer.
        overlap_s: the part of `communication_s` that hides behind the backward pass.
        exposed_communication_s: the part of `communication_s` that the step waits for.
        step_s: seconds of a step.
        low_s: lower end of the 80 % interval of `step_s`; null where the method has none.
        high_s: upper end of the 80 % interval of `step_s`; null where the method has none.
        speedup: throughput over that of one replica.
        efficiency: speed-up over the number of replicas.
        examples_per_s: throughput of all replicas.
        tokens_per_s: throughput of all replicas in tokens, without padding; null for a network that
            reads no tokens.
        epoch_s: seconds of an epoch; null without examples.
        train_s: seconds of the whole training; null without a training.
        device_hours: hours of the training times the number of replicas; null without a training.
        cost_total: cost of the whole training; null without a price.
        peak_bytes: size of all tensors of a replica at the worst moment; null of split layers.
        needed_bytes: memory that the process of a replica needs; null of split layers.
        collectives: seconds of the reduction by each collective.
        forward_lower_s: forward pass with parallel chains; null unless model parallel.
        forward_upper_s: forward pass of layers one after another; null unless model parallel.
        backward_lower_s: backward pass with parallel chains; null unless model parallel.
        backward_upper_s: backward pass of layers one after another; null unless model parallel.
        data: passes of the layers that are not split; null unless hybrid.
        model: passes of the split layers; null unless hybrid.
        notes: remarks on the row.
    """

    replicas: int
    global_batch: int
    batch: int
    forward_s: float
    backward_s: float
    update_s: float
    compute_s: float
    communication_s: float
    overlap_s: float
    exposed_communication_s: float
    step_s: float
    low_s: float | None
    high_s: float | None
    speedup: float
    efficiency: float
    examples_per_s: float
    tokens_per_s: float | None
    epoch_s: float | None = None
    train_s: float | None = None
    device_hours: float | None = None
    cost_total: float | None = None
    peak_bytes: int | None
    needed_bytes: int | None
    collectives: tuple[CollectiveTime, ...]
    forward_lower_s: float | None = None
    forward_upper_s: float | None = None
    backward_lower_s: float | None = None
    backward_upper_s: float | None = None
    data: DataParallelTimes | None = None
    model: SplitLayerTimes | None = None
    notes: tuple[str, ...]


class ScaleAnswer(Answer, frozen=True, kw_only=True):
    """Training on many replicas: time, speed-up and cost.

    Attributes:
        model: the network.
        device: the device.
        link: the link that joins the replicas; null without one.
        latency_s: seconds of a message over the link; null where unknown.
        inside: the link that joins the devices of a node; null without one.
        per_node: devices of a node; null without a link.
        links_per_node: links that the devices of a node share; null without a link.
        servers: parameter servers; null without a link.
        method: the cost model.
        options: options of the method that decide the answer.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        batch: examples of one replica in a step; null in strong scaling, where rows have them.
        global_batch: examples of all replicas in a step; null in weak scaling, where rows have
            them.
        dtype: data type of weights and activations.
        optimizer: the optimizer.
        scaling: `weak` or `strong`.
        parallel: `data`, `model` or `hybrid`.
        collective: the collective that adds up the gradients.
        overlap: whether gradients are reduced during the backward pass.
        compression: how many times smaller the gradients are.
        parameters: number of parameters.
        gradient_bytes: size of the gradients.
        examples: examples of an epoch; null without a training, and for a training in tokens.
        epochs: epochs of the training; null without a training, and for a training in tokens.
        tokens: tokens of the training; null without a training, and for a training in examples.
        cost_per_hour: price of a device for an hour; null without one.
        currency: currency of costs; null where the price names none.
        billing: the smallest time that is paid, `second` or `hour`; null without a training.
        stops_paying: the first number of replicas at which throughput grows less than half as much
            as the number of replicas; null if there is none.
        rows: the step of each number of replicas.
        ops: layers of a network whose file splits layers; empty where all is data parallel.
        unmodelled: names of layers of unknown type, which count as no work.
        headline: where more replicas stop paying, and the training.
        notes: remarks that change how the answer is read.
    """

    model: str
    device: str
    link: str | None
    latency_s: float | None
    inside: str | None
    per_node: int | None
    links_per_node: int | None
    servers: int | None
    method: str
    options: dict[str, str]
    assumed: dict[str, str]
    batch: int | None
    global_batch: int | None
    dtype: str
    optimizer: str
    scaling: str
    parallel: str
    collective: str
    overlap: bool
    compression: float
    parameters: int
    gradient_bytes: int
    examples: int | None
    epochs: float | None
    tokens: int | None
    cost_per_hour: float | None
    currency: str | None
    billing: str | None
    stops_paying: int | None
    rows: tuple[ScaleRow, ...]
    ops: tuple[LayerTime, ...]
    unmodelled: tuple[str, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def remarks(self) -> list[str]:
        """Return the notes on the answer and on its rows, each marked."""
        row_notes = [
            f"note: {format_count(row.replicas, 'replica')}: {note}"
            for row in self.rows
            for note in row.notes
        ]
        return [*super().remarks(), *row_notes]

    def tables(self) -> list[Table]:
        """Return a row for each number of replicas."""
        cells = [_make_cells(row) for row in self.rows]
        heads = [
            column
            for column in head_step_columns(COLUMNS[self.parallel], cells)
            if any(row.get(column.key) is not None for row in cells)
        ]
        assumptions = "; ".join(self._assumptions())
        footnotes = [f"assumed: {assumptions}"] if assumptions else []
        return [Table(heads, cells, self._title(), footnotes, csv_columns=CSV_COLUMNS)]

    def _title(self) -> str:
        """Return the question in words: `resnet50 on v100 over aws, batch 64 a replica, ...`."""
        has_replicas = self.parallel != "model"
        link = f" over {self.link}" if self.link else ""
        batch = f"global batch {self.global_batch}"
        if self.scaling == "weak":
            batch = f"batch {self.batch} a replica" if has_replicas else f"batch {self.batch}"
        kinds = {"data": f"{self.scaling} scaling", "model": "model parallel", "hybrid": "hybrid"}
        collective = f", {self.collective}" if has_replicas else ""
        method = f"{self.method}{collective}"
        return f"{self.model} on {self.device}{link}, {batch}, {kinds[self.parallel]} ({method})"

    def _assumptions(self) -> Iterator[str]:
        """Yield the settings that were assumed, with the options that change them."""
        settings = assumed_text(self.assumed)
        if settings:
            yield settings
        # Only data parallelism over a link has these two choices, and Paleo's method neither.
        if self.parallel != "data" or not self.link or self.method == "paleo":
            return
        if not self.overlap:
            yield "all-reduce after the backward pass, not during it (--overlap)"
        if self.inside and self.links_per_node == 1:
            yield f"{self.per_node} devices share a node's one link (--links-per-node)"


def _format_bounds(pass_name: str, lower_s: float | None, upper_s: float | None) -> dict[str, str]:
    """Return the cell of a pass, `{"forward": "1.2 ms - 3.4 ms"}`; none without bounds."""
    if lower_s is None or upper_s is None:
        return {}
    lower, upper = format_seconds(lower_s), format_seconds(upper_s)
    return {pass_name: lower if lower == upper else f"{lower} - {upper}"}


def _make_cells(row: ScaleRow) -> dict[str, object]:
    """Return the cells of a number of replicas."""
    cells: dict[str, object] = {
        **row.to_dict(),
        # An empty cell instead of 0.
        "hidden_s": row.overlap_s or None,
        "train_h": None if row.train_s is None else row.train_s / HOUR_S,
    }
    # Bounds of a network split over devices: its chains of layers run at once, or in turn.
    cells |= _format_bounds("forward", row.forward_lower_s, row.forward_upper_s)
    cells |= _format_bounds("backward", row.backward_lower_s, row.backward_upper_s)
    if row.data is not None and row.model is not None:
        cells["data_s"] = _sum_passes(row.data)
        cells["model_s"] = _sum_passes(row.model)
        cells["sync_s"] = row.data.sync_s
    return cells


def _sum_passes(times: SplitLayerTimes) -> float:
    return times.forward_s + times.backward_s + times.update_s
