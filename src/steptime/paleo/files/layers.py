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
from steptime.paleo.files.layer import At, channels_first, channels_last
from steptime.paleo.layers import Layer

Built = tuple[Layer, str]
Lower = Callable[[At], Built]


def _input(at: At) -> Built:
    """`tensor [n, ...]`, the asked batch in the place of n."""
    shape = (at.batch, *at.sizes("tensor", 2, 3, 4)[1:])
    layer = at.layer("input", shape, inputs=shape)
    return layer, at.b.input(at.name, channels_first(shape))


def _convolution(at: At) -> Built:
    """`filter [kh, kw, c_in, c_out], strides, padding`; kh*kw*c_in*c_out + c_out parameters."""
    n, _, _, channels = at.image
    kernel, c_in, c_out = at.filter()
    if c_in not in (-1, channels):
        raise at.fault(f"its filter takes {c_in} channels, its parent gives {channels}")
    c_out, window = at.divided(c_out), at.window(kernel)
    size, how = at.slid(at.image, window)
    weights = (*kernel, channels, c_out)
    layer = at.layer("conv", (n, *size, c_out), weights=weights, biases=c_out, **window)
    w = at.b.weight(f"{at.name}/w", (c_out, channels, *kernel))
    return layer, at.ended(at.op("conv2d", at.x[0], w, **how))


def _deconvolution(at: At) -> Built:
    """Read the transpose of a convolution that leads from `output_shape` to the input.

    `filter [kh, kw, c_O, c_I]`; kh*kw*c_O*c_I + c_I parameters: the bias is the convolution's.
    """
    batch, *inner, width = at.image
    n, *size, channels = at.sizes("output_shape", 4)
    if at.batch == at.own_batch and n != batch:
        raise at.fault(f"output_shape has batch {n}, its parent has {batch}")
    kernel, c_out, c_in = at.filter()
    if c_out not in (-1, channels):
        raise at.fault(f"its filter gives {c_out} channels, output_shape has {channels}")
    if c_in != width:
        raise at.fault(f"its filter takes {c_in} channels, its parent gives {width}")
    outputs = (batch, *size, at.divided(channels))
    window = at.window(kernel)
    back, how = at.slid(outputs, window)
    if [*back] != inner:
        raise at.fault(
            f"its convolution leads from {list(outputs)} to {list(back)}, "
            f"not to the {inner} of its parent"
        )
    weights = (*kernel, outputs[3], c_in)
    layer = at.layer("deconv", outputs, weights=weights, biases=c_in, **window)
    w = at.b.weight(f"{at.name}/w", (c_in, outputs[3], *kernel))
    y = at.op("conv_transpose2d", at.x[0], w, output_size=outputs[1:3], **how)
    return layer, at.ended(y)


def _flat(at: At, x: str) -> str:
    return at.op("flatten", x, at="/flatten") if len(at.b.shape(x)) > 2 else x


def _inner_product(at: At) -> Built:
    """`num_outputs` m: the input seen as `[n, k]` `-> [n, m]`; k*m + m parameters.

    The elements are flattened channels first: other places of the weights, the same work.
    """
    width = at.divided(at.size("num_outputs", at.entry.key("num_outputs")))
    n, inputs = at.shapes[0][0], math.prod(at.shapes[0][1:])
    sizes: dict[str, Any] = {"inputs": (n, inputs), "weights": (inputs, width), "biases": width}
    layer = at.layer("inner_product", (n, width), **sizes)
    y = _flat(at, at.x[0])
    w = at.b.weight(f"{at.name}/w", (width, at.b.shape(y)[1]))
    return layer, at.ended(at.op("linear", y, w))


def _pooling(kind: str, at: At) -> Built:
    """`ksize, strides, padding`; padding of an average counts as zeros, unlike TensorFlow's."""
    n, _, _, channels = at.image
    window = at.window(at.over("ksize"))
    size, how = at.slid(at.image, window)
    layer = at.layer("pool", (n, *size, channels), **window)
    return layer, at.op(kind, at.x[0], kernel=layer.kernel, **how)


def _dropout(at: At) -> Built:
    """`dropout_keep_prob`, the share of elements that is kept."""
    keep = at.entry.key("dropout_keep_prob")
    if type(keep) not in (int, float) or not 0 < keep <= 1:
        raise at.fault(f"dropout_keep_prob must be above 0 and at most 1, not {shorten(keep)}")
    y = dense.dropout(at.b, at.x[0], 1.0 - keep, at.name)
    return at.layer("dropout", at.shapes[0]), y


def _concatenate(at: At) -> Built:
    """`dim`, the axis along which the parents' sizes add up."""
    first, dim = at.shapes[0], at.entry.key("dim")
    rank = len(first)
    if type(dim) is not int or not -rank <= dim < rank:
        raise at.fault(f"dim must be an axis of {list(first)}, not {shorten(dim)}")
    dim %= rank
    for name, shape in zip(at.entry.parents, at.shapes, strict=True):
        if (*shape[:dim], *shape[dim + 1 :]) != (*first[:dim], *first[dim + 1 :]):
            said = f"{list(shape)} of {shorten(name)} does not fit to {list(first)}"
            raise at.fault(f"{said} along axis {dim}")
    joined = sum(shape[dim] for shape in at.shapes)
    layer = at.layer("other", (*first[:dim], joined, *first[dim + 1 :]))
    return layer, at.op("concat", *at.x, axis=channels_first(range(rank)).index(dim))


