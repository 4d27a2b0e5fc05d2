"""Steps under ONNX Runtime's profiler: the time of each node, named as the op that it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steptime.core.graph import Graph, Op
from steptime.measure.trace import STEP, event
from steptime.ops import OPS

_RUN, _KERNEL = "model_run", "_kernel_time"
_PRODUCTS = ("Conv", "Gemm", "MatMul")


def trace_of(session: Any, binding: Any, graph: Graph, steps: int) -> str:
    """Return the trace of some steps as Trace Event JSON, as PyTorch's profiler would have it."""
    session.run_with_iobinding(binding)  # what the first use costs comes before the steps
    for _ in range(steps):
        session.run_with_iobinding(binding)
    told = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    marks = [one for one in told if one.get("name") == _RUN][-steps:]
    events = [
        event(f"{STEP}{i}", "user_annotation", one["ts"], one["dur"]) for i, one in enumerate(marks)
    ]
    makers = {op.outputs[0]: op for op in graph.ops}
    for one in told:
        name = str(one.get("name"))
        if name.endswith(_KERNEL) and marks and one["ts"] >= marks[0]["ts"]:
            runs = str(one["args"]["op_name"])
            if op := op_of(name.removesuffix(_KERNEL), runs, makers):
                events.append(event(op, "user_annotation", one["ts"], one["dur"]))
            events.append(event(f"onnx::{runs}", "cpu_op", one["ts"], one["dur"]))
    return json.dumps({"traceEvents": events})


def op_of(node: str, runs: str, makers: Mapping[str, Op]) -> str:
    """Return the op that a node belongs to; "" where there is none.

    A node that optimizations have made has the name of one that it replaces, with more behind it: a
    product together with what follows it may have the name of the last.
    """
    while node and node not in makers:
        node = node[:-1]
    name = node
    while any(word in runs for word in _PRODUCTS) and name in makers:
        if OPS[makers[name].kind].products:
            return name
        name = makers[name].inputs[0] if makers[name].inputs else ""
    return node
