"""What each device of a plan holds at its fullest, by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steptime.plans.passes import HALF, Step
from steptime.plans.pieces import FIRST, LAST
from steptime.plans.planner import EIGHT_BIT

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


@dataclass(frozen=True)
class Memory:
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
        return sum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, float]:
        """Bytes by part."""
        return {name: getattr(self, name) for name in PARTS}


def memories(
    one: Step,
    held: Sequence[Sequence[str]],
    of_device: Sequence[Sequence[str]],
    most: Sequence[int],
    micro_batches: int,
) -> list[Memory]:
    """Return the memory of each device of the pipeline."""
    devices = len(of_device)
    found = []
    for d, names in enumerate(of_device):
        in_flight = 0.0
        for k in range(d, len(held), devices):
            kept = sum(_kept(one, name) for name in held[k] if name != LAST)
            in_flight += kept * min(most[k], micro_batches)
        found.append(_memory(one, names, in_flight))
    return found


def _kept(one: Step, name: str) -> float:
    """Return the bytes that a piece keeps of a micro-batch for its backward pass."""
    held = one.found[name].held
    if name in (FIRST, LAST) or one.plan.recompute == "none":
        return held.kept
    if one.plan.recompute == "full":
        return held.input
    return (held.kept - held.core) * one.planner.constant("selective_kept")


def _memory(one: Step, names: Sequence[str], in_flight: float) -> Memory:
    plan, planner = one.plan, one.planner
    pieces = [one.found[name] for name in names]
    routed = sum(piece.routed for piece in pieces)
    dense = sum(piece.parameters for piece in pieces) - routed
    n = one.replicas
    shares = [(dense, n), (routed, n // plan.expert)]
    weights, gradients, states = (
        sum(count / (ranks if plan.zero >= least else 1) for count, ranks in shares)
        for least in (3, 2, 1)
    )
    constant = planner.constant
    largest = max(piece.parameters for piece in pieces)
    layers = [one.found[name] for name in names if name not in (FIRST, LAST)]
    working = max(piece.held.working for piece in layers) if layers else 0
    if plan.recompute == "full" and layers:
        working += max(piece.held.kept for piece in layers)
    elif plan.recompute == "selective" and layers:
        working += max(piece.held.core for piece in layers)
    logits = 0.0
    if LAST in names:
        head = one.found[LAST].held
        shape = planner.shape
        tokens = one.micro_batch * shape.length / plan.context
        words = tokens * shape.vocabulary / plan.tensor
        logits = head.kept + head.working + words * constant("logit_bytes")
    in_weights = HALF + (1 if planner.dtype == EIGHT_BIT else 0)
    gathered = 2 * HALF * largest + constant("gradient_bytes") * largest if plan.zero == 3 else 0.0
    return Memory(
        weights * (0 if plan.zero == 3 else in_weights),
        gradients * constant("gradient_bytes"),
        states * constant("state_bytes") if plan.offload != "optimizer" else 0.0,
        (in_flight + working) * (1 + constant("fragmented")),
        gathered,
        logits,
        constant("buffer_bytes"),
        constant("context_bytes"),
    )
