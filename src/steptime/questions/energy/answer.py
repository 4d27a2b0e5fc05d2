"""The answers of `energy`: an estimate, the form of FODLAM, and a diagnosis of the tables."""

from steptime.core.answer import Answer, AnswerRow
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_value
from steptime.energy.diagnosis import AveragePerMac, CrossPrediction, LayerPerMac, RivalPlatform

COST_COLUMNS = (
    Column("latency_s", "latency"),
    Column("latency", "low..high"),
    Column("energy_j", "energy"),
    Column("energy", "low..high"),
)
LAYER_COLUMNS = (
    Column("accelerator"),
    Column("net"),
    Column("layer"),
    Column("macs", "MAC"),
    Column("latency_s_per_mac", "time"),
    Column("energy_j_per_mac", "energy"),
)
CROSS_COLUMNS = (
    Column("accelerator"),
    Column("net"),
    Column("latency_s", "latency"),
    Column("predicted_latency_s", "predicted"),
    Column("latency_ratio", "ratio", form=".3f"),
    Column("energy_j", "energy"),
    Column("predicted_energy_j", "predicted"),
    Column("energy_ratio", "ratio", form=".3f"),
)
RIVAL_COLUMNS = (
    Column("accelerator"),
    Column("platform"),
    Column("weights"),
    Column("batch"),
    Column("latency_ratio", "latency", form=".4g"),
    Column("energy_ratio", "energy", form=",.0f"),
)


class CostSums(AnswerRow, frozen=True, kw_only=True):
    """Latency and energy of one example; low and high ends are null for a measured layer.

    Attributes:
        latency_s: seconds.
        latency_low_s: lower end of the seconds.
        latency_high_s: upper end of the seconds.
        energy_j: joules.
        energy_low_j: lower end of the joules.
        energy_high_j: upper end of the joules.
    """

    latency_s: float
    latency_low_s: float | None
    latency_high_s: float | None
    energy_j: float
    energy_low_j: float | None
    energy_high_j: float | None


class LayerEnergy(CostSums, frozen=True, kw_only=True):
    """Latency and energy of one op for one example.

    Attributes:
        name: the op or layer.
        part: conv or fc: the part of the network that the accelerator runs.
        accelerator: the accelerator.
        macs: multiply-adds of one example; null where the table lacks them.
        dram_bytes: bytes of DRAM; null where the accelerator's table has none.
        dram_low_bytes: lower end of the bytes.
        dram_high_bytes: upper end of the bytes.
    """

    name: str
    part: str
    accelerator: str
    macs: int | None
    dram_bytes: float | None
    dram_low_bytes: float | None
    dram_high_bytes: float | None


class UncoveredOp(AnswerRow, frozen=True, kw_only=True):
    """An op that no accelerator runs.

    Attributes:
        name: the op or layer.
        kind: its kind.
        macs: its multiply-adds; null where unknown.
    """

    name: str
    kind: str
    macs: int | None


class OpEnergyRow(AnswerRow, frozen=True, kw_only=True):
    """The energy of an op, estimated from its operations.

    Attributes:
        name: the op.
        energy_j: joules.
    """

    name: str
    energy_j: float


class EstimatedEnergy(AnswerRow, frozen=True, kw_only=True):
    """The estimated energy of the ops that no accelerator runs; no sum includes it.

    Attributes:
        dtype: data type of the arithmetic.
        hierarchy: the memory hierarchy.
        energy_j: joules.
        energy_low_j: joules with DRAM at its least energy a byte.
        energy_high_j: joules with DRAM at its greatest energy a byte.
        rows: the ops.
    """

    dtype: str
    hierarchy: str
    energy_j: float
    energy_low_j: float
    energy_high_j: float
    rows: tuple[OpEnergyRow, ...]


class DramEnergy(AnswerRow, frozen=True, kw_only=True):
    """The energy of DRAM for the layers whose bytes are known; no sum includes it.

    Attributes:
        dram_bytes: bytes of DRAM.
        energy_j: joules.
        energy_low_j: joules of the fewest bytes at the least energy a byte.
        energy_high_j: joules of the most bytes at the greatest energy a byte.
    """

    dram_bytes: float
    energy_j: float
    energy_low_j: float
    energy_high_j: float


