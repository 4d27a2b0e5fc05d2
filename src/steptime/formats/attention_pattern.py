"""Recognises attention that a file writes out: two matrix products around a softmax."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from steptime.core.graph import Op
from steptime.formats import elements, sequence_lowering
from steptime.formats.elements import Operand
from steptime.formats.operands import function_of_op, operands_of, single_tensor
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder

MAX_DEPTH = 8  # ops between a product and the softmax
MAX_LEARNT_SEARCH = 500  # tensors that are followed back in search of a weight


class _Scores(NamedTuple):
    """The product of queries and keys, and the tensors that are added or applied as masks."""

    product: Op
    masks: tuple[str, ...]


class _Attention(NamedTuple):
    """Queries, keys and values `[n, heads, length, width]`, with the masks of the scores."""

    q: str
    k: str
    v: str
    masks: tuple[str, ...]


def recognise_attention(b: Builder, y: str, name: str) -> str | None:
    """Append the op `attention` if `y` weights values by the softmax of a product.

    Scales, masks and dropout may lie between. Returns the output, None where `y` is something else,
    or where a learnt bias of the scores has another shape than the scores.
    """
    attention = _find_attention(b, y, name)
    if attention is None:
        return None
    heads, length = b.shape(attention.q)[1:3]
    scores_shape = (heads, length, b.shape(attention.k)[2])
    biases = [mask for mask in attention.masks if find_learnt_bias(b, mask, heads)]
    if len(biases) > 1:
        return None
    for bias in biases:
        has_batch = b.tensors[bias].size != math.prod(scores_shape)
        if b.shape(bias)[-3:] != scores_shape or has_batch:
            return None
    mask = biases[0] if biases else ""
    q, k, v, _ = attention
    attended = sequence_lowering.attention(b, q, k, v, name, mask=mask)
    return elements.reshape(b, attended, b.shape(y), f"{name}/reshape")


def _find_attention(b: Builder, y: str, name: str) -> _Attention | None:
    """Return the tensors of the attention that ends in the product `y`, None if there is none.

    Tensors of three axes, without heads, get an axis of one head.
    """
    output_product = b.made_by[y]
    weights, v = output_product.inputs
    softmax = _find_softmax(b, weights)
    scores = _find_scores(b, softmax.inputs[0], ()) if softmax else None
    if scores is None or scores.product.attrs or output_product.attrs:
        return None
    q, swapped_keys = (_without_scale(b, x) for x in scores.product.inputs)
    ranks = {len(b.shape(x)) for x in (q, swapped_keys, v)}
    if ranks not in ({3}, {4}):
        return None
    k = _without_scale(b, _swap_keys(b, swapped_keys, name))
    batch_shape = b.shape(q)[:-2]
    key_shape = (*batch_shape, b.shape(k)[-2])
    if b.shape(k)[:-1] != key_shape or b.shape(v)[:-1] != key_shape:
        return None
    if ranks == {3}:
        q, k, v = (_add_head_axis(b, x, name) for x in (q, k, v))
    return _Attention(q, k, v, scores.masks)


def _add_head_axis(b: Builder, x: str, name: str) -> str:
    n, length, width = b.shape(x)
    return elements.reshape(b, x, (n, 1, length, width), f"{name}/heads")


def _find_softmax(b: Builder, x: str) -> Op | None:
    """Return the softmax that a tensor comes from, through dropout and guards against NaN."""
    for _ in range(MAX_DEPTH):
        op = b.made_by.get(x)
        if op is None or op.kind == "softmax":
            return op
        is_view = OPS[op.kind].storage == "view"
        if not is_view and op.kind not in ("cast", "dropout") and function_of_op(op) != "where":
            return None
        x = op.inputs[-1]
    return None


def _find_scores(b: Builder, x: str, masks: tuple[str, ...], depth: int = 0) -> _Scores | None:
    """Return the product that scores come from, and the masks that are added on the way."""
    op = b.made_by.get(x)
    if op is None or depth > MAX_DEPTH:
        return None
    if op.kind == "matmul":
        return _Scores(op, masks)
    function = function_of_op(op)
    is_view = op.kind in ("reshape", "cast", "dropout")
    if is_view or function in ("mul", "div", "maximum", "clamp", "tanh"):
        if len(op.inputs) != 1:
            return None
        return _find_scores(b, op.inputs[0], masks, depth + 1)
    if function not in ("add", "sub", "where"):
        return None
    for i, operand in enumerate(op.inputs):
        mask_operands = (*op.inputs[:i], *op.inputs[i + 1 :])
        scores = _find_scores(b, operand, (*masks, *mask_operands), depth + 1)
        if scores and b.tensors[operand].size == b.tensors[x].size:
            return scores
    return None


def is_learnt(b: Builder, x: str) -> bool:
    """Return whether a tensor depends on a weight, or on too many tensors to tell."""
    visited: set[str] = set()
    stack = [x]
    while stack and len(visited) <= MAX_LEARNT_SEARCH:
        tensor = stack.pop()
        if tensor in b.weights:
            return True
        if tensor in b.made_by and tensor not in visited:
            visited.add(tensor)
            stack += b.made_by[tensor].inputs
    return bool(stack)


def find_learnt_bias(b: Builder, x: str, heads: int) -> str:
    """Return `x`, which is added to scores, if it is a learnt bias, "" if it is a mask.

    What is the same for all of several heads is a mask.
    """
    shape = b.shape(x)
    is_shared_by_heads = heads > 1 and (len(shape) < 3 or shape[-3] == 1)
    return x if not is_shared_by_heads and is_learnt(b, x) else ""


def _without_scale(b: Builder, x: str) -> str:
    """Return the tensor that `x` is a multiple of, else `x`."""
    operands: Sequence[Operand] = operands_of(b, x, "mul") or operands_of(b, x, "div")
    is_scaled = len(operands) == 2 and not isinstance(operands[1], str)
    return single_tensor(operands) if is_scaled else x


def _swap_keys(b: Builder, swapped_keys: str, name: str) -> str:
    """Return keys `[..., m, d]` of the tensor `[..., d, m]` that a product reads.

    Exporters merge heads into the batch, swap the last two axes, and separate the heads again.
    There the tensor before that swap is reshaped.
    """
    shape = b.shape(swapped_keys)
    reshaped = operands_of(b, swapped_keys, "reshape")
    merged = str(reshaped[0]) if reshaped else swapped_keys
    swap = operands_of(b, merged, "transpose")
    if swap and b.made_by[merged].attrs["order"] == (0, 2, 1):
        key_shape = (*shape[:-2], shape[-1], shape[-2])
        return elements.reshape(b, str(swap[0]), key_shape, f"{name}/k")
    rank = len(shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    return elements.transpose(b, swapped_keys, order, f"{name}/k")
