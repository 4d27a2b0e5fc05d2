"""The steps of one cell under the framework's profiler, apart from those that are timed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from steptime.build import build
from steptime.core.graph import PASSES
from steptime.core.workload import Workload
from steptime.measure.contract import Options, Prepared, UnsupportedError
from steptime.measure.timing import in_one_run
from steptime.records.record import NO_OP, UNATTRIBUTED, Quantity
from steptime.records.trace import Profile, events_of, profile_of

MOST_STEPS, LEAST_STEPS = 20, 3


@dataclass(frozen=True)
class OpTimes:
    """The times of one op in each profiled step, or of what belongs to none."""

    scope: str
    kind: str
    quantities: Mapping[str, Quantity]


def profile_cell(
    backend: Any, workload: Workload, options: Options, budget_s: float, trace: str = ""
) -> list[OpTimes]:
    """Return the times of every op that ran a kernel, of unattributed kernels, and of the rest.

    In each step they add up to it. The trace is kept in the file `trace`. Raises as `measure_cell`.
    """
    if workload.plan.data > 1:
        raise UnsupportedError("a profile is of one device, not of replicas")
    graph = build(workload)
    prepared: Prepared = backend.prepare(graph, workload, options, None)
    if prepared.trace is None:
        raise UnsupportedError("this backend has no profiler")
    prepared.step()
    prepared.sync()
    began = perf_counter()
    prepared.step()
    prepared.sync()
    fits = int(budget_s / max(perf_counter() - began, 1e-6))
    text = prepared.trace(1 + max(LEAST_STEPS, min(MOST_STEPS, fits)))
    if trace:
        Path(trace).write_text(text, encoding="utf-8")
    kinds = {op.name: op.kind for op in graph.ops}
    return times_of(profile_of(events_of(text)), kinds)


def times_of(profile: Profile, kinds: Mapping[str, str], first: int = 1) -> list[OpTimes]:
    """Return the times of ops from the step `first` on: the profiler slows the one before.

    `kinds` are those of the ops by name; what is none of them is unattributed, but the optimizer.
    """
    known = {**kinds, "optimizer": "optimizer"}
    steps = profile.steps[first:]
    ops: dict[str, dict[str, list[float]]] = {}
    for part, seconds in profile.parts.items():
        scope = part.scope if part.scope in known else UNATTRIBUTED
        passes = ops.setdefault(scope, {name: [0.0] * len(steps) for name in PASSES})
        passes[part.pass_] = [
            a + b for a, b in zip(passes[part.pass_], seconds[first:], strict=True)
        ]
    ordered = [*known, UNATTRIBUTED]
    found = []
    rest = steps
    for scope in sorted(ops, key=ordered.index):
        whole = [sum(each) for each in zip(*ops[scope].values(), strict=True)]
        rest = [left - taken for left, taken in zip(rest, whole, strict=True)]
        samples = {f"{name}_s": values for name, values in ops[scope].items()} | {"step_s": whole}
        found.append(OpTimes(scope, known.get(scope, UNATTRIBUTED), _sampled(samples)))
    return [*found, OpTimes(NO_OP, NO_OP, _sampled({"step_s": rest}))]


def _sampled(samples: Mapping[str, list[float]]) -> dict[str, Quantity]:
    return {name: in_one_run(values) for name, values in samples.items()}
