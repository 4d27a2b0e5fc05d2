"""Parts of ONNX files of detectors and of few bits: norms, grids, chosen boxes, packed integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steptime.build import build, make_workload, read_model
from steptime.core.graph import Graph
from steptime.network.count import count
from steptime.network.ops import OPS

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'steptime[onnx]'")
helper, FLOAT, INT = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
BOOL = onnx.TensorProto.BOOL


def weight(name: str, *shape: int) -> Any:
    return onnx.numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)


def value(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def graph_of(
    folder: Path, nodes: list[Any], inputs: list[Any], weights: list[Any], **functions: Any
) -> Graph:
    """The graph in inference of a file whose output is `y`, at a batch of 2."""
    output = helper.make_tensor_value_info("y", onnx.TensorProto.UNDEFINED, None)
    file = helper.make_graph(nodes, "net", inputs, [output], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    path = folder / "net.onnx"
    onnx.save(helper.make_model(file, opset_imports=opsets, ir_version=10, **functions), path)
    return build(make_workload(read_model(str(path)), 2, phase="infer"))


def products(graph: Graph) -> int:
    return sum(row.flop for row in count(graph).ops if OPS[row.kind].work)


def test_an_instance_norm_has_a_scale_and_a_shift_of_each_channel(tmp_path):
    """It has no groups, which is not a missing input."""
    node = helper.make_node("InstanceNormalization", ["x", "w", "b"], ["y"])
    weights = [weight("w", 64), weight("b", 64)]
    graph = graph_of(tmp_path, [node], [value("x", "n", 64, 8, 8)], weights)
    assert [op.kind for op in graph.ops] == ["group_norm"]
    assert (graph.parameters, graph.remarks) == (128, ())


def test_non_maximum_suppression_counts_as_many_boxes_as_it_may_choose(tmp_path):
    whole = onnx.numpy_helper.from_array(np.array([3], np.int64), "limit")
    nodes = [
        helper.make_node("Transpose", ["s"], ["scores"], perm=[0, 2, 1]),
        helper.make_node("NonMaxSuppression", ["x", "scores", "limit"], ["y"]),
    ]
    inputs = [value("x", "n", 10, 4), value("s", "n", 10, 5)]
    graph = graph_of(tmp_path, nodes, inputs, [whole])
    assert graph.tensors[graph.outputs[-1]].shape == (2 * 5 * 3, 3)
    (remark,) = graph.remarks
    assert "counted as if it chose 30 boxes" in remark


def test_a_grid_of_affine_maps_has_the_shape_of_its_image(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["f", "w"], ["t"]),
        helper.make_node("Reshape", ["t", "two_three"], ["theta"]),
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("AffineGrid", ["theta", "size"], ["g"]),
        helper.make_node("GridSample", ["x", "g"], ["y"]),
    ]
    shape = onnx.numpy_helper.from_array(np.array([-1, 2, 3], np.int64), "two_three")
    inputs = [value("x", "n", 3, 8, 8), value("f", "n", 10)]
    graph = graph_of(tmp_path, nodes, inputs, [weight("w", 10, 6), shape])
    assert products(graph) == 2 * 2 * 10 * 6
    assert graph.tensors[graph.outputs[-1]].shape == (2, 3, 8, 8)
    assert graph.remarks == ()


def test_integers_of_4_bits_may_lie_in_wider_numbers(tmp_path):
    few_bits = helper.make_tensor("q", onnx.TensorProto.INT4, [16, 8], np.zeros(128, np.int8))
    assert len(few_bits.int32_data) == 64  # two in each
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=16),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    graph = graph_of(tmp_path, nodes, [value("x", "n", 16)], [few_bits, weight("s", 1, 8)])
    assert products(graph) == 2 * 2 * 16 * 8


def test_a_branch_in_a_function_reads_what_lies_around_it(tmp_path):
    """Inside of the branch `a` is the function's own tensor, `w` its input."""

    def branch(name: str, node: Any) -> Any:
        output = helper.make_tensor_value_info(name, FLOAT, None)
        return helper.make_graph([node], name, [], [output])

    chosen = helper.make_node(
        "If",
        ["yes"],
        ["out"],
        then_branch=branch("first", helper.make_node("MatMul", ["a", "w"], ["first"])),
        else_branch=branch("second", helper.make_node("Relu", ["a"], ["second"])),
    )
    true = helper.make_tensor("true", BOOL, [], [True])
    body = [
        helper.make_node("Constant", [], ["yes"], value=true),
        helper.make_node("Tanh", ["z"], ["a"]),
        chosen,
    ]
    opset = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "Gated", ["z", "w"], ["out"], body, opset)
    nodes = [
        helper.make_node("Gated", ["x", "v"], ["h"], domain="own"),
        helper.make_node("Gated", ["h", "u"], ["y"], domain="own"),
    ]
    weights = [weight("v", 8, 16), weight("u", 16, 4)]
    graph = graph_of(tmp_path, nodes, [value("x", "n", 8)], weights, functions=[function])
    assert products(graph) == 2 * 2 * (8 * 16 + 16 * 4)
