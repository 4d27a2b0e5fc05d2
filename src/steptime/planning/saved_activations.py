"""The activations of each piece of a rank's graph: saved for the backward pass, or live in it."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from steptime.core.graph import Graph, Op
from steptime.hardware.stack import Stack
from steptime.network.ops import OPS
from steptime.prediction.memory import stack_sizes
from steptime.prediction.training import FIRST, LAST, piece_of

COLLECTIVE_GROUPS = {
    **dict.fromkeys(("dispatch", "combine"), "expert"),
    **dict.fromkeys(("gather_k", "gather_v"), "context"),
    **dict.fromkeys(("spread_q", "spread_k", "spread_v", "join_y"), "context"),
}
"""By the last part of a row's name, the group of its collective; otherwise tensor ranks."""
SCORE_BYTES = 2  # the result of softmax, in 16 bit
DROPOUT_SCORE_BYTES = 5  # with the dropout mask in 8 bit and its result in 16 bit

LOW_SAVED = "training.low_saved"  # inputs of gated activations are saved in 8 bit, too

PieceOf = Callable[[str], str]
"""Returns the piece of a row."""


class Activations(NamedTuple):
    """Bytes of a piece's activations for one microbatch.

    Attributes:
        saved_bytes: saved from the forward pass for the backward pass.
        attention_bytes: the part of them that attention itself saves.
        input_bytes: the input of the piece.
        working_bytes: gradients that are live at the worst moment of the backward pass.
    """

    saved_bytes: int = 0
    attention_bytes: int = 0
    input_bytes: int = 0
    working_bytes: int = 0


def group_of(row: str) -> str:
    """Return the group of ranks with which a row communicates."""
    return COLLECTIVE_GROUPS.get(row.rpartition("/")[2], "tensor")


def measure_activations(
    graph: Graph,
    stack: Stack,
    regathered_groups: tuple[str, ...],
    low_dtype: str,
    find_piece: PieceOf = piece_of,
    imbalance: float = 1.0,
) -> dict[str, Activations]:
    """Return the activations of each piece of a graph.

    Views and results in place share the memory of their input.

    Args:
        graph: the graph of a training step.
        stack: says which kernels are fused.
        regathered_groups: the groups from which the backward pass gathers activations again.
        low_dtype: the 8-bit type of products, "" without one. Tensors that only products read are
            saved in it.
        find_piece: returns the piece of a row.
        imbalance: the tokens of the busiest expert rank over the mean.
    """
    storage = _find_storage(graph, regathered_groups)
    eight_bit_tensors = _eight_bit_tensors(graph, storage, stack) if low_dtype else set()
    sizes = _tensor_sizes(graph, stack, imbalance)
    saved_bytes: dict[str, int] = {}  # by piece
    attention_bytes: dict[str, int] = {}  # those of them that attention saves
    for name in _saved_tensors(graph, stack, storage):
        op = storage.producer[name]
        piece = find_piece(op.name)
        # Products in 8 bit keep 8-bit copies of 16-bit tensors; embedding and head stay in 16 bit.
        is_halved = name in eight_bit_tensors and piece not in (FIRST, LAST)
        size_bytes = sizes[name] // (2 if is_halved else 1)
        saved_bytes[piece] = saved_bytes.get(piece, 0) + size_bytes
        # The first output is the result; the others are what attention saves for its gradient.
        if op.kind == "attention" and name != op.outputs[0]:
            attention_bytes[piece] = attention_bytes.get(piece, 0) + size_bytes
    # Unfused attention saves its scores in place of what fused attention saves.
    for piece, score_bytes in _score_bytes(graph, stack, find_piece):
        extra_bytes = score_bytes - attention_bytes.get(piece, 0)
        saved_bytes[piece] += extra_bytes
        attention_bytes[piece] = attention_bytes.get(piece, 0) + extra_bytes
    working_bytes = _peak_gradient_bytes(graph, find_piece, sizes)
    return {
        piece: Activations(
            saved_bytes=saved_bytes.get(piece, 0),
            attention_bytes=attention_bytes.get(piece, 0),
            input_bytes=input_bytes,
            working_bytes=working_bytes.get(piece, 0),
        )
        for piece, input_bytes in _input_bytes(graph, find_piece, sizes).items()
    }


