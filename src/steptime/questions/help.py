"""What would help a step, and by how much: the model asked again with one thing changed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from steptime.core.dtypes import HALVES
from steptime.core.workload import Workload
from steptime.grids.batches import knee
from steptime.hardware.device import Device, Link
from steptime.prediction.step_model import StepModel
from steptime.questions.bound import Input, Path, path
from steptime.questions.changes import Change, changed

OF_DEVICE = "launch.gap_s"  # between two kernels: no host shortens it
UNEVEN = ("product.odd_", "product.uneven_")  # of rows that begin at no whole 16 bytes
WORTH = 1.02  # a speed-up that is worth a line
LARGER = (1, 2, 4, 8, 16)  # times the batch


@dataclass(frozen=True)
class Setup:
    """A step that is asked about.

    A measured one takes `factor` times as long as predicted, and `fixed_s` more for its exchange.
    """

    workload: Workload
    device: Device
    method: str
    options: Mapping[str, str] = field(default_factory=dict)
    link: Link | None = None
    replicas: int = 1
    feed: Input = field(default_factory=Input)
    factor: float = 1.0
    fixed_s: float = 0.0

    @cached_property
    def model(self) -> StepModel:
        """The model of one replica's step."""
        how = self.workload, self.device, self.link, self.method, self.options
        return StepModel(*how, assumes=True)

    @cached_property
    def path(self) -> Path:
        """What the step waits for, by the model alone."""
        return path(self.model, None, self.replicas, self.feed)

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        seconds = self.path.seconds
        exchanged = seconds["communication"] + self.fixed_s
        worked = self.factor * (self.path.step_s - seconds["communication"] - seconds["input"])
        return worked + exchanged + self.feed.wait_s(worked + exchanged)

    @property
    def examples_per_s(self) -> float:
        """Examples a second of all replicas."""
        step_s = self.step_s
        return self.workload.batch_per_replica * self.replicas / step_s if step_s else 0.0

    def at_batch(self, batch: int) -> "Setup":
        """Return the same at another batch, whose input takes as much longer."""
        times = batch / self.workload.batch_per_replica
        feed = replace(self.feed, period_s=self.feed.period_s * times)
        return replace(self, workload=replace(self.workload, batch_per_replica=batch), feed=feed)

    def under(self, **options: str) -> "Setup":
        """Return the same under more options of the method."""
        return replace(self, options={**self.options, **options})


def helps(asked: Setup) -> list[dict[str, Any]]:
    """Return what would help a step, the best first: `change`, `step_s`, `speedup`.

    The speed-up is of examples a second of all replicas; `per_device_speedup` of one.
    """
    before = asked.examples_per_s
    found: list[dict[str, Any]] = []
    for change, one in _candidates(asked):
        speedup = one.examples_per_s / before
        each = speedup * asked.replicas / one.replicas
        if max(speedup, each) >= WORTH:
            row = {"change": change, "step_s": one.step_s, "speedup": speedup}
            found.append({**row, "per_device_speedup": each})
    return sorted(found, key=lambda row: row["speedup"], reverse=True)


def _candidates(asked: Setup) -> Iterator[tuple[str, Setup]]:
    yield from _software(asked)
    device, constants = asked.device, asked.model.seen.constants
    wider = changed(device, (Change("memory_GB_per_s", 2, times=True),))
    yield "twice the memory bandwidth", replace(asked, device=wider)
    peaks = [Change("peak", 2, times=True), Change("tdp_W", 2, times=True)]
    words = "twice the peak" if device.peak_w is None else "twice the peak, at twice the power"
    yield words, replace(asked, device=changed(device, peaks))
    of_host = [name for name in constants if name.startswith("launch.") and name != OF_DEVICE]
    calls = {name: value for name, value in constants.items() if name.startswith("host.")}
    calls |= {name: constants[name] / 2 for name in (*of_host, "host.factor") if name in constants}
    launch_s = None if device.launch_s is None else device.launch_s / 2
    quick = replace(_with(device, calls), launch_s=launch_s)
    own_host = {name: text for name, text in asked.options.items() if name != "host"}
    yield (
        "a host that issues and launches twice as fast",
        replace(asked, device=quick, options=own_host),
    )
    even = {name: 1.0 for name in constants if name.startswith(UNEVEN)}
    yield "sizes padded to multiples of 8", replace(asked, device=_with(device, even))
    if asked.feed.period_s:
        yield "input that never makes it wait", replace(asked, feed=Input())
    if asked.fixed_s:
        yield "communication that takes half as long", replace(asked, fixed_s=asked.fixed_s / 2)
    if asked.link is not None and asked.replicas > 1:
        yield "twice the rate of the link", replace(asked, link=asked.link.faster(2))
        count = asked.replicas
        yield f"{2 * count} replicas", replace(asked, replicas=2 * count)
        yield f"fewer replicas: {count // 2}", replace(asked, replicas=count // 2)


def _with(device: Device, constants: Mapping[str, float]) -> Device:
    """Return a device some of whose constants are these."""
    known = {**device.calibration.get("constants", {}), **constants}
    return replace(device, calibration={**device.calibration, "constants": known})


def _software(asked: Setup) -> Iterator[tuple[str, Setup]]:
    options, device, dtype = asked.model.method.options, asked.device, asked.workload.dtype
    batch = asked.workload.batch_per_replica
    tried = {times * batch: asked.at_batch(times * batch) for times in LARGER}
    fitting = {
        size: one for size, one in tried.items()
        if size == batch or one.model.needs().fit(device)
    }  # fmt: skip
    best = knee(list(fitting), [one.step_s for one in fitting.values()])
    if best != batch:
        yield f"batch {best:,}", fitting[best]
    half = next((name for name in HALVES if name in device.peak_flop_per_s), None)
    if dtype in ("float32", "float64") and half:
        name = f"{half}-mixed" if asked.workload.phase == "train" else half
        yield f"dtype {name}", replace(asked, workload=replace(asked.workload, dtype=name))
    if dtype == "float32" and "tf32" in device.peak_flop_per_s and "tf32" in options:
        yield "TF32 for float32", asked.under(tf32="yes")
    stack = asked.model.stack
    if "stack" in options and stack.name.startswith("torch") and not stack.compile:
        free = {name: it for name, it in asked.options.items() if name != "channels_last"}
        yield (
            "compiled (torch.compile)",  # which decides itself how images lie
            replace(asked, options=free | {"stack": "torch-compile"}),
        )
    elif "fuse" in options and "fuse" not in asked.options:
        yield "fused elementwise ops", asked.under(fuse="yes")
