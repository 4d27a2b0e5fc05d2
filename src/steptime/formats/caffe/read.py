"""Networks of Caffe: reads a `.prototxt` and lowers it to op kinds (`read`).

A network is that of the asked phase: `include` and `exclude` rules choose its layers as in Caffe,
and layers that lead neither to a loss nor to an output are left out (`net.net_in_phase`).
In training the losses are added; one without a loss is trained on its outputs, a Softmax there as
the loss that it stands for. Labels are int64 inputs of the shape that the loss needs.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.formats import Source
from steptime.formats.caffe.inputs import SOURCES
from steptime.formats.caffe.layers import TYPES, UNMODELLED, joins_batch_norm, lowered
from steptime.formats.caffe.lowering import Lowering, UnmodelledError, axis_of
from steptime.formats.caffe.net import LOSSES, UNUSED, CaffeLayer, Net, Phase, net_in_phase
from steptime.formats.caffe.schema import parse
from steptime.network.families.family import Family
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, require

KNOWN = (*TYPES, *LOSSES, *UNUSED, *UNMODELLED.split())


def read(source: Source, allow_unknown: bool) -> Family:
    """Return the network of a prototxt as a `Family` without hyperparameters.

    Its batch is the file's own; another takes its place in every input that names it. With
    `allow_unknown` a layer that cannot be modelled passes its first bottom on and is named in the
    graph, and fields unknown to Caffe are passed over. Raises `InputError`, one line that names
    the layer.
    """
    name = source.name
    message, strange = parse(source.text, name)
    if len(message.layer) and len(message.layers):
        raise InputError(f"{name}: has both 'layer' and the older 'layers'")
    if not allow_unknown:
        _check_types(message, name)
        if strange:
            raise strange[0].error(name)
    odd = frozenset(field.layer for field in strange)

    @lru_cache(maxsize=2)
    def net(phase: Phase) -> Net:
        return net_in_phase(message, phase, KNOWN, odd, name)

    try:
        batch = net("TRAIN").batch
    except InputError as reason:
        try:
            batch = net("TEST").batch  # a file for one phase alone
        except InputError:
            raise reason from None

    def build(b: Builder, _: Mapping[str, Any], batch: int) -> str:
        return _build(b, net("TRAIN" if b.training else "TEST"), batch, name, allow_unknown)

    return Family(name, build, {}, f"read from Caffe's {name}", batch, named=True)


def _check_types(message: Any, where: str) -> None:
    known = [*KNOWN, *SOURCES]
    for i, layer in enumerate(message.layer):
        if layer.type not in known:
            place = f"{where}: layer {shorten(layer.name or f'number {i}')}"
            raise unknown("type of layer", layer.type, known, place)


def _build(b: Builder, net: Net, batch: int, where: str, allow_unknown: bool) -> str:
    """Lower every layer and give the sum of the losses, in inference the last output."""
    names = frozenset(layer.name for layer in net.layers)
    n = Lowering(b, batch, net.batch, net.sources, names, scaled=_scaled(net))
    ends: list[str] = []
    for layer in net.layers:
        place = f"{where}: layer {shorten(layer.name)}"
        is_end = layer in net.ends
        try:
            tops = _tops(n, layer, is_end, allow_unknown)
            n.tensors.update(zip(layer.tops, tops, strict=False))
            if is_end:
                ends += _losses(n, layer, tops) if b.training else tops
        except UnmodelledError as reason:
            advice = "--allow-unknown passes its input on"
            raise InputError(f"{place}: {reason} is not modelled; {advice}") from None
        except ShapeError as reason:
            raise InputError(f"{place}: {str(reason).removeprefix(f'{layer.name}: ')}") from None
    if not b.training:
        return ends[-1]
    if not b.weights:
        raise InputError(f"{where}: has no weights to train")
    return _sum(b, ends)


def _scaled(net: Net) -> dict[int, CaffeLayer]:
    """Return each Scale that is the weights of a batch norm, by the blob between the two."""
    readers = Counter(number for layer in net.layers for number in layer.bottoms)
    normed = {top for layer in net.layers if layer.type == "BatchNorm" for top in layer.tops[:1]}
    normed -= {top for layer in net.ends for top in layer.tops}
    return {
        layer.bottoms[0]: layer
        for layer in net.layers
        if joins_batch_norm(layer) and layer.bottoms[0] in normed and readers[layer.bottoms[0]] == 1
    }


def _tops(n: Lowering, layer: CaffeLayer, is_end: bool, allow_unknown: bool) -> tuple[str, ...]:
    """Return the tensors that a layer makes; a loss gives itself in training."""
    if not layer.bottoms:
        raise ShapeError("has no bottom")
    x = n.tensor(layer.bottoms[0])
    try:
        _check_gradients(n, layer)
        if layer.type in LOSSES:
            tops: tuple[str, ...] = (_loss(n, layer, x),)
        elif layer.type == "Softmax" and is_end and n.b.training:
            tops = (_cross_entropy(n, layer, x),)
        else:
            others = layer.bottoms[1:] if layer.type in TYPES else ()
            tops = lowered(n, layer, (x, *map(n.tensor, others)))
    except UnmodelledError:
        if not allow_unknown:
            raise
        n.b.unmodelled.append(layer.name)
        return (x,) * max(1, len(layer.tops))
    if layer.odd:
        n.b.unmodelled.append(layer.name)
    return tops


def _check_gradients(n: Lowering, layer: CaffeLayer) -> None:
    """Refuse gradients that the file stops where there would be some."""
    if not n.b.training or "propagate_down" not in layer.message.DESCRIPTOR.fields_by_name:
        return
    for i, (number, wanted) in enumerate(
        zip(layer.bottoms, layer.message.propagate_down, strict=False)
    ):
        if not wanted and number not in n.sources and not (i and layer.type in LOSSES):
            raise UnmodelledError("propagate_down: false")


def _loss(n: Lowering, layer: CaffeLayer, x: str) -> str:
    """Return a loss layer's number, in inference what the network ends with in its place."""
    if not n.b.training:
        return _without_loss(n, layer, x)
    if layer.type == "SoftmaxWithLoss":
        return _cross_entropy(n, layer, x)
    if layer.type == "EuclideanLoss":
        return _euclidean(n, layer, x)
    raise UnmodelledError(f"a layer of type '{layer.type}'")


