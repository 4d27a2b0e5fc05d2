"""The format of the quantised weights that a `config.json` states."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from steptime.core.errors import shorten
from steptime.core.workload import DEQUANTISED_FORMATS, STORED_ALL, STORED_EXPERTS, STORED_MLP

FIELD = "quantization_config"
FORMAT_BY_WORD = {"mxfp4": "mxfp4", "nvfp4": "float4", "fp8": "float8"}  # words of a method
UNQUANTISED_FIELDS = (  # fields that list the modules that a file leaves as they were
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
    "skip_modules",
)
PROJECTIONS = {  # linear layers of a block, by the names that people's files have
    "attention": (
        "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj",
        "self_attn.q_a_proj self_attn.q_b_proj self_attn.kv_a_proj_with_mqa self_attn.kv_b_proj",
        "attn.qkv attn.proj",
        "attention.query attention.key attention.value attention.dense",
        "attention.wq attention.wk attention.wv attention.wo",
    ),
    "dense": ("mlp.gate_proj mlp.up_proj mlp.down_proj",),
}
SAMPLE_LAYERS = 8  # blocks whose modules are looked up, spread over all
HALF = 0.5
EXPRESSION = "re:"  # begins a regular expression
PART_NAMES = {STORED_ALL: "", STORED_MLP: " outside attention", STORED_EXPERTS: " of experts"}
BITS_OF_FLAGS = {"load_in_4bit": 4, "load_in_8bit": 8}  # of bitsandbytes


def weights_format(table: Mapping[str, Any]) -> str:
    """Return the format of the quantised weights of a `config.json`: int4, nf4, float8, or "".

    Read are `quant_method`, `quant_algo` (NVFP4, FP8 of ModelOpt), the first group of
    compressed-tensors, and numbers of bits (AWQ, GPTQ, bitsandbytes).
    """
    config = table.get(FIELD)
    if not isinstance(config, Mapping):
        return ""
    # AWQ, GPTQ and bitsandbytes state bits, NVFP4 and FP8 a word, compressed-tensors groups
    methods = (str(config.get(key, "")) for key in ("quant_method", "quant_algo", "format"))
    method_text = " ".join(methods).lower()
    for word, format_of_word in FORMAT_BY_WORD.items():
        if word in method_text:
            return format_of_word
    is_nf4 = config.get("load_in_4bit") or config.get("_load_in_4bit")
    if is_nf4:
        return "nf4-dq" if config.get("bnb_4bit_use_double_quant") else "nf4"
    group_weights = _weights_of_first_group(config)
    bits = str(group_weights.get("num_bits", config.get("bits", config.get("w_bit"))))
    kind = "float" if group_weights.get("type") == "float" else "int"
    if bits == "4":
        return f"{kind}4"
    if bits == "8" or config.get("load_in_8bit"):
        return f"{kind}8"
    return ""


def _weights_of_first_group(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the first group's weights in compressed-tensors, {} without one."""
    groups = config.get("config_groups")
    first_group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first_group.get("weights") if isinstance(first_group, Mapping) else None
    return weights if isinstance(weights, Mapping) else {}


def find_quantised_part(table: Mapping[str, Any]) -> str:
    """Return the weights that a file keeps quantised: all, those outside attention, or experts'.

    Files list the modules that they leave as they were, by names, parts of names, wildcards or
    regular expressions (`re:.*self_attn.*`); compressed-tensors also lists those that it
    quantises (`targets`), GPTQ those of a block. Most projections of most blocks decide.
    """
    config = table.get(FIELD)
    if not isinstance(config, Mapping):
        return STORED_ALL
    stated_layers = table.get("num_hidden_layers")
    layer_count = stated_layers if type(stated_layers) is int and stated_layers > 0 else 1
    # a part counts as unquantised if most of its modules in a sample of blocks are: attention is
    # the first that files leave out, then the dense feed-forward parts
    if not _is_left_unquantised(config, _sample_modules("attention", layer_count)):
        return STORED_ALL
    leaves_dense_unquantised = _is_left_unquantised(config, _sample_modules("dense", layer_count))
    return STORED_EXPERTS if leaves_dense_unquantised else STORED_MLP


