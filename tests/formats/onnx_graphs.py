"""Small ONNX files made with `onnx.helper`, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Shape = Sequence[int | str]


def weight(name: str, *shape: int) -> TensorProto:
    """Return a weight of ones."""
    return numpy_helper.from_array(np.ones(shape, "float32"), name)


def numbers(name: str, values: Any, dtype: str = "int64") -> TensorProto:
    """Return a constant that the file says."""
    return numpy_helper.from_array(np.array(values, dtype), name)


def values_of(shapes: Mapping[str, Shape], integers: Sequence[str] = ()) -> list[Any]:
    """Return tensors with their shapes, of floats but for those of `integers`."""
    return [
        helper.make_tensor_value_info(name, INT64 if name in integers else FLOAT, [*shape])
        for name, shape in shapes.items()
    ]


def save_network(
    path: Path,
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    weights: Sequence[TensorProto] = (),
    integers: Sequence[str] = (),
    stated: Mapping[str, Shape] | None = None,
    opset: int = 19,
) -> Path:
    """Write a file and return its path.

    Args:
        path: the file.
        nodes: its nodes in their order.
        inputs: names and shapes of the inputs.
        outputs: names and shapes of the outputs.
        weights: weights and constants.
        integers: the inputs and outputs that are of whole numbers.
        stated: names and shapes of tensors between the nodes that the file states.
        opset: the version of ONNX's operators.
    """
    graph = helper.make_graph(
        [*nodes],
        "network",
        values_of(inputs, integers),
        values_of(outputs, integers),
        [*weights],
        value_info=values_of(stated or {}),
    )
    domains = {node.domain for node in nodes if node.domain}
    opsets = [helper.make_opsetid("", opset), *[helper.make_opsetid(name, 1) for name in domains]]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path
