"""The best plan: all ways of splitting a network over devices, those that none beats in all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from steptime.core.errors import InputError
from steptime.core.hardware import Device
from steptime.core.workload import Plan
from steptime.plans.answer import WORDS, answered, document, offer_of
from steptime.plans.planner import Planner, Shape
from steptime.plans.request import Asked, Request, Site, checked, shape_of, split_of
from steptime.plans.step import plan_time, quick
from steptime.predict.prices import Offer

MICRO_BATCHES = (1, 2, 4, 8, 16)
MOST_VIRTUAL = 8
LEAST_TOKENS = 2048  # of a sequence's part: shorter ones are not shared out
MOST_PLANS = 1_000_000
SPLIT = ("tensor", "context", "pipeline", "virtual", "data", "expert", "zero", "recompute")
SHOWN = 12  # plans of each number of devices that are simulated


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
        if v > 1 and fixed.get("schedule") == "zero-bubble":
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
            found = quick(planner, asked.plan, asked.micro_batch, asked.batch, asked.order)
            seconds, held = found.step_s, found.bytes
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
    over = (nearest - planner.room_bytes) / 1e9
    return f"plan: none of {considered:,} splits fits; the nearest needs {over:,.1f} GB more"


def finished(planner: Planner, one: Found) -> Asked:
    """Return a found plan with its micro-batches, checked as one that a user asks for."""
    sound = checked(planner.shape, one.asked)
    return replace(one.asked, plan=sound.plan)


def searched(request: Request) -> dict[str, Any]:
    """Return the best plan, and those that none beats in time, memory and devices, as JSON values.

    Raises `InputError` where a request says no batch, and where no plan is left.
    """
    if request.batch is None:
        raise InputError("devices: a search needs batch, the sequences of a step")
    shape = shape_of(request.model, request.length)
    batch, per_node, each = request.batch, request.site.per_node, request.micro_batch
    fixed = {**request.split, **({} if each is None else {"micro_batch": each})}
    found: list[tuple[Found, Planner]] = []
    considered = fitting = alike = 0
    failed = ""
    for count in sorted(set(request.devices)):
        planner = request.planner(shape, Plan(), count)
        try:
            one = search(planner, plans(shape, count, batch, per_node, fixed))
        except InputError as error:
            failed = str(error)
            continue
        considered, fitting, alike = (
            considered + one.considered, fitting + one.fitting, alike + one.alike
        )  # fmt: skip
        found += [(each, planner) for each in one.front[:SHOWN]]
    if not found:
        raise InputError(failed)
    offer = offer_of(found[0][1], request.prices)
    rows = [_row(planner, one, offer, request) for one, planner in found]
    kept = [row for row in rows if row is not None]
    if not kept:
        raise InputError(f"plan: none of {fitting:,} splits that fit stays within the limits")
    kept.sort(key=lambda row: float(row["document"]["step_s"]))
    front = [row for row in kept if not any(_beats(other, row) for other in kept)]
    best = front[0].pop("document")
    for row in front[1:]:
        row.pop("document")
    counts = {"considered": considered, "fitting": fitting, "alike": alike}
    return {**counts, "bound_by": _bound(best), "best": best, "rows": front}


def _row(
    planner: Planner, one: Found, offer: Offer | None, request: Request
) -> dict[str, Any] | None:
    """Return a found plan, simulated, None for one beyond the limits."""
    asked = finished(planner, one)
    time = plan_time(planner, asked.plan, asked.micro_batch, asked.batch, asked.order)
    told = document(planner, asked, time, offer, request.tokens)
    cost, energy, training = told["cost"], told["energy"], told["training"]
    watts = None if energy is None else energy["step_j"] / time.step_s
    days = None if training is None else training["train_h"] / 24
    for value, most in (
        (cost and cost["hour"], request.limits.per_hour),
        (watts, request.limits.watts),
        (days, request.limits.days),
    ):
        if most is not None and (value is None or value > most):
            return None
    split = {name: told["plan"].get(name, getattr(Plan(), name)) for name in SPLIT}
    return {
        **split,
        "devices": told["devices"],
        "micro_batch": told["micro_batch"],
        **{key: told[key] for key in ("step_s", "low", "high", "tokens_per_s_per_device")},
        "total_bytes": told["memory"]["total_bytes"],
        "cost_per_step": None if cost is None else cost["step"],
        "energy_j": None if energy is None else energy["step_j"],
        "document": told,
    }


def _beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a plan is no worse than another in time, memory and devices, and better in one."""
    pairs = [(one[key], other[key]) for key in ("step_s", "total_bytes", "devices")]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _bound(told: Mapping[str, Any]) -> str:
    """Return what takes most of a plan's step."""
    parts = dict(told["parts"])
    waits = max(told["exposed_communication"], key=lambda one: one["exposed_s"], default=None)
    name = max(parts, key=lambda key: parts[key])
    if name == "exposed_s" and waits is not None:
        return f"{waits['collective']} of {waits['group']} ranks over {waits['level']}"
    return WORDS[name]


def answer(request: Request) -> dict[str, Any]:
    """Return the answer to a request: one plan, or the best of those that it leaves open."""
    return searched(request) if request.devices else answered(request)


def plan(
    model: str | Path,
    device: str | Path | Device,
    batch: int | None = None,
    devices: int | Sequence[int] | None = None,
    *,
    per_node: int = 8,
    inside: str | None = None,
    link: str | None = None,
    links_per_node: int | None = None,
    micro_batch: int | None = None,
    length: int | None = None,
    dtype: str = "bfloat16",
    gradients: int | None = None,
    stack: str | None = None,
    tokens: float | None = None,
    **split: Any,
) -> dict[str, Any]:
    """Return what a training step of a language model takes that is split over many devices.

    `split` are fields of `Plan`: `tensor=8, pipeline=4, data=16, zero=1`. With a number of
    `devices` it is the best of all splits of `batch` sequences, of what `split` leaves open. The
    answer is the JSON of `steptime plan`. Raises `InputError` for what is not known or cannot be.
    """
    counts = (devices,) if isinstance(devices, int) else tuple(devices or ())
    split_of(split)
    return answer(
        Request(
            str(model),
            Site(device, per_node, inside, link, links_per_node),
            batch,
            micro_batch,
            length,
            split,
            counts,
            dtype=dtype,
            gradients=gradients,
            stack=stack,
            tokens=tokens,
        )
    )
