"""Networks as Paleo describes them: lists of layers with channels-last shapes.

The graph of a Paleo file carries the layers of the file. For any other graph each forward op is a
layer: Paleo has rules for convolutions, linear layers, pooling and dropout, and for nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op
from steptime.network.ops import OPS

INPUT = "data"


@dataclass(frozen=True)
class Layer:
    """A layer, as the file of the network describes it.

    Shapes are the file's, channels last (`[n, h, w, c]` or `[n, k]`). `kind` is the word of the
    rules (`rules.RULES`), `type` the file's own. `kernel` and `strides`
    are (height, width); `padding` is `VALID`, `SAME` or (height, width) a side. `parents` are names
    of layers, the input's first. `op` is the forward op that does the layer's main work ("" if
    there is none, as for an input). `split` is the part of a model-parallel block, else None.
    `parameters` counts those of the file's own rules, a bias for each filter.
    """

    name: str
    kind: str
    type: str
    parents: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: str | tuple[int, int] = "VALID"
    groups: int = 1
    parameters: int = 0
    op: str = ""
    split: int | None = None


def layers_in(graph: Graph) -> tuple[Layer, ...]:
    """Return the layers of the Paleo file that `graph` was read from; () for other graphs."""
    return tuple(layer for layer in graph.source if isinstance(layer, Layer))


@lru_cache(maxsize=1)  # a step is lowered, and remarked on for each device, one after the other
def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """Return the layers of the file that `graph` was read from, else one for each forward op.

    Raises `InputError`, naming the op, for a dilated convolution, which Paleo does not know.
    """
    file_layers = layers_in(graph)
    if file_layers:
        return file_layers
    maker = dict.fromkeys(graph.inputs, INPUT)
    layers = []
    for op in graph.ops:
        if op.part != "forward":
            continue
        parents = tuple(maker[name] for name in op.inputs if name in maker)
        layers.append(_layer_of_op(graph, op, parents or (INPUT,)))
        # A cast of the input is no layer: its result still counts as the input.
        carries_input = parents == (INPUT,) and op.kind == "cast"
        maker.update(dict.fromkeys(op.outputs, INPUT if carries_input else op.name))
    return tuple(layers)


def unknown_work(graph: Graph) -> tuple[str, ...]:
    """Return the kinds of ops with matrix work that Paleo has no layer for, sorted."""
    ruled_ops = {layer.op for layer in layers_of(graph) if layer.kind != "other"}
    product_ops = [op for op in graph.ops if op.part == "forward" and OPS[op.kind].work]
    return tuple(sorted({op.kind for op in product_ops if op.name not in ruled_ops}))


def _layer_of_op(graph: Graph, op: Op, parents: tuple[str, ...]) -> Layer:
    shapes = [graph.tensors[name].shape for name in (*op.inputs, op.outputs[0])]
    kind, read_op = _KINDS.get(op.kind, ("other", _read_plain))
    x, y, fields = read_op(op, op.attrs, shapes)
    inputs, outputs = _channels_last(x), _channels_last(y)
    return Layer(op.name, kind, op.kind, parents, inputs, outputs, op=op.name, **fields)


Shape = tuple[int, ...]
OpShapes = tuple[Shape, Shape, Mapping[str, Any]]  # of input and output, and fields of `Layer`


def _read_plain(_: Op, __: Mapping[str, Any], shapes: list[Shape]) -> OpShapes:
    return shapes[0], shapes[-1], {}


def _read_linear(_: Op, __: Mapping[str, Any], shapes: list[Shape]) -> OpShapes:
    x, y = shapes[0], shapes[-1]
    *input_rows, in_features = x
    *output_rows, out_features = y
    parameters = in_features * out_features + out_features
    inputs, outputs = (prod(input_rows), in_features), (prod(output_rows), out_features)
    return inputs, outputs, {"parameters": parameters}


def _read_pool(_: Op, attrs: Mapping[str, Any], shapes: list[Shape]) -> OpShapes:
    top, _, left, _ = attrs.get("padding", (0, 0, 0, 0))
    window = {"kernel": attrs["kernel"], "strides": attrs["stride"], "padding": (top, left)}
    return shapes[0], shapes[-1], window


def _read_global_pool(_: Op, __: Mapping[str, Any], shapes: list[Shape]) -> OpShapes:
    return shapes[0], (*shapes[-1], 1, 1), {"kernel": shapes[0][2:]}


def _read_convolution(op: Op, attrs: Mapping[str, Any], shapes: list[Shape]) -> OpShapes:
    """Return the shapes of a convolution, and its sizes as Paleo's layer has them."""
    if max(attrs.get("dilation", (1, 1))) > 1:
        raise InputError(f"paleo: '{op.name}' is a dilated convolution, which Paleo does not know")
    x, weights, *_, y = shapes
    filters, _, *kernel = weights
    padding = attrs.get("padding", (0, 0, 0, 0))
    is_padded = any(padding)
    top, _, left, _ = padding
    sizes = {
        "kernel": tuple(kernel),
        "strides": attrs.get("stride", (1, 1)),
        # Paleo pads both sides alike.
        "padding": (top, left) if is_padded else "VALID",
        "groups": attrs.get("groups", 1),
        # Paleo counts a bias for each filter.
        "parameters": prod(weights) + filters,
    }
    return x, y, sizes


_KINDS = {  # kind of op: Paleo's kind of layer, and the function that reads it
    "conv2d": ("conv", _read_convolution),
    "conv_transpose2d": ("deconv", _read_convolution),
    "linear": ("inner_product", _read_linear),
    "max_pool2d": ("pool", _read_pool),
    "avg_pool2d": ("pool", _read_pool),
    "global_avg_pool": ("pool", _read_global_pool),
    "dropout": ("dropout", _read_plain),
}


def _channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape of images with the channels last."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
