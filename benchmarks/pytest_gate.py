"""How often the documented pytest workflow finds a step that became 1.5 times slower.

    python benchmarks/pytest_gate.py measure 34 benchmarks/pytest_gate.jsonl
    python benchmarks/pytest_gate.py judge benchmarks/pytest_gate.jsonl
    python benchmarks/pytest_gate.py measure 17 FILE --reference
    python benchmarks/pytest_gate.py judge FILE
    python benchmarks/pytest_gate.py sessions 100 FILE --folder FOLDER

`measure` runs rounds of two networks, one of 8 layers and one of 12, each in a fresh process as
`steptime_bench` does, and keeps all samples; with `--reference` the reference beside each round,
too, over which a step must be slower as well (`pytest_rounds`). `judge` draws baselines and
branches from these rounds: by chance, as neighbours in time, and at two times. Each side takes as
many rounds as `needs_rounds` asks for, and `judge_runs` judges as `compare` does. A branch that is
1.5 times slower has the rounds of the 8 layers with all times multiplied, so that the slowdown is
exact.

`sessions` runs whole sessions of pytest as the guide says, each against the records of the session
before it, and appends how each ended. In every fifth the network has 12 layers for 8.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.comparison.gate import judge_runs
from steptime.integrations.pytest_rounds import FIRST_ROUNDS, MAX_ROUNDS, needs_rounds

NETWORKS = {layers: f"fc:layers={layers},nodes=512,inputs=512,outputs=512" for layers in (8, 12)}
ORDER = (8, 8, 12)  # twice as many rounds of the network that is compared with itself
BATCH = 32
MARGIN = 0.05
SLOWDOWN = 1.5
SEED = 20151115
DRAWS = 2000
NETWORK_FILE = """
from torch import nn

INPUTS = {{"input": ((2, 512), "float32")}}


def Net():
    return nn.Sequential(*[nn.Linear(512, 512) for _ in range({layers})])
"""
CHANGED_SESSION = 5  # every fifth session has the network of 12 layers, too
LAST_CHARACTERS = 300  # of what a session prints that measured nothing
Rounds = NDArray[np.float64]  # [rounds, 2]: seconds of the step and of the reference beside it


def measure(count: int, path: Path, has_reference: bool) -> None:
    """Measure rounds of both networks in turn and append them to a file.

    Args:
        count: rounds of each network in `ORDER`.
        path: the file.
        has_reference: whether the reference is measured beside each round.
    """
    from steptime.measure.reference import measure_reference
    from steptime.questions.run.measured_step import RunAnswer
    from steptime.questions.run.question import run

    for _ in range(count):
        for layers in ORDER:
            began_at = time.time()
            answer = run(NETWORKS[layers], BATCH, runs=1, budget="1s", threads=1, device="cpu")
            if not isinstance(answer, RunAnswer) or answer.step_s is None:
                continue
            samples = [round(seconds, 6) for seconds in answer.step_s.samples]
            row = {"layers": layers, "began_at": round(began_at), "samples": samples}
            if has_reference:
                row["reference_s"] = round(measure_reference(), 6)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def read_rounds(path: Path, layers: int) -> Rounds:
    """Return the median of each round and its reference (1 without any), in the order of time."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [
        (median(row["samples"]), row.get("reference_s", 1.0))
        for row in rows
        if row["layers"] == layers
    ]
    return np.array(pairs)


def take_rounds(rounds: Rounds, is_fixed: bool) -> Rounds:
    """Return the rounds that a benchmark takes: five, or as many as its noise asks for."""
    count = FIRST_ROUNDS
    while not is_fixed and count + FIRST_ROUNDS <= len(rounds):
        steps_s, references_s = rounds[:count].T
        series = (steps_s.tolist(), (steps_s / references_s).tolist())
        if not any(needs_rounds(values, MARGIN) for values in series):
            break
        count += FIRST_ROUNDS
    return rounds[:count]


def is_slower(baseline: NDArray[np.float64], branch: NDArray[np.float64]) -> bool:
    """Return whether the gate calls a branch slower than its baseline; both are one series."""
    judged = judge_runs(
        np.log(baseline[np.newaxis]), np.log(branch[np.newaxis]), math.log1p(MARGIN)
    )
    return bool(judged.is_changed[0] and judged.low[0] > 0)


