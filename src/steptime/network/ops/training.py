"""The training graph: a network's forward ops, the ops of its gradient, and the updates."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil

from steptime.core.errors import check_choice
from steptime.core.graph import Attr, Graph, Op, TensorSpec
from steptime.network.ops import OPS
from steptime.network.ops.elementwise import function_of
from steptime.network.ops.gradient_tape import GradientTape
from steptime.network.ops.optimizers import STATES, find_update_kind, make_states
from steptime.network.ops.table import no_flop

STATE_BLOCK = 256  # elements of a state of 8 bits that share a scale
SCALES = "_scales"  # end of the names of these scales
MIN_8BIT_ELEMENTS = 4096  # of a weight with states of 8 bits: bitsandbytes, min_8bit_size


def training_graph(
    graph: Graph, optimizer: str, habits: Collection[str] = (), has_8bit_states: bool = False
) -> Graph:
    """Append gradients and updates to a forward graph; return the training step.

    The graph's first output must be the loss, a scalar. Gradients are made only where a weight
    needs them, so the first layer has no data gradient. Optimizer states join the buffers.

    Args:
        graph: the forward graph.
        optimizer: a name of `STATES`.
        habits: tensors that the software keeps though no gradient needs them: `keeps` the inputs
            of products with frozen weights of few bits, `sources` the tensor that is joined with a
            frozen one, `former` the logits and those inputs of the previous microbatch. With
            `inside` the network's input needs a gradient, too, since a layer lies before it.
        has_8bit_states: states have 8 bits (Dettmers et al. 2022, section 2: blocks with a float32
            scale each).

    Raises:
        InputError: for an unknown optimizer.
        ValueError: for an op without a gradient, or a loss that is no scalar.
    """
    check_choice("optimizer", optimizer, STATES)
    loss = graph.outputs[0]
    if graph.tensors[loss].shape != ():
        raise ValueError(f"{graph.name}: '{loss}' is no loss: {list(graph.tensors[loss].shape)}")
    tape = GradientTape(graph, habits)
    loss_gradient = _append_passes(graph, tape, loss)
    states = _append_updates(graph, tape, optimizer, has_8bit_states)
    # with this habit tensors of the previous microbatch are still in memory
    former_tensors = tape.add_former_tensors() if "former" in habits else ()
    buffers = (*graph.buffers, loss_gradient, *states, *former_tensors)
    return replace(
        graph, tensors=tape.tensors, ops=tuple(tape.ops), buffers=buffers, outputs=(loss,)
    )


def _append_passes(graph: Graph, tape: GradientTape, loss: str) -> str:
    """Append the forward and the backward pass; return the name of the loss's gradient."""
    sources = {*graph.weights}
    lies_behind_layers = "inside" in tape.habits
    if lies_behind_layers:  # which need the gradient of this graph's input
        sources.update(graph.inputs)
    differentiated = find_differentiated(graph.ops, graph.tensors, sources, loss)
    saved_names_by_op: dict[str, tuple[str, ...]] = {}
    for op in graph.ops:
        if differentiated.isdisjoint(op.outputs):
            tape.ops.append(op)
        else:
            saved_names_by_op[op.name] = tape.append_saving(op)
    loss_gradient = tape.add_seed(loss)
    for op in reversed(graph.ops):
        output_grads = tuple(tape.grads.get(name, "") for name in op.outputs)
        if any(output_grads) and op.name in saved_names_by_op:
            tape.differentiate(op, output_grads, saved_names_by_op[op.name], differentiated)
    return loss_gradient


def _append_updates(
    graph: Graph, tape: GradientTape, optimizer: str, has_8bit_states: bool
) -> list[str]:
    """Append the updates of all weights with a gradient; return the names of the states."""
    first_user_by_weight = _find_first_users(graph)
    kind_by_op = {op.name: op.kind for op in graph.ops}
    states: list[str] = []
    for weight in graph.weights:
        if weight not in tape.grads:
            continue
        user_name = first_user_by_weight.get(weight, "")
        kind = find_update_kind(optimizer, tape.tensors[weight], kind_by_op.get(user_name, ""))
        states += _append_update(tape, weight, kind, user_name, has_8bit_states=has_8bit_states)
    return states


