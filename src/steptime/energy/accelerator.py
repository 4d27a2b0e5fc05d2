"""Latency and energy of a network on accelerators that papers measured layer by layer.

First order, after FODLAM (Sampson, Buckler; Cornell 2017): a layer of the tables is looked up, any
other costs its multiply-adds times the tables' cost a multiply-add of that kind. Layers run one
after another; what the chips do not run costs nothing and is named.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import NamedTuple

from steptime.core.errors import InputError, shorten, unknown
from steptime.energy.accelerators import Accelerator, MeasuredLayer
from steptime.energy.operations import figures
from steptime.energy.process import Factors, Process, factors
from steptime.energy.request import ChipLayer, ChipRequest, plain_layer, plain_net


class ChipCost(NamedTuple):
    """Seconds and joules of one example, or of one multiply-add."""

    latency_s: float
    energy_j: float


@dataclass(frozen=True)
class Chip:
    """An accelerator at a process; `whole_batch` takes its rows for those of one example."""

    accelerator: Accelerator
    scale: Factors
    whole_batch: bool = False

    def cost(self, layer: MeasuredLayer) -> ChipCost:
        """Return the cost of a measured layer for one example."""
        examples = self.examples(layer)
        return ChipCost(
            layer.latency_s * self.scale.time / examples,
            layer.energy_j * self.scale.energy / examples,
        )

    def examples(self, layer: MeasuredLayer) -> int:
        """Return how many examples a measured layer's row is taken for."""
        return 1 if self.whole_batch else layer.batch

    def cost_per_mac(self, layers: Iterable[MeasuredLayer]) -> ChipCost:
        """Return total cost over total multiply-adds of measured layers that state theirs."""
        rows = list(layers)
        macs = sum(row.macs or 0 for row in rows)
        costs = [self.cost(row) for row in rows]
        return ChipCost(
            sum(one.latency_s for one in costs) / macs, sum(one.energy_j for one in costs) / macs
        )


@dataclass(frozen=True)
class LayerEstimate:
    """Cost of one layer for one example.

    `part` is what of the network it is (`conv`, `fc`). Low and high are of the cheapest and the
    dearest measured layer a multiply-add; None for a layer that was measured itself. Bytes of DRAM
    are None where the chip's table has none.
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


DRAM = "horowitz-45nm"  # whose figures of energy are taken for DRAM
SUMMED = (
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
    """The layers that the chips run, and those that no chip runs.

    The times of `supposed_pruned` layers are scaled from layers with pruned weights.
    """

    parts: tuple[str, ...]
    layers: tuple[LayerEstimate, ...]
    not_covered: tuple[ChipLayer, ...]
    supposed_pruned: tuple[str, ...] = ()

    def sums(self) -> dict[str, dict[str, float | None]]:
        """Return the sums of each part and of all; a bound is None if a layer has none."""
        return {
            part: {
                name: _sum(getattr(one, name) for one in self.layers if part in (TOTAL, one.part))
                for name in SUMMED
            }
            for part in (*self.parts, TOTAL)
        }

    def dram(self) -> dict[str, float]:
        """Return the energy of DRAM, in no other sum, for the layers whose bytes are known.

        Low and high are the fewest bytes at the least energy a byte, and the most at the most; in
        between stand the tables' bytes at the mean of both energies.
        """
        known = [one for one in self.layers if one.dram_bytes is not None]
        low, high = figures(DRAM).dram_j_per_byte
        moved = sum(one.dram_bytes or 0.0 for one in known)
        return {
            "dram_bytes": moved,
            "energy_j": moved * (low + high) / 2,
            "energy_low_j": sum(one.dram_low_bytes or 0.0 for one in known) * low,
            "energy_high_j": sum(one.dram_high_bytes or 0.0 for one in known) * high,
        }


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def chips_at(
    accelerators: Sequence[Accelerator],
    process: Process,
    scaling: str,
    whole_batch: bool = False,
) -> tuple[Chip, ...]:
    """Return the accelerators as if they were made in another process.

    Raises `InputError` for a scaling that is unknown or does not know a process.
    """
    return tuple(
        Chip(
            one,
            factors(scaling, Process(one.process_nm, voltage_v=one.voltage_v), process),
            whole_batch,
        )
        for one in accelerators
    )


# FODLAM as published: Eyeriss's rows, which are of 4 or 3 images, taken for those of one, and EIE
# brought from 45 to 65 nm by ideal scaling
PROCESS = Process(65)
SCALING = "dennard"


def published_chips(accelerators: Sequence[Accelerator]) -> tuple[Chip, ...]:
    """Return the chips as FODLAM takes them: at 65 nm, a batch for one image."""
    return chips_at(accelerators, PROCESS, SCALING, whole_batch=True)


def estimate(request: ChipRequest, chips: Sequence[Chip]) -> Estimate:
    """Return the cost of each layer of a request.

    Raises `InputError` for a network or a layer that no table has, and for a layer without
    multiply-adds.
    """
    layers, not_covered, pruned = [], [], []
    rows = _table(request.net, chips) if request.net else {}
    for asked in request.layers:
        if request.net:
            if plain_layer(asked.name) not in rows:
                known = [row.name for _, row in rows.values()]
                raise unknown("layer", asked.name, known, request.net)
            layers.append(_looked_up(*rows[plain_layer(asked.name)]))
            continue
        chip = _chip_for(asked, chips)
        if chip is None:
            not_covered.append(asked)
        else:
            layers.append(_scaled(asked, chip))
            pruned += [asked.name] if chip.accelerator.pruned else []
    parts = tuple(chip.accelerator.kind for chip in chips)
    return Estimate(parts, tuple(layers), tuple(not_covered), tuple(pruned))


def _table(net: str, chips: Sequence[Chip]) -> dict[str, tuple[Chip, MeasuredLayer]]:
    """Return the rows that the chips' tables have for a network."""
    found = {
        plain_layer(row.name): (chip, row)
        for chip in chips
        for network in chip.accelerator.networks
        if plain_net(network.name) == plain_net(net)
        for row in network.layers
    }
    if not found:
        names = {network.name: 0 for chip in chips for network in chip.accelerator.networks}
        raise unknown("net", net, names)
    return found


