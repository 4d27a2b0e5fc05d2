"""ONNX's operators as a table of small functions onto the shared lowering, by name.

Where an attribute became an input in a later opset, both are read: https://onnx.ai/onnx/operators.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from steptime.core.toml_files import packaged
from steptime.formats import elements, lowering, windows
from steptime.formats.onnx.fold import Function, Value, axis_of
from steptime.formats.onnx.fused import FUSED
from steptime.formats.onnx.matrices import MATRICES
from steptime.formats.onnx.model import MAX_NODES, Static, Subgraph
from steptime.formats.onnx.moves import MOVES
from steptime.formats.onnx.opaque import append_stated
from steptime.formats.onnx.run import Visit
from steptime.formats.tensors import free_name
from steptime.network.ops.table import require

Values = Sequence[Value]
TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}  # pixels that an output reads along an axis


def _pointwise(function: str, r: Visit, *values: Value) -> Value:
    """Return a function of elements; before opset 7 an attribute says where the second stands."""
    given: list[Value] = [v for v in values if v is not None]
    if len(given) == 2 and r.attr("broadcast", 0) and "axis" in r.node.attrs:
        own = r.shape(given[1])
        after = len(r.shape(given[0])) - r.axis(given[0]) - len(own)
        given[1] = r.view(given[1], "reshape", (*own, *(1,) * after))
    return r.pointwise(function, *given)


def _folded(function: str, r: Visit, first: Value, *others: Value) -> Value:
    """Return a function of any number of operands, two at a time."""
    for other in others:
        first = r.pointwise(function, first, other)
    return first


def _mean(r: Visit, *values: Value) -> Value:
    total: Any = _folded("add", r, *values)
    share = r.constant(1 / len(values), "float32")
    return r.pointwise("mul", total, share)


def _parametrised(function: str, name: str, default: float) -> Function:
    return lambda r, x: r.pointwise(function, x, parameter=r.attr(name, default))


def _dropout(r: Visit, x: Value, ratio: Value = None, *_: Value) -> Value:
    share = r.number(ratio) if ratio is not None else r.node.attrs.get("ratio", 0.5)
    if not isinstance(x, str) or not share:
        return x
    return r.do(elements.dropout, x, float(share))


def _clip(r: Visit, x: Value, low: Value = None, high: Value = None) -> Value:
    ends = {
        name: r.number(given) if given is not None else r.node.attrs.get(attr)
        for name, attr, given in (("low", "min", low), ("high", "max", high))
    }
    kept = {name: float(n) for name, n in ends.items() if n is not None}
    return r.pointwise("clamp", x, **kept)


def _prelu(r: Visit, x: Value, slope: Value) -> Value:
    shape = r.shape(slope)
    size = math.prod(shape)
    if size not in (1, r.shape(x)[1]):
        below = r.pointwise("minimum", x, r.constant(0.0, "float32"))
        return r.pointwise("add", r.pointwise("relu", x), r.pointwise("mul", below, slope))
    return r.do(elements.op, "prelu", x, r.view(slope, "reshape", (size,)))


def _gelu(r: Visit, x: Value) -> Value:
    return r.pointwise("gelu_tanh" if r.attr("approximate", "none") == "tanh" else "gelu", x)


def _reduce(function: str, r: Visit, x: Value, axes: Value = None) -> Value:
    which = r.whole(axes, "axes")
    if not which and r.attr("noop_with_empty_axes", 0):
        return x
    rank, keep = len(r.shape(x)), bool(r.attr("keepdims", 1))
    every = which or range(rank)
    return r.do(elements.reduce, function, x, tuple(every), keep=keep)


def _extreme(function: str) -> Function:
    return lambda r, x: r.do(
        elements.reduce, function, x, (r.attr("axis", 0),), keep=bool(r.attr("keepdims", 1))
    )


def _softmax(r: Visit, x: Value) -> Value:
    log = r.node.op == "LogSoftmax"
    shape, new = r.shape(x), r.node.opset >= 13
    axis = r.axis(x, -1 if new else 1)
    if new or axis == len(shape) - 1:
        return r.do(elements.softmax, x, axis, log=log)
    flat = r.view(x, "reshape", (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return r.view(r.do(elements.softmax, flat, 1, log=log), "reshape", shape)


def _cumulative_sum(r: Visit, x: Value, axis: Value) -> Value:
    along = axis_of((r.whole(axis) or (0,))[0], len(r.shape(x)))
    return r.do(elements.op, "cumsum", x, axis=along, reverse=bool(r.attr("reverse", 0)))


def _topk(r: Visit, x: Value, *_: Value) -> Values:
    axis = r.axis(x, -1)
    return r.do(lowering.topk, x, r.out()[axis], axis, largest=bool(r.attr("largest", 1)))


def _resize(r: Visit, x: Value, *_: Value) -> Value | Values:
    """Return an image of another size."""
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(r.attr("mode", "nearest"), "nearest")
    corners = r.attr("coordinate_transformation_mode", "half_pixel") == "align_corners"
    if r.out()[:2] != r.shape(x)[:2] or len(r.shape(x)) not in (3, 4):
        taps = TAPS[mode] ** (len(r.shape(x)) - 2)
        return append_stated(r, x, flop_per_element=2.0 * taps if taps > 1 else 0.0)
    return r.do(lowering.resize, x, r.out()[2:], mode, align_corners=corners)


def _scan(r: Visit, *values: Value) -> Values:
    """Return the last states and the stacked outputs of a body that runs for each part of inputs.

    Before opset 9 a batch of scans ran at once, whose file is refused.
    """
    require(r.node.opset >= 9, "a Scan of an opset before 9")
    body: Subgraph = r.node.attrs["body"]
    count = r.attr("num_scan_inputs", 0)
    states, inputs = [*values[: len(values) - count]], values[len(values) - count :]
    stated = zip(r.attr("scan_input_axes", (0,) * count), inputs, strict=True)
    axes = [axis_of(axis, len(r.shape(x))) for axis, x in stated]
    turns = {r.shape(x)[axis] for x, axis in zip(inputs, axes, strict=True)}
    require(len(turns) == 1, f"a Scan over {sorted(turns)} parts")
    (length,) = turns
    require(length * len(body.nodes) <= MAX_NODES, f"{length} turns of {len(body.nodes)} nodes")
    stacks: list[Values] = []
    for place in range(length):
        parts = [
            r.do(elements.select, x, axis, place) for x, axis in zip(inputs, axes, strict=True)
        ]
        results = r.branch(body, (*states, *parts))
        states = results[: len(states)]
        stacks.append(results[len(states) :])
    return [*states, *(_stacked(r, column) for column in zip(*stacks, strict=True))]


def _if(r: Visit, condition: Value) -> Values:
    number = r.number(condition)
    require(number is not None, _BRANCH)
    branch = r.node.attrs.get("then_branch" if number else "else_branch")
    require(isinstance(branch, Subgraph), "a branch is missing")
    chosen: Subgraph = branch  # type: ignore[assignment]
    return r.branch(chosen)


def _stacked(r: Visit, parts: Values) -> Value:
    seen = [r.view(part, "reshape", (1, *r.shape(part))) for part in parts]
    known = [part.values for part in seen if isinstance(part, Static) and part.values is not None]
    if len(known) == len(seen):
        return r.constant(np.concatenate(known), r.spec(seen[0])[0], derived=True)
    return r.do(elements.concat, seen, 0)


def _loop(r: Visit, number: Value = None, condition: Value = None, *carried: Value) -> Values:
    turns = r.number(number)
    require(turns is not None, _UNKNOWN)
    body: Subgraph = r.node.attrs["body"]
    made, count = [condition, *carried], int(turns or 0)
    require(count * len(body.nodes) <= MAX_NODES, f"{count} turns of {len(body.nodes)} nodes")
    kept: list[Values] = []
    for i in range(count):
        if made[0] is not None:
            goes_on = r.number(made[0])
            require(goes_on is not None, _UNKNOWN)
            if not goes_on:
                break
        turn = r.constant(i, "int64", derived=True)
        made = r.branch(body, (turn, made[0], *made[1 : 1 + len(carried)]))
        kept.append(made[1 + len(carried) :])
    stacks = len(body.outputs) > 1 + len(carried)
    require(bool(kept) or not stacks, "a loop of no turns, whose output is empty")
    columns = zip(*kept, strict=True)
    return [*made[1 : 1 + len(carried)], *(_stacked(r, column) for column in columns)]


def _spectra(r: Visit, x: Value, step: Value, window: Value = None, length: Value = None) -> Value:
    """Return the spectrum of each window, a product with the table of waves: ONNX says no way."""
    shape, stride = r.shape(x), (r.whole(step) or (1,))[0]
    size = (r.whole(length) or r.shape(window))[0]
    bins = size // 2 + 1 if r.attr("onesided", 1) else size
    parts = 2 if shape[2:] == (2,) else 1  # a complex signal has two
    y = r.do(windows.cut_windows, x, 1, size, at="/frames", step=stride)
    y = r.do(elements.reshape, y, (*r.shape(y)[:3], parts), at="/parts")
    if window is not None:
        column = r.view(window, "reshape", (size, 1))
        y = r.do(elements.pointwise, "mul", y, column, at="/window")
    n, frames = r.shape(y)[:2]
    y = r.do(elements.reshape, y, (n, frames, size * parts), at="/rows")
    waves = r.b.buffer(free_name(r.b, f"{r.name}/waves"), (2 * bins, size * parts))
    y = r.do(lowering.linear, y, waves)
    return r.do(elements.reshape, y, (n, frames, bins, 2), at="/bins")


_UNKNOWN = "a loop, whose number of turns the file does not say"
_BRANCH = "a branch that depends on data; a number that is an input can be given, FILE:sr=16000"
_NAMES = packaged("onnx.toml")
OPS: Mapping[str, Function] = {
    **{name: partial(_pointwise, kind) for kind, name in _NAMES["kinds"].items()},
    **{name: partial(_pointwise, function) for function, name in _NAMES["functions"].items()},
    **{name: partial(_pointwise, function) for name, function in _NAMES["read"].items()},
    **{name: partial(_reduce, function) for name, function in _NAMES["reductions"].items()},
    "Sum": partial(_folded, "add"),
    "Max": partial(_folded, "maximum"),
    "Min": partial(_folded, "minimum"),
    "Loop": _loop,
    "Scan": _scan,
    "STFT": _spectra,
    "Mean": _mean,
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **MATRICES,
    **FUSED,
    **MOVES,
    "LeakyRelu": _parametrised("leaky_relu", "alpha", 0.01),
    "Elu": _parametrised("elu", "alpha", 1.0),
    "Celu": _parametrised("elu", "alpha", 1.0),
    "ThresholdedRelu": _parametrised("leaky_relu", "alpha", 1.0),
    "Identity": lambda r, x: x,
    "Clip": _clip,
    "PRelu": _prelu,
    "Gelu": _gelu,
    "Dropout": _dropout,
    "ArgMax": _extreme("argmax"),
    "ArgMin": _extreme("argmin"),
    "CumSum": _cumulative_sum,
    "TopK": _topk,
    "If": _if,
}
