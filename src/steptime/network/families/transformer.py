"""Transformers: encoders as BERT, decoders as GPT-2 and Llama, are settings of one family."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, NamedTuple

from steptime.network.families.ends import HEADS, STEMS, finish_stem, words
from steptime.network.families.family import Family, read_parameters
from steptime.network.families.transformer_rules import DEFAULTS, check_transformer
from steptime.network.layers.attention import Sight, attention
from steptime.network.layers.blocks import (
    NORMS,
    Part,
    add_dense_and_experts,
    append_activation,
    block,
    feed_forward,
    mixture,
)
from steptime.network.layers.compressed import (
    collapse_streams,
    expand_streams,
    through_streams,
)
from steptime.network.layers.dense import linear
from steptime.network.layers.designs import BlockDesign, block_parameters, design_of
from steptime.network.layers.mixers import delta_net
from steptime.network.layers.norms import norm
from steptime.network.layers.stems import Prefix, Stem
from steptime.network.ops.builder import Builder
from steptime.network.ops.experts import GATED


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return the output of a stem, its blocks, a decoder that reads them, and a head."""
    x, table = body(b, p, batch)
    return HEADS[p["head"]](b, b.gather_sequence(x, "final_gather"), p, table)


def body(b: Builder, p: Mapping[str, Any], batch: int, join: Part = lambda x: x) -> tuple[str, str]:
    """Return all but the head, and the table of words; what comes in may be `join` with more."""
    x, table = _stem(b, p, batch)
    prefix: Prefix | None = p.get("image_prefix")
    if prefix:
        x = prefix.join(b, x, p, batch)
    is_decoder = p["kind"] == "decoder"
    # `join` puts the vectors of other inputs, such as images, among those of the words.
    x = blocks(b, join(x), p, causal=is_decoder)
    x = _append_norm(b, x, p, "final_norm")
    if p["projects_words"] and p["embedding_width"] != p["width"]:
        x = linear(b, x, p["embedding_width"], "output_in", bias=False)
    if p["decoder_layers"]:  # this part is the encoder of an encoder-decoder
        return _append_decoder(b, x, p, batch, table)
    return x, table


def _stem(b: Builder, p: Mapping[str, Any], batch: int) -> tuple[str, str]:
    """Return tokens, and the table that words are taken from ("" where there is none)."""
    stem: Stem | None = p.get("stem_design")
    if stem is None:
        return STEMS[p["stem"]](b, p, batch)
    return finish_stem(b, stem.build(b, p, batch), p), ""


def _append_norm(b: Builder, x: str, p: Mapping[str, Any], name: str) -> str:
    return norm(b, x, p["norm"], name) if p[name.removeprefix("target_")] else x


def blocks(
    b: Builder, x: str, p: Mapping[str, Any], causal: bool, name: str = "block", memory: str = ""
) -> str:
    """Return all blocks of `x [n, l, width]`, each of them attention and feed-forward.

    Between these a block attends to a `memory`.

    Args:
        b: the builder.
        x: the embedded tokens.
        p: hyperparameters of the family.
        causal: a token attends to those before it alone.
        name: start of the name of each block.
        memory: the encoder's output, which a decoder's blocks also attend to; "" for none.
    """
    # the first block's design says what is made once for all blocks
    design = design_of(block_parameters(p, 0))
    shared = _SharedInputs(
        name=name,
        length=_count_tokens(b, x),
        causal=causal,
        relative=_score_terms(b, x, p, name),
        memory=memory,
        embeddings=x,
        block_embeddings=_embeddings_of_blocks(b, x, p, design),
    )
    # some designs run several residual streams, which become one again behind the last block
    x = _expand_streams(b, x, design)
    for i in b.repeat(p["layers"]):
        x = _append_block(b, x, p, i, shared)
    return _collapse_streams(b, x, design)


class _SharedInputs(NamedTuple):
    """Tensors and settings that all blocks of a network share; "" stands for no tensor.

    Attributes:
        name: start of the name of each block.
        length: tokens of the whole sequence.
        causal: a token attends to those before it alone.
        relative: terms of the scores of attention.
        memory: the encoder's output, which the blocks also attend to.
        embeddings: the input of the first block.
        block_embeddings: further embeddings, some columns for each block.
    """

    name: str
    length: int
    causal: bool
    relative: str
    memory: str
    embeddings: str
    block_embeddings: str


