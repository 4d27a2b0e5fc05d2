"""The ops of a step with what they read, from a trace that `torch.profiler` took with shapes.

The ops of a host thread form a tree: `aten::linear` calls `aten::addmm`. The step is cut into the
outermost ops of known work, and into single ops below all others. Their time is that of the host
thread, or of the kernels that were launched within them where the trace has kernels.

Other work on the machine lengthens some ops of some steps. Equal ops count with their median time,
or with their shortest one where that is much shorter; the time between two ops does so, too.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.graph import Part
from steptime.core.toml_files import read_packaged_toml
from steptime.core.units import format_count
from steptime.records.traces.event_trees import (
    ATEN,
    EventNode,
    grow_trees,
    issue_us,
    mark_recognised,
    set_busy_time,
)
from steptime.records.traces.trace import US, build_profile
from steptime.records.traces.trace_events import (
    KERNEL_CATEGORIES,
    LAUNCH_CATEGORIES,
    NODE,
    OPTIMIZER,
    STEP,
    Slice,
    TracedInput,
)

NO_SHAPES = "has no shapes of ops: take it with torch.profiler.profile(record_shapes=True)"
HOST_OPS = frozenset(read_packaged_toml("torch_names.toml")["traced"]["host"])
DELEGATED_SHARE = 0.7  # of an op's time in the ops that it calls, from which on these stand for it
FIRST_STEPS = 1  # slowed by the profiler itself, left out where more steps follow
DISTURBED_RATIO = 1.3  # of the median over the shortest time, from which on other work disturbed
MIN_STEPS = 3  # from which on the first is left out


class OpKey(NamedTuple):
    """An op without its time: equal ones are one.

    Attributes:
        name: the op: `aten::addmm`.
        pass_: the pass of the step.
        inputs: what it reads.
        is_of_weights: whether it stores the gradient of a weight.
    """

    name: str
    pass_: Part
    inputs: tuple[TracedInput, ...]
    is_of_weights: bool = False


class TracedOp(NamedTuple):
    """All equal ops of a step.

    Attributes:
        key: the op.
        seconds: seconds of all of them in a step.
        calls: how often it runs in a step.
    """

    key: OpKey
    seconds: float
    calls: float


@dataclass(frozen=True)
class TracedStep:
    """A step as a trace shows it.

    Attributes:
        step_s: seconds of a step as the trace has it, the median of the steps.
        ops: ops with shapes.
        unshaped_s: seconds of what has no shapes, by name: compiled regions, ops of extensions.
        is_on_device: whether times are those of kernels on a device.
        gap_s: seconds of a step in which no op runs: Python, views, the profiler.
        issue_s: seconds in which the host thread runs ops and launches kernels.
        step_count: number of steps.
        is_marked: whether the trace marks its steps.
    """

    step_s: float
    ops: tuple[TracedOp, ...]
    unshaped_s: Mapping[str, float]
    is_on_device: bool
    gap_s: float
    issue_s: float
    step_count: int
    is_marked: bool

    @property
    def ops_s(self) -> float:
        """Seconds of all work: ops with shapes, and what has none."""
        return sum(op.seconds for op in self.ops) + sum(self.unshaped_s.values())

    @property
    def undisturbed_s(self) -> float:
        """Seconds of a step without what other work on the machine added."""
        return self.ops_s + self.gap_s


@dataclass
class _Totals:
    """The times of equal ops, and seconds without shapes by name [us]."""

    times_us_by_op: dict[OpKey, list[float]] = field(default_factory=lambda: defaultdict(list))
    counted_events: list[Slice] = field(default_factory=list)
    unshaped_us: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def read_traced_step(
    events: Sequence[Slice], is_recognised: Callable[[str], bool], steps: int | None = None
) -> TracedStep:
    """Return the mean step of a trace.

    Args:
        events: the events of the trace.
        is_recognised: whether the work of an op follows from what it reads, by its name.
        steps: the number of steps in a trace that does not mark them; None takes as many as its
            optimizer made, 1 without one.

    Raises:
        InputError: for a trace without ops of PyTorch, one without shapes, and one that marks
            another number of steps.
    """
    profile = build_profile(events)
    if steps is not None and profile.is_marked and steps != len(profile.step_s):
        marks = format_count(len(profile.step_s), "step")
        raise InputError(f"marks {marks} itself: --steps is for a trace without marks")
    step_events, omitted_steps = _omit_first_step(events)
    if not any(event.inputs for event in step_events):
        raise InputError(NO_SHAPES)
    if profile.is_marked:
        step_count = len(profile.step_s) - omitted_steps
        step_s = median(profile.step_s[omitted_steps:])
    else:  # `profile` is of all steps as one
        step_count = steps or _count_optimizer_steps(step_events)
        step_s = profile.step_s[0] / step_count
    roots = grow_trees(step_events)
    kernel_us_by_launch = _sum_kernels(events) if profile.is_on_device else None
    totals = _sum_ops(roots, kernel_us_by_launch, is_recognised)
    if profile.is_on_device:
        _collect_lone_kernels(step_events, totals)
    step = TracedStep(
        step_s=step_s,
        ops=_list_ops(totals, step_count),
        # Without shapes (compiled regions, ops of extensions) the work of an op is unknown.
        unshaped_s={name: us / step_count * US for name, us in totals.unshaped_us.items()},
        is_on_device=profile.is_on_device,
        gap_s=0.0,
        issue_s=sum(map(issue_us, roots)) / step_count * US,
        step_count=step_count,
        is_marked=profile.is_marked,
    )
    return replace(step, gap_s=_find_gap_s(step, step_events, totals))


def _find_gap_s(step: TracedStep, events: Sequence[Slice], totals: _Totals) -> float:
    """Return the seconds of a step in which no op runs.

    On a CPU each gap between ops is in the trace. One that another process lengthened counts with
    the usual time between these two ops.
    """
    ops_s = sum(op.seconds for op in step.ops)
    gap_s = max(0.0, step.step_s - ops_s - sum(step.unshaped_s.values()))
    if step.is_on_device:
        return gap_s
    usual_gap_s = _sum_gaps(events, totals.counted_events) / step.step_count * US
    return min(gap_s, usual_gap_s)


def _sum_ops(
    roots: Sequence[EventNode],
    kernel_us_by_launch: Mapping[int, float] | None,
    is_recognised: Callable[[str], bool],
) -> _Totals:
    """Return the times of the ops of trees of events.

    Args:
        roots: the outermost events, whose busy times are set.
        kernel_us_by_launch: time of kernels by correlation number [us]; None times the host.
        is_recognised: whether the work of an op follows from what it reads, by its name.
    """
    totals = _Totals()
    for root in roots:
        set_busy_time(root, kernel_us_by_launch)
        mark_recognised(root, is_recognised)
        _collect_ops(root, is_recognised, totals)
    return totals


def _omit_first_step(events: Sequence[Slice]) -> tuple[list[Slice], int]:
    """Return the events of the marked steps, and the number of steps that are left out."""
    marks = sorted((event.start, event.end) for event in events if event.is_step_mark)
    if not marks:
        return [*events], 0
    omitted_steps = FIRST_STEPS if len(marks) > MIN_STEPS else 0  # few steps are all needed
    begin_us, _ = marks[omitted_steps]
    _, end_us = marks[-1]
    step_events = [event for event in events if begin_us <= event.start <= end_us]
    return step_events, omitted_steps


def _sum_kernels(events: Sequence[Slice]) -> dict[int, float]:
    """Return the time of the kernels of each launch, by its correlation number [us]."""
    kernel_us: dict[int, float] = defaultdict(float)
    for event in events:
        if event.category in KERNEL_CATEGORIES and event.correlation is not None:
            kernel_us[event.correlation] += event.length
    return kernel_us


def _list_ops(totals: _Totals, step_count: int) -> tuple[TracedOp, ...]:
    """Return the ops of a step."""
    ops = []
    for key, times_us in totals.times_us_by_op.items():
        calls = len(times_us) / step_count
        # Not the sum of the times, some of which other processes lengthened.
        seconds = _usual_us(times_us) * calls * US
        ops.append(TracedOp(key, seconds=seconds, calls=calls))
    return tuple(ops)


def _usual_us(times_us: Sequence[float]) -> float:
    """Return the median, or the shortest time where the median is much longer: disturbed."""
    median_us = median(times_us)
    shortest_us = min(times_us)
    is_disturbed = median_us > DISTURBED_RATIO * shortest_us
    return shortest_us if is_disturbed else median_us


def _sum_gaps(events: Sequence[Slice], pieces: Sequence[Slice]) -> float:
    """Return the time of all steps between one piece of work and the next on its thread [us].

    The time before the first piece of a step and after the last one is a gap, too. Gaps between the
    same two ops should be equal in all steps: their usual length leaves out what other processes on
    the machine added.
    """
    marks = [event for event in events if event.is_step_mark]
    last_by_track: dict[tuple[str, str], _Stretch] = {}  # the work so far, by thread
    for mark in marks:
        begin = _Stretch(mark.start, mark.start, STEP, mark.track)
        last_by_track.setdefault(mark.track, begin)
    gaps_us: dict[tuple[str, str], list[float]] = defaultdict(list)  # by the names around a gap
    for stretch in _list_stretches(pieces, marks):
        previous = last_by_track.get(stretch.track)
        end_us = stretch.end_us
        if previous is not None:  # else the first piece of a thread that has no marks
            gap_us = max(0.0, stretch.start_us - previous.end_us)
            gaps_us[previous.name, stretch.name].append(gap_us)
            end_us = max(end_us, previous.end_us)
        last_by_track[stretch.track] = stretch._replace(end_us=end_us)
    return sum(_usual_us(times_us) * len(times_us) for times_us in gaps_us.values())


class _Stretch(NamedTuple):
    """A stretch of time of a thread: a piece of work, or the begin or end of a step."""

    start_us: float
    end_us: float
    name: str
    track: tuple[str, str]


def _list_stretches(pieces: Sequence[Slice], marks: Sequence[Slice]) -> list[_Stretch]:
    """Return pieces of work and the ends of steps, which close their last gaps, in order."""
    stretches = [_Stretch(piece.start, piece.end, piece.name, piece.track) for piece in pieces]
    stretches += [_Stretch(mark.end, mark.end, STEP, mark.track) for mark in marks]
    return sorted(stretches)


def _count_optimizer_steps(events: Sequence[Slice]) -> int:
    """Return the number of steps of the optimizer in a trace without marks, 1 without any."""
    steps = [event for event in events if _is_optimizer_step(event.name)]
    return len(steps) or 1


def _is_optimizer_step(name: str) -> bool:
    return name.startswith(OPTIMIZER) and ".step" in name


def _collect_ops(node: EventNode, is_recognised: Callable[[str], bool], totals: _Totals) -> None:
    """Add the ops of a tree to the totals: of nested ops the outermost one of known work."""
    event = node.event
    inner_ops = [child for child in node.children if child.event.category not in LAUNCH_CATEGORIES]
    inner_us = sum(child.busy_us for child in inner_ops)
    if _stands_for_its_tree(node, is_recognised, inner_us):
        key = OpKey(event.name, node.pass_, event.inputs, node.is_of_weights)
        totals.times_us_by_op[key].append(node.busy_us)
        totals.counted_events.append(event)
        return
    for child in node.children:
        _collect_ops(child, is_recognised, totals)
    if _is_unshaped(event) and not event.name.startswith(ATEN):
        # Its own work: kernels that it launches itself, or host time outside of inner ops.
        launched_us = sum(_launched_us(child) for child in node.children)
        self_us = launched_us or node.busy_us - inner_us
        totals.unshaped_us[event.name] += max(0.0, self_us)


def _stands_for_its_tree(
    node: EventNode, is_recognised: Callable[[str], bool], inner_us: float
) -> bool:
    """Return whether an op is counted, and the ops inside it are not.

    An op of PyTorch that reads tensors is, if its work is known. One of unknown work is, unless it
    only calls other ops, which then count.
    """
    name = node.event.name.removeprefix(ATEN)
    is_aten = node.event.name.startswith(ATEN)
    has_tensors = any(item.shape for item in node.event.inputs)
    if not is_aten or not has_tensors:
        return False
    is_delegated = node.calls_recognised or inner_us >= DELEGATED_SHARE * node.busy_us
    computes_by_itself = name not in HOST_OPS and not is_delegated
    return is_recognised(name) or computes_by_itself


def _launched_us(node: EventNode) -> float:
    """Return the kernel time of a launch; 0 of other events."""
    return node.busy_us if node.event.category in LAUNCH_CATEGORIES else 0.0


def _is_unshaped(event: Slice) -> bool:
    """Whether an event computes by itself: a compiled region, or an op of an extension."""
    if event.category != "cpu_op" or event.name.startswith((NODE, "torch::autograd")):
        return False
    is_compiled = "CompiledFxGraph" in event.name or "Compiled Region" in event.name
    return is_compiled or "::" in event.name


def _collect_lone_kernels(events: Sequence[Slice], totals: _Totals) -> None:
    """Add kernels whose launch the trace lacks to what has no shapes."""
    # Kernels whose launch the trace lacks belong to no op of the host: each is listed by its name.
    launches = {
        event.correlation
        for event in events
        if event.category in LAUNCH_CATEGORIES and event.correlation is not None
    }
    for event in events:
        if event.category in KERNEL_CATEGORIES and event.correlation not in launches:
            totals.unshaped_us[event.name] += event.length
