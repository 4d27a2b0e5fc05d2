"""The answer to `compare`: pairs of steps, what has no partner, and what changed."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from steptime.analysis.comparison.verdict import screen_words
from steptime.analysis.comparison.watch import FolderChanges
from steptime.core.answer import Answer, AnswerRow
from steptime.core.tables.table import Column, LazySequence, Table
from steptime.core.units import QUANTITIES, format_seconds, format_si
from steptime.questions.evaluate.accuracy import Accuracy

MAX_PRINTED_PAIRS = 1000  # rows that people read
_RATIO_COLUMNS = (
    Column("a_shown", "a"),
    Column("b_shown", "b"),
    Column("ratio", "b / a [95 %]", ends=("ratio_low", "ratio_high"), form=".3g"),
)


class PairSide(AnswerRow, frozen=True, kw_only=True):
    """One side of a pair.

    Attributes:
        origin: measured, predicted or published.
        method: cost model or framework.
        platform: device or host.
        dtype: data type of the step.
        version: version of the method.
        value: the quantity, a median for a time.
        low: low end of the 95 % interval of `value`.
        high: high end of the 95 % interval of `value`.
        interval: what the interval covers: `between-runs`, or `within-run` for a single run.
        runs: number of runs; None if unknown.
    """

    origin: str
    method: str | None
    platform: str | None
    dtype: str | None
    version: str | None
    value: float
    low: float | None
    high: float | None
    interval: str | None
    runs: int | None


class PairStep(AnswerRow, frozen=True, kw_only=True):
    """The step of a pair, or of what has no partner.

    Attributes:
        name: the network, with the settings in which it differs from other rows.
        model: the network.
        family: family of the network.
        batch: examples of one replica in a step.
        replicas: number of data-parallel replicas.
        strategy: how replicas reduce gradients.
        overlap: whether communication overlaps the backward pass.
        dtype: data type of the step; None where the sides have different types.
        phase: train or infer.
        optimizer: the optimizer.
        platform: device or host of side b.
        workload_key: hash of the workload.
        scope: the op; "" for a whole step.
        op_kind: kind of the op.
    """

    name: str
    model: str | None
    family: str | None
    batch: int | None
    replicas: int | None
    strategy: str | None
    overlap: bool | None
    dtype: str | None
    phase: str | None
    optimizer: str | None
    platform: str | None
    workload_key: str | None
    scope: str | None
    op_kind: str | None


class PairRow(PairStep, frozen=True, kw_only=True):
    """A pair: side b against side a.

    Attributes:
        a: the side that b is compared with.
        b: the other side.
        quantity: the quantity that is compared.
        level: with --by, the value of the column on side b.
        against: with --by, the value of the column on side a.
        ratio: b / a.
        ratio_low: low end of the ratio's 95 % interval.
        ratio_high: high end of the ratio's 95 % interval.
        verdict: verdict on b: faster, slower, same or unsure; None where a side has no samples.
        p_value: probability of such a ratio without a difference.
        smallest_slowdown: for two folders: the smallest slowdown of this step that would have been
            found with 90 % power, 0.1 for 10 %; None where a side has a single run.
        interval: what the interval of the ratio covers: `between-runs`, or `within-run` where a
            side has a single run.
        steady: whether both sides reached a steady state; None if unknown.
        differing_options: options of the method that differ.
        differ: all differences of the sides but the compared one, such as "threads 1 | 2": 1 on
            side a, 2 on side b.
        flop_per_s: rate of a measured step: its predicted FLOP over its measured seconds.
        peak_fraction: `flop_per_s` over the device's peak.
        roof_fraction: `flop_per_s` over the highest rate that the device's peak and bandwidth allow
            for the step (its roofline).
    """

    a: PairSide
    b: PairSide
    quantity: str
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    verdict: str | None
    p_value: float | None
    smallest_slowdown: float | None
    interval: str | None
    steady: bool | None
    differing_options: tuple[str, ...]
    differ: tuple[str, ...]
    level: str | None = None
    against: str | None = None
    flop_per_s: float | None = None
    peak_fraction: float | None = None
    roof_fraction: float | None = None


class UnpairedRow(PairStep, frozen=True, kw_only=True):
    """A step without a partner.

    Attributes:
        side: the side that has the step: a, b, or both where a number is missing.
        reason: why there is no pair.
        lacks: the sides without a number, where both have the step.
    """

    side: str
    reason: str
    lacks: tuple[str, ...] = ()


class LevelRow(AnswerRow, frozen=True, kw_only=True):
    """The pairs of one level of a column.

    Attributes:
        level: the level of side b.
        pairs: number of pairs.
        geometric_mean_ratio: geometric mean of b / a; None without a pair.
        median_ratio: median of b / a.
        min_ratio: smallest b / a.
        max_ratio: largest b / a.
        faster_count: number of pairs with a faster b.
        slower_count: number of pairs with a slower b.
        equal_count: number of pairs that are certainly equal.
        unsure_count: number of pairs for which noise hides the answer.
    """

    level: str
    pairs: int
    geometric_mean_ratio: float | None
    median_ratio: float | None
    min_ratio: float | None
    max_ratio: float | None
    faster_count: int
    slower_count: int
    equal_count: int
    unsure_count: int


class HostNodes(AnswerRow, frozen=True, kw_only=True):
    """The nodes that are slow beyond noise, as `analyse nodes` finds them.

    Attributes:
        summary: numbers that hold for all nodes.
        headline: the slow nodes in sentences.
        rows: one table for each node.
    """

    summary: Mapping[str, Any]
    headline: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]


class CompareAnswer(Answer, frozen=True, kw_only=True):
    """Pairs of steps, side b against side a.

    Attributes:
        a: the side that b is compared with.
        b: the side that is compared with a; with --by, all values of the column but that of a.
        by: the column whose values are compared.
        quantity: the quantity that is compared.
        rows: the pairs.
        unpaired: steps without a partner.
        levels: with --by, the pairs of each value of the column but the first.
        errors: how far a is off, if it is taken for a prediction of b.
        changes: for two folders: what became slower or faster.
        is_judged: for two folders: whether a slower step could have been found. False if even a
            step that takes twice the time would be lost in the noise, if no side has several runs,
            and if the hardware differs.
        smallest_slowdown: for two folders: a slowdown of this size of one step is found in 90 % of
            cases, 0.1 for 10 %; the median of the rows, None if unknown.
        nodes: with --by host, the nodes that are slow.
        headline: the ratios in the mean, and what changed.
        notes: remarks on intervals and on steps without a partner.
    """

    a: str
    b: str
    by: str | None
    quantity: str
    rows: Sequence[PairRow]
    unpaired: Sequence[UnpairedRow]
    levels: tuple[LevelRow, ...]
    errors: Accuracy
    changes: FolderChanges | None
    is_judged: bool | None
    smallest_slowdown: float | None
    nodes: HostNodes | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    _has_verdicts: bool = False
    _exit_code: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 3 where something changed that `--fail-on` names.

        2 where nothing can be judged, as the gate could not have failed.
        """
        return self._exit_code

    def csv_rows(self) -> Sequence[AnswerRow]:
        """Return no structs: `--format csv` has the columns of the table, both sides in one row."""
        return ()

    def tables(self) -> list[Table]:
        """Return the pairs, people see the first of them."""
        if not self.rows:
            return []
        level_columns = [Column("level", self.by)] if len(self.levels) > 1 else []
        name_columns = [
            Column("name", "network"),
            *level_columns,
            Column("replicas"),
            Column("platform", is_spare=True),
            Column("dtype", "type", is_spare=True),
            Column("method", is_spare=True),
            Column("differ", "a | b", is_spare=True),
        ]
        verdict_columns = []
        csv_verdict_columns = []
        if self._has_verdicts:
            verdict_columns.append(Column("verdict_shown", "verdict on b"))
            csv_verdict_columns.append(Column("verdict", "verdict on b"))
        make_row = partial(_format_row, quantity=self.quantity)
        rows = LazySequence(
            length=len(self.rows), make_items=lambda: map(make_row, self.rows)
        )  # of 100,000 pairs only the first are printed
        return [
            Table(
                (*name_columns, *_RATIO_COLUMNS, *verdict_columns),
                rows,
                f"{self.quantity}: b = {self.b} against a = {self.a}",
                max_rows=MAX_PRINTED_PAIRS,
                csv_columns=(
                    *name_columns,
                    Column("a"),
                    Column("b"),
                    Column("ratio"),
                    Column("ratio_low"),
                    Column("ratio_high"),
                    *csv_verdict_columns,
                ),
            )
        ]


def _format_row(pair: PairRow, quantity: str) -> dict[str, object]:
    unit = QUANTITIES[quantity][0] if quantity in QUANTITIES else ""
    format_number = format_seconds if unit == "s" else partial(format_si, unit=unit)
    # Of a quantity that is no time "faster" reads "better"; "same" and "unsure" stay.
    verdict_word = screen_words(quantity).get(pair.verdict or "", pair.verdict)
    side_a = pair.a
    side_b = pair.b
    return pair.to_dict() | {
        "name": f"{pair.name} {pair.scope or ''}".rstrip(),
        "platform": _join_differing_values(side_a.platform, side_b.platform),
        "dtype": _join_differing_values(side_a.dtype, side_b.dtype),
        "method": _join_differing_values(side_a.method, side_b.method),
        "differ": ", ".join(pair.differ),
        "a": side_a.value,
        "b": side_b.value,
        "a_shown": format_number(side_a.value),
        "b_shown": format_number(side_b.value),
        "verdict_shown": verdict_word,
    }


def _join_differing_values(value_a: str | None, value_b: str | None) -> str:
    """Return the value of both sides: "t4", or "t4 | l4" where they differ."""
    return " | ".join(dict.fromkeys(value or "" for value in (value_a, value_b)))
