"""Options that are emitted for vLLM and SGLang are options of these tools, with values of a type.

The names and types were read from the source in their wheels (`scripts/read-engine-options`).
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from steptime.launch.emit import emit_job

OPTIONS = tomllib.loads(Path(__file__).with_name("engine_options.toml").read_text("utf-8"))
SERVER = {
    "tensor": 2,
    "pipeline": 2,
    "data": 4,
    "expert": 8,
    "devices": 16,
    "dtype": "bfloat16",
    "weights": "float8",
    "kv_dtype": "float8",
    "max_model_len": 8192,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
}
JOBS = [
    ("vllm", {**SERVER, "gpu_memory_utilization": 0.8}),
    ("vllm", {**SERVER, "chunked_prefill": False, "weights": "mxfp4"}),
    ("vllm", {**SERVER, "weights": "nf4"}),
    ("sglang", {**SERVER, "mem_fraction_static": 0.85}),
    ("sglang", {"tensor": 8, "chunked_prefill": False}),
]
VALUES = {"int": r"-?\d+", "float": r"\d*\.?\d+", "bool": r"", "str": r".+"}


def _pairs(command: str) -> list[tuple[str, str]]:
    """Return the options of a command with their values, "" for a flag."""
    words = shlex.split(command.replace("\\\n", " "))
    pairs: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("--"):
            pairs.append((word, ""))
        elif pairs and not pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], word)
    return pairs


@pytest.mark.parametrize("tool", ["vllm", "sglang"])
def test_options_have_a_version(tool):
    assert re.fullmatch(r"\d+\.\d+\.\d+", OPTIONS[tool]["version"])
    assert len(OPTIONS[tool]["options"]) > 200


@pytest.mark.parametrize(("tool", "facts"), JOBS)
def test_each_emitted_option_is_one_of_the_tool(tool, facts):
    options = OPTIONS[tool]["options"]
    pairs = _pairs(emit_job(tool, "serve", "Qwen/Qwen3-8B", facts))
    assert pairs
    for option, value in pairs:
        positive = option if option in options else option.replace("--no-", "--", 1)
        assert positive in options, option
        kinds = [kind for kind in VALUES if re.search(rf"\b{kind}\b", options[positive])]
        if kinds:
            assert any(re.fullmatch(VALUES[kind], value) for kind in kinds), (option, value)


READ = {
    "vllm": "--tensor-parallel-size --pipeline-parallel-size --data-parallel-size --max-model-len "
    "--max-num-seqs --max-num-batched-tokens --gpu-memory-utilization --kv-cache-dtype "
    "--enable-prefix-caching --enable-chunked-prefill --enable-expert-parallel "
    "--speculative-config",
    "sglang": "--tp-size --pp-size --dp-size --ep-size --context-length --max-running-requests "
    "--mem-fraction-static --kv-cache-dtype --chunked-prefill-size --enable-dp-attention "
    "--disable-radix-cache --max-total-tokens",
}


@pytest.mark.parametrize("tool", READ)
def test_each_option_that_is_read_is_one_of_the_tool(tool):
    assert [name for name in READ[tool].split() if name not in OPTIONS[tool]["options"]] == []
