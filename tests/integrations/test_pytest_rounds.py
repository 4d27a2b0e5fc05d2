"""How many rounds a benchmark takes: by its own noise, and what the gate then finds."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from steptime.analysis.comparison.gate import judge_runs
from steptime.integrations.pytest_rounds import (
    FIRST_ROUNDS,
    MAX_ROUNDS,
    BenchRounds,
    needs_rounds,
    read_rounds,
)

MARGIN = 0.05
LOUD_NOISE = 0.25  # of two cores that seven other programs share
DRAWS = 200


def draw_rounds(rng: np.random.Generator, noise: float, step_s: float = 0.02) -> list[float]:
    """Return the medians of the rounds that a benchmark takes at a noise."""
    medians_s: list[float] = []
    while not medians_s or needs_rounds(medians_s, MARGIN):
        medians_s += (step_s * np.exp(rng.normal(0, noise, FIRST_ROUNDS))).tolist()
    return medians_s


def is_slower(a: list[float], b: list[float]) -> bool:
    sides = np.full((2, 1, MAX_ROUNDS), np.nan)
    for side, medians_s in zip(sides, (a, b), strict=True):
        side[0, : len(medians_s)] = np.log(medians_s)
    judged = judge_runs(*sides, math.log1p(MARGIN))
    return bool(judged.is_changed[0] and judged.low[0] > 0)


def test_a_quiet_machine_takes_five_rounds_and_a_loud_one_more():
    rng = np.random.default_rng(0)
    assert {len(draw_rounds(rng, 0.02)) for _ in range(50)} == {FIRST_ROUNDS}
    loud = [len(draw_rounds(rng, LOUD_NOISE)) for _ in range(50)]
    assert np.median(loud) > 2 * FIRST_ROUNDS
    assert max(loud) <= MAX_ROUNDS


@pytest.mark.parametrize("noise", [0.03, 0.1, LOUD_NOISE])
def test_a_slowdown_of_half_is_found_in_nineteen_of_twenty(noise):
    rng = np.random.default_rng(1)
    sides = [(draw_rounds(rng, noise), draw_rounds(rng, noise, 0.03)) for _ in range(DRAWS)]
    assert sum(is_slower(a, b) for a, b in sides) >= 0.95 * DRAWS


@pytest.mark.parametrize("noise", [0.03, 0.1, LOUD_NOISE])
def test_rounds_that_noise_asks_for_raise_no_false_alarms(noise):
    rng = np.random.default_rng(2)
    sides = [(draw_rounds(rng, noise), draw_rounds(rng, noise)) for _ in range(DRAWS)]
    assert sum(is_slower(a, b) or is_slower(b, a) for a, b in sides) <= 0.05 * DRAWS


def test_rounds_are_read_by_run_and_joined():
    step = SimpleNamespace(samples=(1.0, 2.0, 3.0, 5.0), run_of_sample=(0, 0, 0, 1))
    rounds = read_rounds(SimpleNamespace(step_s=step))
    assert rounds.medians_s == (2.0, 5.0)
    joined = rounds.join(BenchRounds(rounds.answer, (4.0,), (4.0,)))
    assert joined.medians_s == (2.0, 5.0, 4.0)
    assert joined.median_s == 3.0


def test_two_rounds_that_a_person_asks_for_are_no_more():
    assert not needs_rounds((1.0, 2.0), MARGIN)
