"""The front of servers: tokens/s of a device over tokens/s of a user."""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.units import format_seconds
from steptime.reports.charts import style


def front(
    model: str, points: Sequence[Mapping[str, Any]], tpot_target_s: float | None
) -> style.Spec:
    """Return the chart of a search's front, a line a device; a rule is the target of a token.

    Args:
        model: the network.
        points: the points of the front, each with its servers in words.
        tpot_target_s: the target of the time per output token; None without one.
    """
    rows = sorted(map(_make_row, points), key=lambda row: row["user"])
    layers = _draw_lines(rows)
    caption = ["To the right answers come faster, upwards a device gives more of them."]
    if tpot_target_s:
        slowest = {"x": {"datum": 1 / tpot_target_s, "type": "quantitative"}}
        layers.append(style.layer("rule", slowest, strokeDash=[6, 4], style="ink"))
        caption.append(f"Dashed: a token in {format_seconds(tpot_target_s)}, the target.")
    title = f"Servers of {model}: speed for a user and of a device"
    return style.finish(title, caption, rows, layer=layers, width=640, height=400)


def _make_row(point: Mapping[str, Any]) -> style.Row:
    """Return a point of the front under the names that axes and tooltips show."""
    return {
        "device": point["device"],
        "user": point["tokens_per_s_per_user"],
        "per device": point["tokens_per_s_per_device"],
        "servers": point["servers"],
        "users": point["concurrency"],
        "TTFT": format_seconds(point["ttft_s"]),
    }


def _draw_lines(rows: Sequence[style.Row]) -> list[style.Spec]:
    """Return a stepped line a device, with its points."""
    user_speeds = [row["user"] for row in rows]
    device_speeds = [row["per device"] for row in rows]
    position = {
        "x": style.encode_log_number("user", user_speeds, "tokens/s of a user"),
        "y": style.encode_log_number("per device", device_speeds, "tokens/s of a device"),
    }
    device = style.encode_categories("device", rows, "device", orient="bottom")
    line = {**position, "color": device["color"]}
    tooltip = style.tooltip(("device", "servers", "users", "user", "per device", "TTFT"))
    point = {**position, **device, "tooltip": tooltip}
    return [
        style.layer("line", line, interpolate="step-before"),
        style.layer("point", point, filled=True, size=60),
    ]
