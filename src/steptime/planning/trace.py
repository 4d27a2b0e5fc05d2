"""The run of a pipeline as Trace Event JSON for ui.perfetto.dev, with a track for each device."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from steptime.core.errors import InputError
from steptime.core.files import write_atomically
from steptime.planning.pipelines.pipeline import PipelineEvent
from steptime.planning.step import PlanTime
from steptime.prediction.timeline import Event, make_document, make_event, name_tracks

BUBBLE, EXCHANGE, UPDATE = "bubble", "all-reduce of gradients", "update"
PROCESS = 1  # the number of the only process of the trace
NONE = -1  # the stage and the microbatch of an event that belongs to none
MIN_BUBBLE_S = 1e-9  # shorter gaps are rounding errors


def write_trace(plan_time: PlanTime, label: str, path: Path) -> None:
    """Write the run of a plan's pipeline.

    Raises:
        InputError: if the run was not simulated task by task.
    """
    if plan_time.run is None:
        raise InputError("--trace: this pipeline has too many parts to be simulated one by one")
    write_atomically(path, json.dumps(make_document(trace_events(plan_time, label))))


def device_tracks(plan_time: PlanTime) -> list[list[PipelineEvent]]:
    """Return the events of each device of the pipeline, with its waits as `bubble`.

    All tracks end when the last device ends. An event that belongs to no microbatch has `NONE` for
    it. The list is empty if the run was not simulated.
    """
    run = plan_time.run
    if run is None:
        return []
    tails = plan_time.tails
    end_s = max(
        pipeline_end_s + tail.seconds
        for pipeline_end_s, tail in zip(run.ends_s, tails, strict=True)
    )
    tracks = []
    for device, (pipeline_end_s, tail) in enumerate(zip(run.ends_s, tails, strict=True)):
        exchange_end_s = pipeline_end_s + tail.exchange_s
        update_end_s = exchange_end_s + tail.update_s
        tasks = [task for task in run.events if task.device == device]
        tasks.sort(key=lambda task: task.start_s)
        # After the pipeline's tasks: gradients are exchanged, then weights updated.
        tasks.append(_device_event(device, EXCHANGE, pipeline_end_s, exchange_end_s))
        tasks.append(_device_event(device, UPDATE, exchange_end_s, update_end_s))
        tracks.append(_fill_gaps(device, tasks, end_s))
    return tracks


def _device_event(device: int, name: str, start_s: float, end_s: float) -> PipelineEvent:
    return PipelineEvent(device, NONE, NONE, name, start_s, end_s)


def _fill_gaps(device: int, tasks: list[PipelineEvent], end_s: float) -> list[PipelineEvent]:
    """Return the tasks of a device with a bubble in each gap, and one until the end."""
    track = []
    free_s = 0.0
    for task in tasks:
        if task.start_s > free_s + MIN_BUBBLE_S:
            track.append(_device_event(device, BUBBLE, free_s, task.start_s))
        if task.end_s > task.start_s:  # empty tasks are left out
            track.append(task)
        free_s = task.end_s
    if end_s > free_s + MIN_BUBBLE_S:
        track.append(_device_event(device, BUBBLE, free_s, end_s))
    return track


def trace_events(plan_time: PlanTime, label: str) -> Iterator[Event]:
    """Yield the trace events of all devices."""
    tracks = device_tracks(plan_time)
    track_names = {device + 1: f"device {device} of the pipeline" for device in range(len(tracks))}
    yield from name_tracks(PROCESS, label, track_names)
    for task in chain.from_iterable(tracks):
        name = task.direction
        arguments = {}
        if task.microbatch != NONE:  # bubbles, exchange and update belong to none
            name = f"{task.direction} {task.microbatch}"
            arguments = {"stage": task.stage, "microbatch": task.microbatch}
        track_number = task.device + 1
        duration_s = task.end_s - task.start_s
        yield make_event(
            PROCESS, track_number, name, task.direction, task.start_s, duration_s, arguments
        )
