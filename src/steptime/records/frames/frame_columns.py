"""The columns of a frame of records: types, and values of workloads, methods and environments.

Each text of a workload, a method or an environment, which repeat from record to record, is
described once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import polars as pl

from steptime.core.workload import plan_to_json
from steptime.records.reading import MAX_CACHED_TEXTS, env_of, method_of, workload_of
from steptime.records.record import measured_stack
from steptime.records.row import AMOUNTS, ENVIRONMENT_TEXTS, ESTIMATE, RATES, Row, settings_of

LARGEST_INT = 2**63
SAMPLES = pl.List(pl.Float64())
RUNS = pl.List(pl.Int64())
SAMPLED = pl.Struct({"samples": SAMPLES, "run": RUNS})
STRING = pl.String()
NUMBER = pl.Float64()
COUNT = pl.Int64()
PLAIN_COLUMNS = {
    "folder": STRING,
    "folder_rank": COUNT,
    "place": COUNT,
    "record_id": STRING,
    "seq": COUNT,
    **dict.fromkeys(("origin", "status", "platform", "scope", "workload_key"), STRING),
    **dict.fromkeys(("cause", "note", "taken_at"), STRING),
    **dict.fromkeys(sorted(AMOUNTS), NUMBER),
    **dict.fromkeys(("stated_low", "stated_high"), NUMBER),
    "samples": SAMPLES,
    "run": RUNS,
    "step_s_interval": STRING,
    "infeed": NUMBER,
    **dict.fromkeys(("runs", "samples_n", "samples_disturbed", "marks_n"), COUNT),
}
NESTED_COLUMNS = {
    "samples": SAMPLES,
    "run": RUNS,
    "others": pl.List(pl.Struct({"key": STRING, "value": STRING})),
    "sampled": pl.List(pl.Struct({"key": STRING, "value": SAMPLED})),
}
WORKLOAD_COLUMNS = {
    **dict.fromkeys(("model", "family"), STRING),
    **dict.fromkeys(("batch", "examples", "replicas"), COUNT),
    **dict.fromkeys(("dtype", "phase", "optimizer", "plan", "settings", "params"), STRING),
}
METHOD_COLUMNS = {
    **dict.fromkeys(("method", "method_version", "ran_by", "method_options"), STRING),
    "threads": COUNT,
    "gpu": STRING,
    "strategy": STRING,
    "device_count": COUNT,
    "overlap": pl.Boolean(),
    "input": STRING,
    "staging": STRING,
    "loaders": COUNT,
    "prefetch": COUNT,
    **dict.fromkeys(RATES, NUMBER),
}
ENVIRONMENT_COLUMNS = {
    "env": STRING,
    "round": COUNT,
    "date": STRING,
    "duplicate_of": STRING,
    **dict.fromkeys(ENVIRONMENT_TEXTS, STRING),
}
ESTIMATED = pl.Struct(dict.fromkeys(ESTIMATE, NUMBER))
DERIVED = {
    "global_batch": COUNT,
    **{f"step_s_{name}": NUMBER for name in ("min", "max", "mean", "p5", "p95")},
    **dict.fromkeys(
        ("examples_per_s", "examples_uncertainty_per_s", "examples_jitter_per_s"), NUMBER
    ),
    "estimate": ESTIMATED,
}
SCHEMA: Mapping[str, pl.DataType] = {
    name: kind
    for name, kind in {
        **PLAIN_COLUMNS,
        **NESTED_COLUMNS,
        **WORKLOAD_COLUMNS,
        **METHOD_COLUMNS,
        **ENVIRONMENT_COLUMNS,
        **DERIVED,
    }.items()
    if name != "ran_by"
}
"""The columns of a frame and their types."""


def other_number(name: str) -> pl.Expr:
    """Return the number of a quantity that is no column; None where a record has none."""
    entry = pl.element()
    has_name = entry.struct.field("key") == name
    values = pl.col("others").list.eval(entry.filter(has_name).struct.field("value"))
    return values.list.first().cast(NUMBER, strict=False)


def add_settings(rows: pl.LazyFrame, names: Sequence[str]) -> pl.LazyFrame:
    """Add hyperparameters as columns of texts, None where a network has none of this name."""
    if not names:
        return rows
    # The texts repeat: each distinct one is parsed once, and rows are joined to the result.
    json_texts = rows.select("params").unique().collect()["params"].to_list()
    settings_of_texts = [json.loads(text) for text in json_texts]
    columns = {
        name: pl.Series(
            [_to_text(settings.get(name)) for settings in settings_of_texts], dtype=STRING
        )
        for name in names
    }
    settings_table = pl.DataFrame({"params": pl.Series(json_texts, dtype=STRING), **columns})
    return rows.join(settings_table.lazy(), on="params", how="left", maintain_order="left")


@lru_cache(MAX_CACHED_TEXTS)
def describe_workload(text: bytes) -> Row:
    """Return the columns of a workload's JSON text."""
    workload = workload_of(text)
    return {
        "model": workload.file or workload.label,
        "family": workload.family,
        "batch": workload.batch_per_replica,
        "examples": workload.global_batch,
        "replicas": workload.plan.data,
        "dtype": workload.dtype,
        "phase": workload.phase,
        "optimizer": workload.optimizer,
        "plan": json.dumps(plan_to_json(workload.plan)),
        "settings": json.dumps(settings_of(workload)),
        "params": json.dumps(workload.settings),
    }


