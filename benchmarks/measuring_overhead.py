"""Compare what `steptime run` measures with a PyTorch loop written by hand.

Both time the same network and step, each in a process of its own on the same CPUs, in short blocks
in turns A B A B, so that a machine that drifts hits both. The C library is told to keep memory:
by default it is luck of the heap whether it gives the gradients back to the system in each step,
which makes a step of either side a third slower. Prints one JSON document: the ratios of paired
medians (steptime / by hand), their median, and the ratio of the minima.

    python benchmarks/measuring_overhead.py --pairs 20
    python benchmarks/measuring_overhead.py --pairs 20 --compile
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from time import perf_counter

LAYERS, NODES, INPUTS, OUTPUTS, BATCH = 4, 1024, 2000, 200, 64  # about 20 ms on one core
MODEL = f"fc:layers={LAYERS},nodes={NODES},inputs={INPUTS},outputs={OUTPUTS}"
BLOCK_S = 0.8
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


def by_hand(threads: int, compiled: bool = False) -> None:
    """Answer every line of standard input with a block of times of the loop anybody would write."""
    from itertools import pairwise

    from steptime.measure.cpus import bind_threads

    bind_threads(threads)
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    for _ in sys.stdin:
        layers: list[nn.Module] = []
        for fan_in, width in pairwise([INPUTS, *[NODES] * LAYERS]):
            layers += [nn.Linear(fan_in, width), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(NODES, OUTPUTS))
        step: Callable[[torch.Tensor], torch.Tensor] = network
        if compiled:
            torch.compiler.reset()  # else it gives up after eight networks
            step = torch.compile(network, dynamic=False)
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
        x, labels = torch.randn(BATCH, INPUTS), torch.randint(0, OUTPUTS, (BATCH,))
        nn.functional.cross_entropy(step(x), labels).backward()  # compiles
        optimizer.zero_grad()
        times: list[float] = []
        began = perf_counter()
        while perf_counter() - began < BLOCK_S:
            start = perf_counter()
            nn.functional.cross_entropy(step(x), labels).backward()
            optimizer.step()
            optimizer.zero_grad()  # as steptime does: freed before forward, gradients cost less
            times.append(perf_counter() - start)
        print(json.dumps(times[len(times) // 3 :]), flush=True)  # the first third warms up


def alternate(
    script: str,
    pairs: int,
    threads: int,
    backend: str = "torch",
    phase: str = "train",
    compiled: bool = False,
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the blocks of both sides, taken in turns; `script --by-hand` is the loop by hand."""
    from steptime.build import make_workload, read_model
    from steptime.core.workload import workload_to_json
    from steptime.measure.contract import Options
    from steptime.measure.launch import Worker

    told = Options(threads=threads, compile=compiled)
    request = {
        "do": "measure",
        "workload": workload_to_json(make_workload(read_model(MODEL), BATCH, phase=phase)),
        "platform": "here",
        "timing": {"budget_s": BLOCK_S},
        "parts": False,
        "energy": False,
        "options": asdict(told),
        "runs": 1,
        "env": {"cell": "", "round": 0},
    }
    command = [sys.executable, script, "--by-hand", "--threads", str(threads)]
    command += ["--compile"] if compiled else []
    hand, ours = [], []
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loop,
        Worker(backend, told) as worker,
    ):
        if loop.stdin is None or loop.stdout is None:
            sys.exit("no pipes to the loop by hand")
        for _ in range(pairs):
            loop.stdin.write("go\n")
            loop.stdin.flush()
            hand.append(json.loads(loop.stdout.readline()))
            ours.append(worker.ask(request, 600)["quantities"]["step_s"]["samples"])
        loop.stdin.close()
    return hand, ours


def main(
    script: str,
    by_hand: Callable[..., None],
    doc: str | None,
    backend: str = "torch",
    phase: str = "train",
) -> None:
    """Alternate both, and print what came of it."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=20, help="blocks of each side")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of both sides")
    if backend == "torch":
        parser.add_argument("--compile", action="store_true", help="both sides by torch.compile")
    parser.add_argument("--by-hand", action="store_true", help="be the loop by hand")
    chosen = parser.parse_args()
    compiled = {"compiled": True} if getattr(chosen, "compile", False) else {}
    if chosen.by_hand:
        by_hand(chosen.threads, **compiled)
        return
    os.environ.update(KEEP_MEMORY)  # for the processes that are started below
    hand, ours = alternate(script, chosen.pairs, chosen.threads, backend, phase, **compiled)
    ratios = [median(b) / median(a) for a, b in zip(hand, ours, strict=True)]
    document = {
        "model": MODEL,
        "batch": BATCH,
        "backend": backend,
        **compiled,
        "phase": phase,
        "threads": chosen.threads,
        "median_of_paired_ratios": median(ratios),
        "ratio_of_minima": min(map(min, ours)) / min(map(min, hand)),
        "paired_ratios": ratios,
        "by_hand_median_s": [median(block) for block in hand],
        "steptime_median_s": [median(block) for block in ours],
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main(__file__, by_hand, __doc__)
