"""A device that runs the whole network: its step as `predict` has it, divided among the pieces."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import NamedTuple

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.workload import StateMode, Tuning
from steptime.hardware.device import Device
from steptime.network.ops.training import STATE_BLOCK
from steptime.planning.ranks.pieces import PassPair, Piece
from steptime.prediction import conformal
from steptime.prediction.calibrated.interval import Bounds, bounds
from steptime.prediction.calibrated.power import kernels_j
from steptime.prediction.host import bound_step
from steptime.prediction.kernels import Kernels
from steptime.prediction.schedule import sum_repeats
from steptime.prediction.steps.step_model import StepModel
from steptime.prediction.training import FIRST, LAST, piece_of

SCALE_BYTES = 4  # the scale of a block of states of 8 bit
EIGHT_BIT_STATES = 2  # of an optimizer, for each parameter


class StepPasses(NamedTuple):
    """The seconds of a step of several microbatches on one device, with the waits for its host.

    Attributes:
        forward_s: the forward passes of all microbatches.
        backward_s: the backward passes of all microbatches.
        update_s: the update, with `after_kernels_s`.
        after_kernels_s: the time after all kernels.
        low_s: the low end of the step's interval; None where it is unknown.
        high_s: the high end; None where it is unknown.
    """

    forward_s: float
    backward_s: float
    update_s: float
    after_kernels_s: float
    low_s: float | None
    high_s: float | None

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.forward_s + self.backward_s + self.update_s


def accumulate_passes(model: StepModel, microbatch: int, microbatches: int) -> StepPasses:
    """Return the step of a device that accumulates gradients over microbatches.

    The host issues both passes once for each microbatch, and the update once. So a delay of the
    host is paid in every microbatch, and no long update hides it: with 20 ms of host and 8 ms of
    kernels for a microbatch, and an update of 15 ms, one microbatch takes 23 ms and eight take 160.
    """
    times = model.timeline(microbatch)
    host = model.host(model.lower_step(microbatch))
    after_kernels_s = 0.0 if host is None else host.after_kernels_s
    if microbatches > 1:
        return _repeat_passes(model, microbatch, microbatches, after_kernels_s)
    return StepPasses(
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        update_s=times.update_s,
        after_kernels_s=after_kernels_s,
        low_s=times.low_s,
        high_s=times.high_s,
    )


def _repeat_passes(
    model: StepModel, microbatch: int, microbatches: int, after_kernels_s: float
) -> StepPasses:
    """Return a step with the passes of one microbatch repeated, and one update."""
    times = model.timeline(microbatch)
    lowered_step = model.lower_step(microbatch)
    host = model.host(lowered_step)
    # The seconds of the kernels alone, without the host.
    forward_s = sum(row.forward.value for row in times.rows)
    backward_s = sum(row.backward.value for row in times.rows)
    update_s = sum(row.update.value for row in times.rows)
    # The bounds of the kernels' seconds, as shares of these seconds.
    shares = sum_repeats(lowered_step.columns, model.prices(microbatch)).total().shares
    # `times` has the states' transfer in the update; kernels and host alone take the other part.
    single_step = bound_step((forward_s, backward_s, update_s), shares, host)
    _, _, single_update_s = single_step.passes_s
    transfer_s = times.update_s - float(single_update_s)
    repeated_host = None if host is None else host.repeat_passes(microbatches)
    repeated_s = (microbatches * forward_s, microbatches * backward_s, update_s)
    passes_s, low_s, high_s = bound_step(repeated_s, shares, repeated_host)
    all_forward_s, all_backward_s, all_update_s = map(float, passes_s)
    return StepPasses(
        forward_s=all_forward_s,
        backward_s=all_backward_s,
        update_s=all_update_s + transfer_s,
        after_kernels_s=after_kernels_s,
        low_s=None if low_s is None else float(low_s) + transfer_s,
        high_s=None if high_s is None else float(high_s) + transfer_s,
    )


def time_pieces(
    pieces: Mapping[str, Piece],
    model: StepModel,
    microbatch: int,
    kinds: Sequence[str],
    microbatches: int = 1,
) -> dict[str, Piece]:
    """Return pieces with the seconds of a step; a layer has the mean of its kind.

    Args:
        pieces: the pieces of the network.
        model: the step of the whole network.
        microbatch: the sequences of a microbatch.
        kinds: the kind of each layer, in order.
        microbatches: the microbatches of the step. Waits for the host are divided among them.
    """
    rows = model.timeline(microbatch).rows
    passes = accumulate_passes(model, microbatch, microbatches)
    forward_kernel_s = sum(row.forward.value for row in rows)
    backward_kernel_s = sum(row.backward.value for row in rows)
    forward_slowdown = _slowdown(passes.forward_s, microbatches * forward_kernel_s)
    backward_slowdown = _slowdown(passes.backward_s, microbatches * backward_kernel_s)
    # By piece; that of a layer sums the rows of all layers of its kind.
    forward_s = dict.fromkeys(pieces, 0.0)
    backward_s = dict.fromkeys(pieces, 0.0)
    for row_time in rows:
        name = _piece_of_kind(row_time.row.name, kinds)
        forward_s[name] += row_time.forward.value * forward_slowdown
        backward_s[name] += row_time.backward.value * backward_slowdown
    timed_pieces = {}
    for name, piece in pieces.items():
        layer_count = max(1, kinds.count(name))  # 1 for the network's ends
        timed_pieces[name] = piece._replace(
            forward_s=forward_s[name] / layer_count,
            backward_s=backward_s[name] / layer_count,
            host_s=PassPair(),  # the passes hold the waits for the host already
        )
    return timed_pieces


def _piece_of_kind(row_name: str, kinds: Sequence[str]) -> str:
    """Return the piece of a row: an end of the network, or the kind of the row's layer."""
    end_or_layer = piece_of(row_name)  # an end, or `block1`, `block2`, ...
    if end_or_layer in (FIRST, LAST):
        return end_or_layer
    layer = int(end_or_layer.removeprefix("block")) - 1
    return kinds[layer]


