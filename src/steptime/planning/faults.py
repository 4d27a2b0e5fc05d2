"""The rules that a plan must keep; each names a fault and the nearest change that mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from math import gcd, isqrt
from typing import Any, NamedTuple

from steptime.core.errors import InputError, check_choice
from steptime.core.workload import Plan
from steptime.planning.pipelines.stages import ORDERS, split_layers
from steptime.planning.plan_step import PlanStep
from steptime.planning.ranks.shape import Shape

MAX_SQUARE_ROOT = 100_000  # all divisors of numbers below its square are counted
MAX_CHANGES = 20  # changes of one plan until it keeps all rules
OPTION_NAMES = {"sequence": "--sequence-parallel"}
"""The options whose names differ from the field of the plan."""


class Fault(NamedTuple):
    """A broken rule: the reason, and the fields of the plan that mend it."""

    reason: str
    change: Mapping[str, Any]


def check_step(shape: Shape, step: PlanStep, command: str = "plan") -> PlanStep:
    """Return a step with its microbatches counted.

    Raises:
        InputError: if the plan breaks a rule, with the nearest plan that keeps all of them.
    """
    check_choice("order", step.order, ORDERS, "plan")
    first_fault = find_fault(shape, step)
    if first_fault is None:
        # The step counts its microbatches; this writes their number into the plan as well.
        return step.change({"microbatches": step.microbatches})
    # Mending one fault may cause the next one, so changes add up until no rule is broken.
    change = dict(first_fault.change)
    for _ in range(MAX_CHANGES - 1):
        next_fault = find_fault(shape, step.change(change))
        if next_fault is None:
            break
        change |= next_fault.change
    nearest = describe_change(step, change)
    raise InputError(f"{command}: {first_fault.reason}; nearest: {nearest}")


def describe_change(step: PlanStep, change: Mapping[str, Any]) -> str:
    """Describe a change of a step by the options that make it: `--tensor 4 --zero 3`."""
    # A change may name a field of the plan (`tensor`) or of the step (`microbatch`).
    current_values = {**vars(step.plan), **vars(step)}
    phrases = [
        _describe_option(name, value)
        for name, value in change.items()
        if value != current_values[name]
    ]
    is_command_line = all(phrase.startswith("--") for phrase in phrases)  # no `leave out --x`
    return (" " if is_command_line else ", ").join(phrases)


def _describe_option(name: str, value: Any) -> str:
    """Describe the option that sets a field, or `leave out --option` for a field that is unset."""
    option = option_of(name)
    # 0, False and () are what the option has if it is left out; only --zero 0 can be written.
    is_unset = value in (0, False, ())
    if is_unset and name != "zero":
        return f"leave out {option}"
    if value is True:
        return option
    text = ",".join(map(str, value)) if isinstance(value, tuple) else value
    return f"{option} {text}"


def option_of(name: str) -> str:
    """Return the option by which a user sets a field of a plan: `--expert-tensor`."""
    return OPTION_NAMES.get(name, f"--{name.replace('_', '-')}")


def find_fault(shape: Shape, step: PlanStep) -> Fault | None:
    """Return the first rule that a plan breaks, or None."""
    for find_faults in RULES:
        for fault in find_faults(shape, step):
            return fault
    return None


@lru_cache(maxsize=1 << 12)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, ascending: of 12 these are 1, 2, 3, 4, 6, 12."""
    root = min(isqrt(number), MAX_SQUARE_ROOT)
    small = [divisor for divisor in range(1, root + 1) if not number % divisor]
    large = [number // divisor for divisor in small]
    return tuple(sorted({*small, *large}))


def _nearest_divisor(value: int, number: int, is_valid: Callable[[int], bool] = bool) -> int:
    """Return the valid divisor of a number that is nearest to a value; 1 must be valid."""
    return min(filter(is_valid, divisors(number)), key=lambda divisor: abs(divisor - value))


def _check_divides(
    field: str,
    value: int,
    numbers: Mapping[str, int],
    find_nearest: Callable[[], int] | None = None,
) -> Iterator[Fault]:
    """Yield a fault for each number that a field of the plan does not divide.

    Args:
        field: the field of the plan.
        value: its value.
        numbers: the numbers by their names.
        find_nearest: returns a value that keeps the rules; by default the nearest common divisor.
    """
    for name, number in numbers.items():
        if number % value == 0:
            continue
        if find_nearest is None:
            nearest = _nearest_divisor(value, gcd(*numbers.values()))
        else:
            nearest = find_nearest()
        reason = f"{option_of(field)} {value} does not divide {number} {name}"
        yield Fault(reason, {field: nearest})


class Requirement(NamedTuple):
    """A field of a plan that needs 2 or more of another one.

    Attributes:
        field: the field.
        values: its values that need the other one; () for all but the default.
        required_field: the other field.
    """

    field: str
    values: tuple[str, ...]
    required_field: str


_REQUIREMENTS = (
    Requirement("sequence", (), "tensor"),
    Requirement("context_method", (), "context"),
    Requirement("stages", (), "pipeline"),
    Requirement("schedule", ("interleaved",), "virtual"),
    Requirement("schedule", ("zero-bubble", "dualpipe"), "pipeline"),
    Requirement("expert_tensor", (), "tensor"),
    Requirement("imbalance", (), "expert"),
    Requirement("expert_overlap", (), "expert"),
)


def refuse_idle(split: Mapping[str, Any], is_search: bool) -> None:
    """Refuse a field of a plan that changes nothing because a field that it needs is 1.

    Args:
        split: the fields of the plan that the user chose.
        is_search: whether the other fields are searched; otherwise they have their defaults.

    Raises:
        InputError: names the idle option and how to leave it out.
    """
    plan = Plan(**split)
    default_plan = Plan()
    for field, values, required_field in _REQUIREMENTS:
        value = getattr(plan, field)
        default = getattr(default_plan, field)
        # Without `values` any value but the default is one that needs the other field.
        is_set = value in values if values else value != default
        # A plan has 1 in a field that the user leaves out; a search tries other values there, too.
        value_if_left_out = None if is_search else 1
        is_required_idle = split.get(required_field, value_if_left_out) == 1
        if is_set and is_required_idle:
            # A step of any batch: the words do not depend on it.
            default_step = PlanStep(default_plan, microbatch=1, global_batch=1)
            step = PlanStep(plan, microbatch=1, global_batch=1)
            option = describe_change(default_step, {field: value})
            nearest = describe_change(step, {field: default})
            reason = f"{option} does nothing with {option_of(required_field)} 1"
            raise InputError(f"plan: {reason}; nearest: {nearest}")


NETWORK_FIELDS = {
    **dict.fromkeys(("tensor", "context", "expert", "virtual"), 1),
    "offload": "none",
}
"""The fields by which only language models are split, and their values for other networks."""
_NETWORK_CHOICES = (
    ("recompute", "selective", "full"),
    ("schedule", "zero-bubble", "1f1b"),
    ("schedule", "dualpipe", "1f1b"),
)
"""Field, value that only language models have, and the nearest value for other networks."""


def _network_faults(shape: Shape, step: PlanStep) -> Iterator[Fault]:
    """Yield the faults of networks that are no language models."""
    if shape.is_language_model:
        return
    # The fields that must have their defaults, then the values that a network cannot have.
    for name, value in NETWORK_FIELDS.items():
        if getattr(step.plan, name) != value:
            reason = f"{shape.label} is split into data, pipeline and ZeRO alone"
            yield Fault(reason, {name: value})
    for name, word, nearest in _NETWORK_CHOICES:
        if getattr(step.plan, name) == word:
            yield Fault(f"{shape.label} has no --{name} {word}", {name: nearest})


def _tensor_faults(shape: Shape, step: PlanStep) -> Iterator[Fault]:
    """Yield the heads, columns and tokens that tensor parallelism does not divide."""
    tensor = step.plan.tensor
    numbers = _sizes_split_by_tensor(shape, step.plan)
    kv_heads = int(shape.kind_settings["kv_heads"])

    # Either ranks have several heads each, or several ranks have a copy of one head.
    def splits_kv_heads(ranks: int) -> bool:
        return kv_heads % ranks == 0 or ranks % kv_heads == 0

    find_nearest = partial(_nearest_divisor, tensor, gcd(*numbers.values()), splits_kv_heads)
    yield from _check_divides("tensor", tensor, numbers, find_nearest)
    if not splits_kv_heads(tensor):
        kv_parts = {"heads of keys and values": kv_heads}  # for the words of the fault
        yield from _check_divides("tensor", tensor, kv_parts, find_nearest)
    if step.plan.sequence:
        for fault in _check_divides("tensor", tensor, {"tokens": shape.length}, find_nearest):
            # Tokens that do not divide are no reason for another number of tensor ranks.
            yield fault._replace(change={"sequence": False})


def _sizes_split_by_tensor(shape: Shape, plan: Plan) -> dict[str, int]:
    """Return the numbers that tensor parallelism must divide, by their names."""
    settings = shape.kind_settings
    numbers = {
        "heads": int(settings["heads"]),
        "columns of the feed-forward part": int(settings["ffn"]),
    }
    # Ranks that route tokens by themselves have whole experts.
    if shape.experts and not plan.routes_per_rank:
        numbers["columns of an expert"] = int(settings["expert_ffn"])
    if shape.experts and settings["shared_ffn"]:
        numbers["columns of a shared expert"] = int(settings["shared_ffn"])
    return numbers


def _context_faults(shape: Shape, step: PlanStep) -> Iterator[Fault]:
    """Yield the tokens and heads that context parallelism does not divide."""
    plan = step.plan
    context = plan.context
    tokens = shape.length // (plan.tensor if plan.sequence else 1)
    # Only all-to-all gives each rank some of the heads; the other methods split tokens alone.
    if plan.context_method != "all-to-all":
        yield from _check_divides("context", context, {"tokens": tokens})
        return
    heads = max(1, int(shape.kind_settings["heads"]) // plan.tensor)
    kv_heads = max(1, int(shape.kind_settings["kv_heads"]) // plan.tensor)

    def splits_kv_heads(ranks: int) -> bool:
        return kv_heads % ranks == 0 or ranks % kv_heads == 0

    nearest = _nearest_divisor(context, gcd(heads, tokens), splits_kv_heads)
    if context != nearest:
        reason = f"--context {context} does not divide {heads} heads and {tokens} tokens of a rank"
        yield Fault(reason, {"context": nearest})


def _stage_faults(shape: Shape, step: PlanStep) -> Iterator[Fault]:
    """Yield the faults of a pipeline's stages."""
    plan = step.plan
    layers = len(shape.kinds)
    stage_count = plan.pipeline * plan.virtual
    too_many = f"makes more stages than there are layers ({layers})"
    if plan.pipeline > layers:
        yield Fault(f"--pipeline {plan.pipeline} {too_many}", {"pipeline": layers})
    has_stages_of_ends = stage_count == layers + 2  # embedding and head have a stage each
    if stage_count > layers and not has_stages_of_ends:
        # The most stages a device for which no stage is empty.
        max_virtual = max(1, layers // plan.pipeline)
        yield Fault(f"--virtual {plan.virtual} {too_many}", {"virtual": max_virtual})
    if plan.virtual > 1 and plan.pipeline == 1:
        yield Fault("--virtual needs --pipeline of 2 or more", {"virtual": 1})
    if plan.virtual > 1 and plan.schedule == "zero-bubble":
        yield Fault("zero bubble H1 has one stage a device", {"virtual": 1})
    if plan.goes_both_ways:
        yield from _dualpipe_faults(step)
    if plan.stages and not _are_valid_stages(plan.stages, stage_count, layers):
        actual = f"{len(plan.stages)} stages of {sum(plan.stages)} layers"
        reason = f"--stages has {actual}, for {stage_count} of {layers}"
        yield Fault(reason, {"stages": split_layers(layers, stage_count)})


def _are_valid_stages(stages: tuple[int, ...], stage_count: int, layers: int) -> bool:
    """Return whether stages have the right number and all layers; only the ends may be empty."""
    return len(stages) == stage_count and sum(stages) == layers and 0 not in stages[1:-1]


def _recompute_faults(shape: Shape, step: PlanStep) -> Iterator[Fault]:
    """Yield the faults of the number of recomputed layers."""
    plan = step.plan
    layers = len(shape.kinds)
    if plan.recompute_layers and plan.recompute == "none":
        yield Fault("--recompute-layers needs --recompute", {"recompute": "full"})
    if plan.recompute_layers > layers:
        reason = f"--recompute-layers {plan.recompute_layers} are more than there are ({layers})"
        yield Fault(reason, {"recompute_layers": 0})  # 0 stands for all layers


def _dualpipe_faults(step: PlanStep) -> Iterator[Fault]:
    """Yield the faults of DualPipe's stages and microbatches."""
    plan = step.plan
    reason = "--schedule dualpipe has a stage of both directions a device"
    if plan.virtual > 1:
        yield Fault(reason, {"virtual": 1})
    if plan.pipeline % 2:
        yield Fault(f"{reason}: --pipeline {plan.pipeline} is odd", {"schedule": "1f1b"})
    # Each direction needs as many microbatches as there are devices to fill the pipeline.
    min_microbatches = 2 * plan.pipeline
    if step.microbatches % 2 or step.microbatches < min_microbatches:
        needs = f"dualpipe needs an even number of microbatches, {min_microbatches} or more"
        yield Fault(f"--schedule {needs}, not {step.microbatches}", {"schedule": "1f1b"})


def _batch_faults(_shape: Shape, step: PlanStep) -> Iterator[Fault]:
    """Yield the batches that replicas or microbatches do not divide."""
    replica_batch = max(1, step.global_batch // step.plan.data)
    yield from _check_divides("data", step.plan.data, {"sequences": step.global_batch})
    yield from _check_divides(
        "microbatch", step.microbatch, {"sequences of a replica": replica_batch}
    )


def _replica_count_by_name(plan: Plan) -> dict[str, int]:
    return {f"devices of data and context ({plan.data} x {plan.context})": plan.replicas}


def _expert_faults(shape: Shape, step: PlanStep) -> Iterator[Fault]:
    """Yield the experts, ranks and tokens that expert parallelism does not divide."""
    plan = step.plan
    if plan.expert > 1 and not shape.experts:  # a network without experts
        yield Fault(f"{shape.label} has no experts", {"expert": 1})
    if plan.routes_per_rank and not plan.sequence:
        needs = "has each rank route its own tokens: it needs --sequence-parallel"
        yield Fault(f"--expert-tensor 1 {needs}", {"sequence": True})
    numbers = {"experts": shape.experts or 1}
    if plan.routes_per_rank:
        numbers[f"devices of tensor, data and context ({plan.routers})"] = plan.routers
    else:
        numbers |= _replica_count_by_name(plan)
    # Ranks that route their own tokens have equally many of them, unless they are padded.
    if not step.pads_tokens:
        token_ranks = plan.tensor if plan.routes_per_rank else 1
        numbers["tokens"] = shape.length // plan.context // token_ranks
    yield from _check_divides("expert", plan.expert, numbers)


def _shard_faults(_shape: Shape, step: PlanStep) -> Iterator[Fault]:
    """Yield the faults of the replicas that share states."""
    plan = step.plan
    if not plan.shard:
        return
    if not plan.zero:
        yield Fault("--shard needs --zero of 1, 2 or 3", {"zero": 3})

    def is_valid(shard: int) -> bool:
        # Groups of replicas that share states and those that share experts must nest.
        fits_expert = shard % plan.expert == 0 or plan.expert % shard == 0
        return plan.replicas % shard == 0 and fits_expert

    def find_nearest() -> int:
        nearest = _nearest_divisor(plan.shard, plan.replicas, is_valid)
        return 0 if nearest == 1 else nearest  # a shard of one replica shares nothing

    yield from _check_divides("shard", plan.shard, _replica_count_by_name(plan), find_nearest)
    if not is_valid(plan.shard):
        reason = f"--shard {plan.shard} and --expert {plan.expert}: one must divide the other"
        yield Fault(reason, {"shard": find_nearest()})


RULES = (
    _network_faults,
    _tensor_faults,
    _context_faults,
    _stage_faults,
    _recompute_faults,
    _batch_faults,
    _expert_faults,
    _shard_faults,
)
