"""What a trace of PyTorch's profiler says: the time of each annotated op, by pass and by step.

A trace is Trace Event JSON as `torch.profiler` writes it. Annotations (`record_function`) name ops.
A backward op belongs to the forward op that made its node of the autograd graph: both say one
sequence number. A kernel belongs to the op that launched it: both say one correlation.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from steptime.core.errors import InputError
from steptime.core.graph import PASSES
from steptime.records.record import NO_OP, UNATTRIBUTED, Quantity, in_one_run

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
OF_HOST = ("cpu_op", "user_annotation", *LAUNCHES)
STEP = "ProfilerStep#"  # annotations of torch.profiler itself
OPTIMIZER = "Optimizer."
NODE = "autograd::engine::evaluate_function: "
RUNS = ("::", "CompiledFxGraph")  # in the names of what computes, not of what only calls
US = 1e-6

_LIST = re.compile(r'"traceEvents"\s*:\s*(?=\[)|\A\s*(?=\[)')


class Slice(NamedTuple):
    """A complete event (`ph` X): start and length [us], its track, and the arguments used here."""

    start: float
    length: float
    category: str
    name: str
    track: tuple[str, str]
    sequence: int | None
    correlation: int | None

    @property
    def end(self) -> float:
        """When it ends [us]."""
        return self.start + self.length


class TracePart(NamedTuple):
    """Whose a piece of time is: an annotation or "", the framework's op, and the pass."""

    scope: str
    op: str
    pass_: str


@dataclass
class Profile:
    """The seconds of each part by step, and of the steps; `device` says whose time it is.

    What parts leave of a step ran on no op: the host's work, and gaps. Overlaps count once.
    """

    steps: list[float]
    parts: dict[TracePart, list[float]] = field(default_factory=dict)
    device: bool = False

    def add(self, part: TracePart, step: int, seconds: float) -> None:
        """Add seconds to a part of a step."""
        self.parts.setdefault(part, [0.0] * len(self.steps))[step] += seconds


@dataclass
class _Context:
    """What a moment of the host's thread is in."""

    end: float
    scope: str = ""
    op: str = ""
    pass_: str = "forward"
    sequence: int | None = None


class _Piece(NamedTuple):
    start: float
    end: float
    context: _Context


def event(name: str, category: str, start_us: float, length_us: float) -> dict[str, Any]:
    """Return a complete event of the one track that a trace of ours has."""
    about = {"ph": "X", "pid": 0, "tid": 0, "cat": category, "name": name}
    return {**about, "ts": start_us, "dur": length_us}


def events_of(text: str) -> list[Slice]:
    """Return the complete events of Trace Event JSON; raises `InputError` where they are torn.

    What stands around their list is not read: on Windows PyTorch writes paths there that are no
    JSON.
    """
    found = _LIST.search(text)
    if found is None:
        raise InputError("holds no list of trace events")
    try:  # no more of an event is kept than what is used
        every, _ = _DECODER.raw_decode(text, found.end())
    except (ValueError, RecursionError) as error:
        raise InputError(f"is torn or no JSON: {error}") from None
    return [one for one in every if isinstance(one, Slice)]


def _event(one: dict[str, Any]) -> Slice | None:
    start, length, args = one.get("ts"), one.get("dur"), one.get("args")
    times = (isinstance(n, int | float) and 0 <= n < 1e18 for n in (start, length))
    if one.get("ph") != "X" or start is None or length is None or not all(times):
        return None
    known = args if isinstance(args, dict) else {}
    numbers = (known.get(name) for name in ("Sequence number", "correlation"))
    sequence, correlation = (n if isinstance(n, int) and n >= 0 else None for n in numbers)
    track = str(one.get("pid"))[:40], str(one.get("tid"))[:40]
    name = str(one.get("name"))[:200]
    category = str(one.get("cat"))
    return Slice(float(start), float(length), category, name, track, sequence, correlation)


_DECODER = json.JSONDecoder(object_hook=lambda one: _event(one) if "ph" in one else one)


