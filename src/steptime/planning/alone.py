"""A plan of one device: the step of the whole network as `predict` has it, for the plan's parts."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import NamedTuple

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.workload import Tuning
from steptime.hardware.device import Device
from steptime.network.ops.training import STATE_BLOCK
from steptime.planning.pieces import Piece
from steptime.prediction import conformal
from steptime.prediction.calibrated.interval import Bounds, bounds
from steptime.prediction.calibrated.power import spent_j
from steptime.prediction.host import finish
from steptime.prediction.kernels import Kernels
from steptime.prediction.schedule import together
from steptime.prediction.step_model import StepModel
from steptime.prediction.training import FIRST, LAST, piece_of


class StepPasses(NamedTuple):
    """The seconds of a step of several microbatches on one device, behind its host.

    `forward_s` and `backward_s` are those of all microbatches; `update_s` holds `after_s`, which
    comes after all. The step lies between `low_s` and `high_s`, None for a bound that is unknown.
    """

    forward_s: float
    backward_s: float
    update_s: float
    after_s: float
    low_s: float | None
    high_s: float | None

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.forward_s + self.backward_s + self.update_s


def accumulated(model: StepModel, batch: int, rounds: int) -> StepPasses:
    """Return the step of a device that accumulates gradients over microbatches.

    The host issues both passes once a microbatch and the update once. So what it is late in a pass
    is paid in every round, and no long update hides it: of 20 ms of host and 8 ms of kernels a
    round, and an update of 15 ms, one round takes 23 ms and eight take 160.
    """
    times, host = model.timeline(batch), model.host(model.lowered(batch))
    after_s = 0.0 if host is None else host.after_s
    first = StepPasses(
        *(times.forward_s, times.backward_s, times.update_s, after_s, times.low_s, times.high_s)
    )
    if rounds == 1:
        return first
    rows = [(row.forward.value, row.backward.value, row.update.value) for row in times.rows]
    forward_s, backward_s, update_s = (sum(column) for column in zip(*rows, strict=True))
    shares = together(model.lowered(batch).columns, model.prices(batch)).total().shares
    once, *_ = finish((forward_s, backward_s, update_s), shares, host)
    totals_s = (rounds * forward_s, rounds * backward_s, update_s)
    passes, low_s, high_s = finish(totals_s, shares, None if host is None else host.rounds(rounds))
    transfer_s = times.update_s - float(once[2])  # what moves to the host and back
    ends = (None if end_s is None else float(end_s) + transfer_s for end_s in (low_s, high_s))
    forward_s, backward_s, update_s = map(float, passes)
    return StepPasses(forward_s, backward_s, update_s + transfer_s, after_s, *ends)


def as_timed(
    pieces: Mapping[str, Piece],
    model: StepModel,
    batch: int,
    kinds: Sequence[str],
    rounds: int = 1,
) -> dict[str, Piece]:
    """Return pieces whose seconds are those of a step, a layer as its kind has them in the mean.

    Args:
        pieces: the pieces of the network.
        model: the step of the whole network.
        batch: the sequences of a microbatch.
        kinds: the kinds of the layers in their order.
        rounds: the microbatches of a step, of which the seconds are the mean. The host is in them.
    """
    times, passes = model.timeline(batch), accumulated(model, batch, rounds)
    pass_s = [
        sum(row.forward.value for row in times.rows),
        sum(row.backward.value for row in times.rows),
    ]
    slower = [
        slowed_s / (rounds * part_s) if part_s else 1.0
        for slowed_s, part_s in zip(passes[:2], pass_s, strict=True)
    ]
    sums = {name: [0.0, 0.0] for name in pieces}
    for row in times.rows:
        name = piece_of(row.row.name)
        if name not in (FIRST, LAST):
            name = kinds[int(name.removeprefix("block")) - 1]
        for i, time in enumerate((row.forward, row.backward)):
            sums[name][i] += time.value * slower[i]
    often = {name: max(1, kinds.count(name)) for name in pieces}
    return {
        name: piece._replace(
            forward_s=sums[name][0] / often[name],
            backward_s=sums[name][1] / often[name],
            host_s=(0.0, 0.0),
        )
        for name, piece in pieces.items()
    }


def as_recomputed(pieces: Mapping[str, Piece], recomputed: Mapping[str, Piece]) -> dict[str, Piece]:
    """Return pieces that know what their layers compute again, from two timed steps.

    Args:
        pieces: those of a step that keeps all activations.
        recomputed: those of a step whose layers compute theirs again.
    """
    timed = {}
    for name, piece in recomputed.items():
        recompute_s = max(0.0, piece.backward_s - pieces[name].backward_s)
        if name in (FIRST, LAST):
            recompute_s = 0.0
        timed[name] = piece._replace(backward_s=piece.backward_s - recompute_s, again_s=recompute_s)
    return timed


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


def update_s(model: StepModel, batch: int, rounds: int = 1) -> float:
    """Return the seconds of a step's update, without what comes after all (`Host.after_s`)."""
    passes = accumulated(model, batch, rounds)
    return passes.update_s - passes.after_s


def spent_j_of(model: StepModel, batch: int) -> tuple[float, float]:
    """Return the joules of a step's kernels beyond those of waiting: of both passes, of its update.

    They are 0 where not known.
    """
    kernels = model.lowered(batch).kernels
    passes = [kernel for kernel in kernels if kernel.pass_ != "update"]
    updates = [kernel for kernel in kernels if kernel.pass_ == "update"]
    return spent_j(Kernels(passes), model.seen), spent_j(Kernels(updates), model.seen)


def between(
    model: StepModel, batch: int, step_s: float, exposed_s: float, rounds: int = 1
) -> tuple[float, float]:
    """Return between which seconds a step lies whose kernels are as far off as those of a model.

    The seconds in which it waits for exchanges are taken as they are (`with_links`).
    """
    times = accumulated(model, batch, rounds)
    low_s, high_s = (
        exposed_s + (step_s - exposed_s) * (1.0 if end_s is None else end_s / times.step_s)
        for end_s in (times.low_s, times.high_s)
    )
    return low_s, high_s


def training_kind(tuning: Tuning, has_experts: bool) -> str:
    """Return the kind of work of a step of many devices, by which its interval is found."""
    if tuning.freezes:
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
