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
    REFERENCE_FILE,
    BenchRounds,
    ReferencedRounds,
    judge_relative,
    make_rounds,
    needs_rounds,
    read_reference,
    read_rounds,
    write_reference,
)
from steptime.measure.reference import measure_reference

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


def draw_session(
    rng: np.random.Generator, drift: float, noise: float, step_s: float
) -> ReferencedRounds:
    """Return the rounds of a session whose core is slower or faster than usual, as a step is."""
    core = math.exp(rng.normal(0, drift))
    rounds = ReferencedRounds((), ())
    while not rounds.medians_s or any(
        needs_rounds(series, MARGIN) for series in (rounds.medians_s, rounds.ratios)
    ):
        step_noise, reference_noise = np.exp(rng.normal(0, noise, (2, FIRST_ROUNDS)))
        rounds = ReferencedRounds(
            (*rounds.medians_s, *(core * step_s * step_noise)),
            (*rounds.reference_s, *(core * 0.005 * reference_noise)),
        )
    return rounds


def judge_session(a: ReferencedRounds, b: ReferencedRounds) -> str:
    verdict = "slower" if is_slower([*a.medians_s], [*b.medians_s]) else "unsure"
    return judge_relative(a, b, MARGIN).adjust(verdict)


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_sessions_that_differ_fail_without_the_reference_and_not_with_it(noise):
    rng = np.random.default_rng(3)
    sides = [[draw_session(rng, 0.2, noise, 0.02) for _ in range(2)] for _ in range(DRAWS)]
    failed = sum(is_slower([*a.medians_s], [*b.medians_s]) for a, b in sides)
    assert failed > 0.2 * DRAWS  # half of the sessions are slower than the one before
    assert sum(judge_session(a, b) == "slower" for a, b in sides) <= 0.05 * DRAWS


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_slowdown_of_half_is_found_in_sessions_that_differ(noise):
    rng = np.random.default_rng(4)
    sides = [
        (draw_session(rng, 0.1, noise, 0.02), draw_session(rng, 0.1, noise, 0.03))
        for _ in range(DRAWS)
    ]
    assert sum(judge_session(a, b) == "slower" for a, b in sides) >= 0.95 * DRAWS


def test_the_reference_is_measured_and_read_as_it_was_written(tmp_path):
    seconds = measure_reference()
    assert 1e-5 < seconds < 1
    rounds = make_rounds([0.02, 0.03], [seconds, seconds])
    assert rounds is not None
    write_reference(tmp_path, rounds)
    assert read_reference(tmp_path) == rounds
    for text in ("", "[]", '{"medians_s": [1], "reference_s": ["a"]}', '{"medians_s": [1]}'):
        (tmp_path / REFERENCE_FILE).write_text(text)
        assert read_reference(tmp_path) is None
    assert read_reference(tmp_path / "absent") is None


@pytest.mark.parametrize("reference_s", [[], [1.0], [1.0, math.nan], [1.0, 0.0]])
def test_a_round_without_a_reference_leaves_none(reference_s):
    assert make_rounds([1.0, 1.0], reference_s) is None
