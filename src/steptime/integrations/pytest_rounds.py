"""How many rounds a benchmark needs: as many as let its noise show a large slowdown.

The number follows from how much the runs of a side differ, and never from the other side, so that
further rounds raise no false alarms (two-stage sampling, Stein 1945).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, stdev
from typing import TYPE_CHECKING, NamedTuple

from steptime.integrations.pytest_reference import ReferencedRounds, make_rounds

if TYPE_CHECKING:
    from steptime.questions.run.measured_step import RunAnswer

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
    # A pair is this benchmark beside its baseline: the smallest change that it would show.
    smallest = smallest_of_equal(noise, len(medians_s), pairs=1, margin=math.log1p(margin))
    return math.expm1(smallest) > SOUGHT_SLOWDOWN