@lru_cache(MAX_CACHED_TEXTS)
def describe_environment(text: bytes) -> Row:
    """Return the columns of an environment's JSON text."""
    env = env_of(text)
    return {
        "env": json.dumps(env, sort_keys=True),
        "round": _parse_integer(env.get("round")),
        "date": _to_text(env.get("date")) or None,
        "duplicate_of": _to_text(env.get("duplicate_of")) or None,
        **{name: _to_text(env.get(name)) for name in ENVIRONMENT_TEXTS},
    }


@lru_cache(MAX_CACHED_TEXTS)
def describe_method(text: bytes, origin: str, replicas: int) -> Row:
    """Return the columns of a method's JSON text; None is unknown, or without meaning."""
    method = method_of(text)
    options = method.options
    # One device a replica unless the method says another number, or that it is unknown (null).
    device_count = _parse_integer(options.get("device_count", replicas))
    is_stated_unknown = "device_count" in options and options["device_count"] is None
    if device_count is None and not is_stated_unknown:
        device_count = replicas
    return {
        "method": method.label,
        "method_version": method.version,
        "ran_by": measured_stack(method) if origin == "measured" else None,
        "method_options": json.dumps(options, sort_keys=True),
        "threads": _parse_integer(options.get("threads")),
        **{name: _to_text(options.get(name)) or None for name in ("gpu", "strategy")},
        "device_count": device_count,
        "overlap": _to_text(options.get("overlap")) not in ("false", "0"),  # true by default
        **_describe_input(options, origin == "measured"),
        **{name: _parse_rate(options.get(name)) for name in RATES},
    }


def _describe_input(options: Mapping[str, Any], is_measured: bool) -> Row:
    """Return the columns of the input of a step; a measurement leaves out default options."""
    source = _to_text(options.get("input"))
    staging = _to_text(options.get("staging"))
    loaders = _to_text(options.get("loaders"))
    prefetch = _to_text(options.get("prefetch"))
    if is_measured:  # a measured record leaves out options that have their default
        source = source or "device"
        reads_files = source == "dataset"
        staging = (staging or "shared") if reads_files else None
        loaders = (loaders or "0") if reads_files else None
        has_loader_processes = loaders is not None and loaders != "0"
        prefetch = (prefetch or "2") if has_loader_processes else None
    return {
        "input": source,
        "staging": staging,
        "loaders": _parse_integer(loaders),
        "prefetch": _parse_integer(prefetch),
    }


def _to_text(value: Any) -> str | None:
    """Return a JSON value as text, one that is a text as it is; None stays None."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _parse_float(value: Any) -> float | None:
    """Return a value as a number, "1.5" too; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _parse_integer(value: Any) -> int | None:
    """Return a value as a whole number of a table; None if it is no number, or too large."""
    number = _parse_float(value)
    return None if number is None or not abs(number) < LARGEST_INT else round(number)


def _parse_rate(value: Any) -> float | None:
    """Return a value as a rate of a device; None if no device has such a rate."""
    number = _parse_float(value)
    return number if number is not None and 1 <= number <= 1e30 else None
