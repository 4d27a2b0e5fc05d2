"""Widths of 80 % intervals by kind of work, and how far they hold for a campaign left out.

The unit is the campaign, of work on one device a share of its groups (`campaign_units.py`). A kind
with fewer than `FEWEST` units takes the shape of all kinds, scaled by its spread, which is shrunk
to a prior. The prior is the mean of all kinds; of mixtures it is the spread of dense networks,
whose shape they share; of single kernels it is 1, since their half-widths know the forms of
kernels. Kernels in 8 and 4 bit have the same half-widths as others: their shape and spread are
filled up with those of others. Ends are wider by Student's t over the normal quantile, because few
units tell a spread badly. A queue only adds to a time, so each end of a kind that waits in one has
its own quantile, however few its campaigns are. Campaigns that ran one program are left out
together.

A device counts as measured where networks on it told constants: kernels alone tell no steps, and
their own intervals do not depend on it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from statistics import median
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, t

from steptime.prediction.calibrated.interval import LEVEL
from steptime.prediction.conformal import (
    FIRST_TOKENS,
    KERNEL_KINDS,
    KERNELS,
    KINDS,
    LOW_KERNELS,
    MEMORY,
    MIXTURES,
    SCALED,
    TRAININGS,
    UNSCALED,
    Ends,
)
from steptime.prediction.prices import Floats
from validation.campaign_units import (
    ON_ONE_DEVICE,
    Score,
    campaign_weights,
    count_campaigns,
    group_correlation,
    program_of,
    weight_of_blindness,
)
from validation.residuals import UNNAMED, Residual, device_class

FEWEST = 8  # campaigns of a kind that tell its width alone
SHRINKING = 1.0  # campaigns that the prior of a spread counts for
NARROWEST = 0.03  # of an end, in ln: measurements repeat no better
TAIL = (1 - LEVEL) / 2
CLOSE_TAIL = 0.25  # of memory on each side of what is too close to call: half lies between
MISS = 2 / (1 - LEVEL)  # of a miss in the interval score (Gneiting and Raftery 2007)
CLASSES = ("measured", "family", "neither")
ASSUMED = "assumed software"
QUEUEING = (FIRST_TOKENS,)
RELATIVES = {**MIXTURES, LOW_KERNELS: KERNELS}  # kinds whose shape and spread a kind starts from
WITH_OWN_SIDE = (*MIXTURES, *QUEUEING)  # kinds with a side even where their campaigns are few
EQUAL = 3.0  # campaigns that count for no difference between classes of devices
FEWEST_OF_CLASS = 3  # rows of a class of devices in a campaign that tell its scale


class Widths(NamedTuple):
    """Widths of all kinds.

    Attributes:
        ends: how far an interval reaches, by kind.
        scales: how many times as far on devices, by class.
        campaigns: the number of campaigns, by kind; those of one program count once.
        pooled: the kinds that take the shape of all.
        close: how far half of the campaigns' memory lies from predictions.
    """

    ends: Mapping[str, Ends]
    scales: Mapping[str, float]
    campaigns: Mapping[str, float]
    pooled: frozenset[str]
    close: Ends


def unit_of(residual: Residual) -> float:
    """Return the half-width that a residual of a `SCALED` kind is measured in, else 1."""
    if residual.kind not in SCALED:
        return 1.0
    return residual.above if residual.off > 0 else residual.below


def score_residuals(
    residuals: Sequence[Residual], scales: Mapping[str, float], measured: Iterable[str]
) -> list[Score]:
    """Return the residuals in units of their scales, with their weights."""
    names = frozenset(measured)
    weights = campaign_weights(residuals)
    scores = []
    for residual, weight in zip(residuals, weights, strict=True):
        unit = unit_of(residual)
        if unit <= 0:
            continue
        if residual.kind not in UNSCALED:
            unit *= scales[device_class(residual.device, names)]
        share = weight_of_blindness(residual)
        scores.append(Score(residual, residual.off / unit, share * weight))
    return scores


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the smallest value that holds a share of the weight, interpolated between values."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share * weights.sum(), sums, values[order]))


def measured_devices(residuals: Iterable[Residual]) -> list[str]:
    """Return the devices of which networks told constants: single kernels alone tell no steps."""
    return sorted(
        {
            one.device
            for one in residuals
            if not one.is_blind and one.device and one.kind not in KERNEL_KINDS
        }
    )


def fit_widths(residuals: Sequence[Residual], measured: Sequence[str]) -> Widths:
    """Return the widths that campaigns tell."""
    unnamed = [one for one in residuals if one.kind == UNNAMED]
    residuals = [one for one in residuals if one.kind != UNNAMED]
    plain = dict.fromkeys(CLASSES, 1.0)
    scales = fit_scales(score_residuals(residuals, plain, measured), measured)
    scores = score_residuals(residuals, scales, measured)
    scales[ASSUMED] = assumed_scale(score_residuals(unnamed, scales, measured), scores)
    by_kind: dict[str, list[Score]] = defaultdict(list)
    for score in scores:
        by_kind[score.residual.kind].append(score)
    normalised = {kind: _normalise(own) for kind, own in by_kind.items()}
    correlation = group_correlation(scores)
    counts = {kind: count_units(by_kind.get(kind, ()), correlation) for kind in KINDS}
    own_spreads = {kind: _spread(own) for kind, own in by_kind.items()}
    spreads = fit_spreads(own_spreads, counts)
    pool = _mirror([score for own in normalised.values() for score in own])
    prior = _ends(pool, general_spread(own_spreads))
    ends: dict[str, Ends] = {}
    pooled: set[str] = set()
    for kind in KINDS:
        if kind in QUEUEING and 0 < counts[kind] < FEWEST:
            own_ends = _quantile_ends(by_kind[kind], TAIL)
            kind_ends = average_ends(own_ends, prior, counts[kind])
        else:
            relatives = [kind, RELATIVES[kind]] if kind in RELATIVES else [kind]
            shape = [score for name in relatives for score in normalised.get(name, ())]
            if count_units(shape, correlation) < FEWEST:
                pooled.add(kind)
            kind_ends = _ends(pool if kind in pooled else shape, spreads[kind])
        ends[kind] = _scale(kind_ends, widening_factor(kind, counts))
    memory = by_kind[MEMORY] or pool
    close = _quantile_ends(memory, CLOSE_TAIL)
    campaigns = {kind: count_campaigns(by_kind.get(kind, ())) for kind in KINDS}
    return Widths(ends, scales, campaigns, frozenset(pooled), close)


def average_ends(own: Ends, prior: Ends, count: float) -> Ends:
    """Return the means, in ln, of both ends of so many campaigns and those of the prior."""
    return Ends(
        _shrink(own.below, prior.below, count),
        _shrink(own.above, prior.above, count),
    )


def _shrink(own: float, prior: float, count: float, prior_count: float = SHRINKING) -> float:
    """Return the mean, in ln, of a width of so many campaigns and that of the prior."""
    return exp((count * log(own) + prior_count * log(prior)) / (count + prior_count))


def count_units(scores: Sequence[Score], correlation: float) -> float:
    """Return the number of independent units of scores: campaigns, or groups on one device.

    Args:
        scores: the scores, all of one device or none.
        correlation: that of groups on one device in a campaign.
    """
    is_on_one_device = bool(scores) and scores[0].residual.kind in ON_ONE_DEVICE
    return count_campaigns(scores, correlation if is_on_one_device else 1.0)


def prior_count(kind: str, counts: Mapping[str, float]) -> float:
    """Return the number of campaigns that the prior of a kind's spread counts for.

    Kernels of any type are off in units of their half-width, which makes their spreads alike: a
    kind with few of them is filled up to `FEWEST` with those of its relative.
    """
    count = counts[kind]
    if count >= FEWEST:
        return 0.0
    if kind in SCALED and kind in RELATIVES:
        return max(SHRINKING, min(counts[RELATIVES[kind]], FEWEST - count))
    return SHRINKING


def widening_factor(kind: str, counts: Mapping[str, float]) -> float:
    """Return how much wider the interval of a kind is since few campaigns tell it.

    Where campaigns also tell to which side the kind is off, one more campaign has a middle of its
    own: sqrt(1 + 1 / n) times as wide.

    Args:
        kind: the kind of work.
        counts: the number of independent units, by kind.
    """
    freedom = counts[kind] + prior_count(kind, counts)
    factor = student_factor(freedom)
    if kind in WITH_OWN_SIDE and counts[kind] < FEWEST:
        factor *= sqrt(1 + 1 / freedom)
    return factor


def student_factor(freedom: float) -> float:
    """Return how much wider an interval is whose spread few campaigns tell.

    It is the quantile of Student's t over that of the normal distribution. The degrees of freedom
    are the campaigns, and below `FEWEST` also those that the prior counts for.
    """
    return float(t.ppf(1 - TAIL, freedom) / norm.ppf(1 - TAIL))


def fit_spreads(own: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Return the spread of every kind; those with fewer than `FEWEST` campaigns are shrunk.

    Args:
        own: how far most scores of a kind are from 0, by kind.
        counts: the number of campaigns, by kind.
    """
    prior = general_spread(own)
    spreads: dict[str, float] = {}
    for kind in sorted(KINDS, key=lambda kind: kind in RELATIVES):  # which need their relatives
        prior_of_kind = prior
        if kind in RELATIVES:
            prior_of_kind = spreads[RELATIVES[kind]]
        elif kind in SCALED:
            prior_of_kind = 1.0
        spreads[kind] = prior_of_kind
        if counts[kind]:
            weight = prior_count(kind, counts)
            spreads[kind] = _shrink(own[kind], prior_of_kind, counts[kind], weight)
    return spreads


