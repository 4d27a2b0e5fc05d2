"""Measurements of the same cells on many nodes, with noise as machines have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import synthetic
from steptime.core.copying import replace
from steptime.core.workload import Workload
from steptime.records.record import Quantity, Record

RUN_TO_RUN, SPIKES, FOLLOWS = 0.01, 0.02, 0.7
SAMPLES = 20


def noise(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Return logarithms of the noise of `shape` runs, samples last.

    1 % from run to run, 0.5 % from step to step, neighbours alike by 0.7, 2 % of the steps spikes.
    """
    steps = rng.normal(0, 0.005, (*shape, SAMPLES))
    for at in range(1, SAMPLES):
        fresh = np.sqrt(1 - FOLLOWS**2) * steps[..., at]
        steps[..., at] = FOLLOWS * steps[..., at - 1] + fresh
    spikes = (rng.random(steps.shape) < SPIKES) * rng.uniform(0.2, 0.6, steps.shape)
    found: NDArray[np.float64] = steps + spikes + rng.normal(0, RUN_TO_RUN, (*shape, 1))
    return found


def step(logs: NDArray[np.float64], step_s: float) -> Quantity:
    """Return a measured step of `runs x samples`."""
    of_run = tuple(int(run) for run in np.repeat(np.arange(len(logs)), logs.shape[1]))
    samples = tuple(map(float, (step_s * np.exp(logs)).ravel()))
    return Quantity(samples=samples, columns={"run": of_run})


def measured(
    rng: np.random.Generator,
    hosts: Sequence[str],
    workloads: Sequence[Workload],
    slower: Mapping[str, float] | None = None,
    runs: int = 3,
    common: float = 0.003,
) -> list[Record]:
    """Return a record a node and workload; `slower` are factors of nodes, `common` their noise."""
    logs = noise(rng, len(hosts), len(workloads), runs)
    found = []
    for host, cells in zip(hosts, logs, strict=True):
        factor = (slower or {}).get(host, 1.0) * np.exp(rng.normal(0, common))
        for number, (workload, cell) in enumerate(zip(workloads, cells, strict=True), start=1):
            one = synthetic.measured(workload)
            one = replace(one, quantities={"step_s": step(cell, 0.01 * number * factor)})
            found.append(replace(one, env={**one.env, "host": host}))
    return found
