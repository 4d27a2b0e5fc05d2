"""What the three verbs of a prediction are told and pass on: settings, kernels, intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from steptime.core.graph import Part
from steptime.hardware import catalog
from steptime.network.ops.table import Products, Window

Unit = Literal["matrix", "vector"]


@dataclass(frozen=True)
class Settings:
    """What the verbs are told; the defaults are those of `analytic`.

    `host` says whether the host issues kernels `ahead` of the device, or the time for that is
    `added` to each, or left out (`no`). `stack` is the software that runs the step, a name or a
    file; `fuse` lets elementwise ops run in any kernel that makes their input. `pipelined` overlaps
    all arithmetic of a row with all its traffic. The efficiencies are the shares of the peaks that
    are reached. `tf32` lets products
    in float32 run as TF32 (`on`), lets none do so (`off`), or those that the stack runs so; images
    lie `channels_last` or not, or as the stack lays them (None). `host_name` is the host that
    issues the kernels (`calibrated/hosts.py`), "" for any. Kernels know the new `pages` that they
    write, which take time on a CPU alone. Methods may have more (subclasses).
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
    """What exchanges over a link: the name of an op, and its group."""

    name: str
    ranks: int
    stride: int


class Kernel(NamedTuple):
    """One kernel of a step: all that a price may ask. It knows no graph, no device and no clock.

    `op` is the row that it belongs to: a forward op, whose gradients and updates are rows of it
    too, or a layer of a file. `dtype` is the type computed in, `flop` a multiply-add as 2, `bytes`
    what it reads and writes. `products` are its matrix products `(batch, m, n, k)`. `serial` is the
    number of its steps that wait for each other, each of them one launch or more of `launches`.
    `figures` are what a method's own lowering has to tell its price beside. The bytes of an
    `exchange` go over a link; `after` names the exchanges whose results a kernel reads.
    `window` are height, width and strides of what moves over an image, and the height and width of
    the map of its places. `views` were made since the kernel before: they take the host's time
    alone. `row` is the number of elements that are reduced along the last axis, 1 for none. `fresh`
    are the bytes of new pages that its output takes on a CPU (`count.fresh_bytes`). A convolution
    knows whether its images are laid out `channels_last`, every product whether float32 may run as
    `tf32` (`computed_as`) and whether its first operand is `transposed`, as in the gradient of a
    weight: then no row of an operand or of the result runs along the contraction. The host calls
    `calls` ops of a framework for it.
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
    """Seconds: a value, and between which bounds they lie, None for a bound that is not known.

    `is_extrapolated` says that the price was asked for something outside of what it was made from.
    `compute_s` and `memory_s` are the parts for arithmetic and for moving bytes. `shared` is how
    much of the way to the bounds all prices of a device go together; the rest is each one's own.
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
        """The bounds as shares of the value, those of nothing 1."""
        low, high = (
            end if end is None else end / self.value if self.value else 1.0
            for end in (self.low, self.high)
        )
        return low, high

    def times(self, factor: float) -> Interval:
        """Return so many times as many seconds."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        value, compute, memory = (x * factor for x in (self.value, self.compute_s, self.memory_s))
        return Interval(value, low, high, self.is_extrapolated, compute, memory, self.shared)


NOTHING = Interval(0.0, 0.0, 0.0)


def interval_of(found: Interval | float) -> Interval:
    """Return what a price says of a kernel, where it says seconds alone too."""
    return found if isinstance(found, Interval) else Interval(float(found))
