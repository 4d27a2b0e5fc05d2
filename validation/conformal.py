"""Widths of 80 % intervals by kind of work, and how far they hold for a campaign left out.

The unit is the campaign: each weighs the same in a kind, its groups (a network on a device) weigh
the same in it, and the rows of a group, too. A kind with fewer than `FEWEST` campaigns takes the
shape of all kinds, scaled by its spread, which is shrunk to a prior. The prior is the mean of all
kinds; of mixtures it is the spread of dense networks, whose shape they share; of single kernels it
is 1, since their half-widths know the forms of kernels. Ends are wider by Student's t over the
normal quantile, because few campaigns tell a spread badly. Kinds of work on one device do without:
networks and devices of a campaign differ there as much as campaigns do. A queue only adds to a
time, so each end of a kind that waits in one has its own quantile, however few its campaigns are.
Submitters of one benchmark run the program of a device's maker: on the same network and device they
count as one campaign, and are left out together.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from statistics import median
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, t

from steptime.prediction.calibrated.interval import LEVEL
from steptime.prediction.conformal import (
    DEVICE_STEPS,
    FIRST_TOKENS,
    KERNELS,
    KINDS,
    MEMORY,
    MIXTURES,
    SCALED,
    TRAININGS,
    UNSCALED,
    Ends,
)
from steptime.prediction.prices import Floats
from validation.residuals import UNNAMED, Residual, device_class

FEWEST = 8  # campaigns of a kind that tell its width alone
FITTED = 0.25  # of a campaign that told constants, whose forms were chosen with it in sight
SHRINKING = 1.0  # campaigns that the prior of a spread counts for
NARROWEST = 0.03  # of an end, in ln: measurements repeat no better
TAIL = (1 - LEVEL) / 2
CLOSE_TAIL = 0.25  # of memory on each side of what is too close to call: half lies between
MISS = 2 / (1 - LEVEL)  # of a miss in the interval score (Gneiting and Raftery 2007)
CLASSES = ("measured", "family", "neither")
ASSUMED = "assumed software"
ON_ONE_DEVICE = (KERNELS, DEVICE_STEPS)  # correlation in a campaign: 0.11 and 0.15
QUEUEING = (FIRST_TOKENS,)
WITH_OWN_SIDE = (*MIXTURES, *QUEUEING)  # kinds with a side even where their campaigns are few
EQUAL = 3.0  # campaigns that count for no difference between classes of devices
COUNT_PLACES = 6  # of a number of campaigns, which is a sum of shares
FEWEST_OF_CLASS = 3  # rows of a class of devices in a campaign that tell its scale


class Score(NamedTuple):
    """A residual in units of its scale.

    Attributes:
        residual: the row.
        normalised: its residual over the scale of its device and, of kernels, its half-width.
        weight: of the row in its campaign; those of a campaign sum to 1.
    """

    residual: Residual
    normalised: float
    weight: float


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


def campaign_weights(residuals: Sequence[Residual]) -> list[float]:
    """Return the weight of each residual in its kind and campaign.

    Campaigns of one repository that measured the same network on the same device ran the same
    program: they share the weight of one.
    """
    keys = [(one.kind, one.campaign, one.group) for one in residuals]
    rows = Counter(keys)
    groups = Counter((kind, campaign) for kind, campaign, _ in rows)
    replicas = Counter(program_of(*key) for key in rows)
    return [1 / (rows[key] * groups[key[:2]] * replicas[program_of(*key)]) for key in keys]


def program_of(kind: str, campaign: str, group: str) -> tuple[str, str, str]:
    """Return what campaigns of one repository have in common: kind, repository, and group."""
    return kind, campaign.partition(" x ")[0], group


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the smallest value that holds a share of the weight, interpolated between values."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share * weights.sum(), sums, values[order]))


def measured_devices(residuals: Iterable[Residual]) -> list[str]:
    """Return the devices whose rows told constants."""
    return sorted({one.device for one in residuals if not one.is_blind and one.device})


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
    counts = {kind: _campaign_count(by_kind.get(kind, ())) for kind in KINDS}
    own_spreads = {kind: _spread(own) for kind, own in by_kind.items()}
    spreads = fit_spreads(own_spreads, counts)
    pool = _mirror([score for own in normalised.values() for score in own])
    prior = _ends(pool, general_spread(own_spreads))
    ends = {}
    for kind in KINDS:
        if kind in QUEUEING and 0 < counts[kind] < FEWEST:
            own_ends = _quantile_ends(by_kind[kind], TAIL)
            kind_ends = average_ends(own_ends, prior, counts[kind])
        else:
            relatives = [kind, MIXTURES[kind]] if kind in MIXTURES else [kind]
            shape = [score for name in relatives for score in normalised.get(name, ())]
            is_pooled = _campaign_count(shape) < FEWEST
            kind_ends = _ends(pool if is_pooled else shape, spreads[kind])
        ends[kind] = _scale(kind_ends, widening_factor(kind, counts[kind]))
    pooled = frozenset(
        kind for kind in KINDS if counts[kind] < FEWEST and kind not in WITH_OWN_SIDE
    )
    memory = by_kind[MEMORY] or pool
    close = _quantile_ends(memory, CLOSE_TAIL)
    return Widths(ends, scales, counts, pooled, close)


def average_ends(own: Ends, prior: Ends, count: float) -> Ends:
    """Return the means, in ln, of both ends of so many campaigns and those of the prior."""
    return Ends(
        _shrink(own.below, prior.below, count),
        _shrink(own.above, prior.above, count),
    )


def _shrink(own: float, prior: float, count: float) -> float:
    """Return the mean, in ln, of a width of so many campaigns and that of the prior."""
    return exp((count * log(own) + SHRINKING * log(prior)) / (count + SHRINKING))


def widening_factor(kind: str, count: float) -> float:
    """Return how much wider the interval of a kind is since few campaigns tell it.

    Where campaigns also tell to which side the kind is off, one more campaign has a middle of its
    own: sqrt(1 + 1 / n) times as wide.

    Args:
        kind: the kind of work.
        count: the number of its campaigns.
    """
    if kind in ON_ONE_DEVICE:
        return 1.0
    factor = student_factor(count)
    if kind in WITH_OWN_SIDE and count < FEWEST:
        factor *= sqrt(1 + 1 / (count + SHRINKING))
    return factor


def student_factor(count: float) -> float:
    """Return how much wider an interval is whose spread few campaigns tell.

    It is the quantile of Student's t over that of the normal distribution. The degrees of freedom
    are the campaigns, and below `FEWEST` also those that the prior counts for.
    """
    freedom = count if count >= FEWEST else count + SHRINKING
    return float(t.ppf(1 - TAIL, freedom) / norm.ppf(1 - TAIL))


def fit_spreads(own: Mapping[str, float], counts: Mapping[str, float]) -> dict[str, float]:
    """Return the spread of every kind; those with fewer than `FEWEST` campaigns are shrunk.

    Args:
        own: how far most scores of a kind are from 0, by kind.
        counts: the number of campaigns, by kind.
    """
    prior = general_spread(own)
    spreads: dict[str, float] = {}
    for kind in sorted(KINDS, key=lambda kind: kind in MIXTURES):  # mixtures need dense networks
        prior_of_kind = prior
        if kind in SCALED:
            prior_of_kind = 1.0
        elif kind in MIXTURES:
            prior_of_kind = spreads[MIXTURES[kind]]
        spreads[kind] = prior_of_kind
        if counts[kind] >= FEWEST:
            spreads[kind] = own[kind]
        elif counts[kind]:
            spreads[kind] = _shrink(own[kind], prior_of_kind, counts[kind])
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


def _campaign_count(scores: Sequence[Score]) -> float:
    """Return the number of campaigns, those of one program counted once."""
    count = sum(one.weight / weight_of_blindness(one.residual) for one in scores)
    return round(count, COUNT_PLACES)


def weight_of_blindness(residual: Residual) -> float:
    """Return the weight of a campaign: less where the forms were chosen with it in sight."""
    return 1.0 if residual.is_blind else FITTED


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
