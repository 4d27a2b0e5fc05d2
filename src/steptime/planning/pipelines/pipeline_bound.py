"""Lower bounds of a pipeline's step, and how many microbatches each stage holds at once.

The bound is what lets a search leave most plans unpriced: it is a maximum over a few lines
`fixed_s + microbatches * microbatch_s`, without following a schedule.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from steptime.planning.pipelines.pipeline import FORWARD, TASK_ORDERS, Stage, busy_s
from steptime.planning.pipelines.pipeline_end import PipelineTimes, dualpipe_bubble_s, paired_busy_s

COUNTED_GROUPS = 6  # groups of microbatches after which the number in flight no longer grows


class BoundLine(NamedTuple):
    """The seconds of a chain of dependent tasks: `fixed_s + microbatches * microbatch_s`."""

    fixed_s: float
    microbatch_s: float


class PipelineBound(NamedTuple):
    """A lower bound of a pipeline's run with the work that follows it on each device.

    Attributes:
        lines: one line for each chain of dependent tasks.
        full_lines: the lines of a pipeline with more microbatches than devices.
        device_count: the devices of the pipeline.
    """

    lines: tuple[BoundLine, ...]
    full_lines: tuple[BoundLine, ...]
    device_count: int

    def end_s(self, microbatches: int) -> float:
        """Return the lower bound in seconds for a number of microbatches."""
        lines = self.full_lines if microbatches > self.device_count else self.lines
        return max([fixed_s + microbatches * microbatch_s for fixed_s, microbatch_s in lines])


def lower_bound(pipeline: PipelineTimes, final_work_s: Sequence[float]) -> PipelineBound:
    """Return a lower bound of a pipeline's run; it is exact for equal stages with hidden sends.

    A chain of dependent tasks goes forward to a device, runs the tasks of all microbatches there,
    and goes back to the device at which it ends.

    Args:
        pipeline: the stages and their schedule.
        final_work_s: for each device, the seconds of its work after the last task: exchange of
            gradients and update.
    """
    schedule, stages, device_count, _ = pipeline
    # Stages of both directions run in pairs: the busiest pair decides.
    if schedule == "dualpipe":
        fixed_s = dualpipe_bubble_s(stages) + max(final_work_s)
        line = BoundLine(fixed_s, microbatch_s=max(paired_busy_s(stages)))
        return PipelineBound((line,), (line,), device_count)
    chains = _list_chains(pipeline, final_work_s)
    lines = [chain.line for chain in chains]
    # `full_pipeline_wait_s` counts only with enough microbatches to fill the pipeline.
    full_lines = [
        BoundLine(chain.line.fixed_s + chain.full_pipeline_wait_s, chain.line.microbatch_s)
        for chain in chains
    ]
    return PipelineBound(_highest_lines(lines), _highest_lines(full_lines), device_count)


class _Chain(NamedTuple):
    """The line of a chain of dependent tasks, and the seconds added where the pipeline is full."""

    line: BoundLine
    full_pipeline_wait_s: float


class _StagePath(NamedTuple):
    """The way of a microbatch before and behind its tasks in a stage.

    Attributes:
        forward_s: from the first stage to this one.
        backward_s: from this stage back to the end of the slowest device of an earlier stage, with
            its final work; minus infinity for the first stage.
        later_stages_s: both passes of all later stages.
    """

    forward_s: float
    backward_s: float
    later_stages_s: float


def _list_paths(
    pipeline: PipelineTimes, weights_s: Sequence[float], final_work_s: Sequence[float]
) -> Iterator[_StagePath]:
    """Yield the paths of the stages; `weights_s` are put-off gradients of weights."""
    _, stages, device_count, send_s = pipeline
    forward_s = 0.0
    backward_s = -inf
    later_stages_s = sum(_task_s(stage, 0.0) for stage in stages) - sum(weights_s)
    for j, (stage, weight_s) in enumerate(zip(stages, weights_s, strict=True)):
        later_stages_s -= _task_s(stage, weight_s)
        yield _StagePath(forward_s, backward_s, later_stages_s)
        # The way to the next stage, and back from it.
        forward_s += stage.forward_s + send_s
        is_first_of_device = j < device_count
        if is_first_of_device:
            backward_s = max(weight_s + final_work_s[j], backward_s)
        backward_s += stage.backward_s - weight_s + send_s


def _list_chains(pipeline: PipelineTimes, final_work_s: Sequence[float]) -> list[_Chain]:
    """Return the chains of dependent tasks of a pipeline.

    A chain is the way of a microbatch to a stage, the tasks of all microbatches there, and the way
    back to the device at which it ends.
    """
    schedule, stages, device_count, send_s = pipeline
    splits_backward = schedule == "zero-bubble"
    # Only plain 1F1B with one stage a device waits for the way to the last stage and back.
    has_round_trips = schedule == "1f1b" and len(stages) == device_count
    weights_s = [stage.weight_s if splits_backward else 0.0 for stage in stages]
    device_busy_s = busy_s(stages, device_count)
    last_stage = len(stages) - 1
    paths = list(_list_paths(pipeline, weights_s, final_work_s))
    chains = []
    for j in range(device_count):  # the first stage of each device
        path = paths[j]
        # The way back ends here with this device's final work, or at the slowest earlier device.
        # Zero bubble lets stage j put off the gradients of weights of 1 + j microbatches: the busy
        # time counts them, but earlier devices do not wait for them.
        deferred_s = (1 + j) * weights_s[j]
        fixed_s = path.forward_s + max(final_work_s[j], path.backward_s - deferred_s)
        wait_s = 0.0
        if has_round_trips:
            wait_s = _round_trip_wait_s(stages[j], last_stage - j, path.later_stages_s, send_s)
        chains.append(_Chain(BoundLine(fixed_s, device_busy_s[j]), wait_s))
        # With few microbatches the gradients of weights come late: a chain that ends on an earlier
        # device waits for none of them.
        if splits_backward:
            late_line = BoundLine(
                fixed_s=path.forward_s + max(path.backward_s, 0.0),
                microbatch_s=_task_s(stages[j], weights_s[j]),
            )
            chains.append(_Chain(late_line, full_pipeline_wait_s=0.0))
    is_interleaved = len(stages) > device_count
    if is_interleaved:  # the last stage turns round, whichever device has it
        path = paths[last_stage]
        last_line = BoundLine(
            fixed_s=path.forward_s + path.backward_s,
            microbatch_s=_task_s(stages[last_stage], weights_s[last_stage]),
        )
        chains.append(_Chain(last_line, full_pipeline_wait_s=0.0))
    return chains


def _task_s(stage: Stage, weight_s: float) -> float:
    """Return the seconds of both passes of a stage, without gradients of weights."""
    return stage.forward_s + stage.backward_s - weight_s


def _round_trip_wait_s(
    stage: Stage, later_stage_count: int, later_stages_s: float, send_s: float
) -> float:
    """Return the seconds a device of full 1F1B waits for the way to the last stage and back."""
    # A device waits twice for a microbatch that goes to the last stage and back: for the first one
    # after its warm-up, and for the last one at the end. Until the first one is back it runs a
    # forward pass for each later stage, until the last one is back a backward pass for each.
    round_trip_s = later_stages_s + 2 * later_stage_count * send_s
    forward_wait_s = max(0.0, round_trip_s - later_stage_count * stage.forward_s)
    backward_wait_s = max(0.0, round_trip_s - later_stage_count * stage.backward_s)
    return forward_wait_s + backward_wait_s


def _highest_lines(lines: Sequence[BoundLine]) -> tuple[BoundLine, ...]:
    """Return the lines that may be the highest for some number of microbatches, from one on."""
    highest: list[BoundLine] = []
    highest_step_s = -inf  # the height of these lines at one microbatch
    steepest_first = sorted(lines, key=lambda line: (line.microbatch_s, line.fixed_s), reverse=True)
    for line in steepest_first:
        # A flatter line is only higher somewhere if it begins above all steeper ones.
        step_s = line.fixed_s + line.microbatch_s
        if not highest or step_s > highest_step_s:
            highest.append(line)
            highest_step_s = step_s
    return tuple(highest)


@lru_cache(maxsize=1 << 12)
def microbatches_in_flight(
    schedule: str, device_count: int, virtual: int, microbatches: int
) -> tuple[int, ...]:
    """Return the microbatches that each stage holds when its device holds the largest number.

    It agrees with a count over the tasks of the schedule, without listing them.
    """
    stage_count = device_count * virtual
    # All forward passes come first.
    if schedule == "gpipe":
        return (microbatches,) * stage_count
    # Put-off gradients of weights keep as many as the first device has in 1F1B.
    if schedule == "zero-bubble":
        return (min(microbatches, device_count),) * device_count
    # 1F1B: one microbatch for each device from this one to the last.
    if virtual == 1:
        return tuple(min(microbatches, device_count - d) for d in range(device_count))
    # The last group is larger than the others, for which there is no formula.
    if microbatches > device_count and microbatches % device_count:
        return _count_in_flight(schedule, device_count, virtual, microbatches)
    return _count_interleaved_in_flight(device_count, virtual, microbatches)


def _count_interleaved_in_flight(
    device_count: int, virtual: int, microbatches: int
) -> tuple[int, ...]:
    """Return the microbatches in flight of interleaved 1F1B with groups of equal size.

    A device takes a group of microbatches through all its stages in turn. It holds most after its
    warm-up and one more forward task.
    """
    group = min(device_count, microbatches)
    in_flight = []
    for stage in range(device_count * virtual):
        chunk, device = divmod(stage, device_count)
        later_devices = device_count - 1 - device
        warmup_tasks = 2 * later_devices + (virtual - 1) * group  # as in `pipedream_flush`
        forward_tasks = min(microbatches * virtual, warmup_tasks + 1)
        # Whole groups have passed all stages of the device. Of the group that is on its way, the
        # first `chunk * group` tasks were in the stages before this one.
        full_groups, partial_tasks = divmod(forward_tasks, group * virtual)
        tasks_from_chunk_on = max(0, partial_tasks - chunk * group)
        partial_group = min(group, tasks_from_chunk_on)
        in_flight.append(min(microbatches, full_groups * group + partial_group))
    return tuple(in_flight)


def _count_in_flight(
    schedule: str, device_count: int, virtual: int, microbatches: int
) -> tuple[int, ...]:
    """Return the microbatches in flight, counted over a schedule without its repeating middle."""
    # In the middle of the schedule each group repeats the one before, and changes no maximum.
    repeating_groups = max(0, microbatches // device_count - COUNTED_GROUPS)
    counted_microbatches = microbatches - device_count * repeating_groups
    task_order = TASK_ORDERS[schedule]
    in_flight = [0] * (device_count * virtual)
    for device in range(device_count):
        chunk_counts = [0] * virtual  # microbatches in each of the device's stages
        microbatch_count = max_count = 0  # in all of them; a backward task lets go of one
        for direction, stage, _ in task_order(device, device_count, virtual, counted_microbatches):
            change = 1 if direction == FORWARD else -1
            chunk_counts[stage // device_count] += change
            microbatch_count += change
            if microbatch_count > max_count:
                max_count = microbatch_count
                # The counts of the device's stages at its fullest moment.
                in_flight[device::device_count] = chunk_counts
    return tuple(in_flight)
