"""The table of ONNX's operators, each with the small function that lowers it to op kinds.

Where an attribute became an input in a later opset, both are read: https://onnx.ai/onnx/operators.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from steptime.core.toml_files import read_packaged_toml
from steptime.formats import elements, lowering, windows
from steptime.formats.onnx.constant import FileConstant
from steptime.formats.onnx.fold import Function, Value, axis_of
from steptime.formats.onnx.fused import FUSED
from steptime.formats.onnx.matrices import MATRICES
from steptime.formats.onnx.model import MAX_NODES, Subgraph
from steptime.formats.onnx.moves import MOVES
from steptime.formats.onnx.opaque import append_opaque, append_stated
from steptime.formats.onnx.run import OnnxWalk
from steptime.formats.tensors import free_name
from steptime.network.ops.table import ShapeError, require

Values = Sequence[Value]
FIRST_OPSET_OF_SINGLE_AXIS = 13  # of Softmax; before it the axes from `axis` on are one
FIRST_OPSET_OF_SCAN = 9  # before it a Scan ran for a batch at once
RESIZE_MODES = {"linear": "bilinear", "cubic": "bicubic"}
# pixels that an output reads along an axis
PIXELS_READ_BY_MODE = {"nearest": 1, "bilinear": 2, "bicubic": 4}


def _lower_pointwise(function: str, walk: OnnxWalk, *values: Value) -> Value:
    """Lower a function of elements.

    Before opset 7 the attribute `axis` says with which axis of the first the second is aligned.
    """
    operands: list[Value] = [value for value in values if value is not None]
    # before opset 7 `axis` is that of the first operand with which the second begins
    states_axis = walk.attr("broadcast", 0) and "axis" in walk.node.attrs
    if len(operands) == 2 and states_axis:
        first, second = operands
        second_shape = walk.shape(second)
        first_rank = len(walk.shape(first))
        axes_after = first_rank - walk.axis(first) - len(second_shape)
        operands[1] = walk.reshape(second, (*second_shape, *(1,) * axes_after))
    return walk.pointwise(function, *operands)


def _lower_pointwise_of_many(
    function: str, walk: OnnxWalk, first: Value, *operands: Value
) -> Value:
    """Lower a function of any number of operands, two at a time."""
    result = first
    for operand in operands:
        result = walk.pointwise(function, result, operand)
    return result


def _lower_mean(walk: OnnxWalk, *values: Value) -> Value:
    total = _lower_pointwise_of_many("add", walk, *values)
    return walk.pointwise("mul", total, walk.constant(1 / len(values), "float32"))


def _lower_with_attribute(function: str, attribute: str, default: float) -> Function:
    """Return a function that lowers an activation whose parameter is an attribute."""
    return lambda walk, x: walk.pointwise(function, x, parameter=walk.attr(attribute, default))


def _lower_dropout(walk: OnnxWalk, x: Value, ratio: Value = None, *_: Value) -> Value:
    share = walk.node.attrs.get("ratio", 0.5) if ratio is None else walk.read_number(ratio)
    is_constant = not isinstance(x, str)
    if is_constant or not share:
        return x
    return walk.lower(lowering.dropout, x, float(share))


def _lower_clip(walk: OnnxWalk, x: Value, low: Value = None, high: Value = None) -> Value:
    """Lower Clip; before opset 11 its limits are attributes, and each may be left out."""
    # limits are inputs since opset 11, and attributes before; each may be left out
    low_limit = walk.node.attrs.get("min") if low is None else walk.read_number(low)
    high_limit = walk.node.attrs.get("max") if high is None else walk.read_number(high)
    limits: dict[str, float] = {}
    if low_limit is not None:
        limits["low"] = float(low_limit)
    if high_limit is not None:
        limits["high"] = float(high_limit)
    return walk.pointwise("clamp", x, **limits)


def _lower_prelu(walk: OnnxWalk, x: Value, slope: Value) -> Value:
    """Lower PRelu: by its op with one slope or one for each channel, else as relu + slope min."""
    slope_count = math.prod(walk.shape(slope))
    channels = walk.shape(x)[1]
    if slope_count in (1, channels):
        return walk.lower(elements.append_op, "prelu", x, walk.reshape(slope, (slope_count,)))
    negative_part = walk.pointwise("minimum", x, walk.constant(0.0, "float32"))
    positive_part = walk.pointwise("relu", x)
    scaled_part = walk.pointwise("mul", negative_part, slope)
    return walk.pointwise("add", positive_part, scaled_part)


def _lower_gelu(walk: OnnxWalk, x: Value) -> Value:
    is_tanh = walk.attr("approximate", "none") == "tanh"
    return walk.pointwise("gelu_tanh" if is_tanh else "gelu", x)


def _lower_reduce(function: str, walk: OnnxWalk, x: Value, axes: Value = None) -> Value:
    """Lower a reduction; without axes it is over all of them, or none by an attribute."""
    stated_axes = walk.read_integers(axes, "axes")
    keeps_without_axes = walk.attr("noop_with_empty_axes", 0)
    if keeps_without_axes and not stated_axes:
        return x
    reduced_axes = stated_axes or tuple(range(len(walk.shape(x))))
    keep = bool(walk.attr("keepdims", 1))
    return walk.lower(elements.reduce, function, x, reduced_axes, keep=keep)


def _lower_index_of_extreme(function: str, walk: OnnxWalk, x: Value) -> Value:
    keep = bool(walk.attr("keepdims", 1))
    return walk.lower(elements.reduce, function, x, (walk.attr("axis", 0),), keep=keep)


def _lower_softmax(walk: OnnxWalk, x: Value) -> Value:
    """Lower a softmax; before opset 13 it is over all axes from `axis` on."""
    is_log = walk.node.op == "LogSoftmax"
    shape = walk.shape(x)
    is_over_single_axis = walk.node.opset >= FIRST_OPSET_OF_SINGLE_AXIS
    # the default of `axis` changed with that opset, too
    axis = walk.axis(x, -1 if is_over_single_axis else 1)
    is_last_axis = axis == len(shape) - 1
    if is_over_single_axis or is_last_axis:
        return walk.lower(elements.softmax, x, axis, log=is_log)
    # older opsets flatten the axes from `axis` on into one
    row_count = math.prod(shape[:axis])
    row_size = math.prod(shape[axis:])
    rows = walk.reshape(x, (row_count, row_size))
    y = walk.lower(elements.softmax, rows, axis=1, log=is_log)
    return walk.reshape(y, shape)


def _lower_cumulative_sum(walk: OnnxWalk, x: Value, axis: Value) -> Value:
    stated_axis, *_ = walk.read_integers(axis) or (0,)
    summed_axis = axis_of(stated_axis, len(walk.shape(x)))
    is_reverse = bool(walk.attr("reverse", 0))
    return walk.lower(elements.append_op, "cumsum", x, axis=summed_axis, reverse=is_reverse)


def _lower_topk(walk: OnnxWalk, x: Value, *_: Value) -> Values:
    axis = walk.axis(x, -1)
    count = walk.output_shape()[axis]
    return walk.lower(lowering.topk, x, count, axis, largest=bool(walk.attr("largest", 1)))


def _lower_resize(walk: OnnxWalk, x: Value, *_: Value) -> Value | Values:
    """Lower an image of another size.

    Volumes, and resized channels or examples, count by their bytes and two FLOP for each pixel
    that an output reads.
    """
    mode = RESIZE_MODES.get(walk.attr("mode", "nearest"), "nearest")
    output_shape = walk.output_shape()
    shape = walk.shape(x)
    resizes_channels = output_shape[:2] != shape[:2]  # or examples
    is_image_or_sequence = len(shape) in (3, 4)
    if resizes_channels or not is_image_or_sequence:
        pixels_read = PIXELS_READ_BY_MODE[mode] ** (len(shape) - 2)
        # a multiply-add for each pixel; the nearest one is copied
        flop_per_element = 2.0 * pixels_read if pixels_read > 1 else 0.0
        return append_stated(walk, x, flop_per_element=flop_per_element)
    transformation = walk.attr("coordinate_transformation_mode", "half_pixel")
    aligns_corners = transformation == "align_corners"
    return walk.lower(lowering.resize, x, output_shape[2:], mode, align_corners=aligns_corners)


def _lower_scan(walk: OnnxWalk, *values: Value) -> Values:
    """Lower Scan: its body for each part of its inputs, with states from iteration to iteration.

    Returns the last states and the stacked outputs. Before opset 9 a batch of scans ran at once;
    such a file is refused.
    """
    require(walk.node.opset >= FIRST_OPSET_OF_SCAN, "a Scan of an opset before 9")
    body: Subgraph = walk.node.attrs["body"]
    # the states come first, then the inputs that are cut into a part for each iteration
    input_count = walk.attr("num_scan_inputs", 0)
    state_count = len(values) - input_count
    states: Values = [*values[:state_count]]
    inputs = _find_scanned_axes(walk, values[state_count:])
    iteration_count = _count_parts(walk, inputs)
    _check_iterations(iteration_count, body)
    outputs_by_iteration: list[Values] = []
    for iteration in range(iteration_count):
        parts = [walk.lower(elements.select, x, axis, iteration) for x, axis in inputs]
        results = walk.lower_branch(body, (*states, *parts))
        states = results[:state_count]
        outputs_by_iteration.append(results[state_count:])
    return [*states, *_stack_outputs(walk, outputs_by_iteration)]


def _find_scanned_axes(walk: OnnxWalk, inputs: Values) -> list[tuple[Value, int]]:
    """Return each input of a Scan with the axis along which it is cut, by default the first."""
    stated_axes = walk.attr("scan_input_axes", (0,) * len(inputs))
    return [
        (x, axis_of(axis, len(walk.shape(x)))) for x, axis in zip(inputs, stated_axes, strict=True)
    ]


def _count_parts(walk: OnnxWalk, inputs: Sequence[tuple[Value, int]]) -> int:
    """Return the parts of each input along its axis; raises `ShapeError` if these differ."""
    lengths = {walk.shape(x)[axis] for x, axis in inputs}
    require(len(lengths) == 1, f"a Scan over {sorted(lengths)} parts")
    (part_count,) = lengths
    return part_count


def _stack_outputs(walk: OnnxWalk, outputs_by_iteration: Sequence[Values]) -> list[Value]:
    """Return each output of a loop with its parts of all iterations along a new first axis."""
    parts_by_output = zip(*outputs_by_iteration, strict=True)
    return [_stack_iterations(walk, parts) for parts in parts_by_output]


def _check_iterations(iteration_count: int, body: Subgraph) -> None:
    """Raise `ShapeError` for a loop that would be lowered to more than `MAX_NODES` nodes."""
    node_count = len(body.nodes)
    fits = iteration_count * node_count <= MAX_NODES
    require(fits, f"{iteration_count} turns of {node_count} nodes")


def _lower_if(walk: OnnxWalk, condition: Value) -> Values:
    truth = walk.read_number(condition)  # 1 or 0
    require(truth is not None, _UNKNOWN_BRANCH)
    branch = walk.node.attrs.get("then_branch" if truth else "else_branch")
    if not isinstance(branch, Subgraph):
        raise ShapeError("a branch is missing")
    return walk.lower_branch(branch)


def _stack_iterations(walk: OnnxWalk, parts: Values) -> Value:
    """Return one output of all iterations of a loop, along a new first axis."""
    rows = [walk.reshape(part, (1, *walk.shape(part))) for part in parts]
    # parts whose values are known stay a constant, which may decide shapes
    arrays = [
        row.values for row in rows if isinstance(row, FileConstant) and row.values is not None
    ]
    have_values = len(arrays) == len(rows)
    if have_values:
        dtype, _ = walk.spec(rows[0])
        return walk.constant(np.concatenate(arrays), dtype, derived=True)
    return walk.lower(elements.concat, rows, axis=0)


def _lower_loop(
    walk: OnnxWalk, iteration_limit: Value = None, condition: Value = None, *variables: Value
) -> Values:
    """Lower Loop: its body for each iteration, as long as its condition holds.

    The body reads the number of the iteration, the condition and the variables; it returns the next
    condition and variables, and outputs to stack.
    """
    stated_limit = walk.read_number(iteration_limit)
    if stated_limit is None:
        raise ShapeError(_UNKNOWN_ITERATIONS)
    max_iterations = int(stated_limit)
    body: Subgraph = walk.node.attrs["body"]
    _check_iterations(max_iterations, body)
    outputs_by_iteration: list[Values] = []
    for iteration in range(max_iterations):
        ends_early = condition is not None and not _is_true(walk, condition)
        if ends_early:
            break
        iteration_number = walk.constant(iteration, "int64", derived=True)
        condition, *results = walk.lower_branch(body, (iteration_number, condition, *variables))
        variables = tuple(results[: len(variables)])
        outputs_by_iteration.append(results[len(variables) :])
    # the body's outputs: condition, variables, outputs to stack
    has_stacked_outputs = len(body.outputs) > 1 + len(variables)
    is_empty = has_stacked_outputs and not outputs_by_iteration
    require(not is_empty, "a loop of no turns, whose output is empty")
    return [*variables, *_stack_outputs(walk, outputs_by_iteration)]


def _is_true(walk: OnnxWalk, condition: Value) -> bool:
    """Return the truth of a loop's condition; raises `ShapeError` if it depends on data."""
    truth = walk.read_number(condition)
    require(truth is not None, _UNKNOWN_ITERATIONS)
    return bool(truth)


