"""Constants of servers from runs of clients: what is fitted, and what `serve` makes of it."""

import csv
import json
import tomllib
from itertools import groupby
from math import exp
from statistics import median

import pytest

import steptime
from places import ROOT
from steptime.calibration.client_formats import read_client_runs
from steptime.core.errors import InputError
from steptime.questions.calibrate.serving import calibrate_serving, find_served_run
from steptime.serving.calibration import CONSTANTS, ServingCalibration, read_calibration
from steptime.serving.load import run_requests
from steptime.serving.times import run_service

BLIS = ROOT.parent / "shared" / "reference" / "llm" / "blis_serving_dev.csv"
MODEL, DEVICE, PREFIX = "llama3_1_8b", "h100", 0.95
TRUTH = {"step_s": 0.0006, "sequence_s": 1.3e-5, "prompt_s": 0.009}
MAX_REFERENCE_ERROR = 0.07
CALIBRATION_RUNS = ("13-qwen3-14b-tp1-general-1", "16-llama-3-1-8b-tp1-general-1")
GPUS = {"H100": "h100", "A100-80GB": "a100-80gb"}
CACHE_BLOCK = 16  # tokens, of which the last of a cached prompt is computed again


def _write_run(path, rate, truth=TRUTH, model=MODEL):
    """Write the requests that a server with the constants of `truth` would answer."""
    count, tokens = 200, (512, 64)
    lines = ["model,device,prefix,arrival_s,input_tokens,output_tokens,ttft_s,latency_s"]
    arrivals_s = [k / rate for k in range(count)]
    path.write_text(
        "\n".join(
            [lines[0], *(f"{model},{DEVICE},{PREFIX},{t},512,64,0.02,0.5" for t in arrivals_s)]
        )
    )
    (run,) = read_client_runs(path)
    served = find_served_run(run, {})
    calibration = ServingCalibration(served.stack, "", 1, truth)
    phases = served.phases.with_calibration(calibration)
    result = run_service(served.service, run.load, phases, run_requests)
    ttft_s, request_s = result.ttft.mean_s, result.request.mean_s
    rows = [
        f"{model},{DEVICE},{PREFIX},{t},{tokens[0]},{tokens[1]},{ttft_s},{request_s}"
        for t in arrivals_s
    ]
    path.write_text("\n".join([*lines, *rows]))
    return request_s


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """Runs of a server with known constants, and the calibration of two of them."""
    folder = tmp_path_factory.mktemp("runs")
    for rate in (2, 10, 25):
        _write_run(folder / f"{rate}.csv", rate)
    files = [folder / "2.csv", folder / "25.csv"]
    out = folder / "serving.toml"
    return folder, calibrate_serving(files, None, None, out, dry_run=False)


def test_constants_move_from_those_of_the_stack_towards_the_servers(calibrated):
    _, answer = calibrated
    moved = [row for row in answer.constants if row.constant in ("step_s", "prompt_s")]
    assert len(moved) == 2
    for row in moved:
        before, after = (abs(s - TRUTH[row.constant]) for s in (row.stack_s, row.constant_s))
        assert after < 0.7 * before or after < 0.1 * TRUTH[row.constant]
    assert [abs(row.request_error) < 0.02 for row in answer.rows] == [True, True]
    assert all(abs(row.request_error) < abs(row.request_before) for row in answer.rows)


def test_serve_predicts_a_load_that_was_not_calibrated(calibrated):
    folder, answer = calibrated
    (run,) = read_client_runs(folder / "10.csv")
    (folder / "trace.csv").write_text(
        "\n".join(
            ["arrival_s,input_tokens,output_tokens", *(f"{t},512,64" for t in run.load.arrivals_s)]
        )
    )
    keywords = {"requests": folder / "trace.csv", "prefix": PREFIX}
    plain = steptime.serve(MODEL, DEVICE, **keywords)
    calibrated_answer = steptime.serve(
        MODEL, DEVICE, calibration=folder / "serving.toml", **keywords
    )
    assert calibrated_answer.request_s == pytest.approx(run.request_s, rel=0.01)
    assert abs(plain.request_s / run.request_s - 1) > 0.03
    assert calibrated_answer.stack == answer.stack
    assert any("left out is off by" in note for note in calibrated_answer.notes)


