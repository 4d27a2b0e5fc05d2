"""Kernels as inference engines run them: attention with a cache, and merged products."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.network.ops.builder import Builder
from steptime.network.ops.execution import PLAIN
from steptime.planning.problem import PlanProblem
from steptime.prediction.kernel import Kernel
from steptime.prediction.training import FIRST, LAST, piece_of
from steptime.serving.attention_shape import STATEFUL, AttentionShape

HALF_BYTES = 2  # of a number in 16 bits
EXPERTS_AXES = 3  # experts, rows, columns
BYTES_BY_FORMAT = {
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "float4": 0.5625,  # with a scale of 8 bits for 16 numbers
    "int4": 0.516,  # with a scale of 16 bits for 128 numbers
    "mxfp4": 0.53125,  # with a scale of 8 bits for 32 numbers
}
PADDED_SIDES = {"mxfp4": 256}  # multiples to which vLLM pads experts' matrices (mxfp4.py)


def stored_bytes(spec: TensorSpec, weight_format: str) -> float:
    """Return the bytes of a weight in a format; experts' matrices may be padded."""
    size = float(spec.size)
    # The engine pads the sides of experts' matrices in such a format, and stores the padding.
    multiple = PADDED_SIDES.get(weight_format)
    if multiple and len(spec.shape) == EXPERTS_AXES:
        experts, *sides = spec.shape
        size = experts * prod(-(-side // multiple) * multiple for side in sides)
    return BYTES_BY_FORMAT[weight_format] * size


class SequenceGroup(NamedTuple):
    """Equal sequences of a step: the new tokens of each, after `cached_tokens` in the cache."""

    sequences: int
    tokens: int
    cached_tokens: float


def attention_kernels(
    problem: PlanProblem, attention: AttentionShape, group: SequenceGroup, cache_format: str
) -> list[Kernel]:
    """Return the kernels of a layer's attention for a group.

    If each sequence has one new token, a latent cache is read as it is (DeepSeek-AI 2024,
    section 2.1.2): all heads share one key, of which a part is the value.
    """
    if attention.kind in STATEFUL:
        return _delta_rule_kernels(problem, attention, group)
    # For a single new token the cached latent vectors are read as they are: all heads share them as
    # keys and values. Prompts make keys and values for each head from them.
    is_latent_shared = bool(attention.latent_width) and group.tokens == 1
    if is_latent_shared:
        latent_value_width = int(problem.shape.kind_settings["latent_kv"])
        attention = attention._replace(
            kv_heads=1, head_width=attention.latent_width, value_width=latent_value_width
        )
    keys = _count_keys(attention, group)
    # One new token attends to all keys; compressed keys lie all before the new tokens.
    is_causal = group.tokens > 1 and attention.compression_ratio == 1
    # A graph of the attention alone is lowered; its traffic and FLOP are corrected for the cache.
    graph = _attention_graph(problem, attention, group, keys, is_causal=is_causal)
    step_model = problem.rank.step_model.with_graph(graph, group.sequences)
    kernel, *further = step_model.lower_step().kernels
    key_size = graph.tensors["k"].size
    value_size = graph.tensors["v"].size
    is_single_vector = is_latent_shared or attention.values_are_keys
    cached_size = key_size + (0 if is_single_vector else value_size)
    cached_bytes = BYTES_BY_FORMAT[cache_format] * cached_size
    # The lowering counts keys and values in 16 bits; the cache may be smaller.
    saved_bytes = HALF_BYTES * (key_size + value_size) - cached_bytes
    flop = kernel.flop
    execution = problem.rank.stack.kinds.get("attention", PLAIN)
    is_window_skipped = attention.window and execution.skips_window
    if is_causal and not is_window_skipped:
        # the causal mask skips keys among the new tokens alone, not in the cache
        skipped_share = 1 - execution.causal_flop
        # The lowering leaves out `skipped_share` of all FLOP, as if all keys were new tokens.
        flop *= (1 - skipped_share * group.tokens / keys) / (1 - skipped_share)
    return [kernel._replace(bytes=kernel.bytes - saved_bytes, flop=flop), *further]


def _attention_graph(
    problem: PlanProblem,
    attention: AttentionShape,
    group: SequenceGroup,
    keys: int,
    *,
    is_causal: bool,
) -> Graph:
    """Return the attention of a group's new tokens to so many keys, with the inputs q, k and v."""
    builder = Builder("attention", precision(problem.rank.weight_dtype), training=False)
    batch = group.sequences
    q = builder.input("q", (batch, group.tokens, attention.heads * attention.head_width))
    k = builder.input("k", (batch, keys, attention.kv_heads * attention.head_width))
    v = builder.input("v", (batch, keys, attention.kv_heads * attention.value_width))
    output = builder.op(
        "attention",
        q,
        k,
        v,
        name="attention",
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        causal=is_causal,
        window=attention.window if group.tokens > 1 else 0,  # else the keys are cut already
    )
    return builder.graph(output)


def _count_keys(attention: AttentionShape, group: SequenceGroup) -> int:
    """Return the keys of a sequence that a step reads."""
    cached_tokens = round(group.cached_tokens)
    if attention.window:
        cached_tokens = min(cached_tokens, attention.window)
    keys = -(-(cached_tokens + group.tokens) // attention.compression_ratio)
    return min(keys, attention.selected_keys) if attention.selected_keys else keys


def _delta_rule_kernels(
    problem: PlanProblem, attention: AttentionShape, group: SequenceGroup
) -> list[Kernel]:
    """Return the kernels of a layer that reads and changes a state of each sequence."""
    builder = Builder("attention", precision(problem.rank.weight_dtype), training=False)
    key_width = attention.kv_heads * attention.head_width
    widths = {
        "q": key_width,
        "k": key_width,
        "v": attention.heads * attention.value_width,
        "decay": attention.decay_width,
        "share": attention.heads,
    }
    inputs = [
        builder.input(name, (group.sequences, group.tokens, width))
        for name, width in widths.items()
    ]
    if attention.rule == "scan":  # a state-space scan (Mamba) has decay rates as weights, too
        inputs.append(builder.weight("rates", (attention.heads, attention.head_width)))
    output = builder.op(
        attention.kind,
        *inputs,
        name=attention.kind,
        heads=attention.heads,
        key_heads=attention.kv_heads,
        rule=attention.rule,
    )
    graph = builder.graph(output)
    return [*problem.rank.step_model.with_graph(graph, group.sequences).lower_step().kernels]


def concatenate_cache(attention: Kernel, cached_bytes: float) -> Kernel:
    """Return the kernels that append new keys and values to a cache by copying it.

    Both tensors of the cache are read and written, each by an op (transformers, `DynamicCache`).
    """
    return Kernel(
        attention.op,
        "concat",
        "forward",
        attention.dtype,
        "vector",
        flop=0,
        bytes=2 * cached_bytes,  # read and written
        launches=2,  # keys, and values
        calls=2,
    )


def merge_products(graph: Graph, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Merge products of one input: queries, keys and values, and gate and up projections.

    Inference engines keep such weights side by side.
    """
    ops = {op.name: op for op in graph.ops}
    merged_kernels: list[Kernel] = []
    index_by_key: dict[tuple[str, str], int] = {}  # of the merged kernel
    for kernel in kernels:
        op = ops[kernel.op]
        # Engines merge products with equal keys: of one input, in one module. None for others.
        key = _merge_key(op)
        if key is not None and key in index_by_key:
            index = index_by_key[key]
            input_bytes = graph.tensors[op.inputs[0]].size_bytes  # read once for both
            merged_kernels[index] = _merge_pair(merged_kernels[index], kernel, input_bytes)
            continue
        if key is not None:  # the first product of its input, which later ones join
            index_by_key[key] = len(merged_kernels)
        merged_kernels.append(kernel)
    return merged_kernels


def _merge_key(op: Op) -> tuple[str, str] | None:
    """Return the input and the module of a product of a layer, None for any op besides."""
    if op.kind != "linear" or piece_of(op.name) in (FIRST, LAST):
        return None
    module = op.name.rsplit("/", 2)[0]
    return op.inputs[0], module


def _merge_pair(kernel: Kernel, addition: Kernel, input_bytes: float) -> Kernel:
    """Return one product for two of the same input, with the columns of both."""
    if not (kernel.products and addition.products):
        raise InputError("serve: a method without products; nearest: --method calibrated")
    batch, m, columns, k = kernel.products[0]
    _, _, added_columns, _ = addition.products[0]
    return kernel._replace(
        flop=kernel.flop + addition.flop,
        bytes=kernel.bytes + addition.bytes - input_bytes,
        products=((batch, m, columns + added_columns, k),),
    )
