"""The best plan: all ways of splitting a network over devices, those that none beats in all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any, NamedTuple

from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.plans.planner import Planner, Shape
from steptime.plans.request import Asked, checked
from steptime.plans.step import quick

MICRO_BATCHES = (1, 2, 4, 8, 16)
MOST_VIRTUAL = 8
LEAST_TOKENS = 2048  # of a sequence's part: shorter ones are not shared out
MOST_PLANS = 1_000_000
FREE = ("tensor", "context", "pipeline", "virtual", "expert", "zero", "recompute", "sequence")


class Found(NamedTuple):
    """A plan that fits: seconds of a step, bytes of the fullest device, and what it is."""

    step_s: float
    bytes: float
    asked: Asked


class Search(NamedTuple):
    """What a search found: plans that none beats in time and memory, the fastest first.

    `alike` of all that fit are within `own` of the fastest, which the interval does not tell apart.
    """

    front: list[Found]
    considered: int
    fitting: int
    alike: int


def plans(
    shape: Shape, devices: int, batch: int, per_node: int, fixed: Mapping[str, Any]
) -> Iterator[Asked]:
    """Yield the plans of so many devices under which a network divides.

    `fixed` are choices that a user made: fields of `Plan`, and `micro_batch`. Tensor ranks do not
    leave a node; ZeRO 2 is left out, which differs from 1 by little.
    """
    one, layers = shape.one, len(shape.kinds)
    tokens, heads = shape.length, int(one["heads"])
    tensors = [t for t in _powers(min(devices, per_node)) if not heads % t and not one["ffn"] % t]
    contexts = [c for c in _powers(devices) if not tokens % c and tokens // c >= LEAST_TOKENS]
    pipelines = [p for p in range(1, min(devices, layers) + 1) if not devices % p]
    experts = [e for e in _powers(devices) if shape.experts and not shape.experts % e] or [1]
    virtual = range(1, MOST_VIRTUAL + 1)
    choices: dict[str, Iterable[Any]] = {
        "tensor": tensors, "context": contexts or [1], "pipeline": pipelines, "virtual": virtual,
        "expert": experts, "zero": (0, 1, 3), "recompute": ("none", "selective", "full"),
        "micro_batch": MICRO_BATCHES,
    }  # fmt: skip
    for name, value in fixed.items():
        if name in choices:
            choices[name] = [value]
    for t, c, p, v, e, zero, recompute, b in product(*choices.values()):
        data, left = divmod(devices, t * c * p)
        if left or data < 1 or batch % (data * b) or (data * c) % e:
            continue
        if (v > 1 and (p == 1 or layers % (p * v))) or p * v > layers or (data * c == 1 and zero):
            continue
        sequence = bool(fixed.get("sequence", t > 1)) and not tokens // c % t
        more = {name: fixed[name] for name in ("schedule", "offload") if name in fixed}
        plan = Plan(
            data=data, tensor=t, context=c, pipeline=p, virtual=v, expert=e, zero=zero,
            recompute=recompute, sequence=sequence, **more,
        )  # fmt: skip
        yield Asked(plan, b, batch)


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length()) if 2**k <= most]


def search(planner: Planner, every: Iterable[Asked], own: float = 0.05) -> Search:
    """Return the plans that no other one beats in both time and memory.

    Raises `InputError` where there is none to consider, or none fits.
    """
    fitting: list[Found] = []
    considered, nearest = 0, inf
    for asked in every:
        considered += 1
        if considered > MOST_PLANS:
            raise InputError(f"more than {MOST_PLANS:,} plans: fix --tensor or --micro-batch")
        try:
            seconds, held = quick(planner, asked.plan, asked.micro_batch, asked.batch, asked.order)
        except InputError:
            continue  # a rank's graph that the plan does not divide
        nearest = min(nearest, held)
        if seconds < inf:
            fitting.append(Found(seconds, held, asked))
    if not fitting:
        raise InputError(_none(planner, considered, nearest))
    fitting.sort(key=lambda one: (one.step_s, one.bytes))
    front, least = [], inf
    for one in fitting:
        if one.bytes < least:
            front.append(one)
            least = one.bytes
    alike = sum(one.step_s <= fitting[0].step_s * (1 + own) for one in fitting)
    return Search(front, considered, len(fitting), alike)


def _none(planner: Planner, considered: int, nearest: float) -> str:
    if not considered or nearest == inf:
        return f"plan: no split of these devices divides {planner.shape.label} and its batch"
    over = (nearest - (planner.device.memory_bytes or inf)) / 1e9
    return f"plan: none of {considered:,} splits fits; the nearest needs {over:,.1f} GB more"


def finished(planner: Planner, one: Found) -> Asked:
    """Return a found plan with its micro-batches, checked as one that a user asks for."""
    sound = checked(planner.shape, one.asked)
    return replace(one.asked, plan=sound.plan)
