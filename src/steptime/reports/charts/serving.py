"""The front of servers: tokens/s of a device over tokens/s of a user."""

from collections.abc import Mapping
from typing import Any

from steptime.core.units import seconds
from steptime.reports.charts import style
from steptime.serving.targets import split_of


def front(told: Mapping[str, Any]) -> style.Spec:
    """Return the chart of a search's front, a line a device; a rule is the target of a token."""
    users, devices = "tokens_per_s_per_user", "tokens_per_s_per_device"
    rows = [
        {
            "device": row["device"], "user": row[users], "per device": row[devices],
            "servers": split_of(row), "users": row["concurrency"],
            "TTFT": seconds(row["ttft_s"]),
        }
        for row in sorted(told["front"], key=lambda one: one[users])
    ]  # fmt: skip
    place = {
        "x": style.log_number("user", [row["user"] for row in rows], "tokens/s of a user"),
        "y": style.log_number(
            "per device", [row["per device"] for row in rows], "tokens/s of a device"
        ),
    }
    by = style.told_by("device", rows, "device", orient="bottom")
    tip = style.tooltip(("device", "servers", "users", "user", "per device", "TTFT"))
    layers = [
        style.layer("line", {**place, "color": by["color"]}, interpolate="step-before"),
        style.layer("point", {**place, **by, "tooltip": tip}, filled=True, size=60),
    ]
    caption = ["To the right answers come faster, upwards a device gives more of them."]
    if told["tpot"]:
        slowest = {"x": {"datum": 1 / told["tpot"], "type": "quantitative"}}
        layers.append(style.layer("rule", slowest, strokeDash=[6, 4], style="ink"))
        caption.append(f"Dashed: a token in {seconds(told['tpot'])}, the target.")
    title = f"Servers of {told['model']}: speed for a user and of a device"
    return style.finish(title, caption, rows, layer=layers, width=640, height=400)
