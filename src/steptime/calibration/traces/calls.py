"""Ops of ATen as calls on ops of the op table: kind, shapes, attributes, and which gradients.

A rule is a function of an op's inputs. It returns None for inputs that it does not understand; such
an op is priced by the bytes that it reads and writes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from steptime.core.graph import Attr
from steptime.records.traces.event_trees import ATEN
from steptime.records.traces.trace_events import TracedInput

Shape = tuple[int, ...]
Inputs = Sequence[TracedInput]


class TracedCall(NamedTuple):
    """An op of the op table on inputs of these shapes.

    Attributes:
        kind: the kind.
        shapes: the shapes of its inputs.
        attrs: its attributes.
        gradients: indices of the inputs whose gradients it makes; None of a forward op.
    """

    kind: str
    shapes: tuple[Shape, ...]
    attrs: Mapping[str, Attr] = {}
    gradients: tuple[int, ...] | None = None


FORWARD_MODE_INDEX, BACKWARD_MODE_INDEX = 9, 14  # of `mode` in the schemas of oneDNN's layers
RECURRENT_MODES = {"0": "rnn", "1": "rnn", "2": "lstm", "3": "gru"}  # of cuDNN, too
NEUTRAL_SIDES = {"stride": 1, "padding": 0, "dilation": 1, "output_size": 1}
Rule = Callable[[Inputs], TracedCall | None]


def table_call(name: str, inputs: Inputs) -> TracedCall | None:
    """Return the call of an op of ATen; None where the op or its inputs are not understood."""
    # Ops in place end with _, and cost as much.
    rule = RULES.get(name.removeprefix(ATEN).rstrip("_"))
    if rule is None:
        return None
    try:
        return rule(inputs)
    # Inputs that are not as the schema says: the op is priced by its bytes.
    except (IndexError, ValueError, KeyError):
        return None


def is_recognised(name: str) -> bool:
    """Whether an op has a rule, by its name without `aten::`."""
    return name.rstrip("_") in RULES


def _parse_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list that the profiler wrote: `[1, 1]`."""
    values = json.loads(text)
    return tuple(int(value) for value in (values if isinstance(values, list) else [values]))


def _parse_sizes_of_axes(text: str, axis_count: int) -> tuple[int, ...]:
    numbers = _parse_numbers(text)
    return numbers * axis_count if len(numbers) == 1 else numbers


def _make_matmul(input_index: int, inputs: Inputs) -> TracedCall:
    """Return a product of the two matrices, or batches of them, from an index on."""
    first, second = inputs[input_index], inputs[input_index + 1]
    return TracedCall("matmul", (first.shape, second.shape))


def _make_linear(inputs: Inputs) -> TracedCall:
    return TracedCall("linear", (inputs[0].shape, inputs[1].shape))


def _make_addmm(inputs: Inputs) -> TracedCall:
    _, first, second = inputs[:3]
    return TracedCall("linear", (first.shape, second.shape[::-1]))


def _read_convolution_sides(inputs: Inputs, input_index: int, x: Shape) -> dict[str, Shape]:
    """Return stride, padding and dilation of a convolution whose settings begin at an index."""
    axis_count = len(x) - 2
    texts = (traced_input.value for traced_input in inputs[input_index : input_index + 3])
    names = ("stride", "padding", "dilation")
    return {
        name: _parse_sizes_of_axes(text, axis_count)
        for name, text in zip(names, texts, strict=True)
    }


def _flat_image(shape: Shape) -> Shape:
    """Return the shape of a sequence as that of an image one pixel high."""
    return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape


def _make_convolution(
    inputs: Inputs, input_index: int = 0, first_setting_index: int = 3
) -> TracedCall:
    """Return a convolution: its image and its first setting stand at these indices."""
    x = inputs[input_index].shape
    w = inputs[input_index + 1].shape
    axis_count = len(x) - 2
    sides = _read_convolution_sides(inputs, first_setting_index, x)
    # Behind stride, padding and dilation: whether it is transposed, its output padding, its groups.
    transposed, output_padding, groups = inputs[first_setting_index + 3 : first_setting_index + 6]
    is_transposed = transposed.value == "True"
    if is_transposed:
        is_backward = input_index > 0  # its first input is the gradient of the output
        sides["output_size"] = (
            inputs[0].shape[2:] if is_backward else _transposed_size(x, w, sides, output_padding)
        )
    is_sequence = axis_count == 1
    if is_sequence:  # an image one pixel high
        axis_count = 2
        x = _flat_image(x)
        w = _flat_image(w)
        sides = {name: (NEUTRAL_SIDES[name], *sizes) for name, sizes in sides.items()}
    kind = "conv_transpose" if is_transposed else "conv"
    attrs: dict[str, Attr] = {**sides, "groups": int(groups.value)}
    return TracedCall(f"{kind}{axis_count}d", (x, w), attrs)


