"""The answer on sensitivities: the weights of hyperparameters in regressions of a quantity."""

import msgspec

from steptime.core.answer import AnswerRow


class Place(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The networks that one regression is of.

    Attributes:
        family: family of the networks.
        platform: name of the platform.
        method: how the quantity was measured, or predicted.
    """

    family: str
    platform: str
    method: str | None


class SensitivityRow(AnswerRow, frozen=True, kw_only=True):
    """The weight of one hyperparameter, or of a product of two.

    Attributes:
        family: family of the networks.
        platform: name of the platform.
        method: how the quantity was measured, or predicted.
        hyperparameter: name of the hyperparameter; `a x b` is a product.
        weight: standard deviations of the quantity for one of the hyperparameter; None if it is a
            combination of others or never varies.
        low: low end of the 95 % interval of the weight.
        high: high end of the 95 % interval of `weight`.
        importance: share of variance that is lost if the hyperparameter is shuffled.
        effect_ratio: ratio of the quantity of networks that are equal in all else.
        effect_low: low end of its 95 % interval.
        effect_high: high end of the 95 % interval of `effect_ratio`.
        effect_of: the change that the ratio is of.
        effect_pairs: number of pairs of such networks.
        win_log_odds: log-odds of the first platform to win, for one standard deviation.
        win_low: low end of their 95 % interval.
        win_high: high end of the 95 % interval of `win_log_odds`.
        weight_if_failed_zero: the weight if failed networks had 0.
        weight_if_failed_low: the weight if they had the lowest value of their neighbours.
        weight_if_failed_high: the weight if they had the highest value of their neighbours.
        note: why there is no weight, or the text that a text is held against.
    """

    family: str
    platform: str
    method: str | None
    hyperparameter: str
    weight: float | None = None
    low: float | None = None
    high: float | None = None
    importance: float | None = None
    effect_ratio: float | None = None
    effect_low: float | None = None
    effect_high: float | None = None
    effect_of: str | None = None
    effect_pairs: int | None = None
    win_log_odds: float | None = None
    win_low: float | None = None
    win_high: float | None = None
    weight_if_failed_zero: float | None = None
    weight_if_failed_low: float | None = None
    weight_if_failed_high: float | None = None
    note: str | None = None


class CurvePoint(AnswerRow, frozen=True, kw_only=True):
    """A level of a hyperparameter, networks equal in all else.

    Attributes:
        hyperparameter: its name.
        pairs: number of pairs of networks at this level and the one below.
        level: the level.
        ratio: the quantity over that at the lowest level.
    """

    hyperparameter: str
    pairs: int
    level: float
    ratio: float


class Wins(AnswerRow, frozen=True, kw_only=True):
    """How often the first of two platforms is better, and whether hyperparameters decide it.

    Attributes:
        share: share of the networks that it wins.
        majority_share: share of right guesses if the winner of most networks is always guessed.
        accuracy_share: share of networks whose winner the log-odds tell; None if one always wins.
        separable: whether a plane has all winners on one side.
        ridge: the ridge that keeps the weights finite then, else 0.
    """

    share: float
    majority_share: float
    accuracy_share: float | None = None
    separable: bool | None = None
    ridge: float | None = None


class FailureShares(AnswerRow, frozen=True, kw_only=True):
    """How failing goes with a hyperparameter.

    Attributes:
        hyperparameter: its name.
        failed_share: share of failed networks by level; of many levels some are put together.
        p: probability of such shares if the hyperparameter plays no part; None for too few.
        depends: whether failing depends on it; None if unknown.
    """

    hyperparameter: str
    failed_share: dict[str, float]
    p: float | None
    depends: bool | None


class Regression(AnswerRow, frozen=True, kw_only=True):
    """A regression of the networks of one place.

    Attributes:
        family: family of the networks.
        platform: name of the platform.
        method: how the quantity was measured, or predicted.
        networks: number of networks with a value.
        failed: number of networks that failed.
        r2: share of the variance that hyperparameters explain.
        r2_low: low end of the 95 % interval of `r2`.
        r2_high: high end of the 95 % interval of `r2`.
        r2_cross_validated: the share in networks that the fit has not seen.
        weights: weight by hyperparameter.
        never_varies: hyperparameters with one value.
        curves: the quantity by level of each hyperparameter.
        wins: how often the first platform is better, for two platforms.
        failures: how failing goes with each hyperparameter.
    """

    family: str
    platform: str
    method: str | None
    networks: int
    failed: int
    r2: float | None
    r2_low: float | None
    r2_high: float | None
    r2_cross_validated: float
    weights: dict[str, float | None]
    never_varies: list[str]
    curves: list[CurvePoint]
    wins: Wins | None
    failures: list[FailureShares]


class FewNetworks(AnswerRow, frozen=True, kw_only=True):
    """A place with fewer networks than weights.

    Attributes:
        family: family of the networks.
        platform: name of the platform.
        method: how the quantity was measured, or predicted.
        networks: number of networks with a value.
    """

    family: str
    platform: str
    method: str | None
    networks: int


class SensitivityAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The regressions of a quantity, those of most networks first.

    Attributes:
        quantity: name of the quantity.
        scale: scale of the z-scores, linear or log.
        order: 1, or 2 with squares and products.
        against: the platform that the quantity is the ratio to; None for the quantity itself.
        rows: the weights, regression by regression.
        regressions: the regressions.
        too_few: places without a regression.
    """

    quantity: str
    scale: str
    order: int
    against: str | None
    rows: list[SensitivityRow]
    regressions: list[Regression]
    too_few: list[FewNetworks]
