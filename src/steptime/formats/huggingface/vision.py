"""Vision towers beside a text decoder: those of Qwen3-VL and Qwen3.5."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.formats.huggingface.composed import WORDS_ALONE
from steptime.formats.huggingface.config import Config, Settings
from steptime.formats.huggingface.settings import finish_settings
from steptime.network.families.family import Family, Parameter
from steptime.network.families.image_prefix import ImagePrefix
from steptime.network.ops.builder import Builder

FIELD = "vision_config"
IMAGE_PIXELS = 448  # height and width of an image, where a user says none
DEEPSTACK = [8, 16, 24]


def qwen3_vision(config: Config, taps: list[int]) -> ImagePrefix:
    """Describe the tower of Qwen3-VL (with `taps`) and Qwen3.5 (without)."""
    width = config.count("hidden_size", 1152)
    heads = config.count("num_heads", 16)
    depth = config.count("depth", 27)
    # pairs of features of a head are rotated by row, and others by column: four parts
    if width % (4 * heads):
        raise config.error("hidden_size", f"{width} does not divide into {heads} heads of 4 parts")
    head_width = width // heads
    # the tower is no file of its own: it states each hyperparameter that its blocks read
    biases = dict.fromkeys(("bias", "qkv_bias", "key_bias", "out_bias", "ffn_bias"), True)
    absent_sizes = dict.fromkeys(("experts", "window", "latent_q", "latent_kv", "block_groups"), 0)
    absent_parts = ("attention_gate", "sinks", "relative_scores", "layer_scale")
    settings: Settings = {
        "kind": "encoder",
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "head_width": head_width,
        "value_width": head_width,
        "rotary_width": head_width,
        "positions": "rotary",
        "ffn": config.get("intermediate_size", 4304),
        "activation": config.get("hidden_act", "gelu_pytorch_tanh"),
        "patch": config.count("patch_size", 16),
        "channels": config.count("in_channels", 3),
        "norm": "layer",
        "norms": "before",
        "merged_qkv": True,
        **biases,
        **absent_sizes,
        **dict.fromkeys(absent_parts, False),
        "qk_norm": "none",
        "windows": "w",  # all blocks have the one window, whose 0 means that they see the image
    }
    # the decoder also reads the outputs of these blocks (DeepStack)
    for tap in taps:
        if not 0 <= tap < depth:
            raise config.error("deepstack_visual_indexes", f"{tap} is none of {depth} blocks")
    return ImagePrefix(
        settings=tuple(sorted(finish_settings(config, settings).items())),
        depth=depth,
        position_count=config.count("num_position_embeddings", 2304),
        merge=config.count("spatial_merge_size", 2),
        frames=config.count("temporal_patch_size", 2),
        output_width=config.count("out_hidden_size", 3584),
        taps=tuple(taps),
    )


def qwen3_vl_vision(config: Config) -> ImagePrefix:
    """Describe the tower of Qwen3-VL, whose decoder reads some of its blocks, too."""
    taps = config.get("deepstack_visual_indexes", DEEPSTACK)
    are_numbers = all(type(tap) is int for tap in taps)
    if not are_numbers or taps != sorted({*taps}):
        raise config.error("deepstack_visual_indexes", "must be rising numbers of blocks")
    return qwen3_vision(config, taps)


def qwen3_5_vision(config: Config) -> ImagePrefix:
    """Describe the tower of Qwen3.5."""
    return qwen3_vision(config, [])


TOWERS: Mapping[str, Callable[[Config], ImagePrefix]] = {  # by the type of the whole
    "qwen3_vl": qwen3_vl_vision,
    "qwen3_vl_moe": qwen3_vl_vision,
    "qwen3_5": qwen3_5_vision,
    "qwen3_5_moe": qwen3_5_vision,
}


def add_images(family: Family, table: Mapping[str, Any], outer_type: str, place: str) -> Family:
    """Return a decoder of words that reads images where a user asks for some (`images=1`).

    Args:
        family: the decoder of words.
        table: the values of the whole file.
        outer_type: the type of the whole.
        place: the file, as messages begin.

    Raises:
        InputError: for a tower whose sizes do not fit.
    """
    if outer_type not in TOWERS or table.get(FIELD) is None:
        return family
    tower_place = f"{place}: {FIELD}"
    tower_table = table[FIELD]
    if not isinstance(tower_table, dict):
        raise InputError(f"{tower_place}: must be a table, not {shorten(tower_table)}")
    prefix = TOWERS[outer_type](Config(tower_table, tower_place, head="none"))
    decoder = _ImageDecoder(family, prefix, place)
    parameters = {
        **family.parameters,
        "images": Parameter(0, "images before the words of a sequence", minimum=0),
        "image": Parameter(IMAGE_PIXELS, "height and width of an image in pixels"),
    }
    return replace(family, build=decoder.build, check=decoder.check, parameters=parameters)


@dataclass(frozen=True)
class _ImageDecoder:
    """A decoder of words that reads images before the words, if a user asks for some.

    Attributes:
        words: the decoder of words alone.
        prefix: the tower that makes tokens of images.
        place: the file, as remarks begin.
    """

    words: Family
    prefix: ImagePrefix
    place: str

    def build(self, b: Builder, values: Mapping[str, Any], batch: int) -> str:
        """Append the tower, if there are images, and the decoder; return the output."""
        output = self.words.build(b, {**values, "image_prefix": self.prefix}, batch)
        if values["images"]:  # the remark that words alone are counted holds no longer
            b.remarks[:] = [remark for remark in b.remarks if WORDS_ALONE not in remark]
        else:
            b.remarks.append(f"{self.place}: images=1 counts an image before the words, too")
        return output

    def check(self, values: Mapping[str, Any]) -> str | None:
        """Describe the first fault of the hyperparameters; None if they fit."""
        decoder_width = self.words.settings["width"]
        fault = None
        if values["images"]:
            fault = _describe_image_fault(self.prefix, decoder_width, values)
        return fault or self.words.check(values)


def _describe_image_fault(
    prefix: ImagePrefix, decoder_width: object, values: Mapping[str, Any]
) -> str | None:
    """Describe the first size by which images do not fit a decoder of words; None if they fit."""
    if prefix.output_width != decoder_width:
        return f"out_hidden_size {prefix.output_width} is not the decoder's width {decoder_width}"
    image_tokens = prefix.token_count(values)
    if values["image"] % prefix.pixels_of_token:
        return f"image {values['image']} is no multiple of {prefix.pixels_of_token} pixels"
    if image_tokens >= values["length"]:
        return f"length {values['length']} is not above the {image_tokens} tokens of images"
    return None
