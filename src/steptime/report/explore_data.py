"""What the page to explore is made from: numbers of `StepModel`, and no formula of kernels.

Times of a step are computed here, network by network, at listed batches; the page looks them up.
Exchanges are coefficients: how often a latency is waited for, and how often the gradient crosses a
link, by collective and number of replicas.
"""

from __future__ import annotations

import gc
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf, isclose
from typing import Any

from steptime.build import make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.hardware import Device, Link
from steptime.core.progress import tell
from steptime.predict import cost_model
from steptime.predict.collectives import Collective, Fabric, fabric_of
from steptime.predict.grid import Steps
from steptime.predict.parallel.scaling import PAYS
from steptime.predict.step_model import StepModel

Table = dict[str, Any]
Cells = Mapping[str, Sequence[tuple[str, str]]]  # types and optimizers by method
Links = Callable[[Fabric], Fabric]
Layout = tuple[bool, int, int, int]  # inside or not, per node, links per node, servers
Rates = tuple[float, float]  # a link: seconds of a message, seconds of a byte

BATCHES = tuple(2**i for i in range(17))
REPLICAS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PER_NODE, LINKS_PER_NODE, SERVERS = (8, 2, 4, 16), (1, 2, 4, 8), (1, 2, 4, 8)
DTYPES = ("bfloat16-mixed", "float16-mixed", "float32", "bfloat16", "float16")
TRAINED_BY = ("adam", "sgd")
METHODS: Cells = {  # of Paleo's rules one type and one optimizer: they know no other
    "calibrated": [(dtype, optimizer) for dtype in DTYPES[:3] for optimizer in TRAINED_BY],
    "analytic": [(dtype, optimizer) for dtype in DTYPES for optimizer in TRAINED_BY],
    "paleo": [("float32", "sgd")],
}
SOFTWARE = {  # shares of the peaks of computing and communicating: Paleo's authors, 2017
    "none": (1.0, 1.0),
    "caffe": (0.21, 0.56),
    "mxnet": (0.49, 0.72),
    "tensorflow": (0.62, 0.72),
}
TWINS = {"float16-mixed": "bfloat16-mixed", "float16": "bfloat16"}  # alike but for the peaks
NEWEST = (
    *("Blackwell Ultra", "Blackwell 2.0", "Blackwell", "Hopper", "Ada Lovelace", "Ampere"),
    *("Turing", "Volta", "Pascal", "Maxwell 2.0", "Kepler 2.0", "Kepler"),
    *("CDNA 4.0", "CDNA 3.0", "CDNA 2.0", "CDNA 1.0", "GCN 5.1"),
)
GROUPS = (
    *("NVIDIA data centre", "NVIDIA GeForce and workstation", "AMD", "Google TPU", "Others"),
    *("CPU", "Paleo's own figures"),
)


def exported(
    models: Sequence[str],
    devices: Mapping[str, Device],
    links: Sequence[Link],
    aliases: Mapping[str, str],
) -> Table:
    """Return everything that the page shows of these networks on these devices, as JSON values.

    But `times`, which are bytes: the four planes of 32-bit numbers, the least bytes first.

    `models` are model texts, `devices` stand under what the command line calls them. What a method
    cannot predict is in `left_out`, with the reason. Raises `InputError` for a text that is no
    network, and for a network that no method can predict.
    """
    shown = sorted(devices.items(), key=lambda one: one[1].name.lower(), reverse=True)
    shown.sort(key=lambda one: (GROUPS.index(group_of(one[1])), _age(one[1])))
    for text in models:  # a text that is no network ends it before the first is computed
        read_model(text)
    pool = _Pool()
    found: list[Table] = []
    with _rarely_collected():
        for text in models:
            found.append(pool.kept(network(text, [device for _, device in shown], METHODS)))
            tell(text, len(found), len(models))
    left_out = [
        {"model": one["name"], "method": method, "reason": reason}
        for one in found
        for method, reason in one["left_out"].items()
    ]
    names = {device.name for device in devices.values()}
    return {
        "batches": BATCHES,
        "replicas": REPLICAS,
        "pays": PAYS,
        "dtypes": DTYPES,
        "optimizers": TRAINED_BY,
        "layout": {"per_node": PER_NODE, "links_per_node": LINKS_PER_NODE, "servers": SERVERS},
        "software": SOFTWARE,
        "methods": {name: _method(name) for name in METHODS},
        "models": found,
        "left_out": left_out,
        "devices": [_device(text, device) for text, device in shown],
        "aliases": {alias: name for alias, name in aliases.items() if name in names},
        "links": [_link(link) for link in links],
        "times": pool.planes(),
    }


