"""Traces of PyTorch's profiler, `torch.profiler.profile.export_chrome_trace`: the time of each op.

A trace names no network, batch or type: the file's name stands for the network.
"""

import re
from statistics import fmean

from steptime.core.errors import InputError, one_line
from steptime.core.toml_files import packaged
from steptime.core.workload import Workload
from steptime.records.readers.sources import TRACE, Reading, RecordSource, platform_of
from steptime.records.record import NO_OP, UNATTRIBUTED, Quantity, Record, RecordMethod
from steptime.records.trace import Profile, TracePart, events_of, profile_of, times_of

SOURCE = "a trace of torch.profiler"
SEEN = 1_000_000  # bytes before the list of events, at most
MOST_OPS = 20_000
_NAMES = packaged("torch_names.toml")
KINDS = {name: name for name in _NAMES["same"]} | _NAMES["kinds"]
_DEVICE = re.compile(rb'"deviceProperties"\s*:\s*\[\s*\{[^\]]*?"name"\s*:\s*"([^"]{1,100})"')


def recognises(source: RecordSource) -> bool:
    """Whether this is Trace Event JSON."""
    return TRACE in source.content[:SEEN]


def kind_of(op: str) -> str:
    """Return the kind of an op or kernel of PyTorch; one that is not known is its own kind."""
    known = KINDS.get(op.removeprefix("aten::").rstrip("_"))
    if known is None and "::" not in op:
        known = next((kind for word, kind in _NAMES["kernels"].items() if word in op.lower()), None)
    return known or op


def read(source: RecordSource) -> Reading:
    """Return a record of the step and one for each op, the seconds of each step as samples."""
    profile = profile_of(events_of(source.text))
    named = _by_scope(profile)
    kinds = {part.scope: part.op for part in named.parts}
    device = _DEVICE.search(source.content[:SEEN])
    product = device[1].decode("utf-8", "replace") if device else "cpu"
    passes = {part.pass_ for part in named.parts}
    name = source.name.rpartition("/")[2].removesuffix(".json").removesuffix(".pt.trace")
    workload = Workload(
        re.sub(r"[^\w.-]+", "-", name)[:60] or "trace",
        {"trace": source.sha256[:8]},
        1,
        phase="train" if passes & {"backward", "update"} else "infer",
        optimizer="unknown" if "update" in passes else "none",
    )
    step = {"step_s": Quantity(samples=tuple(named.steps))}

    def record(scope: str, kind: str, quantities: dict[str, Quantity]) -> Record:
        kind_said = {"op_kind": kind} if kind else {}
        return Record(
            origin="published",
            method=RecordMethod("torch-trace", "unknown"),
            workload=workload,
            platform=platform_of(product),
            quantities=quantities,
            scope=scope,
            env={"source_entry": scope, "batch_source": "unknown", **kind_said},
        )

    found = times_of(named, kinds, first=0)
    ops = [record(one.scope, one.kind, dict(one.quantities)) for one in found]
    return Reading((record("", "", step), *ops))


def _by_scope(profile: Profile) -> Profile:
    """Return the times under the names that records get, the kind of each in place of its op."""
    longest: dict[str, tuple[float, str]] = {}
    for part, seconds in profile.parts.items():
        scope = _scope(part)
        longest[scope] = max(longest.get(scope, (0.0, "")), (fmean(seconds), kind_of(part.op)))
    if len(longest) > MOST_OPS:
        raise InputError(f"has {len(longest):,} ops, more than {MOST_OPS:,}")
    made = Profile(profile.steps, device=profile.device)
    for part, seconds in profile.parts.items():
        scope = _scope(part)
        kind = "optimizer" if scope == "optimizer" else longest[scope][1]
        for step, time in enumerate(seconds):
            made.add(TracePart(scope, kind, part.pass_), step, time)
    return made


def _scope(part: TracePart) -> str:
    name = part.op if part.scope in ("", UNATTRIBUTED, NO_OP) else part.scope
    return one_line(name)