class _Storage(NamedTuple):
    """The tensors of a graph that own memory.

    Attributes:
        owner: for each tensor, the tensor whose memory it uses.
        producer: for each tensor with memory of its own, the op that writes it.
    """

    owner: dict[str, str]
    producer: dict[str, Op]


def _find_storage(graph: Graph, regathered_groups: tuple[str, ...]) -> _Storage:
    """Return the owner of each tensor's memory.

    A gathered tensor that the backward pass gathers again counts as a view of the rank's share.
    """
    owner: dict[str, str] = {}
    producer: dict[str, Op] = {}
    for op in graph.ops:
        # So many of its first outputs lie in the memory of the input with the same index.
        shared_counts = {"new": 0, "view": 1, "in_place": len(op.inputs)}
        shared_count = shared_counts[OPS[op.kind].storage]
        # A result that the backward pass gathers again counts as a view of the rank's share, so
        # that only the share is saved.
        if op.kind == "all_gather" and op.part == "forward":
            shared_count = 1 if group_of(op.name) in regathered_groups else 0
        for i, name in enumerate(op.outputs):
            if i < shared_count:
                owner[name] = owner.get(op.inputs[i], op.inputs[i])
            else:
                owner[name] = name
                producer[name] = op
    return _Storage(owner, producer)


def _backward_reads(graph: Graph, owner: Mapping[str, str]) -> set[str]:
    """Return the tensors whose memory the backward pass reads."""
    return {
        owner.get(name, name) for op in graph.ops if op.part == "backward" for name in op.inputs
    }


def _saved_tensors(graph: Graph, stack: Stack, storage: _Storage) -> Iterator[str]:
    """Yield the results of forward ops that the backward pass reads and does not compute again."""
    read_tensors = _backward_reads(graph, storage.owner) & storage.producer.keys()
    weights = {*graph.weights, *graph.frozen}
    for name in read_tensors - _recomputed_pointwise(graph, stack):
        op = storage.producer[name]
        # Casts of weights are counted with the weights, not with activations.
        is_weight_copy = op.kind == "cast" and op.inputs[0] in weights
        if op.part == "forward" and not is_weight_copy:
            yield name


def _tensor_sizes(graph: Graph, stack: Stack, imbalance: float) -> dict[str, int]:
    """Return the bytes of each tensor; those of experts are the busiest rank's."""
    sizes = {name: spec.size_bytes for name, spec in graph.tensors.items()}
    sizes |= stack_sizes(graph, stack)
    if imbalance == 1:
        return sizes
    # Routed tokens are uneven: the busiest expert rank has `imbalance` times the mean.
    for op in graph.ops:
        if op.kind == "experts" or op.name.endswith("/dispatch"):
            for name in op.outputs:
                sizes[name] = round(sizes[name] * imbalance)
    return sizes


def _recomputed_pointwise(graph: Graph, stack: Stack) -> set[str]:
    """Return the results that only fused pointwise ops read: the backward pass recomputes them."""
    # Only a compiler that fuses pointwise ops computes them again in the backward pass.
    if "vector" not in stack.fuses:
        return set()
    results: set[str] = set()
    pointwise_inputs: set[str] = set()
    other_inputs: set[str] = set()
    for op in graph.ops:
        if op.part != "forward":
            continue
        if OPS[op.kind].pointwise:
            results.update(op.outputs)
            pointwise_inputs.update(op.inputs)
        else:
            other_inputs.update(op.inputs)
    # A result that any other op reads has to be written, and is saved.
    return (results & pointwise_inputs) - other_inputs


def _eight_bit_tensors(graph: Graph, storage: _Storage, stack: Stack) -> set[str]:
    """Return the tensors that are saved in 8 bit where products run in 8 bit."""
    eight_bit_tensors = _find_product_operands(graph, storage.owner)
    low_saved = stack.training.get(LOW_SAVED)
    saves_gate_inputs_low = low_saved is not None and bool(low_saved.value)
    if saves_gate_inputs_low:
        eight_bit_tensors |= _gated_inputs(graph, storage)
    return eight_bit_tensors


