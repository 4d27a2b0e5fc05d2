"""Defaults of a transformer's hyperparameters that follow from others, and sizes that cannot be."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from steptime.core.workload import Value

Parameters = Mapping[str, Any]
Default = Callable[[Mapping[str, Value]], Value]


def _is_encoder(p: Parameters) -> bool:
    return bool(p["kind"] == "encoder")


def _copy_rule(name: str) -> Default:
    """Return the rule that takes the value of another hyperparameter."""
    return lambda p: p[name]


def _choose(for_encoder: Value, for_decoder: Value) -> Default:
    """Return the rule that takes one value for encoders and another for decoders."""
    return lambda p: for_encoder if _is_encoder(p) else for_decoder


def _head_count(p: Parameters) -> Value:
    """Return heads of a width of 64."""
    return max(1, int(p["width"]) // 64)


def _head_width(p: Parameters) -> Value:
    """Return the width of a head, 0 if the heads do not divide the width."""
    width, heads = int(p["width"]), int(p["heads"])
    return 0 if width % heads else width // heads


def _ffn_width(p: Parameters) -> Value:
    return 4 * int(p["width"])


DEFAULTS: Mapping[str, Default] = {
    "heads": _head_count,
    "kv_heads": _copy_rule("heads"),
    "ffn": _ffn_width,
    "length": _choose(512, 1024),
    "max_length": _copy_rule("length"),
    "vocabulary": _choose(30522, 50257),
    "segments": _choose(2, 0),
    "pooler": _is_encoder,
    "norms": _choose("after", "before"),
    "final_norm": lambda p: p["norms"] != "after",
    "embedding_norm": lambda p: p["norms"] == "after",
    "head_width": _head_width,
    "value_width": _copy_rule("head_width"),
    "rotary_width": _copy_rule("head_width"),
    "qkv_bias": _copy_rule("bias"),
    "key_bias": _copy_rule("qkv_bias"),
    "out_bias": _copy_rule("bias"),
    "ffn_bias": _copy_rule("bias"),
    "linear_key_heads": _copy_rule("linear_heads"),
    "linear_value_width": _copy_rule("linear_width"),
    "expert_ffn": _copy_rule("ffn"),
    "expert_bias": _copy_rule("ffn_bias"),
    "embedding_width": _copy_rule("width"),
    "decoder_heads": _copy_rule("heads"),
    "decoder_ffn": _copy_rule("ffn"),
    "target_length": _copy_rule("length"),
    "target_rows": _copy_rule("max_length"),
    "head": _choose("none", "words"),
    "class_bias": _is_encoder,
}


def check_transformer(p: Parameters) -> str | None:
    """Return the first fault of hyperparameters that do not fit together, None if all do."""
    for rules in (_head_faults, _position_faults, _decoder_faults, _expert_faults, _layer_faults):
        fault = next(rules(p), None)
        if fault is not None:
            return fault
    return None


def _head_faults(p: Parameters) -> Iterator[str]:
    if not p["head_width"]:
        yield f"width {p['width']} does not divide into {p['heads']} heads"
    if p["heads"] % p["kv_heads"]:
        yield f"heads {p['heads']} do not share {p['kv_heads']} kv_heads"


def _position_faults(p: Parameters) -> Iterator[str]:
    rotary_width, head_width = p["rotary_width"], p["head_width"]
    if p["positions"] == "rotary":
        # only the first fault is reported, and a user who gave no rotary_width has this one
        is_odd = bool(rotary_width % 2)
        if is_odd and rotary_width == head_width:
            yield f"rotary positions need an even head width, not {rotary_width}"
        if is_odd or rotary_width > head_width:
            yield (
                f"rotary_width {rotary_width} is not an even part of the head width {head_width}"
            )
    length, max_length, first_position = p["length"], p["max_length"], p["first_position"]
    has_position_table = p["positions"] == "learned" and p["stem"] == "words"
    if has_position_table and max_length < first_position + length:
        unused_rows = f" less {first_position}" if first_position else ""
        yield f"length {length} is larger than max_length {max_length}{unused_rows}"
    if p["stem"] == "patches" and p["image"] % p["patch"]:
        yield f"image {p['image']} does not divide into patches of {p['patch']}"


def _decoder_faults(p: Parameters) -> Iterator[str]:
    if not p["decoder_layers"]:
        return
    heads = p["decoder_heads"]
    width = p["width"]
    # only with as many heads as the encoder's can it use `head_width`; else they divide the width
    divides_width = heads == p["heads"] or width % heads == 0
    if not _is_encoder(p) or not divides_width:
        yield f"a decoder of {heads} heads reads an encoder of width {width}"
    length, position_rows = p["target_length"], p["target_rows"]
    if p["positions"] == "learned" and position_rows < p["first_position"] + length:
        yield f"target_length {length} is larger than target_rows {position_rows}"


def _expert_faults(p: Parameters) -> Iterator[str]:
    experts, per_token = p["experts"], p["experts_per_token"]
    groups, groups_per_token = p["expert_groups"], p["groups_per_token"]
    if experts and p["activation"] == "xielu":
        yield f"experts have no activation {p['activation']}"
    if experts % groups:
        yield f"expert_groups {groups} do not divide {experts} experts"
    if groups_per_token > groups:
        yield f"groups_per_token {groups_per_token} of {groups} expert_groups"
    if not experts:
        return
    if per_token > experts:
        yield f"experts_per_token {per_token} of {experts} experts"
    # a token first chooses groups, and then its experts among those of these groups
    eligible_experts = experts // groups * groups_per_token
    if per_token > eligible_experts:
        yield (
            f"experts_per_token {per_token} of {groups_per_token} groups of {groups} "
            f"of {experts} experts"
        )


def _layer_faults(p: Parameters) -> Iterator[str]:
    if p["latent_kv"]:
        has_positions = p["positions"] in ("rotary", "none")
        if not has_positions or p["kv_heads"] != p["heads"]:
            yield "latent_kv needs rotary positions and kv_heads as many as heads"
        if p["rotary_width"] >= p["head_width"]:
            yield f"latent_kv needs a rotary_width below the head width {p['head_width']}"
    linear_heads, key_heads = p["linear_heads"], p["linear_key_heads"]
    has_linear_attention = "l" in p["windows"]  # a letter for each block, such as "lllg"
    if has_linear_attention and not linear_heads:
        yield f"windows {p['windows']} with l need linear_heads"
    if linear_heads and linear_heads % max(key_heads, 1):
        yield f"linear_heads {linear_heads} do not share {key_heads} linear_key_heads"
    is_latent = p["latent_q"] or p["latent_kv"]
    has_other_bias = p["key_bias"] != p["qkv_bias"]
    if p["merged_qkv"] and (is_latent or has_other_bias):
        yield "merged_qkv needs key_bias as qkv_bias, and neither latent_q nor latent_kv"