def _cross_entropy(n: Lowering, layer: CaffeLayer, x: str) -> str:
    """Return the mean cross-entropy along the softmax's axis; labels are an input."""
    axis = axis_of(layer.message.softmax_param.axis, len(n.b.shape(x)))
    seen, _ = n.last(x, range(axis, axis + 1), layer.name)
    require(len(n.b.shape(seen)) >= 2, f"a loss of {list(n.b.shape(x))}")
    labels = n.labels(layer, n.b.shape(seen)[:-1])
    return n.b.op("cross_entropy", seen, labels, name=layer.name)


def _euclidean(n: Lowering, layer: CaffeLayer, x: str) -> str:
    """Return the mean square of a difference (Caffe halves the sum, and divides by the batch)."""
    require(len(layer.bottoms) == 2, f"{len(layer.bottoms)} bottoms, not 2")
    target = layer.bottoms[1]
    if target in n.sources and target not in n.tensors:
        n.tensors[target] = n.fed(target, n.b.shape(x))
    y = n.b.op("sub", x, n.tensor(target), name=f"{layer.name}/difference")
    y = n.b.op("mul", y, y, name=f"{layer.name}/square")
    return n.b.op("mean", y, name=layer.name)


def _without_loss(n: Lowering, layer: CaffeLayer, x: str) -> str:
    """Return what a network ends with in inference where the file has a loss."""
    if layer.type == "SoftmaxWithLoss":
        return lowered(n, replace(layer, type="Softmax", bottoms=layer.bottoms[:1]), (x,))[0]
    if layer.type == "SigmoidCrossEntropyLoss":
        return n.b.op("sigmoid", x, name=layer.name)
    return x


def _losses(n: Lowering, layer: CaffeLayer, tops: tuple[str, ...]) -> list[str]:
    """Return the numbers that an end adds to the loss: its own, or the means of its outputs."""
    return [
        top if n.b.shape(top) == () else n.b.op("mean", top, name=f"{layer.name}/loss{i or ''}")
        for i, top in enumerate(dict.fromkeys(tops))
    ]


def _sum(b: Builder, losses: list[str]) -> str:
    """Return the sum of the losses; their weights, one product each, are not counted."""
    total = losses[0]
    for i, loss in enumerate(losses[1:], 1):
        total = b.op("add", total, loss, name=f"loss_sum/{i}")
    return total
