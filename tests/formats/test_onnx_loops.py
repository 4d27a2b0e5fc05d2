"""Loops whose turns a file says, sums over letters and windows: shapes are ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from every import every
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.network.count import count

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'steptime[onnx]'")
onnxruntime = pytest.importorskip("onnxruntime")
helper, FLOAT, INT = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def floats(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def whole(name: str, *numbers: int, scalar: bool = False) -> Any:
    return helper.make_tensor(name, INT, [] if scalar else [len(numbers)], numbers)


def weight(name: str, *shape: int) -> Any:
    return helper.make_tensor(name, FLOAT, shape, np.linspace(0, 1, int(np.prod(shape))).tolist())


def loop() -> list[Any]:
    """Three turns, each a product with one weight; what each makes is kept, too."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["h", "w"], ["next"]),
            helper.make_node("Tanh", ["next"], ["seen"]),
            helper.make_node("Identity", ["on"], ["more"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT, []),
            helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            floats("h", "n", 4),
        ],
        [helper.make_tensor_value_info("more", onnx.TensorProto.BOOL, []), floats("next", "n", 4),
         floats("seen", "n", 4)],
    )  # fmt: skip
    return [helper.make_node("Loop", ["three", "yes", "x"], ["last", "y"], body=body)]


WEIGHTS = [
    weight("w", 4, 4), weight("v", 4, 3), weight("window", 2), whole("one", 1),
    whole("three", 3, scalar=True), whole("step", 1, scalar=True), whole("two", 2, scalar=True),
    helper.make_tensor("yes", onnx.TensorProto.BOOL, [], [True]),
    whole("size", 3, 3), whole("block", 2, 2), whole("shape", 0, 4, 1), whole("columns", 0, 1, 4),
]  # fmt: skip
CASES: dict[str, tuple[list[Any], int, int]] = {  # nodes, FLOP of a batch of 2, parameters
    "loop": (loop(), 3 * (2 * 2 * 4 * 4 + 2 * 4), 16),
    "letters of three": (
        [helper.make_node("Einsum", ["x", "w", "v"], ["y"], equation="ni,ij,jk")],
        2 * 2 * 4 * 4 + 2 * 2 * 4 * 3,
        16 + 12,
    ),
    "letters of one": ([helper.make_node("Einsum", ["x"], ["y"], equation="ij->i")], 8, 0),
    "letters after dots": (
        [helper.make_node("Einsum", ["x", "w"], ["y"], equation="...i,ij->...j")],
        2 * 2 * 4 * 4,
        16,
    ),
    "spectra": (
        [
            helper.make_node("Reshape", ["x", "shape"], ["s"]),
            helper.make_node("STFT", ["s", "step", "window", "two"], ["y"]),
        ],
        2 * 3 * 2 + 2 * (2 * 3) * 2 * 4,  # of 3 frames of 2: the window, and 2 bins of 2 parts
        2,
    ),
    "windows as an image": (
        [
            helper.make_node("Unsqueeze", ["x", "one"], ["s"]),
            helper.make_node("Concat", ["s", "s", "s", "s"], ["c"], axis=1),
            helper.make_node("Col2Im", ["c", "size", "block"], ["y"]),
        ],
        2 * 9 * 4,
        0,
    ),
    "a mean of three": ([helper.make_node("Mean", ["x", "x", "x"], ["y"])], 3 * 8, 0),
    "a tangent": ([helper.make_node("Tan", ["x"], ["y"])], 3 * 8, 0),
}


def written(path: Path, nodes: list[Any]) -> str:
    graph = helper.make_graph(nodes, "net", [floats("x", "n", 4)], [floats("y")], WEIGHTS)
    del graph.output[0].type.tensor_type.shape.dim[:]
    graph.output[0].type.tensor_type.ClearField("shape")
    opsets = [helper.make_opsetid("", 20)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(made, str(path / "net.onnx"))
    return str(path / "net.onnx")


@every("what", CASES)
def test_it_is_lowered_to_the_shape_that_it_makes(what, tmp_path):
    nodes, flop, parameters = CASES[what]
    path = written(tmp_path, nodes)
    graph = build(make_workload(read_model(path), 2, phase="infer"))
    assert (count(graph).flop, graph.parameters) == (flop, parameters)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(["y"], {"x": np.zeros((2, 4), np.float32)})
    assert graph.tensors[graph.outputs[-1]].shape == theirs.shape
    eight = build(make_workload(read_model(path), 8, phase="infer"))
    assert count(eight).flop == 4 * count(graph).flop


@pytest.mark.parametrize(
    ("turns", "said"),
    [(10**6, "1000000 turns of 3 nodes"), (0, "a loop of no turns, whose output is empty")],
)
def test_a_loop_of_too_many_turns_or_none_is_refused(turns, said, tmp_path):
    nodes = loop()
    nodes[0].input[0] = "turns"
    many = helper.make_node("Constant", [], ["turns"], value=whole("n", turns, scalar=True))
    with pytest.raises(InputError, match=said):
        build(make_workload(read_model(written(tmp_path, [many, *nodes])), 2))
