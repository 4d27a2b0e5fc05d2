"""Read networks of Caffe: a `.prototxt` file, lowered to op kinds.

The network is that of the phase that is asked for: `include` and `exclude` rules select its layers
as in Caffe, and layers that lead neither to a loss nor to an output are left out
(`net.select_phase`). In training the losses are added up. A network without a loss is trained on
its outputs; a Softmax there counts as its loss. Labels are int64 inputs.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.formats import Source
from steptime.formats.caffe.inputs import SOURCES
from steptime.formats.caffe.layers import TYPES, UNMODELLED_TYPES, add_layer, fits_batch_norm
from steptime.formats.caffe.lowering import CaffeGraph, Tensors, UnmodelledError, resolve_axis
from steptime.formats.caffe.net import (
    LOSSES,
    TYPES_WITHOUT_OUTPUT,
    CaffeLayer,
    LayerCatalog,
    Net,
    Phase,
    select_phase,
)
from steptime.formats.caffe.schema import parse
from steptime.network.families.family import Family
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, require

CAFFE_TYPES = (*TYPES, *LOSSES, *TYPES_WITHOUT_OUTPUT, *UNMODELLED_TYPES)


def read(source: Source, allow_unknown: bool) -> Family:
    """Read the network of a prototxt; it has no hyperparameters.

    Args:
        source: the file. Its batch is replaced in every input that has it.
        allow_unknown: let a layer that cannot be modelled pass its first bottom on, and skip
            fields that Caffe does not have; both are named in the graph.

    Raises:
        InputError: for a file that cannot be read; the message names the layer.
    """
    name = source.name
    message, unknown_fields = parse(source.text, name)
    if len(message.layer) and len(message.layers):
        raise InputError(f"{name}: has both 'layer' and the older 'layers'")
    if not allow_unknown:
        _check_types(message, name)
        if unknown_fields:
            raise unknown_fields[0].error(name)
    layers_with_unknown_fields = frozenset(field.layer_number for field in unknown_fields)
    catalog = LayerCatalog(CAFFE_TYPES, layers_with_unknown_fields)

    @lru_cache(maxsize=2)
    def read_phase(phase: Phase) -> Net:
        return select_phase(message, phase, catalog, name)

    try:
        file_batch = read_phase("TRAIN").file_batch
    except InputError as training_error:
        try:
            file_batch = read_phase("TEST").file_batch  # the file may hold the other phase alone
        except InputError:
            raise training_error from None

    def build(b: Builder, _: Mapping[str, object], batch: int) -> str:
        net = read_phase("TRAIN" if b.training else "TEST")
        return _add_network(b, net, batch, name, allow_unknown)

    return Family(name, build, {}, f"read from Caffe's {name}", file_batch, is_preset=True)


def _check_types(message: Any, file: str) -> None:
    """Raise `InputError` for a layer of a type that Caffe does not have."""
    types = [*CAFFE_TYPES, *SOURCES]
    for number, layer in enumerate(message.layer):
        if layer.type not in types:
            place = f"{file}: layer {shorten(layer.name or f'number {number}')}"
            raise unknown("type of layer", layer.type, types, place)


def _add_network(b: Builder, net: Net, batch: int, file: str, allow_unknown: bool) -> str:
    """Append all layers; return the sum of the losses, in inference the last output."""
    graph = CaffeGraph(
        b=b,
        batch=batch,
        file_batch=net.file_batch,
        source_by_blob=net.source_by_blob,
        layer_names=frozenset(layer.name for layer in net.layers),
        scale_by_blob=_find_batch_norm_scales(net),
    )
    results: list[str] = []
    for layer in net.layers:
        place = f"{file}: layer {shorten(layer.name)}"
        is_end = layer in net.end_layers
        try:
            tops = _add_tops(graph, layer, is_end, allow_unknown)
            # a layer need not name all tops that it makes
            graph.tensor_by_blob.update(zip(layer.tops, tops, strict=False))
            if is_end:
                results += _add_end_losses(graph, layer, tops) if b.training else tops
        except UnmodelledError as error:
            hint = "--allow-unknown passes its input on"
            raise InputError(f"{place}: {error} is not modelled; {hint}") from None
        except ShapeError as error:
            reason = str(error).removeprefix(f"{layer.name}: ")  # `place` names the layer already
            raise InputError(f"{place}: {reason}") from None
    if not b.training:
        # the last output in the file is the network's
        return results[-1]
    if not b.weights:
        raise InputError(f"{file}: has no weights to train")
    return _add_losses_up(b, results)


def _find_batch_norm_scales(net: Net) -> dict[int, CaffeLayer]:
    """Return the Scale layers that are the weights of a batch norm, by the blob between both.

    The blob must be read by the Scale alone, and be no output.
    """
    # Caffe writes a batch norm as two layers, BatchNorm and Scale, which one op computes.
    reader_counts = Counter(blob for layer in net.layers for blob in layer.bottoms)
    normed_blobs = {
        blob for layer in net.layers if layer.type == "BatchNorm" for blob in layer.tops[:1]
    }
    output_blobs = {blob for layer in net.end_layers for blob in layer.tops}
    scale_by_blob: dict[int, CaffeLayer] = {}
    for layer in net.layers:
        if not fits_batch_norm(layer):
            continue
        blob = layer.bottoms[0]
        is_inner = blob in normed_blobs and blob not in output_blobs
        # what else reads the blob needs the norm without the scale
        if is_inner and reader_counts[blob] == 1:
            scale_by_blob[blob] = layer
    return scale_by_blob


def _add_tops(graph: CaffeGraph, layer: CaffeLayer, is_end: bool, allow_unknown: bool) -> Tensors:
    """Append a layer and return its tops; those of an unmodelled layer are its first bottom."""
    if not layer.bottoms:
        raise ShapeError("has no bottom")
    x = graph.blob_tensor(layer.bottoms[0])
    try:
        tops = _add_modelled_tops(graph, layer, x, is_end)
    except UnmodelledError:
        if not allow_unknown:
            raise
        graph.b.unmodelled.append(layer.name)
        return (x,) * max(1, len(layer.tops))
    if layer.has_unknown_field:
        graph.b.unmodelled.append(layer.name)
    return tops


def _add_modelled_tops(graph: CaffeGraph, layer: CaffeLayer, x: str, is_end: bool) -> Tensors:
    """Append a layer whose first bottom is `x`; in training a Softmax at the end is a loss."""
    _check_gradients(graph, layer)
    if layer.type in LOSSES:
        return (_add_loss(graph, layer, x),)
    # a file for inference ends with a Softmax: its training is that of a classifier
    if layer.type == "Softmax" and is_end and graph.b.training:
        return (_add_cross_entropy(graph, layer, x),)
    # A layer of unknown type passes on its first bottom (--allow-unknown): further ones, which
    # nothing would read, must not become inputs of the graph.
    can_add = layer.type in TYPES
    further_bottoms = layer.bottoms[1:] if can_add else ()
    inputs = (x, *map(graph.blob_tensor, further_bottoms))
    return add_layer(graph, layer, inputs)


def _check_gradients(graph: CaffeGraph, layer: CaffeLayer) -> None:
    """Raise `UnmodelledError` for a gradient that the file stops between two layers."""
    if not graph.b.training:
        return
    if "propagate_down" not in layer.message.DESCRIPTOR.fields_by_name:
        return
    blob_flags = zip(layer.bottoms, layer.message.propagate_down, strict=False)
    for position, (blob, propagates) in enumerate(blob_flags):
        # fed blobs and the targets of a loss have no gradient that the file could stop
        is_fed = blob in graph.source_by_blob
        is_target = position > 0 and layer.type in LOSSES
        needs_gradient = not is_fed and not is_target
        if needs_gradient and not propagates:
            raise UnmodelledError("propagate_down: false")


def _add_loss(graph: CaffeGraph, layer: CaffeLayer, x: str) -> str:
    """Append a loss layer, in inference the output that stands in its place."""
    if not graph.b.training:
        return _add_inference_output(graph, layer, x)
    if layer.type == "SoftmaxWithLoss":
        return _add_cross_entropy(graph, layer, x)
    if layer.type == "EuclideanLoss":
        return _add_euclidean_loss(graph, layer, x)
    raise UnmodelledError(f"a layer of type '{layer.type}'")


def _add_cross_entropy(graph: CaffeGraph, layer: CaffeLayer, x: str) -> str:
    """Append the mean cross entropy along the axis of the softmax."""
    axis = resolve_axis(layer.message.softmax_param.axis, len(graph.shape(x)))
    logits = graph.move_axes_last(x, range(axis, axis + 1), layer.name).tensor
    require(len(graph.shape(logits)) >= 2, f"a loss of {list(graph.shape(x))}")
    labels = graph.add_labels(layer, graph.shape(logits)[:-1])
    return graph.b.op("cross_entropy", logits, labels, name=layer.name)


def _add_euclidean_loss(graph: CaffeGraph, layer: CaffeLayer, x: str) -> str:
    """Append the mean square of a difference (Caffe halves the sum, and divides by the batch)."""
    require(len(layer.bottoms) == 2, f"{len(layer.bottoms)} bottoms, not 2")
    target = layer.bottoms[1]
    # a fed target gets the shape of what it is compared with, whatever its source states
    if target in graph.source_by_blob and target not in graph.tensor_by_blob:
        graph.tensor_by_blob[target] = graph.add_input(target, graph.shape(x))
    b = graph.b
    difference = b.op("sub", x, graph.blob_tensor(target), name=f"{layer.name}/difference")
    square = b.op("mul", difference, difference, name=f"{layer.name}/square")
    return b.op("mean", square, name=layer.name)


def _add_inference_output(graph: CaffeGraph, layer: CaffeLayer, x: str) -> str:
    """Append the output of a network in inference in place of its loss."""
    if layer.type == "SoftmaxWithLoss":
        # the second bottom are the labels, which inference does not read
        softmax = replace(layer, type="Softmax", bottoms=layer.bottoms[:1])
        return add_layer(graph, softmax, (x,))[0]
    if layer.type == "SigmoidCrossEntropyLoss":
        return graph.b.op("sigmoid", x, name=layer.name)
    return x


def _add_end_losses(graph: CaffeGraph, layer: CaffeLayer, tops: Tensors) -> list[str]:
    """Return the losses of an end: its tops if they are numbers, else their means."""
    losses: list[str] = []
    # several tops can be one tensor, which counts once
    for number, top in enumerate(dict.fromkeys(tops)):
        is_scalar = graph.shape(top) == ()
        name = f"{layer.name}/loss{number or ''}"
        losses.append(top if is_scalar else graph.b.op("mean", top, name=name))
    return losses


def _add_losses_up(b: Builder, losses: list[str]) -> str:
    """Append the sum of the losses; the products with their weights are not counted."""
    total = losses[0]
    for number, loss in enumerate(losses[1:], 1):
        total = b.op("add", total, loss, name=f"loss_sum/{number}")
    return total
