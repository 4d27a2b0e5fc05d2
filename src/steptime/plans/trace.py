"""A pipeline's run as Trace Event JSON, which ui.perfetto.dev opens: a track for each device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from steptime.core.errors import InputError
from steptime.core.toml_files import write_whole
from steptime.plans.pipeline import Flow
from steptime.plans.step import PlanTime
from steptime.predict.timeline import US, Event, document, names


def write_trace(found: PlanTime, label: str, path: Path) -> None:
    """Write the run of a plan's pipeline; raises `InputError` where it was not simulated."""
    if found.flow is None:
        raise InputError("--trace: this pipeline has too many parts to be simulated one by one")
    write_whole(path, json.dumps(document(events(found.flow, label))))


def events(flow: Flow, label: str) -> Iterator[Event]:
    """Yield what each device does, and its waits as `bubble`."""
    tracks = {d + 1: f"device {d} of the pipeline" for d in range(flow.devices)}
    yield from names(1, label, tracks)
    until = [0.0] * flow.devices
    for one in sorted(flow.events, key=lambda event: event.start_s):
        if one.start_s > until[one.device] + 1e-9:
            yield _event("bubble", "wait", one.device, until[one.device], one.start_s, {})
        until[one.device] = one.end_s
        about = {"stage": one.stage, "micro_batch": one.micro_batch}
        name = f"{one.direction} {one.micro_batch}"
        yield _event(name, one.direction, one.device, one.start_s, one.end_s, about)
    for device, end in enumerate(until):
        if flow.end_s > end + 1e-9:
            yield _event("bubble", "wait", device, end, flow.end_s, {})


def _event(name: str, kind: str, device: int, start: float, end: float, about: Event) -> Event:
    track = {"ph": "X", "pid": 1, "tid": device + 1, "name": name, "cat": kind, "args": about}
    return {**track, "ts": start * US, "dur": (end - start) * US}
