"""The ceilings of a roofline: lines of peaks and bandwidths with their names, and the axes."""

import math
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from steptime.core.units import format_si
from steptime.records.row import group_by
from steptime.reports.charts import style

X = "intensity"
LEFT_ROOM, RIGHT_ROOM = 6.0, 25.0  # factors on the x axis beyond the points: room for names
SPEED_ROOM = 3  # factor on the y axis beyond the points and ceilings


class AxisEnds(NamedTuple):
    """The ends of the axes: intensity from left to right, speed from low to high."""

    left: float
    right: float
    low: float
    high: float


class RoofLayers(NamedTuple):
    """The layers of ceilings and of their names: of peaks, then of slopes."""

    line: style.Spec
    halos: list[style.Spec]
    texts: list[style.Spec]


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
    return AxisEnds(left, right, low=min(ys) / SPEED_ROOM, high=max(ys) * SPEED_ROOM)


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
    highest_peak = max((row["flop_per_s"] or 0 for row in ceilings), default=0)
    for rate, levels in group_by(ceilings, itemgetter("bytes_per_s")).items():
        if rate:  # a peak has none
            end = highest_peak / rate if highest_peak else ends.right
            yield {
                "platform": platform,
                "from": ends.left,
                "roof": ends.left * rate,
                "to": end,
                "top": end * rate,
                "side": f"{prefix}{levels[0]['level']} {format_si(rate, 'B/s', 3)}",
                "dash": levels[0]["level"] != "DRAM",  # caches
            }


def _plateaus(
    platform: str, ceilings: Sequence[style.Row], ends: AxisEnds, prefix: str
) -> Iterator[style.Row]:
    """Yield the lines of the peaks of a platform, each from its ridge with the fastest memory."""
    highest_rate = max((row["bytes_per_s"] or 0 for row in ceilings), default=0)
    for peak, group in group_by(ceilings, itemgetter("flop_per_s")).items():
        if peak:  # a memory has none
            ridge = peak / highest_rate if highest_rate else 0.0
            yield {
                "platform": platform,
                "from": max(ends.left, ridge),
                "roof": peak,  # at both ends of the line: it is level
                "to": ends.right,
                "top": peak,
                "peak": f"{prefix}{_describe_units(group)} {format_si(peak, 'FLOP/s', 3)}",
                "dash": all(row["unit"] != "matrix" for row in group),  # vector units
            }


def _describe_units(ceilings: Sequence[style.Row]) -> str:
    """Return the units and dtypes of ceilings of one height: `matrix, vector float32`."""
    units_by_dtypes: dict[str, list[str]] = {}
    for unit, rows in group_by(ceilings, itemgetter("unit")).items():
        dtypes = ", ".join(row["dtype"] for row in rows)
        units_by_dtypes.setdefault(dtypes, []).append(unit)
    return "; ".join(f"{', '.join(units)} {dtypes}" for dtypes, units in units_by_dtypes.items())


def _spread_labels(rows: Sequence[style.Row], ends: AxisEnds, size: style.Spec) -> None:
    """Set `at`, the height of each name: a name that would cover another moves away."""
    decades_per_pixel = math.log10(ends.high / ends.low) / size["height"]
    # Names of peaks move up (1) from the lowest one, of slopes (`side`) down (-1) from the highest.
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
    x_ends, y_ends = [ends.left, ends.right], [ends.low, ends.high]
    x = style.encode_log_number(X, x_ends, "intensity (FLOP per byte)")
    y = style.encode_log_number("speed", y_ends, "speed (FLOP/s)", "FLOP/s")
    x["scale"] = {"type": "log", "nice": False, "domain": x_ends}
    y["scale"] = {"type": "log", "nice": False, "domain": y_ends}
    return {"x": x, "y": y}


def position_of(axes: style.Spec, x: str, y: str) -> style.Spec:
    """Return the encodings of a position by the fields `x` and `y`."""
    return {"x": {**axes["x"], "field": x}, "y": {**axes["y"], "field": y}}


def roof_layers(axes: style.Spec, color_encoding: style.Spec, size_prefix: str = "") -> RoofLayers:
    """Return the layers of the ceilings and of their names, coloured by `color_encoding` if any.

    A ceiling is a line from (`from`, `roof`) to (`to`, `top`). Its name, `peak` or for a slope
    `side`, stands at the height `at`. A name lies along its line, above a peak and below a slope;
    `size_prefix` begins the names of the Vega signals that hold a panel's size.
    """
    above_peak = {"align": "right", "baseline": "bottom", "dx": -4, "dy": -5}
    below_slope = {"align": "left", "baseline": "top", "dx": 9, "dy": 5}
    below_slope["angle"] = {"expr": _slope_angle(axes, size_prefix)}
    halos = []
    texts = []
    for kind, x, text_style in (("peak", "to", above_peak), ("side", "from", below_slope)):
        text = {**position_of(axes, x, "at"), "text": {"field": kind}}
        colored_text = text | color_encoding
        halos.append(style.layer("text", text, needed_fields=(kind,), style="halo", **text_style))
        texts.append(style.layer("text", colored_text, needed_fields=(kind,), **text_style))
    return RoofLayers(_roof_line(axes, color_encoding), halos, texts)


def _roof_line(axes: style.Spec, color_encoding: style.Spec) -> style.Spec:
    """Return the layer of the lines of ceilings, dashed for caches and vector units."""
    position = {**position_of(axes, "from", "roof"), "x2": {"field": "to"}, "y2": {"field": "top"}}
    dash = {"condition": {"test": "datum.dash", "value": [5, 4]}, "value": [1, 0]}
    mark: style.Spec = {"strokeWidth": 1.6}
    if not color_encoding:
        mark["style"] = "ink"
    encoding = {**position, **color_encoding, "strokeDash": dash}
    return style.layer("rule", encoding, needed_fields=("roof",), **mark)


def _slope_angle(axes: style.Spec, size_prefix: str) -> str:
    """Return the Vega expression of the angle, in degrees, of a line of bandwidth.

    On logarithmic axes such a line rises by a decade of FLOP/s a decade of intensity.
    """
    left, right = axes["x"]["scale"]["domain"]
    low, high = axes["y"]["scale"]["domain"]
    decades_ratio = math.log(right / left) / math.log(high / low)
    slope = f"{size_prefix}height / {size_prefix}width * {decades_ratio}"  # in pixels
    return f"-180 / PI * atan({slope})"
