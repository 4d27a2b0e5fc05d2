"""Regressions of a quantity on the hyperparameters of networks, and of which networks fail."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.analysis.sensitivities import regression
from steptime.analysis.sensitivities.sensitivity_answer import (
    CurvePoint,
    FailureShares,
    Place,
    Regression,
    SensitivityRow,
    Wins,
)
from steptime.analysis.sensitivities.sensitivity_networks import Networks
from steptime.core.errors import InputError
from steptime.records.warmup import Floats

MAX_LEVELS = 12  # that failures are counted by; more are put together
SIGNIFICANCE = 0.05  # of a dependence, over all hyperparameters
LARGEST_LOG = 700.0  # of a ratio that a number holds
DOUBLING, HAVING = "doubling", "having it"  # changes that an effect is of
UNSET = "unset"  # the text of a hyperparameter that a network does not have
FAILURE_ASSUMPTIONS = ("zero", "low", "high")  # values that failed networks might have had
MIN_NETWORKS = 3
Effect = dict[str, str | int | float | None]


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
    has_failed = np.isnan(values)  # no value: it failed
    columns: dict[str, Floats] = {}
    base_texts: dict[str, str] = {}
    constants: list[str] = []
    for hyperparameter in networks.columns:
        # A text becomes an indicator column for each level but the most frequent, the base.
        numbers, column_bases = _encode(hyperparameter)
        base_texts |= column_bases
        varying = {name: x for name, x in numbers.items() if _varies(x[~has_failed])}
        is_constant = bool(numbers) and not varying
        if is_constant and hyperparameter.name in (selected or defaults):
            constants.append(hyperparameter.name)
        columns |= varying
    if is_log and (values <= 0).any():
        raise InputError("--scale log: not all numbers are above 0; leave it out")
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


def _rank_levels(x: Floats) -> NDArray[np.int64]:
    """Return for each number the rank of its value among the distinct values, from 0."""
    _, ranks = np.unique(x, return_inverse=True)
    return ranks


def _varies(x: Floats) -> bool:
    return bool((x != x[:1]).any())


def _encode(column: pl.Series) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return a hyperparameter as columns of numbers, and the most frequent text of each."""
    name = column.name
    if column.null_count() == len(column):  # no network has it
        return {}, {}
    is_number = column.dtype.is_numeric() or column.dtype == pl.Boolean()
    if is_number:
        numbers = column.cast(pl.Float64()).to_numpy()
        if not column.null_count():
            return {name: numbers}, {}
        # Some networks have no number: each number counts as a text, and having none as another.
        column = pl.Series(name, numbers.astype(str)).set(column.is_null(), UNSET)
    texts = column.fill_null(UNSET).to_numpy()
    distinct, counts = np.unique(texts.astype(str), return_counts=True)
    base, *rarer = distinct[np.argsort(-counts, kind="stable")].tolist()
    indicator_texts = rarer or [base]  # a single text: a column that never varies
    indicators = {f"{name}={text}": (texts == text).astype(float) for text in indicator_texts}
    return indicators, {f"{name}={text}": base for text in rarer}


def fit_networks(
    design: DesignMatrix, order: int, *, is_paired: bool
) -> tuple[list[SensitivityRow], Regression] | None:
    """Return the weights of a regression and its summary, None for fewer networks than weights.

    Args:
        design: the networks.
        order: 1, or 2 with squares and products.
        is_paired: whether the quantity is the ratio of two platforms.
    """
    has_value = ~design.has_failed
    if not design.regressors or has_value.sum() < MIN_NETWORKS:
        return None
    y = np.log2(design.values) if design.is_log else design.values  # doublings
    z = regression.standardise(np.stack(_scale_columns(design), axis=1), has_value)
    columns, terms = regression.make_terms(z, order)
    independent, combinations = regression.find_independent(columns[has_value])
    if has_value.sum() < len(independent) + 2:  # the intercept, and one to spare
        return None
    fit = regression.fit_columns(columns[has_value][:, independent], y[has_value], regression.DRAWS)
    weights_if_failed = _fit_with_failed(design, columns[:, independent], y)
    r2_cross_validated, importances = regression.cross_validate(z[has_value], y[has_value], order)
    weights = _weight_columns(fit) | weights_if_failed
    rows, curves = _make_rows(design, terms, weights, independent, combinations, importances)
    wins = None
    if is_paired:
        rows, wins = _fit_wins(design, rows, z[has_value])
    place = msgspec.structs.asdict(design.place)
    rows.sort(key=lambda row: -abs(row.weight or 0))
    rows += [
        msgspec.convert({**place, "hyperparameter": name, "note": "never varies"}, SensitivityRow)
        for name in design.constants
    ]
    summary = Regression(
        **place,
        networks=int(has_value.sum()),
        failed=int(design.has_failed.sum()),
        r2=fit.r2,
        r2_low=fit.r2_low,
        r2_high=fit.r2_high,
        r2_cross_validated=r2_cross_validated,
        weights={row.hyperparameter: row.weight for row in rows},
        never_varies=design.constants,
        curves=curves,
        wins=wins,
        failures=_list_failure_shares(design),
    )
    return rows, summary


