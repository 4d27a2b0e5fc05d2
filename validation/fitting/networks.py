"""Whole networks of a device that no constant has seen, and after 60 op rows of it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from steptime.calibration.cases import Case, conditions
from steptime.calibration.choice import choose_cases
from steptime.calibration.columns import Columns
from steptime.calibration.fit import fit_constants, log_residuals
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from steptime.prediction.prices import Floats
from validation.fitting import neusight, neusight_models
from validation.fitting.hierarchy import hierarchical
from validation.fitting.stages import STAGES, by_device, even

PER_KIND = 120  # op rows of a kind of a device
POINTS, DRAWS = 60, 5
FITTED = ("stream", "product")  # stages, one after the other


def table(data: Path, show: Callable[[str], None]) -> None:
    """Show errors of networks on each device: by constants of the others, with rows of its own.

    Constants are fitted to ops of the other devices; NeuSight's are its published predictions.
    """
    priors = {**catalog.priors("gpu"), **conditions()}
    runs = list(neusight_models.with_rivals(data))
    nets: dict[str, list[Case]] = defaultdict(list)
    rivals: dict[str, list[float]] = defaultdict(list)
    for case, rival in runs:
        nets[case.device.name].append(case)
        rivals[case.device.name].append((rival.neusight_s or np.nan) / case.seconds - 1)
    ops = by_device(chain(neusight.vectors(data), neusight.products(data)), PER_KIND)
    sets = [by_device(STAGES[stage].cases(data), PER_KIND) for stage in FITTED]
    columns = [{name: Columns(cases) for name, cases in one.items()} for one in sets]
    blind, after = [], []
    for name, cases in nets.items():
        known = without(name, columns, priors)
        own, rows = Columns(cases), Columns(ops[name])
        first = _off(own, known)
        draws = []
        for seed in range(DRAWS):
            constants = fit_constants([Columns(choose_cases(ops[name], POINTS, seed))], known)
            draws.append(_off(own, constants))
        show(
            f"{name:16} networks {_mape(first):5.1%} bias {first.mean():+.1%} ops"
            f" {_mape(_off(rows, known)):5.1%}, with {POINTS} rows {_mape(np.array(draws)):5.1%}"
            f" ({_span(draws)}), NeuSight {_mape(np.array(rivals[name])):5.1%} ({len(cases)})"
        )
        blind.append(first)
        after.append(draws)
    every = [np.concatenate([one[i] for one in after]) for i in range(DRAWS)]
    show(
        f"{'all':16} networks {_mape(np.concatenate(blind)):5.1%}, with {POINTS} rows"
        f" {_mape(np.concatenate(every)):5.1%} ({_span(every)}), NeuSight"
        f" {_mape(np.concatenate([np.array(one) for one in rivals.values()])):5.1%}"
    )


def without(
    name: str, sets: Sequence[Mapping[str, Columns]], priors: Mapping[str, Constant]
) -> dict[str, Constant]:
    """Return priors fitted to all devices but one, with the spreads that they have."""
    found = dict(priors)
    for stage, one in zip((STAGES[key] for key in FITTED), sets, strict=True):
        others = [columns for device, columns in one.items() if device != name]
        weights = [even(columns) for columns in others]
        values, _ = hierarchical(others, found, [*stage.free], weights, stage.shared, stage.held)
        found |= {key: found[key]._replace(value=values[key]) for key in stage.free}
    return found


def _off(columns: Columns, known: Mapping[str, Constant] | Mapping[str, float]) -> Floats:
    """Return predicted / measured - 1 of each case."""
    constants = {key: one.value if isinstance(one, Constant) else one for key, one in known.items()}
    found: Floats = np.exp(-log_residuals(columns, constants)) - 1
    return found


def _mape(off: Floats) -> float:
    return float(np.mean(np.abs(off)))


def _span(draws: Sequence[Floats]) -> str:
    each = [_mape(one) for one in draws]
    return f"{min(each):.1%} to {max(each):.1%}"
