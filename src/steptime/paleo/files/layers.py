"""The layer types of a Paleo file: the file's rules for each, and the op kinds that it runs as.

Shapes of the file are channels last, `[n, h, w, c]` or `[n, k]`; of tensors channels first. The
rules are those of Qi, Sparks, Talwalkar, *Paleo*, ICLR 2017, and of its public implementation: a
bias is counted for every filter, whether there is one or not. The op of a layer's main work has the
layer's name; what goes with it is `layer/bias`, `layer/relu`, ...
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from steptime.core.errors import shorten
from steptime.network.layers import dense, image
from steptime.paleo.files.layer import (
    OPEN_SIZE,
    LayerBuilder,
    Pair,
    Shape,
    channels_first,
    channels_last,
)
from steptime.paleo.layers import Layer

Built = tuple[Layer, str]
Lower = Callable[[LayerBuilder], Built]


def _build_input(layer: LayerBuilder) -> Built:
    """`tensor [n, ...]`, the asked batch in the place of n."""
    shape = (layer.batch, *layer.sizes("tensor", 2, 3, 4)[1:])
    record = layer.layer("input", shape, inputs=shape)
    return record, layer.b.input(layer.name, channels_first(shape))


def _build_convolution(layer: LayerBuilder) -> Built:
    """`filter [kh, kw, c_in, c_out], strides, padding`; kh*kw*c_in*c_out + c_out parameters."""
    n, _, _, channels = layer.image
    kernel, c_in, filters = layer.filter()
    if c_in not in (OPEN_SIZE, channels):  # if open, as many as the parent has
        raise layer.fault(f"its filter takes {c_in} channels, its parent gives {channels}")
    c_out = layer.filters_per_split(filters)
    window = layer.window(kernel)
    size, settings = layer.slide_window(layer.image, window)
    weights = (*kernel, channels, c_out)
    record = layer.layer("conv", (n, *size, c_out), weights=weights, biases=c_out, **window)
    w = layer.b.weight(f"{layer.name}/w", (c_out, channels, *kernel))
    return record, layer.finish_product(layer.op("conv2d", layer.x[0], w, **settings))


def _build_deconvolution(layer: LayerBuilder) -> Built:
    """Read the transpose of a convolution that leads from `output_shape` to the input.

    `filter [kh, kw, c_O, c_I]`; kh*kw*c_O*c_I + c_I parameters: the bias is the convolution's.
    """
    batch = layer.image[0]
    stated_batch, *size, channels = layer.sizes("output_shape", 4)
    # `output_shape` has the file's batch, which says nothing about another one
    has_file_batch = layer.batch == layer.file_batch
    if has_file_batch and stated_batch != batch:
        raise layer.fault(f"output_shape has batch {stated_batch}, its parent has {batch}")
    kernel, c_in = _read_transposed_filter(layer, channels)
    outputs = (batch, *size, layer.filters_per_split(channels))
    window = layer.window(kernel)
    # Its convolution, which leads back from the output, must give the size of the parent.
    convolved_size, settings = layer.slide_window(outputs, window)
    input_size = list(layer.image[1:3])
    if [*convolved_size] != input_size:
        raise layer.fault(
            f"its convolution leads from {list(outputs)} to {list(convolved_size)}, "
            f"not to the {input_size} of its parent"
        )
    weights = (*kernel, outputs[3], c_in)
    # The bias is that of the convolution whose transpose this is.
    record = layer.layer("deconv", outputs, weights=weights, biases=c_in, **window)
    w = layer.b.weight(f"{layer.name}/w", (c_in, outputs[3], *kernel))
    y = layer.op("conv_transpose2d", layer.x[0], w, output_size=outputs[1:3], **settings)
    return record, layer.finish_product(y)


def _read_transposed_filter(layer: LayerBuilder, channels: int) -> tuple[Pair, int]:
    """Return the kernel and the input channels of a filter that gives so many channels."""
    kernel, c_out, c_in = layer.filter()
    if c_out not in (OPEN_SIZE, channels):  # if open, as many as the output has
        raise layer.fault(f"its filter gives {c_out} channels, output_shape has {channels}")
    width = layer.image[3]
    if c_in != width:
        raise layer.fault(f"its filter takes {c_in} channels, its parent gives {width}")
    return kernel, c_in


def _flatten(layer: LayerBuilder, x: str) -> str:
    return layer.op("flatten", x, suffix="/flatten") if len(layer.b.shape(x)) > 2 else x


def _build_inner_product(layer: LayerBuilder) -> Built:
    """`num_outputs` m: the input seen as `[n, k]` `-> [n, m]`; k*m + m parameters.

    The elements are flattened channels first: other places of the weights, the same work.
    """
    width = layer.filters_per_split(layer.size("num_outputs", layer.file_layer.key("num_outputs")))
    n, *sizes = layer.shapes[0]
    inputs = math.prod(sizes)
    record = layer.layer(
        "inner_product",
        (n, width),
        inputs=(n, inputs),
        weights=(inputs, width),
        biases=width,
    )
    y = _flatten(layer, layer.x[0])
    _, flat_inputs = layer.b.shape(y)
    w = layer.b.weight(f"{layer.name}/w", (width, flat_inputs))
    return record, layer.finish_product(layer.op("linear", y, w))


def _build_pooling(kind: str, layer: LayerBuilder) -> Built:
    """`ksize, strides, padding`; padding of an average counts as zeros, unlike TensorFlow's."""
    n, _, _, channels = layer.image
    window = layer.window(layer.image_sides("ksize"))
    size, settings = layer.slide_window(layer.image, window)
    record = layer.layer("pool", (n, *size, channels), **window)
    return record, layer.op(kind, layer.x[0], kernel=record.kernel, **settings)


