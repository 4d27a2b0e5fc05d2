"""The first and last layers of transformers: words, patches or sound; words or classes."""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

from steptime.network.layers.attention import Sight, attention
from steptime.network.layers.blocks import append_activation, feed_forward
from steptime.network.layers.dense import classify, dropout, linear, mean_loss
from steptime.network.layers.image import conv2d
from steptime.network.layers.norms import norm
from steptime.network.ops.builder import Attributes, Builder
from steptime.network.ops.experts import GATED
from steptime.network.ops.table import ShapeError

Parameters = Mapping[str, Any]
NO_TABLE = ""  # of words, which the head could share


def words(
    b: Builder, p: Parameters, batch: int, name: str = "", table: str = ""
) -> tuple[str, str]:
    """Return words `[n, l, width]` with their places, and the table that they are taken from.

    Args:
        b: the builder.
        p: hyperparameters of the family.
        batch: sequences.
        name: start of the names of ops and inputs, "target_" for a decoder beside an encoder.
        table: the table of another part of the network that is shared; "" makes a new one.
    """
    ids = b.input(f"{name}tokens", (batch, _count_rank_tokens(b, p["length"])), "int64")
    table_shape = (b.rank_words(p["vocabulary"]), p["embedding_width"])
    table = table or b.weight("embedding/w", table_shape)
    x = b.op("embedding", ids, table, name=f"{name}embedding")
    x = b.sum_over_ranks(x, f"{name}embedding_sum")
    # Embeddings of another width than the blocks' are widened by a product: either at once,
    # without a bias (`projects_words`), or at the end of the stem, with one.
    needs_projection = p["embedding_width"] != p["width"]
    if needs_projection and p["projects_words"]:
        x = linear(b, x, p["width"], f"{name}embedding_in", bias=False)
    if p["scaled"]:
        factor = sqrt(p["width"])
        x = b.op("pointwise", x, name=f"{name}embedding_scale", function="mul", scalar=factor)
    if p["segments"]:
        x = _add_segments(b, x, p["segments"])
    x = _add_positions(b, x, p, p["max_length"], name)
    x = finish_stem(b, x, p, name)
    if needs_projection and not p["projects_words"]:
        x = linear(b, x, p["width"], f"{name}embedding_in")
    return x, table


def _count_rank_tokens(b: Builder, length: int) -> int:
    """Return the tokens of a sequence that a context rank reads."""
    sequence_ranks = b.plan.context
    if b.plan.sequence:  # sequence parallelism cuts it among the tensor ranks too, later on
        sequence_ranks *= b.plan.tensor
    if length % sequence_ranks:
        raise ShapeError(f"{length} tokens do not divide among the ranks of a sequence")
    return length // b.plan.context


def _add_segments(b: Builder, x: str, segment_count: int) -> str:
    """Return `x [n, l, width]` with a learned vector of each token's segment added."""
    ids = b.input("segments", b.shape(x)[:2], "int64")
    table = b.weight("segment/w", (segment_count, b.shape(x)[-1]))
    vectors = b.op("embedding", ids, table, name="segment")
    return b.op("add", x, vectors, name="add_segment")


def _add_positions(b: Builder, x: str, p: Parameters, rows: int, name: str = "") -> str:
    """Return `x [n, l, width]` with the rows of a learned table of positions added."""
    if p["positions"] != "learned":
        return x
    _, length, width = b.shape(x)
    positions = b.weight(f"{name}position/w", (rows, width))
    if rows > length:  # the table has rows before or behind those of these tokens
        start = p["first_position"]
        stop = start + length
        positions = b.op("slice", positions, name=f"{name}position", axis=0, start=start, stop=stop)
    return b.op("add", x, positions, name=f"{name}add_position")


def finish_stem(b: Builder, x: str, p: Parameters, name: str = "") -> str:
    """Return tokens after the norm and the dropout that stand before all blocks."""
    if p["embedding_norm"]:
        x = norm(b, x, p["norm"], f"{name}embedding_norm")
    return dropout(b, x, p["dropout"], f"{name}embedding_dropout")