def profile_of(events: Sequence[Slice]) -> Profile:
    """Return where the time of the steps of a trace goes; without marked steps it is one step.

    Where kernels ran on a device the time is theirs, else that of the thread that ran the steps.
    Raises `InputError` for a trace without an op of PyTorch.
    """
    tracks: dict[tuple[str, str], list[Slice]] = {}
    kernels = []
    for event in events:
        if event.category in ON_DEVICE:
            kernels.append(event)
        elif event.category in OF_HOST:
            tracks.setdefault(event.track, []).append(event)
    launched: dict[int, _Context] = {}
    owners: dict[int, tuple[float, _Context]] = {}
    pieces = {track: list(_swept(held, launched, owners)) for track, held in tracks.items()}
    computed = {track: sum(p.end - p.start for p in held) for track, held in pieces.items()}
    marks = sorted(one for held in tracks.values() for one in held if one.name.startswith(STEP))
    stepping = {event.track for event in marks} or computed.keys()
    if not kernels and not any(computed[track] for track in stepping):
        raise InputError("holds no op of PyTorch's profiler")
    if kernels:
        ran = []
        for kernel in kernels:  # what launched it, or one of its own name where nothing says so
            number = -1 if kernel.correlation is None else kernel.correlation
            found = launched.get(number, _Context(0.0))
            context = found if found.op else replace(found, op=kernel.name)
            ran.append(_Piece(kernel.start, kernel.end, context))
    else:
        ran = pieces[max(stepping, key=computed.__getitem__)]
    ran.sort(key=lambda piece: piece.start)
    starts = [mark.start for mark in marks] or [ran[0].start]
    ends = [*starts[1:], max([ran[-1].end, *(mark.end for mark in marks[-1:])])]
    if not kernels and marks:
        ends = [mark.end for mark in marks]
    lengths = [(end - start) * US for start, end in zip(starts, ends, strict=True)]
    profile = Profile(lengths, device=bool(kernels))
    until = 0.0
    for piece in ran:
        start = max(piece.start, until)
        step = bisect_right(starts, piece.start) - 1
        if piece.end > start and step >= 0 and start < ends[step]:
            profile.add(_part(piece.context, owners), step, (piece.end - start) * US)
            until = piece.end
    return profile


def _part(context: _Context, owners: dict[int, tuple[float, _Context]]) -> TracePart:
    """Return whose a piece is: in the backward pass of the op that made the node."""
    if context.pass_ != "backward" or context.scope:
        return TracePart(context.scope, context.op, context.pass_)
    known = None if context.sequence is None else owners.get(context.sequence)
    scope, op = (known[1].scope, known[1].op) if known else (UNATTRIBUTED, context.op)
    return TracePart(scope, op, "backward")


def _swept(
    events: list[Slice], launched: dict[int, _Context], owners: dict[int, tuple[float, _Context]]
) -> Iterator[_Piece]:
    """Yield what computes on one thread, outermost ops only, and fill what others refer to."""
    stack: list[_Context] = []
    last: int | None = None  # gradients are added up right after the node that made them
    for event in sorted(events, key=lambda one: (one.start, -one.length)):
        while stack and stack[-1].end <= event.start:
            stack.pop()
        outer = stack[-1] if stack else _Context(0.0)
        here = replace(outer, end=event.end)
        if event.category == "user_annotation":
            if event.name.startswith(OPTIMIZER):
                here.scope, here.pass_ = "optimizer", "update"
            elif not event.name.startswith(STEP):
                here.scope = f"{outer.scope}/{event.name}" if outer.scope else event.name
        elif event.name.startswith(NODE):
            here.pass_ = "backward"
            here.sequence = last = last if event.sequence is None else event.sequence
        elif event.category == "cpu_op" and not here.op and any(m in event.name for m in RUNS):
            here.op = event.name
        if here.op and not outer.op:
            yield _Piece(event.start, event.end, here)
        if event.correlation is not None and event.category in LAUNCHES:
            launched[event.correlation] = here
        if here.pass_ == "forward" and here.op and event.sequence is not None:
            known = owners.get(event.sequence)
            if known is None or known[0] <= event.start:  # later ones saw the number, this made it
                owners[event.sequence] = event.start, here
        stack.append(here)


@dataclass(frozen=True)
class OpTimes:
    """The times of one op in each profiled step, or of what belongs to none."""

    scope: str
    kind: str
    quantities: Mapping[str, Quantity]


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
