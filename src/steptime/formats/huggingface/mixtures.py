"""Text decoders with mixtures of experts."""

from collections.abc import Sequence

from steptime.core.errors import shorten
from steptime.formats.huggingface.config import Config, Settings, join_numbers, repeat_letter
from steptime.formats.huggingface.decoders import (
    attention_biases,
    decoder,
    list_window_letters,
    llama,
    mistral,
    qwen2,
    qwen3,
    rounded_width_of_heads,
)
from steptime.formats.huggingface.further_decoders import ernie4_5, olmo2
from steptime.formats.huggingface.types import model_type


def read_experts(config: Config, count_field: str, count: int, per_token: int) -> Settings:
    """Describe how many experts there are and how many a token chooses.

    Args:
        config: the fields of the file.
        count_field: the field that says the number of experts.
        count: its default.
        per_token: the default of `num_experts_per_tok`.
    """
    return {
        "experts": config.get(count_field, count),
        "experts_per_token": config.get("num_experts_per_tok", per_token),
    }


@model_type("mixtral")
def mixtral(config: Config) -> Settings:
    """Describe Mixtral: every block has experts, of the width of a dense part."""
    config.rename(num_experts="num_local_experts", file_spelling_wins=True)  # where both are
    config.fill_defaults(sliding_window=0)
    return mistral(config) | read_experts(config, "num_local_experts", count=8, per_token=2)


def read_mixture_layers(config: Config) -> Settings:
    """Describe which blocks of Qwen's mixtures have experts, and of which width."""
    dense_layers = config.get("mlp_only_layers", [])
    return {
        "expert_ffn": config.get("moe_intermediate_size", 768),
        "dense_at": join_numbers(dense_layers),
        "expert_every": config.get("decoder_sparse_step", 1),
    }


def read_shared_expert(config: Config, default: int) -> Settings:
    """Describe the expert of all tokens in Qwen's mixtures, which a gate weighs."""
    width = config.get("shared_expert_intermediate_size", default)
    return {"shared_ffn": width, "shared_gate": True}


@model_type("qwen2_moe")
def qwen2_moe(config: Config) -> Settings:
    """Describe Qwen 1.5 MoE and Qwen 2 57B-A14B."""
    config.fill_defaults(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=16,
        moe_intermediate_size=1408,
    )
    settings = qwen2(config) | read_experts(config, "num_experts", count=60, per_token=4)
    settings |= read_mixture_layers(config)
    settings |= read_shared_expert(config, default=5632)
    return settings | {"qkv_bias": config.get("qkv_bias", True)}


@model_type("qwen3_moe")
def qwen3_moe(config: Config) -> Settings:
    """Describe the mixtures of Qwen 3."""
    config.rename(num_experts="num_local_experts")
    config.fill_defaults(
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=24,
        num_key_value_heads=4,
        head_dim=0,
        max_window_layers=0,
    )
    settings = qwen3(config) | read_experts(config, "num_local_experts", count=128, per_token=8)
    return settings | read_mixture_layers(config)


@model_type("qwen3_vl_moe_text", "Qwen3VLMoe")
def qwen3_vl_moe_text(config: Config) -> Settings:
    """Describe the decoder of the mixtures of Qwen 3 VL."""
    config.fill_defaults(
        intermediate_size=5632,
        max_position_embeddings=128000,
        num_key_value_heads=16,
        num_attention_heads=16,
        moe_intermediate_size=1408,
        num_experts_per_tok=4,
        num_local_experts=60,
    )
    return qwen3_moe(config)


@model_type("qwen3_5_text", "Qwen3_5")
def qwen3_5_text(config: Config) -> Settings:
    """Describe the decoder of dense Qwen 3.5: three blocks in four keep a state (delta rule)."""
    config.fill_defaults(
        vocab_size=248320,
        intermediate_size=12288,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        partial_rotary_factor=0.25,
    )
    period = config.get("full_attention_interval", 4)
    return qwen3(config) | {
        "attention_gate": True,
        # "l": a block keeps a state, "a": it attends to all tokens; the letters repeat
        "windows": repeat_letter("l", period - 1, "a"),
        "linear_heads": config.get("linear_num_value_heads", 32),
        "linear_key_heads": config.get("linear_num_key_heads", 16),
        "linear_width": config.get("linear_key_head_dim", 128),
        "linear_value_width": config.get("linear_value_head_dim", 128),
        "linear_kernel": config.get("linear_conv_kernel_dim", 4),
    }


@model_type("qwen3_next", "Qwen3Next")
def qwen3_next(config: Config) -> Settings:
    """Describe Qwen3-Next: as Qwen 3.5, with experts in every block."""
    config.fill_defaults(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=48,
        num_key_value_heads=2,
        moe_intermediate_size=512,
    )
    settings = qwen3_5_text(config) | read_experts(config, "num_experts", count=512, per_token=10)
    return settings | read_mixture_layers(config) | read_shared_expert(config, default=512)


