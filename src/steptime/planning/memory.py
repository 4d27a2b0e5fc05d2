"""What each device of a plan holds at its fullest, by part."""

from collections.abc import Sequence
from typing import NamedTuple

from steptime.core.workload import Plan
from steptime.planning.passes import Step
from steptime.planning.planner import Planner
from steptime.planning.stages import Load
from steptime.prediction.training import FIRST, LAST, LOW_BYTES


class Memory(NamedTuple):
    """Bytes of a device of a plan by part, at the worst moment of a step.

    `activations` are of all microbatches in flight, with what lives for a moment in the backward
    pass of a layer; `gathered` are whole layers of weights that are shared out otherwise; `logits`
    those of head and loss; `context` is what driver and libraries take. Of networks that are no
    language models, on one device, all is what `predict` says, with its `inputs`, `temporaries` and
    the allocator's `blocks`.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    gathered: float
    logits: float
    buffers: float
    context: float
    inputs: float = 0.0
    temporaries: float = 0.0
    blocks: float = 0.0

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self)

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by part: `weights_bytes`, ..., the last three where there are any."""
        later = self._field_defaults
        parts = self._asdict().items()
        return {f"{name}_bytes": value for name, value in parts if value or name not in later}


def memory_of(one: Step, d: int, most: Sequence[int], microbatches: int) -> Memory:
    """Return the memory of a device of the pipeline, whose stages hold `most` microbatches."""
    still, kept = parts_of(one, d)
    return still._replace(activations=still.activations + in_flight(kept, most, microbatches))


Kept = tuple[tuple[int, float], ...]  # stages of a device, and bytes that a microbatch keeps there


def parts_of(one: Step, d: int) -> tuple[Memory, Kept]:
    """Return what a device of the pipeline holds beside microbatches, and what each of these."""
    load, plan, stages = one.shape.devices[d], one.plan, one.shape.stages
    if (whole := one.planner.held_alone(plan, one.microbatch, one.rounds)) is not None:
        return Memory(**whole), ()
    of_plan = (plan.zero, plan.recompute, plan.replicas, plan.offload, plan.shards, plan.schedule)
    key = ("standing", id(one.pieces), load, *of_plan)
    own: Sequence[int] = range(d, len(stages), plan.pipeline)
    own = (d, plan.pipeline - 1 - d) if plan.goes_both_ways else own
    return (
        one.planner.once(key, lambda: _standing(one, load)),
        tuple([(k, kept_of(one, stages[k])[0]) for k in own]),
    )


def kept_of(one: Step, load: Load) -> tuple[float, float]:
    """Return the bytes that a microbatch keeps of a stage: on the device, and on the host."""

    def added() -> tuple[float, float]:
        ends = sum(one.kept(part) * count for part, count in load if part.name == FIRST)
        layers = sum(one.kept(part) * count for part, count in load if not part.is_end)
        away = one.plan.offload in ("activations", "both")
        grows = 1 + one.planner.constant("fragmented")
        return (ends * grows, layers) if away else ((ends + layers) * grows, 0.0)

    return one.planner.once(
        ("kept", id(one.pieces), load, one.plan.recompute, one.plan.offload), added
    )


def host_bytes(one: Step, d: int, most: Sequence[int], microbatches: int) -> float:
    """Return the bytes that a device of the pipeline has in its host's memory."""
    result, own = 0.0, range(d, len(most), one.plan.pipeline)
    if one.plan.offload in ("optimizer", "both"):
        result = shared_of(one, one.shape.devices[d], 1) * one.planner.constant("state_bytes")
    kept = tuple((k, kept_of(one, one.shape.stages[k])[1]) for k in own)
    return result + in_flight(kept, most, microbatches)


def in_flight(kept: Kept, most: Sequence[int], microbatches: int) -> float:
    """Return the bytes of the microbatches in flight of a device."""
    return sum([each * min(most[k], microbatches) for k, each in kept])


