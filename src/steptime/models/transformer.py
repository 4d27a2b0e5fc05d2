"""Transformers: encoders as BERT, decoders as GPT-2 and Llama, are settings of one family."""

from collections.abc import Mapping
from typing import Any

from steptime.core.errors import shorten
from steptime.layers.blocks import NORMS, Part, Sight, attention, block, feed_forward, mixture, norm
from steptime.layers.dense import embedding, linear
from steptime.models.ends import HEADS, STEMS, words
from steptime.models.family import Family, Parameter
from steptime.ops.builder import Builder
from steptime.ops.experts import GATED


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return what a stem, its blocks, those of a decoder that reads them, and a head make."""
    x, table = body(b, p, batch)
    return HEADS[p["head"]](b, b.whole(x, "final_gather"), p, table)


def body(
    b: Builder, p: Mapping[str, Any], batch: int, joined: Part = lambda x: x
) -> tuple[str, str]:
    """Return all but the head, and the table of words; what comes in may be `joined` with more."""
    x, table = STEMS[p["stem"]](b, p, batch)
    x = _normed(b, blocks(b, joined(x), p, p["kind"] == "decoder"), p, "final_norm")
    if p["projects_words"] and p["embedding_width"] != p["width"]:
        x = linear(b, x, p["embedding_width"], "output_in", bias=False)
    return _decoded(b, x, p, batch, table) if p["decoder_layers"] else (x, table)


def _normed(b: Builder, x: str, p: Mapping[str, Any], name: str) -> str:
    return norm(b, x, p["norm"], name) if p[name.removeprefix("target_")] else x


def blocks(
    b: Builder, x: str, p: Mapping[str, Any], causal: bool, name: str = "block", memory: str = ""
) -> str:
    """Return all blocks of `x [n, l, width]`, each of them attention and feed-forward.

    Between these a block attends to a `memory`.
    """
    angles = relative = ""
    length = b.shape(x)[1] * (b.plan.tensor if b.plan.sequence else 1)
    if p["positions"] == "rotary":
        angles = b.buffer("angles", (length, p["rotary_width"]))
    if p["positions"] in ("relative", "alibi"):
        relative = _relative(b, p, length, f"{name}_relative")
    groups = p["block_groups"] or p["layers"]
    for i in b.repeat(p["layers"]):
        window = p["window"] if p["windows"][i % len(p["windows"])] == "w" else 0
        sights = [Sight(causal, window, angles, relative)]
        sights += [Sight(memory=memory)] if memory else []
        first = -(-(i * groups // p["layers"]) * p["layers"] // groups)  # of the group
        with b.scope(f"{name}{i + 1}", f"{name}{first + 1}" if first != i else ""):
            x = block(b, x, p, [*(_attends(b, p, sight) for sight in sights), _feeds(b, p, i)])
    return x


def _attends(b: Builder, p: Mapping[str, Any], sight: Sight) -> Part:
    return lambda x: attention(b, x, p, "cross" if sight.memory else "attention", sight)


def _feeds(b: Builder, p: Mapping[str, Any], i: int) -> Part:
    """Return the feed-forward part of block number `i` from 0: dense, or a mixture of experts."""
    dense = i < p["dense_layers"] or str(i) in p["dense_at"].split("-")
    if p["experts"] and not dense and (i + 1) % p["expert_every"] == 0:
        return lambda x: mixture(b, x, p, "experts")
    return lambda x: feed_forward(b, x, p["ffn"], p["activation"], p["ffn_bias"], "ffn")


def _decoded(
    b: Builder, memory: str, p: Mapping[str, Any], batch: int, table: str
) -> tuple[str, str]:
    """Return a decoder's blocks over words, which read what the encoder made, and their table."""
    heads = p["decoder_heads"]
    own = heads == p["heads"]
    q = {**p, "heads": heads, "kv_heads": p["kv_heads"] if own else heads}
    q |= {} if own else dict.fromkeys(("head_width", "value_width"), p["width"] // heads)
    q |= {"layers": p["decoder_layers"], "ffn": p["decoder_ffn"], "segments": 0}
    q |= {"max_length": p["target_rows"], "length": p["target_length"]}
    x, table = words(b, q, batch, "target_", table)
    x = blocks(b, x, q, True, "decoder", memory)
    return _normed(b, x, q, "target_final_norm"), table


def _relative(b: Builder, p: Mapping[str, Any], length: int, name: str) -> str:
    """Return what is added to the scores of each head, by how far two places are apart."""
    if p["positions"] == "alibi":  # fixed slopes
        return b.buffer(name, (p["heads"], length, length))
    with b.scope(name):
        places = b.buffer("places", (length, length), "int64")
        table = b.weight("w", (p["buckets"], p["heads"]))
        found = embedding(b, places, table, "embedding")
        return b.op("transpose", found, name="by_head", order=(2, 0, 1))


def _by_kind(encoder: Any, decoder: Any) -> Any:
    return lambda p: encoder if p["kind"] == "encoder" else decoder


def _windows(text: str) -> str:
    if not text or set(text) - set("wa") or len(text) > 1000:
        raise ValueError(f"{shorten(text)} is not of the letters w and a, such as wwwa")
    return text


def _numbers(text: str) -> str:
    if text.strip("0123456789-") or len(text) > 10_000:
        raise ValueError(f"must be numbers such as 1-5, not {shorten(text)}")
    return text


def check(p: Mapping[str, Any]) -> str | None:
    """Return what does not fit together, or None."""
    head, heads, turned, positions = p["head_width"], p["heads"], p["rotary_width"], p["positions"]
    decoded, first = p["decoder_layers"], p["first_position"]
    other_heads = p["decoder_heads"] != heads and p["width"] % p["decoder_heads"]
    latent = p["latent_q"] or p["latent_kv"]
    less = f" less {first}" if first else ""
    misturned = (
        f"rotary positions need an even head width, not {turned}"
        if turned == head
        else f"rotary_width {turned} is not an even part of the head width {head}"
    )
    faults = (
        (not head, f"width {p['width']} does not divide into {heads} heads"),
        (heads % p["kv_heads"], f"heads {heads} do not share {p['kv_heads']} kv_heads"),
        (positions == "rotary" and (turned % 2 or turned > head), misturned),
        (
            positions == "learned"
            and p["stem"] == "words"
            and p["max_length"] < p["length"] + first,
            f"length {p['length']} is larger than max_length {p['max_length']}{less}",
        ),
        (
            p["stem"] == "patches" and p["image"] % p["patch"],
            f"image {p['image']} does not divide into patches of {p['patch']}",
        ),
        (
            decoded and (p["kind"] == "decoder" or other_heads),
            f"a decoder of {p['decoder_heads']} heads reads an encoder of width {p['width']}",
        ),
        (
            decoded and positions == "learned" and p["target_rows"] < p["target_length"] + first,
            f"target_length {p['target_length']} is larger than target_rows {p['target_rows']}",
        ),
        (
            p["experts"] and p["experts_per_token"] > p["experts"],
            f"experts_per_token {p['experts_per_token']} of {p['experts']} experts",
        ),
        (
            p["latent_kv"] and (positions != "rotary" or p["kv_heads"] != heads),
            "latent_kv needs rotary positions and kv_heads as many as heads",
        ),
        (
            p["latent_kv"] and turned >= head,
            f"latent_kv needs a rotary_width below the head width {head}",
        ),
        (
            p["merged_qkv"] and (latent or p["key_bias"] != p["qkv_bias"]),
            "merged_qkv needs key_bias as qkv_bias, and neither latent_q nor latent_kv",
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
                f"{kind}{norm}": kind for kind in ("layer", "rms") for norm in ("norm", "_norm")
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
            choices=("learned", "rotary", "relative", "alibi", "none"),
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
        "merged_qkv": _detail(False, "queries, keys and values are parts of one product"),
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
        "dense_at": _detail("", "numbers from 0 of other such blocks, 1-5", read=_numbers),
        "expert_every": _detail(1, "one block in so many has experts"),
        "expert_bias": _detail(lambda p: p["ffn_bias"], "experts have biases"),
        "shared_gate": _detail(False, "a learned share of the expert that all tokens take"),
        "embedding_width": _detail(lambda p: p["width"], "width of the table of words"),
        "projects_words": _detail(False, "words alone are brought to the width, and back"),
        "scaled": _detail(False, "embeddings are multiplied by the root of the width"),
        "buckets": _detail(32, "distances that relative positions tell apart"),
        "block_groups": _detail(0, "groups of blocks that share their weights, 0: none", least=0),
        "stem": _detail("words", "what comes in", choices=("words", "patches", "sound")),
        "image": _detail(224, "height and width of an image that comes in as patches"),
        "patch": _detail(16, "height and width of a patch"),
        "patch_bias": _detail(True, "what embeds patches has a bias"),
        "channels": _detail(3, "channels of an image, or bands of sound"),
        "class_tokens": _detail(1, "learned tokens before the patches", least=0),
        "decoder_layers": _detail(0, "blocks of a decoder that reads an encoder", least=0),
        "decoder_heads": _detail(lambda p: p["heads"], "attention heads of it"),
        "decoder_ffn": _detail(lambda p: p["ffn"], "width of its feed-forward parts"),
        "target_length": _detail(lambda p: p["length"], "tokens that it makes"),
        "target_rows": _detail(lambda p: p["max_length"], "rows of its table of positions"),
        "head": _detail(_by_kind("none", "words"), "what comes out", choices=(*HEADS,)),
        "masked_biases": _detail(1, "biases of words that were masked"),
        "classes": _detail(2, "classes of a head that classifies"),
        "class_layers": _detail(1, "linear layers of a head that classifies"),
        "class_activation": _detail("tanh", "between them", choices=("tanh", "relu", "gelu")),
        "class_bias": _detail(_by_kind(True, False), "such a head has a bias"),
        "projection": _detail(0, "width that a token is brought to in the end, 0: none", least=0),
        "output_scaled": _detail(False, "what comes out is divided by the root of the width"),
        "router_bias": _detail(False, "what chooses the experts has a bias"),
    },
    "Vaswani et al. 2017; Devlin et al. 2018; Radford et al. 2019; Touvron et al. 2023",
    batch=1,
    batch_sweep=(1, 2, 4, 8),
    check=check,
)
"""Its parameters are all that a transformer may be told, in any description of one."""
