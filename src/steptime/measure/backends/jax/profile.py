"""Steps under JAX's profiler: the time of each XLA instruction, named as the op that it is of.

XLA keeps the scopes that a function was traced in: `jit(step)/transpose(jvp(fc1))/dot_general` is
of the backward pass of `fc1`. The instructions of a trace carry their names in the compiled
program, whose text has the scopes.
"""

import json
import re
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jax

from steptime.measure.backends.jax.program import UPDATE
from steptime.records.trace_events import NODE, OPTIMIZER, STEP, make_event

_MARK = "steptime:"  # of a step in JAX's trace, where a # begins arguments
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$")
_COMPUTATION = re.compile(r"^%?([\w.-]+) \(.*\{$")
_SCOPE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLS = re.compile(r"(?:calls|to_apply|body)=%?([\w.-]+)")
_WRAPPED = re.compile(r"(transpose\()?jvp\(([^()]*)\)")


def trace_of(running: Any, ops: Collection[str], steps: int) -> str:
    """Return the trace of some steps as Trace Event JSON, as PyTorch's profiler would have it."""
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        with jax.profiler.trace(folder):
            for number in range(steps):
                with jax.profiler.TraceAnnotation(f"{_MARK}{number}"):
                    running.step()
                    running.sync()
        (path,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(path))
    scopes = scopes_of(running.compiled.as_text())
    found: list[tuple[float, float, str, tuple[str, ...]]] = []
    for plane in data.planes:
        for line in plane.lines:
            for one in line.events:
                start, length = one.start_ns / 1e3, one.duration_ns / 1e3
                if one.name.startswith(_MARK):
                    step = STEP + one.name.removeprefix(_MARK)
                    found.append((start, -length, "user_annotation", (step,)))
                elif (name := dict(one.stats).get("hlo_op")) is not None:
                    around = names_of(scopes.get(str(name), ""), ops)
                    found.append((start, -length, "cpu_op", (*around, f"xla::{name}")))
    return json.dumps({"traceEvents": _in_a_row(sorted(found))})


def _in_a_row(found: list[Any]) -> list[dict[str, object]]:
    """Return events of one track: what several threads do at a time counts once."""
    events: list[dict[str, object]] = []
    until = 0.0
    for start, minus, category, names in found:
        begin, end = start, start - minus
        if category == "cpu_op":
            begin = max(start, until)
            if end <= begin:
                continue
            until = end
        for name in names:
            own = name == names[-1] or name.startswith(NODE)
            own_category = category if own else "user_annotation"
            events.append(make_event(name, own_category, begin, end - begin))
    return events


def scopes_of(text: str) -> dict[str, str]:
    """Return the scopes of each instruction of a compiled program; a fusion has those of its root.

    The root of what an instruction calls says them where it does not itself.
    """
    scopes: dict[str, str] = {}
    calls: dict[str, str] = {}
    roots: dict[str, str] = {}
    inside = ""
    for line in text.splitlines():
        if opened := _COMPUTATION.match(line):
            inside = opened[1]
        elif found := _INSTRUCTION.match(line):
            name, rest = found.groups()
            if said := _SCOPE.search(rest):
                scopes[name] = said[1]
                roots[inside] = said[1]  # the last one is nearest to the root
            if called := _CALLS.search(rest):
                calls[name] = called[1]
    return {name: roots[called] for name, called in calls.items() if called in roots} | scopes


def names_of(scope: str, ops: Collection[str]) -> tuple[str, ...]:
    """Return the annotations of an instruction: its op in what says the pass; () if unknown."""
    path = scope.partition("/")[2]  # behind jit(...)
    if path.startswith(f"{UPDATE}/"):
        return (f"{OPTIMIZER}step",)
    if found := _WRAPPED.search(path):
        backward, name = found.groups()
        return (*((NODE + name,) if backward else ()), name)
    while path and path not in ops:
        path = path.rpartition("/")[0]
    return (path,) if path else ()