def _sample_modules(part: str, layer_count: int) -> list[list[str]]:
    """Return the linear layers of a part in some blocks, under each spelling of their names."""
    step = max(1, layer_count // SAMPLE_LAYERS)
    middle_layer = layer_count // 2
    sample_layers = range(middle_layer % step, layer_count, step)  # one of them is the middle one
    return [
        [f"model.layers.{layer}.{name}" for layer in sample_layers for name in names.split()]
        for names in PROJECTIONS[part]
    ]


def _is_left_unquantised(config: Mapping[str, Any], spellings: Sequence[Sequence[str]]) -> bool:
    """Whether a file leaves most modules of a part as they were, under any spelling of them."""
    # each spelling lists the same modules by the names that some files have
    unquantised_patterns = [
        pattern for field in UNQUANTISED_FIELDS for pattern in _collect_texts(config.get(field))
    ]
    if any(_matched_share(unquantised_patterns, modules) > HALF for modules in spellings):
        return True
    # where a file lists what it quantises, all else is left
    targets = _list_target_modules(config)
    if not targets:
        return False
    return all(_matched_share(targets, modules) <= HALF for modules in spellings)


def _matched_share(patterns: Sequence[str], modules: Sequence[str]) -> float:
    """Return the share of modules that some pattern stands for."""
    matching_modules = [
        module for module in modules if any(_names_module(pattern, module) for pattern in patterns)
    ]
    return len(matching_modules) / len(modules)


def _collect_texts(value: object) -> list[str]:
    """Return the texts of a list, also of lists in it, [] for another value."""
    if not isinstance(value, list):
        return []
    nested = [text for item in value for text in _collect_texts(item)]
    return [item for item in value if isinstance(item, str)] + nested


def _names_module(pattern: str, module: str) -> bool:
    """Whether a name, a part of one, a wildcard or a regular expression stands for a module."""
    if pattern.startswith(EXPRESSION):
        try:
            return re.match(pattern.removeprefix(EXPRESSION), module) is not None
        except re.error:
            return False
    layer_pattern = re.sub(r"^.*?(?=layers\.)", "", pattern)  # without the prefix of the model
    layer_module = module.removeprefix("model.")
    is_wildcard = "*" in layer_pattern
    if is_wildcard:
        candidates = (layer_pattern, f"*{layer_pattern}", f"{layer_pattern}.*")
        return any(fnmatchcase(layer_module, candidate) for candidate in candidates)
    return f".{layer_pattern}." in f".{layer_module}."


def _list_target_modules(config: Mapping[str, Any]) -> list[str]:
    """Return the modules that a file lists as quantised, [] where it lists none by name."""
    modules_of_block = _collect_texts(config.get("modules_in_block_to_quantize"))
    if modules_of_block:
        return modules_of_block
    groups = config.get("config_groups")
    targets: list[str] = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if isinstance(group, Mapping):
            targets += _collect_texts(group.get("targets"))
    # a target such as `Linear` is a class of layers, of which modules are not known
    has_classes = any("." not in target and target[:1].isupper() for target in targets)
    return [] if has_classes else targets


def describe_quantisation(table: Mapping[str, Any]) -> list[str]:
    """Describe quantised weights, if a file has them: the method, and what counts them so."""
    config = table.get(FIELD)
    if not (isinstance(config, dict) and config):
        return []
    flag = next((key for key in BITS_OF_FLAGS if config.get(key)), "")
    bits = config.get("bits") or BITS_OF_FLAGS.get(flag)
    # `shorten` quotes a text: [1:-1] drops the quotes
    method = shorten(config.get("quant_method", "an unnamed method"))[1:-1]
    method += f" in {shorten(bits)[1:-1]} bits" if bits else ""
    storage = weights_format(table)
    if not storage:
        return [f"its weights are quantised ({method}), which is not read; they count as before"]
    place = PART_NAMES[find_quantised_part(table)]
    text = f"its weights{place} are {storage} ({method}) in inference and under adapters"
    training_clause = "; a training of all of them has them in its --dtype"
    return [text + (training_clause if storage in DEQUANTISED_FORMATS else "")]
