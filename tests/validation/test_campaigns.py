"""Widths told by campaigns: weights, pooling, and campaigns left out."""

from collections.abc import Iterator

import numpy as np
import pytest

from steptime.prediction.conformal import (
    COLLECTIVES,
    DEVICE_STEPS,
    FIRST_TOKENS,
    KERNELS,
    KINDS,
    LOW_KERNELS,
    MIXTURE_TRAININGS,
    POWER,
    TRAININGS,
    Ends,
)
from validation.campaign_units import (
    Score,
    campaign_weights,
    count_campaigns,
    group_correlation,
)
from validation.conformal import (
    FEWEST,
    average_ends,
    fit_spreads,
    fit_widths,
    hold,
    leave_each_out,
    leave_out,
    measured_devices,
    student_factor,
    weighted_quantile,
    widening_factor,
)
from validation.residuals import Residual, device_class

DEVICE = "a100-sxm4-80gb"


def draw_residuals(
    kind: str, campaigns: int, rows: int, spread: float, seed: int
) -> Iterator[Residual]:
    """Yield rows of campaigns that are off together by a part of their own."""
    draw = np.random.default_rng(seed)
    for campaign in range(campaigns):
        shared = draw.normal(0, spread)
        for row in range(rows):
            off = shared + draw.normal(0, spread / 4)
            place, group = f"table:{row}", f"network {row % 3} {DEVICE}"
            name = f"{kind} {campaign}"
            yield Residual(kind, name, group, place, "step_s", off, 1.0, 1.0, DEVICE, "")


def test_a_campaign_weighs_the_same_whatever_its_rows() -> None:
    residuals = [
        *draw_residuals(TRAININGS, 1, 500, 0.1, 0),
        *(one._replace(campaign="b") for one in draw_residuals(TRAININGS, 1, 5, 0.1, 1)),
    ]
    weights = campaign_weights(residuals)
    assert sum(weights[:500]) == pytest.approx(1)
    assert sum(weights[500:]) == pytest.approx(1)


def test_campaigns_of_one_program_share_a_weight_and_are_left_out_together() -> None:
    submitters = [
        one._replace(campaign=f"MLPerf x {name}", off=0.5)
        for name in "abcdefgh"
        for one in draw_residuals(TRAININGS, 1, 3, 0.1, 0)
    ]
    others = [*draw_residuals(TRAININGS, 12, 6, 0.1, 1)]
    residuals = [*others, *submitters]
    assert sum(campaign_weights(residuals)[len(others) :]) == pytest.approx(1)
    assert fit_widths(residuals, [DEVICE]).campaigns[TRAININGS] == 13
    held = leave_out(residuals, "MLPerf x a")
    assert len(held) == 3
    assert held[0].width == pytest.approx(
        leave_out([*others, *submitters[:3]], "MLPerf x a")[0].width
    )


def test_one_more_campaign_has_a_side_of_its_own() -> None:
    counts = dict.fromkeys(KINDS, 4.0)
    factor = student_factor(5)  # the prior counts for a campaign
    assert widening_factor(MIXTURE_TRAININGS, counts) == pytest.approx(factor * (1 + 1 / 5) ** 0.5)
    assert widening_factor(COLLECTIVES, counts) == factor


def test_a_quantile_of_equal_weights_is_numpys_middle_one() -> None:
    values = np.arange(11.0)
    weights = np.full(11, 0.3)
    assert weighted_quantile(values, weights, 0.5) == pytest.approx(5)


def test_the_interval_score_is_the_width_and_ten_times_the_miss() -> None:
    [residual] = draw_residuals(TRAININGS, 1, 1, 0.0, 0)
    held = hold(residual._replace(off=0.5), 0.1, 0.2)
    assert not held.is_inside
    assert held.score == pytest.approx(0.3 + 10 * 0.3)
    assert hold(residual._replace(off=-0.05), 0.1, 0.2).score == pytest.approx(0.3)


@pytest.mark.slow
def test_a_campaign_left_out_is_held_as_often_as_promised() -> None:
    inside = [
        held.is_inside
        for seed in range(20)
        for held in leave_each_out([*draw_residuals(TRAININGS, 20, 6, 0.2, seed)])
    ]
    assert 0.74 < np.mean(inside) < 0.9


def test_many_rows_of_one_campaign_do_not_narrow_an_interval() -> None:
    wide = [*draw_residuals(TRAININGS, 12, 4, 0.3, 3)]
    sure = [
        one._replace(off=0.0, campaign="sure") for one in draw_residuals(TRAININGS, 1, 2000, 0.1, 4)
    ]
    ends = fit_widths(wide, [DEVICE]).ends[TRAININGS]
    with_sure = fit_widths([*wide, *sure], [DEVICE]).ends[TRAININGS]
    assert with_sure.below + with_sure.above > 0.8 * (ends.below + ends.above)


def test_a_kind_with_few_campaigns_takes_the_shape_of_all() -> None:
    residuals = [
        *draw_residuals(TRAININGS, FEWEST, 6, 0.1, 5),
        *draw_residuals(COLLECTIVES, 2, 6, 0.4, 6),
    ]
    widths = fit_widths(residuals, [DEVICE])
    assert COLLECTIVES in widths.pooled
    assert TRAININGS not in widths.pooled
    assert widths.ends[COLLECTIVES].above > widths.ends[TRAININGS].above


