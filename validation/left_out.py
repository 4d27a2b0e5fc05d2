"""Published steps that the constants of their stack did not see: each group is left out in turn.

A constant that was chosen on published steps stands between `NEUTRAL`, what it would be without
them, and what its stack says. How far along that way it goes is fitted to the rows that are left,
by least squares of which far rows are cut, and predicts those left out: exact at both ends, and
nearly between them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from steptime.calibration.asking import KINDS
from steptime.calibration.published import Question, Told, tables_in
from steptime.calibration.published_errors import told_of
from steptime.core.errors import InputError
from steptime.prediction import cost_model
from steptime.prediction.method import Method

MEGATRON = ("megatron-2023", "megatron-2024", "megatron-2025")
NEUTRAL: Mapping[str, tuple[tuple[str, ...], str, float]] = {  # stacks, constant, without steps
    "products, FSDP": (("fsdp-2022", "fsdp-2023"), "training.products", 1.0),
    "products, 2023": (("megatron-2023",), "training.products", 1.0),
    "products, 2024": (("megatron-2024",), "training.products", 1.0),
    "layer_s, 2021": (("megatron-2021", "megatron-2022"), "training.layer_s", 1e-4),
    "straggling": ((), "training.straggling", 0.0),
    "routed_s": (MEGATRON, "training.routed_s", 1e-4),
    "routed_bytes": (MEGATRON, "training.routed_bytes", 8.0),
    "expert_hidden": (("megatron-2026",), "training.expert_hidden", 0.0),
}
RIDGE, CUT = 0.02, 0.1  # of a constant's way, and of ln(predicted / measured): beyond it far rows
ROUNDS = 30  # of weights of far rows
SCALES = ((64, "up to 64"), (512, "65 to 512"), (1 << 30, "more than 512"))  # devices
Rows = Sequence[tuple[Question, Told]]


class Left(NamedTuple):
    """Errors of a group's rows: as told, without constants of steps, and left out; the share in."""

    by: str
    group: str
    rows: int
    told: float
    neutral: float
    left_out: float
    median: float
    inside: float


def steps_of(paths: Sequence[Path]) -> Iterator[tuple[Question, Told]]:
    """Yield the steps of tables of published ones, and what is told of them."""
    for path, layout in tables_in(paths)[0].items():
        for _, _, answer in told_of(path, layout, "calibrated") if layout.kind == "step" else ():
            if not isinstance(answer, InputError) and "step_s" in answer[0].measured:
                yield answer


def _scale(_: Question, told: Told) -> str:
    return next(words for most, words in SCALES if told.devices <= most)


GROUPS: Mapping[str, Callable[[Question, Told], str]] = {
    "table": lambda asked, _: asked.set,
    "model": lambda asked, _: asked.texts["model"].partition(",heads")[0],
    "device": lambda asked, _: asked.texts["device"],
    "devices": _scale,
    "stack": lambda _, told: told.stack,
}


def _without(stacks: tuple[str, ...], name: str, value: float) -> Method:
    """Return `calibrated` with a constant of some stacks, or of all, as if no step had told it."""
    base = cost_model("calibrated")

    def sees(device: Any, dtype: str, under: Any) -> Any:
        seen = base.sees(device, dtype, under)
        known = name in seen.constants and (not stacks or under.stack in stacks)
        return replace(seen, constants={**seen.constants, name: value}) if known else seen

    return replace(base, sees=sees)


def _fitted(ways: Any, off: Any) -> Any:
    """Return how far each constant goes from neutral, 0, to what its stack says, 1."""
    weights, found = np.ones(len(off)), np.zeros(ways.shape[1])
    for _ in range(ROUNDS):
        scaled = ways * weights[:, None]
        found = np.linalg.solve(scaled.T @ ways + RIDGE**2 * np.eye(ways.shape[1]), scaled.T @ off)
        weights = 1 / np.maximum(1.0, np.abs(off - ways @ found) / CUT)
    return found


def _off(asked: Question, told: Told) -> float:
    """Return ln(predicted / measured) of a step."""
    return log(told.values["step_s"].value / asked.measured["step_s"])


def left_out(rows: Rows) -> Iterator[Left]:
    """Yield the errors of each group of steps that is left out, group by group."""
    told = np.array([_off(asked, one) for asked, one in rows])
    ways = []
    for stacks, name, value in NEUTRAL.values():
        method = _without(stacks, name, value)
        found = [
            KINDS["step"](asked, method) if not stacks or one.stack in stacks else one
            for asked, one in rows
        ]
        ways.append([_off(asked, one) for (asked, _), one in zip(rows, found, strict=True)])
    way = told[:, None] - np.array(ways).T
    plain = told - way.sum(axis=1)
    for by, group_of in GROUPS.items():
        names = [group_of(*row) for row in rows]
        for name in sorted({*names}):
            out = np.array([one == name for one in names])
            if out.all():
                continue
            found = plain[out] + way[out] @ _fitted(way[~out], -plain[~out])
            times = [
                one.values["step_s"] for (_, one), is_out in zip(rows, out, strict=True) if is_out
            ]
            inside = [
                log(time.low / time.value) <= -off <= log(time.high / time.value)
                for off, time in zip(found, times, strict=True)
            ]
            wrong = [abs(exp(one) - 1) for one in found]
            before, neutral = (fmean(np.abs(np.expm1(some[out]))) for some in (told, plain))
            left = fmean(wrong), median(wrong), fmean(inside)
            yield Left(by, name, len(wrong), before, neutral, *left)
