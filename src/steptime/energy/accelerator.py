"""Latency and energy of a network on accelerators that papers measured layer by layer.

A first-order model after FODLAM (Sampson, Buckler; Cornell 2017): a layer that a table has is
looked up; any other layer costs its multiply-adds times the mean cost of a multiply-add in the
tables for layers of its kind. Layers run one after another. Layers that no chip runs cost nothing
and are listed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptime.core.errors import InputError, shorten, unknown
from steptime.energy.accelerators import Accelerator, MeasuredLayer
from steptime.energy.operations import figures
from steptime.energy.process import Factors, Process, scale_factors
from steptime.energy.request import ChipLayer, ChipRequest, plain_layer, plain_net


class ChipCost(NamedTuple):
    """Seconds and joules of one example, or of one multiply-add."""

    latency_s: float
    energy_j: float


@dataclass(frozen=True)
class Chip:
    """An accelerator, scaled to a process.

    Attributes:
        accelerator: the accelerator with its measured layers.
        scale: factors from its own process to the wanted one.
        ignores_batch: take the cost of a measured batch for that of one example, as FODLAM does.
    """

    accelerator: Accelerator
    scale: Factors
    ignores_batch: bool = False

    def cost(self, layer: MeasuredLayer) -> ChipCost:
        """Return the cost of a measured layer for one example."""
        examples = self.examples(layer)
        return ChipCost(
            layer.latency_s * self.scale.time / examples,
            layer.energy_j * self.scale.energy / examples,
        )

    def examples(self, layer: MeasuredLayer) -> int:
        """Return the number of examples over which a measured layer's cost is divided."""
        return 1 if self.ignores_batch else layer.batch

    def cost_per_mac(self, layers: Iterable[MeasuredLayer]) -> ChipCost:
        """Return total cost over total multiply-adds of measured layers that state theirs."""
        rows = list(layers)
        macs = sum(row.macs or 0 for row in rows)  # multiply-adds
        costs = [self.cost(row) for row in rows]
        latency_s = sum(cost.latency_s for cost in costs)
        energy_j = sum(cost.energy_j for cost in costs)
        return ChipCost(latency_s / macs, energy_j / macs)


@dataclass(frozen=True)
class LayerEstimate:
    """Cost of one layer for one example.

    `part` is the part of the network that its chip runs (`conv`, `fc`). The low and high ends are
    computed with the measured layers that cost least and most per multiply-add; they are None for
    a layer that was measured itself. Bytes of DRAM are None if the chip's table has none.
    """

    name: str
    part: str
    accelerator: str
    macs: int | None
    latency_s: float
    latency_low_s: float | None
    latency_high_s: float | None
    energy_j: float
    energy_low_j: float | None
    energy_high_j: float | None
    dram_bytes: float | None
    dram_low_bytes: float | None
    dram_high_bytes: float | None


DRAM_FIGURES = "horowitz-45nm"  # the figures that price DRAM
SUMMED_FIELDS = (
    "latency_s",
    "latency_low_s",
    "latency_high_s",
    "energy_j",
    "energy_low_j",
    "energy_high_j",
)
TOTAL = "total"


