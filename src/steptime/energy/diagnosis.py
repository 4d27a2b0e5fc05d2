"""How well the tables of accelerators predict each other: costs per multiply-add, and rivals."""

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from steptime.core.answer import AnswerRow
from steptime.energy.accelerator import Chip
from steptime.energy.accelerators import Accelerator, MeasuredLayer, MeasuredNetwork


class LayerPerMac(AnswerRow, frozen=True, kw_only=True):
    """Cost per multiply-add of a measured layer.

    Attributes:
        accelerator: the accelerator.
        net: the network.
        layer: the layer.
        macs: multiply-adds of one example.
        latency_s_per_mac: seconds.
        energy_j_per_mac: joules.
    """

    accelerator: str
    net: str
    layer: str
    macs: int | None
    latency_s_per_mac: float
    energy_j_per_mac: float


class AveragePerMac(AnswerRow, frozen=True, kw_only=True):
    """Cost per multiply-add that unmeasured layers take.

    Attributes:
        accelerator: the accelerator.
        latency_s_per_mac: seconds.
        energy_j_per_mac: joules.
    """

    accelerator: str
    latency_s_per_mac: float
    energy_j_per_mac: float


class CrossPrediction(AnswerRow, frozen=True, kw_only=True):
    """A network of a table, predicted from the other networks of that table.

    Attributes:
        accelerator: the accelerator.
        net: the network.
        latency_s: measured seconds.
        predicted_latency_s: predicted seconds.
        latency_ratio: predicted over measured.
        energy_j: measured joules.
        predicted_energy_j: predicted joules.
        energy_ratio: predicted over measured.
    """

    accelerator: str
    net: str
    latency_s: float
    predicted_latency_s: float
    latency_ratio: float
    energy_j: float
    predicted_energy_j: float
    energy_ratio: float


class RivalPlatform(AnswerRow, frozen=True, kw_only=True):
    """Another platform of a paper; ratios are geometric means over the layers.

    Attributes:
        accelerator: the accelerator of the paper.
        platform: the other platform.
        weights: `dense`, or `sparse` if the weights are pruned.
        batch: examples that run together.
        latency_ratio: latency of the other platform over that of the accelerator.
        energy_ratio: energy of the other platform over that of the accelerator.
    """

    accelerator: str
    platform: str
    weights: str
    batch: int
    latency_ratio: float
    energy_ratio: float


def layers_per_mac(chip: Chip) -> Iterator[LayerPerMac]:
    """Yield the cost per multiply-add of each measured layer that states its multiply-adds."""
    for network in chip.accelerator.networks:
        for row in _list_rows_with_macs(network):
            cost = chip.cost_per_mac([row])
            yield LayerPerMac(
                accelerator=chip.accelerator.name,
                net=network.name,
                layer=row.name,
                macs=row.macs,
                latency_s_per_mac=cost.latency_s,
                energy_j_per_mac=cost.energy_j,
            )


def average_per_mac(chips: Sequence[Chip]) -> Iterator[AveragePerMac]:
    """Yield, per chip, the cost per multiply-add that unmeasured layers take."""
    for chip in chips:
        if rows := chip.accelerator.rows_with_macs:
            cost = chip.cost_per_mac(rows)
            yield AveragePerMac(
                accelerator=chip.accelerator.name,
                latency_s_per_mac=cost.latency_s,
                energy_j_per_mac=cost.energy_j,
            )


def cross_predictions(chip: Chip) -> Iterator[CrossPrediction]:
    """Yield each network of a table with its prediction from the other networks of that table."""
    for network in chip.accelerator.networks:
        rows = _list_rows_with_macs(network)
        # Leave-one-out: the other networks of the table predict this one.
        training_rows = [row for row in chip.accelerator.rows_with_macs if row not in rows]
        if not rows or not training_rows:  # nothing to predict, or to predict from
            continue
        macs = sum(row.macs or 0 for row in rows)
        measured = chip.cost_per_mac(rows)
        predicted = chip.cost_per_mac(training_rows)
        yield CrossPrediction(
            accelerator=chip.accelerator.name,
            net=network.name,
            latency_s=measured.latency_s * macs,
            predicted_latency_s=predicted.latency_s * macs,
            latency_ratio=predicted.latency_s / measured.latency_s,
            energy_j=measured.energy_j * macs,
            predicted_energy_j=predicted.energy_j * macs,
            energy_ratio=predicted.energy_j / measured.energy_j,
        )


def rival_platforms(accelerator: Accelerator) -> Iterator[RivalPlatform]:
    """Yield the platforms that the accelerator's paper compares with, as published.

    Ratios are geometric means over the layers: 1 s and 4 s in place of 1 s are 2 times slower.
    """
    # The paper timed each rival on these layers, in this order.
    rows = [row for network in accelerator.networks for row in network.layers]
    for rival in accelerator.rivals:
        time_ratios = [
            latency_s / row.latency_s
            for latency_s, row in zip(rival.latencies_s, rows, strict=True)
        ]
        power_ratios = [rival.power_w / row.power_w for row in rows]
        latency_ratio = geometric_mean(time_ratios)
        yield RivalPlatform(
            accelerator=accelerator.name,
            platform=rival.name,
            weights=rival.weights,
            batch=rival.batch,
            latency_ratio=latency_ratio,
            energy_ratio=latency_ratio * geometric_mean(power_ratios),  # energy = power x time
        )


def _list_rows_with_macs(network: MeasuredNetwork) -> list[MeasuredLayer]:
    return [row for row in network.layers if row.macs is not None]
