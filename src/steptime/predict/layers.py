"""A network as Paleo sees it: a list of layers, shapes channels last.

A network read from a file brings its layers along. Any other is seen op by op: convolutions,
linear layers, pooling and dropout are layers that Paleo knows, everything else is not.
"""

from __future__ import annotations

from math import prod
from typing import Any

from steptime.core.errors import InputError
from steptime.core.graph import Graph, Layer, Op
from steptime.ops import OPS

INPUT = "data"


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """Give the layers of the file that `graph` was read from, else one for each forward op.

    Raises `InputError`, naming the op, for a dilated convolution, which Paleo does not know.
    """
    if graph.layers:
        return graph.layers
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
    """Give the kinds of ops with matrix work that Paleo has no layer for, sorted."""
    known = {layer.op for layer in layers_of(graph) if layer.kind != "other"}
    return tuple(
        sorted(
            {
                op.kind
                for op in graph.ops
                if op.part == "forward" and OPS[op.kind].work and op.name not in known
            }
        )
    )


def _layer(graph: Graph, op: Op, parents: tuple[str, ...]) -> Layer:
    x = graph.tensors[op.inputs[0]].shape
    y = graph.tensors[op.outputs[0]].shape
    attrs: dict[str, Any] = dict(op.attrs)
    kind = "other"
    more: dict[str, Any] = {}
    if op.kind in ("conv2d", "conv_transpose2d"):
        kind, more = _convolution(op, attrs, x, graph.tensors[op.inputs[1]].shape)
    elif op.kind == "linear":
        kind = "inner_product"
        x, y = (prod(x[:-1]), x[-1]), (prod(y[:-1]), y[-1])
        more = {"parameters": x[1] * y[1] + y[1]}
    elif op.kind in ("max_pool2d", "avg_pool2d"):
        kind = "pool"
        top, _, left, _ = attrs.get("padding", (0, 0, 0, 0))
        more = {"kernel": attrs["kernel"], "strides": attrs["stride"], "padding": (top, left)}
    elif op.kind == "global_avg_pool":
        kind, more, y = "pool", {"kernel": x[2:]}, (*y, 1, 1)
    elif op.kind == "dropout":
        kind = "dropout"
    return Layer(op.name, kind, op.kind, parents, _last(x), _last(y), op=op.name, **more)


def _convolution(
    op: Op, attrs: dict[str, Any], x: tuple[int, ...], w: tuple[int, ...]
) -> tuple[str, dict[str, Any]]:
    if max(attrs.get("dilation", (1, 1))) > 1:
        raise InputError(f"paleo: '{op.name}' is a dilated convolution, which Paleo does not know")
    top, _, left, _ = attrs.get("padding", (0, 0, 0, 0))
    padding: Any = (top, left) if any(attrs.get("padding", ())) else "VALID"
    sizes = {
        "kernel": w[2:],
        "strides": attrs.get("stride", (1, 1)),
        "padding": padding,
        "groups": attrs.get("groups", 1),
        "parameters": prod(w) + w[0],
    }
    return ("conv" if op.kind == "conv2d" else "deconv"), sizes


def _last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Give a shape of images with the channels last."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) == 4 else shape
