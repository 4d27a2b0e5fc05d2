"""Read network files of Paleo (JSON; Qi, Sparks, Talwalkar, ICLR 2017)."""

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
from steptime.paleo.files.layer import LayerBuilder
from steptime.paleo.files.layers import MANY, TYPES, UNKNOWN, classes_last
from steptime.paleo.layers import Layer

SOURCE = "a network file of Paleo (Qi, Sparks, Talwalkar 2017)"


def read(source: Source, allow_unknown: bool) -> Family:
    """Return the network of a Paleo file; its shapes are checked when it is built."""
    name = source.name
    with _naming(name):
        entries = _read_entries(source.table, allow_unknown)
        file_batch = _stated_batch(entries)

    def build(b: Builder, _: Mapping[str, Any], batch: int) -> str:
        with _naming(name):
            return _append_ops(b, entries, file_batch, batch)

    return Family(name, build, {}, SOURCE, batch=file_batch, is_preset=True)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{shorten(file)[1:-1]}: {error}") from None


def _read_entries(table: object, allow_unknown: bool) -> tuple[Entry, ...]:
    """Return the checked layers of a file in topological order."""
    if not isinstance(table, dict) or not isinstance(table.get("layers"), dict):
        raise InputError("a network is a table with a table of 'layers'")
    entries = expand(table["layers"])
    for entry in entries:
        if entry.type not in TYPES and not allow_unknown:
            raise unknown("type of layer", entry.type, TYPES, f"layer {shorten(entry.name)}")
        _check_parent_count(entry)
    input_names = [shorten(entry.name) for entry in entries if entry.type == "Input"]
    if len(input_names) != 1:
        names = ", ".join(input_names[:2]) or "none"
        raise InputError(f"a network has one layer of type Input; found {names}")
    if len(entries) == 1:
        raise InputError("the network has no layers besides its input")
    return entries


def _check_parent_count(entry: Entry) -> None:
    """Raise `InputError` if a layer has too few parents, or too many for its type."""
    count = len(entry.parents)
    takes_single = entry.type in TYPES and entry.type not in MANY
    is_valid = count == 1 if takes_single else count > 0
    if entry.type != "Input" and not is_valid:
        expected = "one parent" if takes_single else "parents"
        raise entry.fault(f"type {shorten(entry.type)} has {expected}, not {count}")


def _stated_batch(entries: Sequence[Entry]) -> int:
    """Return the batch that the input of a file states, 1 if it states none.

    An input that is no shape is refused when the network is built.
    """
    (input_entry,) = (entry for entry in entries if entry.type == "Input")
    tensor = input_entry.keys.get("tensor")
    if isinstance(tensor, list) and tensor and type(tensor[0]) is int:
        return tensor[0]
    return 1


def _append_ops(b: Builder, entries: Sequence[Entry], file_batch: int, batch: int) -> str:
    """Append the network's ops, layers and unmodelled names, and return the result of the step.

    In training the result is the sum of the losses of the last layers: cross-entropy for a
    softmax, else the mean. In inference it is the output of the last layer.
    """
    last_layers = _last_layers(entries)
    built: dict[str, tuple[Layer, str]] = {}
    results = []
    for entry in entries:
        name, is_last = entry.name, entry.name in last_layers
        is_loss = entry.type == "Softmax" and b.training and is_last
        parents = [built[parent] for parent in entry.parents]
        shapes, x = [layer.outputs for layer, _ in parents], [tensor for _, tensor in parents]
        builder = LayerBuilder(b, entry, file_batch, batch, shapes, x, is_loss)
        layer, tensor = TYPES.get(entry.type, UNKNOWN)(builder)
        built[name] = layer, tensor
        if entry.type not in TYPES:
            b.unmodelled.append(name)
        op = name if layer.kind != "input" and name in b.tensors else ""
        b.source.append(replace(layer, op=op))
        if is_last:
            logits = classes_last(builder, tensor) if is_loss else tensor
            with b.scope(name):
                results.append(classify(b, logits) if is_loss else mean_loss(b, tensor))
    total = results[0 if b.training else -1]
    for loss in results[1:] if b.training else ():
        total = b.op("add", total, loss, name=f"{loss}_sum")
    return total


def _last_layers(entries: Sequence[Entry]) -> set[str]:
    """Return the layers that no other layer reads.

    An accuracy does not count if another layer reads its parent.
    """
    read_names = {parent for entry in entries for parent in entry.parents}
    network_inputs = {
        parent for entry in entries if entry.type != "Accuracy" for parent in entry.parents
    }
    return {
        entry.name
        for entry in entries
        if entry.name not in read_names
        and (entry.type != "Accuracy" or network_inputs.isdisjoint(entry.parents))
    }
