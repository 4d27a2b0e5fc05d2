"""The execution of a graph on a software stack: kernels with their FLOP and bytes.

`cost_of` is the convention, and a bound: each input read once, each output written once. Here the
rules of a `Stack` replace it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.errors import InputError
from steptime.core.graph import Attrs, Graph, Op, TensorSpec
from steptime.hardware.stack import Execution, Stack
from steptime.network.ops import OPS, cost_of, products_of, serial_of
from steptime.network.ops.fusion import find_unmoved_bytes, group_ops
from steptime.network.ops.reads import count_reads, select_run_ops
from steptime.network.ops.sequence import share_in_window
from steptime.network.ops.table import Products, Specs

PLAIN = Execution()


class Launch(NamedTuple):
    """Ops that run as one kernel, or the part of an op that does.

    Views launch nothing and move nothing. Ops that run together for all weights (an optimizer over
    lists) have a launch each, of which the first counts the kernels.

    Attributes:
        ops: its ops, the first of which names it.
        flop: executed FLOP.
        traffic_bytes: bytes read and written.
        kernels: kernels launched.
        products: matrix products of its ops.
        serial: steps that wait for each other.
        runs_as: kind that a part of an op is priced as, "" for whole ops.
        row: elements that such a part reduces.
    """

    ops: tuple[Op, ...]
    flop: float
    traffic_bytes: float
    kernels: int
    products: Products = ()
    serial: int = 1
    runs_as: str = ""
    row: int = 1


class OpRun(NamedTuple):
    """The execution of one op that runs alone: FLOP, bytes, kernels, products, serial steps."""

    flop: float
    traffic_bytes: float
    kernels: int
    products: Products
    serial: int


def list_launches(graph: Graph, stack: Stack) -> list[Launch]:
    """Return the launches of a step on a stack, in order; each op is in one launch, or in two.

    A kernel reads the tensors that it does not make itself, each as often as the stack does, and
    writes those that are read outside of it; tensors in between stay in registers. Ops x -> a ->
    b -> y on 4 bytes, `a` and `b` fused and read by nothing else, move 8 bytes in place of 24.

    Raises:
        InputError: for a training step on a stack that does not train.
    """
    if not stack.trains and any(op.part != "forward" for op in graph.ops):
        raise InputError(f"stack {stack.name} runs inference alone: --phase infer, or serve")
    run_graph, read_counts = select_run_ops(graph, stack)
    launches = []
    launched_kinds: set[str] = set()  # kinds of updates whose kernels are counted already
    for ops in group_ops(run_graph, stack, read_counts):
        first_op = ops[0]
        execution = execution_of(first_op, stack)
        # attention in several kernels, between which its scores go through memory
        is_unfused_attention = execution.scores > 0
        if is_unfused_attention:
            launches += _launch_unfused_attention(run_graph, first_op, execution)
            continue
        kind, specs, attrs, output_specs = run_graph.cases[first_op.name]
        first_run = _run_alone(kind, specs, attrs, output_specs, execution)
        if len(ops) == 1:
            launch = Launch((first_op,), *first_run)  # flop, bytes and so on, in the same order
        else:
            launch = _launch_group(run_graph, ops, first_run, stack, read_counts)
        runs_with_all_weights = execution.together and first_op.part == "update"
        if runs_with_all_weights:
            # a launch stands for each update, but the kernels of the first one update all weights
            if first_op.kind in launched_kinds:
                launch = launch._replace(kernels=0)
            launched_kinds.add(first_op.kind)
        launches.append(launch)
    return launches


def _launch_group(
    graph: Graph,
    ops: Sequence[Op],
    first_run: OpRun,
    stack: Stack,
    read_counts: Mapping[str, int],
) -> Launch:
    """Return the launch of several ops that run as one kernel, the first of them as `first_run`."""
    flop, traffic_bytes, kernels, products, serial = first_run
    for op in ops[1:]:  # which launch no kernel of their own
        kind, specs, attrs, output_specs = graph.cases[op.name]
        run = _run_alone(kind, specs, attrs, output_specs, execution_of(op, stack))
        flop += run.flop
        traffic_bytes += run.traffic_bytes
        products += run.products
        serial = max(serial, run.serial)
    # A stack may state less traffic for an op than its tensors have bytes: hence `max`.
    moved_bytes = max(0, traffic_bytes - find_unmoved_bytes(graph, ops, read_counts))
    return Launch(tuple(ops), flop, moved_bytes, kernels, products, serial)


def _launch_unfused_attention(graph: Graph, op: Op, execution: Execution) -> list[Launch]:
    """Return attention as its products, which read or write the scores, and a softmax.

    A mask saves nothing. The softmax stands for all kernels on the scores.
    """
    case = graph.cases[op.name]
    products = products_of(case.kind, case.specs, case.attrs)
    flop, traffic_bytes = cost_of(*case)
    queries, keys, *_ = case.specs
    batch, query_count, _ = queries.shape
    _, key_count, _ = keys.shape
    heads = cast("int", dict(case.attrs)["heads"])
    score_count = batch * heads * query_count * key_count
    score_bytes = score_count * SIZE_BYTES[queries.dtype]
    softmax_kind = "softmax_grad" if case.kind.endswith("_grad") else "softmax"
    softmax_flop = OPS[softmax_kind].flop(TensorSpec((score_count,), queries.dtype))
    # Each product reads or writes the scores once, the softmax as often as the stack says.
    product_launch = Launch(
        (op,),
        flop,
        traffic_bytes + len(products) * score_bytes,
        kernels=len(products),
        products=products,
        runs_as="matmul",
    )
    softmax_launch = Launch(
        (op,),
        softmax_flop,
        execution.scores * score_bytes,
        kernels=execution.kernels,
        runs_as=softmax_kind,
        row=key_count,
    )
    return [product_launch, softmax_launch]


def launch_single_ops(graph: Graph) -> list[Launch]:
    """Return a launch of one kernel for each op, which moves each tensor once: the convention."""
    launches = []
    for op in graph.ops:
        case = graph.cases[op.name]
        flop, traffic_bytes = cost_of(*case)
        products = products_of(case.kind, case.specs, case.attrs)
        serial = serial_of(case.kind, case.specs, case.attrs)
        launches.append(
            Launch((op,), flop, traffic_bytes, kernels=1, products=products, serial=serial)
        )
    return launches


def execution_of(op: Op, stack: Stack) -> Execution:
    """Return the rules by which a stack runs an op."""
    execution = stack.kinds.get(op.kind, PLAIN)
    applies = not execution.condition or op.attrs.get(execution.condition)
    return execution if applies else PLAIN


@lru_cache(maxsize=1 << 16)
def _run_alone(
    kind: str, specs: Specs, attrs: Attrs, output_specs: Specs, execution: Execution
) -> OpRun:
    """Return the execution of an op that runs alone."""
    products = products_of(kind, specs, attrs)
    serial_steps = serial_of(kind, specs, attrs)
    if OPS[kind].storage == "view":
        return OpRun(flop=0, traffic_bytes=0, kernels=0, products=products, serial=serial_steps)
    flop, traffic_bytes = cost_of(kind, specs, attrs, output_specs)
    executed_flop = flop * execution.flop * _unmasked_share(specs, dict(attrs), execution)
    # stated passes over the first input stand for all traffic
    if execution.passes:
        passes_bytes = _to_integer(execution.passes * specs[0].size_bytes)
        return OpRun(
            _to_integer(executed_flop), passes_bytes, execution.kernels, products, serial_steps
        )
    # `cost_of` has counted one read of each input
    for reads, spec in zip(execution.reads, specs, strict=False):
        traffic_bytes += (reads - 1) * spec.size_bytes
    step_inputs = [
        specs[input_index] for input_index in execution.step_inputs if input_index < len(specs)
    ]
    bytes_per_step = sum(spec.size_bytes for spec in step_inputs)
    traffic_bytes += (serial_steps - 1) * bytes_per_step  # read again at each step but the first
    return OpRun(
        _to_integer(executed_flop), traffic_bytes, execution.kernels, products, serial_steps
    )


def _unmasked_share(specs: Specs, attrs: Mapping[str, Any], execution: Execution) -> float:
    """Return the share of an op's FLOP that a stack does not skip under its mask or window."""
    is_causal, window = bool(attrs.get("causal")), attrs.get("window")
    if execution.skips_window and window:
        return share_in_window(specs[0], specs[1], window, is_causal)
    return execution.causal_flop if is_causal else 1.0


