"""The schedules of a pipeline, and a simulation of when each device runs which task.

A task is one direction (forward, backward, weight gradients) of one microbatch in one stage. A
device runs its own tasks in the order of the schedule, each as soon as the task that it depends on
has ended. Of `device_count` devices, device d has the stages d, d + device_count, ...: one stage,
or `virtual` interleaved ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptime.core.errors import check_choice

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"
MAX_EVENTS = 400_000  # a run of more tasks is not recorded task by task


class Stage(NamedTuple):
    """The seconds of a pipeline stage for one microbatch.

    Attributes:
        forward_s: the forward pass.
        backward_s: the backward pass.
        weight_s: the part of `backward_s` that computes gradients of weights.
        host_s: the time in both passes in which the device waits for its host.
    """

    forward_s: float
    backward_s: float
    weight_s: float = 0.0
    host_s: float = 0.0


class PipelineEvent(NamedTuple):
    """One task of a device: a direction of a microbatch in a stage, from `start_s` to `end_s`."""

    device: int
    stage: int
    microbatch: int
    direction: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class PipelineRun:
    """The simulated run of a pipeline.

    Attributes:
        events: all tasks.
        ends_s: for each device, the end of its last task.
    """

    events: tuple[PipelineEvent, ...]
    ends_s: tuple[float, ...]


Task = tuple[str, int, int]
"""Direction, stage, microbatch."""


def gpipe(device: int, device_count: int, virtual: int, microbatches: int) -> Iterator[Task]:
    """Yield all forward tasks, then all backward tasks in reverse (Huang and others 2019)."""
    stages = range(device, device_count * virtual, device_count)  # dealt out to the devices in turn
    for stage in stages:
        for microbatch in range(microbatches):
            yield FORWARD, stage, microbatch
    # The backward passes start with the last microbatch, whose activations came last.
    for stage in reversed(stages):
        for microbatch in reversed(range(microbatches)):
            yield BACKWARD, stage, microbatch


def pipedream_flush(
    device: int, device_count: int, virtual: int, microbatches: int
) -> Iterator[Task]:
    """Yield the tasks of 1F1B: forward until the pipeline is full, then both in turn.

    With interleaved stages a device takes `device_count` microbatches through a stage before it
    turns to its next stage. The last such group includes the remainder of the division.

    Source: Narayanan and others 2021.
    """
    forward_tasks, backward_tasks = _list_tasks_in_groups(
        device, device_count, virtual, microbatches
    )
    # Warm-up: forward alone. Then one forward and one backward task in turn. The drain: as many
    # backward tasks as the warm-up had forward ones.
    warmup_count = _count_warmup_tasks(device, device_count, virtual, microbatches)
    warmup_count = min(warmup_count, len(forward_tasks))
    steady_count = len(forward_tasks) - warmup_count
    yield from forward_tasks[:warmup_count]
    steady_pairs = zip(forward_tasks[warmup_count:], backward_tasks[:steady_count], strict=True)
    for forward_task, backward_task in steady_pairs:
        yield forward_task
        yield backward_task
    yield from backward_tasks[steady_count:]


def _list_tasks_in_groups(
    device: int, device_count: int, virtual: int, microbatches: int
) -> tuple[list[Task], list[Task]]:
    """Return a device's forward tasks and its backward tasks, each in the order of 1F1B.

    Group after group of microbatches passes all stages of the device: forward from its first stage
    on, backward from its last one.
    """
    forward_tasks: list[Task] = []
    backward_tasks: list[Task] = []
    group_count = max(1, microbatches // device_count)
    for group_number in range(group_count):
        start = group_number * device_count
        is_last_group = group_number + 1 == group_count
        end = microbatches if is_last_group else start + device_count
        for chunk in range(virtual):
            forward_stage = chunk * device_count + device
            backward_stage = (virtual - 1 - chunk) * device_count + device
            forward_tasks += [(FORWARD, forward_stage, i) for i in range(start, end)]
            backward_tasks += [(BACKWARD, backward_stage, i) for i in range(start, end)]
    return forward_tasks, backward_tasks


def _count_warmup_tasks(device: int, device_count: int, virtual: int, microbatches: int) -> int:
    """Return the number of forward tasks of a device before its first backward task in 1F1B."""
    later_devices = device_count - 1 - device
    is_interleaved = virtual > 1
    if not is_interleaved:
        return later_devices
    # A whole group must have passed all stages of the device but the last one, too, and there are
    # two tasks for each later device (as in Megatron's interleaved schedule).
    group_count = max(1, microbatches // device_count)
    largest_group = microbatches - (group_count - 1) * device_count  # the last one
    return 2 * later_devices + (virtual - 1) * largest_group


def zero_bubble(device: int, device_count: int, _virtual: int, microbatches: int) -> Iterator[Task]:
    """Yield 1F1B with delayed gradients of weights: zero bubble H1 (Qi and others 2024).

    The gradients of weights lag by as many microbatches as the device is away from the first one.
    So a device holds as many microbatches as the first device does in 1F1B.
    """
    warmup = min(device_count - device, microbatches)
    next_weight = 0  # the microbatch whose gradients of weights come next
    for i in range(warmup):
        yield FORWARD, device, i
    for i in range(microbatches):
        yield BACKWARD, device, i
        device_lag = device  # in microbatches: the number of devices before this one
        if i >= device_lag:
            yield WEIGHT, device, next_weight
            next_weight += 1
        if i + warmup < microbatches:
            yield FORWARD, device, i + warmup
    # The gradients of weights that are still missing.
    for i in range(next_weight, microbatches):
        yield WEIGHT, device, i


TaskOrder = Callable[[int, int, int, int], Iterator[Task]]
TASK_ORDERS: dict[str, TaskOrder] = {
    "gpipe": gpipe,
    "1f1b": pipedream_flush,
    "interleaved": pipedream_flush,
    "zero-bubble": zero_bubble,
}
"""By schedule, the function that yields a device's tasks in order."""


