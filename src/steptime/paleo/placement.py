"""Placement of layers on devices: their fetches from other devices, and their times.

A layer `name@k` of a model-parallel block runs on device k, every other layer on device 0.
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
MAX_HALVINGS = 60  # of a link's rate in Paleo, beyond which nothing is left of it


@dataclass(frozen=True)
class PassTimes:
    """Seconds of one pass of a layer, sequential (`total_s`) and overlapped (`bound_s`).

    The two differ only if the method overlaps compute and memory time of a layer.
    """

    compute_s: float
    memory_s: float
    total_s: float
    bound_s: float


@dataclass(frozen=True)
class LayerTimes:
    """A layer with its times; `memory_s` of its passes includes `fetch_s`.

    `flop` is the work of its forward pass; `kernels` are the kernel counts of forward, backward and
    update.
    """

    layer: Layer
    fetch_s: float
    forward: PassTimes
    backward: PassTimes
    update_s: float
    flop: float
    kernels: tuple[int, ...]


def as_published(model: StepModel) -> bool:
    """Return whether replicas and splits are those of the original, faults included."""
    return model.method.links is without_latency


def device_of(layer: Layer) -> int:
    """Return the number of the device that a layer runs on."""
    return layer.split or 0


def nodes(model: StepModel, batch: int, mode: str) -> tuple[LayerTimes, ...]:
    """Return the layers of a step on `batch` examples in order, with their fetches.

    In mode `model` Paleo fetches at the rate of the device's memory.
    """
    layers = layers_of(model.graph(batch))
    fetch_times = _fetch_times(model, layers, mode)
    rows: dict[str, list[RowTime]] = {layer.name: [] for layer in layers}
    for row in model.timeline(batch).rows:
        rows[layer_name(row.row.name, rows, layers[-1].name)].append(row)
    pipelined, counted = model.settings.pipelined, model.counted(batch)
    layer_times = []
    for layer in layers:
        layer_rows, fetch_s = rows[layer.name], fetch_times[layer.name]
        layer_times.append(
            LayerTimes(
                layer=layer,
                fetch_s=fetch_s,
                forward=_pass_times([row.forward for row in layer_rows], fetch_s, pipelined),
                backward=_pass_times([row.backward for row in layer_rows], fetch_s, pipelined),
                update_s=sum(row.update.value for row in layer_rows),
                flop=sum(counted[row.row.name]["forward"] for row in layer_rows),
                kernels=tuple(sum(row.launches[i] for row in layer_rows) for i in range(3)),
            )
        )
    return tuple(layer_times)


def layer_name(op: str, layers: Mapping[str, object], last: str) -> str:
    """Return the layer of an op `layer/...`; ops after the network belong to the last layer."""
    name = op
    while name not in layers:
        name, slash, _ = name.rpartition("/")
        if not slash:
            return last
    return name


def crosses_groups(layers: Sequence[Layer]) -> bool:
    """Return whether a layer with several parents fetches from another group of devices."""
    by_name = {layer.name: layer for layer in layers}
    return any(
        _crosses_group(layer, by_name.get(parent, layer))
        for layer in layers
        if len(layer.parents) > 1
        for parent in layer.parents
    )


def _crosses_group(layer: Layer, parent: Layer) -> bool:
    return device_of(layer) // FETCH_GROUP != device_of(parent) // FETCH_GROUP


def _pass_times(times: Sequence[Interval], fetch_s: float, pipelined: bool) -> PassTimes:
    """Return the times of a pass of a layer from those of its rows and its fetch."""
    rows_total = total(times)
    compute_s, memory_s = rows_total.compute_s, rows_total.memory_s + fetch_s
    if pipelined:
        return PassTimes(compute_s, memory_s, compute_s + memory_s, max(compute_s, memory_s))
    sequential_s = rows_total.value + fetch_s
    return PassTimes(compute_s, memory_s, sequential_s, sequential_s)


@dataclass(frozen=True)
class _FetchRates:
    """What a fetch costs: bytes of an element, latency, bandwidth, and a minimum.

    `halves_between_groups` is false if fetches run at memory bandwidth. `is_published` keeps the
    faults of the original.
    """

    element_bytes: float
    latency_s: float
    bytes_per_s: float
    min_s: float
    halves_between_groups: bool
    is_published: bool


def _fetch_rates(model: StepModel, mode: str) -> _FetchRates:
    settings, is_published = settings_of(model.settings), as_published(model)
    faults = settings.faults
    clock_hz = model.device.clock_hz if "cycle" in faults else None
    native_bytes = SIZE_BYTES[precision(model.workload.dtype).compute]
    bytes_per_s, latency_s = model.device.memory_bytes_per_s, 0.0
    uses_memory = model.fabric is None or (is_published and mode == "model")
    if model.fabric is not None and not uses_memory:
        link = model.fabric.between
        bytes_per_s, latency_s = link.bytes_per_s, link.latency_s or 0.0
    gigabyte = GIB / GB if "gigabyte" in faults else 1.0
    return _FetchRates(
        element_bytes=FLOAT_BYTES if "dtype" in faults else native_bytes,
        latency_s=latency_s,
        bytes_per_s=bytes_per_s * settings.link_efficiency * gigabyte,
        min_s=1.0 / clock_hz if clock_hz else 0.0,
        halves_between_groups=not uses_memory,
        is_published=is_published,
    )


def _fetch_times(model: StepModel, layers: Sequence[Layer], mode: str) -> dict[str, float]:
    """Return the seconds in which each layer fetches its inputs from other devices."""
    rates = _fetch_rates(model, mode)
    by_name = {layer.name: layer for layer in layers}
    return {
        layer.name: _fetch_s(
            layer, [by_name[name] for name in layer.parents if name in by_name], rates
        )
        for layer in layers
    }


def _fetch_s(layer: Layer, parents: Sequence[Layer], rates: _FetchRates) -> float:
    """Return the seconds in which a layer fetches from its parents, one after the other.

    With one parent it fetches its own input, with several each parent's output. Between groups of
    `FETCH_GROUP` devices the rate is half; Paleo halves it once more for each such parent, and not
    at all for a single parent.
    """
    has_several = len(parents) > 1
    fetch_s, bytes_per_s, halvings = 0.0, rates.bytes_per_s, 0
    for parent in parents:
        if rates.is_published:
            # in the original the text "0" of a split differs from the number 0 of other layers
            is_local = layer.split == parent.split
        else:
            is_local = device_of(layer) == device_of(parent)
        if is_local:
            continue
        crosses = rates.halves_between_groups and _crosses_group(layer, parent)
        halves = crosses and (has_several or not rates.is_published)
        halvings += halves
        if rates.is_published and halvings > MAX_HALVINGS:
            raise InputError(
                f"paleo: layer '{layer.name}' fetches from over {MAX_HALVINGS} devices of "
                "other groups; each halves the link's rate in Paleo, until nothing is left"
            )
        if not rates.is_published:
            bytes_per_s = rates.bytes_per_s
        if halves:
            bytes_per_s /= 2
        shape = parent.outputs if has_several else layer.inputs
        transfer_s = rates.element_bytes * prod(shape) / bytes_per_s
        fetch_s += max(rates.min_s, rates.latency_s + transfer_s)
    return fetch_s


def layer_rows(model: StepModel, batch: int, mode: str) -> list[Mapping[str, Any]]:
    """Return the layers of a step, each on its device, as JSON values."""
    return [_layer_row(node, mode) for node in nodes(model, batch, mode)]


def _layer_row(node: LayerTimes, mode: str) -> Mapping[str, Any]:
    is_sequential = mode == "model" or node.layer.split is not None
    forward, backward = node.forward, node.backward
    return {
        "name": node.layer.name,
        "kind": node.layer.type,
        "device": device_of(node.layer),
        "forward_s": forward.total_s if is_sequential else forward.bound_s,
        "forward_compute_s": forward.compute_s,
        "forward_memory_s": forward.memory_s,
        "backward_s": backward.total_s if is_sequential else backward.bound_s,
        "backward_compute_s": backward.compute_s,
        "backward_memory_s": backward.memory_s,
        "update_s": node.update_s,
        "fetch_s": node.fetch_s,
        "parameters": node.layer.parameters,
        "flop": round(node.flop),
    }
