"""The host's side of a step: what issuing its kernels takes, and when the device waits for that."""

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

_LEAST_S = 1e-30  # keeps a share of nothing defined


_RUN_AS = {kind: "conv2d" for kind, row in OPS.items() if row.work == "convolution"}

Steps = Sequence[tuple[float, float, float]]  # measured ones: seconds of host, of device; a weight


class Host(NamedTuple):
    """When the host has issued all kernels of each pass, in seconds since the step's start.

    `base_s` of them come before the first kernel. A host that `waits` does so for the device at the
    end of every step; else it runs ahead into the next one. `ends` are the shares of these times
    that it takes at least and at most. `steps` tell what constants leave over (`left_over`).
    `after_s` are the seconds of a step that come after all of that.
    """

    issued_s: tuple[float, float, float]
    base_s: float = 0.0
    waits: bool = True
    ends: tuple[float, float] = (1.0, 1.0)
    steps: Steps = ()
    after_s: float = 0.0

    def at(self, end: int) -> Host:
        """Return the host at an end of its interval: 0 the fastest, 1 the slowest."""
        share = self.ends[end]
        forward, backward, update = (one * share for one in self.issued_s)
        return self._replace(issued_s=(forward, backward, update), base_s=self.base_s * share)

    def rounds(self, count: int) -> Host:
        """Return the host of a step that runs both passes so many times before one update."""
        forward_s, backward_s, update_s = self.issued_s
        more_s = (count - 1) * (backward_s - self.base_s)
        issued_s = (
            self.base_s + count * (forward_s - self.base_s),
            backward_s + more_s,
            update_s + more_s,
        )
        return self._replace(issued_s=issued_s)


NO_HOST = Host((0.0, 0.0, 0.0), waits=False)  # plays no part


class Calls(NamedTuple):
    """What the host calls for the kernels of one kind in a pass: ops, further launches, views."""

    ops: int
    launches: int
    views: int


def calls_of(kernels: Iterable[Kernel]) -> dict[tuple[str, str], Calls]:
    """Return what the host calls, by pass and kind of the kernels.

    Every kernel is one op of a framework, or as many as a stack `calls` for it, whatever these
    launch beyond the first; in an update each launch is an op, as loops and lists of an optimizer
    call them. Exchanges are not counted.
    """
    found: dict[tuple[str, str], Calls] = {}
    for one in kernels:
        if one.exchange is None:
            key = one.pass_, one.kind
            ops, launches, views = found.get(key, (0, 0, 0))
            more = max(one.launches - one.calls, 0)
            each = (one.calls + more, 0) if one.pass_ == "update" else (one.calls, more)
            found[key] = Calls(ops + each[0], launches + each[1], views + one.views)
    return found


