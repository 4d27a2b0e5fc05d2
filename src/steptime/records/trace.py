"""The time of each annotated op in a trace of PyTorch's profiler, by pass and by step.

Annotations (`record_function`) name ops. A backward op belongs to the forward op that made its node
of the autograd graph: both have one sequence number. A kernel belongs to the op that launched it:
both have one correlation number.

A host that launches kernels runs ahead of the device, so marks of steps on the host's thread do not
bound the steps of the device. A step with kernels ends with the last kernel that it launched, and
not before its mark ends; the next step begins there, and not before its own mark. This is the rule
of Kineto's TensorBoard plugin (`step_parser.py`).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.graph import PASSES
from steptime.records.record import NO_OP, UNATTRIBUTED, Quantity, single_run
from steptime.records.trace_events import (
    HOST_CATEGORIES,
    KERNEL_CATEGORIES,
    LAUNCH_CATEGORIES,
    NODE,
    OPTIMIZER,
    Slice,
)

NO_PYTORCH_OP = "holds no op of PyTorch's profiler"
COMPUTING_NAMES = ("::", "CompiledFxGraph")  # in names of ops; a Python function has neither
FORWARD, BACKWARD, UPDATE = PASSES
US = 1e-6


class TracePart(NamedTuple):
    """The owner of a piece of time: an annotation or "", the framework's op, and the pass."""

    scope: str
    op: str
    pass_: str


@dataclass
class Profile:
    """The seconds of each part in each step.

    Seconds of a step that are of no part ran on no op: the host's work, and gaps. Overlaps count
    once.

    Attributes:
        step_s: seconds of each step.
        parts: seconds of each part in each step.
        is_on_device: whether the times are those of kernels on a device.
        is_marked: whether the trace marks its steps; otherwise it is one step.
        omitted_steps: number of marked steps in which nothing ran, which are left out.
    """

    step_s: list[float]
    parts: dict[TracePart, list[float]] = field(default_factory=dict)
    is_on_device: bool = False
    is_marked: bool = True
    omitted_steps: int = 0

    def add(self, part: TracePart, step: int, seconds: float) -> None:
        """Add seconds to a part of a step."""
        self.parts.setdefault(part, [0.0] * len(self.step_s))[step] += seconds


class _Span(NamedTuple):
    """A stretch of time [us]."""

    start: float
    end: float


@dataclass(frozen=True)
class _Context:
    """The annotation, op, pass and autograd node around a moment of a host thread."""

    end: float = 0.0
    scope: str = ""
    op: str = ""
    pass_: str = FORWARD
    sequence: int | None = None


class _Work(NamedTuple):
    """An op of a host thread or a kernel, with the time at which the host launched the kernel."""

    start: float
    end: float
    context: _Context
    launch: float | None = None


class _Launch(NamedTuple):
    start: float
    context: _Context


@dataclass
class _Host:
    """The ops of each host thread, the kernels that they launched and the nodes that they made.

    Attributes:
        work: outermost ops by thread.
        marks: marked steps by thread.
        launches: launches by correlation number.
        makers: time and context of the op that made a node, by its sequence number.
    """

    work: dict[tuple[str, str], list[_Work]] = field(default_factory=dict)
    marks: dict[tuple[str, str], list[_Span]] = field(default_factory=dict)
    launches: dict[int, _Launch] = field(default_factory=dict)
    makers: dict[int, _Launch] = field(default_factory=dict)


def build_profile(events: Sequence[Slice]) -> Profile:
    """Return the time of each part of the steps of a trace; without marks it is one step.

    If kernels ran on a device, the times are theirs, otherwise those of the thread of the steps.

    Raises:
        InputError: for a trace without an op of PyTorch.
    """
    host = _scan_host(events)
    kernels = [
        _find_launch(event, host.launches)
        for event in events
        if event.category in KERNEL_CATEGORIES
    ]
    thread = _find_step_thread(host)
    host_work = host.work.get(thread, [])
    if not kernels and not any(piece.end > piece.start for piece in host_work):
        raise InputError(NO_PYTORCH_OP)
    work = sorted(kernels or host_work, key=lambda piece: piece.start)
    marks = sorted(host.marks.get(thread, []))
    if marks:
        active_marks = _omit_empty_steps(marks, host)
        steps = _device_steps(active_marks, work) if kernels else active_marks
    else:
        everything = [*work, *host_work]
        first_start = min(piece.start for piece in everything)
        steps = [_Span(first_start, max(piece.end for piece in everything))]
    profile = Profile(
        [(step.end - step.start) * US for step in steps],
        is_on_device=bool(kernels),
        is_marked=bool(marks),
        omitted_steps=max(0, len(marks) - len(steps)),
    )
    for piece, step, seconds in _share_out(work, steps):
        profile.add(_find_part(piece.context, host.makers), step, seconds)
    return profile