def _make_rows(
    design: DesignMatrix,
    terms: Sequence[Sequence[int]],
    weights: Mapping[str, Floats],
    independent: Sequence[int],
    combinations: Mapping[int, Sequence[int]],
    importances: Floats,
) -> tuple[list[SensitivityRow], list[CurvePoint]]:
    """Return a row for each term of a regression, and the curves of single hyperparameters."""
    names = [_name_term([design.regressors[i] for i in term]) for term in terms]
    place = msgspec.structs.asdict(design.place)
    rows: list[SensitivityRow] = []
    curves: list[CurvePoint] = []
    for number, (name, term) in enumerate(zip(names, terms, strict=True)):
        if number in independent:  # only these have a weight, in their own order
            cells = _weight_cells(weights, independent.index(number))
            base_text = design.base_texts.get(name)
            cells["note"] = None if base_text is None else f"against {base_text}"
        else:
            collinear_names = ", ".join(names[i] for i in combinations[number]) or "a constant"
            cells = {"note": f"collinear with {collinear_names}"}
        if len(term) == 1:
            effect, curve = _measure_effect(design, name)
            cells |= {"importance": float(importances[number]), **effect}
            curves += curve
        rows.append(msgspec.convert({**place, "hyperparameter": name, **cells}, SensitivityRow))
    return rows, curves


def _scale_columns(design: DesignMatrix) -> list[Floats]:
    """Return the columns of the regression, their logarithms if all are above 0."""
    columns = [design.columns[name] for name in design.regressors]
    return [np.log2(x) if design.is_log and (x > 0).all() else x for x in columns]


def _weight_cells(weights: Mapping[str, Floats], index: int) -> Effect:
    """Return the cells of a row that hold a weight or an end of its interval."""
    names = ("weight", "low", "high", *(f"weight_if_failed_{name}" for name in FAILURE_ASSUMPTIONS))
    return {name: float(weights[name][index]) for name in names if name in weights}


def _weight_columns(fit: regression.RegressionFit) -> dict[str, Floats]:
    """Return the weights and the ends of their intervals, if they have any."""
    if fit.low is None or fit.high is None:
        return {"weight": fit.weight}
    return {"weight": fit.weight, "low": fit.low, "high": fit.high}


def _name_term(names: Sequence[str]) -> str:
    return f"{names[0]}^2" if len(names) > len(set(names)) else " x ".join(names)


def _measure_effect(design: DesignMatrix, name: str) -> tuple[Effect, list[CurvePoint]]:
    """Return the change for a doubled hyperparameter, all others equal, and the curve by level."""
    x = design.columns[name]
    y = design.values
    is_indicator = "=" in name  # 0 or 1, which cannot be doubled
    is_usable = ~design.has_failed & (y > 0)
    if not is_indicator:
        is_usable &= x > 0  # 0 cannot be doubled
    column = list(design.columns).index(name)
    rank = design.level_ranks[:, column]
    pairs = _pair_neighbours(design, column, np.flatnonzero(is_usable))  # differ in this alone
    effect: Effect = {
        "effect_of": HAVING if is_indicator else DOUBLING,
        "effect_pairs": len(pairs.low),
    }
    if not len(pairs.low):
        return effect, []
    log_ratio = np.log(y[pairs.high] / y[pairs.low])
    steps = np.ones(len(log_ratio))
    if not is_indicator:
        steps = np.log2(x[pairs.high] / x[pairs.low])  # doublings
    logs = regression.estimate_clustered(log_ratio / steps, pairs.key)  # mean, low, high
    for cell, log in zip(("effect_ratio", "effect_low", "effect_high"), logs, strict=True):
        effect[cell] = None if log is None or log > LARGEST_LOG else math.exp(log)
    if is_indicator:
        return effect, []
    levels = np.unique(x).tolist()
    return effect, _trace_curve(name, levels, log_ratio, rank[pairs.low], rank[pairs.high])


