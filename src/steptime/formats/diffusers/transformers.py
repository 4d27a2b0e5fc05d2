"""The transformers of FLUX, Stable Diffusion 3 and PixArt, op by op."""

from collections.abc import Mapping
from typing import Any

from steptime.formats.diffusers.parts import (
    Heads,
    add_gated,
    attend,
    cut,
    embed,
    embed_time,
    feed,
    modulate,
    modulation,
    project,
)
from steptime.network.layers.blocks import activated
from steptime.network.layers.dense import linear, mean_loss
from steptime.network.layers.image import conv2d
from steptime.network.ops.builder import Builder

Sizes = Mapping[str, Any]  # fields of a `config.json`, with `image` and `length`
LATENT = 8  # pixels of a side of the image that make one of a latent


def build_flux(b: Builder, sizes: Sizes, batch: int) -> str:
    """Return the denoised latents of FLUX.1: double-stream blocks, then single-stream ones."""
    heads_count, head_width = sizes["num_attention_heads"], sizes["attention_head_dim"]
    width, length = heads_count * head_width, sizes["length"]
    tokens = (sizes["image"] // (2 * LATENT)) ** 2
    image = b.input("latents", (batch, tokens, sizes["in_channels"]))
    text = b.input("text", (batch, length, sizes["joint_attention_dim"]))
    state = embed_time(b, batch, width, "time")
    if sizes["guidance_embeds"]:
        guidance = embed_time(b, batch, width, "guidance")
        state = b.op("add", state, guidance, name="with_guidance")
    pooled = b.input("pooled_text", (batch, sizes["pooled_projection_dim"]))
    state = b.op("add", state, embed(b, pooled, width, "pooled_embedding"), name="state")
    image, text = linear(b, image, width, "image_in"), linear(b, text, width, "text_in")
    angles = b.buffer("angles", (length + tokens, head_width))
    heads = Heads(heads_count, head_width, is_normed=True, angles=angles)
    for i in b.repeat(sizes["num_layers"]):
        with b.scope(f"block{i + 1}"):
            image, text = _joint_block(b, image, text, state, heads)
    x = b.op("concat", text, image, name="tokens", axis=1)
    for i in b.repeat(sizes["num_single_layers"]):
        with b.scope(f"single{i + 1}"):
            x = _single_block(b, x, state, heads)
    return _finish(b, cut(b, x, length, "image")[1], state, sizes["out_channels"])


def build_sd3(b: Builder, sizes: Sizes, batch: int) -> str:
    """Return the denoised latents of Stable Diffusion 3 and 3.5."""
    heads_count, head_width = sizes["num_attention_heads"], sizes["attention_head_dim"]
    width, patch = heads_count * head_width, sizes["patch_size"]
    image = _patches(b, sizes, batch, width)
    text = b.input("text", (batch, sizes["length"], sizes["joint_attention_dim"]))
    pooled = b.input("pooled_text", (batch, sizes["pooled_projection_dim"]))
    state = embed_time(b, batch, width, "time")
    state = b.op("add", state, embed(b, pooled, width, "pooled_embedding"), name="state")
    text = linear(b, text, width, "text_in")
    heads = Heads(heads_count, head_width, is_normed=bool(sizes["qk_norm"]))
    layers = sizes["num_layers"]
    for i in b.repeat(layers):
        with b.scope(f"block{i + 1}"):
            is_dual = i in sizes["dual_attention_layers"]
            image, text = _joint_block(
                b, image, text, state, heads, is_last=i == layers - 1, is_dual=is_dual
            )
    return _finish(b, image, state, patch**2 * sizes["out_channels"])


def build_pixart(b: Builder, sizes: Sizes, batch: int) -> str:
    """Return the denoised latents of PixArt: blocks that share one modulation."""
    heads = Heads(sizes["num_attention_heads"], sizes["attention_head_dim"])
    width = heads.count * heads.width
    x = _patches(b, sizes, batch, width)
    text = b.input("text", (batch, sizes["length"], sizes["caption_channels"]))
    text = embed(b, text, width, "text_in", "gelu_tanh")
    state = embed_time(b, batch, width, "time")
    if sizes["use_additional_conditions"]:
        third = width // 3
        names = ("height", "width", "aspect")
        parts = [b.input(name, (batch, 256)) for name in names]
        both = b.op("concat", *parts[:2], name="resolution", axis=0)
        both = embed(b, both, third, "resolution_embedding")
        both = b.op("reshape", both, name="resolution/row", shape=(batch, 2 * third))
        aspect = embed(b, parts[2], third, "aspect_embedding")
        both = b.op("concat", both, aspect, name="conditions", axis=1)
        state = b.op("add", state, both, name="state")
    shared = modulation(b, state, width, 6, "modulation")
    for i in b.repeat(sizes["num_layers"]):
        with b.scope(f"block{i + 1}"):
            x = _cross_block(b, x, text, shared, heads)
    table = b.weight("table/w", (2, width))
    shift = b.op("slice", table, name="shift", axis=0, start=0, stop=1)
    scale = b.op("slice", table, name="scale", axis=0, start=1, stop=2)
    x = modulate(b, x, shift, scale, "last")
    return mean_loss(b, linear(b, x, sizes["patch_size"] ** 2 * sizes["out_channels"], "out"))


def _patches(b: Builder, sizes: Sizes, batch: int, width: int) -> str:
    """Return latents cut into patches, `[n, l, width]`, with fixed positions added."""
    side, patch = sizes["image"] // LATENT, sizes["patch_size"]
    x = b.input("latents", (batch, sizes["in_channels"], side, side))
    x = conv2d(b, x, width, patch, "patches", stride=patch, bias=True)
    count = (side // patch) ** 2
    x = b.op("reshape", x, name="patches/flat", shape=(batch, width, count))
    x = b.op("transpose", x, name="patches/rows", order=(0, 2, 1))
    places = b.buffer("places", (1, count, width))
    return b.op("pointwise", x, places, name="placed", function="add")


def _joint_block(
    b: Builder,
    image: str,
    text: str,
    state: str,
    heads: Heads,
    *,
    is_last: bool = False,
    is_dual: bool = False,
) -> tuple[str, str]:
    """Return image and text after attention among both, and a feed-forward part of each.

    The last block of Stable Diffusion 3 drops the text; a dual block attends within the image, too.
    """
    width, length = b.shape(image)[-1], b.shape(text)[1]
    of_image = modulation(b, state, width, 9 if is_dual else 6, "image_modulation")
    of_text = modulation(b, state, width, 2 if is_last else 6, "text_modulation")
    x = modulate(b, image, of_image[0], of_image[1], "image_norm1")
    y = modulate(b, text, of_text[0], of_text[1], "text_norm1")
    parts = [project(b, y, heads, "text_heads"), project(b, x, heads, "image_heads")]
    texts, images = cut(b, attend(b, parts, heads, "joint"), length, "attended")
    new_image = add_gated(b, image, linear(b, images, width, "image_out"), of_image[2], "add1")
    if is_dual:
        repeated = modulate(b, image, of_image[6], of_image[7], "image_norm3")
        inside = attend(b, [project(b, repeated, heads, "own_heads")], heads, "within")
        new_image = add_gated(
            b, new_image, linear(b, inside, width, "own_out"), of_image[8], "add3"
        )
    x = modulate(b, new_image, of_image[3], of_image[4], "image_norm2")
    new_image = add_gated(b, new_image, feed(b, x, "image_ffn"), of_image[5], "add2")
    if is_last:
        return new_image, text
    text = add_gated(b, text, linear(b, texts, width, "text_out"), of_text[2], "text_add1")
    y = modulate(b, text, of_text[3], of_text[4], "text_norm2")
    return new_image, add_gated(b, text, feed(b, y, "text_ffn"), of_text[5], "text_add2")


def _single_block(b: Builder, x: str, state: str, heads: Heads) -> str:
    """Return tokens after attention and a feed-forward part that read one input (FLUX)."""
    width = b.shape(x)[-1]
    shift, scale, gate = modulation(b, state, width, 3, "modulation")
    y = modulate(b, x, shift, scale, "norm")
    inner = activated(b, linear(b, y, 4 * width, "up"), "gelu_tanh")
    attended = attend(b, [project(b, y, heads, "heads")], heads, "within")
    both = b.op("concat", attended, inner, name="both", axis=-1)
    return add_gated(b, x, linear(b, both, width, "out"), gate, "add")


def _cross_block(b: Builder, x: str, text: str, shared: list[str], heads: Heads) -> str:
    """Return patches after attention, attention to the text, and a feed-forward part (PixArt)."""
    width = b.shape(x)[-1]
    table = b.weight("table/w", (6, width))
    vectors = []
    for i, vector in enumerate(shared):
        row = b.op("slice", table, name=f"table{i}", axis=0, start=i, stop=i + 1)
        vectors.append(b.op("pointwise", vector, row, name=f"vector{i}", function="add"))
    y = modulate(b, x, vectors[0], vectors[1], "norm1")
    y = attend(b, [project(b, y, heads, "heads")], heads, "within")
    x = add_gated(b, x, linear(b, y, width, "out"), vectors[2], "add1")
    with b.scope("cross"):
        inner = heads.count * heads.width
        q = linear(b, x, inner, "q")
        k, v = linear(b, text, inner, "k"), linear(b, text, inner, "v")
    y = attend(b, [(q, k, v)], heads, "across")
    x = b.op("add", x, linear(b, y, width, "cross_out"), name="add_cross")
    y = modulate(b, x, vectors[3], vectors[4], "norm2")
    return add_gated(b, x, feed(b, y, "ffn"), vectors[5], "add2")


def _finish(b: Builder, x: str, state: str, channels: int) -> str:
    """Return the output of a last modulated norm and product."""
    width = b.shape(x)[-1]
    scale, shift = modulation(b, state, width, 2, "last_modulation")
    return mean_loss(b, linear(b, modulate(b, x, shift, scale, "last"), channels, "out"))
