"""What is wrong with an ONNX file, hostile or not, is one line: nothing is opened or run for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from every import every
from onnx_bytes import INT64, encode_message, function, model, node, tensor, value, whole
from steptime.build import build, make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.formats.export.protobuf import encode_varint

pytestmark = pytest.mark.onnx

RELU = [node("Relu", "x", "y")]
PRODUCT = [node("MatMul", "x w", "y")]


def fault(folder: Path, content: bytes, text: str = "") -> str:
    """Return the one line that is said about a file."""
    path = folder / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        build(make_workload(read_model(f"{path}{text}"), 2, phase="infer"))
    assert "\n" not in str(error.value)
    return str(error.value)


def outside(where: str) -> bytes:
    """Return a network whose weight lies in another file."""
    data = encode_message((1, "location"), (2, where))
    return model(PRODUCT, [tensor("w", (4, 3), b"", more=[(13, data), (14, 1)])])


def scalar(name: str, number: int) -> bytes:
    """Return a whole number without axes."""
    return tensor(name, (), number.to_bytes(8, "little"), dtype=INT64)


DEEP = b""
for _ in range(200):
    DEEP = encode_message((1, encode_message((5, encode_message((1, "g"), (6, DEEP))))))
DOUBLING = [
    function(
        f"f{i}", "a", "c", [node(f"f{i + 1}", "a", "b", "f"), node(f"f{i + 1}", "b", "c", "f")]
    )
    for i in range(30)
] + [function("f30", "a", "c", [node("Relu", "a", "c")])]


@every(
    ("content", "said"),
    [
        (b"", "cannot mmap an empty file"),
        (b"\x00\x01\x02", "has no end"),
        (b"PK\x03\x04 not one", "ends after its message|no graph|a number"),
        (model(RELU)[:-9], "ends after its message|no opsets"),
        (encode_message((7, b"\xff" * 12)), "has no end"),
        (
            encode_message((7, encode_varint(10 << 3 | 2) + encode_varint(2**62))),
            "ends after its message",
        ),
        (encode_message((7, DEEP), (8, encode_message((2, 20)))), "nest deeper than 24"),
        (outside("../w.bin"), "its data lies outside of the folder, in '../w.bin'"),
        (outside("/etc/passwd"), "its data lies outside of the folder, in '/etc/passwd'"),
        (outside("a/../../w"), "its data lies outside"),
        (outside(""), "its data lies outside"),
        (model(PRODUCT, [tensor("w", (10**6, 10**6), b"")]), "0 bytes for '[1000000, 1000000]'"),
        (model(PRODUCT, [tensor("w", (2**40, 2**40), b"")]), "of shape"),
        (model(PRODUCT, [tensor("w", (-4, 3), b"")]), "of shape '[-4, 3]'"),
        (model([node("f0", "x", "y", "f")], functions=DOUBLING), "more than|nest deeper"),
        (
            model(
                [node("f", "x", "y", "f")],
                functions=[function("f", "a", "b", [node("f", "a", "b", "f")])],
            ),
            "local functions nest deeper than 16",
        ),
        (
            model([node("Relu", "z", "y"), node("Relu", "y", "z")]),
            "node 'Relu_y' (Relu): reads 'z', which no earlier node makes",
        ),
        (model([node("Relu", "x", "z")]), "no node makes output 'y'"),
        (model([node("Reluu", "x", "y")]), "unknown operator 'Reluu'; did you mean 'Relu'?"),
        (model([node("Loop", "x", "y")]), "(Loop): a loop whose number of turns"),
        (model([node("Reshape", "x s", "y")], [whole("s", 3, -1)]), "written for another batch"),
        (model([node("Expand", "x s", "y")], [whole("s", 2**62, 4)]), "(Expand):"),
        (
            model([node("Expand", "x s", "y")], [whole("s", 10**9, 10**9, 1, 4)]),
            "has more than 2^53 bytes|(Expand)",
        ),
        (model(PRODUCT, [tensor("w", (5, 3))]), "node 'MatMul_y' (MatMul): MatMul_y: linear of"),
        (model([node("Conv", "x w", "y")], [tensor("w", (5, 3))]), "node 'Conv_y' (Conv)"),
        (model(RELU, inputs=[value("x", "n", "length")]), "FILE:length=128"),
        (model([node("If", "x", "y")]), "(If): a branch that depends on data"),
        (
            model([node("ConstantOfShape", "s", "w"), *PRODUCT], [whole("s", *[9] * 17)]),
            "MatMul_y: matmul of [1, 4] and [9, 9",
        ),
        (
            model(
                [node("Range", "a b c", "r"), *RELU],
                [scalar("a", 0), scalar("b", 2**62), scalar("c", 0)],
            ),
            "division by zero",
        ),
    ],
)
def test_faults_are_one_line(tmp_path, content, said):
    before = time.process_time()
    tracemalloc.start()
    text = fault(tmp_path, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert any(part in text for part in said.split("|")), text
    assert time.process_time() - before < 20
    assert peak < 400e6


def test_a_doubling_file_is_small():
    content = model([node("f0", "x", "y", "f")], functions=DOUBLING)
    assert len(content) < 3_000  # for 2^30 ops


@every("kind", ["link", "fifo", "absent", "plain"])
def test_external_data_is_never_opened(tmp_path, kind):
    """Beside the file it may be absent, or never answer; a link out of the folder is refused."""
    folder = tmp_path / "inside"
    folder.mkdir()
    path = folder / "net.onnx"
    path.write_bytes(outside("w.bin"))
    if kind == "link":
        (tmp_path / "secret").write_bytes(bytes(48))
        (folder / "w.bin").symlink_to(tmp_path / "secret")
        assert "is a link out of the folder, 'w.bin'" in fault(folder, outside("w.bin"))
        return
    if kind == "fifo":
        os.mkfifo(folder / "w.bin")  # who opens it waits for ever
    if kind == "plain":
        (folder / "w.bin").write_bytes(b"short")
    graph = build(make_workload(read_model(str(path)), 2, phase="infer"))
    assert graph.parameters == 12


def test_a_command_ends_with_2(tmp_path, capsys):
    path = tmp_path / "net.onnx"
    path.write_bytes(outside("../w.bin"))
    assert run(["count", str(path)]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert re.fullmatch(r"steptime: .*outside of the folder.*\n", said.err)


def test_without_onnx_a_line_says_how_to_get_it(tmp_path):
    (tmp_path / "net.onnx").write_bytes(model(RELU))
    code = "import sys; sys.modules['onnx'] = None; from steptime.cli.main import run;"
    done = subprocess.run(
        [sys.executable, "-c", f"{code} sys.exit(run(['count', 'net.onnx']))"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    how = "an ONNX file is read by onnx: pip install 'steptime[onnx]'"
    assert done.stderr == f"steptime: {how}\n"


def test_an_unknown_operator_may_pass_its_input_on(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(model([node("Mystery", "x", "z", "their.own"), node("Relu", "z", "y")]))
    graph = build(make_workload(read_model(str(path), allow_unknown=True), 2, phase="infer"))
    assert graph.unmodelled == ("Mystery_z (their.own.Mystery)",)
    assert [op.kind for op in graph.ops] == ["relu"]
