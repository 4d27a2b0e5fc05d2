"""Recognises layers that exporters write as several ops: GELU, norms, rotary positions.

So a network counts the same whichever tool exported it. Recognised are attention, layer, group and
root-mean-square norms, GELU, SiLU and rotary positions. The replaced ops stay in the graph where
something else reads them; otherwise nothing does, and they are removed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from steptime.core.graph import Op
from steptime.formats import attention_pattern, elements, lowering
from steptime.formats.heads import join_heads, split_heads
from steptime.formats.mixtures import recognise_experts
from steptime.formats.operands import Operand, function_of_op, operands_of, single_tensor
from steptime.formats.tensors import skip_casts
from steptime.network.ops.builder import Builder

MAX_PATTERN_DEPTH = 16  # ops between the last piece of a pattern and what it reads
MAX_ACTIVATION_DEPTH = 10  # ops from a factor of an activation to its input
CONSTANT_TOLERANCE = 1e-3  # files round the constants of activations
Recogniser = Callable[[Builder, str, str], str | None]  # appends the recognised op, if it is one


def recognise_pattern(
    b: Builder, y: str, name: str, is_read_outside: Callable[[set[str]], bool] = lambda _: False
) -> str:
    """Return the output of one op that replaces the pieces of a pattern that end in `y`, else `y`.

    Args:
        b: the graph so far.
        y: the last piece.
        name: the name of the op that stands for all pieces.
        is_read_outside: whether something outside the pieces reads one of these tensors between
            them, as an output of the network does. Then the pieces stay, since they are computed
            anyway.
    """
    last = b.made_by.get(y)
    if last is None:
        return y
    for recognise in _RECOGNISERS.get(function_of_op(last), ()):
        op_count_before = len(b.ops)
        fused = recognise(b, y, name)
        if fused is None:
            continue
        new_ops = b.ops[op_count_before:]
        pieces = _find_pieces(b, y, new_ops)  # results of the ops that the new op replaces
        # Where other ops read a piece, too, it is computed anyway: the new op is not used, and
        # being read by nothing, it is removed from the graph later.
        return y if is_read_outside(pieces) else fused
    return y


def _find_pieces(b: Builder, y: str, new_ops: Sequence[Op]) -> set[str]:
    """Return the tensors between what new ops read and `y`, which the new ops replace."""
    # What the new ops read, such as the `x` of a GELU, is where the pieces begin; `y` is their end.
    created = {name for op in new_ops for name in op.outputs}
    sources = {name for op in new_ops for name in op.inputs} - created
    # Of the tensors that `y` depends on, the pieces are those that depend on a source.
    producers = _find_producers(b, y, sources)
    pieces: set[str] = set()
    while True:  # forward from the sources, until nothing is added
        available = sources | pieces
        next_pieces = {
            tensor for tensor, op in producers.items() if not available.isdisjoint(op.inputs)
        }
        if next_pieces <= pieces:
            return pieces - {y}
        pieces |= next_pieces


def _find_producers(b: Builder, y: str, sources: set[str]) -> dict[str, Op]:
    """Return the producer of each tensor that leads to `y`, back to `sources`."""
    producer_by_tensor: dict[str, Op] = {}
    frontier = {y}  # tensors whose producers come next
    for _ in range(MAX_PATTERN_DEPTH):
        computed = [tensor for tensor in frontier if tensor in b.made_by and tensor not in sources]
        ops = [b.made_by[tensor] for tensor in computed]
        producer_by_tensor |= {tensor: op for op in ops for tensor in op.outputs}
        frontier = {tensor for op in ops for tensor in op.inputs} - producer_by_tensor.keys()
    return producer_by_tensor


# A pattern is a letter for a tensor, a number, a list of alternatives, or a tuple of a function and
# the patterns of its operands.
Pattern = Any
Bindings = dict[str, str]  # letter of a pattern -> tensor
ANY_NUMBER = math.nan


def _match_pattern(
    b: Builder, pattern: Pattern, x: Operand, bindings: Bindings
) -> Iterator[Bindings]:
    """Yield the bindings of letters with which a pattern describes how `x` is computed.

    A letter stands for the same tensor wherever it occurs. Casts between floating types are passed:
    modules cast before and behind their norms.

    Args:
        b: the graph so far.
        pattern: the pattern.
        x: a tensor or a number.
        bindings: the letters that have a tensor already.
    """
    x = skip_casts(b, x) if isinstance(x, str) else x
    if isinstance(pattern, str):  # a letter, which is the same tensor wherever it occurs
        # a letter that is not bound yet fits any tensor
        if isinstance(x, str) and bindings.get(pattern, x) == x:
            yield {**bindings, pattern: x}
    elif isinstance(pattern, float):
        if isinstance(x, float) and _is_near(x, pattern):
            yield bindings
    elif isinstance(pattern, list):  # of alternatives
        for alternative in pattern:
            yield from _match_pattern(b, alternative, x, bindings)
    else:
        function, *operand_patterns = pattern
        for operands in _list_operand_orders(b, function, x):
            # A function may take more operands than a pattern names, such as the axes of a mean.
            if len(operands) >= len(operand_patterns):
                yield from _match_operands(b, operand_patterns, operands, bindings)


def _is_near(number: float, pattern: float) -> bool:
    return math.isnan(pattern) or abs(number - pattern) < CONSTANT_TOLERANCE


def _list_operand_orders(b: Builder, function: str, x: Operand) -> list[list[Operand]]:
    """Return the operands of `x`, made by `function`, in each order that gives the same result."""
    operands = _find_averaged(b, x) if function == "mean" else operands_of(b, x, function)
    return [operands, operands[::-1]] if function in ("add", "mul") else [operands]


def _match_operands(
    b: Builder, patterns: Sequence[Pattern], operands: Sequence[Operand], bindings: Bindings
) -> Iterator[Bindings]:
    """Yield the bindings with which each of several patterns describes an operand."""
    if not patterns:
        yield bindings
        return
    pattern, *further_patterns = patterns
    operand, *further_operands = operands
    for extended_bindings in _match_pattern(b, pattern, operand, bindings):
        yield from _match_operands(b, further_patterns, further_operands, extended_bindings)


# activations


def _depends_only_on(b: Builder, x: Operand, source: str, depth: int = 0) -> bool:
    """Return whether `x` is computed from `source` and numbers alone."""
    x = skip_casts(b, x) if isinstance(x, str) else x
    if not isinstance(x, str) or x == source:
        return True
    operands = operands_of(b, x, "add", "sub", "mul", "div", "pow", "erf", "tanh")
    if not operands or depth >= MAX_ACTIVATION_DEPTH:
        return False
    return all(_depends_only_on(b, operand, source, depth + 1) for operand in operands)


def _make_gelu_patterns(function: str) -> list[Pattern]:
    """Return the patterns of x/2 (1 + f(inner)), in every order of the factors."""
    # x * 0.5 * (1 + f(inner)), in the orders in which exporters write it
    term = ("add", (function, "inner"), 1.0)
    return [
        ("mul", ("mul", "x", 0.5), term),
        ("mul", ("mul", "x", term), 0.5),
        ("mul", ("mul", term, 0.5), "x"),
    ]


_ACTIVATION_PATTERNS: dict[str, Pattern] = {
    "gelu": _make_gelu_patterns("erf"),
    "gelu_tanh": _make_gelu_patterns("tanh"),
    "silu": ("mul", "x", ("sigmoid", "x")),
    "hard_swish": ("mul", "x", ("hard_sigmoid", "x")),
    "quick_gelu": ("mul", "x", ("sigmoid", ("mul", "x", 1.702))),
}


def _recognise_activation(b: Builder, y: str, name: str) -> str | None:
    """Recognise activations that multiply `x` by a function of `x`."""
    for function, pattern in _ACTIVATION_PATTERNS.items():
        for bindings in _match_pattern(b, pattern, y, {}):
            x = bindings["x"]
            # patterns of GELU bind what erf or tanh reads to `inner`: a polynomial of `x`, which
            # exporters write in many orders, so that it need only follow from `x` and numbers
            inner = bindings.get("inner", x)
            if _depends_only_on(b, inner, x):
                activated = elements.pointwise(b, function, x, name=name)
                return elements.cast(b, activated, b.tensors[y].dtype, f"{name}/cast")
    return None


# norms


def _find_averaged(b: Builder, x: Operand) -> list[Operand]:
    """Return the tensor whose mean over the last axis, kept with size 1, is `x`; [] if none."""
    op = b.made_by.get(x) if isinstance(x, str) else None
    if op is None or op.kind != "reduce":
        return []
    source = op.inputs[0]
    last_axis = len(b.shape(source)) - 1
    keeps_axis = op.attrs["function"] == "mean" and op.attrs["keep"]
    is_over_last_axis = op.attrs["axes"] == (last_axis,)
    return [source] if keeps_axis and is_over_last_axis else []


def _make_rms_pattern(x: Pattern) -> Pattern:
    """Return the pattern of x / sqrt(mean(x^2) + epsilon), in every form that exporters write."""
    mean_square = ("add", ("mean", [("pow", x, 2.0), ("mul", x, x)]), ANY_NUMBER)
    root = ("sqrt", mean_square)
    inverse = [("reciprocal", root), ("div", 1.0, root), ("rsqrt", mean_square)]
    return [("div", x, root), ("mul", x, inverse)]


_CENTRED = ("sub", "x", ("mean", "x"))
_RMS_NORM = ("mul", "w", _make_rms_pattern("x"))
# its scaled part is a root-mean-square norm, which was recognised before if x - mean(x) is one op
_SCALED_CENTRED = [("mul", "w", _make_rms_pattern(_CENTRED)), ("rms_norm", _CENTRED, "w")]
_LAYER_NORM = ("add", _SCALED_CENTRED, "bias")
_NORMS: Sequence[tuple[Pattern, Callable[..., str]]] = (
    (_RMS_NORM, lowering.rms_norm),
    (_LAYER_NORM, lowering.layer_norm),
)
_GROUP_NORM = ("add", ("mul", "w", ("reshape", "norm")), "bias")


def _are_stored_vectors(b: Builder, tensors: Sequence[str], width: int) -> bool:
    """Return whether tensors are read, not computed, and have `width` elements each."""
    return all(x not in b.made_by and b.tensors[x].size == width for x in tensors)


def _recognise_norm(b: Builder, y: str, name: str) -> str | None:
    """Recognise layer norm and root-mean-square norm over the last axis."""
    for pattern, norm in _NORMS:
        for bindings in _match_pattern(b, pattern, y, {}):
            x = bindings["x"]
            width = b.shape(x)[-1]
            # a norm without a bias has no such letter in its pattern
            weights = [bindings[letter] for letter in ("w", "bias") if letter in bindings]
            if _are_stored_vectors(b, weights, width):
                vectors = [elements.reshape(b, w, (width,), f"{name}/w") for w in weights]
                normed = norm(b, x, name, *vectors)
                return elements.cast(b, normed, b.tensors[y].dtype, f"{name}/cast")
    return None


def _recognise_group_norm(b: Builder, y: str, name: str) -> str | None:
    """Recognise instance norm of groups seen as channels, then each channel's scale and shift."""
    shape = b.shape(y)
    if len(shape) < 3:
        return None
    channels = shape[1]
    for bindings in _match_pattern(b, _GROUP_NORM, y, {}):
        norm = b.made_by.get(bindings["norm"])
        if norm is None or norm.kind != "group_norm":
            continue
        weights = (bindings["w"], bindings["bias"])
        grouped_x = norm.inputs[0]
        x = single_tensor(operands_of(b, grouped_x, "reshape"))
        has_shape_of_output = bool(x) and b.shape(x) == shape
        if has_shape_of_output and _are_stored_vectors(b, weights, channels):
            groups = b.shape(grouped_x)[1]
            w, bias = (elements.reshape(b, w, (channels,), f"{name}/w") for w in weights)
            return lowering.group_norm(b, x, groups, name, w, bias)
    return None


