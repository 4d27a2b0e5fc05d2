"""Layers of Caffe lowered to op kinds: a function of each type, `(graph, layer, bottoms) -> tops`.

The op of a layer's main work has the layer's name. A function says where it departs from the
computation of Caffe.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from steptime.formats.caffe import images, shapes
from steptime.formats.caffe.images import add_bias_weight, read_output_width
from steptime.formats.caffe.lowering import CaffeGraph, Tensors, UnmodelledError, resolve_axis
from steptime.formats.caffe.net import CaffeLayer
from steptime.network.layers.dense import dropout
from steptime.network.ops.table import ShapeError, require

MAX_BOTTOMS = 1000  # of a layer that joins blobs; each is an op
LAST_AXES = -1  # of `num_axes`: all axes behind the first one
AddTops = Callable[[CaffeGraph, CaffeLayer, Tensors], Tensors]


@dataclass(frozen=True)
class LayerType:
    """A type of layer.

    Attributes:
        add: appends the ops of a layer and returns its tops.
        min_bottoms: the fewest bottoms that it takes.
        max_bottoms: the largest number of bottoms that it takes.
    """

    add: AddTops
    min_bottoms: int = 1
    max_bottoms: int = 1


def add_inner_product(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append a linear layer over all axes from `axis` on.

    `transpose` says only how the weights are stored.
    """
    settings = layer.message.inner_product_param
    shape = graph.shape(inputs[0])
    axis = resolve_axis(settings.axis, len(shape))
    require(axis >= 1, "an inner product over the batch (axis 0)")
    fan_in = math.prod(shape[axis:])
    rows = inputs[0]
    if len(shape) > axis + 1:
        row_shape = (*shape[:axis], fan_in)
        rows = graph.b.op("reshape", rows, name=f"{layer.name}/flatten", shape=row_shape)
    weight = graph.add_weight(
        layer, number=0, suffix="w", shape=(read_output_width(settings), fan_in)
    )
    y = graph.b.op("linear", rows, weight, name=layer.name)
    return (add_bias_weight(graph, layer, y, axis) if settings.bias_term else y,)


class _AlignedOperands(NamedTuple):
    """The operands of a function along some axes of a tensor.

    Attributes:
        tensor: the tensor with these axes last.
        operand: the vector, weight or second bottom that is applied along them.
        shape: the sizes of these axes.
        restore: moves the axes of a result back.
    """

    tensor: str
    operand: str
    shape: tuple[int, ...]
    restore: Callable[[str], str]


def _align_operand(
    graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors, settings: Any, suffix: str
) -> _AlignedOperands:
    """Return the operands of a Scale or Bias, along the axes from `settings.axis` on.

    Args:
        graph: the graph.
        layer: the layer.
        inputs: its bottoms; a second one is the operand, else it is a weight.
        settings: the message with `axis` and `num_axes`.
        suffix: the name of the weight.
    """
    shape = graph.shape(inputs[0])
    has_operand = len(inputs) > 1
    axis_count = len(graph.shape(inputs[1])) if has_operand else settings.num_axes
    # an operand without axes is a number: it covers no axis, and its range begins behind the last
    first_axis = resolve_axis(settings.axis, len(shape)) if axis_count else len(shape)
    end_axis = len(shape) if axis_count == LAST_AXES else first_axis + axis_count
    is_inside = axis_count >= LAST_AXES and end_axis <= len(shape)
    require(is_inside, f"{axis_count} axes from {first_axis} of {list(shape)}")
    covered_shape = shape[first_axis:end_axis]
    operand = (
        inputs[1]
        if has_operand
        else graph.add_weight(layer, number=0, suffix=suffix, shape=covered_shape)
    )
    operand_shape = graph.shape(operand)
    require(operand_shape == covered_shape, f"{list(operand_shape)} along {list(covered_shape)}")
    view = graph.move_axes_last(inputs[0], range(first_axis, end_axis), layer.name)
    return _AlignedOperands(view.tensor, operand, covered_shape, view.restore)


def fits_batch_norm(layer: CaffeLayer) -> bool:
    """Whether a layer is a Scale that can be the weights of the batch norm before it."""
    settings = layer.message.scale_param
    is_per_channel = settings.axis == 1 and settings.num_axes == 1
    return layer.type == "Scale" and len(layer.bottoms) == 1 and is_per_channel