@model_type("qwen3_5_moe_text", "Qwen3_5Moe")
def qwen3_5_moe_text(config: Config) -> Settings:
    """Describe the decoder of the mixtures of Qwen 3.5."""
    config.fill_defaults(
        vocab_size=248320, num_hidden_layers=40, num_experts_per_tok=8, num_experts=256
    )
    return qwen3_next(config)


@model_type("gpt_oss")
def gpt_oss(config: Config) -> Settings:
    """Describe gpt-oss: sinks, a window in every second block, biases everywhere."""
    config.rename(num_experts="num_local_experts", file_spelling_wins=True)  # of both the first
    config.fill_defaults(
        vocab_size=201088,
        hidden_size=2880,
        intermediate_size=2880,
        num_hidden_layers=36,
        max_position_embeddings=131072,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        attention_bias=True,
    )
    settings = {**decoder(config), **attention_biases(config)}
    return (
        settings
        | read_experts(config, "num_local_experts", count=128, per_token=4)
        | {
            "sinks": True,
            "clamped": True,
            "window": config.get("sliding_window", 128),
            # "w": a block sees a window, "a": all tokens; the letters repeat
            "windows": "wa",
            "bias": True,
            "router_bias": True,
        }
    )


@model_type("glm4_moe")
def glm4_moe(config: Config) -> Settings:
    """Describe GLM 4.5 to 4.7."""
    config.rename(num_local_experts="n_routed_experts")
    config.fill_defaults(
        vocab_size=151552,
        intermediate_size=10944,
        num_hidden_layers=46,
        max_position_embeddings=131072,
        num_attention_heads=96,
        num_key_value_heads=8,
        partial_rotary_factor=0.5,
    )
    is_normed = config.get("use_qk_norm", False)
    expert_width = config.get("moe_intermediate_size", 1408)
    return (
        decoder(config, rounded_width_of_heads(config))
        | read_experts(config, "n_routed_experts", count=128, per_token=8)
        | {
            "qkv_bias": config.get("attention_bias", False),
            "qk_norm": "head" if is_normed else "none",
            "expert_ffn": expert_width,
            "shared_ffn": config.get("n_shared_experts", 1) * expert_width,
            "dense_layers": config.get("first_k_dense_replace", 1),
        }
    )


@model_type("glm4v_moe_text", "Glm4vMoe")
def glm4v_moe_text(config: Config) -> Settings:
    """Describe the decoder of GLM 4.5V."""
    config.fill_defaults(vocab_size=151424, attention_bias=True)
    return glm4_moe(config)


@model_type("dots1")
def dots1(config: Config) -> Settings:
    """Describe dots.llm1."""
    config.fill_defaults(
        vocab_size=152064,
        hidden_size=4608,
        num_hidden_layers=62,
        max_position_embeddings=2048,
        num_attention_heads=32,
        num_key_value_heads=32,
        head_dim=0,
        partial_rotary_factor=1.0,
        max_window_layers=62,
        n_shared_experts=2,
        num_experts_per_tok=6,
        first_k_dense_replace=0,
    )
    settings = glm4_moe(config)
    return settings | {
        "out_bias": settings["qkv_bias"],
        "qk_norm": "head",
        "window": config.get("sliding_window", 4096),
        "windows": list_window_letters(config),
    }


@model_type("minimax_m2", "MiniMaxM2")
def minimax_m2(config: Config) -> Settings:
    """Describe MiniMax M2 to M2.7: all queries and keys are normed at once."""
    config.fill_defaults(
        vocab_size=200064,
        hidden_size=3072,
        intermediate_size=1536,
        num_hidden_layers=62,
        max_position_embeddings=196608,
        num_attention_heads=48,
        head_dim=128,
        num_local_experts=256,
        num_experts_per_tok=8,
    )
    config.require("shared_intermediate_size", only=0)
    config.require("qk_norm_type", only="per_layer")
    settings = mixtral(config)
    is_normed = config.get("use_qk_norm", True)
    return settings | {
        "rotary_width": config.get("rotary_dim", 0) or settings["rotary_width"],
        "qk_norm": "all" if is_normed else "none",
    }


@model_type("hunyuan_v1_moe", "HunYuanMoEV1")
def hunyuan_v1_moe(config: Config) -> Settings:
    """Describe the mixtures of Hunyuan, with an expert of all tokens."""
    config.fill_defaults(vocab_size=290943, intermediate_size=11008, head_dim=128)
    settings = {**decoder(config), **attention_biases(config)}
    return settings | {
        "qk_norm": "head",
        "experts": config.get("num_experts", 1),
        "experts_per_token": config.get("moe_topk", 1),
        "shared_ffn": settings["ffn"],
    }


