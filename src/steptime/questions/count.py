"""What one step of a network costs, on no device: FLOP, bytes, parameters, memory."""

from typing import Any

from steptime.build import build_step
from steptime.core.question import option, question
from steptime.core.table import Answer, Table, columns, facts, picked
from steptime.core.units import shown
from steptime.hardware import catalog
from steptime.hardware.software import stack_named
from steptime.network.count import count as count_graph
from steptime.network.ops import OPS
from steptime.questions import options
from steptime.questions.options import unmodelled


@question()
def count(
    model: options.Model,
    batch: options.Batch = None,
    phase: options.Phase = "train",
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    allow_unknown: options.AllowUnknown = False,
    length: options.Length = None,
    by_op: options.ByOp = False,
    stack: str = option(
        "NAME", "What runs it (steptime list stacks), or FILE.toml.", "torch-eager"
    ),
) -> Answer:
    """Count FLOP, bytes, parameters and peak memory of one step.

    A multiply-add is 2 FLOP.
    """
    workload = options.workload_of(
        model, batch, dtype, phase, optimizer, allow_unknown, length=length
    )
    graph = build_step(workload)
    found = count_graph(graph, catalog.stack(stack_named(stack)))
    ops: list[dict[str, Any]] = [
        picked(op, "name kind part flop traffic_bytes output_shape") | {"work": OPS[op.kind].work}
        for op in found.ops
    ]
    document: dict[str, Any] = {
        "model": workload.label,
        "batch": workload.batch_per_replica,
        **picked(workload, "phase dtype optimizer"),
        **picked(found, "parameters flop traffic_bytes"),
        "stack": stack,
        "executed_flop": round(found.executed_flop),
        "executed_traffic_bytes": round(found.executed_traffic_bytes),
        **picked(found, "kernels activation_bytes peak_bytes"),
        "unmodelled": list(graph.unmodelled),
        "notes": list(graph.remarks),
        "ops": ops,
    }
    tables = [_totals(document)]
    if by_op:
        rows = [{**op, "output": "x".join(map(str, op["output_shape"])) or "scalar"} for op in ops]
        heads = columns("name=op", "kind", "part", "flop=FLOP", "traffic_bytes=bytes", "?output")
        tables.append(Table(heads, rows))
    notes = [*unmodelled(graph.unmodelled), *(f"note: {remark}" for remark in graph.remarks)]
    return Answer(document, tables, notes)


def _totals(document: dict[str, Any]) -> Table:
    flop, traffic = document["flop"], document["traffic_bytes"]
    launched = f"{document['kernels']:,} kernels ({document['stack']})"
    said = {key: shown(key, value) for key, value in document.items() if key != "ops"}
    title = f"{said['model']}, batch {said['batch']}, {said['phase']}, {said['dtype']}"
    rows = [
        ("parameters", said["parameters"]),
        ("work", f"{said['flop']} (a multiply-add is 2)"),
        ("traffic", f"{said['traffic_bytes']} (every op's inputs and outputs)"),
        ("executed", f"{said['executed_traffic_bytes']} in {launched}"),
        ("intensity", shown("flop_per_byte", flop / traffic if traffic else None)),
        ("activations", said["activation_bytes"]),
        ("peak memory", options.memory_shown(document)),
    ]
    return facts(title, "one step", rows)