def _to_integer(value: float) -> float:
    """Return an integral value as an int; a factor of the stack may make it fractional."""
    integer = int(value)
    return integer if integer == value else value


def dequantise(graph: Graph) -> Graph:
    """Return a graph with quantised weights in the type of the tensors that they multiply.

    Backends and other formats have them so, without their scales.
    """
    quantised = {name for name in graph.weights if "float" not in graph.tensors[name].dtype}
    if not quantised:
        return graph
    tensors = dict(graph.tensors)
    ops = list(graph.ops)
    # Exported formats have no weights in few bits: they get the type of the other operands.
    multiplied_dtype = ""  # of these operands, the same in all products of a network
    for i, op in enumerate(graph.ops):
        is_view = OPS[op.kind].storage == "view"
        if is_view and op.inputs[0] in quantised:
            quantised.update(op.outputs)
        elif not quantised.isdisjoint(op.inputs[1:]):
            x, weight, *_scales = op.inputs
            multiplied_dtype = graph.tensors[x].dtype
            if weight in quantised:  # its scales are left out
                ops[i] = replace(op, inputs=(x, weight))
    tensors |= {name: tensors[name]._replace(dtype=multiplied_dtype) for name in quantised}
    read_names = {name for op in ops for name in op.inputs}
    buffers = tuple(name for name in graph.buffers if name in read_names)
    return replace(graph, tensors=tensors, ops=tuple(ops), buffers=buffers)


