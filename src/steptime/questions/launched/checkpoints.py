"""The types in which checkpoints of the Hugging Face Hub keep their weights, by their ids."""

from __future__ import annotations

import re

OPTION_AND_TYPE_BY_WORD = {  # option of `serve`, and its value
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
# Beginnings of names whose weights are published in fewer bits, the longest first.
OPTION_AND_TYPE_BY_PREFIX = (
    ("kimi-k2-thinking", ("weights", "int4")),
    ("kimi-k2.5", ("weights", "int4")),
    ("kimi-k2", ("dtype", "float8")),
    ("deepseek-v3", ("dtype", "float8")),
    ("deepseek-r1", ("dtype", "float8")),
    ("minimax-m2", ("dtype", "float8")),
    ("gpt-oss", ("weights", "mxfp4")),
)
UNQUANTISED_WORDS = {"bf16", "fp16", "distill"}


def find_checkpoint_option_and_type(model: str) -> tuple[str, str] | None:
    """Return the option of `serve` and its value that the id of a checkpoint says.

    A word of the id says it (`Qwen3-32B-AWQ`), or the publisher's choice (`DeepSeek-V3`); None
    for one of 16 bits.

    Args:
        model: id or path of a checkpoint.
    """
    name = model.rstrip("/").rpartition("/")[2].lower()
    words = re.split(r"[-_.]", name)
    for word in words:
        if word in OPTION_AND_TYPE_BY_WORD:
            return OPTION_AND_TYPE_BY_WORD[word]
    is_unquantised = not UNQUANTISED_WORDS.isdisjoint(words)
    if is_unquantised:
        return None
    # These makers publish their networks in one type, which the id need not say.
    for prefix, option_and_type in OPTION_AND_TYPE_BY_PREFIX:
        if name.startswith(prefix):
            return option_and_type
    return None
