"""What the table of speed-ups tells, in sentences."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from steptime.analysis.verdict import MARGIN
from steptime.core.table import Table
from steptime.core.units import counted, percent, rate
from steptime.records.row import Row

MOST_MEDIANS = 12  # that a sentence names; of more, the first and the last


def says(table: Table) -> list[str]:
    """Return the sentences on a table of speed-ups."""
    found = table.summary
    by, first = found["by_column"], found["against"]
    if not found["pairs"]:
        return [f"nothing to compare: no network has its {found['quantity']} at two levels of {by}"]
    words = [_of_level(row, first) for row in found["levels"]]
    for row in found["saturation"]:
        if row["level"] == first and row["saturated_above"] and len(words) == 1:
            of = f"{row['saturated_above']} of the {row['speedups_above']}"
            above = f"speed-ups above {row['above']:.3g} are against a side in saturation"
            words = [f"{words[0].removesuffix('.')}; {of} {above}."]  # summaries take the first
    if found["any_dtype"]:
        words.append(
            "Types differ between the sides: a network is paired with itself in another type."
        )
    if failed := {level: n for level, n in found["failed"].items() if n}:
        left = ", ".join(f"{n:,} on {level}" for level, n in failed.items())
        words.append(f"Left out, because they failed: {left}; they are seldom the easy ones.")
    capped = [_of_saturation(row, first) for row in found["saturation"]]
    return [*words, *_of_x(found), *capped, *_of_tree(found)]


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


def _of_saturation(row: Row, first: str) -> str:
    what = row["rate"].removesuffix("_per_s")
    level = f"{rate(row['low_per_s'])} to {rate(row['high_per_s'])} {what}/s"
    said = (
        f"{row['level']} is saturated: {row['networks']} of its {row['of']} networks run at "
        f"{level}, although their FLOP differ {row['flop_span']:,.0f}-fold; the device is at "
        f"{percent(row['best_flop_share'])} of its best FLOP/s there."
    )
    if not row["speedups_above"]:
        return said
    many, of = row["saturated_above"], row["speedups_above"]
    side = "the other side" if row["level"] == first else row["level"]
    means = "without it they would be larger"
    if row["level"] == first:
        means = "these measure the input pipeline or another cost that no network changes"
        means += ", not the devices"
    return (
        f"{said} Of the {of} speed-ups above {row['above']:.3g}, {many} have {side} in "
        f"saturation" + (f": {means}." if many else ".")
    )


def _of_tree(found: Mapping[str, Any]) -> list[str]:
    """Return where each wins, in words."""
    tree = found["tree"]
    said = []
    for leaf in tree:
        where = f" where {leaf['where']}" if leaf["where"] else ""
        if leaf["winner"]:
            said.append(
                f"{leaf['winner']} wins{where} ({leaf['wins'][leaf['winner']]} of {leaf['rows']})"
            )
        elif leaf["rows"]:
            name, most = max(leaf["wins"].items(), key=itemgetter(1))
            said.append(f"none clearly{where} ({name} {most} of {leaf['rows']})")
    if len(tree) == 1 and said:
        every = max(tree[0]["wins"].values()) == tree[0]["rows"]
        even = any(row["same_share"] + row["unsure_share"] for row in found["levels"])
        all_of = "wherever one clearly does" if even else "everywhere"
        said[0] += f", {all_of}" if every else "; no hyperparameter tells where"
    return ["; ".join(said) + "."] if said else []
