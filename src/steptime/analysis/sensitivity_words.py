"""What a table of sensitivities tells, in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.table import Table
from steptime.core.units import counted, first_of, percent

MOST_TOLD = 4  # regressions
MOST_NAMED = 3  # hyperparameters
OVERFIT = 0.2  # of the variance, that is lost in networks left out of the fit
Row = Mapping[str, Any]


def says(table: Table) -> list[str]:
    """Return what the largest regressions tell, line by line, and for what there is none."""
    head = table.summary
    regressions = [head, *head["others"]] if table.rows else []
    lines = [line for one in regressions[:MOST_TOLD] for line in _told({**head, **one}, table.rows)]
    few = [f"{_of(one)} ({counted(one['networks'], 'network')})" for one in head["too_few"]]
    if few:
        named = first_of(few, MOST_TOLD)
        lines.append(f"Fewer networks than weights, so no regression: {named}.")
    return lines


def _told(one: Row, every: Sequence[Row]) -> list[str]:
    mine = [row for row in every if all(row[n] == one[n] for n in ("family", "platform", "method"))]
    rows = [row for row in mine if row["weight"] is not None]
    what = (
        f"the gain in {one['quantity']} over {one['against']}"
        if one["against"]
        else one["quantity"]
    )
    unseen = max(0.0, one["r2_held_out"])
    line = (
        f"{_of(one)}: hyperparameters explain {percent(one['r2'])} of the variance of {what} over "
        f"{counted(one['networks'], 'network')} (order {one['order']}, {one['scale']} scale; "
        f"{percent(unseen)} in networks that the fit has not seen)"
    )
    if one["r2"] - unseen > OVERFIT:
        line += ": too few networks for so many weights"
    lines = [f"{line}."]
    if one["never_varies"]:
        lines.append(f"Never varies, so nothing is known of it: {', '.join(one['never_varies'])}.")
    return lines + ([_who_wins(one)] if one["wins"] else []) + _of_failures(one, rows)


def _who_wins(one: Row) -> str:
    wins = one["wins"]
    line = f"{one['platform']} wins {percent(wins['share'])} of the networks"
    if wins["accuracy_share"] is None:
        return f"{line}: nothing decides it."
    line += (
        f"; the log-odds tell {percent(wins['accuracy_share'])} right, "
        f"the majority {percent(wins['majority_share'])}"
    )
    if wins["separable"]:
        line += (
            f". A plane tells the winners apart: a ridge of {wins['ridge']:g} keeps weights finite"
        )
    return f"{line}."


def _of_failures(one: Row, rows: Sequence[Row]) -> list[str]:
    if not one["failed"]:
        return []
    line = f"{one['failed']:,} of {one['failed'] + one['networks']:,} cells failed"
    by = [row for row in one["failures"] if row["depends"]]
    if not by:
        return [f"{line}; whether at random, they do not tell."]
    said = []
    for row in by:
        least, *_, most = sorted(row["failed_share"].items(), key=lambda item: item[1])
        ends = (f"{percent(share)} at {level}" for level, share in (least, most))
        said.append(f"{row['hyperparameter']} ({', '.join(ends)})")
    names = ", ".join(row["hyperparameter"] for row in by)
    fills = [key for key, value in rows[0].items() if "_if_failed_" in key and value is not None]
    spans = []
    for row in rows[:MOST_NAMED]:
        weights = [row[key] for key in fills]
        spans.append(f"{row['hyperparameter']} {min(weights):+.3f} to {max(weights):+.3f}")
    heads = {max(rows, key=lambda row: abs(row[key]))["hyperparameter"] for key in fills}
    changed = " or ".join(sorted(heads - {rows[0]["hyperparameter"]}))
    verdict = f"{changed} might weigh most" if changed else "the first would stay the first"
    zero = "0, or " if one["scale"] == "linear" else ""
    line += f", not at random but by {', '.join(said)}: medians by {names} are over survivors."
    filled = f"Were failed cells {zero}the least or greatest of their neighbours, weights would be "
    return [line, f"{filled}{', '.join(spans)}: {verdict}."]


def _of(place: Row) -> str:
    return f"{place['family']} on {place['platform']}"
