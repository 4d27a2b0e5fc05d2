"""Roofline (Williams, Waterman, Patterson 2009): speed over intensity, below the two roofs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from steptime.analysis.results import results
from steptime.core.record import Record
from steptime.core.units import si
from steptime.plots import EmptyPlotError
from steptime.plots.style import (
    INK,
    QUIET,
    WIDTH,
    Row,
    Spec,
    family_colour,
    family_shape,
    finish,
    log_axis,
    log_domain,
    log_scale,
    over_rows,
    percent_text,
    rounded,
    sources,
    time_text,
    tooltip,
    unit_text,
)

HEIGHT = 420


def chart(records: Sequence[Record]) -> Spec:
    """Give the networks under the roofs of their platform; raises `EmptyPlotError`."""
    rows = [row for row in results(records) if row["intensity"] and row["predicted_flop_per_s"]]
    if not rows:
        raise EmptyPlotError("roofline: no predicted record here holds FLOP, bytes and a time")
    points = [_point(row) for row in rows]
    roofs = list(dict.fromkeys(map(roof_of, rows)))
    speeds = [p[name] for p in points for name in ("measured", "predicted") if p[name]]
    canvas = Canvas([p["intensity"] for p in points], speeds, roofs)
    families = [point["family"] for point in points]
    shape = family_shape(families)
    colour = family_colour(families)
    base = over_rows(points).encode(x=canvas.x("intensity"), tooltip=tooltip(*TOOLTIP))
    gaps = (
        base.mark_rule(color=QUIET, opacity=0.45)
        .encode(y=canvas.y("measured"), y2="predicted:Q")
        .transform_filter("isValid(datum.measured)")
    )
    hollow = base.mark_point(filled=False, size=55, opacity=0.9).encode(
        y=canvas.y("predicted"), shape=shape, color=colour
    )
    solid = (
        base.mark_point(filled=True, size=75, opacity=0.95)
        .encode(y=canvas.y("measured"), shape=shape, color=colour)
        .transform_filter("isValid(datum.measured)")
    )
    both = "Filled: measured. Hollow: predicted. A line joins the two of a network."
    alone = "Hollow: predicted; nothing is measured here."
    caption = [both if any(p["measured"] for p in points) else alone, sources(records)]
    return finish(canvas.layer(gaps, hollow, solid), "Networks under the roofline", caption)


TOOLTIP = (
    "network",
    "measured_step",
    "predicted_step",
    "measured_speed",
    "predicted_speed",
    "of_peak",
    "of_roof",
    "FLOP_per_byte",
    "platform",
)


def _point(row: Row) -> Row:
    return {
        "family": row["family"],
        "intensity": rounded(row["intensity"]),
        "measured": rounded(row["flop_per_s"]),
        "predicted": rounded(row["predicted_flop_per_s"]),
        "network": row["name"],
        "measured_step": time_text(
            row["measured_s"], row["measured_low_s"], row["measured_high_s"]
        ),
        "predicted_step": time_text(row["predicted_s"]),
        "measured_speed": unit_text(row["flop_per_s"], "FLOP/s"),
        "predicted_speed": unit_text(row["predicted_flop_per_s"], "FLOP/s"),
        "of_peak": percent_text(row["peak_fraction"]),
        "of_roof": percent_text(row["roof_fraction"]),
        "FLOP_per_byte": f"{row['intensity']:.4g}",
        "platform": row["platform"],
    }


Roof = tuple[str, str, float | None, float | None]  # platform, dtype, peak, bandwidth


def roof_of(row: Row) -> Roof:
    """Give the roof that a row of results lies under."""
    return row["platform"], row["dtype"], row["peak_flop_per_s"], row["memory_bytes_per_s"]


class Canvas:
    """The axes of a roofline and its roofs, wide enough for all points and for the ridge."""

    def __init__(
        self,
        intensities: Iterable[float],
        speeds: Iterable[float],
        roofs: Sequence[Roof],
        rise: int = 8,
    ) -> None:
        self.rise = rise  # pixels from a roof to its label, past the points on it
        self.known = [(p, d, peak, rate) for p, d, peak, rate in roofs if peak and rate]
        ridges = [peak / rate for _, _, peak, rate in self.known]
        peaks = [peak for _, _, peak, _ in self.known]
        self.x_domain = log_domain([*intensities, *ridges], 2.2)
        self.y_domain = log_domain([*speeds, *peaks], 2.2)

    def x(self, name: str) -> alt.X:
        """Give the axis of intensity for a field."""
        axis = log_axis("intensity (FLOP per byte of every op's inputs and outputs)", self.x_domain)
        return alt.X(f"{name}:Q", scale=log_scale(self.x_domain), axis=axis)

    def y(self, name: str) -> alt.Y:
        """Give the axis of speed for a field."""
        axis = log_axis("speed (FLOP/s)", self.y_domain, "FLOP/s")
        return alt.Y(f"{name}:Q", scale=log_scale(self.y_domain), axis=axis)

    def layer(self, *points: Any) -> Any:
        """Give the roofs, where any is known, with these layers before them."""
        return alt.layer(*self._roofs(), *points).properties(width=WIDTH, height=HEIGHT)

    def _roofs(self) -> list[Any]:
        if not self.known:
            return []
        lines = [
            point for index, roof in enumerate(self.known) for point in self._line(index, roof)
        ]
        return [
            over_rows(lines)
            .mark_line(color=INK, strokeWidth=1.6, clip=True)
            .encode(x=self.x("x"), y=self.y("y"), detail="roof:N", order="x:Q"),
            *self._labels(),
        ]

    def _line(self, index: int, roof: tuple[str, str, float, float]) -> list[Row]:
        _, _, peak, rate = roof
        low, high = self.x_domain
        return [{"roof": index, "x": x, "y": min(peak, x * rate)} for x in (low, peak / rate, high)]

    def _labels(self) -> list[Any]:
        several = len({platform for platform, _, _, _ in self.known}) > 1
        flat = {
            peak: {
                "x": self.x_domain[1],
                "y": peak,
                "text": f"{platform + ' ' if several else ''}{dtype} peak {si(peak, 'FLOP/s', 3)}",
            }
            for platform, dtype, peak, _ in self.known
        }
        slopes = {
            rate: {
                **self._on_slope(peak, rate),
                "text": f"{platform + ' ' if several else ''}memory {si(rate, 'B/s', 3)}",
            }
            for platform, _, peak, rate in self.known
        }
        return [
            self._text(list(flat.values()), align="right", dy=-self.rise, dx=-2),
            self._text(list(slopes.values()), align="center", dy=-self.rise, angle=self._angle()),
        ]

    def _on_slope(self, peak: float, rate: float) -> Row:
        """Give the middle of the part of the slope that is seen."""
        start = max(self.x_domain[0], self.y_domain[0] / rate)
        x = math.sqrt(start * peak / rate)
        return {"x": x, "y": x * rate}

    def _angle(self) -> float:
        """Give the angle [degrees, clockwise] at which one decade a decade is drawn."""
        across = WIDTH / math.log10(self.x_domain[1] / self.x_domain[0])
        up = HEIGHT / math.log10(self.y_domain[1] / self.y_domain[0])
        return 360 - math.degrees(math.atan2(up, across))

    def _text(self, values: list[Row], **mark: Any) -> Any:
        return (
            over_rows(values)
            .mark_text(color=INK, fontSize=12, **mark)
            .encode(x=self.x("x"), y=self.y("y"), text="text:N")
        )
