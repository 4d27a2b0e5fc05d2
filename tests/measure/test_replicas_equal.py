"""Two processes that share a batch learn what one process learns from all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from places import TESTS
from steptime.measure.ranks import free_port, local_variables

pytestmark = [pytest.mark.slow, pytest.mark.framework]

STEPS, BATCH = 5, 6
NETWORKS = {  # no batch norm: its statistics are each replica's own
    "fc": "fc:layers=3,nodes=32,inputs=20,outputs=10",
    "transformer": "transformer:layers=2,width=32,heads=2,length=8,vocabulary=50",
    "lstm": "rnn:cell=lstm,layers=1,embedding=16,length=6,vocabulary=20",
}
EXACT = {  # strategy, overlap: the ways in which replicas stay one network
    "allreduce": ("allreduce", True),
    "allreduce after": ("allreduce", False),
    "sharded": ("sharded", True),
    "sharded as one": ("sharded", False),
    "parameter-server": ("parameter-server", True),
}
WAYS = {**EXACT, "independent": ("independent", True)}
OPTIMIZERS = ("sgd", "momentum", "adam")
# Softmax does not feel a bias of the keys: its gradient is 0 but for rounding, which Adam blows up
# to whole steps. So no two summations agree there, and the transformer has no Adam here.
CASES = [
    (network, optimizer)
    for network in NETWORKS
    for optimizer in OPTIMIZERS
    if (network, optimizer) != ("transformer", "adam")
]

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return what two processes came to, by rank, for every network, optimizer and way."""
    out = tmp_path_factory.mktemp("replicas")
    cases = [
        {
            "name": f"{network} {optimizer} {way}",
            "steps": STEPS,
            "network": {
                "model": NETWORKS[network],
                "optimizer": optimizer,
                "batch": BATCH,
                "strategy": strategy,
                "overlap": overlap,
            },
        }
        for network, optimizer in CASES
        for way, (strategy, overlap) in WAYS.items()
    ]
    wish = json.dumps({"cases": cases, "out": str(out)})
    script = str(TESTS / "replica.py")
    running = [
        subprocess.Popen([sys.executable, script, wish], env={**os.environ, **variables})
        for variables in local_variables(2, free_port())
    ]
    assert [one.wait(300) for one in running] == [0, 0]
    import torch

    return [torch.load(out / f"{rank}.pt") for rank in range(2)]


def _largest(ours: list[Any], theirs: list[Any]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(scope="module")
def alone(trained):
    """Return the weights of one process with the batches of both, by network and optimizer."""
    import torch

    from replica import assembled, whole
    from steptime.measure import synthetic
    from steptime.measure.backends.torch import parallel

    rate, bucket_bytes = synthetic.LEARNING_RATE, parallel.BUCKET_BYTES  # `assembled` sets them
    learned = {}
    for network, optimizer in CASES:
        one = assembled(NETWORKS[network], optimizer, 2 * BATCH, "", True)
        ranks = [found[f"{network} {optimizer} allreduce"] for found in trained]
        for mine, first, second in zip(one.inputs, *(r["inputs"] for r in ranks), strict=True):
            assert not torch.equal(first, second)
            mine.copy_(torch.cat((first, second)))
        before = ranks[0]["before"]
        with torch.no_grad():
            for weight, value in zip(one.spread.weights, before, strict=True):
                weight.copy_(value)
        for _ in range(STEPS):
            one.step()
        after = learned[f"{network} {optimizer}"] = [whole(weight) for weight in one.spread.weights]
        assert _largest(before, after) > 1e-2
    synthetic.LEARNING_RATE, parallel.BUCKET_BYTES = rate, bucket_bytes
    return learned


@pytest.mark.parametrize(("network", "optimizer"), CASES)
@pytest.mark.parametrize("way", EXACT)
def test_two_replicas_are_one_process_with_twice_the_batch(network, optimizer, way, trained, alone):
    theirs = alone[f"{network} {optimizer}"]
    for found in trained:
        ours = found[f"{network} {optimizer} {way}"]["weights"]
        print(way, network, optimizer, _largest(ours, theirs))
        assert _largest(ours, theirs) < 1e-5


@pytest.mark.parametrize(("network", "optimizer"), CASES)
def test_independent_replicas_part(network, optimizer, trained):
    first, second = (found[f"{network} {optimizer} independent"]["weights"] for found in trained)
    assert _largest(first, second) > 1e-3
