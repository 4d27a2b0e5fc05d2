"""Pairs of groups of records as columns, and what they amount to.

Side A is the one that side B is compared with: `ratio` is B / A, and a verdict is on B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.analysis.comparison.pair_rows import describe_differences, pair_rows, rows_on_demand
from steptime.analysis.comparison.pair_rows import unpaired_rows as make_unpaired_rows
from steptime.analysis.comparison.reference import add_reference_verdicts
from steptime.analysis.comparison.verdict import compare_sides, judge_folders
from steptime.records.groups.group_members import Flags, Ids
from steptime.records.groups.record_groups import RecordGroups, split_by_number
from steptime.records.ratios import accuracy, farthest, geometric_mean
from steptime.records.row import Row
from steptime.records.short_names import NAME_COLUMNS, name_rows
from steptime.records.statistics import run_logs
from steptime.records.warmup import Floats

VERDICTS = ("faster", "slower", "same", "unsure")
WORST_PAIRS = 3
RUN_COLUMNS = {name: name for name in ("origin", "method_version", "method_options", "host")}
NAME_CELLS = {name: name for name in NAME_COLUMNS} | {"within": pl.lit(0)}
DISTINGUISHING_COLUMNS = ("platform", "method", "scope")  # tell rows apart beside their names
VERDICT_NUMBERS = ("low", "high", "p_value", "smallest_worsening", "noise", "reference_ratio")


@dataclass(frozen=True, kw_only=True)
class PairColumns:
    """Pairs in order, one entry a pair; NaN is unknown.

    Attributes:
        a: group of side A.
        b: group of side B.
        ratio: B / A.
        low: low end of the ratio's interval.
        high: high end of the ratio's interval.
        p_value: probability of such a ratio without a difference.
        smallest_worsening: smallest worsening that is found with 90 % power, as a share.
        noise: standard deviation from run to run that the pair was judged with.
        reference_ratio: B / A of the machine's reference where it takes a verdict back: the step
            changed, but not in multiples of the reference.
        verdict: one of `VERDICTS`; None without samples on both sides.
        is_sampled: whether both sides have samples.
        is_single: whether a side has a single run.
        level: level of side B, as an index of the levels.
        steady: 1 where both sides reached a steady state, 0 where one did not.
    """

    a: Ids
    b: Ids
    ratio: Floats
    low: Floats
    high: Floats
    p_value: Floats
    smallest_worsening: Floats
    noise: Floats
    reference_ratio: Floats
    verdict: NDArray[Any]
    is_sampled: Flags
    is_single: Flags
    level: Ids
    steady: Floats


@dataclass(frozen=True, kw_only=True)
class Unpaired:
    """Whole steps without a partner, or without a number, one entry each.

    Attributes:
        group: the group; that of side B where both sides are there.
        is_a: whether it is of side A.
        is_both: whether both sides are there, and a number is missing.
        is_lost: whether side A has a number and side B has none.
        a: group of side A where both are there, else -1 for none.
        b: group of side B where both are there, else -1 for none.
        reason: why there is no partner; None where both are there.
    """

    group: Ids
    is_a: Flags
    is_both: Flags
    is_lost: Flags
    a: Ids
    b: Ids
    reason: NDArray[Any]

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True)
class Pairing:
    """Pairs as columns, and what has no partner; rows of them where they are asked for.

    Attributes:
        groups: the groups that are paired.
        against: the level of side A.
        level_words: each level in words, such as "in the first folder".
        column: the column that is compared; "" for predictions and folders.
        free_columns: settings that tell the two of a pair apart, and so are not in names.
        mismatch: the reason where a partner is there that differs; `{}` is its level in words.
        margin: share below which no difference counts; None for sides that are not two folders.
        reference: the same groups with the machine's reference; None where no record has one.
    """

    groups: RecordGroups
    against: str
    level_words: Mapping[str, str]
    column: str = ""
    free_columns: Collection[str] = ()
    mismatch: str = "not with these options {}"
    margin: float | None = None
    reference: RecordGroups | None = None

    @property
    def quantity(self) -> str:
        """The quantity that is compared."""
        return self.groups.quantity

    @property
    def levels(self) -> list[str]:
        """The levels that are compared with the first."""
        return [level for level in self.groups.levels if level != self.against]

    def __len__(self) -> int:
        return len(self.columns.ratio)

    @cached_property
    def _matched_groups(self) -> dict[str, Ids]:
        return self.groups.pairs(self.against)

    @cached_property
    def _has_numbers(self) -> Flags:
        """Which of the matched have a number above 0 on both sides."""
        value = self.groups.columns.value
        return np.asarray(
            (value[self._matched_groups["a"]] > 0) & (value[self._matched_groups["b"]] > 0)
        )

    @cached_property
    def columns(self) -> PairColumns:
        """The pairs with a number on both sides."""
        groups = self.groups.columns
        a = self._matched_groups["a"][self._has_numbers]
        b = self._matched_groups["b"][self._has_numbers]
        ratio = groups.value[b] / groups.value[a]
        # Samples on both sides: a verdict with its numbers. Else an interval that a side states.
        estimate_s = groups.estimate["value"]
        is_sampled = np.isfinite(estimate_s[a]) & np.isfinite(estimate_s[b])
        judged = self._judge(a[is_sampled], b[is_sampled], ratio[is_sampled])
        numbers = {name: _fill_sampled(judged.get(name), is_sampled) for name in VERDICT_NUMBERS}
        self._fill_stated_intervals(numbers, a, b, ~is_sampled)
        verdict = np.full(len(a), None, object)
        verdict[is_sampled] = judged["verdict"]
        has_several_runs = np.minimum(groups.runs[a], groups.runs[b]) > 1
        steady_sides = groups.estimate["steady"]
        both_steady = steady_sides[a] * steady_sides[b]  # NaN where unknown of a side
        return PairColumns(
            a=a,
            b=b,
            ratio=ratio,
            verdict=verdict,
            is_sampled=is_sampled,
            is_single=is_sampled & ~has_several_runs,
            level=groups.level[b],
            steady=np.where(is_sampled, both_steady, np.nan),
            **numbers,
        )

    def _fill_stated_intervals(
        self, numbers: Mapping[str, Floats], a: Ids, b: Ids, is_unsampled: Flags
    ) -> None:
        """Set the interval of the ratio of pairs without samples of which a side states one."""
        groups = self.groups.columns
        is_stated = is_unsampled & (np.isfinite(groups.low[a]) | np.isfinite(groups.low[b]))
        low_a = _stated_end(groups.low, groups.value, a)
        high_a = _stated_end(groups.high, groups.value, a)
        low_b = _stated_end(groups.low, groups.value, b)
        high_b = _stated_end(groups.high, groups.value, b)
        # The ratio is lowest if B is at its low end and A at its high end.
        numbers["low"][is_stated] = (low_b / high_a)[is_stated]
        numbers["high"][is_stated] = (high_b / low_a)[is_stated]

    def _judge(self, a: Ids, b: Ids, ratio: Floats) -> dict[str, NDArray[Any]]:
        """Return the verdicts on pairs with samples: of two folders by the noise of all runs."""
        # Without a margin it is no comparison of two folders: each pair has its own noise.
        if self.margin is None:
            sides = self.groups.estimate(a), self.groups.estimate(b)
            return compare_sides(*sides, ratio, self.quantity)
        drift = self.groups.columns.estimate["drift"]
        runs_a = _run_logs(self.groups, a)
        runs_b = _run_logs(self.groups, b)
        # By how much each side still changed at its end: either may have caused the change.
        drift_of_pairs = drift[a] + drift[b]
        is_step = self.groups.columns.is_step[b]
        judged = judge_folders(
            runs_a, runs_b, ratio, drift_of_pairs, is_step, self.quantity, self.margin
        )
        if self.reference is None:
            return judged
        reference_a = _run_logs(self.reference, a)
        reference_b = _run_logs(self.reference, b)
        return add_reference_verdicts(
            judged, (runs_a, runs_b), (reference_a, reference_b), drift_of_pairs, self.margin
        )

    @cached_property
    def unpaired(self) -> Unpaired:
        """The whole steps without a partner, then those of which a side has no number."""
        partner_levels = [name for name in self.level_words if name != self.against]
        partnerless = self.groups.unpaired_steps(self.against, partner_levels, self._matched_groups)
        reasons = self._list_reasons(partner_levels, partnerless)
        is_step = self.groups.columns.is_step
        is_numberless = ~self._has_numbers & is_step[self._matched_groups["b"]]
        a = self._matched_groups["a"][is_numberless]
        b = self._matched_groups["b"][is_numberless]
        # A has a number and B lacks it: B lost it.
        is_b_lost = self.groups.columns.value[a] > 0
        # Entries of steps without a partner first, then those without a number.
        partnerless_count = len(reasons)
        numberless_count = len(a)
        no_group = np.full(partnerless_count, -1)
        return Unpaired(
            group=np.r_[partnerless["id"], b],
            is_a=np.r_[partnerless["is_a"], np.zeros(numberless_count, bool)],
            is_both=np.arange(partnerless_count + numberless_count) >= partnerless_count,
            is_lost=np.r_[np.zeros(partnerless_count, bool), is_b_lost],
            a=np.r_[no_group, a],
            b=np.r_[no_group, b],
            reason=np.r_[reasons, np.full(numberless_count, None, object)],
        )

    def _list_reasons(
        self, partner_levels: Sequence[str], partnerless: Mapping[str, NDArray[Any]]
    ) -> NDArray[Any]:
        """Return the reason in words why each step has no partner.

        Two texts for each level: at 2 * level for a cell without a group of the level, at
        2 * level + 1 for a cell whose group of the level differs in its options.
        """
        # The number of `against` is -1, and its texts are the last ones: `% len` makes -1 the last
        # index.
        words_of_levels = [self.level_words[name] for name in (*partner_levels, self.against)]
        texts = []
        for words in words_of_levels:
            texts += [f"not {words}", self.mismatch.format(words)]
        level = partnerless["partner_level"] % len(words_of_levels)
        reasons: NDArray[Any] = np.array(texts, object)[2 * level + partnerless["has_mismatch"]]
        return reasons

    def summary(self) -> Row:
        """Return the errors of A against B, as a prediction is judged, and the worst pairs."""
        ratio = self.columns.ratio
        indices = farthest(ratio, WORST_PAIRS)
        b = self.columns.b[indices]
        names = self.names(b)
        facts = self.groups.facts(b, {"model": "model", "batch": "batch"})
        worst = [
            {"name": name, **facts[group], "ratio": float(ratio[index])}
            for name, group, index in zip(names, b.tolist(), indices, strict=True)
        ]
        return accuracy(ratio) | {"worst": worst}

    def summarise_levels(self) -> list[Row]:
        """Return the ratios and verdicts of the pairs of each level together."""
        if not self.column:  # predictions or folders are no levels of a column
            return []
        indices = split_by_number(self.columns.level, len(self.groups.levels))
        by_level = dict(zip(self.groups.levels, indices, strict=True))
        return [
            {"level": level, **self._summarise_ratios(by_level[level])} for level in self.levels
        ]

    def _summarise_ratios(self, indices: Ids) -> Row:
        """Return the ratios and verdicts of the pairs at these indices together."""
        ratio = self.columns.ratio[indices]
        verdict = self.columns.verdict[indices]
        # No pairs: no quantiles.
        median = smallest = largest = None
        if len(indices):
            median, smallest, largest = np.quantile(ratio, (0.5, 0, 1)).tolist()
        return {
            "pairs": len(indices),
            "geometric_mean_ratio": geometric_mean(ratio),
            "median_ratio": median,
            "min_ratio": smallest,
            "max_ratio": largest,
            **{word: int((verdict == word).sum()) for word in VERDICTS},
        }

    def count_differences(self, indices: Any = slice(None)) -> Counter[str]:
        """Return in what the two of a pair differ beside time, and in how many of some pairs."""
        # Pairs whose sides were measured in the same two ways differ in the same settings.
        difference_index, distinct_differences = self.list_differences(
            self.columns.a[indices], self.columns.b[indices]
        )
        pair_counts = Counter(difference_index.tolist())
        counts: Counter[str] = Counter()
        for index, pair_count in pair_counts.items():
            counts.update(dict.fromkeys(distinct_differences[index]["differ"], pair_count))
        return counts

    def list_differences(self, a: Ids, b: Ids) -> tuple[Ids, list[Row]]:
        """Return the way in which each of these pairs ran, and for each way what differs in it."""
        setup = self.groups.columns.setup
        setup_count = setup.max(initial=0) + 1
        # A setup is a set of hosts and methods. Pairs of equal setups differ in the same settings:
        # one of them is described for all, found by a number for each pair of setups.
        pair_key = setup[a] * setup_count + setup[b]
        _, first, difference_index = np.unique(pair_key, return_index=True, return_inverse=True)
        first_a = a[first]
        first_b = b[first]
        facts = self.groups.facts(np.r_[first_a, first_b], RUN_COLUMNS)
        differences = [
            describe_differences(facts[left], facts[right], self.column)
            for left, right in zip(first_a.tolist(), first_b.tolist(), strict=True)
        ]
        return difference_index, differences

    def rows(self, indices: Ids | None = None) -> Sequence[Row]:
        """Return pairs as rows, all of them or those at these indices.

        They have both sides, the ratio with the verdict, and in what measurements differ, in words,
        too: `threads 1 | 2`. The `column` by which they are compared is left out there.
        """
        indices = np.arange(len(self)) if indices is None else indices
        self.name_groups(self.columns.b[indices])  # rows show the names of side b
        return rows_on_demand(indices, lambda part: pair_rows(self, part))

    def unpaired_rows(self, indices: Ids | None = None) -> Sequence[Row]:
        """Return `unpaired` as rows, or the rows at some indices, with the `reason`."""
        indices = np.arange(len(self.unpaired)) if indices is None else indices
        self.name_groups(self.unpaired.group[indices])
        return rows_on_demand(indices, lambda part: make_unpaired_rows(self, part))

    @cached_property
    def _names(self) -> NDArray[Any]:
        """The names of groups, None for those that have no name yet."""
        return np.full(len(self.groups), None, object)

    def names(self, ids: Ids) -> list[str]:
        """Return the names of groups."""
        self.name_groups(ids)
        return list(self._names[ids])

    def name_groups(self, ids: Ids) -> None:
        """Name these groups so that a name differs from those that other groups have.

        `free` tells no names apart, as it tells none in a pair. A name that is given stays.
        """
        if self._names[ids].all():
            return
        old_ids = np.flatnonzero(self._names)
        old_names = self._names[old_ids]
        cells = NAME_CELLS | {name: name for name in DISTINGUISHING_COLUMNS}
        frame = self.groups.facts_frame(np.r_[old_ids, ids], cells)
        self._names[frame["id"].to_numpy()] = name_rows(
            frame, DISTINGUISHING_COLUMNS, self.free_columns
        )
        # Names that were given stay, though all were named together so that they differ.
        self._names[old_ids] = old_names


def _fill_sampled(values: NDArray[Any] | None, is_sampled: Flags) -> Floats:
    """Return numbers of sampled pairs as a column of all pairs, NaN elsewhere."""
    column = np.full(len(is_sampled), np.nan)
    if values is not None:
        column[is_sampled] = values
    return column


def _run_logs(groups: RecordGroups, ids: Ids) -> Floats:
    """Return the logarithm of the median of each run of groups, NaN for a single run."""
    has_runs = groups.columns.runs[ids] > 1
    samples, runs = groups.read_samples(ids[has_runs])
    logs = run_logs(samples, runs)
    all_logs = np.full((len(ids), max(logs.shape[1], 1)), np.nan)
    all_logs[np.flatnonzero(has_runs), : logs.shape[1]] = logs
    return all_logs


def _stated_end(ends: Floats, values: Floats, ids: Ids) -> Floats:
    """Return an end of the interval of groups; an exact value is its own."""
    return np.where(np.isnan(ends[ids]), values[ids], ends[ids])