def _embed_patches(b: Builder, p: Parameters, batch: int) -> tuple[str, str]:
    """Return an image cut into patches, after tokens that stand for all of it."""
    width, patch_side = p["width"], p["patch"]
    x = b.input("image", (batch, p["channels"], p["image"], p["image"]))
    x = conv2d(b, x, width, patch_side, "patches", stride=patch_side, bias=p["patch_bias"])
    patch_count = (p["image"] // patch_side) ** 2
    if p["mask_token"]:
        # a parameter that no op reads: only pretraining hides patches behind it
        b.weight("mask/w", (1, width))
    x = b.op("reshape", x, name="patches/flat", shape=(batch, width, patch_count))
    x = b.op("transpose", x, name="patches/rows", order=(0, 2, 1))
    if p["class_tokens"]:
        x = _put_class_tokens_before(b, x, p["class_tokens"])
    x = _add_positions(b, x, p, patch_count + p["class_tokens"])
    return finish_stem(b, x, p), NO_TABLE


def _put_class_tokens_before(b: Builder, x: str, token_count: int) -> str:
    """Return `x [n, l, width]` behind learned tokens, which stand for the whole image."""
    batch, _, width = b.shape(x)
    class_vectors = b.weight("class/w", (1, token_count, width))
    if batch > 1:
        shape = (batch, token_count, width)
        class_vectors = b.op("broadcast", class_vectors, name="class", shape=shape)
    return b.op("concat", class_vectors, x, name="with_class", axis=1)


def _embed_sound(b: Builder, p: Parameters, batch: int) -> tuple[str, str]:
    """Return the bands of sound after two convolutions along time; the second halves it."""
    frames = 2 * p["length"]
    x = b.input("sound", (batch, p["channels"], frames))
    x = b.op("reshape", x, name="bands", shape=(batch, p["channels"], 1, frames))
    for number, stride in ((1, 1), (2, 2)):
        with b.scope(f"conv{number}"):
            x = _convolve_frames(b, x, p["width"], stride)
            x = append_activation(b, x, "gelu")
    x = b.op("reshape", x, name="flat", shape=(batch, p["width"], p["length"]))
    x = b.op("transpose", x, name="rows", order=(0, 2, 1))
    x = _add_positions(b, x, p, p["length"])
    return finish_stem(b, x, p), NO_TABLE


def _convolve_frames(b: Builder, x: str, channels: int, stride: int) -> str:
    """Return `x [n, c, 1, frames]` after a convolution over three frames, with a bias."""
    _, input_channels, _, _ = b.shape(x)
    w = b.weight("w", (channels, input_channels, 1, 3))
    attributes: Attributes = {
        "stride": (1, stride),
        "padding": (0, 0, 1, 1),  # top, bottom, left, right
        "groups": 1,
    }
    x = b.op("conv2d", x, w, name="conv2d", **attributes)
    return b.op("bias", x, b.weight("b", (channels,)), name="bias", axis=1)


STEMS: Mapping[str, Callable[[Builder, Parameters, int], tuple[str, str]]] = {
    "words": words,
    "patches": _embed_patches,
    "sound": _embed_sound,
}


def _append_words_head(b: Builder, x: str, p: Parameters, table: str) -> str:
    if p["output_scaled"]:
        factor = p["width"] ** -0.5
        x = b.op("pointwise", x, name="output_scale", function="mul", scalar=factor)
    shares_table = p["tied"] and table
    if not shares_table:
        logits = linear(b, x, b.rank_words(p["vocabulary"]), "output", p["head_bias"])
        return classify(b, logits)
    logits = b.op("linear", x, table, name="output/linear")
    if p["head_bias"]:
        bias = b.weight("output/b", b.shape(logits)[-1:])
        logits = b.op("bias", logits, bias, name="output/bias", axis=-1)
    return classify(b, logits)


def _append_masked_head(b: Builder, x: str, p: Parameters, table: str) -> str:
    """Return the loss of words that were masked: a layer, a norm, and the table of words."""
    with b.scope("masked"):
        x = linear(b, x, p["embedding_width"], "dense", p["masked_dense_bias"])
        activation = str(p["activation"])
        # this layer is a plain one, also where the feed-forward parts of the blocks are gated
        ungated = GATED.get(activation, activation)
        x = append_activation(b, x, ungated)
        x = norm(b, x, p["norm"], "norm")
    # Without tied weights `transformers` stores further biases, which no op reads.
    for i in range(1, p["masked_biases"]):
        b.weight(f"masked/b{i}", (p["vocabulary"],))
    return _append_words_head(b, x, {**p, "head_bias": True}, table)


def _append_no_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    return mean_loss(b, _pool_first_token(b, x, p) if p["pooler"] else x)


def _select_token(b: Builder, x: str, index: int, name: str) -> str:
    """Return one token of `x [n, l, width]`, counted from the end where `index` is below 0."""
    (n, length, width) = b.shape(x)
    start = index % length
    x = b.op("slice", x, name=name, axis=1, start=start, stop=start + 1)
    return b.op("reshape", x, name=f"{name}/reshape", shape=(n, width))


def _pool_first_token(b: Builder, x: str, p: Parameters) -> str:
    """Return the first token, after a layer where it is pooled."""
    x = _select_token(b, x, index=0, name="pooler/first")
    if not p["pooler"]:
        return x
    return b.op("tanh", linear(b, x, p["width"], "pooler"), name="pooler/tanh")


def vector(b: Builder, x: str, p: Parameters) -> str:
    """Return the token that stands for all of `x`, a decoder's last one, normed and projected."""
    index = 0 if p["kind"] == "encoder" else -1  # of the class token, or of a decoder's last
    x = _select_token(b, x, index, "one")
    # without a norm behind the blocks the chosen token alone is normed
    x = x if p["final_norm"] else norm(b, x, p["norm"], "post_norm")
    return linear(b, x, p["projection"], "projection", bias=False) if p["projection"] else x


def _append_classes_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    """Return the loss of an encoder's first token, or of a decoder's last, in classes."""
    if p["kind"] == "encoder":
        return _append_tokens_head(b, _pool_first_token(b, x, p), p, _)
    x = linear(b, x, p["classes"], "classifier", p["class_bias"])
    return classify(b, _select_token(b, x, index=-1, name="last"))


def _append_tokens_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    for i in range(1, p["class_layers"]):
        x = linear(b, x, p["width"], f"classifier_in{i}")
        x = append_activation(b, x, p["class_activation"])
    # `x [n, l, width]`: classes of each token, whose classifier always has a bias
    bias = p["class_bias"] or len(b.shape(x)) == 3
    return classify(b, linear(b, x, p["classes"], "classifier", bias))


def _append_mean_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    """Return the loss of the mean of all tokens, projected, in classes."""
    x = linear(b, x, p["projection"], "projection")
    x = b.op("reduce", x, name="pooled", function="mean", axes=(1,), keep=False)
    return classify(b, linear(b, x, p["classes"], "classifier"))


def _append_classes_with_mean_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    """Return the loss of classes by the first token beside the mean of the others (DINOv2)."""
    patches = b.op("slice", x, name="patches_only", axis=1, start=1, stop=b.shape(x)[1])
    mean = b.op("reduce", patches, name="pooled", function="mean", axes=(1,), keep=False)
    class_token = _select_token(b, x, index=0, name="first")
    features = b.op("concat", class_token, mean, name="first_and_mean", axis=1)
    return classify(b, linear(b, features, p["classes"], "classifier"))


def _append_teacher_heads(b: Builder, x: str, p: Parameters, _: str) -> str:
    """Return the loss of the mean of two tokens' classes (Touvron et al. 2020, section 4)."""
    # Token 0 is the class token, token 1 the one that a teacher network trains (distillation). Each
    # has a classifier, and the answer is the mean of both.
    logits = [
        linear(b, _select_token(b, x, i, f"token{i + 1}"), p["classes"], f"classifier{i + 1}")
        for i in (0, 1)
    ]
    total = b.op("add", *logits, name="both")
    return classify(b, b.op("pointwise", total, name="mean", function="mul", scalar=0.5))


def _append_pixels_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    """Return patches as they were; a learned token stood for those that were hidden."""
    # a parameter that no op of this graph reads
    b.weight("mask/w", (1, 1, p["width"]))
    x = b.op("slice", x, name="seen", axis=1, start=p["class_tokens"], stop=b.shape(x)[1])
    return mean_loss(b, linear(b, x, p["patch"] ** 2 * p["channels"], "pixels"))


def _append_pretraining_heads(b: Builder, x: str, p: Parameters, table: str) -> str:
    """Return the losses of masked words, and of classes of the first token, as one."""
    with b.scope("pair"):
        pair = classify(b, linear(b, _pool_first_token(b, x, p), p["classes"], "classifier"))
    words = _append_masked_head(b, x, p, table)
    return b.op("add", words, pair, name="losses") if b.training else words


def _append_spans_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    x = linear(b, x, p["classes"], "spans")
    return classify(b, b.op("transpose", x, name="spans/places", order=(0, 2, 1)))


def _append_last_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    return mean_loss(b, last_token(b, x, p))


def last_token(b: Builder, x: str, p: Parameters) -> str:
    """Return the last token of `x [n, l, width]` after a linear layer."""
    return linear(b, _select_token(b, x, index=-1, name="last"), p["projection"], "last_head")


def _append_probe_head(b: Builder, x: str, p: Parameters, _: str) -> str:
    return mean_loss(b, pool_by_attention(b, x, p))


def pool_by_attention(b: Builder, x: str, p: Parameters) -> str:
    """Return one token that attends to all of `x`, and a feed-forward part (SigLIP's head)."""
    batch = b.shape(x)[0]
    with b.scope("head"):
        probe = b.weight("probe/w", (1, 1, p["width"]))
        shape = (batch, 1, p["width"])
        probe = b.op("broadcast", probe, name="probe", shape=shape)
        # cross attention: the learned probe asks for the keys and values of all tokens
        y = attention(b, probe, p, "attention", Sight(memory=x))
        z = norm(b, y, "layer", "norm")
        z = feed_forward(b, z, p["ffn"], p["activation"], bias=True, name="ffn")
        pooled = b.op("add", y, z, name="add")
        return _select_token(b, pooled, index=0, name="pooled")


HEADS: Mapping[str, Callable[[Builder, str, Parameters, str], str]] = {
    "words": _append_words_head,
    "masked": _append_masked_head,
    "none": _append_no_head,
    "classes": _append_classes_head,
    "tokens": _append_tokens_head,
    "spans": _append_spans_head,
    "mean": _append_mean_head,
    "classes_with_mean": _append_classes_with_mean_head,
    "teacher": _append_teacher_heads,
    "pixels": _append_pixels_head,
    "pretraining": _append_pretraining_heads,
    "last": _append_last_head,
    "probe": _append_probe_head,
    "vector": lambda b, x, p, _: mean_loss(b, vector(b, x, p)),
}
