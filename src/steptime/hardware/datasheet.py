"""The figures that the maker of a device states, in SI units."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from steptime.core.toml_files import read_packaged_toml
from steptime.hardware.architectures import architectures

GB = 1e9
GIB = 2.0**30
TFLOP = 1e12


@dataclass(frozen=True)
class Datasheet:
    """The figures of a device that its maker or a paper states. None means unknown, never zero.

    Attributes:
        peak_flop_per_s: dense peaks of matrix products by dtype (also `tf32`), at the rate that
            frameworks reach: with sums in float32.
        memory_bytes_per_s: the bandwidth of its memory.
        source: where the figures stand.
        memory_bytes: the size of its memory.
        launch_s: the time that the host needs to issue one op.
        clock_hz: the boosted clock of its cores.
        idle_w: the power of a device that does nothing.
        peak_w: the limit of its power.
        products: the names under which a driver reports it.
        unverified: the keys of figures that should be checked before they are relied on.
        note: a remark of the file.
        multiprocessors: their number; of AMD, that of compute units.
        arrays: the number of its systolic arrays.
        array_side: the rows and columns of one systolic array.
        cores: the number of cores of a CPU.
        l3_bytes: the third cache of all cores.
        l3_of_core_bytes: the part of the third cache that one core reaches.
        l2_bytes: the second cache of all multiprocessors.
        process_nm: the node in which it is made.
        maker: such as NVIDIA.
        series: such as GeForce.
        architecture: such as Ampere; `architectures` says what follows from it.
        memory_type: such as HBM3 or GDDR6.
        usable_share: the part of `memory_bytes` that a program can have; None takes that of the
            maker's other devices.
        vector_flop_per_s: peaks of arithmetic outside of matrix products by dtype.
        details: the table `details` of the file, each number with its unit in its name.
        only_by_name: whether the figures are those of one paper, which no other word than the
            exact name stands for.
    """

    peak_flop_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    source: str
    memory_bytes: float | None = None
    launch_s: float | None = None
    clock_hz: float | None = None
    idle_w: float | None = None
    peak_w: float | None = None
    products: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    note: str = ""
    multiprocessors: int | None = None
    arrays: int | None = None
    array_side: int | None = None
    cores: int | None = None
    l3_bytes: float | None = None
    l3_of_core_bytes: float | None = None
    l2_bytes: float | None = None
    process_nm: float | None = None
    maker: str | None = None
    series: str | None = None
    architecture: str | None = None
    memory_type: str | None = None
    usable_share: float | None = None
    vector_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    only_by_name: bool = False

    @property
    def node_link(self) -> str:
        """The maker's name of the link to others of a node: `NVLink3 x12`, "" where unknown."""
        return str(self.details.get("link", ""))

    @cached_property
    def usable_bytes(self) -> int | None:
        """Bytes that a program can have of its memory, None where that is unknown.

        A maker's GB of memory is a GiB, of which the driver keeps some (`data/usable.toml`): an
        A100 of 80 GB has 79.2 GiB, 85.04e9 bytes. Some keep a larger share of a small memory.
        Without a maker it is `memory_bytes`.
        """
        if self.memory_bytes is None:
            return None
        share = self.usable_share
        if share is None:
            share = self._usual_usable_share(self.memory_bytes)
        return round(self.memory_bytes * share)

    def _usual_usable_share(self, memory_bytes: float) -> float:
        """Return the share of a memory that programs have on the maker's devices of this kind."""
        # The table has the usable GiB for each GB of the datasheet: what makers call a GB is a GiB,
        # of which the driver takes some. The memory of an unlisted maker is GB, all usable.
        gib_share_by_type = read_packaged_toml("usable.toml").get(
            self.maker or "", {"other": GB / GIB}
        )
        is_small = memory_bytes < gib_share_by_type.get("small_GB", 0) * GB
        if is_small:
            gib_share = gib_share_by_type["small"]
        else:
            is_stacked = architectures().traits["stacked_memory"].applies_to(self)
            memory_type = "HBM" if is_stacked else "other"
            gib_share = gib_share_by_type.get(memory_type, gib_share_by_type["other"])
        share: float = gib_share * (GIB / GB)  # GiB for each GB, as bytes for each byte
        return share

    def vector_peak(self, dtype: str) -> float | None:
        """Return the FLOP/s that arithmetic outside of matrix products reaches, None if unknown.

        It is the file's own for `dtype`, else its vector peak of float32, else the peak of float32.
        """
        float32_peak = self.vector_flop_per_s.get("float32", self.peak_flop_per_s.get("float32"))
        return self.vector_flop_per_s.get(dtype, float32_peak)
