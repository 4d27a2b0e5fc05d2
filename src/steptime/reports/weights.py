"""The page of weights: networks, types of weights and contexts on every device; offline."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.hardware.prices import Offer
from steptime.reports.charts import style
from steptime.reports.choices import MAX_ROWS

BEST_TYPE = "all"  # the choice that takes of each device the type of most bits that fits
AXES = {
    "model": "Network",
    "weights": "Weights",
    "context": "Tokens of the context",
    "device": "Device",
}
FILTERS = ("min_speed", "max_price")
_VALUES = (  # of a row, beside the axes
    *("option", "stack"),
    *("type", "bits_per_weight", "file_bytes", "needed_bytes", "verdict", "longest_context"),
    *("tokens_per_s_per_user", "tokens_per_s_low", "tokens_per_s_high", "prefill_tokens_per_s"),
    "cost_per_million_tokens",
)


class WeightsChoices(NamedTuple):
    """The rows of a page of weights, and what all of them share.

    Attributes:
        rows: the rows, each with a value of every axis and of every column.
        offers: prices by device.
        usable_bytes: memory that a process may use, by device; None where unknown.
        words: options of all rows, as a command line has them.
        notes: remarks on all rows.
    """

    rows: Sequence[JsonObject]
    offers: Mapping[str, Offer]
    usable_bytes: Mapping[str, float | None]
    words: Sequence[str]
    notes: Sequence[str]


def write_weights(choices: WeightsChoices, path: Path) -> dict[str, list[str]]:
    """Write the page and return the values that its reader chooses among, by the names of `AXES`.

    Raises:
        InputError: for more than `MAX_ROWS` rows.
        OutsideError: where the disk is full.
    """
    from steptime.core.files import write_atomically
    from steptime.reports.templating import render

    rows = choices.rows
    if len(rows) > MAX_ROWS:
        raise InputError(f"a page of {len(rows):,} rows, at most {MAX_ROWS:,}: name fewer devices")
    axes = {name: list(dict.fromkeys(str(row[name]) for row in rows)) for name in AXES}
    stacks = ", ".join(dict.fromkeys(row["stack"] for row in rows))
    write_atomically(path, render("weights.html", data=_page_data(choices, axes), stacks=stacks))
    return axes


def _page_data(choices: WeightsChoices, axes: Mapping[str, Sequence[str]]) -> JsonObject:
    """Return the data of the page; it opens with the first row that fits."""
    rows = choices.rows
    offers = choices.offers
    first_fitting = next((row for row in rows if row["verdict"] == "yes"), rows[0])
    return {
        "axes": axes,
        "labels": AXES,
        "start": {name: str(first_fitting[name]) for name in AXES},
        "rows": {
            # Values of axes as their places in the list of values, which is shorter.
            **{name: [axes[name].index(str(row[name])) for row in rows] for name in AXES},
            **{name: [style.round_value(row[name]) for row in rows] for name in _VALUES},
        },
        "filters": FILTERS,
        "best_type": BEST_TYPE,
        "charts": _draw_empty_charts(),
        "words": choices.words,
        "notes": choices.notes,
        "prices": {name: offer.price for name, offer in offers.items()},
        "offers": {name: f"{offer.name}, {offer.date}" for name, offer in offers.items()},
        "usable": choices.usable_bytes,
    }


def _draw_empty_charts() -> dict[str, style.Spec]:
    """Return the charts of all types of weights on a device; the page puts in their rows."""
    verdicts = {"domain": ["yes", "no", "unknown"]}
    legend = {"title": "fits", "orient": "top", "direction": "horizontal"}
    position = {
        "y": style.encode_name("type", sort=None, title=None),  # rows have the most bits first
        "color": style.encode_name("verdict", scale=verdicts, legend=legend),
    }
    return {
        "speed": _stack_layers(*_draw_speeds(position)),
        "memory": _stack_layers(*_draw_memory(position)),
    }


def _draw_speeds(position: style.Spec) -> list[style.Spec]:
    """Return the tokens a second of each type of weights, with their intervals."""
    speed = style.encode_number("tokens_per_s_per_user", "tokens a second", tickCount=4)
    interval = {
        **position,
        "x": {**speed, "field": "tokens_per_s_low"},
        "x2": {"field": "tokens_per_s_high"},
    }
    point = {**position, "x": speed}
    return [
        style.layer("rule", interval, strokeWidth=2),
        style.layer("point", point, filled=True, size=60),
    ]


def _draw_memory(position: style.Spec) -> list[style.Spec]:
    """Return the memory that each type of weights needs, and a line at the usable memory."""
    memory = style.encode_number("needed_bytes", "memory", "B", tickCount=4)
    usable = {"x": {**memory, "field": "usable_bytes"}}
    dashed: style.Spec = {"strokeWidth": 2, "strokeDash": [4, 4]}
    return [
        style.layer("bar", {**position, "x": memory}),
        style.layer("rule", usable, needed_fields=("usable_bytes",), **dashed),
    ]


def _stack_layers(*layers: style.Spec) -> style.Spec:
    return {"data": {"values": []}, "height": {"step": 20}, "layer": list(layers)}
