"""What the commands print: one JSON document, exit codes; and what they do not load."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

import steptime
import synthetic
from every import every
from printed import answer
from steptime.records import store

SMALL = "fc:layers=1,nodes=8,inputs=8,outputs=4"
NUMPY = ["--backend", "null", "--threads", "1"]


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli")
    with store.open_writer(root / "records") as writer:
        for workload in synthetic.workloads()[:3]:
            writer.append(synthetic.measured(workload))
            writer.append(synthetic.predicted(workload)[0])
    return root


PREDICTED = "model device method step_s forward_s backward_s peak_bytes status ops"
COUNTED = "model batch phase dtype parameters flop traffic_bytes activation_bytes peak_bytes ops"
DRAWING = ("report ", "analyse ")  # commands that take long for their pictures
KEYS = [  # command, and the keys that others rely on
    *((f"list {topic}", "name source") for topic in ("models", "devices", "links")),
    ("list methods", "name"),
    ("list ops", "kind source"),
    ("list quantities", "name unit"),
    (f"count {SMALL} --batch 4", COUNTED),
    (f"predict {SMALL} --device t4 --batch 4", PREDICTED),
    ("doctor", "problems"),
    ("query FROM_records --in records", "rows row_count"),
    ("query --in records -o t.csv", "path rows"),
    ("compare records", "rows unpaired"),
    ("report records", "path networks"),
    ("analyse memory records -o p.svg", "path plot"),
]


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        pytest.param(
            *case, id=case[0], marks=[pytest.mark.slow] if case[0].startswith(DRAWING) else []
        )
        for case in KEYS
    ],
)
def test_json_is_one_document_with_its_keys(line, keys, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    document = answer(capsys, *(word.replace("_records", " records") for word in line.split()))
    table = document["rows"][0] if line.startswith("list") else document
    assert set(keys.split()) <= set(table)


@pytest.mark.slow
def test_a_run_in_json(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    found = answer(capsys, "run", SMALL, "--batch", "2", "--budget", "0.05", *NUMPY)
    assert {"status", "step_s", "speed", "peak_bytes", "flop_per_s", "env"} <= set(found)
    assert {"median", "mean", "low_s", "high_s", "min", "p95", "samples"} <= set(found["step_s"])
    assert {"mean", "uncertainty", "jitter"} <= set(found["speed"])
    refused = answer(capsys, "run", SMALL, "--dtype", "bfloat16", *NUMPY, code=3)
    assert refused["status"] == "unsupported"


def test_a_prediction_is_the_sum_of_its_ops(capsys):
    found = answer(capsys, "predict", "fc", "--device", "t4", "--batch", "64")
    parts = ("forward_s", "backward_s", "update_s")
    for part in parts:
        assert math.isclose(sum(op[part] for op in found["ops"]), found[part])
    assert math.isclose(found["step_s"], sum(found[part] for part in parts))


@every(
    ("words", "loaded"),
    [
        (
            ["predict", "fc", "--device", "t4"],
            ["numpy", "msgspec"],
        ),  # the arithmetic of prices; files
        (["count", "gpt2"], ["msgspec"]),
        (["list", "devices"], ["msgspec"]),
    ],
)
def test_what_needs_no_framework_loads_none(words, loaded):
    code = (
        "import sys; from steptime.cli.main import run; code = run(sys.argv[1:]); "
        "print([m for m in ('torch', 'numpy', 'scipy', 'duckdb', 'jinja2', 'msgspec') "
        "if m in sys.modules], code)"
    )
    done = _python("-c", code, *words, "--json")
    assert done.stdout.splitlines()[-1] == f"{loaded} 0", done.stderr


def test_a_prediction_collects_no_garbage_and_its_exit_looks_for_none():
    code = (
        "import atexit, gc; from steptime.__main__ import main; "
        "count = lambda: sum(one['collections'] for one in gc.get_stats()); before = count(); "
        "atexit.register(lambda: print(count() - before, gc.get_freeze_count() > 10_000)); main()"
    )
    done = _python("-c", code, "predict", "llama_7b", "--device", "a100")
    assert done.stdout.splitlines()[-1] == "0 True", done.stderr


def test_the_module_runs_and_a_closed_pipe_is_no_error():
    assert _python("-m", "steptime", "--version").stdout.startswith("steptime ")
    with subprocess.Popen(
        [sys.executable, "-m", "steptime", "list", "ops", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""


def test_the_package_offers_its_names_and_imports_nothing():
    code = (
        "import sys; import steptime; before = set(sys.modules); "
        "assert set(steptime.__all__) <= set(dir(steptime)); "
        "print(sorted(m for m in before if m.startswith('steptime'))); "
        "print([getattr(steptime, name) is not None for name in steptime.__all__]); "
        "print('numpy' in before, 'torch' in sys.modules)"
    )
    done = _python("-c", code)
    assert done.stdout.splitlines() == [
        "['steptime']",
        str([True] * len(steptime.__all__)),
        "False False",
    ], done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'predictt'"):
        steptime.predictt  # noqa: B018


def test_a_query_loads_what_it_needs(folder):
    code = (
        "import sys; from steptime.cli.main import run; code = run(sys.argv[1:]); "
        "print(code, *(one for one in ('duckdb', 'msgspec') if one in sys.modules))"
    )
    words = ("query", "SELECT count(*) AS n FROM records", "--in", str(folder / "records"))
    assert _python("-c", code, *words).stdout.splitlines()[-1] == "0 msgspec"
    (folder / "aside").mkdir()
    assert _python("-c", code, *words[:-1], str(folder / "aside")).stdout == "2 msgspec\n"
