"""The timeline of a predicted step as Trace Event JSON, which ui.perfetto.dev opens.

The format: complete events (`ph` X) with `ts` and `dur` in microseconds, and metadata (`ph` M) that
names processes and threads (Google, "Trace Event Format").
"""

from collections.abc import Iterable, Iterator
from typing import Any

from steptime.core.graph import PASSES, PLACE
from steptime.prediction.schedule import placed
from steptime.prediction.step_model import StepModel

Event = dict[str, Any]
HOST, DEVICE, LINK = 1, 2, 3  # tracks of a process
TRACKS = {HOST: "host, issuing", DEVICE: "device", LINK: "link"}
US = 1e6


def trace_events(model: StepModel, process: int = 1) -> Iterator[Event]:
    """Yield the events of a predicted step: host, device and link, as one process of a trace.

    Kernels start where the device has waited for the host; what is between them are those waits.
    """
    times, lowered = model.timeline(), model.lowered()
    host = model.host(lowered)
    yield from names(process, f"predicted: {model.workload.label} on {model.device.name}", TRACKS)
    issued = () if host is None else host.issued_s
    for number, (pass_, end) in enumerate(zip(PASSES, issued, strict=False)):
        start = issued[number - 1] if number else 0.0
        if end > start:
            yield event(process, HOST, f"issue {pass_}", "host", start, end - start, {})
    seconds = model.prices().value[lowered.columns.which].tolist()
    slower = times.slower
    for kernel, start, time in placed(lowered.kernels, seconds, slower, model.overlap):
        shown = time if kernel.exchange else min(time, time * slower[PLACE[kernel.pass_]])
        told = {"pass": kernel.pass_, "flop": kernel.flop, "bytes": kernel.bytes}
        track = LINK if kernel.exchange else DEVICE
        name = kernel.op or kernel.pass_
        yield event(process, track, name, kernel.kind, start, shown, told)


def names(process: int, name: str, tracks: dict[int, str]) -> Iterator[Event]:
    """Yield the metadata that names a process and its tracks."""
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for track, text in tracks.items():
        about = {"ph": "M", "name": "thread_name", "pid": process, "tid": track}
        yield {**about, "args": {"name": text}}


def event(
    process: int, track: int, name: str, kind: str, start_s: float, time_s: float, args: Event
) -> Event:
    """Return what a track does from `start_s` on for `time_s`, with `args` beside it."""
    told = {"ph": "X", "pid": process, "tid": track, "name": name, "cat": kind, "args": args}
    return {**told, "ts": start_s * US, "dur": time_s * US}


def document(events: Iterable[Event]) -> Event:
    """Return the events as the document of a trace."""
    return {"displayTimeUnit": "ms", "traceEvents": list(events)}
