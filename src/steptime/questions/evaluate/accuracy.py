"""The accuracy of predictions, as several answers hold it."""

from steptime.core.answer import AnswerRow


class PairRatio(AnswerRow, frozen=True, kw_only=True):
    """The ratio of one pair.

    Attributes:
        name: the network, with the settings in which it differs from other rows.
        model: the network.
        batch: examples of one replica in a step.
        ratio: b / a.
    """

    name: str
    model: str | None
    batch: int | None
    ratio: float


class Accuracy(AnswerRow, frozen=True, kw_only=True):
    """How far a is from b in many pairs (a, b); in `report` a is the prediction, b the measurement.

    Attributes:
        pairs: number of pairs.
        median_error: median of |a / b - 1|; None without a pair.
        geometric_mean_ratio: geometric mean of b / a; None without a pair.
        within_factor_2: share of the pairs with b / a from 0.5 to 2; None without a pair.
        worst: the pairs with the ratios farthest from 1.
    """

    pairs: int
    median_error: float | None
    geometric_mean_ratio: float | None
    within_factor_2: float | None
    worst: tuple[PairRatio, ...]