def spent(
    calls: Mapping[tuple[str, str], Calls], named: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return how often each constant of the host is spent in each pass, by its name.

    `named` are the constants that the stack knows: `host.forward_conv2d_s` comes before
    `host.forward_op_s`, and a gradient goes by what it is of. The forward pass has the base of a
    step, the update its own.
    """
    known = frozenset(named)
    found: dict[str, Counter[str]] = {name: Counter() for name in PASSES}
    found["forward"]["host.step_s"] = 1
    for (pass_, kind), (ops, launches, views) in calls.items():
        own = f"host.{pass_}_{_RUN_AS.get(kind, kind.removesuffix('_grad'))}_s"
        count = found[pass_]
        count[own if own in known else f"host.{pass_}_op_s"] += ops
        count["host.launch_s"] += launches
        count["host.view_s"] += views
        if pass_ == "update":
            count["host.update_s"] = 1
    return {
        pass_: {name: float(times) for name, times in count.items() if name in known}
        for pass_, count in found.items()
    }


def host_of(
    calls: Mapping[tuple[str, str], Calls], constants: Mapping[str, float], waits: bool = False
) -> Host | None:
    """Return the host of a step under the constants of a stack, None where it names no `step_s`.

    100 ops of 10 us after a base of 1 ms are issued after 2 ms, by a host of `host.factor` 1. A CPU
    issues its own ops, whose calls are in their prices: it has the base `launch.step_s` alone.
    """
    if "launch.step_s" in constants:
        return Host((0.0, 0.0, 0.0), constants["launch.step_s"])
    if "host.step_s" not in constants:
        return None
    return issued(spent(calls, constants), constants)._replace(waits=waits)


def issued(often: Mapping[str, Mapping[str, Any]], constants: Mapping[str, float]) -> Host:
    """Return the host that spends constants as `often` in each pass, by `spent`.

    With arrays of numbers it is the hosts of as many steps side by side.
    """
    factor = constants["host.factor"]
    seconds: list[Any] = [
        factor * sum(constants[name] * times for name, times in count.items())
        for count in often.values()
    ]
    forward, backward, update = accumulate(seconds)
    return Host((forward, backward, update), factor * constants["host.step_s"])


def issuing(launches: Sequence[int], issue_s: float | None) -> Host | None:
    """Return a host that takes `issue_s` for each launch of a pass and waits after each step."""
    if issue_s is None:
        return None
    forward, backward, update = (count * issue_s for count in accumulate(launches))
    return Host((forward, backward, update))


def behind_host(parts_s: Sequence[Any], host: Host | None) -> tuple[Any, Any, Any]:
    """Return the parts of a step when the device waits for the host wherever that is slower.

    A part ends when the device has done its work and the host has issued it. If the host waits
    after each step, parts of 1 and 4 s that are issued after 2 and 4 s take 2 and 4 s: the first
    waits for the host, the second hides it. A host that runs ahead into the next step hides its
    whole time behind the device's: a step takes the longer of both sums, 5 s here, and what it
    takes beyond the device's belongs to the passes that wait.
    """
    one = NO_HOST if host is None else host
    passes = (parts_s[0], parts_s[1], parts_s[2])
    first, second, third = (_in_turn if one.waits else _ahead)(passes, one)
    factor = longer(parts_s, one)
    return first * factor, second * factor, third * factor


def longer(parts_s: Sequence[Any], host: Host) -> Any:
    """Return by what factor a step takes longer than kernels and host tell (`left_over`)."""
    return left_over(host.steps, alike, host.issued_s[-1], sum(parts_s))


def finish(
    parts_s: Sequence[Any], shares: Sequence[Any], host: Host | None
) -> tuple[tuple[Any, Any, Any], Any, Any]:
    """Return the parts of a step behind its host, and the least and the most seconds of the step.

    Its kernels lie between `shares` of their seconds, where a share of None has no bound; the host
    is the fastest at the one end and the slowest at the other. What constants leave over moves with
    the step as it is, so that the ends enclose it.
    """
    at = NO_HOST if host is None else host
    passes, factor = behind_host(parts_s, at), longer(parts_s, at)
    whole: Any = sum(passes)
    ends: list[Any] = [None, None]
    for end, sign in enumerate((-1, 1)):
        if (share := shares[end]) is not None:
            moved = at.at(end)._replace(steps=())
            moved_s: Any = sum(behind_host([one * share for one in parts_s], moved))
            beyond = np.maximum(sign * (factor * moved_s - whole), 0.0)
            ends[end] = whole + sign * beyond + at.after_s
    return (*passes[:2], passes[2] + at.after_s), ends[0], ends[1]


def left_over(rows: Any, alike: Callable[..., Any], *sizes: Any) -> Any:
    """Return by what factor what has these sizes takes longer than predicted, as the measured say.

    Their rows end in a weight: one of 0.1 makes its like longer by exp(0.1), what is unlike all of
    them not at all.
    """
    return e ** sum(weight * alike(*sizes, *known) for *known, weight in rows)


def alike(host_s: Any, device_s: Any, as_host_s: Any, as_device_s: Any) -> Any:
    """Return how much two steps have to do with each other, by the seconds of host and device.

    That is 1 of the same and 0.8 where both take the double; their ratio counts less.
    """
    longer, ratio = host_s / as_host_s, device_s / host_s * (as_host_s / as_device_s)
    return 2 * longer / (longer**2 + 1) * (2 * ratio / (ratio**2 + 1)) ** 0.5


def _in_turn(parts_s: tuple[Any, Any, Any], host: Host) -> tuple[Any, Any, Any]:
    """Return the parts of a step at whose end the host waits for the device."""
    found, before, end = [], 0.0, host.base_s
    for part, issued in zip(parts_s, host.issued_s, strict=True):
        finished: Any = np.maximum(end + part, issued)
        found.append(finished - before)
        before = end = finished
    return found[0], found[1], found[2]


def _ahead(parts_s: tuple[Any, Any, Any], host: Host) -> tuple[Any, Any, Any]:
    """Return the parts of a step of many, of which the host issues each as soon as it can."""
    forward, backward, update = host.issued_s
    own = (forward, backward - forward, update - backward)
    late: Any = np.maximum(update - sum(parts_s), 0.0)
    longer: list[Any] = [
        np.maximum(issued - part, 0.0) for issued, part in zip(own, parts_s, strict=True)
    ]
    share = late / np.maximum(sum(longer), _LEAST_S)
    first, second, third = (part + share * more for part, more in zip(parts_s, longer, strict=True))
    return first, second, third
