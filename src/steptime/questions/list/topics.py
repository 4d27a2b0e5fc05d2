"""The answers of `list` for a topic, each with typed rows: models, devices, links and more."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from steptime.core.answer import Answer, AnswerRow
from steptime.core.tables.table import Column, Table
from steptime.core.tables.table import Row as TableRow
from steptime.core.units import format_seconds, format_si, format_value

MAX_PARAMETERS = 8
"""Hyperparameters of a model in the list, which fit a line or two."""
SOURCE = Column("source", "source")
Scalar = str | int | float | bool
FIGURE_UNITS = {"op_per_s": "op/s", "op_per_j": "op/J", "op_per_s_per_mm2": "op/s/mm2"}
FIGURE_NOUNS = {"examples_per_s": "examples/s", "examples_per_j": "examples/J"}


class TopicAnswer(Answer, frozen=True, kw_only=True):
    """The rows of a topic.

    Attributes:
        topic: the topic.
    """

    topic: str
    _show_sources: bool = False
    COLUMNS: ClassVar[tuple[Column, ...]] = ()
    CSV_COLUMNS: ClassVar[tuple[Column, ...]] = ()

    def tables(self) -> list[Table]:
        """Return one table of the rows."""
        return [self._table(self.topic, self._listed_rows())]

    def _table(self, title: str, rows: Sequence[AnswerRow]) -> Table:
        cells = [self._cells(row) for row in rows]
        columns = self.COLUMNS
        if self._show_sources and SOURCE not in columns and "source" in cells[0]:
            columns = (*columns, SOURCE)
        return Table(columns, cells, title, csv_columns=(*columns, *self.CSV_COLUMNS))

    def _listed_rows(self) -> Sequence[AnswerRow]:
        rows: Sequence[AnswerRow] = getattr(self, "rows")  # noqa: B009  # a field of each topic
        return rows

    def _cells(self, row: AnswerRow) -> TableRow:
        """Return the cells of a row, with texts in place of values that people do not read."""
        return row.to_dict()


class ModelRow(AnswerRow, frozen=True, kw_only=True):
    """A family of networks or a named network.

    Attributes:
        name: its name.
        parameters: its hyperparameters with their defaults; "..." follows from the others.
        source: where it is described.
    """

    name: str
    parameters: dict[str, Scalar]
    source: str


class ModelsAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The networks that have a name.

    Attributes:
        rows: the networks.
    """

    rows: tuple[ModelRow, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (Column("name"), Column("first", "parameters"))
    CSV_COLUMNS: ClassVar[tuple[Column, ...]] = (Column("parameters"),)

    def _cells(self, row: ModelRow) -> TableRow:  # type: ignore[override]  # each topic has rows of its own
        texts = [f"{name}={format_value('', value)}" for name, value in row.parameters.items()]
        if len(texts) > MAX_PARAMETERS:
            texts[MAX_PARAMETERS:] = [f"... (steptime list {row.name})"]
        return {**row.to_dict(), "first": ", ".join(texts)}


class DeviceRow(AnswerRow, frozen=True, kw_only=True):
    """A device; null is unknown.

    Attributes:
        name: its name.
        kind: cpu, gpu, tpu or asic.
        peak_flop_per_s: peaks of matrix products by data type.
        capacity_bytes: size of its memory.
        memory_bytes_per_s: bandwidth of its memory.
        multiprocessors: multiprocessors; compute units of AMD.
        cores: cores of a CPU.
        l2_bytes: size of its L2 cache.
        process_nm: process of its chip.
        clock_hz: clock of its cores, boosted.
        idle_w: power at idle.
        peak_w: power limit.
        only_by_name: whether only the full name selects the device, because its figures are from a
            single paper.
        details: further figures of the device's file; units are in the names.
        aliases: its short names.
        source: where its figures come from.
    """

    name: str
    kind: str
    peak_flop_per_s: dict[str, float]
    capacity_bytes: float | None
    memory_bytes_per_s: float
    multiprocessors: int | None
    cores: int | None
    l2_bytes: float | None
    process_nm: float | None
    clock_hz: float | None
    idle_w: float | None
    peak_w: float | None
    only_by_name: bool
    details: dict[str, Scalar]
    aliases: tuple[str, ...]
    source: str


class DevicesAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The devices.

    Attributes:
        rows: the devices.
    """

    rows: tuple[DeviceRow, ...]
    has_details: ClassVar[bool] = True
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("name"),
        Column("kind", is_spare=True),
        Column("capacity_bytes", "memory"),
        Column("memory_bytes_per_s", "bandwidth"),
        Column("float32_flop_per_s", "float32"),
        Column("half_flop_per_s", "16-bit"),
        Column("aliases", is_spare=True),
    )

    def tables(self) -> list[Table]:
        """Return the devices, and apart from them the figures of one paper."""
        devices = [row for row in self.rows if not row.only_by_name]
        paper_devices = [row for row in self.rows if row.only_by_name]
        tables = [self._table(self.topic, devices)] if devices else []
        if paper_devices:
            title = "figures of one paper, taken for no other device"
            # Shown with --details alone, unless nothing else is listed.
            tables.append(replace(self._table(title, paper_devices), is_detail=bool(devices)))
        return tables

    def _cells(self, row: DeviceRow) -> TableRow:  # type: ignore[override]  # each topic has rows of its own
        peak_by_dtype = row.peak_flop_per_s
        half_peak = peak_by_dtype.get("bfloat16", peak_by_dtype.get("float16"))
        return {
            **row.to_dict(),
            "float32_flop_per_s": peak_by_dtype.get("float32"),
            "half_flop_per_s": half_peak,
        }


class LinkRow(AnswerRow, frozen=True, kw_only=True):
    """A link.

    Attributes:
        name: its name.
        bytes_per_s: its rate in one direction.
        latency_s: its latency; null where nobody publishes it.
        source: where its figures come from.
    """

    name: str
    bytes_per_s: float
    latency_s: float | None
    source: str


class LinksAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The links.

    Attributes:
        rows: the links.
    """

    rows: tuple[LinkRow, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("name"),
        Column("bytes_per_s", "rate"),
        Column("latency_s", "latency"),
    )


class OptionRow(AnswerRow, frozen=True, kw_only=True):
    """An option of a method.

    Attributes:
        name: its name.
        meaning: what it changes.
    """

    name: str
    meaning: str


class MethodRow(AnswerRow, frozen=True, kw_only=True):
    """A cost model.

    Attributes:
        name: its name.
        description: one line on it.
        options: its options.
    """

    name: str
    description: str
    options: tuple[OptionRow, ...]


class MethodsAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The cost models.

    Attributes:
        rows: the cost models.
    """

    rows: tuple[MethodRow, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("name"),
        Column("description"),
        Column("options"),
    )

    def _cells(self, row: MethodRow) -> TableRow:  # type: ignore[override]  # each topic has rows of its own
        return {**row.to_dict(), "options": [option.name for option in row.options]}


class OpRow(AnswerRow, frozen=True, kw_only=True):
    """A kind of op.

    Attributes:
        kind: its name.
        has_gradient: whether its backward pass is known.
        source: where its count comes from.
    """

    kind: str
    has_gradient: bool
    source: str


class OpsAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The kinds of ops.

    Attributes:
        rows: the kinds.
    """

    rows: tuple[OpRow, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("kind"),
        Column("has_gradient", "gradient"),
        Column("source"),
    )


class QuantityRow(AnswerRow, frozen=True, kw_only=True):
    """A quantity of answers and records.

    Attributes:
        name: its key.
        unit: its unit.
        meaning: one line on it.
    """

    name: str
    unit: str
    meaning: str


class QuantitiesAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The quantities of answers and records.

    Attributes:
        rows: the quantities.
    """

    rows: tuple[QuantityRow, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (Column("name"), Column("unit"), Column("meaning"))


class FigureRow(AnswerRow, frozen=True, kw_only=True):
    """A number that a paper states for a whole chip.

    Attributes:
        workload: what ran.
        batch: examples that ran together; null where unknown.
        quantity: the quantity.
        value: its value in SI units.
    """

    workload: str
    batch: int | None
    quantity: str
    value: float


class AcceleratorRow(AnswerRow, frozen=True, kw_only=True):
    """A published chip; null is what its paper does not say.

    Attributes:
        name: its name.
        process_nm: its process.
        clock_hz: its clock.
        area_mm2: its area.
        power_w: its power.
        networks: the networks that were measured layer by layer.
        published: numbers of the whole chip.
        source: the paper.
    """

    name: str
    process_nm: int
    clock_hz: float | None
    area_mm2: float | None
    power_w: float | None
    networks: tuple[str, ...]
    published: tuple[FigureRow, ...]
    source: str


class AcceleratorsAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The published chips.

    Attributes:
        rows: the chips.
    """

    rows: tuple[AcceleratorRow, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("name"),
        Column("process_nm", "nm"),
        Column("clock_hz", "clock"),
        Column("area_mm2", "mm2"),
        Column("power_w", "power"),
        Column("networks", "tables"),
        Column("published", is_spare=True),
    )

    def _cells(self, row: AcceleratorRow) -> TableRow:  # type: ignore[override]  # each topic has rows of its own
        texts = [f"{figure.workload} {_describe_figure(figure)}" for figure in row.published]
        return {**row.to_dict(), "published": ", ".join(texts)}


PJ_PER_J = 1e12


def _describe_figure(figure: FigureRow) -> str:
    """Return the number of a paper in the unit of its quantity: `102 Gop/s`."""
    if figure.quantity in FIGURE_UNITS:
        return format_si(figure.value, FIGURE_UNITS[figure.quantity])
    if figure.quantity in FIGURE_NOUNS:
        return f"{figure.value:,.6g} {FIGURE_NOUNS[figure.quantity]}"
    if figure.quantity == "j_per_op":
        return f"{figure.value * PJ_PER_J:.4g} pJ/op"
    return format_seconds(figure.value)  # a latency


class ListedQuestion(AnswerRow, frozen=True, kw_only=True):
    """A question.

    Attributes:
        name: its command.
        panel: its heading in the help.
        description: one line on it.
        schema: its parameters and its answer, in JSON schema.
    """

    name: str
    panel: str
    description: str
    schema: Mapping[str, Any]


class QuestionsAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The questions.

    Attributes:
        rows: the questions.
    """

    rows: tuple[ListedQuestion, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("name"),
        Column("panel", is_spare=True),
        Column("description"),
    )