# positions


_HALF = [("slice", "x"), ("split", "x")]
_ROTATED_HALVES = ("mul", ("concat", ("neg", _HALF), _HALF), "sines")
_ROTARY = ("add", ("mul", "x", "cosines"), _ROTATED_HALVES)


def _recognise_rotary(b: Builder, y: str, name: str) -> str | None:
    """Recognise x cos + (-upper half, lower half of x) sin, of `[n, heads, l, d]`."""
    for bindings in _match_pattern(b, _ROTARY, y, {}):
        x = bindings["x"]
        shape = b.shape(x)
        # x [batch, heads, length, width] is multiplied by tables [length, width]
        has_table_of_positions = b.shape(bindings["cosines"])[-2:] == shape[-2:]
        if len(shape) == 4 and has_table_of_positions:
            return apply_rotary(b, x, shape[-1], name)
    return None


def apply_rotary(b: Builder, x: str, width: int, name: str) -> str:
    """Return `x [n, heads, l, d]` with rotary positions on the first `width` of each head."""
    _, heads, length, head_width = b.shape(x)
    table_name = f"rotary_positions_{length}_{width}"  # one table for all layers
    table = b.full_path(table_name)
    if table not in b.tensors:
        b.buffer(table_name, (length, width))
    tokens = join_heads(b, x, name)
    rotated = elements.append_op(b, "rotary", tokens, table, name=name, head_width=head_width)
    return split_heads(b, rotated, heads, name)


_RECOGNISERS: dict[str, tuple[Recogniser, ...]] = {
    "mul": (_recognise_activation, _recognise_norm),
    "add": (_recognise_norm, _recognise_group_norm, _recognise_rotary),
    "matmul": (attention_pattern.recognise_attention,),
    "sum": (recognise_experts,),
}
