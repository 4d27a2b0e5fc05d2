"""Recognises attention that a file writes out: two matrix products around a softmax."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from steptime.core.graph import Op
from steptime.formats import elements, sequence_lowering
from steptime.formats.operands import Operand, function_of_op, operands_of, single_tensor
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder

MAX_DEPTH = 8  # ops between a product and the softmax
SWAP_WITH_MERGED_HEADS = (0, 2, 1)  # order of axes: [n*heads, m, d] -> [n*heads, d, m]
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
    # the op adds one bias to the scores; masks cost nothing and are left out
    learnt_biases = [mask for mask in attention.masks if find_learnt_bias(b, mask, heads)]
    if len(learnt_biases) > 1:
        return None
    if not all(_is_bias_of_scores(b, bias, scores_shape) for bias in learnt_biases):
        return None
    learnt_bias = learnt_biases[0] if learnt_biases else ""
    attended = sequence_lowering.attention(
        b, attention.q, attention.k, attention.v, name, mask=learnt_bias
    )
    return elements.reshape(b, attended, b.shape(y), f"{name}/reshape")


def _is_bias_of_scores(b: Builder, bias: str, scores_shape: tuple[int, int, int]) -> bool:
    """Return whether a bias has the shape `[heads, l, m]` of the scores, behind axes of size 1."""
    ends_as_scores = b.shape(bias)[-3:] == scores_shape
    lacks_batch_axis = b.tensors[bias].size == math.prod(scores_shape)
    return ends_as_scores and lacks_batch_axis


def _find_attention(b: Builder, y: str, name: str) -> _Attention | None:
    """Return the tensors of the attention that ends in the product `y`, None if there is none.

    Tensors of three axes, without heads, get an axis of one head.
    """
    # y = weights @ v, weights = softmax(scores), scores = q @ (k with its last two axes swapped)
    output_product = b.made_by[y]
    weights, v = output_product.inputs
    softmax = _find_softmax(b, weights)
    scores = _find_scores(b, softmax.inputs[0], masks=()) if softmax else None
    if scores is None:
        return None
    # the attributes of a product transpose or fold its factors
    are_plain_products = not scores.product.attrs and not output_product.attrs
    if not are_plain_products:
        return None
    # a scale of queries or keys is part of the op
    q, swapped_keys = (_find_unscaled(b, x) for x in scores.product.inputs)
    ranks = {len(b.shape(x)) for x in (q, swapped_keys, v)}
    lack_heads = ranks == {3}
    if ranks != {4} and not lack_heads:
        return None
    k = _find_unscaled(b, _swap_keys(b, swapped_keys, name))
    if not _fit_queries(b, q, k, v):
        return None
    if lack_heads:
        q, k, v = (_add_head_axis(b, x, name) for x in (q, k, v))
    return _Attention(q, k, v, scores.masks)


def _fit_queries(b: Builder, q: str, k: str, v: str) -> bool:
    """Return whether keys and values have the batch of the queries, and are equally many."""
    key_count = b.shape(k)[-2]
    shape_without_width = (*b.shape(q)[:-2], key_count)
    keys_fit = b.shape(k)[:-1] == shape_without_width
    values_fit = b.shape(v)[:-1] == shape_without_width
    return keys_fit and values_fit


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
        is_cast_or_dropout = op.kind in ("cast", "dropout")
        is_guard_against_nan = function_of_op(op) == "where"
        if not (is_view or is_cast_or_dropout or is_guard_against_nan):
            return None
        x = op.inputs[-1]  # of `where`: behind the condition
    return None


def _find_scores(b: Builder, x: str, masks: tuple[str, ...], depth: int = 0) -> _Scores | None:
    """Return the product that scores come from, and the masks that are added on the way."""
    op = b.made_by.get(x)
    if op is None or depth > MAX_DEPTH:
        return None
    if op.kind == "matmul":
        return _Scores(op, masks)
    if _keeps_scores(op):
        has_single_tensor = len(op.inputs) == 1
        return _find_scores(b, op.inputs[0], masks, depth + 1) if has_single_tensor else None
    applies_mask = function_of_op(op) in ("add", "sub", "where")
    if not applies_mask:
        return None
    for operand_index, operand in enumerate(op.inputs):
        # one operand leads to the product, the others are masks
        mask_operands = (*op.inputs[:operand_index], *op.inputs[operand_index + 1 :])
        scores = _find_scores(b, operand, (*masks, *mask_operands), depth + 1)
        has_size_of_result = b.tensors[operand].size == b.tensors[x].size
        if scores and has_size_of_result:
            return scores
    return None


def _keeps_scores(op: Op) -> bool:
    """Return whether an op passes scores on, or scales or limits them."""
    keeps_elements = op.kind in ("reshape", "cast", "dropout")
    return keeps_elements or function_of_op(op) in ("mul", "div", "maximum", "clamp", "tanh")


def is_learnt(b: Builder, x: str) -> bool:
    """Return whether a tensor depends on a weight, or on too many tensors to tell."""
    visited: set[str] = set()
    open_tensors = [x]
    while open_tensors and len(visited) <= MAX_LEARNT_SEARCH:
        tensor = open_tensors.pop()
        if tensor in b.weights:
            return True
        is_computed = tensor in b.made_by
        if is_computed and tensor not in visited:
            visited.add(tensor)
            open_tensors += b.made_by[tensor].inputs
    return bool(open_tensors)  # a search that was cut short takes it as learnt


def find_learnt_bias(b: Builder, x: str, heads: int) -> str:
    """Return `x`, which is added to scores, if it is a learnt bias, "" if it is a mask.

    What is the same for all of several heads is a mask.
    """
    shape = b.shape(x)
    is_shared_by_heads = heads > 1 and (len(shape) < 3 or shape[-3] == 1)
    return x if not is_shared_by_heads and is_learnt(b, x) else ""


def _find_unscaled(b: Builder, x: str) -> str:
    """Return the tensor that `x` is a multiple of, else `x`."""
    operands: Sequence[Operand] = operands_of(b, x, "mul") or operands_of(b, x, "div")
    is_scaled = len(operands) == 2 and not isinstance(operands[1], str)  # by a number
    return single_tensor(operands) if is_scaled else x


def _swap_keys(b: Builder, swapped_keys: str, name: str) -> str:
    """Return keys `[..., m, d]` of the tensor `[..., d, m]` that a product reads.

    Exporters merge heads into the batch, swap the last two axes, and separate the heads again.
    There the tensor before that swap is reshaped.
    """
    shape = b.shape(swapped_keys)
    # exporters merge heads into the batch, swap the last two axes, and separate the heads again:
    # the tensor before that swap is reshaped
    reshape_operands = operands_of(b, swapped_keys, "reshape")
    merged_keys = str(reshape_operands[0]) if reshape_operands else swapped_keys
    swap_operands = operands_of(b, merged_keys, "transpose")
    if swap_operands and b.made_by[merged_keys].attrs["order"] == SWAP_WITH_MERGED_HEADS:
        key_shape = (*shape[:-2], shape[-1], shape[-2])
        return elements.reshape(b, str(swap_operands[0]), key_shape, f"{name}/k")
    rank = len(shape)
    swap_last_axes = (*range(rank - 2), rank - 1, rank - 2)
    return elements.transpose(b, swapped_keys, swap_last_axes, f"{name}/k")
