"""Tables of requests: when each was sent, its tokens, and its times, by a row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from steptime.calibration.client_runs import (
    ClientRequest,
    ClientRun,
    RunFacts,
    Traffic,
    make_run_from_requests,
)
from steptime.calibration.client_settings import read_finite, read_finite_count, read_settings
from steptime.core.errors import InputError, shorten
from steptime.core.json_types import JsonObject
from steptime.core.tables.table_files import table_rows
from steptime.core.toml_files import format_path
from steptime.core.values import parse_count
from steptime.serving.demand import MAX_REQUESTS, MAX_TOKENS

TIME_UNITS = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6}
TIME_COLUMNS: Mapping[str, Sequence[str]] = {
    "arrival": ("arrival", "start", "sent"),
    "ttft": ("ttft", "first_token"),
    "request": ("request", "latency", "e2e", "e2el"),
}
"""Columns of times, each with a unit behind: `ttft_s`, `latency_ms`."""
TOKEN_COLUMNS = (("input_tokens", "input_length"), ("output_tokens", "output_length"))
COLUMNS_TEXT = "arrival_s, input_tokens, output_tokens, ttft_s and latency_s"
RUN_COLUMN = "run"


def read_request_table(path: Path) -> list[ClientRun]:
    """Return the runs of a table of requests; a column `run` tells several apart.

    Columns of the server, such as `model`, `device` and `tensor`, are read from the first row of
    each run.

    Raises:
        InputError: for a table without the columns, and rows that are no requests.
    """
    source = format_path(path)
    rows_by_run: dict[str, list[tuple[str, JsonObject]]] = {}
    for count, (number, row) in enumerate(table_rows(path)):
        if count >= MAX_REQUESTS:
            raise InputError(f"{source}: more than {MAX_REQUESTS:,} requests")
        name = str(row.get(RUN_COLUMN, ""))
        rows_by_run.setdefault(name, []).append((f"{source}:{number}", row))
    if not rows_by_run:
        raise InputError(f"{source}: holds no requests")
    return [
        _read_run(rows, f"{source}: run {name}" if name else source)
        for name, rows in rows_by_run.items()
    ]


def _read_run(rows: Sequence[tuple[str, JsonObject]], place: str) -> ClientRun:
    """Return the run of some rows; those without a time of the request failed."""
    first_place, first_row = rows[0]
    request_column = _find_time_column(first_row, "request")
    if request_column is None:
        text = f"{first_place}: a request has {COLUMNS_TEXT}"
        raise InputError(f"{text}, not {shorten(', '.join(first_row))}")
    # By convention a row without a time is a request that failed.
    requests = [_read_request(row, row_place) for row_place, row in rows if row.get(request_column)]
    concurrency = read_finite_count(first_row, "concurrency", first_place)
    facts = RunFacts(
        place=place,
        group=place,
        settings=read_settings(first_row),
        traffic=Traffic(concurrency=concurrency),
        failed_count=len(rows) - len(requests),
    )
    return make_run_from_requests(requests, facts)


def _read_request(row: JsonObject, place: str) -> ClientRequest:
    """Read the request of a row: its tokens and its times; raises `InputError`."""
    token_counts = []
    for names in TOKEN_COLUMNS:
        name = next((name for name in names if name in row), None)
        if name is None:
            raise InputError(f"{place}: a request has {COLUMNS_TEXT}")
        token_counts.append(parse_count(row[name], f"{place}: {name}", at_most=MAX_TOKENS))
    request_s = _read_time_s(row, "request", place)
    if request_s is None:
        raise InputError(f"{place}: has no time of the request")
    input_tokens, output_tokens = token_counts
    return ClientRequest(
        arrival_s=_read_time_s(row, "arrival", place),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        ttft_s=_read_time_s(row, "ttft", place),
        request_s=request_s,
    )


def _find_time_column(row: JsonObject, quantity: str) -> str | None:
    """Return the column of a quantity, with its unit; None where a row has none."""
    names = (name + unit for name in TIME_COLUMNS[quantity] for unit in TIME_UNITS)
    return next((name for name in names if name in row), None)


def _read_time_s(row: JsonObject, quantity: str, place: str) -> float | None:
    column = _find_time_column(row, quantity)
    if column is None or row[column] in (None, ""):
        return None
    unit = column[column.rindex("_") :]
    return read_finite(row, column, place) * TIME_UNITS[unit]
