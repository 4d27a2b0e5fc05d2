"""The logs of Deep MNIST on PSC Bridges: every field of every log, every trap."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from every import every
from psc_log_text import psc_log
from steptime.core.copying import replace
from steptime.records.readers import read_path
from steptime.records.readers.psc_log import FileName, file_name, recognises
from steptime.records.readers.sources import RecordSource
from steptime.records.record import Record, record_to_json
from steptime.reports.charts import draw
from told import device_bars, device_rows

MODES = {"independent": "IN", "parameter-server": "PS", None: "single"}


@pytest.fixture(scope="module")
def logs(shared):
    return read_path(shared / "psc-mnist" / "logs.tar.gz")


def _expected(shared: Path) -> dict[str, Mapping[str, str]]:
    with (shared / "psc-mnist" / "expected.csv").open(encoding="utf-8") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def _fields(record: Record, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of expected.csv, from the table where that has them, else from `env`."""
    env = record.env
    unknown = row["batch_source"] == "unknown"
    return {
        **{name: env[name] for name in env},
        "file": row["source_file"],
        "batch": row["batch"],
        "batch_source": None if unknown else row["batch_source"],
        "staging": {"$LOCAL": "local", "$SCRATCH": "scratch"}[row["staged_from"]],
        "mode": MODES[row["strategy"]],
        "mean_time_s": row["Mean_Time_Per_Step"],
        "mean_speed": row["mean_speed"],
        "uncertainty": row["speed_uncertainty"],
        "jitter": row["Speed_Jitter"],
        "accuracy": row["accuracy"],
        "global_batch": row["global_batch"],
        "mean_speed_corrected": row["mean_speed_corrected"],
        "outcome": "ok" if row["status"] == "ok" else "failed",
        "cause": row["cause"],
        "duplicate_of": row["duplicate_of"],
    }


def test_every_column_of_every_log_is_as_expected(shared, logs):
    expected = _expected(shared)
    assert logs.files == len(expected) == 52
    rows = {row["source_file"]: row for row in device_rows(logs.records)}
    for record in logs.records:
        file = record.env["source_file"]
        want, got = expected.pop(file), _fields(record, rows[file])
        for column, text in want.items():
            value = got[column]
            same = float(text) == value if isinstance(value, float) else text == str(value or "")
            if column == "gpus_used" and value == 0:
                same = text == "0"
            assert same, (want["file"], column, text, value)
    (last,) = expected.values()
    (unread,) = logs.unread
    assert (last["outcome"], last["file"]) == ("not_a_benchmark", unread.file)
    assert unread.reason.startswith("not_a_benchmark: ")


