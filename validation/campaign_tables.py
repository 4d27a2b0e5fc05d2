"""Tables of docs/validation.md by campaign: blind rows first, then left-out ones, then causes."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from steptime.core.toml_files import read_toml
from steptime.prediction.conformal import KINDS
from validation.conformal import Held, Widths
from validation.fitting.plans import percent, table

CAUSES = Path(__file__).parent / "causes.toml"
BAD = 0.25  # of a campaign's median error, from which on the page says its cause
HEADS = (
    "kind of work",
    "campaigns",
    "groups",
    "rows",
    "median error",
    "median error of a group",
    "inside the 80 % interval",
    "width",
    "interval score",
)
README_HEADS = ("kind of work", "rows", "campaigns", "median error", "inside the interval")


def errors_of(held: Sequence[Held]) -> list[float]:
    """Return the errors of rows: |predicted / measured - 1|."""
    return [abs(float(np.expm1(-one.residual.off))) for one in held]


def grouped_by(held: Sequence[Held], key: Callable[[Held], Any]) -> Mapping[Any, list[Held]]:
    """Return rows by a key, in the order in which keys come."""
    groups: dict[Any, list[Held]] = defaultdict(list)
    for one in held:
        groups[key(one)].append(one)
    return groups


def summary_cells(held: Sequence[Held]) -> list[str]:
    """Return the cells of a row of the page behind the kind of work."""
    groups = grouped_by(held, lambda one: (one.residual.campaign, one.residual.group))
    medians = [float(np.median(errors_of(own))) for own in groups.values()]
    inside = float(np.mean([one.is_inside for one in held]))
    return [
        str(len({one.residual.campaign for one in held})),
        str(len(groups)),
        f"{len(held):,}",
        percent(float(np.median(errors_of(held)))),
        percent(float(np.median(medians))),
        percent(inside, 0),
        f"{np.mean([one.width for one in held]):.2f}",
        f"{np.mean([one.score for one in held]):.2f}",
    ]


def kind_table(held: Sequence[Held]) -> str:
    """Return a table of kinds of work, each with its rows."""
    by_kind = grouped_by(held, lambda one: one.residual.kind)
    rows = [[kind, *summary_cells(by_kind[kind])] for kind in KINDS if kind in by_kind]
    return table(HEADS, rows)


def readme_table(held: Sequence[Held]) -> str:
    """Return the short table of README.md: blind rows by kind of work."""
    blind = [one for one in held if one.residual.is_blind]
    by_kind = grouped_by(blind, lambda one: one.residual.kind)
    rows = []
    for kind in KINDS:
        if own := by_kind.get(kind):
            campaigns, _, count, median, _, inside, *_ = summary_cells(own)
            rows.append([kind, count, campaigns, median, inside])
    return table(README_HEADS, rows)


def campaign_table(held: Sequence[Held]) -> str:
    """Return a table of campaigns and kinds of work."""
    groups = grouped_by(held, lambda one: (one.residual.campaign, one.residual.kind))
    rows = [[*key, *summary_cells(own)[1:]] for key, own in sorted(groups.items())]
    return table(("campaign", "kind of work", *HEADS[2:]), rows)


def bad_table(held: Sequence[Held]) -> str:
    """Return the campaigns that are missed by much, the worst first, with what is known of why."""
    groups = grouped_by(held, lambda one: (one.residual.campaign, one.residual.kind))
    rows = []
    for (campaign, kind), own in groups.items():
        error = float(np.median(errors_of(own)))
        if error >= BAD:
            middle = float(np.exp(np.median([one.residual.off for one in own])))
            rows.append((error, [campaign, kind, str(len(own)), f"{middle:.2f}", percent(error)]))
    cells = [[*row, cause_of(row[0], row[1])] for _, row in sorted(rows, reverse=True)]
    heads = ("campaign", "kind of work", "rows", "measured / predicted", "median error", "cause")
    return table(heads, cells)


def cause_of(campaign: str, kind: str) -> str:
    """Return why a campaign's rows are missed, as far as it is known."""
    return str(_causes().get(campaign, {}).get(kind, "not found yet"))


@cache
def _causes() -> Mapping[str, Any]:
    return read_toml(CAUSES)


def width_table(widths: Widths) -> str:
    """Return the widths that the package ships, by kind of work."""
    rows = []
    for kind in KINDS:
        ends = widths.ends[kind]
        shape = "all kinds" if kind in widths.pooled else "its own"
        count = f"{widths.campaigns.get(kind, 0):.0f}"
        rows.append([kind, f"{ends.below:.2f}", f"{ends.above:.2f}", count, shape])
    return table(("kind of work", "below", "above", "campaigns", "shape from"), rows)


def page_text(held: Sequence[Held], widths: Widths, is_left_out: bool) -> str:
    """Return the part of the page that is told by campaign.

    Args:
        held: rows with their interval, each by the campaigns of others.
        widths: the widths that the package ships.
        is_left_out: rows that told constants are predicted by the constants of the others.
    """
    blind = [one for one in held if one.residual.is_blind]
    fitted = [one for one in held if not one.residual.is_blind]
    parts = [
        "### Campaigns that no constant was fitted to",
        kind_table(blind),
        "### Campaigns whose rows were left out of the fit"
        if is_left_out
        else "### Campaigns that constants were fitted to",
        kind_table(fitted),
        "### Where predictions are bad, and why",
        bad_table(blind),
        "### Widths that the package ships, in ln",
        width_table(widths),
    ]
    return "\n\n".join(parts)
