"""The format of the quantised weights that a `config.json` states."""

from collections.abc import Mapping
from typing import Any

from steptime.core.errors import shorten

FIELD = "quantization_config"
FORMATS_OF_WORDS = {"mxfp4": "mxfp4", "nvfp4": "float4", "fp8": "float8"}  # words of a method
BITS_OF_FLAGS = {"load_in_4bit": 4, "load_in_8bit": 8}  # of bitsandbytes


def weights_format(table: Mapping[str, Any]) -> str:
    """Return the format of the quantised weights of a `config.json`: int4, float8, mxfp4, or "".

    Read are `quant_method`, `quant_algo` (NVFP4, FP8 of ModelOpt), the first group of
    compressed-tensors, and numbers of bits (AWQ, GPTQ, bitsandbytes).
    """
    config = table.get(FIELD)
    if not isinstance(config, Mapping):
        return ""
    groups = config.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = group.get("weights") if isinstance(group, Mapping) else None
    weights = weights if isinstance(weights, Mapping) else {}
    words = " ".join(str(config.get(key, "")) for key in ("quant_method", "quant_algo", "format"))
    for word, weights_format_ in FORMATS_OF_WORDS.items():
        if word in words.lower():
            return weights_format_
    bits = weights.get("num_bits", config.get("bits", config.get("w_bit")))
    kind = "float" if weights.get("type") == "float" else "int"
    if config.get("load_in_4bit") or str(bits) == "4":
        return f"{kind}4"
    return f"{kind}8" if config.get("load_in_8bit") or str(bits) == "8" else ""


def describe_quantisation(table: Mapping[str, Any]) -> list[str]:
    """Describe quantised weights, if a file has them: the method, and what counts them so."""
    config = table.get(FIELD)
    if not (isinstance(config, dict) and config):
        return []
    flag = next((key for key in BITS_OF_FLAGS if config.get(key)), "")
    bits = config.get("bits") or BITS_OF_FLAGS.get(flag)
    method = shorten(config.get("quant_method", "an unnamed method"))[1:-1]
    method += f" in {shorten(bits)[1:-1]} bits" if bits else ""
    storage = weights_format(table)
    only = f"only serve keeps them so (--weights {storage})"
    effect = only if storage else "they are counted as they were before"
    return [f"its weights are quantised ({method}); {effect}"]
