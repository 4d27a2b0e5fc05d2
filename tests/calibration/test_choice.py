"""The next point by hand arithmetic: variances of one and of two constants."""

import numpy as np
import pytest

from steptime.calibration.choice import choose_point, mean_variance, update_covariance
from steptime.calibration.fit import SIGMA


def test_a_row_as_sure_as_the_prior_halves_the_variance():
    # slope SIGMA in spreads: the row is off by SIGMA, as far as the constant by its prior
    left = update_covariance(np.eye(1), np.array([[SIGMA]]))
    assert left == pytest.approx(np.array([[0.5]]))
    # and once more: two rows, a third
    assert update_covariance(left, np.array([[SIGMA]])) == pytest.approx(np.array([[1 / 3]]))


def test_what_a_row_does_not_feel_stays_unknown():
    left = update_covariance(np.eye(2), np.array([[SIGMA, 0.0]]))
    assert left == pytest.approx(np.diag([0.5, 1.0]))
    # a case that feels both in 1: 1.5 in place of 2
    assert mean_variance(left, np.array([[1.0, 1.0]])) == pytest.approx(1.5)


def test_the_point_that_tells_of_what_is_asked_comes_first():
    points = {
        "first": np.array([[SIGMA, 0.0]]),
        "second": np.array([[0.0, SIGMA]]),
        "both": np.array([[SIGMA, 0.0], [0.0, SIGMA]]),
    }
    of_first, of_both = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    assert choose_point(points, of_both, np.eye(2)) == "both"
    del points["both"]
    assert choose_point(points, of_first, np.eye(2)) == "first"
    assert choose_point(points, of_first, update_covariance(np.eye(2), points["first"])) == "first"
    assert choose_point(points, np.array([[0.1, 1.0]]), np.eye(2)) == "second"


def test_equal_points_are_taken_by_name():
    same = np.array([[SIGMA]])
    assert choose_point({"b": same, "a": same}, np.array([[1.0]]), np.eye(1)) == "a"
