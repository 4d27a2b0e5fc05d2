"""The process of one loader: makes batches in shared memory, as many as it is allowed to."""

from __future__ import annotations

import json
import mmap
import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

from steptime.measure.data.dataset import format_of
from steptime.measure.data.loader import decode, slot_bytes, slots_in
from steptime.measure.data.order import Order


def serve(task: dict[str, Any], allowed: int, ready: int) -> None:
    """Make a batch for every byte of `allowed`, and say each in `ready`, until either ends."""
    if task["cpus"]:
        os.sched_setaffinity(0, task["cpus"])
    files = {name: Path(path) for name, path in task["files"].items()}
    split = format_of(task["format"]).read(files, task["part"])
    order, shape = Order(**task["order"]), tuple(task["shape"])
    memory = mmap.mmap(task["memory"], task["slots"] * slot_bytes(order.batch, shape))
    slots = slots_in(memory, task["slots"], order.batch, shape)
    for nth in count():
        if not os.read(allowed, 1):
            return
        step = task["first"] + nth * task["loaders"]
        decode(split, order.indices(step), slots[nth % len(slots)])
        os.write(ready, b".")


if __name__ == "__main__":
    try:
        serve(json.loads(sys.argv[1]), 0, 1)
    except BrokenPipeError:
        os._exit(0)  # nobody waits for the batch
