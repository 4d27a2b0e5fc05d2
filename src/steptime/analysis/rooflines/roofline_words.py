"""A roofline in sentences."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from steptime.analysis.rooflines.ceilings import DRAM, compute_dtype
from steptime.core.tables.table import Table
from steptime.core.units import format_count, format_percent, format_si, format_value
from steptime.records.row import group_by

Row = Mapping[str, Any]


def describe_roofline(table: Table) -> list[str]:
    """Return the sentences on a roofline, platform by platform, and on missing numbers."""
    summary = table.summary
    noun = "op" if summary.get("ops") else "network"
    groups = summary["platforms"]
    if not table.rows:
        return [f"no {noun} here has both FLOP and a time", *_describe_missing(groups, noun)]
    if groups:
        lines = [line for group in groups for line in _describe_group(group, noun)]
        lines += _describe_missing(groups, noun)
    else:
        lines = _describe_ridges(table.rows)
    points_per_row = summary.get("points_per_row", 1)
    if points_per_row > 1:
        sample = f"About one point in {points_per_row} is shown, chosen by chance"
        lines.append(f"{sample}, and the fastest; all are counted.")
    return lines


def _describe_ridges(rows: Sequence[Row]) -> list[str]:
    """Return the ridges over memory of each device."""
    ridges = group_by((row for row in rows if row["level"] == DRAM), itemgetter("platform"))
    return [
        f"{platform}: ridge over {DRAM} in FLOP/byte: "
        + ", ".join(
            f"{row['unit']} {row['dtype']} {row['ridge_flop_per_byte']:.4g}" for row in members
        )
        for platform, members in ridges.items()
    ]


def _describe_group(group: Row, noun: str) -> list[str]:
    """Return the side of the ridge of the points of a platform, and the fastest of them."""
    place = f"{group['platform']}, {group['dtype']}"
    lines = []
    if group["above_ridge_share"] is not None:
        points = format_count(group["with_intensity"], noun)
        side = f"{format_percent(group['above_ridge_share'])} of {points}"
        ridge = format_value("flop_per_byte", group["ridge_flop_per_byte"])
        lines.append(f"{place}: {side} above the ridge point of {ridge}, where compute bounds.")
    speed = group["best_flop_per_s"]
    if speed and group["best_peak_fraction"] is None:
        lines.append(f"{place}: best {format_si(speed, 'FLOP/s')}; its peak is unknown.")
    elif speed:
        peak = format_si(group["peak_flop_per_s"], "FLOP/s")
        share = f"{format_percent(group['best_peak_fraction'])} of {peak}"
        lines.append(f"{place}: best {format_si(speed, 'FLOP/s', 5)}, {share}: {group['best']}.")
    if group["above_peak"]:
        lines.append(f"{place}: {_describe_above_peak(group, noun)}.")
    return lines


def _describe_above_peak(group: Row, noun: str) -> str:
    """Return why points may lie above the peak of their data type."""
    dtype = compute_dtype(group["dtype"])
    points = f"{format_count(group['above_peak'], noun)} above the peak of {dtype}"
    # Matrix units in a type with a higher peak explain it, if the best stays below that peak.
    is_below_highest = (
        group["highest_peak_dtype"] != dtype and group["best_highest_peak_fraction"] <= 1
    )
    if not is_below_highest:
        return f"{points}: the figures of the device or the shares are not of what ran"
    return (
        f"{points}: matrix units were used, as for {group['highest_peak_dtype']}, of whose "
        f"{format_si(group['highest_peak_flop_per_s'], 'FLOP/s')} the best is "
        f"{format_percent(group['best_highest_peak_fraction'])}"
    )


def _describe_missing(groups: Sequence[Row], noun: str) -> list[str]:
    """Return the numbers that records lack, and the command that adds them."""
    lines = []
    for group in groups:
        points = format_count(group["points"], noun)
        place = f"of {points} on {group['platform']} ({group['dtype']})"
        missing = {
            "FLOP per byte of memory": group["points"] - group["with_intensity"],
            "a speed in FLOP/s": group["points"] - group["with_speed"],
        }
        parts = [f"{count:,} lack {name}" for name, count in missing.items() if count]
        if parts:
            command = "`steptime predict --in DIR` adds the FLOP and bytes of a network"
            end = "." if noun == "op" else f"; {command}."
            lines.append(f"{place}: {', '.join(parts)}{end}")
        has_ceiling = group["peak_flop_per_s"] and group["memory_bytes_per_s"]
        if not has_ceiling:
            lines.append(f"{place}: no ceiling is known; --device FILE.toml gives one.")
    return [line[0].upper() + line[1:] for line in lines]
