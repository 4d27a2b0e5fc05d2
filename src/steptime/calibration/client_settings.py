"""What results of clients say of the server, by the names of `serve`'s options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Any

from steptime.core.errors import InputError, shorten

SETTING_NAMES: Mapping[str, tuple[str, ...]] = {
    "model": ("model", "model_id", "model_path"),
    "device": ("device", "gpu", "gpu_type"),
    "tensor": ("tensor", "tp", "tp_size", "tensor_parallel_size"),
    "pipeline": ("pipeline", "pp", "pp_size", "pipeline_parallel_size"),
    "data": ("data", "dp", "dp_size", "data_parallel_size"),
    "expert": ("expert", "ep", "ep_size", "expert_parallel_size"),
    "dtype": ("dtype",),
    "weights": ("weights", "quantization"),
    "kv": ("kv", "kv_cache_dtype"),
    "stack": ("stack",),
    "prefix": ("prefix",),
    "per_node": ("per_node",),
    "max_running_sequences": ("max_running_sequences", "max_num_seqs", "max_running_requests"),
    "max_num_batched_tokens": ("max_num_batched_tokens", "chunked_prefill_size"),
    "gpu_memory_utilization": ("gpu_memory_utilization",),
}
"""Settings of a server, and the names that tools and their users give them."""

BACKEND_STACKS = {"vllm": "vllm", "sglang": "sglang", "trt": "trt-llm", "tensorrt-llm": "trt-llm"}
"""Stacks by how the name of a client's backend begins."""
UNSET = (None, "", "auto", "none", "null")
MAX_DEPTH = 12  # of documents that are searched for a key


def read_settings(*tables: Any) -> dict[str, object]:
    """Return the settings that tables have, the first of them that has each."""
    settings: dict[str, object] = {}
    for setting, names in SETTING_NAMES.items():
        # The first table that states a setting wins, and the first of its names there.
        values = [
            table.get(name) for table in tables if isinstance(table, Mapping) for name in names
        ]
        stated = [value for value in values if value not in UNSET and _is_plain(value)]
        if stated:
            settings[setting] = stated[0]
    return settings


def stack_of_backend(backend: object) -> dict[str, object]:
    """Return the stack that the name of a client's backend says, nothing where it says none.

    Clients of the OpenAI interface reach every server.
    """
    text = str(backend).lower()  # such as "vllm-chat": its beginning names the server
    stacks = (stack for start, stack in BACKEND_STACKS.items() if text.startswith(start))
    stack = next(stacks, None)
    return {} if stack is None else {"stack": stack}


def find_values(document: Any, name: str, depth: int = 0) -> Iterator[object]:
    """Yield the plain values of a key anywhere in a document; of a list its first."""
    if depth > MAX_DEPTH:
        return
    if isinstance(document, Mapping):
        value = document.get(name)
        if isinstance(value, list) and value:
            # Of several models or servers the first one is taken.
            value = value[0]
        if value not in UNSET and _is_plain(value):
            yield value
        for inner in document.values():
            yield from find_values(inner, name, depth + 1)
    elif isinstance(document, list):
        for inner in document:
            yield from find_values(inner, name, depth + 1)


def find_value(document: Any, *names: str) -> Any:
    """Return the first plain value of one of some keys in a document; None without one."""
    for name in names:
        for value in find_values(document, name):
            return value
    return None


def read_number(table: Mapping[str, Any], name: str, place: str) -> float | None:
    """Return a number of a table, None where it has none; `inf` is infinite.

    Raises:
        InputError: for another text.
    """
    value = table.get(name)
    if value is None or value == "":
        return None
    try:
        number = nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = nan
    is_valid = number >= 0  # which NaN is not
    if not is_valid:
        raise InputError(f"{place}: {name}: must be a number of at least 0, not {shorten(value)}")
    return number


def read_finite(table: Mapping[str, Any], name: str, place: str) -> float:
    """Return a finite number that a table must have; raises `InputError`."""
    number = read_number(table, name, place)
    if number is None:
        raise InputError(f"{place}: has no {name}")
    if not isfinite(number):
        raise InputError(f"{place}: {name}: must be finite, not {shorten(table[name])}")
    return number


def read_finite_count(table: Mapping[str, Any], name: str, place: str) -> int:
    """Return a number of a table as a count, 0 where it has none; raises `InputError`."""
    return int(read_finite(table, name, place)) if table.get(name) not in (None, "") else 0


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
