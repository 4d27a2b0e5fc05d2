"""The energy of a network from its operations and bytes: an estimate for any op and chip.

A first-order sum with figures of Horowitz (ISSCC 2014). Each op, by itself, costs

    arithmetic   FLOP / 2 * (energy of an add + energy of a multiply)
    registers    FLOP / 2 * 3 elements: two operands and a sum
    buffer       its tensors once; an op of multiply-adds at least FLOP / 2 * 3 elements / reuse
    DRAM         its tensors once; where they do not fit the buffer, an op of multiply-adds at least
                 FLOP / 2 * 2 elements / sqrt(elements that fit the buffer)

"Once" is every input read once and every output written once, as `count` has it: nothing stays on
the chip from op to op. The last line is what a product of matrices moves at least by any tiling
(Hong and Kung, STOC 1981, with the constant of Smith and others, 2019). Leakage, control and clock
are left out.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod, sqrt
from typing import NamedTuple

from steptime.core.dtypes import PRECISIONS, SIZE_BYTES
from steptime.core.errors import InputError, check_choice, unknown
from steptime.core.graph import Graph, Op, Part, TensorSpec
from steptime.core.toml_files import DATA, read_packaged_toml
from steptime.energy.process import Process, scale_factors
from steptime.network.ops import cost_of, products_of

_FLOATS = {precision.compute for precision in PRECISIONS.values()}
_ELEMENTS_A_MULTIPLY_ADD = 3  # two operands and a sum
ESTIMATED_DTYPE = "float16"  # as the chips compute
ESTIMATED_HIERARCHY = "row-stationary-12x14"


@dataclass(frozen=True)
class Figures:
    """Energy of operations and of bytes in one process, in joules.

    `operation_j` maps a dtype to the energy of an add and of a multiply, `sram_j_per_byte` the size
    of a memory in kB to that of an access; `dram_j_per_byte` is the lowest and the highest.
    `unverified` lists keys of the file.
    """

    name: str
    process: Process
    operation_j: dict[str, tuple[float, float]]
    register_j_per_byte: float
    sram_j_per_byte: dict[int, float]
    dram_j_per_byte: tuple[float, float]
    source: str
    note: str = ""
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hierarchy:
    """Registers, a buffer and DRAM. An element from the buffer serves `reuse` multiply-adds.

    `buffer_kb` is the size of the buffer in 1024 bytes, one that the figures know.
    """

    name: str
    figures: Figures
    reuse: float
    buffer_kb: int
    source: str
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `InputError` for a reuse below 1 and a buffer without a figure."""
        if not self.reuse >= 1:  # refuses what is no number (NaN), too
            raise InputError(f"hierarchy '{self.name}': 'reuse' must be 1 or more")
        if self.buffer_kb not in self.figures.sram_j_per_byte:
            sizes = ", ".join(map(str, self.figures.sram_j_per_byte))
            raise InputError(
                f"hierarchy '{self.name}': {self.figures.name} has no buffer of "
                f"{self.buffer_kb} kB; known: {sizes}"
            )


class OpEnergy(NamedTuple):
    """The energy of one op, or of several, in joules.

    `of` is the forward op to which it belongs; `dram_j` is the middle of `dram_low_j` and
    `dram_high_j`.
    """

    name: str
    kind: str
    part: Part | None
    of: str
    arithmetic_j: float
    register_j: float
    buffer_j: float
    dram_j: float
    dram_low_j: float
    dram_high_j: float

    @property
    def total_j(self) -> float:
        """Sum of arithmetic, registers, buffer and DRAM."""
        return self._on_chip_j + self.dram_j

    @property
    def low_j(self) -> float:
        """The total with DRAM at its lowest energy."""
        return self._on_chip_j + self.dram_low_j

    @property
    def high_j(self) -> float:
        """The total with DRAM at its highest energy."""
        return self._on_chip_j + self.dram_high_j

    @property
    def _on_chip_j(self) -> float:
        return self.arithmetic_j + self.register_j + self.buffer_j


