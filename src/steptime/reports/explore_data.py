"""What the page to explore is made from: numbers of `StepModel`, and no formula of kernels.

Times of a step are computed at listed batches (`explore_steps`); the page looks them up.
Exchanges are coefficients: how often a latency is waited for, and how often the gradient crosses a
link, by collective and number of replicas.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from math import inf, isclose
from typing import Any

from steptime.build import family_of, read_model
from steptime.core.table import picked
from steptime.core.toml_files import packaged
from steptime.hardware import catalog
from steptime.hardware.constants import value_of
from steptime.hardware.device import Device, Link
from steptime.hardware.prices import Offer, cheapest, offers
from steptime.prediction import cost_model
from steptime.prediction.calibrated.method import notes_of
from steptime.prediction.collectives import Collective, Fabric, fabric_of
from steptime.prediction.memory import needs_of
from steptime.prediction.step_model import StepModel
from steptime.questions.scaling import PAYS
from steptime.reports.explore_steps import BATCHES, ENDS_PER_E, Cells, NumberPool, networks

Table = dict[str, Any]
Links = Callable[[Fabric], Fabric]
Layout = tuple[bool, int, int, int]  # inside or not, per node, links per node, servers
Rates = tuple[float, float]  # a link: seconds of a message, seconds of a byte

OFFERED = packaged("explore.toml")
REPLICAS, DTYPES, TRAINED_BY = (OFFERED[name] for name in ("replicas", "dtypes", "optimizers"))
METHODS: Cells = {  # of Paleo's rules one type and one optimizer: they know no other
    "calibrated": [(dtype, optimizer) for dtype in DTYPES[:3] for optimizer in TRAINED_BY],
    "analytic": [(dtype, optimizer) for dtype in DTYPES for optimizer in TRAINED_BY],
    "paleo": [("float32", "sgd")],
}


def exported(
    models: Sequence[str],
    devices: Mapping[str, Device],
    links: Sequence[Link],
    aliases: Mapping[str, str],
) -> Table:
    """Return everything that the page shows of these networks on these devices, as JSON values.

    But `times`, which are bytes: the four planes of `numbers` 32-bit numbers, the least bytes
    first, then the bytes of bounds.

    `models` are model texts, `devices` stand under what the command line calls them. What a method
    cannot predict is in `left_out`, with the reason. Raises `InputError` for a text that is no
    network, and for a network that no method can predict.
    """
    shown = sorted(devices.items(), key=lambda one: one[1].name.lower(), reverse=True)
    age = {
        name: at for at, name in enumerate(OFFERED["newest"])
    }  # of an architecture; unknown ones come last

    def place(one: Device) -> tuple[int, int]:
        known = age.get(str(one.details.get("architecture")), len(age))
        return OFFERED["groups"].index(group_of(one)), known

    shown.sort(key=lambda item: place(item[1]))
    for text in models:  # a text that is no network ends it before the first is computed
        family_of(read_model(text, trusted=True))
    pool = NumberPool()
    found = networks(models, [device for _, device in shown], METHODS, pool)
    left_out = [
        {"model": one["name"], "method": method, "reason": reason}
        for one in found
        for method, reason in one["left_out"].items()
    ]
    names = {device.name for device in devices.values()}
    priced = cheapest(one for one in offers() if one.currency == "USD")
    return {
        "batches": BATCHES,
        "replicas": REPLICAS,
        "pays": PAYS,
        **{name: OFFERED[name] for name in ("dtypes", "optimizers", "layout", "software")},
        "methods": {name: _method(name, shown[0][1]) for name in METHODS},
        "models": found,
        "left_out": left_out,
        "devices": [_device(text, device, priced.get(device.name)) for text, device in shown],
        "aliases": {alias: name for alias, name in aliases.items() if name in names},
        "links": [_link(link) for link in links],
        "numbers": pool.count,
        "ends_per_e": ENDS_PER_E,
        "times": pool.planes(),
    }


def _method(name: str, device: Device) -> Table:
    """Return a method's rules for replicas, and its exchanges in every layout."""
    method = cost_model(name)
    return {
        **picked(method, "version collective"),
        "as_paleo": not method.latency,
        "hosted": bool(method.reads),
        "cells": [f"{dtype} {optimizer}" for dtype, optimizer in METHODS[name]],
        "start_s": value_of("training.exchange_s", StepModel("fc", device, None, method).said),
        "exchanges": {
            name: _exchanges(one, method.links) for name, one in method.collectives.items()
        },
    }