def _count_tokens(b: Builder, x: str) -> int:
    """Return the tokens of a sequence of which `x [n, l, width]` is a tensor rank's part."""
    _, rank_length, _ = b.shape(x)
    return rank_length * b.plan.tensor if b.plan.sequence else rank_length


def _score_terms(b: Builder, x: str, p: Mapping[str, Any], name: str) -> str:
    """Return the term by which places change the scores in all blocks, "" for none."""
    relative = ""
    if p["positions"] in ("relative", "alibi") or p["relative_scores"]:
        relative = _relative(b, p, _count_tokens(b, x), f"{name}_relative")
    places = design_of(block_parameters(p, 0)).places
    return places.table(b, p["width"], f"{name}_places") if places else relative


def _append_block(b: Builder, x: str, p: Mapping[str, Any], i: int, shared: _SharedInputs) -> str:
    """Return `x` after block number `i` from 0, whose settings may differ from the network's."""
    block_p = block_parameters(p, i)
    design = design_of(block_p)
    parts = _mixing_parts(b, block_p, _list_sights(b, block_p, i, shared))
    if _attention_letter(p, i) == "l":
        parts[0] = partial(delta_net, b, p=p, name="attention")  # in place of self-attention
    scope_of_weights = _scope_of_shared_weights(p, i, shared.name)
    with b.scope(f"{shared.name}{i + 1}", scope_of_weights):
        if design.feeds:
            parts.append(_feed_forward_part(b, block_p, i))
        embed_block = partial(
            _embed_block, b, p=block_p, embeddings=shared.block_embeddings, number=i
        )
        x = _block_of_design(b, x, block_p, parts, embed_block)
        if design.added_input:
            x = design.added_input.build(b, x, shared.embeddings, p["norm"])
    return x


def _attention_letter(p: Mapping[str, Any], i: int) -> str:
    """Return the attention of block number `i`: "w" within a window, "l" linear, others full.

    The letters of `windows` repeat.
    """
    return str(p["windows"][i % len(p["windows"])])


def _list_sights(b: Builder, p: Mapping[str, Any], i: int, shared: _SharedInputs) -> list[Sight]:
    """Return the tokens that a block attends to: its own, and those of an encoder."""
    sight = Sight(
        causal=shared.causal,
        window=p["window"] if _attention_letter(p, i) == "w" else 0,
        angles=_angles(b, p, shared.length),
        relative=shared.relative,
    )
    sight = _with_shared_keys(b, sight, p, shared.name)
    return [sight, Sight(memory=shared.memory)] if shared.memory else [sight]


def _scope_of_shared_weights(p: Mapping[str, Any], i: int, name: str) -> str:
    """Return the scope of the first block of a block's group, whose weights it shares.

    It is "" for the first block of a group, and where no blocks share weights.
    """
    layers = p["layers"]
    groups = p["block_groups"] or layers  # ALBERT: all blocks of a group share weights
    # group g begins with block ceil(g * layers / groups)
    group = i * groups // layers
    first_block = ceil(group * layers / groups)
    return "" if i == first_block else f"{name}{first_block + 1}"


def _expand_streams(b: Builder, x: str, design: BlockDesign) -> str:
    """Return the residual streams of a design that are made of tokens, `x` itself for one."""
    if design.alternating:
        return design.alternating.expand(b, x)
    return expand_streams(b, x, design.streams) if design.streams else x


def _collapse_streams(b: Builder, x: str, design: BlockDesign) -> str:
    """Return the residual streams of a design as one."""
    if design.alternating:
        return design.alternating.collapse(b, x)
    return collapse_streams(b, x, design.streams) if design.streams else x


def _block_of_design(
    b: Builder, x: str, p: Mapping[str, Any], parts: Sequence[Part], embed_block: Part
) -> str:
    """Return `x` after a block, with what its own embeddings (`embed_block`) make of it added."""
    design = design_of(p)
    if design.alternating:
        return design.alternating.build(b, x, p, parts, embed_block)
    x = _run_parts(b, x, p, parts)
    return b.op("add", embed_block(x), x, name="own_tokens/add") if design.token_width else x


