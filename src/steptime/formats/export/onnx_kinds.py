"""Writes each op kind as ONNX nodes: a function `(nodes, *inputs, **attributes) -> output`.

Inputs are names of tensors; a function appends nodes and returns the name of the last one's output.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from steptime.core.toml_files import read_packaged_toml
from steptime.core.windows import covered_size
from steptime.formats.export import onnx_general, onnx_sequences
from steptime.formats.export.onnx_nodes import (
    INPUT_SIZE,
    OPEN_SIZE,
    TYPES,
    Nodes,
    NoOnnxError,
    Write,
    single_node_writer,
)
from steptime.network.ops.images import OVER_VOLUMES
from steptime.network.ops.loss import IGNORED_LABEL
from steptime.network.ops.norm import EPSILON

Sizes = tuple[int, ...]  # of each axis
Sides = tuple[int, ...]  # before and after each axis


class _ExportWindow(NamedTuple):
    """The attributes of ONNX's convolutions, padding before all axes, then after all axes."""

    kernel_shape: Sizes
    strides: Sizes
    dilations: Sizes
    pads: Sides
    group: int


def write_reshape(nodes: Nodes, x: str, shape: tuple[int, ...] = (), **_: Any) -> str:
    """Write a view; its first size follows its input's where it can, so that it fits any batch."""
    old_shape = nodes.shape(x)
    new_shape = tuple(shape) or nodes.output_spec.shape
    stated_shape = new_shape
    is_scalar = new_shape == ()
    has_elements = nodes.output_spec.size > 0
    if has_elements and not is_scalar:
        # the first size is the batch or a part of it: it is not stated, so that the file fits any
        # batch
        keeps_first_size = old_shape[:1] == new_shape[:1]
        first_size = INPUT_SIZE if keeps_first_size else OPEN_SIZE
        stated_shape = (first_size, *new_shape[1:])
    return nodes.add("Reshape", x, nodes.constant_ints(*stated_shape))


def _write_linear(nodes: Nodes, x: str, w: str, bias: str | None = None) -> str:
    if len(nodes.shape(x)) == 2:
        return nodes.add("Gemm", x, w, *([bias] if bias else []), transB=1)
    y = nodes.add("MatMul", x, nodes.add("Transpose", w, perm=(1, 0)))
    return nodes.add("Add", y, bias) if bias else y


def write_matmul(
    nodes: Nodes,
    x: str,
    y: str,
    transpose_a: bool = False,
    transpose_b: bool = False,
    fold: bool = False,
) -> str:
    """Write the product of two matrices or batches of matrices.

    Args:
        nodes: the nodes so far.
        x: the first factor.
        y: the second factor.
        transpose_a: whether the first factor is transposed.
        transpose_b: whether the second factor is transposed.
        fold: whether all axes but the last are one, the rows of a matrix.
    """
    factors: list[str] = []
    for name, is_transposed in ((x, transpose_a), (y, transpose_b)):
        factor = name
        rank = len(nodes.shape(name))
        if fold and rank > 2:  # all axes but the last become rows of one matrix
            column_count = nodes.shape(name)[-1]
            factor = nodes.add("Reshape", factor, nodes.constant_ints(OPEN_SIZE, column_count))
            rank = 2
        if is_transposed:
            swap_last_axes = (*range(rank - 2), rank - 1, rank - 2)
            factor = nodes.add("Transpose", factor, perm=swap_last_axes)
        factors.append(factor)
    return nodes.add("MatMul", *factors)


def _align_vector(nodes: Nodes, vector: str, axis: int, rank: int) -> str:
    """Write a vector with axes of size 1 behind it, so that it broadcasts along `axis`."""
    axes_after = rank - 1 - axis % rank
    if not axes_after:
        return vector
    return nodes.add("Unsqueeze", vector, nodes.constant_ints(*range(1, axes_after + 1)))


def _write_bias(nodes: Nodes, x: str, bias: str, axis: int = -1) -> str:
    return nodes.add("Add", x, _align_vector(nodes, bias, axis, len(nodes.shape(x))))


def _write_prelu(nodes: Nodes, x: str, slope: str) -> str:
    return nodes.add("PRelu", x, _align_vector(nodes, slope, axis=1, rank=len(nodes.shape(x))))


