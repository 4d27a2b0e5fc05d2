"""Peak memory of each network: measured, predicted, and the gap between."""

from collections.abc import Sequence

import polars as pl

from steptime.core.tables.table import Column
from steptime.records.data import Data, result_rows
from steptime.reports.charts import EmptyPlotError, style

ROW_HEIGHT = 19
MAX_ROWS = 120
MEASURED, PREDICTED = "measured_memory_bytes", "predicted_memory_bytes"
SIDES = (MEASURED, PREDICTED)
PEAK_BYTES = pl.max_horizontal(SIDES)
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
    columns = style.point_columns((), TOOLTIP)
    networks = data.results_frame(columns).filter(PEAK_BYTES > 0)
    if not len(networks):
        raise EmptyPlotError("memory: no record here holds a peak of memory")
    largest = _select_largest(networks)
    points = [style.point(row, SIDES, TOOLTIP) for row in result_rows(largest)]
    names = list(dict.fromkeys(point["network"] for point in points))
    caption = ["Filled: measured. Hollow: predicted.", data.source]
    if len(networks) > len(largest):
        caption.insert(0, f"The {len(largest)} of {len(networks):,} that need most.")
    return style.finish(
        "Peak memory by network",
        caption,
        points,
        height=ROW_HEIGHT * len(names),
        layer=_draw_layers(points, names),
    )


def _select_largest(networks: pl.DataFrame) -> pl.DataFrame:
    """Return the `MAX_ROWS` networks that need most memory; all, in their order, if they fit."""
    if len(networks) <= MAX_ROWS:
        return networks
    numbered = networks.with_row_index("place")  # ties stay in their order
    by_size = numbered.sort(PEAK_BYTES, "place", descending=[True, False])
    return by_size.drop("place").head(MAX_ROWS)


def _draw_layers(points: Sequence[style.Row], names: Sequence[str]) -> list[style.Spec]:
    """Return a dot for each measured and predicted peak, and a line between the two."""
    sizes_bytes = [point[side] for point in points for side in SIDES]
    title = "peak memory of a step (byte)"
    x = style.encode_log_number("", sizes_bytes, title, "B", orient="top")
    y = style.encode_name("network", sort=names, axis={"title": None, "grid": True})
    gap = {"x": {**x, "field": MEASURED}, "y": y, "x2": {"field": PREDICTED}}
    layers = [style.layer("rule", gap, needed_fields=SIDES, style="quiet", opacity=0.6)]
    dot = {"y": y, **_encode_platform(points), "tooltip": style.tooltip(TOOLTIP)}
    for side in SIDES:
        side_dot = {"x": {**x, "field": side}, **dot}
        is_filled = side == MEASURED
        layers.append(style.layer("point", side_dot, needed_fields=(side,), filled=is_filled))
    return layers


def _encode_platform(points: Sequence[style.Row]) -> style.Spec:
    """Return a colour a platform; empty if all points are of one."""
    if len({point["platform"] for point in points}) == 1:
        return {}
    return {"color": style.encode_categories("platform", points)["color"]}
