"""A backend without a framework: it holds the memory of a network, and its clock is made up.

A step takes 1 ms and 1 ns for each element of the weights, by the device's own clock, always. It
runs every kind and adds nothing up. Steps wait while there is a file NULL_GATE. With NULL_WORK, a
step hashes so many bytes and takes the CPU seconds of that, which other processes barely change. It
is a package of its own, found by its entry point.
"""

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.graph import Graph
from steptime.core.workload import Plan, Workload
from steptime.measure import machine
from steptime.measure.contract import DeviceFacts, Feed, Options, Prepared, UnsupportedError
from steptime.measure.infeed import time_input
from steptime.network.ops import OPS

RUNS = dict.fromkeys(OPS)
STRATEGIES: dict[str, Any] = {}


def device_facts(device: str) -> DeviceFacts:
    if device != "cpu":
        raise InputError(f"{shorten(device)} is not available to null; there is: cpu")
    return machine.host_facts()


def prepare(
    graph: Graph, workload: Workload, options: Options, feed: Feed | None = None
) -> Prepared:
    if workload.plan != Plan():
        raise UnsupportedError("null runs on one device, without a parallel plan")
    if workload.dtype == "bfloat16":
        raise UnsupportedError("null has no 'bfloat16'")
    weights = [graph.tensors[name] for name in graph.weights]
    held = [b"1" * (2 * spec.size_bytes) for spec in weights]  # with their gradients
    step_s = 1e-3 + 1e-9 * sum(spec.size for spec in weights)
    work = b"1" * int(os.environ.get("NULL_WORK", "0"))
    names = ("forward", "backward", "update") if workload.phase == "train" else ("forward",)
    take, waited = (None, None)
    if options.input != "device":
        take, waited = time_input(feed.next if feed else lambda: None)

    def step() -> None:
        if take:
            take()

    def timer(call: Callable[[], None], steps: int) -> float:
        while Path(os.environ.get("NULL_GATE", "")).is_file():  # a test holds the cell in flight
            time.sleep(0.02)
        start_s = time.process_time()
        for _ in range(steps):
            call()
            hashlib.sha256(work)
        return time.process_time() - start_s if work else steps * step_s

    return Prepared(
        step=step,
        sync=lambda: None,
        parts=dict.fromkeys(names, lambda: None),
        timer=timer,
        waited=waited,
        facts={"held_bytes": sum(map(len, held))},
    )
