"""Predicted against measured time of a step, with the line of equality and a band of a factor 2."""

from steptime.core.table import Column
from steptime.records.data import Data
from steptime.reports.charts import EmptyPlotError, style

SIDE = 460
BAND = 2.0
MOST_BARS = 300  # points with intervals
INSIDE = "SELECT count(*) FROM results WHERE ratio BETWEEN ? AND ?"
TIMES = ("predicted_s", "measured_s", "measured_low_s", "measured_high_s")
ENDS = ("predicted_low_s", "predicted_high_s")
FIELDS = f"family {' '.join((*TIMES, *ENDS))}"
TOOLTIP = (
    Column("label", "network"),
    Column("measured_s", "measured step"),
    Column("interval_95"),
    Column("predicted_s", "predicted step"),
    Column("ratio"),
    Column("platform"),
)


def chart(data: Data) -> style.Spec:
    """Return measured [s] over predicted [s], both logarithmic; raises `EmptyPlotError`.

    One platform has a colour a family, several have a colour a platform.
    """
    columns_ = style.point_columns(FIELDS, TOOLTIP)
    shown, number = data.drawn(columns_, "ratio IS NOT NULL", style.MAX_POINTS)
    if not shown:
        raise EmptyPlotError("predicted: no network here is both measured and predicted")
    points = [style.point(row, FIELDS, TOOLTIP) for row in shown]
    few = len(points) <= MOST_BARS
    several = len({point["platform"] for point in points}) > 1
    colour = style.encode_categories("platform" if several else "family", points)["color"]
    told = {"color": colour, "shape": style.encode_categories("family", points)["shape"]}
    ends = [point[name] for point in points for name in (*TIMES, *ENDS) if point[name]]
    edges = (min(ends) / 1.5, max(ends) * 1.5)
    corners: list[style.Row] = [{"at": at, "low": at / BAND, "high": at * BAND} for at in edges]
    corners[-1]["text"] = "equal"
    x = style.log_number("predicted_s", ends, "predicted time of a step (s)", "s")
    y = style.log_number("measured_s", ends, "measured time of a step (s)", "s")
    along = {"x": {**x, "field": "at"}, "y": {**y, "field": "at"}}
    band = {**along, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    equal = {**along, "text": {"field": "text"}}
    interval = {"x": x, "y": {**y, "field": TIMES[2]}, "y2": {"field": TIMES[3]}, "color": colour}
    beside = {"x": {**x, "field": ENDS[0]}, "x2": {"field": ENDS[1]}, "y": y, "color": colour}
    point = {"x": x, "y": y, **told, "tooltip": style.tooltip(TOOLTIP)}
    layers = [
        style.layer("area", band, "at", style="band"),
        style.layer("line", along, "at", style="ink", fill=None, strokeWidth=1.2),
        style.layer("text", equal, "text", align="right", dx=-22, dy=2),
    ]
    if few:
        layers.append(style.layer("rule", interval, "measured_low_s", strokeWidth=1.4))
        layers.append(style.layer("rule", beside, ENDS[1], strokeWidth=1, opacity=0.5))
    size = {} if few else {"size": 18}
    layers.append(style.layer("point", point, "measured_s", filled=True, **size))
    (inside,) = data.one(INSIDE, 1 / BAND, BAND)
    said = f"{inside:,} of {number:,} within a factor of 2 (shaded)."
    said += " Bars: 95 % interval." if few else ""
    if few and any(point[ENDS[1]] for point in points):
        said += " Lines across: 80 % of steps, as predicted."
    caption = [said, *style.describe_sample(number, "network"), data.source]
    view = {"width": SIDE, "height": SIDE, "layer": layers}
    return style.finish("Predicted against measured", caption, [*corners, *points], **view)
