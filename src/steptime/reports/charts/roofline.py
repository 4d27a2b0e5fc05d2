"""Roofline (Williams, Waterman, Patterson 2009): speed over intensity, below the ceilings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steptime.analysis.rooflines.ceilings import compute_dtype
from steptime.core.tables.table import Column, Table
from steptime.core.units import first_of
from steptime.records.row import group_by
from steptime.reports.charts import style
from steptime.reports.charts.roofline_ceilings import (
    X,
    axes,
    find_axis_ends,
    position_of,
    roof_layers,
    roofs,
)

MAX_CONNECTED_POINTS = 60  # with more, no line connects a prediction and its measurement
MAX_LINES = 12
MAX_TITLE_PLATFORMS = 3
MAX_LABELS = 12  # of ceilings in one picture; with more each platform has a panel
PANEL = {"width": 400, "height": 290}
NUMBER_SUFFIXES = ("_per_s", "_fraction")
MEASURED, PREDICTED = "flop_per_s", "predicted_flop_per_s"
TOOLTIP = (
    Column("name"),
    Column("origin"),
    Column(MEASURED, "speed"),
    Column(PREDICTED, "predicted speed"),
    Column("roof_flop_per_s", "ceiling"),
    Column("roof_fraction", "of ceiling"),
    Column("peak_fraction", "of peak"),
    Column("intensity", "FLOP per byte", form=".4g"),
    Column("platform"),
    Column("dtype"),
)


@dataclass(frozen=True)
class _Layout:
    """How platforms are told apart.

    Each platform has a panel if `has_panels`; else they share a picture, and ceilings are coloured
    by platform. `color` is the property that colours the points, None for a single colour.
    """

    platforms: Sequence[str]
    has_panels: bool
    color: str | None

    @property
    def size(self) -> style.Spec:
        """Width and height of a panel in pixels."""
        return PANEL if self.has_panels else {"width": style.WIDTH, "height": style.HEIGHT}

    @property
    def colours_ceilings(self) -> bool:
        """Whether ceilings are coloured by platform."""
        return not self.has_panels and len(self.platforms) > 1

    def names_platforms(self, has_legend: bool) -> bool:
        """Return whether names of ceilings must say their platform."""
        is_in_legend = self.color == "platform" and len(self.platforms) <= len(style.COLOURS)
        return self.colours_ceilings and not (has_legend and is_in_legend)


def chart(table: Table) -> style.Spec:
    """Return the points of a table of `analysis.roofline` under their ceilings.

    Platforms share a picture, each in its colour. Each has a panel if colours show something else,
    or if there are many ceilings.
    """
    summary = table.summary
    # `platforms` has a row for each platform and dtype with points; without any, the rows of the
    # table are the ceilings alone.
    groups = summary["platforms"]
    points: list[style.Row] = [dict(row) for row in table.rows] if groups else []
    ceilings = _select_ceilings(summary["ceilings"], groups)
    layout = _choose_layout(points, ceilings, summary.get("color"))
    point_rows, caption = _draw_points(points, layout.color, summary.get("line"))
    point_color = _encode_color(layout.color, point_rows)
    speeds = [speed for point in points for speed in _speeds(point)]
    axis_ends = find_axis_ends(ceilings, [point[X] for point in points], speeds)
    names_platforms = layout.names_platforms(has_legend=bool(point_color))
    ceiling_rows: list[style.Row] = []
    panel_platforms = layout.platforms if layout.has_panels else [""]  # "": all in one panel
    for platform in panel_platforms:
        ceiling_rows += roofs(ceilings, axis_ends, layout.size, platform, names_platforms)
    position = axes(axis_ends)
    # Vega calls the size of a panel `child_width`, and that of a single picture `width`.
    size_prefix = "child_" if layout.has_panels else ""
    roof = roof_layers(position, _ceiling_color(layout, point_color), size_prefix)
    point_layers = _point_layers(position, point_color, len(points))
    layers = [roof.line, *roof.halos, *point_layers, *roof.texts]  # no halo hides a point
    rows = [
        row | {"panel": row["platform"] if layout.has_panels else ""}
        for row in [*ceiling_rows, *point_rows]
    ]
    height = {} if layout.has_panels else {"height": layout.size["height"]}
    panels, view = style.facet_panels(rows, "panel", {"layer": layers, **height}, 2, **layout.size)
    point_noun = ""
    if summary.get("ops"):
        point_noun = "Ops"
    elif points:
        point_noun = "Networks"
    return style.finish(
        _title(layout.platforms, point_noun), [*caption, table.source], panels, **view
    )


def _choose_layout(
    points: Sequence[style.Row], ceilings: Sequence[style.Row], color: str | None
) -> _Layout:
    platforms = list(dict.fromkeys(row["platform"] for row in (*points, *ceilings)))
    is_crowded = color not in (None, "platform") or len(ceilings) > MAX_LABELS
    has_panels = len(platforms) > 1 and is_crowded
    return _Layout(platforms, has_panels, color or _choose_color(points, has_panels))


def _encode_color(color: str | None, rows: Sequence[style.Row]) -> style.Spec:
    """Return the encoding of points by their colour; empty without points or colour."""
    if not color or not rows:
        return {}
    return style.encode_categories(f"of_{color}", rows, color.replace("_", " "))


def _choose_color(points: Sequence[style.Row], has_panels: bool) -> str | None:
    """Return the first property in which points differ; panels tell platforms apart already."""
    names = ("family", "dtype") if has_panels else ("platform", "family", "dtype")
    return next((name for name in names if len({row.get(name) for row in points}) > 1), None)


def _ceiling_color(layout: _Layout, encoding: style.Spec) -> style.Spec:
    """Return the colour of ceilings by platform, in agreement with that of the points."""
    if not layout.colours_ceilings:
        return {}
    if encoding and layout.color == "platform":  # or the legends of lines and points conflict
        return {"color": {**encoding["color"], "field": "platform"}}
    return {"color": style.encode_name("platform", scale={"domain": layout.platforms}, legend=None)}


def _title(platforms: Sequence[str], points: str) -> str:
    """Return the title: `Networks under the roofline of t4`, or `Roofline of t4`."""
    names = first_of(platforms, MAX_TITLE_PLATFORMS)
    if points:
        return f"{points} under the roofline of {names}"
    return f"{'Roofline' if len(platforms) == 1 else 'Rooflines'} of {names}"


def _speeds(row: style.Row) -> list[float]:
    return [row[name] for name in (MEASURED, PREDICTED) if row[name]]


def _draw_points(
    points: Sequence[style.Row], color: str | None, line: str | None
) -> tuple[list[style.Row], list[str]]:
    """Return the rows of the points that are drawn, a sample if there are many, and a caption."""
    line_fields = _find_lines(points, line) if line else {}  # by the id of a point
    plotted_points, sample_remarks = style.sample_items(points, "point")  # the fastest comes first
    is_sample = bool(sample_remarks)
    if is_sample:  # lines are drawn whole
        plotted_points += [point for point in points if id(point) in line_fields]
    rows = []
    for point in plotted_points:
        fields = {f"of_{name}": point[name] for name in (color, line) if name}
        fields |= line_fields.get(id(point), {})
        if point[X] is None:  # a point without an intensity is a tick at the left edge
            fields["edge"] = point[MEASURED]
        rows.append(style.point(point, ("platform", X, MEASURED, PREDICTED), TOOLTIP) | fields)
    caption = _describe_signs(points) + sample_remarks
    if line:
        line_count = len({fields["line"] for fields in line_fields.values()})
        caption.append(f"A line follows {line}, all else equal: the {line_count} longest lines.")
    return rows, caption


def _describe_signs(points: Sequence[style.Row]) -> list[str]:
    """Return the caption of filled and hollow points, and of points at the left edge."""
    caption = []
    if any(row[PREDICTED] for row in points):
        caption.append(
            "Filled: measured or published. Hollow: predicted."
            if any(row[MEASURED] for row in points)
            else "Hollow: predicted; nothing is measured here."
        )
    edge_count = sum(row[X] is None for row in points)
    if edge_count:
        caption.append(f"At the left edge: {edge_count:,} whose FLOP per byte are not known.")
    return caption


def _find_lines(points: Sequence[style.Row], line: str) -> dict[int, style.Row]:
    """Return the number of the `line` of each point on a line, by the `id` of its row.

    Points are on a line if they differ in `line` and in measured or predicted numbers alone. The
    two ends of the longest line carry a text, `end`.
    """
    settings = {"platform", "dtype", "origin"}  # points of a line agree in all settings
    varying_names = {"name", "model", "bound", line, *(column.key for column in TOOLTIP)} - settings

    def shared_settings(row: style.Row) -> tuple[Any, ...]:
        return tuple(
            value
            for name, value in row.items()
            if name not in varying_names and not name.endswith(NUMBER_SUFFIXES)
        )

    placed_points = [row for row in points if row[X] and _speeds(row) and row.get(line) is not None]
    points_by_settings = group_by(placed_points, shared_settings)
    lines = [line_points for line_points in points_by_settings.values() if len(line_points) > 1]
    lines.sort(key=lambda line_points: -len({point[line] for point in line_points}))
    fields_by_id: dict[int, style.Row] = {}
    for line_number, line_points in enumerate(lines[:MAX_LINES]):
        line_points.sort(key=lambda point: point[line])
        is_longest = line_number == 0
        for point in line_points:
            has_text = is_longest and point in (line_points[0], line_points[-1])
            end_text = f"{line} {point[line]}" if has_text else None
            fields_by_id[id(point)] = {"line": line_number, "end": end_text}
    return fields_by_id


def _select_ceilings(ceilings: Sequence[style.Row], groups: Sequence[style.Row]) -> list[style.Row]:
    """Return the ceilings to draw: all of a platform without points, else those of its dtypes.

    If a point is above its ceiling, the highest ceiling of its platform is drawn, too.
    """
    used_dtypes = {(group["platform"], compute_dtype(group["dtype"])) for group in groups}
    for group in groups:
        if group["above_peak"]:
            used_dtypes.add((group["platform"], group["highest_peak_dtype"]))
    platforms_with_points = {platform for platform, _ in used_dtypes}
    rows = []
    for ceiling in ceilings:
        has_points = ceiling["platform"] in platforms_with_points
        is_memory = bool(ceiling["level"])  # such as DRAM or L2; a peak has no level
        is_used_peak = (ceiling["platform"], ceiling["dtype"]) in used_dtypes
        if is_memory or is_used_peak or not has_points:
            rows.append(dict(ceiling))
    return rows


def _point_layers(axes: style.Spec, encoding: style.Spec, point_count: int) -> list[style.Spec]:
    """Return the layers of the points, of their lines, and of those at the left edge."""
    is_sparse = point_count <= MAX_CONNECTED_POINTS
    measured_position = position_of(axes, X, MEASURED)
    gap = {**measured_position, "y2": {"field": PREDICTED}}
    path = {**measured_position, "detail": {"field": "line"}, "order": {"field": X}}
    tooltip = style.tooltip(TOOLTIP)
    edge_y = {**axes["y"], "field": "edge"}
    edge = {"x": {"value": 5}, "y": edge_y, **encoding, "tooltip": tooltip}
    edge.pop("shape", None)  # a tick has no shape
    end_text = {**measured_position, "text": {"field": "end"}}
    layers = []
    if is_sparse:
        layers.append(
            style.layer(
                "rule", gap, needed_fields=(MEASURED, PREDICTED, X), style="quiet", opacity=0.45
            )
        )
    layers += [
        style.layer(
            "line",
            path,
            needed_fields=("line", MEASURED),
            style="quiet",
            fill=None,
            strokeWidth=1.2,
        ),
        style.layer(
            "tick", edge, needed_fields=("edge",), thickness=1.5, orient="horizontal", size=10
        ),
    ]
    for field, is_filled, crowded_opacity in ((PREDICTED, False, 0.3), (MEASURED, True, 0.7)):
        dots = {**position_of(axes, X, field), **encoding, "tooltip": tooltip}
        size, opacity = (65, 0.9) if is_sparse else (25, crowded_opacity)
        layers.append(
            style.layer(
                "point",
                dots,
                needed_fields=(field, X),
                filled=is_filled,
                size=size,
                opacity=opacity,
            )
        )
    bold = {"dy": -12, "fontWeight": "bold"}
    return [
        *layers,
        style.layer("text", end_text, needed_fields=("end", MEASURED), align="center", **bold),
    ]
