"""One replica that trains for some steps and writes its inputs and its weights to a file.

Started by a test with the variables of a rank, and a JSON of what to train as its argument.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from steptime.build import build, make_workload, read_model
from steptime.measure import ranks, synthetic
from steptime.measure.backends.torch import backend
from steptime.measure.backends.torch import module as torch_module
from steptime.measure.backends.torch import parallel as torch_parallel
from steptime.measure.contract import Options

RATES = {"sgd": 0.1, "momentum": 0.1, "adam": 0.01}  # so large that five steps change much


@dataclass
class Assembled:
    """A step of a network, and what it is made of."""

    step: Callable[[], None]
    inputs: list[Tensor]
    spread: torch_parallel.Spread


def assembled(model: str, optimizer: str, batch: int, strategy: str, overlap: bool) -> Assembled:
    """Return a small network, spread over the processes that there are."""
    synthetic.LEARNING_RATE = RATES[optimizer]
    torch_parallel.BUCKET_BYTES = 3000  # several buckets, and several units
    size = ranks.find_rank().size
    workload = make_workload(
        read_model(model), batch, "float32", optimizer=optimizer, replicas=size
    )
    how = {"strategy": strategy, "overlap": overlap} if size > 1 else {}
    with patch.object(torch_module, "parts_of", wraps=torch_module.parts_of) as made:
        step = backend.prepare(build(workload), workload, Options(threads=1, **how)).step
    _, inputs, *_, spread = made.call_args.args
    return Assembled(step, inputs, spread)


def whole(weight: Tensor) -> Tensor:
    """Return all of a weight, wherever its parts lie."""
    full: Any = getattr(weight, "full_tensor", None)
    return (full() if full else weight).detach().clone()


def main() -> None:
    """Train as the argument says; rank 0's file has the weights as they came out."""
    wish = json.loads(sys.argv[1])
    cases = {}
    for case in wish["cases"]:
        found = assembled(**case["network"])
        before = [whole(weight) for weight in found.spread.weights]
        for _ in range(case["steps"]):
            found.step()
        weights = [whole(weight) for weight in found.spread.weights]
        cases[case["name"]] = {"inputs": found.inputs, "before": before, "weights": weights}
    torch.save(cases, f"{wish['out']}/{ranks.find_rank().rank}.pt")


if __name__ == "__main__":
    main()
