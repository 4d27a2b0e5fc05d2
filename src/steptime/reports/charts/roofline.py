"""Roofline (Williams, Waterman, Patterson 2009): speed over intensity, below the ceilings."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from steptime.analysis.rooflines.ceilings import compute_dtype
from steptime.core.tables.table import Column, Table
from steptime.core.units import first_of, format_si
from steptime.records.row import group_by
from steptime.reports.charts import style

LEFT_ROOM, RIGHT_ROOM = 6.0, 25.0  # factors on the x axis beyond the points: room for names
SPEED_ROOM = 3  # factor on the y axis beyond the points and ceilings
MAX_CONNECTED_POINTS = 60  # with more, no line connects a prediction and its measurement
MAX_LINES = 12
MAX_TITLE_PLATFORMS = 3
MAX_LABELS = 12  # of ceilings in one picture; with more each platform has a panel
AxisEnds = tuple[float, float, float, float]
PANEL = {"width": 400, "height": 290}
NUMBER_SUFFIXES = ("_per_s", "_fraction")
X, MEASURED, PREDICTED = "intensity", "flop_per_s", "predicted_flop_per_s"
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
    points: list[style.Row] = [dict(row) for row in table.rows] if summary["platforms"] else []
    ceilings = _select_ceilings(summary["ceilings"], summary["platforms"])
    layout = _choose_layout(points, ceilings, summary.get("color"))
    point_rows, caption = _draw_points(points, layout.color, summary.get("line"))
    point_color = _encode_color(layout.color, point_rows)
    speeds = [speed for point in points for speed in _speeds(point)]
    axis_ends = find_axis_ends(ceilings, [point[X] for point in points], speeds)
    names_platforms = layout.names_platforms(has_legend=bool(point_color))
    ceiling_rows: list[style.Row] = []
    for platform in layout.platforms if layout.has_panels else [""]:
        ceiling_rows += roofs(ceilings, axis_ends, layout.size, platform, names_platforms)
    position = axes(axis_ends)
    line, halo, text, side_halo, side_text = roof_layers(
        position, _ceiling_color(layout, point_color), "child_" if layout.has_panels else ""
    )
    point_layers = _point_layers(position, point_color, len(points))
    layers = [line, halo, side_halo, *point_layers, text, side_text]  # no name hides a point
    rows = [
        row | {"panel": row["platform"] if layout.has_panels else ""}
        for row in [*ceiling_rows, *point_rows]
    ]
    height = {} if layout.has_panels else {"height": layout.size["height"]}
    panels, view = style.facet_panels(rows, "panel", {"layer": layers, **height}, 2, **layout.size)
    noun = "Ops" if summary.get("ops") else "Networks" if points else ""
    return style.finish(_title(layout.platforms, noun), [*caption, table.source], panels, **view)


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
    sample, sample_remarks = style.sample_items(points, "point")  # the fastest comes first
    points_on_lines = (point for point in points if sample_remarks and id(point) in line_fields)
    categories = {name: f"of_{name}" for name in (color, line) if name}
    rows = []
    for point in [*sample, *points_on_lines]:
        fields = {field: point[name] for name, field in categories.items()}
        fields |= line_fields.get(id(point), {})
        if point[X] is None:
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
    varying_names = {"name", "model", "bound", line, *(column.key for column in TOOLTIP)}
    varying_names -= {"platform", "dtype", "origin"}  # points of a line agree in all settings
    varying_names |= {name for row in points[:1] for name in row if name.endswith(NUMBER_SUFFIXES)}

    def shared_settings(row: style.Row) -> tuple[Any, ...]:
        return tuple(value for name, value in row.items() if name not in varying_names)

    placed = [row for row in points if row[X] and _speeds(row) and row.get(line) is not None]
    points_by_settings = group_by(placed, shared_settings)
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
        is_used = (ceiling["platform"], ceiling["dtype"]) in used_dtypes
        if not has_points or ceiling["level"] or is_used:  # a memory has a level, a peak none
            rows.append(dict(ceiling))
    return rows


def find_axis_ends(
    ceilings: Sequence[style.Row], intensities: Iterable[float | None], speeds: Sequence[float]
) -> AxisEnds:
    """Return the ends of both axes, which show all points and every ridge."""
    peaks_flop_per_s = [ceiling["flop_per_s"] for ceiling in ceilings if ceiling["flop_per_s"]]
    rates_bytes_per_s = [ceiling["bytes_per_s"] for ceiling in ceilings if ceiling["bytes_per_s"]]
    ridges = [peak / rate for peak in peaks_flop_per_s for rate in rates_bytes_per_s]  # FLOP/byte
    xs = [intensity for intensity in intensities if intensity] + ridges  # FLOP per byte
    left = min(xs, default=1.0) / LEFT_ROOM
    right = max(xs, default=1.0) * RIGHT_ROOM
    ys = [*speeds, *peaks_flop_per_s, *(left * rate for rate in rates_bytes_per_s)]
    return left, right, min(ys) / SPEED_ROOM, max(ys) * SPEED_ROOM


def roofs(
    ceilings: Sequence[style.Row],
    ends: AxisEnds,
    size: style.Spec,
    platform: str = "",
    names_platform: bool = False,
) -> list[style.Row]:
    """Return the ceilings of a panel as lines from corner to corner, with their names.

    Args:
        ceilings: the ceilings of all panels.
        ends: the ends of the axes.
        size: width and height of the panel in pixels.
        platform: the platform of the panel, "" for all.
        names_platform: whether names say the platform.
    """
    rows: list[style.Row] = []
    for ceiling_platform, platform_ceilings in group_by(ceilings, itemgetter("platform")).items():
        if platform in ("", ceiling_platform):
            prefix = f"{ceiling_platform} " if names_platform else ""
            rows += _slopes(ceiling_platform, platform_ceilings, ends, prefix)
            rows += _plateaus(ceiling_platform, platform_ceilings, ends, prefix)
    _spread_labels(rows, ends, size)
    return rows


def _slopes(
    platform: str, ceilings: Sequence[style.Row], ends: AxisEnds, prefix: str
) -> Iterator[style.Row]:
    """Yield the lines of bandwidth of a platform, each up to the highest peak."""
    left, right, _, _ = ends
    highest_peak = max((row["flop_per_s"] or 0 for row in ceilings), default=0)
    for rate, levels in group_by(ceilings, itemgetter("bytes_per_s")).items():
        if rate:
            end = highest_peak / rate if highest_peak else right
            yield {
                "platform": platform,
                "from": left,
                "roof": left * rate,
                "to": end,
                "top": end * rate,
                "side": f"{prefix}{levels[0]['level']} {format_si(rate, 'B/s', 3)}",
                "dash": levels[0]["level"] != "DRAM",  # caches
            }


def _plateaus(
    platform: str, ceilings: Sequence[style.Row], ends: AxisEnds, prefix: str
) -> Iterator[style.Row]:
    """Yield the lines of the peaks of a platform, each from its ridge with the fastest memory."""
    left, right, _, _ = ends
    highest_rate = max((row["bytes_per_s"] or 0 for row in ceilings), default=0)
    for peak, group in group_by(ceilings, itemgetter("flop_per_s")).items():
        if peak:
            yield {
                "platform": platform,
                "from": max(left, peak / highest_rate) if highest_rate else left,
                "roof": peak,
                "to": right,
                "top": peak,
                "peak": f"{prefix}{_describe_units(group)} {format_si(peak, 'FLOP/s', 3)}",
                "dash": all(row["unit"] != "matrix" for row in group),  # vector units
            }


def _describe_units(ceilings: Sequence[style.Row]) -> str:
    """Return the units and dtypes of ceilings of one height: `matrix, vector float32`."""
    dtypes_by_unit = {
        unit: ", ".join(row["dtype"] for row in rows)
        for unit, rows in group_by(ceilings, itemgetter("unit")).items()
    }
    units_by_dtypes = group_by(dtypes_by_unit, dtypes_by_unit.__getitem__)
    return "; ".join(f"{', '.join(units)} {dtypes}" for dtypes, units in units_by_dtypes.items())


def _spread_labels(rows: Sequence[style.Row], ends: AxisEnds, size: style.Spec) -> None:
    """Set `at`, the height of each name: a name that would cover another moves away."""
    _, _, low, high = ends
    decades_per_pixel = math.log10(high / low) / size["height"]
    # Names of peaks move up from the lowest one, of slopes down (-1) from the highest one.
    for kind, direction, label_pixels in (("peak", 1, 15), ("side", -1, 24)):
        label_decades = label_pixels * decades_per_pixel
        previous_decades = -math.inf
        labelled = [row for row in rows if kind in row]
        for row in sorted(labelled, key=lambda row: direction * row["roof"]):
            roof_decades = direction * math.log10(row["roof"])
            previous_decades = max(roof_decades, previous_decades + label_decades)  # no overlap
            row["at"] = 10 ** (direction * previous_decades)


def axes(ends: AxisEnds) -> style.Spec:
    """Return the encodings of intensity and speed between these ends."""
    left, right, low, high = ends
    x = style.encode_log_number(X, (left, right), "intensity (FLOP per byte)")
    y = style.encode_log_number("speed", (low, high), "speed (FLOP/s)", "FLOP/s")
    x["scale"] = {"type": "log", "nice": False, "domain": [left, right]}
    y["scale"] = {"type": "log", "nice": False, "domain": [low, high]}
    return {"x": x, "y": y}


def _position(axes: style.Spec, x: str, y: str) -> style.Spec:
    """Return the encodings of a position by the fields `x` and `y`."""
    return {"x": {**axes["x"], "field": x}, "y": {**axes["y"], "field": y}}


def roof_layers(axes: style.Spec, color_encoding: style.Spec, panel: str = "") -> list[style.Spec]:
    """Return the layers of the ceilings and of their names, coloured by `color_encoding` if any.

    A name lies along its line, above a peak and below a slope; `panel` is a prefix of the signals
    that hold a panel's size.
    """
    position = {**_position(axes, "from", "roof"), "x2": {"field": "to"}, "y2": {"field": "top"}}
    dash = {"condition": {"test": "datum.dash", "value": [5, 4]}, "value": [1, 0]}
    mark: style.Spec = {"strokeWidth": 1.6}
    if not color_encoding:
        mark["style"] = "ink"
    line = style.layer("rule", {**position, **color_encoding, "strokeDash": dash}, "roof", **mark)

    left, right = axes["x"]["scale"]["domain"]
    low, high = axes["y"]["scale"]["domain"]
    decades_ratio = math.log(right / left) / math.log(high / low)
    slope = f"{panel}height / {panel}width * {decades_ratio}"  # of a line of bandwidth, in pixels
    angle = {"expr": f"-180 / PI * atan({slope})"}
    above_peak = {"align": "right", "baseline": "bottom", "dx": -4, "dy": -5}
    below_slope = {"align": "left", "baseline": "top", "dx": 9, "dy": 5, "angle": angle}
    layers = [line]
    for kind, x, text_style in (("peak", "to", above_peak), ("side", "from", below_slope)):
        text = {**_position(axes, x, "at"), "text": {"field": kind}}
        layers.append(style.layer("text", text, kind, style="halo", **text_style))
        layers.append(style.layer("text", text | color_encoding, kind, **text_style))
    return layers


def _point_layers(axes: style.Spec, encoding: style.Spec, point_count: int) -> list[style.Spec]:
    """Return the layers of the points, of their lines, and of those at the left edge."""
    is_sparse = point_count <= MAX_CONNECTED_POINTS
    measured_position = _position(axes, X, MEASURED)
    gap = {**measured_position, "y2": {"field": PREDICTED}}
    path = {**measured_position, "detail": {"field": "line"}, "order": {"field": X}}
    tooltip = style.tooltip(TOOLTIP)
    edge_y = {**axes["y"], "field": "edge"}
    edge = {"x": {"value": 5}, "y": edge_y, **encoding, "tooltip": tooltip}
    edge.pop("shape", None)  # a tick has no shape
    end_text = {**measured_position, "text": {"field": "end"}}
    layers = []
    if is_sparse:
        layers.append(style.layer("rule", gap, MEASURED, PREDICTED, X, style="quiet", opacity=0.45))
    layers += [
        style.layer("line", path, "line", MEASURED, style="quiet", fill=None, strokeWidth=1.2),
        style.layer("tick", edge, "edge", thickness=1.5, orient="horizontal", size=10),
    ]
    for field, is_filled, crowded_opacity in ((PREDICTED, False, 0.3), (MEASURED, True, 0.7)):
        dots = {**_position(axes, X, field), **encoding, "tooltip": tooltip}
        size, opacity = (65, 0.9) if is_sparse else (25, crowded_opacity)
        layers.append(
            style.layer("point", dots, field, X, filled=is_filled, size=size, opacity=opacity)
        )
    bold = {"dy": -12, "fontWeight": "bold"}
    return [*layers, style.layer("text", end_text, "end", MEASURED, align="center", **bold)]
