"""The constants of host and scheduler of servers, fitted on runs of clients.

A regularised least squares of logarithms: the constants stay near those of the stack, by the
spread that its file gives them, and each network has a factor of its device's seconds near 1, so
that what is wrong with one network does not become a constant of the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any

import numpy as np

from steptime.calibration.client_runs import ClientRun
from steptime.core.errors import InputError
from steptime.core.progress import report_progress
from steptime.hardware import catalog
from steptime.serving.calibration import (
    CONSTANTS,
    NetworkFactor,
    ServingCalibration,
    network_key,
)
from steptime.serving.load import run_requests
from steptime.serving.phases import Phases
from steptime.serving.service import Service
from steptime.serving.times import run_service

ROW_DEVIATION = 0.03  # of ln(measured / predicted) of one quantity of a run
NETWORK_DEVIATION = 0.05  # of the logarithm of a network's factor: the kernels of others are off so
DEFAULT_SPREAD = 0.5  # of a constant whose file gives none
MIN_SHARE = 0.05  # of a constant of the stack, below which none falls
STEP_SHARE = 0.25  # of a constant, for derivatives by it
FACTOR_STEP = 0.02  # for derivatives by the logarithm of a factor
ROUNDS = 3  # of Gauss and Newton: times are nearly linear in the constants
REQUEST_INDEX, TTFT_INDEX = 0, 1  # places of the measured times of a run


@dataclass(frozen=True)
class ServedRun:
    """A run of a client, and the service that it used.

    Args:
        run: the run.
        service: the service, without a calibration.
        phases: its phases.
    """

    run: ClientRun
    service: Service
    phases: Phases

    @property
    def stack(self) -> str:
        """The stack of the service."""
        return self.phases.problem.method.settings.stack

    @property
    def device(self) -> str:
        """The device of the service."""
        return self.phases.problem.device.name

    @property
    def network(self) -> tuple[str, str]:
        """The network's dimensions and the device: what has a factor of its own."""
        return network_key(self.phases.problem.shape), self.device

    @property
    def measured(self) -> list[float]:
        """Logarithms of the measured seconds: of a request, and to the first token if known."""
        values_s = [self.run.request_s, self.run.ttft_s]
        return [log(value_s) for value_s in values_s if value_s is not None]

    def predict(self, calibration: ServingCalibration | None) -> list[float]:
        """Return the logarithms of the predicted seconds, those of `measured`."""
        phases = self.phases.with_calibration(calibration)
        load_run = run_service(self.service, self.run.load, phases, run_requests)
        values_s = [load_run.request.mean_s, load_run.ttft.mean_s]
        return [log(value_s) for value_s in values_s[: len(self.measured)]]


@dataclass(frozen=True)
class RunFit:
    """How far predictions of a run are off, as predicted / measured - 1.

    Args:
        run: the run.
        request_s: the predicted seconds of a request with the calibration.
        ttft_s: the same to the first token; None where it was not measured.
        request_before: error of a request with the constants of the stack.
        request_error: predicted / measured - 1 of the request, with the calibration.
        request_left_out: predicted / measured - 1 of the request, calibrated on the other runs;
            None of a single run.
        ttft_before: error of the time to the first token with the constants of the stack.
        ttft_error: predicted / measured - 1 of the TTFT, with the calibration.
        ttft_left_out: the same with the calibration of the other runs.
    """

    run: ServedRun
    request_s: float
    ttft_s: float | None
    request_before: float
    request_error: float
    request_left_out: float | None
    ttft_before: float | None
    ttft_error: float | None
    ttft_left_out: float | None


@dataclass(frozen=True)
class ServingFit:
    """A calibration, and how far it is off.

    Args:
        calibration: the calibration.
        runs: the errors of each run.
        stack_constants: the constants of the stack before.
    """

    calibration: ServingCalibration
    runs: tuple[RunFit, ...]
    stack_constants: Mapping[str, float]


