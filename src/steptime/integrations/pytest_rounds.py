"""The rounds of a benchmark: how many it needs, and a reference beside them.

It needs as many rounds as let its noise show a large slowdown. The number follows from how much the
runs of a side differ, and never from the other side, so that further rounds raise no false alarms
(two-stage sampling, Stein 1945).

The reference says how fast a core of the machine is meanwhile. Other programs and virtual machines
make a core slower for minutes. Rounds of one session share that, so that their differences do not
show it, and a baseline of an earlier session looks faster or slower than it was. Beside each round
a fresh process multiplies fixed matrices on one core; the step that is slower than its baseline
must be so in multiples of that time, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, NamedTuple

from steptime.core.units import format_percent

if TYPE_CHECKING:
    from steptime.questions.run.measured_step import RunAnswer

REFERENCE_FILE = "reference.json"  # beside the records of a benchmark
MIN_ROUNDS = 2  # on each side, as in `compare`


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

    # `judge_runs` compares many benchmarks at once: one here, with its rounds as runs
    judged = judge_runs(
        np.log([baseline.ratios]), np.log([branch.ratios]), margin=math.log1p(margin)
    )
    low = float(judged.low[0])
    high = float(judged.high[0])
    log_baseline_reference = mean(map(math.log, baseline.reference_s))
    log_branch_reference = mean(map(math.log, branch.reference_s))
    return RelativeChange(
        is_slower=bool(judged.is_changed[0]) and low > 0,
        ratio=math.exp(judged.change[0]),
        low=math.exp(low),
        high=math.exp(high),
        reference_ratio=math.exp(log_branch_reference - log_baseline_reference),
    )


FIRST_ROUNDS = 5
MAX_ROUNDS = 20  # of a benchmark that says no number; a round takes some seconds
SOUGHT_SLOWDOWN = 0.3  # found with 90 % power; one of 1.5 times then with more than 95 %


class BenchRounds(NamedTuple):
    """The rounds of a benchmark.

    Attributes:
        answer: the first ones, as `run` answers.
        medians_s: median of the steps of each round.
        samples_s: the steps of all rounds.
        reference_s: the reference beside each round; () of a step that is not of a CPU.
    """

    answer: RunAnswer
    medians_s: tuple[float, ...]
    samples_s: tuple[float, ...]
    reference_s: tuple[float, ...] = ()

    @property
    def median_s(self) -> float | None:
        """The median of all steps; None where nothing was measured."""
        return median(self.samples_s) if self.samples_s else None

    @property
    def referenced(self) -> ReferencedRounds | None:
        """The rounds beside their reference; None unless each round has one."""
        return make_rounds(self.medians_s, self.reference_s)

    def join(self, further: BenchRounds) -> BenchRounds:
        """Return these rounds and further ones of the same step."""
        return BenchRounds(
            self.answer,
            medians_s=(*self.medians_s, *further.medians_s),
            samples_s=(*self.samples_s, *further.samples_s),
            reference_s=(*self.reference_s, *further.reference_s),
        )


def needs_further_rounds(rounds: BenchRounds, margin: float) -> bool:
    """Return whether a benchmark needs further rounds, by its steps or by these over the reference.

    Args:
        rounds: the rounds until now.
        margin: share below which a change counts as none.
    """
    if needs_rounds(rounds.medians_s, margin):
        return True
    return rounds.referenced is not None and needs_rounds(rounds.referenced.ratios, margin)


def read_rounds(answer: RunAnswer, reference_s: tuple[float, ...] = ()) -> BenchRounds:
    """Return the rounds of an answer of `run`, and the reference beside each."""
    from steptime.records.row import by_run

    step = answer.step_s
    if step is None:
        return BenchRounds(answer, (), ())
    runs = by_run(step.samples, step.run_of_sample)
    return BenchRounds(answer, tuple(map(median, runs)), tuple(step.samples), reference_s)


def needs_rounds(medians_s: Sequence[float], margin: float) -> bool:
    """Return whether so many rounds on either side would miss `SOUGHT_SLOWDOWN` of one network.

    Args:
        medians_s: median of the steps of each round.
        margin: share below which a change counts as none.
    """
    from steptime.analysis.comparison.gate import smallest_of_equal

    # With fewer rounds than the first ones nothing was measured, or the test says their number.
    if not FIRST_ROUNDS <= len(medians_s) < MAX_ROUNDS:
        return False
    # Logarithms of times: a slowdown of 30 % is the same difference of fast and slow steps.
    noise = stdev(map(math.log, medians_s))
    # the smallest change that these rounds would show beside a baseline with as much noise
    detectable = smallest_of_equal(noise, len(medians_s), pairs=1, margin=math.log1p(margin))
    return math.expm1(detectable) > SOUGHT_SLOWDOWN
