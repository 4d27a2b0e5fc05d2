"""Clocks of the steps of somebody else's loop, and the samples that they give.

No clock waits for the device: CUDA events are read once the GPU has passed them.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

MAX_SAMPLES = 1000  # of a record; a longer training has longer samples, as `measure` does
MS = 1e-3  # what CUDA events count in


class StepSample(NamedTuple):
    """A step of the loop.

    Attributes:
        step_s: its seconds, the wait for its input included.
        input_s: the seconds of them in which it waited for its input.
    """

    step_s: float
    input_s: float


class StepClock(Protocol):
    """A clock of steps."""

    name: str

    def begin(self) -> None:
        """Begin a step."""

    def end(self, wait_s: float, inner_wait_s: float = 0.0) -> None:
        """End the step; the host waited so many seconds for input before it, and within it."""

    def read(self) -> list[StepSample]:
        """Return the steps that the device has finished since the last call."""

    def sync(self) -> None:
        """Wait until the device has finished all steps."""


class HostClock:
    """The clock of the host, for steps that end when the host has finished them."""

    name = "host's clock"

    def __init__(self) -> None:
        """Start without steps."""
        self._start_s = 0.0
        self._samples: list[StepSample] = []

    def begin(self) -> None:
        """Begin a step."""
        self._start_s = time.perf_counter()

    def end(self, wait_s: float, inner_wait_s: float = 0.0) -> None:
        """End the step; the host waited so many seconds for input before it, and within it."""
        step_s = time.perf_counter() - self._start_s + wait_s
        self._samples.append(StepSample(step_s, wait_s + inner_wait_s))

    def read(self) -> list[StepSample]:
        """Return the steps since the last call."""
        samples, self._samples = self._samples, []
        return samples

    def sync(self) -> None:
        """Return at once: every step has finished."""


class _EventStep(NamedTuple):
    start: Any
    end: Any
    wait_s: float


class CudaClock:
    """CUDA events around each step.

    The host may be ahead of the GPU, so that a wait of the host costs the GPU nothing: of the wait
    no more counts than the gap on the GPU between the end of one step and the start of the next.
    """

    name = "CUDA events"

    def __init__(self, device: Any) -> None:
        """Use the current stream of a CUDA device."""
        self._device = device
        self._start: Any = None
        self._last_end: Any = None
        self._steps: deque[_EventStep] = deque()

    def begin(self) -> None:
        """Record an event at the start of a step."""
        self._start = self._record_event()

    def end(self, wait_s: float, inner_wait_s: float = 0.0) -> None:  # noqa: ARG002  # a clock's
        """Record an event at the end of the step.

        Of a wait within the step nobody can tell whether the GPU idled: it is part of the step.
        """
        self._steps.append(_EventStep(self._start, self._record_event(), wait_s))

    def read(self) -> list[StepSample]:
        """Return the steps whose last event the GPU has passed."""
        samples = []
        while self._steps and self._steps[0].end.query():
            step = self._steps.popleft()
            input_s = step.wait_s
            # The host may be ahead of the GPU: a wait counts as far as the GPU was idle.
            if self._last_end is not None:
                idle_s = max(0.0, self._last_end.elapsed_time(step.start) * MS)
                input_s = min(step.wait_s, idle_s)  # the GPU was busy for the remaining wait
            self._last_end = step.end
            compute_s = step.start.elapsed_time(step.end) * MS
            samples.append(StepSample(compute_s + input_s, input_s))
        return samples

    def sync(self) -> None:
        """Wait until the GPU has passed the last event."""
        if self._steps:
            self._steps[-1].end.synchronize()

    def _record_event(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


@dataclass
class SampleList:
    """Samples of steps, each a mean over `steps_per_sample` steps; the list stays short.

    Where it holds twice `MAX_SAMPLES`, neighbours are joined.
    """

    samples: list[StepSample] = field(default_factory=list)
    steps_per_sample: int = 1
    step_count: int = 0
    _waiting: list[StepSample] = field(default_factory=list)

    def add(self, sample: StepSample) -> None:
        """Add a step."""
        self.step_count += 1
        self._waiting.append(sample)
        if len(self._waiting) < self.steps_per_sample:  # the sample is not full
            return
        self.samples.append(_mean(self._waiting))
        self._waiting = []
        is_full = len(self.samples) == 2 * MAX_SAMPLES
        if is_full:  # join neighbours, so that a long loop needs no more memory
            pairs = zip(self.samples[::2], self.samples[1::2], strict=True)
            self.samples = [_mean([first, second]) for first, second in pairs]
            self.steps_per_sample *= 2


def _mean(samples: list[StepSample]) -> StepSample:
    count = len(samples)
    return StepSample(
        sum(sample.step_s for sample in samples) / count,
        sum(sample.input_s for sample in samples) / count,
    )


def choose_clock(model: Any) -> StepClock:
    """Return a clock by CUDA events where the model, or without one torch, is on a GPU."""
    import sys

    torch = sys.modules.get("torch")  # never imported here: the loop may use another library
    if torch is None or not torch.cuda.is_available():
        return HostClock()
    if isinstance(model, torch.nn.Module):
        parameter = next(model.parameters(), None)
        if parameter is not None:
            is_cuda = parameter.device.type == "cuda"
            return CudaClock(parameter.device) if is_cuda else HostClock()
    if torch.cuda.is_initialized():  # without a model: the loop has used a GPU
        return CudaClock(torch.device("cuda", torch.cuda.current_device()))
    return HostClock()