@contextmanager
def _rarely_collected() -> Iterator[None]:
    """Look for cycles rarely: graphs are many objects, and looking takes a third of the time."""
    usual = gc.get_threshold()
    gc.set_threshold(1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Pool:
    """Times of many cells, those that are alike once: 32-bit numbers."""

    def __init__(self) -> None:
        self.numbers = array("f")
        self._known: dict[bytes, int] = {}

    def kept(self, table: Table) -> Table:
        """Return a network's table with places in the pool for its times."""
        for cells in table["steps"].values():
            for cell in cells.values():
                for name in ("at", "update"):
                    cell[name] = [self._place(one) for one in cell[name]]
        return table

    def _place(self, times: bytes | None) -> int:
        if times is None:
            return -1
        if times not in self._known:
            self._known[times] = len(self.numbers)
            self.numbers.frombytes(times)
        return self._known[times]

    def planes(self) -> bytes:
        """Return the lowest byte of every number, then the next of every one, ...: it packs well.

        Of the 23 bits of a fraction 16 are kept, 8e-6 of the number: the page shows four digits.
        """
        import numpy as np

        bits = np.array(self.numbers, dtype="<f4").view("<u4")
        kept = (bits + np.uint32(1 << 6)) & np.uint32(0xFFFFFF80)
        return kept.view(np.uint8).reshape(-1, 4).T.tobytes()


def network(text: str, devices: Sequence[Device], methods: Cells) -> Table:
    """Return a network's memory, gradients, and its times on each device as bytes.

    Times `at` are seconds of forward, then of backward at each listed batch; those of `update` are
    one number, or one a batch on a device whose host has a time to issue an op. None for a device
    without a peak for the type.
    """
    choice = read_model(text)
    if choice.batch is not None:
        raise InputError(f"model '{text}': the batch is chosen in the page, leave it out")
    steps: Table = {}
    memory: Table = {}
    notes: Table = {}
    why: dict[str, str] = {}
    clocked = replace(devices[0], clock_hz=1.0)
    for method, cells in methods.items():
        known: dict[tuple[str, str], tuple[StepModel, Steps]] = {}
        for dtype, optimizer in cells:
            lowered = TWINS.get(dtype, dtype), optimizer
            if lowered not in known:
                workload = make_workload(choice, BATCHES[0], lowered[0], "train", optimizer)
                model = StepModel(workload, clocked, None, method)
                try:
                    same = next((s for (d, _), (_, s) in known.items() if d == lowered[0]), None)
                    known[lowered] = model, Steps(model, BATCHES, same)
                except InputError as error:
                    why[method] = str(error)
                    break
            model, found = known[lowered]
            if method not in notes:
                notes[method] = list(model.remarks())
            memory.setdefault(f"{dtype} {optimizer}", found.peak_memory_bytes)
            as_twin = _as_twin if dtype in TWINS else _as_it_is
            steps.setdefault(method, {})[f"{dtype} {optimizer}"] = {
                "parameters": model.parameters,
                "gradient_bytes": model.gradient_bytes,
                **_times(found, [model.on(as_twin(device)) for device in devices]),
            }
    if not steps:
        raise InputError(f"model '{text}': {next(iter(why.values()))}")
    return {"name": text, "steps": steps, "memory": memory, "notes": notes, "left_out": why}


def _as_it_is(device: Device) -> Device:
    return device


def _as_twin(device: Device) -> Device:
    """Return the device with its peak of float16 as that of bfloat16, the twin's type."""
    peaks = dict(device.peak_flop_per_s)
    peaks.pop("bfloat16", None)
    if "float16" in peaks:
        peaks["bfloat16"] = peaks["float16"]
    return replace(device, peak_flop_per_s=peaks)


def _times(found: Steps, models: Sequence[StepModel]) -> dict[str, list[bytes | None]]:
    """Return the times on each device, None where no peak is known for the type."""
    able = [place for place, on in enumerate(models) if _has_peak(on)]
    able.sort(key=lambda place: _known(models[place].device))  # those alike are computed together
    made: dict[str, list[bytes | None]] = {name: [None] * len(models) for name in ("at", "update")}
    every = found.times_on([models[place] for place in able])
    for place, (forward, backward, update) in zip(able, every, strict=True):
        kept = update if models[place].device.launch_s else update[:1]
        made["at"][place] = array("f", [*forward, *backward]).tobytes()
        made["update"][place] = array("f", kept).tobytes()
    return made


def _known(device: Device) -> tuple[bool, ...]:
    return device.launch_s is None, device.clock_hz is None, device.is_own_host


def _has_peak(on: StepModel) -> bool:
    try:
        return bool(on.seen)
    except InputError:  # the page says so when it is asked for
        return False


def _method(name: str) -> Table:
    """Return a method's rules for replicas, and its exchanges in every layout."""
    method = cost_model(name)
    return {
        "version": method.version,
        "collective": method.collective,
        "as_paleo": method.as_published,
        "cells": [f"{dtype} {optimizer}" for dtype, optimizer in METHODS[name]],
        "update_at_peak": method.settings.update_efficiency == 1.0,
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
    layouts = product((False, True), PER_NODE, LINKS_PER_NODE, SERVERS)
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
    maker = device.details.get("maker")
    if device.only_by_name:
        return "Paleo's own figures"
    if device.kind == "cpu":
        return "CPU"
    if maker == "NVIDIA":
        private = re.match(r"(rtx|gtx|titan|quadro|geforce)-", device.name)
        return "NVIDIA GeForce and workstation" if private else "NVIDIA data centre"
    return {"AMD": "AMD", "Google": "Google TPU"}.get(str(maker), "Others")


def _age(device: Device) -> int:
    """Return the place of a device's architecture, the newest first; unknown ones come last."""
    name = device.details.get("architecture")
    return NEWEST.index(name) if name in NEWEST else len(NEWEST)


def _device(text: str, device: Device) -> Table:
    return {
        "name": device.name,
        "text": text,
        "group": group_of(device),
        "memory_bytes": device.memory_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "hosted": bool(device.launch_s),
        "peaks": {name: value / 1e12 for name, value in device.peak_flop_per_s.items()},
        "notes": _device_notes(device),
        "source": ". ".join(filter(None, (device.source, device.note))),
        "unverified": list(device.unverified),
    }


def _device_notes(device: Device) -> dict[str, list[str]]:
    """Return what must be known of a device under each method."""
    issue = f"{device.name}: the host's time to issue an op is not known and left out"
    cycle = f"{device.name}: no clock is known, so no kernel takes at least a cycle"
    return {
        "analytic": [] if device.launch_s else [issue],
        "paleo": [] if device.clock_hz else [cycle],
    }


def _link(link: Link) -> Table:
    return {
        "name": link.name,
        "latency_s": link.latency_s,
        "bytes_per_s": _short(link.bytes_per_s),
        "adds": not link.measured,
        "source": ". ".join(filter(None, (link.source, link.note))),
        "unverified": list(link.unverified),
    }


def _short(value: float) -> float:
    """Return a whole number as an int, which is shorter in JSON and the same number."""
    return int(value) if value == int(value) else value
