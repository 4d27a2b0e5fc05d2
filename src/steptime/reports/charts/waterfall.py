"""A waterfall: bars of changes, each of which starts where the one before it ended."""

from collections.abc import Sequence

from steptime.core.units import seconds
from steptime.reports.charts import style

Change = tuple[str, float]  # what is done, and the seconds after it
KINDS = ("shorter", "longer", "total")
X = style.number("from", "time of a step (s)", "s")


def chart(changes: Sequence[Change], end: str, title: str, caption: Sequence[str]) -> style.Spec:
    """Return the waterfall of times; the first is where it starts, the bar `end` where it ends."""
    rows: list[style.Row] = []
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
    y = style.name("name", sort=None, axis={"title": None, "ticks": False, "domain": False})
    colour = style.name("kind", scale={"domain": KINDS}, legend={"title": None, "orient": "bottom"})
    bar = {"x": X, "x2": {"field": "to"}, "y": y, "color": colour}
    label_place = {"x": {**X, "field": "right"}, "y": y, "text": {"field": "text"}}
    layers = [
        style.layer("bar", bar, height=16),
        style.layer("text", label_place, align="left", dx=5),
    ]
    return style.finish(title, caption, rows, layer=layers, width=600, height={"step": 26})
