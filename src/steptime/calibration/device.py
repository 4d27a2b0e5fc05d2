"""A device calibrated: from rows that were measured on it to the table that its file keeps."""

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, log
from typing import Any

import numpy as np
from scipy.special import ndtri

from steptime.calibration.cases import Case, priors_of
from steptime.calibration.columns import Columns
from steptime.calibration.fit import SIGMA, constants_of, fitted, left_out, together, told_by
from steptime.calibration.left_over import learnt
from steptime.core.errors import InputError
from steptime.core.values import parse_count
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants
from steptime.prediction.calibrated.interval import LEVEL, known_as
from steptime.prediction.calibrated.method import name_of
from steptime.prediction.kernels import Floats
from steptime.records.ratios import relative_errors
from steptime.records.record import current_time
from steptime.records.row import grouped

MOVED = 0.005  # in ln: a constant that moved less stays that of the priors
LEAST_RANGE = 1e-9  # of the logs of sizes
CLOSEST = 0.05  # of the log of a row of an op by itself
PRIOR = 10  # cases that what the priors say of intervals counts as


def calibrate(
    device: Device,
    cases: Sequence[Case],
    points: int | None = 60,
    source: str = "",
    facts: Mapping[str, Any] | None = None,
    priors: Mapping[str, Constant] | None = None,
) -> dict[str, Any]:
    """Return the table `calibration` of a device file: what `points` of the cases tell of it.

    It holds the constants that moved from the priors, the cross-validated error of each kind of
    case (`mape`, and `bias`, the mean of ln(predicted / measured)), and between which logs of
    measured / predicted 80 % of the kernels of each form lie, by cases that were not fitted;
    `alone` are the constants of ops by themselves, where they differ; `products` and `steps` are
    what products, and steps behind a host, take beyond these constants. On a GPU `infer` are the
    constants, `steps` and intervals of inference beside trainings, which tell nothing of it;
    trainings of which no case tells (`train`) have the intervals of the priors. `points` of None
    takes all cases. Steps are of one `stack`, that with most of them: a host takes other times
    under another one. `facts`, such as versions, join the table; `priors` are those of the device's
    kind and of that stack if none are given. Raises `InputError` without a case.
    """
    if not cases:
        raise InputError(f"{device.name}: no row to calibrate with")
    if points is not None:
        points = parse_count(points, "points")
    bare = replace(device, calibration={})
    steps = Counter(_stack_of(case) for case in cases if not case.alone)
    (stack, _), *_ = (steps or Counter(map(_stack_of, cases))).most_common(1)
    kept = [case for case in cases if case.alone or _stack_of(case) == stack]
    own = [replace(case, device=bare) for case in chosen(kept, points)]
    known = priors_of(device, stack) if priors is None else priors
    columns = Columns(own)
    constants = step_constants(columns, known)
    alone = left_out(columns, known, constants, families=columns.families)
    beside, off = learnt(columns, constants, alone)
    beside |= of_phases(columns, known, off)
    rest = [i for i, case in enumerate(own) if case.phase not in beside]
    places = [i for i, case in enumerate(own) if case.alone and device.kind == "gpu"]
    if places:
        by_itself, off[places] = single([own[i] for i in places], off[places], known, constants)
        beside |= by_itself
    return {
        "date": current_time(),
        "source": source or f"{len(own)} rows",
        "points": len(own),
        **({"stack": stack} if steps else {}),
        **(facts or {}),
        "constants": moved(constants, known),
        "errors": errors([case.kind for case in own], off),
        "intervals": intervals(Columns([own[i] for i in rest]), constants, off[rest]),
        **beside,
    }


