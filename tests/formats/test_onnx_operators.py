"""Single operators of ONNX, by hand: what each costs, has as parameters, and makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from every import every
from onnx_bytes import INT64, model, node, tensor, value, whole
from steptime.build import build, make_workload, read_model
from steptime.core.graph import TensorSpec
from steptime.formats.export.onnx import export_onnx
from steptime.network.count import count
from steptime.network.ops import OPS
from steptime.network.ops.execution import dequantise
from steptime.prediction.kernel import Settings
from steptime.prediction.lower import lower

pytestmark = pytest.mark.onnx

X = value("x", "n", 4, 16)
PAST = value("p", "n", 2, 3, 8)
IMAGE = value("x", "n", 4, 5, 5)
MS = "com.microsoft"
BYTES = {"dtype": 3}  # of 8 bits
CASES: dict[str, tuple[bytes, list[bytes], list[bytes], int, int, tuple[int, ...]]] = {
    # what: node, weights, inputs, FLOP for a batch of 2, parameters, shape
    "attention with keys of before": (
        node("Attention", "x x x - p p", "y a c", q_num_heads=2, kv_num_heads=2),
        [],
        [X, PAST],
        2 * 2 * 2 * 4 * (3 + 4) * (8 + 8),  # 2 n h l m (d + e)
        0,
        (2, 4, 16),
    ),
    "attention of ONNX Runtime with biases": (
        node("MultiHeadAttention", "x x x b", "y", MS, num_heads=2),
        [tensor("b", (48,))],
        [X],
        3 * 128 + 2 * 2 * 2 * 4 * 4 * 16,
        48,
        (2, 4, 16),
    ),
    "attention of ONNX Runtime in one product": (
        node("Attention", "x w b", "y", MS, num_heads=2),
        [tensor("w", (16, 48)), tensor("b", (48,))],
        [X],
        2 * 8 * 16 * 48 + 8 * 48 + 2 * 2 * 2 * 4 * 4 * 16,
        16 * 48 + 48,
        (2, 4, 16),
    ),
    "shared keys, turned by position": (
        node(
            "GroupQueryAttention",
            "x k k q q s s c c",
            "y",
            MS,
            num_heads=2,
            kv_num_heads=1,
            do_rotary=1,
        ),
        [tensor("c", (32, 4)), whole("s", 4)],
        [X, value("k", "n", 4, 8), value("q", "n", 1, 3, 8)],
        3 * 2 * 4 * (16 + 8) + 2 * 2 * 2 * 4 * 7 * 16,
        0,
        (2, 4, 16),
    ),
    "a weight of 4 bits": (
        node("MatMulNBits", "x w s", "y", MS, K=16, N=32, bits=4, block_size=16),
        [tensor("w", (32, 1, 8), bytes(256), dtype=2), tensor("s", (32,))],
        [X],
        2 * 8 * 16 * 32,
        16 * 32,
        (2, 4, 32),
    ),
    "group norm with a weight a group": (
        node("GroupNormalization", "x g g", "y", num_groups=2),
        [tensor("g", (2,))],
        [IMAGE],
        8 * 200,
        2,
        (2, 4, 5, 5),
    ),
    "PReLU a channel": (
        node("PRelu", "x g", "y"),
        [tensor("g", (4, 1, 1))],
        [IMAGE],
        2 * 200,
        4,
        (2, 4, 5, 5),
    ),
    "PReLU a place": (
        node("PRelu", "x g", "y"),
        [tensor("g", (4, 5, 5))],
        [IMAGE],
        4 * 200,  # min, max, product, sum
        100,
        (2, 4, 5, 5),
    ),
    "a product in letters": (
        node("Einsum", "x w", "y", equation="nld,hdk->nhlk"),
        [tensor("w", (3, 16, 5))],
        [X],
        2 * 8 * 16 * 15,
        3 * 16 * 5,
        (2, 3, 4, 5),
    ),
    "a transposed convolution": (
        node("ConvTranspose", "x w b", "y", kernel_shape=(2, 2), strides=(2, 2)),
        [tensor("w", (4, 3, 2, 2)), tensor("b", (3,))],
        [IMAGE],
        2 * 2 * 25 * 4 * 12 + 2 * 3 * 100,
        4 * 12 + 3,
        (2, 3, 10, 10),
    ),
    "an LSTM in both directions": (
        node("LSTM", "x w u b", "y", hidden_size=3, direction="bidirectional", layout=1),
        [tensor("w", (2, 12, 16)), tensor("u", (2, 12, 3)), tensor("b", (2, 24))],
        [X],
        2 * 2 * 8 * 12 * (16 + 3),
        2 * (12 * 16 + 12 * 3 + 24),
        (2, 4, 2, 3),
    ),
    "places that are known": (
        node("TopK", "x k", "y i", axis=-1),
        [whole("k", 5)],
        [X],
        128,
        0,
        (2, 4, 5),
    ),
}


@every("what", CASES)
def test_an_operator(tmp_path, what):
    made, weights, inputs, flop, parameters, shape = CASES[what]
    path = tmp_path / "net.onnx"
    path.write_bytes(model([made], weights, inputs, opset=23))
    graph = build(make_workload(read_model(str(path)), 2, phase="infer"))
    assert graph.tensors[graph.outputs[0]].shape == shape
    assert (count(graph).flop, graph.parameters) == (flop, parameters)


def test_products_of_integers_are_counted(tmp_path):
    """As those of floats; a cast back costs nothing, each scale a product an element."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z", "m"),
        node("Cast", "m", "f", to=1),
        node("Mul", "f s", "y"),
    ]
    path = tmp_path / "net.onnx"
    weights: list[Any] = [tensor("w", (16, 32), bytes(512), **BYTES)]
    path.write_bytes(model(nodes, weights, [X]))
    graph = build(make_workload(read_model(str(path)), 2, phase="infer"))
    assert sum(c.flop for c in count(graph).ops if OPS[c.kind].work) == 2 * 8 * 16 * 32
    assert graph.parameters == 512
    assert graph.remarks == ("1 quantised weight counted as stored, multiplied in float32",)