def _append_update(
    tape: GradientTape, weight: str, kind: str, user_name: str, *, has_8bit_states: bool
) -> list[str]:
    """Append the update of a weight to a step, and return the names of its states."""
    spec = tape.tensors[weight]
    state_specs = make_states(kind, spec)
    state_names = [f"{weight}/{kind}{number}" for number in range(len(state_specs))]
    scale_names: list[str] = []
    is_large = spec.size >= MIN_8BIT_ELEMENTS  # small weights keep wide states
    if has_8bit_states and state_specs and is_large:
        # one tensor has the scales of all states: each block of a state's elements shares a scale
        scale_name = f"{weight}/{kind}{SCALES}"
        scale_count = len(state_specs) * ceil(spec.size / STATE_BLOCK)
        tape.tensors[scale_name] = TensorSpec((scale_count,), "float32")
        scale_names.append(scale_name)
        state_specs = tuple(TensorSpec(state.shape, "int8") for state in state_specs)
    tape.tensors.update(zip(state_names, state_specs, strict=True))
    grad = tape.grads[weight]
    updated_tensors = (weight, *state_names)
    grad_shape = tape.tensors[grad].shape
    # the gradient of an embedding has only the rows that the batch looked up
    is_sparse = grad_shape != () and grad_shape[0] < spec.shape[0]
    if is_sparse:
        updated_tensors = _slice_rows(tape, updated_tensors, grad_shape[0], user_name)
    tape.append(f"{weight}/update", kind, (*updated_tensors, grad), {}, "update", user_name)
    return [*scale_names, *state_names]


def _slice_rows(
    tape: GradientTape, tensors: tuple[str, ...], row_count: int, user_name: str
) -> tuple[str, ...]:
    """Append views of as many rows of a table and its states as a sparse gradient has."""
    rows: list[str] = []
    for tensor in tensors:
        attrs: dict[str, Attr] = {"axis": 0, "start": 0, "stop": row_count}
        rows += tape.append(f"{tensor}/rows", "slice", (tensor,), attrs, "update", user_name)
    return tuple(rows)


def find_differentiated(
    ops: Sequence[Op], tensors: Mapping[str, TensorSpec], sources: Collection[str], loss: str
) -> set[str]:
    """Return the tensors whose gradient a step computes.

    Those depend on one of the `sources`, and the `loss` depends on them, along paths that a
    gradient can take back.
    """
    depend_on_sources = set(sources)
    for op in ops:
        reads_dependent = not depend_on_sources.isdisjoint(op.inputs)
        if reads_dependent and not _stops_gradient(op):
            depend_on_sources.update([name for name in op.outputs if tensors[name].is_floating])
    # from the loss back to the sources
    lead_to_loss = {loss}
    for op in reversed(ops):
        is_output_used = not lead_to_loss.isdisjoint(op.outputs)  # by the loss
        if is_output_used and not _stops_gradient(op):
            lead_to_loss.update([name for name in op.inputs if name in depend_on_sources])
    return depend_on_sources & lead_to_loss


def _stops_gradient(op: Op) -> bool:
    """Whether no gradient goes back through an op, as through `detach`, `floor` or `sign`."""
    if op.kind != "pointwise":
        return OPS[op.kind].stops_gradient
    return not any(function_of(str(op.attrs["function"])).gradients)


def parameters_of(graph: Graph) -> dict[str, int]:
    """Return the number of trained parameters by the forward op that first computes with them."""
    counts: Counter[str] = Counter()
    for weight, op in _find_first_users(graph).items():
        counts[op] += graph.tensors[weight].size
    return dict(counts)


def _find_first_users(graph: Graph) -> dict[str, str]:
    """Return the op that first computes with each weight, through ops that only carry it."""
    first_user_by_weight: dict[str, str] = {}
    weight_by_tensor = {weight: weight for weight in graph.weights}
    for op in graph.ops:
        if op.part != "forward":
            continue
        passes_weight_on = OPS[op.kind].flop is no_flop and len(op.inputs) == 1
        for weight in (weight_by_tensor[name] for name in op.inputs if name in weight_by_tensor):
            if passes_weight_on:
                weight_by_tensor[op.outputs[0]] = weight
            else:
                first_user_by_weight.setdefault(weight, op.name)
    return first_user_by_weight
