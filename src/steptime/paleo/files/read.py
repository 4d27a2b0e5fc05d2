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
from steptime.paleo.files.blocks import FileLayer, expand_blocks
from steptime.paleo.files.layer import LayerBuilder
from steptime.paleo.files.layers import TYPES, TYPES_OF_SEVERAL_PARENTS, UNKNOWN, classes_last
from steptime.paleo.layers import Layer

SOURCE = "a network file of Paleo (Qi, Sparks, Talwalkar 2017)"


def read(source: Source, allow_unknown: bool) -> Family:
    """Return the network of a Paleo file; its shapes are checked when it is built."""
    name = source.name
    with _name_file_in_errors(name):
        file_layers = _read_entries(source.table, allow_unknown)
        file_batch = _find_stated_batch(file_layers)

    def build(b: Builder, _: Mapping[str, Any], batch: int) -> str:
        with _name_file_in_errors(name):
            return _append_ops(b, file_layers, file_batch, batch)

    # {}: no hyperparameters, since the file states each size.
    return Family(name, build, {}, SOURCE, batch=file_batch, is_preset=True)


@contextmanager
def _name_file_in_errors(file: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{shorten(file)[1:-1]}: {error}") from None


def _read_entries(table: object, allow_unknown: bool) -> tuple[FileLayer, ...]:
    """Return the checked layers of a file in topological order."""
    if not isinstance(table, dict) or not isinstance(table.get("layers"), dict):
        raise InputError("a network is a table with a table of 'layers'")
    file_layers = expand_blocks(table["layers"])
    for file_layer in file_layers:
        if file_layer.type not in TYPES and not allow_unknown:
            raise unknown(
                "type of layer", file_layer.type, TYPES, f"layer {shorten(file_layer.name)}"
            )
        _check_parent_count(file_layer)
    input_names = [
        shorten(file_layer.name) for file_layer in file_layers if file_layer.type == "Input"
    ]
    if len(input_names) != 1:
        names_text = ", ".join(input_names[:2]) or "none"
        raise InputError(f"a network has one layer of type Input; found {names_text}")
    if len(file_layers) == 1:
        raise InputError("the network has no layers besides its input")
    return file_layers


def _check_parent_count(file_layer: FileLayer) -> None:
    """Raise `InputError` if a layer has too few parents, or too many for its type."""
    if file_layer.type == "Input":
        return
    count = len(file_layer.parents)
    # a layer of an unknown type may have any number
    takes_single = file_layer.type in TYPES and file_layer.type not in TYPES_OF_SEVERAL_PARENTS
    is_valid = count == 1 if takes_single else count > 0
    if not is_valid:
        expected = "one parent" if takes_single else "parents"
        raise file_layer.fault(f"type {shorten(file_layer.type)} has {expected}, not {count}")


def _find_stated_batch(file_layers: Sequence[FileLayer]) -> int:
    """Return the batch that the input of a file states, 1 if it states none.

    An input that is no shape is refused when the network is built.
    """
    (input_layer,) = (file_layer for file_layer in file_layers if file_layer.type == "Input")
    tensor = input_layer.keys.get("tensor")
    if isinstance(tensor, list) and tensor and type(tensor[0]) is int:
        return tensor[0]
    return 1


def _append_ops(b: Builder, file_layers: Sequence[FileLayer], file_batch: int, batch: int) -> str:
    """Append the network's ops, layers and unmodelled names, and return the result of the step.

    In training the result is the sum of the losses of the last layers: cross-entropy for a
    softmax, else the mean. In inference it is the output of the last layer.
    """
    last_layers = _find_last_layers(file_layers)
    layer_and_tensor_by_name: dict[str, tuple[Layer, str]] = {}
    results = []
    for file_layer in file_layers:
        name = file_layer.name
        is_last = name in last_layers
        is_loss = file_layer.type == "Softmax" and b.training and is_last
        parents = [layer_and_tensor_by_name[parent] for parent in file_layer.parents]
        shapes = [layer.outputs for layer, _ in parents]
        inputs = [tensor for _, tensor in parents]
        builder = LayerBuilder(b, file_layer, file_batch, batch, shapes, inputs, is_loss)
        layer_and_tensor_by_name[name] = _append_layer(builder)
        if is_last:
            _, tensor = layer_and_tensor_by_name[name]
            results.append(_append_loss(builder, tensor))
    return _sum_losses(b, results) if b.training else results[-1]  # the output of the last layer


def _append_layer(builder: LayerBuilder) -> tuple[Layer, str]:
    """Append the ops of a layer and return it with its output; note a layer of unknown type."""
    b, file_layer = builder.b, builder.file_layer
    layer, tensor = TYPES.get(file_layer.type, UNKNOWN)(builder)
    if file_layer.type not in TYPES:
        b.unmodelled.append(file_layer.name)
    # "" for a layer that adds no op of its name: its input passes through.
    has_op = layer.kind != "input" and file_layer.name in b.tensors
    b.source.append(replace(layer, op=file_layer.name if has_op else ""))
    return layer, tensor


def _append_loss(builder: LayerBuilder, tensor: str) -> str:
    """Append the loss of a last layer and return it: cross-entropy for a softmax, else the mean."""
    b = builder.b
    logits = classes_last(builder, tensor) if builder.is_loss else tensor
    with b.scope(builder.file_layer.name):
        return classify(b, logits) if builder.is_loss else mean_loss(b, tensor)


def _sum_losses(b: Builder, losses: Sequence[str]) -> str:
    """Append the sum of the losses and return it; a single loss is its own sum."""
    total, *further_losses = losses
    for loss in further_losses:
        total = b.op("add", total, loss, name=f"{loss}_sum")
    return total


def _find_last_layers(file_layers: Sequence[FileLayer]) -> set[str]:
    """Return the layers that no other layer reads.

    An accuracy does not count if another layer reads its parent.
    """
    read_names = {parent for file_layer in file_layers for parent in file_layer.parents}
    # An accuracy is a metric: it is no end of the network where another layer reads its parent.
    network_inputs = {
        parent
        for file_layer in file_layers
        if file_layer.type != "Accuracy"
        for parent in file_layer.parents
    }
    return {
        file_layer.name
        for file_layer in file_layers
        if file_layer.name not in read_names
        and (file_layer.type != "Accuracy" or network_inputs.isdisjoint(file_layer.parents))
    }
