"""The command `energy`: what it prints, where it looks for files, and what it refuses."""

from __future__ import annotations

import io
import json

import pytest

from every import every
from printed import answer
from steptime.cli.main import run

NET = [
    {"name": "conv1", "type": "Convolution", "macs": 1000},
    {"name": "relu1", "type": "ReLU"},
    {"name": "fc1", "type": "InnerProduct", "macs": 10},
]
SUMS = {"latency_s", "latency_low_s", "latency_high_s", "energy_j", "energy_low_j", "energy_high_j"}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Stand in a folder with `here/c.json` and its network in `nets/net.json`."""
    for name in ("here", "nets"):
        (tmp_path / name).mkdir()
    (tmp_path / "here/c.json").write_text('{"netfile": "net.json", "layers": ["Conv1", "fc-1"]}')
    (tmp_path / "nets/net.json").write_text(json.dumps(NET))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["energy", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "x" * 61 not in err
    return err


def test_a_network_of_ours(capsys):
    found = answer(capsys, "energy", "vgg16", "--process", "45nm", "--scaling", "constant-voltage")
    assert (found["model"], found["process"], found["scaling"]) == (
        "vgg16",
        "45nm",
        "constant-voltage",
    )
    assert set(found["total"]) == SUMS
    assert sum(op["macs"] for op in found["rows"] if op["part"] == "conv") == 15_346_630_656
    assert {one["kind"] for one in found["not_covered"]} >= {"bias", "relu", "max_pool2d"}
    dense = [op["name"] for op in found["rows"] if op["accelerator"] == "eie"]
    assert found["supposed_pruned"] == dense
    assert run(["energy", "vgg16"]) == 0
    note = f"supposed to be pruned as the measured layers were: {', '.join(dense)}"
    assert note in capsys.readouterr().err
    assert sum(op["energy_j"] for op in found["rows"]) == pytest.approx(found["total"]["energy_j"])


def test_the_batch_of_a_model_does_not_count(capsys):
    label = "layer_4-node_32-input_2000-output_200"
    assert (
        answer(capsys, "energy", f"{label}-bs_64")["total"]
        == answer(capsys, "energy", label)["total"]
    )


def test_a_network_with_attention_names_what_is_left_out(capsys):
    assert run(["energy", "gpt2:length=16", "--by-op"]) == 0
    printed = capsys.readouterr()
    assert "attention" in printed.err
    assert "not covered" in printed.err
    assert "output/linear" in printed.out


def test_tables_for_people(capsys, place):
    (place / "a.json").write_text('{"net": "AlexNet", "layers": ["CONV1", "FC6"]}')
    assert run(["energy", "a.json", "--by-op", "--dram", "--diagnose"]) == 0
    shown = capsys.readouterr().out
    assert "AlexNet, one example on eyeriss+eie, 65nm (dennard)" in shown
    assert "5.225 ms" in shown  # 20.9 ms / 4
    assert "DRAM, not in the total" in shown
    assert "each network from the others of its table" in shown
    found = answer(capsys, "energy", "a.json", "--dram")
    assert found["dram"]["dram_bytes"] == pytest.approx(5.0e6 / 4)
    assert answer(capsys, "energy", "a.json")["dram"] is None


def test_one_chip_has_no_row_of_the_other(capsys):
    found = answer(capsys, "energy", "alexnet", "--accelerator", "eyeriss")
    assert found["total"] == found["conv"]
    assert found["fc"] is None
    assert run(["energy", "alexnet", "--accelerator", "eie"]) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert "fc" in rows
    assert "conv" not in rows


def test_diagnosis_needs_no_network(capsys):
    found = answer(capsys, "energy", "--diagnose")
    assert set(found) == {"layers", "averages", "cross", "rivals"}
    per_batch = answer(capsys, "energy", "--diagnose", "--method", "fodlam")
    first, published = found["layers"][0], per_batch["layers"][0]
    assert published["energy_j_per_mac"] == pytest.approx(4 * first["energy_j_per_mac"])
    with_network = answer(capsys, "energy", "fc", "--diagnose")
    assert with_network["diagnosis"] == found


def test_a_netfile_lies_beside_its_configuration_or_in_a_given_folder(place, capsys, monkeypatch):
    in_folder = answer(capsys, "energy", "here/c.json", "--nets", "nets")
    assert [op["macs"] for op in in_folder["rows"]] == [1000, 10]
    assert "no such file in 'here'" in _mistake(capsys, "here/c.json")
    (place / "here/net.json").write_text(json.dumps(NET))
    assert answer(capsys, "energy", "here/c.json") == in_folder
    text = (place / "here/c.json").read_bytes()
    monkeypatch.chdir("here")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert answer(capsys, "energy") == in_folder


@every(
    ("config", "message"),
    [
        ('{"net": "VGG17", "layers": ["FC6"]}', "unknown net 'VGG17'; did you mean 'VGG16'?"),
        (
            '{"net": "VGG16", "layers": ["FC9"]}',
            "VGG16: unknown layer 'FC9'; known: CONV1-1, CONV1-2, ",
        ),
        ('{"net": "VGG16", "layers": ["CONV1-1", "conv1_1"]}', "'conv1_1' is listed twice"),
        ('{"net": "VGG16", "layers": []}', "'layers' must be a list"),
        ('{"net": "VGG16", "layers": "FC6"}', "'layers' must be a list"),
        ('{"net": "VGG16", "layers": [6]}', "a layer is a name, not '6'"),
        ('{"net": "VGG16"}', "'layers' must be a list"),
        ('{"net": "VGG16", "layers": ["FC\\ud800"]}', "a layer is a name, not 'FC?'"),
        ('{"netfile": "half.json", "layers": ["a"]}', "a layer is an object with 'name'"),
        ('{"net": 16, "layers": ["FC6"]}', "'net' is a name, not '16'"),
        ('{"layers": ["FC6"]}', "give one of 'net' and 'netfile'"),
        ('{"net": "a", "netfile": "b", "layers": ["c"]}', "give one of 'net' and 'netfile'"),
        ('{"net": "VGG16", "layer": ["FC6"]}', "unknown key 'layer'; did you mean 'layers'?"),
        ('{"net": "VGG16", "net": "AlexNet", "layers": ["FC6"]}', "key 'net' is given twice"),
        ('{"net": "VGG16", "layers": ["FC6"]', "is no JSON"),
        ("[" * 50_000, "is no JSON"),
        ('{"netfile": "gone.json", "layers": ["a"]}', "netfile 'gone.json': no such file"),
        ('{"netfile": "../net.json", "layers": ["a"]}', "'../net.json' lies outside of"),
        ('{"netfile": "/etc/passwd", "layers": ["a"]}', "'/etc/passwd' lies outside of"),
        ('{"netfile": "link.json", "layers": ["a"]}', "'link.json' lies outside of"),
        ('{"netfile": "a\\u0000b", "layers": ["a"]}', "'netfile' is a name, not 'a?b'"),
        ('{"netfile": "' + "x" * 5000 + '", "layers": ["a"]}', "x" * 60),
        ('{"netfile": ".", "layers": ["a"]}', "Is a directory"),
        ('{"netfile": "net.json", "layers": ["conv2"]}', "unknown layer 'conv2'; known: conv1, "),
        ('{"netfile": "minus.json", "layers": ["a"]}', "'macs' must be from 0 to 2^53, not '-5'"),
        ('{"netfile": "text.json", "layers": ["a"]}', "'macs' must be a whole number, not 'many'"),
        ('{"netfile": "none.json", "layers": ["a"]}', "layer 'a': 'macs' is missing"),
        ('{"netfile": "type.json", "layers": ["a"]}', "layer 'a': 'type' must be a text"),
        ('{"netfile": "twice.json", "layers": ["a"]}', "layer 'A' is listed twice"),
        ('{"netfile": "object.json", "layers": ["a"]}', "must be a list of layers"),
        ('{"netfile": "names.json", "layers": ["a"]}', "a layer is an object with 'name'"),
        ('{"netfile": "broken.json", "layers": ["a"]}', "netfile 'broken.json': is no JSON"),
    ],
)
def test_mistakes_of_configurations(config, message, tmp_path, monkeypatch, capsys):
    layer = {"name": "a", "type": "Convolution"}
    files: dict[str, object] = {
        "net": NET,
        "minus": [{**layer, "macs": -5}],
        "text": [{**layer, "macs": "many"}],
        "none": [layer],
        "type": [{"name": "a"}],
        "twice": [layer, {**layer, "name": "A"}],
        "object": {"a": layer},
        "names": ["a"],
        "half": [{"name": "a\ud800", "type": "Convolution"}],
    }
    folder = tmp_path / "inside"
    folder.mkdir()
    for name, rows in files.items():
        (folder / f"{name}.json").write_text(json.dumps(rows))
    (folder / "broken.json").write_text("[{")
    (tmp_path / "net.json").write_text(json.dumps(NET))
    (folder / "link.json").symlink_to(tmp_path / "net.json")
    (folder / "c.json").write_text(config)
    monkeypatch.chdir(folder)
    for method in ("accelerator", "fodlam"):
        assert message in _mistake(capsys, "c.json", "--method", method)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(config.encode())))
    assert message in _mistake(capsys)


def test_standard_input_that_is_no_configuration(capsys, monkeypatch):
    for content, message in (
        (b"", "standard input: is no JSON"),
        (b"\xff\xfe", "standard input: is no JSON"),
        (b"[1]", "standard input: must be an object"),
        (b" " * 4_000_001, "standard input: larger than 4000000 bytes"),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert message in _mistake(capsys)


def test_nothing_given_at_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert "give CONFIG or MODEL" in _mistake(capsys)


def test_ops_that_no_chip_covers_are_estimated(capsys):
    """Attention, norms, activations cost something, said to be an estimate, in no sum."""
    from steptime.build import build, make_workload, read_model
    from steptime.energy.operations import hierarchy, op_energy
    from steptime.energy.process import read_process

    for text in ("gpt2:length=8", "mobilenet_v2", "resnet50"):
        document = answer(capsys, "energy", text)
        found = document["estimated"]
        graph = build(make_workload(read_model(text), 1, phase="infer"))
        memory, process = hierarchy(found["hierarchy"]), read_process("65nm")
        every = {
            row.name: row.total_j
            for row in op_energy(graph, found["dtype"], memory, process, "dennard")
        }
        names = [one["name"] for one in document["not_covered"]]
        assert {one["name"]: one["energy_j"] for one in found["rows"]} == {
            name: every[name] for name in names
        }
        assert found["energy_j"] == pytest.approx(sum(every[name] for name in names))
        assert found["energy_low_j"] < found["energy_j"] < found["energy_high_j"]
        parts = document["conv"]["energy_j"] + document["fc"]["energy_j"]
        assert document["total"]["energy_j"] == pytest.approx(parts)
        assert run(["energy", text]) == 0
        shown = capsys.readouterr()
        assert "other ops, estimated with DRAM" in shown.out
        assert "not covered by the chips, energy estimated, latency left out" in shown.err


def test_averages_are_what_other_layers_cost(capsys):
    eyeriss = answer(capsys, "energy", "--diagnose")["averages"][0]
    network = answer(capsys, "energy", "resnet50")
    macs = sum(one["macs"] for one in network["rows"] if one["part"] == "conv")
    assert eyeriss["accelerator"] == "eyeriss"
    expected = network["conv"]["latency_s"]
    assert eyeriss["latency_s_per_mac"] * macs == pytest.approx(expected)


@every(("process", "said"), [("1nm", True), ("7nm", False), ("250nm", True)])
def test_a_process_beyond_all_figures_is_said(process, said, capsys):
    assert run(["energy", "resnet50", "--process", process]) == 0
    note = f"note: {process} is beyond 180 to 7 nm, whose figures are known"
    assert (note in capsys.readouterr().err) == said
