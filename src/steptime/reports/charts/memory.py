"""Peak memory of each network: measured, predicted, and the gap between."""

import polars as pl

from steptime.core.tables.table import Column
from steptime.records.data import Data, result_rows
from steptime.reports.charts import EmptyPlotError, style

ROW_HEIGHT = 19
MAX_ROWS = 120
MEASURED, PREDICTED = "measured_memory_bytes", "predicted_memory_bytes"
SIDES = (MEASURED, PREDICTED)
TOOLTIP = (
    Column("label", "network"),
    *(Column(side, side.removesuffix("_bytes")) for side in SIDES),
    Column("platform"),
)


def chart(data: Data) -> style.Spec:
    """Return the peak memory of each network [byte], logarithmic.

    Raises:
        EmptyPlotError: where no record holds a peak of memory.
    """
    peak_bytes = pl.max_horizontal(SIDES)
    frame = data.results_frame(style.point_columns((), TOOLTIP)).filter(peak_bytes > 0)
    count = len(frame)
    if not count:
        raise EmptyPlotError("memory: no record here holds a peak of memory")
    if count > MAX_ROWS:  # those that need most
        largest = frame.with_row_index("place").sort(peak_bytes, "place", descending=[True, False])
        frame = largest.drop("place").head(MAX_ROWS)
    points = [style.point(row, SIDES, TOOLTIP) for row in result_rows(frame)]
    colour = {}
    if len({point["platform"] for point in points}) > 1:
        colour = {"color": style.encode_categories("platform", points)["color"]}
    order = list(dict.fromkeys(point["network"] for point in points))
    sizes = [point[side] for point in points for side in SIDES]
    x = style.encode_log_number("", sizes, "peak memory of a step (byte)", "B", orient="top")
    y = style.encode_name("network", sort=order, axis={"title": None, "grid": True})
    gap = {"x": {**x, "field": MEASURED}, "y": y, "x2": {"field": PREDICTED}}
    tooltip = style.tooltip(TOOLTIP)
    layers = [style.layer("rule", gap, needed_fields=SIDES, style="quiet", opacity=0.6)]
    for side, is_filled in ((MEASURED, True), (PREDICTED, False)):
        dot = {"x": {**x, "field": side}, "y": y, **colour, "tooltip": tooltip}
        layers.append(style.layer("point", dot, needed_fields=(side,), filled=is_filled))
    caption = ["Filled: measured. Hollow: predicted.", data.source]
    if count > len(frame):
        caption.insert(0, f"The {len(frame)} of {count:,} that need most.")
    height = ROW_HEIGHT * len(order)
    return style.finish("Peak memory by network", caption, points, height=height, layer=layers)