def _find_step_thread(host: _Host) -> tuple[str, str]:
    """Return the thread that marks steps, or else any thread; of several the one of most work."""
    return max(
        host.marks or host.work,
        key=lambda thread: sum(piece.end - piece.start for piece in host.work.get(thread, ())),
        default=("", ""),
    )


def _omit_empty_steps(marks: Sequence[_Span], host: _Host) -> list[_Span]:
    """Return the marks within which an op of any thread began.

    Without a schedule `torch.profiler` marks one step more than there are, an empty one.

    Raises:
        InputError: if no op began within any mark.
    """
    starts = sorted(
        [piece.start for pieces in host.work.values() for piece in pieces]
        + [launch.start for launch in host.launches.values()]
    )
    active_marks = [
        mark for mark in marks if bisect_left(starts, mark.end) > bisect_left(starts, mark.start)
    ]
    if not active_marks:
        raise InputError(f"{NO_PYTORCH_OP} within the steps that it marks")
    return active_marks


def _device_steps(marks: Sequence[_Span], kernels: Sequence[_Work]) -> list[_Span]:
    """Return the steps of the device from the marks of the host and the kernels launched in them.

    Kernels launched before the first mark are not of the first step, which begins at their end.
    The same holds for kernels of unknown launch that run before all kernels of the first step. A
    step that launched nothing, while the device still ran kernels of earlier steps, is left out.
    """
    starts = [mark.start for mark in marks]
    ends = [mark.end for mark in marks]
    before_end = -math.inf
    is_started = False
    for kernel in kernels:
        step = -1 if kernel.launch is None else bisect_right(starts, kernel.launch) - 1
        if step >= 0 and kernel.launch is not None and kernel.launch <= marks[step].end:
            is_started = True
            ends[step] = max(ends[step], kernel.end)
        elif step < 0 and not (is_started and kernel.launch is None):
            before_end = max(before_end, kernel.end)
    steps = []
    for start, end in zip(starts, ends, strict=True):
        start_or_before = max(start, before_end)
        if end > start_or_before:
            steps.append(_Span(start_or_before, end))
            before_end = end
    return steps


def _share_out(work: Sequence[_Work], steps: Sequence[_Span]) -> Iterator[tuple[_Work, int, float]]:
    """Yield the seconds of each piece of work in each step; `work` is sorted by start.

    Time in which several pieces run counts once, for the piece that began first.
    """
    starts = [step.start for step in steps]
    covered_until = -math.inf
    for piece in work:
        start = max(piece.start, covered_until)
        if piece.end <= start:
            continue
        covered_until = piece.end
        first_step = max(0, bisect_right(starts, start) - 1)
        for number in range(first_step, bisect_right(starts, piece.end)):
            step = steps[number]
            length_us = min(piece.end, step.end) - max(start, step.start)
            if length_us > 0:
                yield piece, number, length_us * US


def _find_launch(kernel: Slice, launches: Mapping[int, _Launch]) -> _Work:
    """Return a kernel with the context of its launch; without one its own name is the op."""
    launch = None if kernel.correlation is None else launches.get(kernel.correlation)
    context = _Context() if launch is None else launch.context
    if not context.op:
        context = replace(context, op=kernel.name)
    return _Work(kernel.start, kernel.end, context, None if launch is None else launch.start)


def _find_part(context: _Context, makers: Mapping[int, _Launch]) -> TracePart:
    """Return the owner of a piece of work: in the backward pass the op that made the node."""
    if context.pass_ != BACKWARD or context.scope:
        return TracePart(context.scope, context.op, context.pass_)
    maker = None if context.sequence is None else makers.get(context.sequence)
    if maker is None:
        return TracePart(UNATTRIBUTED, context.op, BACKWARD)
    return TracePart(maker.context.scope, maker.context.op, BACKWARD)


def _scan_host(events: Sequence[Slice]) -> _Host:
    threads: dict[tuple[str, str], list[Slice]] = {}
    for event in events:
        if event.category in HOST_CATEGORIES:
            threads.setdefault(event.track, []).append(event)
    host = _Host()
    for track, thread_events in threads.items():
        marks = [_Span(event.start, event.end) for event in thread_events if event.is_step_mark]
        if marks:
            host.marks[track] = marks
        host.work[track] = list(_scan_thread(thread_events, host))
    return host