def _lower_suppression(
    walk: OnnxWalk, boxes: Value, scores: Value, limit: Value = None, *_: Value
) -> list[Value]:
    """Lower NonMaxSuppression; values decide how many boxes it chooses: the most that it may."""
    stated_limit = 0 if limit is None else walk.read_number(limit)
    if stated_limit is None:
        raise ShapeError("a number of boxes that the file does not state")
    batch, class_count, box_count = walk.shape(scores)
    box_index_count = batch * class_count * min(box_count, int(stated_limit))
    walk.b.remarks.append(
        f"{walk.name}: counted as if it chose {box_index_count} boxes, as many as it may"
    )
    return append_opaque(walk, (boxes, scores), [("int64", (box_index_count, BOX_INDICES))])


def _lower_spectrum(
    walk: OnnxWalk, x: Value, step: Value, window: Value = None, length: Value = None
) -> Value:
    """Lower STFT as a product of windows with a table of sines and cosines.

    ONNX does not state an algorithm. A complex signal has two parts in its last axis.
    """
    frame_shape = walk.read_integers(length) or walk.shape(window)
    frame_size = frame_shape[0]
    frames = _cut_frames(walk, x, step, frame_size)
    if window is not None:
        column = walk.reshape(window, (frame_size, 1))
        frames = walk.lower(elements.pointwise, "mul", frames, column, suffix="/window")
    n, frame_count, _, part_count = walk.shape(frames)
    row_width = frame_size * part_count
    rows = walk.lower(elements.reshape, frames, (n, frame_count, row_width), suffix="/rows")
    waves = _append_waves(walk, row_width, frame_size)
    spectra = walk.lower(lowering.linear, rows, waves)
    bin_count = walk.shape(waves)[0] // 2
    return walk.lower(elements.reshape, spectra, (n, frame_count, bin_count, 2), suffix="/bins")


