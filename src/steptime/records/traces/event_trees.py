"""The events of host threads as trees: each event with the events inside it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from steptime.core.graph import Part
from steptime.records.traces.trace_events import (
    HOST_CATEGORIES,
    LAUNCH_CATEGORIES,
    NODE,
    OPTIMIZER,
    Slice,
)

ATEN = "aten::"
GRADIENT_STORE = "AccumulateGrad"  # the node that adds a gradient to that of a weight
WAITS = ("Synchronize", "cudaMemcpy")  # in names of calls in which the host waits for the device


@dataclass
class EventNode:
    """An event of a host thread with the events inside it."""

    event: Slice
    pass_: Part
    is_of_weights: bool = False
    children: list["EventNode"] = field(default_factory=list)
    busy_us: float = 0.0
    """Its own time, or that of the kernels launched inside it."""
    calls_recognised: bool = False
    """Whether an op of known work is inside it."""


def grow_trees(events: Sequence[Slice]) -> list[EventNode]:
    """Return the outermost events of each host thread with those inside them."""
    threads: dict[tuple[str, str], list[Slice]] = {}
    for event in events:
        if event.category in HOST_CATEGORIES and not event.is_step_mark:
            threads.setdefault(event.track, []).append(event)
    return [root for thread_events in threads.values() for root in _nest_events(thread_events)]


def _nest_events(events: Sequence[Slice]) -> list[EventNode]:
    """Return the outermost events of one thread with those inside them."""
    roots: list[EventNode] = []
    open_nodes: list[EventNode] = []  # the events around the present one, outermost first
    for event in sorted(events, key=lambda event: (event.start, -event.length)):
        while open_nodes and open_nodes[-1].event.end <= event.start:
            open_nodes.pop()
        outer = open_nodes[-1] if open_nodes else None
        node = _make_node(event, outer)
        siblings = roots if outer is None else outer.children
        siblings.append(node)
        open_nodes.append(node)
    return roots


def _make_node(event: Slice, outer: EventNode | None) -> EventNode:
    pass_: Part = "forward" if outer is None else outer.pass_
    if event.name.startswith(NODE):
        pass_ = "backward"
    elif event.name.startswith(OPTIMIZER):
        pass_ = "update"
    # What an event is holds for all events within it: its pass, and whether it adds to a weight's
    # gradient.
    is_of_weights = GRADIENT_STORE in event.name or (outer is not None and outer.is_of_weights)
    return EventNode(event, pass_, is_of_weights)


def set_busy_time(node: EventNode, kernel_us_by_launch: Mapping[int, float] | None) -> None:
    """Set the busy time of a node and of all nodes inside it.

    Args:
        node: the root of a tree of events.
        kernel_us_by_launch: time of kernels by correlation number [us]; None times the host.
    """
    # The time of the event on the CPU, or of the kernels that were launched within it.
    for child in node.children:
        set_busy_time(child, kernel_us_by_launch)
    if kernel_us_by_launch is None:  # nothing ran on a device
        node.busy_us = node.event.length
        return
    event = node.event
    launched_us = 0.0
    if event.category in LAUNCH_CATEGORIES and event.correlation is not None:
        launched_us = kernel_us_by_launch.get(event.correlation, 0.0)
    node.busy_us = launched_us + sum(child.busy_us for child in node.children)


def mark_recognised(node: EventNode, is_recognised: Callable[[str], bool]) -> bool:
    """Set whether ops of known work are inside a node; return whether it or one inside is known."""
    child_marks = [mark_recognised(child, is_recognised) for child in node.children]
    node.calls_recognised = any(child_marks)
    return node.calls_recognised or is_recognised(node.event.name.removeprefix(ATEN))


def issue_us(node: EventNode) -> float:
    """Return the time of an event without the calls in which the host waits for the device."""
    return node.event.length - sum(_waited_us(child) for child in _walk(node))


def _walk(node: EventNode) -> Iterator[EventNode]:
    yield node
    for child in node.children:
        yield from _walk(child)


def _waited_us(node: EventNode) -> float:
    event = node.event
    is_wait = event.category in LAUNCH_CATEGORIES and any(word in event.name for word in WAITS)
    return event.length if is_wait else 0.0
