"""Changes from one folder to another, beyond noise and beyond a margin."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.analysis.comparison.gate import POWER
from steptime.analysis.comparison.pairing import Pairing
from steptime.analysis.comparison.power import Power
from steptime.analysis.comparison.verdict import MARGIN, screen_words
from steptime.core.answer import AnswerRow
from steptime.core.units import format_count, format_percent
from steptime.records.groups.group_members import Ids
from steptime.records.groups.record_groups import Cells
from steptime.records.ratios import farthest, geometric_mean
from steptime.records.row import group_by

FAIL_ON: Mapping[str, tuple[str, ...]] = {  # fields of `FolderChanges` that must be empty
    "slower": ("regressions", "vanished"),
    "faster": ("improvements",),
    "changed": ("regressions", "improvements", "vanished"),
    "vanished": ("vanished",),
}
MAX_UNLIKE = 4  # differences of the folders in a line
IS_STEP = pl.col("scope") == ""
GROUP_CELLS: Cells = {
    "by": pl.when(IS_STEP).then(pl.lit("family")).otherwise(pl.lit("op")),
    "name": pl.when(IS_STEP)
    .then(pl.col("family"))
    .otherwise(pl.coalesce(pl.col("op_kind").replace("", None), pl.col("scope"))),
}


class StepChange(AnswerRow, frozen=True, kw_only=True):
    """A step or an op that changed from the first folder to the second.

    Attributes:
        name: the network, with the settings in which it differs from other rows.
        scope: the op; "" for a whole step.
        family: family of the network.
        op_kind: kind of the op.
        platform: platform of the second folder's record.
        ratio: second / first; None if the second folder has no number.
        ratio_low: low end of the ratio's 95 % interval.
        ratio_high: high end of the ratio's 95 % interval.
        p_value: probability of such a ratio without a difference.
        interval: what the interval covers: `between-runs`, or `within-run` where a side has a
            single run.
        reason: why there is no ratio.
    """

    name: str
    scope: str | None
    family: str | None
    op_kind: str | None
    platform: str | None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    p_value: float | None = None
    interval: str | None = None
    reason: str | None = None


class VerdictCounts(AnswerRow, frozen=True, kw_only=True):
    """The number of steps and ops by verdict.

    Attributes:
        slower: worse beyond the margin and noise.
        faster: better beyond the margin and noise.
        equal: certainly within the margin; in Python the attribute is `equal`.
        unsure: noise hides whether they changed.
        failed: steps that ran in the first folder and failed in the second.
        vanished: steps that only the first folder has.
        new: steps that only the second folder has.
    """

    slower: int
    faster: int
    equal: int = msgspec.field(name="same")
    unsure: int
    failed: int
    vanished: int
    new: int


class ChangedGroup(AnswerRow, frozen=True, kw_only=True):
    """The changes of one family of networks, or of one kind of op.

    Attributes:
        by: family or op.
        group: name of the family or of the kind of op.
        pairs: number of pairs.
        geometric_mean_ratio: geometric mean of second / first.
        slower: number of pairs that are slower.
        faster: number of pairs that are faster.
    """

    by: str
    group: str | None
    pairs: int
    geometric_mean_ratio: float | None
    slower: int
    faster: int


class FolderChanges(AnswerRow, frozen=True, kw_only=True):
    """Changes from one folder to another.

    Attributes:
        margin: share below which a difference counts as none.
        regressions: steps that failed, then those that are worse, the largest ratio first.
        improvements: steps that are better, the largest ratio first.
        vanished: steps that only the first folder has.
        verdicts: number of steps and ops by verdict.
        groups: changes by family for steps, by kind for ops.
        unlike: differences of the two folders apart from time, such as the host.
    """

    margin: float
    regressions: tuple[StepChange, ...]
    improvements: tuple[StepChange, ...]
    vanished: tuple[StepChange, ...]
    verdicts: VerdictCounts
    groups: tuple[ChangedGroup, ...]
    unlike: tuple[str, ...]


def find_changes(pairing: Pairing) -> FolderChanges:
    """Return the changes beyond the margin from the first folder to the second.

    A regression is a worse number, whether that is a larger or a smaller one.
    """
    ratio, verdicts = pairing.columns.ratio, pairing.columns.verdict
    indices = np.flatnonzero(pairing.columns.is_sampled)
    sampled_verdicts = verdicts[indices]

    def list_changes(word: str) -> Iterator[StepChange]:
        changed = indices[sampled_verdicts == word]
        return _make_changes(pairing.rows(changed[farthest(ratio[changed])]))

    unpaired = pairing.unpaired
    is_first_only = ~unpaired.is_both & unpaired.is_a
    is_second_only = ~unpaired.is_both & ~unpaired.is_a
    failed = tuple(_make_changes(pairing.unpaired_rows(np.flatnonzero(unpaired.is_lost))))
    vanished = tuple(_make_changes(pairing.unpaired_rows(np.flatnonzero(is_first_only))))
    return FolderChanges(
        margin=MARGIN if pairing.margin is None else pairing.margin,
        # A step that failed in the second folder is the worst regression.
        regressions=(*failed, *list_changes("slower")),
        improvements=tuple(list_changes("faster")),
        vanished=vanished,
        verdicts=VerdictCounts(
            slower=_count(sampled_verdicts, "slower"),
            faster=_count(sampled_verdicts, "faster"),
            equal=_count(sampled_verdicts, "same"),
            unsure=_count(sampled_verdicts, "unsure"),
            failed=len(failed),
            vanished=len(vanished),
            new=int(is_second_only.sum()),
        ),
        groups=tuple(_summarise_groups(pairing, indices)),
        unlike=tuple(text for text, _ in pairing.count_differences().most_common()),
    )


def _make_changes(rows: Sequence[Mapping[str, Any]]) -> Iterator[StepChange]:
    return (msgspec.convert(row, StepChange) for row in rows)


def _count(words: NDArray[Any], word: str) -> int:
    return int((words == word).sum())


def _summarise_groups(pairing: Pairing, indices: Ids) -> Iterator[ChangedGroup]:
    """Yield the changes by family for steps and by kind for ops, of the pairs at these indices."""
    columns = pairing.columns
    b = columns.b[indices]
    # Steps are grouped by family of networks, single ops by kind.
    facts = pairing.groups.facts(b, GROUP_CELLS)
    keys = {group: (row["by"], row["name"]) for group, row in facts.items()}
    ordered = indices[np.argsort(b, kind="stable")].tolist()  # in the order of records
    members_by_key = group_by(ordered, lambda index: keys[int(columns.b[index])])
    for (grouping, name), members in members_by_key.items():
        verdicts = columns.verdict[members]
        yield ChangedGroup(
            by=grouping,
            group=name,
            pairs=len(members),
            geometric_mean_ratio=geometric_mean(columns.ratio[members]),
            slower=_count(verdicts, "slower"),
            faster=_count(verdicts, "faster"),
        )


def describe_changes(
    changes: FolderChanges, quantity: str, power: Power | None = None
) -> list[str]:
    """Return a line for each regression, the largest first, then groups, power and the summary."""
    words = screen_words(quantity)
    worse = words["slower"]
    noun = "the time" if quantity == "step_s" else quantity
    lines = [_describe_regression(change, worse, quantity) for change in changes.regressions]
    for group in changes.groups:
        if group.slower:
            pairs = format_count(group.pairs, "pair")
            lines.append(
                f"{group.by} {group.group}: {group.slower} of {pairs} {worse}, "
                f"{group.geometric_mean_ratio:.3g} times {noun} in the mean"
            )
    if changes.unlike:
        lines.append(f"not like with like: {'; '.join(changes.unlike[:MAX_UNLIKE])}")
    if power and power.is_judged:
        lines.append(_describe_power(power, quantity))
    counts = [
        f"{number} {words.get(word, word)}"
        for word, number in changes.verdicts.to_dict().items()
        if number
    ]
    summary = ", ".join(counts) or "nothing to compare"
    return [*lines, f"beyond {format_percent(changes.margin)} and noise: {summary}"]


def _describe_power(power: Power, quantity: str) -> str:
    """Describe what would be found: `a slowdown of 8.1 % would be found in 90 of 100 such ...`."""
    smallest = format_percent(power.smallest_slowdown or 0.0)
    change = "slowdown" if quantity.endswith("_s") else "worsening"
    line = f"a {change} of {smallest} would be found in {100 * POWER:.0f} of 100 such comparisons"
    if power.unjudged_count:
        line += f"; {format_count(power.unjudged_count, 'pair')} cannot be judged"
    return line


def _describe_regression(change: StepChange, worse: str, quantity: str) -> str:
    """Return a line such as "fc, batch 64: 12 % slower (10 % to 14 %)"."""
    name = f"{change.name} {change.scope or ''}".rstrip()
    if change.ratio is None:
        return f"{name}: {change.reason}"
    ends = [end for end in (change.ratio_low, change.ratio_high) if end is not None]
    interval = " to ".join(format_percent(end - 1) for end in ends)
    # "12 % slower" makes sense for times alone; other quantities have their change in brackets.
    if quantity.endswith("_s") and change.ratio > 1:
        return f"{name}: {format_percent(change.ratio - 1)} {worse} ({interval})"
    return f"{name}: {worse}, {quantity} {format_percent(change.ratio - 1, '+')} ({interval})"
