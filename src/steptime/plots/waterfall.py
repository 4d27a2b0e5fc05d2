"""A number that becomes another one in named steps: bars that start where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.core.units import seconds
from steptime.plots.style import Row, Spec, finish, name, number

Change = tuple[str, float]  # what is done, and the seconds after it
KINDS = ("shorter", "longer", "total")
X = number("from", "time of a step (s)", "s")


def chart(changes: Sequence[Change], end: str, title: str, caption: Sequence[str]) -> Spec:
    """Return the waterfall of times; the first is where it starts, the bar `end` where it ends."""
    rows: list[Row] = []
    before = 0.0
    for index, (label, after) in enumerate(changes):
        sign = "" if index == 0 else "+ " if after >= before else "\u2212 "
        kind = "total" if index == 0 else "longer" if after > before else "shorter"
        text = sign + seconds(abs(after - before))
        rows.append({"name": label, "from": before, "to": after, "text": text, "kind": kind})
        before = after
    rows.append({"name": end, "from": 0.0, "to": before, "text": seconds(before), "kind": "total"})
    for row in rows:
        row["right"] = max(row["from"], row["to"])
    y = name("name", sort=None, axis={"title": None, "ticks": False, "domain": False})
    colour = name("kind", scale={"domain": KINDS}, legend={"title": None, "orient": "bottom"})
    bars = {
        "mark": {"type": "bar", "height": 16},
        "encoding": {"x": X, "x2": {"field": "to"}, "y": y, "color": colour},
    }
    texts = {
        "mark": {"type": "text", "align": "left", "dx": 5},
        "encoding": {"x": {**X, "field": "right"}, "y": y, "text": {"field": "text"}},
    }
    return finish(title, caption, rows, layer=[bars, texts], width=600, height={"step": 26})
