"""Code as a network: converted in a process of its own, kept, counted, and measured as it is."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from tempfile import gettempdir

import pytest

import steptime
from every import every
from export_in_process import export_in_process
from places import ROOT
from steptime.build import build, make_workload, read_model
from steptime.cli.main import run
from steptime.hardware.item_files import user_folder
from steptime.measure.contract import Options, UnsupportedError

pytestmark = [pytest.mark.slow, pytest.mark.framework]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples/unet.py", tmp_path / "unet.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _answer(line: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, object]:
    assert run([*line.split(), "--json"]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("exported_here")
def test_code_is_converted_on_the_way_and_its_file_is_kept(folder, capsys):
    one = _answer("count unet.py:UNet --batch 1 --phase infer", capsys)
    assert not list(folder.glob("*.pt2"))
    (kept,) = user_folder("networks").glob("*/unet.UNet.pt2")
    before = kept.stat().st_mtime_ns
    many = _answer("count unet.py:UNet --batch 8 --phase infer", capsys)
    assert (many["flop"], many["parameters"]) == (8 * one["flop"], one["parameters"])  # type: ignore[operator]
    assert kept.stat().st_mtime_ns == before
    Path("unet.py").write_text(Path("unet.py").read_text().replace("width: int = 16", "width=8"))
    assert _answer("count unet.py:UNet", capsys)["parameters"] != one["parameters"]
    converted = _answer("convert unet.py:UNet --input x=2x3x32x32:float32 -o small.pt2", capsys)
    assert (converted["file"], converted["fixed_batch_reason"]) == ("small.pt2", "")
    quarter = _answer("count small.pt2 --batch 1 --phase infer", capsys)
    whole = _answer("count unet.py:UNet --batch 1 --phase infer", capsys)
    assert whole["flop"] == 4 * quarter["flop"]  # type: ignore[operator]


def test_a_module_leaves_nothing_in_the_current_folder(folder):
    import torch

    small, large = (
        steptime.from_module(torch.nn.Linear(8, n), [torch.zeros(3, 8)]) for n in (4, 6)
    )
    counts = [steptime.count_step(file, 1).parameters for file in (small, large)]
    assert counts == [8 * 4 + 4, 8 * 6 + 6]
    assert {Path(small).name, Path(large).name} == {"Linear.pt2"}
    assert not list(folder.glob("*.pt2"))


def test_modules_of_one_class_are_exported_by_two_processes_at_once(folder, monkeypatch):
    import torch

    from steptime.core import registry

    place = "steptime.measure.backends.native.export:export"
    export = registry.load(place)
    files_of_other_process: list[str] = []

    def export_while_another_process_does(*arguments, **settings):
        fixed_batch_reason = export(*arguments, **settings)
        if not files_of_other_process:
            files_of_other_process.append("")  # the export below is not interrupted again
            module = torch.nn.Linear(8, 6)
            files_of_other_process[0] = steptime.from_module(module, [torch.zeros(3, 8)])
        return fixed_batch_reason

    load = registry.load
    monkeypatch.setattr(
        registry,
        "load",
        lambda name: export_while_another_process_does if name == place else load(name),
    )
    file = steptime.from_module(torch.nn.Linear(8, 4), [torch.zeros(3, 8)])
    counts = [steptime.count_step(f, 1).parameters for f in (file, *files_of_other_process)]
    assert counts == [8 * 4 + 4, 8 * 6 + 6]


@pytest.mark.usefixtures("exported_here")
def test_what_code_is_given_is_remembered_when_the_code_changes(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # whatever the environment says
    text = "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self): super().__init__"
    Path("plain.py").write_text(f"{text}(8, 4)\n")
    one = _answer("count plain.py:Net:input=2x8 --batch 1 --phase infer", capsys)
    written = Path("plain.py").stat()
    Path("plain.py").write_text(f"{text}(8, 6)\n")  # of the same size, and in the same second
    os.utime("plain.py", ns=(written.st_atime_ns, written.st_mtime_ns + 1_000))
    two = _answer("count plain.py:Net --batch 1 --phase infer", capsys)
    assert (one["parameters"], two["parameters"]) == (8 * 4 + 4, 8 * 6 + 6)


@pytest.mark.onnx
@pytest.mark.usefixtures("exported_here")
def test_a_network_is_written_in_other_forms(folder, capsys):
    _answer("convert unet.py:UNet --batch 4 -o net.json", capsys)
    own = _answer("count unet.py:UNet --batch 4", capsys)
    assert _answer("count net.json", capsys)["flop"] == own["flop"]
    _answer("convert unet.py:UNet --batch 4 -o net.onnx", capsys)
    infers = _answer("count unet.py:UNet --batch 4 --phase infer", capsys)
    assert _answer("count net.onnx --phase infer", capsys)["flop"] == infers["flop"]
    assert run(["convert", "resnet18", "--batch", "1", "-o", "net.csv"]) == 0
    said = capsys.readouterr()
    assert "note: no products, so not in the file: batch_norm 20, relu 17" in said.err
    assert len((folder / "net.csv").read_text().splitlines()) == 1 + 21


@pytest.fixture
def failing_code(folder):
    """Write files of code that cannot be exported beside the U-Net."""
    (folder / "bad.py").write_text("print('hello')\n1 / 0\n")
    (folder / "plain.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return x\n"
        "def make(): return 3\n"
        "def image(): return torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Flatten(1))\n"
    )
    return folder


def _is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.usefixtures("failing_code")
def test_code_that_raises_an_error_is_one_line(capsys):
    _is_one_line("count bad.py:Net", "bad.py: ZeroDivisionError: division by zero", capsys)


@every(
    ("line", "message"),
    [
        ("count unet.py:UNt", "unknown name 'UNt'; did you mean 'UNet'?"),
        ("count unet.py:INPUTS", "INPUTS is a dict, not a module"),
        ("count plain.py:make", "make() is a int, not a torch.nn.Module"),
        ("count plain.py:Net", "x of forward unknown; this works: steptime count "),
        ("convert plain.py:Net --input y=2x3", "plain.py:Net: "),
        (
            "count plain.py:image:3x8x8",
            "plain.py:image: its inputs lack a batch, which is their first size: 2x3x8x8",
        ),
    ],
)
def test_code_that_cannot_be_exported_is_one_line(line, message, monkeypatch, failing_code, capsys):
    monkeypatch.chdir(failing_code)
    monkeypatch.setattr("steptime.formats.code._run_export", export_in_process)
    _is_one_line(line, message, capsys)


def _pairs_by_its_old_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Versions before 0.15 called a module by its file, `unet.UNet.pt2`."""
    (written,) = Path("torch").glob("*.jsonl")
    Path("old").mkdir()
    old = written.read_text().replace('"file":"unet.py:UNet"', '"file":"unet.UNet.pt2"')
    Path("old", written.name).write_text(old)
    compared = _answer("compare old torch", capsys)
    assert [row["name"] for row in compared["rows"]] == ["unet.py:UNet batch 2"]  # type: ignore[attr-defined]
    assert _answer("predict --in old --device a100", capsys)["added"] == 1


