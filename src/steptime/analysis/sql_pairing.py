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

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptime.analysis.verdict import compare_sides, judge_folders
from steptime.core.table import JsonRows
from steptime.core.units import format_value
from steptime.records import names, results_sql
from steptime.records.levels import OF_PLATFORM, OF_STACK
from steptime.records.ratios import accuracy, farthest, geometric_mean
from steptime.records.row import BESIDES, Row, loaded, no_collection
from steptime.records.sides import Columns, Ids, Sides, known, places_of
from steptime.records.statistics import BETWEEN, WITHIN, run_logs

WORDS = ("faster", "slower", "same", "unsure")
ABOUT = (  # of the last record of a cell
    *("model", "family", "batch", "replicas", "strategy", "overlap", "dtype", "phase"),
    *("optimizer", "platform", "workload_key", "scope", "op_kind"),
)
_HOW = {name: name for name in ("origin", "method", "method_version", "platform", "dtype")}
OF_ROOF = ("flop", "traffic_bytes", "peak_flop_per_s", "memory_bytes_per_s")
OF_A = _HOW | {name: name for name in OF_ROOF}  # of the last record of side A
OF_B = {name: name for name in ABOUT} | _HOW
OF_B["good_s"] = "coalesce(good_s, if(status = 'ok', step_s, NULL))"
OF_ALONE = {name: name for name in (*ABOUT, "status", "cause")}
HOW_RUN = {one: one for one in ("origin", "method_version", "method_options", "host")}
WIDE = {"within": "0"} | {name: name for name in names.TOLD if name != "within"}
HASHED = {"place": "id", "beside": f"hash({', '.join((*BESIDES, 'scope'))})"} | names.HASHES
OF_SIDE = ("value", "low", "high", "runs")
OF_PAIR = (
    *("level", "ratio", "low", "high", "verdict", "p_value", "smallest"),
    *("sampled", "single", "steady"),
)
OF_VERDICT = ("low", "high", "p_value", "smallest", "noise")
SHARES = ("flop_per_s", "peak_fraction", "roof_fraction")
OF_SHARES = ", ".join(
    f"{results_sql.COLUMNS[one]} AS {one}" for one in ("roof_flop_per_s", *SHARES)
)
MOST_HELD, AT_ONCE = 1000, 20_000  # rows in memory, and while they are written


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
        """Of each pair the ids `a` and `b`, the ratio, its verdict with its numbers, its level."""
        groups = self.sides.groups
        a, b = (self._matched[side][self._whole] for side in "ab")
        ratio = groups["value"][b] / groups["value"][a]
        sampled = np.isfinite(groups["e_value"][a]) & np.isfinite(groups["e_value"][b])
        verdicts = self._judge(a[sampled], b[sampled], ratio[sampled])
        columns = {name: np.full(len(a), np.nan) for name in OF_VERDICT}
        for name, column in columns.items():
            column[sampled] = verdicts.get(name, np.nan)
        stated = ~sampled & (np.isfinite(groups["low"][a]) | np.isfinite(groups["low"][b]))
        for end, other in (("low", "high"), ("high", "low")):
            widest = _end(groups, b, end) / _end(groups, a, other)
            columns[end][stated] = widest[stated]
        verdict = np.full(len(a), None, object)
        verdict[sampled] = verdicts["verdict"]
        several = np.minimum(groups["runs"][a], groups["runs"][b]) > 1
        columns |= {"a": a, "b": b, "ratio": ratio, "verdict": verdict, "sampled": sampled}
        columns |= {"single": sampled & ~several, "level": groups["level"][b]}
        steady = groups["e_steady"][a] * groups["e_steady"][b]  # NaN where unknown of one
        return columns | {"steady": np.where(sampled, steady, np.nan)}

    def _judge(self, a: Ids, b: Ids, ratio: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Return the verdicts on pairs with samples: of two folders by the noise of all runs."""
        quantity = self.sides.quantity
        if self.margin is None:
            return compare_sides(self.sides.estimate(a), self.sides.estimate(b), ratio, quantity)
        groups = self.sides.groups
        return judge_folders(
            self._run_logs(a),
            self._run_logs(b),
            ratio,
            drift=groups["e_drift"][a] + groups["e_drift"][b],
            is_whole=groups["whole"][b],
            quantity=quantity,
            margin=self.margin,
        )

    def _run_logs(self, ids: Ids) -> NDArray[np.float64]:
        """Return the logarithm of the median of each run of groups, NaN for a single run."""
        has_runs = self.sides.groups["runs"][ids] > 1
        samples, runs = self.sides.samples(ids[has_runs])
        logs = run_logs(samples, runs)
        every = np.full((len(ids), max(logs.shape[1], 1)), np.nan)
        every[np.flatnonzero(has_runs), : logs.shape[1]] = logs
        return every

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
        """Return how far A is off from B: what a prediction is judged by, and the `worst` pairs."""
        ratio = self.columns["ratio"]
        which = farthest(ratio, 3)
        b = self.columns["b"][which]
        self.learn(b)
        told = self.sides.facts(b, {"model": "model", "batch": "batch"})
        worst = [
            {"name": self._names[at], **told[at], "ratio": float(ratio[place])}
            for at, place in zip(b.tolist(), which, strict=True)
        ]
        return accuracy(ratio) | {"worst": worst}

    def of_levels(self) -> list[Row]:
        """Return what the pairs of each level amount to."""
        if not self.column:
            return []
        places = places_of(self.columns["level"], len(self.sides.levels))
        each = dict(zip(self.sides.levels, places, strict=True))
        return [{"level": level, **self._amount(each[level])} for level in self.levels]

    def _amount(self, which: Ids) -> Row:
        """Return what the pairs at these places amount to."""
        ratio, verdict = self.columns["ratio"][which], self.columns["verdict"][which]
        ends = {"median_ratio": 0.5, "min_ratio": 0, "max_ratio": 1}
        return {
            "pairs": len(which),
            "geometric_mean_ratio": geometric_mean(ratio),
            **{
                name: float(np.quantile(ratio, end)) if len(which) else None
                for name, end in ends.items()
            },
            **{word: int((verdict == word).sum()) for word in WORDS},
        }

    def differences(self, which: Any = slice(None)) -> Counter[str]:
        """Return in what the two of a pair differ beside time, and how many pairs, or of some."""
        found: Counter[str] = Counter()
        of, told = self.ways(self.columns["a"][which], self.columns["b"][which])
        ways, first, number = np.unique(of, return_index=True, return_counts=True)
        for at in np.argsort(first):
            found.update(dict.fromkeys(told[ways[at]]["differ"], int(number[at])))
        return found

    def ways(self, a: Ids, b: Ids) -> tuple[Ids, list[Row]]:
        """Return in which way each of these pairs ran, and of each way in what the sides differ."""
        way = self.sides.groups["way"]
        _, first, of = np.unique(way[a] * 3 + way[b], return_index=True, return_inverse=True)
        a, b = a[first], b[first]
        told = self.sides.facts(np.r_[a, b], HOW_RUN)
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        return of, [_apart(told[one], told[other], self.column) for one, other in pairs]

    def rows(self, which: Ids | None = None) -> Sequence[Row]:
        """Return pairs as rows, all of them or those at these places.

        They have both sides, the ratio with the verdict, and in what measurements differ, in words,
        too: `threads 1 | 2`. The `column` by which they are compared is left out there.
        """
        which = np.arange(len(self)) if which is None else which
        self.learn(self.columns["b"][which])
        return held(which, self._rows)

    def unpaired_rows(self, which: Ids | None = None) -> Sequence[Row]:
        """Return what is `unpaired` as rows, or some of it, with the `reason`."""
        which = np.arange(len(self.unpaired["id"])) if which is None else which
        self.learn(self.unpaired["id"][which])
        return held(which, self._unpaired_rows)

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
            at, told = names.named(
                self.sides.data,
                f"FROM {self.sides.lent(np.r_[old, ids], HASHED)}",
                lambda heads: f"FROM {self.sides.lent(np.array(heads), WIDE)}",
                self.free,
            )
            self._names[at] = told
            self._names[old] = kept

    def _rows(self, which: Ids) -> list[Row]:
        """Return these pairs as rows."""
        a, b = self.columns["a"][which], self.columns["b"][which]
        differs, ways = self.ways(a, b)
        lefts, rights = self.sides.facts(a, OF_A), self.sides.facts(b, OF_B)
        columns = (known(self.columns[name][which]) for name in OF_PAIR)
        of, names = self.sides.groups, self._names[b]
        sides = _sides(lefts, of, a), _sides(rights, of, b)
        shares = self._shares([lefts[at] for at in a.tolist()], [rights[at] for at in b.tolist()])
        made = []
        for at, (side_a, side_b, x, y, share, *cells) in enumerate(
            zip(*sides, a.tolist(), b.tolist(), shares, *columns, strict=True)
        ):
            left, right = lefts[x], rights[y]
            level, ratio, low, high, verdict, p_value, smallest, sampled, single, steady = cells
            row = {"name": names[at]} | {name: right[name] for name in ABOUT}
            row |= {"a": side_a, "b": side_b}
            row |= {"quantity": self.sides.quantity, "ratio": ratio}
            if self.column:
                row |= {"level": self.sides.levels[level], "against": self.against}
            row |= {
                "dtype": left["dtype"] if left["dtype"] == right["dtype"] else None,
                "ratio_low": low,
                "ratio_high": high,
                "verdict": verdict,
                "p_value": p_value,
                "smallest_slowdown": smallest,
                "interval": (WITHIN if single else BETWEEN) if sampled else side_b["interval"],
                "steady": None if steady is None else bool(steady),
                **ways[differs[at]],
            }
            if left["origin"] == "predicted" != right["origin"] and not right["scope"]:
                row |= share
            made.append(row)
        return made

    def _shares(self, predicted: Sequence[Row], measured: Sequence[Row]) -> list[Row]:
        """Return the speeds of steps and their shares of peak and roof, as `results` has them."""
        told = {name: np.array([row[name] for row in predicted], float) for name in OF_ROOF}
        told["measured_s"] = np.array([row["good_s"] for row in measured], float)
        self.sides.data.lend("steps", {"id": np.arange(len(measured)), **told})
        known = ", ".join(f"nullif({name}, 'nan') AS {name}" for name in told)
        return self.sides.data.rows(
            f"SELECT {', '.join(SHARES)} FROM (SELECT id, {OF_SHARES} FROM (SELECT id, {known}, "
            f"{results_sql.INTENSITY} AS intensity FROM steps)) ORDER BY id"
        )

    def _unpaired_rows(self, which: Ids) -> list[Row]:
        """Return what has no partner as rows."""
        told = [known(self.unpaired[name][which]) for name in ("id", "is_a", "is_both", "a", "b")]
        every = np.r_[tuple(self.unpaired[name][which] for name in ("id", "a", "b"))]
        last = self.sides.facts(every[every >= 0], OF_ALONE)
        reasons = self.unpaired["reason"][which]
        made = []
        for reason, at, is_a, is_both, a, b in zip(reasons, *told, strict=True):
            row = {"name": self._names[at]} | {name: last[at][name] for name in ABOUT}
            if not is_both:
                made.append(row | {"side": "a" if is_a else "b", "reason": reason})
                continue
            value = self.sides.groups["value"]
            lacks = {x: one for x, one in (("a", a), ("b", b)) if not value[one] > 0}
            why = "; ".join(self._missing(one, last[one]) for one in lacks.values())
            made.append(row | {"side": "both", "lacks": [*lacks], "reason": why})
        return made

    def _missing(self, at: int, last: Row) -> str:
        """Return why a group has no number that can be compared."""
        level = self.sides.levels[self.sides.groups["level"][at]]
        if last["status"] != "ok":
            why = last["status"] + (f" ({last['cause']})" if last["cause"] else "")
        elif self.sides.groups["held"][at]:
            why = f"{self.sides.quantity} is not above 0"
        else:
            why = f"no {self.sides.quantity}"
        return f"{self.words.get(level, level)}: {why}"


def _sides(last: Mapping[int, Row], of: Columns, ids: Ids) -> Iterator[Row]:
    """Return what rows say of their sides."""
    columns = (known(of[name][ids]) for name in OF_SIDE)
    for at, value, low, high, runs in zip(ids.tolist(), *columns, strict=True):
        about = last[at]
        yield {
            **{name: about[name] for name in ("origin", "method", "platform", "dtype")},
            "version": about["method_version"],
            "value": value,
            "low": low,
            "high": high,
            "interval": None if runs is None else BETWEEN if runs > 1 else WITHIN,
            "runs": None if runs is None else int(runs),
        }


def held(which: Ids, made: Callable[[Ids], list[Row]]) -> Sequence[Row]:
    """Return rows of these places: made at once where they are few, else whenever asked for."""
    if len(which) <= MOST_HELD:
        return made(which) if len(which) else []
    first_rows = MOST_HELD or AT_ONCE  # people read these alone, so they are made by themselves
    parts = np.split(which, [*range(first_rows, len(which), AT_ONCE)])

    def texts(part: Ids) -> list[str]:
        with no_collection():
            return [*map(_text, made(part))]

    return JsonRows(len(which), lambda: map(texts, parts))


def _text(row: Row) -> str:
    """Return a row as JSON, in ASCII as it may reach a terminal."""
    text = msgspec.json.format(msgspec.json.encode(row), indent=0)
    return text.decode() if text.isascii() else json.dumps(row)


def _apart(left: Row, right: Row, column: str) -> Row:
    """Return in what two steps that ran differ but in `column`, and this in words, too."""
    told = [loaded(one["method_options"]) for one in (left, right)]
    ways = [
        {"host": one["host"] or None, "version": one["method_version"], **options}
        for one, options in zip((left, right), told, strict=True)
    ]
    differ = [n for n in {**ways[0], **ways[1]} if ways[0].get(n) != ways[1].get(n)]
    if "predicted" in (left["origin"], right["origin"]):
        differ = []
    known = ("version", *OF_STACK) if column in ("stack", "method") else ()
    shown_ = [name for name in differ if name not in (column, *OF_PLATFORM[1:], *known)]
    return {
        "differing_options": [name for name in differ if name in {**told[0], **told[1]}],
        "differ": [
            f"{name} {' | '.join(str(format_value(name, way.get(name))) for way in ways)}"
            for name in shown_
        ],
    }


def _end(of: Mapping[str, NDArray[Any]], side: NDArray[np.int64], end: str) -> NDArray[Any]:
    """Return an end of the interval of each side; an exact value is its own."""
    return np.where(np.isnan(of[end][side]), of["value"][side], of[end][side])
