"""A pipeline's run as Trace Event JSON, which ui.perfetto.dev opens: a track for each device."""

import json
from collections.abc import Iterator
from pathlib import Path

from steptime.core.errors import InputError
from steptime.core.files import write_atomically
from steptime.planning.pipeline import Event as Part
from steptime.planning.step import PlanTime
from steptime.prediction.timeline import Event, document, event, names

BUBBLE, EXCHANGE, UPDATE = "bubble", "all-reduce of gradients", "update"


def write_trace(result: PlanTime, label: str, path: Path) -> None:
    """Write the run of a plan's pipeline; raises `InputError` where it was not simulated."""
    if result.flow is None:
        raise InputError("--trace: this pipeline has too many parts to be simulated one by one")
    write_atomically(path, json.dumps(document(events(result, label))))


def lines(result: PlanTime) -> list[list[Part]]:
    """Return what each device of the pipeline does until the last has done, waits as `bubble`.

    Nothing where the pipeline was not simulated. What is of no microbatch has -1 for it.
    """
    if (flow := result.flow) is None:
        return []
    end_s = max(end + sum(tail) for end, tail in zip(flow.ends_s, result.tails_s, strict=True))
    parts = sorted(flow.events, key=lambda one: one.start_s)
    for d, (exchange_s, update_s) in enumerate(result.tails_s):
        at, after = flow.ends_s[d] + exchange_s, flow.ends_s[d] + exchange_s + update_s
        parts.append(Part(d, -1, -1, EXCHANGE, flow.ends_s[d], at))
        parts += [Part(d, -1, -1, UPDATE, at, after), Part(d, -1, -1, BUBBLE, end_s, end_s)]
    held: list[list[Part]] = [[] for _ in flow.ends_s]
    until = [0.0] * len(flow.ends_s)
    for one in parts:
        d = one.device
        if one.start_s > until[d] + 1e-9:
            held[d].append(Part(d, -1, -1, BUBBLE, until[d], one.start_s))
        if one.end_s > one.start_s:
            held[d].append(one)
        until[d] = one.end_s
    return held


def events(result: PlanTime, label: str) -> Iterator[Event]:
    """Yield what each device does, up to its update, and its waits as `bubble`."""
    held = lines(result)
    yield from names(1, label, {d + 1: f"device {d} of the pipeline" for d in range(len(held))})
    for one in (part for line in held for part in line):
        name, about = one.direction, {}
        if one.microbatch >= 0:
            name = f"{name} {one.microbatch}"
            about = {"stage": one.stage, "microbatch": one.microbatch}
        took_s = one.end_s - one.start_s
        yield event(1, one.device + 1, name, one.direction, one.start_s, took_s, about)
