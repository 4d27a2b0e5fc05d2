"""What a plan cannot be: each rule says it in a line, with a change by which it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import gcd, isqrt
from typing import Any, NamedTuple

from steptime.core.errors import InputError, check_choice
from steptime.core.workload import Plan
from steptime.planning.shape import Shape
from steptime.planning.stages import ORDERS, USUAL, layers_of

MOST_ROOT = 100_000  # up to which divisors are counted: all of what is below its square
MOST_CHANGES = 20  # that one plan needs until it can be


@dataclass(frozen=True)
class Asked:
    """A step that a user asks for: how it is split, and on which sequences.

    A training step sends equal shares of a sequence's tokens to the experts' ranks. A server pads
    the last share, so its tokens need not divide (`pads_tokens`).
    """

    plan: Plan
    microbatch: int
    global_batch: int
    order: str = USUAL
    pads_tokens: bool = False

    @property
    def rounds(self) -> int:
        """The microbatches of a replica in a step."""
        return self.global_batch // (self.microbatch * self.plan.data)

    def but(self, change: Mapping[str, Any]) -> Asked:
        """Return it with other fields: of its own, or of its plan."""
        own = {name: value for name, value in change.items() if name in vars(self)}
        others = {name: value for name, value in change.items() if name not in own}
        return replace(self, plan=replace(self.plan, **others), **own)


class Fault(NamedTuple):
    """Why a plan cannot be, and fields with which this reason goes."""

    says: str
    change: Mapping[str, Any]


def checked(shape: Shape, asked: Asked, command: str = "plan") -> Asked:
    """Return the plan that a command asks for, its microbatches counted.

    Raises `InputError` for one that cannot be, with the nearest that can.
    """
    check_choice("order", asked.order, ORDERS, "plan")
    first = fault(shape, asked)
    if first is None:
        return asked.but({"microbatches": asked.rounds})
    change: dict[str, Any] = {}
    other: Fault | None = first
    for _ in range(MOST_CHANGES):
        change |= other.change if other else {}
        other = other and fault(shape, asked.but(change))
    raise InputError(f"{command}: {first.says}; nearest: {words_of_change(asked, change)}")


def words_of_change(asked: Asked, change: Mapping[str, Any]) -> str:
    """Return the options by which a change departs from what is asked, as a user writes them."""
    words, given = [], {**vars(asked.plan), **vars(asked)}
    for name, value in change.items():
        option = option_of(name)
        if name != "zero" and value in (0, ()):  # False is 0, too
            option = f"leave out {option}"
        elif value is not True:
            option += f" {','.join(map(str, value)) if isinstance(value, tuple) else value}"
        words += [option] if value != given[name] else []
    return (", " if any(" out " in word for word in words) else " ").join(words)


OPTIONS = {"sequence": "--sequence-parallel"}  # whose names are other words


def option_of(name: str) -> str:
    """Return the option by which a user chooses a field of a plan."""
    return OPTIONS.get(name, f"--{name.replace('_', '-')}")


Found = Iterator[Fault]


def fault(shape: Shape, asked: Asked) -> Fault | None:
    """Return why a plan cannot be, None for one that can."""
    return next((result for rule in RULES for result in rule(shape, asked)), None)


@lru_cache(maxsize=1 << 12)
def divisors(whole: int) -> tuple[int, ...]:
    """Return what divides a whole, the least first: of 12 that is 1, 2, 3, 4, 6, 12."""
    low = [one for one in range(1, min(isqrt(whole), MOST_ROOT) + 1) if not whole % one]
    return tuple(sorted({*low, *(whole // one for one in low)}))


def _near(given: int, whole: int, works: Callable[[int], bool] = bool) -> int:
    """Return the divisor of a whole that works, as 1 does, and is nearest to what is given."""
    return min(filter(works, divisors(whole)), key=lambda one: abs(one - given))


def _divides(
    option: str, given: int, wholes: Mapping[str, int], near: Callable[[], int] | None = None
) -> Found:
    """Yield what a number does not divide; the nearest is usually what divides all of that."""
    for what, whole in wholes.items():
        if whole % given:
            works = near() if near else _near(given, gcd(*wholes.values()))
            says = f"{option_of(option)} {given} does not divide {whole} {what}"
            yield Fault(says, {option: works})


_NEEDS = (  # a choice, its words that do nothing alone (any), and of what it needs 2 or more
    ("sequence", (), "tensor"),
    ("context_method", (), "context"),
    ("stages", (), "pipeline"),
    ("schedule", ("interleaved",), "virtual"),
    ("schedule", ("zero-bubble", "dualpipe"), "pipeline"),
    ("expert_tensor", (), "tensor"),
    ("imbalance", (), "expert"),
    ("expert_overlap", (), "expert"),
)


def refuse_idle(split: Mapping[str, Any], is_open: bool) -> None:
    """Raise `InputError` for a choice that changes nothing, because what it needs is not chosen.

    In a search, what is not given `is_open`.
    """
    plan, usual = Plan(**split), Plan()
    for name, words, needs in _NEEDS:
        word, alone = getattr(plan, name), getattr(usual, name)
        idle = word in words if words else word != alone
        if idle and split.get(needs, 2 if is_open else 1) == 1:
            option = words_of_change(Asked(usual, 1, 1), {name: word})
            near = words_of_change(Asked(plan, 1, 1), {name: alone})
            text = f"plan: {option} does nothing with {option_of(needs)} 1"
            raise InputError(f"{text}; nearest: {near}")


ALONE = {  # what other networks than language models are not split by, and what they have
    **dict.fromkeys(("tensor", "context", "expert", "virtual"), 1),
    "offload": "none",
}


def _of_network(shape: Shape, asked: Asked) -> Found:
    if shape.batch is None:
        return
    for name, one in ALONE.items():
        if getattr(asked.plan, name) != one:
            yield Fault(f"{shape.label} is split into data, pipeline and ZeRO alone", {name: one})
    for name, word, near in (
        ("recompute", "selective", "full"),
        ("schedule", "zero-bubble", "1f1b"),
        ("schedule", "dualpipe", "1f1b"),
    ):
        if getattr(asked.plan, name) == word:
            yield Fault(f"{shape.label} has no --{name} {word}", {name: near})


def _of_tensor(shape: Shape, asked: Asked) -> Found:
    one, tensor = shape.one, asked.plan.tensor
    parts = {"heads": int(one["heads"]), "columns of the feed-forward part": int(one["ffn"])}
    if shape.experts:
        if not asked.plan.routes_per_rank:
            parts["columns of an expert"] = int(one["expert_ffn"])
        if one["shared_ffn"]:
            parts["columns of a shared expert"] = int(one["shared_ffn"])
    both, keys = gcd(*parts.values()), int(one["kv_heads"])

    def has_heads(ranks: int) -> bool:
        return keys % ranks == 0 or ranks % keys == 0

    near = partial(_near, tensor, both, has_heads)
    yield from _divides("tensor", tensor, parts, near)
    if not has_heads(tensor):
        yield from _divides("tensor", tensor, {"heads of keys and values": keys}, near)
    if asked.plan.sequence:
        for result in _divides("tensor", tensor, {"tokens": shape.length}, near):
            yield result._replace(change={"sequence": False})


def _of_context(shape: Shape, asked: Asked) -> Found:
    plan, ranks = asked.plan, asked.plan.context
    tokens = shape.length // (plan.tensor if plan.sequence else 1)
    if plan.context_method != "all-to-all":
        yield from _divides("context", ranks, {"tokens": tokens})
        return
    heads, keys = (max(1, int(shape.one[k]) // plan.tensor) for k in ("heads", "kv_heads"))
    near = _near(ranks, gcd(heads, tokens), lambda c: not (keys % c and c % keys))
    if ranks != near:
        says = f"--context {ranks} does not divide {heads} heads and {tokens} tokens of a rank"
        yield Fault(says, {"context": near})


def _of_stages(shape: Shape, asked: Asked) -> Found:
    plan, layers = asked.plan, len(shape.kinds)
    many = "makes more stages than there are layers"
    if plan.pipeline > layers:
        yield Fault(f"--pipeline {plan.pipeline} {many} ({layers})", {"pipeline": layers})
    if layers + 2 != plan.pipeline * plan.virtual > layers:
        most = max(1, layers // plan.pipeline)
        yield Fault(f"--virtual {plan.virtual} {many} ({layers})", {"virtual": most})
    if plan.virtual > 1 and plan.pipeline == 1:
        yield Fault("--virtual needs --pipeline of 2 or more", {"virtual": 1})
    if plan.virtual > 1 and plan.schedule == "zero-bubble":
        yield Fault("zero bubble H1 has one stage a device", {"virtual": 1})
    if plan.goes_both_ways:
        says = "--schedule dualpipe has a stage of both directions a device"
        if plan.virtual > 1:
            yield Fault(says, {"virtual": 1})
        if plan.pipeline % 2:
            yield Fault(f"{says}: --pipeline {plan.pipeline} is odd", {"schedule": "1f1b"})
        if asked.rounds % 2 or asked.rounds < 2 * plan.pipeline:
            need = f"dualpipe needs an even number of microbatches, {2 * plan.pipeline} or more"
            yield Fault(f"--schedule {need}, not {asked.rounds}", {"schedule": "1f1b"})
    stages, own = plan.pipeline * plan.virtual, plan.stages
    if own and (len(own) != stages or sum(own) != layers or 0 in own[1:-1]):
        says = f"--stages has {len(own)} stages of {sum(own)} layers, for {stages} of {layers}"
        yield Fault(says, {"stages": layers_of(layers, stages)})
    if plan.recompute_layers and plan.recompute == "none":
        yield Fault("--recompute-layers needs --recompute", {"recompute": "full"})
    if plan.recompute_layers > layers:
        says = f"--recompute-layers {plan.recompute_layers} are more than there are ({layers})"
        yield Fault(says, {"recompute_layers": 0})


def _of_batch(shape: Shape, asked: Asked) -> Found:
    share = max(1, asked.global_batch // asked.plan.data)
    yield from _divides("data", asked.plan.data, {"sequences": asked.global_batch})
    yield from _divides("microbatch", asked.microbatch, {"sequences of a replica": share})


def _replicas(plan: Plan) -> dict[str, int]:
    return {f"devices of data and context ({plan.data} x {plan.context})": plan.replicas}


def _of_experts(shape: Shape, asked: Asked) -> Found:
    plan = asked.plan
    if plan.expert > 1 and not shape.experts:
        yield Fault(f"{shape.label} has no experts", {"expert": 1})
    if plan.routes_per_rank and not plan.sequence:
        says = "--expert-tensor 1 has each rank route its own tokens: it needs --sequence-parallel"
        yield Fault(says, {"sequence": True})
    apart = plan.tensor if plan.routes_per_rank else 1
    ranks = {f"devices of tensor, data and context ({plan.routers})": plan.routers}
    ranks = ranks if plan.routes_per_rank else _replicas(plan)
    wholes = {"experts": shape.experts or 1, **ranks}
    if not asked.pads_tokens:
        wholes["tokens"] = shape.length // plan.context // apart
    yield from _divides("expert", plan.expert, wholes)


def _of_shards(shape: Shape, asked: Asked) -> Found:
    plan = asked.plan
    if not plan.shard:
        return
    if not plan.zero:
        yield Fault("--shard needs --zero of 1, 2 or 3", {"zero": 3})

    def works(one: int) -> bool:
        whole = not plan.replicas % one
        return whole and (not one % plan.expert or not plan.expert % one)

    def near() -> int:
        result = _near(plan.shard, plan.replicas, works)
        return 0 if result == 1 else result  # shards of one share nothing

    yield from _divides("shard", plan.shard, _replicas(plan), near)
    if not works(plan.shard):
        says = f"--shard {plan.shard} and --expert {plan.expert}: one must divide the other"
        yield Fault(says, {"shard": near()})


RULES = (_of_network, _of_tensor, _of_context, _of_stages, _of_batch, _of_experts, _of_shards)
