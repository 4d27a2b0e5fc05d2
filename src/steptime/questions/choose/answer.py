"""The answers of `choose`: devices for one training, or the page to choose in, and their tables."""

from collections.abc import Iterator, Sequence

from msgspec import field

from steptime.core.answer import Answer, AnswerRow
from steptime.core.assumed import assumed_line, assumed_text
from steptime.core.tables.table import EXTRAPOLATED_FOOTNOTE, Column, Table, head_step_columns
from steptime.core.units import first_of, format_count, format_value
from steptime.hardware.prices import HOUR_S, format_offer
from steptime.prediction.power import KWH_J
from steptime.questions.training import describe_training

MAX_TABLE_ROWS = 40  # devices that people see
MAX_NAMES = 5  # devices or prices that a note names
REASON_BY_UNFIT_STATUS = {
    "oom": " too small for the step",
    "unsupported": " without a known peak of this data type",
}
COLUMNS = (
    Column("device"),
    Column("shown_dtype", "type", is_spare=True),
    Column("cost_total", "cost", is_answer=True),
    Column("best_batch", "best batch", is_answer=True),
    Column("train_h", "training"),
    Column("batch"),
    Column("shown_microbatch", "microbatch", is_spare=True),
    Column("step_s", "step", ends=("low_s", "high_s")),
    Column("energy"),
    Column("examples_per_s", "speed", is_spare=True),
    Column("tokens_per_s", "tokens/s", is_spare=True),
    Column("best_examples_per_s", "speed at best batch", is_spare=True),
    Column("needed_bytes", "memory", is_spare=True),
    Column("paid_by", "offer", is_spare=True),
)
CSV_COLUMNS = (
    Column("device"),
    Column("dtype"),
    Column("batch"),
    Column("microbatch"),
    Column("accumulation"),
    Column("step_s", ends=("low_s", "high_s")),
    Column("examples_per_s"),
    Column("tokens_per_s"),
    Column("train_s"),
    Column("cost_total"),
    Column("cost_per_hour"),
    Column("offer"),
    Column("price_date"),
    Column("energy_j"),
    Column("energy_max_j"),
    Column("needed_bytes"),
    Column("best_batch"),
    Column("best_examples_per_s"),
)


