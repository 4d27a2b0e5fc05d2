"""The steps of a trace as the profiler marks them over the kernels of the device."""

from collections.abc import Sequence
from typing import NamedTuple

from steptime.records.traces.trace_events import DEVICE_MARKS, Slice


class TraceSpan(NamedTuple):
    """A stretch of time [us]."""

    start: float
    end: float


def find_device_marks(events: Sequence[Slice]) -> list[TraceSpan]:
    """Return the steps as the profiler marks them on the device, one behind the other.

    They say when the kernels of a step ran, also in a trace without the launches of its kernels.
    """
    # Each stream of each device has a mark of its own for a step: the step spans all of them.
    marks = [event for event in events if event.category == DEVICE_MARKS and event.is_step_mark]
    spans_by_name: dict[str, TraceSpan] = {}
    for mark in marks:
        span = spans_by_name.get(mark.name, TraceSpan(mark.start, mark.end))
        spans_by_name[mark.name] = TraceSpan(min(span.start, mark.start), max(span.end, mark.end))
    # Steps may overlap, since kernels run late: a step begins where the one before it ends.
    steps: list[TraceSpan] = []
    for span in sorted(spans_by_name.values()):
        start = max(span.start, steps[-1].end) if steps else span.start
        if span.end > start:
            steps.append(TraceSpan(start, span.end))
    return steps
