"""Text decoders with multi-head latent attention (MLA): keys and values from one narrow vector."""

from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.decoders import attention_biases, decoder
from steptime.formats.huggingface.types import model_type


def latent_attention(config: Config) -> Settings:
    """Describe attention whose keys and values come from a narrow vector (DeepSeek-V2)."""
    rotary_width = config.get("qk_rope_head_dim", 64)
    head_width = config.get("qk_nope_head_dim", 128) + rotary_width
    config.ignore_field("head_dim", 0)
    settings = decoder(config, head_width)
    return {
        **settings,
        **attention_biases(config),
        "kv_heads": settings["heads"],
        "rotary_width": rotary_width,
        "value_width": config.get("v_head_dim", 128),
        "latent_q": config.get("q_lora_rank", 1536),
        "latent_kv": config.get("kv_lora_rank", 512),
    }


@model_type("deepseek_v3")
def deepseek_v3(config: Config) -> Settings:
    """Describe DeepSeek-V3 and R1: latent attention, experts in groups."""
    config.rename(num_local_experts="n_routed_experts")
    config.fill_defaults(
        vocab_size=129280,
        hidden_size=7168,
        intermediate_size=18432,
        num_hidden_layers=61,
        max_position_embeddings=4096,
        num_attention_heads=128,
    )
    expert_width = config.get("moe_intermediate_size", 2048)
    return latent_attention(config) | {
        "experts": config.get("n_routed_experts", 256),
        # null in place of a number means that there is no choice or no group
        "experts_per_token": config.get("num_experts_per_tok", 8) or 1,
        "expert_groups": config.get("n_group", 8) or 1,
        "groups_per_token": config.get("topk_group", 4) or 1,
        "expert_ffn": expert_width,
        "shared_ffn": config.get("n_shared_experts", 1) * expert_width,
        "dense_layers": config.get("first_k_dense_replace", 3),
    }


@model_type("deepseek_v2")
def deepseek_v2(config: Config) -> Settings:
    """Describe DeepSeek-V2."""
    config.rename(num_experts="n_routed_experts")
    config.fill_defaults(
        vocab_size=102400,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        max_position_embeddings=2048,
        num_attention_heads=32,
        moe_intermediate_size=1407,
        n_shared_experts=2,
        n_routed_experts=64,
        n_group=0,
        topk_group=0,
        first_k_dense_replace=0,
        num_experts_per_tok=0,
    )
    has_bias = config.get("mlp_bias", False)
    return deepseek_v3(config) | {"ffn_bias": has_bias, "expert_bias": False}


@model_type("longcat_flash", "LongcatFlash")
def longcat_flash(config: Config) -> Settings:
    """Describe LongCat-Flash: a layer is two blocks, and a mixture stands beside one dense part."""
    config.rename(
        ffn_hidden_size="intermediate_size",
        expert_ffn_hidden_size="moe_intermediate_size",
        moe_topk="num_experts_per_tok",
    )
    config.fill_defaults(
        vocab_size=131072,
        hidden_size=6144,
        intermediate_size=12288,
        max_position_embeddings=131072,
        num_attention_heads=64,
        n_routed_experts=512,
        num_experts_per_tok=12,
    )
    config.require("zero_expert_type", only="identity")
    config.require("router_bias", only=False)
    zero_experts = config.get("zero_expert_num", 256)
    settings = deepseek_v3(config)
    if zero_experts:
        config.remark("identity experts are assumed to be chosen as often as computing experts")
    computing_experts = settings["experts"]
    all_experts = computing_experts + zero_experts
    return settings | {
        "layers": 2 * config.get("num_layers", 28),  # a layer of the file is two blocks
        # of those that a token is routed to, the share that computes
        "experts_per_token": settings["experts_per_token"] * computing_experts // all_experts,
        "zero_experts": zero_experts,
        "expert_groups": 1,
        "groups_per_token": 1,
        # the dense part of the block with the mixture counts as an expert of all tokens
        "shared_ffn": settings["ffn"],
        "dense_layers": 0,
        "expert_every": 2,
    }


@model_type("kimi_k2", "DeepseekV3")
def kimi_k2(config: Config) -> Settings:
    """Describe Kimi K2: DeepSeek-V3 with more experts and fewer heads."""
    config.fill_defaults(
        vocab_size=163840,
        n_routed_experts=384,
        first_k_dense_replace=1,
        max_position_embeddings=131072,
        num_attention_heads=64,
    )
    return deepseek_v3(config)


@model_type("glm4_moe_lite", "Glm4MoeLite")
def glm4_moe_lite(config: Config) -> Settings:
    """Describe GLM 4.7 Flash."""
    config.fill_defaults(
        vocab_size=154880,
        hidden_size=2048,
        intermediate_size=10240,
        num_hidden_layers=47,
        max_position_embeddings=202752,
        num_attention_heads=20,
        q_lora_rank=768,
        v_head_dim=256,
        qk_nope_head_dim=192,
        moe_intermediate_size=1536,
        n_routed_experts=64,
        num_experts_per_tok=4,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
    )
    return deepseek_v3(config)
