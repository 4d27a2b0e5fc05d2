"""Accelerators that papers measured layer by layer: their tables, read from data files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten, unknown

_DATA = Path(__file__).parents[1] / "data" / "accelerators"


@dataclass(frozen=True)
class MeasuredLayer:
    """A row of a paper's table, of a whole batch of `batch` examples.

    `macs` are the multiply-adds of one example, `batch_macs` those that the paper states for the
    batch. `latency_s` holds waiting for memory, `processing_s` does not. `zeros` is the share of
    zeros in the input. None is what the paper does not say.
    """

    name: str
    batch: int
    macs: int | None
    latency_s: float
    power_w: float
    processing_s: float | None = None
    batch_macs: float | None = None
    active_pes: int | None = None
    zeros: float | None = None
    buffer_bytes: float | None = None
    dram_bytes: float | None = None

    @property
    def energy_j(self) -> float:
        """Energy of the batch, power times latency."""
        return self.power_w * self.latency_s


@dataclass(frozen=True)
class MeasuredNetwork:
    """The table of one network; `total` is the paper's own last row, where there is one."""

    name: str
    layers: tuple[MeasuredLayer, ...]
    total: MeasuredLayer | None


@dataclass(frozen=True)
class Rival:
    """Another platform that the paper timed; `latencies_s` are of the accelerator's layers.

    Of one example, in a batch of `batch`; `weights` are `dense`, or `sparse` where pruned.
    """

    name: str
    weights: str
    batch: int
    power_w: float
    latencies_s: tuple[float, ...]


@dataclass(frozen=True)
class Figure:
    """One number that a paper states for a whole chip, in SI units; a batch of None is unknown."""

    workload: str
    batch: int | None
    quantity: str
    value: float


@dataclass(frozen=True)
class Design:
    """What is published of a chip: `networks` have tables by layer, `figures` stand alone.

    None is what the paper does not say, or what was not checked.
    """

    name: str
    process_nm: int
    clock_hz: float | None
    area_mm2: float | None
    power_w: float | None
    networks: tuple[str, ...]
    figures: tuple[Figure, ...]
    source: str
    note: str


@dataclass(frozen=True)
class Accelerator:
    """A chip with its tables.

    `kind` is the part of a network that it runs (`conv`, `fc`), `op_kinds` are the rows of the op
    table and `layer_types` Caffe's words for it. `voltage_v` is the supply's, None if unknown.
    `pruned` says that the weights of its measured layers are, so that its times suppose it.
    """

    name: str
    kind: str
    op_kinds: tuple[str, ...]
    layer_types: tuple[str, ...]
    process_nm: int
    voltage_v: float | None
    networks: tuple[MeasuredNetwork, ...]
    rivals: tuple[Rival, ...]
    source: str
    note: str
    pruned: bool = False

    @property
    def scalable(self) -> tuple[MeasuredLayer, ...]:
        """The layers of all networks whose multiply-adds are known."""
        return tuple(one for net in self.networks for one in net.layers if one.macs is not None)


def accelerator_names() -> list[str]:
    """Return the names of the accelerators that have tables by layer, sorted."""
    return [one.name for one in designs() if one.networks]


def designs() -> tuple[Design, ...]:
    """Return all published chips, with and without tables by layer, sorted by name."""
    return tuple(_design(_table(name)) for name in sorted(p.stem for p in _DATA.glob("*.toml")))


def accelerators(text: str) -> tuple[Accelerator, ...]:
    """Return the accelerators of a text such as `eyeriss+eie`, each for a part of the network.

    Raises `InputError` for an unknown name, and for two that run the same part.
    """
    known = accelerator_names()
    found: dict[str, Accelerator] = {}
    for name in (piece.strip().lower() for piece in text.split("+")):
        if name not in known:
            raise unknown("accelerator", name, known)
        one = _read(name)
        if one.kind in found:
            raise InputError(f"accelerator {shorten(text)}: two for the part '{one.kind}'")
        found[one.kind] = one
    return tuple(found.values())


@lru_cache
def _table(name: str) -> Mapping[str, Any]:
    return tomllib.loads((_DATA / f"{name}.toml").read_text(encoding="utf-8"))


_FIGURES = {  # column: quantity in SI units, and by what the column is multiplied
    "TOP_per_s": ("op_per_s", 1e12),
    "TOP_per_J": ("op_per_j", 1e12),
    "TOP_per_s_per_mm2": ("op_per_s_per_mm2", 1e12),
    "pJ_per_op": ("j_per_op", 1e-12),
    "examples_per_s": ("examples_per_s", 1.0),
    "examples_per_J": ("examples_per_j", 1.0),
    "latency_ms": ("latency_s", 1e-3),
}


def _design(table: Mapping[str, Any]) -> Design:
    return Design(
        name=table["name"],
        process_nm=table["process_nm"],
        clock_hz=_si(table, clock_MHz=1e6),
        area_mm2=table.get("area_mm2"),
        power_w=_si(table, power_W=1.0, power_mW=1e-3),
        networks=tuple(one["name"] for one in table.get("networks", ())),
        figures=tuple(
            Figure(row["workload"], row.get("batch"), _FIGURES[key][0], row[key] * _FIGURES[key][1])
            for row in table.get("published", ())
            for key in row
            if key not in ("workload", "batch")
        ),
        source=table["source"],
        note=table["note"],
    )


@lru_cache
def _read(name: str) -> Accelerator:
    table = _table(name)
    power = table.get("power_mW")
    return Accelerator(
        name=table["name"],
        kind=table["kind"],
        op_kinds=tuple(table["op_kinds"]),
        layer_types=tuple(table["layer_types"]),
        process_nm=table["process_nm"],
        voltage_v=table.get("voltage_V"),
        networks=tuple(_network(one, power) for one in table["networks"]),
        rivals=tuple(
            Rival(
                name=rival["name"],
                weights=row["weights"],
                batch=row["batch"],
                power_w=rival["power_W"],
                latencies_s=tuple(us * 1e-6 for us in row["latency_us"]),
            )
            for rival in map(_table, table.get("rivals", ()))
            for row in rival["times"]
        ),
        source=table["source"],
        note=table["note"],
        pruned=table.get("pruned_weights", False),
    )


def _network(table: Mapping[str, Any], power_mw: float | None) -> MeasuredNetwork:
    batch = table["batch"]
    total = table.get("total")
    return MeasuredNetwork(
        name=table["name"],
        layers=tuple(_layer(row, batch, power_mw) for row in table["layers"]),
        total=_layer({"name": "total", **total}, batch, power_mw) if total else None,
    )


def _layer(row: Mapping[str, Any], batch: int, power_mw: float | None) -> MeasuredLayer:
    """Return a row in SI units."""
    return MeasuredLayer(
        name=row["name"],
        batch=batch,
        macs=row.get("macs"),
        latency_s=_si(row, latency_ms=1e-3, latency_us=1e-6) or 0.0,
        power_w=row.get("power_mW", power_mw) * 1e-3,
        processing_s=_si(row, processing_ms=1e-3, processing_us=1e-6),
        batch_macs=_si(row, batch_GMAC=1e9),
        active_pes=row.get("active_PEs"),
        zeros=_si(row, zeros_percent=1e-2),
        buffer_bytes=_si(row, buffer_MB=1e6),
        dram_bytes=_si(row, DRAM_MB=1e6),
    )


def _si(row: Mapping[str, Any], **units: float) -> float | None:
    """Return the one of these columns that the row has, times its unit, or None."""
    return next((row[key] * unit for key, unit in units.items() if key in row), None)