def _standing(one: Step, load: Load) -> Memory:
    """Return what a device holds beside the microbatches in flight."""
    plan, constant = one.plan, one.planner.constant
    layers = [part for part, _ in load if not part.is_end]
    helds = {part: one.pieces[part.name].held for part in layers}
    working = float(max((held.working for held in helds.values()), default=0))
    again = [held for part, held in helds.items() if part.again]
    if plan.recompute == "full":
        working += max((held.kept for held in again), default=0)
    elif plan.recompute == "selective":
        working += max((held.core for held in again), default=0)
    if plan.offload in ("activations", "both"):  # of a layer, while that before is on its way
        working += 2 * max((one.kept(part) for part in layers), default=0)
    gathered = 0.0
    if plan.zero >= 2:  # gathered with the next one; its gradients, until they are scattered
        each = 2 * one.planner.weight_bytes * (plan.zero == 3) + constant("gradient_bytes")
        pieces = [one.pieces[part.name] for part, _ in load]
        times = 2 * (plan.zero == 3)
        gathered = max(each * piece.parameters + times * piece.frozen_bytes for piece in pieces)
    logits = 0.0
    if any(part.name == LAST for part, _ in load):
        head, shape = one.pieces[LAST].held, one.planner.shape
        words = one.microbatch * shape.length / plan.context * shape.vocabulary / plan.tensor
        chunks = constant("logit_chunks")
        logits = head.kept + head.working
        logits += words * constant("logit_bytes") / max(1.0, chunks)
        if chunks > 1:  # what the head needs is gone before layers need theirs
            logits = max(0.0, logits - working)
    weights, gradients, states = of_parameters(one.planner, plan, parameters_of(one, load))
    frozen = sum(one.pieces[part.name].frozen_bytes * count for part, count in load)
    return Memory(
        weights + frozen / (plan.shards if plan.zero == 3 else 1),
        gradients,
        states,
        working * (1 + constant("fragmented")),
        gathered,
        logits,
        constant("buffer_bytes"),
        constant("context_bytes"),
    )


def parameters_of(one: Step, load: Load) -> tuple[int, int]:
    """Return the parameters of a device that all replicas share, and those of routed experts."""
    whole = routed = 0
    for part, count in load:
        piece = one.pieces[part.name]
        whole += piece.parameters * count
        routed += piece.routed * count
    return whole - routed, routed


def shared_of(one: Step, load: Load, least: int) -> float:
    """Return the parameters of which a device has something that ZeRO shares from `least` on."""
    return shared(one.plan, parameters_of(one, load), least)


def shared(plan: Plan, parameters: tuple[float, float], least: int) -> float:
    """Return the parameters, of all and of routed experts, that ZeRO leaves from `least` on."""
    dense, routed = parameters
    if plan.zero < least:
        return dense + routed
    both = 2 if plan.goes_both_ways else 1  # as many devices again have the same
    return dense / plan.shards / both + routed / plan.expert_shards / both


def of_parameters(
    planner: Planner, plan: Plan, parameters: tuple[float, float]
) -> tuple[float, float, float]:
    """Return the bytes of weights, gradients and states of a device with so many parameters."""
    weights, gradients, states = (shared(plan, parameters, least) for least in (3, 2, 1))
    offloaded = plan.offload in ("optimizer", "both")
    in_weights = planner.weight_bytes + LOW_BYTES.get(planner.low, planner.copy_bytes)
    if plan.zero == 3:  # the states' own, cast when they are gathered
        in_weights = planner.weight_bytes if offloaded else 0.0
    return (
        weights * in_weights,
        gradients * planner.constant("gradient_bytes"),
        0.0 if offloaded else states * planner.constant("state_bytes"),
    )


def least_bytes(planner: Planner, plan: Plan) -> float:
    """Return bytes that the fullest device of a plan has at least, before its layers are priced.

    They are those of its parameters: tensor and expert ranks share no more than all of them.
    """
    if planner.shape.batch is not None:
        return 0.0
    whole, most = planner.whole, 0.0
    layout = planner.layout(plan, 1)
    for load in {*layout.devices}:
        every = sum([whole[part.name].parameters * count for part, count in load])
        routed = sum([whole[part.name].routed * count for part, count in load])
        tensor = 1 if plan.routes_per_rank else plan.tensor
        counts = ((every - routed) / plan.tensor, routed / tensor / plan.expert)
        most = max(most, sum(of_parameters(planner, plan, counts)))
    return most + planner.constant("buffer_bytes") + planner.constant("context_bytes")
