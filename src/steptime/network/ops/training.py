"""The training graph: a network's forward ops, the ops of its gradient, and the updates."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from steptime.core.errors import check_choice
from steptime.core.graph import Attr, Graph, Op, Part, TensorSpec, frozen
from steptime.network.ops import OPS, output_names, outputs_of, saved_of
from steptime.network.ops.elementwise import function_of
from steptime.network.ops.optimizers import STATES, find_update_kind, make_states
from steptime.network.ops.table import Backward, no_flop

Names = tuple[str, ...]
STATE_BLOCK = 256  # elements of a state of 8 bits that share a scale
SCALES = "_scales"  # what the names of these end with
KEPT, SOURCE, LOSS = "/kept", "/source", "cross_entropy"
FORMER = "/former"  # what the names end with of what lives on from the microbatch before
FEW_FROM = 4096  # elements of a weight whose states are so kept: bitsandbytes, min_8bit_size


class _Tape:
    """The graph while gradients are appended."""

    def __init__(self, graph: Graph, how: Collection[str]) -> None:
        self.tensors = dict(graph.tensors)
        self.ops: list[Op] = []
        self.grads: dict[str, str] = {}
        self.how = how
        self.untrained = untrained = set(graph.frozen)
        self.wide: dict[str, tuple[Op, ...]] = {}  # casts of frozen weights, kept by nothing
        for op in graph.ops:
            source = op.inputs[0] if op.kind == "cast" else ""
            if source in untrained or source in self.wide:
                self.wide[op.outputs[0]] = (*self.wide.get(source, ()), op)

    def append(
        self, name: str, kind: str, inputs: Names, attrs: Mapping[str, Attr], part: Part, of: str
    ) -> Names:
        new = outputs_of(kind, tuple([self.tensors[name] for name in inputs]), frozen(attrs))
        outputs = output_names(name, len(new))
        self.tensors.update(zip(outputs, new, strict=True))
        self.ops.append(Op(name, kind, inputs, outputs, attrs, part, of))
        return outputs

    def append_saving(self, op: Op) -> tuple[str, ...]:
        """Append a forward op that keeps tensors for its gradient; return their names."""
        saved = saved_of(op.kind, tuple([self.tensors[name] for name in op.inputs]), op.settings)
        names = tuple([f"{op.name}/saved{i}" for i in range(len(saved))])
        self.tensors.update(zip(names, saved, strict=True))
        if names:  # `dataclasses.replace` takes ten times as long
            op = Op(op.name, op.kind, op.inputs, (*op.outputs, *names), op.attrs, op.part, op.of)
        self.ops.append(op)
        return names

    def add_grad(self, tensor: str, grad: str, of: str) -> None:
        """Note `grad` as (part of) the gradient of `tensor`; two parts are added by an op."""
        if tensor in self.grads:
            name = f"{tensor}/grad_sum"
            while name in self.tensors:
                name += "_"
            (grad,) = self.append(name, "add", (self.grads[tensor], grad), {}, "backward", of)
        self.grads[tensor] = grad


def training_graph(
    graph: Graph, optimizer: str, how: Collection[str] = (), few: bool = False
) -> Graph:
    """Return `graph` with its gradients and updates appended as ops.

    `how` says what software keeps though no gradient needs it: `keeps` the inputs of products with
    frozen weights of few bits, `sources` what is joined with a frozen tensor, `former` the logits
    and those inputs of the microbatch before. With `few` bits a state has 8 (Dettmers et al. 2022,
    section 2: blocks with a float32 scale each). `inside` of a network its input asks for a
    gradient, too, since something before it does.

    The graph's first output must be the loss, a scalar. Gradients are made only where a weight
    asks for them, so the first layer has no data gradient. Optimizer state joins the buffers.
    Raises `InputError` for an unknown optimizer, `ValueError` for an op without a gradient or an
    output that is not a scalar.
    """
    check_choice("optimizer", optimizer, STATES)
    loss = graph.outputs[0]
    if graph.tensors[loss].shape != ():
        raise ValueError(f"{graph.name}: '{loss}' is no loss: {list(graph.tensors[loss].shape)}")
    tape = _Tape(graph, how)
    sources = {*graph.weights, *(graph.inputs if "inside" in how else ())}
    wanted = find_differentiated(graph.ops, graph.tensors, sources, loss)
    kept: dict[str, tuple[str, ...]] = {}
    for op in graph.ops:
        if not wanted.isdisjoint(op.outputs):
            kept[op.name] = tape.append_saving(op)
        else:
            tape.ops.append(op)

    seed = f"{loss}/grad"
    tape.tensors[seed] = TensorSpec((), tape.tensors[loss].dtype)
    tape.grads[loss] = seed
    for op in reversed(graph.ops):
        grads = tuple(tape.grads.get(name, "") for name in op.outputs)
        if any(grads) and op.name in kept:
            _differentiate(op, grads, kept[op.name], wanted, tape)

    states: list[str] = [seed]
    users = _first_users(graph)
    kinds = {op.name: op.kind for op in graph.ops}
    readers = {weight: kinds.get(name, "") for weight, name in users.items()}
    for weight in filter(tape.grads.__contains__, graph.weights):
        reader = readers.get(weight, "")
        kind = find_update_kind(optimizer, tape.tensors[weight], reader)
        states += _append_update(tape, weight, kind, users.get(weight, ""), has_low_states=few)
    former = _former(tape) if "former" in how else ()
    buffers = (*graph.buffers, *states, *former)
    return replace(
        graph, tensors=tape.tensors, ops=tuple(tape.ops), buffers=buffers, outputs=(loss,)
    )


def _append_update(
    tape: _Tape, weight: str, kind: str, user: str, *, has_low_states: bool
) -> list[str]:
    """Append the update of a weight to a step, and return the names of its states."""
    spec = tape.tensors[weight]
    specs = make_states(kind, spec)
    names = [f"{weight}/{kind}{number}" for number in range(len(specs))]
    scales: list[str] = []
    if has_low_states and specs and spec.size >= FEW_FROM:
        scales = [f"{weight}/{kind}{SCALES}"]
        blocks = len(specs) * ceil(spec.size / STATE_BLOCK)
        tape.tensors[scales[0]] = TensorSpec((blocks,), "float32")
        specs = tuple(TensorSpec(state.shape, "int8") for state in specs)
    tape.tensors.update(zip(names, specs, strict=True))
    inputs = (weight, *names, tape.grads[weight])
    tape.append(f"{weight}/update", kind, inputs, {}, "update", user)
    return [*scales, *names]


def find_differentiated(
    ops: Sequence[Op], tensors: Mapping[str, TensorSpec], sources: Collection[str], loss: str
) -> set[str]:
    """Return the tensors whose gradient a step computes.

    Those depend on one of the `sources`, and the `loss` depends on them, along paths that a
    gradient can take back.
    """
    depending = set(sources)
    for op in ops:
        if not (depending.isdisjoint(op.inputs) or _stops_gradient(op)):
            depending.update([name for name in op.outputs if tensors[name].is_floating])
    leading = {loss}
    for op in reversed(ops):
        if not (leading.isdisjoint(op.outputs) or _stops_gradient(op)):
            leading.update([name for name in op.inputs if name in depending])
    return depending & leading


def _stops_gradient(op: Op) -> bool:
    """Whether no gradient goes back through an op, as through `detach`, `floor` or `sign`."""
    if op.kind != "pointwise":
        return OPS[op.kind].stops_gradient
    return not any(function_of(str(op.attrs["function"])).gradients)


def _differentiate(
    op: Op, grads: tuple[str, ...], saved: tuple[str, ...], wanted: set[str], tape: _Tape
) -> None:
    rule = OPS[op.kind].gradient
    if rule is None:
        raise ValueError(f"op '{op.name}' of kind '{op.kind}' has no gradient")

    op = _read_again(op, tape)

    def emit(kind: str, inputs: tuple[str, ...], suffix: str, **attrs: Attr) -> tuple[str, ...]:
        return tape.append(f"{op.name}/{suffix}", kind, inputs, attrs, "backward", op.name)

    needs = tuple(name in wanted for name in op.inputs)
    specs = tuple(tape.tensors[name] for name in op.inputs)
    out = tape.tensors[op.outputs[0]]
    parts = rule(Backward(op, specs, out, grads, needs, saved, emit))
    for i, (name, part, needed) in enumerate(zip(op.inputs, parts, needs, strict=True)):
        if needed and part is not None:
            grad, dtype = part, specs[i].dtype
            if tape.tensors[part].dtype != dtype:  # of a sum of two types, the wider one's
                (grad,) = emit("cast", (part,), f"grad_cast{i or ''}", dtype=dtype)
            tape.add_grad(name, grad, op.name)


def _read_again(op: Op, tape: _Tape) -> Op:
    """Return an op as its gradient reads it: weights of few bits are made wide once more.

    Its first input lives until then where software keeps it.
    """
    casts = tape.wide.get(op.inputs[1]) if len(op.inputs) > 1 else None
    joins = op.kind == "concat" and op.inputs[-1] in tape.untrained
    x = op.inputs[0]
    if (casts and "keeps" in tape.how) or (joins and "sources" in tape.how):
        how: dict[str, Attr] = {"shape": tape.tensors[x].shape}
        tape.append(
            f"{op.name}{KEPT if casts else SOURCE}", "reshape", (x,), how, "backward", op.name
        )
    if casts is None:
        return op
    read = casts[0].inputs
    for cast in casts:
        read = tape.append(f"{cast.name}_again", "cast", read, cast.attrs, "backward", op.name)
    return replace(op, inputs=(x, *read, *op.inputs[2:]))


def _former(tape: _Tape) -> Iterator[str]:
    """Yield what a loop holds of the microbatch before, whose output it still names.

    Those are the logits, and what products keep by themselves: nothing else of its graph is left.
    """
    held = [op.inputs[0] for op in tape.ops if op.name.endswith(KEPT) or op.kind == LOSS]
    for name in dict.fromkeys(held):
        tape.tensors[f"{name}{FORMER}"] = tape.tensors[name]
        yield f"{name}{FORMER}"


def parameters_of(graph: Graph) -> dict[str, int]:
    """Return the number of trained parameters by the forward op that first computes with them."""
    result: dict[str, int] = {}
    for weight, op in _first_users(graph).items():
        result[op] = result.get(op, 0) + graph.tensors[weight].size
    return result


def _first_users(graph: Graph) -> dict[str, str]:
    """Return the op that first computes with each weight, through ops that only carry it."""
    users: dict[str, str] = {}
    source = {weight: weight for weight in graph.weights}
    for op in graph.ops:
        if op.part != "forward":
            continue
        carries = OPS[op.kind].flop is no_flop and len(op.inputs) == 1
        for weight in (source[name] for name in op.inputs if name in source):
            if carries:
                source[op.outputs[0]] = weight
            else:
                users.setdefault(weight, op.name)
    return users
