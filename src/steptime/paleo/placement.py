"""Placement of layers on devices: their fetches from other devices, and their times.

A layer `name@k` of a model-parallel block runs on device k, every other layer on device 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError
from steptime.hardware.datasheet import GB, GIB
from steptime.paleo.layers import Layer, layers_of
from steptime.paleo.method import without_latency
from steptime.paleo.rules import FLOAT_BYTES, settings_of
from steptime.prediction.kernel import Interval
from steptime.prediction.schedule import RowTime, total
from steptime.prediction.steps.step_model import StepModel

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


def time_layers(model: StepModel, batch: int, mode: str) -> tuple[LayerTimes, ...]:
    """Return the layers of a step on `batch` examples in order, with their fetches.

    In mode `model` Paleo fetches at the rate of the device's memory.
    """
    layers = layers_of(model.graph(batch))
    fetch_s_by_layer = _find_fetches_s(model, layers, mode)
    rows_by_layer: dict[str, list[RowTime]] = {layer.name: [] for layer in layers}
    last_layer = layers[-1].name
    for row in model.timeline(batch).rows:
        # A row that no layer names, such as that of the loss, counts to the last layer.
        name = layer_name(row.row.name, rows_by_layer, last_layer)
        rows_by_layer[name].append(row)
    flop_by_row = model.flop_by_row(batch)
    layer_times = []
    for layer in layers:
        rows = rows_by_layer[layer.name]
        forward_flop = sum(flop_by_row[row.row.name]["forward"] for row in rows)
        fetch_s = fetch_s_by_layer[layer.name]
        times = _sum_rows(layer, rows, fetch_s, forward_flop, model.settings.pipelined)
        layer_times.append(times)
    return tuple(layer_times)


def _sum_rows(
    layer: Layer, rows: Sequence[RowTime], fetch_s: float, forward_flop: float, pipelined: bool
) -> LayerTimes:
    """Return the times of a layer from those of its rows and its fetch."""
    kernel_counts = tuple(  # of the forward and backward pass, and of the update
        sum(row.launches[pass_index] for row in rows) for pass_index in range(3)
    )
    return LayerTimes(
        layer=layer,
        fetch_s=fetch_s,
        forward=_sum_pass_times([row.forward for row in rows], fetch_s, pipelined),
        backward=_sum_pass_times([row.backward for row in rows], fetch_s, pipelined),
        update_s=sum(row.update.value for row in rows),
        flop=forward_flop,
        kernels=kernel_counts,
    )


def layer_name(op: str, layers: Mapping[str, object], last: str) -> str:
    """Return the layer of an op `layer/...`; ops after the network belong to the last layer."""
    name = op  # such as `layer/bias`
    while name not in layers:
        name, slash, _ = name.rpartition("/")
        if not slash:  # an op after the network, such as its loss
            return last
    return name


def crosses_groups(layers: Sequence[Layer]) -> bool:
    """Return whether a layer with several parents fetches from another group of devices."""
    layer_by_name = {layer.name: layer for layer in layers}
    return any(
        # A parent outside of the list is the network's input, which crosses nothing.
        _crosses_group(layer, layer_by_name.get(parent, layer))
        for layer in layers
        if len(layer.parents) > 1
        for parent in layer.parents
    )


def _crosses_group(layer: Layer, parent: Layer) -> bool:
    return device_of(layer) // FETCH_GROUP != device_of(parent) // FETCH_GROUP


def _sum_pass_times(times: Sequence[Interval], fetch_s: float, pipelined: bool) -> PassTimes:
    """Return the times of a pass of a layer from those of its rows and its fetch."""
    row_times = total(times)
    compute_s = row_times.compute_s
    memory_s = row_times.memory_s + fetch_s  # a fetch counts as memory traffic
    if pipelined:  # the method overlaps compute and memory time of a layer
        sequential_s = compute_s + memory_s
        overlapped_s = max(compute_s, memory_s)
    else:  # each row has its time by the method already, and a fetch comes before them
        sequential_s = row_times.value + fetch_s
        overlapped_s = sequential_s
    return PassTimes(
        compute_s=compute_s, memory_s=memory_s, total_s=sequential_s, bound_s=overlapped_s
    )


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


def _find_fetch_rates(model: StepModel, mode: str) -> _FetchRates:
    """Return the rates at which layers fetch their inputs from other devices."""
    settings = settings_of(model.settings)
    faults = settings.faults
    is_published = as_published(model)
    # Without a link, and in the original's mode "model", a fetch has the rate of the memory.
    link = None if model.fabric is None else model.fabric.between
    if is_published and mode == "model":
        link = None
    datasheet = model.device.datasheet
    bytes_per_s = datasheet.memory_bytes_per_s if link is None else link.bytes_per_s
    # Paleo takes a GB for 2^30 bytes.
    gigabyte_factor = GIB / GB if "gigabyte" in faults else 1.0
    native_bytes = SIZE_BYTES[precision(model.workload.dtype).compute]
    # in the original no fetch is shorter than a cycle of the device
    clock_hz = datasheet.clock_hz if "cycle" in faults else None
    return _FetchRates(
        element_bytes=FLOAT_BYTES if "dtype" in faults else native_bytes,
        latency_s=0.0 if link is None else link.latency_s or 0.0,
        bytes_per_s=bytes_per_s * settings.link_efficiency * gigabyte_factor,
        min_s=1.0 / clock_hz if clock_hz else 0.0,
        halves_between_groups=link is not None,
        is_published=is_published,
    )


def _find_fetches_s(model: StepModel, layers: Sequence[Layer], mode: str) -> dict[str, float]:
    """Return the seconds in which each layer fetches its inputs from other devices."""
    rates = _find_fetch_rates(model, mode)
    layer_by_name = {layer.name: layer for layer in layers}
    return {
        layer.name: _fetch_s(
            layer, [layer_by_name[name] for name in layer.parents if name in layer_by_name], rates
        )
        for layer in layers
    }


def _fetch_s(layer: Layer, parents: Sequence[Layer], rates: _FetchRates) -> float:
    """Return the seconds in which a layer fetches from its parents, one after the other.

    With one parent it fetches its own input, with several each parent's output. Between groups of
    `FETCH_GROUP` devices the rate is half; Paleo halves it once more for each such parent, and not
    at all for a single parent.
    """
    has_several_parents = len(parents) > 1
    fetch_s = 0.0
    halvings = 0  # of the link's rate so far, which only the original adds up
    for parent in parents:
        if _is_local(layer, parent, rates):
            continue
        crosses_group = rates.halves_between_groups and _crosses_group(layer, parent)
        if not rates.is_published:  # each fetch has half the rate if it crosses, else all of it
            halvings = 1 if crosses_group else 0
        elif crosses_group and has_several_parents:  # the original halves on with each fetch
            halvings += 1
        if halvings > MAX_HALVINGS:
            raise InputError(
                f"paleo: layer '{layer.name}' fetches from over {MAX_HALVINGS} devices of "
                "other groups; each halves the link's rate in Paleo, until nothing is left"
            )
        bytes_per_s = rates.bytes_per_s / 2**halvings
        # With a single parent Paleo fetches the layer's own input.
        shape = parent.outputs if has_several_parents else layer.inputs
        transfer_s = rates.element_bytes * prod(shape) / bytes_per_s
        fetch_s += max(rates.min_s, rates.latency_s + transfer_s)
    return fetch_s


def _is_local(layer: Layer, parent: Layer, rates: _FetchRates) -> bool:
    """Whether a layer finds the output of its parent on its own device."""
    if rates.is_published:
        # in the original the text "0" of a split differs from the number 0 of other layers
        return layer.split == parent.split
    return device_of(layer) == device_of(parent)


def layer_rows(model: StepModel, batch: int, mode: str) -> list[Mapping[str, Any]]:
    """Return the layers of a step, each on its device, as JSON values."""
    return [_layer_row(timed_layer, mode) for timed_layer in time_layers(model, batch, mode)]


def _layer_row(timed_layer: LayerTimes, mode: str) -> Mapping[str, Any]:
    """Return the times and sizes of a layer as a row of a table."""
    # As Paleo has it: split layers overlap nothing.
    is_sequential = mode == "model" or timed_layer.layer.split is not None
    forward, backward = timed_layer.forward, timed_layer.backward
    return {
        "name": timed_layer.layer.name,
        "kind": timed_layer.layer.type,
        "device": device_of(timed_layer.layer),
        "forward_s": forward.total_s if is_sequential else forward.bound_s,
        "forward_compute_s": forward.compute_s,
        "forward_memory_s": forward.memory_s,
        "backward_s": backward.total_s if is_sequential else backward.bound_s,
        "backward_compute_s": backward.compute_s,
        "backward_memory_s": backward.memory_s,
        "update_s": timed_layer.update_s,
        "fetch_s": timed_layer.fetch_s,
        "parameters": timed_layer.layer.parameters,
        "flop": round(timed_layer.flop),
    }
