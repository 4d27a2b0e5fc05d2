"""Reads the network files of Paleo (JSON; Qi, Sparks, Talwalkar, ICLR 2017)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph import Layer
from steptime.importers import Source
from steptime.importers.paleo.blocks import Entry, expand
from steptime.importers.paleo.lowering import TYPES, UNKNOWN, LayerType, rows
from steptime.importers.paleo.shapes import Batch, Shape
from steptime.layers.dense import classify, mean_loss
from steptime.models.family import Family
from steptime.ops.builder import Builder

SOURCE = "a network file of Paleo (Qi, Sparks, Talwalkar 2017)"


@dataclass(frozen=True)
class Network:
    """The layers of a file in topological order, and the batch that it names."""

    entries: tuple[Entry, ...]
    batch: int
    unmodelled: tuple[str, ...]


def read(source: Source, allow_unknown: bool) -> Family:
    """Return the network of a Paleo file.

    With `allow_unknown` a layer of unknown type passes its input on. Raises `InputError`, naming
    the layer, for what is not a network.
    """
    name = source.name
    with _naming(name):
        network = _network(source.table, allow_unknown)
        layers_of(network, network.batch)

    def build(b: Builder, _: Mapping[str, Any], batch: int) -> str:
        with _naming(name):
            return lower(b, network, batch)

    return Family(name, build, {}, SOURCE, batch=network.batch, named=True)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{shorten(file)[1:-1]}: {error}") from None


def _network(table: object, allow_unknown: bool) -> Network:
    if not isinstance(table, dict) or not isinstance(table.get("layers"), dict):
        raise InputError("a network is a table with a table of 'layers'")
    entries = expand(table["layers"])
    unmodelled = tuple(entry.name for entry in entries if entry.type not in TYPES)
    for entry in entries:
        if entry.type not in TYPES and not allow_unknown:
            raise unknown("type of layer", entry.type, TYPES, f"layer {shorten(entry.name)}")
        _check_parents(entry)
    inputs = [entry for entry in entries if entry.type == "Input"]
    if len(inputs) != 1:
        names = ", ".join(shorten(entry.name) for entry in inputs[:2])
        raise InputError(f"a network has one layer of type Input; found {names or 'none'}")
    if len(entries) == 1:
        raise InputError("the network has no layers besides its input")
    tensor = inputs[0].keys.get("tensor")
    batch = tensor[0] if isinstance(tensor, list) and tensor else 1
    return Network(entries, batch, unmodelled)


def _check_parents(entry: Entry) -> None:
    least, most = _type(entry).parents
    count = len(entry.parents)
    if not least <= count <= most:
        wanted = "one parent" if most == 1 else "parents"
        raise entry.fault(f"type {shorten(entry.type)} has {wanted}, not {count}")


def _type(entry: Entry) -> LayerType:
    return TYPES.get(entry.type, UNKNOWN)


def layers_of(network: Network, batch: int) -> tuple[Layer, ...]:
    """Return the layers with shapes for a batch; raises `InputError` where they do not fit."""
    new: dict[str, Shape] = {}
    layers = []
    for entry in network.entries:
        parents = [new[name] for name in entry.parents]
        layer = _type(entry).shapes(entry, parents, Batch(network.batch, batch))
        new[entry.name] = layer.outputs
        layers.append(layer)
    return tuple(layers)


def lower(b: Builder, network: Network, batch: int) -> str:
    """Append the network's ops, layers and unmodelled names; give what a step ends with.

    In training that is the sum of the losses of its ends: cross-entropy for a softmax, else the
    mean. In inference it is the output of the last end.
    """
    ends = _ends(network)
    tensors: dict[str, str] = {}
    results = []
    for entry, layer in zip(network.entries, layers_of(network, batch), strict=True):
        parents = [tensors[name] for name in entry.parents]
        classified = entry.type == "Softmax" and b.training and entry.name in ends
        new = parents[0] if classified else _type(entry).lower(b, entry, layer, parents)
        tensors[entry.name] = new
        op = entry.name if layer.kind != "input" and entry.name in b.tensors else ""
        b.layers.append(replace(layer, op=op))
        if entry.name in ends:
            results.append(_result(b, entry.name, new, classified))
    b.unmodelled.extend(network.unmodelled)
    return _sum(b, results) if b.training else results[-1]


def _ends(network: Network) -> set[str]:
    """Return the layers that no other reads; an accuracy beside other readers is none."""
    read = {parent for entry in network.entries for parent in entry.parents}
    used = {
        parent for entry in network.entries if entry.type != "Accuracy" for parent in entry.parents
    }
    ends = (entry for entry in network.entries if entry.name not in read)
    return {
        end.name
        for end in ends
        if end.type != "Accuracy" or not any(parent in used for parent in end.parents)
    }


def _result(b: Builder, name: str, tensor: str, classified: bool) -> str:
    x = rows(b, tensor, name) if classified else tensor
    with b.scope(name):
        return classify(b, x) if classified else mean_loss(b, x)


def _sum(b: Builder, losses: list[str]) -> str:
    total = losses[0]
    for loss in losses[1:]:
        total = b.op("add", total, loss, name=f"{loss}_sum")
    return total
