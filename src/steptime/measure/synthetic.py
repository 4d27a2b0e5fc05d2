"""The initial state of a network in every backend: synthetic values and optimizer settings.

Speed does not depend on values as long as none is denormal, infinite or not a number, so weights
are scaled to keep activations near 1 in networks of any depth, and the learning rate is small.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steptime.core.graph import Graph, TensorSpec
from steptime.network.ops import norm
from steptime.network.ops.images import OVER_VOLUMES
from steptime.network.ops.sequence import GATES

NORM_EPSILON = norm.EPSILON
RUNNING_SHARE = 0.1  # of a batch in the running statistics of batch norm, as torch
LEARNING_RATE = 1e-4
MOMENTUM = 0.9
RMSPROP_DECAY = 0.99
ADAM_DECAYS = (0.9, 0.999)
WEIGHT_DECAY = 0.01  # of AdamW, torch's default
ROTARY_BASE = 10_000.0  # Su et al. 2021, section 3.3


def optimizer_epsilon(dtype: str) -> float:
    """Return the epsilon that RMSProp and Adam add to a root: 1e-8, which would be 0 in float16."""
    return 1e-4 if dtype == "float16" else 1e-8


@dataclass(frozen=True)
class Fill:
    """Values of a tensor.

    `normal` numbers of deviation `amount`, the `constant` amount, `ids` below `amount`, or the
    cosines and sines of rotary `angles`.
    """

    kind: Literal["normal", "constant", "ids", "angles"]
    amount: float = 0.0


Specs = tuple[TensorSpec, ...]
ZEROS_FILL = Fill("constant", 0.0)
UNIT_FILL = Fill("constant", 1.0)


def _scaled_normal(size: int, gain: float = 1.0) -> Fill:
    return Fill("normal", math.sqrt(gain / max(1, size)))


Attributes = Mapping[str, Any]
Rule = Callable[[Specs, Attributes], Fill]


def _fan_in(specs: Specs, _: Attributes) -> Fill:
    """Keep the deviation through a product and a ReLU (He et al. 2015, eq. 10)."""
    weight = specs[1]  # [outputs, inputs] of a product, [filters, channels, height, width]
    return _scaled_normal(math.prod(weight.shape[1:]), 2.0)


def _transposed_fan_in(specs: Specs, _: Attributes) -> Fill:
    weight = specs[1]  # [channels, filters of a group, height, width]
    return _scaled_normal(weight.size // weight.shape[1], 2.0)


def _by_width_of(input_index: int) -> Rule:
    return lambda specs, _: _scaled_normal(specs[input_index].shape[-1])


def _neutral_operand(_: Specs, attrs: Attributes) -> Fill:
    """Leave what is added at 0; all else that a function of elements is given is 1."""
    return ZEROS_FILL if attrs["function"] in ("add", "sub") else UNIT_FILL


def _indices_below_axis(specs: Specs, attrs: Attributes) -> Fill:
    return Fill("ids", specs[0].shape[attrs["axis"]])


FILLS_BY_KIND: dict[str, dict[int, Fill | Rule]] = {  # kind: the values of its inputs
    "linear": {1: _fan_in},
    "conv2d": {1: _fan_in},
    "conv_transpose2d": {1: _transposed_fan_in},
    "matmul": {1: _by_width_of(1)},
    "bias": {1: ZEROS_FILL},
    "batch_norm": {1: UNIT_FILL, 2: ZEROS_FILL, 3: ZEROS_FILL, 4: UNIT_FILL},
    "layer_norm": {1: UNIT_FILL, 2: ZEROS_FILL},
    "group_norm": {1: UNIT_FILL, 2: ZEROS_FILL},
    "rms_norm": {1: UNIT_FILL},
    "pointwise": {1: _neutral_operand, 2: _neutral_operand},
    "gather": {1: _indices_below_axis},
    "gather_elements": {1: _indices_below_axis},
    "embedding": {0: lambda specs, _: Fill("ids", specs[1].shape[0]), 1: _by_width_of(1)},
    "cross_entropy": {1: lambda specs, _: Fill("ids", specs[0].shape[-1])},
    "rotary": {1: Fill("angles")},
    **{
        cell: {1: _by_width_of(2), 2: _by_width_of(2), 3: ZEROS_FILL, 4: ZEROS_FILL}
        for cell in GATES
    },
}
# the next op says what these are
_VALUE_PRESERVING_KINDS = ("cast", "slice", "split", "reshape", "transpose", "flatten", "broadcast")


def list_fills(graph: Graph) -> dict[str, Fill]:
    """Return the values of every input, weight and buffer, by the op that first uses it.

    In a training graph the gradient of the loss is 1 and the optimizer's state 0.
    """
    fills_by_use = _fills_by_use(graph)
    buffers = {name: fills_by_use.get(name, ZEROS_FILL) for name in graph.buffers}
    weights = {
        name: fills_by_use.get(name) or _default_weight_fill(graph.tensors[name])
        for name in graph.weights
    }
    inputs = {
        name: fills_by_use.get(name) or _default_input_fill(graph.tensors[name])
        for name in graph.inputs
    }
    return {**inputs, **weights, **buffers}


def _fills_by_use(graph: Graph) -> dict[str, Fill]:
    """Return the values of the tensors for which the op that first uses them has a rule."""
    # The gradient of the loss by itself is 1.
    fills_by_use: dict[str, Fill] = {f"{name}/grad": UNIT_FILL for name in graph.outputs}
    source_by_tensor = {name: name for name in (*graph.inputs, *graph.weights, *graph.buffers)}
    for op in graph.ops:
        # A reshaped or cast tensor stands for its source: the op that reads it decides the values.
        passes_values_on = op.kind in _VALUE_PRESERVING_KINDS and op.inputs[0] in source_by_tensor
        if passes_values_on:
            source_by_tensor[op.outputs[0]] = source_by_tensor[op.inputs[0]]
        # A kind over volumes (`conv3d`) has the rules of its kind over images (`conv2d`).
        rule_by_input = FILLS_BY_KIND.get(OVER_VOLUMES.get(op.kind, op.kind), {})
        for input_index, name in enumerate(op.inputs):
            rule = rule_by_input.get(input_index)
            source = source_by_tensor.get(name)  # an input, a weight or a buffer
            if rule is None or source is None or source in fills_by_use:
                continue  # nothing to fill, or the first op that used it has decided
            if isinstance(rule, Fill):
                fills_by_use[source] = rule
            else:
                specs = tuple(graph.tensors[input_name] for input_name in op.inputs)
                fills_by_use[source] = rule(specs, op.attrs)
    return fills_by_use


def _default_weight_fill(spec: TensorSpec) -> Fill:
    width = spec.shape[-1] if spec.shape else 1
    return _scaled_normal(width)


def _default_input_fill(spec: TensorSpec) -> Fill:
    is_float = "float" in spec.dtype
    return Fill("normal", 1.0) if is_float else Fill("ids", 2)


def initial_values(
    graph: Graph, seed: int, element_type: Callable[[str], Any]
) -> dict[str, NDArray[Any]]:
    """Return arrays for all inputs, weights and buffers; `element_type` gives numpy's types."""
    rng = np.random.default_rng(seed)
    values = {}
    for name, fill in list_fills(graph).items():
        spec = graph.tensors[name]
        draw = _DRAW_BY_KIND[fill.kind]
        values[name] = draw(spec.shape, fill, rng).astype(element_type(spec.dtype), copy=False)
    return values


def _draw_normal(shape: tuple[int, ...], fill: Fill, rng: np.random.Generator) -> Any:
    values = rng.standard_normal(shape, np.float32)
    values *= np.float32(fill.amount)
    return values


def angles(shape: tuple[int, ...], *_: object) -> Any:
    """Return the cosines and then the sines by which pairs are turned (Su et al. 2021, eq. 15)."""
    length, width = shape
    frequencies = ROTARY_BASE ** (-2.0 * np.arange(width // 2) / width)
    rotations = np.outer(np.arange(length), frequencies)
    return np.concatenate((np.cos(rotations), np.sin(rotations)), -1)


_DRAW_BY_KIND: dict[str, Callable[..., Any]] = {
    "normal": _draw_normal,
    "constant": lambda shape, fill, _: np.full(shape, fill.amount),
    "ids": lambda shape, fill, rng: rng.integers(0, int(fill.amount), shape),
    "angles": angles,
}
