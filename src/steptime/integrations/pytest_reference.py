"""A reference beside the rounds of a benchmark: how fast a core of the machine is meanwhile.

Other programs and virtual machines make a core slower for minutes. Rounds of one session share
that, so that their differences do not show it, and a baseline of an earlier session looks faster
or slower than it was. Beside each round a fresh process multiplies fixed matrices on one core; the
step that is slower than its baseline must be so in multiples of that time, too.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from steptime.core.units import format_percent

REFERENCE_FILE = "reference.json"  # beside the records of a benchmark
SIDE = 512  # of the matrices
MEASURED_S = 0.5  # of products in a round: half as long as its steps
LIMIT_S = 60.0
MIN_ROUNDS = 2  # on each side, as in `compare`
SINGLE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class ReferencedRounds(NamedTuple):
    """The rounds of a benchmark beside their reference.

    Attributes:
        medians_s: median of the steps of each round.
        reference_s: seconds of the reference beside each round.
    """

    medians_s: tuple[float, ...]
    reference_s: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        """The rounds in multiples of their reference."""
        pairs = zip(self.medians_s, self.reference_s, strict=True)
        return [step_s / reference_s for step_s, reference_s in pairs]


class RelativeChange(NamedTuple):
    """A step against its baseline, both in multiples of the reference.

    Attributes:
        is_slower: whether it is slower, beyond noise and margin.
        ratio: step over baseline.
        low: lower end of the 95 % interval of `ratio`.
        high: upper end of the same.
        reference_ratio: the reference now over that beside the baseline.
    """

    is_slower: bool
    ratio: float
    low: float
    high: float
    reference_ratio: float

    def adjust(self, verdict: str) -> str:
        """Return the verdict on a step: one that is slower is so over the reference, too.

        A slower reference alone is no proof, since it and the step share only a part of what slows
        them; both together raise no more false alarms than the step alone.
        """
        return "unsure" if verdict == "slower" and not self.is_slower else verdict

    def describe(self) -> str:
        """Return `the machine's reference +25 %, the step over it +2 % (-5 % to +9 %)`."""
        machine = format_percent(self.reference_ratio - 1, "+")
        change = format_percent(self.ratio - 1, "+")
        interval = f"{format_percent(self.low - 1, '+')} to {format_percent(self.high - 1, '+')}"
        return f"the machine's reference {machine}, the step over it {change} ({interval})"


def measure_reference() -> float:
    """Return the seconds of the reference product in a fresh process; NaN where it fails."""
    command = [sys.executable, "-m", __name__]
    environment = {**os.environ, **SINGLE_THREAD}
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        return float(process.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return math.nan


def write_reference(folder: Path, rounds: ReferencedRounds) -> None:
    """Write rounds beside the records of their benchmark."""
    text = json.dumps(rounds._asdict())
    (folder / REFERENCE_FILE).write_text(text, encoding="utf-8")


def read_reference(folder: Path) -> ReferencedRounds | None:
    """Return the rounds of a folder with their reference; None of a folder without it."""
    try:
        table = json.loads((folder / REFERENCE_FILE).read_text(encoding="utf-8"))
        return make_rounds(table["medians_s"], table["reference_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def make_rounds(
    medians_s: Sequence[float], reference_s: Sequence[float]
) -> ReferencedRounds | None:
    """Return rounds beside their reference; None unless each round has one."""
    is_complete = len(medians_s) == len(reference_s) > 0
    if not is_complete or not all(seconds > 0 for seconds in (*medians_s, *reference_s)):
        return None
    return ReferencedRounds(tuple(medians_s), tuple(reference_s))


def judge_relative(
    baseline: ReferencedRounds, branch: ReferencedRounds, margin: float
) -> RelativeChange:
    """Return the change of a step in multiples of the reference, judged as `compare` judges.

    Args:
        baseline: the rounds of the baseline.
        branch: the rounds of now.
        margin: share below which a change counts as none.
    """
    import numpy as np

    from steptime.analysis.comparison.gate import judge_runs

    judged = judge_runs(
        np.log([baseline.ratios]), np.log([branch.ratios]), margin=math.log1p(margin)
    )
    low, high = float(judged.low[0]), float(judged.high[0])
    references = [mean(map(math.log, side.reference_s)) for side in (baseline, branch)]
    return RelativeChange(
        is_slower=bool(judged.is_changed[0]) and low > 0,
        ratio=math.exp(judged.change[0]),
        low=math.exp(low),
        high=math.exp(high),
        reference_ratio=math.exp(references[1] - references[0]),
    )


def _time_products() -> float:
    """Return the median seconds of a product of matrices."""
    import numpy as np

    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    matrix @ matrix  # the first one loads the library
    times_s: list[float] = []
    end_s = time.perf_counter() + MEASURED_S
    while not times_s or time.perf_counter() < end_s:
        start_s = time.perf_counter()
        matrix @ matrix
        times_s.append(time.perf_counter() - start_s)
    return median(times_s)


if __name__ == "__main__":
    print(_time_products())