def _transposed_size(
    x: Shape, w: Shape, attrs: Mapping[str, Shape], output_padding: TracedInput
) -> tuple[int, ...]:
    """Return the sizes of the image that a transposed convolution makes (torch's formula)."""
    image_sizes = x[2:]
    filter_sizes = w[2:]
    axis_count = len(image_sizes)
    extra_sizes = _parse_sizes_of_axes(output_padding.value, axis_count)
    sizes = []
    for axis in range(axis_count):
        filter_reach = attrs["dilation"][axis] * (filter_sizes[axis] - 1)
        stride_span = (image_sizes[axis] - 1) * attrs["stride"][axis]
        padding = 2 * attrs["padding"][axis]
        # The formula of PyTorch's ConvTranspose.
        sizes.append(stride_span - padding + filter_reach + extra_sizes[axis] + 1)
    return tuple(sizes)


def _make_convolution_backward(inputs: Inputs) -> TracedCall:
    """Return the gradients of a convolution; the mask says whether of its image and its filters."""
    call = _make_convolution(inputs, input_index=1, first_setting_index=4)
    # The mask says which inputs get a gradient: "[True, True, False]" is image, filters, bias.
    # It is the last input.
    output_mask = inputs[10].value.strip("[]").split(", ")
    gradient_indices = tuple(
        input_index for input_index in (0, 1) if output_mask[input_index] == "True"
    )
    return call._replace(gradients=gradient_indices)


def _make_norm(kind: str, input_index: int, inputs: Inputs) -> TracedCall:
    """Return a norm of the tensor at an index; backward ops read a gradient before it."""
    attrs: dict[str, Attr] = {"training": True} if kind == "batch_norm" else {}
    x = inputs[input_index].shape
    if kind == "batch_norm" and len(x) == 2:  # BatchNorm1d, as images of one pixel
        x = (*x, 1, 1)
    is_backward = input_index > 0  # its first input is the gradient of the output
    # None: a forward pass; else the indices of the inputs that get a gradient.
    return TracedCall(kind, (x,), attrs, (0,) if is_backward else None)


def _make_rowwise(kind: str, inputs: Inputs) -> TracedCall:
    return TracedCall(kind, (inputs[0].shape,))


def _make_rowwise_backward(kind: str, inputs: Inputs) -> TracedCall:
    return TracedCall(kind, (inputs[0].shape,), {}, (0,))


def _make_pool(kind: str, inputs: Inputs, input_index: int = 0) -> TracedCall:
    """Return a pool over the image at an index."""
    x = inputs[input_index].shape
    # `max_pool2d` has its number of axes before the d.
    axis_count = int(kind[-2])
    kernel = _parse_sizes_of_axes(inputs[input_index + 1].value, axis_count)
    stride_text = inputs[input_index + 2].value
    # No stride means that of the kernel's size.
    stride = kernel if stride_text in ("", "[]") else _parse_sizes_of_axes(stride_text, axis_count)
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": stride,
        "padding": _parse_sizes_of_axes(inputs[input_index + 3].value, axis_count),
    }
    has_batch = len(x) == axis_count + 2
    batched_x = x if has_batch else (1, *x)
    is_backward = input_index > 0  # its first input is the gradient of the output
    # None: a forward pass; else the indices of the inputs that get a gradient.
    return TracedCall(kind, (batched_x,), attrs, (0,) if is_backward else None)


def _make_adaptive_pool(inputs: Inputs) -> TracedCall | None:
    # An output of one pixel, "[1, 1]", is a mean over the whole image.
    is_global = set(_parse_numbers(inputs[1].value)) == {1}
    return TracedCall("global_avg_pool", (inputs[0].shape,)) if is_global else None


def _make_attention(input_index: int, causal_index: int, inputs: Inputs) -> TracedCall:
    """Return fused attention on `[batch, heads, length, width]` at three indices.

    Args:
        input_index: of the queries, which keys and values follow.
        causal_index: of the truth value that says whether a causal mask is used.
        inputs: the inputs of the op.
    """
    query, key, value = (
        traced_input.shape for traced_input in inputs[input_index : input_index + 3]
    )
    merged_shapes = tuple(
        (batch, length, heads * width) for batch, heads, length, width in (query, key, value)
    )
    _, query_heads, *_ = query
    _, key_heads, *_ = key
    is_causal = inputs[causal_index].value == "True"
    attrs: dict[str, Attr] = {"heads": query_heads, "kv_heads": key_heads, "causal": is_causal}
    is_backward = input_index > 0  # its first input is the gradient of the output
    # None: a forward pass; else the indices of the inputs that get a gradient.
    return TracedCall("attention", merged_shapes, attrs, (0, 1, 2) if is_backward else None)


