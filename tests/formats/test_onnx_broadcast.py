"""Shapes of ONNX's broadcasting, held against those that onnx's reference computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402
from onnx_graphs import numbers, save_network, weight  # noqa: E402

from steptime.build import build, make_workload, read_model  # noqa: E402

pytestmark = pytest.mark.onnx

NUMBER = [[[[0.5]]]]  # a constant of one element that has four axes


def check_shape(path: Path) -> None:
    """Hold the shape of a network's output against the one that onnx computes, at batch 2."""
    graph = build(make_workload(read_model(str(path)), 2, phase="infer"))
    inputs = {"x": np.ones((2, 5), "float32")}
    (output,) = ReferenceEvaluator(str(path)).run(None, inputs)
    assert graph.tensors[graph.outputs[0]].shape == output.shape


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Div", "Max", "Pow"])
@pytest.mark.parametrize("order", [("c", "x"), ("x", "c")])
def test_a_constant_of_one_element_gives_its_axes(tmp_path, op, order):
    nodes = [helper.make_node(op, order, ["y"])]
    shapes = {"x": ("n", 5)}, {"y": (1, 1, "n", 5)}
    path = save_network(tmp_path / "net.onnx", nodes, *shapes, [numbers("c", NUMBER, "float32")])
    check_shape(path)


@pytest.mark.parametrize("op", ["Add", "Mul", "Max"])
def test_a_table_of_more_axes_than_the_tensor_gives_its_axes(tmp_path, op):
    nodes = [helper.make_node(op, ["x", "w"], ["y"])]
    shapes = {"x": ("n", 5)}, {"y": (1, 1, "n", 5)}
    check_shape(save_network(tmp_path / "net.onnx", nodes, *shapes, [weight("w", 1, 1, 1, 5)]))


def test_a_bias_of_more_axes_than_the_product_gives_its_axes(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "m"], ["h"]),
        helper.make_node("Add", ["h", "b"], ["y"]),
    ]
    shapes = {"x": ("n", 5)}, {"y": (1, "n", 3)}
    weights = [weight("m", 5, 3), weight("b", 1, 1, 3)]
    check_shape(save_network(tmp_path / "net.onnx", nodes, *shapes, weights))
