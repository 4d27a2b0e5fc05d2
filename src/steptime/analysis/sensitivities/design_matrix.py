"""The hyperparameters of networks as columns of numbers, for regressions."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.analysis.sensitivities.sensitivity_answer import Place
from steptime.analysis.sensitivities.sensitivity_networks import Networks
from steptime.core.errors import InputError
from steptime.records.warmup import Floats

UNSET = "unset"  # the text of a hyperparameter that a network does not have


class DesignMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """The hyperparameters of networks as columns of numbers.

    One of texts has a column of 0 and 1 for each text but the most frequent: `dtype=float32`.

    Attributes:
        place: family, platform and method of the networks.
        values: the quantity of each network, NaN for a failed one.
        has_failed: whether a network has no value.
        columns: the columns that vary, by name.
        base_texts: the most frequent text of a column of 0 and 1, by its name.
        constants: hyperparameters that were asked for, or always count, and never vary.
        regressors: the columns of the regression.
        level_ranks: the place of each value among those of its column [networks, columns].
        is_log: whether numbers are logarithms.
    """

    place: Place
    values: Floats
    has_failed: NDArray[np.bool_]
    columns: dict[str, Floats]
    base_texts: dict[str, str]
    constants: list[str]
    regressors: list[str]
    level_ranks: NDArray[np.int64]
    is_log: bool


def make_design(
    networks: Networks, selected: Sequence[str] | None, defaults: Sequence[str], *, is_log: bool
) -> DesignMatrix:
    """Return networks as columns of numbers.

    Args:
        networks: the networks of a place.
        selected: hyperparameters of the regression; None for all.
        defaults: hyperparameters that are reported as constant if `selected` is None.
        is_log: whether logarithms are taken.

    Raises:
        InputError: for logarithms of numbers that are not above 0.
    """
    values = networks.values.cast(pl.Float64()).fill_null(math.nan).to_numpy()
    if is_log and (values <= 0).any():
        raise InputError("--scale log: not all numbers are above 0; leave it out")
    has_failed = np.isnan(values)  # no value: it failed
    encoded = [_encode(hyperparameter) for hyperparameter in networks.columns]
    columns: dict[str, Floats] = {}
    base_texts: dict[str, str] = {}
    constants: list[str] = []
    for hyperparameter in encoded:
        base_texts |= hyperparameter.base_texts
        varying = {name: x for name, x in hyperparameter.columns.items() if _varies(x[~has_failed])}
        is_constant = bool(hyperparameter.columns) and not varying
        if is_constant and hyperparameter.name in (selected or defaults):
            constants.append(hyperparameter.name)
        columns |= varying
    level_ranks = [_rank_levels(x) for x in columns.values()]
    return DesignMatrix(
        place=networks.place,
        values=values,
        has_failed=has_failed,
        columns=columns,
        base_texts=base_texts,
        constants=constants,
        # An indicator `NAME=TEXT` is of the hyperparameter NAME.
        regressors=[n for n in columns if selected is None or n.partition("=")[0] in selected],
        level_ranks=np.stack(level_ranks or [np.zeros(len(values), int)], axis=1),
        is_log=is_log,
    )


class _Encoded(NamedTuple):
    """A hyperparameter as columns of numbers.

    Attributes:
        name: its name.
        columns: the numbers, or a column of 0 and 1 for each text but the most frequent.
        base_texts: the most frequent text, by the name of each column of 0 and 1.
    """

    name: str
    columns: dict[str, Floats]
    base_texts: dict[str, str]


def _encode(column: pl.Series) -> _Encoded:
    """Return a hyperparameter as columns of numbers; there are none if no network has it."""
    name = column.name
    if column.null_count() == len(column):
        return _Encoded(name, {}, {})
    is_number = column.dtype.is_numeric() or column.dtype == pl.Boolean()
    if not is_number:
        return _encode_texts(column)
    numbers = column.cast(pl.Float64()).to_numpy()
    if not column.null_count():
        return _Encoded(name, {name: numbers}, {})
    # Some networks have no number: each number counts as a text, and having none as another.
    return _encode_texts(pl.Series(name, numbers.astype(str)).set(column.is_null(), UNSET))


def _encode_texts(column: pl.Series) -> _Encoded:
    """Return an indicator column for each text but the most frequent, the base."""
    name = column.name
    texts = column.fill_null(UNSET).to_numpy()
    distinct, counts = np.unique(texts.astype(str), return_counts=True)
    base, *rarer = distinct[np.argsort(-counts, kind="stable")].tolist()
    indicator_texts = rarer or [base]  # a single text: a column that never varies
    indicators = {f"{name}={text}": (texts == text).astype(float) for text in indicator_texts}
    return _Encoded(name, indicators, {f"{name}={text}": base for text in rarer})


def _varies(x: Floats) -> bool:
    """Whether numbers differ."""
    return bool((x != x[:1]).any())


def _rank_levels(x: Floats) -> NDArray[np.int64]:
    """Return for each number the rank of its value among the distinct values, from 0."""
    _, ranks = np.unique(x, return_inverse=True)
    return ranks
