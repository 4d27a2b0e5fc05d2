"""Vision-language networks of two towers: a transformer for images, one for text, joined."""

from collections.abc import Callable, Mapping
from typing import Any

from steptime.network.families.ends import HEADS, last_token, pool_by_attention, vector
from steptime.network.families.transformer import body
from steptime.network.layers.dense import classify, linear
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder

Towers = Mapping[str, Mapping[str, Any]]


def clip(b: Builder, towers: Towers, values: Mapping[str, Any], batch: int) -> str:
    """Return the similarity of each text with each image (Radford et al. 2021, figure 3)."""
    vectors = []
    for name, tower in towers.items():
        with b.scope(name):
            x, _table = body(b, tower, batch)
            x = vector(b, x, {**tower, "projection": values["projection_dim"]})
            vectors.append(unit_length(b, x))
    scale = b.op("pointwise", b.weight("scale/w", ()), name="scale", function="exp")
    # each text with each image of the batch
    logits = b.op("linear", *vectors, name="alike")
    return classify(b, b.op("pointwise", logits, scale, name="logits", function="mul"))


def gemma3(b: Builder, towers: Towers, values: Mapping[str, Any], batch: int) -> str:
    """Return the loss of words after an image, which comes in as a few tokens before them."""
    text, vision = towers["text"], towers["vision"]
    with b.scope("vision"):
        patches, _ = body(b, vision, batch)
        if values["vision_use_head"]:
            # its weights are parameters; nothing reads the result
            pool_by_attention(b, patches, vision)
        tokens_of_side = round(values["mm_tokens_per_image"] ** 0.5)
        pooled = _pool_patches(b, patches, vision, batch, tokens_of_side)
        normalised = norm(b, pooled, "rms", "soft_norm")
        image = linear(b, normalised, text["width"], "projection", bias=False)
    image_tokens = b.shape(image)[1]

    # the image takes the places of the first words
    def join(words: str) -> str:
        behind_image: Attributes = {"axis": 1, "start": image_tokens, "stop": text["length"]}
        text_tokens = b.op("slice", words, name="words", **behind_image)
        return b.op("concat", image, text_tokens, name="image_and_words", axis=1)

    x, table = body(b, text, batch, join)
    add_head = HEADS[text["head"]]
    return add_head(b, x, {**text, "tied": values["tie_word_embeddings"]}, table)


def _pool_patches(
    b: Builder, patches: str, vision: Mapping[str, Any], batch: int, tokens_of_side: int
) -> str:
    """Append the means of squares of patches `[batch, patches, width]`, each of which is a token.

    Args:
        b: the builder of the graph.
        patches: the output of the tower.
        vision: the hyperparameters of the tower.
        batch: images of a step.
        tokens_of_side: tokens along each side of an image.
    """
    width = vision["width"]
    patches_of_side = vision["image"] // vision["patch"]
    pooled_side = max(1, patches_of_side // tokens_of_side)  # patches that become one token
    token_count = (patches_of_side // pooled_side) ** 2
    map_shape = (batch, patches_of_side, patches_of_side, width)
    x = b.op("reshape", patches, name="map", shape=map_shape)
    x = b.op("transpose", x, name="channels", order=(0, 3, 1, 2))
    pooling: Attributes = {
        "kernel": (pooled_side, pooled_side),
        "stride": (pooled_side, pooled_side),
        "padding": (0, 0, 0, 0),
    }
    x = b.op("avg_pool2d", x, name="pool", **pooling)
    x = b.op("reshape", x, name="flat", shape=(batch, width, token_count))
    return b.op("transpose", x, name="tokens", order=(0, 2, 1))


def siglip(b: Builder, towers: Towers, _: Mapping[str, Any], batch: int) -> str:
    """Return the similarity of each text with each image, with a bias (Zhai et al. 2023)."""
    with b.scope("text"):
        x, _table = body(b, towers["text"], batch)
        text = unit_length(b, last_token(b, x, towers["text"]))
    with b.scope("vision"):
        x, _table = body(b, towers["vision"], batch)
        image = unit_length(b, pool_by_attention(b, x, towers["vision"]))
    scale = b.op("pointwise", b.weight("scale/w", (1,)), name="scale", function="exp")
    # each text with each image of the batch
    similarities = b.op("linear", text, image, name="alike")
    scaled = b.op("pointwise", similarities, scale, name="scaled", function="mul")
    bias = b.weight("bias/w", (1,))
    logits = b.op("pointwise", scaled, bias, name="logits", function="add")
    return classify(b, logits)


def unit_length(b: Builder, x: str) -> str:
    """Return vectors `x [n, width]` of length 1."""
    squares = b.op("mul", x, x, name="square")
    sum_over_width: Attributes = {"function": "sum", "axes": (1,), "keep": True}
    squared_length = b.op("reduce", squares, name="sum", **sum_over_width)
    inverse_length = b.op("pointwise", squared_length, name="length", function="rsqrt")
    return b.op("pointwise", x, inverse_length, name="direction", function="mul")


TOWERS: Mapping[str, Callable[[Builder, Towers, Mapping[str, Any], int], str]] = {
    "clip": clip,
    "gemma3": gemma3,
    "siglip": siglip,
    "siglip2": siglip,
}
