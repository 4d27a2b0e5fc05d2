"""The calibration of a device: measured cases become the table `calibration` of its file."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, log
from typing import Any

import numpy as np
from scipy.special import ndtri

from steptime.calibration.cases import Case, priors_of
from steptime.calibration.choice import choose_cases
from steptime.calibration.columns import Columns
from steptime.calibration.fit import (
    SIGMA,
    constants_of,
    fit_constants,
    indices_by_family,
    influential_constants,
    leave_out_residuals,
)
from steptime.calibration.residual_model import learn_residuals
from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.core.values import parse_count
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants
from steptime.prediction.calibrated.interval import LEVEL, interval_name
from steptime.prediction.calibrated.method import form_name
from steptime.prediction.prices import Floats
from steptime.records.ratios import relative_errors
from steptime.records.record import current_time

MIN_CHANGE = 0.005  # in ln: a constant that moved less keeps the value of its prior
MIN_OP_SIGMA = 0.05  # of ln(measured / predicted) of a single op
PRIOR_CASES = 10  # cases that the interval of the priors counts as

IntervalTable = dict[str, list[float]]  # by form: low and high ln(measured / predicted)


def calibrate(
    device: Device,
    cases: Sequence[Case],
    points: int | None = 60,
    source: str = "",
    facts: Mapping[str, Any] | None = None,
    priors: Mapping[str, Constant] | None = None,
) -> JsonObject:
    """Fit the constants of a device to measured cases, and return its table `calibration`.

    Keys of the table:
        constants: those that moved from the priors.
        errors: cross-validated `mape` and `bias` (the mean of ln(predicted / measured)) of each
            kind of case.
        intervals: for each form, between which ln(measured / predicted) 80 % of cases lie that
            were not fitted.
        alone: constants of single ops, where they differ; `products` and `steps`: the residual
            model of matrix products and of steps behind a host.
        infer: on a GPU with trainings, too, the constants, `steps` and intervals of inference, of
            which trainings say nothing; without trainings, `train` has the intervals of the priors.

    Args:
        device: the device; an earlier calibration is ignored.
        cases: measured cases. Steps of other stacks than the one with most steps are left out,
            since a host takes other times under each stack.
        points: number of cases to fit, None for all.
        source: where the cases come from, for the table.
        facts: further keys of the table, such as versions.
        priors: those of the constants, None for those of the device's kind and of the stack.

    Raises:
        InputError: if there is no case.
    """
    if not cases:
        raise InputError(f"{device.name}: no row to calibrate with")
    if points is not None:
        points = parse_count(points, "points")
    stack, has_steps = _commonest_stack(cases)
    stack_cases = [case for case in cases if case.is_single_op or _stack_of(case) == stack]
    uncalibrated = device.with_calibration({})  # an earlier calibration is no prior
    fitted_cases = [
        replace(case, device=uncalibrated) for case in choose_cases(stack_cases, points)
    ]
    return {
        "date": current_time(),
        "source": source or f"{len(fitted_cases)} rows",
        "points": len(fitted_cases),
        **({"stack": stack} if has_steps else {}),
        **(facts or {}),
        **_fit_tables(fitted_cases, priors_of(device, stack) if priors is None else priors),
    }


def _fit_tables(cases: Sequence[Case], priors: Mapping[str, Constant]) -> JsonObject:
    """Return the constants, errors, intervals and residual models that are fitted to cases."""
    columns = Columns(cases)
    constants = fit_step_constants(columns, priors)
    # Residuals are those of cases that were left out of the fit. `residuals` are what is left of
    # them after the tables of residuals correct predictions.
    left_out_residuals = leave_out_residuals(columns, priors, constants, families=columns.families)
    residual_tables, residuals = learn_residuals(columns, constants, left_out_residuals)
    phase_tables = fit_phases(columns, priors, residuals)  # sets the residuals of their cases
    op_tables: JsonObject = {}
    op_indices = _find_indices(cases, lambda case: case.is_single_op)
    if op_indices and columns.device.kind == "gpu":
        op_cases = [cases[index] for index in op_indices]
        op_tables, op_residuals = fit_single_ops(op_cases, residuals[op_indices], priors, constants)
        residuals[op_indices] = op_residuals
    shared_indices = _find_indices(cases, lambda case: case.phase not in phase_tables)
    shared_columns = Columns([cases[index] for index in shared_indices])
    return {
        "constants": moved_constants(constants, priors),
        "errors": tabulate_errors([case.kind for case in cases], residuals),
        "intervals": fit_intervals(shared_columns, constants, residuals[shared_indices]),
        **residual_tables,
        **phase_tables,
        **op_tables,
    }


def _find_indices(cases: Sequence[Case], has_property: Callable[[Case], bool]) -> list[int]:
    """Return the indices of the cases that have a property."""
    return [index for index, case in enumerate(cases) if has_property(case)]


def _commonest_stack(cases: Sequence[Case]) -> tuple[str, bool]:
    """Return the stack of most steps, or of most cases without steps; and whether steps exist."""
    step_stacks = Counter(_stack_of(case) for case in cases if not case.is_single_op)
    stacks = step_stacks or Counter(map(_stack_of, cases))
    ((stack, _),) = stacks.most_common(1)
    return stack, bool(step_stacks)


def fit_step_constants(columns: Columns, priors: Mapping[str, Constant]) -> dict[str, float]:
    """Return the constants of steps, fitted to steps alone or to steps and single ops.

    Single ops on a GPU are short and cold, so that they say nothing of steps by themselves. They
    count if steps that are left out have smaller residuals with them than without.
    """
    steps = [case for case in columns.cases if not case.is_single_op]
    if columns.device.kind != "gpu" or len(steps) == len(columns.cases):
        return fit_constants([columns], priors)
    # Single ops on a GPU are short and cold: alone they say nothing of steps.
    if not steps:
        return constants_of(priors)
    step_columns = Columns(steps)
    is_step = np.array([not case.is_single_op for case in columns.cases])
    constants_of_steps = fit_constants([step_columns], priors)
    constants_of_all = fit_constants([columns], priors)
    residuals_by_all = leave_out_residuals(
        columns, priors, constants_of_all, families=columns.families
    )
    residuals_by_steps = leave_out_residuals(
        step_columns, priors, constants_of_steps, families=step_columns.families
    )
    # Single ops are used only if steps that are left out are predicted better with them.
    fits_steps_better = np.abs(residuals_by_all[is_step]).mean() < np.abs(residuals_by_steps).mean()
    return constants_of_all if fits_steps_better else constants_of_steps


def fit_phases(
    columns: Columns, priors: Mapping[str, Constant], residuals: Floats
) -> dict[str, JsonObject]:
    """Return the tables of single phases on a GPU; set `residuals` of inference steps in place.

    A host takes other times where nothing is trained, and so do kernels that run again in the
    backward pass: trainings say nothing of inference. If all steps are inference, trainings take
    its constants, with the intervals of a device that was never measured.
    """
    # Cases of no phase ("") are single ops.
    phases = {case.phase for case in columns.cases} - {""}
    if columns.device.kind != "gpu" or not phases:
        return {}
    # A phase takes what its table leaves out from the device's table, which is fitted to all cases.
    # What is empty in its table it takes from the priors.
    if phases == {"infer"}:  # trainings take the constants of inference, not their intervals
        return {"train": {"intervals": {}}}
    if phases == {"train"}:  # inference takes nothing of trainings
        return {"infer": {"constants": {}, "steps": [], "intervals": {}}}
    indices = [index for index, case in enumerate(columns.cases) if case.phase == "infer"]
    infer_columns = Columns([columns.cases[index] for index in indices])
    constants = fit_constants([infer_columns], priors)
    left_out_residuals = leave_out_residuals(
        infer_columns, priors, constants, families=infer_columns.families
    )
    # In place: the errors that the caller tabulates are of these residuals.
    residual_tables, residuals[indices] = learn_residuals(
        infer_columns, constants, left_out_residuals
    )
    infer_table = {
        "constants": moved_constants(constants, priors),
        "steps": residual_tables.get("steps", []),
        "intervals": fit_intervals(infer_columns, constants, residuals[indices]),
    }
    return {"infer": infer_table}


def fit_single_ops(
    cases: Sequence[Case],
    residuals: Floats,
    priors: Mapping[str, Constant],
    step_constants: Constants,
) -> tuple[JsonObject, Floats]:
    """Fit constants of single ops; return their tables and the residuals of the ops left out.

    The tables are `alone`, the constants that differ from those of steps, and `products`.
    Constants that the ops do not influence stay as steps have them.

    Args:
        cases: single ops.
        residuals: their ln(measured / predicted) under the constants of steps. The forms hold more
            closely for one op than for a network of them: the median of these is the sigma.
        priors: the priors of the constants.
        step_constants: the constants of steps.
    """
    columns = Columns(cases)
    # The formulas of kernels are closer for one op than for a network: the median says how much.
    sigma = float(np.clip(np.median(np.abs(residuals)), MIN_OP_SIGMA, SIGMA))
    step_priors = {
        name: prior._replace(value=step_constants[name]) for name, prior in priors.items()
    }
    influential_priors = {name: priors[name] for name in influential_constants([columns], priors)}
    # Constants that ops influence start from the priors, all others stay as steps have them.
    op_priors = step_priors | influential_priors
    op_constants = fit_constants([columns], op_priors, sigma=sigma)
    left_out_residuals = leave_out_residuals(
        columns, op_priors, op_constants, sigma, columns.families
    )
    residual_tables, op_residuals = learn_residuals(columns, op_constants, left_out_residuals)
    op_tables = {"alone": moved_constants(op_constants, step_priors), **residual_tables}
    return op_tables, op_residuals


def _stack_of(case: Case) -> str:
    """Return the stack of a case, the default one where it names none."""
    return case.stack or catalog.DEFAULT_STACK


def moved_constants(
    constants: Mapping[str, float], priors: Mapping[str, Constant]
) -> dict[str, float]:
    """Return the constants that differ from the priors, rounded to four digits.

    A prior of 0 switches an effect off: no row moves it.
    """

    def has_moved(name: str) -> bool:
        prior_value = priors[name].value
        return bool(prior_value) and abs(log(constants[name] / prior_value)) > MIN_CHANGE

    return {name: float(f"{constants[name]:.4g}") for name in constants if has_moved(name)}


def tabulate_errors(kinds: Sequence[str], residuals: Floats) -> dict[str, dict[str, float]]:
    """Return number, MAPE and bias of the cases of each kind, and of `all`.

    Args:
        kinds: the kind of each case.
        residuals: ln(measured / predicted) of each case.
    """
    kind_column = np.array(kinds)
    table = {}
    for kind in (*sorted(set(kind_column)), "all"):
        kind_residuals = residuals if kind == "all" else residuals[kind_column == kind]
        mape = relative_errors(np.exp(kind_residuals)).mean()
        table[str(kind)] = {
            "points": len(kind_residuals),
            "mape": float(f"{mape:.3g}"),
            "bias": float(f"{-kind_residuals.mean():.3g}"),  # positive: predicted too long
        }
    return table


def fit_intervals(columns: Columns, constants: Constants, residuals: Floats) -> IntervalTable:
    """Return the ends of the middle 80 % of ln(measured / predicted), by form, and of `all`.

    Split conformal: residuals are divided by the half width that the priors give each case, so
    that one quantile serves a step of many kernels and of one. `PRIOR_CASES` further shares are
    normal quantiles, so that few cases do not make anything certain; they are widened by
    sqrt(1 + 1 / families), since a mean of few networks is uncertain itself. Forms without a case
    are left out.

    Args:
        columns: the cases.
        constants: constants that were fitted to them.
        residuals: their ln(measured / predicted) when they are left out.
    """
    prior_widths = _prior_half_widths(columns, constants)
    case_widths = _find_case_widths(columns, constants, prior_widths, residuals)
    family_count = len(indices_by_family(columns.families))
    width_shares = np.concatenate([residuals / case_widths, _prior_width_shares(family_count)])
    low_share, high_share = _find_conformal_ends(width_shares)
    return {
        form: [float(f"{low_share * width:.3g}"), float(f"{high_share * width:.3g}")]
        for form, width in prior_widths.items()
    }


def _find_case_widths(
    columns: Columns, constants: Constants, prior_widths: Mapping[str, float], residuals: Floats
) -> Floats:
    """Return the half width in ln that the priors give each case, on the side of its residual."""
    # Each formula's prior width, set as its ends, gives each case a width by its kernels.
    prior_ends = {f"interval.{form}_low": -width for form, width in prior_widths.items()}
    prior_ends |= {f"interval.{form}_high": width for form, width in prior_widths.items()}
    value_s, low_s, high_s = columns.predict_intervals({**constants, **prior_ends})
    upper_widths = np.log(high_s / value_s)
    lower_widths = np.log(value_s / low_s)
    return np.where(residuals > 0, upper_widths, lower_widths)


def _find_conformal_ends(shares: Floats) -> tuple[float, float]:
    """Return the low and the high end of the middle 80 %, as split conformal prediction does.

    Of n shares it is the floor(0.1 (n + 1))th from either end.
    """
    ordered = np.sort(shares)
    share_count = len(ordered)
    low_rank = max(1, floor((1 - LEVEL) / 2 * (share_count + 1)))  # ranks from 1
    high_rank = min(share_count, ceil((1 + LEVEL) / 2 * (share_count + 1)))
    return float(ordered[low_rank - 1]), float(ordered[high_rank - 1])


def _prior_width_shares(family_count: int) -> Floats:
    """Return normal quantiles over the half width of their interval, as shares of prior cases."""
    normal_quantiles = ndtri((np.arange(PRIOR_CASES) + 0.5) / PRIOR_CASES)
    normal_half_width = ndtri((1 + LEVEL) / 2)
    width_shares: Floats = normal_quantiles / normal_half_width
    width_shares *= (1 + 1 / family_count) ** 0.5
    return width_shares


def _prior_half_widths(columns: Columns, constants: Constants) -> dict[str, float]:
    """Return the half width of the interval in ln of each form that a case runs, and of `all`."""
    forms = {form_name(kernel, columns.device) for case in columns.cases for kernel in case.kernels}
    forms.add("all")
    # The host has an interval, too, but repeated kernels show nothing of it.
    if any(case.condition != "repeated" for case in columns.cases):
        forms.add("host")
    # `_own` is the width of one device's error. Forms without one have the interval of all others.
    names = {form: f"interval.{form}_own" for form in sorted(forms)}
    names["all"] = f"interval.{interval_name('', constants)}_own"
    return {form: constants[name] for form, name in names.items() if name in constants}
