"""A calibration of devices with measured steps of trainings and servers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import hypot
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from steptime.calibration.choice import draw_evenly
from steptime.calibration.device import moved_constants, tabulate_errors
from steptime.calibration.fit import fit_constants, leave_out_residuals
from steptime.calibration.plan_rows import Question, Reply
from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from steptime.prediction import cost_model
from steptime.prediction.calibrated.interval import LEVEL
from steptime.prediction.calibrated.method import calibrated_device
from steptime.prediction.method import Method
from steptime.prediction.prices import Floats
from steptime.records.record import current_time
from steptime.records.row import group_by

QUANTITIES = ("step_s", "tpot_s", "request_s", "tokens_per_s_per_device")  # the first measured
CONSTANTS = (
    "product.tensor_share",
    "attention.share",
    "attention.share_new",
    "stream.share_hbm",
    "stream.share_gddr",
    "training.exchange_s",
    "training.layer_s",
    "serving.step_s",
    "serving.sequence_s",
    "serving.exchange_s",
)
STEP = 0.1  # of the log of a constant: the finite difference of its slope
# Residuals in units of the half width of an interval: a share of LEVEL lies within 1.
RESIDUAL_DISTRIBUTION = NormalDist(sigma=-1 / NormalDist().inv_cdf((1 - LEVEL) / 2))
PRIOR_ROWS = 10  # rows that the interval of other devices counts for beside those that were drawn


PredictedStep = tuple[Question, Reply]
PredictedSteps = Sequence[PredictedStep]


class _LinearRows(NamedTuple):
    """Rows whose log prediction is linear in the logs of constants.

    Attributes:
        seconds: the measured values.
        prior_values: the predictions at `start`.
        slopes: derivatives of ln(predicted) by the logs of constants, as [rows, constants].
        start: the values of the constants.
    """

    seconds: Floats
    prior_values: Floats
    slopes: Floats
    start: Floats

    def predict_s(self, constants: Mapping[str, float], /) -> Floats:
        """Return the prediction of each row under constants in the order of `start`."""
        log_changes = np.log([*constants.values()] / self.start)
        predicted: Floats = self.prior_values * np.exp(self.slopes @ log_changes)
        return predicted

    def take(self, indices: Sequence[int]) -> _LinearRows:
        """Return some of the rows."""
        return _LinearRows(
            self.seconds[indices], self.prior_values[indices], self.slopes[indices], self.start
        )


class _GroupKey(NamedTuple):
    """The device, the stack and the form of interval of some rows."""

    device: str
    stack: str
    interval_form: str


class _DeviceFit(NamedTuple):
    """A calibration with drawn rows, and their ln(measured / predicted) when they are left out."""

    table: JsonObject
    residuals: Floats


class _DeviceRows:
    """Rows of one device, stack and form, ready to be fitted again and again."""

    def __init__(self, steps: PredictedSteps, key: _GroupKey) -> None:
        self.interval_form = key.interval_form
        self.priors, self.half_width = _find_free_priors(key)
        measured = [
            question.measured[_first_measured_quantity(question, reply)]
            for question, reply in steps
        ]
        prior_values = _predict_quantities(steps, constants={})
        # Each constant is moved by STEP in ln: rows are linear in the logs of constants.
        values_by_constant = np.array(  # [constants, rows]
            [
                _predict_quantities(steps, {name: prior.value * np.exp(STEP)})
                for name, prior in self.priors.items()
            ]
        )
        self.rows = _LinearRows(
            seconds=np.array(measured),
            prior_values=prior_values,
            slopes=np.log(values_by_constant / prior_values).T / STEP,
            start=np.array([prior.value for prior in self.priors.values()]),
        )

    def draw_indices(self, points: int, seed: int) -> list[int]:
        """Draw indices of rows, spread evenly over their predicted times."""
        draw = random.Random(seed)  # noqa: S311  # a draw of rows keeps no secret
        return draw_evenly(list(np.log(self.rows.prior_values)), points, draw)

    def fit(self, indices: Sequence[int]) -> _DeviceFit:
        """Fit constants and intervals to the rows of these indices."""
        rows = self.rows.take(indices)
        # `RESIDUAL_DISTRIBUTION` has a half-width of 1 for its central 80 %.
        sigma = self.half_width * RESIDUAL_DISTRIBUTION.stdev
        constants = fit_constants([rows], self.priors, sigma=sigma)
        residuals = leave_out_residuals(rows, self.priors, constants, sigma)
        # Residuals of the prior, so that few rows do not make the interval certain.
        prior_quantiles = (np.arange(PRIOR_ROWS) + 0.5) / PRIOR_ROWS
        prior_residuals = [
            self.half_width * RESIDUAL_DISTRIBUTION.inv_cdf(share) for share in prior_quantiles
        ]
        interval_quantiles = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
        interval_ends = np.quantile([*residuals, *prior_residuals], interval_quantiles)
        table = {
            "constants": moved_constants(constants, self.priors),
            "intervals": {self.interval_form: [float(f"{end:.3g}") for end in interval_ends]},
        }
        return _DeviceFit(table, residuals)


def _group_by_device(steps: PredictedSteps) -> dict[_GroupKey, list[PredictedStep]]:
    """Return the rows with a measured quantity, by device, stack and form."""
    usable_steps = [step for step in steps if _first_measured_quantity(*step)]

    def find_group(step: PredictedStep) -> _GroupKey:
        question, reply = step
        return _GroupKey(
            device=question.texts["device"], stack=reply.stack, interval_form=reply.form
        )

    return group_by(usable_steps, find_group)


class CalibratedDraw(NamedTuple):
    """A row that was not drawn, predicted before and after a calibration with the drawn rows."""

    seed: int
    question: Question
    before: Reply
    after: Reply


def draw_calibrations(steps: PredictedSteps, points: int, draws: int) -> Iterator[CalibratedDraw]:
    """Calibrate each device, stack and form with drawn rows; yield the other rows of each draw.

    Raises:
        InputError: if no group has more rows than are drawn.
    """
    groups = {key: group for key, group in _group_by_device(steps).items() if len(group) > points}
    if not groups:
        raise InputError(f"no row is left to check beside {points} of each device and stack")
    for key, group in groups.items():
        device_rows = _DeviceRows(group, key)
        for seed in range(draws):
            indices = device_rows.draw_indices(points, seed)
            method = _calibrated_method(device_rows.fit(indices).table)
            for index, (question, reply) in enumerate(group):
                if index not in indices:
                    yield CalibratedDraw(seed, question, reply, question.reply(method))


def calibrate_with_steps(steps: PredictedSteps, points: int) -> JsonObject:
    """Fit the device, stack and form with most rows; return the table `calibration`.

    Args:
        steps: the rows with their predictions.
        points: the number of rows to fit.

    Raises:
        InputError: if no row has a measured quantity.
    """
    groups = _group_by_device(steps)
    if not groups:
        raise InputError("calibrate: no row has a measured time")
    key = max(groups, key=lambda key: len(groups[key]))
    group = groups[key]
    device_rows = _DeviceRows(group, key)
    indices = device_rows.draw_indices(min(points, len(group)), seed=0)
    table, residuals = device_rows.fit(indices)
    return {
        "date": current_time(),
        "stack": key.stack,
        "points": len(indices),
        **table,
        "errors": tabulate_errors(["step"] * len(indices), residuals),
    }


def _first_measured_quantity(question: Question, reply: Reply) -> str:
    """Return the quantity of a row that is fitted, "" if none is both measured and predicted."""
    for name in QUANTITIES:
        if name in question.measured and name in reply.values:
            return name
    return ""


def _find_free_priors(key: _GroupKey) -> tuple[dict[str, Constant], float]:
    """Return the priors of the constants that rows can tell, and the half width of their interval.

    The half width is that of a row's own part. A device that the stack was fitted on has smaller
    spreads: the part that its plans share.
    """
    priors = catalog.priors(catalog.device(key.device).kind, key.stack)
    fitted_devices = (catalog.stack(key.stack).fitted_on or {}).get("devices", ())
    free_priors = {
        name: priors[name] for name in CONSTANTS if name in priors and priors[name].value
    }
    tensor_share = free_priors["product.tensor_share"]
    neutral_products = tensor_share._replace(value=1.0)
    products = priors.get("training.products", neutral_products)
    # A stack's factor for products varies little among its plans, but from device to device as
    # much as the share of the tensor cores' peak that products reach.
    free_priors["training.products"] = products._replace(spread=tensor_share.spread)
    # A device that the stack was fitted on is known better: of the error that its products and
    # steps have in common only that of plans is left.
    if key.device in fitted_devices:
        shared_plan_width = priors[f"interval.{key.interval_form}_shared"].value
        shared_device_width = hypot(
            priors["interval.product_shared"].value, priors["interval.step"].value
        )
        factor = shared_plan_width / shared_device_width
        free_priors = {
            name: prior._replace(spread=factor * prior.spread)
            for name, prior in free_priors.items()
        }
    row_half_width = priors[f"interval.{key.interval_form}_own"].value
    return free_priors, row_half_width


def _calibrated_method(table: Mapping[str, Any]) -> Method:
    """Return the method `calibrated` for devices with the calibration of a table."""
    return replace(
        cost_model("calibrated"),
        derate=lambda device, dtype, settings: calibrated_device(
            device.with_calibration(table), dtype, settings
        ),
    )


def _predict_quantities(steps: PredictedSteps, constants: Mapping[str, float]) -> Floats:
    """Return the fitted quantity of each row under constants."""
    method = _calibrated_method({"constants": constants})
    values = []
    for question, reply in steps:
        prediction = question.reply(method)
        values.append(prediction.values[_first_measured_quantity(question, reply)].value)
    return np.array(values)
