"""What clients of servers write, in each format: the same run, read the same way."""

import gzip
import json

import pytest

from steptime.calibration.client_formats import read_client_runs
from steptime.core.errors import InputError

START_S = 1_700_000_000.0
ARRIVALS_S = [0.0, 0.5, 1.0, 1.5, 2.0]
INPUTS = [100, 200, 300, 400, 500]
OUTPUTS = [11, 21, 31, 41, 51]
TTFTS_S = [0.02, 0.03, 0.04, 0.05, 0.06]
GAP_S = 0.01  # between tokens
REQUESTS_S = [ttft_s + GAP_S * (n - 1) for ttft_s, n in zip(TTFTS_S, OUTPUTS, strict=True)]
MEAN_TTFT_S, MEAN_REQUEST_S = 0.04, 0.34  # by hand: 0.04 + 0.01 x (31 - 1)
SERVER = {"model_id": "meta-llama/Llama-3.1-8B-Instruct"}


def _bench_serve(detailed: bool, **changes) -> dict:
    """Return a result as `vllm bench serve --save-result` writes it, with or without details."""
    result = {
        "date": "20260101-000000",
        "backend": "vllm",
        **SERVER,
        "num_prompts": 5,
        "request_rate": 2.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 2.6,
        "completed": 5,
        "failed": 0,
        "total_input_tokens": sum(INPUTS),
        "total_output_tokens": sum(OUTPUTS),
        "mean_ttft_ms": 1e3 * MEAN_TTFT_S,
        "mean_tpot_ms": 1e3 * GAP_S,
        "mean_itl_ms": 1e3 * GAP_S,
    }
    if detailed:
        result |= {
            "input_lens": INPUTS,
            "output_lens": OUTPUTS,
            "ttfts": TTFTS_S,
            "itls": [[GAP_S] * (n - 1) for n in OUTPUTS],
            "start_times": [START_S + time_s for time_s in ARRIVALS_S],
            "errors": [""] * 5,
        }
    return result | changes


def _sglang() -> dict:
    """Return a line as SGLang's `bench_serving` appends it."""
    result = _bench_serve(detailed=False, backend="sglang")
    del result["model_id"], result["failed"], result["burstiness"]
    server = {"model_path": SERVER["model_id"], "tp_size": 2}
    return result | {"mean_e2e_latency_ms": 1e3 * MEAN_REQUEST_S, "server_info": server}


def _aiperf_records() -> str:
    records = [
        {
            "metadata": {
                "request_start_ns": int(1e9 * (START_S + arrival_s)),
                "benchmark_phase": "profiling",
                "was_cancelled": False,
            },
            "metrics": {
                "input_sequence_length": {"value": input_tokens, "unit": "tokens"},
                "output_sequence_length": {"value": output_tokens, "unit": "tokens"},
                "time_to_first_token": {"value": 1e3 * ttft_s, "unit": "ms"},
                "request_latency": {"value": 1e3 * request_s, "unit": "ms"},
            },
            "error": None,
        }
        for arrival_s, input_tokens, output_tokens, ttft_s, request_s in zip(
            ARRIVALS_S, INPUTS, OUTPUTS, TTFTS_S, REQUESTS_S, strict=True
        )
    ]
    warm_up = json.loads(json.dumps(records[0]))
    warm_up["metadata"]["benchmark_phase"] = "warmup"
    return "\n".join(json.dumps(record) for record in [warm_up, *records])


def _aiperf_summary(config: dict) -> dict:
    return {
        "request_count": {"unit": "requests", "avg": 5},
        "request_latency": {"unit": "ms", "avg": 1e3 * MEAN_REQUEST_S},
        "time_to_first_token": {"unit": "ms", "avg": 1e3 * MEAN_TTFT_S},
        "input_sequence_length": {"unit": "tokens", "avg": 300.0},
        "output_sequence_length": {"unit": "tokens", "avg": 31.0},
        "input_config": config,
    }


