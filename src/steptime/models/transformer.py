"""Transformers: encoders as BERT, decoders as GPT-2 and Llama, are settings of one family."""

from collections.abc import Mapping
from typing import Any

from steptime.layers.blocks import AttentionShape, attention, feed_forward, norm, residual
from steptime.layers.dense import classify, dropout, embedding, linear, mean_loss
from steptime.models.family import Family, Parameter
from steptime.ops.builder import Builder
from steptime.ops.table import ShapeError


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return an encoder (norm after each part, trained on its mean) or a decoder (norm before).

    A decoder ends with a final norm and a projection to the vocabulary.
    """
    encoder = p["kind"] == "encoder"
    if p["length"] % (b.plan.context * b.plan.tensor**b.plan.sequence):
        raise ShapeError(f"{p['length']} tokens do not divide among the ranks of a sequence")
    length = p["length"] // b.plan.context
    ids = b.input("tokens", (batch, length), "int64")
    table = b.weight("embedding/w", (b.words(p["vocabulary"]), p["width"]))
    x = b.summed(embedding(b, ids, table, "embedding"), "embedding_sum")
    x = _positions(b, x, p, batch)
    if encoder:
        x = norm(b, x, p["norm"], "embedding_norm")
    x = dropout(b, x, p["dropout"], "embedding_dropout")
    angles = ""
    if p["positions"] == "rotary":
        angles = b.buffer("angles", (length, p["width"] // p["heads"]))
    shape = AttentionShape(p["heads"], p["kv_heads"], not encoder, p["bias"])
    for i in b.repeat(p["layers"]):
        with b.scope(f"block{i + 1}"):
            x = _block(b, x, p, shape, angles)
    if encoder:
        return mean_loss(b, _pooled(b, b.whole(x, "final_gather"), p, batch))
    x = b.whole(norm(b, x, p["norm"], "final_norm"), "final_gather")
    if p["tied"]:
        return classify(b, b.op("linear", x, table, name="output/linear"))
    return classify(b, linear(b, x, b.words(p["vocabulary"]), "output", bias=False))


def _positions(b: Builder, x: str, p: Mapping[str, Any], batch: int) -> str:
    if p["segments"]:
        ids = b.input("segments", b.shape(x)[:2], "int64")
        table = b.weight("segment/w", (p["segments"], p["width"]))
        x = b.op("add", x, embedding(b, ids, table, "segment"), name="add_segment")
    if p["positions"] == "learned":
        table = b.weight("position/w", (p["max_length"], p["width"]))
        length = b.shape(x)[1]
        if p["max_length"] > length:
            table = b.op("slice", table, name="position", axis=0, start=0, stop=length)
        x = b.op("add", x, table, name="add_position")
    return x


def _block(b: Builder, x: str, p: Mapping[str, Any], shape: AttentionShape, angles: str) -> str:
    """Return attention and feed-forward, each added to `x`; the norm is after, or before."""
    before = p["kind"] == "decoder"
    for i in (1, 2):
        y = norm(b, x, p["norm"], f"norm{i}") if before else x
        if i == 1:
            y = attention(b, y, shape, "attention", angles)
        else:
            y = feed_forward(b, y, p["ffn"], p["activation"], p["bias"], "ffn")
        x = residual(b, x, y, p["dropout"], f"add{i}")
        if not before:
            x = norm(b, x, p["norm"], f"norm{i}")
    return x


def _pooled(b: Builder, x: str, p: Mapping[str, Any], batch: int) -> str:
    if not p["pooler"]:
        return x
    x = b.op("slice", x, name="pooler/first", axis=1, start=0, stop=1)
    x = b.op("reshape", x, name="pooler/reshape", shape=(batch, p["width"]))
    return b.op("tanh", linear(b, x, p["width"], "pooler"), name="pooler/tanh")


def _by_kind(encoder: Any, decoder: Any) -> Any:
    return lambda p: encoder if p["kind"] == "encoder" else decoder


def check(p: Mapping[str, Any]) -> str | None:
    """Return what does not fit together, or None."""
    if p["width"] % p["heads"]:
        return f"width {p['width']} does not divide into {p['heads']} heads"
    if p["heads"] % p["kv_heads"]:
        return f"heads {p['heads']} do not share {p['kv_heads']} kv_heads"
    if p["positions"] == "rotary" and p["width"] // p["heads"] % 2:
        return f"rotary positions need an even head width, not {p['width'] // p['heads']}"
    if p["positions"] == "learned" and p["max_length"] < p["length"]:
        return f"length {p['length']} is larger than max_length {p['max_length']}"
    return None


FAMILY = Family(
    "transformer",
    build,
    {
        "kind": Parameter("decoder", "encoder or decoder", choices=("encoder", "decoder")),
        "layers": Parameter(12, "blocks", (2, 4, 8, 12, 24)),
        "width": Parameter(768, "width of the model", (256, 512, 768, 1024)),
        "heads": Parameter(lambda p: max(1, int(p["width"]) // 64), "attention heads"),
        "kv_heads": Parameter(lambda p: p["heads"], "heads of keys and values", detail=True),
        "ffn": Parameter(lambda p: 4 * p["width"], "width of the feed-forward part", detail=True),
        "length": Parameter(_by_kind(512, 1024), "tokens of a sequence", (128, 512, 1024)),
        "max_length": Parameter(
            lambda p: p["length"], "rows of the table of positions", detail=True
        ),
        "vocabulary": Parameter(_by_kind(30522, 50257), "words", least=2),
        "norm": Parameter(
            "layer",
            "kind of norm",
            choices=("layer", "rms"),
            aliases={
                "layernorm": "layer",
                "layer_norm": "layer",
                "rmsnorm": "rms",
                "rms_norm": "rms",
            },
            detail=True,
        ),
        "activation": Parameter(
            "gelu",
            "of the feed-forward part",
            choices=("gelu", "relu", "silu", "swiglu"),
            aliases={"swish": "silu"},
            detail=True,
        ),
        "positions": Parameter(
            "learned",
            "how places are known",
            choices=("learned", "rotary", "none"),
            aliases={"rope": "rotary", "absolute": "learned"},
            detail=True,
        ),
        "bias": Parameter(True, "linear layers have a bias", detail=True),
        "tied": Parameter(True, "a decoder's output shares the embedding's weights", detail=True),
        "segments": Parameter(_by_kind(2, 0), "kinds of segment, 0 for none", least=0, detail=True),
        "pooler": Parameter(
            _by_kind(True, False), "an encoder ends with a pooling layer", detail=True
        ),
        "dropout": Parameter(0.0, "share dropped in training", detail=True),
    },
    "Vaswani et al. 2017; Devlin et al. 2018; Radford et al. 2019; Touvron et al. 2023",
    batch=1,
    batch_sweep=(1, 2, 4, 8),
    check=check,
)