def test_the_error_of_a_left_out_run_is_that_of_a_fit_without_it(calibrated):
    folder, answer = calibrated
    for i, (trained, left_out) in enumerate((("25", "2"), ("2", "25"))):
        out = folder / "alone.toml"
        alone = calibrate_serving(folder / f"{trained}.csv", None, None, out, dry_run=False)
        assert alone.median_request_error is None
        assert any("a second one" in note for note in alone.notes)
        (run,) = read_client_runs(folder / f"{left_out}.csv")
        served = find_served_run(run, {})
        logs = served.predict(read_calibration(folder / "alone.toml"))
        error = exp(logs[0] - served.measured[0]) - 1
        assert answer.rows[i].request_left_out == pytest.approx(error, abs=0.005)


def test_the_file_has_what_the_answer_says(calibrated):
    folder, answer = calibrated
    table = tomllib.loads((folder / "serving.toml").read_text())
    assert table["serving"] == {row.constant: row.constant_s for row in answer.constants}
    assert set(table["serving"]) <= set(CONSTANTS)
    assert table["request_error"] == answer.median_request_error
    read = read_calibration(folder / "serving.toml")
    assert [factor.factor for factor in read.factors] == [row.factor for row in answer.networks]


def test_a_network_has_its_factor_under_each_of_its_names(calibrated):
    folder, _ = calibrated
    keywords = {"calibration": folder / "serving.toml", "input": 512, "output": 64}
    names = (MODEL, "meta-llama/Llama-3.1-8B-Instruct")
    first, second = (steptime.serve(name, DEVICE, **keywords).tpot_s for name in names)
    assert first == second
    other = steptime.serve("qwen3_14b", DEVICE, **keywords)
    assert any("has no run of qwen3_14b" in note for note in other.notes)
    elsewhere = steptime.serve(MODEL, "a100", **keywords)
    assert any("the calibration is of h100-sxm5, not of a100" in note for note in elsewhere.notes)


def test_what_is_said_of_the_server_comes_before_what_the_file_says(calibrated):
    folder, _ = calibrated
    server = {"tensor": 2, "prefix": 0.5}
    answer = calibrate_serving(folder / "10.csv", server, None, None, dry_run=True)
    alone = calibrate_serving(folder / "10.csv", None, None, None, dry_run=True)
    assert answer.path is None
    assert answer.rows[0].request_before != alone.rows[0].request_before


WRONG = {
    "stack": ({"stack": "sglang"}, "its constants are of vllm-2026, not of sglang"),
    "missing": ({"calibration": "nowhere.toml"}, "nowhere.toml"),
}


@pytest.mark.parametrize("name", WRONG)
def test_serve_refuses_a_calibration_that_does_not_go_with_the_rest(calibrated, name):
    folder, _ = calibrated
    changes, expected = WRONG[name]
    keywords = {"calibration": folder / "serving.toml"} | changes
    with pytest.raises(InputError, match=expected):
        steptime.serve(MODEL, DEVICE, **keywords)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", "is no calibration of servers: stack is missing"),
        ('stack = "vllm-2026"\nruns = 1\n[serving]\nstep = 1', "unknown constant 'step'"),
        (
            'stack = "vllm-2026"\nruns = 1\n[serving]\nstep_s = -1',
            "serving.step_s: must be a number",
        ),
        ('stack = "vllm-2026"\nruns = 1\nserving = 3', "serving: must be a table"),
        (
            'stack = "vllm-2026"\nruns = 1\n[serving]\nstep_s = 0\n[[networks]]\nmodel = "a"',
            "networks[0].network: must be a text",
        ),
    ],
)
def test_a_damaged_calibration_is_refused_in_one_line(tmp_path, text, expected):
    (tmp_path / "serving.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        read_calibration(tmp_path / "serving.toml")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("server", "device", "expected"),
    [
        ({"tenser": 2}, None, "unknown setting 'tenser'; did you mean 'tensor'?"),
        ({"tensor": "x"}, None, "--tensor: must be a whole number"),
        ({"device": "h100"}, "h100", "--of says it"),
        ({"model": "resnet50"}, None, "requests.csv: "),
    ],
)
def test_a_wrong_server_is_refused_in_one_line(tmp_path, server, device, expected):
    path = tmp_path / "requests.csv"
    rows = [f"{MODEL},{DEVICE},{t},512,64,0.02,0.5" for t in range(5)]
    header = "model,device,arrival_s,input_tokens,output_tokens,ttft_s,latency_s"
    path.write_text("\n".join([header, *rows]))
    with pytest.raises(InputError) as caught:
        calibrate_serving(path, server, device, None, dry_run=True)
    assert expected in str(caught.value)


