"""The answer of a grid: a cell for every model, device, batch and number of replicas."""

from collections.abc import Callable, Sequence

from steptime.core.answer import Answer, AnswerRow
from steptime.core.tables.table import LazySequence, Table


class GridRow(AnswerRow, frozen=True, kw_only=True):
    """A cell of a grid: the step of one network on one device, at a batch and a number of replicas.

    Attributes:
        model: the network.
        device: the device.
        dtype: data type of weights and activations.
        optimizer: the optimizer.
        batch: examples of one replica in a step.
        replicas: number of replicas; each keeps the batch.
        step_s: seconds of a step with its communication; null where it cannot be predicted.
        low_s: lower end of the 80 % interval of `step_s`; null where the method has none.
        high_s: upper end of the 80 % interval of `step_s`; null where the method has none.
        forward_s: seconds of the forward pass.
        backward_s: seconds of the backward pass.
        update_s: seconds of the optimizer.
        communication_s: seconds of the collectives of a step.
        examples_per_s: throughput of all replicas.
        tokens_per_s: throughput of all replicas in tokens, without padding; null for a network that
            reads no tokens.
        peak_bytes: size of all tensors at the worst moment.
        needed_bytes: memory that the process needs; null where the step cannot be predicted.
        status: ok, oom where the step does not fit, unsupported where the device has no peak for
            the data type.
        is_extrapolated: whether the answer goes beyond the measurements that the constants were
            fitted on: kernels of the step (such as those of attention), or the device's maker,
            architecture, memory or power, were not among them.
        train_s: seconds of the training of `--tokens`; null without it.
        train_low_s: lower end of the 80 % interval of `train_s`; null where the method has none.
        train_high_s: upper end of the 80 % interval of `train_s`; null where the method has none.
        cost_total: cost of the whole training on all replicas; null without a price.
        cost_per_hour: price of one device for an hour; null without an offer.
        currency: currency of costs; null without prices.
        offer: the cheapest offer of the device.
        price_date: the date of the offer.
        assumed: settings that were not given and decide the time, by the option that changes them.
        notes: remarks that change how the cell is read.
    """

    model: str
    device: str
    dtype: str
    optimizer: str
    batch: int
    replicas: int
    step_s: float | None
    low_s: float | None
    high_s: float | None
    forward_s: float | None
    backward_s: float | None
    update_s: float | None
    communication_s: float | None
    examples_per_s: float | None
    tokens_per_s: float | None
    peak_bytes: int
    needed_bytes: int | None
    status: str
    is_extrapolated: bool | None
    train_s: float | None
    train_low_s: float | None
    train_high_s: float | None
    cost_total: float | None
    cost_per_hour: float | None
    currency: str | None
    offer: str | None
    price_date: str | None
    assumed: dict[str, str]
    notes: tuple[str, ...]


class GridAnswer(Answer, frozen=True, kw_only=True):
    """The steps of a grid: each model on each device, at each batch and number of replicas.

    Attributes:
        rows: the cells; replicas change fastest, then batches, devices and models.
        unmodelled: names of layers of unknown type, which count as no work.
        notes: remarks that change how the answer is read.
    """

    rows: Sequence[GridRow]
    unmodelled: tuple[str, ...]
    notes: tuple[str, ...]
    _make_table: Callable[[Sequence[GridRow]], Table]
    _make_csv_table: Callable[[], Table]
    _has_file: bool = False

    def tables(self) -> Sequence[Table]:
        """Return the cells, the first of them for people; none where a file has them.

        The table is computed when it is read: `--json` does without it.
        """
        if self._has_file:
            return []
        return LazySequence(length=1, make_items=lambda: [self._make_table(self.rows)])

    def csv_table(self) -> Table:
        """Return the cells as they are computed: 100,000 of them are no structs before."""
        return self._make_csv_table()
