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
from steptime.records.record import UNATTRIBUTED
from steptime.records.traces.device_marks import TraceSpan, find_device_marks
from steptime.records.traces.host_threads import (
    BACKWARD,
    Context,
    HostThreads,
    LaunchEvent,
    Work,
    scan_host,
)
from steptime.records.traces.trace_events import KERNEL_CATEGORIES, Slice

NO_PYTORCH_OP = "holds no op of PyTorch's profiler"
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
        seconds_by_part: seconds of each part in each step.
        is_on_device: whether the times are those of kernels on a device.
        is_marked: whether the trace marks its steps; otherwise it is one step.
        counted_steps: number of marked steps in a trace that is one step because its kernels
            cannot be divided among them; 0 for other traces.
        omitted_steps: number of marked steps in which nothing ran, which are left out.
    """

    step_s: list[float]
    seconds_by_part: dict[TracePart, list[float]] = field(default_factory=dict)
    is_on_device: bool = False
    is_marked: bool = True
    counted_steps: int = 0
    omitted_steps: int = 0

    def add(self, part: TracePart, step: int, seconds: float) -> None:
        """Add seconds to a part of a step."""
        self.seconds_by_part.setdefault(part, [0.0] * len(self.step_s))[step] += seconds


def build_profile(events: Sequence[Slice]) -> Profile:
    """Return the time of each part of the steps of a trace; without marks it is one step.

    If kernels ran on a device, the times are theirs, otherwise those of the thread of the steps.

    Raises:
        InputError: for a trace without an op of PyTorch.
    """
    host = scan_host(events)
    kernels = [
        _make_kernel_work(event, host.launch_by_correlation)
        for event in events
        if event.category in KERNEL_CATEGORIES
    ]
    thread = _find_step_thread(host)
    host_work = host.work_by_thread.get(thread, [])
    has_host_time = any(piece.end > piece.start for piece in host_work)
    if not kernels and not has_host_time:
        raise InputError(NO_PYTORCH_OP)
    # Kernels of a device say its time; on a CPU the ops of the thread are the work itself.
    work = sorted(kernels or host_work, key=lambda piece: piece.start)
    trace_steps = _find_steps(events, host, thread, kernels, work)
    profile = _make_profile(trace_steps, is_on_device=bool(kernels))
    for piece, step_index, seconds in _divide_by_step(work, trace_steps.steps):
        profile.add(_find_part(piece.context, host.maker_by_sequence), step_index, seconds)
    return profile


def _make_profile(trace_steps: "_Steps", *, is_on_device: bool) -> Profile:
    """Return the profile of steps whose parts have no time yet."""
    steps, marks, counted_steps = trace_steps
    # `counted_steps` is above 0 if the marked steps could not be told apart on the device, and
    # `steps` is one step over all of them.
    return Profile(
        [(step.end - step.start) * US for step in steps],
        is_on_device=is_on_device,
        is_marked=bool(marks) and not counted_steps,
        counted_steps=counted_steps,
        omitted_steps=max(0, len(marks) - max(len(steps), counted_steps)),
    )


class _Steps(NamedTuple):
    """The steps of a trace, the marks that they follow, and how many marks one step covers."""

    steps: Sequence[TraceSpan]
    marks: Sequence[TraceSpan]
    counted_steps: int = 0


def _find_steps(
    events: Sequence[Slice],
    host: HostThreads,
    thread: tuple[str, str],
    kernels: Sequence[Work],
    work: Sequence[Work],
) -> _Steps:
    """Return the steps by the marks of the host, or of the device where launches are missing."""
    marks = sorted(host.marks_by_thread.get(thread, []))
    active_marks = _omit_empty_steps(marks, host) if marks else []
    # A kernel belongs to the step that launched it. Without launches, only the marks over the
    # device's own time line tell its step.
    lacks_launches = bool(kernels) and all(kernel.launch_us is None for kernel in kernels)
    device_marks = find_device_marks(events) if lacks_launches else []
    if device_marks:
        return _Steps(device_marks, device_marks)
    if active_marks and not lacks_launches:
        steps = _find_device_steps(active_marks, work) if kernels else active_marks
        return _Steps(steps, marks)
    # No marks, or marks of the host that say nothing of the kernels.
    pieces = [*work, *host.work_by_thread.get(thread, [])]
    step = _cover_all(active_marks, [TraceSpan(piece.start, piece.end) for piece in pieces])
    return _Steps([step], marks, counted_steps=len(active_marks))


def _cover_all(marks: Sequence[TraceSpan], pieces: Sequence[TraceSpan]) -> TraceSpan:
    """Return one step over all: from the first mark, or else the first piece, to the last end."""
    first_start = min(span.start for span in marks or pieces)
    last_end = max(span.end for span in (*marks, *pieces))
    return TraceSpan(first_start, last_end)


def _find_step_thread(host: HostThreads) -> tuple[str, str]:
    """Return the thread that marks steps, or else any thread; of several the one of most work."""

    def busy_us(thread: tuple[str, str]) -> float:
        return sum(piece.end - piece.start for piece in host.work_by_thread.get(thread, ()))

    candidates = host.marks_by_thread or host.work_by_thread
    return max(candidates, key=busy_us, default=("", ""))


def _omit_empty_steps(marks: Sequence[TraceSpan], host: HostThreads) -> list[TraceSpan]:
    """Return the marks within which an op of any thread began.

    Without a schedule `torch.profiler` marks one step more than there are, an empty one.

    Raises:
        InputError: if no op began within any mark.
    """
    op_starts = [piece.start for pieces in host.work_by_thread.values() for piece in pieces]
    launch_starts = [launch.start for launch in host.launch_by_correlation.values()]
    starts = sorted(op_starts + launch_starts)
    active_marks = []
    for mark in marks:
        starts_before = bisect_left(starts, mark.start)
        starts_before_end = bisect_left(starts, mark.end)
        if starts_before_end > starts_before:
            active_marks.append(mark)
    if not active_marks:
        raise InputError(f"{NO_PYTORCH_OP} within the steps that it marks")
    return active_marks


def _find_device_steps(marks: Sequence[TraceSpan], kernels: Sequence[Work]) -> list[TraceSpan]:
    """Return the steps of the device from the marks of the host and the kernels launched in them.

    Kernels launched before the first mark are not of the first step, which begins at their end.
    The same holds for kernels of unknown launch that run before all kernels of the first step, and
    for kernels launched behind a mark: they are of a step that is not marked, and the next one
    begins at their end. A step that launched nothing, while the device still ran kernels of earlier
    steps, is left out.
    """
    # The host runs ahead of the device. A step of the device begins when the host begins it and the
    # device has ended all earlier kernels; it ends with the last kernel that was launched in it.
    launches = [_StepLaunches(mark.start, mark.end, kernels_end=mark.end) for mark in marks]
    idle_from = _assign_kernels(launches, kernels)
    steps = []
    for step in launches:
        step_start = max(step.mark_start, idle_from)
        if step.kernels_end > step_start:  # else it launched nothing while earlier kernels ran
            steps.append(TraceSpan(step_start, step.kernels_end))
            idle_from = step.kernels_end
        idle_from = max(idle_from, step.unmarked_end)
    return steps


@dataclass
class _StepLaunches:
    """When the device has ended the kernels that the host launched in a step and after it.

    Attributes:
        mark_start: when the host begins the step.
        mark_end: when the host ends it.
        kernels_end: end of the last kernel launched in the step, or of the mark if that is later.
        unmarked_end: end of the last kernel launched between this mark and the next.
    """

    mark_start: float
    mark_end: float
    kernels_end: float
    unmarked_end: float = -math.inf

    def add_kernel(self, kernel_end: float) -> None:
        """Extend the step by a kernel that was launched in it."""
        self.kernels_end = max(self.kernels_end, kernel_end)

    def add_unmarked_kernel(self, kernel_end: float) -> None:
        """Extend the time after the step by a kernel that was launched there."""
        self.unmarked_end = max(self.unmarked_end, kernel_end)


def _assign_kernels(launches: Sequence[_StepLaunches], kernels: Sequence[Work]) -> float:
    """Set the ends of the kernels of each step; return the end of those before the first step.

    Kernels are sorted by start.
    """
    mark_starts = [step.mark_start for step in launches]
    idle_from = -math.inf  # when the device can begin the first step
    is_first_step_launched = False
    for kernel in kernels:
        if kernel.launch_us is None:  # of unknown step: before the first step it delays that one
            if not is_first_step_launched:
                idle_from = max(idle_from, kernel.end)
            continue
        step_index = bisect_right(mark_starts, kernel.launch_us) - 1
        is_before_first_mark = step_index < 0
        if is_before_first_mark:
            idle_from = max(idle_from, kernel.end)
            continue
        step = launches[step_index]
        is_launched_within_step = kernel.launch_us <= step.mark_end
        if is_launched_within_step:
            is_first_step_launched = True
            step.add_kernel(kernel.end)
        else:
            step.add_unmarked_kernel(kernel.end)
    return idle_from


def _divide_by_step(
    work: Sequence[Work], steps: Sequence[TraceSpan]
) -> Iterator[tuple[Work, int, float]]:
    """Yield the seconds of each piece of work in each step; `work` is sorted by start.

    Time in which several pieces run counts once, for the piece that began first.
    """
    # Kernels of several streams overlap. Each moment counts once, for the piece that began first.
    step_starts = [step.start for step in steps]
    covered_until = -math.inf
    for piece in work:
        uncovered_start = max(piece.start, covered_until)
        if piece.end <= uncovered_start:  # it ran beside earlier pieces
            continue
        covered_until = piece.end
        first_step = max(0, bisect_right(step_starts, uncovered_start) - 1)
        step_stop = bisect_right(step_starts, piece.end)
        for step_index in range(first_step, step_stop):
            step = steps[step_index]
            length_us = min(piece.end, step.end) - max(uncovered_start, step.start)
            if length_us > 0:
                yield piece, step_index, length_us * US


def _make_kernel_work(kernel: Slice, launches: Mapping[int, LaunchEvent]) -> Work:
    """Return a kernel with the context of its launch; without one its own name is the op."""
    launch = None if kernel.correlation is None else launches.get(kernel.correlation)
    context = Context() if launch is None else launch.context
    if not context.op:
        context = replace(context, op=kernel.name)
    launch_us = None if launch is None else launch.start
    return Work(kernel.start, kernel.end, context, launch_us)


def _find_part(context: Context, makers: Mapping[int, LaunchEvent]) -> TracePart:
    """Return the owner of a piece of work: in the backward pass the op that made the node."""
    # A backward op without an annotation belongs to the forward op that made its autograd node.
    has_direct_owner = context.pass_ != BACKWARD or context.scope
    if has_direct_owner:
        return TracePart(context.scope, context.op, context.pass_)
    maker = None if context.sequence is None else makers.get(context.sequence)
    if maker is None:
        return TracePart(UNATTRIBUTED, context.op, BACKWARD)
    return TracePart(maker.context.scope, maker.context.op, BACKWARD)