def _guidellm() -> dict:
    requests = [
        {
            "request_start_time": START_S + arrival_s,
            "request_end_time": START_S + arrival_s + request_s,
            "request_latency": request_s,
            "prompt_tokens": input_tokens,
            "output_tokens": output_tokens,
            "time_to_first_token_ms": 1e3 * ttft_s,
        }
        for arrival_s, input_tokens, output_tokens, ttft_s, request_s in zip(
            ARRIVALS_S, INPUTS, OUTPUTS, TTFTS_S, REQUESTS_S, strict=True
        )
    ]
    strategy = {"type_": "constant", "rate": 2.0}
    config = {"strategy": strategy, "backend": {"model": SERVER["model_id"]}}
    return {
        "benchmarks": [
            {"config": config, "requests": {"successful": requests, "errored": [{}]}},
        ]
    }


def _table() -> str:
    rows = zip(ARRIVALS_S, INPUTS, OUTPUTS, TTFTS_S, REQUESTS_S, strict=True)
    lines = [
        f"{SERVER['model_id']},{arrival_s},{tokens},{output_tokens},{1e3 * ttft_s},{request_s}"
        for arrival_s, tokens, output_tokens, ttft_s, request_s in rows
    ]
    return "\n".join(["model,arrival_s,input_tokens,output_tokens,ttft_ms,latency_s", *lines])


DETAILED = {
    "vllm.json": json.dumps(_bench_serve(detailed=True)),
    "profile_export.jsonl": _aiperf_records(),
    "guidellm.json": json.dumps(_guidellm()),
    "requests.csv": _table(),
}
SUMMARIES = {
    "vllm.json": json.dumps(_bench_serve(detailed=False)),
    "sglang.jsonl": json.dumps(_sglang()),
    "profile_export_aiperf.json": json.dumps(
        _aiperf_summary(
            {
                "endpoint": {"model_names": [SERVER["model_id"]]},
                "loadgen": {"request_rate": 2.0, "request_rate_mode": "poisson"},
            }
        )
    ),
    "profile_export_genai_perf.json": json.dumps(
        _aiperf_summary({"model": [SERVER["model_id"]], "request_rate": 2.0})
    ),
}


@pytest.mark.parametrize("name", DETAILED)
def test_requests_one_by_one_are_read_the_same_in_each_format(tmp_path, name):
    path = tmp_path / name
    path.write_text(DETAILED[name])
    (run,) = read_client_runs(path)
    assert (list(run.load.inputs), list(run.load.outputs)) == (INPUTS, OUTPUTS)
    assert run.load.arrivals_s == pytest.approx(ARRIVALS_S, abs=1e-5)
    assert run.load.concurrency == 0
    assert run.ttft_s == pytest.approx(MEAN_TTFT_S)
    assert run.request_s == pytest.approx(MEAN_REQUEST_S)
    assert run.request_count == 5
    if "profile_export" not in name:  # whose records name no model
        assert run.settings["model"] == SERVER["model_id"]


@pytest.mark.parametrize("name", SUMMARIES)
def test_summaries_are_read_the_same_in_each_format(tmp_path, name):
    path = tmp_path / name
    path.write_text(SUMMARIES[name])
    (run,) = read_client_runs(path)
    assert (set(run.load.inputs), set(run.load.outputs)) == ({300}, {31})
    assert run.ttft_s == pytest.approx(MEAN_TTFT_S)
    assert run.request_s == pytest.approx(MEAN_REQUEST_S)
    assert run.settings["model"] == SERVER["model_id"]
    assert len(run.load.arrivals_s) == 5  # of a Poisson process
    assert run.load.arrivals_s[0] == 0 < run.load.arrivals_s[-1]
    if name == "sglang.jsonl":
        assert (run.settings["tensor"], run.settings["stack"]) == (2, "sglang")


def test_requests_that_all_come_at_once_follow_each_other_as_many_as_are_allowed(tmp_path):
    path = tmp_path / "vllm.json"
    for limit, concurrency in ((None, 5), (2, 2)):
        result = _bench_serve(detailed=True, request_rate="inf", max_concurrency=limit)
        del result["start_times"]
        path.write_text(json.dumps(result))
        (run,) = read_client_runs(path)
        assert (run.load.concurrency, len(run.load.arrivals_s)) == (concurrency, 0)


