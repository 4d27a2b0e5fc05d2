"""A step that is diagnosed: on its device, under its settings, with what was measured of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from steptime.core.workload import Workload
from steptime.hardware.device import Device, Link
from steptime.prediction import DEFAULT
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.bound import CriticalPath, InputFeed, find_critical_path


@dataclass(frozen=True)
class Setup:
    """A step that is diagnosed, on its device and under its settings.

    Args:
        workload: the step of one replica.
        device: the device of one replica.
        method: the cost model.
        options: its options.
        link: the link between replicas.
        replicas: their number.
        feed: the input that the step waits for.
        factor: the time of a measured step that the model explains, over the predicted one.
        communication_s: measured seconds of communication, on top of the predicted ones.
        unexplained_s: measured seconds that the model does not explain; no change shortens them.
    """

    workload: Workload
    device: Device
    method: str
    options: Mapping[str, str] = field(default_factory=dict)
    link: Link | None = None
    replicas: int = 1
    feed: InputFeed = field(default_factory=InputFeed)
    factor: float = 1.0
    communication_s: float = 0.0
    unexplained_s: float = 0.0

    @cached_property
    def model(self) -> StepModel:
        """The model of one replica's step."""
        return StepModel(
            self.workload, self.device, self.link, self.method, self.options, assumes=True
        )

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path of the step, by the model alone."""
        return find_critical_path(self.model, None, self.replicas, self.feed)

    @property
    def step_s(self) -> float:
        """The seconds of the step."""
        seconds_by_bound = self.path.seconds_by_bound
        predicted_communication_s = seconds_by_bound["communication"]
        predicted_work_s = self.path.step_s - predicted_communication_s - seconds_by_bound["input"]
        communication_s = predicted_communication_s + self.communication_s
        # `factor` is the measured work that the model explains over the predicted one.
        busy_s = self.factor * predicted_work_s + communication_s + self.unexplained_s
        return busy_s + self.feed.wait_s(busy_s)

    @property
    def examples_per_s(self) -> float:
        """The examples a second of all replicas."""
        step_s = self.step_s
        return self.workload.batch_per_replica * self.replicas / step_s if step_s else 0.0

    def with_batch(self, batch: int) -> "Setup":
        """Return the step at another batch.

        Its input, and what the model does not explain, take as much longer.
        """
        growth = batch / self.workload.batch_per_replica
        feed = replace(self.feed, period_s=self.feed.period_s * growth)
        workload = replace(self.workload, batch_per_replica=batch)
        # The cause of unexplained time is unknown: it is taken to grow as the batch does.
        unexplained_s = self.unexplained_s * growth
        return replace(self, workload=workload, feed=feed, unexplained_s=unexplained_s)

    def with_options(self, **options: str) -> "Setup":
        """Return the step under more options of the method."""
        return replace(self, options={**self.options, **options})


def make_setup(
    workload: Workload,
    device: Device,
    method: str = DEFAULT,
    options: Mapping[str, str] | None = None,
    link: Link | None = None,
    replicas: int = 1,
    input_per_s: float | None = None,
) -> Setup:
    """Return a step that nothing was measured of.

    Args:
        workload: the step of one replica.
        device: the device of one replica.
        method: the cost model.
        options: its options.
        link: the link between replicas.
        replicas: their number.
        input_per_s: examples a second that input brings for all replicas; None where a step never
            waits for input.
    """
    global_batch = workload.batch_per_replica * replicas
    input_period_s = global_batch / input_per_s if input_per_s else 0.0
    return Setup(workload, device, method, options or {}, link, replicas, InputFeed(input_period_s))
