"""The answer on speed-ups: their distribution, by level and by hyperparameter."""

from collections.abc import Mapping

import msgspec

from steptime.core.answer import AnswerRow
from steptime.core.json_types import JsonObject, Scalar


class SpeedupRow(AnswerRow, frozen=True, kw_only=True):
    """A network at two levels.

    Attributes:
        name: the network, with the features that tell it from the others.
        level: the level.
        against: the level that it is compared with.
        speedup: how many times better `level` is: above 1 faster, or smaller, or a higher rate, by
            `quantity`.
        verdict: whether `level` is faster, same, slower or unsure against `against`: `same` if the
            interval lies within 2 %, `unsure` if noise or chance may explain the difference; null
            for numbers without samples.
        outcome: the verdict as the summary counts it: won, lost, same or unsure; without samples a
            difference of at most 2 % is the same.
        quantity: the quantity that is compared.
        value: its value at `level`.
        low: low end of the 95 % interval of `value`.
        high: high end of the 95 % interval of `value`.
        host: host of the measurement.
        against_value: its value at `against`.
        against_low: low end of the 95 % interval of `against_value`.
        against_high: high end of the 95 % interval of `against_value`.
        against_host: host of the measurement at `against`.
        differ: the settings in which the two runs differ, as `threads 1 | 2`: at `against`, then at
            `level`.
        features: hyperparameters, settings and options of the run at `level`, by name.
        against_options: options of the run at `against`, by name.
    """

    name: str
    level: str
    against: str
    speedup: float
    verdict: str | None
    outcome: str
    quantity: str
    value: float | None
    low: float | None
    high: float | None
    host: str | None
    against_value: float | None
    against_low: float | None
    against_high: float | None
    against_host: str | None
    differ: str
    features: Mapping[str, Scalar]
    against_options: Mapping[str, Scalar]

    def to_columns(self) -> dict[str, Scalar]:
        """Return the row as the columns of a table; keys of values carry their unit."""
        row = self.to_dict()
        features: dict[str, Scalar] = row.pop("features")
        options: dict[str, Scalar] = row.pop("against_options")
        # The columns of the values are named by the quantity: `step_s` and `against_step_s`.
        quantity = row.pop("quantity")
        values = {f"against_{quantity}": row.pop("against_value"), quantity: row.pop("value")}
        against = {f"against_{name}": value for name, value in options.items()}
        # Of equal names a feature wins over a column of the row.
        return {**row, **against, **features, **values}


class Distribution(AnswerRow, frozen=True, kw_only=True):
    """The distribution of speed-ups.

    Attributes:
        pairs: number of pairs.
        min: the lowest.
        p5: 5 % are below.
        p25: 25 % are below.
        median: half are below.
        p75: 75 % are below.
        p95: 95 % are below.
        max: the highest.
        geometric_mean: their geometric mean.
        low: low end of its 95 % interval; None for a single pair.
        high: high end of the 95 % interval of `geometric_mean`.
        wins_share: share of pairs in which the level is better.
        ties_share: share of pairs without a difference beyond noise.
        unsure_share: share of pairs that noise leaves open.
    """

    pairs: int
    min: float
    p5: float
    p25: float
    median: float
    p75: float
    p95: float
    max: float
    geometric_mean: float | None
    low: float | None
    high: float | None
    wins_share: float
    ties_share: float
    unsure_share: float


class SpeedupsOfValue(AnswerRow, frozen=True, kw_only=True):
    """The speed-ups of networks with one value of a hyperparameter.

    Attributes:
        pairs: number of pairs.
        median: their median.
        wins_share: share of pairs in which the level is better.
    """

    pairs: int
    median: float
    wins_share: float


class LevelSpeedups(AnswerRow, frozen=True, kw_only=True):
    """The speed-ups of one level.

    Attributes:
        level: the level.
        distribution: their distribution.
        by: medians by value of the hyperparameter `x`.
    """

    level: str
    distribution: Distribution
    by: dict[str, SpeedupsOfValue]


class SpeedupAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The speed-ups of all levels over one of them.

    Attributes:
        by_column: the column of the levels.
        against: the level that the others are compared with; None if there are no two levels.
        quantity: the quantity that is compared.
        origin: origin of the records.
        any_dtype: whether a network is paired with itself in another data type.
        x: the hyperparameter of the medians.
        color: the hyperparameter that goes most with speed-ups beside `x`, or that was asked for.
        distribution: the distribution of all pairs; None without pairs.
        by: medians by value of `x`.
        levels: the speed-ups of each level.
        failed: number of networks by level that have no value because they failed.
    """

    by_column: str
    against: str | None
    quantity: str
    origin: str = ""
    any_dtype: bool = False
    x: str | None = None
    color: str | None = None
    distribution: Distribution | None = None
    by: dict[str, SpeedupsOfValue] = {}
    levels: list[LevelSpeedups] = []
    failed: dict[str, int] = {}

    def summary(self) -> JsonObject:
        """Return the numbers of all pairs as one table; the distribution stands among them."""
        table: JsonObject = {
            "by_column": self.by_column,
            "against": self.against,
            "quantity": self.quantity,
        }
        # No pairs.
        if self.distribution is None:
            return {**table, "pairs": 0}
        return {
            **table,
            "pairs": self.distribution.pairs,
            "origin": self.origin,
            "any_dtype": self.any_dtype,
            "x": self.x,
            "color": self.color,
            **self.distribution.to_dict(),
            "by": msgspec.to_builtins(self.by),
            "levels": [
                {
                    "level": level.level,
                    **level.distribution.to_dict(),
                    "by": msgspec.to_builtins(level.by),
                }
                for level in self.levels
            ],
            "failed": self.failed,
        }