@dataclass(frozen=True)
class Estimate:
    """Costs of the layers that the chips run, and the layers that no chip runs.

    The times of `supposed_pruned` layers are scaled from measured layers with pruned weights.
    """

    parts: tuple[str, ...]
    layers: tuple[LayerEstimate, ...]
    not_covered: tuple[ChipLayer, ...]
    supposed_pruned: tuple[str, ...] = ()

    def sums(self) -> dict[str, dict[str, float | None]]:
        """Return the sums of each part and of all; a bound is None if a layer has none."""
        sums = {}
        for part in (*self.parts, TOTAL):
            layers = [layer for layer in self.layers if part in (TOTAL, layer.part)]
            sums[part] = {
                name: _sum_or_none(getattr(layer, name) for layer in layers)
                for name in SUMMED_FIELDS
            }
        return sums

    def dram(self) -> dict[str, float]:
        """Return the energy of DRAM for the layers whose bytes are known; it is in no other sum.

        The low end is the fewest bytes at the lowest energy per byte, the high end the most bytes
        at the highest. The middle is the tables' bytes at the mean of both energies.
        """
        layers = [layer for layer in self.layers if layer.dram_bytes is not None]
        low_j, high_j = figures(DRAM_FIGURES).dram_j_per_byte
        dram_bytes = sum(layer.dram_bytes or 0.0 for layer in layers)
        return {
            "dram_bytes": dram_bytes,
            "energy_j": dram_bytes * (low_j + high_j) / 2,  # at the mean energy of a byte
            "energy_low_j": sum(layer.dram_low_bytes or 0.0 for layer in layers) * low_j,
            "energy_high_j": sum(layer.dram_high_bytes or 0.0 for layer in layers) * high_j,
        }


