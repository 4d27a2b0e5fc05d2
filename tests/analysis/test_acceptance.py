"""An acceptance: limits by hand arithmetic, lines of a table, nodes, exit codes, and bad files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import synthetic
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.records import store
from steptime.records.record import Quantity, Record
from steptime.reports.page import page

NETWORK = synthetic.workloads()[8]  # cnn, filters 16, batch 4
OTHER = synthetic.workloads()[9]  # the same at batch 16
STEP_S = 0.010


def measured(host: str, step_s: float, workload=NETWORK, spread: float = 0.001) -> Record:
    """Return a record of three runs about a step time, `spread` from run to run."""
    samples = tuple(step_s * (1 + spread * (run - 1)) for run in range(3) for _ in range(8))
    columns = {"run": tuple(run for run in range(3) for _ in range(8))}
    record = synthetic.measured(workload)
    quantities = {"step_s": Quantity(samples=samples, columns=columns)}
    return replace(record, quantities=quantities, env={**record.env, "host": host})


def predicted(step_s: float, low_s: float | None = None, high_s: float | None = None) -> Record:
    (record,) = synthetic.predicted(NETWORK)
    step = Quantity(value=step_s, low=low_s, high=high_s)
    return replace(record, quantities={**record.quantities, "step_s": step})


@pytest.fixture
def accept(tmp_path, monkeypatch, capsys):
    """Return a function that writes records and a table, and returns the answer and exit code."""
    monkeypatch.chdir(tmp_path)

    def ask(records: Sequence[Record], expected: str, *options: str, out: str = "page.md"):
        with store.open_writer(tmp_path / "results") as writer:
            for record in records:
                writer.append(record)
        if "\n" in expected:
            Path("expected.csv").write_text(expected, encoding="utf-8")
            expected = "expected.csv"
        words = ["report", "results", "--expected", expected, "-o", out, *options]
        code = run([*words, "--json"])
        printed = capsys.readouterr()
        return (json.loads(printed.out) if printed.out else printed.err), code

    return ask


def test_a_limit_is_a_share_of_the_speed(accept):
    nodes = [measured("n1", 0.01050), measured("n2", 0.01055)]  # 10 ms / 0.95 is 10.526 ms
    answer, code = accept(nodes, "network,batch,step_s\ncnn,4,10 ms\n")
    assert code == 3
    rows = {row["host"]: row for row in answer["rows"]}
    assert {host: row["verdict"] for host, row in rows.items()} == {"n1": "pass", "n2": "fail"}
    assert rows["n1"]["limit"] == pytest.approx(0.010 / 0.95)
    assert rows["n2"]["speed_share"] == pytest.approx(0.010 / 0.01055)
    assert rows["n2"]["expected"] == pytest.approx(0.010)
    assert rows["n2"]["expected_from"] == "reference"
    verdicts = {node["host"]: node["verdict"] for node in answer["nodes"]}
    assert verdicts == {"n1": "pass", "n2": "fail"}


def test_a_throughput_passes_from_its_share_on(accept):
    record = measured("n1", STEP_S)  # 4 examples in 10 ms: 400 a second
    answer, code = accept([record], "network,batch,examples_per_s,limit\ncnn,4,420,95%\n")
    (row,) = answer["rows"]
    assert code == 0
    assert row["limit"] == pytest.approx(399)
    assert row["measured"] == pytest.approx(400, rel=0.01)


@pytest.mark.parametrize(
    ("limit", "option", "code"),
    [("", (), 3), ("90%", (), 0), ("", ("--limit", "90%"), 0), ("99%", ("--limit", "90%"), 3)],
)
def test_a_line_says_its_limit_before_the_option(accept, limit, option, code):
    table = f"network,step_s,limit\ncnn,{STEP_S},{limit}\n"
    answer, exit_code = accept([measured("n1", 0.0108)], table, *option)
    assert exit_code == code
    assert bool(answer["assumed"]) == (not option)


def test_without_a_reference_the_slow_end_of_the_prediction_is_the_limit(accept):
    records = [predicted(0.010, 0.008, 0.012), measured("n1", 0.0118), measured("n2", 0.0122)]
    answer, code = accept(records, "predicted")
    rows = {row["host"]: row for row in answer["rows"]}
    assert code == 3
    assert rows["n1"]["verdict"] == "pass"
    assert rows["n2"]["verdict"] == "fail"
    assert rows["n2"]["limit"] == pytest.approx(0.012)
    assert rows["n2"]["expected_from"] == "predicted"
    assert any("prediction" in line for line in answer["notes"])


def test_records_of_a_reference_machine_are_expectations(accept, tmp_path):
    with store.open_writer(tmp_path / "golden") as writer:
        writer.append(measured("other", STEP_S))
    records = [measured("n1", 0.0104), measured("n2", 0.0112), measured("n1", 0.05, OTHER)]
    answer, code = accept(records, "golden")
    verdicts = {(row["host"], row["batch"]): row["verdict"] for row in answer["rows"]}
    assert code == 3
    assert verdicts == {("n1", 4): "pass", ("n2", 4): "fail", ("n1", 16): "not judged"}
    assert any("not judged" in line and "batch 16" in line for line in answer["notes"])


def test_a_failed_step_fails_and_a_missing_one_is_no_pass(accept):
    failed = synthetic.failed(NETWORK, "oom", "killed", "")
    failed = replace(failed, env={**failed.env, "host": "n2"})
    table = "network,batch,step_s\ncnn,4,10ms\nresnet50,8,20ms\n"
    answer, code = accept([measured("n1", STEP_S), failed], table)
    verdicts = {(row["name"], row["host"]): row["verdict"] for row in answer["rows"]}
    assert code == 3
    assert verdicts["cnn batch 4", "n1"] == "pass"
    assert verdicts["cnn batch 4", "n2"] == "fail"
    assert verdicts["resnet50, batch 8", None] == "not measured"
    assert "oom (killed)" in str(answer["headline"])


def test_a_node_without_a_record_is_named(accept):
    table = f"network,step_s,node\ncnn,{STEP_S},n1\ncnn,{STEP_S},n7\n"
    answer, code = accept([measured("n1", STEP_S)], table)
    assert code == 3
    assert "no record of node n7" in str(answer["rows"])


def test_a_network_that_a_node_lacks_is_noted(accept):
    records = [measured("n1", STEP_S), measured("n2", STEP_S), measured("n1", 0.02, OTHER)]
    answer, code = accept(records, "network,batch,step_s\ncnn,4,10ms\ncnn,16,20ms\n")
    assert code == 0
    assert any("batch 16" in line and "no record of n2" in line for line in answer["notes"])


def test_nothing_to_judge_is_no_pass(accept):
    answer, code = accept([measured("n1", STEP_S)], "predicted")
    assert code == 2
    assert answer["verdict"] == "not judged"
    assert "nothing can be judged" in str(answer["notes"])


def test_a_limit_within_noise_is_noted(accept):
    records = [measured("n1", 0.01050, spread=0.02), measured("n2", 0.0098, spread=0.0001)]
    answer, _ = accept(records, f"network,step_s\ncnn,{STEP_S}\n")
    certain = {row["host"]: row["is_clear"] for row in answer["rows"]}
    assert certain == {"n1": False, "n2": True}
    assert any("within noise" in line and "n1" in line for line in answer["notes"])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("a,b\n1,2\n", "no column 'network'"),
        ("network,step_ms\ncnn,4\n", "did you mean 'step_s'?"),
        ("network,step_s\ncn,10ms\n", "expected.csv:2: unknown network 'cn'"),
        ("network,step_s\ncnn,fast\n", "expected.csv:2: step_s: must be a number above 0"),
        ("network,step_s\ncnn,10 lightyears\n", "unknown unit in '10 lightyears'"),
        ("network,step_s,limit\ncnn,10ms,0%\n", "a limit of 0 is reached by every step"),
        ("network,step_s,bach\ncnn,10ms,4\n", "unknown column 'bach'; did you mean 'batch'?"),
        ("network,power_w\ncnn,300\n", "expected.csv: unknown quantity 'power_w'"),
        ("network,step_s\ncnn,10ms\n", "cnn means 2 measured steps"),
        ("network,batch,step_s\ncnn,4,1\ncnn,4,2\n", "has a reference in expected.csv:2"),
        ("network,step_s\n", "holds no expectation"),
        ("network,step_s\ncnn,1,2,3\n", "expected.csv:2: 4 cells under 2 columns"),
    ],
)
def test_a_bad_table_is_refused_in_one_line(accept, table, words):
    error, code = accept([measured("n1", STEP_S), measured("n1", 0.02, OTHER)], table)
    assert code == 2
    assert error.count("\n") == 1
    assert words in error


def test_the_page_begins_with_the_acceptance(accept, tmp_path):
    accept([measured("n1", 0.02), measured("n2", STEP_S)], f"network,step_s\ncnn,{STEP_S}\n")
    text = (tmp_path / "page.md").read_text("utf-8")
    assert text.index("## Acceptance") < text.index("## Networks")
    assert "| cnn | n1 |" in text.replace("cnn batch 4", "cnn")
    assert "fail" in text


def test_the_html_page_shows_nodes_and_the_command(accept, tmp_path):
    table = f"network,step_s\ncnn,{STEP_S}\n"
    records = [measured("n1", 0.02), measured("n2", STEP_S)]
    accept(records, table, out="page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    for words in ('id="acceptance"', 'id="acceptance-nodes"', "--expected expected.csv"):
        assert words in text
    assert 'id="acceptance"' not in page(records, "plain")[0]
