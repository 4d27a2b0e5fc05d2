"""A number that becomes another one in named steps: bars that start where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from steptime.core.units import seconds
from steptime.plots.style import COLOURS, INK, QUIET, Row, Spec, finish, over_rows, si_label

Change = tuple[str, float]  # what is done, and the seconds after it


def chart(changes: Sequence[Change], end: str, title: str, caption: Sequence[str]) -> Spec:
    """Give the waterfall of times; the first is where it starts, the bar `end` where it ends."""
    rows: list[Row] = []
    before = 0.0
    for index, (name, after) in enumerate(changes):
        start = 0.0 if index == 0 else before
        sign = "+ " if after >= before else "\u2212 "
        text = seconds(after) if index == 0 else sign + seconds(abs(after - before))
        kind = "total" if index == 0 else "longer" if after > before else "shorter"
        rows.append({"name": name, "from": start, "to": after, "text": text, "kind": kind})
        before = after
    rows.append({"name": end, "from": 0.0, "to": before, "text": seconds(before), "kind": "total"})
    order = [row["name"] for row in rows]
    largest = max(max(row["from"], row["to"]) for row in rows)
    for row in rows:
        row["right"] = max(row["from"], row["to"])
    y = alt.Y("name:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False))
    x = alt.X(
        "from:Q",
        title="time of a step",
        scale=alt.Scale(domain=[0, largest * 1.14 or 1.0], nice=False),
        axis=alt.Axis(labelExpr=si_label("s"), tickCount=6),
    )
    colour = alt.Color(
        "kind:N",
        title=None,
        scale=alt.Scale(
            domain=["total", "longer", "shorter"], range=[QUIET, COLOURS[1], COLOURS[0]]
        ),
        legend=alt.Legend(orient="bottom"),
    )
    base = over_rows(rows)
    bars = base.mark_bar(height=16).encode(x=x, x2="to:Q", y=y, color=colour)
    labels = base.mark_text(align="left", dx=5, color=INK, fontSize=12).encode(
        x=alt.X("right:Q"), y=y, text="text:N"
    )
    return finish((bars + labels).properties(width=560, height=26 * len(rows)), title, caption)
