"""Kernels as stacks that serve run them: attention with a cache, products of one input as one."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.network.layers.attention import INDEX_VALUES
from steptime.network.layers.compressed import CompressedAttention
from steptime.network.layers.designs import block_design
from steptime.network.ops.builder import Builder
from steptime.network.ops.execution import PLAIN
from steptime.network.ops.state import STATE_BYTES
from steptime.planning.problem import PlanProblem
from steptime.prediction.kernel import Kernel
from steptime.prediction.training import FIRST, LAST, piece_of

HALF = 2  # bytes
EXPERTS_AXES = 3  # experts, rows, columns
STATEFUL = ("delta_rule",)
ATTENDING = ("attention", *STATEFUL)  # kinds that are priced for each group of sequences
FORMATS = {  # bytes a number: of 4 bit with a scale of 16 bit for 128, or of 8 bit for 16 or 32
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "float4": 0.5625,
    "int4": 0.516,
    "mxfp4": 0.53125,
}
PADDED = {"mxfp4": 256}  # sides of experts' matrices, as vLLM pads them for its kernels (mxfp4.py)


def stored_bytes(spec: TensorSpec, weights: str) -> float:
    """Return the bytes of a weight in a format; sides of experts' matrices may be padded."""
    size = float(spec.size)
    side = PADDED.get(weights)
    if side and len(spec.shape) == EXPERTS_AXES:
        size = spec.shape[0] * prod(-(-n // side) * side for n in spec.shape[1:])
    return FORMATS[weights] * size


class Group(NamedTuple):
    """Sequences alike in a step: each has so many new tokens, after `past` ones in the cache."""

    sequences: int
    tokens: int
    past: float


class Head(NamedTuple):
    """The attention of a layer, or a state in its place.

    Attributes:
        heads: heads of queries; of a state, heads of values.
        kv_heads: heads of keys.
        width: width of a key.
        values: width of a value.
        window: places seen, 0 for all.
        kind: the kind of the op; `delta_rule` keeps a state in place of what it saw.
        latent: numbers of a token that all heads share in the cache, 0 where heads have own ones.
        keeps_all: the cache keeps tokens outside of the window, too, as an indexer may choose them.
        is_cached: the layer has a cache of its own.
        rule: how tokens change a state.
        decays: numbers of a token by which a state decays.
        ratio: tokens that lie in the cache as one.
        selected: keys that a token attends to at most, 0 for no limit.
        values_are_keys: the cache keeps one vector for key and value.
    """

    heads: int
    kv_heads: int
    width: int
    values: int
    window: int
    kind: str = "attention"
    latent: int = 0
    keeps_all: bool = False
    is_cached: bool = True
    rule: str = "delta"
    decays: int = 0
    ratio: int = 1
    selected: int = 0
    values_are_keys: bool = False

    @property
    def state_bytes(self) -> float:
        """Bytes that are kept of a sequence, however long it is."""
        return float(STATE_BYTES * self.heads * self.width * self.values * (self.kind in STATEFUL))

    @property
    def passing_numbers(self) -> int:
        """Numbers of a token that pass through it: queries, keys and values."""
        if self.kind in STATEFUL:
            return 2 * self.kv_heads * self.width + self.heads * self.values
        return self.heads * self.width + self.kv_heads * (self.width + self.values)

    @property
    def token_numbers(self) -> float:
        """Numbers that are kept of each token."""
        if self.kind in STATEFUL or not self.is_cached:
            return 0
        if self.latent:
            return self.latent
        is_shared = self.values_are_keys or self.values == INDEX_VALUES
        return self.kv_heads * (self.width + (0 if is_shared else self.values)) / self.ratio


def heads_of(graph: Graph, piece: str, parameters: Mapping[str, Any]) -> tuple[Head, ...]:
    """Return the attention of a piece of a rank's graph, that of its indexer too.

    Args:
        graph: the graph of the rank.
        piece: the name of the piece, such as `block1`.
        parameters: the hyperparameters of the network.
    """
    latent = parameters["latent_kv"]
    latent += parameters["rotary_width"] if latent else 0
    mixer = block_design(parameters, int(piece.removeprefix("block")) - 1).mixer
    ops = [op for op in graph.ops if op.kind in ATTENDING and piece_of(op.name) == piece]
    has_indexer = any("/indexer/" in op.name for op in graph.ops if piece_of(op.name) == piece)
    heads = []
    for op in ops:
        head = head_of(graph, op)
        if isinstance(mixer, CompressedAttention):
            heads.append(_compressed_head(head, mixer, op.name))
        elif head.kind in STATEFUL or head.values == INDEX_VALUES:
            heads.append(head)
        else:
            is_cached = piece_of(op.inputs[1]) == piece
            heads.append(head._replace(latent=latent, keeps_all=has_indexer, is_cached=is_cached))
    return tuple(heads)


def _compressed_head(head: Head, mixer: CompressedAttention, op_name: str) -> Head:
    """Return the part of DeepSeek-V4's attention that an op is: a window, scores, or compressed."""
    if op_name.endswith("/window"):
        return head._replace(values_are_keys=True)
    head = head._replace(ratio=mixer.ratio, values_are_keys=True)
    if mixer.indexer and op_name.endswith("/compressed"):
        return head._replace(selected=mixer.indexer.selected)
    return head


def head_of(graph: Graph, op: Op) -> Head:
    """Return the attention that an op of a rank's graph is."""
    q, v = (graph.tensors[op.inputs[i]].shape[2] for i in (0, 2))
    names = ("heads", "key_heads" if op.kind in STATEFUL else "kv_heads", "window")
    n, g, window = (int(str(op.attrs.get(name, 0))) for name in names)
    if op.kind not in STATEFUL:
        return Head(n, g, q // n, v // g, window, op.kind)
    decays = graph.tensors[op.inputs[3]].shape[2]
    rule = str(op.attrs.get("rule", "delta"))
    return Head(n, g, q // g, v // n, window, op.kind, rule=rule, decays=decays)


def attention(problem: PlanProblem, head: Head, group: Group, kv: str) -> list[Kernel]:
    """Return the kernels of a layer's attention for a group, whose cache has the format `kv`.

    Where each sequence has one new token, a latent cache is read as it is (DeepSeek-AI 2024,
    section 2.1.2): all heads share one key, of which a part is the value.
    """
    sequences, tokens, past = group.sequences, group.tokens, round(group.past)
    if head.kind in STATEFUL:
        return _of_state(problem, head, group)
    shared = bool(head.latent) and tokens == 1
    if shared:
        values = int(problem.shape.kind_settings["latent_kv"])
        head = head._replace(kv_heads=1, width=head.latent, values=values)
    past = min(past, head.window) if head.window else past
    b = Builder("attention", precision(problem.rank.weight_dtype), training=False)
    keys = -(-(past + tokens) // head.ratio)
    keys = min(keys, head.selected) if head.selected else keys
    is_causal = tokens > 1 and head.ratio == 1
    q = b.input("q", (sequences, tokens, head.heads * head.width))
    k = b.input("k", (sequences, keys, head.kv_heads * head.width))
    v = b.input("v", (sequences, keys, head.kv_heads * head.values))
    how: dict[str, Any] = {"heads": head.heads, "kv_heads": head.kv_heads}
    how |= {"window": head.window} if head.window and tokens > 1 else {}
    y = b.op("attention", q, k, v, name="attention", causal=is_causal, **how)
    is_single = shared or head.values_are_keys
    cached = b.tensors[k].size + (0 if is_single else b.tensors[v].size)
    saved = HALF * (b.tensors[k].size + b.tensors[v].size) - FORMATS[kv] * cached
    first, *rest = problem.rank.step_model.of(b.graph(y), sequences).lowered().kernels
    runs, flop = problem.rank.stack.kinds.get("attention", PLAIN), first.flop
    if is_causal and not (head.window and runs.skips_window):
        skips = 1 - runs.causal_flop  # by a mask, of keys among the new ones alone
        flop *= (1 - skips * tokens / keys) / (1 - skips)
    return [first._replace(bytes=first.bytes - saved, flop=flop), *rest]


def _of_state(problem: PlanProblem, head: Head, group: Group) -> list[Kernel]:
    """Return the kernels of a layer that reads and changes a state of each sequence."""
    b = Builder("attention", precision(problem.rank.weight_dtype), training=False)
    keys, values = head.kv_heads * head.width, head.heads * head.values
    sizes = {"q": keys, "k": keys, "v": values, "decay": head.decays, "share": head.heads}
    parts = [b.input(name, (group.sequences, group.tokens, n)) for name, n in sizes.items()]
    how: dict[str, Any] = {"heads": head.heads, "key_heads": head.kv_heads, "rule": head.rule}
    y = b.op(head.kind, *parts, name=head.kind, **how)
    return [*problem.rank.step_model.of(b.graph(y), group.sequences).lowered().kernels]


def concatenate_cache(first: Kernel, cached_bytes: float) -> Kernel:
    """Return the kernels that append new keys and values to a cache that is copied whole.

    Both tensors of the cache are read and written, each by an op (transformers, `DynamicCache`).
    """
    moved = 2 * cached_bytes
    return Kernel(
        first.op, "concat", "forward", first.dtype, "vector", 0, moved, launches=2, calls=2
    )


def merged(graph: Graph, kernels: Sequence[Kernel]) -> Iterator[Kernel]:
    """Yield kernels, products of one input made by one: queries, keys and values, gate and up.

    Stacks that serve keep such weights side by side.
    """
    ops = {op.name: op for op in graph.ops}
    first: dict[tuple[str, str], int] = {}
    found: list[Kernel] = []
    for kernel in kernels:
        op = ops[kernel.op]
        scope = (op.inputs[0], op.name.rsplit("/", 2)[0])
        if op.kind != "linear" or piece_of(op.name) in (FIRST, LAST) or scope not in first:
            first |= {scope: len(found)} if op.kind == "linear" else {}
            found.append(kernel)
            continue
        one = found[first[scope]]
        if not (one.products and kernel.products):
            raise InputError("serve: a method without products; nearest: --method calibrated")
        (batch, m, n, k), (_, _, more, _) = one.products[0], kernel.products[0]
        products, flop = ((batch, m, n + more, k),), one.flop + kernel.flop
        moved = one.bytes + kernel.bytes - graph.tensors[op.inputs[0]].size_bytes
        found[first[scope]] = one._replace(flop=flop, bytes=moved, products=products)
    yield from found