def write_reduce_sum(nodes: Nodes, x: str, axes: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """Write the sum over axes, seen as a shape."""
    summed = nodes.add(
        "ReduceSum", x, nodes.constant_ints(*axes), keepdims=0, noop_with_empty_axes=1
    )
    return nodes.add("Reshape", summed, nodes.constant_ints(*shape))


def write_expand(nodes: Nodes, x: str, shape: tuple[int, ...], scale: float = 1.0) -> str:
    """Write `x` repeated along new last axes, and scaled."""
    old_shape = nodes.shape(x)
    new_axes = [1] * (len(shape) - len(old_shape))
    upright = nodes.add("Reshape", x, nodes.constant_ints(*old_shape, *new_axes))
    repeated = nodes.add("Expand", upright, nodes.constant_ints(*shape))
    return nodes.add("Mul", repeated, nodes.constant_number(scale, nodes.output_spec.dtype))


def _order_pads(padding: Sides, axis_count: int) -> Sides:
    """Return padding in the order of ONNX: before all axes, then after all axes."""
    return (*padding[::2], *padding[1::2]) or (0,) * 2 * axis_count


def _describe_window(
    nodes: Nodes,
    inputs: Sequence[str],
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> _ExportWindow:
    """Return the window of a convolution whose second input is its filters."""
    filters = inputs[1]
    kernel = nodes.shape(filters)[2:]
    axis_count = len(kernel)
    unit_sizes = (1,) * axis_count
    pads = _order_pads(padding, axis_count)
    return _ExportWindow(kernel, stride or unit_sizes, dilation or unit_sizes, pads, groups)


def _write_convolution(nodes: Nodes, *inputs: str, **window: Any) -> str:
    return nodes.add("Conv", *inputs, **_describe_window(nodes, inputs, **window)._asdict())


def write_transposed(nodes: Nodes, *inputs: str, output_size: Sizes, **window: Any) -> str:
    """Write a transposed convolution, with the output padding that gives `output_size`."""
    onnx_window = _describe_window(nodes, inputs, **window)
    axis_count = len(output_size)
    pads_before = onnx_window.pads[:axis_count]
    pads_after = onnx_window.pads[axis_count:]
    output_padding: list[int] = []
    for axis, input_size in enumerate(nodes.shape(inputs[0])[2:]):
        full_size = covered_size(
            input_size,
            onnx_window.kernel_shape[axis],
            onnx_window.strides[axis],
            onnx_window.dilations[axis],
        )
        padded_size = output_size[axis] + pads_before[axis] + pads_after[axis]
        output_padding.append(padded_size - full_size)
    attrs = {**onnx_window._asdict(), "output_padding": tuple(output_padding)}
    return nodes.add("ConvTranspose", *inputs, **attrs)


def _measure_overhang(
    nodes: Nodes, x: str, kernel: Sizes, stride: Sizes, pads_before: Sizes
) -> list[int]:
    """Return, for each axis, how far the last window of a pool ends behind its input."""
    overhangs: list[int] = []
    window_counts = nodes.output_spec.shape[2:]
    input_sizes = nodes.shape(x)[2:]
    axes = zip(window_counts, kernel, stride, pads_before, input_sizes, strict=True)
    for window_count, kernel_size, step, pad_before, input_size in axes:
        windows_end = covered_size(window_count, kernel_size, step) - pad_before
        overhangs.append(windows_end - input_size)
    return overhangs


def write_max_pool(
    nodes: Nodes, x: str, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
) -> str:
    """Write the maxima of windows.

    With `ceil` the last window may exceed the padding: the padding is extended to its end.
    """
    axis_count = len(kernel)
    pads = _order_pads(padding, axis_count)
    # padding of maxima counts for nothing, so that it can reach to the end of the last window
    if ceil:
        pads_before = pads[:axis_count]
        overhangs = _measure_overhang(nodes, x, kernel, stride, pads_before)
        pads = (*pads_before, *[max(0, overhang) for overhang in overhangs])
    return nodes.add("MaxPool", x, kernel_shape=kernel, strides=stride, pads=pads)


def write_avg_pool(
    nodes: Nodes, x: str, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
) -> str:
    """Write the means of windows, where padding counts as zeros.

    With `ceil` the last window may exceed the padding, and the excess does not count. ONNX counts
    either all padding or none. There a Pad writes the padding, and the excess is the padding of the
    pool, which is not counted.
    """
    axis_count = len(kernel)
    pads = _order_pads(padding, axis_count)
    window = {"kernel_shape": kernel, "strides": stride}
    if not ceil:
        return nodes.add("AveragePool", x, **window, pads=pads, count_include_pad=1)
    pads_before, pads_after = pads[:axis_count], pads[axis_count:]
    overhangs = _measure_overhang(nodes, x, kernel, stride, pads_before)
    # zeros that count: the padding behind the input, as far as the last window reaches
    counted_zeros = [
        max(0, min(overhang, pad_after))
        for overhang, pad_after in zip(overhangs, pads_after, strict=True)
    ]
    # what the last window exceeds the padding by, which does not count
    excess = [
        max(0, overhang - zero_count)
        for overhang, zero_count in zip(overhangs, counted_zeros, strict=True)
    ]
    padded = x
    if any((*counted_zeros, *pads_before)):
        padded = nodes.add("Pad", x, nodes.constant_ints(0, 0, *pads_before, 0, 0, *counted_zeros))
    no_pads_before = [0] * axis_count
    return nodes.add("AveragePool", padded, **window, pads=(*no_pads_before, *excess))


def _write_global_avg_pool(nodes: Nodes, x: str) -> str:
    return nodes.add("Flatten", nodes.add("GlobalAveragePool", x))


def _write_batch_norm(nodes: Nodes, *inputs: str, training: bool = True) -> str:
    if training:
        name = nodes.current_op.name
        raise NoOnnxError(f"{name}: an ONNX file holds inference, but batch_norm trains here")
    return nodes.add("BatchNormalization", *inputs, epsilon=EPSILON)


def _write_local_response_norm(
    nodes: Nodes, x: str, size: int, alpha: float, beta: float, k: float
) -> str:
    return nodes.add("LRN", x, size=size, alpha=float(alpha), beta=float(beta), bias=float(k))


def _write_gelu(nodes: Nodes, x: str, tanh: bool = False) -> str:
    return nodes.add("Gelu", x, approximate="tanh" if tanh else "none")


def _write_slice(nodes: Nodes, x: str, axis: int, start: int, stop: int, step: int = 1) -> str:
    return nodes.add("Slice", x, *(nodes.constant_ints(n) for n in (start, stop, axis, step)))


def _write_split(nodes: Nodes, x: str, axis: int, sizes: Sizes) -> tuple[str, ...]:
    return nodes.add_with_outputs(
        "Split", x, nodes.constant_ints(*sizes), output_count=len(sizes), axis=axis
    )


def _write_cross_entropy(nodes: Nodes, logits: str, labels: str) -> str:
    scores = nodes.add("Reshape", logits, nodes.constant_ints(OPEN_SIZE, nodes.shape(logits)[-1]))
    flat_labels = nodes.add("Reshape", labels, nodes.constant_ints(OPEN_SIZE))
    return nodes.add("SoftmaxCrossEntropyLoss", scores, flat_labels, ignore_index=IGNORED_LABEL)


KINDS: dict[str, Write] = {
    **onnx_general.KINDS,
    **{
        kind: single_node_writer(name)
        for kind, name in read_packaged_toml("onnx.toml")["kinds"].items()
    },
    "linear": _write_linear,
    "matmul": write_matmul,
    "bias": _write_bias,
    "reduce_sum": write_reduce_sum,
    "mean": single_node_writer("ReduceMean", keepdims=0),
    "expand": write_expand,
    "conv2d": _write_convolution,
    "conv_transpose2d": write_transposed,
    "max_pool2d": write_max_pool,
    "avg_pool2d": write_avg_pool,
    "global_avg_pool": _write_global_avg_pool,
    "batch_norm": _write_batch_norm,
    "layer_norm": single_node_writer("LayerNormalization", epsilon=EPSILON),
    "rms_norm": single_node_writer("RMSNormalization", epsilon=EPSILON),
    "local_response_norm": _write_local_response_norm,
    "gelu": _write_gelu,
    "silu": onnx_sequences.write_silu,
    "softmax": single_node_writer("Softmax", axis=-1),
    "prelu": _write_prelu,
    "dropout": single_node_writer("Identity"),  # in inference
    "cast": lambda nodes, x, dtype: nodes.add("Cast", x, to=TYPES[dtype]),
    "concat": lambda nodes, *inputs, axis: nodes.add("Concat", *inputs, axis=axis),
    "reshape": write_reshape,
    "flatten": single_node_writer("Flatten"),
    "detach": single_node_writer("Identity"),
    "transpose": lambda nodes, x, order: nodes.add("Transpose", x, perm=order),
    "slice": _write_slice,
    "split": _write_split,
    "embedding": lambda nodes, ids, w: nodes.add("Gather", w, ids),
    "attention": onnx_sequences.write_attention,
    "rotary": onnx_sequences.write_rotary,
    "experts": onnx_sequences.write_experts,
    "rnn": onnx_sequences.recurrent_writer("rnn"),
    "lstm": onnx_sequences.recurrent_writer("lstm"),
    "gru": onnx_sequences.recurrent_writer("gru", linear_before_reset=1),
    "cross_entropy": _write_cross_entropy,
}
KINDS |= {kind: KINDS[flat] for kind, flat in OVER_VOLUMES.items() if flat in KINDS}
