"""Reads the `config.json` of a component of diffusers by its `_class_name`."""

from collections.abc import Callable, Mapping
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.formats import Source
from steptime.formats.diffusers.transformers import build_flux, build_pixart, build_sd3
from steptime.formats.diffusers.unet import build_unet
from steptime.formats.huggingface.config import Config
from steptime.formats.huggingface.config import Settings as Sizes
from steptime.formats.huggingface.remarks import describe_unread
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder

CLASS_FIELD = "_class_name"
LATENT_SIDE = 8  # pixels of the image that make one of a latent
UNET_BLOCKS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
}
UNET_ONLY: Mapping[str, object] = {  # fields, with the only value whose network is known
    "mid_block_type": "UNetMidBlock2DCrossAttn",
    "act_fn": "silu",
    "only_cross_attention": False,
    "dual_cross_attention": False,
    "class_embed_type": None,
    "encoder_hid_dim": None,
    "time_embedding_type": "positional",
    "num_attention_heads": None,
    "conv_in_kernel": 3,
    "conv_out_kernel": 3,
    "resnet_time_scale_shift": "default",
    "time_cond_proj_dim": None,
}
UNET_READ = {  # which change neither shapes nor work
    "addition_embed_type",
    "addition_time_embed_dim",
    "center_input_sample",
    "downsample_padding",
    "flip_sin_to_cos",
    "freq_shift",
    "mid_block_scale_factor",
    "use_linear_projection",
    "upcast_attention",
}
Describe = Callable[[Config], Sizes]


def describe_flux(config: Config) -> Sizes:
    """Describe FLUX.1."""
    channels = config.count("in_channels", 64)
    config.get("axes_dims_rope", [16, 56, 56])
    config.require("patch_size", only=1)
    return {
        "in_channels": channels,
        "out_channels": config.get("out_channels", 0) or channels,
        "num_layers": config.count("num_layers", 19),
        "num_single_layers": config.count("num_single_layers", 38),
        "attention_head_dim": config.count("attention_head_dim", 128),
        "num_attention_heads": config.count("num_attention_heads", 24),
        "joint_attention_dim": config.count("joint_attention_dim", 4096),
        "pooled_projection_dim": config.count("pooled_projection_dim", 768),
        "guidance_embeds": config.get("guidance_embeds", False),
        "image": 1024,
        "length": 512,
    }


def describe_sd3(config: Config) -> Sizes:
    """Describe Stable Diffusion 3 and 3.5, whose text has 77 tokens of CLIP and 256 of T5."""
    heads, head_width = (
        config.count("num_attention_heads", 18),
        config.count("attention_head_dim", 64),
    )
    config.require("caption_projection_dim", only=heads * head_width)
    config.get("pos_embed_max_size", 96)
    return {
        "in_channels": config.count("in_channels", 16),
        "out_channels": config.get("out_channels", 16) or config.count("in_channels", 16),
        "patch_size": config.count("patch_size", 2),
        "num_layers": config.count("num_layers", 18),
        "attention_head_dim": head_width,
        "num_attention_heads": heads,
        "joint_attention_dim": config.count("joint_attention_dim", 4096),
        "pooled_projection_dim": config.count("pooled_projection_dim", 2048),
        "dual_attention_layers": config.get("dual_attention_layers", []),
        "qk_norm": config.get("qk_norm", ""),
        "image": LATENT_SIDE * config.count("sample_size", 128),
        "length": 333,
    }


def describe_pixart(config: Config) -> Sizes:
    """Describe PixArt-alpha and -sigma."""
    sample = config.count("sample_size", 128)
    heads, head_width = (
        config.count("num_attention_heads", 16),
        config.count("attention_head_dim", 72),
    )
    config.require("attention_bias", only=True)
    config.require("norm_type", only="ada_norm_single")
    config.require("norm_elementwise_affine", only=False)
    config.require("activation_fn", only="gelu-approximate")
    config.require("cross_attention_dim", only=heads * head_width)
    config.read_fields |= {"num_embeds_ada_norm", "interpolation_scale", "norm_num_groups"}
    config.read_fields |= {"upcast_attention", "attention_type", "use_additional_conditions"}
    has_conditions = config.table.get("use_additional_conditions")
    return {
        "in_channels": config.count("in_channels", 4),
        "out_channels": config.get("out_channels", 8) or config.count("in_channels", 4),
        "patch_size": config.count("patch_size", 2),
        "num_layers": config.count("num_layers", 28),
        "attention_head_dim": head_width,
        "num_attention_heads": heads,
        "caption_channels": config.count("caption_channels", 4096),
        "use_additional_conditions": sample == 128 if has_conditions is None else has_conditions,
        "image": LATENT_SIDE * sample,
        "length": 300,
    }


