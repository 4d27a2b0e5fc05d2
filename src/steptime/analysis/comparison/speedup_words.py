"""The speed-ups of a table in sentences."""

from collections.abc import Mapping
from typing import Any

from steptime.analysis.comparison.verdict import MARGIN
from steptime.core.tables.table import Table
from steptime.core.units import format_count, format_percent

MAX_MEDIANS = 12  # of a sentence; of more the first and the last
MIN_EVEN_SHARE = 0.95  # of pairs without a winner, from which on a level is the same
Row = Mapping[str, Any]


def describe_speedups(table: Table) -> list[str]:
    """Return the sentences on a table of speed-ups."""
    summary = table.summary
    column, baseline = summary["by_column"], summary["against"]
    if not summary["pairs"]:
        quantity = summary["quantity"]
        return [f"nothing to compare: no network has its {quantity} at two levels of {column}"]
    lines = [_describe_level(level, baseline) for level in summary["levels"]]
    if summary["any_dtype"]:
        lines.append(
            "Types differ between the sides: a network is paired with itself in another type."
        )
    failures = [f"{count:,} on {level}" for level, count in summary["failed"].items() if count]
    if failures:
        counts = ", ".join(failures)
        lines.append(f"Left out, because they failed: {counts}; they are seldom the easy ones.")
    return [*lines, *_describe_medians(summary)]


def _describe_level(level: Row, baseline: str) -> str:
    """Return the sentence on a level: its speed-up with the interval, and its wins."""
    start = f"{level['level']} against {baseline}, {format_count(level['pairs'], 'network')}"
    mean = f"{level['geometric_mean']:.3g}x in the geometric mean"
    has_interval = level["low"] is not None
    if has_interval:
        mean += f" ({level['low']:.3g} to {level['high']:.3g})"
    if _is_even(level):
        return f"{start}: the same within noise; {mean}."
    spread = f"{level['min']:.3g} to {level['max']:.3g}, median {level['median']:.3g}"
    return f"{start}: {mean}; {spread}; {_describe_outcomes(level)}."


def _is_even(level: Row) -> bool:
    """Whether hardly any pair has a winner, and the mean does not tell one either."""
    has_interval = level["low"] is not None
    # The interval of the mean touches the margin in which levels count as equal.
    is_mean_even = not has_interval or (
        level["low"] <= 1 + MARGIN and level["high"] >= 1 / (1 + MARGIN)
    )
    undecided_share = level["ties_share"] + level["unsure_share"]
    return bool(is_mean_even and undecided_share > MIN_EVEN_SHARE)


def _describe_outcomes(level: Row) -> str:
    """Return the shares of pairs by outcome, such as "it wins 60 %, 30 % same, 10 % unsure"."""
    outcomes = [f"it wins {format_percent(level['wins_share'])}"]
    if level["ties_share"]:
        outcomes.append(f"{format_percent(level['ties_share'])} same")
    if level["unsure_share"]:
        outcomes.append(f"{format_percent(level['unsure_share'])} unsure")
    return ", ".join(outcomes)


def _describe_medians(summary: Row) -> list[str]:
    """Return the sentence on the medians by the hyperparameter `x`, for a single level."""
    medians = list(summary["by"].items())
    # These medians mix the pairs of all levels, so that of several they would be those of none.
    has_several_levels = len(summary["levels"]) > 1
    if len(medians) < 2 or has_several_levels:
        return []
    printed_medians = medians if len(medians) <= MAX_MEDIANS else (medians[0], medians[-1])
    words = ", ".join(f"{row['median']:.3g} at {value}" for value, row in printed_medians)
    return [f"By {summary['x']} the median speed-up is {words}."]
