"""What a software stack executes of a graph: kernels, and the FLOP and bytes that they take.

`cost_of` is the convention, and a bound: every input read once, every output written once. Here a
`Stack` says what is run in its place.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, cast

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.errors import InputError
from steptime.core.graph import Attrs, Graph, Op, TensorSpec
from steptime.hardware.stack import Execution, Stack
from steptime.network.ops import OPS, cost_of, products_of, serial_of
from steptime.network.ops.sequence import share_in_window
from steptime.network.ops.table import Products, Specs

PLAIN = Execution()


class Launch(NamedTuple):
    """What runs as one: its ops, the first of which names it, FLOP, bytes, and kernels launched.

    Views launch nothing and move nothing. Ops that run together for all weights (an optimizer over
    lists) are launches of their own, of which the first counts the kernels. `products` and `serial`
    are those of its ops (`OpKind`). `runs_as` is the kind that it is priced as, and `row` what that
    reduces, where it is a part of an op.
    """

    ops: tuple[Op, ...]
    flop: float
    traffic_bytes: float
    kernels: int
    products: Products = ()
    serial: int = 1
    runs_as: str = ""
    row: int = 1


def executed(graph: Graph, stack: Stack) -> list[Launch]:
    """Return what `stack` executes of a step, in order; every op is in one launch, or in two.

    A kernel reads what it did not make, each tensor as often as the stack does, and writes what is
    read outside of it; in between, tensors stay in registers. x -> a -> b -> y, `a` and `b` fused,
    on 4 bytes and nobody else reading what is between: 8 bytes in place of 24. Raises `InputError`
    for a training step on a stack that does not train.
    """
    if not stack.trains and any(op.part != "forward" for op in graph.ops):
        raise InputError(f"stack {stack.name} runs inference alone: --phase infer, or serve")
    users = Counter(chain(graph.outputs, *[op.inputs for op in graph.ops]))
    launches = []
    seen: set[str] = set()
    for ops in _groups(graph, stack, users):
        head = ops[0]
        how = execution_of(head, stack)
        flop, moved, kernels, products, serial = _run(*graph.cases[head.name], how)
        if len(ops) > 1:
            for op in ops[1:]:
                more = _run(*graph.cases[op.name], execution_of(op, stack))
                flop, moved, products = flop + more[0], moved + more[1], products + more[3]
                serial = max(serial, more[4])
            moved = max(0, moved - _kept_bytes(graph, ops, users))
        if how.scores:
            launches += _unfused(graph, head, how)
            continue
        if how.together and head.part == "update":
            kernels = 0 if head.kind in seen else kernels
            seen.add(head.kind)
        launches.append(Launch(tuple(ops), flop, moved, kernels, products, serial))
    return launches


def _unfused(graph: Graph, op: Op, how: Execution) -> list[Launch]:
    """Return attention as its products, each of which reads or writes the scores, and a softmax.

    A mask saves nothing. The softmax stands for all that runs on the scores.
    """
    kind, specs, attrs, written = graph.cases[op.name]
    products = products_of(kind, specs, attrs)
    flop, moved = cost_of(kind, specs, attrs, written)
    keys = specs[1].shape[1]
    heads = cast("int", dict(attrs)["heads"])
    count = specs[0].shape[0] * heads * specs[0].shape[1] * keys
    size = count * SIZE_BYTES[specs[0].dtype]
    between = "softmax_grad" if kind.endswith("_grad") else "softmax"
    softmax = OPS[between].flop(TensorSpec((count,), specs[0].dtype))
    return [
        Launch((op,), flop, moved + len(products) * size, len(products), products, 1, "matmul"),
        Launch((op,), softmax, how.scores * size, how.kernels, (), 1, between, keys),
    ]


def one_by_one(graph: Graph) -> list[Launch]:
    """Return a launch of one kernel for each op, which moves every tensor once: the convention."""
    cases = [(op, graph.cases[op.name]) for op in graph.ops]
    return [
        Launch((op,), *cost_of(*case), 1, products_of(*case[:3]), serial_of(*case[:3]))
        for op, case in cases
    ]


def execution_of(op: Op, stack: Stack) -> Execution:
    """Return how `stack` runs an op."""
    result = stack.kinds.get(op.kind, PLAIN)
    return result if not result.condition or op.attrs.get(result.condition) else PLAIN


def _groups(graph: Graph, stack: Stack, users: Mapping[str, int]) -> list[list[Op]]:
    """Return the ops of a step, in groups that run as one kernel.

    An op joins the group that made its inputs last, if both are in one part of the step and of one
    shape, and `stack` joins or fuses the two. So a group reads only what groups before it have
    made, and groups can run in their order. What takes in an op that alone reads it runs when the
    op's other inputs are made: a product with a bias after the bias is cast.
    """
    group_of: dict[str, int] = {}
    result: list[list[Op]] = []
    for op in graph.ops:
        last = -1
        if op.kind in stack.joins or (stack.fuses and _loops(op, stack)):
            made = [group_of[name] for name in op.inputs if name in group_of]
            last = max(made, default=-1)
            if made and made[0] < last and _waits(op, result[made[0]], users, stack):
                last = len(result)  # runs once the casts of the others have
                result.append(result[made[0]])
                result[made[0]] = []
        if last < 0 or not _joins(graph, op, result[last], users, stack):
            last = len(result)
            result.append([])
        result[last].append(op)
        for name in op.outputs:
            group_of[name] = last
    return [ops for ops in result if ops]


def _loops(op: Op, stack: Stack) -> bool:
    """Whether an op can run in the loop of what it reads; a compiled loop sees through views."""
    row = OPS[op.kind]
    return row.pointwise or (stack.compile and row.storage == "view")


def _joins(
    graph: Graph, op: Op, group: Sequence[Op], users: Mapping[str, int], stack: Stack
) -> bool:
    head = group[0]
    if head.part != op.part:
        return False
    joined = stack.joins.get(op.kind, ())
    if head.kind in joined:
        return _takes(op, group, users, stack)
    unit = "matrix" if OPS[head.kind].products else "vector"
    if unit not in stack.fuses or OPS[head.kind].storage == "view":
        return False
    made = {name for one in group for name in one.outputs}.intersection(op.inputs)
    if unit in joined or OPS[op.kind].storage == "view":  # it reduces or shows what is made
        return bool(made)
    shape = graph.tensors[op.outputs[0]].shape
    return OPS[op.kind].pointwise and any(graph.tensors[name].shape == shape for name in made)


def _takes(op: Op, group: Sequence[Op], users: Mapping[str, int], stack: Stack) -> bool:
    """Whether a kernel also does an op that alone reads what the kernel makes, as with a bias."""
    if not group or group[0].kind not in stack.joins.get(op.kind, ()):
        return False
    last = group[-1].outputs[0]
    return last in op.inputs and users[last] == 1


def _waits(op: Op, group: Sequence[Op], users: Mapping[str, int], stack: Stack) -> bool:
    """Whether a kernel can run as late as an op that it also does: nobody else reads of it."""
    made = [name for one in group for name in one.outputs]
    inside = [name for one in group for name in one.inputs if name in made]
    alone = sum(users[name] for name in made) == len(inside) + 1
    return alone and _takes(op, group, users, stack)


def _kept_bytes(graph: Graph, ops: Sequence[Op], users: Mapping[str, int]) -> int:
    """Return the bytes that a group of ops neither reads nor writes, because it made them.

    What is read of a view stays in registers as what it is a view of, which is written only if
    others read of either.
    """
    views = {name for op in ops if OPS[op.kind].storage == "view" for name in op.outputs}
    new = {name for op in ops for name in op.outputs}
    inside = Counter(name for op in ops for name in op.inputs if op.outputs[0] not in views)
    left = {name: users[name] - inside[name] for name in new}
    for op in reversed(ops):
        if op.outputs[0] in views:  # others may read what it is a view of through it
            left[op.inputs[0]] += sum(left[name] for name in op.outputs) - 1
    times = inside - Counter(dict.fromkeys(inside.keys() - new, 1))  # others are read once
    made = (name for name in new - views if users[name] and not left[name])
    kept = times + Counter(made)  # reads, and writes
    return sum(graph.tensors[name].size_bytes * count for name, count in kept.items())


@lru_cache(maxsize=1 << 16)
def _run(
    kind: str, specs: Specs, attrs: Attrs, written: Specs, how: Execution
) -> tuple[float, float, int, Products, int]:
    """Return FLOP, bytes, kernels, products and steps in a row of an op that runs alone."""
    products, steps = products_of(kind, specs, attrs), serial_of(kind, specs, attrs)
    if OPS[kind].storage == "view":
        return 0, 0, 0, products, steps
    flop, moved = cost_of(kind, specs, attrs, written)
    done = flop * how.flop * _left(specs, dict(attrs), how)
    if how.passes:
        return _whole(done), _whole(how.passes * specs[0].size_bytes), how.kernels, products, steps
    moved += sum((n - 1) * spec.size_bytes for n, spec in zip(how.reads, specs, strict=False))
    again = (specs[place] for place in how.step_inputs if place < len(specs))
    moved += (steps - 1) * sum(spec.size_bytes for spec in again)
    return _whole(done), moved, how.kernels, products, steps


def _left(specs: Specs, attrs: Mapping[str, Any], how: Execution) -> float:
    """Return the share of an op's FLOP that a stack does not skip under its mask or window."""
    causal, window = bool(attrs.get("causal")), attrs.get("window")
    if how.skips_window and window:
        return share_in_window(specs[0], specs[1], window, causal)
    return how.causal_flop if causal else 1.0


