"""Readers of what clients write: vLLM's and SGLang's benchmarks, AIPerf, GenAI-Perf, GuideLLM.

Each format is known by its keys. A table of requests, CSV or JSON lines, is one more.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from steptime.calibration.client_request_table import read_request_table
from steptime.calibration.client_runs import (
    ClientRequest,
    ClientRun,
    RunFacts,
    RunMeans,
    Traffic,
    make_run_from_means,
    make_run_from_requests,
)
from steptime.calibration.client_settings import (
    find_value,
    read_finite,
    read_finite_count,
    read_number,
    read_settings,
    stack_of_backend,
)
from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.core.tables.table_files import CSV_ENDINGS, decode
from steptime.core.toml_files import format_path

MS = 1e-3
NS = 1e-9
UNITS_S = {"ns": NS, "us": 1e-6, "ms": MS, "s": 1.0, "sec": 1.0, "seconds": 1.0}
FORMATS_TEXT = "vllm bench serve, SGLang's bench_serving, AIPerf, GenAI-Perf, GuideLLM or a table"
UNLIMITED = "inf"


def read_client_runs(path: Path) -> list[ClientRun]:
    """Return the runs of a file of results.

    Raises:
        InputError: for a file that cannot be read, of no such format, or without requests.
    """
    place = format_path(path)
    if path.name.lower().removesuffix(".gz").endswith(CSV_ENDINGS):
        return read_request_table(path)
    documents = _read_documents(path)
    if not documents:
        raise InputError(f"{place}: holds no results")
    # Formats are told apart by the keys of their first document.
    is_aiperf_export = "metadata" in documents[0] and "metrics" in documents[0]
    if is_aiperf_export:
        return [_read_aiperf_requests(documents, place)]
    if _has_request_columns(documents[0]):
        return read_request_table(path)
    runs: list[ClientRun] = []
    for number, document in enumerate(documents, start=1):
        row_place = place if len(documents) == 1 else f"{place}:{number}"
        runs += _read_document(document, row_place, place)
    return runs


def _read_document(document: JsonObject, place: str, group: str) -> list[ClientRun]:
    """Return the runs of one JSON document; raises `InputError` for one of no known format."""
    # Each tool has keys that no other one writes.
    if isinstance(document.get("benchmarks"), list):
        return _read_guidellm(document, place)
    if "experiments" in document:
        text = f"{place}: GenAI-Perf's raw requests have no tokens"
        raise InputError(f"{text}; nearest: the profile_export_genai_perf.json beside it")
    if isinstance(document.get("request_latency"), Mapping):
        return [_read_aiperf_means(document, place)]
    if "mean_ttft_ms" in document or "ttfts" in document:
        return [_read_bench_serve(document, place, group)]
    raise InputError(f"{place}: is no result of {FORMATS_TEXT} of requests")


def _read_documents(path: Path) -> list[JsonObject]:
    """Return the JSON documents of a file: one, a list of some, or one per line."""
    place = format_path(path)
    try:
        content = path.read_bytes()
        is_gzip = content.startswith(b"\x1f\x8b")
        content = gzip.decompress(content) if is_gzip else content
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{place}: {getattr(error, 'strerror', None) or error}") from None
    text = decode(content)
    try:
        documents = json.loads(text)
    # Not one document, then one on each line.
    except (ValueError, RecursionError):
        documents = [
            _parse_line(line, f"{place}:{number}") for number, line in _numbered_lines(text)
        ]
    documents = documents if isinstance(documents, list) else [documents]
    if any(not isinstance(document, dict) for document in documents):
        raise InputError(f"{place}: is no result of {FORMATS_TEXT} of requests")
    return documents


def _numbered_lines(text: str) -> list[tuple[int, str]]:
    numbered_lines = enumerate(text.splitlines(), start=1)
    return [(number, line) for number, line in numbered_lines if line.strip()]


def _parse_line(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{place}: is no JSON; a CSV of requests ends in .csv") from None


def _has_request_columns(document: JsonObject) -> bool:
    return "input_tokens" in document or "input_length" in document


def _read_bench_serve(document: JsonObject, place: str, group: str) -> ClientRun:
    """Return a run of `vllm bench serve` or of SGLang's `bench_serving`.

    Both have the same keys; requests one by one are in results that were saved in detail.
    """
    rate = read_number(document, "request_rate", place) or 0.0
    burstiness = read_number(document, "burstiness", place)
    traffic = Traffic(
        concurrency=read_finite_count(document, "max_concurrency", place),
        # An infinite rate means that all requests are sent at once, which 0 stands for.
        rate=0.0 if rate == inf else rate,
        burstiness=burstiness or 1.0,
    )
    backend = stack_of_backend(document.get("backend"))
    settings = {**backend, **read_settings(document, document.get("server_info"))}
    make_facts = partial(RunFacts, place=place, group=group, settings=settings, traffic=traffic)
    if isinstance(document.get("ttfts"), list):
        requests, failed_count = _read_bench_requests(document, place)
        return make_run_from_requests(requests, make_facts(failed_count=failed_count))
    facts = make_facts(failed_count=read_finite_count(document, "failed", place))
    completed = int(read_finite(document, "completed", place))
    # vLLM's name of the key, then SGLang's.
    request_ms = _read_first_nonzero(document, ("mean_e2el_ms", "mean_e2e_latency_ms"), place)
    tpot_ms = _read_first_nonzero(document, ("mean_tpot_ms", "mean_itl_ms"), place)
    ttft_ms = _read_first_nonzero(document, ("mean_ttft_ms",), place)
    means = RunMeans(
        count=completed,
        input_tokens=read_finite(document, "total_input_tokens", place) / max(1, completed),
        output_tokens=read_finite(document, "total_output_tokens", place) / max(1, completed),
        ttft_s=None if ttft_ms is None else MS * ttft_ms,
        request_s=None if request_ms is None else MS * request_ms,
        tpot_s=None if tpot_ms is None else MS * tpot_ms,
    )
    return make_run_from_means(means, facts)


def _read_bench_requests(document: JsonObject, place: str) -> tuple[list[ClientRequest], int]:
    """Return the requests of a detailed result that succeeded, and how many failed."""
    request_count = len(document["ttfts"])  # one list for each figure, with an entry per request
    for name in ("input_lens", "output_lens", "itls"):
        column = document.get(name)
        if not isinstance(column, list) or len(column) != request_count:
            raise InputError(f"{place}: {name}: must be a list of {request_count} values, as ttfts")
    starts_s = document.get("start_times")
    has_starts = isinstance(starts_s, list) and len(starts_s) == request_count
    requests = []
    for i in range(request_count):
        # A request without tokens or without a first token failed, whether it has an error or not.
        has_answer = document["output_lens"][i] and document["ttfts"][i]
        if has_answer and not _has_error(document, i):
            requests.append(_read_bench_request(document, i, has_starts, f"{place}: request {i}"))
    failed_count = request_count - len(requests)
    return requests, failed_count


def _has_error(document: JsonObject, request_index: int) -> bool:
    """Return whether a detailed result lists an error of a request; it may list fewer or none."""
    errors = document.get("errors")
    return isinstance(errors, list) and request_index < len(errors) and bool(errors[request_index])


def _read_bench_request(
    document: JsonObject, request_index: int, has_starts: bool, place: str
) -> ClientRequest:
    """Return one request of a detailed result, whose lists have an entry for each request."""
    # The times between tokens ("inter-token latencies"): a list of them or their sum.
    gaps_s = document["itls"][request_index]
    cells = {
        "ttft": document["ttfts"][request_index],
        "input": document["input_lens"][request_index],
        "output": document["output_lens"][request_index],
        "itls": _sum_gaps(gaps_s) if isinstance(gaps_s, list) else gaps_s,
        "start_times": document["start_times"][request_index] if has_starts else None,
    }
    first_token_s = read_finite(cells, "ttft", place)
    return ClientRequest(
        arrival_s=read_finite(cells, "start_times", place) if has_starts else None,
        input_tokens=int(read_finite(cells, "input", place)),
        output_tokens=int(read_finite(cells, "output", place)),
        ttft_s=first_token_s,
        request_s=first_token_s + read_finite(cells, "itls", place),
    )


def _sum_gaps(gaps_s: Sequence[Any]) -> object:
    """Return the sum of the times between tokens, or the times themselves if one is no number."""
    try:
        return sum(gaps_s)
    except TypeError:
        return gaps_s  # the caller refuses them


def _read_first_nonzero(table: JsonObject, names: Sequence[str], place: str) -> float | None:
    """Return the first number that is not 0 among those of these names, None without one."""
    numbers = (read_number(table, name, place) for name in names)
    return next((number for number in numbers if number), None)


def _read_metric(metrics: Mapping[str, Any], name: str, key: str, place: str) -> float | None:
    """Return a metric of AIPerf or GenAI-Perf, in seconds where it has a unit of time."""
    metric = metrics.get(name)
    if not isinstance(metric, Mapping) or metric.get(key) in (None, ""):
        return None
    number = read_finite(metric, key, f"{place}: {name}")
    return number * UNITS_S.get(str(metric.get("unit")), 1.0)


def _read_aiperf_requests(records: Sequence[JsonObject], place: str) -> ClientRun:
    """Return the run of AIPerf's `profile_export.jsonl`, one record per request."""
    requests: list[ClientRequest] = []
    profiled_records = [
        record
        for record in records
        # Requests of the warm-up are no part of the run.
        if record.get("metadata", {}).get("benchmark_phase", "profiling") == "profiling"
    ]
    for i, record in enumerate(profiled_records):
        metrics, metadata = record.get("metrics"), record["metadata"]
        if record.get("error") or metadata.get("was_cancelled") or not metrics:
            continue
        row_place = f"{place}: record {i}"
        request_s = _read_metric(metrics, "request_latency", "value", row_place)
        input_tokens = _read_metric(metrics, "input_sequence_length", "value", row_place)
        output_tokens = _read_metric(metrics, "output_sequence_length", "value", row_place)
        if request_s is None or input_tokens is None or not output_tokens:
            continue
        start_ns = read_number(metadata, "request_start_ns", row_place)
        request = ClientRequest(
            arrival_s=None if start_ns is None else NS * start_ns,
            input_tokens=max(1, round(input_tokens)),
            output_tokens=max(1, round(output_tokens)),
            ttft_s=_read_metric(metrics, "time_to_first_token", "value", row_place),
            request_s=request_s,
        )
        requests.append(request)
    facts = RunFacts(place=place, group=place, failed_count=len(profiled_records) - len(requests))
    return make_run_from_requests(requests, facts)


