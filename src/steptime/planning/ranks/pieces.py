"""The pieces of a rank's graph: a layer of each kind, and the two ends of the network.

The layers of a network are of few kinds, so one of each is built, differentiated, lowered and
priced. A stage of a pipeline is then arithmetic over its pieces.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from steptime.build import differentiate
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import PASS_INDEX, Graph
from steptime.core.workload import FULL_TRAINING, Plan, Tuning
from steptime.network.families.family import Family
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.recompute import find_repeated_ops
from steptime.network.tuning import ADDED_NAMES, apply_tuning
from steptime.planning.saved_activations import Activations, group_of, measure_activations
from steptime.prediction.calibrated.power import kernel_energies
from steptime.prediction.host import count_calls, find_host
from steptime.prediction.kernel import Kernel
from steptime.prediction.kernels import Kernels
from steptime.prediction.low_products import find_low_weight_bytes, find_low_weights
from steptime.prediction.prices import sum_rows
from steptime.prediction.steps.step_model import StepModel
from steptime.prediction.training import FIRST, LAST, piece_of


class PieceCollective(NamedTuple):
    """A collective of a piece in one pass of a microbatch.

    Attributes:
        pass_: "forward" or "backward".
        kind: the kind of the collective.
        group: the group of ranks, a field of `stages.RankGroups`.
        size_bytes: the bytes of one rank.
        is_dispatch: whether it carries tokens to their experts, or in the backward pass the
            gradients of the experts' results; their way back is none.
    """

    pass_: str
    kind: str
    group: str
    size_bytes: float
    is_dispatch: bool = False


class PassPair(NamedTuple):
    """Seconds of the forward and of the backward pass."""

    forward_s: float = 0.0
    backward_s: float = 0.0


class Piece(NamedTuple):
    """A layer, or an end of the network, of one rank for one microbatch.

    Attributes:
        forward_s: kernels of the forward pass, without collectives.
        backward_s: kernels of the backward pass, without collectives.
        weight_s: the part of `backward_s` that computes gradients of weights.
        attention_s: the attention kernels of both passes.
        last_product_s: the last product of the forward pass, which recomputation may leave out
            because no gradient reads its result.
        host_s: the time in which the host issues the kernels of each pass.
        collectives: the collectives of both passes.
        parameters: trained parameters of the rank.
        expert_parameters: those of them that belong to routed experts.
        frozen_parameters: parameters that are not trained.
        frozen_bytes: the bytes of the frozen parameters and their scales.
        largest_weight: parameters of the largest weight.
        activations: bytes of activations.
        joules: energy of the kernels of both passes, beyond that of a waiting device.
        update_s: the update of the weights, if each weight has a kernel of its own.
        recompute_s: the time that full recomputation adds to the backward pass; None where it
            follows from the forward pass.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    weight_s: float = 0.0
    attention_s: PassPair = PassPair()
    last_product_s: float = 0.0
    host_s: PassPair = PassPair()
    collectives: tuple[PieceCollective, ...] = ()
    parameters: int = 0
    expert_parameters: int = 0
    frozen_parameters: int = 0
    frozen_bytes: int = 0
    largest_weight: int = 0
    activations: Activations = Activations()
    joules: float = 0.0
    update_s: float = 0.0
    recompute_s: float | None = None


class RankSettings(NamedTuple):
    """The settings of a plan that decide the graph of one rank.

    Attributes:
        microbatch: the sequences of a microbatch.
        tensor: the tensor-parallel ranks.
        context: the ranks that share a sequence.
        expert: the ranks that share the routed experts.
        expert_tensor: the ranks that share each expert (0: the tensor-parallel ranks).
        sequence: whether activations between tensor-parallel products are split, too.
        context_method: how context ranks see each other's keys and values.
        imbalance: the tokens of the busiest expert rank over the mean.
    """

    microbatch: int
    tensor: int
    context: int
    expert: int
    expert_tensor: int
    sequence: bool
    context_method: str
    imbalance: float


@dataclass(frozen=True, eq=False)
class RankPieces:
    """The pieces of a rank by name; hashed by identity, so that it is a cheap cache key.

    Attributes:
        by_name: the pieces.
    """

    by_name: Mapping[str, Piece]

    def __getitem__(self, name: str) -> Piece:
        """Return the piece of a name."""
        return self.by_name[name]


def build_rank_graph(
    family: Family,
    params: Mapping[str, Any],
    plan: Plan,
    dtype: str,
    microbatch: int,
    tuning: Tuning = FULL_TRAINING,
    is_full: bool = False,
    optimizer: str = "adam",
) -> Graph:
    """Return the graph of a rank's training step, differentiated and with its updates.

    Args:
        family: the family of the network.
        params: its hyperparameters.
        plan: how layers are split over ranks.
        dtype: the data type.
        microbatch: the sequences of a microbatch.
        tuning: which parameters are trained.
        is_full: whether the graph has all layers; otherwise a layer stands for others of its kind,
            and weights before it are trained.
        optimizer: the optimizer.

    Raises:
        InputError: if the plan does not divide the layers.
    """
    builder = Builder(family.name, precision(dtype), training=True, plan=plan)
    try:
        graph = apply_tuning(builder.graph(family.build(builder, params, microbatch)), tuning)
    except ShapeError as error:
        raise InputError(f"plan: {error}") from None
    trains_layers = bool({*map(piece_of, graph.weights)} - {FIRST, LAST})
    methods = tuning.methods
    # The graph has one layer of each kind. In the network trained layers lie before it, so that
    # its input needs a gradient: `differentiate` knows that by "inside".
    if trains_layers and not is_full:
        methods = (*methods, "inside")
    return differentiate(graph, optimizer, replace(tuning, methods=methods))


