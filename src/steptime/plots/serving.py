"""A service drawn: tokens a second of a device over those of a user, for numbers of users."""

from collections.abc import Sequence

from steptime.core.table import columns
from steptime.plots import style

TIP = columns(
    "device", "devices", "users=users at once", "tokens_per_s_per_user=tokens/s per user",
    "tokens_per_s_per_device=tokens/s per device", "ttft_s=first token", "tpot_s=each token",
    "million_tokens_cost=cost per million tokens",
)  # fmt: skip
FIELDS = "device users tokens_per_s_per_user tokens_per_s_per_device"


def chart(rows: Sequence[style.Row], title: str, how: str) -> style.Spec:
    """Return the chart of a curve's rows: a line for each device, a point for each number."""
    points = [style.point(row, FIELDS, TIP) for row in rows]
    outer = max(points, key=lambda one: one["tokens_per_s_per_user"])["device"]
    for one in points:
        one["number"] = one["users"] if one["device"] == outer else None
    x, y = (
        style.log_number(field, [row[field] for row in rows], f"tokens/s of a {whose}")
        for field, whose in (
            ("tokens_per_s_per_user", "user"),
            ("tokens_per_s_per_device", "device"),
        )
    )
    told = style.told_by("device", points)
    told["tooltip"] = style.tooltip(TIP)
    words = {"x": x, "y": y, "text": {"field": "number"}}
    layers = [
        style.layer("line", {"x": x, "y": y, "color": told["color"]}),
        style.layer("point", {"x": x, "y": y, **told}, filled=True),
        style.layer("text", words, "number", align="left", dx=8, dy=-7, fontSize=10),
    ]
    read = f"Numbers are users at once (of {outer}); of the others they follow in the same order."
    return style.finish(title, [how, read], points, layer=layers)