def _reshape(at: At) -> Built:
    """`output_shape` of as many elements; one -1 is filled in, and the file's batch replaced.

    The elements are in another order than channels last.
    """
    value = at.entry.key("output_shape")
    if not isinstance(value, list) or len(value) not in (2, 3, 4):
        raise at.fault(f"output_shape must be 2 to 4 numbers, not {shorten(value)}")
    sizes = [-1 if type(n) is int and n == -1 else at.size("output_shape", n) for n in value]
    if sizes[0] == at.own_batch:
        sizes[0] = at.batch
    size, known = math.prod(at.shapes[0]), math.prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and size % known == 0:
        sizes[sizes.index(-1)] = size // known
    if -1 in sizes or math.prod(sizes) != size:
        raise at.fault(f"{list(at.shapes[0])} cannot be seen as {shorten(value)}")
    return at.layer("other", sizes), at.op("reshape", at.x[0], shape=channels_first(sizes))


def _upsampling(at: At) -> Built:
    """`ksize`, by which height and width are multiplied: `[1, h, w, 1]`, `[h, w]` or a number."""
    n, h, w, c = at.image
    value = at.entry.key("ksize")
    if isinstance(value, list):
        scale = at.over("ksize") if len(value) == 4 else at.sizes("ksize", 2, 4)
    else:
        scale = (at.size("ksize", value),) * 2
    layer = at.layer("other", (n, h * scale[0], w * scale[1], c), kernel=scale)
    return layer, at.op("resize2d", at.x[0], size=(h * scale[0], w * scale[1]), mode="nearest")


def _softmax(at: At) -> Built:
    """`[n, num_classes]`; without `num_classes` the last size of the input."""
    classes = at.entry.keys.get("num_classes")
    width = at.shapes[0][-1] if classes is None else at.size("num_classes", classes)
    layer = at.layer("other", (at.shapes[0][0], width))
    if at.is_loss:
        return layer, at.x[0]
    return layer, at.op("softmax", classes_last(at, at.x[0]))


def classes_last(at: At, x: str) -> str:
    """Return `[n, c, 1, 1]` as `[n, c]`, `[n, c, h, w]` as `[n, h, w, c]`."""
    shape = at.b.shape(x)
    if len(shape) == 2 or set(shape[2:]) == {1}:
        return _flat(at, x)
    return at.op("transpose", x, at="/transpose", order=(0, *range(2, len(shape)), 1))


def _passing(at: At, lower: Callable[[At], str] = lambda at: at.x[0]) -> Built:
    """Pass on the first parent's shape."""
    return at.layer("other", at.shapes[0]), lower(at)


def _sum(at: At) -> str:
    """Return a sum, one op for each parent but the first; the last has the layer's name."""
    y = at.x[0]
    for name, tensor in zip(at.entry.parents, at.x, strict=True):
        pair = [list(channels_last(at.b.shape(one))) for one in (tensor, y)]
        if pair[0] != pair[1]:
            raise at.fault(f"{pair[0]} of {shorten(name)} is not the shape {pair[1]}")
    for i, other in enumerate(at.x[1:], 1):
        y = at.op("add", y, other, at="" if i == len(at.x) - 1 else f"/{i}")
    return y


def _scale(at: At) -> str:
    """Return a factor and a shift a channel: a convolution of each channel by itself.

    After a batch norm, which has them already, it passes its input on.
    """
    if f"{at.x[0]}/running_mean" in at.b.tensors:
        return at.x[0]
    channels = at.image[3]
    w = at.b.weight(f"{at.name}/w", (channels, 1, 1, 1))
    return at.biased(at.op("conv2d", at.x[0], w, groups=channels))


LRN: Mapping[str, Any] = {"size": 5, "alpha": 1.0, "beta": 0.75, "k": 1.0}  # Caffe's
TYPES: Mapping[str, Lower] = {
    "Input": _input,
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "InnerProduct": _inner_product,
    "Pooling": partial(_pooling, "max_pool2d"),
    "AvgPool": partial(_pooling, "avg_pool2d"),
    "UpSampling2D": _upsampling,
    "Dropout": _dropout,
    "Concatenate": _concatenate,
    "Elementwise": partial(_passing, lower=_sum),
    "Reshape": _reshape,
    "Softmax": _softmax,
    "Sigmoid": lambda at: (  # [n, 1], whatever the input: the file's rule
        (at.layer("other", (at.shapes[0][0], 1)), at.op("sigmoid", at.x[0]))
    ),
    "ReLU": partial(_passing, lower=lambda at: at.op("relu", at.x[0])),
    "BatchNorm": partial(
        _passing, lower=lambda at: image.batch_norm(at.b, at.x[0], at.name, at.name)
    ),
    "Scale": partial(_passing, lower=_scale),
    "LRN": partial(_passing, lower=lambda at: at.op("local_response_norm", at.x[0], **LRN)),
    "Accuracy": _passing,
}
UNKNOWN: Lower = _passing
MANY = ("Concatenate", "Elementwise", "Accuracy")  # types of one parent or more
