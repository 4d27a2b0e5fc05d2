"""Reads the network files of Paleo (JSON; Qi, Sparks, Talwalkar, ICLR 2017)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.formats import Source
from steptime.network.families.family import Family
from steptime.network.layers.dense import classify, mean_loss
from steptime.network.ops.builder import Builder
from steptime.paleo.files.blocks import Entry, expand
from steptime.paleo.files.layer import At
from steptime.paleo.files.layers import MANY, TYPES, UNKNOWN, classes_last
from steptime.paleo.layers import Layer

SOURCE = "a network file of Paleo (Qi, Sparks, Talwalkar 2017)"


def read(source: Source, allow_unknown: bool) -> Family:
    """Return the network of a Paleo file; what does not fit is refused when it is built."""
    name = source.name
    with _naming(name):
        entries, own_batch = _network(source.table, allow_unknown)

    def build(b: Builder, _: Mapping[str, Any], batch: int) -> str:
        with _naming(name):
            return _lowered(b, entries, own_batch, batch)

    return Family(name, build, {}, SOURCE, batch=own_batch, named=True)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{shorten(file)[1:-1]}: {error}") from None


def _network(table: object, allow_unknown: bool) -> tuple[tuple[Entry, ...], int]:
    """Return the layers of a file in topological order, and the batch that it names."""
    if not isinstance(table, dict) or not isinstance(table.get("layers"), dict):
        raise InputError("a network is a table with a table of 'layers'")
    entries = expand(table["layers"])
    for entry in entries:
        if entry.type not in TYPES and not allow_unknown:
            raise unknown("type of layer", entry.type, TYPES, f"layer {shorten(entry.name)}")
        count = len(entry.parents)
        one = entry.type in TYPES and entry.type not in MANY
        if entry.type != "Input" and (count != 1 if one else not count):
            wanted = "one parent" if one else "parents"
            raise entry.fault(f"type {shorten(entry.type)} has {wanted}, not {count}")
    inputs = [entry for entry in entries if entry.type == "Input"]
    if len(inputs) != 1:
        names = ", ".join(shorten(entry.name) for entry in inputs[:2])
        raise InputError(f"a network has one layer of type Input; found {names or 'none'}")
    if len(entries) == 1:
        raise InputError("the network has no layers besides its input")
    tensor = inputs[0].keys.get("tensor")  # what is no shape is refused when it is built
    sizes = tensor if isinstance(tensor, list) else []
    return entries, sizes[0] if sizes and type(sizes[0]) is int else 1


def _lowered(b: Builder, entries: Sequence[Entry], own_batch: int, batch: int) -> str:
    """Append the network's ops, layers and unmodelled names; give what a step ends with.

    In training that is the sum of the losses of its ends: cross-entropy for a softmax, else the
    mean. In inference it is the output of the last end.
    """
    ends = _ends(entries)
    made: dict[str, tuple[Layer, str]] = {}
    results = []
    for entry in entries:
        name, is_end = entry.name, entry.name in ends
        is_loss = entry.type == "Softmax" and b.training and is_end
        parents = [made[one] for one in entry.parents]
        shapes, x = [layer.outputs for layer, _ in parents], [tensor for _, tensor in parents]
        at = At(b, entry, own_batch, batch, shapes, x, is_loss)
        made[name] = layer, tensor = TYPES.get(entry.type, UNKNOWN)(at)
        if entry.type not in TYPES:
            b.unmodelled.append(name)
        op = name if layer.kind != "input" and name in b.tensors else ""
        b.source.append(replace(layer, op=op))
        if is_end:
            logits = classes_last(at, tensor) if is_loss else tensor
            with b.scope(name):
                results.append(classify(b, logits) if is_loss else mean_loss(b, tensor))
    total = results[0 if b.training else -1]
    for loss in results[1:] if b.training else ():
        total = b.op("add", total, loss, name=f"{loss}_sum")
    return total


def _ends(entries: Sequence[Entry]) -> set[str]:
    """Return the layers that no other reads; an accuracy beside other readers is none."""
    read = {parent for entry in entries for parent in entry.parents}
    used = {one for entry in entries if entry.type != "Accuracy" for one in entry.parents}
    ends = (entry for entry in entries if entry.name not in read)
    return {
        end.name
        for end in ends
        if end.type != "Accuracy" or not any(parent in used for parent in end.parents)
    }
