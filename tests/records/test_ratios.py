"""Formulas of ratios, against the standard library and by hand."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from steptime.records.groups.record_groups import split_by_number
from steptime.records.pair_keys import sort_levels
from steptime.records.ratios import (
    accuracy,
    farness,
    farthest,
    geometric_mean,
    relative_errors,
)


def test_what_predictions_are_judged_by_by_hand():
    ratios = np.array([2.0, 0.5, 1.0, 4.0])  # measured / predicted
    assert relative_errors(ratios).tolist() == [0.5, 1.0, 0.0, 0.75]  # 1 s for 2 s is half off
    assert accuracy(ratios) == {
        "pairs": 4,
        "median_error": 0.625,  # of 0, 0.5, 0.75 and 1
        "geometric_mean_ratio": pytest.approx(2**0.5),  # (2 * 0.5 * 1 * 4) ^ (1 / 4)
        "within_factor_2": 0.75,  # 4 is not
    }
    assert farthest(ratios).tolist() == [3, 0, 1, 2]  # twice and half are as far, in their order
    assert farthest(ratios, 1).tolist() == [3]
    assert farness(0.5) == pytest.approx(farness(2.0))


def test_nothing_is_known_of_nothing():
    nothing = np.array([])
    assert geometric_mean(nothing) is None
    assert accuracy(nothing) == {
        "pairs": 0,
        "median_error": None,
        "geometric_mean_ratio": None,
        "within_factor_2": None,
    }


@pytest.mark.parametrize("seed", range(20))
def test_they_are_what_the_standard_library_says(seed):
    draw = random.Random(seed)  # noqa: S311 - no secret
    ratios = [draw.lognormvariate(0, 1) for _ in range(draw.randint(1, 60))]
    found = accuracy(np.array(ratios))
    assert found["geometric_mean_ratio"] == pytest.approx(statistics.geometric_mean(ratios))
    wrong = [abs(1 / one - 1) for one in ratios]
    assert found["median_error"] == pytest.approx(statistics.median(wrong))
    assert found["within_factor_2"] == sum(0.5 <= one <= 2 for one in ratios) / len(ratios)
    by_factor = sorted(ratios, key=lambda one: -max(one, 1 / one))
    assert [ratios[at] for at in farthest(np.array(ratios))] == by_factor


@pytest.mark.parametrize("seed", range(20))
def test_places_are_those_that_a_search_finds(seed):
    draw = random.Random(seed)  # noqa: S311 - no secret
    numbers = [draw.randrange(5) for _ in range(draw.randint(0, 40))]
    parts = split_by_number(np.array(numbers, dtype=np.int64), 6)
    assert [part.tolist() for part in parts] == [
        [at for at, one in enumerate(numbers) if one == number] for number in range(6)
    ]


def test_levels_are_numbers_by_size_and_words_as_they_come():
    assert sort_levels(["zeta", "10", "2", "alpha", "1e3"]) == ["2", "10", "1e3", "zeta", "alpha"]
    assert sort_levels(["nan", "b", "3", "inf", "a"]) == ["3", "nan", "b", "inf", "a"]
