"""Accelerators that papers measured layer by layer: their tables, read from data files."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.toml_files import DATA, read_packaged_toml

_FOLDER = DATA / "accelerators"


@dataclass(frozen=True)
class MeasuredLayer:
    """A row of a paper's table, which is of a batch of `batch` examples.

    `macs` are the multiply-adds of one example, `batch_macs` those that the paper states for the
    batch. `latency_s` includes waiting for memory, `processing_s` does not. `zeros` is the share of
    zeros in the input. A value that the paper does not state is None.
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
    """The published figures of a chip: `networks` have tables by layer, `figures` stand alone.

    A value is None if the paper does not state it or it was not checked.
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
    table and `layer_types` Caffe's words for it. `voltage_v` is the supply voltage, None if
    unknown. `pruned` is true if the measured layers have pruned weights.
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
    def rows_with_macs(self) -> tuple[MeasuredLayer, ...]:
        """The layers of all networks whose multiply-adds are known."""
        return tuple(row for net in self.networks for row in net.layers if row.macs is not None)


def accelerator_names() -> list[str]:
    """Return the names of the accelerators that have tables by layer, sorted."""
    return [design.name for design in designs() if design.networks]


def designs() -> tuple[Design, ...]:
    """Return all published chips, with and without tables by layer, sorted by name."""
    return tuple(
        _read_design(_read_table(name))
        for name in sorted(path.stem for path in _FOLDER.glob("*.toml"))
    )


def accelerators(text: str) -> tuple[Accelerator, ...]:
    """Return the accelerators of a text such as `eyeriss+eie`, each for a part of the network.

    Raises `InputError` for an unknown name, and for two that run the same part.
    """
    names = accelerator_names()
    accelerator_by_kind: dict[str, Accelerator] = {}
    for word in text.split("+"):
        name = word.strip().lower()
        check_choice("accelerator", name, names)
        accelerator = _read_accelerator(name)
        if accelerator.kind in accelerator_by_kind:
            raise InputError(f"accelerator {shorten(text)}: two for the part '{accelerator.kind}'")
        accelerator_by_kind[accelerator.kind] = accelerator
    return tuple(accelerator_by_kind.values())


def _read_table(name: str) -> Mapping[str, Any]:
    return read_packaged_toml(f"{_FOLDER.name}/{name}.toml")


_SI_UNITS = {  # column of a file: field, and the factor on the column
    "latency_ms": ("latency_s", 1e-3),
    "latency_us": ("latency_s", 1e-6),
    "processing_ms": ("processing_s", 1e-3),
    "processing_us": ("processing_s", 1e-6),
    "power_W": ("power_w", 1.0),
    "power_mW": ("power_w", 1e-3),
    "voltage_V": ("voltage_v", 1.0),
    "clock_MHz": ("clock_hz", 1e6),
    "batch_GMAC": ("batch_macs", 1e9),
    "active_PEs": ("active_pes", 1),
    "zeros_percent": ("zeros", 1e-2),
    "buffer_MB": ("buffer_bytes", 1e6),
    "DRAM_MB": ("dram_bytes", 1e6),
    "TOP_per_s": ("op_per_s", 1e12),
    "TOP_per_J": ("op_per_j", 1e12),
    "TOP_per_s_per_mm2": ("op_per_s_per_mm2", 1e12),
    "pJ_per_op": ("j_per_op", 1e-12),
    "examples_per_s": ("examples_per_s", 1.0),
    "examples_per_J": ("examples_per_j", 1.0),
}


def _convert_to_si(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a table whose columns with units are converted to SI; other columns are kept."""
    converted = {}
    for key, value in table.items():
        field, factor = _SI_UNITS.get(key, (key, None))  # a column without a unit is kept
        converted[field] = value if factor is None else value * factor
    return converted


_DESIGN_KEYS = ("name", "process_nm", "clock_hz", "area_mm2", "power_w", "source", "note")


def _read_design(table: Mapping[str, Any]) -> Design:
    optional_values = {"clock_hz": None, "area_mm2": None, "power_w": None}
    si_values = {**optional_values, **_convert_to_si(table)}
    return Design(
        networks=tuple(network["name"] for network in table.get("networks", ())),
        figures=tuple(
            Figure(row["workload"], row.get("batch"), quantity, value)
            for row in table.get("published", ())
            for quantity, value in _convert_figures(row).items()
        ),
        **{key: si_values[key] for key in _DESIGN_KEYS},
    )


def _convert_figures(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of a row that have a unit, in SI units, without its other columns."""
    return _convert_to_si({key: value for key, value in row.items() if key in _SI_UNITS})


@lru_cache
def _read_accelerator(name: str) -> Accelerator:
    table = _read_table(name)
    return Accelerator(
        op_kinds=tuple(table["op_kinds"]),
        layer_types=tuple(table["layer_types"]),
        voltage_v=table.get("voltage_V"),
        networks=tuple(
            _read_network(network, table.get("power_mW")) for network in table["networks"]
        ),
        rivals=tuple(  # other platforms that the paper timed, by batch and kind of weights
            Rival(
                name=rival["name"],
                weights=row["weights"],
                batch=row["batch"],
                power_w=rival["power_W"],
                latencies_s=tuple(us * 1e-6 for us in row["latency_us"]),
            )
            for rival in map(_read_table, table.get("rivals", ()))
            for row in rival["times"]
        ),
        pruned=table.get("pruned_weights", False),
        **{key: table[key] for key in ("name", "kind", "process_nm", "source", "note")},
    )


def _read_network(table: Mapping[str, Any], power_mw: float | None) -> MeasuredNetwork:
    """Return the table of a network; rows that state no power get the power of the chip."""
    # The network's values hold for each of its layers, unless the row of a layer overrides them.
    common_columns = {"batch": table["batch"], "power_mW": power_mw, "macs": None}
    total = table.get("total")
    return MeasuredNetwork(
        name=table["name"],
        layers=tuple(
            MeasuredLayer(**_convert_to_si({**common_columns, **row})) for row in table["layers"]
        ),
        total=MeasuredLayer(**_convert_to_si({**common_columns, "name": "total", **total}))
        if total
        else None,
    )