def _step(path: Path, phase: str = "infer", dtype: str = "float32") -> tuple[Any, Any]:
    graph = build(make_workload(read_model(str(path)), 2, dtype, phase=phase))
    return graph, count(graph)


WIDE = value("x", "n", 1024)
PACKED = tensor("w", (1024, 32, 16), bytes(1024 * 512), dtype=2)
SCALES = [tensor("s", (1024 * 32,)), tensor("z", (1024 * 16,), bytes(1024 * 16), dtype=2)]
STORED = 1024 * 1024 // 2 + 1024 * 32 * 4 + 1024 * 32 // 2  # of 4 bits, scales, zero points


@pytest.mark.parametrize("dtype", ["float32", "bfloat16-mixed"])
def test_a_weight_of_four_bits_is_counted_as_it_is_stored(tmp_path, dtype):
    made = node("MatMulNBits", "x w s z", "y", MS, K=1024, N=1024, bits=4, block_size=32)
    path = tmp_path / "net.onnx"
    path.write_bytes(model([made], [PACKED, *SCALES], [WIDE]))
    graph, counted = _step(path, dtype=dtype)
    assert (counted.parameters, counted.flop) == (1024 * 1024, 2 * 2 * 1024 * 1024)
    size = 4 if dtype == "float32" else 2
    (product,) = (op for op in counted.ops if op.kind == "linear")
    assert product.traffic_bytes == STORED + 2 * (2 * 1024 * size)
    x, copy = 2 * 1024 * 4, 0 if dtype == "float32" else 2 * 1024 * 2
    assert counted.peak_bytes == STORED + x + copy + 2 * 1024 * size
    computed = dtype.removesuffix("-mixed")
    assert graph.remarks == (f"1 quantised weight counted as stored, multiplied in {computed}",)


def test_quantised_weights_train_in_the_type_of_the_run(tmp_path):
    made = node("MatMulNBits", "x w s z", "y", MS, K=1024, N=1024, bits=4, block_size=32)
    path = tmp_path / "net.onnx"
    path.write_bytes(model([made], [PACKED, *SCALES], [WIDE]))
    graph, _ = _step(path, "train")
    assert graph.tensors[graph.weights[0]].size_bytes == 4 * 1024 * 1024
    assert graph.remarks[-1] == "1 quantised weight counted in float32, not as stored"


def test_a_prediction_reads_weights_of_few_bits(tmp_path):
    made = node("MatMulNBits", "x w s z", "y", MS, K=1024, N=1024, bits=4, block_size=32)
    path = tmp_path / "net.onnx"
    path.write_bytes(model([made], [PACKED, *SCALES], [WIDE]))
    work = make_workload(read_model(str(path)), 2, phase="infer")
    lowered = lower(build(work), "float32", Settings())
    assert lowered.traffic_bytes == STORED + 2 * (2 * 1024 * 4)


