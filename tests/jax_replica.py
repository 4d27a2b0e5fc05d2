"""What two devices have after some steps, beside one with both batches: a process of its own.

A CPU is two devices only where JAX is told so before it is first used. Prints one JSON document.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from steptime.build import build, make_workload, read_model
from steptime.measure.backends.jax import backend, program
from steptime.measure.contract import Options

STEPS, BATCH = 3, 4


def prepared(batch: int, replicas: int, strategy: str) -> Any:
    """Return what runs a small network in float64, momentum, a rate so large that it moves."""
    program.LEARNING_RATE = 0.1
    model = read_model("fc:layers=2,nodes=64,inputs=50,outputs=10")
    work = make_workload(model, batch, "float64", optimizer="momentum", replicas=replicas)
    return backend.prepare(build(work), work, Options(strategy=strategy))


def each(array: Any) -> list[Any]:
    """Return what each device has of an array."""
    return [np.asarray(shard.data) for shard in array.addressable_shards]


def furthest(pairs: Any) -> float:
    """Return the largest difference of pairs of arrays."""
    return max(float(abs(a - b).max()) for a, b in pairs)


def compared(strategy: str) -> dict[str, Any]:
    """Return how far devices are from each other, and from one that has both batches."""
    ready = prepared(BATCH, 2, strategy)
    two = ready.trace.args[0]
    inputs = {name: np.asarray(array) for name, array in two.inputs.items()}
    before = {name: each(array)[0].copy() for name, array in two.carry.weights.items()}
    single = prepared(2 * BATCH, 1, "")
    one = single.trace.args[0]
    device = next(iter(one.inputs["input"].devices()))
    place = backend.JaxSpread([device])
    one.inputs.update(place.put_inputs(inputs))
    one.carry = one.carry._replace(weights=place.put(before))
    for _ in range(STEPS):
        ready.step()
        single.step()
    ready.sync()
    single.sync()
    after = {name: each(array) for name, array in two.carry.weights.items()}
    alone = {name: np.asarray(array) for name, array in one.carry.weights.items()}
    first, second = each(two.inputs["input"])
    return {
        "shapes": [list(first.shape), list(second.shape)],
        "drawn_apart": furthest([(first, second)]),
        "apart": furthest(after.values()),
        "off": furthest((after[name][0], alone[name]) for name in alone),
        "moved": furthest((after[name][0], before[name]) for name in alone),
        "exchanges": two.compiled.as_text().count("all-reduce("),
    }


if __name__ == "__main__":
    print(json.dumps({strategy: compared(strategy) for strategy in backend.STRATEGIES}))