@model_type("ernie4_5_moe", "Ernie4_5_Moe")
def ernie4_5_moe(config: Config) -> Settings:
    """Describe the mixtures of ERNIE 4.5."""
    config.rename(num_experts="moe_num_experts", num_experts_per_tok="moe_k")
    config.fill_defaults(
        hidden_size=2560,
        intermediate_size=12288,
        num_hidden_layers=28,
        num_attention_heads=20,
        num_key_value_heads=4,
        head_dim=0,
    )
    settings = ernie4_5(config)
    config.require("moe_layer_end_index", only=settings["layers"] - 1)
    expert_width = config.get("moe_intermediate_size", 1536)
    return settings | {
        "experts": config.get("moe_num_experts", 64),
        "experts_per_token": config.get("moe_k", 6),
        "expert_ffn": expert_width,
        "shared_ffn": config.get("moe_num_shared_experts", 2) * expert_width,
        "dense_layers": config.get("moe_layer_start_index", 1),
        "expert_every": config.get("moe_layer_interval", 1),
        "router_bias": True,
    }


@model_type("olmoe")
def olmoe(config: Config) -> Settings:
    """Describe OLMoE."""
    config.rename(num_local_experts="num_experts")
    config.fill_defaults(
        hidden_size=2048,
        intermediate_size=2048,
        num_hidden_layers=16,
        max_position_embeddings=4096,
        num_attention_heads=16,
    )
    config.require("clip_qkv", only=0.0)
    settings = olmo2(config) | read_experts(config, "num_experts", count=64, per_token=8)
    return settings | {"norms": "before"}


@model_type("phimoe")
def phimoe(config: Config) -> Settings:
    """Describe Phi 3.5 MoE."""
    config.rename(num_experts="num_local_experts")
    config.fill_defaults(vocab_size=32064, intermediate_size=6400, sliding_window=0)
    settings = {**mistral(config), **attention_biases(config)}
    settings |= read_experts(config, "num_local_experts", count=16, per_token=2)
    return settings | {"norm": "layer", "head_bias": config.get("lm_head_bias", False)}


@model_type("granitemoe", "GraniteMoe")
def granitemoe(config: Config) -> Settings:
    """Describe the mixtures of Granite 3."""
    settings = llama(config) | read_experts(config, "num_local_experts", count=8, per_token=2)
    return settings | {"ffn_bias": False}


@model_type("granitemoeshared", "GraniteMoeShared")
def granitemoeshared(config: Config) -> Settings:
    """Describe the mixtures of Granite 3 with an expert of all tokens."""
    return granitemoe(config) | {"shared_ffn": config.get("shared_intermediate_size", 0)}


def describe_expert_layers(config: Config, expert_layers: Sequence[object], count: int) -> Settings:
    """Describe which blocks have experts, by their numbers from 0."""
    for layer in expert_layers:
        if type(layer) is not int or not 0 <= layer < count:
            raise config.error("moe_layers", f"{shorten(layer)} is none of {count} layers")
    dense_layers = [layer for layer in range(count) if layer not in {*expert_layers}]
    return {"dense_at": join_numbers(dense_layers), "expert_every": 1}


@model_type("llama4_text", "Llama4")
def llama4_text(config: Config) -> Settings:
    """Describe the decoder of Llama 4: one expert a token beside one of all tokens."""
    config.rename(no_rope_layers="chunked_at")
    config.fill_defaults(
        vocab_size=202048,
        hidden_size=5120,
        intermediate_size=8192,
        num_hidden_layers=48,
        max_position_embeddings=131072,
        num_attention_heads=40,
        num_key_value_heads=8,
        head_dim=128,
    )
    config.require("no_rope_layer_interval", only=4)
    config.remark("rotary positions are counted in all blocks; those without a window have none")
    window = config.get("attention_chunk_size", 8192)
    if window:
        config.remark(
            "attention in chunks is counted as a window, which is the same up to its length"
        )
    if config.get("use_qk_norm", True):
        config.remark("norms of queries and keys, which have no weights, are not counted")
    # `no_rope_layers` is 1 where a block rotates by place: such a block attends in chunks ("w"),
    # the others attend to all tokens ("a")
    chunk_flags = config.get("chunked_at", [])
    window_letters = "".join("w" if is_chunked else "a" for is_chunked in chunk_flags)
    expert_layers = config.get("moe_layers", [])
    settings = {**decoder(config), **attention_biases(config)}
    expert_width = settings["ffn"]
    settings |= {
        "window": window,
        "windows": window_letters or "wwwa",
        "expert_ffn": expert_width,
        "shared_ffn": expert_width,
        "ffn": config.get("intermediate_size_mlp", 16384),
        "expert_every": config.get("interleave_moe_layer_step", 1),
    }
    settings |= read_experts(config, "num_local_experts", count=16, per_token=1)
    if expert_layers:  # the list wins over the interval
        settings |= describe_expert_layers(config, expert_layers, settings["layers"])
    return settings