def _build_dropout(layer: LayerBuilder) -> Built:
    """`dropout_keep_prob`, the share of elements that is kept."""
    keep = layer.file_layer.key("dropout_keep_prob")
    if type(keep) not in (int, float) or not 0 < keep <= 1:
        raise layer.fault(f"dropout_keep_prob must be above 0 and at most 1, not {shorten(keep)}")
    y = dense.dropout(layer.b, layer.x[0], 1.0 - keep, layer.name)
    return layer.layer("dropout", layer.shapes[0]), y


def _build_concatenation(layer: LayerBuilder) -> Built:
    """`dim`, the axis along which the parents' sizes add up."""
    first_shape = layer.shapes[0]
    stated_axis = layer.file_layer.key("dim")
    rank = len(first_shape)
    if type(stated_axis) is not int or not -rank <= stated_axis < rank:
        raise layer.fault(f"dim must be an axis of {list(first_shape)}, not {shorten(stated_axis)}")
    axis = stated_axis % rank
    sizes_before, sizes_after = _sizes_around(first_shape, axis)
    for name, shape in zip(layer.file_layer.parents, layer.shapes, strict=True):
        if _sizes_around(shape, axis) != (sizes_before, sizes_after):
            mismatch = f"{list(shape)} of {shorten(name)} does not fit to {list(first_shape)}"
            raise layer.fault(f"{mismatch} along axis {axis}")
    total_size = sum(shape[axis] for shape in layer.shapes)
    record = layer.layer("other", (*sizes_before, total_size, *sizes_after))
    # The file counts axes channels last, tensors have them channels first.
    tensor_axis = channels_first(range(rank)).index(axis)
    return record, layer.op("concat", *layer.x, axis=tensor_axis)


def _sizes_around(shape: Shape, axis: int) -> tuple[Shape, Shape]:
    """Return the sizes of a shape before and after an axis."""
    return tuple(shape[:axis]), tuple(shape[axis + 1 :])


def _build_reshaping(layer: LayerBuilder) -> Built:
    """`output_shape` of as many elements; one -1 is filled in, and the file's batch replaced.

    The elements are in another order than channels last.
    """
    value = layer.file_layer.key("output_shape")
    if not isinstance(value, list) or len(value) not in (2, 3, 4):
        raise layer.fault(f"output_shape must be 2 to 4 numbers, not {shorten(value)}")
    element_count = math.prod(layer.shapes[0])
    sizes = _fill_open_size(_read_open_sizes(layer, value), element_count)
    if OPEN_SIZE in sizes or math.prod(sizes) != element_count:
        raise layer.fault(f"{list(layer.shapes[0])} cannot be seen as {shorten(value)}")
    record = layer.layer("other", sizes)
    return record, layer.op("reshape", layer.x[0], shape=channels_first(sizes))


def _read_open_sizes(layer: LayerBuilder, value: list[Any]) -> list[int]:
    """Return the sizes of a shape, of which some may be open (-1), for the asked batch."""
    sizes = [
        OPEN_SIZE if type(size) is int and size == OPEN_SIZE else layer.size("output_shape", size)
        for size in value
    ]
    # A shape that states the file's batch means whatever batch is asked for.
    if sizes[0] == layer.file_batch:
        sizes[0] = layer.batch
    return sizes


