"""Regressions of a quantity on the hyperparameters of networks, and of which networks fail."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.analysis import regression
from steptime.analysis.sensitivity_answer import (
    CurvePoint,
    FailureShares,
    Place,
    Regression,
    SensitivityRow,
    Wins,
)
from steptime.analysis.sensitivity_networks import Networks
from steptime.core.errors import InputError
from steptime.records.warmup import Floats

MAX_LEVELS = 12  # that failures are counted by; more are put together
SIGNIFICANCE = 0.05  # of a dependence, over all hyperparameters
LARGEST_LOG = 700.0  # of a ratio that a number holds
DOUBLING, HAVING = "doubling", "having it"  # changes that an effect is of
UNSET = "unset"  # the text of a hyperparameter that a network does not have
FILLS = ("zero", "low", "high")  # values that failed networks might have had
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
        bases: the most frequent text of a column of 0 and 1, by its name.
        constants: hyperparameters that were asked for, or always count, and never vary.
        names: the columns of the regression.
        codes: the place of each value among those of its column [networks, columns].
        is_log: whether numbers are logarithms.
    """

    place: Place
    values: Floats
    has_failed: NDArray[np.bool_]
    columns: dict[str, Floats]
    bases: dict[str, str]
    constants: list[str]
    names: list[str]
    codes: NDArray[np.int64]
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
    has_failed = np.isnan(values)
    columns: dict[str, Floats] = {}
    bases: dict[str, str] = {}
    constants: list[str] = []
    for column in networks.columns:
        numbers, column_bases = _encode(column)
        bases |= column_bases
        varying = {name: x for name, x in numbers.items() if _varies(x[~has_failed])}
        if numbers and not varying and column.name in (selected or defaults):
            constants.append(column.name)
        columns |= varying
    if is_log and (values <= 0).any():
        raise InputError("--scale log: not all numbers are above 0; leave it out")
    ranks = [np.unique(x, return_inverse=True)[1] for x in columns.values()]
    return DesignMatrix(
        place=networks.place,
        values=values,
        has_failed=has_failed,
        columns=columns,
        bases=bases,
        constants=constants,
        names=[n for n in columns if selected is None or n.partition("=")[0] in selected],
        codes=np.stack(ranks or [np.zeros(len(values), int)], axis=1),
        is_log=is_log,
    )


def _varies(x: Floats) -> bool:
    return bool((x != x[:1]).any())


