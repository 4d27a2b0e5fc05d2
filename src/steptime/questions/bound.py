"""What each second of a step waits for: the rule by which a step is called bound by something.

The shares are those of the step's critical path: what it would have to be shortened by to be done
sooner. `docs/analysis.md` has the rule in words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptime.core.graph import PASSES, PLACE
from steptime.grids.replicas import Sync, exposed_s
from steptime.prediction.host import Host
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Kernels, computed_as
from steptime.prediction.price import at_peak
from steptime.prediction.step_model import StepModel

BOUNDS = ("compute", "memory", "host", "input", "communication")


class Binding(NamedTuple):
    """A kernel of a step, its time, and what binds it: compute, memory, or host for its launch."""

    kernel: Kernel
    time: Interval
    bound: str


def _idle(kernel: Kernel) -> Kernel:
    """Return a kernel that has nothing to do: its price is what calling and launching it takes."""
    idle = kernel._replace(flop=0, bytes=0, products=(), window=None, row=1, fresh=0, figures=())
    if kernel.pass_ != "update":
        idle = idle._replace(kind="relu", unit="vector")
    return idle


def ceilings_s(model: StepModel, kernel: Kernel) -> tuple[float, float]:
    """Return the seconds of a kernel's arithmetic and of its traffic at the device's peaks."""
    return at_peak(kernel._replace(dtype=computed_as(kernel, model.device)), model.seen)


def parts(model: StepModel, batch: int | None = None) -> list[Binding]:
    """Return the kernels of a step but its exchanges, each with its time and what binds it.

    Of arithmetic and traffic that is what its roofline says, or the host where calling and
    launching it takes more than half of its time.
    """
    lowered = model.lowered(batch)
    columns = lowered.columns
    times = model.prices(batch).intervals()
    idle = Kernels([_idle(one) for one in columns.distinct])
    calls_s = model.priced(idle).value[idle.which].tolist()
    bounds = []
    for kernel, time, call_s in zip(columns.distinct, times, calls_s, strict=True):
        compute_s, memory_s = (0.0, 0.0) if kernel.exchange else ceilings_s(model, kernel)
        bound = "compute" if compute_s >= memory_s else "memory"
        bounds.append("host" if 2 * call_s > time.value else bound)
    every = zip(lowered.kernels, columns.which.tolist(), strict=True)
    return [Binding(kernel, times[i], bounds[i]) for kernel, i in every if kernel.exchange is None]


@dataclass(frozen=True)
class Input:
    """Input that a step waits for: `period_s` between batches that are read ahead.

    Where it is not `ahead`, reading takes `period_s` before each step, which nothing hides.
    """

    period_s: float = 0.0
    ahead: bool = True

    def wait_s(self, rest_s: float) -> float:
        """Return for how long a step waits that takes `rest_s` otherwise."""
        return max(0.0, self.period_s - rest_s) if self.ahead else self.period_s


@dataclass(frozen=True)
class Path:
    """The seconds of a step by what they wait for (`BOUNDS`), and its kernels.

    They add up to `step_s`, as far as floats do. `device_s` is how long the device works in a step.
    """

    seconds: dict[str, float]
    parts: Sequence[Binding]
    device_s: float
    step_s: float
    low_s: float | None = None
    high_s: float | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the step by what they wait for; they add up to 1."""
        step_s = self.step_s
        return {name: value / step_s if step_s else 0.0 for name, value in self.seconds.items()}

    @property
    def bound(self) -> str:
        """What the largest share of the step waits for."""
        return max(BOUNDS, key=lambda name: self.seconds[name])


def path(
    model: StepModel, batch: int | None = None, replicas: int = 1, feed: Input | None = None
) -> Path:
    """Return what a step waits for.

    `replicas` add up their gradients by a ring while the backward pass runs, over the model's link.
    Kernels of the passes that the device works through without waiting count by what binds them;
    all before counts as the host's.
    """
    made = model.timeline(batch)
    whole = made.forward_s + made.backward_s + made.update_s
    found = parts(model, batch)
    busy = [0.0, 0.0, 0.0]
    for kernel, time, _ in found:
        busy[PLACE[kernel.pass_]] += time.value
    waited, first = _host_path(busy, model.host(model.lowered(batch)))
    seconds = dict.fromkeys(BOUNDS, 0.0) | {"host": waited}
    of_passes = dict.fromkeys(PASSES[first:], 0.0)
    for kernel, time, bound in found:
        if kernel.pass_ in of_passes:
            seconds[bound] += time.value
    told = sum(seconds.values())
    if told and whole:  # rows whose arithmetic overlaps with their traffic take less than their sum
        seconds = {name: value * whole / told for name, value in seconds.items()}
    between = _exchanged_s(model, batch, replicas)  # replicas; the bounds know those of ops
    seconds["communication"] = made.exposed_s + between
    waits = 0.0 if feed is None else feed.wait_s(whole + seconds["communication"])
    seconds["input"] = waits
    more = waits + between
    low, high = (end if end is None else end + more for end in (made.low_s, made.high_s))
    return Path(seconds, found, sum(busy), made.step_s + more, low, high)


def _exchanged_s(model: StepModel, batch: int | None, replicas: int) -> float:
    """Return for how long a step of replicas waits for their exchange of gradients."""
    if replicas == 1 or model.workload.phase != "train":
        return 0.0
    size = model.workload.batch_per_replica if batch is None else batch
    return exposed_s(model, size, replicas, Sync(overlap=not model.lowered(batch).by_layer))


def _host_path(busy: Sequence[float], host: Host | None) -> tuple[float, int]:
    """Return the seconds of the critical path on the host, and the first pass on the device.

    A host that runs ahead into the next step binds the whole step, or nothing of it. One that waits
    binds what comes before the last pass whose end it decides. Passes of 1, 4 and 1 s issued after
    2, 3 and 4 s: the first ends when it is issued, at 2 s; the others on the device.
    """
    if host is None:
        return 0.0, 0
    if not host.waits:
        issued = host.issued_s[-1]
        return (issued, len(busy)) if issued > sum(busy) else (0.0, 0)
    found, first, end = host.base_s, 0, host.base_s
    for i, (part, issued) in enumerate(zip(busy, host.issued_s, strict=True)):
        if issued >= end + part:
            found, first = issued, i + 1
        end = max(end + part, issued)
    return found, first