def simulate(
    schedule: str, stages: Sequence[Stage], device_count: int, microbatches: int, send_s: float = 0
) -> PipelineRun:
    """Return the run of a pipeline, simulated task by task.

    Args:
        schedule: a key of `TASK_ORDERS`.
        stages: the seconds of each stage.
        device_count: the devices of the pipeline.
        microbatches: the microbatches of a step.
        send_s: the seconds from one stage to the next.

    Raises:
        InputError: for an unknown schedule.
    """
    check_choice("schedule", schedule, TASK_ORDERS)
    virtual = len(stages) // device_count
    task_order = TASK_ORDERS[schedule]
    splits_backward = schedule == "zero-bubble"
    durations = [_task_durations(stage, splits_backward) for stage in stages]
    tasks = [
        list(task_order(device, device_count, virtual, microbatches))
        for device in range(device_count)
    ]
    simulation = _Simulation(tasks, durations, send_s)
    # A device runs until a task of it must wait for a task of another device. When that one has
    # ended, the waiting device is ready again.
    ready_devices = list(range(device_count))
    while ready_devices:
        device = ready_devices.pop()
        ready_devices += simulation.run_device(device)
    if simulation.waiting_device:  # a schedule that can never run
        first_missing_task = min(simulation.waiting_device)
        raise RuntimeError(f"{schedule}: devices wait for each other at {first_missing_task}")
    return PipelineRun(tuple(simulation.events), tuple(simulation.free_s))


class _Simulation:
    """The devices of a pipeline while they run their tasks.

    Attributes:
        free_s: for each device, when it has ended its last task so far.
        events: the tasks that have run.
        waiting_device: by a task that has not run yet, the device that waits for its end.
    """

    def __init__(
        self, tasks: Sequence[Sequence[Task]], durations: Sequence[dict[str, float]], send_s: float
    ) -> None:
        self.free_s = [0.0] * len(tasks)
        self.events: list[PipelineEvent] = []
        self.waiting_device: dict[Task, int] = {}
        self._tasks = tasks  # of each device, in its order
        self._next_positions = [0] * len(tasks)  # of each device, in its tasks
        self._durations = durations  # of each stage, by direction
        self._send_s = send_s
        self._end_of_task: dict[Task, float] = {}

    def run_device(self, device: int) -> list[int]:
        """Run a device's tasks up to one that must wait, and return the devices that waited for it.

        A device that must wait is noted in `waiting_device`.
        """
        resumed_devices = []
        tasks = self._tasks[device]
        end_of_task = self._end_of_task
        last_stage = len(self._durations) - 1
        clock_s = self.free_s[device]
        position = self._next_positions[device]
        while position < len(tasks):
            task = tasks[position]
            direction, stage, microbatch = task
            dependency = _dependency(direction, stage, microbatch, last_stage)
            start_s = clock_s
            if dependency is not None:
                if dependency not in end_of_task:
                    self.waiting_device[dependency] = device
                    break
                _, dependency_stage, _ = dependency
                crosses_stages = dependency_stage != stage
                arrival_s = end_of_task[dependency]
                arrival_s += self._send_s if crosses_stages else 0.0
                start_s = max(clock_s, arrival_s)
            clock_s = start_s + self._durations[stage][direction]
            end_of_task[task] = clock_s
            event = PipelineEvent(device, stage, microbatch, direction, start_s, clock_s)
            self.events.append(event)
            position += 1
            if task in self.waiting_device:
                resumed_devices.append(self.waiting_device.pop(task))
        self._next_positions[device] = position
        self.free_s[device] = clock_s
        return resumed_devices


def _task_durations(stage: Stage, splits_backward: bool) -> dict[str, float]:
    """Return the seconds of each direction; the backward pass may leave out weight gradients."""
    backward_s = stage.backward_s
    if splits_backward:
        backward_s -= stage.weight_s
    return {FORWARD: stage.forward_s, BACKWARD: backward_s, WEIGHT: stage.weight_s}


def _dependency(direction: str, stage: int, microbatch: int, last_stage: int) -> Task | None:
    """Return the task that must end before a task can start; None for the first stage."""
    if direction == FORWARD:
        return (FORWARD, stage - 1, microbatch) if stage else None
    # The gradients of weights follow the gradients of inputs in the same stage.
    if direction == WEIGHT:
        return (BACKWARD, stage, microbatch)
    if stage < last_stage:
        return (BACKWARD, stage + 1, microbatch)
    # The last stage turns round: its backward pass follows its own forward pass.
    return (FORWARD, last_stage, microbatch)


def busy_s(stages: Sequence[Stage], device_count: int) -> list[float]:
    """Return, for each device, the seconds that one microbatch keeps it busy."""
    stage_s = [stage.forward_s + stage.backward_s for stage in stages]
    return [sum(stage_s[device::device_count]) for device in range(device_count)]
