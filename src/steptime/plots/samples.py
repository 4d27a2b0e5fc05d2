"""The samples of each network in the order in which they were taken, disturbed ones marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from steptime.analysis.data import Data, source_of
from steptime.analysis.results import good
from steptime.analysis.row import facts, labels, runs_of
from steptime.core.record import Record
from steptime.core.units import seconds
from steptime.plots import EmptyPlotError, style

WIDTH, GAP = 215, 84
KINDS = ("quiet", "disturbed")
X = style.number("sample", "", format="d", grid=False, tickCount=4)
Y = style.number("seconds", "step (s)", "s", tickCount=3)


def chart(data: Data) -> style.Spec:
    """Return a panel a network: time of a sample [s] over its number; raises `EmptyPlotError`."""
    tried = [r for r in good(data.records) if r.origin == "measured" and not r.scope]
    names = labels([facts(record) for record in tried])
    several = len({record.platform for record in tried}) > 1
    panels: dict[str, list[style.Row]] = {}
    for record, label in zip(tried, names, strict=True):
        panel = style.lines_of(label + (f" on {record.platform}" if several else ""), WIDTH + GAP)
        taken = panels.setdefault(panel, [])
        taken += _points(record, panel, len(taken))
    full = {panel: points for panel, points in panels.items() if points}
    if not full:
        raise EmptyPlotError("samples: no record here holds samples of a step")
    widest = sorted(full, key=lambda panel: -_scatter(full[panel]))[: style.MOST_PANELS]
    rows = [point for panel, points in full.items() if panel in widest for point in points]
    kinds = {"scale": {"domain": KINDS}, "legend": {"title": None, "orient": "top"}}
    shapes = {**kinds, "scale": {"domain": KINDS, "range": ["circle", "cross"]}}
    points = {
        "x": {**X, "scale": {"nice": False, "padding": 8}},
        "y": Y,
        "color": style.name("kind", **kinds),
        "shape": style.name("kind", **shapes),
        "tooltip": style.tooltip(("sample", "time", "run", "kind")),
    }
    middle = style.layer("rule", {"y": {**Y, "aggregate": "median"}}, style="quiet")
    layers = {"layer": [middle, style.layer("point", points, size=22)]}
    kept, view = style.wrapped(rows, "panel", layers, 3, GAP, width=WIDTH, height=70)
    left_out = f" The {len(widest)} of {len(full)} networks that scatter most."
    caption = [
        "Up: mean time of a step in one sample, from 0. Across: number of the sample. Line: median."
        + (left_out if len(widest) < len(full) else ""),
        "Disturbed: other work took the processor during the sample.",
        source_of(tried),
    ]
    if "facet" in view:
        resolve = {"scale": {"x": "independent", "y": "independent"}}
        lines = max(row["panel"].count("|") for row in kept)
        gaps = {"row": 50 + 15 * lines, "column": 84}
        view |= {"resolve": resolve, "bounds": "flush", "spacing": gaps}
    return style.finish("Samples in the order taken", caption, kept, **view)


def _scatter(points: Sequence[style.Row]) -> float:
    times = [point["seconds"] for point in points]
    return float(max(times) / min(times))


def _points(record: Record, panel: str, start: int) -> Iterator[style.Row]:
    quantity = record.quantities["step_s"]
    marked = quantity.columns.get("disturbed") or (False,) * len(quantity.samples)
    columns = zip(quantity.samples, runs_of(quantity), marked, strict=True)
    for index, (sample, run, disturbed) in enumerate(columns, start=start + 1):
        yield {
            "panel": panel,
            "sample": index,
            "seconds": sample,
            "run": run,
            "kind": KINDS[bool(disturbed)],
            "time": seconds(sample),
        }