def _run_parts(b: Builder, x: str, p: Mapping[str, Any], parts: Sequence[Part]) -> str:
    """Return `x` after the parts of a block: a usual one, of several streams, or with experts."""
    design = design_of(p)
    if design.is_dense_with_experts:
        *mixing_parts, _feed_forward = parts
        mixed = block(b, x, p, mixing_parts)
        return add_dense_and_experts(b, mixed, p)
    if not design.streams:
        return block(b, x, p, parts)
    for number, part in enumerate(parts, 1):
        x = through_streams(b, x, design.streams, part, f"part{number}", p["norm"])
    return x


def _embeddings_of_blocks(b: Builder, x: str, p: Mapping[str, Any], design: BlockDesign) -> str:
    """Return embeddings of each token for each block, `[n, l, layers*width]` ("" for none)."""
    width = design.token_width
    if not width:
        return ""
    layers = len(p["designs"])  # of the whole network, of which `p` may say the first blocks
    total_width = layers * width
    with b.scope("embedding_of_blocks"):
        rows = b.rank_words(design.token_rows or p["vocabulary"])
        table = b.weight("w", (rows, total_width))
        # a table's row for each token ("tokens" is the input of token numbers) ...
        rows_of_tokens = b.op("embedding", "tokens", table, name="embedding")
        rows_of_tokens = b.sum_over_ranks(rows_of_tokens, "sum")
        # ... and a product of its usual embedding, normed block by block
        projected = linear(b, x, total_width, "projection", bias=False)
        projected = _norm_by_block(b, projected, p["norm"], layers)
        return b.op("add", rows_of_tokens, projected, name="add")


