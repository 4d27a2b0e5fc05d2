"""Stacks side by side: an axis that names backend and options, and pairs that mix none of them."""

from __future__ import annotations

import json

import pytest

import synthetic
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.prediction.records import records
from steptime.prediction.steps.step_model import StepModel
from steptime.records import stacks, store
from steptime.records.data import Data
from steptime.records.record import Quantity, Record, stack_of
from steptime.sweeps.cells import Cell, cells_of
from steptime.sweeps.experiment import check_experiment
from told import by_column, predicted_and_measured, record_rows

NETWORKS = [{"family": "fc", "layers": 1, "nodes": 8, "inputs": 8, "outputs": 4, "batch": [2, 4]}]
FC = Workload("fc", {"layers": 1, "nodes": 8, "inputs": 8, "outputs": 4}, 2)


def cells(**axes: object) -> list[Cell]:
    table = {"name": "x", "networks": NETWORKS, **axes}
    return list(cells_of(check_experiment(table, "x.toml"), "x.toml")[0])


def test_a_stack_is_a_name_for_a_backend_and_its_options():
    named = cells(stack=["torch", "torch-compile", "null"])
    apart = cells(compile=[False, True]) + cells(backend="null")
    assert {cell.id(1, 0) for cell in named} == {cell.id(1, 0) for cell in apart}
    assert [cell.stack for cell in named] == [cell.stack for cell in apart]
    assert {cell.stack for cell in named} == {"torch-eager", "torch-compile", ""}


def test_an_old_experiment_keeps_the_keys_of_its_cells():
    assert [cell.id(1, 0) for cell in cells()] == ["c4e72af0645e120f", "3198f06b7ca85a9e"]


def test_every_stack_that_something_measures_is_found_by_its_label():
    for label, name in stacks.measured_labels().items():
        found = catalog.stack(name)
        assert (found.label, cells(stack=label)[0].stack) == (label, name)
        assert cells(stack=label) == cells(backend=found.backend, compile=found.compile)


def test_a_user_s_file_is_a_stack_of_its_backend(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nsource = "me"\nbackend = "torch"\ncompile = true\n')
    assert cells(stack=str(path)) == cells(compile=True)


def measured(way: str, *samples: float) -> Record:
    name, compiled = way.removesuffix("-compile"), way.endswith("-compile")
    options = {**synthetic.TORCH.options, "compile": compiled}
    method = replace(synthetic.TORCH, name=name, options=options)
    quantities = {"step_s": Quantity(samples=samples)}
    return replace(synthetic.measured(FC), method=method, quantities=quantities)


def predicted(name: str, step_s: float) -> Record:
    """Return what a stack was predicted to take, the seconds put in by hand."""
    model = StepModel(FC, "t4", None, "calibrated", {"stack": name} if name else {})
    held = {"step_s": Quantity(value=step_s)}
    return replace(records(model)[0], platform=synthetic.PLATFORM, quantities=held)


HELD = [
    measured("torch", 0.2, 0.2, 0.2, 0.2),
    measured("torch-compile", 0.1, 0.1, 0.1, 0.1),
    measured("null", 0.4, 0.4, 0.4, 0.4),
    predicted("", 0.1),
    predicted("torch-compile", 0.1),
]


def test_a_prediction_stands_beside_its_own_stack_only(tmp_path):
    assert [stack_of(one) for one in HELD[3:]] == ["torch", "torch-compile"]
    told = {  # a backend that no file knows has the predictions of the default stack
        ("torch", "torch"): 2.0,
        ("torch-compile", "torch-compile"): 1.0,
        ("null", "torch"): 4.0,
    }
    found = predicted_and_measured(HELD)
    assert {pair["b"]["method"] for pair in found.pairs} == {way for way, _ in told}
    assert sorted(pair["ratio"] for pair in found.pairs) == pytest.approx(sorted(told.values()))
    with store.open_writer(tmp_path) as writer:
        writer.append_all(HELD)
    data = Data.load([tmp_path], pytest.fail)
    rows = data.results
    assert sorted((row["method"], row["ratio"]) for row in rows) == sorted(
        (way, pytest.approx(ratio)) for (way, _), ratio in told.items()
    )
    assert {row["stack"] for row in rows} == {"torch", "torch-compile", "null"}
    ways = [
        row for row in record_rows(data, "method", "stack", "origin") if row["origin"] == "measured"
    ]
    assert all(row["method"] == row["stack"] for row in ways)


def test_what_was_predicted_for_another_stack_is_unpaired_and_says_so():
    found = predicted_and_measured([measured("torch", 0.2, 0.2), predicted("torch-compile", 0.1)])
    assert found.pairs == []
    reasons = {row["reason"] for row in found.unpaired}
    assert reasons == {"not measured for this stack", "not predicted for this stack"}


def test_stacks_are_levels_with_verdicts():
    found = by_column([("", HELD)], "stack", against="torch")
    ratios = {(p["level"], p["a"]["origin"]): p["ratio"] for p in found.pairs}
    assert ratios == {
        ("torch-compile", "measured"): 0.5,
        ("null", "measured"): 2.0,
        ("torch-compile", "predicted"): 1.0,
    }
    verdicts = {p["level"]: p["verdict"] for p in found.pairs if p["verdict"]}
    assert verdicts == {"torch-compile": "faster", "null": "slower"}
    assert not any(pair["differ"] for pair in found.pairs)


def test_a_sweep_that_only_predicts_takes_the_axis(tmp_path):
    file, out = tmp_path / "x.toml", tmp_path / "o"
    file.write_text(
        'name = "x"\nmeasure = false\npredict = "t4"\nstack = ["torch", "torch-compile"]\n'
        '[[networks]]\nfamily = "fc"\nlayers = 1\nnodes = 8\ninputs = 8\noutputs = 4\nbatch = 2\n'
    )
    for _ in range(2):
        assert run(["sweep", str(file), "--out", str(out)]) == 0
    held = store.load(out, pytest.fail)
    assert [stack_of(one) for one in held] == ["torch", "torch-compile"]
    steps = [one.quantities["step_s"].value for one in held]
    alone = [StepModel(FC, "t4", options={"stack": one}).predict().times.step_s
             for one in ("torch-eager", "torch-compile")]  # fmt: skip
    assert steps == pytest.approx(alone)


def test_what_a_stack_does_not_run_is_not_predicted(tmp_path):
    file, out = tmp_path / "x.toml", tmp_path / "o"
    file.write_text(
        'name = "x"\nmeasure = false\npredict = "t4"\nstack = ["jax", "onnxruntime"]\n'
        'phase = ["train", "infer"]\n'
        '[[networks]]\nfamily = "fc"\nlayers = 1\nnodes = 8\ninputs = 8\noutputs = 4\nbatch = 2\n'
    )
    assert run(["sweep", str(file), "--out", str(out)]) == 0
    held = [(stack_of(one), one.workload.phase) for one in store.load(out, pytest.fail)]
    assert held == [("jax", "train"), ("jax", "infer"), ("onnxruntime", "infer")]
    with pytest.raises(InputError, match="stack onnxruntime runs inference alone: --phase infer"):
        StepModel(FC, "t4", options={"stack": "onnxruntime"}).predict()


def test_predictions_of_stacks_stand_side_by_side(capsys):
    line = ["predict", "resnet18", "--device", "t4", "--stack", "torch,torch-compile", "--json"]
    assert run(line) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["stack"] for row in rows] == ["torch", "torch-compile"]
    for row in rows:
        options = {"stack": row["stack"]}
        assert row["step_s"] == StepModel("resnet18", "t4", options=options).predict().times.step_s
