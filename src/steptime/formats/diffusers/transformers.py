"""The transformers of FLUX, Stable Diffusion 3 and PixArt, op by op."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from steptime.formats.diffusers.parts import (
    TIME_WIDTH,
    Heads,
    add_feed_forward,
    add_gated,
    attend,
    embed,
    embed_time,
    list_modulation_vectors,
    modulate,
    project_heads,
    split_tokens,
)
from steptime.network.layers.blocks import append_activation
from steptime.network.layers.dense import linear, mean_loss
from steptime.network.layers.image import conv2d
from steptime.network.ops.builder import Builder

Sizes = Mapping[str, Any]  # fields of a `config.json`, with `image` and `length`
LATENT = 8  # pixels of a side of the image that make one of a latent
CROSS_VECTORS = 6  # of a block of PixArt: shift, scale and gate of attention, then of feed-forward
LAST_TEXT_VECTORS = 2  # of the text in the last block: it is normed for attention and then dropped


class _Modulation(NamedTuple):
    """Vectors `[n, 1, width]` that change the normed input and the result of a part of a block."""

    shift: str
    scale: str
    gate: str


def _list_modulations(
    b: Builder, state: str, width: int, count: int, name: str
) -> list[_Modulation]:
    """Return the modulation of so many parts of a block, all made by one product."""
    vectors = list_modulation_vectors(b, state, width, 3 * count, name)
    starts = range(0, len(vectors), 3)
    return [_Modulation(*vectors[start : start + 3]) for start in starts]


def build_flux(b: Builder, sizes: Sizes, batch: int) -> str:
    """Return the denoised latents of FLUX.1: double-stream blocks, then single-stream ones."""
    head_count = sizes["num_attention_heads"]
    head_width = sizes["attention_head_dim"]
    width = head_count * head_width
    text_tokens = sizes["length"]
    image_tokens = (sizes["image"] // (2 * LATENT)) ** 2  # a token is 2 x 2 latents
    image = b.input("latents", (batch, image_tokens, sizes["in_channels"]))
    text = b.input("text", (batch, text_tokens, sizes["joint_attention_dim"]))
    state = _embed_conditions(b, sizes, batch, width, has_guidance=sizes["guidance_embeds"])
    image = linear(b, image, width, "image_in")
    text = linear(b, text, width, "text_in")
    angles = b.buffer("angles", (text_tokens + image_tokens, head_width))
    heads = Heads(head_count, head_width, is_normed=True, rotary_table=angles)
    for i in b.repeat(sizes["num_layers"]):
        with b.scope(f"block{i + 1}"):
            image, text = _joint_block(b, image, text, state, heads)
    x = b.op("concat", text, image, name="tokens", axis=1)
    for i in b.repeat(sizes["num_single_layers"]):
        with b.scope(f"single{i + 1}"):
            x = _single_block(b, x, state, heads)
    _, image = split_tokens(b, x, text_tokens, "image")
    return _add_output_and_loss(b, image, state, sizes["out_channels"])


def _embed_conditions(
    b: Builder, sizes: Sizes, batch: int, width: int, *, has_guidance: bool
) -> str:
    """Return the sum `[n, width]` of the embeddings of the time, the guidance and the text."""
    state = embed_time(b, batch, width, "time")
    if has_guidance:
        guidance = embed_time(b, batch, width, "guidance")
        state = b.op("add", state, guidance, name="with_guidance")
    pooled = b.input("pooled_text", (batch, sizes["pooled_projection_dim"]))
    pooled = embed(b, pooled, width, "pooled_embedding")
    return b.op("add", state, pooled, name="state")


def build_sd3(b: Builder, sizes: Sizes, batch: int) -> str:
    """Return the denoised latents of Stable Diffusion 3 and 3.5."""
    head_count = sizes["num_attention_heads"]
    head_width = sizes["attention_head_dim"]
    width = head_count * head_width
    image = _embed_patches(b, sizes, batch, width)
    text = b.input("text", (batch, sizes["length"], sizes["joint_attention_dim"]))
    pooled = b.input("pooled_text", (batch, sizes["pooled_projection_dim"]))
    state = embed_time(b, batch, width, "time")
    pooled = embed(b, pooled, width, "pooled_embedding")
    state = b.op("add", state, pooled, name="state")
    text = linear(b, text, width, "text_in")
    heads = Heads(head_count, head_width, is_normed=bool(sizes["qk_norm"]))
    layers = sizes["num_layers"]
    for i in b.repeat(layers):
        is_last = i == layers - 1
        is_dual = i in sizes["dual_attention_layers"]
        with b.scope(f"block{i + 1}"):
            image, text = _joint_block(
                b, image, text, state, heads, is_last=is_last, is_dual=is_dual
            )
    patch_channels = sizes["patch_size"] ** 2 * sizes["out_channels"]
    return _add_output_and_loss(b, image, state, patch_channels)


def build_pixart(b: Builder, sizes: Sizes, batch: int) -> str:
    """Return the denoised latents of PixArt: blocks that share one modulation."""
    heads = Heads(sizes["num_attention_heads"], sizes["attention_head_dim"])
    width = heads.count * heads.width
    x = _embed_patches(b, sizes, batch, width)
    text = b.input("text", (batch, sizes["length"], sizes["caption_channels"]))
    text = embed(b, text, width, "text_in", "gelu_tanh")
    state = embed_time(b, batch, width, "time")
    if sizes["use_additional_conditions"]:
        conditions = _embed_image_size(b, batch, width)
        state = b.op("add", state, conditions, name="state")
    # shifts, scales and gates that all blocks share, each adding a table of its own
    shared = list_modulation_vectors(b, state, width, CROSS_VECTORS, "modulation")
    for i in b.repeat(sizes["num_layers"]):
        with b.scope(f"block{i + 1}"):
            x = _cross_block(b, x, text, shared, heads)
    x = _modulate_by_table(b, x)
    patch_channels = sizes["patch_size"] ** 2 * sizes["out_channels"]
    return mean_loss(b, linear(b, x, patch_channels, "out"))


def _modulate_by_table(b: Builder, x: str) -> str:
    """Return the last norm of PixArt, whose shift and scale are the two rows of a weight."""
    table = b.weight("table/w", (2, b.shape(x)[-1]))
    shift = b.op("slice", table, name="shift", axis=0, start=0, stop=1)
    scale = b.op("slice", table, name="scale", axis=0, start=1, stop=2)
    return modulate(b, x, shift, scale, "last")


def _embed_image_size(b: Builder, batch: int, width: int) -> str:
    """Return the embedding `[n, width]` of each image's height, width and aspect ratio.

    Each has a third of the vector. Height and width are embedded by one layer, as further examples.
    """
    third = width // 3  # the result holds the embeddings of height, width and aspect, side by side
    image_height, image_width, aspect = (
        b.input(name, (batch, TIME_WIDTH)) for name in ("height", "width", "aspect")
    )
    # one layer embeds heights and widths, as twice as many examples
    resolution = b.op("concat", image_height, image_width, name="resolution", axis=0)
    resolution = embed(b, resolution, third, "resolution_embedding")
    resolution = b.op("reshape", resolution, name="resolution/row", shape=(batch, 2 * third))
    aspect = embed(b, aspect, third, "aspect_embedding")
    return b.op("concat", resolution, aspect, name="conditions", axis=1)


def _embed_patches(b: Builder, sizes: Sizes, batch: int, width: int) -> str:
    """Return latents cut into patches, `[n, l, width]`, with fixed positions added."""
    side = sizes["image"] // LATENT
    patch_side = sizes["patch_size"]
    patch_count = (side // patch_side) ** 2
    x = b.input("latents", (batch, sizes["in_channels"], side, side))
    x = conv2d(b, x, width, patch_side, "patches", stride=patch_side, bias=True)
    x = b.op("reshape", x, name="patches/flat", shape=(batch, width, patch_count))
    x = b.op("transpose", x, name="patches/rows", order=(0, 2, 1))
    positions = b.buffer("places", (1, patch_count, width))
    return b.op("pointwise", x, positions, name="placed", function="add")


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
    width = b.shape(image)[-1]
    # attention and feed-forward are modulated, in a dual block also the second attention
    image_modulations = _list_modulations(b, state, width, 3 if is_dual else 2, "image_modulation")
    text_vectors = list_modulation_vectors(
        b, state, width, LAST_TEXT_VECTORS if is_last else 6, "text_modulation"
    )
    attention_vectors, ffn_vectors = image_modulations[:2]
    normed_image = _norm(b, image, attention_vectors, "image_norm1")
    # shift, scale and gate of attention, then the same of feed-forward; the last block reads two
    normed_text = modulate(b, text, text_vectors[0], text_vectors[1], "text_norm1")
    attended_text, attended_image = _attend_jointly(b, normed_text, normed_image, heads)
    result = linear(b, attended_image, width, "image_out")
    new_image = add_gated(b, image, result, attention_vectors.gate, "add1")
    if is_dual:  # attention within the image, from the block's input too
        attended = _attend_within(b, image, image_modulations[2], heads)
        new_image = add_gated(b, new_image, attended, image_modulations[2].gate, "add3")
    new_image = _add_modulated_ffn(b, new_image, ffn_vectors, "image_", "add2")
    if is_last:
        return new_image, text
    result = linear(b, attended_text, width, "text_out")
    text = add_gated(b, text, result, text_vectors[2], "text_add1")
    text_ffn_vectors = _Modulation(*text_vectors[3:])
    return new_image, _add_modulated_ffn(b, text, text_ffn_vectors, "text_", "text_add2")


def _norm(b: Builder, x: str, vectors: _Modulation, name: str) -> str:
    """Return `x` normed, scaled and shifted."""
    return modulate(b, x, vectors.shift, vectors.scale, name)


def _attend_jointly(b: Builder, text: str, image: str, heads: Heads) -> tuple[str, str]:
    """Return text and image after attention among all their tokens."""
    text_heads = project_heads(b, text, heads, "text_heads")
    image_heads = project_heads(b, image, heads, "image_heads")
    attended = attend(b, [text_heads, image_heads], heads, "joint")
    return split_tokens(b, attended, b.shape(text)[1], "attended")


def _attend_within(b: Builder, image: str, vectors: _Modulation, heads: Heads) -> str:
    """Return the projected attention within the image alone."""
    x = _norm(b, image, vectors, "image_norm3")
    x = attend(b, [project_heads(b, x, heads, "own_heads")], heads, "within")
    return linear(b, x, b.shape(image)[-1], "own_out")


def _add_modulated_ffn(b: Builder, x: str, vectors: _Modulation, prefix: str, sum_name: str) -> str:
    """Return `x` and its feed-forward part behind a modulated norm; `prefix` begins their names."""
    y = _norm(b, x, vectors, f"{prefix}norm2")
    return add_gated(b, x, add_feed_forward(b, y, f"{prefix}ffn"), vectors.gate, sum_name)


def _single_block(b: Builder, x: str, state: str, heads: Heads) -> str:
    """Return tokens after attention and a feed-forward part that read one input (FLUX)."""
    width = b.shape(x)[-1]
    shift, scale, gate = list_modulation_vectors(b, state, width, count=3, name="modulation")
    y = modulate(b, x, shift, scale, "norm")
    expanded = append_activation(b, linear(b, y, 4 * width, "up"), "gelu_tanh")
    attended = attend(b, [project_heads(b, y, heads, "heads")], heads, "within")
    attended_and_expanded = b.op("concat", attended, expanded, name="both", axis=-1)
    return add_gated(b, x, linear(b, attended_and_expanded, width, "out"), gate, "add")


def _cross_block(b: Builder, x: str, text: str, shared: list[str], heads: Heads) -> str:
    """Return patches after attention, attention to the text, and a feed-forward part (PixArt)."""
    width = b.shape(x)[-1]
    vectors = _add_table(b, shared, width)
    attention_vectors = _Modulation(*vectors[:3])
    ffn_vectors = _Modulation(*vectors[3:])
    y = _norm(b, x, attention_vectors, "norm1")
    y = attend(b, [project_heads(b, y, heads, "heads")], heads, "within")
    x = add_gated(b, x, linear(b, y, width, "out"), attention_vectors.gate, "add1")
    with b.scope("cross"):
        inner_width = heads.count * heads.width
        q = linear(b, x, inner_width, "q")
        k = linear(b, text, inner_width, "k")
        v = linear(b, text, inner_width, "v")
    y = attend(b, [(q, k, v)], heads, "across")
    x = b.op("add", x, linear(b, y, width, "cross_out"), name="add_cross")
    return _add_modulated_ffn(b, x, ffn_vectors, "", "add2")


def _add_table(b: Builder, shared: list[str], width: int) -> list[str]:
    """Return modulation vectors that all blocks share plus the block's own, rows of a weight."""
    table = b.weight("table/w", (CROSS_VECTORS, width))
    vectors: list[str] = []
    for i, shared_vector in enumerate(shared):
        row = b.op("slice", table, name=f"table{i}", axis=0, start=i, stop=i + 1)
        vector = b.op("pointwise", shared_vector, row, name=f"vector{i}", function="add")
        vectors.append(vector)
    return vectors


def _add_output_and_loss(b: Builder, x: str, state: str, channels: int) -> str:
    """Return the output of a last modulated norm and product."""
    width = b.shape(x)[-1]
    # the last norm of diffusers makes the scale first
    scale, shift = list_modulation_vectors(b, state, width, count=2, name="last_modulation")
    x = modulate(b, x, shift, scale, "last")
    return mean_loss(b, linear(b, x, channels, "out"))