class _Parameters:
    """The parameters of a fit: constants of the stack, then a factor of each network."""

    def __init__(self, runs: Sequence[ServedRun]) -> None:
        phases = runs[0].phases
        has_long_prompts = any(_has_long_prompts(run) for run in runs)
        # Short prompts say nothing of the constant of long ones.
        names = [name for name in CONSTANTS if has_long_prompts or name != "long_prompt_s"]
        self.stack = runs[0].stack
        self.stack_constants = {name: phases.constant(name) for name in names}
        # A constant that the stack has not (0) is not fitted.
        self.names = [name for name in names if self.stack_constants[name] > 0]
        self.networks = list(dict.fromkeys(run.network for run in runs))
        self.models = {run.network: run.service.model for run in runs}
        spreads = _stack_spreads(self.stack)
        constants = np.array([self.stack_constants[name] for name in self.names])
        relative_spreads = np.array([spreads.get(name, DEFAULT_SPREAD) for name in self.names])
        unit_per_network = np.ones(len(self.networks))
        # Constants as changes from the prior, then the logarithms of the networks' factors.
        self.prior_deviations = np.r_[
            constants * relative_spreads, NETWORK_DEVIATION * unit_per_network
        ]
        self.difference_steps = np.r_[-STEP_SHARE * constants, FACTOR_STEP * unit_per_network]
        # No constant falls below MIN_SHARE of the stack's; logs of factors are free.
        self.lowest_values = np.r_[(MIN_SHARE - 1) * constants, -np.inf * unit_per_network]

    def __len__(self) -> int:
        return len(self.names) + len(self.networks)

    def calibration(self, parameter_values: Any) -> ServingCalibration:
        """Return the calibration of values: changes of constants, logarithms of factors."""
        constant_count = len(self.names)
        changes = dict(zip(self.names, parameter_values[:constant_count], strict=True))
        constants = {
            name: float(constant + changes.get(name, 0.0))
            for name, constant in self.stack_constants.items()
        }
        log_factors = parameter_values[constant_count:]
        factors = [
            NetworkFactor(self.models[dimensions, device], dimensions, device, exp(log_factor))
            for (dimensions, device), log_factor in zip(self.networks, log_factors, strict=True)
        ]
        # Source and number of runs are for files: it only serves predictions.
        return ServingCalibration(
            self.stack, source="", run_count=0, constants=constants, factors=tuple(factors)
        )

    def has_effect(self, parameter: int, run: ServedRun) -> bool:
        """Return whether a parameter can change the times of a run."""
        constant_count = len(self.names)
        is_constant = parameter < constant_count
        return is_constant or self.networks[parameter - constant_count] == run.network

    def solve(self, slopes: Any, residuals: Any) -> Any:
        """Return the most likely parameters of a linear model: residuals = slopes x parameters."""
        weight = ROW_DEVIATION**-2
        normal = weight * slopes.T @ slopes + np.diag(self.prior_deviations**-2.0)
        solution = np.linalg.solve(normal, weight * slopes.T @ residuals)
        return np.maximum(solution, self.lowest_values)


def fit_serving(runs: Sequence[ServedRun], source: str) -> ServingFit:
    """Fit the constants of host and scheduler on runs of clients.

    The error of a left-out run is that of a fit on the other runs, by the same linear model.

    Args:
        runs: the runs, all of the same stack.
        source: the files of the runs.

    Raises:
        InputError: for runs of several stacks, and for services that cannot be.
    """
    _check_stacks(runs)
    parameters = _Parameters(runs)
    measured_logs = [np.array(run.measured) for run in runs]
    logs_before = [np.array(run.predict(calibration=None)) for run in runs]
    parameter_values = np.zeros(len(parameters))
    slopes = _find_slopes(runs, parameters, parameter_values, logs_before)
    predicted_logs = logs_before
    # Gauss-Newton with slopes of the start, since times are nearly linear in the constants.
    for _ in range(ROUNDS):
        parameter_values = _solve_linear_model(
            parameters, slopes, parameter_values, predicted_logs, measured_logs
        )
        predicted_logs = _predict_logs(runs, parameters, parameter_values)
    fitted = parameters.calibration(parameter_values)
    left_out_logs = _predict_left_out(
        runs, parameters, slopes, parameter_values, predicted_logs, measured_logs
    )
    rows = tuple(
        map(_make_run_fit, runs, measured_logs, logs_before, predicted_logs, left_out_logs)
    )
    calibration = ServingCalibration(
        stack=fitted.stack,
        source=source,
        run_count=len(runs),
        constants=fitted.constants,
        factors=fitted.factors,
        request_error=_median_error([row.request_left_out for row in rows]),
        ttft_error=_median_error([row.ttft_left_out for row in rows]),
    )
    return ServingFit(calibration, rows, parameters.stack_constants)


def _find_slopes(
    runs: Sequence[ServedRun],
    parameters: _Parameters,
    parameter_values: Any,
    predicted_logs: Sequence[Any],
) -> list[Any]:
    """Return the derivatives of each run's logarithms by the parameters: [logs, parameters]."""
    slopes = []
    for run_number, (run, logs) in enumerate(zip(runs, predicted_logs, strict=True), start=1):
        run_slopes = np.zeros((len(logs), len(parameters)))
        for parameter, step in enumerate(parameters.difference_steps):
            # Otherwise the slope stays 0, and no simulation is spent on it.
            if parameters.has_effect(parameter, run):
                moved_values = parameter_values.copy()
                moved_values[parameter] += step
                moved_logs = run.predict(parameters.calibration(moved_values))
                run_slopes[:, parameter] = (moved_logs - logs) / step
        slopes.append(run_slopes)
        report_progress("runs", run_number, len(runs))
    return slopes


