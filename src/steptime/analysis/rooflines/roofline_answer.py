"""The answer on rooflines: points under ceilings, by platform and data type."""

import msgspec

from steptime.analysis.rooflines.ceilings import Ceiling, Ridge
from steptime.core.answer import AnswerRow
from steptime.core.json_types import JsonObject

Scalar = str | int | float | bool


class RooflinePoint(AnswerRow, frozen=True, kw_only=True):
    """A network or an op under the ceilings of its platform.

    Attributes:
        name: name of the network or the op.
        model: name of the model.
        family: family of the network.
        platform: name of the platform.
        dtype: data type.
        batch: batch of one replica.
        origin: measured, published or predicted.
        method: how it was measured, or predicted.
        settings: the columns of `--color` and `--line`, by name; columns of their own in a printed
            table.
        intensity: FLOP per byte of traffic.
        flop_per_s: measured speed.
        predicted_flop_per_s: predicted speed.
        roof_flop_per_s: the lower ceiling at this intensity.
        peak_flop_per_s: peak of the platform.
        memory_bytes_per_s: bandwidth of the platform.
        peak_fraction: share of the peak.
        roof_fraction: share of the lower ceiling.
        bound: the lower ceiling, compute or memory.
    """

    name: str
    model: str | None
    family: str | None
    platform: str
    dtype: str | None
    batch: int | None
    origin: str
    method: str | None
    settings: dict[str, Scalar | None]
    intensity: float | None
    flop_per_s: float | None
    predicted_flop_per_s: float | None
    roof_flop_per_s: float | None
    peak_flop_per_s: float | None
    memory_bytes_per_s: float | None
    peak_fraction: float | None
    roof_fraction: float | None
    bound: str | None

    def to_columns(self) -> JsonObject:
        """Return the row as the columns of a table, each setting under its own name."""
        row: JsonObject = {}
        for name, value in self.to_dict().items():
            row |= self.settings if name == "settings" else {name: value}
        return row


class RooflineGroup(AnswerRow, frozen=True, kw_only=True):
    """The points of a platform and data type.

    Attributes:
        platform: name of the platform.
        dtype: data type.
        peak_flop_per_s: its peak.
        memory_bytes_per_s: bandwidth of the platform.
        ridge_flop_per_byte: the intensity from which on compute bounds.
        points: number of points.
        with_intensity: number of points with an intensity.
        with_speed: number of points with a speed.
        above_ridge_share: share of points that compute bounds.
        below_ridge_share: share of points that memory bounds.
        best: name of the fastest point.
        best_flop_per_s: its speed.
        best_peak_fraction: highest share of the peak.
        best_roof_fraction: highest share of the lower ceiling.
        above_peak: number of points above the peak.
        highest_peak_dtype: data type of the highest peak of the platform.
        highest_peak_flop_per_s: that peak.
        best_highest_peak_fraction: share of it that the fastest point reaches.
    """

    platform: str
    dtype: str | None
    peak_flop_per_s: float | None
    memory_bytes_per_s: float | None
    ridge_flop_per_byte: float | None
    points: int
    with_intensity: int
    with_speed: int
    above_ridge_share: float | None
    below_ridge_share: float | None
    best: str | None
    best_flop_per_s: float | None
    best_peak_fraction: float | None
    best_roof_fraction: float | None
    above_peak: int
    highest_peak_dtype: str | None = None
    highest_peak_flop_per_s: float | None = None
    best_highest_peak_fraction: float | None = None


class RooflineSummary(AnswerRow, frozen=True, kw_only=True):
    """Numbers of all points together.

    Attributes:
        points: number of points.
        ridge_flop_per_byte: the ridge of all platforms; None if they differ.
        above_ridge_share: share of points that compute bounds.
        below_ridge_share: share of points that memory bounds.
        best: name of the fastest point.
        best_flop_per_s: its speed.
        best_peak_fraction: its share of the peak.
        platforms: the points of each platform and data type.
        ceilings: the ceilings of all platforms.
        ridges: each unit over each level of memory.
        points_per_row: about how many points there are for each row.
    """

    points: int
    ridge_flop_per_byte: float | None
    above_ridge_share: float | None
    below_ridge_share: float | None
    best: str | None
    best_flop_per_s: float | None
    best_peak_fraction: float | None
    platforms: list[RooflineGroup]
    ceilings: list[Ceiling]
    ridges: list[Ridge]
    points_per_row: int


class RooflineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The points of a roofline, the fastest first.

    Attributes:
        rows: one row a point.
        summary: numbers of all points together.
    """

    rows: list[RooflinePoint]
    summary: RooflineSummary
