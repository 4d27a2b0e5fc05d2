"""How much rows, groups and campaigns count.

Each campaign weighs the same in a kind of work, its groups (a network on a device) weigh the same
in it, and the rows of a group, too. Submitters of one benchmark run the program of a device's
maker: on the same network and device they count as one campaign.

A campaign counts as one independent unit of its kind. Kinds of work on one device are told apart:
their groups differ in a campaign nearly as much as those of two campaigns do, so that a campaign
of n groups counts for n / (1 + (n - 1) r) units, r being the correlation of its groups (the design
effect of cluster samples, Kish 1965).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from steptime.prediction.conformal import DEVICE_STEPS, KERNEL_KINDS
from validation.residuals import Residual

FITTED = 0.25  # of a campaign that told constants, whose forms were chosen with it in sight
ON_ONE_DEVICE = (*KERNEL_KINDS, DEVICE_STEPS)
COUNT_PLACES = 6  # of a number of campaigns, which is a sum of shares


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


def weight_of_blindness(residual: Residual) -> float:
    """Return the weight of a campaign: less where the forms were chosen with it in sight."""
    return 1.0 if residual.is_blind else FITTED


def count_campaigns(scores: Sequence[Score], correlation: float = 1.0) -> float:
    """Return the number of independent units of a kind of work.

    Args:
        scores: its scores; campaigns of one program count once.
        correlation: that of the groups of a campaign; 1 counts campaigns.
    """
    shares: dict[str, float] = defaultdict(float)
    groups: dict[str, set[str]] = defaultdict(set)
    for score in scores:
        campaign = score.residual.campaign
        shares[campaign] += score.weight / weight_of_blindness(score.residual)
        groups[campaign].add(score.residual.group)
    units = (
        share * len(groups[campaign]) / (1 + (len(groups[campaign]) - 1) * correlation)
        for campaign, share in shares.items()
    )
    return round(sum(units), COUNT_PLACES)


def group_correlation(scores: Sequence[Score]) -> float:
    """Return the intraclass correlation of groups in a campaign of work on one device.

    It is that of the groups' medians, by the analysis of variance within each kind; 1 where no
    kind has two campaigns, of which one has several groups.
    """
    values: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        residual = score.residual
        if residual.kind in ON_ONE_DEVICE:
            values[residual.kind][residual.campaign, residual.group].append(score.normalised)
    parts = [_squares_of_kind(own) for own in values.values()]
    between, within = sum(part.between for part in parts), sum(part.within for part in parts)
    between_freedom = sum(part.between_freedom for part in parts)
    within_freedom = sum(part.within_freedom for part in parts)
    if not between_freedom or not within_freedom:
        return 1.0
    size = sum(part.between_freedom * part.size for part in parts) / between_freedom
    mean_between, mean_within = between / between_freedom, within / within_freedom
    whole = mean_between + (size - 1) * mean_within
    return float(np.clip((mean_between - mean_within) / whole, 0.0, 1.0)) if whole else 1.0


class _Squares(NamedTuple):
    """Sums of squares of a kind's groups, their degrees of freedom, and groups of a campaign."""

    between: float
    between_freedom: int
    within: float
    within_freedom: int
    size: float


def _squares_of_kind(values: Mapping[tuple[str, str], Sequence[float]]) -> _Squares:
    """Return the sums of squares of groups between campaigns and within them."""
    by_campaign: dict[str, list[float]] = defaultdict(list)
    for (campaign, _), own in values.items():
        by_campaign[campaign].append(float(np.median(own)))
    medians = [np.array(own) for own in by_campaign.values()]
    counts = np.array([len(own) for own in medians])
    mean = float(np.concatenate(medians).mean())
    between = float(sum(len(own) * (own.mean() - mean) ** 2 for own in medians))
    within = float(sum(((own - own.mean()) ** 2).sum() for own in medians))
    campaigns = len(counts)
    size = (counts.sum() - (counts**2).sum() / counts.sum()) / max(campaigns - 1, 1)
    return _Squares(between, campaigns - 1, within, int(counts.sum()) - campaigns, float(size))
