"""The format of the quantised weights that a `config.json` states."""

import re
from collections.abc import Mapping
from typing import Any

from steptime.core.errors import shorten
from steptime.core.workload import DEQUANTISED_FORMATS, STORED_ALL, STORED_MLP

FIELD = "quantization_config"
FORMATS_OF_WORDS = {"mxfp4": "mxfp4", "nvfp4": "float4", "fp8": "float8"}  # words of a method
PLAIN_MODULES = ("modules_to_not_convert", "ignore", "exclude_modules")
_ATTENTION = r"(self_attn|attention|attn)"
_ATTENTION_OF_LAYERS = re.compile(
    rf"^(re:)?(model\.)?[.*]*(layers\.(\*|\\d\+))?[.*\\]*{_ATTENTION}"
)
_ATTENTION_OF_LAYER = re.compile(rf"layers\.(\d+)\.{_ATTENTION}")
BITS_OF_FLAGS = {"load_in_4bit": 4, "load_in_8bit": 8}  # of bitsandbytes


def weights_format(table: Mapping[str, Any]) -> str:
    """Return the format of the quantised weights of a `config.json`: int4, nf4, float8, or "".

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
    if config.get("load_in_4bit") or config.get("_load_in_4bit"):
        return "nf4-dq" if config.get("bnb_4bit_use_double_quant") else "nf4"
    if str(bits) == "4":
        return f"{kind}4"
    return f"{kind}8" if config.get("load_in_8bit") or str(bits) == "8" else ""


def find_quantised_part(table: Mapping[str, Any]) -> str:
    """Return the weights that a file keeps quantised: `all` of the layers, or outside attention.

    Files name the modules that they leave as they were: `modules_to_not_convert`, `ignore`,
    `exclude_modules`. A pattern that names the attention of all layers decides.
    """
    config = table.get(FIELD)
    if not isinstance(config, Mapping):
        return STORED_ALL
    names: list[str] = []
    for key in PLAIN_MODULES:
        value = config.get(key)
        names += [str(name) for name in value] if isinstance(value, list) else []
    count = table.get("num_hidden_layers")
    layers = {match[1] for name in names if (match := _ATTENTION_OF_LAYER.search(name))}
    is_plain = any(_ATTENTION_OF_LAYERS.search(name) for name in names)
    is_plain |= isinstance(count, int) and 0 < count <= len(layers)
    return STORED_MLP if is_plain else STORED_ALL


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
    if not storage:
        return [f"its weights are quantised ({method}), which is not read; they count as before"]
    place = " outside attention" if find_quantised_part(table) == STORED_MLP else ""
    text = f"its weights{place} are {storage} ({method}) in inference and under adapters"
    wide = "; a training of all of them has them in its --dtype"
    return [text + (wide if storage in DEQUANTISED_FORMATS else "")]