def test_weights_of_eight_bits_are_counted_as_they_are_stored(tmp_path):
    nodes = [
        node("DequantizeLinear", "w s z", "f", axis=0),
        node("Conv", "x f", "c", kernel_shape=(3, 3)),
        node("QLinearConv", "c s0 z0 v s0 z0 s0 z0", "y"),
    ]
    weights: list[Any] = [
        tensor("w", (8, 4, 3, 3), bytes(288), **BYTES),
        *(tensor("s", (8,)), tensor("z", (8,), bytes(8), **BYTES)),
        *(tensor("s0", ()), tensor("z0", (), bytes(1), **BYTES)),
        tensor("v", (5, 8, 1, 1), bytes(40), **BYTES),
    ]
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, weights, [IMAGE]))
    graph, counted = _step(path)
    assert counted.parameters == 288 + 40
    assert sum(graph.tensors[name].size_bytes for name in graph.weights) == 288 + 40
    assert sum(graph.tensors[name].size_bytes for name in graph.buffers) == 8 * 4 + 8 + 4 + 1
    first, second = (op for op in counted.ops if op.kind == "conv2d")
    assert first.traffic_bytes == 2 * 4 * 25 * 4 + 288 + 2 * 8 * 9 * 4
    assert second.traffic_bytes == 2 * 8 * 9 * 4 + 40 + 2 * 5 * 9 * 4
    assert graph.remarks == ("2 quantised weights counted as stored, multiplied in float32",)


EIGHT: list[Any] = [
    *(tensor("w", (16, 32), bytes(512), **BYTES), tensor("f", (8, 4, 3, 3), bytes(288), **BYTES)),
    *(tensor("s", ()), tensor("z", (), bytes(1), **BYTES)),
    *(tensor("t", (32,)), tensor("o", (32,), bytes(32), **BYTES)),  # of each column
]
LINEAR = 512 + 32 * 4 + 32 + 2 * 4 * (16 + 32) * 4  # weight, scales, zero points, what goes through
OF_EIGHT_BITS = {
    "QLinearMatMul": ([node("QLinearMatMul", "x s z w t o s z", "y")], X, 512, LINEAR),
    "DequantizeLinear": (
        [node("DequantizeLinear", "w t o", "d", axis=1), node("MatMul", "x d", "y")],
        *(X, 512, LINEAR),
    ),
    "ConvInteger": (
        [node("ConvInteger", "x f z z", "y")],
        *(IMAGE, 288, 288 + 2 * (4 * 25 + 8 * 9) * 4),
    ),
}


@every("name", OF_EIGHT_BITS)
def test_a_product_reads_its_weight_of_eight_bits(name, tmp_path):
    nodes, given, parameters, traffic_bytes = OF_EIGHT_BITS[name]
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, EIGHT, [given]))
    graph, counted = _step(path)
    (product,) = (op for op in counted.ops if OPS[op.kind].work)
    assert (counted.parameters, product.traffic_bytes) == (parameters, traffic_bytes)
    assert [graph.tensors[name].size_bytes for name in graph.weights] == [parameters]
    assert graph.remarks == ("1 quantised weight counted as stored, multiplied in float32",)


def test_a_quantised_table_is_of_the_type_of_the_run(tmp_path):
    """What is looked up in it is: no product scales it."""
    nodes = [node("DequantizeLinear", "w s", "f"), node("Gather", "f i", "y")]
    path = tmp_path / "net.onnx"
    weights: list[Any] = [tensor("w", (64, 8), bytes(512), **BYTES), tensor("s", ())]
    path.write_bytes(model(nodes, weights, [value("i", "n", 3, dtype=INT64)]))
    graph, _ = _step(path)
    assert [graph.tensors[name].size_bytes for name in graph.weights] == [64 * 8 * 4]
    assert graph.remarks == ("1 quantised weight counted in float32, not as stored",)


def test_a_quantised_network_runs_in_the_type_of_the_run(tmp_path):
    made = node("MatMulNBits", "x w s z", "y", MS, K=1024, N=1024, bits=4, block_size=32)
    path = tmp_path / "net.onnx"
    path.write_bytes(model([made], [PACKED, *SCALES], [WIDE]))
    graph = dequantise(_step(path)[0])
    assert [op.inputs for op in graph.ops] == [("x", "w")]
    assert graph.tensors["w"] == TensorSpec((1024, 1024), "float32")
    assert graph.buffers == ()
    (tmp_path / "again.onnx").write_bytes(export_onnx(_step(path)[0]))
    assert _step(tmp_path / "again.onnx")[1].parameters == 1024 * 1024