class _NeighbourPairs(NamedTuple):
    """Pairs of networks that differ in one column alone: rows of the lower and higher level.

    Pairs with equal settings in all other columns have the same `key`.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    key: NDArray[np.uint64]


def _pair_neighbours(design: DesignMatrix, column: int, rows: NDArray[np.int64]) -> _NeighbourPairs:
    """Return the pairs of rows that follow each other in a column, all others equal."""
    rank = design.level_ranks[:, column]
    other_columns = np.delete(design.level_ranks, column, axis=1)
    key = regression.hash_rows(other_columns)
    # Sorted by the other columns, then by this one: neighbours in the order differ in this one.
    ordered = rows[np.lexsort((rank[rows], key[rows]))]
    low = ordered[:-1]
    high = ordered[1:]
    is_pair = key[low] == key[high]
    return _NeighbourPairs(low[is_pair], high[is_pair], key[low[is_pair]])


def _trace_curve(
    name: str,
    levels: Sequence[float],
    log_ratio: Floats,
    low_rank: NDArray[np.int64],
    high_rank: NDArray[np.int64],
) -> list[CurvePoint]:
    """Return the quantity by level, as far as pairs of neighbouring levels reach."""
    curve: list[CurvePoint] = []
    height = 0.0  # logarithm of the quantity over that of the first level
    for rank, (level, next_level) in enumerate(pairwise(levels)):
        is_step = (low_rank == rank) & (high_rank == rank + 1)
        log_ratios = log_ratio[is_step]
        pair_count = len(log_ratios)
        if not pair_count:  # nothing joins the levels
            break
        if not curve:
            curve.append(CurvePoint(hyperparameter=name, pairs=pair_count, level=level, ratio=1.0))
        height += float(log_ratios.mean())
        if height > LARGEST_LOG:
            break
        curve.append(
            CurvePoint(
                hyperparameter=name, pairs=pair_count, level=next_level, ratio=math.exp(height)
            )
        )
    return curve


def _fit_with_failed(design: DesignMatrix, x: Floats, y: Floats) -> dict[str, Floats]:
    """Return the weights if failed networks had 0, or the lowest or highest of their neighbours.

    If all neighbours failed, too, it is the lowest or highest of all.
    """
    if not design.has_failed.any():
        return {}
    failed_rows = np.flatnonzero(design.has_failed)
    low, high = regression.bound_by_neighbours(design.level_ranks, y, failed_rows)
    assumed_values = {"zero": np.zeros(len(low)), "low": low, "high": high}
    if design.is_log:
        del assumed_values["zero"]  # which has no logarithm
    weights = {}
    for name, failed_values in assumed_values.items():
        complete_y = y.copy()
        complete_y[design.has_failed] = failed_values
        weights[f"weight_if_failed_{name}"] = np.asarray(
            regression.fit_columns(x, complete_y).weight
        )
    return weights


def _list_failure_shares(design: DesignMatrix) -> list[FailureShares]:
    """Return the share of failed networks by level of each hyperparameter."""
    has_failed = design.has_failed
    if not has_failed.any():
        return []
    failures = []
    for name, x in design.columns.items():
        values, rank = np.unique(x, return_inverse=True)
        level_count = min(len(values), MAX_LEVELS)
        level = rank * level_count // len(values)  # neighbouring values share a level
        shares = {}
        for number in range(level_count):
            is_level = level == number
            low, high = x[is_level].min(), x[is_level].max()
            text = f"{low:g}" if low == high else f"{low:g}..{high:g}"
            shares[text] = float(has_failed[is_level].mean())
        p = regression.measure_dependence(level, has_failed)
        corrected_p = None if p is None else p * len(design.columns)  # Bonferroni
        depends = None if corrected_p is None else bool(corrected_p < SIGNIFICANCE)
        failures.append(
            FailureShares(hyperparameter=name, failed_share=shares, p=p, depends=depends)
        )
    return failures


def _fit_wins(
    design: DesignMatrix, rows: Sequence[SensitivityRow], z: Floats
) -> tuple[list[SensitivityRow], Wins]:
    """Return rows with log-odds of the first platform to win, and how often it does."""
    is_win = design.values[~design.has_failed] > 1  # the first platform is faster
    share = float(is_win.mean())
    wins = Wins(share=share, majority_share=max(share, 1 - share))
    if share in (0.0, 1.0):  # nothing to explain
        return list(rows), wins
    column_numbers, _ = regression.find_independent(z)  # others get no odds
    columns = z[:, column_numbers]
    is_separable = regression.is_separable(columns, is_win)
    ridge = regression.RIDGE if is_separable else 0.0  # without it, weights would not be finite
    odds, half_width, accuracy = regression.fit_logistic(columns, is_win.astype(float), ridge)
    rows_with_odds = list(rows)  # the first ones are those of the columns of `z`, in their order
    for number, log_odds, reach in zip(
        column_numbers, odds.tolist(), half_width.tolist(), strict=True
    ):
        rows_with_odds[number] = msgspec.structs.replace(
            rows[number],
            win_log_odds=log_odds,
            win_low=log_odds - reach,
            win_high=log_odds + reach,
        )
    wins = msgspec.structs.replace(
        wins, accuracy_share=accuracy, separable=is_separable, ridge=ridge
    )
    return rows_with_odds, wins
