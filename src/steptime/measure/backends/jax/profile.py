"""Steps under JAX's profiler: the time of each XLA instruction, named as the op that it is of.

XLA keeps the scopes that a function was traced in: `jit(step)/transpose(jvp(fc1))/dot_general` is
of the backward pass of `fc1`. The instructions of a trace carry their names in the compiled
program, whose text has the scopes.
"""

import json
import re
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from steptime.measure.backends.jax.program import UPDATE
from steptime.records.traces.trace_events import NODE, OPTIMIZER, STEP, make_event

_MARK = "steptime:"  # of a step in JAX's trace, where a # begins arguments
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$")
_COMPUTATION = re.compile(r"^%?([\w.-]+) \(.*\{$")
_SCOPE = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_CALLS = re.compile(r"(?:calls|to_apply|body)=%?([\w.-]+)")
_WRAPPED = re.compile(r"(transpose\()?jvp\(([^()]*)\)")


class _ProfileSpan(NamedTuple):
    """A time span of a trace. Sorted, spans of one start come longest first.

    Attributes:
        start_us: its start.
        negative_us: minus its length.
        category: the category of its events.
        names: the names of its events, outermost first.
    """

    start_us: float
    negative_us: float
    category: str
    names: tuple[str, ...]


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
    spans: list[_ProfileSpan] = []
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events:
                span = _span_of(event, scopes, ops)
                if span is not None:
                    spans.append(span)
    return json.dumps({"traceEvents": _events_of_track(sorted(spans))})


def _span_of(event: Any, scopes: Mapping[str, str], ops: Collection[str]) -> _ProfileSpan | None:
    """Return a step or an instruction of the trace, None for another event."""
    start_us = event.start_ns / 1e3
    negative_us = -event.duration_ns / 1e3  # sorts the longest of spans with the same start first
    if event.name.startswith(_MARK):
        step = STEP + event.name.removeprefix(_MARK)
        return _ProfileSpan(start_us, negative_us, "user_annotation", (step,))
    instruction = dict(event.stats).get("hlo_op")
    if instruction is None:  # an event of the host or of the profiler itself
        return None
    annotations = names_of(scopes.get(str(instruction), ""), ops)
    return _ProfileSpan(start_us, negative_us, "cpu_op", (*annotations, f"xla::{instruction}"))


def _events_of_track(spans: list[_ProfileSpan]) -> list[dict[str, object]]:
    """Return events of one track: time in which several threads run counts once."""
    events: list[dict[str, object]] = []
    covered_until_us = 0.0
    for start, negative_us, category, names in spans:  # by start, an outer span before inner ones
        begin, end = start, start - negative_us
        if category == "cpu_op":
            # Several threads run at once: only time that no earlier span covers is counted.
            begin = max(start, covered_until_us)
            if end <= begin:
                continue
            covered_until_us = end
        for name in names:
            # The last name is the instruction's; those before it are the scopes around it.
            is_op = name == names[-1] or name.startswith(NODE)
            event_category = category if is_op else "user_annotation"
            events.append(make_event(name, event_category, begin, end - begin))
    return events


def scopes_of(text: str) -> dict[str, str]:
    """Return the scopes of each instruction of a compiled program; a fusion has those of its root.

    The root of what an instruction calls says them where it does not itself.
    """
    scopes: dict[str, str] = {}  # of instructions
    calls: dict[str, str] = {}  # from an instruction, such as a fusion, to its computation
    roots: dict[str, str] = {}  # from a computation to the scope of its last instruction
    computation = ""
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        instruction = _INSTRUCTION.match(line)
        if header:
            computation = header[1]
        elif instruction:
            name, definition = instruction.groups()
            scope = _SCOPE.search(definition)
            if scope:
                scopes[name] = scope[1]
                roots[computation] = scope[1]  # the last one is nearest to the root
            call = _CALLS.search(definition)
            if call:
                calls[name] = call[1]
    root_scopes = {name: roots[callee] for name, callee in calls.items() if callee in roots}
    return root_scopes | scopes


def names_of(scope: str, ops: Collection[str]) -> tuple[str, ...]:
    """Return the annotations of an instruction: its op in what says the pass; () if unknown."""
    # A scope is `jit(step)/...`; `jvp(fc1)` in it is the forward pass of the op `fc1`, and
    # `transpose(jvp(fc1))` its backward pass, which the prefix NODE marks.
    path = scope.partition("/")[2]
    if path.startswith(f"{UPDATE}/"):
        return (f"{OPTIMIZER}step",)
    differentiated = _WRAPPED.search(path)
    if differentiated:
        backward, name = differentiated.groups()
        return (NODE + name, name) if backward else (name,)
    while path and path not in ops:  # names of ops may hold a slash
        path = path.rpartition("/")[0]
    return (path,) if path else ()