def general_spread(own: Mapping[str, float]) -> float:
    """Return the geometric mean of the spreads of kinds, but for kernels and mixtures; else 1."""
    general = [own[kind] for kind in own if kind not in SCALED and kind not in MIXTURES]
    return float(np.exp(np.mean(np.log(general)))) if general else 1.0


def fit_scales(scores: Sequence[Score], measured: Sequence[str]) -> dict[str, float]:
    """Return how many times as far off rows on other devices are, at least 1.

    Rows of one campaign and kind are compared; each of these counts once, and `EQUAL` more count
    for no difference. A device of a measured family is never taken to be further off than others.
    """
    names = frozenset(measured)
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        residual = score.residual
        if residual.kind not in UNSCALED:
            group = groups[residual.kind, residual.campaign]
            group[device_class(residual.device, names)].append(abs(score.normalised))
    scales = {"measured": 1.0}
    for nearer, name in pairwise(CLASSES):
        ratios = [
            log(max(median(group[name]), NARROWEST) / max(median(group["measured"]), NARROWEST))
            for group in groups.values()
            if min(len(group[name]), len(group["measured"])) >= FEWEST_OF_CLASS
        ]
        scales[name] = max(exp(sum(ratios) / (len(ratios) + EQUAL)), scales[nearer])
    return scales


