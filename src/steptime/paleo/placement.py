"""Where the layers of a network run, what they fetch from other devices, and how long they take.

A layer `name@k` of a model-parallel block runs on device k, every other one on device 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError
from steptime.hardware.device import GB, GIB
from steptime.paleo.layers import Layer, layers_of
from steptime.paleo.method import without_latency
from steptime.paleo.rules import FLOAT_BYTES, settings_of
from steptime.prediction.kernel import Interval
from steptime.prediction.schedule import RowTime, total
from steptime.prediction.step_model import StepModel

FETCH_GROUP = 4  # devices that reach each other at the full rate
MOST_HALVINGS = 60  # of a link's rate by Paleo, device after device


@dataclass(frozen=True)
class PassTimes:
    """Seconds of one direction of a layer: with all its parts in turn, and overlapped.

    `bound_s` differs from `total_s` only where a method overlaps the layer's parts (`layer`).
    """

    compute_s: float
    memory_s: float
    total_s: float
    bound_s: float


@dataclass(frozen=True)
class LayerTimes:
    """A layer with its times; `memory_s` of its parts includes `fetch_s`.

    `flop` is of its forward pass, `kernels` are numbers by part of the step.
    """

    layer: Layer
    fetch_s: float
    forward: PassTimes
    backward: PassTimes
    update_s: float
    flop: float
    kernels: tuple[int, int, int]


def as_published(model: StepModel) -> bool:
    """Whether replicas and splits are those of the original, faults and all."""
    return model.method.links is without_latency


def device_of(layer: Layer) -> int:
    """Return the number of the device that a layer runs on."""
    return layer.split or 0


def nodes(model: StepModel, batch: int, mode: str) -> tuple[LayerTimes, ...]:
    """Return the layers of a step on `batch` examples, with what each fetches, in their order.

    In mode `model` Paleo fetches at the rate of the device's memory.
    """
    layers = layers_of(model.graph(batch))
    fetched = _fetches(model, layers, mode)
    rows: dict[str, list[RowTime]] = {layer.name: [] for layer in layers}
    for row in model.timeline(batch).rows:
        rows[layer_name(row.row.name, rows, layers[-1].name)].append(row)
    pipelined, counted = model.settings.pipelined, model.counted(batch)
    found = []
    for layer in layers:
        own, fetch_s = rows[layer.name], fetched[layer.name]
        forward, backward, update = (sum(row.launches[i] for row in own) for i in range(3))
        found.append(
            LayerTimes(
                layer,
                fetch_s,
                _part([row.forward for row in own], fetch_s, pipelined),
                _part([row.backward for row in own], fetch_s, pipelined),
                sum(row.update.value for row in own),
                sum(counted[row.row.name]["forward"] for row in own),
                (forward, backward, update),
            )
        )
    return tuple(found)


def layer_name(op: str, layers: Mapping[str, object], last: str) -> str:
    """Return the layer of an op `layer/...`; what follows the network is the last one's."""
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


def _part(times: Sequence[Interval], fetch_s: float, pipelined: bool) -> PassTimes:
    whole = total(times)
    compute, memory = whole.compute_s, whole.memory_s + fetch_s
    if pipelined:
        return PassTimes(compute, memory, compute + memory, max(compute, memory))
    return PassTimes(compute, memory, whole.value + fetch_s, whole.value + fetch_s)


def _fetches(model: StepModel, layers: Sequence[Layer], mode: str) -> dict[str, float]:
    """Return the seconds in which each layer fetches what it reads from other devices.

    Of one parent the layer's input, of several each parent's output, one after the other. Between
    groups of `FETCH_GROUP` devices the rate is half; Paleo halves it once more for each such parent
    and not at all for a single one.
    """
    settings, original = settings_of(model.settings), as_published(model)
    faults, native = settings.faults, SIZE_BYTES[precision(model.workload.dtype).compute]
    element = FLOAT_BYTES if "dtype" in faults else native
    clock_hz = model.device.clock_hz if "cycle" in faults else None
    cycle = 1.0 / clock_hz if clock_hz else 0.0
    full, latency = model.device.memory_bytes_per_s, 0.0
    unjoined = model.fabric is None or (original and mode == "model")
    if model.fabric is not None and not unjoined:
        link = model.fabric.between
        full, latency = link.bytes_per_s, link.latency_s or 0.0
    full *= settings.link_efficiency * (GIB / GB if "gigabyte" in faults else 1.0)

    def fetch(layer: Layer, parents: Sequence[Layer]) -> float:
        total, rate, several, halvings = 0.0, full, len(parents) > 1, 0
        for parent in parents:
            # the text "0" of a split is not the number 0 of other layers in the original
            beside = layer.split == parent.split
            if beside if original else device_of(layer) == device_of(parent):
                continue
            halves = not unjoined and _apart(layer, parent) and (several or not original)
            halvings += halves
            if original and halvings > MOST_HALVINGS:
                raise InputError(
                    f"paleo: layer '{layer.name}' fetches from over {MOST_HALVINGS} devices of "
                    "other groups; each halves the link's rate in Paleo, until nothing is left"
                )
            rate = (rate if original else full) / (2 if halves else 1)
            shape = parent.outputs if several else layer.inputs
            total += max(cycle, latency + element * prod(shape) / rate)
        return total

    by_name = {layer.name: layer for layer in layers}
    return {
        layer.name: fetch(layer, [by_name[name] for name in layer.parents if name in by_name])
        for layer in layers
    }


def layer_rows(model: StepModel, batch: int, mode: str) -> list[dict[str, Any]]:
    """Return the layers of a step, each on its device, as JSON values."""

    def one(node: LayerTimes) -> dict[str, Any]:
        in_turn = mode == "model" or node.layer.split is not None
        row: dict[str, Any] = {
            "name": node.layer.name,
            "kind": node.layer.type,
            "device": device_of(node.layer),
        }
        for name, part in (("forward", node.forward), ("backward", node.backward)):
            row |= {
                f"{name}_s": part.total_s if in_turn else part.bound_s,
                f"{name}_compute_s": part.compute_s,
                f"{name}_memory_s": part.memory_s,
            }
        return row | {
            "update_s": node.update_s,
            "fetch_s": node.fetch_s,
            "parameters": node.layer.parameters,
            "flop": round(node.flop),
        }

    return [one(node) for node in nodes(model, batch, mode)]
