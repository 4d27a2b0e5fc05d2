"""A plan of one device: the step of the whole network as `predict` has it, for the plan's parts."""

from collections.abc import Mapping, Sequence
from math import exp

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.workload import FULL_TRAINING, Tuning
from steptime.hardware.device import Device
from steptime.network.ops.training import STATE_BLOCK
from steptime.planning.pieces import Piece
from steptime.prediction import conformal
from steptime.prediction.calibrated.interval import Bounds, bounds
from steptime.prediction.calibrated.power import spent_j
from steptime.prediction.kernels import Kernels
from steptime.prediction.step_model import StepModel
from steptime.prediction.training import FIRST, LAST, piece_of


def as_timed(
    pieces: Mapping[str, Piece], model: StepModel, batch: int, kinds: Sequence[str]
) -> dict[str, Piece]:
    """Return pieces whose seconds are those of a step, a layer as its kind has them in the mean.

    `kinds` are those of the layers in their order; the host is in the step.
    """
    times = model.timeline(batch)
    slower = times.slower
    sums = {name: [0.0, 0.0, 0] for name in pieces}
    for row in times.rows:
        name = piece_of(row.row.name)
        if name not in (FIRST, LAST):
            name = kinds[int(name.removeprefix("block")) - 1]
        for i, one in enumerate((row.forward, row.backward)):
            sums[name][i] += one.value * slower[i]
    often = {name: max(1, kinds.count(name)) for name in pieces}
    return {
        name: one._replace(
            forward_s=sums[name][0] / often[name],
            backward_s=sums[name][1] / often[name],
            host_s=(0.0, 0.0),
        )
        for name, one in pieces.items()
    }


def held_alone(model: StepModel, batch: int) -> dict[str, float]:
    """Return the bytes of each part of the memory that a step needs (`memory.Memory`)."""
    needs, parts = model.needs(batch), model.worst_moment(batch).parts
    return {
        **{name: float(parts[name]) for name in ("gradients", "inputs", "temporaries")},
        "weights": float(parts["weights"] + parts["copies"]),
        "states": float(parts["state"]),
        "activations": float(parts["activations"]),
        **dict.fromkeys(("gathered", "logits"), 0.0),
        "buffers": float(needs.workspace_bytes or 0),
        "context": float(needs.context_bytes or 0),
        "blocks": float(needs.blocks_bytes or 0),
    }


def spared(tuning: Tuning, dtype: str) -> float:
    """Return the bytes that two states of 8 bits with their scales spare beside those of a type."""
    return 2 * (SIZE_BYTES[dtype] - 1 - 4 / STATE_BLOCK) if "8-bit" in tuning.states else 0.0


def update_s(model: StepModel, batch: int) -> float:
    """Return the seconds of a step's update, without what comes after all (`Host.after_s`)."""
    host = model.host(model.lowered(batch))
    return model.timeline(batch).update_s - (0.0 if host is None else host.after_s)


def spent_j_of(model: StepModel, batch: int) -> tuple[float, float]:
    """Return the joules of a step's kernels beyond those of waiting: of both passes, of its update.

    They are 0 where not known.
    """
    kernels = model.lowered(batch).kernels
    passes = [kernel for kernel in kernels if kernel.pass_ != "update"]
    updates = [kernel for kernel in kernels if kernel.pass_ == "update"]
    return spent_j(Kernels(passes), model.seen), spent_j(Kernels(updates), model.seen)


def between(model: StepModel, batch: int, step_s: float, exposed_s: float) -> tuple[float, float]:
    """Return the ends of a step's interval, as far from it as those of a model's step.

    The seconds in which it waits for exchanges have no interval of their own.
    """
    times = model.timeline(batch)
    low_s, high_s = (
        exposed_s + (step_s - exposed_s) * (1.0 if end_s is None else end_s / times.step_s)
        for end_s in (times.low_s, times.high_s)
    )
    return low_s, high_s


def training_kind(tuning: Tuning, has_experts: bool) -> str:
    """Return the kind of work of a step of many devices, by which its interval is found."""
    if tuning != FULL_TRAINING:
        return conformal.FINE_TUNINGS
    return conformal.MIXTURE_TRAININGS if has_experts else conformal.TRAININGS


def step_bounds(device: Device, tuning: Tuning, has_experts: bool) -> Bounds:
    """Return the interval of a step of many devices, as shares of it.

    A device that was calibrated by steps of its own has the interval that these told.
    """
    differences = plan_bounds(device, has_experts)
    if has_calibrated_ends(device, has_experts):
        return differences
    ends = conformal.find_ends(training_kind(tuning, has_experts), device)
    return Bounds(exp(-ends.below), exp(ends.above), differences.shared)


def plan_bounds(device: Device, has_experts: bool) -> Bounds:
    """Return by how much plans of one device differ from each other, as shares of a step."""
    return bounds("experts" if has_experts else "plan", device.constants)


def has_calibrated_ends(device: Device, has_experts: bool) -> bool:
    """Whether rows of the device itself told the interval of its steps."""
    return f"interval.{'experts' if has_experts else 'plan'}_low" in device.constants
