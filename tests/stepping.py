"""Steps for tests: a model of a graph that is built already, and the times of a row as three."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.hardware.device import Device
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.lower import Lowered
from steptime.prediction.method import Method
from steptime.prediction.steps.step_model import StepModel


def step_model(
    graph: Graph,
    device: Device,
    method: str | Method = "analytic",
    dtype: str = "float32",
    options: Mapping[str, object] | None = None,
) -> StepModel:
    workload = Workload("a test", {}, 1, dtype)
    return StepModel(workload, device, method=method, options=options, graph=graph)


def three(times: Interval) -> tuple[float, float, float]:
    """Seconds of arithmetic, of traffic, and of both as they overlap."""
    return (times.compute_s, times.memory_s, times.value)


def kernels(lowered: Lowered, row: str, pass_: str) -> Iterator[Kernel]:
    return (one for one in lowered.kernels if (one.op, one.pass_) == (row, pass_))
