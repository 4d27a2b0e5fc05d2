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
    """A time span of a trace.

    Attributes:
        start_us: its start.
        end_us: its end.
        category: the category of its events.
        names: the names of its events, outermost first.
    """

    start_us: float
    end_us: float
    category: str
    names: tuple[str, ...]

    def order_key(self) -> tuple[object, ...]:
        """Return a sort key: by start, and an outer span before the inner ones."""
        return (self.start_us, -self.end_us, self.category, self.names)


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
    spans.sort(key=_ProfileSpan.order_key)
    return json.dumps({"traceEvents": _events_of_track(spans)})


def _span_of(event: Any, scopes: Mapping[str, str], ops: Collection[str]) -> _ProfileSpan | None:
    """Return a step or an instruction of the trace, None for another event."""
    start_us = event.start_ns / 1e3
    end_us = start_us + event.duration_ns / 1e3
    if event.name.startswith(_MARK):
        step = STEP + event.name.removeprefix(_MARK)
        return _ProfileSpan(start_us, end_us, "user_annotation", (step,))
    instruction = dict(event.stats).get("hlo_op")
    if instruction is None:  # an event of the host or of the profiler itself
        return None
    annotations = names_of(scopes.get(str(instruction), ""), ops)
    return _ProfileSpan(start_us, end_us, "cpu_op", (*annotations, f"xla::{instruction}"))


def _events_of_track(spans: list[_ProfileSpan]) -> list[dict[str, object]]:
    """Return events of one track: time in which several threads run counts once."""
    events: list[dict[str, object]] = []
    covered_until_us = 0.0
    for span in spans:
        begin_us = span.start_us
        if span.category == "cpu_op":
            # Several threads run at once: only time that no earlier span covers is counted.
            begin_us = max(begin_us, covered_until_us)
            if span.end_us <= begin_us:
                continue
            covered_until_us = span.end_us
        *scopes, instruction = span.names
        for name in scopes:
            category = span.category if name.startswith(NODE) else "user_annotation"
            events.append(make_event(name, category, begin_us, span.end_us - begin_us))
        events.append(make_event(instruction, span.category, begin_us, span.end_us - begin_us))
    return events


def scopes_of(text: str) -> dict[str, str]:
    """Return the scopes of each instruction of a compiled program; a fusion has those of its root.

    The root of what an instruction calls says them where it does not itself.
    """
    scope_by_instruction: dict[str, str] = {}
    computation_by_call: dict[str, str] = {}  # by the instruction that calls it, such as a fusion
    last_scope_by_computation: dict[str, str] = {}
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
                scope_by_instruction[name] = scope[1]
                last_scope_by_computation[computation] = scope[1]
            call = _CALLS.search(definition)
            if call:
                computation_by_call[name] = call[1]
    # an instruction without a scope has that of the root, the last one, of what it calls
    root_scopes = {
        name: last_scope_by_computation[callee]
        for name, callee in computation_by_call.items()
        if callee in last_scope_by_computation
    }
    return root_scopes | scope_by_instruction


def names_of(scope: str, ops: Collection[str]) -> tuple[str, ...]:
    """Return the annotations of an instruction: its op in what says the pass; () if unknown."""
    # A scope is `jit(step)/...`; `jvp(fc1)` in it is the forward pass of the op `fc1`, and
    # `transpose(jvp(fc1))` its backward pass, which the prefix NODE marks.
    _program, _, path = scope.partition("/")
    if path.startswith(f"{UPDATE}/"):
        return (f"{OPTIMIZER}step",)
    differentiated = _WRAPPED.search(path)
    if differentiated:
        transpose, name = differentiated.groups()
        is_backward = transpose is not None
        return (NODE + name, name) if is_backward else (name,)
    # in inference the path is the op's name, which may hold slashes, and then XLA's own names
    while path and path not in ops:
        path, _, _last_part = path.rpartition("/")
    return (path,) if path else ()