class ChooseRow(AnswerRow, frozen=True, kw_only=True):
    """A training on one device; fields after `usable_bytes` are unknown unless `status` is `ok`.

    Attributes:
        device: the device.
        dtype: data type of weights and activations.
        status: `ok`, `oom` where not even one example fits, or `unsupported` where no peak of the
            data type is known.
        batch: examples of a step.
        microbatch: examples that pass at once; null if not even one fits.
        accumulation: microbatches of a step; null if not even one example fits.
        peak_bytes: size of all tensors at the worst moment.
        needed_bytes: memory that the process needs.
        usable_bytes: memory that a process may use of the device; null where unknown.
        step_s: seconds of a step.
        low_s: lower end of the 80 % interval of `step_s`; null where the method has none.
        high_s: upper end of the 80 % interval of `step_s`; null where the method has none.
        is_extrapolated: whether the answer goes beyond the measurements that the constants were
            fitted on: kernels of the step (such as those of attention), or the device's maker,
            architecture, memory or power, were not among them.
        examples_per_s: throughput.
        tokens_per_s: throughput in tokens, without padding; null for a network that reads no
            tokens.
        best_batch: the smallest batch, a power of two, with 90 % of the best speed of all that fit.
        best_examples_per_s: throughput at the best batch.
        train_s: seconds of the whole training.
        cost_total: cost of the whole training; null without a price.
        cost_per_hour: price of the device for an hour; null without an offer.
        offer: the cheapest offer of the device.
        price_date: the date of the offer.
        is_price_verified: whether the price was read in a price list.
        energy_j: energy of the whole training; null where the power of the device is unknown.
        energy_max_j: energy of the whole training at the highest power of the device.
        energy_note: figures of the device that are missing for the energy, or not verified.
        assumed: settings that were not given and decide the step, by the option that changes them.
        notes: remarks on the step, or the reason why there is none.
    """

    device: str
    dtype: str
    status: str
    batch: int
    microbatch: int | None
    accumulation: int | None
    peak_bytes: int
    needed_bytes: int
    usable_bytes: float | None
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    is_extrapolated: bool = False
    examples_per_s: float | None = None
    tokens_per_s: float | None = None
    best_batch: int | None = None
    best_examples_per_s: float | None = None
    train_s: float | None = None
    cost_total: float | None = None
    cost_per_hour: float | None = None
    offer: str | None = None
    price_date: str | None = None
    is_price_verified: bool | None = None
    energy_j: float | None = None
    energy_max_j: float | None = None
    energy_note: str = ""
    assumed: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class ChooseAnswer(Answer, frozen=True, kw_only=True):
    """Devices for one training, the best first.

    Attributes:
        model: the network.
        method: the cost model.
        phase: train or infer.
        dtype: data type of weights and activations; null where devices have several.
        optimizer: the optimizer.
        tuning: the part of the network that is trained; null if all of it is.
        examples: examples of an epoch; null for a training in tokens.
        epochs: epochs of the training; null for a training in tokens.
        tokens: tokens of the training; null for a training in examples.
        currency: currency of costs; null without prices.
        sort: the order of the rows: time, cost, energy or another column; `-` for largest first.
        rows: the training on each device; devices that it does not fit are last.
        notes: dates of prices, and devices and prices that are in doubt.
    """

    model: str
    method: str
    phase: str
    dtype: str | None
    optimizer: str
    tuning: str | None
    examples: int | None
    epochs: float | None
    tokens: int | None
    currency: str | None
    sort: str
    rows: tuple[ChooseRow, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the devices that fit, the best first."""
        fitting_rows = [row for row in self.rows if row.status == "ok"]
        is_paid = any(row.cost_total is not None for row in fitting_rows)
        has_several_dtypes = self.dtype is None
        cells = [_format_cells(row, is_paid, has_several_dtypes) for row in fitting_rows]
        filled_columns = [
            column
            for column in head_step_columns(COLUMNS, cells)
            if any(row[column.key] not in (None, "") for row in cells)
        ]
        footnotes = assumed_line((row.device, assumed_text(row.assumed)) for row in fitting_rows)
        if any(row.is_extrapolated for row in fitting_rows):
            footnotes.append(EXTRAPOLATED_FOOTNOTE)
        if is_paid:
            footnotes.append(f"cost in {self.currency}, paid by the second or as the offer says")
        table = Table(
            filled_columns,
            cells,
            self._title(),
            footnotes,
            max_rows=MAX_TABLE_ROWS,
            csv_columns=CSV_COLUMNS,
        )
        return [table]

    def _title(self) -> str:
        """Return the training in words: `resnet50, train, float32, sgd (calibrated): ...`."""
        title_words = (self.model, self.tuning, self.phase, self.dtype, self.optimizer)
        training = describe_training(self.examples, self.epochs, self.tokens)
        return f"{', '.join(filter(None, title_words))} ({self.method}): {training}, by {self.sort}"


class ChoicesPage(Answer, frozen=True, kw_only=True):
    """A page to choose in.

    Attributes:
        path: the page.
        row_count: number of its rows.
        model: the networks to choose from.
        dtype: the data types to choose from; empty text for the usual type of the network on each
            device.
        device: the devices.
        batch: the batches of a replica to choose from; `best` is the best batch of each device.
        link: the links between replicas.
        replicas: the numbers of replicas.
        headline: the number of rows and the page.
    """

    path: str
    row_count: int
    model: tuple[str, ...]
    dtype: tuple[str, ...]
    device: tuple[str, ...]
    batch: tuple[str, ...]
    link: tuple[str, ...]
    replicas: tuple[str, ...]
    headline: tuple[str, ...]


def describe_prices_and_unfit_devices(rows: Sequence[ChooseRow]) -> Iterator[str]:
    """Yield the dates of prices, and the devices and prices that are in doubt."""
    priced_rows = [row for row in rows if row.cost_total is not None]
    dates = {row.price_date for row in priced_rows if row.price_date}
    if dates:
        yield f"prices are of a date and change: {'; '.join(sorted(dates))}"
    # `is_price_verified` is None without an offer.
    unverified_offers = {row.offer for row in rows if row.is_price_verified is False and row.offer}
    if unverified_offers:
        names = first_of(sorted(unverified_offers), MAX_NAMES)
        yield f"{format_count(len(unverified_offers), 'price')} not verified: {names}"
    for status, reason in REASON_BY_UNFIT_STATUS.items():
        devices = [row.device for row in rows if row.status == status]
        if devices:
            yield f"{format_count(len(devices), 'device')}{reason}: {first_of(devices, MAX_NAMES)}"


def _format_cells(row: ChooseRow, is_paid: bool, shows_dtype: bool) -> dict[str, object]:
    """Return the cells of a device that fits.

    Args:
        row: the device.
        is_paid: whether the price of any device is known.
        shows_dtype: whether devices have several data types.
    """
    is_accumulated = row.accumulation is not None and row.accumulation > 1
    return row.to_dict() | {
        "shown_dtype": row.dtype if shows_dtype else None,
        "shown_microbatch": row.microbatch if is_accumulated else None,
        "train_h": None if row.train_s is None else row.train_s / HOUR_S,
        "energy": _describe_energy(row),
        "paid_by": format_offer(row.offer, row.price_date) if is_paid else None,
    }


def _describe_energy(row: ChooseRow) -> str | None:
    """Return the energy of a training, `3.877 kWh` or `at most 3.9 kWh`; None where unknown."""
    if row.energy_j is not None:
        return format_value("kwh", row.energy_j / KWH_J)
    if row.energy_max_j is not None:
        return f"at most {format_value('kwh', row.energy_max_j / KWH_J)}"
    return None