def test_a_result_that_names_no_device_says_which_option_does(tmp_path):
    path = tmp_path / "requests.csv"
    rows = [f"{t},512,64,0.5" for t in range(5)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens,latency_s", *rows]))
    with pytest.raises(InputError, match=r"does not say the model.*--server model=MODEL"):
        calibrate_serving(path, None, "h100", None, dry_run=True)
    with pytest.raises(InputError, match=r"does not say the device.*--of DEVICE"):
        calibrate_serving(path, {"model": MODEL}, None, None, dry_run=True)
    answer = calibrate_serving(path, {"model": MODEL}, "h100", None, dry_run=True)
    assert answer.rows[0].ttft_s is None
    assert any("has no TTFT" in note for note in answer.notes)


def _write_blis_runs(folder):
    """Write the vLLM runs of the reference data as `vllm bench serve` would; return the files."""
    rows = [row for row in csv.DictReader(BLIS.read_text().splitlines()) if not row["exclude"]]
    files = {}
    for run, stages in groupby(rows, lambda row: row["run"]):
        documents = [_blis_document(row) for row in stages]
        files[run] = folder / f"{run}.jsonl"
        files[run].write_text("\n".join(map(json.dumps, documents)))
    return files


def _blis_document(row):
    count = int(float(row["requests"] or float(row["rate_per_s"]) * float(row["stage_s"])))
    input_tokens, output_tokens = (
        float(row[f"mean_{name}_tokens"]) for name in ("input", "output")
    )
    return {
        "backend": "vllm",
        "model_id": row["model"],
        "gpu": GPUS[row["gpu"]],
        "tp": row["tp"],
        "max_num_seqs": row["max_num_seqs"],
        "max_num_batched_tokens": row["max_batched_tokens"],
        "prefix": max(0.0, input_tokens - CACHE_BLOCK) / input_tokens,
        "request_rate": float(row["rate_per_s"]),
        "burstiness": float("inf"),
        "completed": count,
        "total_input_tokens": input_tokens * count,
        "total_output_tokens": output_tokens * count,
        "mean_ttft_ms": 1e3 * float(row["ttft_mean_s"]),
        "mean_tpot_ms": 1e3 * float(row["itl_mean_s"]),
        "mean_e2el_ms": 1e3 * float(row["e2e_mean_s"]),
    }


@pytest.mark.rare
@pytest.mark.skipif(not BLIS.is_file(), reason="without the reference data")
def test_two_runs_of_vllm_bring_the_others_within_7_percent(tmp_path):
    files = _write_blis_runs(tmp_path)
    out = tmp_path / "serving.toml"
    calibrate_serving([files[run] for run in CALIBRATION_RUNS], None, None, out, dry_run=False)
    calibration = read_calibration(out)
    errors = []
    for run, path in files.items():
        if run in CALIBRATION_RUNS:
            continue
        for client_run in read_client_runs(path):
            served = find_served_run(client_run, {})
            log = served.predict(calibration)[0] - served.measured[0]
            errors.append(abs(exp(log) - 1))
    assert len(errors) > 40
    assert median(errors) <= MAX_REFERENCE_ERROR  # 9.7 % with the constants of the stack
