"""Time `steptime count` and `steptime predict` from a cold process.

Prints one JSON document: least and median seconds of each command, the commands taken in turns.

    python benchmarks/cold_start.py --repeats 10
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import median
from time import perf_counter

COMMANDS = {
    "count": ["count", "resnet50", "--batch", "32", "--json"],
    "predict": ["predict", "resnet50", "--device", "A100", "--batch", "32", "--json"],
    "predict llama_7b": ["predict", "llama_7b", "--device", "H100", "--by-op", "--json"],
    "python alone": [],
}


def seconds(arguments: list[str]) -> float:
    """Return the seconds of one process."""
    module = ["-m", "steptime", *arguments] if arguments else ["-c", ""]
    start = perf_counter()
    subprocess.run([sys.executable, *module], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


def main() -> None:
    """Time every command in turns, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    result = {name: {"min_s": min(t), "median_s": median(t)} for name, t in times.items()}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