_CONVOLUTIONS = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
BIAS_AXES = {"linear": -1} | dict.fromkeys(_CONVOLUTIONS, 1)  # of a bias as a third input


def merge_biases(graph: Graph) -> Iterator[tuple[Op, Op]]:
    """Yield each op that has a result of its own, and the op that runs for it.

    These are the same, but for a bias that alone reads the output of a product. There the product
    runs with the bias as a third input, if its kind can add one (`BIAS_AXES`).
    """
    products = _find_biased_products(graph)
    merged_names = {op.name for op in products.values()}
    for op in graph.ops:
        product = products.get(op.name)
        if product is not None:
            # the product runs where its bias stands, and makes the bias's result
            yield op, replace(product, inputs=(*product.inputs, op.inputs[1]))
        elif op.name not in merged_names:
            yield op, op


def _find_biased_products(graph: Graph) -> dict[str, Op]:
    """Return the products whose output a bias alone reads, by the name of the bias's op."""
    op_by_output = {op.outputs[0]: op for op in graph.ops if op.outputs}
    read_counts = count_reads(graph)
    product_by_bias: dict[str, Op] = {}
    for op in graph.ops:
        if op.kind != "bias":
            continue
        product_result = op.inputs[0]
        product = op_by_output.get(product_result)
        if product is None or product.kind not in BIAS_AXES:
            continue
        rank = len(graph.tensors[product_result].shape)
        axis = op.attrs.get("axis", -1)
        is_channel_axis = isinstance(axis, int) and axis % rank == BIAS_AXES[product.kind] % rank
        if is_channel_axis and read_counts[product_result] == 1:
            product_by_bias[op.name] = product
    return product_by_bias
