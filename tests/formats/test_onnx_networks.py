"""Networks of ONNX files: exact figures of those that the onnx package ships, any batch, phase."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from every import every
from onnx_bytes import encode_message, model, node, tensor, value, whole
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph, check
from steptime.formats.export.onnx import export_onnx
from steptime.formats.export.protobuf import encode_varint
from steptime.network.count import Count, count
from steptime.network.ops import OPS

pytestmark = pytest.mark.onnx

# FLOP of products and convolutions at batch 1, float constants
LIGHT = {
    "bvlc_alexnet": (1_309_120_768, 60_965_224),
    "densenet121": (5_668_323_328, 8_062_504),
    "inception_v1": (2_863_112_704, 6_998_552),
    "inception_v2": (4_037_703_680, 11_214_888),
    "resnet50": (8_178_368_512, 25_557_032),
    "shufflenet": (249_329_056, 1_393_320),
    "squeezenet": (698_303_872, 1_235_496),
    "vgg19": (39_264_124_928, 143_667_240),
    "zfnet512": (2_963_454_016, 87_250_536),
}


def light(name: str) -> str:
    """Return the path of a network in the onnx package; skips without it."""
    onnx = pytest.importorskip("onnx")
    return str(Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx")


def counted(model: str, batch: int, phase: str = "infer") -> Count:
    """Return what a step costs."""
    graph = build_step(make_workload(read_model(model), batch, phase=phase))
    check(graph)
    return count(graph)


def of_products(found: Count) -> int:
    """Return the FLOP of matrix products and convolutions alone."""
    return sum(op.flop for op in found.ops if OPS[op.kind].work)


@pytest.mark.slow
@every("name", LIGHT)
def test_published_networks_are_exact(name):
    one, eight = (counted(light(name), batch) for batch in (1, 8))
    assert (of_products(one), one.parameters) == LIGHT[name]
    assert of_products(eight) == 8 * of_products(one)
    assert eight.flop == 8 * one.flop


def shipped() -> list[Path]:
    """Return the models that the onnx package ships as test data; skips without it."""
    onnx = pytest.importorskip("onnx")
    return sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))


@pytest.mark.slow
def test_models_of_the_package_have_the_shapes_that_onnx_infers():
    """Each is read, but for those of operators without a kind, of texts and of unknown sizes."""
    import onnx

    refused, compared = [], 0
    for path in shipped():
        try:
            graph = build(make_workload(read_model(str(path)), None, phase="infer"))
        except InputError:
            refused.append(path.parent.name)
            continue
        file = onnx.shape_inference.infer_shapes(onnx.load(path), data_prop=True)
        outputs = [one.type.tensor_type.shape.dim for one in file.graph.output]
        sizes = [tuple(size.dim_value for size in shape) for shape in outputs]
        if len(sizes) == len(graph.outputs) and all(map(all, sizes)):
            compared += 1
            assert [graph.tensors[name].shape for name in graph.outputs] == sizes, path
    names = ("sequence", "strnorm", "gradient", "expand_shape", "shrink", "MaxPool")
    assert not [name for name in refused if not name.startswith(tuple(f"test_{n}" for n in names))]
    assert compared > 4 * len(refused)  # 124 and 23 of onnx 1.23


def test_a_network_of_a_file_can_be_trained():
    """ResNet-50 ends with a softmax, which is part of the loss; backward is twice forward, less
    the gradient of the image: 2 * 7*7*3*64 * 112*112."""
    found = counted(light("resnet50"), 2, "train")
    assert of_products(found) == 2 * (3 * LIGHT["resnet50"][0] - 236_027_904)


@pytest.mark.slow
def test_reading_needs_no_framework():
    code = (
        "import sys; from steptime.cli.main import run; run(['count', sys.argv[1]]);"
        "sys.exit([m for m in ('torch', 'jax', 'keras', 'onnxruntime') if m in sys.modules] or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, light("squeezenet")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_large_file_is_counted_without_its_weights(tmp_path):
    """2 GB of weights in the file, a hole: 100 MB of memory."""
    rows = 2**29 // 4096  # of 4,096 floats: 2 GiB
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.write(head_of(rows))
        file.truncate(file.tell() + 2**31)
    code = (
        "import re, sys; from pathlib import Path; from steptime.cli.main import run;"
        "code = run(['count', sys.argv[1], '--batch', '1', '--phase', 'infer', '--json']);"
        "said = Path('/proc/self/status').read_text();"
        "most = int(re.search(r'VmHWM:\\s+(\\d+) kB', said)[1]) / 1024;"
        "sys.exit(code or (f'{most} MB' if most > 100 else 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == rows * 4096


def head_of(rows: int) -> bytes:
    """Return all of a file of a product but the numbers of its weight `[rows, 4096]`."""
    size = rows * 4096 * 4
    weight = (
        encode_message((1, rows), (1, 4096), (2, 1), (8, "w"))
        + encode_varint(9 << 3 | 2)
        + encode_varint(size)
    )
    graph = encode_message(
        (1, node("Gemm", "x w", "y", transB=1)), (11, value("x", "n", 4096)), (12, value("y"))
    )
    graph += encode_varint(5 << 3 | 2) + encode_varint(len(weight) + size) + weight
    before = encode_message((1, 8), (8, encode_message((2, 20))))
    return before + encode_varint(7 << 3 | 2) + encode_varint(len(graph) + size) + graph


def built(folder: Path, content: bytes, batch: int = 1) -> Graph:
    """Return the graph of a file in inference."""
    path = folder / "net.onnx"
    path.write_bytes(content)
    return build(make_workload(read_model(str(path)), batch, phase="infer"))


def kinds(graph: Graph) -> list[str]:
    """Return the kinds of its ops that are not views."""
    return [op.kind for op in graph.ops if OPS[op.kind].storage != "view"]


def number(name: str, given: float) -> bytes:
    """Return a number as a constant."""
    return tensor(name, (), struct.pack("<f", given))


ATTENTION = [
    node("MatMul", "x wq", "q1"),
    node("Reshape", "q1 apart", "q2"),
    node("Transpose", "q2", "q", perm=(0, 2, 1, 3)),
    node("Transpose", "q2", "kt", perm=(0, 2, 3, 1)),
    node("Mul", "q scale", "qs"),
    node("Mul", "kt scale", "ks"),
    node("MatMul", "qs ks", "scores"),
    node("Where", "allowed zero low", "mask"),
    node("Add", "scores mask", "masked"),
    node("Softmax", "masked", "p", axis=-1),
    node("IsNaN", "p", "nan"),
    node("Where", "nan zero p", "kept"),
    node("MatMul", "kept q", "y"),
]


def test_attention_in_pieces_is_attention(tmp_path):
    """2 n h l m (d + d): 2 * 4 heads * 6 * 6 * 16 FLOP beside the product of 6 rows by 32 by 32."""
    weights = [
        tensor("wq", (32, 32)),
        whole("apart", 0, 6, 4, 8),
        *(number(name, n) for name, n in (("scale", 0.5), ("zero", 0.0), ("low", -1e9))),
        tensor("allowed", (6, 6), bytes(36), dtype=9),
    ]
    graph = built(tmp_path, model(ATTENTION, weights, [value("x", "n", 6, 32)]), 3)
    assert kinds(graph) == ["linear", "attention"]
    assert graph.weights == ("wq",)
    assert count(graph).flop == 3 * (2 * 6 * 32 * 32 + 2 * 4 * 6 * 6 * 16)


def test_weights_of_attention_that_are_an_output_stay(tmp_path):
    """What is read elsewhere, too, is not counted twice."""
    weights = [
        tensor("wq", (32, 32)),
        whole("apart", 0, 6, 4, 8),
        *(number(name, n) for name, n in (("scale", 0.5), ("zero", 0.0), ("low", -1e9))),
        tensor("allowed", (6, 6), bytes(36), dtype=9),
    ]
    content = model(ATTENTION, weights, [value("x", "n", 6, 32)], ("y", "kept"))
    graph = built(tmp_path, content)
    assert kinds(graph).count("matmul") == 2
    assert "attention" not in kinds(graph)


DECODER = (
    "transformer:kind=decoder,layers=2,width=64,heads=4,kv_heads=2,norm=rms,positions=rotary,"
    "activation=swiglu,bias=no,length=16,vocabulary=50"
)


@pytest.mark.slow
@every(
    "name", ["squeezenet1_1", "mobilenet_v2", "bert_base", DECODER, "rnn:cell=lstm", "rnn:cell=gru"]
)
def test_a_family_comes_back_from_its_onnx_file(tmp_path, name):
    """The same FLOP, op for op, and parameters as the family counts by itself."""
    ours = build(make_workload(read_model(name), 2, phase="infer"))
    for batch in (2, 6):
        theirs = built(tmp_path, export_onnx(ours), batch)
        assert count(theirs).flop == count(ours).flop * batch // 2
        assert theirs.parameters == ours.parameters
    for kind in {*kinds(ours), *kinds(theirs)} - {"concat"}:
        assert kinds(theirs).count(kind) == kinds(ours).count(kind), kind


GELU = {
    "erf, halved last": "Div x root a|Erf a b|Add b one c|Mul x c d|Mul d half y",
    "erf, halved first": "Mul x half h|Div x root a|Erf a b|Add one b c|Mul h c y",
    "tanh": "Pow x three p|Mul p k q|Add x q r|Mul r s t|Tanh t u|Add u one v|Mul v half h|"
    "Mul h x y",
}


@every("pieces", GELU)
def test_gelu_in_pieces_is_gelu(tmp_path, pieces):
    nodes = [
        node(op, " ".join(names[:-1]), names[-1])
        for op, *names in (piece.split() for piece in GELU[pieces].split("|"))
    ]
    numbers = {"root": 2**0.5, "one": 1.0, "half": 0.5, "three": 3.0, "k": 0.044715, "s": 0.79788}
    graph = built(tmp_path, model(nodes, [number(name, n) for name, n in numbers.items()]))
    assert kinds(graph) == ["gelu"]
    assert graph.parameters == 0


NORM = (
    "ReduceMean x last m|Sub x m d|Pow d two p|ReduceMean p last v|Add v eps e|Sqrt e s|"
    "Div d s n|Mul n w g|Add g b y"
)
RMS = "Pow x two p|ReduceMean p last v|Add v eps e|Sqrt e s|Reciprocal s r|Mul x r n|Mul w n y"


@pytest.mark.parametrize(("text", "kind", "size"), [(NORM, "layer_norm", 8), (RMS, "rms_norm", 4)])
def test_norms_in_pieces_are_norms(tmp_path, text, kind, size):
    nodes = [
        node(op, " ".join(names[:-1]), names[-1], **({"keepdims": 1} if "Mean" in op else {}))
        for op, *names in (piece.split() for piece in text.split("|"))
    ]
    weights = [tensor("w", (4,)), tensor("b", (4,)), number("two", 2.0), number("eps", 1e-5)]
    graph = built(tmp_path, model(nodes, [*weights, whole("last", -1)]))
    assert kinds(graph) == [kind]
    assert graph.parameters == size


def test_a_reshape_for_one_batch_is_mended(tmp_path):
    """`[1, -1]` would make one example of eight without a word."""
    nodes = [node("Reshape", "x s", "f"), node("Gemm", "f w", "y", transB=1)]
    for sizes in ((1, -1), (1, 12), (-1, 12), (0, -1)):
        weights = [tensor("w", (5, 12)), whole("s", *sizes)]
        content = model(nodes, weights, [value("x", 1, 3, 4)])
        assert count(built(tmp_path, content, 8)).flop == 8 * 2 * 5 * 12


def test_attributes_of_old_opsets_that_became_inputs(tmp_path):
    image = [value("x", 1, 3, 8, 8)]
    shapes = {
        "Reshape": (1, 192),
        "Slice": (1, 2, 8, 8),
        "Pad": (1, 3, 10, 10),
        "Split": (1, 1, 8, 8),
        "ReduceMean": (1, 3, 1, 1),
    }
    old: dict[str, tuple[int, dict[str, object], list[bytes]]] = {
        "Add": (6, {"broadcast": 1, "axis": 1}, [tensor("c", (3,))]),
        "Cast": (5, {"to": "FLOAT"}, []),
        "Reshape": (4, {"shape": (1, -1)}, []),
        "Slice": (9, {"axes": (1,), "starts": (0,), "ends": (2,)}, []),
        "Clip": (10, {"min": 0.0, "max": 6.0}, []),
        "Pad": (10, {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "mode": "constant"}, []),
        "Dropout": (11, {"ratio": 0.5}, []),
        "Split": (12, {"axis": 1, "split": (1, 2)}, []),
        "ReduceMean": (17, {"axes": (2, 3), "keepdims": 1}, []),
    }
    for op, (opset, attrs, weights) in old.items():
        names = "x c" if weights else "x"
        outputs = "z r" if op == "Split" else "z"
        nodes = [node(op, names, outputs, **attrs), node("Relu", "z", "y")]
        graph = built(tmp_path, model(nodes, weights, image, opset=opset))
        (relu,) = (one for one in graph.ops if one.kind == "relu")
        assert graph.tensors[relu.outputs[0]].shape == shapes.get(op, (1, 3, 8, 8)), op


def test_softmax_before_opset_13_is_over_all_that_follows(tmp_path):
    for opset, width in ((12, 12), (13, 4)):
        nodes = [node("Softmax", "x", "y")]
        graph = built(tmp_path, model(nodes, [], [value("x", 2, 3, 4)], opset=opset), 2)
        (op,) = (one for one in graph.ops if one.kind == "softmax")
        assert graph.tensors[op.inputs[0]].shape[-1] == width


def test_named_sizes_are_hyperparameters(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(model([node("Relu", "x", "y")], inputs=[value("x", "batch", "seq len", 8)]))
    assert count(build(make_workload(read_model(f"{path}:seq_len=5"), 2, phase="infer"))).flop == 80
    with pytest.raises(InputError, match="give the sizes of its inputs, FILE:seq_len=128"):
        make_workload(read_model(str(path)), 2)


def test_the_weights_are_no_part_of_what_a_file_says(tmp_path):
    hashes = []
    for byte in (b"\0", b"\1"):
        path = tmp_path / "net.onnx"
        path.write_bytes(model([node("MatMul", "x w", "y")], [tensor("w", (4, 8), byte * 128)]))
        hashes.append(read_model(str(path)).sha256)
    path.write_bytes(model([node("MatMul", "x w", "y")], [tensor("w", (4, 9))]))
    assert hashes[0] == hashes[1] != read_model(str(path)).sha256


@every("second", ["N", "batch_size", "unk__1", "?", ""])
def test_open_batches_of_several_names_are_one(tmp_path, second):
    inputs = [value("x", "batch", 4), value("y", second, 4)]
    graph = built(tmp_path, model([node("Add", "x y", "z")], inputs=inputs), 6)
    assert [graph.tensors[name].shape for name in (*graph.inputs, *graph.outputs)] == [(6, 4)] * 3


def test_a_first_size_with_a_name_of_its_own_stays_free(tmp_path):
    inputs = [value("x", "batch", 4), value("y", "length", 4)]
    with pytest.raises(InputError, match="FILE:length=128"):
        built(tmp_path, model([node("MatMul", "x y", "z")], inputs=inputs), 6)


def test_an_operator_of_a_foreign_domain_is_named(tmp_path):
    nodes = [node("Sparse", "x", "h", "org.example"), node("Relu", "h", "y")]
    with pytest.raises(InputError, match=r"unknown operator 'org\.example\.Sparse'"):
        built(tmp_path, model(nodes, inputs=[value("x", 2, 4)]))


def test_a_guessed_loss_is_said(tmp_path):
    def remarks(nodes: list[bytes], phase: str) -> tuple[str, ...]:
        path = tmp_path / "net.onnx"
        inputs = [value("x", "batch", 4)]
        path.write_bytes(model(nodes, [tensor("w", (4, 3))], inputs))
        return build(make_workload(read_model(str(path)), 2, phase=phase)).remarks

    product = [node("MatMul", "x w", "y")]
    guess = "loss: cross entropy, guessed from the last layer's shape [batch, 3]"
    assert remarks(product, "train") == (guess,)
    assert remarks(product, "infer") == ()
    (mean,) = remarks([node("MatMul", "x w", "m"), node("Relu", "m", "y")], "train")
    assert mean.startswith("loss: the mean of its output, guessed from ")
