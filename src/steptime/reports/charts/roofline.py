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
    picture = _Picture(layout, points, point_rows, ceilings)
    rows = [
        row | {"panel": row["platform"] if layout.has_panels else ""}
        for row in [*picture.make_ceiling_rows(), *point_rows]
    ]
    height = {} if layout.has_panels else {"height": layout.size["height"]}
    panel = {"layer": picture.draw_layers(), **height}
    panel_rows, view = style.facet_panels(rows, "panel", panel, 2, **layout.size)
    noun = _choose_noun(has_points=bool(points), are_ops=bool(summary.get("ops")))
    title = _title(layout.platforms, noun)
    return style.finish(title, [*caption, table.source], panel_rows, **view)


def _choose_noun(has_points: bool, are_ops: bool) -> str:
    """Return the noun of the points for the title; "" without points."""
    if are_ops:
        return "Ops"
    return "Networks" if has_points else ""


class _Picture:
    """Points and ceilings with what they share: axes, and the colours of platforms."""

    def __init__(
        self,
        layout: _Layout,
        points: Sequence[style.Row],
        point_rows: Sequence[style.Row],
        ceilings: Sequence[style.Row],
    ) -> None:
        """Choose axes that show all `points`; `point_rows` are the marks of those drawn."""
        speeds = [speed for point in points for speed in _speeds(point)]
        self.layout = layout
        self.ceilings = ceilings
        self.point_count = len(points)
        self.axis_ends = find_axis_ends(ceilings, [point[X] for point in points], speeds)
        self.point_color = _encode_color(layout.color, point_rows)

    def make_ceiling_rows(self) -> list[style.Row]:
        """Return the rows of the ceilings, panel by panel."""
        layout = self.layout
        names_platforms = layout.names_platforms(has_legend=bool(self.point_color))
        panel_platforms = layout.platforms if layout.has_panels else [""]  # "": all in one panel
        rows: list[style.Row] = []
        for platform in panel_platforms:
            rows += roofs(self.ceilings, self.axis_ends, layout.size, platform, names_platforms)
        return rows

    def draw_layers(self) -> list[style.Spec]:
        """Return the layers of a panel; those of points lie above the halos of names."""
        position = axes(self.axis_ends)
        # Vega calls the size of a panel `child_width`, and that of a single picture `width`.
        size_prefix = "child_" if self.layout.has_panels else ""
        ceiling_color = _ceiling_color(self.layout, self.point_color)
        roof = roof_layers(position, ceiling_color, size_prefix)
        point_layers = _point_layers(position, self.point_color, self.point_count)
        return [roof.line, *roof.halos, *point_layers, *roof.texts]


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
    properties = [name for name in (color, line) if name]
    rows = [
        _make_point_row(point, properties) | line_fields.get(id(point), {})
        for point in plotted_points
    ]
    caption = _describe_signs(points) + sample_remarks
    if line:
        line_count = len({fields["line"] for fields in line_fields.values()})
        caption.append(f"A line follows {line}, all else equal: the {line_count} longest lines.")
    return rows, caption


def _make_point_row(point: style.Row, properties: Sequence[str]) -> style.Row:
    """Return the mark of a point, with each property that colours or joins points as `of_NAME`."""
    row = style.point(point, ("platform", X, MEASURED, PREDICTED), TOOLTIP)
    row |= {f"of_{name}": point[name] for name in properties}
    has_intensity = point[X] is not None
    return row if has_intensity else row | {"edge": point[MEASURED]}  # a tick at the left edge


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
    fields_by_id: dict[int, style.Row] = {}
    for line_number, line_points in enumerate(_collect_lines(points, line)[:MAX_LINES]):
        line_points.sort(key=lambda point: point[line])
        fields_by_id |= {id(point): {"line": line_number, "end": None} for point in line_points}
        is_longest = line_number == 0
        if is_longest:
            for point in (line_points[0], line_points[-1]):
                fields_by_id[id(point)]["end"] = f"{line} {point[line]}"
    return fields_by_id


def _collect_lines(points: Sequence[style.Row], line: str) -> list[list[style.Row]]:
    """Return the groups of points that differ in `line` alone, those of most values first."""
    varying_names = _list_varying_names(line)

    def shared_settings(row: style.Row) -> tuple[Any, ...]:
        return tuple(
            value
            for name, value in row.items()
            if name not in varying_names and not name.endswith(NUMBER_SUFFIXES)
        )

    placed_points = [row for row in points if row[X] and _speeds(row) and row.get(line) is not None]
    groups = group_by(placed_points, shared_settings).values()
    lines = [group for group in groups if len(group) > 1]
    return sorted(lines, key=lambda group: -len({point[line] for point in group}))


def _list_varying_names(line: str) -> set[str]:
    """Return the columns in which points of a line may differ: names and numbers, no settings."""
    settings = {"platform", "dtype", "origin"}
    return {"name", "model", "bound", line, *(column.key for column in TOOLTIP)} - settings


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
    end_text = {**measured_position, "text": {"field": "end"}}
    text_look = {"align": "center", "dy": -12, "fontWeight": "bold"}
    return [
        *([_gap_layer(measured_position)] if is_sparse else []),
        _path_layer(measured_position),
        _edge_layer(axes, encoding),
        _dot_layer(axes, encoding, PREDICTED, is_sparse=is_sparse),
        _dot_layer(axes, encoding, MEASURED, is_sparse=is_sparse),
        style.layer("text", end_text, needed_fields=("end", MEASURED), **text_look),
    ]


def _gap_layer(measured_position: style.Spec) -> style.Spec:
    """Return the lines between the measured and the predicted speed of a point."""
    gap = {**measured_position, "y2": {"field": PREDICTED}}
    return style.layer(
        "rule", gap, needed_fields=(MEASURED, PREDICTED, X), style="quiet", opacity=0.45
    )


def _path_layer(measured_position: style.Spec) -> style.Spec:
    """Return the lines through points that differ in one setting."""
    path = {**measured_position, "detail": {"field": "line"}, "order": {"field": X}}
    look: style.Spec = {"style": "quiet", "fill": None, "strokeWidth": 1.2}
    return style.layer("line", path, needed_fields=("line", MEASURED), **look)


def _edge_layer(axes: style.Spec, encoding: style.Spec) -> style.Spec:
    """Return the ticks at the left edge, of points whose intensity is not known."""
    y = {**axes["y"], "field": "edge"}
    edge = {"x": {"value": 5}, "y": y, **encoding, "tooltip": style.tooltip(TOOLTIP)}
    edge.pop("shape", None)  # a tick has no shape
    look: style.Spec = {"thickness": 1.5, "orient": "horizontal", "size": 10}
    return style.layer("tick", edge, needed_fields=("edge",), **look)


def _dot_layer(
    axes: style.Spec, encoding: style.Spec, field: str, *, is_sparse: bool
) -> style.Spec:
    """Return the dots of the measured or predicted speeds; smaller where there are many."""
    dots = {**position_of(axes, X, field), **encoding, "tooltip": style.tooltip(TOOLTIP)}
    is_measured = field == MEASURED
    if is_sparse:
        look = {"size": 65, "opacity": 0.9}
    else:
        look = {"size": 25, "opacity": 0.7 if is_measured else 0.3}
    return style.layer("point", dots, needed_fields=(field, X), filled=is_measured, **look)
