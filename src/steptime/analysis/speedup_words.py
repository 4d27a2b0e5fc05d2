"""What the table of speed-ups tells, in sentences."""

from collections.abc import Mapping
from typing import Any

from steptime.analysis.verdict import MARGIN
from steptime.core.table import Table
from steptime.core.units import counted, percent
from steptime.records.row import Row

MOST_MEDIANS = 12  # that a sentence names; of more, the first and the last


def says(table: Table) -> list[str]:
    """Return the sentences on a table of speed-ups."""
    found = table.summary
    by, first = found["by_column"], found["against"]
    if not found["pairs"]:
        return [f"nothing to compare: no network has its {found['quantity']} at two levels of {by}"]
    words = [_of_level(row, first) for row in found["levels"]]
    if found["any_dtype"]:
        words.append(
            "Types differ between the sides: a network is paired with itself in another type."
        )
    if failed := {level: n for level, n in found["failed"].items() if n}:
        left = ", ".join(f"{n:,} on {level}" for level, n in failed.items())
        words.append(f"Left out, because they failed: {left}; they are seldom the easy ones.")
    return [*words, *_of_x(found)]


def _of_level(row: Row, first: str) -> str:
    """Return the sentence on a level: how much faster, how surely, and how often it wins."""
    who = f"{row['level']} against {first}, {counted(row['pairs'], 'network')}"
    mean = f"{row['geometric_mean']:.3g}x in the geometric mean"
    if row["low"] is not None:
        mean += f" ({row['low']:.3g} to {row['high']:.3g})"
    even = row["low"] is None or (row["low"] <= 1 + MARGIN and row["high"] >= 1 / (1 + MARGIN))
    if even and row["same_share"] + row["unsure_share"] > 0.95:
        return f"{who}: the same within noise; {mean}."
    rest = [f"{percent(row[f'{n}_share'])} {n}" for n in ("same", "unsure") if row[f"{n}_share"]]
    wins = ", ".join([f"it wins {percent(row['wins_share'])}", *rest])
    spread = f"{row['min']:.3g} to {row['max']:.3g}, median {row['median']:.3g}"
    return f"{who}: {mean}; {spread}; {wins}."


def _of_x(found: Mapping[str, Any]) -> list[str]:
    """Return the sentence on how the median goes with the hyperparameter `x`, for one level."""
    medians = list(found["by"].items())
    if len(medians) < 2 or len(found["levels"]) > 1:
        return []
    shown = medians if len(medians) <= MOST_MEDIANS else (medians[0], medians[-1])
    told = ", ".join(f"{row['median']:.3g} at {value}" for value, row in shown)
    return [f"By {found['x']} the median speed-up is {told}."]
