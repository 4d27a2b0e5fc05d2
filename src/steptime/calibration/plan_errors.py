"""How far predictions are from steps of trainings: errors by set and block, and the worst rows."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import hypot
from operator import itemgetter
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import asdict

from steptime.calibration import device
from steptime.calibration.device import moved, spread
from steptime.calibration.evaluate import DRAWS, errors
from steptime.calibration.evaluation import ERROR_COLUMNS, WORST, percent, shown
from steptime.calibration.fit import fitted, left_out
from steptime.calibration.plan_rows import Question, Reply, questions, row_of
from steptime.core.errors import InputError, check_choice
from steptime.core.table import Column, Table
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from steptime.prediction import cost_model
from steptime.prediction.calibrated.interval import LEVEL
from steptime.prediction.calibrated.method import calibrated_device
from steptime.prediction.kernels import Floats
from steptime.prediction.method import Method
from steptime.records.ratios import farness
from steptime.records.record import current_time
from steptime.records.row import grouped

GROUPS = ("model", "device", "block", "stack", "dtype", "device_count")
HEADS = (
    Column("asked", "rows"),
    Column("cases", "scored"),
    *ERROR_COLUMNS,
    Column("max"),
    Column("fits"),
)
OF_SET = (Column("set"), Column("quantity"))
OF_ROW = (
    Column("place"),
    Column("model"),
    Column("device"),
    Column("device_count"),
    Column("stack"),
    Column("quantity"),
    Column("ratio", "p / m", form=".2f"),
)
OF_TOLD = (
    *OF_SET,
    Column("device"),
    Column("stack"),
    Column("points"),
    Column("before", "MAPE before"),
    *HEADS[1:-1],
    Column("spread", "MAPE of draws"),
)
_NUMBERS = itemgetter("measured", "predicted", "low", "high")
OF_UNASKED = (Column("set"), Column("rows"), Column("reason"), Column("first"))


Answered = tuple[Question, Reply]
Rows = Sequence[Answered]
Read = tuple[str, str, Question | InputError]  # set, place, and the row or why it is none
Predicted = tuple[str, str, Answered | InputError]


@dataclass(frozen=True)
class PlanErrors:
    """What steps say of a method: a document of JSON values, and tables for people.

    `rows` are errors of each set and quantity, `groups` those of its blocks, `unasked` the rows
    that could not be asked, counted by reason; `cases` are all rows that were scored. `calibrated`
    are errors of rows that were not drawn, of each device and stack that was told the others.
    """

    document: Mapping[str, Any]

    def tables(self, has_worst: bool = True) -> list[Table]:
        """Return the tables for people."""
        document = self.document
        by = (*OF_SET, *map(Column, document["by"]), *HEADS[1:])
        contents = (
            ((*OF_SET, *HEADS), [*map(_shown, document["rows"])], "Errors of predictions"),
            (by, [*map(_shown, document["groups"])], f"By {', '.join(document['by'])}"),
            (OF_TOLD, [*map(_shown, document["calibrated"])], "Rows that were not drawn"),
            (OF_UNASKED, document["unasked"], "Rows that were not asked"),
        )
        tables = [Table(heads, rows, title) for heads, rows, title in contents]
        title = f"The rows with the largest errors of {document['method']}"
        if has_worst:
            tables.append(Table(OF_ROW, document["worst"], title))
        return [table for table in tables if table.rows]

    @property
    def times(self) -> list[dict[str, Any]]:
        """The rows that say a time, as the picture of an evaluation has them."""
        return [
            {**one, "kind": one["set"], "regime": one["quantity"].removesuffix("_s")}
            | {"measured_s": one["measured"], "predicted_s": one["predicted"]}
            for one in self.document["cases"]
            if one["quantity"].endswith("_s") and not one["quantity"].endswith("per_s")
        ]


def replies(asked: Iterable[Read], method: str | Method) -> Iterator[Predicted]:
    """Yield set and place of each row, and what is predicted of it or why it cannot be asked."""
    for label, place, question in asked:
        if isinstance(question, InputError):
            yield label, place, question
            continue
        try:
            yield label, place, (question, question.reply(method))
        except InputError as error:
            yield label, place, error


def evaluate_tables(paths: Iterable[Path], method: str, **options: Any) -> PlanErrors:
    """Return how far a method is off on tables of steps; `options` are those of `errors_of`."""
    asked = chain.from_iterable(map(questions, paths))
    return errors_of(replies(asked, method), method, **options)


def errors_of(
    rows: Iterable[Predicted],
    method: str,
    by: Sequence[str] = ("block",),
    worst: int = WORST,
    points: int | None = None,
    draws: int = DRAWS,
) -> PlanErrors:
    """Return how far rows that a method predicted are off.

    `points` of each device and stack calibrate it, in `draws` draws, to score the others. Raises
    `InputError` for an unknown group, or where no row can be asked.
    """
    for one in by:
        check_choice("group", one, GROUPS, "--by")
    scored: list[dict[str, Any]] = []
    steps: list[Answered] = []
    asked: Counter[str] = Counter()
    alone: dict[str, list[bool]] = defaultdict(list)
    unasked: dict[tuple[str, str], list[str]] = defaultdict(list)
    for label, place, answer in rows:
        asked[label] += 1
        if isinstance(answer, InputError):
            unasked[label, str(answer).removeprefix("plan: ")].append(place)
            continue
        question, reply = answer
        steps.append(answer)
        if not question.measured and reply.fits is not None:
            alone[label].append(reply.fits == question.ran)
        known = [name for name in question.measured if name in reply.values]
        scored += [row_of(question, reply, name) for name in known]
    left = [
        {"set": key[0], "rows": len(places), "reason": key[1], "first": places[0]}
        for key, places in unasked.items()
    ]
    if not scored:
        raise InputError(f"no row can be asked: {left[0]['reason'] if left else 'there is none'}")
    sets = [{**row, "asked": asked[row["set"]]} for row in _errors(scored, ())]
    for row in sets:  # those that ran nowhere have no time
        if (more := alone[row["set"]]) and row["fits"] is not None:
            right = row["fits"] * row["cases"] + sum(more)
            row["fits"] = right / (row["cases"] + len(more))
    far = sorted(scored, key=lambda row: -farness(row["ratio"]))[:worst]
    groups = _errors(scored, by) if by else []
    apart = _left(steps, points, draws) if points else []
    said = {"rows": sets, "groups": groups, "calibrated": apart, "unasked": left, "worst": far}
    return PlanErrors({"method": method, "by": list(by), **said, "cases": scored})


def _errors(scored: Sequence[dict[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Return the errors of each set and quantity, by what `by` names of their rows."""
    heads = ("set", "quantity", *by)
    groups = grouped(scored, lambda row: tuple(str(row[name] or "-") for name in heads))
    found = []
    for key, some in sorted(groups.items()):
        right = [row["fits"] for row in some if row["fits"] is not None]
        fits = sum(right) / len(right) if right else None
        compared = [(*_NUMBERS(row), (row["device"], row["model"])) for row in some]
        known = dict(zip(heads, key, strict=True))
        found.append({**known, **asdict(errors(compared)), "fits": fits})
    return found