def step_constants(columns: Columns, priors: Mapping[str, Constant]) -> dict[str, float]:
    """Return the constants of steps, which ops by themselves move where steps confirm them.

    Ops on a GPU are short and cold, so they move no step by themselves. Beside steps they do if
    steps that are left out are then missed by less than under constants that steps alone tell.
    """
    steps = [case for case in columns.cases if not case.alone]
    if columns.device.kind != "gpu" or len(steps) == len(columns.cases):
        return fitted([columns], priors)
    if not steps:
        return constants_of(priors)
    own = Columns(steps)
    places = np.array([not case.alone for case in columns.cases])
    apart, both = fitted([own], priors), fitted([columns], priors)
    of_both = left_out(columns, priors, both, families=columns.families)[places]
    of_own = left_out(own, priors, apart, families=own.families)
    return both if np.abs(of_both).mean() < np.abs(of_own).mean() else apart


def of_phases(columns: Columns, priors: Mapping[str, Constant], off: Floats) -> dict[str, Any]:
    """Return what holds of one phase on a GPU, and set how far steps of inference are off.

    A host takes other times where nothing is trained, and so do kernels that run again in the
    backward pass: trainings tell nothing of inference, nor how far off it is. Where it alone tells,
    trainings take its constants, and are as far off as on a device never seen.
    """
    phases = {case.phase for case in columns.cases} - {""}
    if columns.device.kind != "gpu" or not phases:
        return {}
    if phases == {"infer"}:
        return {"train": {"intervals": {}}}
    if phases == {"train"}:
        return {"infer": {"constants": {}, "steps": [], "intervals": {}}}
    places = [i for i, case in enumerate(columns.cases) if case.phase == "infer"]
    own = Columns([columns.cases[i] for i in places])
    found = fitted([own], priors)
    left = left_out(own, priors, found, families=own.families)
    told, off[places] = learnt(own, found, left)
    ends = intervals(own, found, off[places])
    table = {"constants": moved(found, priors), "steps": told.get("steps", []), "intervals": ends}
    return {"infer": table}


def single(
    own: Sequence[Case], off: Floats, priors: Mapping[str, Constant], of_steps: Constants
) -> tuple[dict[str, Any], Floats]:
    """Return what ops by themselves say of ops by themselves, and how far they are off left out.

    That are `alone`, the constants that differ from those `of_steps`, and `products`. What the ops
    do not tell stays as steps told it. Forms hold more closely for one op than for a network of
    them: as closely as the median of `off`, by which the ops miss under constants `of_steps`.
    """
    columns = Columns(own)
    sigma = float(np.clip(np.median(np.abs(off)), CLOSEST, SIGMA))
    start = {name: one._replace(value=of_steps[name]) for name, one in priors.items()}
    known = start | {name: priors[name] for name in told_by([columns], priors)}
    constants = fitted([columns], known, sigma=sigma)
    off = left_out(columns, known, constants, sigma, columns.families)
    found, off = learnt(columns, constants, off)
    return {"alone": moved(constants, start), **found}, off