def hierarchy_names() -> list[str]:
    """Return the names of the shipped hierarchies, sorted."""
    return sorted(path.stem for path in (DATA / "hierarchies").glob("*.toml"))


def hierarchy(name: str) -> Hierarchy:
    """Return a shipped hierarchy; raises `InputError` for an unknown name."""
    if name.lower() not in hierarchy_names():
        raise unknown("memory hierarchy", name, hierarchy_names())
    table = read_packaged_toml(f"hierarchies/{name.lower()}.toml")
    return Hierarchy(
        name=table["name"],
        figures=figures(table["figures"]),
        reuse=table["reuse"],
        buffer_kb=table["buffer_kB"],
        source=table["source"],
        unverified=tuple(table.get("unverified", ())),
    )


@lru_cache
def figures(name: str) -> Figures:
    """Return figures of `data/energy`; raises `InputError` for an unknown name."""
    names = sorted(path.stem for path in (DATA / "energy").glob("*.toml"))
    check_choice("energy figures", name, names)
    table = read_packaged_toml(f"energy/{name}.toml")
    dram_low_pj, dram_high_pj = table["dram_pJ_per_64_bit"]  # of 8 bytes
    return Figures(
        name=table["name"],
        process=Process(table["process_nm"], voltage_v=table["voltage_V"]),
        operation_j={
            dtype: (row["add"] * 1e-12, row["multiply"] * 1e-12)
            for dtype, row in table["operations_pJ"].items()
        },
        register_j_per_byte=table["register_pJ_per_byte"] * 1e-12,
        sram_j_per_byte={int(kb): pj / 8 * 1e-12 for kb, pj in table["sram_pJ_per_64_bit"].items()},
        dram_j_per_byte=(dram_low_pj / 8 * 1e-12, dram_high_pj / 8 * 1e-12),
        source=table["source"],
        note=table["note"],
        unverified=tuple(table["unverified"]),
    )


def op_energy(
    graph: Graph,
    dtype: str,
    hierarchy: Hierarchy,
    process: Process | None = None,
    scaling: str = "dennard",
) -> list[OpEnergy]:
    """Estimate the energy of every op of a graph, in the graph's order, in joules.

    All floating-point tensors are taken to be of `dtype` (which may be `int8` or `int32`); indices
    keep their type. With a `process`, the energy on the chip is scaled to it from the process of
    the figures; the energy of DRAM is not.

    Raises:
        InputError: if the figures do not have the dtype, or the scaling does not reach.
    """
    energy_figures = hierarchy.figures
    check_choice("dtype", dtype, energy_figures.operation_j, energy_figures.name)
    # Without a process the chip stays in that of the figures: a factor of 1.
    scale = scale_factors(scaling, energy_figures.process, process or energy_figures.process).energy
    return [_price_op(graph, op, dtype, hierarchy, scale) for op in graph.ops]


def sum_energy(rows: Iterable[OpEnergy], name: str = "total") -> OpEnergy:
    """Return the sum of estimates; its ends are the sums of all low and of all high ends."""
    op_rows = list(rows)
    return OpEnergy(
        name=name,
        kind="",
        part=None,
        of="",
        arithmetic_j=float(sum(row.arithmetic_j for row in op_rows)),
        register_j=float(sum(row.register_j for row in op_rows)),
        buffer_j=float(sum(row.buffer_j for row in op_rows)),
        dram_j=float(sum(row.dram_j for row in op_rows)),
        dram_low_j=float(sum(row.dram_low_j for row in op_rows)),
        dram_high_j=float(sum(row.dram_high_j for row in op_rows)),
    )


