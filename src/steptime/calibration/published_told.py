"""What rows of published tables tell of a device under a stack: some are drawn, others asked."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from steptime import catalog
from steptime.calibration.asking import KINDS
from steptime.calibration.columns import Floats
from steptime.calibration.device import moved, spread
from steptime.calibration.fit import fitted, left_out
from steptime.calibration.published import Question, Told
from steptime.core.constants import Constant
from steptime.core.errors import InputError
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


def drawn(rows: Rows, points: int, draws: int) -> Iterator[tuple[int, Question, Told, Told]]:
    """Yield of each draw the rows left: asked, as they were predicted and as calibrated.

    Each device, stack and form has `points` drawn, spread over what they take. Raises `InputError`
    where none is left.
    """
    groups: dict[tuple[str, str, str], list[tuple[Question, Told]]] = defaultdict(list)
    for asked, told in rows:
        if _quantity(asked, told):
            groups[asked.texts["device"], told.stack, told.form].append((asked, told))
    groups = {key: own for key, own in groups.items() if len(own) > points}
    if not groups:
        raise InputError(f"no row is left to check beside {points} of each device and stack")
    for (device, stack, form), own in groups.items():
        free, wide = _priors(device, stack, form)
        base, start = _predicted(own, {}), np.array([one.value for one in free.values()])
        near = [_predicted(own, {name: one.value * np.exp(STEP)}) for name, one in free.items()]
        slopes = np.log(np.array(near) / base).T / STEP
        took = np.array([asked.measured[_quantity(asked, told)] for asked, told in own])
        usual = [wide * NORMAL.inv_cdf((i + 0.5) / USUAL) for i in range(USUAL)]
        for seed in range(draws):
            at = spread(list(np.log(base)), points, random.Random(seed))  # noqa: S311
            logs = _Logs(took[at], base[at], slopes[at], start)
            constants = fitted([logs], free, sigma=wide * NORMAL.stdev)
            off = [*left_out(logs, free, constants, wide * NORMAL.stdev), *usual]
            ends = np.quantile(off, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
            method = _method({"constants": moved(constants, free), "intervals": {form: ends}})
            for asked, told in (one for i, one in enumerate(own) if i not in at):
                yield seed, asked, told, KINDS[asked.kind](asked, method)


def _quantity(asked: Question, told: Told) -> str:
    return next((one for one in TELLS if one in asked.measured and one in told.values), "")


def _priors(device: str, stack: str, form: str) -> tuple[dict[str, Constant], float]:
    """Return the constants that rows tell, and how wide the interval is that is a row's own.

    A device that the stack was fitted on differs by less: by what its plans share.
    """
    found = catalog.priors(catalog.device(device).kind, stack)
    seen = device in (catalog.stack(stack).seen or {}).get("devices", ())
    shared = found[f"interval.{form}_shared"].value / found["interval.all_shared"].value
    free = {name: found[name] for name in CONSTANTS if name in found}
    slower = found.get("training.products", free["product.tensor_share"]._replace(value=1.0))
    spread_of = free["product.tensor_share"].spread  # devices differ by more than a stack's plans
    free["training.products"] = slower._replace(spread=spread_of)
    less = shared if seen else 1.0
    free = {name: one._replace(spread=less * one.spread) for name, one in free.items()}
    return free, found[f"interval.{form}_own"].value


def _method(table: Mapping[str, Any]) -> Method:
    """Return `calibrated` on devices that have a calibration table."""
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
