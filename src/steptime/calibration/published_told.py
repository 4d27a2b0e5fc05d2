"""What rows of published tables tell of a device under a stack; or some, and others are asked."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import hypot
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from steptime import catalog
from steptime.calibration.asking import KINDS
from steptime.calibration.columns import Floats
from steptime.calibration.device import errors, moved, spread
from steptime.calibration.fit import fitted, left_out
from steptime.calibration.published import Question, Told
from steptime.core.constants import Constant
from steptime.core.errors import InputError
from steptime.core.record import now
from steptime.predict import cost_model
from steptime.predict.calibrated.interval import LEVEL
from steptime.predict.calibrated.method import calibrated_device
from steptime.predict.method import Method

TELLS = ("step_s", "tpot_s", "request_s", "tokens_per_s_per_device")  # the first that is measured
CONSTANTS = (
    "product.tensor_share", "attention.share", "attention.share_new", "stream.share_hbm",
    "stream.share_gddr", "training.exchange_s", "training.layer_s", "serving.step_s",
    "serving.sequence_s", "serving.exchange_s",
)  # fmt: skip
STEP = 0.1  # of the log of a constant, by which slopes are found
NORMAL = NormalDist(sigma=-1 / NormalDist().inv_cdf((1 - LEVEL) / 2))  # LEVEL lies within 1
USUAL = 10  # rows that the interval of other devices counts for beside those that were drawn
Rows = Sequence[tuple[Question, Told]]


class _Logs(NamedTuple):
    """Rows of which the logs of what is predicted are linear in those of constants."""

    seconds: Floats
    base: Floats
    slopes: Floats  # [rows, constants]
    start: Floats

    def predicted(self, constants: Mapping[str, float], /) -> Floats:
        """Return what is predicted of each row."""
        found: Floats = self.base * np.exp(self.slopes @ np.log([*constants.values()] / self.start))
        return found


class _Group:
    """Rows of one device, stack and form, and how what is predicted of them follows constants."""

    def __init__(self, rows: Rows, device: str, stack: str, form: str) -> None:
        self.form = form
        self.free, self.wide = _priors(device, stack, form)
        base, start = _predicted(rows, {}), np.array([one.value for one in self.free.values()])
        near = [_predicted(rows, {n: one.value * np.exp(STEP)}) for n, one in self.free.items()]
        slopes = np.log(np.array(near) / base).T / STEP
        took = np.array([asked.measured[_quantity(asked, told)] for asked, told in rows])
        self.logs = _Logs(took, base, slopes, start)

    def drawn(self, points: int, seed: int) -> list[int]:
        """Return the places of so many rows, spread over what they take."""
        return spread(list(np.log(self.logs.base)), points, random.Random(seed))  # noqa: S311  # no secret

    def told(self, at: Sequence[int]) -> tuple[dict[str, Any], Floats]:
        """Return the calibration that rows at some places tell, and ln(measured / predicted).

        The second is of each of them, when it is left out.
        """
        took, base, slopes, start = self.logs
        logs, sigma = _Logs(took[at], base[at], slopes[at], start), self.wide * NORMAL.stdev
        constants = fitted([logs], self.free, sigma=sigma)
        off = left_out(logs, self.free, constants, sigma)
        usual = [self.wide * NORMAL.inv_cdf((i + 0.5) / USUAL) for i in range(USUAL)]
        ends = np.quantile([*off, *usual], ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        intervals = {self.form: [float(f"{end:.3g}") for end in ends]}
        return {"constants": moved(constants, self.free), "intervals": intervals}, off


def _groups(rows: Rows) -> dict[tuple[str, str, str], list[tuple[Question, Told]]]:
    groups: dict[tuple[str, str, str], list[tuple[Question, Told]]] = defaultdict(list)
    for asked, told in rows:
        if _quantity(asked, told):
            groups[asked.texts["device"], told.stack, told.form].append((asked, told))
    return groups


def drawn(rows: Rows, points: int, draws: int) -> Iterator[tuple[int, Question, Told, Told]]:
    """Yield of each draw the rows left: asked, as they were predicted and as calibrated.

    Each device, stack and form has `points` drawn. Raises `InputError` where none is left.
    """
    groups = {key: own for key, own in _groups(rows).items() if len(own) > points}
    if not groups:
        raise InputError(f"no row is left to check beside {points} of each device and stack")
    for key, own in groups.items():
        group = _Group(own, *key)
        for seed in range(draws):
            at = group.drawn(points, seed)
            method = _method(group.told(at)[0])
            for asked, told in (one for i, one in enumerate(own) if i not in at):
                yield seed, asked, told, KINDS[asked.kind](asked, method)


def calibration(rows: Rows, points: int) -> dict[str, Any]:
    """Return the table `calibration` that `points` of the stack with most rows tell."""
    groups = _groups(rows)
    if not groups:
        raise InputError("calibrate: no row tells a time")
    key, own = max(groups.items(), key=lambda one: len(one[1]))
    group = _Group(own, *key)
    at = group.drawn(min(points, len(own)), 0)
    table, off = group.told(at)
    about = {"date": now(), "stack": key[1]}
    return {**about, "points": len(at), **table, "errors": errors(["step"] * len(at), off)}


def _quantity(asked: Question, told: Told) -> str:
    return next((one for one in TELLS if one in asked.measured and one in told.values), "")


def _priors(device: str, stack: str, form: str) -> tuple[dict[str, Constant], float]:
    """Return the constants that rows tell, and how wide the interval is that is a row's own.

    A device that the stack was fitted on differs by less: by what its plans share.
    """
    found = catalog.priors(catalog.device(device).kind, stack)
    seen = device in (catalog.stack(stack).seen or {}).get("devices", ())
    devices = hypot(found["interval.all_shared"].value, found["interval.step"].value)
    shared = found[f"interval.{form}_shared"].value / devices
    free = {name: found[name] for name in CONSTANTS if name in found}
    slower = found.get("training.products", free["product.tensor_share"]._replace(value=1.0))
    spread_of = free["product.tensor_share"].spread  # devices differ by more than a stack's plans
    free["training.products"] = slower._replace(spread=spread_of)
    less = shared if seen else 1.0
    free = {name: one._replace(spread=less * one.spread) for name, one in free.items()}
    return free, found[f"interval.{form}_own"].value


def _method(table: Mapping[str, Any]) -> Method:
    return replace(
        cost_model("calibrated"),
        sees=lambda device, dtype, under: calibrated_device(
            replace(device, calibration=table), dtype, under
        ),
    )


def _predicted(rows: Rows, constants: Mapping[str, float]) -> Floats:
    method = _method({"constants": constants})
    told = [KINDS[asked.kind](asked, method) for asked, _ in rows]
    pairs = zip(rows, told, strict=True)
    return np.array([one.values[_quantity(*row)].value for row, one in pairs])