def _scan_thread(events: Sequence[Slice], host: _Host) -> Iterator[_Work]:
    """Yield the outermost ops of one thread, and add launches and makers of nodes to `host`."""
    stack: list[_Context] = []
    last_sequence: int | None = None
    for event in sorted(events, key=lambda event: (event.start, -event.length)):
        while stack and stack[-1].end <= event.start:
            stack.pop()
        outer = stack[-1] if stack else _Context()
        if event.name.startswith(NODE):
            # Gradients are added up right after the node that made them, without a number.
            last_sequence = last_sequence if event.sequence is None else event.sequence
        inner = _enter(event, outer, last_sequence)
        if inner.op and not outer.op:
            yield _Work(event.start, event.end, inner)
        if event.correlation is not None and event.category in LAUNCH_CATEGORIES:
            host.launches[event.correlation] = _Launch(event.start, inner)
        if inner.pass_ == FORWARD and inner.op and event.sequence is not None:
            maker = host.makers.get(event.sequence)
            # Ops before the maker of a node see its number, too; the maker is the last of them.
            if maker is None or maker.start <= event.start:
                host.makers[event.sequence] = _Launch(event.start, inner)
        stack.append(inner)


def _enter(event: Slice, outer: _Context, sequence: int | None) -> _Context:
    """Return the context within an event, from that around it and the last node's number."""
    if event.is_step_mark:
        return replace(outer, end=event.end)
    if event.category == "user_annotation":
        if event.name.startswith(OPTIMIZER):
            return replace(outer, end=event.end, scope="optimizer", pass_=UPDATE)
        scope = f"{outer.scope}/{event.name}" if outer.scope else event.name
        return replace(outer, end=event.end, scope=scope)
    if event.name.startswith(NODE):
        return replace(outer, end=event.end, pass_=BACKWARD, sequence=sequence)
    is_op = event.category == "cpu_op" and any(text in event.name for text in COMPUTING_NAMES)
    if is_op and not outer.op:
        return replace(outer, end=event.end, op=event.name)
    return replace(outer, end=event.end)


@dataclass(frozen=True)
class OpTimes:
    """The times of one op in each profiled step, or of work that belongs to no op."""

    scope: str
    kind: str
    quantities: Mapping[str, Quantity]


def list_op_times(profile: Profile, kinds: Mapping[str, str], first_step: int = 1) -> list[OpTimes]:
    """Return the times of ops from a step on; the profiler slows the very first step.

    Args:
        profile: the times of all parts.
        kinds: the kind of each op by name. A part of any other name is unattributed, except the
            optimizer.
        first_step: number of steps that are left out.
    """
    scope_kinds = {**kinds, "optimizer": "optimizer"}
    step_s = profile.step_s[first_step:]
    pass_s_of_scopes: dict[str, dict[str, list[float]]] = {}
    for part, part_s in profile.parts.items():
        scope = part.scope if part.scope in scope_kinds else UNATTRIBUTED
        no_time: dict[str, list[float]] = {name: [0.0] * len(step_s) for name in PASSES}
        pass_s = pass_s_of_scopes.setdefault(scope, no_time)
        pass_s[part.pass_] = _add(pass_s[part.pass_], part_s[first_step:])

    scope_order = [*scope_kinds, UNATTRIBUTED]
    ops = []
    busy_s = [0.0] * len(step_s)
    for scope in sorted(pass_s_of_scopes, key=scope_order.index):
        pass_s = pass_s_of_scopes[scope]
        op_s = [sum(passes) for passes in zip(*pass_s.values(), strict=True)]
        busy_s = _add(busy_s, op_s)
        samples = {f"{name}_s": values for name, values in pass_s.items()} | {"step_s": op_s}
        kind = scope_kinds.get(scope, UNATTRIBUTED)
        ops.append(OpTimes(scope, kind, _make_quantities(samples)))
    # Rounding may leave less than nothing of a step that is busy throughout.
    idle_s = [max(0.0, step - busy) for step, busy in zip(step_s, busy_s, strict=True)]
    return [*ops, OpTimes(NO_OP, NO_OP, _make_quantities({"step_s": idle_s}))]


def _add(values: Sequence[float], added: Sequence[float]) -> list[float]:
    return [value + extra for value, extra in zip(values, added, strict=True)]


def _make_quantities(samples: Mapping[str, list[float]]) -> dict[str, Quantity]:
    return {name: single_run(values) for name, values in samples.items()}
