"""The rows of every analysis are structs, with free columns in one named table."""

import json

import pytest

import steptime
import synthetic
from steptime.analysis.analyses import ANALYSES
from steptime.analysis.result_row import RESULT_FIELDS
from steptime.cli.main import run
from steptime.core.answer import AnswerRow, field_texts, public_fields
from steptime.core.copying import replace
from steptime.core.workload import Workload
from steptime.records import store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("records")
    with store.open_writer(path) as writer:
        writer.append_all([*synthetic.sweep(ops=True, failures=True), *_on_another_platform()])
    return path


def _on_another_platform():
    measured = [record for record in synthetic.sweep() if record.origin == "measured"]
    return [replace(record, platform="cpu-b") for record in measured]


@pytest.mark.parametrize("kind", [kind for kind in ANALYSES if kind != "nodes"])
def test_rows_are_structs_whose_fields_are_documented(folder, kind):
    rows = steptime.analyse(kind, folder).rows
    assert len(rows)
    assert all(isinstance(row, AnswerRow) for row in rows)
    texts = field_texts(type(rows[0]))
    assert set(public_fields(type(rows[0]))) <= texts.keys()


def test_hyperparameters_of_results_are_one_table(folder):
    rows = steptime.analyse("results", folder).rows
    assert {"layers", "nodes"} <= {name for row in rows for name in row.hyperparameters}
    assert all(None not in row.hyperparameters.values() for row in rows)
    document = rows[0].to_dict()
    assert list(document) == ["name", "hyperparameters", *RESULT_FIELDS[1:]]


def test_a_speedup_is_of_its_two_values(folder):
    rows = steptime.analyse("speedup", folder).rows
    for row in rows:
        assert row.quantity == "step_s"
        assert row.speedup == pytest.approx(row.against_value / row.value)
        assert row.features["batch"] > 0


@pytest.mark.parametrize(("kind", "key"), [("results", "hyperparameters"), ("speedup", "features")])
def test_json_rows_are_sorted_by_a_free_column_as_the_table_is(folder, kind, key, capsys):
    assert run(["analyse", kind, str(folder), "--sort", "-nodes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    nodes = [row[key].get("nodes") for row in rows]
    known = [value for value in nodes if value is not None]
    assert known == sorted(known, reverse=True)
    assert nodes[len(known) :] == [None] * (len(nodes) - len(known))


def test_networks_without_hyperparameters_have_results(tmp_path):
    with store.open_writer(tmp_path) as writer:
        record = synthetic.measured(Workload("fc", {"layers": 4}, 64))
        writer.append_all([replace(record, workload=Workload("resnet50", {}, 64))])
    (row,) = steptime.analyse("results", tmp_path).rows
    assert row.model == "resnet50"
    assert row.hyperparameters == {}
