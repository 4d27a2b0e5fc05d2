"""Recognises what exporters write out in pieces, so that a network counts the same by every way.

Attention between two products, layer, group and root-mean-square norms, GELU, SiLU and rotary
positions. The pieces stay where an output reads them too; else nobody reads them any more.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from steptime.core.graph import Op
from steptime.formats import elements, lowering, sequence_lowering
from steptime.formats.heads import heads_apart, heads_joined
from steptime.formats.mixtures import experts
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder

Operand = str | float
_DEEPEST = 8


def recognised(
    b: Builder, y: str, name: str, is_shared: Callable[[set[str]], bool] = lambda _: False
) -> str:
    """Return the tensor that a whole kind makes where `y` is its last piece, else `y`.

    Args:
        b: the graph so far.
        y: the last piece.
        name: the name of the op that stands for all pieces.
        is_shared: whether something beside the pieces reads one of these tensors between them, as
            an output of the network does. Then the pieces stay, since they are computed anyway.
    """
    last = b.made_by.get(y)
    if last is None:
        return y
    for rule in _RULES.get(_function(last), ()):
        start = len(b.ops)
        whole = rule(b, y, name)
        if whole is not None:
            return y if is_shared(_pieces_between(b, y, b.ops[start:])) else whole
    return y


def _pieces_between(b: Builder, y: str, new_ops: Sequence[Op]) -> set[str]:
    """Return the tensors on the way from what new ops read to `y`, which they stand for."""
    created = {name for op in new_ops for name in op.outputs}
    sources = {name for op in new_ops for name in op.inputs} - created
    leading: dict[str, Op] = {}
    last = {y}
    for _ in range(2 * _DEEPEST):
        ops = [b.made_by[name] for name in last if name in b.made_by and name not in sources]
        leading |= {name: op for op in ops for name in op.outputs}
        last = {name for op in ops for name in op.inputs} - leading.keys()
    between: set[str] = set()
    size = -1
    while size != len(between):
        size = len(between)
        reached = sources | between
        between |= {name for name, op in leading.items() if not reached.isdisjoint(op.inputs)}
    return between - {y}


def _function(op: Op) -> str:
    """Return the function of an op of elements, the kind of any other."""
    return "add" if op.kind == "bias" else str(op.attrs.get("function", op.kind))


def _operands(b: Builder, x: Operand, *functions: str) -> list[Operand]:
    """Return the operands, a number among them, of the op that makes `x`; none for another op."""
    op = b.made_by.get(x) if isinstance(x, str) else None
    if op is None or _function(op) not in functions:
        return []
    operands: list[Operand] = list(op.inputs)
    scalar = op.attrs.get("scalar")
    if isinstance(scalar, float | int) and op.kind == "pointwise":
        place = op.attrs.get("scalar_place", -1)
        at = len(operands) if place == -1 or not isinstance(place, int) else place
        operands.insert(at, float(scalar))
    return operands


def _only(operands: list[Operand]) -> str:
    """Return the only tensor among operands, "" for none or several."""
    tensors = [x for x in operands if isinstance(x, str)]
    return tensors[0] if len(tensors) == 1 else ""


Pattern = Any  # a letter, a number, ("function", *patterns of its operands), or a list: any of them
Found = dict[str, str]
ANY = math.nan  # stands for any number


def _matches(b: Builder, pattern: Pattern, x: Operand, found: Found) -> Iterator[Found]:
    """Return what letters stand for in each way in which a pattern is what makes `x`.

    A letter that is there twice is the same tensor; `found` says those that are known.
    """
    if isinstance(pattern, str):
        if isinstance(x, str) and found.get(pattern, x) == x:
            yield {**found, pattern: x}
    elif isinstance(pattern, float):
        if isinstance(x, float) and (abs(x - pattern) < 1e-3 or math.isnan(pattern)):
            yield found
    elif isinstance(pattern, list):
        for one in pattern:
            yield from _matches(b, one, x, found)
    else:
        function, *parts = pattern
        operands = _mean_of(b, x) if function == "mean" else _operands(b, x, function)
        turned = [operands[::-1]] if function in ("add", "mul") else []
        for order in [operands, *turned] if len(operands) >= len(parts) else []:
            ways = [found]
            for part, operand in zip(parts, order, strict=False):
                ways = [more for way in ways for more in _matches(b, part, operand, way)]
            yield from ways


# activations


def _leads_to(b: Builder, x: Operand, source: str, steps: int = 10) -> bool:
    """Whether everything that `x` is made of is `source` and numbers; "" is nothing."""
    if not isinstance(x, str) or x in (source, ""):
        return True
    operands = _operands(b, x, "add", "sub", "mul", "div", "pow", "erf", "tanh")
    return (
        bool(operands) and steps > 0 and all(_leads_to(b, o, source, steps - 1) for o in operands)
    )


def _halved(function: str) -> list[Pattern]:
    """Return x/2 (1 + f(inner)), in every order of its factors."""
    term = ("add", (function, "inner"), 1.0)
    return [
        ("mul", ("mul", "x", 0.5), term),
        ("mul", ("mul", "x", term), 0.5),
        ("mul", ("mul", term, 0.5), "x"),
    ]


_BY_ITSELF: dict[str, Pattern] = {
    "gelu": _halved("erf"),
    "gelu_tanh": _halved("tanh"),
    "silu": ("mul", "x", ("sigmoid", "x")),
    "hard_swish": ("mul", "x", ("hard_sigmoid", "x")),
    "quick_gelu": ("mul", "x", ("sigmoid", ("mul", "x", 1.702))),
}


def _gated_by_itself(b: Builder, y: str, name: str) -> str | None:
    for function, pattern in _BY_ITSELF.items():
        for found in _matches(b, pattern, y, {}):
            if _leads_to(b, found.get("inner", ""), found["x"]):
                return elements.pointwise(b, function, found["x"], name=name)
    return None


# norms


def _mean_of(b: Builder, x: Operand) -> list[Operand]:
    """Return what `x` is the mean of along the last axis, kept; nothing if it is not one."""
    op = b.made_by.get(x) if isinstance(x, str) else None
    if op is None or op.kind != "reduce" or op.attrs["function"] != "mean" or not op.attrs["keep"]:
        return []
    last = (len(b.shape(op.inputs[0])) - 1,)
    return [op.inputs[0]] if op.attrs["axes"] == last else []


def _over_spread(x: Pattern) -> Pattern:
    """Return x / sqrt(mean(x^2) + epsilon), written in any way."""
    inside = ("add", ("mean", [("pow", x, 2.0), ("mul", x, x)]), ANY)
    root = ("sqrt", inside)
    inverse = [("reciprocal", root), ("div", 1.0, root), ("rsqrt", inside)]
    return [("div", x, root), ("mul", x, inverse)]


_CENTRED = ("sub", "x", ("mean", "x"))
_RMS_NORM = ("mul", "w", _over_spread("x"))
# written with one difference, its root-mean-square norm was recognised before
_LAYER_NORM = ("add", [("mul", "w", _over_spread(_CENTRED)), ("rms_norm", _CENTRED, "w")], "bias")
_NORMS: Sequence[tuple[Pattern, Callable[..., str]]] = (
    (_RMS_NORM, lowering.rms_norm),
    (_LAYER_NORM, lowering.layer_norm),
)
_GROUP_NORM = ("add", ("mul", "w", ("reshape", "norm")), "bias")


def _norm(b: Builder, y: str, name: str) -> str | None:
    for pattern, norm in _NORMS:
        for found in _matches(b, pattern, y, {}):
            x, weights = found["x"], [found[w] for w in ("w", "bias") if w in found]
            width = b.shape(x)[-1]
            if all(w not in b.made_by and b.tensors[w].size == width for w in weights):
                flat = [elements.reshape(b, w, (width,), f"{name}/w") for w in weights]
                return norm(b, x, name, *flat)
    return None


def _group_norm(b: Builder, y: str, name: str) -> str | None:
    """Recognise instance norm of groups seen as channels, then each channel's scale and shift."""
    for found in _matches(b, _GROUP_NORM, y, {}):
        norm, shape, weights = b.made_by.get(found["norm"]), b.shape(y), (found["w"], found["bias"])
        if norm is None or norm.kind != "group_norm" or len(shape) < 3:
            continue
        x = _only(_operands(b, norm.inputs[0], "reshape"))
        vectors = all(w not in b.made_by and b.tensors[w].size == shape[1] for w in weights)
        if x and b.shape(x) == shape and vectors:
            w, bias = (elements.reshape(b, w, (shape[1],), f"{name}/w") for w in weights)
            return lowering.group_norm(b, x, b.shape(norm.inputs[0])[1], name, w, bias)
    return None


