"""The samples of each network in the order in which they were taken, disturbed ones marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from steptime.analysis.results import good
from steptime.analysis.row import facts, labels, runs_of
from steptime.core.record import Record
from steptime.plots import Data, EmptyPlotError
from steptime.plots.style import (
    MOST_PANELS,
    Row,
    Spec,
    finish,
    lines_of,
    name,
    number,
    rounded,
    sources,
    time_text,
    tooltip,
    wrapped,
)

WIDTH, GAP = 215, 84
KINDS = ("quiet", "disturbed")
X = number("sample", "", format="d", grid=False, tickCount=4)
Y = number("seconds", "step (s)", "s", tickCount=3)


def chart(data: Data) -> Spec:
    """Return a panel a network: time of a sample [s] over its number; raises `EmptyPlotError`."""
    tried = [r for r in good(data.records) if r.origin == "measured" and not r.scope]
    names = labels([facts(record) for record in tried])
    several = len({record.platform for record in tried}) > 1
    panels: dict[str, list[Row]] = {}
    for record, label in zip(tried, names, strict=True):
        panel = lines_of(label + (f" on {record.platform}" if several else ""), WIDTH + GAP)
        points = panels.setdefault(panel, [])
        points += _points(record, panel, len(points))
    full = {panel: points for panel, points in panels.items() if points}
    if not full:
        raise EmptyPlotError("samples: no record here holds samples of a step")
    widest = sorted(full, key=lambda panel: -_scatter(full[panel]))[:MOST_PANELS]
    rows = [point for panel, points in full.items() if panel in widest for point in points]
    kinds = {"scale": {"domain": KINDS}, "legend": {"title": None, "orient": "top"}}
    shapes = {**kinds, "scale": {"domain": KINDS, "range": ["circle", "cross"]}}
    marks = {
        "mark": {"type": "point", "size": 22},
        "encoding": {
            "x": {**X, "scale": {"nice": False, "padding": 8}},
            "y": Y,
            "color": name("kind", **kinds),
            "shape": name("kind", **shapes),
            "tooltip": tooltip("sample", "time", "run", "kind"),
        },
    }
    middle = {
        "mark": {"type": "rule", "style": "quiet"},
        "encoding": {"y": {**Y, "aggregate": "median"}},
    }
    kept, view = wrapped(rows, "panel", {"layer": [middle, marks]}, 3, GAP, width=WIDTH, height=70)
    left_out = f" The {len(widest)} of {len(full)} networks that scatter most."
    caption = [
        "Up: mean time of a step in one sample, from 0. Across: number of the sample. Line: median."
        + (left_out if len(widest) < len(full) else ""),
        "Disturbed: other work took the processor during the sample.",
        sources(tried),
    ]
    resolve = {"scale": {"x": "independent", "y": "independent"}}
    apart = {"resolve": resolve, "bounds": "flush", "spacing": {"row": 64, "column": 84}}
    if "facet" in view:
        view |= apart
    return finish("Samples in the order taken", caption, kept, **view)


def _scatter(points: Sequence[Row]) -> float:
    times = [point["seconds"] for point in points]
    return float(max(times) / min(times))


def _points(record: Record, panel: str, start: int) -> Iterator[Row]:
    quantity = record.quantities["step_s"]
    marked = quantity.columns.get("disturbed") or (False,) * len(quantity.samples)
    columns = zip(quantity.samples, runs_of(quantity), marked, strict=True)
    for index, (sample, run, disturbed) in enumerate(columns, start=start + 1):
        yield {
            "panel": panel,
            "sample": index,
            "seconds": rounded(sample),
            "run": run,
            "kind": KINDS[bool(disturbed)],
            "time": time_text(sample),
        }
