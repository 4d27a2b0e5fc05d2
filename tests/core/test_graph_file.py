"""The native file of a network: it comes back as it was, and what does not fit is one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from every import every
from printed import answer
from steptime.build import build, build_step, make_workload, read_model
from steptime.cli.main import run
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph_json import graph_from_json, graph_to_json
from steptime.core.workload import Workload
from steptime.formats import Source
from steptime.formats.graph_file import read
from steptime.network.count import count
from steptime.network.families import FAMILIES, ZOO
from steptime.network.ops.builder import Builder

Table = dict[str, Any]


def table_of(workload: Workload) -> Table:
    facts: Table = {"phase": workload.phase, "dtype": workload.dtype}
    return graph_to_json(build(workload), **facts, batch=workload.batch_per_replica)


def small(phase: str = "train") -> Table:
    """A graph of two layers, as a converter would write it."""
    model = read_model("fc:layers=1,nodes=4,inputs=3,outputs=2")
    return json.loads(json.dumps(table_of(make_workload(model, 5, phase=phase))))  # type: ignore[no-any-return]


def refused(table: object) -> str:
    text = table if isinstance(table, str) else json.dumps(table)
    with pytest.raises(InputError) as error:
        read(Source("net.json", text.encode()), False)
    said = str(error.value)
    assert "\n" not in said
    assert len(said) < 400
    return said


def in_file(tmp_path: Path, table: Table, name: str = "net.graph.json") -> str:
    path = tmp_path / name
    path.write_text(json.dumps(table))
    return str(path)


_SMALL = [*FAMILIES, *ZOO, "llama3_8b"]


@pytest.mark.parametrize("name", _SMALL)
def test_every_network_comes_back_with_every_count(name, tmp_path):
    for phase, dtype in (("train", "float32"), ("train", "bfloat16-mixed"), ("infer", "float16")):
        workload = make_workload(read_model(name), 2, dtype, phase, "adam")
        file = in_file(tmp_path, table_of(workload))
        again = make_workload(read_model(file), None, dtype, phase, "adam")
        assert again.batch_per_replica == 2
        before, after = build_step(workload), build_step(again)
        assert count(after) == count(before), (phase, dtype)
        assert (after.tensors, after.ops, after.buffers) == (
            before.tensors,
            before.ops,
            before.buffers,
        )


def test_a_kind_of_before_is_read_as_what_it_is_now(tmp_path):
    b = Builder("larger", precision("float32"), training=False)
    b.op("resize2d", b.input("x", (2, 3, 4, 5)), name="y", size=(8, 15), mode="nearest")
    table = graph_to_json(b.graph("y"), phase="infer", dtype="float32", batch=2)
    table = json.loads(json.dumps(table))
    now = in_file(tmp_path, table)
    table["ops"][0] |= {"kind": "upsample2d", "attrs": {"scale": [2, 3]}}
    before = in_file(tmp_path, table, "before.graph.json")
    graphs = [build(make_workload(read_model(file), None, phase="infer")) for file in (now, before)]
    assert graphs[0].ops == graphs[1].ops


def test_a_graph_in_memory_comes_back():
    graph = build(make_workload(read_model("resnet18"), 2))
    table = graph_to_json(graph, phase="train", dtype="float32", batch=2)
    assert graph_from_json(json.loads(json.dumps(table))) == graph


def test_commands_take_it(tmp_path, capsys):
    file = in_file(tmp_path, small())
    for words in (["count"], ["predict", "--device", "t4"], ["scale", "--device", "t4"]):
        more = ["--replicas", "1"] if words[0] == "scale" else []
        found = answer(capsys, words[0], file, *words[1:], *more)
        assert found["batch"] == 5
        original = ["fc:layers=1,nodes=4,inputs=3,outputs=2", "--batch", "5", "--dtype", "float32"]
        wanted = answer(capsys, words[0], *original, *words[1:], *more)
        assert {k: v for k, v in found.items() if k not in ("model", "headline")} == {
            k: v for k, v in wanted.items() if k not in ("model", "headline")
        }


@every(
    ("words", "says"),
    [
        (["--batch", "6"], "a graph of batch 5, phase train and float32; it cannot be made into"),
        (["--dtype", "float64"], "(--batch 5 --phase train --dtype float32)"),
        (["--phase", "infer"], "a graph of batch 5, phase train"),
    ],
)
def test_another_batch_phase_or_type_is_refused(words, says, tmp_path, capsys):
    assert run(["count", in_file(tmp_path, small()), *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_other_json_files_are_what_they_were(tmp_path):
    (tmp_path / "family.json").write_text('{"family": "fc", "layers": 2}')
    assert read_model(str(tmp_path / "family.json")).model == "fc"
    path = tmp_path / "neither.json"
    path.write_text('{"ops": []}')
    with pytest.raises(InputError, match="give one of 'family' and 'model'"):
        read_model(str(path))


def changed(*path: Any, to: Any) -> Table:
    table = small()
    at: Any = table
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return table


FIRST = small()["ops"][0]


@every(
    ("table", "says"),
    [
        (changed("steptime_graph", to=2), "version '2' of a graph; this steptime reads 1"),
        (changed("steptime_graph", to="1"), "unknown steptime_graph '1'"),
        (changed("ops", 0, "kind", to="linaer"), "unknown op kind 'linaer'; did you mean 'linear'"),
        (changed("ops", 0, "inputs", to=["loss"]), "reads 'loss' before it is made"),  # a cycle
        (changed("ops", 0, "inputs", to=[FIRST["outputs"][0]]), "before it is made"),
        (changed("ops", 1, "name", to=FIRST["name"]), "two ops are named"),
        (changed("ops", 1, "outputs", to=FIRST["outputs"]), "a second time"),
        (changed("tensors", FIRST["outputs"][0], to=["float32", [5, 9]]), "makes "),
        (changed("tensors", FIRST["outputs"][0], to=["float31", [5, 4]]), "unknown dtype"),
        (
            changed("tensors", FIRST["outputs"][0], to=["float32", [5, 0]]),
            "must be a whole number from 1 to 2^53, not '0'",
        ),
        (
            changed("tensors", FIRST["outputs"][0], to=["float32", [10**30]]),
            "must be a whole number from 1 to 2^53",
        ),
        (changed("tensors", FIRST["outputs"][0], to=["float32", [1] * 999]), "at most 16"),
        (changed("outputs", to=[FIRST["outputs"][0]]), "ends with the loss, a scalar"),
        (changed("outputs", to=["nowhere"]), "output 'nowhere' is never made"),
        (changed("inputs", to=["nowhere"]), "tensor 'nowhere' has no shape"),
        (changed("weights", to=[*small()["weights"]] * 2), " is given twice"),
        (changed("ops", 0, "attrs", to={"stride": 1}), "unexpected keyword"),
        (
            changed("ops", 0, "attrs", to={"stride": {"a": 1}}),
            "'ops[0].attrs.stride' must be a number, a text",
        ),
        (changed("ops", to=[]), "is never made"),
        (changed("dtype", to="float31"), "unknown dtype 'float31'"),
        (changed("batch", to=True), "'batch' must be a whole number from 1"),
        (changed("extra", to=1), "unknown key 'extra'; known: "),
        ("[" * 100_000, "is no JSON"),
        ('{"steptime_graph": 1, "steptime_graph": 1}', "is given twice"),
        ('{"steptime_graph": ' + "9" * 5000 + "}", "is no JSON"),
        ("[]", "must be a table, not '[]'"),
    ],
)
def test_what_does_not_fit_is_one_line(table, says):
    assert says in refused(table)


def test_attributes_have_the_type_of_their_kind():
    model = read_model("transformer:layers=1,length=8")
    table = table_of(make_workload(model, 1, phase="infer"))
    for op in table["ops"]:
        if op["kind"] == "attention":
            op["attrs"]["heads"] = 1.5
    assert "'heads' is a int, not '1.5'" in refused(table)


def test_the_command_ends_with_two(tmp_path, capsys):
    file = in_file(tmp_path, changed("ops", 0, "inputs", to=["loss"]))
    for command in (["count"], ["predict", "--device", "t4"]):
        assert run([command[0], file, *command[1:]]) == 2
        told = capsys.readouterr().err
        assert told.startswith("steptime: net.graph.json: ")
        assert told.count("\n") == 1


LEAVES = st.none() | st.booleans() | st.integers(-3, 2**60) | st.floats() | st.text(max_size=5)


@given(st.data())
@settings(max_examples=300)
def test_a_broken_file_is_read_or_refused(data):
    """Whatever one part of a file is changed to: a network with counts, or one line."""
    table = copy.deepcopy(SMALL_RNN)
    at: Any = table
    while isinstance(at, dict | list) and at:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            at[key] = data.draw(LEAVES | st.lists(LEAVES, max_size=3))
            break
        at = inner
    said = ""
    try:
        read(Source("net.json", json.dumps(table).encode()), False)
    except InputError as error:
        said = str(error)
    assert "\n" not in said


SMALL_RNN = table_of(make_workload(read_model("rnn:cell=lstm,layers=1,length=3"), 2))


def test_convert_writes_it(tmp_path, capsys):
    file = tmp_path / "nin.graph.json"
    assert run(["convert", "nin", "--batch", "3", "-o", str(file)]) == 0
    capsys.readouterr()
    found = answer(capsys, "count", "nin", "--batch", "3")
    again = answer(capsys, "count", str(file))
    for key in ("batch", "parameters", "flop", "traffic_bytes", "peak_bytes", "ops"):
        assert again[key] == found[key], key
