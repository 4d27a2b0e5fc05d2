"""A network as Paleo sees it: a list of layers, shapes channels last.

A network read from a file brings its layers along. Any other is seen op by op: convolutions,
linear layers, pooling and dropout are layers that Paleo knows, everything else is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op
from steptime.network.ops import OPS

INPUT = "data"


@dataclass(frozen=True)
class Layer:
    """A layer of the file that a network was read from, as the file tells it.

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
    """Return the layers of the file of Paleo that `graph` was read from; () of another one."""
    return tuple(one for one in graph.source if isinstance(one, Layer))


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """Return the layers of the file that `graph` was read from, else one for each forward op.

    Raises `InputError`, naming the op, for a dilated convolution, which Paleo does not know.
    """
    if of_file := layers_in(graph):
        return of_file
    maker = dict.fromkeys(graph.inputs, INPUT)
    layers = []
    for op in graph.ops:
        if op.part != "forward":
            continue
        parents = tuple(maker[name] for name in op.inputs if name in maker)
        layers.append(_layer(graph, op, parents or (INPUT,)))
        carries_input = parents == (INPUT,) and op.kind == "cast"
        maker.update(dict.fromkeys(op.outputs, INPUT if carries_input else op.name))
    return tuple(layers)


def unknown_work(graph: Graph) -> tuple[str, ...]:
    """Return the kinds of ops with matrix work that Paleo has no layer for, sorted."""
    known = {layer.op for layer in layers_of(graph) if layer.kind != "other"}
    works = (op for op in graph.ops if op.part == "forward" and OPS[op.kind].work)
    return tuple(sorted({op.kind for op in works if op.name not in known}))


def _layer(graph: Graph, op: Op, parents: tuple[str, ...]) -> Layer:
    shapes = [graph.tensors[name].shape for name in (*op.inputs, op.outputs[0])]
    kind, read = _KINDS.get(op.kind, ("other", _as_it_is))
    x, y, more = read(op, op.attrs, shapes)
    return Layer(op.name, kind, op.kind, parents, _last(x), _last(y), op=op.name, **more)


Shape = tuple[int, ...]
Read = tuple[Shape, Shape, dict[str, Any]]  # shapes of input and output, and what else is known


def _as_it_is(_: Op, __: Mapping[str, Any], shapes: list[Shape]) -> Read:
    return shapes[0], shapes[-1], {}


def _linear(_: Op, __: Mapping[str, Any], shapes: list[Shape]) -> Read:
    x, y = ((prod(shape[:-1]), shape[-1]) for shape in (shapes[0], shapes[-1]))
    return x, y, {"parameters": x[1] * y[1] + y[1]}


def _pool(_: Op, attrs: Mapping[str, Any], shapes: list[Shape]) -> Read:
    top, _, left, _ = attrs.get("padding", (0, 0, 0, 0))
    window = {"kernel": attrs["kernel"], "strides": attrs["stride"], "padding": (top, left)}
    return shapes[0], shapes[-1], window


def _global_pool(_: Op, __: Mapping[str, Any], shapes: list[Shape]) -> Read:
    return shapes[0], (*shapes[-1], 1, 1), {"kernel": shapes[0][2:]}


def _convolution(op: Op, attrs: Mapping[str, Any], shapes: list[Shape]) -> Read:
    if max(attrs.get("dilation", (1, 1))) > 1:
        raise InputError(f"paleo: '{op.name}' is a dilated convolution, which Paleo does not know")
    weights = shapes[1]
    top, _, left, _ = attrs.get("padding", (0, 0, 0, 0))
    sizes = {
        "kernel": weights[2:],
        "strides": attrs.get("stride", (1, 1)),
        "padding": (top, left) if any(attrs.get("padding", ())) else "VALID",
        "groups": attrs.get("groups", 1),
        "parameters": prod(weights) + weights[0],
    }
    return shapes[0], shapes[-1], sizes


_KINDS = {  # kind of op: Paleo's kind of layer, and how it is read
    "conv2d": ("conv", _convolution),
    "conv_transpose2d": ("deconv", _convolution),
    "linear": ("inner_product", _linear),
    "max_pool2d": ("pool", _pool),
    "avg_pool2d": ("pool", _pool),
    "global_avg_pool": ("pool", _global_pool),
    "dropout": ("dropout", _as_it_is),
}


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape of images with the channels last."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
