"""Regressions of a quantity on the hyperparameters of networks, and of which networks fail."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.analysis.sensitivities import regression
from steptime.analysis.sensitivities.design_matrix import DesignMatrix
from steptime.analysis.sensitivities.effects import Effect, measure_effect
from steptime.analysis.sensitivities.sensitivity_answer import (
    CurvePoint,
    FailureShares,
    Regression,
    SensitivityRow,
    Wins,
)
from steptime.records.warmup import Floats

MAX_LEVELS = 12  # that failures are counted by; more are put together
SIGNIFICANCE = 0.05  # of a dependence, over all hyperparameters
FAILURE_ASSUMPTIONS = ("zero", "low", "high")  # values that failed networks might have had
MIN_NETWORKS = 3


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
    z = regression.standardise(np.stack(_scale_columns(design), axis=1), has_value)
    fitted = _fit_terms(design, z, order)
    if fitted is None:
        return None
    rows, curves = _make_rows(design, fitted)
    wins = None
    if is_paired:
        rows, wins = _fit_wins(design, rows, z[has_value])
    rows.sort(key=lambda row: -abs(row.weight or 0))
    rows += [_make_row(design, name, {"note": "never varies"}) for name in design.constants]
    summary = Regression(
        **msgspec.structs.asdict(design.place),
        networks=int(has_value.sum()),
        failed=int(design.has_failed.sum()),
        r2=fitted.fit.r2,
        r2_low=fitted.fit.r2_low,
        r2_high=fitted.fit.r2_high,
        r2_cross_validated=fitted.r2_cross_validated,
        weights={row.hyperparameter: row.weight for row in rows},
        never_varies=design.constants,
        curves=curves,
        wins=wins,
        failures=_list_failure_shares(design),
    )
    return rows, summary


class _FittedTerms(NamedTuple):
    """A regression on terms: hyperparameters, and products of two of them.

    Attributes:
        terms: the numbers of the hyperparameters of each term.
        independent: the terms that have a weight.
        combinations: for each other term, the terms that it is a sum of.
        fit: the regression on the independent terms.
        weights_if_failed: the weights if failed networks had a value, by the name of their cell.
        importances: of each hyperparameter, by its number.
        r2_cross_validated: the share of the variance that is explained for networks left out.
    """

    terms: Sequence[Sequence[int]]
    independent: Sequence[int]
    combinations: Mapping[int, Sequence[int]]
    fit: regression.RegressionFit
    weights_if_failed: Mapping[str, Floats]
    importances: Floats
    r2_cross_validated: float


def _fit_terms(design: DesignMatrix, z: Floats, order: int) -> _FittedTerms | None:
    """Return the regression on standardised columns; None for fewer networks than weights."""
    has_value = ~design.has_failed
    y = np.log2(design.values) if design.is_log else design.values  # doublings
    columns, terms = regression.make_terms(z, order)
    independent, combinations = regression.find_independent(columns[has_value])
    if has_value.sum() < len(independent) + 2:  # the intercept, and one to spare
        return None
    fit = regression.fit_columns(columns[has_value][:, independent], y[has_value], regression.DRAWS)
    weights_if_failed = _fit_with_failed(design, columns[:, independent], y)
    r2_cross_validated, importances = regression.cross_validate(z[has_value], y[has_value], order)
    return _FittedTerms(
        terms=terms,
        independent=independent,
        combinations=combinations,
        fit=fit,
        weights_if_failed=weights_if_failed,
        importances=importances,
        r2_cross_validated=r2_cross_validated,
    )


def _make_rows(
    design: DesignMatrix, fitted: _FittedTerms
) -> tuple[list[SensitivityRow], list[CurvePoint]]:
    """Return a row for each term of a regression, and the curves of single hyperparameters."""
    names = [_name_term([design.regressors[i] for i in term]) for term in fitted.terms]
    rows: list[SensitivityRow] = []
    curves: list[CurvePoint] = []
    for number, (name, term) in enumerate(zip(names, fitted.terms, strict=True)):
        if number in fitted.independent:
            base_text = design.base_texts.get(name)
            cells = _weight_cells(fitted, number)
            cells["note"] = None if base_text is None else f"against {base_text}"
        else:
            combination = [names[i] for i in fitted.combinations[number]]
            cells = {"note": f"collinear with {', '.join(combination) or 'a constant'}"}
        is_single = len(term) == 1
        if is_single:
            effect, curve = measure_effect(design, name)
            cells |= {"importance": float(fitted.importances[number]), **effect}
            curves += curve
        rows.append(_make_row(design, name, cells))
    return rows, curves


def _make_row(design: DesignMatrix, hyperparameter: str, cells: Effect) -> SensitivityRow:
    """Return the row of a hyperparameter or of a product of two, in the place of the networks."""
    place = msgspec.structs.asdict(design.place)
    return msgspec.convert({**place, "hyperparameter": hyperparameter, **cells}, SensitivityRow)


def _scale_columns(design: DesignMatrix) -> list[Floats]:
    """Return the columns of the regression, their logarithms if all are above 0."""
    columns = [design.columns[name] for name in design.regressors]
    return [np.log2(x) if design.is_log and (x > 0).all() else x for x in columns]


def _weight_cells(fitted: _FittedTerms, term: int) -> Effect:
    """Return the cells of a row that hold the weight of a term or an end of its interval."""
    weights = {**_weight_columns(fitted.fit), **fitted.weights_if_failed}
    names = ("weight", "low", "high", *(f"weight_if_failed_{name}" for name in FAILURE_ASSUMPTIONS))
    index = fitted.independent.index(term)  # only independent terms have a weight
    return {name: float(weights[name][index]) for name in names if name in weights}


def _weight_columns(fit: regression.RegressionFit) -> dict[str, Floats]:
    """Return the weights and the ends of their intervals, if they have any."""
    if fit.low is None or fit.high is None:
        return {"weight": fit.weight}
    return {"weight": fit.weight, "low": fit.low, "high": fit.high}


def _name_term(names: Sequence[str]) -> str:
    """Return the name of a term: a hyperparameter, its square `x^2` or a product `x x y`."""
    return f"{names[0]}^2" if len(names) > len(set(names)) else " x ".join(names)


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
        shares = _failed_share_by_level(x, level, has_failed)
        p = regression.measure_dependence(level, has_failed)
        corrected_p = None if p is None else p * len(design.columns)  # Bonferroni
        depends = None if corrected_p is None else bool(corrected_p < SIGNIFICANCE)
        failures.append(
            FailureShares(hyperparameter=name, failed_share=shares, p=p, depends=depends)
        )
    return failures


def _failed_share_by_level(
    x: Floats, level: NDArray[np.int64], has_failed: NDArray[np.bool_]
) -> dict[str, float]:
    """Return the share of failed networks by the values of each level, such as `4` or `8..16`."""
    shares = {}
    for number in range(int(level.max()) + 1):
        is_level = level == number
        low, high = x[is_level].min(), x[is_level].max()
        text = f"{low:g}" if low == high else f"{low:g}..{high:g}"
        shares[text] = float(has_failed[is_level].mean())
    return shares


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
    for number, log_odds, reach in zip(column_numbers, odds, half_width, strict=True):
        rows_with_odds[number] = _add_odds(rows[number], float(log_odds), float(reach))
    wins = msgspec.structs.replace(
        wins, accuracy_share=accuracy, separable=is_separable, ridge=ridge
    )
    return rows_with_odds, wins


def _add_odds(row: SensitivityRow, log_odds: float, half_width: float) -> SensitivityRow:
    """Return a row with the log-odds of the first platform to win, and their interval."""
    return msgspec.structs.replace(
        row,
        win_log_odds=log_odds,
        win_low=log_odds - half_width,
        win_high=log_odds + half_width,
    )