def price_pieces(
    model: StepModel, regathered_groups: tuple[str, ...], imbalance: float = 1.0
) -> dict[str, Piece]:
    """Return the priced pieces of a rank's graph: first, last, and `block1`, ... of its layers.

    Args:
        model: prices the graph of the rank.
        regathered_groups: the groups from which the backward pass gathers activations again, so
            that a rank saves only its own share of them.
        imbalance: the tokens of the busiest expert rank over the mean. Joules are those of the
            mean.
    """
    graph = model.graph()
    op_kinds = {op.name: op.kind for op in graph.ops}
    recomputed_rows: set[str] = set()  # the ops whose results some gradient needs
    # With frozen weights a repetition runs only what leads to some gradient.
    if graph.frozen:
        for needed_ops in find_repeated_ops(graph).values():
            recomputed_rows.update(op.name for op in needed_ops)
    kernels: dict[str, list[Kernel]] = {}
    collectives: dict[str, list[PieceCollective]] = {}
    for kernel in model.lower_step().kernels:
        name = piece_of(kernel.op)
        if kernel.exchange is None:
            kernels.setdefault(name, []).append(kernel)
        else:
            collectives.setdefault(name, []).append(_piece_collective(kernel))
    costs = _price_kernels(model, kernels, op_kinds, imbalance)
    activations = measure_activations(
        graph, model.stack, regathered_groups, model.low_dtype, imbalance=imbalance
    )
    parameters = _count_parameters(graph, _low_weight_sizes(model, graph))
    pieces = {}
    for name, piece_kernels in kernels.items():
        cost = costs[name]
        kernel_times = list(zip(piece_kernels, cost.kernel_s, strict=True))
        pieces[name] = Piece(
            forward_s=cost.forward_s,
            backward_s=cost.backward_s,
            weight_s=_weight_gradient_s(kernel_times, op_kinds),
            attention_s=_attention_s(kernel_times, op_kinds),
            last_product_s=_last_product_s(kernel_times, op_kinds, recomputed_rows),
            host_s=_host_s(piece_kernels, model.effective_device.constants),
            collectives=tuple(collectives.get(name, ())),
            activations=activations[name],
            joules=cost.joules,
            update_s=cost.update_s,
            **parameters[name]._asdict(),
        )
    return pieces


def _piece_collective(kernel: Kernel) -> PieceCollective:
    is_dispatch = kernel.op.endswith("/dispatch") == (kernel.pass_ == "forward")
    group = group_of(kernel.op)
    return PieceCollective(kernel.pass_, kernel.kind, group, kernel.bytes, is_dispatch)


class _PieceCost(NamedTuple):
    """Seconds of a piece's kernels, in all and by pass, and joules of both passes."""

    kernel_s: Sequence[float]
    forward_s: float
    backward_s: float
    update_s: float
    joules: float


def _price_kernels(
    model: StepModel,
    kernels: Mapping[str, Sequence[Kernel]],
    kind_of_op: Mapping[str, str],
    imbalance: float,
) -> dict[str, _PieceCost]:
    """Price the kernels of all pieces at once; the cell of a kernel is `3 * piece + pass`."""
    all_kernels: list[Kernel] = []
    # A table has a row for each piece and a column for each of three passes: 3 * row + pass is the
    # cell to which a kernel's seconds are added.
    cell_of_kernel: list[int] = []
    for i, piece_kernels in enumerate(kernels.values()):
        all_kernels += piece_kernels
        cell_of_kernel += [3 * i + PASS_INDEX[kernel.pass_] for kernel in piece_kernels]
    columns = Kernels(all_kernels)
    cells = np.array(cell_of_kernel)
    cell_count = 3 * len(kernels)
    # The busiest rank of experts decides: its products are longer by the imbalance.
    is_of_experts = [kind_of_op.get(kernel.op) == "experts" for kernel in all_kernels]
    times = model.price_kernels(columns).take(columns.distinct_of_kernel)
    kernel_s = times.value * np.where(is_of_experts, imbalance, 1.0)
    # A row for each piece: its forward, backward and update seconds.
    passes_s = sum_rows(kernel_s, cells, cell_count).reshape(-1, 3).tolist()
    kernel_j = kernel_energies(columns, model.effective_device)[columns.distinct_of_kernel]
    passes_j = sum_rows(kernel_j, cells, cell_count).reshape(-1, 3)
    forward_and_backward_j = passes_j[:, :2].sum(axis=1).tolist()
    seconds = kernel_s.tolist()
    # Kernels lie piece after piece, as they were joined above.
    costs = {}
    start = 0
    for i, (name, piece_kernels) in enumerate(kernels.items()):
        end = start + len(piece_kernels)
        forward_s, backward_s, update_s = passes_s[i]
        costs[name] = _PieceCost(
            seconds[start:end], forward_s, backward_s, update_s, forward_and_backward_j[i]
        )
        start = end
    return costs


