"""Does measuring add anything? `steptime run` beside a PyTorch loop written by hand.

Both time the same network and step, each in fresh processes on the same CPUs, in turns A B A B.
Prints one JSON document: the paired ratios of medians (steptime / by hand) and their median, the
ratio of their geometric means with its 95 % interval, and all medians.

    python benchmarks/measuring_overhead.py --pairs 8
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from statistics import median
from time import perf_counter

LAYERS, NODES, INPUTS, OUTPUTS, BATCH = 4, 1024, 2000, 200, 64  # about 20 ms on one core
MODEL = f"fc:layers={LAYERS},nodes={NODES},inputs={INPUTS},outputs={OUTPUTS}"
SECONDS = 3.0


def by_hand(threads: int) -> None:
    """Print the times of single steps of the loop that anybody would write."""
    from steptime.measure.machine import bind_threads

    bind_threads(threads)
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    widths = [INPUTS, *[NODES] * LAYERS]
    layers: list[nn.Module] = []
    for fan_in, width in pairwise(widths):
        layers += [nn.Linear(fan_in, width), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(NODES, OUTPUTS))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    x, labels = torch.randn(BATCH, INPUTS), torch.randint(0, OUTPUTS, (BATCH,))
    times: list[float] = []
    began = perf_counter()
    while perf_counter() - began < 1.5 * SECONDS:
        start = perf_counter()
        nn.functional.cross_entropy(network(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()  # as steptime does: freed before forward, gradients cost 3 % less
        times.append(perf_counter() - start)
    print(json.dumps(times[len(times) // 3 :]))  # the first third warms up


def by_steptime(threads: int) -> list[float]:
    """Give the samples of one fresh `steptime run`."""
    command = [sys.executable, "-m", "steptime", "run", MODEL, "--batch", str(BATCH), "--json"]
    command += ["--threads", str(threads), "--budget", str(SECONDS)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    samples: list[float] = json.loads(done.stdout)["step_s"]["samples"]
    return samples


def main() -> None:
    """Alternate both, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=8, help="fresh processes of each side")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of both sides")
    parser.add_argument("--by-hand", action="store_true", help="be the loop by hand")
    chosen = parser.parse_args()
    if chosen.by_hand:
        by_hand(chosen.threads)
        return
    from steptime.analysis.verdict import compare_runs

    hand: list[list[float]] = []
    ours: list[list[float]] = []
    for _ in range(chosen.pairs):
        command = [sys.executable, __file__, "--by-hand", "--threads", str(chosen.threads)]
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        hand.append(json.loads(done.stdout))
        ours.append(by_steptime(chosen.threads))
    found = compare_runs(hand, ours)
    ratios = [median(b) / median(a) for a, b in zip(hand, ours, strict=True)]
    document = {
        "model": MODEL,
        "batch": BATCH,
        "threads": chosen.threads,
        "paired_ratios": ratios,
        "median_of_paired_ratios": median(ratios),
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "ratio_of_minima": min(map(min, ours)) / min(map(min, hand)),
        "by_hand_median_s": [median(run) for run in hand],
        "steptime_median_s": [median(run) for run in ours],
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
