"""How often the documented pytest workflow finds a step that became 1.5 times slower.

    python benchmarks/pytest_gate.py measure 34 benchmarks/pytest_gate.jsonl
    python benchmarks/pytest_gate.py judge benchmarks/pytest_gate.jsonl
    python benchmarks/pytest_gate.py measure 17 benchmarks/pytest_gate_reference.jsonl --reference
    python benchmarks/pytest_gate.py judge benchmarks/pytest_gate_reference.jsonl

`measure` runs rounds of two networks, one of 8 layers and one of 12, each in a fresh process as
`steptime_bench` does, and keeps all samples; with `--reference` the reference beside each round,
too, by which `judge` then divides (`pytest_reference`). `judge` draws baselines and branches from
these rounds: by chance, as neighbours in time, and at two times. Each side takes as many rounds as
`needs_rounds` asks for, and `judge_runs` judges as `compare` does. A branch that is 1.5 times
slower has the rounds of the 8 layers with all times multiplied, so that the slowdown is exact.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
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
Rounds = Sequence[float]


def measure(count: int, path: Path, has_reference: bool) -> None:
    """Measure rounds of both networks in turn and append them to a file.

    Args:
        count: rounds of each network in `ORDER`.
        path: the file.
        has_reference: whether the reference is measured beside each round.
    """
    from steptime.integrations.pytest_reference import measure_reference
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


def read_medians(path: Path) -> dict[int, list[float]]:
    """Return the median of each round by the layers of its network, in the order of time."""
    medians: dict[int, list[float]] = {layers: [] for layers in NETWORKS}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        medians[row["layers"]].append(median(row["samples"]))
    return medians


def read_references(path: Path) -> list[float]:
    """Return the reference beside each round of the network that is judged; [] without any."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["layers"] == min(NETWORKS)]
    return [row["reference_s"] for row in rows if "reference_s" in row]


def take_rounds(rounds: Iterator[float], is_fixed: bool) -> list[float]:
    """Return the rounds that a benchmark takes: five, or as many as its noise asks for."""
    taken: list[float] = []
    while not taken or (not is_fixed and needs_rounds(taken, MARGIN)):
        taken += [next(rounds) for _ in range(FIRST_ROUNDS)]
    return taken


def _log_row(rounds: Rounds) -> NDArray[np.float64]:
    """Return the logarithms of one side's rounds [1, MAX_ROUNDS], NaN behind the last round."""
    row = np.full((1, MAX_ROUNDS), np.nan)
    row[0, : len(rounds)] = np.log(rounds)
    return row


def is_slower(baseline: Rounds, branch: Rounds) -> bool:
    """Return whether the gate calls a branch slower than its baseline."""
    judged = judge_runs(_log_row(baseline), _log_row(branch), math.log1p(MARGIN))
    return bool(judged.is_changed[0] and judged.low[0] > 0)


def draw_by_chance(rng: np.random.Generator, rounds: Rounds) -> tuple[Iterator[float], ...]:
    """Return the rounds of both sides, no round on both."""
    order = rng.permutation(np.asarray(rounds))
    half = len(order) // 2
    return iter(order[:half].tolist()), iter(order[half:].tolist())


def draw_neighbours(rng: np.random.Generator, rounds: Rounds) -> tuple[Iterator[float], ...]:
    """Return the rounds of both sides as they followed each other, from anywhere in time."""
    turned = np.roll(np.asarray(rounds), -int(rng.integers(len(rounds))))
    half = min(MAX_ROUNDS, len(turned) // 2)
    return iter(turned[:half].tolist()), iter(turned[half : 2 * half].tolist())


def draw_distant(rng: np.random.Generator, rounds: Rounds) -> tuple[Iterator[float], ...]:
    """Return the rounds of both sides, each as they followed each other, at two times."""
    values = np.asarray(rounds)
    half = min(MAX_ROUNDS, len(values) // 2)
    starts = (0, 0)
    while abs(starts[0] - starts[1]) < half:
        starts = tuple(rng.integers(0, len(values) - half + 1, 2).tolist())
    sides = (values[start : start + half] for start in starts)
    return tuple(iter(side.tolist()) for side in sides)


WAYS = {"by chance": draw_by_chance, "neighbours": draw_neighbours, "at two times": draw_distant}


def judge(path: Path) -> None:
    """Print the share of slowdowns that are found, and of comparisons with itself that fail."""
    medians = read_medians(path)
    for layers, rounds in medians.items():
        noise = float(np.std(np.log(rounds), ddof=1))
        print(f"{layers} layers: {len(rounds)} rounds, which differ by {noise:.0%}")
    print("| rounds | drawn | 1.5 times slower is found | fails without a change | rounds a side |")
    print("|---|---|---|---|---|")
    rounds = medians[min(NETWORKS)]
    print_rates("five", rounds, is_fixed=True)
    print_rates("five to twenty", rounds, is_fixed=False)
    references = read_references(path)
    if references:
        ratios = [
            step_s / reference_s for step_s, reference_s in zip(rounds, references, strict=True)
        ]
        print_rates("five to twenty over reference", ratios, is_fixed=False)


def print_rates(name: str, rounds: Rounds, is_fixed: bool) -> None:
    """Print the rates of rounds for each way of drawing two sides from them."""
    for way, draw in WAYS.items():
        rng = np.random.default_rng(SEED)
        found_count, failed_count, round_count = 0, 0, 0
        for _ in range(DRAWS):
            baseline, branch = (take_rounds(side, is_fixed) for side in draw(rng, rounds))
            found_count += is_slower(baseline, [SLOWDOWN * value for value in branch])
            failed_count += is_slower(baseline, branch)
            round_count += len(baseline) + len(branch)
        shares = (found_count / DRAWS, failed_count / DRAWS)
        cells = [f"{100 * share:.1f} of 100" for share in shares]
        print(f"| {name} | {way} | {' | '.join(cells)} | {round_count / DRAWS / 2:.1f} |")


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
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.count, arguments.path, arguments.reference)
    else:
        judge(arguments.path)


if __name__ == "__main__":
    main()
