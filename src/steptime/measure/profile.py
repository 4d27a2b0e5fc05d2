"""The steps of one cell under the framework's profiler, apart from those that are timed."""

from pathlib import Path
from time import perf_counter
from typing import Any

from steptime.build import build
from steptime.core.workload import Workload
from steptime.measure.contract import Options, Prepared, UnsupportedError
from steptime.records.traces.op_times import OpTimes, list_op_times
from steptime.records.traces.trace import build_profile
from steptime.records.traces.trace_events import read_events

MAX_STEPS = 20
MIN_STEPS = 3


def profile_cell(
    backend: Any, workload: Workload, options: Options, budget_s: float, trace: str = ""
) -> list[OpTimes]:
    """Return the times of every op that ran a kernel, of unattributed kernels, and of the rest.

    In each step they add up to it. The trace is kept in the file `trace`. Raises as `measure_cell`.
    """
    if workload.plan.data > 1:
        raise UnsupportedError("a profile is of one device, not of replicas")
    graph = build(workload)
    prepared: Prepared = backend.prepare(graph, workload, options, feed=None)  # made input
    if prepared.trace is None:
        raise UnsupportedError("this backend has no profiler")
    prepared.step()  # warms up
    prepared.sync()
    # A timed step says how many fit into the budget.
    start_s = perf_counter()
    prepared.step()
    prepared.sync()
    step_s = max(perf_counter() - start_s, 1e-6)
    step_count = max(MIN_STEPS, min(MAX_STEPS, int(budget_s / step_s)))
    trace_text = prepared.trace(1 + step_count)  # the profiler starts in the first one
    if trace:
        Path(trace).write_text(trace_text, encoding="utf-8")
    kind_by_op = {op.name: op.kind for op in graph.ops}
    return list_op_times(build_profile(read_events(trace_text)), kind_by_op)
