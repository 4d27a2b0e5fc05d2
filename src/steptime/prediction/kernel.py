"""The settings of a method, the kernels that it prices, and the intervals that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from steptime.core.graph import Part
from steptime.hardware import catalog
from steptime.network.ops.table import Products, Window

Unit = Literal["matrix", "vector"]


@dataclass(frozen=True)
class Settings:
    """The settings of a method; the defaults are those of `analytic`. Methods may have more.

    Attributes:
        host: the host issues kernels `ahead` of the device, or the time of issuing is `added` to
            each kernel, or it is left out (`no`).
        waits: whether the host waits for the device at the end of each step.
        stack: the software that runs the step, a name or a file.
        fuse: whether elementwise ops run in the kernel that makes their input.
        tf32: whether products in float32 run as TF32: `on`, `off`, or as the stack runs them.
        channels_last: whether images lie channels last; None as the stack lays them.
        host_name: the host that issues the kernels (`calibrated/hosts.py`), "" for any.
        pages: whether kernels know the new pages that they write, which take time on a CPU alone.
        pipelined: whether all arithmetic of a row overlaps with all its traffic.
        compute_efficiency: share of the device's peaks that is reached.
        link_efficiency: share of a link's rate that is reached.
    """

    host: Literal["ahead", "added", "no"] = "ahead"
    waits: bool = False
    stack: str = catalog.DEFAULT_STACK
    fuse: bool = False
    tf32: Literal["auto", "on", "off"] = "auto"
    channels_last: bool | None = None
    host_name: str = ""
    pages: bool = True
    pipelined: bool = False
    compute_efficiency: float = 1.0
    link_efficiency: float = 1.0


class Exchange(NamedTuple):
    """The collective of an op: the name of the op, and its group of ranks.

    Attributes:
        name: the name of the op.
        ranks: number of ranks in the group.
        stride: distance between neighbouring ranks of the group.
    """

    name: str
    ranks: int
    stride: int


class Kernel(NamedTuple):
    """One kernel of a step, with all that a price may ask. It knows no graph and no device.

    Attributes:
        op: the row that it belongs to: a forward op, or a layer of a file. Gradients and updates
            belong to the row of their forward op.
        kind: kind of the op, by which its form is chosen.
        pass_: forward, backward or update.
        dtype: the type that it computes in.
        unit: the units that it runs on.
        flop: executed FLOP; a multiply-add counts 2.
        bytes: bytes that it reads and writes; of a collective, bytes over the link.
        products: its matrix products `(batch, m, n, k)`.
        serial: number of its steps that wait for each other, each of one launch or more.
        launches: number of launches.
        figures: further numbers that a lowering has for its price.
        exchange: the group of a collective; None for kernels of the device.
        after: names of the collectives whose results it reads.
        window: height, width and strides of a window that moves over an image, and height and
            width of the map of its positions.
        views: views that were made since the kernel before; they take the host's time alone.
        row: elements that are reduced along the last axis, 1 for none.
        fresh: bytes of new pages that its output takes on a CPU (`count.fresh_bytes`).
        channels_last: whether the images of a convolution lie channels last.
        tf32: whether a product in float32 may run as TF32 (`computed_as`).
        transposed: whether the first operand of a product is transposed, as in the gradient of a
            weight: then no row of an operand or of the result runs along the contraction.
        calls: ops of a framework that the host calls for it.
    """

    op: str
    kind: str
    pass_: Part
    dtype: str
    unit: Unit
    flop: float
    bytes: float
    products: Products = ()
    serial: int = 1
    launches: int = 1
    figures: tuple[float, ...] = ()
    exchange: Exchange | None = None
    after: tuple[str, ...] = ()
    window: Window | None = None
    views: int = 0
    row: int = 1
    fresh: float = 0.0
    channels_last: bool = False
    tf32: bool = False
    transposed: bool = False
    calls: int = 1


class Interval(NamedTuple):
    """Seconds with the bounds between which 80 % of measurements lie; None for an unknown bound.

    Attributes:
        value: the seconds.
        low: the lower bound.
        high: the upper bound.
        is_extrapolated: whether the price was asked for something unlike what it was fitted on.
        compute_s: seconds of arithmetic.
        memory_s: seconds of moving bytes.
        shared: share of the way to the bounds that all prices of a device go together; the rest is
            independent for each kernel.
    """

    value: float
    low: float | None = None
    high: float | None = None
    is_extrapolated: bool = False
    compute_s: float = 0.0
    memory_s: float = 0.0
    shared: float = 1.0

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """The bounds as shares of the value; 1 where the value is 0."""
        low_share, high_share = (
            None if bound is None else _ratio(bound, self.value) for bound in (self.low, self.high)
        )
        return low_share, high_share

    def times(self, factor: float) -> Interval:
        """Return the interval, its seconds multiplied by a factor."""
        return self._replace(
            value=self.value * factor,
            low=None if self.low is None else self.low * factor,
            high=None if self.high is None else self.high * factor,
            compute_s=self.compute_s * factor,
            memory_s=self.memory_s * factor,
        )


def _ratio(bound: float, value: float) -> float:
    return bound / value if value else 1.0


NOTHING = Interval(0.0, 0.0, 0.0)


def as_interval(price: Interval | float) -> Interval:
    """Return a price as an interval; one that is only a number has no bounds."""
    return price if isinstance(price, Interval) else Interval(float(price))
