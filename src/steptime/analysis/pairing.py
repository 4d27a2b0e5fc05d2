"""Pairs as columns, and rows made of those that are shown: what `pairs` makes.

Side A is what side B is held against: `ratio` is B / A, and a verdict is on B.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.sides import OF_PLATFORM, OF_STACK, Columns, Ids, Sides
from steptime.analysis.verdict import compared
from steptime.core.table import JsonRows
from steptime.core.units import shown
from steptime.records import flat, names
from steptime.records.row import BESIDES, Row, loaded
from steptime.records.statistics import BETWEEN, WITHIN

WORDS = ("faster", "slower", "same", "unsure")
ABOUT = (  # of the last record of a cell
    *("model", "family", "batch", "replicas", "strategy", "overlap", "dtype", "phase"),
    *("optimizer", "platform", "workload_key", "scope", "op_kind"),
)
TOLD = {
    **{name: name for name in (*ABOUT, "origin", "method", "method_version", "status", "cause")},
    "good_s": "if(status = 'ok', numbers['step_s'], NULL)",
    "flop": "numbers['flop']",
    "peak": "peak_flop_per_s",
    "roof": "numbers['flop'] / nullif(numbers['traffic_bytes'], 0) * memory_bytes_per_s",
}
HOW_RUN = {one: one for one in ("origin", "method_version", "method_options", "host")}
WIDE = {"within": "0"} | {name: name for name in names.TOLD if name != "within"}
HASHED = {"place": "id", "beside": f"hash({', '.join((*BESIDES, 'scope'))})"} | names.HASHES
OF_SIDE = ("value", "low", "high", "runs")
MOST_HELD = 1000  # rows in memory


@dataclass(frozen=True)
class Pairing:
    """Pairs as columns, and what has no partner; rows of them where they are asked for.

    `words` has each level in words, `free` what tells the two of a pair apart, and so no names.
    """

    sides: Sides
    against: str
    words: Mapping[str, str]
    column: str = ""
    free: Collection[str] = ()
    but: str = "not with these options {}"
    margin: float | None = None  # below which no difference counts

    @property
    def levels(self) -> list[str]:
        """The levels that stand against the first."""
        return [level for level in self.sides.levels if level != self.against]

    @cached_property
    def _matched(self) -> dict[str, NDArray[np.int64]]:
        return self.sides.pairs(self.against)

    @cached_property
    def _whole(self) -> NDArray[np.bool_]:
        """Which of the matched have a number above 0 on both sides."""
        value = self.sides.groups["value"]
        return np.asarray((value[self._matched["a"]] > 0) & (value[self._matched["b"]] > 0))

    @cached_property
    def columns(self) -> Columns:
        """Of each pair the ids `a` and `b`, the ratio, what `compared` says of it, its level."""
        of = self.sides.groups
        a, b = (self._matched[side][self._whole] for side in "ab")
        ratio = of["value"][b] / of["value"][a]
        sampled = np.isfinite(of["e_value"][a]) & np.isfinite(of["e_value"][b])
        left, right = (self.sides.estimate(side[sampled]) for side in (a, b))
        found = compared(left, right, ratio[sampled], self.sides.quantity, self.margin)
        told = {name: np.full(len(a), np.nan) for name in ("low", "high", "p_value")}
        for name, column in told.items():
            column[sampled] = found[name]
        stated = ~sampled & (np.isfinite(of["low"][a]) | np.isfinite(of["low"][b]))
        for end, other in (("low", "high"), ("high", "low")):
            widest = _end(of, b, end) / _end(of, a, other)
            told[end][stated] = widest[stated]
        verdict = np.full(len(a), None, object)
        verdict[sampled] = found["verdict"]
        several = np.minimum(of["runs"][a], of["runs"][b]) > 1
        told |= {"a": a, "b": b, "ratio": ratio, "verdict": verdict, "sampled": sampled}
        told |= {"single": sampled & ~several, "level": of["level"][b]}
        steady = of["e_steady"][a] * of["e_steady"][b]  # NaN where unknown of one
        return told | {"steady": np.where(sampled, steady, np.nan)}

    def __len__(self) -> int:
        return len(self.columns["ratio"])

    @cached_property
    def unpaired(self) -> Columns:
        """What has no partner, whole steps only: `id`, whether `is_a` or `is_both`, the `reason`.

        Where both are there, `a` and `b` are their ids, `is_lost` says that only `b` has no number,
        and the reason is yet to be told.
        """
        others = [name for name in self.words if name != self.against]
        alone = self.sides.lonely(self.against, others, self._matched)
        words = [self.words[name] for name in (*others, self.against)]
        reasons = np.array([said for one in words for said in (f"not {one}", self.but.format(one))])
        told = reasons.astype(object)[2 * (alone["other"] % len(words)) + alone["in_cell"]]
        lost = ~self._whole & self.sides.groups["whole"][self._matched["b"]]
        a, b = (self._matched[side][lost] for side in "ab")
        size, more = len(told), len(a)
        return {
            "id": np.r_[alone["id"], b],
            "is_a": np.r_[alone["is_a"], np.zeros(more, bool)],
            "is_both": np.arange(size + more) >= size,
            "is_lost": np.r_[np.zeros(size, bool), self.sides.groups["value"][a] > 0],
            "reason": np.r_[told, np.full(more, None, object)],
            **{s: np.r_[np.full(size, -1), one] for s, one in (("a", a), ("b", b))},
        }

    def summary(self) -> Row:
        """Return how far A is off from B, with the pairs that are `worst`; see `errors`."""
        ratio = self.columns["ratio"]
        which = np.argsort(-np.abs(np.log(ratio)), kind="stable")[:3]
        b = self.columns["b"][which]
        self.learn(b)
        facts = self.sides.facts(b, {"model": "model", "batch": "batch"})
        told = {row.pop("id"): row for row in self.sides.data.rows(f"FROM {facts}")}
        worst = [
            {"name": self._names[at], **told[at], "ratio": float(ratio[place])}
            for at, place in zip(b.tolist(), which, strict=True)
        ]
        return errors(ratio) | {"worst": worst}

    def of_levels(self) -> list[Row]:
        """Return what the pairs of each level amount to."""
        return [self._of_level(level) for level in self.levels] if self.column else []

    def _of_level(self, level: str) -> Row:
        mine = self.columns["level"] == self.sides.place(level)
        ratio, words = self.columns["ratio"][mine], self.columns["verdict"][mine]
        known = len(ratio) > 0
        return {
            "level": level,
            "pairs": len(ratio),
            "geometric_mean_ratio": errors(ratio)["geometric_mean_ratio"],
            "median_ratio": float(np.median(ratio)) if known else None,
            "min_ratio": float(ratio.min()) if known else None,
            "max_ratio": float(ratio.max()) if known else None,
            **{word: int((words == word).sum()) for word in WORDS},
        }

    def differences(self, which: Any = slice(None)) -> Counter[str]:
        """Return in what the two of a pair differ beside time, and how many pairs, or of some."""
        found: Counter[str] = Counter()
        of, told = self._ways(self.columns["a"][which], self.columns["b"][which])
        ways, first, number = np.unique(of, return_index=True, return_counts=True)
        for at in np.argsort(first):
            found.update(dict.fromkeys(told[ways[at]]["differ"], int(number[at])))
        return found

    def _ways(self, a: Ids, b: Ids) -> tuple[Ids, list[Row]]:
        """Return in which way each of these pairs ran, and of each way in what the sides differ."""
        way = self.sides.groups["way"]
        _, first, of = np.unique(way[a] * 3 + way[b], return_index=True, return_inverse=True)
        a, b = a[first], b[first]
        facts = self.sides.facts(np.r_[a, b], HOW_RUN)
        told = {row.pop("id"): row for row in self.sides.data.rows(f"FROM {facts}")}
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        return of, [_apart(told[one], told[other], self.column) for one, other in pairs]

    def rows(self, which: Ids | None = None) -> Sequence[Row]:
        """Return pairs as rows, all of them or those at these places.

        They have both sides, the ratio with the verdict, and in what measurements differ, in words,
        too: `threads 1 | 2`. The `column` by which they are compared is left out there.
        """
        which = np.arange(len(self)) if which is None else which
        self.learn(self.columns["b"][which])
        return held(len(which), lambda: self._texts(which))

    def unpaired_rows(self, which: Ids | None = None) -> Sequence[Row]:
        """Return what is `unpaired` as rows, or some of it, with the `reason`."""
        which = np.arange(len(self.unpaired["id"])) if which is None else which
        self.learn(self.unpaired["id"][which])
        return held(len(which), lambda: self._unpaired_texts(which))

    @cached_property
    def _names(self) -> NDArray[Any]:
        """The names of groups, None for those that have none yet."""
        return np.full(len(self.sides.groups["cell"]), None, object)

    def learn(self, ids: Ids) -> None:
        """See to it that these groups have names that tell them from all others that have one.

        What is `free` tells none apart, as in a pair.
        """
        if not self._names[ids].all():
            old = np.flatnonzero(self._names)
            kept = self._names[old]
            at, told = self.sides.data.names_of(
                f"FROM {self.sides.facts(np.r_[old, ids], HASHED)}",
                lambda heads: f"FROM {self.sides.facts(np.array(heads), WIDE)}",
                self.free,
            )
            self._names[at] = told
            self._names[old] = kept

    def _written(
        self, told: Columns, when: str, rows: Sequence[Mapping[str, str]], more: str = "", **of: Ids
    ) -> Iterator[list[str]]:
        """Yield JSON: the first of two rows of SQL where the condition `when` holds, or the second.

        The SQL may ask for columns that are `told`, the `name` of the group `id`, what the last
        records of groups `of` say, and what is joined by `more`.
        """
        told = told | {f"seq_{x}": self.sides.last(ids) for x, ids in of.items()}
        told |= {"name": self._names[told["id"]], "turn": np.arange(len(told["id"]))}
        self.sides.data.lend("paired", told)
        last = ", ".join(f"{made} AS {name}" for name, made in TOLD.items())
        joined = f"paired p {more}"
        for x in of:
            joined = f"(SELECT seq, {last} FROM flat) AS {x} JOIN ({joined}) ON {x}.seq = p.seq_{x}"
        first, second = (f"to_json({flat.struct(row)})" for row in rows)
        yield from self.sides.data.texts(
            f"SELECT turn, CASE WHEN {when} THEN {first} ELSE {second} END::VARCHAR FROM {joined}"
        )

    def _texts(self, which: Ids) -> Iterator[list[str]]:
        """Yield pairs as JSON."""
        told = {name: column[which] for name, column in self.columns.items()}
        a, b, of = told["a"], told["b"], self.sides.groups
        for side, ids in (("a", a), ("b", b)):
            told |= {f"{name}_{side}": of[name][ids] for name in OF_SIDE}
        told["differs"], ways = self._ways(a, b)
        self.sides.data.lend("ways", _as_json(ways) | {"differs": np.arange(len(ways))})
        row = {"name": "p.name"} | {name: f"b.{name}" for name in ABOUT}
        row |= {side: flat.struct(_side(side)) for side in "ab"}
        row |= {"quantity": flat.text(self.sides.quantity), "ratio": "ratio"}
        if self.column:
            levels = ", ".join(map(flat.text, self.sides.levels))
            row |= {"level": f"[{levels}][level + 1]", "against": flat.text(self.against)}
        row |= _JUDGED
        is_roof = "a.origin = 'predicted' AND a.origin <> b.origin AND b.scope = ''"
        more = f"JOIN ways USING (differs) LEFT JOIN {self.sides.pooled(b)} ON pooled.id = p.b"
        yield from self._written(told | {"id": b}, is_roof, (row | _ROOF, row), more, a=a, b=b)

    def _unpaired_texts(self, which: Ids) -> Iterator[list[str]]:
        """Yield what has no partner as JSON."""
        told = {name: column[which] for name, column in self.unpaired.items()}
        of, quantity = self.sides.groups, self.sides.quantity
        words = ", ".join(flat.text(self.words.get(one, one)) for one in self.sides.levels)
        not_above = flat.text(f"{quantity} is not above 0")
        lacks, why = [], []
        for side in "ab":
            told |= {f"{n}_{side}": of[n][told[side]] for n in ("value", "held", "level")}
            is_missing = f"coalesce({_number(f'value_{side}')}, 0) <= 0"
            missing = (
                f"CASE WHEN {side}.status <> 'ok' THEN {side}.status || "
                f"coalesce(' (' || {side}.cause || ')', '') WHEN held_{side} THEN {not_above} "
                f"ELSE {flat.text(f'no {quantity}')} END"
            )
            lacks.append(f"if({is_missing}, '{side}', NULL)")
            why.append(f"if({is_missing}, [{words}][level_{side} + 1] || ': ' || {missing}, NULL)")
        row = {"name": "p.name"} | {name: f"f.{name}" for name in ABOUT}
        alone = {"side": "if(is_a, 'a', 'b')", "reason": "p.reason"}
        two = {
            "side": "'both'",
            "lacks": f"list_filter([{', '.join(lacks)}], lambda one: one IS NOT NULL)",
            "reason": f"concat_ws('; ', {', '.join(why)})",
        }
        a, b, rows = told["a"], told["b"], (row | two, row | alone)
        yield from self._written(told, "is_both", rows, a=a, b=b, f=told["id"])


def _number(column: str) -> str:
    """Return the SQL of a number, None for NaN."""
    return f"if(isfinite({column}), {column}, NULL)"


def _side(x: str) -> dict[str, str]:
    """Return the SQL of what a row says of a side."""
    kind = f"if(runs_{x} > 1, '{BETWEEN}', '{WITHIN}')"
    return {
        **{name: f"{x}.{name}" for name in ("origin", "method", "platform", "dtype")},
        "version": f"{x}.method_version",
        **{name: _number(f"{name}_{x}") for name in ("value", "low", "high")},
        "interval": f"if(isfinite(runs_{x}), {kind}, NULL)",
        "runs": f"if(isfinite(runs_{x}), runs_{x}, NULL)::INT",
    }


_JUDGED = {
    "dtype": "if(a.dtype = b.dtype, a.dtype, NULL)",
    **{f"ratio_{end}": _number(end) for end in ("low", "high")},
    "verdict": "verdict::VARCHAR",
    "p_value": _number("p_value"),
    "interval": f"if(sampled, if(single, '{WITHIN}', '{BETWEEN}'), {_side('b')['interval']})",
    "steady": f"{_number('steady')}::BOOLEAN",
    "options_that_differ": "ways.options_that_differ::JSON",
    "differ": "ways.differ::JSON",
}
_FLOP_PER_S = "(a.flop / nullif(coalesce(pooled.good_s, b.good_s), 0))"
_ROOF = {  # the speed of a step and its shares of peak and roof, as `results` has them
    "flop_per_s": _FLOP_PER_S,
    "peak_fraction": f"{_FLOP_PER_S} / nullif(a.peak, 0)",
    "roof_fraction": f"{_FLOP_PER_S} / nullif(if(a.peak IS NULL, NULL, least(a.peak, a.roof)), 0)",
}


def held(number: int, texts: Callable[[], Iterator[list[str]]]) -> Sequence[Row]:
    """Return rows that are JSON: as they are where they are few, else made whenever asked for."""
    rows = JsonRows(number, texts)
    return rows if number > MOST_HELD else list(rows) if number else []


def _as_json(rows: Sequence[Row]) -> Columns:
    return {n: np.array([json.dumps(row[n]) for row in rows], object) for n in rows[0]}


def _apart(left: Row, right: Row, column: str) -> Row:
    """Return in what two measurements differ but in `column`, and this in words, too."""
    told = [loaded(one["method_options"]) for one in (left, right)]
    ways = [
        {"host": one["host"] or None, "version": one["method_version"], **options}
        for one, options in zip((left, right), told, strict=True)
    ]
    differ = [n for n in {**ways[0], **ways[1]} if ways[0].get(n) != ways[1].get(n)]
    if {left["origin"], right["origin"]} not in ({"measured"}, {"measured", "published"}):
        differ = []
    known = ("version", *OF_STACK) if column in ("stack", "method") else ()
    shown_ = [name for name in differ if name not in (column, *OF_PLATFORM[1:], *known)]
    return {
        "options_that_differ": [name for name in differ if name in {**told[0], **told[1]}],
        "differ": [
            f"{name} {' | '.join(str(shown(name, way.get(name))) for way in ways)}"
            for name in shown_
        ],
    }


def errors(ratio: NDArray[np.float64]) -> Row:
    """Return how far A is off from B by their ratios B / A: what a prediction is judged by.

    `median_error` is the median of |A / B - 1|, `geometric_mean_ratio` that of B / A,
    `within_factor_2` a share. All are None without a pair.
    """
    known = len(ratio) > 0
    return {
        "pairs": len(ratio),
        "median_error": float(np.median(np.abs(1 / ratio - 1))) if known else None,
        "geometric_mean_ratio": float(np.exp(np.log(ratio).mean())) if known else None,
        "within_factor_2": float(((ratio >= 0.5) & (ratio <= 2)).mean()) if known else None,
    }


def _end(of: Mapping[str, NDArray[Any]], side: NDArray[np.int64], end: str) -> NDArray[Any]:
    """Return an end of the interval of each side; an exact value is its own."""
    return np.where(np.isnan(of[end][side]), of["value"][side], of[end][side])
