"""Time `import steptime`, `steptime --help`, `count` and `predict` from a cold process.

Prints one JSON document: least and median seconds of each command, wall and CPU, the commands taken
in turns. With `--against` the `src` of another checkout takes turns, too; `ratio` is the median of
the ratios of CPU seconds to it. Compiled modules are written, and lie there from the second turn.

    python benchmarks/cold_start.py --repeats 10 --against ../steptime-0.14/src
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import perf_counter

COMMANDS = {
    "help": ["-m", "steptime", "--help"],
    "import": ["-c", "import steptime"],
    "count": ["-m", "steptime", "count", "resnet50", "--batch", "32", "--json"],
    "predict": ["-m", "steptime", "predict", "resnet50", "--device", "h100", "--json"],
    "predict llama_7b": ["-m", "steptime", "predict", "llama_7b", "--device", "H100", "--json"],
    "the same defaults": [  # 0.15.0 took these for every network
        *("-m", "steptime", "predict", "llama_7b", "--device", "H100", "--json"),
        *("--dtype", "float32", "--optimizer", "sgd"),
    ],
    "python alone": ["-c", ""],
}
HERE = Path(__file__).resolve().parents[1] / "src"


def seconds(arguments: list[str], source: Path) -> tuple[float, float]:
    """Return the wall and CPU seconds of one process."""
    known = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**known, "PYTHONPATH": str(source)}
    before, start = getrusage(RUSAGE_CHILDREN), perf_counter()
    command = [sys.executable, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    wall, after = perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Time every command in turns, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--against", type=Path, help="the folder src of another checkout")
    asked = parser.parse_args()
    sources = [HERE, *([asked.against.resolve()] if asked.against else [])]
    times: dict[str, list[list[tuple[float, float]]]] = {}
    for turn in range(asked.repeats + 1):
        for name, arguments in COMMANDS.items():
            both = [seconds(arguments, source) for source in sources]
            if turn:  # the first one compiles
                times.setdefault(name, []).append(both)
    result = {}
    for name, turns in times.items():
        walls, cpu = zip(*(both[0] for both in turns), strict=True)
        result[name] = {"min_s": min(walls), "median_s": median(walls), "cpu_s": median(cpu)}
        if asked.against:
            ratios = [here[1] / there[1] for here, there in turns if there[1]]
            result[name]["ratio"] = median(ratios)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