def test_a_spread_of_few_campaigns_is_widened_as_student_says() -> None:
    # t and normal quantiles of 0.9, from a printed table: 1.397 for 8, 1.638 for 3, 1.282
    assert student_factor(FEWEST) == pytest.approx(1.397 / 1.282, abs=1e-3)
    assert student_factor(3) == pytest.approx(1.638 / 1.282, abs=1e-3)


def draw_scores(shared: float, own: float, groups: int = 30) -> list[Score]:
    """Return scores of 20 campaigns of device steps, a row a group."""
    draw = np.random.default_rng(11)
    [row] = draw_residuals(DEVICE_STEPS, 1, 1, 0.1, 0)
    middles = draw.normal(0, shared, 20)
    return [
        Score(
            row._replace(campaign=f"campaign {campaign}", group=f"group {group}"),
            middles[campaign] + draw.normal(0, own),
            1 / groups,
        )
        for campaign in range(20)
        for group in range(groups)
    ]


def test_the_correlation_of_groups_is_the_share_of_variance_that_campaigns_have() -> None:
    assert group_correlation(draw_scores(0.5, 1.0)) == pytest.approx(0.2, abs=0.08)
    assert group_correlation(draw_scores(0.0, 1.0)) == pytest.approx(0, abs=0.03)
    assert group_correlation(draw_scores(1.0, 0.0)) == pytest.approx(1)
    assert group_correlation(draw_scores(1.0, 1.0)[:30]) == 1  # one campaign does not tell it


def test_a_campaign_of_unlike_groups_counts_for_several() -> None:
    campaign = draw_scores(0.0, 1.0)[:30]
    fitted = 0.25
    scores = [score._replace(weight=fitted * score.weight) for score in campaign]
    assert count_campaigns(scores) == 1
    assert count_campaigns(scores, correlation=0) == 30
    assert count_campaigns(scores, correlation=0.1) == pytest.approx(30 / 3.9)


def test_kernels_of_low_types_are_filled_up_with_other_kernels() -> None:
    counts = {**dict.fromkeys(KINDS, 0.0), KERNELS: 20.0, LOW_KERNELS: 5.0}
    spreads = fit_spreads({KERNELS: 0.5, LOW_KERNELS: 2.0}, counts)
    assert spreads[KERNELS] == pytest.approx(0.5)
    assert spreads[LOW_KERNELS] == pytest.approx(2.0 ** (5 / 8) * 0.5 ** (3 / 8))
    assert widening_factor(LOW_KERNELS, counts) == student_factor(FEWEST)
    few = {**counts, KERNELS: 0.0}
    assert widening_factor(LOW_KERNELS, few) == student_factor(6)


def test_a_queue_has_a_longer_end_above() -> None:
    def longer_ends(kind: str) -> tuple[float, float]:
        rows = draw_residuals(kind, 3, 6, 0.2, 10)
        residuals = [one._replace(off=4 * one.off if one.off > 0 else one.off) for one in rows]
        return fit_widths(residuals, [DEVICE]).ends[kind]

    below, above = longer_ends(FIRST_TOKENS)
    assert above > 1.2 * below
    below, above = longer_ends(COLLECTIVES)
    assert above == pytest.approx(below)


def test_the_ends_of_few_campaigns_are_averaged_with_those_of_the_prior() -> None:
    ends = average_ends(Ends(0.2, 0.8), Ends(0.4, 0.4), 3)
    assert ends.below == pytest.approx(0.2**0.75 * 0.4**0.25)
    assert ends.above == pytest.approx(0.8**0.75 * 0.4**0.25)


def test_the_spread_of_kernels_is_shrunk_to_their_own_half_width() -> None:
    counts = {**dict.fromkeys(KINDS, 0), KERNELS: 3, POWER: 4}
    spreads = fit_spreads({KERNELS: 0.5, POWER: 0.4}, counts)
    assert spreads[KERNELS] == pytest.approx(0.5**0.75)
    assert spreads[POWER] == pytest.approx(0.4)


def test_a_mixture_shares_the_side_to_which_dense_networks_are_off() -> None:
    dense = draw_residuals(TRAININGS, FEWEST, 6, 0.1, 8)
    slower = [one._replace(off=abs(one.off)) for one in dense]
    mixtures = [
        one._replace(kind=MIXTURE_TRAININGS, off=3 * one.off)
        for one in slower
        if one.campaign.endswith(("0", "1"))
    ]
    ends = fit_widths([*slower, *mixtures], [DEVICE]).ends
    assert ends[MIXTURE_TRAININGS].above > 2 * ends[MIXTURE_TRAININGS].below
    assert ends[MIXTURE_TRAININGS].above > 1.5 * ends[TRAININGS].above


def test_the_rows_of_a_campaign_do_not_tell_its_own_interval() -> None:
    residuals = [*draw_residuals(TRAININGS, 12, 6, 0.1, 7)]
    far = [one._replace(off=9.0, campaign="far") for one in residuals[:6]]
    held = leave_out([*residuals, *far], "far")
    assert len(held) == 6
    assert not any(one.is_inside for one in held)
    assert held[0].width < 1


def test_devices_are_classed_by_rows_and_architecture() -> None:
    names = frozenset({DEVICE})
    assert device_class(DEVICE, names) == "measured"
    assert device_class("a100-pcie-40gb", names) == "family"
    assert device_class("mi300x", names) == "neither"


def test_blind_rows_do_not_make_a_device_measured() -> None:
    [residual] = draw_residuals(TRAININGS, 1, 1, 0.0, 0)
    assert measured_devices([residual]) == [DEVICE]
    assert measured_devices([residual._replace(added="2026-12")]) == []
