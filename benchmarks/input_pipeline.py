"""How fast batches come from a data set, and what share of a step waits for them.

Two parts, with all samples kept. First, images a second of batches alone, with 0, 1 and 2 loaders:
blocks in turns, so that a machine that drifts hits all alike, as ratios to no loader in the same
turn. Then deep_mnist trained from the same folder, again in turns: the step with input resident on
the device, copied from the host, and of the data set by 0 and 1 loaders, with the infeed share of
each. Prints one JSON document.

    python benchmarks/input_pipeline.py --turns 10
    python benchmarks/input_pipeline.py --data mnist --turns 10

Without `--data` the images are random ones of MNIST's size.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

LOADERS = (0, 1, 2)
BATCH = 50
BLOCK = 400  # batches of a block, more than are ready before it
BUDGET_S = 1.0


def random_images(folder: Path) -> None:
    """Write 20,000 and 1,000 random images of MNIST's size as IDX files."""
    import numpy as np

    from steptime.measure.data.idx import idx_bytes

    rng = np.random.default_rng(0)
    for word, count in (("train", 20_000), ("t10k", 1_000)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        (folder / f"{word}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{word}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))


def images_per_s(folder: Path, turns: int) -> dict[int, list[float]]:
    """Return images a second of batches that nobody uses, by the number of loaders, in turns."""
    from steptime.build import build, make_workload, read_model
    from steptime.measure.contract import Options
    from steptime.measure.data.sources import open_input

    work = make_workload(read_model("deep_mnist"), BATCH)
    graph = build(work)
    found: dict[int, list[float]] = {loaders: [] for loaders in LOADERS}
    for _ in range(turns):
        for loaders, rates in found.items():
            options = Options(input="dataset", data=str(folder), loaders=loaders)
            feed = open_input(graph, work, options).feed
            for _ in range(10):  # loaders have started
                feed.next()
            began = perf_counter()
            for _ in range(BLOCK):
                feed.next()
            rates.append(BLOCK * BATCH / (perf_counter() - began))
            feed.close()
            sleep(0.05)
    return found


def steps(folder: Path, turns: int, threads: int) -> dict[str, dict[str, list[float]]]:
    """Return the median step and the infeed share of deep_mnist by where its input is from."""
    from steptime.build import make_workload, read_model
    from steptime.core.workload import workload_to_json
    from steptime.measure.contract import Options
    from steptime.measure.launch import Worker

    plain = Options(threads=threads)
    files = replace(plain, input="dataset", data=str(folder))
    kinds = {
        "device": plain,
        "host": replace(plain, input="host"),
        "dataset": files,
        "dataset, 1 loader": replace(files, loaders=1),
    }
    work = make_workload(read_model("deep_mnist"), BATCH, optimizer="adam")
    request = {
        "do": "measure",
        "workload": workload_to_json(work),
        "platform": "here",
        "timing": {"budget_s": BUDGET_S},
        "parts": False,
        "energy": False,
        "runs": 1,
        "env": {"cell": "", "round": 0},
    }
    found: dict[str, dict[str, list[float]]] = {k: {"step_s": [], "infeed": []} for k in kinds}
    with Worker("torch", plain) as worker:
        for _ in range(turns):
            for kind, options in kinds.items():
                answer = worker.ask(request | {"options": asdict(options)}, 600)
                if answer["status"] != "ok":
                    sys.exit(f"{kind}: {answer['note']}")
                taken = answer["quantities"]
                found[kind]["step_s"].append(median(taken["step_s"]["samples"]))
                if "input_s" in taken:
                    share = sum(taken["input_s"]["samples"]) / sum(taken["step_s"]["samples"])
                    found[kind]["infeed"].append(share)
    return found


def _ratios(values: list[float], to: list[float]) -> list[float]:
    return [a / b for a, b in zip(values, to, strict=True)]


def main() -> None:
    """Measure both, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=10, help="blocks of each kind")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the steps")
    parser.add_argument("--data", type=Path, help="a folder with a data set of MNIST's size")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = chosen.data or Path(made)
        if chosen.data is None:
            random_images(folder)
        rates = images_per_s(folder, chosen.turns)
        taken = steps(folder, chosen.turns, chosen.threads)
    loading: dict[str, Any] = {
        f"{loaders} loaders": {
            "images_per_s": median(found),
            "ratio_to_none": median(_ratios(found, rates[0])),
            "samples": found,
        }
        for loaders, found in rates.items()
    }
    training = {
        kind: {
            "step_s": median(found["step_s"]),
            "ratio_to_device": median(_ratios(found["step_s"], taken["device"]["step_s"])),
            "infeed": median(found["infeed"]) if found["infeed"] else None,
            "samples": found,
        }
        for kind, found in taken.items()
    }
    document = {"batch": BATCH, "threads": chosen.threads, "loading": loading, "steps": training}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
