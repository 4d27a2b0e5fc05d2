"""Examples a second by batch: a panel for each family, a line for each network and machine."""

from collections.abc import Sequence
from operator import itemgetter

import polars as pl

from steptime.core.tables.table import Column
from steptime.records.data import Data
from steptime.records.row import group_by
from steptime.reports.charts import EmptyPlotError, style

MAX_LINES = 240  # lines
MAX_LEGEND_LINES = 24  # with names of their own
BATCH_WORDS = pl.concat_str(pl.lit(" batch "), pl.col("batch").cast(pl.String))
LINE = pl.col("label").str.split(BATCH_WORDS).list.join("")
TOOLTIP = (
    Column("label", "network"),
    Column("batch"),
    Column("examples_per_s", "examples/s"),
    Column("measured_s", "measured step"),
    Column("interval_95"),
    Column("platform"),
)


def chart(data: Data) -> style.Spec:
    """Return measured examples a second over batch, both logarithmic.

    Raises:
        EmptyPlotError: where no record holds a measured step and its batch.
    """
    is_point = (pl.col("examples_per_s") > 0) & pl.col("batch").is_not_null()
    columns = style.point_columns(["family"], TOOLTIP)
    rows, line_count = data.draw_results(columns, is_point, MAX_LINES, LINE)
    if not rows:
        raise EmptyPlotError(
            "throughput: no record here holds both a measured time of a step and its batch"
        )
    lines = group_by(map(_make_line_point, rows), itemgetter("family", "line"))
    points = [point for line in lines.values() for point in line]
    families = list(dict.fromkeys(point["family"] for point in points))
    panels = [_draw_family(family, points) for family in families[: style.MAX_PANELS]]
    explanation = "Speed: batch over mean time of a step. Logarithmic axes, a speed axis a family."
    sample = style.describe_sample(line_count, "line", MAX_LINES)
    caption = [explanation, *sample, data.source]
    return style.finish("Throughput by batch", caption, points, **_arrange_panels(panels))


def _arrange_panels(panels: Sequence[style.Spec]) -> style.Spec:
    """Return the view of a single panel, or of several side by side."""
    if len(panels) == 1:  # the picture itself, which has a title of its own
        return {name: value for name, value in panels[0].items() if name != "title"}
    sized_panels = [{**panel, "width": 290, "height": 190} for panel in panels]
    scales = {"scale": {"color": "independent", "shape": "independent"}}
    return {"concat": sized_panels, "columns": 2, "resolve": scales, "spacing": 30}


def _draw_family(family: str, points: Sequence[style.Row]) -> style.Spec:
    """Return the panel of a family: its lines, named in a legend if they are few."""
    family_points = [point for point in points if point["family"] == family]
    line_count = len({point["line"] for point in family_points})
    has_legend = line_count <= MAX_LEGEND_LINES
    if has_legend:
        encoding = _encode_legend("line", family_points, style.NO_TITLE)
    else:
        colour = _encode_legend("platform", points, "platform")["color"]
        encoding = {"color": colour, "detail": {"field": "line"}}
    title = family if has_legend else f"{family}, {line_count} lines"
    return {
        "title": {"text": title, "fontSize": 13, "offset": 8},
        "transform": [{"filter": {"field": "family", "equal": family}}],
        "layer": _draw_lines(family_points, encoding, opacity=0.9 if has_legend else 0.25),
    }


def _encode_legend(field: str, points: Sequence[style.Row], title: str) -> style.Spec:
    """Return the colours and shapes of a field, with a legend below the panel."""
    return style.encode_categories(field, points, title, orient="bottom", columns=1)


def _draw_lines(
    points: Sequence[style.Row], encoding: style.Spec, opacity: float
) -> list[style.Spec]:
    """Return the lines and points of a family; `encoding` tells lines apart."""
    position = {"x": _encode_batch(points), "y": _encode_speed(points)}
    line_encoding = {channel: value for channel, value in encoding.items() if channel != "shape"}
    point = {**position, **encoding, "tooltip": style.tooltip(TOOLTIP)}
    return [
        style.layer("line", {**position, **line_encoding}, opacity=opacity),
        style.layer("point", point, filled=True, opacity=opacity),
    ]


def _encode_batch(points: Sequence[style.Row]) -> style.Spec:
    """Return the logarithmic axis of the batch; its ticks are the batches of the points."""
    batches = sorted({point["batch"] for point in points})
    x = style.encode_log_number("batch", batches, "batch (examples)", grid=False)
    x["axis"] |= {"values": batches, "labelExpr": "format(datum.value, 'd')"}
    return x


def _encode_speed(points: Sequence[style.Row]) -> style.Spec:
    """Return the logarithmic axis of the speed."""
    speeds = [point["speed"] for point in points]
    return style.encode_log_number("speed", speeds, "speed (examples/s)")


def _make_line_point(row: style.Row) -> style.Row:
    # The label without its batch leaves ", ," behind; the panel says the family.
    line = row["line"].replace(",,", ",").removeprefix(row["family"]).strip(", ")
    fields = {"line": line or row["family"], "speed": row["examples_per_s"], "batch": row["batch"]}
    return style.point(row, ["family"], TOOLTIP) | fields