def _read_aiperf_means(document: JsonObject, place: str) -> ClientRun:
    """Return the run of AIPerf's or GenAI-Perf's summary in JSON."""
    config = document.get("input_config", {})
    count = _read_metric(document, "request_count", "avg", place)
    if count is None:
        # The number that was asked for, as a metric, so that it is checked as metrics are.
        setting = find_value(config, "request_count", "num_prompts")
        count = _read_metric({"request_count": {"avg": setting}}, "request_count", "avg", place)
    input_tokens = _read_metric(document, "input_sequence_length", "avg", place)
    output_tokens = _read_metric(document, "output_sequence_length", "avg", place)
    if count is None or input_tokens is None or output_tokens is None:
        text = "request_count, input_sequence_length and output_sequence_length"
        raise InputError(f"{place}: a summary has {text}")
    model = find_value(config, "model_names", "model", "models")
    settings = {**({} if model is None else {"model": model}), **read_settings(config, document)}
    facts = RunFacts(
        place=place, group=place, settings=settings, traffic=_read_traffic(config, place)
    )
    means = RunMeans(
        count=int(count),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        ttft_s=_read_metric(document, "time_to_first_token", "avg", place),
        request_s=_read_metric(document, "request_latency", "avg", place),
    )
    return make_run_from_means(means, facts)