def _whole(value: float) -> float:
    """Return a whole number as an int, which it is but for a factor of the stack."""
    whole = int(value)
    return whole if whole == value else value


def dequantised(graph: Graph) -> Graph:
    """Return a graph with quantised weights in the type of what they are multiplied with.

    So backends and other formats have them, without what they are scaled by.
    """
    few = {name for name in graph.weights if "float" not in graph.tensors[name].dtype}
    tensors, ops, dtype = dict(graph.tensors), list(graph.ops), ""
    for i, op in enumerate(ops if few else ()):
        if OPS[op.kind].storage == "view" and op.inputs[0] in few:
            few.update(op.outputs)
        elif not few.isdisjoint(op.inputs[1:]):
            dtype = graph.tensors[op.inputs[0]].dtype
            if op.inputs[1] in few:  # what scales the weights stands behind them
                ops[i] = replace(op, inputs=op.inputs[:2])
    tensors |= {name: tensors[name]._replace(dtype=dtype) for name in few}
    read = {name for op in ops for name in op.inputs} if few else {*graph.buffers}
    buffers = tuple(name for name in graph.buffers if name in read)
    return replace(graph, tensors=tensors, ops=tuple(ops), buffers=buffers)


_CONVOLUTIONS = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
TAKES_BIAS = {"linear": -1} | dict.fromkeys(_CONVOLUTIONS, 1)  # as a third input, along this axis


def joined_ops(graph: Graph) -> Iterator[tuple[Op, Op]]:
    """Yield each op that has a result of its own, and what runs for it.

    That is the op itself; for a bias that alone reads the output of a product, the product with a
    third input, where its kind can add one (`TAKES_BIAS`).
    """
    makers = {name: op for op in graph.ops for name in op.outputs[:1]}
    users = Counter(chain(graph.outputs, *(op.inputs for op in graph.ops)))
    products: dict[str, Op] = {}  # of which a bias alone reads the output, by its op's name
    for op in graph.ops:
        product = makers.get(op.inputs[0]) if op.kind == "bias" else None
        if product is None or product.kind not in TAKES_BIAS:
            continue
        rank = len(graph.tensors[op.inputs[0]].shape)
        axis = op.attrs.get("axis", -1)
        along = isinstance(axis, int) and axis % rank == TAKES_BIAS[product.kind] % rank
        if along and users[op.inputs[0]] == 1:
            products[op.name] = product
    joined = {op.name for op in products.values()}
    for op in graph.ops:
        if (product := products.get(op.name)) is not None:
            yield op, replace(product, inputs=(*product.inputs, op.inputs[1]))
        elif op.name not in joined:
            yield op, op
