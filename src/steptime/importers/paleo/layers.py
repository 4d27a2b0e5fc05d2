"""The layer types that a Paleo file may name: their shapes, what they run as, their parents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steptime.core.graph import Layer
from steptime.importers.paleo import lowering, shapes
from steptime.importers.paleo.blocks import Entry
from steptime.importers.paleo.lowering import Lower
from steptime.importers.paleo.shapes import Batch, Shape


@dataclass(frozen=True)
class LayerType:
    """One row: the layer's shapes given those of its parents, its ops, and how many parents."""

    shapes: Callable[[Entry, Sequence[Shape], Batch], Layer]
    lower: Lower
    parents: tuple[int, float] = (1, 1)


MANY = (1, float("inf"))

UNKNOWN = LayerType(shapes.passing, lowering.passing, MANY)
TYPES = {
    "Input": LayerType(shapes.input_layer, lowering.input_layer, (0, 0)),
    "Convolution": LayerType(shapes.convolution, lowering.convolution),
    "Deconvolution": LayerType(shapes.deconvolution, lowering.deconvolution),
    "InnerProduct": LayerType(shapes.inner_product, lowering.inner_product),
    "Pooling": LayerType(shapes.pooling, lowering.pooling("max_pool2d")),
    "AvgPool": LayerType(shapes.pooling, lowering.pooling("avg_pool2d")),
    "UpSampling2D": LayerType(shapes.upsampling, lowering.upsampling),
    "Dropout": LayerType(shapes.dropout, lowering.dropout),
    "Concatenate": LayerType(shapes.concatenate, lowering.concatenate, MANY),
    "Elementwise": LayerType(shapes.passing, lowering.elementwise, MANY),
    "Reshape": LayerType(shapes.reshape, lowering.reshape),
    "Softmax": LayerType(shapes.softmax, lowering.softmax),
    "Sigmoid": LayerType(shapes.sigmoid, lowering.activation("sigmoid")),
    "ReLU": LayerType(shapes.passing, lowering.activation("relu")),
    "BatchNorm": LayerType(shapes.passing, lowering.batch_norm),
    "Scale": LayerType(shapes.passing, lowering.scale),
    "LRN": LayerType(shapes.passing, lowering.local_response_norm),
    "Accuracy": LayerType(shapes.passing, lowering.passing, MANY),
}