def draw_by_chance(rng: np.random.Generator, rounds: Rounds) -> tuple[Rounds, Rounds]:
    """Return the rounds of both sides, no round on both."""
    order = rng.permutation(rounds)
    half = min(MAX_ROUNDS, len(order) // 2)
    return order[:half], order[half : 2 * half]


def draw_neighbours(rng: np.random.Generator, rounds: Rounds) -> tuple[Rounds, Rounds]:
    """Return the rounds of both sides as they followed each other, from anywhere in time."""
    turned = np.roll(rounds, -int(rng.integers(len(rounds))), axis=0)
    half = min(MAX_ROUNDS, len(turned) // 2)
    return turned[:half], turned[half : 2 * half]


def draw_distant(rng: np.random.Generator, rounds: Rounds) -> tuple[Rounds, Rounds]:
    """Return the rounds of both sides, each as they followed each other, at two times."""
    half = min(MAX_ROUNDS, len(rounds) // 2)
    start = other_start = 0
    while abs(start - other_start) < half:
        start, other_start = rng.integers(0, len(rounds) - half + 1, 2).tolist()
    return rounds[start : start + half], rounds[other_start : other_start + half]


WAYS = {"by chance": draw_by_chance, "neighbours": draw_neighbours, "at two times": draw_distant}


def judge(path: Path) -> None:
    """Print the share of slowdowns that are found, and of comparisons with itself that fail."""
    rounds = read_rounds(path, min(NETWORKS))
    for name, series in zip(("step", "reference"), np.log(rounds).T, strict=True):
        print(f"{name}: {len(series)} rounds, which differ by {np.std(series, ddof=1):.0%}")
    print("| rounds | drawn | 1.5 times slower is found | fails without a change | rounds a side |")
    print("|---|---|---|---|---|")
    print_rates("five", rounds, is_fixed=True)
    print_rates("five to twenty", rounds, is_fixed=False)
    if any(reference_s != 1 for _, reference_s in rounds):
        print_rates("five to twenty, with reference", rounds, is_fixed=False, has_reference=True)


def print_rates(name: str, rounds: Rounds, is_fixed: bool, has_reference: bool = False) -> None:
    """Print the rates of rounds for each way of drawing two sides from them."""
    for way, draw in WAYS.items():
        rng = np.random.default_rng(SEED)
        counts = dict.fromkeys((SLOWDOWN, 1.0), 0)
        round_count = 0
        for _ in range(DRAWS):
            a, b = (take_rounds(side, is_fixed) for side in draw(rng, rounds))
            round_count += len(a) + len(b)
            for factor in counts:
                is_found = is_slower(a[:, 0], factor * b[:, 0])
                if has_reference and is_found:
                    is_found = is_slower(a[:, 0] / a[:, 1], factor * b[:, 0] / b[:, 1])
                counts[factor] += is_found
        cells = [f"{100 * count / DRAWS:.1f} of 100" for count in counts.values()]
        print(f"| {name} | {way} | {' | '.join(cells)} | {round_count / DRAWS / 2:.1f} |")


def run_sessions(count: int, path: Path, folder: Path) -> None:
    """Run sessions of pytest, and append the exit code and the verdict of each to a file.

    Args:
        count: sessions without a change of the network.
        path: the file.
        folder: a new folder, for the test and the records of the last session.
    """
    folder.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    run_session(folder, min(NETWORKS), None, folder / "baseline")
    for number in range(1, count + 1):
        layer_counts = list(NETWORKS) if number % CHANGED_SESSION == 0 else [min(NETWORKS)]
        for layers in sorted(layer_counts, reverse=True):  # the last one is the next baseline
            shutil.rmtree(folder / "branch", ignore_errors=True)
            row = run_session(folder, layers, folder / "baseline", folder / "branch")
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)
        shutil.rmtree(folder / "baseline")
        (folder / "branch").rename(folder / "baseline")


def run_session(
    folder: Path, layers: int, baseline: Path | None, out: Path
) -> dict[str, int | str]:
    """Return how a session of pytest ends: its exit code and what it says of the step."""
    # A file, whose content may change: another number in a text would be another network.
    (folder / "nets.py").write_text(NETWORK_FILE.format(layers=layers))
    test = f"    steptime_bench('nets.py:Net', batch={BATCH}, threads=1)\n"
    (folder / "test_step.py").write_text(f"def test_step(steptime_bench):\n{test}")
    command = [sys.executable, "-m", "pytest", "--steptime-out", str(out)]
    if baseline is not None:
        command += ["--steptime-baseline", str(baseline)]
    began_at = round(time.time())
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    lines = re.findall(r"^nets.* ms.*$", ended.stdout, re.MULTILINE)
    text = lines[-1] if lines else ended.stdout[-LAST_CHARACTERS:]
    return {"began_at": began_at, "layers": layers, "exit_code": ended.returncode, "text": text}


def main() -> None:
    """Measure or judge, as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("count", type=int)
    measuring.add_argument("path", type=Path)
    measuring.add_argument("--reference", action="store_true")
    judging = commands.add_parser("judge")
    judging.add_argument("path", type=Path)
    running = commands.add_parser("sessions")
    running.add_argument("count", type=int)
    running.add_argument("path", type=Path)
    running.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "sessions":
        run_sessions(arguments.count, arguments.path, arguments.folder.resolve())
    elif arguments.command == "measure":
        measure(arguments.count, arguments.path, arguments.reference)
    else:
        judge(arguments.path)


if __name__ == "__main__":
    main()
