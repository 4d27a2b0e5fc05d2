"""How often the gates alarm without a change, and how often they find one, on made-up noise.

    python benchmarks/gate_error_rates.py [--draws 2000] [--write docs/gate-error-rates.md]

Each draw makes the samples of two folders, or of a series of folders, and asks the functions that
`compare` and `analyse history` ask: `statistics.run_logs`, `verdict.judge_folders`,
`change_points.change_points`. An alarm is any network that is called slower or faster in the whole
comparison. The seed of a cell is made from `SEED` and the numbers of the cell, so that each cell
is the same whichever others are drawn.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.change_points import change_points
from steptime.analysis.comparison.verdict import judge_folders
from steptime.core.units import format_count
from steptime.records.statistics import run_logs

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Floats]
SEED = 20151115
SAMPLES = 10  # of a run
STEP_NOISE = 0.005  # from step to step, where the noise says nothing of it
MARGIN = 0.03  # of both commands, as in docs/tasks/ci-gate.md
CHUNK = 500  # comparisons at once
POOL = 12_000  # cells of a noise and a number of runs, from which draws take theirs
RUNS = (1, 2, 3, 5, 10)
NETWORKS = (1, 3, 8, 24)
FOLDERS = (5, 8, 10, 20, 30, 100)


def _steps(rng: np.random.Generator, of_runs: Floats) -> Floats:
    return of_runs[..., None] + rng.normal(0, STEP_NOISE, (*of_runs.shape, SAMPLES))


def normal(sigma: float) -> Noise:
    """Return normal noise from run to run."""
    return lambda rng, shape: _steps(rng, rng.normal(0, sigma, shape))


def autocorrelated(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Steps of 3 % noise, each like its neighbour by 0.95, in independent runs."""
    steps = rng.normal(0, 0.03, (*shape, SAMPLES))
    for step in range(1, SAMPLES):
        fresh = math.sqrt(1 - 0.95**2) * steps[..., step]
        steps[..., step] = 0.95 * steps[..., step - 1] + fresh
    return steps


def two_speeds(
    gap: float, share: float
) -> Callable[[np.random.Generator, tuple[int, ...]], Floats]:
    """Return runs of which a share is slower by a gap."""
    return lambda rng, shape: _steps(rng, np.where(rng.random(shape) < share, gap, 0.0))


def student(freedom: int) -> Noise:
    """Return noise of 2 % from run to run with the tails of Student's distribution."""
    return lambda rng, shape: _steps(rng, 0.02 * rng.standard_t(freedom, shape))


