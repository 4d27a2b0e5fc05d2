"""Functions that append a layer to a graph, for all file formats: tensor names in, a name out.

Each appends the dedicated op kind where one fits, so that a network counts the same whatever file
it comes from, and general kinds elsewhere. The op that does the work gets the given name (with a
number behind it if that is taken); the ops around it are named `NAME/...`. What no kind can express
raises `ShapeError`.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

from steptime.core.graph import Attr
from steptime.core.windows import covered_size
from steptime.formats import elements
from steptime.formats.tensors import axis_of, find_unflattened, free_name, is_weight_or_buffer
from steptime.formats.windows import resolve_padding
from steptime.network.layers import dense
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require


def linear(b: Builder, x: str, w: str, name: str, bias: str = "") -> str:
    """Multiply `x [..., fan_in]` by `w [width, fan_in]` and add `bias [width]` if there is one."""
    tokens = find_unflattened(b, x)
    if tokens != x:  # `x` is a matrix that views tokens with further axes: multiply those
        y = linear(b, tokens, w, name, bias)
        return elements.reshape(b, y, (b.shape(x)[0], b.shape(y)[-1]), f"{name}/rows")
    is_vector = len(b.shape(x)) <= 1
    rows = elements.reshape(b, x, (1, -1), f"{name}/row") if is_vector else x
    y = elements.append_op(b, "linear", rows, w, name=name)
    if bias:
        y = elements.append_op(b, "bias", y, bias, name=f"{name}/bias", axis=-1)
    return elements.reshape(b, y, b.shape(y)[1:], f"{name}/reshape") if is_vector else y


def matmul(b: Builder, x: str, y: str, name: str) -> str:
    """Multiply `x [..., m, k]` by `y [..., k, n]`; leading axes broadcast.

    As in numpy, a vector is a row as `x` and a column as `y`. A matrix that is a weight or a buffer
    makes the product a `linear`.
    """
    x_rank = len(b.shape(x))
    y_rank = len(b.shape(y))
    require(min(x_rank, y_rank) >= 1, f"{name}: a product of scalars")
    if y_rank == 2 and is_weight_or_buffer(b, y):
        w = elements.transpose(b, y, (1, 0), f"{name}/transpose")
        return linear(b, x, w, name)
    rows = elements.reshape(b, x, (1, -1), f"{name}/row") if x_rank == 1 else x
    columns = elements.reshape(b, y, (-1, 1), f"{name}/column") if y_rank == 1 else y
    product = elements.append_op(b, "matmul", rows, columns, name=name)
    # an axis that was added to a vector is dropped again
    *shape, row_count, column_count = b.shape(product)
    if x_rank > 1:
        shape.append(row_count)
    if y_rank > 1:
        shape.append(column_count)
    return elements.reshape(b, product, shape, f"{name}/reshape")


def _view_as_image(b: Builder, x: str, name: str) -> str:
    """Reshape a sequence `[n, c, l]` to an image of height 1; images and volumes stay."""
    shape = b.shape(x)
    axis_count = len(shape) - 2
    has_kinds = axis_count in (1, 2, 3)
    require(has_kinds, f"{name}: over {axis_count} axes: there are kinds for 1, 2 and 3")
    is_sequence = axis_count == 1
    if not is_sequence:
        return x
    # there are no op kinds for sequences: one counts as an image of height 1
    n, channels, length = shape
    return elements.reshape(b, x, (n, channels, 1, length), f"{name}/image")


def _restore_sequence(b: Builder, y: str, x: str, name: str) -> str:
    """Reshape an image of height 1 back to a sequence if `x` is one."""
    is_sequence = len(b.shape(x)) == 3
    if not is_sequence:
        return y
    n, channels, _, length = b.shape(y)
    return elements.reshape(b, y, (n, channels, length), f"{name}/reshape")


def _with_height_size(sizes: Sequence[int]) -> tuple[int, ...]:
    """Put a height of 1 before the one size of a sequence."""
    return (1, sizes[0]) if len(sizes) == 1 else tuple(sizes)


def _with_height_padding(padding: Sequence[int]) -> tuple[int, ...]:
    """Put no padding of the height before that of a sequence."""
    return (0, 0, *padding) if len(padding) == 2 else tuple(padding)


def convolution(
    b: Builder,
    x: str,
    w: str,
    name: str,
    bias: str = "",
    *,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int = 1,
    transposed: bool = False,
    output_padding: Sequence[int] = (),
    size: Sequence[int] = (),
) -> str:
    """Convolve `x [n, c, l]`, `[n, c, h, w]` or `[n, c, d, h, w]`, or do the transpose of it.

    Args:
        b: the graph so far.
        x: the input.
        w: the filters, `[c_out, c_in/groups, ...]`; transposed `[c_in, c_out/groups, ...]`.
        name: the name of the op.
        bias: a tensor `[c_out]`, or "".
        stride: one number an axis.
        padding: two numbers an axis, before and after it, or a word (`resolve_padding`).
        dilation: one number an axis.
        groups: the number of groups of channels.
        transposed: whether it is a transposed convolution.
        output_padding: what a transposed convolution appends to the end of each axis.
        size: the sizes of a transposed convolution's output; they decide its padding.
    """
    padding = resolve_padding(padding, b.shape(x)[2:], b.shape(w)[2:], stride, dilation)
    image = _view_as_image(b, x, name)
    filters = _view_as_image(b, w, f"{name}/filters")
    image_padding = _with_height_padding(padding)
    attrs: dict[str, Attr] = {
        "stride": _with_height_size(stride),
        "dilation": _with_height_size(dilation),
        "groups": groups,
    }
    axis_count = len(_with_height_size(stride))
    kind = f"conv{axis_count}d"
    if transposed:
        kind = f"conv_transpose{axis_count}d"
        full_sizes = _compute_transposed_sizes(b, image, filters, stride, dilation, output_padding)
        if size:
            attrs["output_size"] = _with_height_size(size)
            image_padding = _compute_crop(full_sizes, _with_height_size(size))
        else:
            attrs["output_size"] = _crop_sizes(full_sizes, image_padding)
    y = elements.append_op(b, kind, image, filters, name=name, padding=image_padding, **attrs)
    if bias:
        y = elements.append_op(b, "bias", y, bias, name=f"{name}/bias", axis=1)
    return _restore_sequence(b, y, x, name)


def _compute_transposed_sizes(
    b: Builder,
    image: str,
    filters: str,
    stride: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """Return the output sizes of a transposed convolution before its padding is cropped."""
    strides = _with_height_size(stride)
    axis_count = len(strides)
    extra_sizes = [0] * axis_count
    if output_padding:  # of a sequence it lacks the height of the image, which gets 0
        extra_sizes = [0, *output_padding][-axis_count:]
    axes = zip(
        b.shape(image)[2:],
        b.shape(filters)[2:],
        strides,
        _with_height_size(dilation),
        extra_sizes,
        strict=True,
    )
    return [
        covered_size(inner_size, kernel_size, axis_stride, axis_dilation) + extra_size
        for inner_size, kernel_size, axis_stride, axis_dilation, extra_size in axes
    ]


def _crop_sizes(full_sizes: Sequence[int], padding: Sequence[int]) -> tuple[int, ...]:
    """Return sizes without the padding, which is listed before and after each axis."""
    pads_before = padding[::2]
    pads_after = padding[1::2]
    axes = zip(full_sizes, pads_before, pads_after, strict=True)
    return tuple(full_size - before - after for full_size, before, after in axes)


def _compute_crop(full_sizes: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the padding that crops an output to `sizes`, the odd element at the end."""
    padding: list[int] = []
    for full_size, size in zip(full_sizes, sizes, strict=True):
        cropped = max(full_size - size, 0)
        before = cropped // 2
        after = cropped - before
        padding += [before, after]
    return tuple(padding)


