"""How far rows are off, and how much of that each constant that rows told moves."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, log
from typing import Any, NamedTuple

import numpy as np

from steptime.calibration.cases import priors_of
from steptime.calibration.plan_rows import Question, Reply
from steptime.hardware import catalog
from steptime.hardware.constants import NEUTRAL, Constant, kinds_of_use, stack_uses, value_of
from steptime.prediction.method import Method
from steptime.prediction.prices import Floats
from validation.score import CaseAnswer
from validation.sets import constants_of_stack, neutral_value

HALF = 0.5
MOST = 100  # rows of a stack
MOST_SERVED = 20  # rows of a stack that serves: each runs hundreds of requests for each constant
SERVING = "serve"  # how the form of a serving's answer begins
By = Mapping[str, Mapping[str, float | None]]  # name, stack
Replies = dict[tuple[str, str, str, Constant], Reply]  # by set and place of a row, and constant


class Row(NamedTuple):
    """A row that was answered: the name of its set, what was asked, and the answer."""

    set: str
    question: Question
    reply: Reply


class Way(NamedTuple):
    """A constant that rows told, and how much of ln(predicted) it moves of each quantity.

    `value` is what its file says, `neutral` by stack what it would be without them.
    """

    name: str
    rows: tuple[str, ...]
    moves: Floats
    value: float = 0.0
    neutral: Mapping[str, float | None] = {}

    def at(self, share: float) -> dict[str, float | None]:
        """Return the constant by stack, so far along the way; None: nobody says it.

        What nobody would say is said from half of the way on. A share is 1 at most.
        """
        found: dict[str, float | None] = {}
        most = 1.0 if _what(self.name) == "share" else inf
        for stack, start in self.neutral.items():
            said = value_of(self.name, {}) if start is None else start
            is_left = start is None and share < HALF
            found[stack] = None if is_left else min(most, said + share * (self.value - said))
        return found


class Off(NamedTuple):
    """Rows, and of each of their quantities ln(predicted / measured) and the ways of constants.

    `at` are the place of the row, and the quantity.
    """

    rows: Sequence[Row]
    at: Sequence[tuple[int, str]]
    told: Floats
    ways: Sequence[Way]


def constants_of(row: Row) -> Mapping[str, Constant]:
    """Return the constants by which a row is predicted, by full name."""
    answer, device = row.question.answer, row.question.texts.get("device")
    if device is None:
        return {}
    stack = answer.case.stack if isinstance(answer, CaseAnswer) else row.reply.stack
    return _constants(device, stack or catalog.DEFAULT_STACK)


@lru_cache(maxsize=512)
def _constants(device: str, stack: str) -> Mapping[str, Constant]:
    return priors_of(catalog.device(device), stack)


def told_of(row: Row) -> dict[str, Constant]:
    """Return the constants that the set of a row told, without those of intervals."""
    return {
        name: one
        for name, one in constants_of(row).items()
        if row.set in one.rows and not name.startswith("interval.")
    }


def neutral(name: str, told: Constant, stack: str) -> float | None:
    """Return what a constant would be without the rows that told it, None: nobody would say it.

    It is what the nearest of the stacks that a stack is `like` says, the default stack last, unless
    one of these sets told that, too; else what `data/constants.toml` says, of a factor 1.
    """
    line = [stack]
    while (base := catalog.stack(line[-1]).base) and name in constants_of_stack(base):
        line.append(base)
    for one in (*line, catalog.DEFAULT_STACK):
        other = constants_of_stack(one).get(name)
        if other is not None and {*other.rows}.isdisjoint(told.rows):
            return float(other.value)
    return NEUTRAL["factor"] if _what(name) == "factor" else neutral_value(name)


def _what(name: str) -> str | None:
    """Return what a constant of a stack is, a factor, say; None for one of something else."""
    use = name.partition(".")[0]
    return kinds_of_use(use).get(name) if use in stack_uses() else None


def places(rows: Sequence[Row]) -> list[tuple[int, str]]:
    """Return the quantities of rows that were measured and predicted."""
    return [
        (i, name)
        for i, (_, question, reply) in enumerate(rows)
        for name in question.measured
        if name in reply.values and reply.values[name].value > 0
    ]


def far(row: Row, name: str) -> float:
    """Return ln(predicted / measured) of a quantity."""
    return log(row.reply.values[name].value / row.question.measured[name])


def drawn(rows: Sequence[Row]) -> set[int]:
    """Return the places of at most `MOST` rows of each stack, evenly: more tell nothing new.

    Of servings they are at most `MOST_SERVED`.
    """
    found: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        found[row.reply.stack, row.reply.form.startswith(SERVING)].append(i)
    return {
        i
        for (_, is_serving), own in found.items()
        for i in own[:: -(-len(own) // (MOST_SERVED if is_serving else MOST))]
    }


def ways(rows: Sequence[Row], base: Method, replies: Replies | None = None) -> Off:
    """Return how far rows are off, and the way of each constant from neutral to what it is.

    Args:
        rows: the rows, of which those that are `drawn` tell the ways.
        base: the method that predicted them.
        replies: the answers with a constant at neutral, which are kept for the next call.
    """
    replies = {} if replies is None else replies
    some = drawn(rows)
    at = [one for one in places(rows) if one[0] in some]
    told = np.array([far(rows[i], name) for i, name in at])
    every = {(name, one): None for row in rows for name, one in told_of(row).items()}
    found = []
    for name, one in every:
        of = [constants_of(row).get(name) == one and i in some for i, row in enumerate(rows)]
        stacks = {row.reply.stack for row, is_of in zip(rows, of, strict=True) if is_of}
        value = {stack: neutral(name, one, stack) for stack in stacks}
        other = with_constants(base, {name: value})
        again = []
        for row, is_of in zip(rows, of, strict=True):
            key = row.set, row.question.place, name, one
            if is_of and key not in replies:
                replies[key] = row.question.reply(other)
            again.append(row._replace(reply=replies[key]) if is_of else row)
        moves = told - [far(again[i], key) for i, key in at]
        found.append(Way(name, one.rows, moves, float(one.value), value))
    return Off(rows, at, told, found)


def with_constants(base: Method, values: By) -> Method:
    """Return a method with constants of some stacks as `values` say; None: as if nobody does."""

    def sees(device: Any, dtype: str, under: Any) -> Any:
        seen = base.derate(device, dtype, under)
        own = {**seen.constants}
        for name, by in values.items():
            if under.stack not in by or name not in own:
                continue
            value = by[under.stack]
            if value is None:
                own.pop(name, None)
            else:
                own[name] = value
        return replace(seen, constants=own)

    return replace(base, derate=sees)