def spikes(share: float) -> Noise:
    """Return runs with 1 % noise; a share of them, and 2 % of the steps, is 20 to 60 % slower."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        of_runs = rng.normal(0, 0.01, shape)
        of_runs += (rng.random(shape) < share) * rng.uniform(0.2, 0.6, shape)
        steps = _steps(rng, of_runs)
        return steps + (rng.random(steps.shape) < 0.02) * rng.uniform(0.2, 0.6, steps.shape)

    return draw


NOISES: dict[str, Noise] = {
    "normal, 1 %": normal(0.01),
    "normal, 3 %": normal(0.03),
    "normal, 5 %": normal(0.05),
    "autocorrelated steps (0.95), 3 %": autocorrelated,
    "two speeds, 5 % apart, half of the runs": two_speeds(0.05, 0.5),
    "two speeds, 10 % apart, a fifth of the runs": two_speeds(0.1, 0.2),
    "Student, 2 degrees": student(2),
    "Student, 3 degrees": student(3),
    "spikes: 5 % of the runs, 20 to 60 % slower": spikes(0.05),
}


@functools.lru_cache(1)
def draw_pool(noise: str, runs: int) -> Floats:
    """Return cells of runs [cells, runs], as logarithms of their medians without warm-up."""
    rng = np.random.default_rng([SEED, zlib.crc32(f"{noise} {runs}".encode())])
    times = np.exp(NOISES[noise](rng, (POOL, runs))).reshape(POOL, -1)
    return run_logs([*times], [np.repeat(np.arange(runs), SAMPLES)] * POOL)


def draw_alarms(
    noise: str, runs: int, networks: int, draws: int, slower: float = 1.0, margin: float = MARGIN
) -> tuple[float, float, float]:
    """Return shares of draws: with any alarm, with the first network slower; and a median.

    The first network of the second folder is slower by a factor. The median is that of the
    `smallest` slowdown that the comparison says it finds in it. Cells are taken from a pool.
    """
    if runs == 1:  # `Pairing` gives no runs of a single one, which has no noise
        return 0.0, 0.0, math.nan
    pool = draw_pool(noise, runs)
    rng = np.random.default_rng([SEED, zlib.crc32(f"{noise} {runs} {networks} {slower}".encode())])
    alarms, found, smallest = 0, 0, []
    for start in range(0, draws, CHUNK):
        count = min(CHUNK, draws - start)
        a, b = pool[rng.integers(0, POOL, (2, count * networks))]
        b[::networks] += math.log(slower)
        judged = judge_folders(
            a,
            b,
            ratio=np.exp(b.mean(axis=1) - a.mean(axis=1)),
            drift=np.zeros(len(a)),
            is_step=np.ones(len(a), bool),
            quantity="step_s",
            margin=margin,
            comparisons=count,
        )
        words = judged["verdict"].reshape(count, networks)
        alarms += int(((words == "slower") | (words == "faster")).any(axis=1).sum())
        found += int((words[:, 0] == "slower").sum())
        smallest.append(judged["smallest_worsening"][::networks])
    return alarms / draws, found / draws, float(np.median(np.concatenate(smallest)))


def series(kind: str, rng: np.random.Generator, folders: int) -> Floats:
    """Return the logarithms of a series of nights without a change."""
    if kind.startswith("correlated"):
        values = rng.normal(0, 0.03, folders)
        for at in range(1, folders):
            values[at] = 0.8 * values[at - 1] + math.sqrt(1 - 0.8**2) * values[at]
        return values
    if kind.startswith("two speeds"):
        gap, share = (0.05, 0.5) if "5 %" in kind else (0.1, 0.2)
        return gap * (rng.random(folders) < share) + rng.normal(0, 0.003, folders)
    if kind.startswith("Student"):
        return 0.02 * rng.standard_t(2 if "2" in kind else 3, folders)
    return rng.normal(0, float(kind.split()[1]) / 100, folders)


SERIES = (
    "normal, 1 %",
    "normal, 5 %",
    "correlated nights (0.8), 3 %",
    "two speeds, 5 % apart, half of the nights",
    "two speeds, 10 % apart, a fifth of the nights",
    "Student, 2 degrees",
    "Student, 3 degrees",
)


def draw_history(
    kind: str, folders: int, draws: int, slower: float = 1.0, newest: int = 0
) -> float:
    """Return the share of series in which a change is found: any, or a slowdown of the newest."""
    rng = np.random.default_rng([SEED, zlib.crc32(f"{kind} {folders} {newest} {slower}".encode())])
    found = 0
    for _ in range(draws):
        logs = series(kind, rng, folders)
        if newest:
            logs[-newest:] += math.log(slower)
        changes = change_points([*logs], [0.0] * folders, 0, math.log1p(MARGIN))
        places = [change.level_start for change in changes if change.size > 0 or not newest]
        near = [at for at in places if not newest or abs(at - (folders - newest)) <= 1]
        found += bool(near)
    return found / draws


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


CELLS = [(runs, networks, 1.0) for runs in RUNS for networks in NETWORKS]
POWER_CELLS = [
    (runs, networks, slower)
    for runs, networks in ((2, 1), (2, 24), (3, 24), (5, 24), (10, 24))
    for slower in (1.1, 1.5)
]


def draw_noise(noise: str, draws: int) -> dict[tuple[int, int, float], tuple[float, float, float]]:
    """Return what `draw_alarms` finds in all cells of a noise, by runs, networks and factor."""
    cells = sorted({*CELLS, *POWER_CELLS})
    rates = {cell: draw_alarms(noise, cell[0], cell[1], draws, cell[2]) for cell in cells}
    print(noise, [f"{100 * rates[cell][0]:.1f}" for cell in CELLS], flush=True)
    print(noise, [f"{100 * rates[cell][1]:.1f}" for cell in POWER_CELLS], flush=True)
    return rates


def compare_lines(draws: int, processes: int) -> Iterator[str]:
    """Yield the tables of `compare`: false alarms, then what is found."""
    with ProcessPoolExecutor(processes) as executor:
        tasks = {noise: executor.submit(draw_noise, noise, draws) for noise in NOISES}
        rates = {noise: task.result() for noise, task in tasks.items()}
    yield FALSE_ALARMS
    for runs in RUNS:
        yield f"{format_count(runs, 'run')} on each side:"
        yield ""
        rows = [
            [noise, *(f"{100 * rates[noise][runs, networks, 1.0][0]:.1f}" for networks in NETWORKS)]
            for noise in NOISES
        ]
        yield from table(
            ["noise", *(format_count(networks, "network") for networks in NETWORKS)], rows
        )
    yield POWER
    rows = []
    for noise in NOISES:
        for runs, networks, slower in POWER_CELLS[::2]:
            _, tenth, smallest = rates[noise][runs, networks, slower]
            half = rates[noise][runs, networks, 1.5][1]
            rows.append(
                [
                    noise,
                    f"{runs}",
                    f"{networks}",
                    f"{100 * tenth:.1f}",
                    f"{100 * half:.1f}",
                    f"{100 * smallest:.0f} %",
                ]
            )
    heads = [
        "noise",
        "runs of each side",
        "networks",
        "found if 10 % slower",
        "found if 1.5 times as long",
        "`smallest_slowdown`",
    ]
    yield from table(heads, rows)


def history_lines(draws: int) -> Iterator[str]:
    """Yield the tables of `history`: false alarms, then what is found."""
    rows = []
    for kind in SERIES:
        rates = [draw_history(kind, folders, draws) for folders in FOLDERS]
        rows.append([kind, *(f"{100 * rate:.1f}" for rate in rates)])
        print(rows[-1], flush=True)
    yield from table(["series", *(f"{folders} folders" for folders in FOLDERS)], rows)
    yield HISTORY_POWER
    yield ""
    rows = []
    for folders, newest in ((10, 2), (10, 5), (30, 1), (30, 2), (30, 3), (30, 15)):
        found = [
            draw_history("normal, 1 %", folders, draws, slower, newest)
            for slower in (1.05, 1.1, 1.5)
        ]
        rows.append([f"{folders}", f"{newest}", *(f"{100 * rate:.1f}" for rate in found)])
        print(rows[-1], flush=True)
    yield from table(
        ["folders", "newest folders that are slower", "by 5 %", "by 10 %", "by 1.5 times"], rows
    )


INTRODUCTION = """# Error rates of the gates

