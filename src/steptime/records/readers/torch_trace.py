"""Traces of PyTorch's profiler, `torch.profiler.profile.export_chrome_trace`: the time of each op.

A trace has no network, batch or type: the file's name stands for the network.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from steptime.core.copying import replace
from steptime.core.errors import InputError, escape_controls, shorten
from steptime.core.toml_files import read_packaged_toml
from steptime.core.units import format_count, format_seconds
from steptime.core.workload import Workload
from steptime.records.readers.sources import TRACE, Reading, RecordSource, platform_of
from steptime.records.record import NO_OP, UNATTRIBUTED, Quantity, Record, RecordMethod
from steptime.records.traces.op_times import OpTimes, list_op_times
from steptime.records.traces.trace import Profile, TracePart, build_profile
from steptime.records.traces.trace_events import (
    LAUNCH_CATEGORIES,
    OPTIMIZER,
    Slice,
    find_other_profiler,
    read_events,
)

SOURCE = "a trace of torch.profiler"
STEPS = "steps"  # in the environment: the number of steps that a person said a trace has
XPROF_ENDING = ".xplane.pb"
MAX_HEADING_BYTES = 1_000_000  # before the list of events
MAX_EVENT_BYTES = 4096  # of the first event of a list
MAX_OPS = 20_000
MAX_MODEL_CHARACTERS = 60
_NAMES = read_packaged_toml("torch_names.toml")
KINDS = {name: name for name in _NAMES["same"]} | _NAMES["kinds"]
_EVENT_LIST = re.compile(rb'\s*\[\s*\{[^{}]*"ph"\s*:\s*"')  # a trace may be the list alone
_DEVICE = re.compile(rb'"deviceProperties"\s*:\s*\[\s*\{[^\]]*?"name"\s*:\s*"([^"]{1,100})"')


@dataclass(frozen=True)
class TraceReader:
    """A reader of traces.

    Attributes:
        steps: the number of steps in a trace that does not mark them; None if nobody said it.
    """

    steps: int | None = None
    SOURCE: str = SOURCE

    def recognises(self, source: RecordSource) -> bool:
        """Whether this is Trace Event JSON, or a profile of XProf, which is refused by name."""
        return recognises(source)

    def read(self, source: RecordSource) -> Reading:
        """Return a record of the step and one for each op; raises `InputError` as `read` does."""
        return read(source, self.steps)


def recognises(source: RecordSource) -> bool:
    """Whether this is Trace Event JSON, or a profile of XProf, which is refused by name."""
    has_heading = TRACE in source.content[:MAX_HEADING_BYTES]
    is_list = _EVENT_LIST.match(source.content[:MAX_EVENT_BYTES]) is not None
    return has_heading or is_list or source.name.endswith(XPROF_ENDING)


def kind_of(op: str) -> str:
    """Return the kind of an op or kernel of PyTorch; an unknown one is its own kind."""
    kind = KINDS.get(op.removeprefix("aten::").rstrip("_"))
    if kind is None and "::" not in op:
        words = _NAMES["kernels"].items()
        kind = next((kind for word, kind in words if word in op.lower()), None)
    return kind or op


def read(source: RecordSource, steps: int | None = None) -> Reading:
    """Return a record of the step and one for each op, the seconds of each step as samples.

    Args:
        source: the file.
        steps: the number of steps in a trace that does not mark them; the time of a step is then
            the mean, one value without samples.

    Raises:
        InputError: for a trace of another profiler, a torn one, and one that marks another number
            of steps.
    """
    if source.name.endswith(XPROF_ENDING):
        raise InputError(_describe_other_profiler("JAX or TensorFlow"))
    text = source.text
    events = read_events(text)
    try:
        profile = build_profile(events)
    except InputError:
        other_profiler = find_other_profiler(text)
        if other_profiler:
            raise InputError(_describe_other_profiler(other_profiler)) from None
        raise
    marked_steps = len(profile.step_s)
    if steps is not None and profile.is_marked and steps != marked_steps:
        marks = format_count(marked_steps, "step")
        raise InputError(f"marks {marks} itself: --steps is for a trace without marks")
    # A trace that does not mark its steps is read as one long step: its times are divided by the
    # number of steps that the user gave, else by the number that the trace itself counts.
    divisor = None
    if not profile.is_marked:
        divisor = steps or profile.counted_steps or None
    records = _make_records(source, _group_by_scope(profile), divisor)
    return Reading(tuple(records), notes=tuple(_describe_steps(profile, events, divisor)))


def _describe_other_profiler(name: str) -> str:
    return (
        f"is a profile of {name}: it holds instructions and host calls without the op and the "
        "pass that they are of, so no step can be divided into ops; import its step times as a "
        "table (--map)"
    )


def _describe_steps(profile: Profile, events: Sequence[Slice], divisor: int | None) -> list[str]:
    """Return remarks on how the steps of a trace were found.

    Example: "marks no steps: read as one step of 682 ms; `--steps 3` divides it by the 3 steps of
    the optimizer".
    """
    remarks = []
    if profile.omitted_steps:
        left_out = format_count(profile.omitted_steps, "marked step")
        remarks.append(f"{left_out} in which nothing ran left out")
    has_launches = any(
        event.category in LAUNCH_CATEGORIES and "launch" in event.name.lower() for event in events
    )
    if has_launches and not profile.is_on_device:
        remarks.append("launches kernels but holds none: its times are those of the host")
    is_mean_of_marked_steps = profile.counted_steps > 0 and divisor == profile.counted_steps
    if is_mean_of_marked_steps:
        marked = format_count(profile.counted_steps, "marked step")
        remarks.append(f"says not which step launched a kernel: the mean of its {marked}")
    has_unknown_step_count = not profile.is_marked and divisor is None
    if has_unknown_step_count:
        remarks.append(_describe_unmarked(profile, events))
    return remarks


def _describe_unmarked(profile: Profile, events: Sequence[Slice]) -> str:
    """Return a remark on a trace that marks no steps, with the number of steps that it may hold.

    The number is by the surest sign of the trace: calls of the optimizer, else repeats of the
    annotation with the longest time, else of each op (`turns`).
    """
    unmarked = f"marks no steps: read as one step of {format_seconds(profile.step_s[0])}"
    optimizer_steps = sum(
        event.name.startswith(OPTIMIZER) and ".step" in event.name for event in events
    )
    if optimizer_steps > 1:
        reason = f"its optimizer stepped {optimizer_steps} times"
        return f"{unmarked}; `--steps {optimizer_steps}` divides it ({reason})"
    annotation, count = _find_repeated_annotation(events)
    if count > 1 and optimizer_steps == 0:
        reason = f"its annotation {shorten(annotation)} ran {count} times"
        return f"{unmarked}; `--steps {count}` divides it if it holds {count} ({reason})"
    turns = _count_turns(events)
    has_no_repeats = optimizer_steps == 1 or turns == 1
    if has_no_repeats:
        return f"{unmarked}; `--steps N` divides it if it holds N"
    reason = f"each op ran {turns} times or a multiple of that"
    return f"{unmarked}; `--steps {turns}` divides it if it holds {turns} ({reason})"


def _find_repeated_annotation(events: Sequence[Slice]) -> tuple[str, int]:
    """Return the annotation of most time that repeats, numbers aside, and how often it ran.

    ("", 0) without one. `train_step 1` and `train_step 2` are one annotation that ran twice.
    """
    lengths_by_name: dict[str, list[float]] = {}
    for event in events:
        if event.category == "user_annotation" and not event.name.startswith(OPTIMIZER):
            name = re.sub(r"\d+", "", event.name).strip(" #")  # `Iteration 3` is an `Iteration`
            lengths_by_name.setdefault(name, []).append(event.length)
    repeated = {name: lengths for name, lengths in lengths_by_name.items() if len(lengths) > 1}
    name = max(repeated, key=lambda name: sum(repeated[name]), default="")
    return name, len(repeated.get(name, ()))


def _count_turns(events: Sequence[Slice]) -> int:
    """Return the largest number that divides how often each op ran: the turns of a plain loop."""
    counts = Counter(event.name for event in events if event.category == "cpu_op")
    return math.gcd(*counts.values()) or 1


def _make_records(source: RecordSource, profile: Profile, divisor: int | None) -> list[Record]:
    """Return the record of the step and those of its ops, divided by the number of steps."""
    # `profile` has one part for each scope; the `op` of a part is the kind of its longest op.
    kinds = {part.scope: part.op for part in profile.seconds_by_part}
    step_times = {"step_s": Quantity(samples=tuple(profile.step_s))}
    step = OpTimes(scope="", kind="", quantities=step_times)
    record = Record(  # what the records of the step and of all ops share
        origin="published",
        method=RecordMethod("torch-trace", "unknown"),
        workload=_make_workload(source, profile),
        platform=platform_of(find_device_name(source) or "cpu"),
        quantities={},
    )
    return [
        replace(
            record,
            quantities={name: _divide(times, divisor) for name, times in op.quantities.items()},
            scope=op.scope,
            env=_describe_origin(op, divisor),
        )
        for op in (step, *list_op_times(profile, kinds, first_step=0))  # no step is a warm-up
    ]


def _describe_origin(op: OpTimes, divisor: int | None) -> dict[str, str | int]:
    """Return the facts beside the record of an op: its entry, its kind, the number of steps."""
    env: dict[str, str | int] = {"source_entry": op.scope, "batch_source": "unknown"}
    if op.kind:
        env["op_kind"] = op.kind
    if divisor is not None:
        env[STEPS] = divisor
    return env


def find_device_name(source: RecordSource) -> str:
    """Return the product of the first device of a trace; "" without one."""
    device = _DEVICE.search(source.content[:MAX_HEADING_BYTES])
    return device[1].decode("utf-8", "replace") if device else ""


def _divide(quantity: Quantity, divisor: int | None) -> Quantity:
    """Return the mean of so many steps from the only sample, which is of all of them."""
    if divisor is None:
        return quantity
    return Quantity(value=sum(quantity.samples) / divisor)


def _make_workload(source: RecordSource, profile: Profile) -> Workload:
    """Return the workload of a trace, whose name is that of the file and whose batch is unknown."""
    passes = {part.pass_ for part in profile.seconds_by_part}
    file_name = source.name.rpartition("/")[2].removesuffix(".json").removesuffix(".pt.trace")
    return Workload(
        re.sub(r"[^\w.-]+", "-", file_name)[:MAX_MODEL_CHARACTERS] or "trace",
        {"trace": source.sha256[:8]},
        batch_per_replica=1,  # unknown, as `batch_source` of the record says
        phase="train" if passes & {"backward", "update"} else "infer",
        optimizer="unknown" if "update" in passes else "none",
    )


def _group_by_scope(profile: Profile) -> Profile:
    """Return the times under the scopes of the records, with kinds in place of ops.

    Raises:
        InputError: for more ops than `MAX_OPS`.
    """
    kinds = _find_kinds(profile)
    if len(kinds) > MAX_OPS:
        raise InputError(f"has {len(kinds):,} ops, more than {MAX_OPS:,}")
    grouped = Profile(profile.step_s)
    for part, times in profile.seconds_by_part.items():
        scope = _scope_of(part)
        part_of_scope = TracePart(scope, kinds[scope], part.pass_)
        for step, time_s in enumerate(times):
            grouped.add(part_of_scope, step, time_s)
    return grouped


def _find_kinds(profile: Profile) -> dict[str, str]:
    """Return the kind of each scope (a layer): that of its op with the longest mean time."""
    longest_op: dict[str, tuple[float, str]] = {}  # by scope: mean time and kind
    for part, times in profile.seconds_by_part.items():
        scope = _scope_of(part)
        time_and_kind = (fmean(times), kind_of(part.op))
        longest_op[scope] = max(longest_op.get(scope, time_and_kind), time_and_kind)
    kinds = {scope: kind for scope, (_, kind) in longest_op.items()}
    return kinds | ({"optimizer": "optimizer"} if "optimizer" in kinds else {})


def _scope_of(part: TracePart) -> str:
    # Time without an annotation is told by the name of its op.
    name = part.op if part.scope in ("", UNATTRIBUTED, NO_OP) else part.scope
    return escape_controls(name)
