"""What each second of a step waits for: the rule by which a step is called bound by something.

The shares are those of the step's critical path: what it would have to be shortened by to be done
sooner. `docs/commands/steptime-why.md` has the rule in words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptime.core.graph import PASSES
from steptime.grids.replicas import Sync, exposed_s
from steptime.prediction.host import Host
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Kernels, computed_as
from steptime.prediction.price import peak_times
from steptime.prediction.steps.step_model import StepModel

BOUNDS = ("compute", "memory", "host", "input", "communication")


class Binding(NamedTuple):
    """A kernel of a step, its time, and what binds it: compute, memory, or host for its launch."""

    kernel: Kernel
    time: Interval
    bound: str


def _remove_work(kernel: Kernel) -> Kernel:
    """Return a kernel that has nothing to do: its price is what calling and launching it takes."""
    workless = kernel._replace(
        flop=0,
        bytes=0,
        products=(),
        window=None,
        row=1,  # a reduction over one element: none
        fresh=0,  # bytes in new pages, which the system zeroes
        figures=(),  # terms of the cost model
    )
    # An optimizer's update keeps its kind, which decides the number of its launches.
    if kernel.pass_ == "update":
        return workless
    return workless._replace(kind="relu", unit="vector")  # the price of one plain launch


def ceilings_s(model: StepModel, kernel: Kernel) -> tuple[float, float]:
    """Return the seconds of a kernel's arithmetic and of its traffic at the device's peaks."""
    return peak_times(
        kernel._replace(dtype=computed_as(kernel, model.device)), model.effective_device
    )


def bind_kernels(model: StepModel, batch: int | None = None) -> list[Binding]:
    """Return the kernels of a step but its exchanges, each with its time and what binds it.

    Of arithmetic and traffic that is what its roofline says, or the host where calling and
    launching it takes more than half of its time.
    """
    lowered = model.lower_step(batch)
    # Equal kernels of a step are priced once: `distinct_of_kernel` has the index of each kernel's.
    distinct_kernels = lowered.columns.distinct
    times = model.prices(batch).intervals()
    workless_kernels = Kernels([_remove_work(kernel) for kernel in distinct_kernels])
    # Many of these are equal again.
    distinct_launches_s = model.price_kernels(workless_kernels).value
    launches_s = distinct_launches_s[workless_kernels.distinct_of_kernel].tolist()
    bindings = []
    bound_by_index: dict[int, str] = {}
    distinct_index_of_kernel = lowered.columns.distinct_of_kernel.tolist()
    for kernel, index in zip(lowered.kernels, distinct_index_of_kernel, strict=True):
        if kernel.exchange is not None:
            continue
        if index not in bound_by_index:
            is_mostly_launch = 2 * launches_s[index] > times[index].value
            roofline_bound = _find_roofline_bound(model, distinct_kernels[index])
            bound_by_index[index] = "host" if is_mostly_launch else roofline_bound
        bindings.append(Binding(kernel, times[index], bound_by_index[index]))
    return bindings


def _find_roofline_bound(model: StepModel, kernel: Kernel) -> str:
    """Return whether arithmetic or traffic takes longer at the device's peaks."""
    compute_s, memory_s = ceilings_s(model, kernel)
    return "compute" if compute_s >= memory_s else "memory"


@dataclass(frozen=True)
class InputFeed:
    """Input that a step waits for: `period_s` between batches that are read ahead.

    Where it is not `is_read_ahead`, reading takes `period_s` before each step, which nothing hides.
    """

    period_s: float = 0.0
    is_read_ahead: bool = True

    def wait_s(self, step_s: float) -> float:
        """Return the seconds for which a step of `step_s` waits for its input."""
        return max(0.0, self.period_s - step_s) if self.is_read_ahead else self.period_s