def _read_traffic(config: Any, place: str) -> Traffic:
    """Return the traffic that the configuration of a tool describes."""
    table = {
        "concurrency": find_value(config, "concurrency", "streams", "max_concurrency"),
        "rate": find_value(config, "request_rate", "rate"),
    }
    mode = str(find_value(config, "request_rate_mode", "arrival_pattern", "type_", "kind"))
    rate = read_number(table, "rate", place) or 0.0
    has_equal_gaps = mode in ("constant", "async")
    return Traffic(
        concurrency=read_finite_count(table, "concurrency", place),
        # An infinite rate means that all requests are sent at once, which 0 stands for.
        rate=0.0 if rate == inf else rate,
        # The shape of the gamma distribution of gaps: infinite if equal, 1 of a Poisson process.
        burstiness=inf if has_equal_gaps else 1.0,
    )


def _read_guidellm(document: JsonObject, place: str) -> list[ClientRun]:
    """Return the benchmarks of a GuideLLM report."""
    runs = []
    arguments = document.get("args", {})
    for i, benchmark in enumerate(document["benchmarks"]):
        row_place = f"{place}: benchmarks[{i}]"
        if not isinstance(benchmark, Mapping):
            raise InputError(f"{row_place}: must be a table")
        config = benchmark.get("config", benchmark.get("args", {}))
        strategy = config.get("strategy", {}) if isinstance(config, Mapping) else {}
        # A synchronous client sends a request when the one before is answered.
        is_synchronous = isinstance(strategy, Mapping) and strategy.get("type_") == "synchronous"
        traffic = _read_traffic(strategy, row_place)
        if is_synchronous:
            traffic = Traffic(concurrency=1)
        model = find_value(config, "model") or find_value(arguments, "model")
        settings = {} if model is None else {"model": model}
        request_table = benchmark.get("requests", {})
        rows_by_status = request_table if isinstance(request_table, Mapping) else {}
        failed_count = len(rows_by_status.get("errored") or ())
        facts = RunFacts(
            place=row_place,
            group=place,
            settings=settings,
            traffic=traffic,
            failed_count=failed_count,
        )
        requests = [
            _read_guidellm_request(row, f"{row_place}: request {number}")
            for number, row in enumerate(rows_by_status.get("successful") or ())
        ]
        if requests:  # else only their means are in the report
            with_tokens = [request for request in requests if request is not None]
            runs.append(make_run_from_requests(with_tokens, facts))
        else:
            runs.append(make_run_from_means(_read_guidellm_means(benchmark, row_place), facts))
    if not runs:
        raise InputError(f"{place}: holds no benchmarks")
    return runs


