"""Text decoders with the selective state of Mamba-1: Mamba, Falcon Mamba, Jamba."""

from dataclasses import replace
from math import ceil

from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.decoders import decoder
from steptime.formats.huggingface.hybrids import freeze_changes
from steptime.formats.huggingface.types import model_type
from steptime.network.layers.designs import BlockDesign
from steptime.network.layers.mixers import Mamba

WIDTH_PER_STEP_RANK = 16  # where a file says `auto`


def _read_mamba(config: Config) -> Mamba:
    """Return the blocks of Mamba-1 that a file says."""
    width = config.count("hidden_size", 768)
    expanded_width = int(config.get("expand", 2.0) * width)
    has_stated_width = bool(config.table.get("intermediate_size"))
    return Mamba(
        inner=config.get("intermediate_size", 0) if has_stated_width else expanded_width,
        state=config.count("state_size", 16),
        rank=_step_rank(config, "time_step_rank"),
        kernel=config.count("conv_kernel", 4),
        bias=config.get("use_bias", False),
        convolution_bias=config.get("use_conv_bias", True),
    )


@model_type("mamba", "Mamba", ("ForCausalLM", "Model"))
def mamba(config: Config) -> Settings:
    """Describe Mamba: every block is a state alone."""
    config.fill_defaults(
        vocab_size=50280,
        hidden_size=768,
        num_attention_heads=1,  # there is no attention, and its sizes are checked all the same
        max_position_embeddings=0,
        tie_word_embeddings=True,
    )
    config.rename(d_model="hidden_size", n_layer="num_hidden_layers")
    settings = decoder(config)
    mixer = _read_mamba(config)  # a block is this mixer alone, without a feed-forward part
    # known fields that are not counted: no remark calls them unread
    for field in ("d_inner", "ssm_cfg", "rms_norm", "fused_add_norm", "use_mambapy"):
        config.read_fields.add(field)
    return settings | {
        "positions": "none",
        "designs": (BlockDesign(mixer=mixer, feeds=False),) * settings["layers"],
    }


@model_type("falcon_mamba", "FalconMamba", ("ForCausalLM", "Model"))
def falcon_mamba(config: Config) -> Settings:
    """Describe Falcon Mamba: Mamba whose keys, queries and step sizes are normed."""
    config.ignore_field("mixer_rms_eps", 1e-6)
    settings = mamba(config)
    mixer = replace(settings["designs"][0].mixer, norm="plain_rms")
    return settings | {
        "designs": (BlockDesign(mixer=mixer, feeds=False),) * settings["layers"],
    }


@model_type("jamba", "Jamba", ("ForCausalLM", "Model", "ForSequenceClassification"))
def jamba(config: Config) -> Settings:
    """Describe Jamba: attention in one block of eight, experts in every second block."""
    config.fill_defaults(
        vocab_size=65536,
        intermediate_size=14336,
        num_key_value_heads=8,
        max_position_embeddings=262144,
    )
    settings = decoder(config)
    mixer = Mamba(
        inner=config.get("mamba_expand", 2) * settings["width"],
        state=config.count("mamba_d_state", 16),
        rank=_step_rank(config, "mamba_dt_rank"),
        kernel=config.count("mamba_d_conv", 4),
        bias=config.get("mamba_proj_bias", False),
        convolution_bias=config.get("mamba_conv_bias", True),
        norm="rms",
    )
    # known fields that are not counted: no remark calls them unread
    for field in ("num_logits_to_keep", "use_mamba_kernels"):
        config.read_fields.add(field)
    attention_period = config.count("attn_layer_period", 8)
    attention_offset = _first_layer(config, "attn_layer_offset", 4)
    expert_period = config.count("expert_layer_period", 2)
    expert_offset = _first_layer(config, "expert_layer_offset", 1)
    experts = config.get("num_experts", 16)
    is_mixture = experts > 1
    designs = []
    for layer in range(settings["layers"]):
        has_experts = is_mixture and layer % expert_period == expert_offset
        has_attention = layer % attention_period == attention_offset
        block_changes = () if has_experts else freeze_changes(experts=0)  # 0: a dense block
        # without a mixer the block attends
        designs.append(BlockDesign(block_changes, mixer=None if has_attention else mixer))
    return settings | {
        "positions": "none",
        "experts": experts if is_mixture else 0,
        "experts_per_token": config.get("num_experts_per_tok", 2) if is_mixture else 1,
        "designs": tuple(designs),
    }


def _step_rank(config: Config, name: str) -> int:
    """Return the width of the vector of steps: where it is `auto`, a sixteenth of the model's."""
    config.read_fields.add(name)
    is_automatic = config.table.get(name, "auto") in ("auto", None)
    if is_automatic:
        return ceil(config.count("hidden_size", 4096) / WIDTH_PER_STEP_RANK)
    return config.count(name, 1)


def _first_layer(config: Config, name: str, default: int) -> int:
    """Return the number of the first block of a kind, which may be 0."""
    if config.table.get(name) == 0:
        config.read_fields.add(name)
        return 0
    return config.get(name, default)
