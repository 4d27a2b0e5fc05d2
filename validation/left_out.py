"""Rows predicted by constants that have not seen them; which those are, their `rows` say.

Rows that share a part are left out together (`parts_of`): the set of a step or an exchange, the
model and the device of a serving, the device of an op. All constants that their sets told are
fitted to the others: those of a stage of the fit anew (`refits.py`); each other one stands between
its neutral value and what its file says, as far along that way as least squares of the rows that
are left say, as if ln(predicted) went evenly along it; rows that are far off count less. With no
other row it is neutral. Intervals that rows told hold 80 % of the others.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path

import numpy as np

from steptime.calibration.plan_errors import PredictedRow
from steptime.core.errors import InputError
from steptime.prediction import cost_model
from steptime.prediction.calibrated.interval import LEVEL
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method
from steptime.prediction.prices import Floats
from validation.layouts import Layout
from validation.refits import refitted
from validation.score import CaseAnswer, predicted
from validation.ways import (
    Off,
    Replies,
    Row,
    Way,
    constants_of,
    far,
    told_of,
    ways,
    with_constants,
)

RIDGE, CUT = 0.02, 0.1  # of a constant's way, and of ln(predicted / measured): beyond it far rows
FARTHEST = 2.0  # times the way
ROUNDS = 30  # of weights of far rows
FEWEST = 10  # rows that tell a width
SERVED = frozenset(("ttft_s", "tpot_s", "request_s", "tokens_per_s_per_device"))
BESIDE = Path(__file__).parents[1].parent / "shared/reference"
Parts = frozenset[tuple[str, str]]
PartsOf = Callable[[Row], Parts]
Labelled = tuple[str, str, Row | InputError]


def parts_of(row: Row) -> Parts:
    """Return what a row shares with those that are left out beside it."""
    texts = row.question.texts
    if isinstance(row.question.answer, CaseAnswer):
        return frozenset({("device", texts["device"])})
    if row.question.measured.keys() & SERVED:
        return frozenset({("device", texts["device"]), ("model", texts["model"])})
    return frozenset({("set", row.set)})


def rows_left_out(
    tables: Mapping[Path, Layout], method: str, stack: str | None = None, data: Path = BESIDE
) -> list[PredictedRow]:
    """Return the rows of tables in their order, each without the constants that it told.

    `data` is the folder of reference data, to which stages of the fit are fitted anew.
    """
    every = labelled(tables, method, stack)
    return predicted_as(every, left_out(answered(every), method, data))


def labelled(
    tables: Mapping[Path, Layout],
    method: str,
    stack: str | None = None,
    is_drawn: bool = False,
) -> list[Labelled]:
    """Return the rows of tables: label, place, and what was answered or why it cannot be asked."""
    return [
        (label, place, row if isinstance(row, InputError) else Row(layout.key, *row))
        for path, layout in tables.items()
        for label, place, row in predicted({path: layout}, method, stack, is_drawn)
    ]


def answered(every: Iterable[Labelled]) -> list[Row]:
    """Return the rows that could be asked."""
    return [row for *_, row in every if isinstance(row, Row)]


def predicted_as(every: Iterable[Labelled], rows: Iterable[Row]) -> list[PredictedRow]:
    """Return labelled rows, those that could be asked as `rows` are, in their order."""
    new = iter(rows)
    return [
        (label, place, row if isinstance(row, InputError) else next(new)[1:])
        for label, place, row in every
    ]


def left_out(
    rows: Sequence[Row], method: str, data: Path = BESIDE, replies: Replies | None = None
) -> list[Row]:
    """Return rows as they are predicted by constants that have not seen them."""
    after, of_ops = [*rows], [isinstance(row.question.answer, CaseAnswer) for row in rows]
    for ops in (True, False):
        places = [i for i, one in enumerate(of_ops) if one is ops and told_of(rows[i])]
        if not places:
            continue
        some, base = [rows[i] for i in places], cost_model(method)
        off = refitted(some, data) if ops else ways(some, base, replies)
        new = _moved(off, parts_of) if ops else again(off, parts_of, base)
        for i, row in zip(places, new, strict=True):
            after[i] = row
    return as_wide_as_others(after, parts_of)


def shares(off: Off, parts: PartsOf) -> dict[Parts, list[tuple[Way, float]]]:
    """Return of each group how far the constants that its sets told go by the other rows."""
    found: dict[Parts, list[tuple[Way, float]]] = {}
    told: dict[Parts, set[str]] = defaultdict(set)
    for row in off.rows:
        told[parts(row)].add(row.set)
    for group, sets in told.items():
        rest = np.array([parts(off.rows[i]).isdisjoint(group) for i, _ in off.at])
        own = [way for way in off.ways if not sets.isdisjoint(way.rows)]
        moves = np.stack([way.moves for way in own], axis=1) if own else np.empty((len(rest), 0))
        plain = off.told - moves.sum(axis=1)
        found[group] = [*zip(own, share(moves[rest], -plain[rest]).tolist(), strict=True)]
    return found


def share(way: Floats, off: Floats) -> Floats:
    """Return how far each constant goes from neutral, 0, to what its file says, 1."""
    weights, found = np.ones(len(off)), np.zeros(way.shape[1])
    for _ in range(ROUNDS if len(off) else 0):
        scaled = way * weights[:, None]
        held = scaled.T @ way + RIDGE**2 * np.eye(way.shape[1])
        found[:] = np.linalg.solve(held, scaled.T @ off)
        weights[:] = 1 / np.maximum(1.0, np.abs(off - way @ found) / CUT)
    return np.clip(found, 0.0, FARTHEST)


def again(off: Off, parts: PartsOf, base: Method) -> Iterator[Row]:
    """Yield rows as they are predicted with the constants of their group."""
    methods: dict[Parts, Method] = {}
    for group, some in shares(off, parts).items():
        values = defaultdict[str, dict[str, float | None]](dict)
        for way, along in some:
            values[way.name] |= way.at(along)
        methods[group] = with_constants(base, values)
    for row in off.rows:
        yield row._replace(reply=row.question.reply(methods.get(parts(row), base)))


def _moved(off: Off, parts: PartsOf) -> Iterator[Row]:
    """Yield rows whose quantities are as much larger as the constants of their group say."""
    found, factors = shares(off, parts), defaultdict[int, dict[str, float]](dict)
    for at, (i, quantity) in enumerate(off.at):
        some = found[parts(off.rows[i])]
        factors[i][quantity] = exp(sum((along - 1) * way.moves[at] for way, along in some))
    for i, row in enumerate(off.rows):
        values = {name: _times(row.reply.values[name], by) for name, by in factors[i].items()}
        yield row._replace(reply=replace(row.reply, values=values))


def _times(time: Interval, factor: float) -> Interval:
    low, high = (None if end is None else factor * end for end in (time.low, time.high))
    return Interval(factor * time.value, low, high)


def as_wide_as_others(rows: Sequence[Row], parts: PartsOf) -> list[Row]:
    """Return rows whose widths, where rows told them, hold 80 % of what shares no part with them.

    Where there are too few of the same kind, widths are as they were.
    """
    after = [{**row.reply.values} for row in rows]
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        label = row.question.set if isinstance(row.question.answer, CaseAnswer) else row.reply.form
        for name in row.question.measured.keys() & row.reply.values.keys():
            if _ends(row.reply.values[name]):
                alike[label, name].append(i)
    for (_, name), places in alike.items():
        need = {i: _need(rows[i], name) for i in places}
        groups = {i: parts(rows[i]) for i in places}
        for group in {*groups.values()}:
            others = [need[i] for i in places if groups[i].isdisjoint(group)]
            if len(others) < FEWEST:
                continue
            by = float(np.quantile(others, LEVEL))
            for i in (i for i in places if groups[i] == group and _width_told(rows[i])):
                after[i][name] = _widened(after[i][name], by)
    both = zip(rows, after, strict=True)
    return [row._replace(reply=replace(row.reply, values=values)) for row, values in both]


def _ends(time: Interval) -> tuple[float, float] | None:
    """Return how far the ends of an interval are from its value, in ln; None without."""
    if not time.low or not time.high or not time.low < time.value < time.high:
        return None
    return log(time.value / time.low), log(time.high / time.value)


def _need(row: Row, name: str) -> float:
    """Return how many times as wide an interval must be to hold what was measured."""
    below, above = _ends(row.reply.values[name]) or (1.0, 1.0)
    off = far(row, name)
    return off / below if off > 0 else -off / above


def _widened(time: Interval, by: float) -> Interval:
    below, above = _ends(time) or (0.0, 0.0)
    return Interval(time.value, time.value * exp(-by * below), time.value * exp(by * above))


def _width_told(row: Row) -> bool:
    """Whether a row's set told how wide an interval is."""
    return any(
        name.startswith("interval.") and row.set in one.rows
        for name, one in constants_of(row).items()
    )