def _make_embedding(inputs: Inputs) -> TracedCall:
    weight, ids = inputs[:2]
    return TracedCall("embedding", (ids.shape, weight.shape))


def _make_embedding_backward(inputs: Inputs) -> TracedCall:
    output_gradient, ids, row_count = inputs[:3]
    weight_shape = (int(row_count.value), output_gradient.shape[-1])
    # Of both inputs the second one, the weight, gets a gradient.
    return TracedCall("embedding", (ids.shape, weight_shape), {}, (1,))


def _make_recurrent(mode_index: int, inputs: Inputs) -> TracedCall:
    """Return one layer of oneDNN: its input `[length, batch, width]` and its two weights."""
    x, input_weight, state_weight = (traced.shape for traced in inputs[:3])
    kind = RECURRENT_MODES[inputs[mode_index].value]
    length, batch, width = x
    bias = state_weight[:1]
    shapes = ((batch, length, width), input_weight, state_weight, bias, bias)
    is_backward = mode_index == BACKWARD_MODE_INDEX
    # None: a forward pass; else the indices of the inputs that get a gradient.
    return TracedCall(kind, shapes, {}, (0, 1, 2, 3, 4) if is_backward else None)


def _list_pool_rules() -> dict[str, Rule]:
    """Return the rules of pooling ops of ATen, forward and backward, by name."""
    rules: dict[str, Rule] = {}
    for axis_count in (2, 3):
        maximum, mean = f"max_pool{axis_count}d", f"avg_pool{axis_count}d"
        rules[f"{maximum}_with_indices"] = partial(_make_pool, maximum)
        rules[f"{maximum}_with_indices_backward"] = partial(_make_pool, maximum, input_index=1)
        rules[mean] = partial(_make_pool, mean)
        rules[f"{mean}_backward"] = partial(_make_pool, mean, input_index=1)
    return rules


_CAUSAL_INDICES = {  # of `is_causal` in the schemas of PyTorch 2.13: forward, backward
    "flash_attention_for_cpu": (4, 7),
    "flash_attention": (4, 11),
    "efficient_attention": (6, 11),
    "cudnn_attention": (6, 14),
}
_UNARY = ("relu", "sigmoid", "tanh", "gelu", "silu")
RULES: Mapping[str, Rule] = {
    "linear": _make_linear,
    "addmm": _make_addmm,
    "mm": partial(_make_matmul, 0),
    "bmm": partial(_make_matmul, 0),
    "baddbmm": partial(_make_matmul, 1),
    "convolution": _make_convolution,
    "convolution_backward": _make_convolution_backward,
    "batch_norm": partial(_make_norm, "batch_norm", 0),
    **dict.fromkeys(
        ("native_batch_norm_backward", "cudnn_batch_norm_backward", "batch_norm_backward"),
        partial(_make_norm, "batch_norm", 1),
    ),
    "native_layer_norm": partial(_make_norm, "layer_norm", 0),
    "native_layer_norm_backward": partial(_make_norm, "layer_norm", 1),
    "rms_norm": partial(_make_norm, "rms_norm", 0),
    **dict.fromkeys(("_softmax", "_log_softmax"), partial(_make_rowwise, "softmax")),
    **dict.fromkeys(
        ("_softmax_backward_data", "_log_softmax_backward_data"),
        partial(_make_rowwise_backward, "softmax"),
    ),
    **{name: partial(_make_rowwise, name) for name in _UNARY},
    **{f"{name}_backward": partial(_make_rowwise_backward, name) for name in _UNARY},
    "clamp_min": partial(_make_rowwise, "relu"),
    "threshold_backward": partial(_make_rowwise_backward, "relu"),
    "bernoulli": partial(_make_rowwise, "dropout"),
    "native_dropout": partial(_make_rowwise, "dropout"),
    "native_dropout_backward": partial(_make_rowwise_backward, "dropout"),
    **_list_pool_rules(),
    **dict.fromkeys(("_adaptive_avg_pool2d", "adaptive_avg_pool2d"), _make_adaptive_pool),
    **{
        f"_scaled_dot_product_{name}": partial(_make_attention, 0, causal_index)
        for name, (causal_index, _) in _CAUSAL_INDICES.items()
    },
    **{
        f"_scaled_dot_product_{name}_backward": partial(_make_attention, 1, causal_index)
        for name, (_, causal_index) in _CAUSAL_INDICES.items()
    },
    "embedding": _make_embedding,
    "embedding_dense_backward": _make_embedding_backward,
    "mkldnn_rnn_layer": partial(_make_recurrent, FORWARD_MODE_INDEX),
    "mkldnn_rnn_layer_backward": partial(_make_recurrent, BACKWARD_MODE_INDEX),
}
