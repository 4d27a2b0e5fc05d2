"""The host threads of a trace: their outermost ops, and the launches and nodes that these made."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from steptime.core.graph import PASSES
from steptime.records.traces.device_marks import TraceSpan
from steptime.records.traces.trace_events import (
    HOST_CATEGORIES,
    LAUNCH_CATEGORIES,
    NODE,
    OPTIMIZER,
    Slice,
)

COMPUTING_NAMES = ("::", "CompiledFxGraph")  # in names of ops; a Python function has neither
FORWARD, BACKWARD, UPDATE = PASSES


@dataclass(frozen=True)
class Context:
    """The annotation, op, pass and autograd node around a moment of a host thread."""

    end: float = 0.0
    scope: str = ""
    op: str = ""
    pass_: str = FORWARD
    sequence: int | None = None


class Work(NamedTuple):
    """An op of a host thread or a kernel, with the time at which the host launched the kernel."""

    start: float
    end: float
    context: Context
    launch_us: float | None = None


class LaunchEvent(NamedTuple):
    """The moment at which an event begins, and its context."""

    start: float
    context: Context


@dataclass
class HostThreads:
    """The ops of each host thread, the kernels that they launched and the nodes that they made.

    Attributes:
        work_by_thread: outermost ops by thread.
        marks_by_thread: marked steps by thread.
        launch_by_correlation: launches by correlation number.
        maker_by_sequence: time and context of the op that made a node, by its sequence number.
    """

    work_by_thread: dict[tuple[str, str], list[Work]] = field(default_factory=dict)
    marks_by_thread: dict[tuple[str, str], list[TraceSpan]] = field(default_factory=dict)
    launch_by_correlation: dict[int, LaunchEvent] = field(default_factory=dict)
    maker_by_sequence: dict[int, LaunchEvent] = field(default_factory=dict)


def scan_host(events: Sequence[Slice]) -> HostThreads:
    """Return the threads of the host with their marked steps and their outermost ops."""
    threads: dict[tuple[str, str], list[Slice]] = {}
    for event in events:
        if event.category in HOST_CATEGORIES:
            threads.setdefault(event.track, []).append(event)
    host = HostThreads()
    for track, thread_events in threads.items():
        marks = [TraceSpan(event.start, event.end) for event in thread_events if event.is_step_mark]
        if marks:
            host.marks_by_thread[track] = marks
        host.work_by_thread[track] = list(_scan_thread(thread_events, host))
    return host


def _scan_thread(events: Sequence[Slice], host: HostThreads) -> Iterator[Work]:
    """Yield the outermost ops of one thread, and add launches and makers of nodes to `host`."""
    open_contexts: list[Context] = []  # of the events around the present one, outermost first
    last_sequence: int | None = None
    for event in sorted(events, key=lambda event: (event.start, -event.length)):
        while open_contexts and open_contexts[-1].end <= event.start:
            open_contexts.pop()
        outer = open_contexts[-1] if open_contexts else Context()
        # The event that adds up gradients has no sequence number of its own: it follows the node
        # that made them, so the number of that node stays in use.
        if event.name.startswith(NODE) and event.sequence is not None:
            last_sequence = event.sequence
        inner = _enter_event(event, outer, last_sequence)
        is_outermost_op = inner.op and not outer.op
        if is_outermost_op:
            yield Work(event.start, event.end, inner)
        _note_launch(event, inner, host)
        open_contexts.append(inner)


def _note_launch(event: Slice, context: Context, host: HostThreads) -> None:
    """Add an event to `host` if it launches a kernel, and if it makes an autograd node."""
    if event.correlation is not None and event.category in LAUNCH_CATEGORIES:
        host.launch_by_correlation[event.correlation] = LaunchEvent(event.start, context)
    is_forward_op = context.pass_ == FORWARD and context.op
    if is_forward_op and event.sequence is not None:
        maker = host.maker_by_sequence.get(event.sequence)
        # Several forward ops carry the number of an autograd node; the last of them made it.
        if maker is None or maker.start <= event.start:
            host.maker_by_sequence[event.sequence] = LaunchEvent(event.start, context)


def _enter_event(event: Slice, outer: Context, sequence: int | None) -> Context:
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
    # The outermost op counts: those that it calls are parts of it.
    is_op = event.category == "cpu_op" and any(text in event.name for text in COMPUTING_NAMES)
    if is_op and not outer.op:
        return replace(outer, end=event.end, op=event.name)
    return replace(outer, end=event.end)