def _sum_or_none(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def scale_chips(
    accelerators: Sequence[Accelerator],
    process: Process,
    scaling: str,
    ignores_batch: bool = False,
) -> tuple[Chip, ...]:
    """Return the accelerators as if they were made in another process.

    Args:
        accelerators: the accelerators.
        process: the process to scale to.
        scaling: a key of `SCALINGS`.
        ignores_batch: take the cost of a measured batch for that of one example.

    Raises:
        InputError: if the scaling is unknown or has no figures of a process.
    """
    chips = []
    for accelerator in accelerators:
        design_process = Process(accelerator.process_nm, voltage_v=accelerator.voltage_v)
        scale = scale_factors(scaling, design_process, process)
        chips.append(Chip(accelerator, scale, ignores_batch))
    return tuple(chips)


# FODLAM as published takes Eyeriss's rows, which are of 4 or 3 images, for those of one image, and
# scales EIE from 45 to 65 nm by the ideal rule.
FODLAM_PROCESS = Process(65)
FODLAM_SCALING = "dennard"


def published_chips(accelerators: Sequence[Accelerator]) -> tuple[Chip, ...]:
    """Return the chips as FODLAM takes them: at 65 nm, a batch for one image."""
    return scale_chips(accelerators, FODLAM_PROCESS, FODLAM_SCALING, ignores_batch=True)


def estimate(request: ChipRequest, chips: Sequence[Chip]) -> Estimate:
    """Return the cost of each layer of a request.

    Raises:
        InputError: if no table has the network or a layer of it, or a layer that is to be scaled
            does not state its multiply-adds.
    """
    parts = tuple(chip.accelerator.kind for chip in chips)
    if request.net:  # a network of the tables: each layer is looked up by its name
        rows = _find_network_rows(request.net, chips)
        layers = [_look_up_layer(layer, request.net, rows) for layer in request.layers]
        return Estimate(parts, tuple(layers), not_covered=())
    layers, not_covered, pruned_names = [], [], []
    for layer in request.layers:
        chip = _find_chip(layer, chips)
        if chip is None:  # it costs nothing, and is listed
            not_covered.append(layer)
            continue
        layers.append(_scale_layer(layer, chip))
        if chip.accelerator.pruned:  # its measured layers have pruned weights, this one may not
            pruned_names.append(layer.name)
    return Estimate(parts, tuple(layers), tuple(not_covered), supposed_pruned=tuple(pruned_names))


class _ChipRow(NamedTuple):
    """A row of a chip's table."""

    chip: Chip
    row: MeasuredLayer


def _find_network_rows(net: str, chips: Sequence[Chip]) -> dict[str, _ChipRow]:
    """Return the rows that the chips' tables have for a network, by plain layer name."""
    networks = [(chip, network) for chip in chips for network in chip.accelerator.networks]
    rows = {
        plain_layer(row.name): _ChipRow(chip, row)
        for chip, network in networks  # one chip may have the convolutions, another the rest
        if plain_net(network.name) == plain_net(net)
        for row in network.layers
    }
    if not rows:
        raise unknown("net", net, dict.fromkeys(network.name for _, network in networks))
    return rows


def _look_up_layer(layer: ChipLayer, net: str, rows: Mapping[str, _ChipRow]) -> LayerEstimate:
    """Return the measured cost of a layer of a table."""
    name = plain_layer(layer.name)
    if name not in rows:
        raise unknown("layer", layer.name, [row.name for _, row in rows.values()], net)
    chip, row = rows[name]
    cost = chip.cost(row)
    # Tables state the traffic of a batch, an estimate is of one example.
    dram_bytes = None if row.dram_bytes is None else row.dram_bytes / chip.examples(row)
    return LayerEstimate(
        name=row.name,
        part=chip.accelerator.kind,
        accelerator=chip.accelerator.name,
        macs=row.macs,
        latency_s=cost.latency_s,
        latency_low_s=None,  # a measured layer has no interval
        latency_high_s=None,
        energy_j=cost.energy_j,
        energy_low_j=None,
        energy_high_j=None,
        dram_bytes=dram_bytes,
        dram_low_bytes=dram_bytes,
        dram_high_bytes=dram_bytes,
    )


def _find_chip(layer: ChipLayer, chips: Sequence[Chip]) -> Chip | None:
    """Return the first chip that runs layers of this kind, or None."""
    for chip in chips:
        if layer.kind in (*chip.accelerator.op_kinds, *chip.accelerator.layer_types):
            return chip
    return None


class _BytesPerMac(NamedTuple):
    """Mean, lowest and highest amount per multiply-add of measured layers."""

    mean: float
    low: float
    high: float


def _scale_layer(layer: ChipLayer, chip: Chip) -> LayerEstimate:
    """Return the cost of a layer from its multiply-adds and the measured layers of the chip."""
    if layer.macs is None:
        raise InputError(f"layer {shorten(layer.name)}: 'macs' is missing")
    macs = layer.macs
    measured_rows = chip.accelerator.rows_with_macs
    # Low and high ends are those of the cheapest and of the dearest measured layer.
    mean = chip.cost_per_mac(measured_rows)
    row_costs = [chip.cost_per_mac([row]) for row in measured_rows]
    dram_bytes_per_mac = _dram_bytes_per_mac(chip)
    return LayerEstimate(
        name=layer.name,
        part=chip.accelerator.kind,
        accelerator=chip.accelerator.name,
        macs=macs,
        latency_s=macs * mean.latency_s,
        latency_low_s=macs * min(cost.latency_s for cost in row_costs),
        latency_high_s=macs * max(cost.latency_s for cost in row_costs),
        energy_j=macs * mean.energy_j,
        energy_low_j=macs * min(cost.energy_j for cost in row_costs),
        energy_high_j=macs * max(cost.energy_j for cost in row_costs),
        dram_bytes=None if dram_bytes_per_mac is None else macs * dram_bytes_per_mac.mean,
        dram_low_bytes=None if dram_bytes_per_mac is None else macs * dram_bytes_per_mac.low,
        dram_high_bytes=None if dram_bytes_per_mac is None else macs * dram_bytes_per_mac.high,
    )


def _dram_bytes_per_mac(chip: Chip) -> _BytesPerMac | None:
    """Return the DRAM traffic of the measured layers; None if the tables do not state it."""
    bytes_and_macs = [
        (row.dram_bytes / chip.examples(row), row.macs)
        for row in chip.accelerator.rows_with_macs
        if row.dram_bytes is not None and row.macs
    ]
    if not bytes_and_macs:  # the tables state no traffic
        return None
    ratios = [dram_bytes / macs for dram_bytes, macs in bytes_and_macs]
    total_bytes = sum(dram_bytes for dram_bytes, _ in bytes_and_macs)
    total_macs = sum(macs for _, macs in bytes_and_macs)
    return _BytesPerMac(mean=total_bytes / total_macs, low=min(ratios), high=max(ratios))
