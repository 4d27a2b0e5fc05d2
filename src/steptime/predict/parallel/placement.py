"""Where the layers of a network run, what they fetch from other devices, and how long they take.

A layer `name@k` of a model-parallel block runs on device k, every other one on device 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError
from steptime.core.graph import Layer
from steptime.core.hardware import GB
from steptime.paleo.layers import layers_of
from steptime.paleo.rules import FLOAT_BYTES
from steptime.predict.estimate import GIB, RowSeconds, rates
from steptime.predict.step_model import StepModel
from steptime.predict.work import Overlap, Seconds

FETCH_GROUP = 4  # devices that reach each other at the full rate
MOST_HALVINGS = 60  # of a link's rate by Paleo, device after device
Mode = Literal["model", "hybrid"]


@dataclass(frozen=True)
class Part:
    """Seconds of one direction of a layer: with all its parts in turn, and overlapped.

    `bound_s` differs from `total_s` only where a method overlaps the layer's parts (`layer`).
    """

    compute_s: float
    memory_s: float
    total_s: float
    bound_s: float


@dataclass(frozen=True)
class Node:
    """A layer with its times; `memory_s` of its parts includes `fetch_s`.

    `flop` is of its forward pass, `kernels` are numbers by part of the step.
    """

    layer: Layer
    fetch_s: float
    forward: Part
    backward: Part
    update_s: float
    flop: float
    kernels: tuple[int, int, int]


def device_of(layer: Layer) -> int:
    """Give the number of the device that a layer runs on."""
    return layer.split or 0


def nodes(model: StepModel, batch: int, mode: Mode) -> tuple[Node, ...]:
    """Give the layers of a step on `batch` examples, with what each fetches, in their order.

    In mode `model` Paleo fetches at the rate of the device's memory.
    """
    layers = layers_of(model.graph(batch))
    fetched = _fetches(model, layers, mode)
    rows: dict[str, list[RowSeconds]] = {layer.name: [] for layer in layers}
    for row in model.estimate(batch).rows:
        rows[layer_name(row.row.name, rows, layers[-1].name)].append(row)
    overlap = model.settings.overlap
    return tuple(_node(layer, rows[layer.name], fetched[layer.name], overlap) for layer in layers)


def layer_name(op: str, layers: Mapping[str, object], last: str) -> str:
    """Give the layer that an op `layer/...` belongs to; what follows the network is the last's."""
    name = op
    while name not in layers:
        name, slash, _ = name.rpartition("/")
        if not slash:
            return last
    return name


def crosses_groups(layers: Sequence[Layer]) -> bool:
    """Whether a layer with several parents fetches from another group of devices."""
    by_name = {layer.name: layer for layer in layers}
    return any(
        _apart(layer, by_name[name])
        for layer in layers
        if len(layer.parents) > 1
        for name in layer.parents
        if name in by_name
    )


def _apart(one: Layer, other: Layer) -> bool:
    return device_of(one) // FETCH_GROUP != device_of(other) // FETCH_GROUP


def _node(layer: Layer, rows: Sequence[RowSeconds], fetch_s: float, overlap: Overlap) -> Node:
    return Node(
        layer,
        fetch_s,
        _part([row.forward for row in rows], fetch_s, overlap),
        _part([row.backward for row in rows], fetch_s, overlap),
        sum(row.update_s for row in rows),
        sum(row.flop for row in rows),
        (
            sum(len(row.row.forward) for row in rows),
            sum(len(row.row.backward) for row in rows),
            sum(len(row.row.update) for row in rows),
        ),
    )


def _part(times: Sequence[Seconds], fetch_s: float, overlap: Overlap) -> Part:
    compute = sum(time.compute_s for time in times)
    memory = sum(time.memory_s for time in times) + fetch_s
    if overlap == "layer":
        return Part(compute, memory, compute + memory, max(compute, memory))
    total = sum(time.total_s for time in times) + fetch_s
    return Part(compute, memory, total, total)


def _fetches(model: StepModel, layers: Sequence[Layer], mode: Mode) -> dict[str, float]:
    """Give the seconds in which each layer fetches what it reads from other devices.

    Of one parent the layer's input, of several each parent's output, one after the other. Between
    groups of `FETCH_GROUP` devices the rate is half; Paleo halves it once more for each such parent
    and not at all for a single one.
    """
    settings = model.settings
    element = SIZE_BYTES[precision(model.workload.dtype).compute] if settings.dtype else FLOAT_BYTES
    cycle = rates(model.device, model.workload.dtype, settings).cycle_s
    full, latency = model.device.memory_bytes_per_s, 0.0
    link = None if model.fabric is None else model.fabric.between
    if model.as_paleo and mode == "model":
        link = None
    if link is not None:
        full, latency = link.bytes_per_s, link.latency_s or 0.0
    full *= settings.ppp_comm * (1.0 if settings.gigabyte else GIB / GB)

    def remote(layer: Layer, parent: Layer) -> bool:
        if model.as_paleo:  # the text "0" of a split is not the number 0 of other layers
            return layer.split != parent.split
        return device_of(layer) != device_of(parent)

    def fetch(layer: Layer, parents: Sequence[Layer]) -> float:
        total, rate, several, halvings = 0.0, full, len(parents) > 1, 0
        for parent in parents:
            if not remote(layer, parent):
                continue
            halves = link is not None and _apart(layer, parent) and (several or not model.as_paleo)
            halvings += halves
            if model.as_paleo and halvings > MOST_HALVINGS:
                raise InputError(
                    f"paleo: layer '{layer.name}' fetches from over {MOST_HALVINGS} devices of "
                    "other groups; each halves the link's rate in Paleo, until nothing is left"
                )
            rate = (rate if model.as_paleo else full) / (2 if halves else 1)
            shape = parent.outputs if several else layer.inputs
            total += max(cycle, latency + element * prod(shape) / rate)
        return total

    by_name = {layer.name: layer for layer in layers}
    found = {}
    for layer in layers:
        parents = [by_name[name] for name in layer.parents if name in by_name]
        found[layer.name] = fetch(layer, parents)
    return found
