"""What each device of a plan holds at its fullest, by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steptime.plans.passes import HALF, Step
from steptime.plans.pieces import FIRST, LAST, LOW_BYTES
from steptime.plans.stages import Layout, Load

PARTS = (
    "weights",
    "gradients",
    "states",
    "activations",
    "gathered",
    "logits",
    "buffers",
    "context",
)


class Memory(NamedTuple):
    """Bytes of a device of a plan by part, at the worst moment of a step.

    `activations` are of all micro-batches in flight, with what lives for a moment in the backward
    pass of a layer; `gathered` are whole layers of weights that are shared out otherwise; `logits`
    those of head and loss; `context` is what driver and libraries take.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    gathered: float
    logits: float
    buffers: float
    context: float

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self)

    @property
    def parts(self) -> Mapping[str, float]:
        """Bytes by part."""
        return self._asdict()


def memory_of(one: Step, shape: Layout, d: int, most: Sequence[int], micro_batches: int) -> Memory:
    """Return the memory of a device of the pipeline, whose stages hold `most` micro-batches."""
    still, kept = parts_of(one, shape, d)
    return still._replace(activations=still.activations + in_flight(kept, most, micro_batches))


Kept = tuple[tuple[int, float], ...]  # stages of a device, and bytes that a micro-batch keeps there


def parts_of(one: Step, shape: Layout, d: int) -> tuple[Memory, Kept]:
    """Return what a device of the pipeline holds beside micro-batches, and what each of these."""
    load, plan = shape.devices[d], one.plan
    key = (id(one.found), load, plan.zero, plan.recompute, one.replicas, plan.offload)
    still: Memory | None = one.planner.kept.get(key)
    if still is None:
        still = one.planner.kept[key] = _standing(one, load)
    grows = 1 + one.planner.constant("fragmented")
    kept = []
    for k in range(d, len(shape.stages), len(shape.devices)):
        each = sum([_kept(one, name) * count for name, count in shape.stages[k] if name != LAST])
        kept.append((k, each * grows))
    return still, tuple(kept)


def in_flight(kept: Kept, most: Sequence[int], micro_batches: int) -> float:
    """Return the bytes of the micro-batches in flight of a device."""
    return sum([each * min(most[k], micro_batches) for k, each in kept])


def _kept(one: Step, name: str) -> float:
    """Return the bytes that a piece keeps of a micro-batch for its backward pass."""
    held = one.found[name].held
    if name in (FIRST, LAST) or one.plan.recompute == "none":
        return held.kept
    if one.plan.recompute == "full":
        return held.input
    return (held.kept - held.core) * one.planner.constant("selective_kept")


def _standing(one: Step, load: Load) -> Memory:
    """Return what a device holds beside the micro-batches in flight."""
    plan, constant = one.plan, one.planner.constant
    dense, routed = parameters_of(one, load)
    shares = [(dense, one.replicas), (routed, one.replicas // plan.expert)]
    weights, gradients, states = (
        sum(count / (ranks if plan.zero >= least else 1) for count, ranks in shares)
        for least in (3, 2, 1)
    )
    pieces = [one.found[name] for name, _ in load]
    layers = [one.found[name].held for name, _ in load if name not in (FIRST, LAST)]
    working = max((held.working for held in layers), default=0)
    if plan.recompute == "full":
        working += max((held.kept for held in layers), default=0)
    elif plan.recompute == "selective":
        working += max((held.core for held in layers), default=0)
    gathered = 0.0
    if plan.zero == 3:
        largest = max(piece.parameters for piece in pieces)
        gathered = (2 * HALF + constant("gradient_bytes")) * largest
    in_weights = HALF + LOW_BYTES.get(one.planner.low, 0.0)
    return Memory(
        weights * (0 if plan.zero == 3 else in_weights),
        gradients * constant("gradient_bytes"),
        states * constant("state_bytes") if plan.offload != "optimizer" else 0.0,
        working * (1 + constant("fragmented")),
        gathered,
        _logits(one) if any(name == LAST for name, _ in load) else 0.0,
        constant("buffer_bytes"),
        constant("context_bytes"),
    )


def _logits(one: Step) -> float:
    """Return the bytes of head and loss."""
    head, shape = one.found[LAST].held, one.planner.shape
    tokens = one.micro_batch * shape.length / one.plan.context
    words = tokens * shape.vocabulary / one.plan.tensor
    return head.kept + head.working + words * one.planner.constant("logit_bytes")


def parameters_of(one: Step, load: Load) -> tuple[int, int]:
    """Return the parameters of a device that all replicas share, and those of routed experts."""
    routed = sum(one.found[name].routed * count for name, count in load)
    return sum(one.found[name].parameters * count for name, count in load) - routed, routed