def _looked_up(chip: Chip, row: MeasuredLayer) -> LayerEstimate:
    cost = chip.cost(row)
    dram = None if row.dram_bytes is None else row.dram_bytes / chip.examples(row)
    one, accelerator = chip.accelerator.kind, chip.accelerator.name
    latency, energy = (cost.latency_s, None, None), (cost.energy_j, None, None)
    return LayerEstimate(row.name, one, accelerator, row.macs, *latency, *energy, *((dram,) * 3))


def _chip_for(asked: ChipLayer, chips: Sequence[Chip]) -> Chip | None:
    for chip in chips:
        if asked.kind in (*chip.accelerator.op_kinds, *chip.accelerator.layer_types):
            return chip
    return None


def _scaled(asked: ChipLayer, chip: Chip) -> LayerEstimate:
    if asked.macs is None:
        raise InputError(f"layer {shorten(asked.name)}: 'macs' is missing")
    macs, rows = asked.macs, chip.accelerator.scalable
    costs = zip(chip.cost_per_mac(rows), *(chip.cost_per_mac([row]) for row in rows), strict=True)
    latency, energy = ((macs * mean, macs * min(each), macs * max(each)) for mean, *each in costs)
    dram = _dram_bytes_per_mac(chip)
    moved = (None, None, None) if dram is None else tuple(macs * one for one in dram)
    part, name = chip.accelerator.kind, chip.accelerator.name
    return LayerEstimate(asked.name, part, name, macs, *latency, *energy, *moved)


def _dram_bytes_per_mac(chip: Chip) -> tuple[float, float, float] | None:
    """Return total over total, the least and the most of the measured layers, or None."""
    rows = [
        (row.dram_bytes / chip.examples(row), row.macs)
        for row in chip.accelerator.scalable
        if row.dram_bytes is not None and row.macs
    ]
    if not rows:
        return None
    each = [moved / macs for moved, macs in rows]
    return sum(moved for moved, _ in rows) / sum(macs for _, macs in rows), min(each), max(each)


def diagnosis(chips: Sequence[Chip]) -> dict[str, list[dict[str, object]]]:
    """Return `layers`, the cost per multiply-add of each of them, `averages`, `cross`, `rivals`.

    `averages` are the costs that layers take which were not measured. `cross` predicts each network
    of a table from the other networks of that table; `ratio` is predicted over measured. `rivals`
    are the platforms that the paper compares with, as published.
    """
    found: dict[str, list[dict[str, object]]]
    found = {"layers": [], "averages": [], "cross": [], "rivals": []}
    for chip in chips:
        every, name = chip.accelerator.scalable, {"accelerator": chip.accelerator.name}
        if every:
            found["averages"].append({**name, **_per_mac(chip, every)})
        for net in chip.accelerator.networks:
            rows = [row for row in net.layers if row.macs is not None]
            others = [row for row in every if row not in rows]
            place = {**name, "net": net.name}
            for row in rows:
                measured = {"layer": row.name, "macs": row.macs}
                found["layers"].append({**place, **measured, **_per_mac(chip, [row])})
            if rows and others:
                found["cross"].append({**place, **_crossed(chip, rows, others)})
        found["rivals"] += _rivals(chip.accelerator)
    return found


def _per_mac(chip: Chip, rows: Sequence[MeasuredLayer]) -> dict[str, float]:
    one = chip.cost_per_mac(rows)
    return {"latency_s_per_mac": one.latency_s, "energy_j_per_mac": one.energy_j}


def _rivals(accelerator: Accelerator) -> Iterator[dict[str, object]]:
    """Return how many times slower, and of how much more energy, each rival is.

    Geometric means over the layers: 1 s and 4 s in place of 1 s are 2 times slower.
    """
    rows = [row for net in accelerator.networks for row in net.layers]
    for rival in accelerator.rivals:
        slower = [s / row.latency_s for s, row in zip(rival.latencies_s, rows, strict=True)]
        power = [rival.power_w / row.power_w for row in rows]
        yield {
            "accelerator": accelerator.name,
            "platform": rival.name,
            "weights": rival.weights,
            "batch": rival.batch,
            "latency_ratio": geometric_mean(slower),
            "energy_ratio": geometric_mean(slower) * geometric_mean(power),
        }


def _crossed(
    chip: Chip, rows: Sequence[MeasuredLayer], others: Sequence[MeasuredLayer]
) -> dict[str, float]:
    macs = sum(row.macs or 0 for row in rows)
    costs = zip(ChipCost._fields, chip.cost_per_mac(rows), chip.cost_per_mac(others), strict=True)
    found: dict[str, float] = {}
    for name, own, predicted in costs:
        found |= {name: own * macs, f"predicted_{name}": predicted * macs}
        found[f"{name.rpartition('_')[0]}_ratio"] = predicted / own
    return found
