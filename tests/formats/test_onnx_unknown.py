"""ONNX operators without a kind of their own: products, parameters and notes, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import helper
from onnx_graphs import numbers, save_network, weight

from steptime.build import build, build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.network.count import count
from steptime.network.ops import OPS

pytestmark = pytest.mark.onnx

node = helper.make_node
BATCH = 2
FEATURES = {"x": ["n", 8]}
IMAGE = {"x": ["n", 3, 12, 12]}
GEMM = node("Gemm", ["x", "w"], ["z"])
CONVOLUTION = node("Conv", ["x", "w"], ["z"])
# what: nodes, inputs, outputs, weights, inputs of whole numbers, products of inference, parameters
CASES: dict[str, tuple[list[Any], Any, Any, list[Any], list[str], int, int]] = {
    "one-hot codes": (
        [
            GEMM,
            node("ArgMax", ["z"], ["a"], axis=1, keepdims=0),
            node("OneHot", ["a", "depth", "ends"], ["o"]),
            node("MatMul", ["o", "c"], ["y"]),
        ],
        FEATURES,
        {"y": ["n", 4]},
        [
            weight("w", 8, 16),
            weight("c", 16, 4),
            numbers("depth", 16),
            numbers("ends", [0, 1], "float32"),
        ],
        [],
        2 * BATCH * (8 * 16 + 16 * 4),
        8 * 16 + 16 * 4,
    ),
    "rows that are written": (
        [
            GEMM,
            node("ScatterND", ["z", "at", "v"], ["s"]),
            node("Gemm", ["s", "u"], ["y"]),
        ],
        FEATURES | {"at": [1, 1], "v": [1, 16]},
        {"y": ["n", 4]},
        [weight("w", 8, 16), weight("u", 16, 4)],
        ["at"],
        2 * BATCH * (8 * 16 + 16 * 4),
        8 * 16 + 16 * 4,
    ),
    "a volume of another size": (
        [node("Resize", ["x", "", "s"], ["z"], mode="linear"), node("Conv", ["z", "w"], ["y"])],
        {"x": ["n", 3, 4, 5, 6]},
        {"y": ["n", 4, 8, 10, 12]},
        [numbers("s", [1, 1, 2, 2, 2], "float32"), weight("w", 4, 3, 1, 1, 1)],
        [],
        2 * BATCH * 960 * 12,
        12,
    ),
    "the nearest of a volume": (
        [node("Resize", ["x", "", "s"], ["z"]), node("Conv", ["z", "w"], ["y"])],
        {"x": ["n", 3, 4, 5, 6]},
        {"y": ["n", 4, 8, 10, 12]},
        [numbers("s", [1, 1, 2, 2, 2], "float32"), weight("w", 4, 3, 1, 1, 1)],
        [],
        2 * BATCH * 960 * 12,
        12,
    ),
    "pixels at places": (
        [CONVOLUTION, node("GridSample", ["z", "g"], ["y"])],
        IMAGE | {"g": ["n", 6, 6, 2]},
        {"y": ["n", 4, 6, 6]},
        [weight("w", 4, 3, 1, 1)],
        [],
        2 * BATCH * 144 * 12,
        12,
    ),
    "maxima of windows with gaps": (
        [
            CONVOLUTION,
            node("MaxPool", ["z"], ["p"], kernel_shape=[3, 3], dilations=[2, 2]),
            node("Flatten", ["p"], ["f"]),
            node("Gemm", ["f", "u"], ["y"]),
        ],
        IMAGE,
        {"y": ["n", 5]},
        [weight("w", 4, 3, 1, 1), weight("u", 256, 5)],
        [],
        2 * BATCH * (144 * 12 + 256 * 5),
        12 + 256 * 5,
    ),
    "a reflected edge": (
        [node("Pad", ["x", "p"], ["z"], mode="reflect"), node("Conv", ["z", "w"], ["y"])],
        IMAGE,
        {"y": ["n", 4, 12, 12]},
        [numbers("p", [0, 0, 1, 1, 0, 0, 1, 1]), weight("w", 4, 3, 3, 3)],
        [],
        2 * BATCH * 144 * 4 * 27,
        108,
    ),
    "a Fourier transform": (
        [
            node("DFT", ["x"], ["f"], axis=1),
            node("ReduceSum", ["f", "two"], ["q"], keepdims=0),
            node("MatMul", ["q", "w"], ["y"]),
        ],
        {"x": ["n", 64, 1]},
        {"y": ["n", 8]},
        [numbers("two", [2]), weight("w", 64, 8)],
        [],
        2 * BATCH * 64 * 8,
        512,
    ),
    "a loss": (
        [GEMM, node("SoftmaxCrossEntropyLoss", ["z", "t"], ["y"])],
        FEATURES | {"t": ["n"]},
        {"y": []},
        [weight("w", 8, 5)],
        ["t"],
        2 * BATCH * 40,
        40,
    ),
    "the loss of logarithms": (
        [
            GEMM,
            node("LogSoftmax", ["z"], ["l"]),
            node("NegativeLogLikelihoodLoss", ["l", "t"], ["y"]),
        ],
        FEATURES | {"t": ["n"]},
        {"y": []},
        [weight("w", 8, 5)],
        ["t"],
        2 * BATCH * 40,
        40,
    ),
    "a norm that ONNX defines by others": (
        [node("MeanVarianceNormalization", ["x"], ["z"]), node("Conv", ["z", "w"], ["y"])],
        IMAGE,
        {"y": ["n", 4, 12, 12]},
        [weight("w", 4, 3, 1, 1)],
        [],
        2 * BATCH * 144 * 12,
        12,
    ),
    "products of a batch with itself": (
        [
            GEMM,
            node("Transpose", ["z"], ["t"], perm=[1, 0]),
            node("MatMul", ["z", "t"], ["y"]),
        ],
        FEATURES,
        {"y": ["n", "n"]},
        [weight("w", 8, 4)],
        [],
        2 * BATCH * (8 * 4 + 4 * BATCH),
        32,
    ),
    "a GRU that begins with a computed state": (
        [
            node("Gemm", ["c", "wc"], ["h"]),
            node("Unsqueeze", ["h", "zero"], ["h0"]),
            node("GRU", ["x", "W", "R", "", "", "h0"], ["y", ""], hidden_size=20),
        ],
        {"x": [5, "n", 10], "c": ["n", 7]},
        {"y": [5, 1, "n", 20]},
        [weight("W", 1, 60, 10), weight("R", 1, 60, 20), weight("wc", 7, 20), numbers("zero", [0])],
        [],
        2 * BATCH * (5 * 60 * 30 + 7 * 20),
        60 * 30 + 140,
    ),
    "an LSTM whose first states are learnt": (
        [node("LSTM", ["x", "W", "R", "", "", "h", "c"], ["y", "", ""], hidden_size=20)],
        {"x": [5, "n", 10]},
        {"y": [5, 1, "n", 20]},
        [
            weight("W", 1, 80, 10),
            weight("R", 1, 80, 20),
            weight("h", 1, 1, 20),
            weight("c", 1, 1, 20),
        ],
        [],
        2 * BATCH * 5 * 80 * 30,
        80 * 30 + 40,
    ),
}


def graph_of(path: Path, phase: str = "infer", batch: int = BATCH) -> Graph:
    return build(make_workload(read_model(str(path)), batch, phase=phase))


def products(graph: Graph) -> int:
    """Return the FLOP of products alone."""
    return sum(row.flop for row in count(graph).ops if OPS[row.kind].work)


@pytest.mark.parametrize("what", CASES)
def test_products_and_parameters_by_hand(what: str, tmp_path: Path) -> None:
    nodes, inputs, outputs, weights, integers, flop, parameters = CASES[what]
    path = save_network(tmp_path / "net.onnx", nodes, inputs, outputs, weights, integers)
    graph = graph_of(path)
    assert products(graph) == flop
    assert count(graph).parameters == parameters
    assert not any("unknown" in remark for remark in graph.remarks)
    trained = build_step(make_workload(read_model(str(path)), BATCH))
    assert products(trained) >= flop


def test_shapes_that_a_file_states_price_a_custom_op_by_its_bytes(tmp_path: Path) -> None:
    nodes = [GEMM, node("Wave", ["z"], ["a"], domain="my"), node("Gemm", ["a", "u"], ["y"])]
    weights = [weight("w", 8, 16), weight("u", 16, 4)]
    for name, batch in (("open", "n"), ("fixed", 4)):
        shapes = {"x": [batch, 8]}, {"y": [batch, 4]}
        stated = {"a": [batch, 16]}
        path = save_network(tmp_path / f"{name}.onnx", nodes, *shapes, weights, stated=stated)
        graph = graph_of(path)
        (op,) = [op for op in graph.ops if op.kind == "opaque"]
        assert graph.tensors[op.outputs[0]].shape == (BATCH, 16)
        assert "1 op of unknown work (my.Wave): priced by bytes, 19% of the step's" in graph.remarks
        assert any(remark.startswith("not comparable") for remark in graph.remarks)


def test_a_custom_op_without_shapes_is_refused_with_what_adds_them(tmp_path: Path) -> None:
    nodes = [GEMM, node("Wave", ["z"], ["y"], domain="my")]
    path = save_network(
        tmp_path / "net.onnx", nodes, FEATURES, {"y": ["m", "k"]}, [weight("w", 8, 16)]
    )
    with pytest.raises(InputError, match=r"'my.Wave'.*does not state the shapes.*--allow-unknown"):
        graph_of(path)


@pytest.mark.parametrize("is_output", [False, True])
def test_attention_whose_weights_something_else_reads_is_counted_once(
    is_output: bool, tmp_path: Path
) -> None:
    nodes = [
        *(node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Mul", ["s", "scale"], ["c"]),
        node("Softmax", ["c"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("MatMul", ["p", "o"], ["y"]),
    ]
    weights = [*(weight(f"w{name}", 8, 8) for name in "qkv"), numbers("scale", [0.35], "float32")]
    outputs = {"p": ["n", 6, 6], "o": ["n", 6, 8]} if is_output else {"y": ["n", 6, 8]}
    used = nodes[:-1] if is_output else nodes
    path = save_network(tmp_path / "net.onnx", used, {"x": ["n", 6, 8]}, outputs, weights)
    scores = 2 * BATCH * 6 * 6 * 8
    assert products(graph_of(path)) == 2 * BATCH * 6 * 64 * 3 + (2 if is_output else 3) * scores


def test_a_scan_runs_its_body_for_each_part(tmp_path: Path) -> None:
    from onnx_graphs import values_of

    row: dict[str, Any] = {"s": ["n", 8], "p": ["n", 8]}
    body = helper.make_graph(
        [
            node("Add", ["s", "p"], ["sum"]),
            node("MatMul", ["sum", "w"], ["next"]),
            node("Identity", ["next"], ["seen"]),
        ],
        "body",
        values_of(row),
        values_of({"next": ["n", 8], "seen": ["n", 8]}),
    )
    nodes = [node("Scan", ["s0", "x"], ["last", "y"], num_scan_inputs=1, body=body)]
    inputs: dict[str, Any] = {"s0": ["n", 8], "x": [5, "n", 8]}
    path = save_network(
        tmp_path / "net.onnx", nodes, inputs, {"y": [5, "n", 8]}, [weight("w", 8, 8)]
    )
    assert products(graph_of(path)) == 5 * 2 * BATCH * 64
    assert count(graph_of(path)).parameters == 64


def test_quantised_activations_pass_gradients_straight_through(tmp_path: Path) -> None:
    ends = [
        numbers("scale", 0.1, "float32"),
        numbers("zero", 0, "int8"),
        numbers("w", [[1] * 64] * 64, "int8"),
        numbers("u", [[1] * 16] * 64, "int8"),
    ]
    nodes = []
    for x, w, y in (("x", "w", "h"), ("h", "u", "y")):
        nodes += [
            node("QuantizeLinear", [x, "scale", "zero"], [f"{x}q"]),
            node("DequantizeLinear", [f"{x}q", "scale", "zero"], [f"{x}d"]),
            node("DequantizeLinear", [w, "scale", "zero"], [f"{w}d"]),
            node("MatMul", [f"{x}d", f"{w}d"], [y]),
        ]
    path = save_network(tmp_path / "net.onnx", nodes, {"x": ["n", 64]}, {"y": ["n", 16]}, ends)
    forward = 2 * BATCH * (64 * 64 + 64 * 16)
    trained = build_step(make_workload(read_model(str(path)), BATCH))
    assert products(trained) == 2 * forward + 2 * BATCH * 64 * 16


def test_a_determinant_counts_an_lu_factorisation(tmp_path: Path) -> None:
    """2/3 n^3 of each of three matrices of 12 x 12, and no note of unknown work."""
    path = save_network(
        tmp_path / "net.onnx",
        [node("Det", ["x"], ["d"]), node("Mul", ["d", "w"], ["y"])],
        {"x": ["n", 3, 12, 12]},
        {"y": ["n", 3]},
        [weight("w", 3)],
    )
    graph = graph_of(path)
    (determinant,) = (op for op in graph.ops if op.kind == "opaque")
    assert determinant.attrs["flop_count"] == BATCH * 3 * 1152
    assert not graph.remarks
