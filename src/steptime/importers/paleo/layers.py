"""The layer types that a Paleo file may name: their shapes, what they run as, their parents."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from steptime.core.graph import Layer
from steptime.importers.paleo import lowering, shapes
from steptime.importers.paleo.blocks import Entry
from steptime.importers.paleo.shapes import Batch, Shape
from steptime.layers import dense, image
from steptime.ops.builder import Builder


class LayerType(NamedTuple):
    """One row: the layer's shapes given those of its parents, its ops, and how many parents."""

    shapes: Callable[[Entry, Sequence[Shape], Batch], Layer]
    lower: Callable[[Builder, Entry, Layer, Sequence[str]], str]
    parents: tuple[int, float] = (1, 1)


def _op(kind: str, b: Builder, e: Entry, _: Layer, x: Sequence[str], **attrs: Any) -> str:
    return b.op(kind, x[0], name=e.name, **attrs)


def _pool(kind: str, b: Builder, e: Entry, layer: Layer, x: Sequence[str]) -> str:
    """Return pooling by an op kind.

    Padding of an average counts as zeros, where TensorFlow leaves it out of the mean: other values
    at the rim, the same work.
    """
    pads = lowering.sides(layer, b.shape(x[0])[2:])
    return b.op(kind, x[0], name=e.name, kernel=layer.kernel, stride=layer.strides, padding=pads)


MANY = (1, float("inf"))

UNKNOWN = LayerType(shapes.passing, lambda b, e, layer, x: x[0], MANY)
TYPES = {
    "Input": LayerType(
        shapes.input_layer,
        lambda b, e, layer, x: b.input(e.name, lowering.channels_first(layer.outputs)),
        (0, 0),
    ),
    "Convolution": LayerType(shapes.convolution, lowering.convolution),
    "Deconvolution": LayerType(shapes.deconvolution, lowering.deconvolution),
    "InnerProduct": LayerType(shapes.inner_product, lowering.inner_product),
    "Pooling": LayerType(shapes.pooling, partial(_pool, "max_pool2d")),
    "AvgPool": LayerType(shapes.pooling, partial(_pool, "avg_pool2d")),
    "UpSampling2D": LayerType(
        shapes.upsampling,
        lambda b, e, layer, x: b.op("upsample2d", x[0], name=e.name, scale=layer.kernel),
    ),
    "Dropout": LayerType(
        shapes.dropout,
        lambda b, e, layer, x: dense.dropout(b, x[0], 1.0 - e.keys["dropout_keep_prob"], e.name),
    ),
    "Concatenate": LayerType(shapes.concatenate, lowering.concatenate, MANY),
    "Elementwise": LayerType(shapes.passing, lowering.elementwise, MANY),
    "Reshape": LayerType(  # the elements are in another order than channels last
        shapes.reshape,
        lambda b, e, layer, x: b.op(
            "reshape", x[0], name=e.name, shape=lowering.channels_first(layer.outputs)
        ),
    ),
    "Softmax": LayerType(
        shapes.softmax,
        lambda b, e, layer, x: b.op("softmax", lowering.rows(b, x[0], e.name), name=e.name),
    ),
    "Sigmoid": LayerType(shapes.sigmoid, partial(_op, "sigmoid")),
    "ReLU": LayerType(shapes.passing, partial(_op, "relu")),
    "BatchNorm": LayerType(
        shapes.passing, lambda b, e, layer, x: image.batch_norm(b, x[0], e.name, e.name)
    ),
    "Scale": LayerType(shapes.passing, lowering.scale),
    "LRN": LayerType(  # Caffe's, where a file names no sizes
        shapes.passing, partial(_op, "local_response_norm", size=5, alpha=1.0, beta=0.75, k=1.0)
    ),
    "Accuracy": UNKNOWN,
}
