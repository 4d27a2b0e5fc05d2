"""The timeline of a predicted step as Trace Event JSON, which ui.perfetto.dev opens.

The format: complete events (`ph` X) with `ts` and `dur` in microseconds, and metadata (`ph` M) that
names processes and threads (Google, "Trace Event Format").
"""

from collections.abc import Iterable, Iterator, Mapping

from steptime.core.graph import PASS_INDEX, PASSES
from steptime.prediction.schedule import place_kernels
from steptime.prediction.steps.step_model import StepModel

Event = dict[str, object]
HOST, DEVICE, LINK = 1, 2, 3  # tracks of a process
TRACKS = {HOST: "host, issuing", DEVICE: "device", LINK: "link"}
US = 1e6  # microseconds of a second


def trace_events(model: StepModel, process: int = 1) -> Iterator[Event]:
    """Yield the events of a predicted step: host, device and link, as one process of a trace.

    Kernels start where the device has waited for the host; the gaps between them are those waits.
    """
    times = model.timeline()
    lowered = model.lower_step()
    host = model.host(lowered)
    yield from name_tracks(
        process, f"predicted: {model.workload.label} on {model.device.name}", TRACKS
    )
    if host is not None:
        issue_s = 0.0  # when the host begins to issue a pass
        for pass_, end_s in zip(PASSES, host.issued_s, strict=True):
            issue_name = f"issue {pass_}"
            if end_s > issue_s:
                yield make_event(process, HOST, issue_name, "host", issue_s, end_s - issue_s, {})
            issue_s = end_s
    seconds = model.prices().value[lowered.columns.distinct_of_kernel].tolist()
    slowdowns = times.host_slowdowns
    for kernel, start_s, kernel_s in place_kernels(
        lowered.kernels, seconds, slowdowns, model.overlap
    ):
        slowed_s = kernel_s * slowdowns[PASS_INDEX[kernel.pass_]]
        # Behind a slow host a kernel has more time than it runs: only the time that it runs is
        # drawn. A correction by measured steps can also give it less time than it was priced at.
        visible_s = kernel_s if kernel.exchange else min(kernel_s, slowed_s)
        arguments = {"pass": kernel.pass_, "flop": kernel.flop, "bytes": kernel.bytes}
        track = LINK if kernel.exchange else DEVICE
        name = kernel.op or kernel.pass_
        yield make_event(process, track, name, kernel.kind, start_s, visible_s, arguments)


def name_tracks(process: int, name: str, tracks: Mapping[int, str]) -> Iterator[Event]:
    """Yield the metadata that names a process and its tracks."""
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    for track, text in tracks.items():
        metadata: Event = {"ph": "M", "name": "thread_name", "pid": process, "tid": track}
        yield {**metadata, "args": {"name": text}}


def make_event(
    process: int,
    track: int,
    name: str,
    kind: str,
    start_s: float,
    time_s: float,
    arguments: Mapping[str, object],
) -> Event:
    """Return a complete event: a track is busy with something from `start_s` for `time_s`."""
    # The keys of the Trace Event format; "X" is an event with a duration.
    return {
        "ph": "X",
        "pid": process,
        "tid": track,
        "name": name,
        "cat": kind,
        "args": dict(arguments),
        "ts": start_s * US,
        "dur": time_s * US,
    }


def make_document(events: Iterable[Event]) -> Event:
    """Return the events as the document of a trace."""
    return {"displayTimeUnit": "ms", "traceEvents": list(events)}
