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
    rows = [
        {
            "device": point["device"],
            "user": point["tokens_per_s_per_user"],
            "per device": point["tokens_per_s_per_device"],
            "servers": point["servers"],
            "users": point["concurrency"],
            "TTFT": format_seconds(point["ttft_s"]),
        }
        for point in sorted(points, key=lambda point: point["tokens_per_s_per_user"])
    ]
    place = {
        "x": style.log_number("user", [row["user"] for row in rows], "tokens/s of a user"),
        "y": style.log_number(
            "per device", [row["per device"] for row in rows], "tokens/s of a device"
        ),
    }
    device_encoding = style.encode_categories("device", rows, "device", orient="bottom")
    tip = style.tooltip(("device", "servers", "users", "user", "per device", "TTFT"))
    layers = [
        style.layer(
            "line", {**place, "color": device_encoding["color"]}, interpolate="step-before"
        ),
        style.layer("point", {**place, **device_encoding, "tooltip": tip}, filled=True, size=60),
    ]
    caption = ["To the right answers come faster, upwards a device gives more of them."]
    if tpot_target_s:
        slowest = {"x": {"datum": 1 / tpot_target_s, "type": "quantitative"}}
        layers.append(style.layer("rule", slowest, strokeDash=[6, 4], style="ink"))
        caption.append(f"Dashed: a token in {format_seconds(tpot_target_s)}, the target.")
    title = f"Servers of {model}: speed for a user and of a device"
    return style.finish(title, caption, rows, layer=layers, width=640, height=400)
