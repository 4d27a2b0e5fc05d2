"""Lengths of requests that vary: quantiles of a known distribution, and files."""

from statistics import fmean, median

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.serving.lengths import read_lengths


def test_lengths_of_chats_have_the_mean_and_the_spread_that_are_asked():
    """The logarithm has a deviation of 0.93: the median is exp(-0.93^2 / 2) of the mean."""
    inputs, outputs = read_lengths("sharegpt", 400, 200, 2000, seed=3)
    assert fmean(inputs) == pytest.approx(400, rel=0.01)
    assert fmean(outputs) == pytest.approx(200, rel=0.01)
    assert median(inputs) / fmean(inputs) == pytest.approx(0.649, rel=0.05)
    assert sorted(inputs)[1800] / median(inputs) == pytest.approx(5696 / 1730, rel=0.05)
    assert read_lengths("constant", 400, 200, 3, seed=0) == ([400] * 3, [200] * 3)


def test_lengths_of_a_file_are_repeated(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n10,20\n30,40\n", encoding="utf-8")
    assert read_lengths(str(path), 1, 1, 3, seed=0) == ([10, 30, 10], [20, 40, 20])
    with pytest.raises(InputError, match=r"did you mean .sharegpt"):
        read_lengths("sharegp", 1, 1, 3, seed=0)


@pytest.mark.slow
def test_a_burst_of_chats_ends_later_than_one_of_their_mean():
    """The longest answers run on alone."""
    how = {"input": 200, "output": 200, "concurrency": 200, "count": 200}
    mean, varied = (
        steptime.serve("llama3_8b", "h100", lengths=lengths, **how)
        for lengths in ("constant", "sharegpt")
    )
    assert varied.load.duration_s > 2 * mean.load.duration_s
