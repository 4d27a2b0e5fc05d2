"""The walk through a graph that all backends share: a table of functions, and what they are given.

A backend is a table `{kind: function}`. `list_calls` turns a graph into calls of that table, and
`interpret` makes them one after the other, letting go of each tensor after its last use. A backend
that compiles says with `apply` what a call is: a node of a traced program, say.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from steptime.core.graph import Graph, Op
from steptime.core.units import first_of
from steptime.measure.contract import UnsupportedError
from steptime.network.ops.execution import merge_biases

Table = Mapping[str, Callable[..., Any]]

OPAQUE = "opaque"  # the kind of ops that are priced by their bytes


@dataclass(frozen=True)
class TableCall:
    """One call of a table's function: tensors by name; nobody reads `released_names` after it.

    `op_name` names the op that is run: of a bias that is joined, the product before it.
    """

    name: str
    kind: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    part: str
    op_name: str
    released_names: tuple[str, ...] = ()


def describe_kinds(graph: Graph, kinds: Collection[str]) -> str:
    """List kinds that a backend lacks, with the names of ops of unknown work: `opaque (sort)`."""
    if OPAQUE not in kinds:
        return ", ".join(kinds)
    ops = {str(op.attrs["function"]) for op in graph.ops if op.kind == OPAQUE}
    names = [f"{OPAQUE} ({first_of(sorted(ops), 3)})" if kind == OPAQUE else kind for kind in kinds]
    return ", ".join(names)


def list_calls(
    graph: Graph,
    table: Table,
    backend: str,
    keep: Collection[str] = (),
    takes_bias: bool = False,
    is_left_out: Callable[[Op], bool] = lambda _: False,
) -> tuple[TableCall, ...]:
    """Return the calls of a graph's ops, in order; `keep` names tensors that are read afterwards.

    Where it `takes_bias`, a product adds one itself, as a third input (`merge_biases`). An op that
    `is_left_out` stands for its input. Raises `UnsupportedError` for kinds without a function.
    """
    missing = sorted({op.kind for op in graph.ops} - table.keys())
    if missing:
        hint = "; of a network that is code, --backend native runs the module itself"
        kinds = describe_kinds(graph, missing)
        raise UnsupportedError(
            f"{backend} does not run: {kinds}{hint if OPAQUE in missing else ''}"
        )
    # pairs of an op, whose output is made, and of what runs in its place: a bias and the product
    # before it are one product that adds the bias
    op_pairs = merge_biases(graph) if takes_bias else zip(graph.ops, graph.ops, strict=True)
    source_of_skipped: dict[str, str] = {}  # by the output of a skipped op: the input it stands for
    calls = []
    for op, run_op in op_pairs:
        if is_left_out(op):
            source = op.inputs[0]
            source_of_skipped[op.outputs[0]] = source_of_skipped.get(source, source)
            continue
        call = TableCall(
            name=op.name,
            kind=run_op.kind,
            function=table[run_op.kind],
            inputs=tuple(source_of_skipped.get(name, name) for name in run_op.inputs),
            outputs=op.outputs,
            attrs=run_op.attrs,
            part=op.part,
            op_name=run_op.name,
        )
        calls.append(call)
    persistent_names = {*graph.inputs, *graph.weights, *graph.buffers, *graph.outputs, *keep}
    return _release_after_last_use(calls, persistent_names)


def _release_after_last_use(
    calls: list[TableCall], persistent_names: Collection[str]
) -> tuple[TableCall, ...]:
    """Let each call release the tensors that it is the last one to name, to free their memory."""
    last_call_index: dict[str, int] = {}
    for index, call in enumerate(calls):
        for name in (*call.inputs, *call.outputs):
            last_call_index[name] = index
    released_names: list[list[str]] = [[] for _ in calls]
    for name in last_call_index.keys() - persistent_names:
        released_names[last_call_index[name]].append(name)
    return tuple(
        replace(call, released_names=tuple(names))
        for call, names in zip(calls, released_names, strict=True)
    )


def interpret(
    calls: Iterable[TableCall],
    live: MutableMapping[str, Any],
    apply: Callable[[TableCall, list[Any]], Any] = lambda call, inputs: call.function(
        *inputs, **call.attrs
    ),
) -> None:
    """Make the calls in order over the tensors in `live`, which has the outputs afterwards."""
    for call in calls:
        result = apply(call, [live[name] for name in call.inputs])
        results = result if isinstance(result, tuple) else (result,)
        live.update(zip(call.outputs, results, strict=False))  # a backend may give more results
        for name in call.released_names:
            live.pop(name, None)
