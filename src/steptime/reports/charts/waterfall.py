"""A waterfall: bars of changes, each of which starts where the one before it ended."""

from collections.abc import Sequence

from steptime.core.units import format_seconds
from steptime.reports.charts import style

Change = tuple[str, float]  # what is done, and the seconds after it
KINDS = ("shorter", "longer", "total")
X = style.encode_number("from", "time of a step (s)", "s")


def chart(changes: Sequence[Change], end: str, title: str, caption: Sequence[str]) -> style.Spec:
    """Return the waterfall of times; the first is where it starts, the bar `end` where it ends."""
    rows = _make_bar_rows(changes)
    final_s = rows[-1]["to"] if rows else 0.0
    rows.append(_make_total_row(end, final_s))
    for row in rows:  # where the text of a bar begins
        row["right"] = max(row["from"], row["to"])
    y = style.encode_name("name", sort=None, axis={"title": None, "ticks": False, "domain": False})
    colour = style.encode_name(
        "kind", scale={"domain": KINDS}, legend={"title": None, "orient": "bottom"}
    )
    bar = {"x": X, "x2": {"field": "to"}, "y": y, "color": colour}
    label = {"x": {**X, "field": "right"}, "y": y, "text": {"field": "text"}}
    layers = [
        style.layer("bar", bar, height=16),
        style.layer("text", label, align="left", dx=5),
    ]
    return style.finish(title, caption, rows, layer=layers, width=600, height={"step": 26})


def _make_bar_rows(changes: Sequence[Change]) -> list[style.Row]:
    """Return the bars of changes: the first from 0, each other one from the bar before it."""
    rows: list[style.Row] = []
    before_s = 0.0
    for label, after_s in changes:
        if not rows:
            rows.append(_make_total_row(label, after_s))
        else:
            change_s = after_s - before_s
            sign = "\u2212" if change_s < 0 else "+"
            text = f"{sign} {format_seconds(abs(change_s))}"
            kind = "longer" if change_s > 0 else "shorter"
            rows.append(
                {"name": label, "from": before_s, "to": after_s, "text": text, "kind": kind}
            )
        before_s = after_s
    return rows


def _make_total_row(name: str, time_s: float) -> style.Row:
    return {
        "name": name,
        "from": 0.0,
        "to": time_s,
        "text": format_seconds(time_s),
        "kind": "total",
    }
