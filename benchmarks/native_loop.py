"""Compare a step of the lowered graph with one of the module that it was made from.

Both run in one process, on one pinned thread, step by step in turns; the figure is the minimum of
each, because other work on the machine only adds. Prints one JSON document.

    python benchmarks/native_loop.py examples/unet.py:UNet --batch 4 --steps 60
"""

from __future__ import annotations

import argparse
import json
from time import perf_counter
from typing import Any

from steptime.build import build, make_workload, read_model
from steptime.measure.contract import Options, Prepared
from steptime.measure.cpus import bind_threads


def seconds(ready: Prepared) -> float:
    """Return the time of a step [s]."""
    began = perf_counter()
    ready.step()
    ready.sync()
    return perf_counter() - began


def compare(model: str, batch: int, phase: str, steps: int) -> dict[str, Any]:
    """Return the least time of a step of both [s], and the share that lowering adds."""
    from steptime.measure.backends.native import backend as native
    from steptime.measure.backends.torch import backend as lowered

    workload = make_workload(read_model(model), batch, "float32", phase, "sgd")
    sides = [one.prepare(build(workload), workload, Options()) for one in (native, lowered)]
    times: list[list[float]] = [[], []]
    for number in range(steps + 3):
        for one, found in zip(sides, times, strict=True):
            taken = seconds(one)
            if number >= 3:  # the first ones warm up
                found.append(taken)
    least = [min(found) for found in times]
    row = {"native_s": least[0], "lowered_s": least[1], "added": least[1] / least[0] - 1}
    return {"model": model, "batch": batch, "phase": phase, "ops": len(build(workload).ops)} | row


def main() -> None:
    """Compare what was asked for, in both phases."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("models", nargs="+")
    options.add_argument("--batch", type=int, default=4)
    options.add_argument("--steps", type=int, default=60)
    asked = options.parse_args()
    bind_threads(1)
    rows = [
        compare(model, asked.batch, phase, asked.steps)
        for model in asked.models
        for phase in ("infer", "train")
    ]
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