def _left(rows: Rows, points: int, draws: int) -> list[dict[str, Any]]:
    """Return the errors of rows that were not drawn, over all draws, by set, device and stack."""
    by = ("device", "stack")
    was = list[dict[str, Any]]()
    now = list[dict[str, Any]]()
    for seed, asked, told, after in drawn(rows, points, draws):
        for name in asked.measured.keys() & after.values.keys() - {"memory_bytes"}:
            was.append(row_of(asked, told, name))
            now.append(row_of(asked, after, name) | {"draw": f"{seed}"})
    found, each = _errors(now, by), _errors(now, (*by, "draw"))
    for row, before in zip(found, _errors(was, by), strict=True):
        key = ("set", "quantity", *by)
        mapes = [one["mape"] for one in each if all(one[name] == row[name] for name in key)]
        row |= {"points": points, "cases": row["cases"] // draws, "before": before["mape"]}
        row |= {"spread": [min(mapes), max(mapes)]}
    return found


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    said = {"spread": None, "constants": None, "points": None, "before": None, **row}
    shares = {"before": percent(said["before"]), "fits": percent(row["fits"])}
    return {**shown(said), **shares}


TELLS = ("step_s", "tpot_s", "request_s", "tokens_per_s_per_device")  # the first that is measured
CONSTANTS = (
    "product.tensor_share", "attention.share", "attention.share_new", "stream.share_hbm",
    "stream.share_gddr", "training.exchange_s", "training.layer_s", "serving.step_s",
    "serving.sequence_s", "serving.exchange_s",
)  # fmt: skip
STEP = 0.1  # of the log of a constant, by which slopes are found
NORMAL = NormalDist(sigma=-1 / NormalDist().inv_cdf((1 - LEVEL) / 2))  # LEVEL lies within 1
USUAL = 10  # rows that the interval of other devices counts for beside those that were drawn


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


class _DeviceRows:
    """Rows of one device, stack and form, and how what is predicted of them follows constants."""

    def __init__(self, rows: Rows, device: str, stack: str, form: str) -> None:
        self.form = form
        self.free, self.wide = _priors(device, stack, form)
        base = _predicted(rows, {})
        start = np.array([one.value for one in self.free.values()])
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
        logs = _Logs(took[at], base[at], slopes[at], start)
        sigma = self.wide * NORMAL.stdev
        constants = fitted([logs], self.free, sigma=sigma)
        off = left_out(logs, self.free, constants, sigma)
        usual = [self.wide * NORMAL.inv_cdf((i + 0.5) / USUAL) for i in range(USUAL)]
        ends = np.quantile([*off, *usual], ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        intervals = {self.form: [float(f"{end:.3g}") for end in ends]}
        return {"constants": moved(constants, self.free), "intervals": intervals}, off


def _groups(rows: Rows) -> dict[tuple[str, str, str], list[Answered]]:
    known = (row for row in rows if _quantity(*row))
    return grouped(known, lambda row: (row[0].texts["device"], row[1].stack, row[1].form))


def drawn(rows: Rows, points: int, draws: int) -> Iterator[tuple[int, Question, Reply, Reply]]:
    """Yield of each draw the rows left: asked, as they were predicted and as calibrated.

    Each device, stack and form has `points` drawn. Raises `InputError` where none is left.
    """
    groups = {key: own for key, own in _groups(rows).items() if len(own) > points}
    if not groups:
        raise InputError(f"no row is left to check beside {points} of each device and stack")
    for key, own in groups.items():
        group = _DeviceRows(own, *key)
        for seed in range(draws):
            at = group.drawn(points, seed)
            method = _method(group.told(at)[0])
            for asked, told in (one for i, one in enumerate(own) if i not in at):
                yield seed, asked, told, asked.reply(method)


def calibration(rows: Rows, points: int) -> dict[str, Any]:
    """Return the table `calibration` that `points` of the stack with most rows tell."""
    groups = _groups(rows)
    if not groups:
        raise InputError("calibrate: no row tells a time")
    key, own = max(groups.items(), key=lambda one: len(one[1]))
    group = _DeviceRows(own, *key)
    at = group.drawn(min(points, len(own)), 0)
    table, off = group.told(at)
    about = {"date": current_time(), "stack": key[1]}
    return {**about, "points": len(at), **table, "errors": device.errors(["step"] * len(at), off)}


def _quantity(asked: Question, told: Reply) -> str:
    return next((one for one in TELLS if one in asked.measured and one in told.values), "")


def _priors(device: str, stack: str, form: str) -> tuple[dict[str, Constant], float]:
    """Return the constants that rows tell, and how wide the interval is that is a row's own.

    A device that the stack was fitted on differs by less: by what its plans share.
    """
    found = catalog.priors(catalog.device(device).kind, stack)
    seen = device in (catalog.stack(stack).fitted_on or {}).get("devices", ())
    devices = hypot(found["interval.product_shared"].value, found["interval.step"].value)
    shared = found[f"interval.{form}_shared"].value / devices
    free = {name: found[name] for name in CONSTANTS if name in found and found[name].value}
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
    told = [asked.reply(method) for asked, _ in rows]
    pairs = zip(rows, told, strict=True)
    return np.array([one.values[_quantity(*row)].value for row, one in pairs])