def _find_product_operands(graph: Graph, owner: Mapping[str, str]) -> set[str]:
    """Return the tensors that only products of layers read in the backward pass.

    The backward pass of experts reads their input in 8 bit, and nothing else.
    """
    kinds = {op.name: op.kind for op in graph.ops}
    product_inputs: set[str] = set()
    other_inputs: set[str] = set()
    for op in graph.ops:
        if op.part != "backward":
            continue
        inputs = [owner.get(name, name) for name in op.inputs]
        is_layer_product = op.kind == "matmul" and kinds.get(op.forward_op) == "linear"
        eight_bit_inputs: list[str] = []
        if is_layer_product:
            eight_bit_inputs = inputs
        elif op.kind == "experts_grad":
            eight_bit_inputs = inputs[:1]  # the tokens
        product_inputs.update(eight_bit_inputs)
        # Whatever else reads a tensor needs it in 16 bit.
        other_inputs.update(inputs[len(eight_bit_inputs) :])
    return product_inputs - other_inputs


def _gated_inputs(graph: Graph, storage: _Storage) -> set[str]:
    """Return the results of the two products that a gated activation multiplies, as SwiGLU does."""
    gated: set[str] = set()
    for op in graph.ops:
        if op.kind != "mul" or op.part != "forward":
            continue
        # SwiGLU multiplies the activated gate by the up projection, the results of two products.
        sources = [_find_product(storage, name) for name in op.inputs]
        if len(sources) == 2 and all(sources):
            gated.update(filter(None, sources))
    return gated


def _find_product(storage: _Storage, name: str) -> str | None:
    """Return the result of a linear layer that a tensor follows from element by element."""
    tensor = storage.owner.get(name, name)
    op = storage.producer.get(tensor)
    while op is not None and OPS[op.kind].pointwise and len(op.inputs) == 1:
        tensor = storage.owner.get(op.inputs[0], op.inputs[0])
        op = storage.producer.get(tensor)
    return tensor if op is not None and op.kind == "linear" else None


def _score_bytes(graph: Graph, stack: Stack, find_piece: PieceOf) -> list[tuple[str, int]]:
    """Return, for each unfused attention, its piece and the bytes of its saved scores.

    A stack with fused attention saves no scores. With dropout the mask and its result are saved,
    too.
    """
    attention = stack.kinds.get("attention")
    # Fused attention never writes its scores.
    if attention is None or not attention.scores:
        return []
    has_dropout = any(op.kind == "dropout" for op in graph.ops)
    bytes_per_score = DROPOUT_SCORE_BYTES if has_dropout else SCORE_BYTES
    piece_bytes = []
    for op in graph.ops:
        if op.kind == "attention":
            queries, keys, *_ = (graph.tensors[name] for name in op.inputs)
            batch, query_count, _ = queries.shape
            _, key_count, _ = keys.shape
            heads = int(str(op.attrs["heads"]))
            score_count = batch * heads * query_count * key_count
            piece_bytes.append((find_piece(op.name), score_count * bytes_per_score))
    return piece_bytes


def _input_bytes(graph: Graph, find_piece: PieceOf, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of each piece's input: the first input of its first op."""
    inputs: dict[str, int] = {}
    for op in graph.ops:
        if op.part == "forward":
            # Only the first op of a piece counts: its first input enters the piece.
            inputs.setdefault(find_piece(op.forward_op or op.name), sizes[op.inputs[0]])
    return inputs


def _peak_gradient_bytes(
    graph: Graph, find_piece: PieceOf, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return, for each piece, the peak of the gradients that its backward pass holds.

    Gradients of weights are left out: they live on until the update.
    """
    # By convention the last input of an update is the gradient of its weight.
    weight_gradients = {op.inputs[-1] for op in graph.ops if op.part == "update"}
    last_reader = {name: i for i, op in enumerate(graph.ops) for name in op.inputs}
    live_bytes: dict[str, int] = {}  # of each gradient that an op has yet to read
    peak_bytes: dict[str, int] = {}
    for i, op in enumerate(graph.ops):
        if op.part != "backward":
            continue
        # Views and results in place need no memory of their own.
        makes_new_tensors = OPS[op.kind].storage == "new"
        if makes_new_tensors:
            for name in op.outputs:
                if name not in weight_gradients:
                    live_bytes[name] = sizes[name]
        piece = find_piece(op.forward_op or op.name)
        peak_bytes[piece] = max(peak_bytes.get(piece, 0), sum(live_bytes.values()))
        for name in op.inputs:
            # Freed after its last reader.
            if last_reader[name] == i:
                live_bytes.pop(name, None)
    return peak_bytes