def estimate_ops(
    graph: Graph, names: Container[str], process: Process, scaling: str
) -> list[OpEnergy]:
    """Estimate the energy of the ops of these names, which no chip covers.

    They are priced with 16-bit arithmetic and a row-stationary array, as the chips have.

    Args:
        graph: the network.
        names: names of the ops.
        process: the process to scale to.
        scaling: a key of `SCALINGS`.
    """
    rows = op_energy(graph, ESTIMATED_DTYPE, hierarchy(ESTIMATED_HIERARCHY), process, scaling)
    return [row for row in rows if row.name in names]


class _Traffic(NamedTuple):
    """The bytes that an op moves at each level of memory."""

    register_bytes: float
    buffer_bytes: float
    dram_bytes: float


def _price_op(graph: Graph, op: Op, dtype: str, hierarchy: Hierarchy, scale: float) -> OpEnergy:
    """Return the energy of an op.

    DRAM is a chip of its own: the process of this one (`scale`) does not change it.
    """
    inputs = tuple(_set_float_dtype(graph.tensors[name], dtype) for name in op.inputs)
    outputs = tuple(_set_float_dtype(graph.tensors[name], dtype) for name in op.outputs)
    flop, tensor_bytes = cost_of(op.kind, inputs, op.settings, outputs)
    products = products_of(op.kind, inputs, op.settings)  # matrix products as (count, m, n, k)
    # An op without any, such as an addition, counts two FLOP as one multiply-add.
    multiply_adds = sum(map(prod, products)) if products else flop / 2
    element_bytes = SIZE_BYTES[dtype]
    traffic = _Traffic(
        register_bytes=multiply_adds * _ELEMENTS_A_MULTIPLY_ADD * element_bytes,
        buffer_bytes=float(tensor_bytes),  # at least, each tensor moves once
        dram_bytes=float(tensor_bytes),
    )
    if products:
        traffic = _add_rereads(traffic, multiply_adds, element_bytes, hierarchy)
    figures = hierarchy.figures
    low_j_per_byte, high_j_per_byte = figures.dram_j_per_byte
    return OpEnergy(
        name=op.name,
        kind=op.kind,
        part=op.part,
        of=op.forward_op or op.name,
        arithmetic_j=multiply_adds * sum(figures.operation_j[dtype]) * scale,
        register_j=traffic.register_bytes * figures.register_j_per_byte * scale,
        buffer_j=traffic.buffer_bytes * figures.sram_j_per_byte[hierarchy.buffer_kb] * scale,
        dram_j=traffic.dram_bytes * (low_j_per_byte + high_j_per_byte) / 2,
        dram_low_j=traffic.dram_bytes * low_j_per_byte,
        dram_high_j=traffic.dram_bytes * high_j_per_byte,
    )


def _add_rereads(
    traffic: _Traffic, multiply_adds: float, element_bytes: float, hierarchy: Hierarchy
) -> _Traffic:
    """Return the traffic of matrix products, which read elements again.

    They do so from the buffer after `reuse` multiply-adds, and from DRAM if the tensors do not fit
    the buffer.
    """
    buffer_bytes = max(traffic.buffer_bytes, traffic.register_bytes / hierarchy.reuse)
    dram_bytes = traffic.dram_bytes
    capacity_bytes = hierarchy.buffer_kb * 1024
    fits_buffer = dram_bytes <= capacity_bytes
    if not fits_buffer:
        # The least that any tiling of a product moves: 2 m n k / sqrt(elements of the buffer)
        # (Hong and Kung 1981, with the constant of Smith and others 2019).
        tiled_bytes = multiply_adds * 2 * element_bytes / sqrt(capacity_bytes / element_bytes)
        dram_bytes = max(dram_bytes, tiled_bytes)
    return traffic._replace(buffer_bytes=buffer_bytes, dram_bytes=dram_bytes)


def _set_float_dtype(spec: TensorSpec, dtype: str) -> TensorSpec:
    return TensorSpec(spec.shape, dtype) if spec.dtype in _FLOATS else spec
