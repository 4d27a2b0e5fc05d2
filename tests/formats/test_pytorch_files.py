"""`.pt2` files without PyTorch: what they say, and one line for whatever is wrong with them."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from every import every
from exported import BATCH, changed, document, node, of, tensor, write
from steptime import count_step
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.formats import MAX_JSON_VALUES
from steptime.formats.pytorch.symbols import SymbolError, evaluate_size, parse_size

GRAPH = "graph_module.graph"


def test_a_file_is_counted_for_any_batch(tmp_path):
    path = str(write(tmp_path / "net.pt2", document()))
    counted = count_step(path, batch=3, phase="infer")
    assert counted.parameters == 5 * 4 + 5
    assert {op.name: op.flop for op in counted.ops} == {
        "fc/linear": 2 * 3 * 4 * 5,
        "fc/linear/bias": 3 * 5,
        "act/relu": 3 * 5,
        "view": 0,
    }
    graph = build_step(make_workload(read_model(path), 3))
    assert graph.weights == ("fc.weight", "fc.bias")
    assert graph.outputs == ("loss",)


def test_the_hash_is_of_the_network_and_not_of_weights(tmp_path):
    plain = write(tmp_path / "a.pt2", document())
    heavy = write(tmp_path / "b.pt2", document(), **{"net/data/weights/weight_0": "x" * 999})
    moved = document()
    moved["graph_module"]["graph"]["nodes"][0]["metadata"]["stack_trace"] = "line 7"
    other = write(tmp_path / "c.pt2", moved)
    wide = write(tmp_path / "d.pt2", changed(f"{GRAPH}.tensor_values.w", tensor(6, 4)))
    hashes = [read_model(str(path)).sha256 for path in (plain, heavy, other, wide)]
    assert len(set(hashes[:3])) == 1
    assert hashes[3] != hashes[0]


def test_sizes_are_computed_and_never_evaluated():
    def size(text: str) -> int:
        return int(evaluate_size(parse_size(text), {"s0": 7, "s1": 2}))

    assert size("Add(Mul(Integer(3), Symbol('s0', integer=True)), Integer(-1))") == 20
    assert size("FloorDiv(Symbol('s0'), Symbol('s1'))") == 3
    assert size("Max(Integer(1), Mod(Symbol('s0'), Integer(4)))") == 3
    assert size("Add(Mul(Rational(1, 2), Symbol('s1')), Pow(Symbol('s1'), Integer(-1)))") == 1
    for text in (
        "__import__('os').system('true')",
        "Mul(Integer(2), open('x'))",
        "Pow(Integer(10), Integer(10000000000))",
        "Mul(" + ", ".join(["Integer(99999)"] * 50) + ")",
        "FloorDiv(Integer(1), Integer(0))",
        "Integer(" * 300 + "1" + ")" * 300,
        "Integer(1)" * 200_000,
        "Symbol('s9')",
        "lambda: 3",
        "",
    ):
        with pytest.raises(SymbolError):
            size(text)


FAULTS = {
    "another version": (
        changed("schema_version.major", 9),
        "version '9' of torch.export's schema; this reads 8",
    ),
    "no graph": ({"schema_version": {"major": 8}}, "not what torch.export writes: 'graph_module'"),
    "not JSON": ("{", "model.json is no JSON"),
    "twice": ('{"a": 1, "a": 2}', "key 'a' is given twice"),
    "deep": ("[" * 100_000, "model.json is no JSON"),
    "cycle": (changed(f"{GRAPH}.nodes.0.inputs.0.arg", of("relu")), "op 'torch.ops.aten.linear"),
    "wrong shape": (
        changed(f"{GRAPH}.tensor_values.linear", tensor(BATCH, 6)),
        "it is lowered to [2, 5], where the file has [2, 6]",
    ),
    "huge": (changed(f"{GRAPH}.tensor_values.w", tensor(10**18, 10**18)), "a size '1000"),
    "huge alone": (
        changed(f"{GRAPH}.tensor_values.w", tensor(10**4000, 4)),
        "a size '1000",
    ),
    "long size": (
        changed(f"{GRAPH}.tensor_values.x", tensor("Integer(1)" * 100_000, 4)),
        "a size of 1000000 characters",
    ),
    "no output": (changed("graph_module.signature.output_specs", []), "no tensor of floating"),
    "code": (
        changed(f"{GRAPH}.nodes.0.inputs.1.arg", {"as_custom_obj": {"name": "evil"}}),
        "an argument of kind custom_obj",
    ),
    "type": (changed(f"{GRAPH}.tensor_values.w.dtype", 77), "not what torch.export writes: 77"),
}  # fmt: skip


@every("fault", FAULTS)
def test_a_wrong_file_is_one_line(fault, tmp_path):
    content, said = FAULTS[fault]
    path = str(write(tmp_path / "net.pt2", content))
    with pytest.raises(InputError) as caught:
        build(make_workload(read_model(path), 2, phase="infer"))
    line = str(caught.value)
    assert said in line
    assert "\n" not in line
    assert len(line) < 400


def test_graphs_in_each_other_are_limited(tmp_path):
    inner = document()["graph_module"]["graph"] | {"inputs": [], "outputs": []}
    for _ in range(30):
        wrapped = {"name": "", "arg": {"as_graph": {"name": "sub", "graph": inner}}}
        call = node("x", "y") | {
            "target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
            "inputs": [{"name": "", "arg": {"as_bool": False}}, wrapped],
            "outputs": [],
        }
        inner = {"nodes": [call], "tensor_values": {}, "sym_int_values": {}} | {
            "inputs": [], "outputs": [],
        }  # fmt: skip
    path = write(tmp_path / "net.pt2", changed(GRAPH, inner))
    with pytest.raises(InputError, match="more than 20 graphs in each other"):
        count_step(str(path))


def test_archives_that_are_none_or_bombs(tmp_path):
    path = tmp_path / "net.pt2"
    faults: list[tuple[bytes | None, str]] = [
        (b"no archive", "not a ZIP archive"),
        (b"", "cannot be read"),
        (b"PK\x05\x06" + b"\xff" * 18, "not a ZIP archive"),
    ]
    for content, said in faults:
        path.write_bytes(content or b"")
        with pytest.raises(InputError, match=said):
            read_model(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../models/model.json", "{}")
        archive.writestr("net/models/other.json", "{}")
    with pytest.raises(InputError, match=r"holds no|not what"):
        build(make_workload(read_model(str(path)), 1))
    assert not (tmp_path.parent / "models").exists()
    write(path, document(), **{"b/models/model.json": "{}"})
    with pytest.raises(InputError, match=r"holds several models/model\.json"):
        read_model(str(path))
    write(path, " " * 65_000_000, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match="of 65000000 bytes, above 64000000"):
        read_model(str(path))
    raw = bytearray(write(path, " " * 65_000_000, zipfile.ZIP_DEFLATED).read_bytes())
    at = raw.rfind(b"PK\x01\x02")
    raw[at + 24 : at + 28] = struct.pack("<I", 1000)  # says that it is small
    path.write_bytes(raw)
    with pytest.raises(InputError):
        read_model(str(path))


def test_no_pickle_is_opened(tmp_path):
    import pickle

    class Canary:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    path = write(tmp_path / "net.pt2", document())
    with zipfile.ZipFile(path, "a") as archive:
        for name in ("net/data/sample_inputs/model.pt", "net/data/weights/weight_0"):
            archive.writestr(name, pickle.dumps(Canary()))
        archive.writestr("net/data/constants/custom_obj_0", pickle.dumps(Canary()))
    count_step(str(path), batch=2)
    assert not (tmp_path / "executed").exists()


def test_an_unknown_op_is_priced_by_the_bytes_that_it_reads_and_writes(tmp_path):
    content = changed(f"{GRAPH}.nodes.1.target", "torch.ops.mine.secret.default")
    path = str(write(tmp_path / "net.pt2", content))
    counted = count_step(path, batch=2, phase="infer")
    secret = next(op for op in counted.ops if op.kind == "opaque")
    assert (secret.name, secret.flop) == ("act/secret", 0)
    assert secret.traffic_bytes == 2 * (2 * 5) * 4
    graph = build(make_workload(read_model(path), 2, phase="infer"))
    share = f"{secret.traffic_bytes / counted.traffic_bytes:.0%}"
    first, second = graph.remarks
    assert first == (
        f"1 op of unknown work (mine.secret.default): priced by bytes, {share} of the step's"
    )
    assert second.startswith("not comparable")


def test_an_op_known_to_hold_no_products_needs_no_note(tmp_path):
    content = changed(f"{GRAPH}.nodes.1.target", "torch.ops.aten.cumprod.default")
    path = str(write(tmp_path / "net.pt2", content))
    assert build(make_workload(read_model(path), 2, phase="infer")).remarks == ()


def test_a_factorisation_and_its_gradient_are_counted_by_their_shape(tmp_path):
    content = changed(f"{GRAPH}.nodes.1.target", "torch.ops.aten.linalg_lu_factor_ex.default")
    path = str(write(tmp_path / "net.pt2", content))
    ops = count_step(path, batch=3).ops
    flop = {op.kind: op.flop for op in ops if op.kind.startswith("opaque")}
    # 3 x 5: 2 x the integral of (3 - i) (5 - i) over 3 pivots; 6 x 3^3
    assert flop == {"opaque": 36, "opaque_grad": 162}
    graph = build(make_workload(read_model(path), 3))
    assert not any("unknown" in remark for remark in graph.remarks)


def test_infinities_are_texts(tmp_path):
    content = changed(f"{GRAPH}.nodes.1.target", "torch.ops.aten.clamp.default")
    node_of_clamp = content["graph_module"]["graph"]["nodes"][1]
    node_of_clamp["inputs"].append({"name": "min", "arg": {"as_float": "-Infinity"}})
    node_of_clamp["inputs"].append({"name": "max", "arg": {"as_float": 6.0}})
    path = str(write(tmp_path / "net.pt2", content))
    kinds = [op.kind for op in build(make_workload(read_model(path), 2, phase="infer")).ops]
    assert kinds == ["linear", "bias", "pointwise", "reshape"]


@pytest.mark.slow
def test_counting_loads_no_framework(tmp_path):
    path = write(tmp_path / "net.pt2", document())
    code = (
        "import sys; from steptime.cli.main import main; sys.argv = ['steptime', 'count', "
        f"{str(path)!r}, '--json']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'numpy', 'onnx', 'jax', 'keras') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *answer, loaded = done.stdout.strip().splitlines()
    assert loaded == "[]"
    assert json.loads("\n".join(answer))["parameters"] == 25


def test_more_values_than_memory_is_good_for_are_refused(tmp_path):
    text = json.dumps(document())[:-1] + ', "more": [' + "[]," * (MAX_JSON_VALUES // 2) + "1]}"
    path = write(tmp_path / "net.pt2", text, zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match="values, above 4000000") as refused:
        read_model(str(path))
    assert "\n" not in str(refused.value)