def _fill_open_size(sizes: list[int], element_count: int) -> list[int]:
    """Return sizes with the only open one filled in, so that they hold so many elements."""
    stated_count = math.prod(size for size in sizes if size != OPEN_SIZE)
    if sizes.count(OPEN_SIZE) != 1 or element_count % stated_count:
        return sizes
    return [element_count // stated_count if size == OPEN_SIZE else size for size in sizes]


def _build_upsampling(layer: LayerBuilder) -> Built:
    """`ksize`, by which height and width are multiplied: `[1, h, w, 1]`, `[h, w]` or a number."""
    n, height, width, channels = layer.image
    value = layer.file_layer.key("ksize")
    if not isinstance(value, list):
        factor = layer.size("ksize", value)
        scale = (factor, factor)
    elif len(value) == 4:
        # `[1, h, w, 1]`; `[h, w]` below.
        scale = layer.image_sides("ksize")
    else:
        # 2 numbers are read here; 4 are named, too, as what the message offers.
        height_scale, width_scale = layer.sizes("ksize", 2, 4)
        scale = (height_scale, width_scale)
    size = (height * scale[0], width * scale[1])
    record = layer.layer("other", (n, *size, channels), kernel=scale)
    return record, layer.op("resize2d", layer.x[0], size=size, mode="nearest")


def _build_softmax(layer: LayerBuilder) -> Built:
    """`[n, num_classes]`; without `num_classes` the last size of the input."""
    classes = layer.file_layer.keys.get("num_classes")
    width = layer.shapes[0][-1] if classes is None else layer.size("num_classes", classes)
    record = layer.layer("other", (layer.shapes[0][0], width))
    if layer.is_loss:
        return record, layer.x[0]
    return record, layer.op("softmax", classes_last(layer, layer.x[0]))


def classes_last(layer: LayerBuilder, x: str) -> str:
    """Return `[n, c, 1, 1]` as `[n, c]`, `[n, c, h, w]` as `[n, h, w, c]`."""
    shape = layer.b.shape(x)
    if len(shape) == 2 or set(shape[2:]) == {1}:
        return _flatten(layer, x)
    return layer.op("transpose", x, suffix="/transpose", order=(0, *range(2, len(shape)), 1))


def _pass_shape_on(
    layer: LayerBuilder, lower: Callable[[LayerBuilder], str] = lambda layer: layer.x[0]
) -> Built:
    """Pass on the first parent's shape."""
    return layer.layer("other", layer.shapes[0]), lower(layer)


def _sum(layer: LayerBuilder) -> str:
    """Return a sum, one op for each parent but the first; the last has the layer's name."""
    y = layer.x[0]
    for name, tensor in zip(layer.file_layer.parents, layer.x, strict=True):
        shape = list(channels_last(layer.b.shape(tensor)))
        sum_shape = list(channels_last(layer.b.shape(y)))
        if shape != sum_shape:
            raise layer.fault(f"{shape} of {shorten(name)} is not the shape {sum_shape}")
    last = len(layer.x) - 1
    for i, addend in enumerate(layer.x[1:], 1):
        suffix = "" if i == last else f"/{i}"  # the last sum has the name of the layer
        y = layer.op("add", y, addend, suffix=suffix)
    return y


def _scale(layer: LayerBuilder) -> str:
    """Return a factor and a shift a channel: a convolution of each channel by itself.

    After a batch norm, which has them already, it passes its input on.
    """
    if f"{layer.x[0]}/running_mean" in layer.b.tensors:  # a batch norm scales and shifts already
        return layer.x[0]
    channels = layer.image[3]
    # A factor a channel: a convolution of each channel by itself.
    w = layer.b.weight(f"{layer.name}/w", (channels, 1, 1, 1))
    return layer.add_bias(layer.op("conv2d", layer.x[0], w, groups=channels))


LRN: Mapping[str, Any] = {"size": 5, "alpha": 1.0, "beta": 0.75, "k": 1.0}  # Caffe's
TYPES: Mapping[str, Lower] = {
    "Input": _build_input,
    "Convolution": _build_convolution,
    "Deconvolution": _build_deconvolution,
    "InnerProduct": _build_inner_product,
    "Pooling": partial(_build_pooling, "max_pool2d"),
    "AvgPool": partial(_build_pooling, "avg_pool2d"),
    "UpSampling2D": _build_upsampling,
    "Dropout": _build_dropout,
    "Concatenate": _build_concatenation,
    "Elementwise": partial(_pass_shape_on, lower=_sum),
    "Reshape": _build_reshaping,
    "Softmax": _build_softmax,
    "Sigmoid": lambda layer: (  # [n, 1], whatever the input: the file's rule
        (layer.layer("other", (layer.shapes[0][0], 1)), layer.op("sigmoid", layer.x[0]))
    ),
    "ReLU": partial(_pass_shape_on, lower=lambda layer: layer.op("relu", layer.x[0])),
    "BatchNorm": partial(
        _pass_shape_on,
        lower=lambda layer: image.batch_norm(layer.b, layer.x[0], layer.name, layer.name),
    ),
    "Scale": partial(_pass_shape_on, lower=_scale),
    "LRN": partial(
        _pass_shape_on, lower=lambda layer: layer.op("local_response_norm", layer.x[0], **LRN)
    ),
    "Accuracy": _pass_shape_on,
}
UNKNOWN: Lower = _pass_shape_on
TYPES_OF_SEVERAL_PARENTS = ("Concatenate", "Elementwise", "Accuracy")  # types of one parent or more