def chosen(cases: Sequence[Case], points: int | None, seed: int = 0) -> list[Case]:
    """Return `points` of the cases, as many of each kind, of all sizes.

    Whole steps are spread evenly over their ranks: a table has many networks of the size that
    people use, and few that are far larger or smaller miss in ways of their own. Ops are spread
    over the mean of rank and log of the size. The seed draws a case within each part of the range.
    All cases where there are no more.
    """
    if points is None or len(cases) <= points:
        return list(cases)
    draw = random.Random(seed)  # noqa: S311  # a draw of rows keeps no secret
    kinds = grouped(cases, lambda case: case.kind)
    left = points
    found = []
    for place, kind in enumerate(sorted(kinds, key=lambda one: (len(kinds[one]), one))):
        share = min(len(kinds[kind]), left // (len(kinds) - place))
        left -= share
        sizes = np.array([_size(case) for case in kinds[kind]])
        even = np.argsort(np.argsort(sizes, kind="stable")) / len(sizes)
        if kinds[kind][0].alone:
            even += (sizes - sizes.min()) / max(np.ptp(sizes), LEAST_RANGE)
        found += [kinds[kind][i] for i in spread(even.tolist(), share, draw)]
    return found


def spread(sizes: Sequence[float], points: int, draw: random.Random) -> list[int]:
    """Return places of cases near to points that lie evenly on sizes, by chance."""
    left = sorted((size, i) for i, size in enumerate(sizes))
    low, high = left[0][0], left[-1][0]
    found = []
    for i in range(points):
        at = low + (high - low) * (i + draw.random()) / points
        place = bisect_left(left, at, key=lambda one: one[0])
        around = range(max(0, place - 1), min(place + 1, len(left)))
        near = min(around, key=lambda j: abs(left[j][0] - at))
        found.append(left.pop(near)[1])
    return found


def _stack_of(case: Case) -> str:
    """Return the stack of a case, the default one where it names none."""
    return case.stack or catalog.DEFAULT_STACK


def _size(case: Case) -> float:
    """Return the log of the bytes and of the arithmetic, at 10 FLOP a byte."""
    return log(1 + sum(kernel.bytes + kernel.flop / 10 for kernel in case.kernels))


def moved(constants: Mapping[str, float], priors: Mapping[str, Constant]) -> dict[str, float]:
    """Return the constants that differ from the priors, rounded to four digits.

    One of 0 says that something is not: no row moves it.
    """
    return {
        name: float(f"{value:.4g}")
        for name, value in constants.items()
        if priors[name].value and abs(log(value / priors[name].value)) > MOVED
    }


def errors(of: Sequence[str], off: Floats) -> dict[str, dict[str, float]]:
    """Return number, MAPE and bias of the cases of each kind, and of `all`."""
    kinds = np.array(of)
    found = {}
    for kind in (*sorted(set(kinds)), "all"):
        some = off if kind == "all" else off[kinds == kind]
        found[str(kind)] = {
            "points": len(some),
            "mape": float(f"{relative_errors(np.exp(some)).mean():.3g}"),
            "bias": float(f"{-some.mean():.3g}"),
        }
    return found


def intervals(columns: Columns, constants: Constants, off: Floats) -> dict[str, list[float]]:
    """Return lowest and highest ln(measured / predicted) of the middle 80 % by form, and of `all`.

    Split conformal, of how far cases are off as a share of the half width that the priors' own ones
    give them: of n the floor(0.1 (n + 1))th from either end, so that a new case lies between them
    as often as is said, a step of many kernels or one. `PRIOR` further shares are as the priors
    say, so that few cases do not make sure of anything, and as much wider as what few networks told
    is off itself: sqrt(1 + 1 / n). Forms that no case tells are left out.
    """
    told = {name_of(one, columns.device) for case in columns.cases for one in case.kernels}
    told |= {"all"} | {"host" for case in columns.cases if case.condition != "repeated"}
    own = {form: constants.get(f"interval.{form}_own") for form in sorted(told)}
    own["all"] = constants[f"interval.{known_as('', constants)}_own"]
    widths = {form: width for form, width in own.items() if width is not None}
    unit = {f"interval.{form}_low": -width for form, width in widths.items()}
    unit |= {f"interval.{form}_high": width for form, width in widths.items()}
    value, low, high = columns.intervals({**constants, **unit})
    shares = off / np.where(off > 0, np.log(high / value), np.log(value / low))
    like_priors = ndtri((np.arange(PRIOR) + 0.5) / PRIOR) / ndtri((1 + LEVEL) / 2)
    like_priors *= (1 + 1 / len(together(columns.families))) ** 0.5
    some = np.sort(np.concatenate([shares, like_priors]))
    first = max(1, floor((1 - LEVEL) / 2 * (len(some) + 1)))
    last = min(len(some), ceil((1 + LEVEL) / 2 * (len(some) + 1)))
    return {
        form: [float(f"{some[i - 1] * width:.3g}") for i in (first, last)]
        for form, width in widths.items()
    }