def _shape_of(path: Path, nodes: list[bytes], weights: list[bytes]) -> tuple[int, ...]:
    path.write_bytes(model([*nodes, node("Reshape", "x shape", "y")], weights, [X]))
    graph = build(make_workload(read_model(str(path)), 2, phase="infer"))
    return graph.tensors[graph.outputs[0]].shape


def test_a_size_taken_from_a_shape(tmp_path):
    """As every export of PyTorch's older exporter has it: an index without axes."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axis", "batch"),
        node("Concat", "batch rest", "shape", axis=0),
    ]
    zero = tensor("zero", (), bytes(8), dtype=INT64)
    weights = [zero, whole("axis", 0), whole("rest", -1)]
    assert _shape_of(tmp_path / "net.onnx", nodes, weights) == (2, 64)


def test_a_size_that_is_clipped_stays_whole(tmp_path):
    """Of 16 at most 15, halved and twice: 14, as whole numbers have it."""
    nodes = [
        node("Clip", "sizes - most", "clipped"),
        node("Div", "clipped two", "halves"),
        node("Mul", "halves two", "even"),
        node("Sub", "even rest", "sixteen"),
        node("Concat", "sixteen open", "shape", axis=0),
    ]
    most = tensor("most", (), (15).to_bytes(8, "little"), dtype=INT64)
    weights = [whole("sizes", 16), most, whole("two", 2), whole("rest", -2), whole("open", -1)]
    assert _shape_of(tmp_path / "net.onnx", nodes, weights) == (2 * 16, 4)


def test_a_division_of_whole_numbers_rounds_towards_zero(tmp_path):
    """As in ONNX and C: -7 / 2 is -3, so that 19 less three is 16; with -4 it were 15."""
    nodes = [
        node("Div", "minus two", "three"),
        node("Add", "most three", "sixteen"),
        node("Concat", "sixteen open", "shape", axis=0),
    ]
    weights = [whole("minus", -7), whole("two", 2), whole("most", 19), whole("open", -1)]
    assert _shape_of(tmp_path / "net.onnx", nodes, weights) == (2 * 16, 4)


def test_shapes_are_inferred_behind_an_operator_that_onnx_does_not_know(tmp_path):
    nodes = [
        node("MatMulNBits", "x w s", "m", MS, K=16, N=32, bits=4, block_size=16),
        node("Reshape", "m to", "r"),
        node("Flatten", "r", "y", axis=2),
    ]
    weights = [
        tensor("w", (32, 1, 8), bytes(256), dtype=2),
        tensor("s", (32,)),
        whole("to", 0, 8, -1),
    ]
    path = tmp_path / "net.onnx"
    path.write_bytes(model(nodes, weights, [X]))
    for batch in (2, 5):
        graph = build(make_workload(read_model(str(path)), batch, phase="infer"))
        assert graph.tensors[graph.outputs[0]].shape == (batch * 8, 4 * 32 // 8)


def test_positions_too_many_to_be_known_are_a_table(tmp_path):
    """Their shape is known, 10^6 by 4, and the sum reads it; none is a parameter."""
    nodes = [
        node("Range", "zero most one", "places"),
        node("Unsqueeze", "places axis", "rows"),
        node("LessOrEqual", "rows four", "seen"),
        node("Cast", "seen", "table", to=1),
        node("MatMul", "table x", "y"),
    ]
    scalars = [("zero", 0), ("most", 10**6), ("one", 1)]
    weights = [tensor(name, (), n.to_bytes(8, "little"), dtype=INT64) for name, n in scalars]
    path = tmp_path / "net.onnx"
    content = [*weights, whole("axis", 1), whole("four", 0, 1, 2, 3)]
    path.write_bytes(model(nodes, content, [value("x", "n", 4, 16)]))
    graph = build(make_workload(read_model(str(path)), 2, phase="infer"))
    assert graph.tensors[graph.outputs[0]].shape == (2, 10**6, 16)
    assert graph.parameters == 0


def test_a_number_that_a_file_says_is_below_zero_is_the_open_batch(tmp_path):
    """Some converters write -1 for a size that is open."""
    path = tmp_path / "net.onnx"
    path.write_bytes(model([node("Relu", "x", "y")], inputs=[value("x", -1, 4)]))
    for batch, flop in ((None, 4), (3, 12)):
        assert count(build(make_workload(read_model(str(path)), batch, phase="infer"))).flop == flop