def _read_guidellm_request(row: JsonObject, place: str) -> ClientRequest | None:
    """Return a request of GuideLLM, None for one without tokens."""
    start_s = _read_first_nonzero(row, ("request_start_time", "start_time"), place)
    end_s = _read_first_nonzero(row, ("request_end_time", "end_time"), place)
    request_s = read_number(row, "request_latency", place)
    if request_s is None and start_s is not None and end_s is not None:
        request_s = end_s - start_s
    output_tokens = read_number(row, "output_tokens", place)
    input_tokens = read_number(row, "prompt_tokens", place)
    # Without these numbers it cannot be compared with a prediction.
    if not request_s or not output_tokens or not input_tokens:
        return None
    ttft_ms = read_number(row, "time_to_first_token_ms", place)
    return ClientRequest(
        arrival_s=start_s,
        input_tokens=round(input_tokens),
        output_tokens=round(output_tokens),
        ttft_s=None if ttft_ms is None else MS * ttft_ms,
        request_s=request_s,
    )


def _read_guidellm_means(benchmark: Mapping[str, Any], place: str) -> RunMeans:
    """Return the means of a report without its requests."""
    metrics = benchmark.get("metrics", {})

    def read_statistic(name: str, key: str) -> float | None:
        metric = metrics.get(name, {}).get("successful", {})
        return read_number(metric, key, f"{place}: {name}")

    names = ("prompt_token_count", "output_token_count", "request_latency")
    values = [read_statistic(name, "mean") for name in names]
    count = read_statistic("request_latency", "count")
    if None in values or count is None:
        raise InputError(f"{place}: has no requests, and no means of {', '.join(names)}")
    input_tokens, output_tokens, request_s = (value or 0.0 for value in values)
    ttft_ms = read_statistic("time_to_first_token_ms", "mean")
    ttft_s = None if ttft_ms is None else MS * ttft_ms
    return RunMeans(
        count=int(count),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        ttft_s=ttft_s,
        request_s=request_s,
    )