def assumed_scale(unnamed: Sequence[Score], scores: Sequence[Score]) -> float:
    """Return how many times as far off steps are whose software nobody names, at least 1."""
    places = {(one.residual.campaign, one.residual.place) for one in unnamed}
    named = [
        one
        for one in scores
        if one.residual.kind == TRAININGS and (one.residual.campaign, one.residual.place) in places
    ]
    if not named:
        return 1.0
    return max(1.0, _spread(unnamed) / _spread(named))


def _spread(scores: Sequence[Score]) -> float:
    """Return how far most scores are from 0, campaigns alike."""
    values = np.array([abs(one.normalised) for one in scores])
    weights = np.array([one.weight for one in scores])
    return max(weighted_quantile(values, weights, LEVEL), NARROWEST)


def _normalise(scores: Sequence[Score]) -> list[Score]:
    """Return the scores of a kind in units of its spread."""
    spread = _spread(scores)
    return [score._replace(normalised=score.normalised / spread) for score in scores]


def _mirror(scores: Sequence[Score]) -> list[Score]:
    """Return scores to both sides: to which side a kind is off says nothing of another one."""
    return [
        score._replace(normalised=sign * score.normalised) for score in scores for sign in (1, -1)
    ]


def _ends(scores: Sequence[Score], spread: float) -> Ends:
    """Return the ends that hold `LEVEL` of the scores, in units of a spread."""
    return _scale(_quantile_ends(scores, TAIL), spread)


def _scale(ends: Ends, factor: float) -> Ends:
    """Return ends that reach so many times as far, at least `NARROWEST`."""
    return Ends(max(factor * ends.below, NARROWEST), max(factor * ends.above, NARROWEST))


def _quantile_ends(scores: Sequence[Score], tail: float) -> Ends:
    """Return the ends that leave a share of the weight on each side, at least `NARROWEST`."""
    values = np.array([one.normalised for one in scores])
    weights = np.array([one.weight for one in scores])
    below = -weighted_quantile(values, weights, tail)
    above = weighted_quantile(values, weights, 1 - tail)
    return Ends(max(below, NARROWEST), max(above, NARROWEST))


class Held(NamedTuple):
    """How an interval held a row: whether it holds it, its width in ln, and the interval score."""

    residual: Residual
    is_inside: bool
    width: float
    score: float


def hold(residual: Residual, below: float, above: float) -> Held:
    """Return how an interval held a row; its ends in ln."""
    miss = max(residual.off - above, -residual.off - below, 0.0)
    width = below + above
    return Held(residual, miss == 0.0, width, width + MISS * miss)


def hold_by(residual: Residual, widths: Widths, measured: Sequence[str]) -> Held:
    """Return how the interval of given widths holds a row."""
    ends = widths.ends[residual.kind]
    below, above = ends
    if residual.kind in SCALED:
        below *= residual.below
        above *= residual.above
    if residual.kind not in UNSCALED:
        scale = widths.scales[device_class(residual.device, frozenset(measured))]
        below, above = scale * below, scale * above
    return hold(residual, below, above)


def leave_out(residuals: Sequence[Residual], campaign: str) -> list[Held]:
    """Return how the widths that other campaigns tell hold the rows of one campaign."""
    programs = {
        program_of(one.kind, one.campaign, one.group)
        for one in residuals
        if one.campaign == campaign
    }
    others = [
        one
        for one in residuals
        if one.campaign != campaign
        and program_of(one.kind, one.campaign, one.group) not in programs
    ]
    measured = measured_devices(others)
    widths = fit_widths(others, measured)
    return [
        hold_by(one, widths, measured)
        for one in residuals
        if one.campaign == campaign and one.kind != UNNAMED
    ]


def leave_each_out(residuals: Sequence[Residual]) -> list[Held]:
    """Return how rows are held by the widths that other campaigns tell, campaign by campaign."""
    campaigns = sorted({one.campaign for one in residuals})
    return [held for campaign in campaigns for held in leave_out(residuals, campaign)]
