"""The page of `choose`: networks, devices, links and replicas as rows, with filters and charts.

Every row is a cell of a grid (`grids/grid.py`); the page shows those that its reader asks for,
and computes nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import watched
from steptime.grids.batches import knee
from steptime.grids.grid import GridCell, Maker, grid
from steptime.hardware.device import Device, Link
from steptime.hardware.prices import HOUR_S, Offer, Training, TrainingBill, bill_training
from steptime.planning.request import near_link
from steptime.prediction.method import Method
from steptime.reports.charts import style

MOST_ROWS = 60_000  # of a page: 3 MB
BEST = "best"  # of the batches listed, the least with 90 % of the best speed that fits
PARTS = ("forward", "backward", "update", "communication")
AXES = {
    "model": "Network",
    "device": "Device",
    "batch": "Batch of a replica",
    "link": "Link between replicas",
    "replicas": "Replicas",
}
_VALUES = (  # what a row says beside the axes
    *("step_s", "low_s", "high_s", "forward_s", "backward_s", "update_s", "communication_s"),
    *("examples_per_s", "speedup", "peak_bytes", "train_h", "cost", "status", "examples"),
)


@dataclass(frozen=True)
class Choices:
    """What a page lets its reader choose among, and how a training is paid.

    `models` make the workload of a network, by its text, at a batch. Each replica has one of the
    `batches`. `offers` are prices by device, `words` the options of all rows on the command line.
    """

    models: Mapping[str, Maker]
    devices: Sequence[Device]
    batches: Sequence[int]
    links: Sequence[Link]
    replicas: Sequence[int]
    training: Training
    offers: Mapping[str, Offer]
    method: str | Method
    options: Mapping[str, str]
    words: Sequence[str]


@dataclass(frozen=True)
class WrittenPage:
    """A page that was written.

    Args:
        row_count: its rows.
        axes: the values that its reader chooses among, by the names of `AXES`.
    """

    row_count: int
    axes: Mapping[str, Sequence[str]]


def write_choices(asked: Choices, path: Path) -> WrittenPage:
    """Write the page of choices and return its axes and the number of its rows.

    Raises `InputError` for more than `MOST_ROWS` rows and where no device has a peak for the type,
    `OutsideError` where the disk is full.
    """
    from steptime.core.files import write_atomically
    from steptime.reports.templating import rendered

    every = (asked.models, asked.devices, asked.batches, asked.links, asked.replicas)
    count = math.prod(map(len, every))
    if count > MOST_ROWS:
        raise InputError(f"a page of {count:,} rows, at most {MOST_ROWS:,}: name fewer devices")
    rows = list(choice_rows(asked))
    named = {name: list(dict.fromkeys(str(row[name]) for row in rows)) for name in AXES}
    good = next((row for row in rows if row["status"] == "ok"), None)
    if good is None:
        reason = "; ".join(rows[0]["notes"]) or "out of memory"
        raise InputError(f"none of {len(rows)} choices fits: {reason}")
    own = near_link(next(one for one in asked.devices if one.name == good["device"]))
    start = {**{name: str(good[name]) for name in AXES}, "replicas": named["replicas"][-1]}
    start |= {"link": own} if own in named["link"] else {}
    data = {
        "axes": named,
        "labels": AXES,
        "start": start,
        "rows": {
            **{name: [named[name].index(str(row[name])) for row in rows] for name in AXES},
            **{name: [style.short(row[name]) for row in rows] for name in _VALUES},
        },
        "charts": charts(),
        "words": asked.words,
        "training": {"examples": asked.training.examples, "epochs": asked.training.epochs},
        "offers": {name: f"{one.name}, {one.date}" for name, one in asked.offers.items()},
    }
    write_atomically(path, rendered("choose.html", data=data, method=str(asked.method)))
    return WrittenPage(len(rows), named)


def choice_rows(asked: Choices) -> Iterator[dict[str, Any]]:
    """Yield the rows: of each network, device, batch, link and number of replicas.

    `speedup` is over one replica of the same batch. Rows of the best batch of a device come twice:
    under its number, and under `BEST`. Hours and cost are of the whole training.
    """
    places = [(text, link) for text in asked.models for link in asked.links]
    for text, link in watched(places, "networks and links"):
        each = asked.devices, asked.batches, asked.replicas
        cells = grid([asked.models[text]], *each, link, asked.method, asked.options)
        for _, of_device in groupby(cells, lambda cell: cell.device):
            rows = [{**_row(cell, link, asked), "model": text} for cell in of_device]
            alone = {row["batch"]: row for row in rows if row["replicas"] == asked.replicas[0]}
            for row in rows:
                single = alone[row["batch"]]["examples_per_s"]
                if single and row["examples_per_s"]:
                    row["speedup"] = asked.replicas[0] * row["examples_per_s"] / single
            fitting = [row for row in alone.values() if row["status"] == "ok"]
            if fitting:
                steps = [row["batch"] / row["examples_per_s"] for row in fitting]
                best = knee([row["batch"] for row in fitting], steps)
                yield from ({**row, "batch": BEST} for row in rows if row["batch"] == best)
            yield from rows


def _row(cell: GridCell, link: Link, asked: Choices) -> dict[str, Any]:
    """Return a cell as a row, with the hours and the cost of its training."""
    training, offer = asked.training, asked.offers.get(cell.device)
    if offer is not None:
        training = replace(training, price=offer.price, billing=offer.billing)
    paid: TrainingBill | None = None
    if cell.step_s is not None:
        paid = bill_training(training, cell.step_s, cell.batch * cell.replicas, cell.replicas)
    return {
        **cell._asdict(),
        "link": link.name,
        "replicas": cell.replicas,
        "examples": cell.batch,
        "speedup": None,
        "train_h": None if paid is None else paid.train_s / HOUR_S,
        "cost": None if paid is None else paid.cost_total,
    }


def charts() -> dict[str, style.Spec]:
    """Return the Vega-Lite of the page's charts over the rows that it shows, by their places."""
    whole: style.Spec = {"labelExpr": "format(datum.value, 'd')", "grid": False}
    x = {**style.number("replicas", "replicas", **whole), "scale": {"type": "log", "base": 2}}
    bars_x = style.name("replicas", sort=None, axis={"title": "replicas", "labelAngle": 0})
    speed = {**style.number("speedup", "speed-up"), "scale": {"type": "log", "base": 2}}
    speed["axis"]["labelExpr"] = "format(datum.value, '~g') + '\u00d7'"
    hours = style.number("train_h", "hours of training", grid=False, tickCount=3)
    hours["scale"] = {"type": "log"}
    cost = style.number("cost", "cost of training ($)", labelExpr=f"'$' + {style.si_label('')}")
    parts = style.encode_categories(
        "part", [{"part": one} for one in PARTS], " ", orient="top", columns=2
    )
    dashed = {"style": "quiet", "fill": None, "strokeDash": [4, 4]}
    ideal = style.layer("line", {"x": x, "y": {**speed, "field": "replicas"}}, **dashed)
    seconds = style.number("seconds", "step (s)", "s")
    stacked = {"x": bars_x, "y": seconds, "color": parts["color"], "order": {"field": "index"}}
    fold = {"transform": [{"fold": PARTS, "as": ["part", "seconds"]}]}
    return {
        "speedup": _chart(ideal, *_line(x, speed)),
        "parts": _chart({**fold, "mark": "bar", "encoding": stacked}),
        "train_h": _chart(*_line(x, hours)),
        "cost": _chart({"mark": "bar", "encoding": {"x": bars_x, "y": cost}}),
    }


def _line(x: style.Spec, y: style.Spec) -> list[style.Spec]:
    place = {"x": x, "y": y}
    return [{"mark": "line", "encoding": place}, {"mark": "point", "encoding": place}]


def _chart(*layers: style.Spec) -> style.Spec:
    return {"data": {"values": []}, "height": 230, "layer": list(layers)}
