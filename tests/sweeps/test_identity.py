"""A cell has one identity: known before a worker starts, in its record, and what a resume asks."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from test_sweep import TINY, progress, records_in, running, sweep

from every import every
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.measure.contract import Options
from steptime.records.record import Record, RecordMethod
from steptime.sweeps.cells import Cell, Trial, cells_of, trials_of
from steptime.sweeps.cluster.status import Snapshot
from steptime.sweeps.cluster.submit import find_missing
from steptime.sweeps.experiment import check_experiment
from steptime.sweeps.run import Means, SweepRequest
from steptime.sweeps.workers import Workers

FC = {"family": "fc", "layers": 1, "nodes": 4, "inputs": 8, "outputs": 4}
PLAIN: dict[str, Any] = {"name": "one", "batch": 2, "networks": [FC]}


def cells(table: dict[str, Any], on_cluster: bool = False) -> list[Cell]:
    return cells_of(check_experiment(table, "here"), "here", on_cluster).cells


def ids(table: dict[str, Any], on_cluster: bool = False) -> list[str]:
    """Return the identities of an experiment's cells on this machine."""
    settled = map(Workers().with_threads, cells(table, on_cluster))
    return [one.id for one in trials_of(settled, 1)]


OTHER: dict[str, Any] = {  # of each option another value than the plain one
    "device": "cuda:1",
    "threads": 2,
    "compile": True,
    "tf32": True,
    "seed": 1,
    "input": "host",
    "data": "mnist",
    "staging": "local",
    "loaders": 1,
    "prefetch": 3,
    "train_steps": 10,
    "strategy": "sharded",
    "overlap": False,
    "gpu": "v100",
    "allocation": "large",
}
CHANGES_NO_NUMBER = {"stage_to"}  # where copies lie


def test_cells_that_differ_in_any_option_are_others():
    assert OTHER.keys() | CHANGES_NO_NUMBER == {one.name for one in fields(Options)}
    (cell,) = cells(PLAIN)
    cell = replace(cell, options=Options(threads=1))
    every_one = [cell, *(replace(cell, options=Options(**{"threads": 1, k: v}))
                         for k, v in OTHER.items())]  # fmt: skip
    workload = cell.workload
    changed = [replace(workload, batch_per_replica=3), replace(workload, dtype="float64")]
    changed += [replace(workload, phase="infer", optimizer="none")]
    changed += [replace(workload, params={**workload.params, "nodes": 5})]
    every_one += [replace(cell, workload=one) for one in changed] + [replace(cell, backend="jax")]
    names = [one.id(1, 0) for one in every_one] + [cell.id(2, 0), cell.id(1, 1)]
    assert len({*names}) == len(names) == len(OTHER) + 8
    elsewhere = replace(cell, options=Options(threads=1, stage_to="/scratch"))
    assert elsewhere.id(1, 0) == cell.id(1, 0)


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"device": "cuda"}, {"device": "cuda:0"}),
    ({"dtype": "float32"}, {"dtype": "fp32"}),
    ({}, {"dtype": "float32", "phase": "train", "optimizer": "sgd", "input": "device"}),
    ({}, {"backend": "torch", "compile": False, "replicas": 1, "strategy": "independent"}),
    ({}, {"loaders": 0, "prefetch": 5, "staging": "local", "stage_to": "copies"}),
    ({}, dict(reversed(PLAIN.items()))),
    ({}, {"networks": [dict(reversed(FC.items()))]}),
    ({}, {"networks": [{**FC, "batch": 2}]}),
    ({"backend": "torch", "compile": True}, {"stack": "torch-compile"}),
]


@every("number", range(len(SAME)))
def test_the_same_cell_in_other_words_is_the_same(number):
    ours, theirs = SAME[number]
    plain = {key: value for key, value in PLAIN.items() if key not in {*ours, *theirs}}
    assert ids({**plain, **PLAIN, **ours}) == ids({**PLAIN, **theirs, **plain})


def test_threads_that_nobody_says_are_those_of_the_worker():
    (cell,) = cells(PLAIN)
    (usual,) = trials_of([Workers().with_threads(cell)], 1)
    assert usual.cell.options.threads is not None
    assert ids({**PLAIN, "threads": usual.cell.options.threads}) == [usual.id]
    assert cell.id(1, 0) != usual.id, "on another machine they are others"


def test_cells_of_one_identity_are_one_visit():
    both = cells({**PLAIN, "device": ["cuda", "cuda:0"], "batch": [2, 4]})
    found = [(one.round, one.cell.workload.batch_per_replica) for one in trials_of(both, 1, 2)]
    assert found == [(0, 2), (0, 4), (1, 2), (1, 4)]


def _record(trial: Trial, status: str) -> Record:
    own = RecordMethod("torch", "2.13.0", {})
    env = {"cell": trial.id, "round": 0}
    return Record("measured", own, trial.cell.workload, "v100", {}, status, env=env)


@pytest.mark.parametrize("status", ["ok", "failed"])
def test_a_cluster_knows_a_cell_by_its_identity(status, tmp_path):
    (cell,) = cells({**PLAIN, "device": "cuda:0", "slurm": {"gpu": "v100"}}, on_cluster=True)
    (trial,) = trials_of([cell], 1)
    assert trial.id == replace(cell, options=replace(cell.options, device="cuda")).id(1, 0)
    request = SweepRequest("one", [cell], tmp_path, Means())
    lacking = find_missing(request, Snapshot((), (_record(trial, status),), (), {}))
    assert lacking.ids == (trial.id,)
    assert (lacking.finished, len(lacking.trials)) == ((1, 0) if status == "ok" else (0, 1))


def _file(tmp_path: Path, top: str = "", nodes: str = "[4, 8]") -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY.format(top=top, layers="1", nodes=nodes, batch="2"))
    return path


@pytest.mark.slow
def test_a_record_has_the_identity_that_the_cell_had_before(tmp_path, capsys):
    file, out = _file(tmp_path), tmp_path / "out"
    table = {**PLAIN, "backend": "null", "networks": [{**FC, "nodes": [4, 8]}]}
    first, second = ids(table)
    words = ["--backend", "null", "--batch", "2", "--budget", "0.02", "--out", str(out)]
    assert run(["run", "fc:layers=1,nodes=4,inputs=8,outputs=4", *words]) == 0
    assert sweep(file, out) == 0
    assert "2 cells, 1 done before, now 1 ok" in capsys.readouterr().out
    assert [one.env["cell"] for one in records_in(out)] == [first, second]


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_resumed_measures_no_cell_twice(tmp_path):
    file, out = _file(tmp_path, nodes=str([*range(4, 44)])), tmp_path / "out"
    with running(file, out) as process:
        for _ in range(4):
            progress(process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = len(records_in(out))
    assert 0 < before <= 40
    assert sweep(file, out) == 0
    names = Counter(one.env["cell"] for one in records_in(out))
    assert len(names) == 40
    assert {*names.values()} == {1}