def add_scale(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append a product with a weight or the second bottom along some axes, and perhaps a bias."""
    if layer.bottoms[0] in graph.scale_by_blob:
        return inputs  # the op of the batch norm before it scales, too
    settings = layer.message.scale_param
    operands = _align_operand(graph, layer, inputs, settings, "w")
    product = graph.b.op("mul", operands.tensor, operands.operand, name=layer.name)
    y = operands.restore(product)
    if settings.bias_term:
        # the bias is the first weight of the layer where the scale is its second bottom
        bias_number = 0 if len(inputs) > 1 else 1
        bias = graph.add_weight(layer, bias_number, "b", operands.shape)
        y = _add_scale_bias(graph, layer, y, bias)
    return (y,)


def _add_scale_bias(graph: CaffeGraph, layer: CaffeLayer, y: str, bias: str) -> str:
    """Append the bias of a Scale, along the axes from its `axis` on."""
    axis = layer.message.scale_param.axis
    name = f"{layer.name}/bias"
    axis_count = len(graph.shape(bias))
    if axis_count == 1:
        return graph.b.op("bias", y, bias, name=name, axis=axis)
    rank = len(graph.shape(y))
    first = resolve_axis(axis, rank) if axis_count else rank
    view = graph.move_axes_last(y, range(first, first + axis_count), name)
    return view.restore(graph.b.op("add", view.tensor, bias, name=name))


def add_bias(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append a sum with a weight or the second bottom along some axes."""
    operands = _align_operand(graph, layer, inputs, layer.message.bias_param, "b")
    total = graph.b.op("add", operands.tensor, operands.operand, name=layer.name)
    return (operands.restore(total),)


def add_relu(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append ReLU; with a slope for inputs below 0 it counts as PReLU with an untrained slope."""
    if layer.message.relu_param.negative_slope == 0:
        return (graph.b.op("relu", inputs[0], name=layer.name),)
    slope = graph.b.buffer(f"{layer.name}/slope", (1,))
    return (graph.b.op("prelu", inputs[0], slope, name=layer.name),)


def add_prelu(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append ReLU with a trained slope for each channel, or one for all."""
    shape = graph.shape(inputs[0])
    require(len(shape) >= 2, f"needs [batch, channels, ...], not {list(shape)}")
    slope_shape = (1,) if layer.message.prelu_param.channel_shared else shape[1:2]
    slope = graph.add_weight(layer, number=0, suffix="w", shape=slope_shape)
    return (graph.b.op("prelu", inputs[0], slope, name=layer.name),)


def add_sigmoid(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append the logistic function."""
    return (graph.b.op("sigmoid", inputs[0], name=layer.name),)


def add_tanh(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append the hyperbolic tangent."""
    return (graph.b.op("tanh", inputs[0], name=layer.name),)


def add_power(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append `(shift + scale x)^power` for the powers 1 and 2: a product, a sum, a square."""
    settings = layer.message.power_param
    if settings.power not in (1, 2):
        raise UnmodelledError(f"Power with power {settings.power:g}")
    steps: list[str] = []  # of (scale * x + shift) ** power
    if settings.scale != 1:
        steps.append("scale")
    if settings.shift != 0:
        steps.append("shift")
    if settings.power == 2:
        steps.append("square")
    y = inputs[0]
    for step in steps:
        is_last = step == steps[-1]
        name = layer.name if is_last else f"{layer.name}/{step}"
        operand = y if step == "square" else graph.add_constant(f"{layer.name}/{step}_by")
        kind = "add" if step == "shift" else "mul"
        y = graph.b.op(kind, y, operand, name=name)
    return (y,)


def add_dropout(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append dropout of the share `dropout_ratio` in training."""
    ratio = layer.message.dropout_param.dropout_ratio
    require(0 <= ratio < 1, f"dropout_ratio {ratio:g} is not at least 0 and below 1")
    return (dropout(graph.b, inputs[0], ratio, layer.name) if layer.training else inputs[0],)


def add_softmax(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append a softmax along an axis, by default that of the channels."""
    axis = resolve_axis(layer.message.softmax_param.axis, len(graph.shape(inputs[0])))
    view = graph.move_axes_last(inputs[0], range(axis, axis + 1), layer.name)
    return (view.restore(graph.b.op("softmax", view.tensor, name=layer.name)),)


TYPES = {
    "Convolution": LayerType(images.add_convolution),
    "Deconvolution": LayerType(images.add_convolution),
    "InnerProduct": LayerType(add_inner_product),
    "Pooling": LayerType(images.add_pooling),
    "BatchNorm": LayerType(images.add_batch_norm),
    "Scale": LayerType(add_scale, max_bottoms=2),
    "Bias": LayerType(add_bias, max_bottoms=2),
    "LRN": LayerType(images.add_local_response_norm),
    "ReLU": LayerType(add_relu),
    "PReLU": LayerType(add_prelu),
    "Sigmoid": LayerType(add_sigmoid),
    "TanH": LayerType(add_tanh),
    "Power": LayerType(add_power),
    "Dropout": LayerType(add_dropout),
    "Softmax": LayerType(add_softmax),
    "Concat": LayerType(shapes.add_concat, max_bottoms=MAX_BOTTOMS),
    "Eltwise": LayerType(shapes.add_eltwise, min_bottoms=2, max_bottoms=MAX_BOTTOMS),
    "Flatten": LayerType(shapes.add_flatten),
    "Reshape": LayerType(shapes.add_reshape),
    "Split": LayerType(shapes.add_split),
    "Slice": LayerType(shapes.add_slices),
    "Crop": LayerType(shapes.add_crop, min_bottoms=2, max_bottoms=2),
}
UNMODELLED_TYPES = (  # types that Caffe has and for which there are no op kinds here
    *("AbsVal", "ArgMax", "BatchReindex", "BNLL", "Clip", "ELU", "Embed", "Exp", "Filter"),
    *("Im2col", "Log", "LSTM", "MVN", "Parameter", "Python", "Reduction", "RNN", "SPP", "Swish"),
    *("Threshold", "Tile"),
)


def add_layer(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append a layer and return its tops.

    Args:
        graph: the graph.
        layer: the layer, which is no loss.
        inputs: its bottoms.

    Raises:
        ShapeError: for sizes that do not fit.
        UnmodelledError: for a layer without op kinds.
    """
    row = TYPES.get(layer.type)
    if row is None:
        raise UnmodelledError(f"a layer of type '{layer.type}'")
    if not row.min_bottoms <= len(inputs) <= row.max_bottoms:
        is_range = row.min_bottoms != row.max_bottoms
        counts = f"{row.min_bottoms} to {row.max_bottoms}" if is_range else row.min_bottoms
        raise ShapeError(f"{len(inputs)} bottoms, not {counts}")
    return row.add(graph, layer, inputs)