@pytest.mark.rare  # the module of an op that torch lacks is measured too
@pytest.mark.usefixtures("exported_here")
def test_the_module_itself_is_measured_beside_its_graph(folder, capsys):
    for backend in ("torch", "native"):
        line = f"run unet.py:UNet --batch 2 --budget 0.1 --backend {backend} --out {backend}"
        answer = _answer(line, capsys)
        assert (answer["status"], answer["model"]) == ("ok", "unet.py:UNet")
    texts = [path.read_text() for path in folder.glob("*/*.jsonl")]
    records = [json.loads(line) for text in texts for line in text.splitlines()]
    assert {record["method"]["name"] for record in records} == {"torch", "native"}
    assert {record["workload"]["file"] for record in records} == {"unet.py:UNet"}
    models = {record["workload"]["model"] for record in records}
    assert models == {"unet.UNet.pt2"}  # as its key has it
    places = (str(user_folder("networks")), str(folder), gettempdir())
    assert not [text for text in texts for place in places if place in text]
    _pairs_by_its_old_name(capsys)


@pytest.mark.slow  # exports a module
@pytest.mark.usefixtures("exported_here")
def test_a_module_with_an_op_that_torch_lacks_is_measured_itself(folder, capsys):
    (folder / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    INPUTS = {'x': ((2, 8), 'float32')}\n"
        "    def __init__(s): super().__init__(); s.l = torch.nn.Linear(8, 8)\n"
        "    def forward(s, x): return s.l(x) + torch.linalg.slogdet(s.l.weight)[1]\n"
    )
    answer = _answer("run net.py:Net --backend torch --budget 0.1 --out torch", capsys)
    assert answer["status"] == "ok"
    assert "opaque (_linalg_slogdet)" in str(answer["notes"])


def test_a_network_that_is_no_code_is_not_run_as_code():
    from steptime.measure.backends.native import backend

    workload = make_workload(read_model("fc:layers=1,nodes=8"), 2)
    with pytest.raises(UnsupportedError, match="native runs networks of code"):
        backend.prepare(build(workload), workload, Options())


def test_a_module_that_is_there_becomes_a_file(folder):
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
    file = steptime.from_module(net, [torch.zeros(3, 8)], folder / "net.pt2")
    assert steptime.count_step(file, batch=5, phase="infer").flop == 2 * 5 * 8 * 4 + 2 * 5 * 4
    assert net[0].weight.device.type == "cpu"
    assert net.training