# positions


_HALF = [("slice", "x"), ("split", "x")]
_TURNED = ("mul", ("concat", ("neg", _HALF), _HALF), "sines")
_ROTARY = ("add", ("mul", "x", "cosines"), _TURNED)


def _rotary(b: Builder, y: str, name: str) -> str | None:
    """Recognise x cos + (-upper half, lower half of x) sin, of `[n, heads, l, d]`."""
    for found in _matches(b, _ROTARY, y, {}):
        shape = b.shape(found["x"])
        if len(shape) == 4 and b.shape(found["cosines"])[-2:] == shape[-2:]:
            return turned_by_position(b, found["x"], shape[-1], name)
    return None


def turned_by_position(b: Builder, x: str, width: int, name: str) -> str:
    """Return `x [n, heads, l, d]` with the first `width` of each head turned by their position."""
    _, heads, length, head = b.shape(x)
    table = b.full_path(f"rotary_positions_{length}_{width}")
    if table not in b.tensors:
        b.buffer(f"rotary_positions_{length}_{width}", (length, width))
    joined = heads_joined(b, x, name)
    turned = elements.op(b, "rotary", joined, table, name=name, head_width=head)
    return heads_apart(b, turned, heads, name)


# attention


def _softmax_under(b: Builder, x: str) -> Op | None:
    """Return the softmax that a tensor comes from, through dropout and guards against NaN."""
    for _ in range(_DEEPEST):
        op = b.made_by.get(x)
        if op is None or op.kind == "softmax":
            return op
        passes = OPS[op.kind].storage == "view" or op.kind in ("cast", "dropout")
        if not passes and _function(op) != "where":
            return None
        x = op.inputs[-1]
    return None


