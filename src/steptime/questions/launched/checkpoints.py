"""The types in which checkpoints of the Hugging Face Hub keep their weights, by their ids."""

from __future__ import annotations

import re

CHECKPOINT_WORDS = {  # option of `serve`, and its value
    "fp8": ("dtype", "float8"),
    "nvfp4": ("dtype", "float4"),
    "fp4": ("dtype", "float4"),
    "mxfp4": ("weights", "mxfp4"),
    "int8": ("weights", "int8"),
    "w8a16": ("weights", "int8"),
    "w8a8": ("weights", "int8"),
    "8bit": ("weights", "int8"),
    **dict.fromkeys(("awq", "gptq", "int4", "w4a16", "4bit", "autoround"), ("weights", "int4")),
}
PUBLISHED = (  # beginnings of names whose weights are published in fewer bits, the longest first
    ("kimi-k2-thinking", ("weights", "int4")),
    ("kimi-k2.5", ("weights", "int4")),
    ("kimi-k2", ("dtype", "float8")),
    ("deepseek-v3", ("dtype", "float8")),
    ("deepseek-r1", ("dtype", "float8")),
    ("minimax-m2", ("dtype", "float8")),
    ("gpt-oss", ("weights", "mxfp4")),
)
PLAIN_WORDS = {"bf16", "fp16", "distill"}


def checkpoint_type(model: str) -> tuple[str, str] | None:
    """Return the option of `serve` and its value that the id of a checkpoint says.

    A word of the id says it (`Qwen3-32B-AWQ`), or the publisher's choice (`DeepSeek-V3`); None
    for one of 16 bits.

    Args:
        model: id or path of a checkpoint.
    """
    name = model.rstrip("/").rpartition("/")[2].lower()
    words = re.split(r"[-_.]", name)
    for word in words:
        if word in CHECKPOINT_WORDS:
            return CHECKPOINT_WORDS[word]
    is_plain_checkpoint = not PLAIN_WORDS.isdisjoint(words)
    if is_plain_checkpoint:
        return None
    for prefix, option_and_type in PUBLISHED:
        if name.startswith(prefix):
            return option_and_type
    return None
