"""When each device of a pipeline ends its last task: the recurrences of the common schedules.

`pipeline.simulate` follows every task. Here a schedule is a recurrence of a few numbers for each
device. As soon as two states of it differ by the same time on all devices, the schedule repeats,
and the remaining periods are skipped, so its cost does not grow with the number of microbatches.
For 16 stages and 512 microbatches the simulation takes 25 ms and the recurrence 2 ms; with 8
interleaved stages a device they take 276 and 39 ms. Tests compare both over random pipelines.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from operator import sub
from typing import NamedTuple

from steptime.planning.pipelines.pipeline import Stage, simulate

PERIOD_TOLERANCE = 1e-12  # relative difference below which two periods are equal
RECURRENT_SCHEDULES = ("1f1b", "interleaved", "zero-bubble")
State = tuple[float, ...]


class PipelineTimes(NamedTuple):
    """The inputs of a pipeline's schedule but for the number of microbatches.

    Attributes:
        schedule: the name of the schedule.
        stages: the seconds of each stage.
        device_count: the devices of the pipeline.
        send_s: the seconds from a stage to the next.
    """

    schedule: str
    stages: tuple[Stage, ...]
    device_count: int
    send_s: float


class Period(NamedTuple):
    """A repeating schedule: it is the same after `state_count` states, `delay_s` later."""

    state_count: int
    delay_s: float


@lru_cache(maxsize=1 << 12)
def end_times(pipeline: PipelineTimes, microbatches: int) -> tuple[float, ...]:
    """Return, for each device of a pipeline, the end of its last task, as `simulate` does.

    Raises:
        InputError: for an unknown schedule.
    """
    schedule, stages, device_count, send_s = pipeline
    if schedule == "dualpipe":
        return _dualpipe_ends(stages, microbatches)
    if schedule in RECURRENT_SCHEDULES and len(stages) == device_count:
        return _single_stage_ends(stages, microbatches, send_s, schedule == "zero-bubble")
    # The recurrence of interleaved stages needs full groups of microbatches.
    has_even_groups = device_count > 1 and microbatches % device_count == 0
    if schedule in RECURRENT_SCHEDULES and has_even_groups:
        return _interleaved_ends(stages, device_count, microbatches, send_s)
    return simulate(schedule, stages, device_count, microbatches, send_s).ends_s


def _dualpipe_ends(stages: Sequence[Stage], microbatches: int) -> tuple[float, ...]:
    """Return the ends of DualPipe, whose microbatches enter at both ends of the pipeline.

    Each device has a stage of both directions, and overlaps a forward with a backward pass.
    """
    end_s = microbatches * max(paired_busy_s(stages)) + dualpipe_bubble_s(stages)
    return (end_s,) * len(stages)


def paired_busy_s(stages: Sequence[Stage]) -> list[float]:
    """Return, for each device of DualPipe, the seconds that a microbatch keeps it busy.

    A device has two stages, and half of the microbatches pass through each of them.
    """
    stage_s = [stage.forward_s + stage.backward_s for stage in stages]
    return [(near_s + far_s) / 2 for near_s, far_s in zip(stage_s, reversed(stage_s), strict=True)]


def dualpipe_bubble_s(stages: Sequence[Stage]) -> float:
    """Return the seconds of DualPipe in which a device waits: (p / 2 - 1) (F + B + B - 3 W).

    F and B are the mean seconds of a stage's passes; W is the part of B that computes gradients of
    weights. Source: DeepSeek-AI 2024, DeepSeek-V3, table 2.
    """
    stage_count = len(stages)
    forward_s = sum(stage.forward_s for stage in stages) / stage_count
    backward_s = sum(stage.backward_s for stage in stages) / stage_count
    weight_s = sum(stage.weight_s for stage in stages) / stage_count
    # (p / 2 - 1) (F&B + B - 3 W), where F&B is a forward beside a backward pass: their sum.
    overlap_s = forward_s + 2 * backward_s - 3 * weight_s
    return (stage_count / 2 - 1) * max(0.0, overlap_s)


def _single_stage_ends(
    stages: Sequence[Stage], microbatches: int, send_s: float, splits_backward: bool
) -> tuple[float, ...]:
    """Return the ends of 1F1B or zero bubble with one stage a device."""
    device_count = len(stages)
    run = _SingleStageRun(stages, microbatches, send_s, splits_backward)
    states: list[State] = []
    step = 0
    while step < microbatches + device_count:
        run.run_step(step)
        step += 1
        is_steady = device_count < step < microbatches  # every device runs both passes
        if not is_steady:
            continue
        states.append(run.state())
        is_checked = step % device_count == 0
        period = _find_period(states, range(1, device_count + 1)) if is_checked else None
        if period is not None:  # all further steps repeat: skip whole periods
            repeats = (microbatches - step) // period.state_count
            run.delay(repeats * period.delay_s)
            step += repeats * period.state_count
            states = []
    return run.ends_s()


class _SingleStageRun:
    """The clocks of devices with one stage each, under 1F1B or zero bubble.

    In step j, device d runs the backward pass of microbatch j - p + d, then the forward pass of
    microbatch j. With `splits_backward`, gradients of weights are computed between them.
    """

    def __init__(
        self, stages: Sequence[Stage], microbatches: int, send_s: float, splits_backward: bool
    ) -> None:
        self._microbatches = microbatches
        self._send_s = send_s
        self._forwards_s = [stage.forward_s for stage in stages]
        self._weights_s = [stage.weight_s if splits_backward else 0.0 for stage in stages]
        self._backwards_s = [
            stage.backward_s - weight_s
            for stage, weight_s in zip(stages, self._weights_s, strict=True)
        ]
        self._free_s = [0.0] * len(stages)  # when each device has ended its tasks so far
        # The end of each device's last backward pass; no device follows the last one.
        self._backward_ends_s = [0.0] * len(stages) + [-inf]

    def run_step(self, step: int) -> None:
        """Run the passes of one step on every device."""
        device_count = len(self._free_s)
        arrival_s = -inf  # of the forward pass's input; the first device need not wait
        for device in range(device_count):
            backward_microbatch = step - device_count + device
            if 0 <= backward_microbatch < self._microbatches:
                self._run_backward(device, backward_microbatch)
            if step < self._microbatches:
                start_s = max(self._free_s[device], arrival_s)
                self._free_s[device] = start_s + self._forwards_s[device]
                arrival_s = self._free_s[device] + self._send_s

    def _run_backward(self, device: int, microbatch: int) -> None:
        """Run a backward pass and the gradients of weights that are due after it."""
        arrival_s = self._backward_ends_s[device + 1] + self._send_s
        end_s = max(self._free_s[device], arrival_s) + self._backwards_s[device]
        self._backward_ends_s[device] = end_s
        # A device puts off the gradients of as many microbatches as devices precede it (`ends_s`).
        is_weight_due = microbatch >= device
        self._free_s[device] = end_s + self._weights_s[device] if is_weight_due else end_s

    def state(self) -> State:
        """Return all times that the next step depends on."""
        return (*self._free_s, *self._backward_ends_s[:-1])

    def delay(self, delay_s: float) -> None:
        """Make all clocks later."""
        _delay(self._free_s, delay_s)
        _delay(self._backward_ends_s, delay_s)

    def ends_s(self) -> tuple[float, ...]:
        """Return the end of each device, with the gradients of weights that it put off."""
        ends_s = []
        for device, free_s in enumerate(self._free_s):
            deferred_microbatches = min(self._microbatches, device)
            ends_s.append(free_s + deferred_microbatches * self._weights_s[device])
        return tuple(ends_s)


def _interleaved_ends(
    stages: Sequence[Stage], device_count: int, microbatches: int, send_s: float
) -> tuple[float, ...]:
    """Return the ends of interleaved 1F1B, whose microbatches go in groups of `device_count`."""
    run = _InterleavedRun(stages, device_count, microbatches, send_s)
    states: list[State] = []
    step = 0
    while step < run.step_count:
        run.run_step(step)
        step += 1
        is_steady = run.longest_warmup < step < run.task_count
        ends_group = step % run.group_tasks == 0
        if not (is_steady and ends_group):
            continue
        states.append(run.state())
        period = _find_period(states, state_counts=(1,))  # a period is one group of tasks
        if period is not None:  # all further groups repeat: skip them
            repeats = (run.task_count - step) // run.group_tasks
            run.delay(repeats * period.delay_s)
            step += repeats * run.group_tasks
            states = []
    return tuple(run.free_s)


class _InterleavedRun:
    """The clocks of devices with several stages each, under interleaved 1F1B.

    In step j, device d runs its forward task j - d, and a backward task that lags by the device's
    warm-up. Tasks go in groups: `device_count` microbatches pass each stage of the device in turn.

    Attributes:
        task_count: the forward tasks of a device, as many as backward ones.
        group_tasks: the forward tasks of one group of microbatches on a device.
        longest_warmup: the forward tasks of the first device before its first backward task.
        step_count: the steps until all devices have ended.
        free_s: for each device, when it has ended its tasks so far.
    """

    def __init__(
        self, stages: Sequence[Stage], device_count: int, microbatches: int, send_s: float
    ) -> None:
        virtual = len(stages) // device_count  # stages of a device
        self._device_count = device_count
        self._send_s = send_s
        self._stages_of_device = [stages[device::device_count] for device in range(device_count)]
        self._warmups = [  # as in `pipedream_flush`
            2 * (device_count - 1 - device) + (virtual - 1) * device_count
            for device in range(device_count)
        ]
        self.task_count = microbatches * virtual
        self.group_tasks = device_count * virtual
        self.longest_warmup = self._warmups[0]
        self.step_count = self.task_count + self.longest_warmup + device_count
        self.free_s = [0.0] * device_count
        self._forward_ends_s = [-inf] * device_count  # of each device's last forward task
        self._backward_ends_s = [-inf] * device_count

    def run_step(self, step: int) -> None:
        """Run a forward and a backward task on every device that has started."""
        task_count = self.task_count
        # Inputs come from tasks of the step before.
        forward_inputs_s = [end_s + self._send_s for end_s in self._forward_ends_s]
        backward_inputs_s = [end_s + self._send_s for end_s in self._backward_ends_s]
        for device in range(min(self._device_count, step + 1)):
            forward_task = step - device
            if forward_task < task_count:
                self._run_forward(device, forward_task, forward_inputs_s[device - 1])
            backward_task = forward_task - self._warmups[device]
            if 0 <= backward_task < task_count:
                next_device = (device + 1) % self._device_count
                self._run_backward(device, backward_task, backward_inputs_s[next_device])

    def _run_forward(self, device: int, task: int, input_s: float) -> None:
        """Run a forward task, whose input arrives at `input_s` from the device before."""
        chunk = task % self.group_tasks // self._device_count
        is_first_stage = device == 0 and chunk == 0
        start_s = self.free_s[device]
        if input_s > start_s and not is_first_stage:
            start_s = input_s
        end_s = start_s + self._stages_of_device[device][chunk].forward_s
        self.free_s[device] = self._forward_ends_s[device] = end_s

    def _run_backward(self, device: int, task: int, input_s: float) -> None:
        """Run a backward task, whose input arrives at `input_s` from the device after."""
        # Backward tasks begin with a device's last stage.
        chunk_from_end = task % self.group_tasks // self._device_count
        is_last_stage = device == self._device_count - 1 and chunk_from_end == 0
        start_s = self.free_s[device]
        if input_s > start_s and not is_last_stage:
            start_s = input_s
        end_s = start_s + self._stages_of_device[device][-1 - chunk_from_end].backward_s
        self.free_s[device] = self._backward_ends_s[device] = end_s

    def state(self) -> State:
        """Return all times that the next step depends on."""
        return (*self.free_s, *self._forward_ends_s, *self._backward_ends_s)

    def delay(self, delay_s: float) -> None:
        """Make all clocks later."""
        for times_s in (self.free_s, self._forward_ends_s, self._backward_ends_s):
            _delay(times_s, delay_s)


def _delay(times_s: list[float], delay_s: float) -> None:
    """Make all times later, in place."""
    times_s[:] = [time_s + delay_s for time_s in times_s]


def _find_period(states: Sequence[State], state_counts: Sequence[int]) -> Period | None:
    """Return the shortest period with which the last state repeats an earlier one, or None.

    The next state depends on the last one alone, so a repeated state repeats for ever.
    """
    last_state = states[-1]
    for state_count in state_counts:
        if len(states) <= state_count:
            return None
        earlier_state = states[-1 - state_count]
        delays_s = list(map(sub, last_state, earlier_state))
        # The state repeats if all of its times are later by the same delay.
        is_repeated = max(delays_s) - min(delays_s) <= PERIOD_TOLERANCE * max(delays_s)
        if is_repeated:
            return Period(state_count, delays_s[0])
    return None