def _slowdown(step_s: float, kernel_s: float) -> float:
    """Return the factor by which waits for the host prolong kernels."""
    return step_s / kernel_s if kernel_s else 1.0


def split_off_recompute(
    pieces: Mapping[str, Piece], recomputing_pieces: Mapping[str, Piece]
) -> dict[str, Piece]:
    """Return the recomputing pieces with the time of recomputation apart from the backward pass.

    Args:
        pieces: the pieces of a step that saves all activations.
        recomputing_pieces: the pieces of a step whose layers recompute their activations.
    """
    split_pieces = {}
    for name, piece in recomputing_pieces.items():
        recompute_s = max(0.0, piece.backward_s - pieces[name].backward_s)
        if name in (FIRST, LAST):  # only layers recompute
            recompute_s = 0.0
        split_pieces[name] = piece._replace(
            backward_s=piece.backward_s - recompute_s, recompute_s=recompute_s
        )
    return split_pieces


def memory_by_part(model: StepModel, batch: int) -> dict[str, float]:
    """Return the bytes that a step needs, by the fields of `memory.Memory`."""
    needs = model.needs(batch)
    parts = model.worst_moment(batch).bytes_by_purpose
    return {
        "weights": float(parts["weights"] + parts["copies"]),
        "gradients": float(parts["gradients"]),
        "states": float(parts["state"]),
        "activations": float(parts["activations"]),
        # Nothing is sharded on one device, and logits are counted with the activations.
        "gathered": 0.0,
        "logits": 0.0,
        "buffers": float(needs.workspace_bytes or 0),
        "context": float(needs.context_bytes or 0),
        "inputs": float(parts["inputs"]),
        "temporaries": float(parts["temporaries"]),
        "blocks": float(needs.blocks_bytes or 0),
    }


def saved_state_bytes(tuning: Tuning, dtype: str) -> float:
    """Return the bytes per parameter that states of 8 bit with their scales save."""
    if StateMode.EIGHT_BIT not in tuning.states:
        return 0.0
    eight_bit_bytes = 1 + SCALE_BYTES / STATE_BLOCK
    return EIGHT_BIT_STATES * (SIZE_BYTES[dtype] - eight_bit_bytes)


def update_s(model: StepModel, microbatch: int, microbatches: int = 1) -> float:
    """Return the seconds of a step's update, without the time after all kernels."""
    passes = accumulate_passes(model, microbatch, microbatches)
    return passes.update_s - passes.after_kernels_s


class KernelEnergy(NamedTuple):
    """Joules of kernels beyond those of a waiting device: of both passes, and of the update."""

    passes_j: float
    update_j: float


def kernel_energy(model: StepModel, microbatch: int) -> KernelEnergy:
    """Return the joules of a step's kernels; 0 where they are unknown."""
    kernels = model.lower_step(microbatch).kernels
    passes = [kernel for kernel in kernels if kernel.pass_ != "update"]
    updates = [kernel for kernel in kernels if kernel.pass_ == "update"]
    return KernelEnergy(
        kernels_j(Kernels(passes), model.effective_device),
        kernels_j(Kernels(updates), model.effective_device),
    )


def step_interval(
    model: StepModel, microbatch: int, step_s: float, exposed_s: float, microbatches: int = 1
) -> tuple[float, float]:
    """Return the interval of a step whose kernels are as uncertain as those of a model.

    The exposed communication is taken as it is; the links widen it later.

    Args:
        model: the step of the whole network on one device.
        microbatch: the sequences of a microbatch.
        step_s: the predicted seconds of the step.
        exposed_s: the part of `step_s` that is exposed communication.
        microbatches: the microbatches of a step.
    """
    passes = accumulate_passes(model, microbatch, microbatches)
    # The interval is as wide, relatively, as that of a step on one device.
    kernel_s = step_s - exposed_s
    low_over_step = 1.0 if passes.low_s is None else passes.low_s / passes.step_s
    high_over_step = 1.0 if passes.high_s is None else passes.high_s / passes.step_s
    return exposed_s + kernel_s * low_over_step, exposed_s + kernel_s * high_over_step


def training_kind(tuning: Tuning, has_experts: bool) -> str:
    """Return the kind of work of a step of many devices, which decides its interval."""
    if tuning.has_frozen_weights:
        return conformal.FINE_TUNINGS
    return conformal.MIXTURE_TRAININGS if has_experts else conformal.TRAININGS


def step_bounds(device: Device, tuning: Tuning, has_experts: bool) -> Bounds:
    """Return the interval of a step of many devices, as shares of it.

    A device that was calibrated by steps of its own has the interval of that calibration.
    """
    constant_bounds = plan_bounds(device, has_experts)
    if has_calibrated_ends(device, has_experts):
        return constant_bounds
    ends = conformal.find_ends(training_kind(tuning, has_experts), device)
    return Bounds(exp(-ends.below), exp(ends.above), constant_bounds.shared)


def plan_bounds(device: Device, has_experts: bool) -> Bounds:
    """Return the difference between plans on one device, as shares of a step."""
    return bounds("experts" if has_experts else "plan", device.constants)


def has_calibrated_ends(device: Device, has_experts: bool) -> bool:
    """Return whether the interval of steps was calibrated on the device itself."""
    kind = "experts" if has_experts else "plan"
    return f"interval.{kind}_low" in device.constants
