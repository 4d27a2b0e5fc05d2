"""How long predictions take: one from a name, one of a network that is known, grids of them.

Prints one JSON document. A grid is networks x devices x batches x workers; its cells are made and
counted, not printed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from steptime.build import make_workload, read_model
from steptime.core.workload import Workload
from steptime.grids.batch_steps import BatchSteps
from steptime.grids.grid import grid as grid_of
from steptime.hardware import catalog
from steptime.prediction.steps.step_model import StepModel

NETWORKS = ("resnet50", "vgg16", "nin", "densenet121", "inception_v3")
DEVICES = ("K40", "K80", "A100", "T4")
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
REPEATS = 15


def seconds(run: Callable[[int], object]) -> list[float]:
    """Time `run` on numbers that it has not seen, after one run to load what it needs."""
    run(0)
    found = []
    for i in range(1, REPEATS + 1):
        begin = time.perf_counter()
        run(i)
        found.append(time.perf_counter() - begin)
    return found


def workload(name: str, batch: int | None) -> Workload:
    """Return a network at a batch, or at its own."""
    return make_workload(read_model(name), batch, "float32", "train", "sgd")


def grid(cells: int, name: str, workers: Sequence[int]) -> dict[str, object]:
    """Time a grid of about `cells` cells: five networks, four devices, the rest batches."""
    batches = max(1, round(cells / (len(NETWORKS) * len(DEVICES) * len(workers))))
    begin = time.perf_counter()
    made = sum(
        1
        for _ in grid_of(
            [partial(workload, network) for network in NETWORKS],
            [catalog.device(device) for device in DEVICES],
            range(1, batches + 1),
            workers,
            catalog.link("ethernet20"),
            name,
            {},
        )
    )
    spent = time.perf_counter() - begin
    return {
        "method": name,
        "batches": batches,
        "workers": len(workers),
        "cells": made,
        "s": spent,
        "us_a_cell": 1e6 * spent / made,
    }


def main() -> None:
    """Measure and print."""
    device = catalog.device("A100")
    model = StepModel("resnet50", device)
    model.lower_step(32)
    graph = model.graph(32)
    many = BatchSteps(model, range(1, 65))

    def from_name(i: int) -> object:
        return StepModel(workload("resnet50", 100 + i), device).predict()  # a batch no cache knows

    def known_graph(_: int) -> object:
        return StepModel(workload("resnet50", 32), device, graph=graph).timeline()

    def all_rows(_: int) -> object:
        return model.with_device(device).timeline(32)

    def on_a_new_device(_: int) -> object:
        return model.with_device(replace(device)).timeline(
            32
        )  # which keeps nothing of what was worked out

    def steps_alone(_: int) -> object:
        return many.spans([model])

    runs = {
        "resnet50_from_its_name": from_name,
        "resnet50_known_graph": known_graph,
        "resnet50_known_every_row": all_rows,
        "resnet50_known_on_a_new_device": on_a_new_device,
        "resnet50_64_known_steps": steps_alone,
    }
    samples = {name: seconds(run) for name, run in runs.items()}
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    sizes = [size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= most]
    print(
        json.dumps(
            {
                "median_ms": {name: 1e3 * statistics.median(s) for name, s in samples.items()},
                "samples_s": samples,
                "grids": [
                    grid(size, name, workers)
                    for size in sizes
                    for name in ("calibrated", "analytic", "paleo")
                    for workers in (WORKERS, (1,))
                ],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
