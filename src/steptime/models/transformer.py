"""Transformers: encoders as BERT, decoders as GPT-2 and Llama, are settings of one family."""

from collections.abc import Mapping
from typing import Any

from steptime.core.errors import shorten
from steptime.layers.blocks import (
    NORMS,
    Part,
    Sight,
    attention,
    block,
    feed_forward,
    mixture,
    norm,
)
from steptime.layers.dense import classify, dropout, embedding, linear, mean_loss
from steptime.models.family import Family, Parameter
from steptime.ops.builder import Builder
from steptime.ops.experts import GATED
from steptime.ops.table import ShapeError


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return an encoder, trained on its mean, or a decoder, which ends in words."""
    if p["length"] % (b.plan.context * b.plan.tensor**b.plan.sequence):
        raise ShapeError(f"{p['length']} tokens do not divide among the ranks of a sequence")
    length = p["length"] // b.plan.context
    ids = b.input("tokens", (batch, length), "int64")
    table = b.weight("embedding/w", (b.words(p["vocabulary"]), p["width"]))
    x = b.summed(embedding(b, ids, table, "embedding"), "embedding_sum")
    x = _positions(b, x, p, batch)
    if p["embedding_norm"]:
        x = norm(b, x, p["norm"], "embedding_norm")
    x = dropout(b, x, p["dropout"], "embedding_dropout")
    x = blocks(b, x, p)
    if p["final_norm"]:
        x = norm(b, x, p["norm"], "final_norm")
    x = b.whole(x, "final_gather")
    if p["kind"] == "encoder":
        return mean_loss(b, _pooled(b, x, p, batch))
    if p["tied"]:
        x = b.op("linear", x, table, name="output/linear")
        if p["head_bias"]:
            x = b.op("bias", x, b.weight("output/b", b.shape(x)[-1:]), name="output/bias", axis=-1)
        return classify(b, x)
    return classify(b, linear(b, x, b.words(p["vocabulary"]), "output", p["head_bias"]))


def blocks(b: Builder, x: str, p: Mapping[str, Any]) -> str:
    """Return all blocks of `x [n, l, width]`, each of them attention and feed-forward."""
    angles = ""
    if p["positions"] == "rotary":
        length = b.shape(x)[1] * (b.plan.tensor if b.plan.sequence else 1)
        angles = b.buffer("angles", (length, p["rotary_width"]))
    for i in b.repeat(p["layers"]):
        window = p["window"] if p["windows"][i % len(p["windows"])] == "w" else 0
        sight = Sight(p["kind"] == "decoder", window, angles)
        with b.scope(f"block{i + 1}"):
            x = block(b, x, p, [_attends(b, p, sight), _feeds(b, p, i)])
    return x


def _attends(b: Builder, p: Mapping[str, Any], sight: Sight) -> Part:
    return lambda x: attention(b, x, p, "attention", sight)


def _feeds(b: Builder, p: Mapping[str, Any], i: int) -> Part:
    """Return the feed-forward part of block number `i` from 0: dense, or a mixture of experts."""
    if p["experts"] and i >= p["dense_layers"] and (i + 1) % p["expert_every"] == 0:
        return lambda x: mixture(b, x, p, "experts")
    return lambda x: feed_forward(b, x, p["ffn"], p["activation"], p["ffn_bias"], "ffn")


def _positions(b: Builder, x: str, p: Mapping[str, Any], batch: int) -> str:
    if p["segments"]:
        ids = b.input("segments", b.shape(x)[:2], "int64")
        table = b.weight("segment/w", (p["segments"], p["width"]))
        x = b.op("add", x, embedding(b, ids, table, "segment"), name="add_segment")
    if p["positions"] == "learned":
        table = b.weight("position/w", (p["max_length"], p["width"]))
        first, length = p["first_position"], b.shape(x)[1]
        if p["max_length"] > length:
            part = {"axis": 0, "start": first, "stop": first + length}
            table = b.op("slice", table, name="position", **part)
        x = b.op("add", x, table, name="add_position")
    return x


def _pooled(b: Builder, x: str, p: Mapping[str, Any], batch: int) -> str:
    if not p["pooler"]:
        return x
    x = b.op("slice", x, name="pooler/first", axis=1, start=0, stop=1)
    x = b.op("reshape", x, name="pooler/reshape", shape=(batch, p["width"]))
    return b.op("tanh", linear(b, x, p["width"], "pooler"), name="pooler/tanh")


def _by_kind(encoder: Any, decoder: Any) -> Any:
    return lambda p: encoder if p["kind"] == "encoder" else decoder


def _windows(text: str) -> str:
    if not text or set(text) - set("wa") or len(text) > 1000:
        raise ValueError(f"{shorten(text)} is not of the letters w and a, such as wwwa")
    return text


def check(p: Mapping[str, Any]) -> str | None:
    """Return what does not fit together, or None."""
    head, heads, turned = p["head_width"], p["heads"], p["rotary_width"]
    faults = (
        (not head, f"width {p['width']} does not divide into {heads} heads"),
        (heads % p["kv_heads"], f"heads {heads} do not share {p['kv_heads']} kv_heads"),
        (
            p["positions"] == "rotary" and (turned % 2 or turned > head),
            f"rotary positions need an even head width, not {turned}"
            if turned == head
            else f"rotary_width {turned} is not an even part of the head width {head}",
        ),
        (
            p["positions"] == "learned" and p["max_length"] < p["length"] + p["first_position"],
            f"length {p['length']} is larger than max_length {p['max_length']}"
            + (f" less {p['first_position']}" if p["first_position"] else ""),
        ),
        (
            p["experts"] and p["experts_per_token"] > p["experts"],
            f"experts_per_token {p['experts_per_token']} of {p['experts']} experts",
        ),
        (
            p["latent_kv"] and (p["positions"] != "rotary" or p["kv_heads"] != heads),
            "latent_kv needs rotary positions and kv_heads as many as heads",
        ),
        (
            p["latent_kv"] and turned >= head,
            f"latent_kv needs a rotary_width below the head width {head}",
        ),
    )
    return next((fault for wrong, fault in faults if wrong), None)


def _detail(default: Any, meaning: str, **how: Any) -> Parameter:
    return Parameter(default, meaning, detail=True, **how)


def _width_of_head(p: Mapping[str, Any]) -> int:
    return 0 if p["width"] % p["heads"] else p["width"] // p["heads"]


FAMILY = Family(
    "transformer",
    build,
    {
        "kind": Parameter("decoder", "encoder or decoder", choices=("encoder", "decoder")),
        "layers": Parameter(12, "blocks", (2, 4, 8, 12, 24)),
        "width": Parameter(768, "width of the model", (256, 512, 768, 1024)),
        "heads": Parameter(lambda p: max(1, int(p["width"]) // 64), "attention heads"),
        "kv_heads": _detail(lambda p: p["heads"], "heads of keys and values"),
        "ffn": _detail(lambda p: 4 * p["width"], "width of the feed-forward part"),
        "length": Parameter(_by_kind(512, 1024), "tokens of a sequence", (128, 512, 1024)),
        "max_length": _detail(lambda p: p["length"], "rows of the table of positions"),
        "vocabulary": Parameter(_by_kind(30522, 50257), "words", least=2),
        "norm": _detail(
            "layer",
            "kind of norm",
            choices=("layer", "rms"),
            aliases={
                "layernorm": "layer",
                "layer_norm": "layer",
                "rmsnorm": "rms",
                "rms_norm": "rms",
            },
        ),
        "activation": _detail(
            "gelu",
            "of the feed-forward part",
            choices=("gelu", "gelu_tanh", "quick_gelu", "relu", "silu", *GATED),
            aliases={"swish": "silu"},
        ),
        "positions": _detail(
            "learned",
            "how places are known",
            choices=("learned", "rotary", "none"),
            aliases={"rope": "rotary", "absolute": "learned"},
        ),
        "bias": _detail(True, "linear layers have a bias"),
        "tied": _detail(True, "a decoder's output shares the embedding's weights"),
        "segments": _detail(_by_kind(2, 0), "kinds of segment, 0 for none", least=0),
        "pooler": _detail(_by_kind(True, False), "an encoder ends with a pooling layer"),
        "dropout": _detail(0.0, "share dropped in training"),
        "norms": _detail(
            _by_kind("after", "before"), "where the parts of a block are normed", choices=(*NORMS,)
        ),
        "final_norm": _detail(lambda p: p["norms"] != "after", "a norm after all blocks"),
        "embedding_norm": _detail(lambda p: p["norms"] == "after", "a norm before all blocks"),
        "first_position": _detail(0, "row of the table of positions that is the first", least=0),
        "head_width": _detail(_width_of_head, "width of a head's queries and keys"),
        "value_width": _detail(lambda p: p["head_width"], "width of a head's values"),
        "rotary_width": _detail(lambda p: p["head_width"], "features of a head that are rotated"),
        "qk_norm": _detail(
            "none",
            "queries and keys are normed: each head, or all",
            choices=("none", "head", "all"),
        ),
        "qkv_bias": _detail(lambda p: p["bias"], "queries, keys and values have a bias"),
        "key_bias": _detail(lambda p: p["qkv_bias"], "keys have one"),
        "out_bias": _detail(lambda p: p["bias"], "what attention ends with has a bias"),
        "ffn_bias": _detail(lambda p: p["bias"], "the feed-forward part has biases"),
        "head_bias": _detail(False, "a decoder's output has a bias"),
        "sinks": _detail(False, "each head has a learned score for nothing"),
        "window": _detail(0, "places that a token sees, 0 for all", least=0),
        "windows": _detail(
            "w", "blocks that see the window, w, and all, a, over and over", read=_windows
        ),
        "latent_q": _detail(0, "width of a vector that queries are made from, 0: none", least=0),
        "latent_kv": _detail(0, "of that which keys and values are made from", least=0),
        "experts": _detail(0, "feed-forward parts to choose from, 0: one dense part", least=0),
        "experts_per_token": _detail(2, "of which each token takes"),
        "expert_ffn": _detail(lambda p: p["ffn"], "width of an expert"),
        "shared_ffn": _detail(0, "width of the expert that all tokens take, 0: none", least=0),
        "dense_layers": _detail(0, "blocks without experts before the others", least=0),
        "expert_every": _detail(1, "one block in so many has experts"),
        "router_bias": _detail(False, "what chooses the experts has a bias"),
    },
    "Vaswani et al. 2017; Devlin et al. 2018; Radford et al. 2019; Touvron et al. 2023",
    batch=1,
    batch_sweep=(1, 2, 4, 8),
    check=check,
)
"""Its parameters are all that a transformer may be told, in any description of one."""
