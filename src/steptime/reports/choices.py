"""The page of `choose`: its axes are networks, types, devices, batches, links and replicas.

Every row is a cell of a grid (`grids/grid.py`); the page shows those that its reader asks for,
and computes nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.core.progress import track_progress
from steptime.grids.batches import find_knee
from steptime.grids.grid import GridCell, Maker, grid
from steptime.hardware.device import Device, Link
from steptime.hardware.prices import HOUR_S, Offer, Training, TrainingBill, bill_training
from steptime.planning.ranks.site import node_link_name
from steptime.prediction.method import Method
from steptime.reports.charts import style

MAX_ROWS = 60_000  # of a page: 3 MB
BEST = "best"  # of the batches listed, the least with 90 % of the best speed that fits
PARTS = ("forward", "backward", "update", "communication")
AXES = {
    "model": "Network",
    "dtype": "Precision",
    "device": "Device",
    "batch": "Batch of a replica",
    "link": "Link between replicas",
    "replicas": "Replicas",
}
_VALUES = (  # of a row, beside the axes
    *("step_s", "low_s", "high_s", "forward_s", "backward_s", "update_s", "communication_s"),
    *("examples_per_s", "speedup", "needed_bytes", "train_h", "cost", "status", "examples"),
    "precision",
)


@dataclass(frozen=True)
class Choices:
    """The choices of a page, and how a training is paid.

    Attributes:
        models: makers of the workload of a network at a batch, by the network's text and its data
            type, which is "" for the network's own on each device.
        devices: the devices.
        batches: batches of a replica.
        links: links between replicas.
        replicas: numbers of replicas, the smallest first.
        training: the training whose cost is shown.
        offers: prices by device.
        method: the cost model.
        options: its options.
        words: options of all rows, as a command line has them.
    """

    models: Mapping[tuple[str, str], Maker]
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


def write_choices(choices: Choices, path: Path) -> WrittenPage:
    """Write the page of choices and return its axes and the number of its rows.

    Raises:
        InputError: for more than `MAX_ROWS` rows, and where no device has a peak for the type.
        OutsideError: where the disk is full.
    """
    from steptime.core.files import write_atomically
    from steptime.reports.templating import render

    _check_row_count(choices)
    rows = list(choice_rows(choices))
    axis_values = {name: list(dict.fromkeys(str(row[name]) for row in rows)) for name in AXES}
    start = _find_start(choices, _find_fitting_row(rows), axis_values)
    data = _page_data(choices, rows, axis_values) | {"start": start}
    write_atomically(path, render("choose.html", data=data, method=str(choices.method)))
    return WrittenPage(len(rows), axis_values)


def _check_row_count(choices: Choices) -> None:
    """Raise `InputError` for more rows than a page may have."""
    axes = (choices.models, choices.devices, choices.batches, choices.links, choices.replicas)
    row_count = math.prod(map(len, axes))
    if row_count > MAX_ROWS:
        raise InputError(f"a page of {row_count:,} rows, at most {MAX_ROWS:,}: name fewer devices")


def _find_fitting_row(rows: Sequence[JsonObject]) -> JsonObject:
    """Return the first row that fits, with which the page opens; raises `InputError`."""
    for row in rows:
        if row["status"] == "ok":
            return row
    reason = "; ".join(rows[0]["notes"]) or "out of memory"
    raise InputError(f"none of {len(rows)} choices fits: {reason}")


def _find_start(
    choices: Choices, row: JsonObject, values: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Return the choice with which the page opens: a row on all replicas, over its usual link."""
    device = next(device for device in choices.devices if device.name == row["device"])
    usual_link = node_link_name(device)
    start = {**{name: str(row[name]) for name in AXES}, "replicas": values["replicas"][-1]}
    return start | ({"link": usual_link} if usual_link in values["link"] else {})


def _page_data(
    choices: Choices, rows: Sequence[JsonObject], values: Mapping[str, Sequence[str]]
) -> JsonObject:
    """Return the data of the page but the choice with which it opens; rows are columns."""
    return {
        "axes": values,
        "labels": AXES,
        "rows": {
            # Values of axes as their places in the list of values, which is shorter.
            **{name: [values[name].index(str(row[name])) for row in rows] for name in AXES},
            **{name: [style.round_value(row[name]) for row in rows] for name in _VALUES},
        },
        "charts": charts(),
        "words": choices.words,
        "filters": ["max_price"],
        "prices": {name: offer.price for name, offer in choices.offers.items()},
        "usable": {device.name: device.datasheet.usable_bytes for device in choices.devices},
        "training": {"examples": choices.training.examples, "epochs": choices.training.epochs},
        "offers": {name: f"{offer.name}, {offer.date}" for name, offer in choices.offers.items()},
    }