def _scores_under(
    b: Builder, x: str, masks: tuple[str, ...], depth: int = 0
) -> tuple[Op, tuple[str, ...]] | None:
    """Return the product that scores come from, and the masks that are added on the way."""
    op = b.made_by.get(x)
    if op is None or depth > _DEEPEST:
        return None
    if op.kind == "matmul":
        return op, masks
    passes = op.kind in ("reshape", "cast", "dropout")
    if passes or _function(op) in ("mul", "div", "maximum", "clamp", "tanh"):
        return _scores_under(b, op.inputs[0], masks, depth + 1) if len(op.inputs) == 1 else None
    if _function(op) not in ("add", "sub", "where", "mul"):
        return None
    for i, one in enumerate(op.inputs):
        others = tuple(other for j, other in enumerate(op.inputs) if j != i)
        found = _scores_under(b, one, (*masks, *others), depth + 1)
        if found and b.tensors[one].size == b.tensors[x].size:
            return found
    return None


def is_learnt(b: Builder, x: str) -> bool:
    """Whether a tensor is made of a weight, or of too much to tell."""
    seen: set[str] = set()
    ahead = [x]
    while ahead and len(seen) <= 500:
        one = ahead.pop()
        if one in b.weights:
            return True
        if one in b.made_by and one not in seen:
            seen.add(one)
            ahead += b.made_by[one].inputs
    return bool(ahead)


def bias_of_scores(b: Builder, x: str, heads: int) -> str:
    """Return what is added to scores if it is learnt, "" for a mask: one for all heads is one."""
    shape = b.shape(x)
    shared = heads > 1 and (len(shape) < 3 or shape[-3] == 1)
    return x if not shared and is_learnt(b, x) else ""


def _unscaled(b: Builder, x: str) -> str:
    found = _operands(b, x, "mul") or _operands(b, x, "div")
    return _only(found) if len(found) == 2 and not isinstance(found[1], str) else x


def _keys(b: Builder, turned: str, name: str) -> str:
    """Return keys `[..., m, d]` of what a product reads, `[..., d, m]`."""
    shape = b.shape(turned)
    wanted = (*shape[:-2], shape[-1], shape[-2])
    # exporters join the heads to one axis, turn, and take them apart again
    flat = str((_operands(b, turned, "reshape") or [turned])[0])
    turn = _operands(b, flat, "transpose")
    if turn and b.made_by[flat].attrs["order"] == (0, 2, 1):
        return elements.reshape(b, str(turn[0]), wanted, f"{name}/k")
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    return elements.transpose(b, turned, order, f"{name}/k")


def _attention(b: Builder, y: str, name: str) -> str | None:
    """Recognise values weighted by the softmax of a product, by way of scales and masks."""
    weights, v = b.made_by[y].inputs
    top = _softmax_under(b, weights)
    found = _scores_under(b, top.inputs[0], ()) if top else None
    if found is None or found[0].attrs or b.made_by[y].attrs:
        return None
    product, masks = found
    q, turned = (_unscaled(b, x) for x in product.inputs)
    rank = len(b.shape(q))
    if rank not in (3, 4) or not len(b.shape(turned)) == len(b.shape(v)) == rank:
        return None
    k = _unscaled(b, _keys(b, turned, name))
    lead, length, keys = b.shape(q)[:-2], b.shape(q)[-2], b.shape(k)[-2]
    if b.shape(k)[:-2] != lead or b.shape(v)[:-1] != (*lead, keys):
        return None
    parts = [q, k, v]
    if rank == 3:
        parts = [
            elements.reshape(b, x, (lead[0], 1, *b.shape(x)[1:]), f"{name}/heads") for x in parts
        ]
    scores = (*b.shape(parts[0])[1:2], length, keys)
    learnt = [mask for mask in masks if bias_of_scores(b, mask, scores[0])]
    for mask in learnt:
        if b.shape(mask)[-3:] != scores or b.tensors[mask].size != math.prod(scores):
            return None
    if len(learnt) > 1:
        return None
    made = sequence_lowering.attention(b, parts[0], parts[1], parts[2], name, mask="".join(learnt))
    return elements.reshape(b, made, b.shape(y), f"{name}/reshape")


_Rule = Callable[[Builder, str, str], str | None]
_RULES: dict[str, tuple[_Rule, ...]] = {
    "mul": (_gated_by_itself, _norm),
    "add": (_norm, _group_norm, _rotary),
    "matmul": (_attention,),
    "sum": (experts,),
}