def pool(
    b: Builder,
    x: str,
    kind: Literal["max", "avg"],
    name: str,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | str,
    ceil: bool = False,
) -> str:
    """Pool windows of a sequence, an image or a volume to their maxima or means.

    `padding` is two numbers an axis, before and after it, or a word (`resolve_padding`). Means
    count the padding as elements, which does not change the cost.
    """
    padding = resolve_padding(padding, b.shape(x)[2:], kernel, stride, (1,) * len(kernel))
    window = _with_height_size(kernel)
    attrs: dict[str, Attr] = {"ceil": True} if ceil else {}
    attrs |= {
        "kernel": window,
        "stride": _with_height_size(stride),
        "padding": _with_height_padding(padding),
    }
    image = _view_as_image(b, x, name)
    y = elements.append_op(b, f"{kind}_pool{len(window)}d", image, name=name, **attrs)
    return _restore_sequence(b, y, x, name)


def adaptive_pool(
    b: Builder, x: str, kind: Literal["max", "avg"], size: Sequence[int], name: str
) -> str:
    """Pool to a given output size; torch's windows are taken as long as the longest of them."""
    image = _view_as_image(b, x, name)
    input_sizes = b.shape(image)[2:]
    output_sizes = _with_height_size(size)
    if output_sizes == input_sizes:
        return x
    is_global = set(output_sizes) == {1}
    if is_global:
        function = "mean" if kind == "avg" else kind
        image_axes = tuple(range(2, 2 + len(input_sizes)))
        reduced = elements.reduce(b, function, image, image_axes, name, keep=True)
        return _restore_sequence(b, reduced, x, name)
    pairs = zip(input_sizes, output_sizes, strict=True)
    # where the output is a multiple of the input, each window holds one element
    repeats_elements = all(output_size % input_size == 0 for input_size, output_size in pairs)
    if repeats_elements:
        return resize(b, x, size, "nearest", name)
    y = _append_even_pool(b, image, kind, output_sizes, name)
    return _restore_sequence(b, y, x, name)