def _norm_by_block(b: Builder, x: str, kind: str, layers: int) -> str:
    """Return `x [n, l, layers*width]` with the columns of each block normed by themselves."""
    n, length, total_width = shape = b.shape(x)
    x = b.op("reshape", x, name="blocks", shape=(n, length, layers, total_width // layers))
    return b.op("reshape", norm(b, x, kind, "norm"), name="all", shape=shape)


def _embed_block(b: Builder, x: str, p: Mapping[str, Any], embeddings: str, number: int) -> str:
    """Return the block's own token embeddings, gated by `x`, in the width of the network."""
    width = design_of(p).token_width
    with b.scope("own_tokens"):
        # the columns of this block among the embeddings for all blocks
        start = number * width
        embedding = b.op("slice", embeddings, name="own", axis=-1, start=start, stop=start + width)
        ungated_activation = GATED.get(p["activation"], p["activation"])
        gate = linear(b, x, width, "gate", bias=False)
        gate = append_activation(b, gate, ungated_activation)
        gated = b.op("mul", gate, embedding, name="gated")
        y = linear(b, gated, p["width"], "out", bias=False)
        return norm(b, y, p["norm"], "norm")


def _angles(b: Builder, p: Mapping[str, Any], length: int) -> str:
    """Return the table of angles of this width, made once; "" where nothing is turned by place."""
    if p["positions"] != "rotary":
        return ""
    width = p["rotary_width"]
    table_shape = (length, width)
    # all blocks that rotate the same width share one table; a second width gets a second table
    plain_name, name_with_width = "angles", f"angles_{width}"
    paths = [b.full_path(name) for name in (plain_name, name_with_width)]
    existing_tables = [path for path in paths if path in b.tensors]
    for table in existing_tables:
        if b.shape(table) == table_shape:
            return table
    return b.buffer(name_with_width if existing_tables else plain_name, table_shape)


def _with_shared_keys(b: Builder, sight: Sight, p: Mapping[str, Any], name: str) -> Sight:
    """Return a sight with the keys and values of the earlier block that a design names."""
    source = design_of(p).source
    if source is None:
        return sight
    _, keys, values, *_ = b.made_by[f"{name}{source + 1}/attention/attention"].inputs
    return replace(sight, keys=keys, values=values)


def _mixing_parts(b: Builder, p: Mapping[str, Any], sights: Sequence[Sight]) -> list[Part]:
    """Return the parts of a block that mix tokens: attention, or what a design has in its place."""
    design = design_of(p)
    if not design.mixes:
        return []  # a block with a feed-forward part alone
    mixer, parallel_mixer = design.mixer, design.parallel
    if mixer is not None:
        return [lambda x: mixer.build(b, x, p["width"], "attention")]
    self_attention, *cross_attention = [_attention_part(b, p, sight) for sight in sights]
    if parallel_mixer is None:
        return [self_attention, *cross_attention]

    def attend_and_mix(x: str) -> str:
        """Add self-attention and the mixer beside it (such as Mamba), which read the same `x`."""
        attended = self_attention(x)
        mixed = parallel_mixer.build(b, x, p["width"], "mixer")
        return b.op("add", attended, mixed, name="mixed_both")

    return [attend_and_mix, *cross_attention]


def _attention_part(b: Builder, p: Mapping[str, Any], sight: Sight) -> Part:
    # a design with scores of places put its table of distances into `sight.relative`
    places = design_of(p).places
    if places:
        return lambda x: places.attention(b, x, p, "attention", sight.relative)
    return lambda x: attention(b, x, p, "cross" if sight.memory else "attention", sight)


def _feed_forward_part(b: Builder, p: Mapping[str, Any], i: int) -> Part:
    """Return the feed-forward part of block number `i` from 0: dense, or a mixture of experts."""
    # the first `dense_layers` blocks are dense, and those that `dense_at` lists, "0-3" for 0 and 3
    is_dense = i < p["dense_layers"] or str(i) in p["dense_at"].split("-")
    # of `expert_every` blocks the last has experts
    is_expert_block = (i + 1) % p["expert_every"] == 0
    if p["experts"] and is_expert_block and not is_dense:
        return lambda x: mixture(b, x, p, "experts")
    keeps_largest = design_of(p).keeps_largest
    return lambda x: feed_forward(
        b, x, p["ffn"], p["activation"], p["ffn_bias"], "ffn", keeps_largest
    )


def _append_decoder(
    b: Builder, encoder_output: str, p: Mapping[str, Any], batch: int, table: str
) -> tuple[str, str]:
    """Return a decoder's blocks over words, which read what the encoder made, and their table."""
    heads = p["decoder_heads"]
    decoder_p = {
        **p,
        "heads": heads,
        "layers": p["decoder_layers"],
        "ffn": p["decoder_ffn"],
        "segments": 0,  # a decoder has no segment embeddings
        "max_length": p["target_rows"],
        "length": p["target_length"],
    }
    # with another number of heads than the encoder's, the heads divide the width evenly
    if heads != p["heads"]:
        decoder_p["kv_heads"] = heads
        decoder_p["head_width"] = p["width"] // heads
        decoder_p["value_width"] = p["width"] // heads
    x, table = words(b, decoder_p, batch, "target_", table)
    x = blocks(b, x, decoder_p, causal=True, name="decoder", memory=encoder_output)
    return _append_norm(b, x, decoder_p, "target_final_norm"), table


def _relative(b: Builder, p: Mapping[str, Any], length: int, name: str) -> str:
    """Return a term of each head's scores that depends on how far two places are apart."""
    if p["positions"] == "alibi":  # not learned: each head's slope times the distance
        return b.buffer(name, (p["heads"], length, length))
    with b.scope(name):
        # as in T5: the distance of two tokens falls into a bucket, which has a bias for each head
        bucket_numbers = b.buffer("places", (length, length), "int64")
        bias_table = b.weight("w", (p["buckets"], p["heads"]))
        biases = b.op("embedding", bucket_numbers, bias_table, name="embedding")
        return b.op("transpose", biases, name="by_head", order=(2, 0, 1))


PLAIN = ("gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu", "xielu")
FAMILY = Family(
    "transformer",
    build,
    read_parameters(
        "transformer",
        DEFAULTS,
        activation={"choices": (*PLAIN, *GATED)},
        norms={"choices": (*NORMS,)},
        head={"choices": (*HEADS,)},
    ),
    "Vaswani et al. 2017; Devlin et al. 2018; Radford et al. 2019; Touvron et al. 2023",
    batch=1,
    batch_sweep=(1, 2, 4, 8),
    check=check_transformer,
)
