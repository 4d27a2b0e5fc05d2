"""The host of a step: the time of issuing its kernels, and the waits of the device for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import e
from typing import Any, NamedTuple

import numpy as np

from steptime.core.graph import PASSES
from steptime.network.ops import OPS
from steptime.prediction.kernel import Kernel

TINY_S = 1e-30  # keeps a share of nothing defined
FASTEST = 0  # the places of both ends in `Host.end_factors`
SLOWEST = 1

_CONVOLUTION_KINDS = {kind for kind, row in OPS.items() if row.work == "convolution"}

Steps = Sequence[tuple[float, float, float]]  # measured ones: seconds of host, of device; a weight


class Host(NamedTuple):
    """The time at which the host has issued all kernels of each pass.

    Attributes:
        issued_s: seconds since the start of the step, by pass.
        base_s: seconds of these before the first kernel.
        waits: whether the host waits for the device at the end of every step; else it runs ahead
            into the next one.
        end_factors: shares of these times at the ends of their interval.
        measured_steps: measured ones with the residuals of constants (`kernel_weighted_factor`).
        after_kernels_s: seconds of a step that come after all of that.
    """

    issued_s: tuple[float, float, float]
    base_s: float = 0.0
    waits: bool = True
    end_factors: tuple[float, float] = (1.0, 1.0)
    measured_steps: Steps = ()
    after_kernels_s: float = 0.0

    def scale_to_end(self, end: int) -> Host:
        """Return the host at an end of its interval, `FASTEST` or `SLOWEST`."""
        share = self.end_factors[end]
        forward_s, backward_s, update_s = self.issued_s
        issued_s = (forward_s * share, backward_s * share, update_s * share)
        return self._replace(issued_s=issued_s, base_s=self.base_s * share)

    def repeat_passes(self, count: int) -> Host:
        """Return the host of a step that runs both passes `count` times before one update."""
        forward_s, backward_s, update_s = self.issued_s
        # `issued_s` are the times since the start at which each pass is issued: they accumulate,
        # and the first one holds the base of the step, which is paid once.
        extra_s = (count - 1) * (backward_s - self.base_s)
        issued_s = (
            self.base_s + count * (forward_s - self.base_s),
            backward_s + extra_s,
            update_s + extra_s,
        )
        return self._replace(issued_s=issued_s)


NO_HOST = Host((0.0, 0.0, 0.0), waits=False)  # plays no part


class Calls(NamedTuple):
    """The calls of the host for the kernels of one kind in a pass: ops, extra launches, views."""

    ops: int
    launches: int
    views: int


CallCounts = Mapping[tuple[str, str], Calls]  # by pass and kind


def count_calls(kernels: Iterable[Kernel]) -> dict[tuple[str, str], Calls]:
    """Count the calls of the host, by pass and kind of the kernels.

    A kernel is one op of a framework, or as many as its stack calls, however many launches follow
    the first. In an update each launch is an op, as loops and lists of an optimizer call them.
    Collectives are not counted.
    """
    counts: dict[tuple[str, str], Calls] = {}
    for kernel in kernels:
        if kernel.exchange is not None:
            continue
        # The first launch of each call is part of the call.
        new_ops = kernel.calls
        new_launches = max(kernel.launches - kernel.calls, 0)
        if kernel.pass_ == "update":  # each of its launches is a call of its own
            new_ops += new_launches
            new_launches = 0
        key = kernel.pass_, kernel.kind
        ops, launches, views = counts.get(key, (0, 0, 0))
        counts[key] = Calls(ops + new_ops, launches + new_launches, views + kernel.views)
    return counts


def count_constants(calls: CallCounts, names: Iterable[str]) -> dict[str, dict[str, float]]:
    """Count how many times each pass spends each constant of the host.

    The constant of a kind (`host.forward_conv2d_s`) comes before that of all kinds
    (`host.forward_op_s`); a gradient has the constant of its forward op. The forward pass has the
    base of a step, the update its own.

    Args:
        calls: the calls of a step.
        names: names of the constants that the stack has.
    """
    stack_constants = frozenset(names)
    counts: dict[str, Counter[str]] = {pass_: Counter() for pass_ in PASSES}
    # The base of a step is paid in its first pass, that of an update with its first op.
    counts["forward"]["host.step_s"] = 1
    for (pass_, kind), (ops, launches, views) in calls.items():
        # A constant of the kind wins over that of all ops of the pass.
        kind_constant = f"host.{pass_}_{_constant_kind(kind)}_s"
        has_constant = kind_constant in stack_constants
        op_constant = kind_constant if has_constant else f"host.{pass_}_op_s"
        count = counts[pass_]
        count[op_constant] += ops
        count["host.launch_s"] += launches
        count["host.view_s"] += views
        if pass_ == "update":
            count["host.update_s"] = 1
    # A constant that the stack lacks costs nothing.
    return {
        pass_: {name: float(times) for name, times in count.items() if name in stack_constants}
        for pass_, count in counts.items()
    }


def _constant_kind(kind: str) -> str:
    """Return the kind whose constant a kernel has: `conv2d` for all convolutions."""
    return "conv2d" if kind in _CONVOLUTION_KINDS else kind.removesuffix("_grad")


def find_host(
    calls: CallCounts, constants: Mapping[str, float], waits: bool = False
) -> Host | None:
    """Return the host of a step by the constants of a stack; None without `host.step_s`.

    100 ops of 10 us after a base of 1 ms are issued after 2 ms, by a host of `host.factor` 1. A CPU
    issues its own ops, whose calls are in their prices: it has the base `launch.step_s` alone.
    """
    # A CPU issues its own ops, whose calls are in their prices: only the base of a step is left.
    if "launch.step_s" in constants:
        return Host((0.0, 0.0, 0.0), constants["launch.step_s"])
    # The stack says nothing of its host.
    if "host.step_s" not in constants:
        return None
    return time_host(count_constants(calls, constants), constants)._replace(waits=waits)


def time_host(counts: Mapping[str, Mapping[str, Any]], constants: Mapping[str, float]) -> Host:
    """Return the host that spends constants as often as counted in each pass.

    With arrays of counts it is the hosts of as many steps side by side.
    """
    factor = constants["host.factor"]
    seconds: list[Any] = [
        factor * sum(constants[name] * times for name, times in count.items())
        for count in counts.values()
    ]
    # Times since the start of the step.
    forward_s, backward_s, update_s = accumulate(seconds)
    return Host((forward_s, backward_s, update_s), factor * constants["host.step_s"])


def host_of_launches(launches: Sequence[int], launch_s: float | None) -> Host | None:
    """Return a host that issues each launch of a pass in `launch_s` and waits after each step."""
    if launch_s is None:
        return None
    forward_s, backward_s, update_s = (count * launch_s for count in accumulate(launches))
    return Host((forward_s, backward_s, update_s))


def wait_for_host(device_passes_s: Sequence[Any], host: Host | None) -> tuple[Any, Any, Any]:
    """Return the passes of a step, in which the device waits for the host where that is slower.

    A pass ends when the device has done its work and the host has issued it. If the host waits
    after each step, passes of 1 and 4 s that are issued after 2 and 4 s take 2 and 4 s: the first
    waits for the host, the second hides it. A host that runs ahead into the next step hides its
    time behind the device's: the step takes the longer of both sums, 5 s here, and the time beyond
    the device's belongs to the passes that wait.
    """
    host = NO_HOST if host is None else host
    device_forward_s, device_backward_s, device_update_s = device_passes_s
    three_passes_s = (device_forward_s, device_backward_s, device_update_s)
    join_host = _wait_after_step if host.waits else _run_ahead
    forward_s, backward_s, update_s = join_host(three_passes_s, host)
    # The correction learnt from measured steps of similar size; 1 without any.
    factor = residual_factor(device_passes_s, host)
    return forward_s * factor, backward_s * factor, update_s * factor


def residual_factor(device_passes_s: Sequence[Any], host: Host) -> Any:
    """Return the correction of a step by the residuals of measured steps of similar times."""
    return kernel_weighted_factor(
        host.measured_steps, step_similarity, host.issued_s[-1], sum(device_passes_s)
    )


class BoundedStep(NamedTuple):
    """The passes of a step behind its host, and the bounds of the step; None if unknown."""

    passes_s: tuple[Any, Any, Any]
    low_s: Any
    high_s: Any


def bound_step(
    device_passes_s: Sequence[Any], shares: tuple[Any, Any], host: Host | None
) -> BoundedStep:
    """Return the passes of a step behind its host, with the bounds of the step.

    The residual of a step moves its bounds with it, so that they enclose it.

    Args:
        device_passes_s: the passes of the device alone.
        shares: bounds of the kernels, as shares of their seconds; None for an unknown bound.
        host: the host: the fastest at the lower bound, the slowest at the upper one.
    """
    host = NO_HOST if host is None else host
    passes_s = wait_for_host(device_passes_s, host)
    step_s: Any = sum(passes_s)
    factor = residual_factor(device_passes_s, host)
    low_s = high_s = None
    low_share, high_share = shares  # ends of the kernels' interval over their time
    if low_share is not None:
        fastest_s = factor * _scaled_step_s(device_passes_s, low_share, host, end=FASTEST)
        # The bounds enclose the predicted step even if the scaled one does not.
        low_s = step_s - np.maximum(step_s - fastest_s, 0.0) + host.after_kernels_s
    if high_share is not None:
        slowest_s = factor * _scaled_step_s(device_passes_s, high_share, host, end=SLOWEST)
        high_s = step_s + np.maximum(slowest_s - step_s, 0.0) + host.after_kernels_s
    forward_s, backward_s, update_s = passes_s
    return BoundedStep((forward_s, backward_s, update_s + host.after_kernels_s), low_s, high_s)


def _scaled_step_s(device_passes_s: Sequence[Any], share: Any, host: Host, end: int) -> Any:
    """Return a step with kernels and host at an end of their intervals, without its residual."""
    end_host = host.scale_to_end(end)._replace(measured_steps=())
    return sum(wait_for_host([pass_s * share for pass_s in device_passes_s], end_host))


def kernel_weighted_factor(rows: Any, similarity: Callable[..., Any], *sizes: Any) -> Any:
    """Return the correction factor from the residuals of measured rows, weighted by similarity.

    A row ends in a weight: one of 0.1 makes an equal row longer by exp(0.1), and a row that is
    unlike all of them not at all.
    """
    # A row is the sizes of a measured case, then the weight (in ln) of its residual.
    return e ** sum(
        weight * similarity(*sizes, *measured_sizes) for *measured_sizes, weight in rows
    )


def step_similarity(host_s: Any, device_s: Any, other_host_s: Any, other_device_s: Any) -> Any:
    """Return the similarity of two steps by the seconds of host and device.

    It is 1 for equal steps and 0.8 where both times double; their ratio counts less.
    """
    scale = host_s / other_host_s
    ratio = device_s / host_s * (other_host_s / other_device_s)
    # 2 x / (x^2 + 1) is 1 at x = 1, and equal for x and 1 / x.
    size_similarity = 2 * scale / (scale**2 + 1)
    ratio_similarity = 2 * ratio / (ratio**2 + 1)
    return size_similarity * ratio_similarity**0.5  # the ratio of host to device counts less


def _wait_after_step(device_passes_s: tuple[Any, Any, Any], host: Host) -> tuple[Any, Any, Any]:
    """Return the passes of a step at whose end the host waits for the device."""
    passes_s = []
    start_s: Any = 0.0
    device_end_s: Any = host.base_s  # until then the device waits for its first kernel
    for pass_s, issued_s in zip(device_passes_s, host.issued_s, strict=True):
        # A pass ends when the device has run it and the host has issued it.
        end_s: Any = np.maximum(device_end_s + pass_s, issued_s)
        passes_s.append(end_s - start_s)
        start_s = device_end_s = end_s
    forward_s, backward_s, update_s = passes_s
    return forward_s, backward_s, update_s


def _run_ahead(device_passes_s: tuple[Any, Any, Any], host: Host) -> tuple[Any, Any, Any]:
    """Return the passes of a step of many, of which the host issues each as soon as it can.

    The seconds by which the host is slower than the device are shared among the passes that it
    issues more slowly than they run.
    """
    # `issued_s` accumulate from the start of the step; their differences are the host's passes.
    forward_end_s, backward_end_s, step_end_s = host.issued_s
    host_passes_s = (forward_end_s, backward_end_s - forward_end_s, step_end_s - backward_end_s)
    # The host is late by as much as its whole step is longer than the device's.
    wait_s: Any = np.maximum(step_end_s - sum(device_passes_s), 0.0)
    excesses_s: list[Any] = [
        np.maximum(host_s - device_s, 0.0)
        for host_s, device_s in zip(host_passes_s, device_passes_s, strict=True)
    ]
    # Passes that the host issues more slowly than they run share the wait in proportion.
    share = wait_s / np.maximum(sum(excesses_s), TINY_S)
    forward_s, backward_s, update_s = (
        pass_s + share * excess_s
        for pass_s, excess_s in zip(device_passes_s, excesses_s, strict=True)
    )
    return forward_s, backward_s, update_s
