"""The best plan: all ways of splitting a network over devices, those that none beats in all."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import inf
from operator import le
from typing import Any, NamedTuple, TypeVar

from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.questions.plan.faults import Asked, fault
from steptime.questions.plan.network import Network
from steptime.questions.plan.planner import Planner, Shape
from steptime.questions.plan.step import Quick, quick

Kind = TypeVar("Kind")
MICRO_BATCHES = (1, 2, 4, 8, 16)
MOST_VIRTUAL = 8
LEAST_TOKENS = 2048  # of a sequence's part: shorter ones are not shared out
MOST_PLANS = 1_000_000
MOST_EXAMPLES = 1 << 16  # of a micro-batch
MEMORY = "memory"
PLAIN = {"schedule", "offload"}  # what a user may choose that fits every split


class Cap(NamedTuple):
    """A limit of a plan: its name, the most, and the value of a plan's step (unknown: infinity)."""

    name: str
    value: Callable[[Quick], float]
    most: float

    def holds(self, found: Quick) -> bool:
        """Whether a plan is known to stay within it."""
        return self.value(found) <= self.most


class Near(NamedTuple):
    """How far a plan is beyond a limit: how many times the most; its name, its value, the most."""

    ratio: float
    name: str
    value: float
    most: float


class Search(NamedTuple):
    """What a search found: plans that none beats in time, memory and energy, the fastest first.

    `steps_s` are the seconds of all plans that fit and stay within the limits; `refused` counts the
    others by limit, `nearest` of them is least beyond one, where all are.
    """

    front: list[Quick]
    steps_s: list[float]
    considered: int
    refused: Counter[str]
    nearest: Near | None


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
    if isinstance(shape, Network):  # one stage a device, any share of the batch
        sizes = [b for b in range(1, min(batch, MOST_EXAMPLES) + 1) if not batch % b]
        choices |= {"virtual": (1,), "recompute": ("none", "full"), "micro_batch": sizes}
    more = {name: value for name, value in fixed.items() if name not in choices}
    choices |= {name: [fixed[name]] for name in fixed.keys() - more.keys()}
    asks, plain = more.pop("sequence", None), more.keys() <= PLAIN
    *widths, zeros, recomputes, each = choices.values()
    for t, c, p, v, e in product(*widths):
        data, left = divmod(devices, t * c * p)
        if left or data < 1 or (data * c) % e or p * v > layers:
            continue
        if v > 1 and (p == 1 or layers % (p * v) or more.get("schedule") == "zero-bubble"):
            continue
        if v == 1 and more.get("schedule") == "interleaved":
            continue
        sequence = t > 1 and asks is not False and not tokens // c % t
        shares = [b for b in each if not batch % (data * b)]
        some = zeros if data * c > 1 else {0}.intersection(zeros)
        for zero, recompute in product(some if shares else (), recomputes):
            plan = Plan(
                data=data, tensor=t, context=c, pipeline=p, virtual=v, expert=e, zero=zero,
                recompute=recompute, sequence=sequence, **more,
            )  # fmt: skip
            for b in shares:
                asked = Asked(plan, b, batch)
                if plain or fault(shape, asked) is None:
                    yield asked


def _powers(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length())]


def search(planner: Planner, every: Iterable[Asked], caps: Sequence[Cap] = ()) -> Search:
    """Return the plans within the caps that no other one beats in time, memory and energy.

    Raises `InputError` for more plans than can be tried.
    """
    collects = gc.isenabled()
    gc.disable()  # nothing that is made here is garbage: looking for it takes half of the time
    try:
        return _search(planner, every, caps)
    finally:
        if collects:
            gc.enable()


def _search(planner: Planner, every: Iterable[Asked], caps: Sequence[Cap]) -> Search:
    kept: list[Quick] = []
    refused: Counter[str] = Counter()
    least, near = inf, Near(inf, "", inf, inf)
    considered = 0
    for asked in every:
        considered += 1
        if considered > MOST_PLANS:
            raise InputError(f"more than {MOST_PLANS:,} plans: fix --tensor or --micro-batch")
        try:
            found = quick(planner, asked)
        except InputError:
            considered -= 1
            continue  # a rank's graph that the plan does not divide
        if found.step_s == inf:
            refused[MEMORY] += 1
            least = min(least, found.bytes)
            continue
        values = [(one.value(found), one) for one in caps]
        beyond = [Near(value / m, name, value, m) for value, (name, _, m) in values if value > m]
        if beyond:
            refused.update(one.name for one in beyond)
            near = min(near, max(beyond))
        else:
            kept.append(found)
    if considered and refused[MEMORY] == considered:
        near = Near(least / planner.room_bytes, MEMORY, least, planner.room_bytes)
    known = None if kept or near.ratio == inf else near
    return Search(unbeaten(kept, _spent), [one.step_s for one in kept], considered, refused, known)


def _spent(one: Quick) -> tuple[float, ...]:
    return one.step_s, one.bytes, one.energy_j or 0.0


def with_fewer_again(planner: Planner, found: Search, caps: Sequence[Cap]) -> Search:
    """Return a search with the fewest layers computed again that fit, of plans that do so with all.

    The fewer there are, the less time a plan takes and the more memory: they are found by halving.
    """
    more = []
    for one in found.front:
        plan, least = one.asked.plan, None
        if plan.recompute != "full" or plan.recompute_layers:
            continue
        low, high = 1, len(planner.shape.kinds) // (plan.pipeline * plan.virtual) - 1
        while low <= high:
            n = (low + high) // 2
            at = quick(planner, one.asked.but({"recompute_layers": n}))
            low, high = (low, n - 1) if at.step_s < inf else (n + 1, high)
            least = at if at.step_s < inf else least
        if least is not None and all(cap.holds(least) for cap in caps):
            more.append(least)
    return found._replace(
        front=unbeaten([*found.front, *more], _spent),
        steps_s=[*found.steps_s, *(one.step_s for one in more)],
        considered=found.considered + len(more),
    )


def unbeaten(found: Iterable[Kind], amounts: Callable[[Kind], tuple[float, ...]]) -> list[Kind]:
    """Return those that no other is as good as in all amounts, and better in one, least first."""
    front: list[tuple[tuple[float, ...], Kind]] = []
    for mine, one in sorted(((amounts(one), one) for one in found), key=lambda pair: pair[0]):
        if not any(all(map(le, other, mine)) for other, _ in front):
            front.append((mine, one))
    return [one for _, one in front]
