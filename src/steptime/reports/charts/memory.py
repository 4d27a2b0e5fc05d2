"""Peak memory of each network: measured, predicted, and the gap between."""

from steptime.core.table import Column
from steptime.records.data import Data
from steptime.reports.charts import EmptyPlotError, style

ROW_HEIGHT = 19
MOST_ROWS = 120
SIDES = ("measured_memory_bytes", "predicted_memory_bytes")
TOOLTIP = (
    Column("label", "network"),
    *(Column(side, side.removesuffix("_bytes")) for side in SIDES),
    Column("platform"),
)


def chart(data: Data) -> style.Spec:
    """Return the peak memory of each network [byte], logarithmic; raises `EmptyPlotError`."""
    peak = f"greatest({', '.join(SIDES)})"
    (number,) = data.one(f"SELECT count(*) FROM results WHERE {peak} > 0")  # noqa: S608  # our names
    if not number:
        raise EmptyPlotError("memory: no record here holds a peak of memory")
    some = f"ORDER BY {peak} DESC LIMIT {MOST_ROWS}" if number > MOST_ROWS else ""
    kept = data.of_results(style.point_columns("", TOOLTIP), f"WHERE {peak} > 0 {some}")
    points = [style.point(row, " ".join(SIDES), TOOLTIP) for row in kept]
    several = len({point["platform"] for point in points}) > 1
    told = {"color": style.encode_categories("platform", points)["color"]} if several else {}
    order = list(dict.fromkeys(point["network"] for point in points))
    sizes = [point[side] for point in points for side in SIDES]
    x = style.log_number("", sizes, "peak memory of a step (byte)", "B", orient="top")
    y = style.name("network", sort=order, axis={"title": None, "grid": True})
    places = {side: {"x": {**x, "field": side}, "y": y} for side in SIDES}
    ends = places[SIDES[0]] | {"x2": {"field": SIDES[1]}}
    tooltip = style.tooltip(TOOLTIP)
    layers = [
        style.layer("rule", ends, *SIDES, style="quiet", opacity=0.6),
        *(
            style.layer("point", {**places[side], **told, "tooltip": tooltip}, side, filled=filled)
            for side, filled in zip(SIDES, (True, False), strict=True)
        ),
    ]
    left_out = [f"The {len(kept)} of {number:,} that need most."][: number > len(kept)]
    caption = [*left_out, "Filled: measured. Hollow: predicted.", data.source]
    height = ROW_HEIGHT * len(order)
    return style.finish("Peak memory by network", caption, points, height=height, layer=layers)