def choice_rows(choices: Choices) -> Iterator[JsonObject]:
    """Yield the rows: of each network, type, device, batch, link and number of replicas.

    `speedup` is over one replica of the same batch. Rows of the best batch of a device come twice:
    under its number, and under `BEST`. Hours and cost are of the whole training.
    """
    networks_and_links = list(product(choices.models.items(), choices.links))
    for (network, make_workload), link in track_progress(networks_and_links, "networks and links"):
        model, dtype = network
        cells = grid(
            [make_workload],
            choices.devices,
            choices.batches,
            choices.replicas,
            link,
            choices.method,
            choices.options,
        )
        for _device, device_cells in groupby(cells, lambda cell: cell.device):
            rows = [
                {**_make_choice_row(cell, link, choices), "model": model, "dtype": dtype}
                for cell in device_cells
            ]
            _set_speedups(rows, choices.replicas[0])
            best_batch = _find_best_batch(rows, choices.replicas[0])
            best_rows = [row for row in rows if row["batch"] == best_batch]
            yield from ({**row, "batch": BEST} for row in best_rows)
            yield from rows


def _set_speedups(rows: Sequence[JsonObject], fewest_replicas: int) -> None:
    """Set the `speedup` of rows of one device over the row of the fewest replicas of a batch."""
    reference_by_batch = {row["batch"]: row for row in rows if row["replicas"] == fewest_replicas}
    for row in rows:
        reference_per_s = reference_by_batch[row["batch"]]["examples_per_s"]
        if reference_per_s and row["examples_per_s"]:
            row["speedup"] = fewest_replicas * row["examples_per_s"] / reference_per_s


def _find_best_batch(rows: Sequence[JsonObject], fewest_replicas: int) -> int | None:
    """Return the best batch of a device on the fewest replicas, None where none fits."""
    fitting_rows = [
        row for row in rows if row["replicas"] == fewest_replicas and row["status"] == "ok"
    ]
    if not fitting_rows:
        return None
    steps_s = [row["batch"] / row["examples_per_s"] for row in fitting_rows]
    return find_knee([row["batch"] for row in fitting_rows], steps_s)


def _make_choice_row(cell: GridCell, link: Link, choices: Choices) -> JsonObject:
    """Return a cell as a row, with the hours and the cost of its training."""
    training = choices.training
    offer = choices.offers.get(cell.device)
    if offer is not None:  # else the price that holds for all devices, if any
        training = replace(training, price=offer.price, billing=offer.billing)
    bill: TrainingBill | None = None
    if cell.step_s is not None:
        global_batch = cell.batch * cell.replicas
        bill = bill_training(training, cell.step_s, global_batch, cell.replicas)
    return {
        **cell._asdict(),
        "precision": cell.dtype,
        "link": link.name,
        "replicas": cell.replicas,
        "examples": cell.batch,
        "speedup": None,
        "train_h": None if bill is None else bill.train_s / HOUR_S,
        "cost": None if bill is None else bill.cost_total,
    }


def charts() -> dict[str, style.Spec]:
    """Return the Vega-Lite of the page's charts over the rows that it shows, by their places."""
    x = _encode_replicas()
    bars_x = style.encode_name("replicas", sort=None, axis={"title": "replicas", "labelAngle": 0})
    hours = style.encode_number("train_h", "hours of training", grid=False, tickCount=3)
    hours["scale"] = {"type": "log"}
    dollars = f"'$' + {style.si_label('')}"
    cost = style.encode_number("cost", "cost of training ($)", labelExpr=dollars)
    return {
        "speedup": _make_empty_chart(*_draw_speedup(x)),
        "parts": _make_empty_chart(_draw_parts(bars_x)),
        "train_h": _make_empty_chart(*_draw_line(x, hours)),
        "cost": _make_empty_chart({"mark": "bar", "encoding": {"x": bars_x, "y": cost}}),
    }


def _encode_replicas() -> style.Spec:
    """Return the axis of the number of replicas, with powers of two."""
    integers: style.Spec = {"labelExpr": "format(datum.value, 'd')", "grid": False}
    scale = {"type": "log", "base": 2}
    return {**style.encode_number("replicas", "replicas", **integers), "scale": scale}


def _draw_speedup(x: style.Spec) -> list[style.Spec]:
    """Return the speed-up over the number of replicas, with the ideal: equal to that number."""
    speedup = {**style.encode_number("speedup", "speed-up"), "scale": {"type": "log", "base": 2}}
    speedup["axis"]["labelExpr"] = "format(datum.value, '~g') + '\u00d7'"  # `4x`
    ideal = {"x": x, "y": {**speedup, "field": "replicas"}}
    dashed: style.Spec = {"style": "quiet", "fill": None, "strokeDash": [4, 4]}
    return [style.layer("line", ideal, **dashed), *_draw_line(x, speedup)]


def _draw_parts(x: style.Spec) -> style.Spec:
    """Return stacked bars of the parts of a step."""
    part_rows = [{"part": part} for part in PARTS]
    color = style.encode_categories("part", part_rows, " ", orient="top", columns=2)["color"]
    seconds = style.encode_number("seconds", "step (s)", "s")
    return {
        # A row has a column for each part, which become rows of their own.
        "transform": [{"fold": PARTS, "as": ["part", "seconds"]}],
        "mark": "bar",
        "encoding": {"x": x, "y": seconds, "color": color, "order": {"field": "index"}},
    }


def _draw_line(x: style.Spec, y: style.Spec) -> list[style.Spec]:
    place = {"x": x, "y": y}
    return [{"mark": "line", "encoding": place}, {"mark": "point", "encoding": place}]


def _make_empty_chart(*layers: style.Spec) -> style.Spec:
    return {"data": {"values": []}, "height": 230, "layer": list(layers)}