def _predict_logs(
    runs: Sequence[ServedRun], parameters: _Parameters, parameter_values: Any
) -> list[Any]:
    calibration = parameters.calibration(parameter_values)
    return [np.array(run.predict(calibration)) for run in runs]


def _solve_linear_model(
    parameters: _Parameters,
    slopes: Sequence[Any],
    parameter_values: Any,
    predicted_logs: Sequence[Any],
    measured_logs: Sequence[Any],
) -> Any:
    """Return the most likely parameters of the linear model around `parameter_values`."""
    # What the logs would be at parameters of 0, by the linear model.
    targets = [
        measured - predicted + run_slopes @ parameter_values
        for measured, predicted, run_slopes in zip(
            measured_logs, predicted_logs, slopes, strict=True
        )
    ]
    return parameters.solve(np.concatenate(slopes), np.concatenate(targets))


def _predict_left_out(
    runs: Sequence[ServedRun],
    parameters: _Parameters,
    slopes: Sequence[Any],
    parameter_values: Any,
    predicted_logs: Sequence[Any],
    measured_logs: Sequence[Any],
) -> list[Any]:
    """Return each run's logarithms by a fit on the others, None where there are no others.

    Runs of one file are left out together, unless there is one file alone.
    """
    groups = [served_run.run.group for served_run in runs]  # the file that each is read from
    if len(set(groups)) == 1:
        # A single file: its runs are left out one by one.
        groups = [served_run.run.place for served_run in runs]
    if len(set(groups)) == 1:
        # A single run has no others.
        return [None] * len(runs)
    values_by_left_out_group = {}  # by the group that is left out
    for left_out_group in dict.fromkeys(groups):
        training_indices = [i for i, group in enumerate(groups) if group != left_out_group]
        values_by_left_out_group[left_out_group] = _solve_linear_model(
            parameters,
            [slopes[i] for i in training_indices],
            parameter_values,
            [predicted_logs[i] for i in training_indices],
            [measured_logs[i] for i in training_indices],
        )
    return [
        logs + run_slopes @ (values_by_left_out_group[group] - parameter_values)
        for logs, run_slopes, group in zip(predicted_logs, slopes, groups, strict=True)
    ]


def _make_run_fit(
    run: ServedRun, measured_logs: Any, logs_before: Any, predicted_logs: Any, left_out_logs: Any
) -> RunFit:
    """Return the errors of a run from logarithms of its seconds."""
    has_ttft = len(measured_logs) > TTFT_INDEX

    def relative_error(logs: Any, quantity: int) -> float | None:
        if logs is None or quantity >= len(measured_logs):
            return None
        return float(exp(logs[quantity] - measured_logs[quantity]) - 1)

    return RunFit(
        run=run,
        request_s=exp(predicted_logs[REQUEST_INDEX]),
        ttft_s=exp(predicted_logs[TTFT_INDEX]) if has_ttft else None,
        request_before=relative_error(logs_before, REQUEST_INDEX) or 0.0,
        request_error=relative_error(predicted_logs, REQUEST_INDEX) or 0.0,
        request_left_out=relative_error(left_out_logs, REQUEST_INDEX),
        ttft_before=relative_error(logs_before, TTFT_INDEX),
        ttft_error=relative_error(predicted_logs, TTFT_INDEX),
        ttft_left_out=relative_error(left_out_logs, TTFT_INDEX),
    )


def _median_error(errors: Sequence[float | None]) -> float | None:
    """Return the median size of the errors that are known; None without any."""
    magnitudes = [abs(error) for error in errors if error is not None]
    return median(magnitudes) if magnitudes else None


def _has_long_prompts(run: ServedRun) -> bool:
    """Return whether prompts have more tokens to read than CUDA graphs replay."""
    tokens = max(run.run.load.inputs) * (1 - run.service.prefix)
    return tokens > run.phases.constant("graph_tokens")


def _stack_spreads(stack: str) -> dict[str, float]:
    """Return the relative spreads of a stack's constants of serving."""
    priors = catalog.stack(stack).serving
    return {
        name: priors[name].spread for name in CONSTANTS if name in priors and priors[name].spread
    }


def _check_stacks(runs: Sequence[ServedRun]) -> None:
    stacks = list(dict.fromkeys(run.stack for run in runs))
    if len(stacks) > 1:
        text = f"calibrate --serving: runs of several stacks: {', '.join(stacks)}"
        raise InputError(f"{text}; nearest: a calibration of each, or --server stack={stacks[0]}")