@dataclass(frozen=True)
class CriticalPath:
    """The seconds of a step by what they wait for (`BOUNDS`), and its kernels.

    They add up to `step_s`, as far as floats do. `device_s` is how long the device works in a step.
    """

    seconds_by_bound: dict[str, float]
    bindings: Sequence[Binding]
    device_s: float
    step_s: float
    low_s: float | None = None
    high_s: float | None = None

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the step by what they wait for; they add up to 1."""
        step_s = self.step_s
        return {
            name: value / step_s if step_s else 0.0 for name, value in self.seconds_by_bound.items()
        }

    @property
    def bound(self) -> str:
        """What the largest share of the step waits for."""
        return max(BOUNDS, key=lambda name: self.seconds_by_bound[name])


def find_critical_path(
    model: StepModel, batch: int | None = None, replicas: int = 1, feed: InputFeed | None = None
) -> CriticalPath:
    """Return the critical path of a step: its seconds by the resource that they wait for.

    Passes that the device executes without waiting count by the bounds of their kernels; the time
    before them counts as the host's.

    Args:
        model: the step on its device.
        batch: examples of one replica; None for the workload's own batch.
        replicas: number of replicas, which all-reduce gradients over the model's link in a ring
            while the backward pass runs.
        feed: the input pipeline; None where input takes no time.
    """
    timeline = model.timeline(batch)
    passes_s = timeline.forward_s + timeline.backward_s + timeline.update_s
    bindings = bind_kernels(model, batch)
    busy_s_by_pass = dict.fromkeys(PASSES, 0.0)  # of the device
    for kernel, time, _bound in bindings:
        busy_s_by_pass[kernel.pass_] += time.value
    host = model.host(model.lower_step(batch))
    host_path = _host_path([*busy_s_by_pass.values()], host)
    seconds_by_bound = _scale_to(passes_s, _sum_bounds(bindings, host_path))
    # The timeline has the collectives inside the network, not those of its replicas.
    replicas_s = _exposed_exchange_s(model, batch, replicas)
    communication_s = timeline.exposed_s + replicas_s
    input_s = 0.0 if feed is None else feed.wait_s(passes_s + communication_s)
    seconds_by_bound |= {"communication": communication_s, "input": input_s}
    extra_s = input_s + replicas_s
    return CriticalPath(
        seconds_by_bound=seconds_by_bound,
        bindings=bindings,
        device_s=sum(busy_s_by_pass.values()),
        step_s=timeline.step_s + extra_s,
        low_s=None if timeline.low_s is None else timeline.low_s + extra_s,
        high_s=None if timeline.high_s is None else timeline.high_s + extra_s,
    )


def _exposed_exchange_s(model: StepModel, batch: int | None, replicas: int) -> float:
    """Return the seconds for which a step of replicas waits for their exchange of gradients."""
    if replicas == 1 or model.workload.phase != "train":
        return 0.0
    batch_size = model.workload.batch_per_replica if batch is None else batch
    # A step that is counted by layers does not tell when a gradient is ready: nothing overlaps.
    does_overlap = not model.lower_step(batch).by_layer
    return exposed_s(model, batch_size, replicas, Sync(overlap=does_overlap))


class _HostPath(NamedTuple):
    """The seconds of a critical path on the host, and the index of the first pass on the device."""

    host_s: float
    first_device_pass: int


def _sum_bounds(bindings: Sequence[Binding], host_path: _HostPath) -> dict[str, float]:
    """Return the seconds of the host and of kernels, by what they wait for.

    Passes before the first one that the device decides take as long as the host does. From it on
    each kernel's seconds count for what binds the kernel.
    """
    seconds_by_bound = dict.fromkeys(BOUNDS, 0.0)
    seconds_by_bound["host"] = host_path.host_s
    device_passes = PASSES[host_path.first_device_pass :]
    for kernel, time, bound in bindings:
        if kernel.pass_ in device_passes:
            seconds_by_bound[bound] += time.value
    return seconds_by_bound


def _scale_to(passes_s: float, seconds_by_bound: dict[str, float]) -> dict[str, float]:
    """Return the seconds scaled alike, so that they add up to the time of the passes.

    Arithmetic overlaps with traffic, so passes take less than the sum of their kernels.
    """
    sum_of_bounds_s = sum(seconds_by_bound.values())
    if not sum_of_bounds_s or not passes_s:
        return seconds_by_bound
    scale = passes_s / sum_of_bounds_s
    return {bound: scale * bound_s for bound, bound_s in seconds_by_bound.items()}


def _host_path(device_s_by_pass: Sequence[float], host: Host | None) -> _HostPath:
    """Return the seconds of the critical path on the host, and the first pass on the device.

    A host that runs ahead into the next step binds the whole step, or nothing of it. One that waits
    binds what comes before the last pass whose end it decides. Passes of 1, 4 and 1 s issued after
    2, 3 and 4 s: the first ends when it is issued, at 2 s; the others on the device.
    """
    all_on_device = _HostPath(0.0, 0)
    if host is None:
        return all_on_device
    # `issued_s`: when all kernels of a pass are issued, from the start of the step.
    if not host.waits:  # steps are issued ahead: the slower of host and device decides
        last_issue_s = host.issued_s[-1]
        is_host_slower = last_issue_s > sum(device_s_by_pass)
        all_on_host = _HostPath(last_issue_s, len(device_s_by_pass))
        return all_on_host if is_host_slower else all_on_device
    # This host waits for the device at the end of every step: compare both pass by pass.
    host_s = host.base_s  # seconds before the first kernel is issued
    first_device_pass = 0
    device_end_s = host.base_s
    for pass_index, (device_s, issued_s) in enumerate(
        zip(device_s_by_pass, host.issued_s, strict=True)
    ):
        # The device would finish the pass before the host has issued its last kernel.
        is_device_starved = issued_s >= device_end_s + device_s
        if is_device_starved:
            host_s = issued_s
            first_device_pass = pass_index + 1
        device_end_s = max(device_end_s + device_s, issued_s)
    return _HostPath(host_s, first_device_pass)
