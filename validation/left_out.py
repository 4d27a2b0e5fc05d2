"""Published steps that the constants of their stack did not see: each group is left out in turn.

A constant that was chosen on published steps stands between `NEUTRAL`, what it would be without
them, and what its stack says. How far along that way it goes is fitted to the rows that are left,
by least squares of which far rows are cut, and predicts those left out: exact at both ends, and
nearly between them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from steptime.calibration.plan_errors import Answered, Predicted, Rows
from steptime.calibration.plan_rows import Question, Reply
from steptime.core.errors import InputError
from steptime.prediction import cost_model
from steptime.prediction.kernel import Interval
from steptime.prediction.kernels import Floats
from steptime.prediction.method import Method
from validation.layouts import tables_in
from validation.score import predicted

MEGATRON = ("megatron-2023", "megatron-2024", "megatron-2025")
NEUTRAL: Mapping[str, tuple[tuple[str, ...], str, float]] = {  # stacks, constant, without steps
    "products, FSDP": (("fsdp-2022", "fsdp-2023"), "training.products", 1.0),
    "products, 2023": (("megatron-2023",), "training.products", 1.0),
    "products, 2024": (("megatron-2024",), "training.products", 1.0),
    "layer_s, 2021": (("megatron-2021", "megatron-2022"), "training.layer_s", 1e-4),
    "straggling": ((), "training.straggling", 0.0),
    "routed_bytes": (MEGATRON, "training.routed_bytes", 8.0),
}
RIDGE, CUT = 0.02, 0.1  # of a constant's way, and of ln(predicted / measured): beyond it far rows
ROUNDS = 30  # of weights of far rows
SCALES = ((64, "up to 64"), (512, "65 to 512"), (1 << 30, "more than 512"))  # devices


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


class Ways(NamedTuple):
    """Of each row ln(predicted / measured), as told and without constants of steps.

    `way` is what each of these adds [rows, constants].
    """

    told: Floats
    plain: Floats
    way: Floats


def steps_of(paths: Sequence[Path]) -> list[Answered]:
    """Return the steps of tables of published ones, and what is predicted of them."""
    tables = tables_in(paths)[0]
    steps = {path: layout for path, layout in tables.items() if layout.kind == "step"}
    return [row for *_, row in predicted(steps, "calibrated") if _is_step(row)]


def _is_step(row: Answered | InputError) -> TypeGuard[Answered]:
    return not isinstance(row, InputError) and "step_s" in row[0].measured.keys() & row[1].values


def _scale(_: Question, told: Reply) -> str:
    return next(words for most, words in SCALES if told.devices <= most)


GROUPS: Mapping[str, Callable[[Question, Reply], str]] = {
    "table": lambda asked, _: asked.set,
    "model": lambda asked, _: asked.texts["model"].partition(",heads")[0],
    "device": lambda asked, _: asked.texts["device"],
    "devices": _scale,
    "stack": lambda _, told: told.stack,
}


def _without(base: Method, stacks: tuple[str, ...], name: str, value: float) -> Method:
    """Return a method with a constant of some stacks, or of all, as if no step had told it."""

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


def _off(question: Question, reply: Reply) -> float:
    """Return ln(predicted / measured) of a step."""
    return log(reply.values["step_s"].value / question.measured["step_s"])


def _ways(rows: Rows, method: str) -> Ways:
    """Return how far steps are off, and how much of that each constant of steps moves."""
    told, base = np.array([_off(*row) for row in rows]), cost_model(method)
    neutral = []
    for stacks, name, value in NEUTRAL.values():
        other = _without(base, stacks, name, value)
        found = [
            question.reply(other) if not stacks or reply.stack in stacks else reply
            for question, reply in rows
        ]
        neutral.append([_off(row[0], reply) for row, reply in zip(rows, found, strict=True)])
    way = told[:, None] - np.array(neutral).T
    return Ways(told, told - way.sum(axis=1), way)


def _off_left_out(ways: Ways, out: Any) -> Floats:
    """Return how far rows are off that are `out`: their constants are fitted to all others."""
    rest = ~out
    found: Floats = ways.plain[out] + ways.way[out] @ _fitted(ways.way[rest], -ways.plain[rest])
    return found


def rows_left_out(rows: Iterable[Predicted], method: str) -> Iterator[Predicted]:
    """Yield rows in their order, the steps of each set without the constants that it told.

    These are fitted to the steps of the other sets; where there is none, they are neutral. What is
    no step is a row that cannot be asked.
    """
    every = list(rows)
    steps = [row for *_, row in every if _is_step(row)]
    if not steps:
        raise InputError("--left-out is of steps of trainings: there is none")
    ways, sets = _ways(steps, method), np.array([question.set for question, _ in steps])
    moved = np.zeros(len(steps))
    for name in {*sets.tolist()}:
        out = sets == name
        moved[out] = _off_left_out(ways, out) - ways.told[out]
    by = iter(moved.tolist())
    for label, place, row in every:
        if isinstance(row, InputError):
            yield label, place, row
        elif _is_step(row):
            yield label, place, (row[0], _moved(row[1], exp(next(by))))
        else:
            yield label, place, InputError("--left-out is of steps of trainings")


def _moved(reply: Reply, factor: float) -> Reply:
    """Return a reply of a step's time alone, so many times as long."""
    time = reply.values["step_s"]
    low, high = (None if end is None else factor * end for end in (time.low, time.high))
    return replace(reply, values={"step_s": Interval(factor * time.value, low, high)}, parts={})


def left_out(rows: Rows) -> Iterator[Left]:
    """Yield the errors of each group of steps that is left out, group by group."""
    ways = _ways(rows, "calibrated")
    for by, group_of in GROUPS.items():
        names = [group_of(*row) for row in rows]
        for name in sorted({*names}):
            out = np.array([one == name for one in names])
            if out.all():
                continue
            found = _off_left_out(ways, out)
            replies = (row[1] for row, is_out in zip(rows, out, strict=True) if is_out)
            times = [reply.values["step_s"] for reply in replies]
            inside = [
                time.low is not None
                and time.high is not None
                and log(time.low / time.value) <= -off <= log(time.high / time.value)
                for off, time in zip(found, times, strict=True)
            ]
            wrong = np.abs(np.expm1(found)).tolist()
            before, neutral = (
                fmean(np.abs(np.expm1(some[out]))) for some in (ways.told, ways.plain)
            )
            left = fmean(wrong), median(wrong), fmean(inside)
            yield Left(by, name, len(wrong), before, neutral, *left)