def describe_unet(config: Config) -> Sizes:
    """Describe the UNets of Stable Diffusion 1 to XL."""
    widths = config.get("block_out_channels", [320, 640, 1280, 1280])
    attending = ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]
    doubling = ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3
    blocks = {
        "down_block_types": config.get("down_block_types", attending),
        "up_block_types": config.get("up_block_types", doubling),
    }
    for field, names in blocks.items():
        allowed = UNET_BLOCKS[field]
        if len(names) != len(widths):
            raise config.error(field, f"has {len(names)} blocks for {len(widths)} widths")
        for block in names:
            if block not in allowed:
                raise unknown("block", block, allowed, config.place)
    for field, value in UNET_ONLY.items():
        config.require(field, only=value)
    config.read_fields |= UNET_READ
    has_conditions = config.table.get("addition_embed_type") == "text_time"
    condition_width = config.get("projection_class_embeddings_input_dim", 0)
    return blocks | {
        "in_channels": config.count("in_channels", 4),
        "out_channels": config.count("out_channels", 4),
        "block_out_channels": widths,
        "layers_per_block": config.count("layers_per_block", 2),
        "cross_attention_dim": config.count("cross_attention_dim", 1280),
        "norm_num_groups": config.count("norm_num_groups", 32),
        "heads": spread_over_blocks(config, "attention_head_dim", 8, len(widths)),
        "transformer_layers": spread_over_blocks(
            config, "transformer_layers_per_block", 1, len(widths)
        ),
        "condition_width": condition_width if has_conditions else 0,
        "image": LATENT_SIDE * config.count("sample_size", 64),
        "length": 77,
    }


def spread_over_blocks(config: Config, name: str, default: int, count: int) -> list[int]:
    """Return a field with a number for each block, which may be one number for all."""
    value = config.table.get(name)
    if isinstance(value, list):
        numbers = config.get(name, [default])
        if len(numbers) != count or not all(type(n) is int and n > 0 for n in numbers):
            raise config.error(name, f"must be {count} whole numbers")
        return numbers
    return [config.count(name, default)] * count


Build = Callable[[Builder, Mapping[str, Any], int], str]
CLASSES: Mapping[str, tuple[Describe, Build]] = {
    "FluxTransformer2DModel": (describe_flux, build_flux),
    "SD3Transformer2DModel": (describe_sd3, build_sd3),
    "PixArtTransformer2DModel": (describe_pixart, build_pixart),
    "UNet2DConditionModel": (describe_unet, build_unet),
}


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of a component of diffusers.

    Raises:
        InputError: for a class that is not known, or a value that no model of it has.
    """
    table: Any = source.table
    return describe_component(table, shorten(source.name)[1:-1])


def describe_component(table: Mapping[str, Any], place: str) -> Family:
    """Return the network that the values of a component's `config.json` say.

    Args:
        table: the values of the file.
        place: the file, as messages begin.
    """
    name = table[CLASS_FIELD]
    if not isinstance(name, str) or name not in CLASSES:
        if isinstance(name, str):
            advice = f"with diffusers installed, its class is read as code: diffusers:{name}"
            raise InputError(f"{place}: {CLASS_FIELD} {shorten(name)} is not read; {advice}")
        raise unknown(CLASS_FIELD, name, CLASSES, place)
    describe, build_class = CLASSES[name]
    config = Config(table, place, "")
    sizes = describe(config)
    remarks = [*describe_unread(table, config.read_fields), *config.remarks]

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        b.remarks.extend(f"{place}: {remark}" for remark in remarks)
        return build_class(b, {**sizes, **p}, batch)

    def check(p: Mapping[str, Any]) -> str | None:
        side = LATENT_SIDE * sizes.get("patch_size", 2)
        fault = f"image {p['image']} does not divide into patches of {side} pixels"
        return fault if p["image"] % side else None

    free = {
        "image": Parameter(sizes["image"], "height and width of the image"),
        "length": Parameter(sizes["length"], "tokens of the text"),
    }
    about = f"a config.json of diffusers, {name}"
    return Family(place, build, free, about, 1, is_preset=True, check=check)
