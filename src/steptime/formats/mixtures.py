"""Recognises the experts that a router chooses for each token, where a file writes them out."""

from steptime.core.graph import Attr, Op
from steptime.formats import elements
from steptime.formats.tensors import find_producer
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import GATED

_MOST = 400  # ops of one mixture
_GATED = {inner: outer for outer, inner in reversed(GATED.items())}  # the plain one of two
_PIECES = (  # kinds that one is written out in, between its tokens, its router and the sum
    *("reshape", "transpose", "slice", "split", "concat", "gather", "embedding", "broadcast"),
    *("gather_elements", "matmul", "mul", "add", "pointwise", "reduce", "softmax", "topk", "cast"),
    *("silu", "gelu", "relu", "sigmoid"),
)


def _inside(b: Builder, last: str) -> tuple[list[Op], list[str]]:
    """Return the pieces that lead to a tensor, the nearest first, and what they start from."""
    pieces: list[Op] = []
    starts: list[str] = []
    waiting = [last]
    for x in waiting:
        made = b.made_by.get(x)
        if made is None or made.kind not in _PIECES or len(pieces) > _MOST:
            starts.append(x)
            continue
        pieces.append(made)
        waiting += [one for one in made.inputs if one not in waiting]
    return pieces, starts


def _turned(b: Builder, w: str, axis: int, size: int, name: str) -> str:
    """Return a weight of three axes, the last two so that `axis` has a size."""
    return w if b.shape(w)[axis] == size else elements.transpose(b, w, (0, 2, 1), f"{name}/w")


def recognise_experts(b: Builder, y: str, name: str) -> str | None:
    """Recognise `y [tokens, d]`, the sums of what the chosen experts made of each token."""
    made = b.made_by[y]
    shape = b.shape(made.inputs[0])
    if made.attrs.get("axes") != (1,) or len(shape) != 3 or b.shape(y) != (shape[0], shape[2]):
        return None
    pieces, starts = _inside(b, y)
    weights = [w for w in starts if w in b.weights]
    rest = [x for x in starts if x not in weights and x not in b.buffers]
    large = [w for w in weights if len(b.shape(w)) == 3]
    routers = [x for x in rest if find_producer(b, x, "linear")]
    functions = {op.kind for op in pieces} & {*_GATED, "relu"}
    if len(large) != 2 or len(rest) != 2 or len(routers) != 1 or len(functions) != 1:
        return None
    (logits,), (x,) = routers, [one for one in rest if one not in routers]
    (count, *_), (tokens, width) = b.shape(large[0]), b.shape(y)
    down = _turned(b, large[0], 1, width, name)
    up = _turned(b, large[1], 2, width, name)
    inner, (function,) = b.shape(down)[2], functions
    gated = b.shape(up)[1] == 2 * inner
    biases = [w for w in weights if len(b.shape(w)) == 2][::-1]
    wanted = [(count, b.shape(up)[1]), (count, width)] if biases else []
    sizes = b.tensors[x].size, b.tensors[logits].size
    fits = sizes == (tokens * width, tokens * count) and [b.shape(w) for w in biases] == wanted
    if not fits or b.shape(down)[1] != width or b.shape(up)[1] not in (inner, 2 * inner):
        return None
    scores = elements.reshape(b, logits, (*b.shape(x)[:-1], count), f"{name}/scores")
    activation = _GATED[function] if gated and function in _GATED else function
    how: dict[str, Attr] = {"per_token": shape[1], "activation": activation}
    whole = elements.op(b, "experts", x, scores, up, down, *biases, name=name, **how)
    return elements.reshape(b, whole, (tokens, width), f"{name}/rows")