In CI, `compare --fail-on slower` and `analyse history --fail-on slower` are gates: they fail if a
step became slower. How often do they fail without a reason, and which slowdowns do they find?

```console
$ steptime compare main branch --fail-on slower --margin 3%
step_s: b = branch against a = main
...
cnn residual, filters 32, batch 4: 53.4 % slower (49.9 % to 57.6 %)
...
```

`main` and `branch` are folders of measured steps. The last line is an alarm: this network takes
53.4 % longer, and the interval is 49.9 to 57.6 %. An alarm is false if nothing changed.

{summary}

Both gates promise at most 5 % of false alarms. Each answer states its `smallest_slowdown`: a
slowdown of this size would have been found in 90 % of cases
([how they judge](statistics.md#did-a-folder-become-slower)).

All rates come from simulated step times, with a margin of 3 %: slowdowns below it are ignored. A
rate is the share of {draws:,} simulated comparisons. A *run* is a fresh process that measures a
network; `compare` has equally many runs in both folders. The tables name these kinds of noise:

| noise | simulated times |
|---|---|
| normal, 3 % | medians of runs follow a normal distribution with a standard deviation of 3 % |
| autocorrelated steps (0.95), 3 % | steps of a run vary by 3 %, neighbours with correlation 0.95 |
| two speeds, 5 % apart, half of the runs | half of the runs are 5 % slower than the others |
| Student, 2 degrees | medians of runs follow Student's t distribution with 2 \
degrees of freedom (long tails), scaled to 2 % |
| spikes: 5 % of the runs, 20 to 60 % slower | normal noise of 1 %; 5 % of the runs, and 2 % \
of all steps, are slower by 20 to 60 % |
| correlated nights (0.8), 3 % | for `history`, which compares the folders of many nights: \
they vary by 3 %, neighbours with correlation 0.8 |

To repeat it (seed {seed}, {pool:,} simulated networks of each noise):
`python benchmarks/gate_error_rates.py --write docs/gate-error-rates.md`.

"""
SUMMARY = """* **False alarms.** `compare` raises one in at most {compare} % of comparisons without
  a change, and `history` in at most {history} % of series without a change.
* **Slowdowns that are found.** One network of 24 is 10 % slower, and times vary by 3 % from
  run to run: 2 runs of each branch find it in {two} % of cases, 5 in {five} %, 10 in {ten} %."""
FALSE_ALARMS = """## False alarms of `compare`

Percentage of comparisons without a change in which any network is called slower or faster. With a
single run on a side, `compare` never judges.
"""
POWER = """## What `compare` finds

Percentage of comparisons in which a slower network is found. One of the networks takes 10 %
longer, or 1.5 times as long. The last column is the median of `smallest_slowdown` in these
answers: a slowdown of this size is found in 90 % of cases.
"""
HISTORY_POWER = """\
Percentage of series with 1 % of normal noise in which a slowdown of the newest folders is found, by
the size of the slowdown:"""
HISTORY = """## False alarms of `history`

Percentage of series of one network without a change in which `history` finds a change. With fewer
than 8 folders it judges only changes of more than 25 %.

"""


def format_summary(tables: str) -> str:
    """Return the answer at the top of the page: the highest false alarms, and three powers."""
    compare = tables.partition(FALSE_ALARMS)[2].partition(POWER)[0]
    history = tables.partition(HISTORY)[2].partition(HISTORY_POWER)[0]
    powers = dict(
        re.findall(r"^\| normal, 3 % \| (\d+) \| 24 \| ([\d.]+) \|", tables, re.MULTILINE)
    )
    return SUMMARY.format(
        compare=highest_rate(compare),
        history=highest_rate(history),
        two=powers["2"],
        five=powers["5"],
        ten=powers["10"],
    )


def format_page(tables: str, draws: int) -> str:
    """Return the page of tables, with its answer first."""
    summary = format_summary(tables)
    head = INTRODUCTION.format(summary=summary, draws=draws, seed=SEED, pool=POOL)
    return f"{head}{tables.rstrip()}\n"


def highest_rate(tables: str) -> float:
    """Return the highest rate in the cells of Markdown tables."""
    return max(float(cell) for cell in re.findall(r"(?<=\| )\d+\.\d(?= \|)", tables))


def main() -> None:
    """Draw the tables, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    parts = [
        "\n".join(compare_lines(options.draws, options.processes)),
        "\n",
        HISTORY,
        "\n".join(history_lines(options.draws)),
    ]
    if options.write:
        options.write.write_text(format_page("".join(parts), options.draws))


if __name__ == "__main__":
    main()