def test_constant_gaps_are_those_of_the_rate(tmp_path):
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(_bench_serve(detailed=False, burstiness=float("inf"))))
    (run,) = read_client_runs(path)
    assert run.load.arrivals_s == pytest.approx(ARRIVALS_S)


def test_failed_requests_are_counted_and_left_out(tmp_path):
    result = _bench_serve(detailed=True, errors=["", "", "boom", "", ""])
    path = tmp_path / "vllm.json.gz"
    path.write_bytes(gzip.compress(json.dumps(result).encode()))
    (run,) = read_client_runs(path)
    assert (run.request_count, run.failed_count) == (4, 1)
    assert list(run.load.inputs) == [100, 200, 400, 500]
    assert run.ttft_s == pytest.approx((0.02 + 0.03 + 0.05 + 0.06) / 4)


def test_a_file_may_hold_several_runs(tmp_path):
    lines = [json.dumps(_bench_serve(detailed=False, request_rate=rate)) for rate in (1.0, 4.0)]
    (tmp_path / "vllm.json").write_text("\n".join(lines))  # as --append-result
    first, second = read_client_runs(tmp_path / "vllm.json")
    assert first.load.arrivals_s[-1] == pytest.approx(4 * second.load.arrivals_s[-1])
    rows = _table().splitlines()
    table = [f"run,{rows[0]}", *(f"{name},{row}" for name in "ab" for row in rows[1:])]
    (tmp_path / "requests.csv").write_text("\n".join(table))
    runs = read_client_runs(tmp_path / "requests.csv")
    assert [len(run.load.inputs) for run in runs] == [5, 5]
    assert len({run.group for run in runs}) == 2


WRONG = {  # file: content, and what the line says
    "missing.json": (None, "No such file"),
    "empty.json": ("[]", "holds no results"),
    "text.json": ("hello", "text.json:1: is no JSON"),
    "other.json": ('{"a": 1}', "is no result of vllm bench serve"),
    "raw.json": ('{"experiments": []}', "nearest: the profile_export_genai_perf.json"),
    "few.json": (json.dumps(_bench_serve(detailed=False, completed=2)), "needs 4 at least"),
    "negative.json": (
        json.dumps(_bench_serve(detailed=False, mean_ttft_ms=-1)),
        "mean_ttft_ms: must be a number of at least 0, not '-1'",
    ),
    "late.json": (
        json.dumps(_bench_serve(detailed=False, mean_e2el_ms=1.0)),
        "is above the mean time of a request",
    ),
    "no_times.json": (
        json.dumps(_bench_serve(detailed=False, mean_tpot_ms=None, mean_itl_ms=None)),
        "has neither the time of a request nor TTFT and TPOT",
    ),
    "short.json": (
        json.dumps(_bench_serve(detailed=True, output_lens=[1])),
        "output_lens: must be a list of 5 values, as ttfts",
    ),
    "start.json": (
        json.dumps(_bench_serve(detailed=True, start_times=["x"] * 5)),
        "request 0: start_times: must be a number of at least 0, not 'x'",
    ),
    "count.json": (
        json.dumps(_aiperf_summary({"num_prompts": "x"}) | {"request_count": None}),
        "request_count: avg: must be a number of at least 0, not 'x'",
    ),
    "infinite.json": (
        json.dumps(_aiperf_summary({}) | {"input_sequence_length": {"avg": "inf"}}),
        "input_sequence_length: avg: must be finite, not 'inf'",
    ),
    "users.json": (
        json.dumps(_bench_serve(detailed=False, max_concurrency="inf")),
        "max_concurrency: must be finite, not 'inf'",
    ),
    "gaps.json": (
        json.dumps(_bench_serve(detailed=True, itls=[["x"]] * 5)),
        "request 0: itls: must be a number of at least 0",
    ),
    "columns.csv": ("arrival_s,tokens\n1,2\n", "a request has arrival_s, input_tokens"),
    "rows.csv": (_table().replace(",11,", ",x,"), "output_tokens: must be a whole number"),
    "none.csv": ("arrival_s,input_tokens,output_tokens,latency_s\n", "holds no requests"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, name):
    content, expected = WRONG[name]
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_client_runs(tmp_path / name)
    assert expected in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