def _exchanges(collective: Collective, links: Links) -> Table:
    """Return a collective's coefficients: `tables` of rows of replicas, and `of` each layout.

    Layouts stand in the order of `inside` (none, some), `per_node`, `links_per_node`, `servers`.
    """
    tables: list[list[Sequence[float]]] = []

    @cache
    def table_of(*layout: Any) -> int:
        rows = [coefficients(collective, n, layout, links) for n in REPLICAS]
        if rows not in tables:
            tables.append(rows)
        return tables.index(rows)

    # most know no servers: then one number of them stands for all
    alike = table_of(True, 8, 4, 1) == table_of(True, 8, 4, 8)
    layouts = product((False, True), *OFFERED["layout"].values())
    of = [table_of(*sizes, 1 if alike else servers) for *sizes, servers in layouts]
    return {"tables": tables, "of": of}


def coefficients(
    collective: Collective, replicas: int, layout: Layout, links: Links
) -> Sequence[float]:
    """Return how an exchange grows: latencies between and inside, bytes added up, bytes moved.

    Those are a0 b0 a1 b1 ...: the time of moving is the longest of `a` times that of the gradient
    over a link between nodes and `b` times that over one inside. Raises `ValueError` for a
    collective of another form, which the page could not show.
    """

    def seconds(between: Rates, inside: Rates, size: float = 1.0, memory: float = inf) -> float:
        return collective(size, replicas, _fabric(layout, links, between, inside, memory))

    free, slow, late = (0.0, 0.0), (0.0, 1.0), (1.0, 0.0)
    waits = seconds(late, free, 0.0), seconds(free, late, 0.0)
    added = seconds(free, free, memory=1.0)
    far, near = seconds(slow, free), seconds(free, slow)
    both = seconds(slow, slow)
    forms = [(far, near)] if isclose(both, far + near) else [(far, 0.0), (0.0, near)]
    moved = max(0.25 * a + 3.0 * b for a, b in forms)
    if not isclose(moved, seconds((0.0, 0.25), (0.0, 3.0)), abs_tol=1e-12):
        raise ValueError(f"{collective}: neither a sum nor the slowest of its links")
    return [_short(value) for value in (*waits, added, *(v for form in forms for v in form))]


@cache
def _fabric(layout: Layout, links: Links, between: Rates, inside: Rates, memory: float) -> Fabric:
    """Return what joins the devices of a layout, seen by a method."""
    has_inside, *sizes = layout
    far, near = (
        Link("", latency_s, 1 / slowness if slowness else inf, "")
        for latency_s, slowness in (between, inside)
    )
    return links(fabric_of(Fabric(far, near if has_inside else None, *sizes), 1.0, memory))


def group_of(device: Device) -> str:
    """Return under which heading a device stands in the page."""
    private = re.match(r"(rtx|gtx|titan|quadro|geforce)-", device.name)
    nvidia = "NVIDIA GeForce and workstation" if private else "NVIDIA data centre"
    if device.only_by_name or device.kind == "cpu":
        return "Paleo's own figures" if device.only_by_name else "CPU"
    of_makers = {"NVIDIA": nvidia, "AMD": "AMD", "Google": "Google TPU"}
    return of_makers.get(str(device.details.get("maker")), "Others")


def _device(text: str, device: Device, offer: Offer | None) -> Table:
    issue = f"{device.name}: the host's time to issue an op is not known and left out"
    cycle = f"{device.name}: no clock is known, so no kernel takes at least a cycle"
    return {
        "name": device.name,
        "text": text,
        "group": group_of(device),
        "memory_bytes": device.usable_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "held_bytes": needs_of(0, 0, device, catalog.stack(), "train").total_bytes,
        "hosted": bool(device.launch_s),
        "offer": None if offer is None else [offer.price, f"{offer.name}, {offer.date}"],
        "peaks": {name: value / 1e12 for name, value in device.peak_flop_per_s.items()},
        "notes": {  # what must be known of it under each method
            "calibrated": notes_of(device),
            "analytic": [] if device.launch_s else [issue],
            "paleo": [] if device.clock_hz else [cycle],
        },
        "source": ". ".join(filter(None, (device.source, device.note))),
        "unverified": list(device.unverified),
    }


def _link(link: Link) -> Table:
    return {
        **picked(link, "name latency_s measured"),
        "bytes_per_s": _short(link.bytes_per_s),
        "reached_bytes_per_s": _short(link.reached.bytes_per_s),
        "adds": not link.reached.measured,
        "source": ". ".join(filter(None, (link.source, link.note))),
        "unverified": list(link.unverified),
    }


def _short(value: float) -> float:
    """Return a whole number as an int, which is shorter in JSON and the same number."""
    return int(value) if value == int(value) else value