def _append_waves(walk: OnnxWalk, row_width: int, frame_size: int) -> str:
    """Return the table `[2 bins, row_width]` with a sine and a cosine for each bin."""
    has_half_spectrum = walk.attr("onesided", 1)
    bin_count = frame_size // 2 + 1 if has_half_spectrum else frame_size
    return walk.b.buffer(free_name(walk.b, f"{walk.name}/waves"), (2 * bin_count, row_width))


def _cut_frames(walk: OnnxWalk, x: Value, step: Value, frame_size: int) -> Value:
    """Return the frames of a signal `[n, frames, frame_size, parts]`, of a complex one 2 parts."""
    is_complex = walk.shape(x)[2:] == (2,)
    part_count = 2 if is_complex else 1  # real and imaginary part
    stride, *_ = walk.read_integers(step) or (1,)
    time_axis = 1
    frames = walk.lower(
        windows.cut_windows, x, time_axis, frame_size, suffix="/frames", step=stride
    )
    shape = (*walk.shape(frames)[:3], part_count)
    return walk.lower(elements.reshape, frames, shape, suffix="/parts")


BOX_INDICES = 3  # that say a box that NonMaxSuppression chooses: example, class, box
_UNKNOWN_ITERATIONS = "a loop whose number of turns the file does not state"
_UNKNOWN_BRANCH = (
    "a branch that depends on data; a number that is an input can be given, FILE:sr=16000"
)
_NAMES = read_packaged_toml("onnx.toml")
OPS: Mapping[str, Function] = {
    **{name: partial(_lower_pointwise, kind) for kind, name in _NAMES["kinds"].items()},
    **{name: partial(_lower_pointwise, function) for function, name in _NAMES["functions"].items()},
    **{name: partial(_lower_pointwise, function) for name, function in _NAMES["read"].items()},
    **{name: partial(_lower_reduce, function) for name, function in _NAMES["reductions"].items()},
    "Sum": partial(_lower_pointwise_of_many, "add"),
    "Max": partial(_lower_pointwise_of_many, "maximum"),
    "Min": partial(_lower_pointwise_of_many, "minimum"),
    "Loop": _lower_loop,
    "Scan": _lower_scan,
    "STFT": _lower_spectrum,
    "NonMaxSuppression": _lower_suppression,
    "AffineGrid": lambda walk, theta, _: append_stated(
        walk, theta, flop_per_element=2 * walk.shape(theta)[-1]
    ),
    "Mean": _lower_mean,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _lower_softmax),
    **dict.fromkeys(("Resize", "Upsample"), _lower_resize),
    **MATRICES,
    **FUSED,
    **MOVES,
    "LeakyRelu": _lower_with_attribute("leaky_relu", "alpha", 0.01),
    "Elu": _lower_with_attribute("elu", "alpha", 1.0),
    "Celu": _lower_with_attribute("elu", "alpha", 1.0),
    "ThresholdedRelu": _lower_with_attribute("leaky_relu", "alpha", 1.0),
    "Identity": lambda walk, x: x,
    "Clip": _lower_clip,
    "PRelu": _lower_prelu,
    "Gelu": _lower_gelu,
    "Dropout": _lower_dropout,
    "ArgMax": partial(_lower_index_of_extreme, "argmax"),
    "ArgMin": partial(_lower_index_of_extreme, "argmin"),
    "CumSum": _lower_cumulative_sum,
    "TopK": _lower_topk,
    "If": _lower_if,
}