KernelTimes = Sequence[tuple[Kernel, float]]
"""Kernels, each with its seconds."""


def _attention_s(kernel_times: KernelTimes, kind_of_op: Mapping[str, str]) -> PassPair:
    """Return the seconds of the attention kernels of each pass."""
    sums = {"forward": 0.0, "backward": 0.0, "update": 0.0}
    for kernel, kernel_s in kernel_times:
        if kind_of_op.get(kernel.op) == "attention":
            sums[kernel.pass_] += kernel_s
    return PassPair(sums["forward"], sums["backward"])


def _product_times(
    kernel_times: KernelTimes, kind_of_op: Mapping[str, str], pass_: str
) -> dict[str, float]:
    """Return, by row, the seconds of its last product in a pass; attention is left out."""
    # A row's later kernels overwrite the earlier ones: its last product stays.
    return {
        kernel.op: kernel_s
        for kernel, kernel_s in kernel_times
        if kernel.pass_ == pass_
        and kernel.unit == "matrix"
        and kind_of_op[kernel.op] != "attention"
    }


def _weight_gradient_s(kernel_times: KernelTimes, kind_of_op: Mapping[str, str]) -> float:
    """Return the seconds of gradients of weights: the last backward product of each row."""
    return sum(_product_times(kernel_times, kind_of_op, "backward").values())


def _last_product_s(
    kernel_times: KernelTimes, kind_of_op: Mapping[str, str], recomputed_rows: Collection[str]
) -> float:
    """Return the seconds of forward products whose results no gradient reads.

    With frozen weights these are all products but those in `recomputed_rows`; otherwise it is the
    last product.
    """
    product_s = _product_times(kernel_times, kind_of_op, "forward")
    # With frozen weights, `recomputed_rows` lead to some gradient; repetition skips the others.
    if recomputed_rows:
        return sum(seconds for row, seconds in product_s.items() if row not in recomputed_rows)
    seconds_in_order = list(product_s.values())
    return seconds_in_order[-1] if seconds_in_order else 0.0


def _host_s(kernels: Sequence[Kernel], constants: Mapping[str, float]) -> PassPair:
    """Return the seconds in which the host issues the kernels of each pass."""
    host = find_host(count_calls(kernels), constants)
    if host is None:
        return PassPair()
    forward_s, backward_s, _ = host.issued_s
    return PassPair(forward_s - host.base_s, backward_s - forward_s)


class _ParameterCounts(NamedTuple):
    """The parameters of a piece, by the fields of `Piece`."""

    parameters: int = 0
    expert_parameters: int = 0
    frozen_parameters: int = 0
    frozen_bytes: int = 0
    largest_weight: int = 0


def _low_weight_sizes(model: StepModel, graph: Graph) -> dict[str, int]:
    """Return the bytes of the weights that a stack keeps in the type of products alone."""
    bytes_of_weight = find_low_weight_bytes(model.stack, model.device, model.low_dtype)
    if bytes_of_weight is None:
        return {}
    return {
        name: round(bytes_of_weight * graph.tensors[name].size)
        for name in find_low_weights(graph, model.low_dtype)
    }


def _count_parameters(graph: Graph, sizes: Mapping[str, int]) -> dict[str, _ParameterCounts]:
    """Return the parameters of each piece; scales of quantised weights count as bytes alone.

    Args:
        graph: the graph of the rank.
        sizes: bytes of weights that differ from the graph's.
    """
    counts = {FIRST: _ParameterCounts(), LAST: _ParameterCounts()}
    # Inputs of experts that are no weights (their tokens) are never looked up.
    expert_weights = {name for op in graph.ops if op.kind == "experts" for name in op.inputs}
    for name in (*graph.weights, *graph.frozen):
        spec = graph.tensors[name]
        piece = piece_of(name)
        count = counts.get(piece, _ParameterCounts())
        count = count._replace(largest_weight=max(count.largest_weight, spec.size))
        if name in graph.weights:
            expert_size = spec.size if name in expert_weights else 0
            count = count._replace(
                parameters=count.parameters + spec.size,
                expert_parameters=count.expert_parameters + expert_size,
            )
        else:
            _path, _, last_name = name.rpartition("/")
            is_parameter = last_name not in ADDED_NAMES  # such as the scales of quantised weights
            count = count._replace(
                frozen_parameters=count.frozen_parameters + (spec.size if is_parameter else 0),
                frozen_bytes=count.frozen_bytes + sizes.get(name, spec.size_bytes),
            )
        counts[piece] = count
    return counts