def _append_even_pool(
    b: Builder, image: str, kind: str, output_sizes: Sequence[int], name: str
) -> str:
    """Append pooling by windows of one length that cover an image.

    Torch's windows differ by one element where sizes do not divide: here all are as long as the
    longest.
    """
    input_sizes = b.shape(image)[2:]
    pairs = list(zip(input_sizes, output_sizes, strict=True))
    stride = tuple(max(1, input_size // output_size) for input_size, output_size in pairs)
    kernel = tuple(
        input_size - (output_size - 1) * axis_stride
        for (input_size, output_size), axis_stride in zip(pairs, stride, strict=True)
    )
    sizes = f"{list(input_sizes)} to {list(output_sizes)}"
    require(min(kernel) >= 1, f"{name}: pooling of {sizes}")
    padding = (0, 0) * len(input_sizes)
    attrs: dict[str, Attr] = {"kernel": kernel, "stride": stride, "padding": padding}
    return elements.append_op(b, f"{kind}_pool{len(input_sizes)}d", image, name=name, **attrs)


def resize(
    b: Builder, x: str, size: Sequence[int], mode: str, name: str, align_corners: bool = False
) -> str:
    """Resize an image or a sequence; `mode` is `nearest`, `bilinear` or `bicubic`."""
    image = _view_as_image(b, x, name)
    output_sizes = _with_height_size(size)
    if output_sizes == b.shape(image)[2:]:
        return x
    attrs: dict[str, Attr] = {"align_corners": True} if align_corners else {}
    y = elements.append_op(b, "resize2d", image, name=name, size=output_sizes, mode=mode, **attrs)
    return _restore_sequence(b, y, x, name)


def dropout(b: Builder, x: str, p: float, name: str) -> str:
    """Return `x` with a share dropped in training."""
    require(0 <= p < 1, f"{name}: dropout of {p}")
    return dense.dropout(b, x, p, free_name(b, name))


def _weight_or_new_buffer(b: Builder, tensor: str, width: int, name: str) -> str:
    """Return the tensor, or a new buffer `[width]` where a norm has no such weight ("")."""
    return tensor or b.buffer(free_name(b, name), (width,))


def batch_norm(
    b: Builder,
    x: str,
    name: str,
    weight: str = "",
    bias: str = "",
    mean: str = "",
    variance: str = "",
    training: bool | None = None,
) -> str:
    """Normalise `x [n, c, ...]` by channel.

    `training` says whether the statistics are the batch's; None for those of the graph's phase.
    """
    channels = b.shape(x)[1]
    vector_by_suffix = {"w": weight, "b": bias, "running_mean": mean, "running_variance": variance}
    vectors = [
        _weight_or_new_buffer(b, vector, channels, f"{name}/{suffix}")
        for suffix, vector in vector_by_suffix.items()
    ]
    # None: as the phase of the graph
    uses_batch_statistics = b.training if training is None else training
    return elements.append_op(
        b, "batch_norm", x, *vectors, name=name, training=uses_batch_statistics
    )


def layer_norm(
    b: Builder, x: str, name: str, weight: str = "", bias: str | None = "", axes: int = 1
) -> str:
    """Normalise over the last `axes`; a bias of None makes it a root-mean-square norm.

    A weight or a bias of "" is one that the file leaves out.
    """
    shape = b.shape(x)
    require(1 <= axes <= len(shape), f"{name}: a norm over {axes} axes of {list(shape)}")
    width = math.prod(shape[-axes:])
    flat = elements.reshape(b, x, (*shape[:-axes], width), f"{name}/flatten")
    is_rms_norm = bias is None  # which subtracts no mean
    vectors = [_norm_vector(b, weight, width, f"{name}/w", name)]
    if bias is not None:
        vectors.append(_norm_vector(b, bias, width, f"{name}/b", name))
    kind = "rms_norm" if is_rms_norm else "layer_norm"
    y = elements.append_op(b, kind, flat, *vectors, name=name)
    return elements.reshape(b, y, shape, f"{name}/reshape")


def _norm_vector(b: Builder, tensor: str, width: int, buffer_name: str, name: str) -> str:
    """Return the weight or bias of a norm as a vector, or a new buffer where it has none."""
    norm_weight = _weight_or_new_buffer(b, tensor, width, buffer_name)
    return elements.reshape(b, norm_weight, (width,), f"{name}/vector")


rms_norm = partial(layer_norm, bias=None)


def group_norm(
    b: Builder, x: str, groups: int | None, name: str, weight: str = "", bias: str = ""
) -> str:
    """Normalise groups of channels of `x [n, c, ...]`; None is instance norm, a group a channel."""
    channels = b.shape(x)[1]
    scale = _weight_or_new_buffer(b, weight, channels, f"{name}/w")
    shift = _weight_or_new_buffer(b, bias, channels, f"{name}/b")
    is_instance_norm = groups is None
    attrs: dict[str, Attr] = {"groups": channels if groups is None else groups}
    if is_instance_norm:
        attrs["instance"] = True
    return elements.append_op(b, "group_norm", x, scale, shift, name=name, **attrs)


def topk(b: Builder, x: str, k: int, axis: int, name: str, largest: bool = True) -> tuple[str, str]:
    """Return the `k` largest or smallest along an axis, in order, and their indices."""
    attrs: dict[str, Attr] = {"k": k, "axis": axis_of(b, x, axis), "largest": largest}
    values, indices = b.append(b.full_path(free_name(b, name)), "topk", (x,), **attrs)
    return values, indices
