"""`nodes = "each"`: the same cells once on every node, by a Slurm that is made up."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import fake_slurm
import pytest

from every import every
from printed import answer
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.records import store
from steptime.sweeps.cluster import commands
from steptime.sweeps.cluster.jobs import Node
from steptime.sweeps.cluster.parsing import parse_nodes
from steptime.sweeps.resource_request import ResourceRequest

EXPERIMENT: dict[str, Any] = {
    "name": "each",
    "backend": "null",
    "threads": 1,
    "budget_s": 0.02,
    "batch": [2, 4],
    "networks": [{"family": "fc", "layers": 1, "nodes": 4, "inputs": 8, "outputs": 4}],
    "slurm": {"nodes": "each", "cells_per_task": 1},
}
SINFO = """\
k1|urgent|idle|gpu:k80:4|ib,big|none
k1|main*|idle|gpu:k80:4|ib,big|none
k2|main*|drained|gpu:k80:4|ib|fan | broken
p1|main*|allocated|gpu:p100:4|ib|none
p2|main*|down*|gpu:p100:4|(null)|Not responding
p3|other|mixed|gpu:p100x:4|big|none
"""


@pytest.fixture
def slurm(monkeypatch):
    monkeypatch.setattr(commands, "execute", fake_slurm.execute)
    return fake_slurm.reset()


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "each.json"
    path.write_text(json.dumps(EXPERIMENT))
    return ["sweep", path, "--out", tmp_path / "out", "--launcher", "slurm"]


@pytest.mark.slow
def test_every_cell_runs_once_on_each_node_that_is_up(slurm, sweep, tmp_path, capsys):
    out = tmp_path / "out"
    slurm.nodes["n2"] = "drained|(null)|(null)|fan"
    preview = answer(capsys, *sweep, "--dry-run")
    assert preview["cells"] == 4  # two on n1, two on n3
    assert [(job["nodes"], job["cells"], job["tasks"]) for job in preview["jobs"]] == [(2, 4, 4)]
    assert Counter(visit["node"] for visit in preview["rows"]) == {"n1": 2, "n3": 2}
    assert len({visit["id"] for visit in preview["rows"]}) == 4
    left_out = "node n2 is left out: drained (fan); the same command takes it in once it is back"
    assert left_out in preview["notes"]

    sent = answer(capsys, *sweep)
    assert (sent["cells"], sent["submitted"], len(sent["jobs"])) == (4, 4, 2)
    assert left_out in sent["notes"]
    assert [one.at_once for one in slurm.jobs.values()] == [1, 1]
    fake_slurm.run()
    assert answer(capsys, "sweep", "status", out)["finished"] == 4
    records = store.load(out, lambda _: None)
    assert Counter(record.env["host"] for record in records) == {"n1": 2, "n3": 2}

    slurm.nodes["n2"] = fake_slurm.IDLE  # it is back: its cells are what lacks
    again = answer(capsys, *sweep)
    assert (again["cells"], again["finished_before"], again["submitted"]) == (6, 4, 2)
    fake_slurm.run()
    assert answer(capsys, *sweep)["submitted"] == 0


def test_no_node_is_said_so(slurm, sweep, tmp_path, capsys):
    slurm.nodes = {"n1": "down|(null)|(null)|told"}
    assert run([*map(str, sweep)]) == 2
    said = capsys.readouterr().err
    assert said == 'steptime: nodes = "each": no node is up: n1 is down (told)\n'
    slurm.nodes = {}
    assert run([*map(str, sweep)]) == 2
    assert 'nodes = "each": no node has what is asked for' in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_cells_of_several_nodes_are_refused(slurm, tmp_path, capsys):
    path = tmp_path / "two.json"
    each = {"nodes": "each", "replicas_per_node": 1}
    path.write_text(json.dumps({**EXPERIMENT, "replicas": 2, "slurm": each}))
    words = ["sweep", str(path), "--out", str(tmp_path / "out"), "--launcher", "slurm"]
    assert run(words) == 2
    assert "a cell of 2 nodes" in capsys.readouterr().err


@every(
    ("request_", "names"),
    [
        ({}, ["k1", "k2", "p1", "p2"]),
        ({"gpu": "p100"}, ["p1", "p2"]),
        ({"constraint": "ib&big"}, ["k1"]),
        ({"constraint": "big|ib"}, ["k1", "k2", "p1"]),
        ({"partition": "other"}, ["k1", "k2", "p1", "p2", "p3"]),  # what sinfo was asked for
    ],
)
def test_the_nodes_that_slurm_has(request_, names):
    found = parse_nodes(SINFO, ResourceRequest(nodes="each", **request_)).nodes
    assert [node.name for node in found] == names
    trouble = {"k2": "drained (fan | broken)", "p2": "down* (Not responding)"}
    assert all(node == Node(node.name, trouble.get(node.name, "")) for node in found)


def test_a_constraint_that_is_more_than_features_is_refused():
    with pytest.raises(InputError, match="name the nodes in nodelist"):
        parse_nodes("", ResourceRequest(nodes="each", constraint="[rack1*2&rack2*4]"))
