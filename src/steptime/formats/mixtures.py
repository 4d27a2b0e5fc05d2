"""Recognises a mixture of experts that a file writes out as single ops."""

from collections import deque
from typing import NamedTuple

from steptime.core.graph import Attr, Op
from steptime.formats import elements
from steptime.formats.tensors import find_producer
from steptime.network.ops.builder import Builder
from steptime.network.ops.experts import GATED

MAX_PIECES = 400  # ops of one mixture; more are taken to be something larger
# "silu" -> "swiglu"
_GATED_ACTIVATION_BY_INNER = {inner: outer for outer, inner in reversed(GATED.items())}
_KINDS_OF_PIECES = (  # kinds that one is written out in, between its tokens, its router and the sum
    *("reshape", "transpose", "slice", "split", "concat", "gather", "embedding", "broadcast"),
    *("gather_elements", "matmul", "mul", "add", "pointwise", "reduce", "softmax", "topk", "cast"),
    *("silu", "gelu", "relu", "sigmoid"),
)


class _Mixture(NamedTuple):
    """The tensors of a mixture of experts that is written out.

    `up` is `[experts, inner or 2 * inner, width]`, `down` `[experts, width, inner]`, both perhaps
    with their last two axes swapped.
    """

    tokens: str
    logits: str
    up: str
    down: str
    biases: tuple[str, ...]
    activation: str


def recognise_experts(b: Builder, y: str, name: str) -> str | None:
    """Append the op `experts` if `y [tokens, width]` sums the outputs of the chosen experts.

    Returns its output, None where `y` is something else.
    """
    reduction = b.made_by[y]
    summed_shape = b.shape(reduction.inputs[0])  # [tokens, experts per token, width]
    sums_axis_1 = reduction.attrs.get("axes") == (1,) and len(summed_shape) == 3
    if not sums_axis_1 or b.shape(y) != (summed_shape[0], summed_shape[2]):
        return None
    mixture = _find_mixture(b, y)
    if mixture is None:
        return None
    token_count, experts_per_token, width = summed_shape
    down = _orient_weight(b, mixture.down, axis=1, size=width, name=name)
    up = _orient_weight(b, mixture.up, axis=2, size=width, name=name)
    if not _have_fitting_shapes(b, mixture, up, down, token_count):
        return None
    logits_shape = (*b.shape(mixture.tokens)[:-1], b.shape(down)[0])
    logits = elements.reshape(b, mixture.logits, logits_shape, f"{name}/scores")
    inputs = (mixture.tokens, logits, up, down, *mixture.biases)
    activation = _name_activation(mixture.activation, is_gated=_is_gated(b, up, down))
    attrs: dict[str, Attr] = {"per_token": experts_per_token, "activation": activation}
    mixed = elements.append_op(b, "experts", *inputs, name=name, **attrs)
    return elements.reshape(b, mixed, (token_count, width), f"{name}/rows")


def _name_activation(inner_activation: str, *, is_gated: bool) -> str:
    """Return the activation as the op names it: "silu" of one half times the other is "swiglu"."""
    if not is_gated:
        return inner_activation
    return _GATED_ACTIVATION_BY_INNER.get(inner_activation, inner_activation)


def _is_gated(b: Builder, up: str, down: str) -> bool:
    """Whether `up` makes two halves, of which one gates the other."""
    inner_width = b.shape(down)[2]
    return b.shape(up)[1] == 2 * inner_width


def _have_fitting_shapes(
    b: Builder, mixture: _Mixture, up: str, down: str, token_count: int
) -> bool:
    """Whether the tensors of a mixture fit the op `experts`."""
    expert_count, up_width, width = b.shape(up)
    inner_width = b.shape(down)[2]
    expected_biases = [(expert_count, up_width), (expert_count, width)] if mixture.biases else []
    tokens_fit = b.tensors[mixture.tokens].size == token_count * width
    logits_fit = b.tensors[mixture.logits].size == token_count * expert_count
    biases_fit = [b.shape(bias) for bias in mixture.biases] == expected_biases
    up_fits = up_width == inner_width or _is_gated(b, up, down)
    down_fits = b.shape(down)[1] == width
    return tokens_fit and logits_fit and biases_fit and up_fits and down_fits


def _find_mixture(b: Builder, y: str) -> _Mixture | None:
    """Return the tensors of the mixture that ends in `y`, None where they are no mixture's.

    A mixture has two weights of three axes, one activation, and starts from two tensors: its
    tokens, and the logits of its router, a linear layer.
    """
    pieces, sources = _collect_pieces(b, y)
    weights = [tensor for tensor in sources if tensor in b.weights]
    expert_weights = [weight for weight in weights if len(b.shape(weight)) == 3]
    computed = [tensor for tensor in sources if tensor not in weights and tensor not in b.buffers]
    logits = [tensor for tensor in computed if find_producer(b, tensor, "linear")]
    tokens = [tensor for tensor in computed if tensor not in logits]
    # a sum weighed by a softmax and one activation tell experts from other products
    activations = {op.kind for op in pieces} & {*_GATED_ACTIVATION_BY_INNER, "relu"}
    has_two_matrices = len(expert_weights) == 2
    has_router = len(logits) == 1 and len(tokens) == 1
    if not has_two_matrices or not has_router or len(activations) != 1:
        return None
    down, up = expert_weights  # the nearest to the sum comes first
    biases = [weight for weight in reversed(weights) if len(b.shape(weight)) == 2]
    return _Mixture(tokens[0], logits[0], up, down, tuple(biases), activations.pop())


def _collect_pieces(b: Builder, last: str) -> tuple[list[Op], list[str]]:
    """Return the pieces that lead to a tensor, nearest first, and the tensors they start from."""
    pieces: list[Op] = []
    sources: list[str] = []
    pending = deque([last])  # breadth first, so that what is near to `last` comes first
    queued = {last}
    while pending:
        tensor = pending.popleft()
        producer = b.made_by.get(tensor)
        is_piece = producer is not None and producer.kind in _KINDS_OF_PIECES
        if producer is None or not is_piece or len(pieces) > MAX_PIECES:
            sources.append(tensor)
            continue
        pieces.append(producer)
        new_tensors = [name for name in producer.inputs if name not in queued]
        pending.extend(new_tensors)
        queued.update(new_tensors)
    return pieces, sources


def _orient_weight(b: Builder, weight: str, axis: int, size: int, name: str) -> str:
    """Return a weight of three axes, its last two swapped unless `axis` has this size already."""
    if b.shape(weight)[axis] == size:
        return weight
    return elements.transpose(b, weight, (0, 2, 1), f"{name}/w")