def test_the_same_logs_as_files_of_a_folder_give_the_same(shared, logs, tmp_path):
    import tarfile

    with tarfile.open(shared / "psc-mnist" / "logs.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    found = read_path(tmp_path)
    assert {record.env["source_archive"] for record in logs.records} == {"logs.tar.gz"}
    of_archive = {record.env["source_file"]: record for record in logs.records}
    assert len(found.records) == len(of_archive)
    for record in found.records:
        twin = of_archive[record.env["source_file"]]
        assert record == replace(twin, env={**twin.env, "source_archive": ""})
    assert found.duplicates == logs.duplicates
    single = read_path(tmp_path / "results/archived/2018-06-22-GPU-k80:4:scratch:PS")
    (record,) = single.records
    assert record.workload.plan.data == 4
    assert record.env["source_file"] == "2018-06-22-GPU-k80:4:scratch:PS"


def test_the_table_is_that_of_the_collector(shared, logs):
    direct = [r for r in logs.records if r.env["source_file"].count("/") == 1]
    rows = [row for row in device_rows(direct) if row["source_file"].startswith("results/")]
    with (shared / "psc-mnist" / "collector_a_shipped.csv").open(encoding="utf-8") as file:
        shipped = list(csv.DictReader(file))
    columns = [name for name in shipped[0] if name]
    assert sorted(tuple(str(row[name]) for name in columns) for row in rows) == sorted(
        tuple(row[name] for name in columns) for row in shipped
    )


def test_what_the_collector_wrote_is_read(shared):
    found = read_path(shared / "psc-mnist" / "collector_a_shipped.csv")
    assert (len(found.records), found.unread) == (8, [])
    assert {record.workload.batch_per_replica for record in found.records} == {50}
    (row,) = device_rows(found.records[:1])
    assert (row["gpu_type"], row["num_gpu"], row["staged_from"]) == ("k80", 1, "$SCRATCH")
    assert row["mean_speed"] == 2106.21087616


def test_logged_and_corrected_speeds_of_several_gpus(shared, tmp_path):
    """The published speed-ups of 10 runs, through logs that are made of their figures."""
    runs = json.loads((shared / "psc-mnist" / "multi_gpu_corrected.json").read_text("utf-8"))
    programs = {"IN": "CNN_MNIST_INDEPENDENT.py", "PS": "CNN_MNIST_PS.py"}
    for number, run in enumerate(runs):
        text = psc_log(
            number,
            gpu=run["gpu"],
            gpus=run["gpus"],
            program=programs[run["mode"]],
            step_s=run["ms_per_step"] / 1000,
            speed=run["logged_img_s"],
            placed=tuple(range(run["gpus"])),
        )
        name = f"2018-06-22-GPU-{run['gpu']}:{run['gpus']}:scratch:{run['mode']}"
        (tmp_path / name).write_text(text, encoding="utf-8")
    rows = {
        (MODES[row["strategy"]], row["gpu_type"], row["num_gpu"]): row
        for row in device_rows(read_path(tmp_path).records)
    }
    for run in runs:
        row = rows[run["mode"], run["gpu"], run["gpus"]]
        one = rows[run["mode"], run["gpu"], 1]
        assert row["mean_speed"] == run["logged_img_s"]
        assert row["global_batch"] == run["global_batch_from_accuracy"]
        assert row["mean_speed_corrected"] == pytest.approx(run["corrected_img_s"], rel=1e-12)
        for column, said in (("mean_speed", "logged"), ("mean_speed_corrected", "corrected")):
            ratio = row[column] / one[column]
            assert ratio == pytest.approx(run[f"speedup_{said}"], rel=1e-12)
    four, one = rows["IN", "k80", 4], rows["IN", "k80", 1]
    assert round(four["mean_speed"] / one["mean_speed"], 2) == 0.66
    assert round(four["mean_speed_corrected"] / one["mean_speed_corrected"], 2) == 2.65


def test_the_rows_that_the_seed_shows(tmp_path):
    shown = [
        (8732.961728, 0.005725434, 6.388218371, 760.2575007, "p100", 2, "$SCRATCH"),
        (5250.901566, 0.009522174, 0.734560314, 65.77123005, "k80", 2, "$SCRATCH"),
        (4836.64568, 0.010337743, 2.079079801, 203.1963323, "k80", 4, "$LOCAL"),
    ]
    for number, (speed, step_s, uncertainty, jitter, gpu, gpus, staged) in enumerate(shown):
        text = psc_log(
            number, gpu=gpu, gpus=gpus, step_s=step_s, speed=speed, uncertainty=uncertainty,
            jitter=jitter, local=staged == "$LOCAL",
        )  # fmt: skip
        (tmp_path / f"slurm-{number}.out").write_text(text, encoding="utf-8")
    rows = device_rows(read_path(tmp_path).records)
    assert [tuple(row.values())[:7] for row in rows] == [shown[1], shown[2], shown[0]]  # by device
    assert [row["batch"] for row in rows] == [50, 50, 50]


@every(
    ("name", "claims"),
    [
        ("a/2018-06-05-k80:1", FileName("k80", "", 1)),
        ("20180601-p100:2", FileName("p100", "", 2)),
        ("2018-06-14-GPU-k80:4:scratch", FileName("k80", "", 4, None, "scratch")),
        (
            "2018-08-01-GPU-p100:2:2048:scratch:PS",
            FileName("p100", "", 2, 2048, "scratch", "PS"),
        ),
        ("2018-06-11-CPU-GPU:E5-2683-V4:4", FileName("", "E5-2683 v4", 4)),
        (
            "2018-07-05-CPU-RM:E5-2695-V2:16:8192:scratch",
            FileName("", "E5-2695 v2", 16, 8192, "scratch"),
        ),
        (
            "2018-07-05-CPU-XLM:E7-8880-V4:80:local",
            FileName("", "E7-8880 v4", 80, None, "local"),
        ),
        ("slurm-3084768.out", FileName()),
        ("notes", FileName()),
    ],
)
def test_names_of_files(name, claims):
    assert file_name(name) == claims


def _one(tmp_path: Path, text: str, name: str = "slurm-1.out") -> Record:
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = read_path(tmp_path / name)
    assert found.unread == []
    (record,) = found.records
    return record


def test_spellings_of_the_results(tmp_path):
    text = psc_log(step_s=None)
    for spelling in (
        "Mean Time : 0.01\nMean Speed : 5000.0\nSpeed Jitter : 7\n",
        "Mean Time Per Step : 0.01\nMean Speed : 5000.0Images/Sec\nSpeed Jitter : 7\n",
        "Mean Time Per Step : 0.01\nMean Speed : 5000.0 Images/Sec\nSpeed Jitter : 7\n",
        "xMean Time Per Step : 1e-2Mean Speed : 5e3 Images/Sec\n2018: I Speed Jitter : 7\n",
    ):
        record = _one(tmp_path, text + spelling)
        assert record.quantities["step_s"].value == 0.01
        assert record.quantities["published_examples_per_s"].value == 5000.0
        assert record.quantities["published_examples_jitter_per_s"].value == 7
        assert (record.workload.batch_per_replica, record.env["batch_source"]) == (50, "implied")


def test_a_batch_that_no_step_has_is_unknown(tmp_path):
    record = _one(tmp_path, psc_log(step_s=1e300, speed=1e300))
    assert (record.workload.batch_per_replica, record.env["batch_source"]) == (64, "unknown")


def test_a_traceback_that_names_a_result_is_none(tmp_path):
    line = (
        '    print("Mean Time Per Step : " + str(np.mean(times`)))\nSyntaxError: invalid syntax\n'
    )
    record = _one(tmp_path, psc_log(step_s=None, more=line))
    assert (record.status, record.cause) == ("failed", "python_syntax_error")
    assert record.quantities == {}
    (row,) = device_rows([record])
    assert row["batch"] is None
    assert "does not say the batch" in record.note


def test_a_result_that_another_line_breaks_into_is_none(tmp_path):
    torn = "2018-06-05 10:14:25.339745: I tensorflow/core"
    for said in (torn, f"0.0{torn}", f"0.01 {torn}"):
        lines = f"Mean Time Per Step : {said}\nMean Speed : 5000 Images/Sec\n"
        record = _one(tmp_path, psc_log(step_s=None) + lines)
        assert (record.status, record.cause, record.quantities) == ("failed", "no_result", {})
    again = _one(tmp_path, psc_log(more=f"Mean Time Per Step : {torn}\n"))
    assert again.quantities["step_s"].value == 0.01


def test_a_step_that_took_no_time_is_no_result(tmp_path):
    times = "Mean Time Per Step : 0.0\nMean Speed : inf\nspeed uncertainty : 1\n"
    record = _one(tmp_path, psc_log(step_s=None, more="test accuracy 0.9\n") + times)
    assert (record.status, record.cause) == ("failed", "no_result")
    assert {name: q.value for name, q in record.quantities.items()} == {"accuracy": 0.9}
    (row,) = device_rows([record])
    assert (row["Mean_Time_Per_Step"], row["speed_uncertainty"]) == (None, None)


def test_a_log_of_two_runs_says_so(tmp_path):
    second = "Mean Time Per Step : 0.5\nMean Speed : 100.0 Images/Sec\n"
    record = _one(tmp_path, psc_log() + second)
    assert record.quantities["step_s"].value == 0.01
    assert record.note == "the log holds 2 results; this is the first"
    assert _one(tmp_path, psc_log()).note == ""


def test_a_name_that_speed_and_time_contradict(tmp_path):
    one = _one(tmp_path, psc_log(), "2018-08-01-GPU-k80:1:1024:scratch")
    assert one.note == "the batch is 1024 (filename), speed x time is 50"
    two = psc_log(gpus=2, program="CNN_MNIST_PS.py", placed=(0, 1))
    assert _one(tmp_path, two, "2018-08-01-GPU-k80:2:1024:scratch:PS").note == ""


def test_a_batch_that_no_log_tells_is_in_no_bar(tmp_path):
    known = _one(tmp_path, psc_log())
    odd = _one(tmp_path, psc_log(speed=5123.4))
    assert device_bars([odd, known]) == device_bars([known])
    assert draw("devices", [odd, known])


def test_a_number_of_devices_that_no_log_tells(tmp_path):
    one, other = _one(tmp_path, psc_log()), _one(tmp_path, psc_log(gpu=""))
    assert device_rows([other])[0]["num_gpu"] is None
    assert '"devices": "?"' in json.dumps(draw("devices", [one, other]))


def test_who_says_the_batch(tmp_path):
    """The program, then the shell, then the name, then speed x time."""
    name = "2018-08-01-GPU-k80:1:256:scratch"
    program = psc_log(more="batch_size=64\nbatch_size = 32\n")
    assert _one(tmp_path, program, name).workload.batch_per_replica == 32
    shell = _one(tmp_path, psc_log(more="+ echo batch_size=64\nbatch_size=64\n"), name)
    assert (shell.workload.batch_per_replica, shell.env["batch_source"]) == (64, "logged")
    named = _one(tmp_path, psc_log(), name)
    assert (named.workload.batch_per_replica, named.env["batch_source"]) == (256, "filename")
    odd = _one(tmp_path, psc_log(speed=5123.4))
    assert (odd.env["batch_source"], device_rows([odd])[0]["batch"]) == ("unknown", None)


def test_where_the_work_was_done(tmp_path):
    on_cpu = _one(tmp_path, psc_log(gpu="p100", gpus=2, placed=(), product=""))
    assert (on_cpu.env["device_kind"], on_cpu.env["gpus_used"]) == ("cpu", 0)
    assert (on_cpu.env["allocated_gpu_type"], on_cpu.env["allocated_gpu_count"]) == ("P100", 2)
    assert on_cpu.platform == "cpu-unknown-7t"
    early = _one(tmp_path, psc_log(gpu="p100", gpus=2, placed=(0,), product="Tesla P100-PCIE-16GB"))
    assert (early.env["gpus_used"], early.workload.plan.data) == (1, 1)
    assert early.method.options["device_count"] == 2
    assert early.platform == "p100-pcie-16gb"
    named = "2018-06-11-CPU-GPU:E5-2683-V4:4"
    failed = _one(tmp_path, psc_log(gpu="p100", product="", step_s=None), named)
    assert (failed.env["device_kind"], failed.env["device_type"]) == ("cpu", "E5-2683 v4")
    assert (failed.status, failed.cause) == ("failed", "no_result")


@every(
    ("says", "status", "cause"),
    [
        ("error: *** JOB 1 ON r1 CANCELLED AT 2018-06-11T14:40:55 DUE TO TIME LIMIT ***",
         "timeout", "slurm_time_limit"),
        ("error: *** JOB 1 ON r1 CANCELLED AT 2018-06-11T14:40:55 ***", "failed",
         "slurm_cancelled"),
        ("python: can't open file 'x.py': [Errno 2]", "failed", "script_not_found"),
        ("ImportError: No module named tensorflow", "failed", "import_error_no_module"),
        ("ImportError: /lib64/x.so: version `GLIBCXX_3.4' not found (required by y)", "failed",
         "import_error_glibcxx"),
        ("script: line 27: 1 Illegal instruction     python x", "failed", "illegal_instruction"),
    ],
)  # fmt: skip
def test_causes(says, status, cause, tmp_path):
    record = _one(tmp_path, psc_log(step_s=None, more=says + "\n"))
    assert (record.status, record.cause) == (status, cause)
    conflict = "tensorflow: Module 'a' conflicts with the currently loaded module(s) 'b'\n"
    both = _one(tmp_path, psc_log(step_s=None, more=f"{conflict}{says}\n"))
    assert set(both.cause.split("+")) == {cause, "module_conflict_error"}
    finished = _one(tmp_path, psc_log(more=conflict))
    assert (finished.status, finished.cause) == ("ok", "")
    assert "module_conflict_error" in finished.note


def test_nothing_of_the_text_is_kept(tmp_path):
    record = _one(tmp_path, psc_log())
    text = json.dumps(record_to_json(record))
    for private in ("jane", "doe", "4711", "secret", "login1"):
        assert private not in text


def test_lines_that_run_into_each_other_place_nothing(tmp_path):
    broken = "op: (Add)/job:localhost/replica:0/task:0/device:GPU:2018-06-03 23:59:59.1: I placer\n"
    record = _one(tmp_path, psc_log(placed=(0,), gpus=2, more=broken))
    assert record.env["gpus_used"] == 1


def test_the_day_is_that_of_the_run(tmp_path):
    record = _one(tmp_path, psc_log(), "2018-06-01-k80:1")
    assert (record.env["date"], record.env["submitted"]) == ("2018-06-03", "2018-06-02")
    assert record.taken_at == "2018-06-03T23:59:58"
    without = psc_log().replace("StartTime=", "Start=")
    assert _one(tmp_path, without).env["date"] == "2018-06-03"  # as `date` printed it


def test_of_files_of_one_content_the_deepest_is_the_original(tmp_path):
    for name in ("slurm-1.out", "old/slurm-1.out", "old/slurm-2.out"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(psc_log(), encoding="utf-8")
    found = read_path(tmp_path)
    assert found.duplicates == dict.fromkeys(("slurm-1.out", "old/slurm-2.out"), "old/slurm-1.out")
    assert len(device_rows(found.records)) == 3
    (bar,) = device_bars(found.records)
    assert bar["source_file"] == "old/slurm-1.out"


def test_error_bars_are_of_the_corrected_speed(tmp_path):
    text = psc_log(
        gpus=4, program="CNN_MNIST_PS.py", placed=(0, 1, 2, 3), step_s=0.125, speed=8192.0,
        uncertainty=8.0,
    )  # fmt: skip
    (bar,) = device_bars([_one(tmp_path, text)])
    assert (bar["speed"], bar["low"], bar["high"]) == (32768.0, 32768.0 - 32, 32768.0 + 32)
    assert math.isclose(bar["mean_speed"], 8192.0)


def test_what_is_no_log_is_not_taken_for_one():
    assert not recognises(RecordSource("README.md", b"JobId of a log, and Mean Speed : none"))
    assert recognises(RecordSource("any", b"...\nMean Speed : 5000.1Images/Sec\n"))