def _encode(column: pl.Series) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return a hyperparameter as columns of numbers, and the most frequent text of each.

    There is no column if no network has it.
    """
    name = column.name
    if column.null_count() == len(column):
        return {}, {}
    is_number = column.dtype.is_numeric() or column.dtype == pl.Boolean()
    if is_number and not column.null_count():
        return {name: column.cast(pl.Float64()).to_numpy()}, {}
    if is_number:
        column = pl.Series(name, column.cast(pl.Float64()).to_numpy().astype(str)).set(
            column.is_null(), UNSET
        )
    texts = column.fill_null(UNSET).to_numpy()
    levels, counts = np.unique(texts.astype(str), return_counts=True)
    base, *rarer = levels[np.argsort(-counts, kind="stable")].tolist()
    indicators = {f"{name}={text}": (texts == text).astype(float) for text in rarer or [base]}
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
    if not design.names or has_value.sum() < MIN_NETWORKS:
        return None
    y = np.log2(design.values) if design.is_log else design.values
    z = regression.standardise(np.stack(_scale_columns(design), axis=1), has_value)
    columns, terms = regression.make_terms(z, order)
    independent, combinations = regression.find_independent(columns[has_value])
    if has_value.sum() < len(independent) + 2:
        return None
    fit = regression.fit_columns(columns[has_value][:, independent], y[has_value], regression.DRAWS)
    fills = _fit_filled(design, columns[:, independent], y)
    r2_cross_validated, importances = regression.cross_validate(z[has_value], y[has_value], order)
    weights = _weight_columns(fit) | fills
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
    fit: Mapping[str, Floats],
    independent: Sequence[int],
    combinations: Mapping[int, Sequence[int]],
    importances: Floats,
) -> tuple[list[SensitivityRow], list[CurvePoint]]:
    """Return a row for each term of a regression, and the curves of single hyperparameters."""
    names = [_name_term([design.names[i] for i in term]) for term in terms]
    place = msgspec.structs.asdict(design.place)
    rows: list[SensitivityRow] = []
    curves: list[CurvePoint] = []
    for number, (name, term) in enumerate(zip(names, terms, strict=True)):
        if number in independent:
            cells = _weight_cells(fit, independent.index(number))
            cells["note"] = f"against {design.bases[name]}" if name in design.bases else None
        else:
            parts = ", ".join(names[i] for i in combinations[number]) or "a constant"
            cells = {"note": f"collinear with {parts}"}
        if len(term) == 1:
            effect, curve = _measure_effect(design, name)
            cells |= {"importance": float(importances[number]), **effect}
            curves += curve
        rows.append(msgspec.convert({**place, "hyperparameter": name, **cells}, SensitivityRow))
    return rows, curves


def _scale_columns(design: DesignMatrix) -> list[Floats]:
    """Return the columns of the regression, their logarithms if all are above 0."""
    columns = [design.columns[name] for name in design.names]
    return [np.log2(x) if design.is_log and (x > 0).all() else x for x in columns]


def _weight_cells(fit: Mapping[str, Floats], place: int) -> Effect:
    """Return the cells of a row that hold a weight or an end of its interval."""
    names = ("weight", "low", "high", *(f"weight_if_failed_{fill}" for fill in FILLS))
    return {name: float(fit[name][place]) for name in names if name in fit}


def _weight_columns(fit: regression.RegressionFit) -> dict[str, Floats]:
    """Return the weights and the ends of their intervals, if they have any."""
    if fit.low is None or fit.high is None:
        return {"weight": fit.weight}
    return {"weight": fit.weight, "low": fit.low, "high": fit.high}


def _name_term(names: Sequence[str]) -> str:
    return f"{names[0]}^2" if len(names) > len(set(names)) else " x ".join(names)


def _measure_effect(design: DesignMatrix, name: str) -> tuple[Effect, list[CurvePoint]]:
    """Return the change for a doubled hyperparameter, all others equal, and the curve by level."""
    column = list(design.columns).index(name)
    x, y = design.columns[name], design.values
    doubles = "=" not in name
    places = np.flatnonzero(~design.has_failed & (y > 0) & ((x > 0) | (not doubles)))
    rank = design.codes[:, column]
    key = regression.hash_rows(np.delete(design.codes, column, axis=1))  # equal in all else
    places = places[np.lexsort((rank[places], key[places]))]
    is_pair = key[places[:-1]] == key[places[1:]]
    a, b = places[:-1][is_pair], places[1:][is_pair]
    effect: Effect = {"effect_of": DOUBLING if doubles else HAVING, "effect_pairs": len(a)}
    if not len(a):
        return effect, []
    growth = np.log(y[b] / y[a])
    steps = np.log2(x[b] / x[a]) if doubles else np.ones(len(a))
    ends = regression.estimate_clustered(growth / steps, key[a])
    for cell, end in zip(("effect_ratio", "effect_low", "effect_high"), ends, strict=True):
        effect[cell] = None if end is None or end > LARGEST_LOG else math.exp(end)
    curve = _trace_curve(name, np.unique(x).tolist(), growth, rank[a], rank[b]) if doubles else []
    return effect, curve


def _trace_curve(
    name: str,
    levels: Sequence[float],
    growth: Floats,
    rank_a: NDArray[np.int64],
    rank_b: NDArray[np.int64],
) -> list[CurvePoint]:
    """Return the quantity by level, as far as pairs of neighbouring levels reach."""
    curve: list[CurvePoint] = []
    height = 0.0
    for place in range(len(levels) - 1):
        steps = growth[(rank_a == place) & (rank_b == place + 1)]
        if not len(steps):
            break
        if not curve:
            point = CurvePoint(hyperparameter=name, pairs=len(steps), level=levels[0], ratio=1.0)
            curve.append(point)
        height += float(steps.mean())
        if height > LARGEST_LOG:
            break
        ratio, level = math.exp(height), levels[place + 1]
        curve.append(CurvePoint(hyperparameter=name, pairs=len(steps), level=level, ratio=ratio))
    return curve


def _fit_filled(design: DesignMatrix, x: Floats, y: Floats) -> dict[str, Floats]:
    """Return the weights if failed networks had 0, or the lowest or highest of their neighbours.

    If all neighbours failed, too, it is the lowest or highest of all.
    """
    if not design.has_failed.any():
        return {}
    low, high = regression.bound_by_neighbours(design.codes, y, np.flatnonzero(design.has_failed))
    fills = dict(zip(FILLS, (np.zeros(len(low)), low, high), strict=True))
    if design.is_log:
        del fills["zero"]  # which has no logarithm
    weights = {}
    for name, fill in fills.items():
        filled = y.copy()
        filled[design.has_failed] = fill
        weights[f"weight_if_failed_{name}"] = np.asarray(regression.fit_columns(x, filled).weight)
    return weights


def _list_failure_shares(design: DesignMatrix) -> list[FailureShares]:
    """Return the share of failed networks by level of each hyperparameter."""
    has_failed = design.has_failed
    failures = []
    for name, x in design.columns.items() if has_failed.any() else ():
        levels, code = np.unique(x, return_inverse=True)
        level_count = min(len(levels), MAX_LEVELS)
        level = code * level_count // len(levels)
        p = regression.measure_dependence(level, has_failed)
        shares = {}
        for is_level in (level == number for number in range(level_count)):
            ends = dict.fromkeys((x[is_level].min(), x[is_level].max()))
            shares["..".join(f"{end:g}" for end in ends)] = float(has_failed[is_level].mean())
        depends = None if p is None else bool(p * len(design.columns) < SIGNIFICANCE)
        failures.append(
            FailureShares(hyperparameter=name, failed_share=shares, p=p, depends=depends)
        )
    return failures


def _fit_wins(
    design: DesignMatrix, rows: Sequence[SensitivityRow], z: Floats
) -> tuple[list[SensitivityRow], Wins]:
    """Return rows with log-odds of the first platform to win, and how often it does."""
    is_win = design.values[~design.has_failed] > 1
    share = float(is_win.mean())
    wins = Wins(share=share, majority_share=max(share, 1 - share))
    if share in (0.0, 1.0):
        return list(rows), wins
    independent, _ = regression.find_independent(z)
    is_separable = regression.is_separable(z[:, independent], is_win)
    ridge = regression.RIDGE if is_separable else 0.0
    odds, reach, accuracy = regression.fit_logistic(z[:, independent], is_win.astype(float), ridge)
    with_odds = list(rows)
    for place, number in enumerate(independent):
        centre, half = float(odds[place]), float(reach[place])
        with_odds[number] = msgspec.structs.replace(
            rows[number],
            win_log_odds=centre,
            win_low=centre - half,
            win_high=centre + half,
        )
    wins = msgspec.structs.replace(
        wins, accuracy_share=accuracy, separable=is_separable, ridge=ridge
    )
    return with_odds, wins
