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
CLIP_TOKENS = 77  # of a text as CLIP encodes it
SD3_T5_TOKENS = 256  # of a text as T5 encodes it, by default in diffusers' pipeline of SD 3
FLUX_T5_TOKENS = 512  # the same of FLUX
PIXART_T5_TOKENS = 300  # the same of PixArt-sigma
FLUX_IMAGE_SIDE = 1024  # pixels, the default: its file states no size
PIXART_CONDITIONED_SAMPLE = 128  # side of the latents of networks that read the size of the image
PIXART_UNCOUNTED_FIELDS = {  # which change neither shapes nor work, or are read from the table
    "num_embeds_ada_norm",
    "interpolation_scale",
    "norm_num_groups",
    "upcast_attention",
    "attention_type",
    "use_additional_conditions",
}
UNET_BLOCKS = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
}
UNET_ONLY_VALUES: Mapping[str, object] = {  # fields, with the only value whose network is known
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
UNET_UNCOUNTED_FIELDS = {  # which change neither shapes nor work
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
    in_channels = config.count("in_channels", 64)
    # how the features of a head are shared among axes changes neither shapes nor work
    config.ignore_field("axes_dims_rope", [16, 56, 56])
    config.require("patch_size", only=1)
    return {
        "in_channels": in_channels,
        "out_channels": config.get("out_channels", 0) or in_channels,  # null: as many as go in
        "num_layers": config.count("num_layers", 19),
        "num_single_layers": config.count("num_single_layers", 38),
        "attention_head_dim": config.count("attention_head_dim", 128),
        "num_attention_heads": config.count("num_attention_heads", 24),
        "joint_attention_dim": config.count("joint_attention_dim", 4096),
        "pooled_projection_dim": config.count("pooled_projection_dim", 768),
        "guidance_embeds": config.get("guidance_embeds", False),
        "image": FLUX_IMAGE_SIDE,
        "length": FLUX_T5_TOKENS,
    }


def describe_sd3(config: Config) -> Sizes:
    """Describe Stable Diffusion 3 and 3.5, whose text has 77 tokens of CLIP and 256 of T5."""
    heads = config.count("num_attention_heads", 18)
    head_width = config.count("attention_head_dim", 64)
    config.require("caption_projection_dim", only=heads * head_width)
    # positions are cut from a fixed table to the size of the image, however large the table is
    config.ignore_field("pos_embed_max_size", 96)
    in_channels = config.count("in_channels", 16)
    return {
        "in_channels": in_channels,
        "out_channels": config.get("out_channels", 16) or in_channels,  # null: as many as go in
        "patch_size": config.count("patch_size", 2),
        "num_layers": config.count("num_layers", 18),
        "attention_head_dim": head_width,
        "num_attention_heads": heads,
        "joint_attention_dim": config.count("joint_attention_dim", 4096),
        "pooled_projection_dim": config.count("pooled_projection_dim", 2048),
        "dual_attention_layers": config.get("dual_attention_layers", []),
        "qk_norm": config.get("qk_norm", ""),
        "image": LATENT_SIDE * config.count("sample_size", 128),
        "length": CLIP_TOKENS + SD3_T5_TOKENS,
    }


def describe_pixart(config: Config) -> Sizes:
    """Describe PixArt-alpha and -sigma."""
    sample_side = config.count("sample_size", 128)
    heads = config.count("num_attention_heads", 16)
    head_width = config.count("attention_head_dim", 72)
    config.require("attention_bias", only=True)
    config.require("norm_type", only="ada_norm_single")
    config.require("norm_elementwise_affine", only=False)
    config.require("activation_fn", only="gelu-approximate")
    config.require("cross_attention_dim", only=heads * head_width)
    # known fields that change no cost: no remark calls them unread
    config.read_fields |= PIXART_UNCOUNTED_FIELDS
    # as diffusers does: only the networks for images of 1024 pixels read the size of the image
    has_conditions = config.table.get("use_additional_conditions")
    if has_conditions is None:
        has_conditions = sample_side == PIXART_CONDITIONED_SAMPLE
    in_channels = config.count("in_channels", 4)
    return {
        "in_channels": in_channels,
        "out_channels": config.get("out_channels", 8) or in_channels,  # null: as many as go in
        "patch_size": config.count("patch_size", 2),
        "num_layers": config.count("num_layers", 28),
        "attention_head_dim": head_width,
        "num_attention_heads": heads,
        "caption_channels": config.count("caption_channels", 4096),
        "use_additional_conditions": has_conditions,
        "image": LATENT_SIDE * sample_side,
        "length": PIXART_T5_TOKENS,
    }


def describe_unet(config: Config) -> Sizes:
    """Describe the UNets of Stable Diffusion 1 to XL."""
    widths = config.get("block_out_channels", [320, 640, 1280, 1280])
    blocks = _read_unet_blocks(config, len(widths))
    for field, value in UNET_ONLY_VALUES.items():
        config.require(field, only=value)
    # known fields that change no cost: no remark calls them unread
    config.read_fields |= UNET_UNCOUNTED_FIELDS
    condition_width = config.get("projection_class_embeddings_input_dim", 0)
    has_conditions = config.table.get("addition_embed_type") == "text_time"
    # for these UNets diffusers reads the field of this name as the number of heads
    heads = spread_over_blocks(config, "attention_head_dim", 8, len(widths))
    transformer_layers = spread_over_blocks(config, "transformer_layers_per_block", 1, len(widths))
    return blocks | {
        "in_channels": config.count("in_channels", 4),
        "out_channels": config.count("out_channels", 4),
        "block_out_channels": widths,
        "layers_per_block": config.count("layers_per_block", 2),
        "cross_attention_dim": config.count("cross_attention_dim", 1280),
        "norm_num_groups": config.count("norm_num_groups", 32),
        "heads": heads,
        "transformer_layers": transformer_layers,
        "condition_width": condition_width if has_conditions else 0,
        "image": LATENT_SIDE * config.count("sample_size", 64),
        "length": CLIP_TOKENS,
    }


def _read_unet_blocks(config: Config, width_count: int) -> dict[str, list[str]]:
    """Return the types of the blocks on the way down and up, one for each width.

    Raises:
        InputError: for another number of blocks, or a type that is not known.
    """
    attending_down = ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"]
    attending_up = ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3
    blocks = {
        "down_block_types": config.get("down_block_types", attending_down),
        "up_block_types": config.get("up_block_types", attending_up),
    }
    for field, names in blocks.items():
        if len(names) != width_count:
            raise config.error(field, f"has {len(names)} blocks for {width_count} widths")
        for block in names:
            if block not in UNET_BLOCKS[field]:
                raise unknown("block", block, UNET_BLOCKS[field], config.place)
    return blocks


def spread_over_blocks(config: Config, name: str, default: int, block_count: int) -> list[int]:
    """Return a field with a number for each block, which may be one number for all."""
    value = config.table.get(name)
    if not isinstance(value, list):
        return [config.count(name, default)] * block_count
    numbers = config.get(name, [default])
    are_sizes = all(type(number) is int and number > 0 for number in numbers)
    if len(numbers) != block_count or not are_sizes:
        raise config.error(name, f"must be {block_count} whole numbers")
    return numbers


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
    if not isinstance(name, str):
        raise unknown(CLASS_FIELD, name, CLASSES, place)
    if name not in CLASSES:
        advice = f"with diffusers installed, its class is read as code: diffusers:{name}"
        raise InputError(f"{place}: {CLASS_FIELD} {shorten(name)} is not read; {advice}")
    describe, build_class = CLASSES[name]
    config = Config(table, place, head="")
    sizes = describe(config)
    remarks = [*describe_unread(table, config.read_fields), *config.remarks]
    # FLUX joins 2 x 2 latents, and the sides of a UNet must halve; neither states a patch_size
    patch_side = LATENT_SIDE * sizes.get("patch_size", 2)

    def build(b: Builder, values: Mapping[str, Any], batch: int) -> str:
        b.remarks.extend(f"{place}: {remark}" for remark in remarks)
        return build_class(b, {**sizes, **values}, batch)

    def check(values: Mapping[str, Any]) -> str | None:
        if values["image"] % patch_side:
            return f"image {values['image']} does not divide into patches of {patch_side} pixels"
        return None

    parameters = {
        "image": Parameter(sizes["image"], "height and width of the image"),
        "length": Parameter(sizes["length"], "tokens of the text"),
    }
    about = f"a config.json of diffusers, {name}"
    return Family(place, build, parameters, source=about, batch=1, is_preset=True, check=check)