class DiagnosisAnswer(Answer, frozen=True, kw_only=True):
    """Cost per multiply-add in the tables of accelerators, and how well they predict each other.

    Attributes:
        layers: the measured layers.
        averages: costs that unmeasured layers take.
        cross: networks of a table, each predicted from the others.
        rivals: other platforms of the papers.
    """

    layers: tuple[LayerPerMac, ...]
    averages: tuple[AveragePerMac, ...]
    cross: tuple[CrossPrediction, ...]
    rivals: tuple[RivalPlatform, ...]

    def tables(self) -> list[Table]:
        """Return the layers with the averages, the networks, and the other platforms."""
        # An empty cell instead of 0: the multiply-adds are not known.
        layer_rows = [row.to_dict() | {"macs": row.macs or None} for row in self.layers]
        average_rows = [
            {**average.to_dict(), "net": "all", "layer": "average", "macs": None}
            for average in self.averages
        ]
        title = "other platforms of the papers, times the accelerator (geometric means of layers)"
        tables = [
            Table(
                LAYER_COLUMNS,
                [*layer_rows, *average_rows],
                "cost a multiply-add of each measured layer",
            ),
            Table(
                CROSS_COLUMNS,
                [row.to_dict() for row in self.cross],
                "each network from the others of its table",
            ),
            Table(RIVAL_COLUMNS, [row.to_dict() for row in self.rivals], title),
        ]
        return [table for table in tables if table.rows]


class FodlamSums(AnswerRow, frozen=True, kw_only=True):
    """Energy and latency of a part of a network.

    Attributes:
        energy: joules.
        latency: seconds.
    """

    energy: float
    latency: float


class FodlamAnswer(Answer, frozen=True, kw_only=True):
    """Energy and latency of one example, in the form that FODLAM prints.

    Attributes:
        conv: the convolutions.
        fc: the fully connected layers.
        total: all layers.
    """

    conv: FodlamSums
    fc: FodlamSums
    total: FodlamSums

    @property
    def headline(self) -> tuple[str, ...]:
        """The JSON document, which people see, too."""
        return tuple(self.to_json().splitlines())


class EnergyAnswer(Answer, frozen=True, kw_only=True):
    """Latency and energy of one example on published accelerators.

    Attributes:
        model: the network.
        method: the method, accelerator.
        accelerators: the accelerators.
        process: the manufacturing process to which they are scaled.
        scaling: the rule of scaling.
        sources: the papers, one per accelerator.
        conv: sums of the convolutions; null where no accelerator runs them.
        fc: sums of the fully connected layers; null where no accelerator runs them.
        total: sums of all layers.
        not_covered: ops that no accelerator runs.
        supposed_pruned: layers whose times suppose pruned weights.
        rows: the ops that the accelerators run.
        estimated: energy of the other ops; null for a configuration.
        dram: energy of DRAM; null without --dram.
        diagnosis: costs in the tables; null without --diagnose.
        notes: remarks.
    """

    model: str
    method: str
    accelerators: tuple[str, ...]
    process: str
    scaling: str
    sources: tuple[str, ...]
    conv: CostSums | None
    fc: CostSums | None
    total: CostSums
    not_covered: tuple[UncoveredOp, ...]
    supposed_pruned: tuple[str, ...]
    rows: tuple[LayerEnergy, ...]
    estimated: EstimatedEnergy | None
    dram: DramEnergy | None
    diagnosis: DiagnosisAnswer | None
    notes: tuple[str, ...]
    _by_op: bool = False

    def tables(self) -> list[Table]:
        """Return the sums; with --by-op the ops, with --diagnose the tables of the diagnosis."""
        costs_by_part: dict[str, CostSums | DramEnergy | EstimatedEnergy | None] = {
            "conv": self.conv,
            "fc": self.fc,
            "total": self.total,
            "DRAM, not in the total": self.dram,
        }
        has_estimated_ops = self.estimated is not None and len(self.estimated.rows) > 0
        if has_estimated_ops:
            costs_by_part["other ops, estimated with DRAM"] = self.estimated
        rows = [
            _make_cost_row(name, costs)
            for name, costs in costs_by_part.items()
            if costs is not None
        ]
        chips = "+".join(self.accelerators)
        title = f"{self.model}, one example on {chips}, {self.process} ({self.scaling})"
        tables = [Table((Column("name", ""), *COST_COLUMNS), rows, title)]
        if self._by_op:
            ops = [_make_cost_row(op.name, op) for op in self.rows]
            tables.append(Table((Column("name", "op"), *COST_COLUMNS), ops))
        return tables if self.diagnosis is None else [*tables, *self.diagnosis.tables()]


def _make_cost_row(
    name: str, costs: CostSums | DramEnergy | EstimatedEnergy
) -> dict[str, str | float | None]:
    """Return a row of a table; DRAM and estimates have no latency."""
    latency_s = None
    latency_range = None
    if isinstance(costs, CostSums):
        latency_s = costs.latency_s
        latency_range = _format_range("s", costs.latency_low_s, costs.latency_high_s)
    return {
        "name": name,
        "latency_s": latency_s,
        "latency": latency_range,
        "energy_j": costs.energy_j,
        "energy": _format_range("j", costs.energy_low_j, costs.energy_high_j),
    }


def _format_range(unit: str, low: float | None, high: float | None) -> str | None:
    """Return an interval as text, `23.02 ms .. 192 ms`; None where it is unknown."""
    if low is None or high is None:
        return None
    return f"{format_value(unit, low)} .. {format_value(unit, high)}"
