"""The plans that a search tries, and the choices that it leaves out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from steptime.core.workload import OFFLOADS, Plan
from steptime.planning.faults import divisors, find_fault
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem

MAX_VIRTUAL = 8
MIN_CONTEXT_TOKENS = 2048  # shorter parts of a sequence are not worth their communication
LEFT_OUT = {
    "zero": "ZeRO 2",
    "schedule": "gpipe, dualpipe",
    "sequence": "tensor without sequence parallel",
    "context_method": "context by ring or all-to-all",
    "stages": "stages of chosen layers",
}
"""By field of a plan, the choices that are only tried if the user asks for them."""
_UNSEARCHED_FIELDS = ("stages", "context_method")  # fields that a user may fix, and no search tries
_SPLIT_DEPENDENT_FIELDS = (
    "shard",
    "recompute_layers",
)  # fixed fields that may not suit every split


class PlanFamily(NamedTuple):
    """Plans that differ in their microbatch alone.

    Attributes:
        plan: the plan.
        microbatch_sizes: the sequences of a microbatch, ascending.
    """

    plan: Plan
    microbatch_sizes: tuple[int, ...]


class PlanSplit(NamedTuple):
    """The ranks of a plan: data, tensor, context and pipeline multiply to the devices."""

    data: int
    tensor: int
    context: int
    pipeline: int
    virtual: int
    expert: int


@dataclass(frozen=True)
class PlanSpace:
    """The plans that a search tries.

    Attributes:
        problem: the network and its links.
        device_count: the number of devices.
        global_batch: the sequences of a step.
        per_node: the devices of a node.
        fixed: the fields of a plan that the user chose, and `microbatch`.
    """

    problem: PlanProblem
    device_count: int
    global_batch: int
    per_node: int
    fixed: Mapping[str, Any]

    @property
    def is_language_model(self) -> bool:
        """Whether the network is a language model; others have stages of pieces, one a device."""
        return self.problem.shape.is_language_model

    @cached_property
    def choices(self) -> dict[str, list[Any]]:
        """The values of each field that are tried, whatever the other fields are."""
        shape = self.problem.shape
        device_powers = powers_of_two(self.device_count)
        # Tensor ranks exchange in every layer: they stay within a node.
        node_powers = powers_of_two(min(self.device_count, self.per_node))
        stage_counts = [count for count in divisors(self.device_count) if count <= len(shape.kinds)]
        expert_ranks = [1]
        if shape.experts:
            expert_ranks = [ranks for ranks in device_powers if shape.experts % ranks == 0]
        choices: dict[str, Iterable[Any]] = {
            "tensor": filter(self._splits_layers, node_powers),
            "context": filter(self._splits_sequence, device_powers),
            "pipeline": stage_counts,
            "virtual": range(1, MAX_VIRTUAL + 1),
            "expert": expert_ranks,
            "zero": (0, 1, 3),
            "recompute": ("none", "selective", "full"),
            "offload": ("none",) if self.problem.host_link is None else OFFLOADS,
        }
        # Graphs of other networks are cut into stages alone.
        if not self.is_language_model:
            choices |= {"virtual": (1,), "recompute": ("none", "full"), "offload": ("none",)}
        # What the user fixed is tried alone, whatever the search would try.
        user_choices = {name: [self.fixed[name]] for name in choices if name in self.fixed}
        return {name: list(values) for name, values in (choices | user_choices).items()}

    def _splits_layers(self, tensor: int) -> bool:
        """Return whether a number of tensor-parallel ranks divides the network."""
        step = PlanStep(Plan(tensor=tensor), 1, self.global_batch)
        return find_fault(self.problem.shape, step) is None

    def _splits_sequence(self, context: int) -> bool:
        """Return whether a number of context ranks divides a sequence into long enough parts."""
        length = self.problem.shape.length
        is_long_enough = context == 1 or length // context >= MIN_CONTEXT_TOKENS
        return length % context == 0 and is_long_enough

    def families(self) -> Iterator[PlanFamily]:
        """Yield the plans that the devices, the network and the batch allow."""
        for split in self._splits():
            sizes = self.microbatch_sizes(self.global_batch // split.data)
            if not sizes:
                continue
            # All sizes divide the batch. The smallest one has the most microbatches, so that a
            # schedule that needs many of them is refused only if no size has enough.
            smallest_size = sizes[0]
            for schedule in self._schedules(split):
                plan = self._base_plan(split, schedule)
                if self._is_valid(plan, smallest_size):
                    yield from self._variants(plan, sizes)

    def _splits(self) -> Iterator[PlanSplit]:
        """Yield the numbers of ranks that multiply to the devices and divide the batch."""
        names = ("tensor", "context", "pipeline", "virtual", "expert")
        for tensor, context, pipeline, virtual, expert in product(
            *(self.choices[name] for name in names)
        ):
            data, remainder = divmod(self.device_count, tensor * context * pipeline)
            divides_devices = remainder == 0 and data >= 1
            if divides_devices and self.global_batch % data == 0:
                yield PlanSplit(data, tensor, context, pipeline, virtual, expert)

    def _base_plan(self, split: PlanSplit, schedule: str) -> Plan:
        """Return the plan of a split that shares and recomputes nothing."""
        # Sequence parallelism splits tokens over the tensor ranks. It saves memory and communicates
        # as much, so that it is on wherever it can be.
        context_length = self.problem.shape.length // split.context
        can_split_sequence = split.tensor > 1 and context_length % split.tensor == 0
        fixed_fields = {name: self.fixed[name] for name in _UNSEARCHED_FIELDS if name in self.fixed}
        return Plan(
            **split._asdict(),
            sequence=can_split_sequence and self.fixed.get("sequence", True),
            schedule=schedule,
            **fixed_fields,
        )

    def _is_valid(self, plan: Plan, microbatch: int) -> bool:
        step = PlanStep(plan, microbatch, self.global_batch)
        return find_fault(self.problem.shape, step) is None

    def _variants(self, plan: Plan, sizes: tuple[int, ...]) -> Iterator[PlanFamily]:
        """Yield a plan with each choice of sharding, recomputation and offloading."""
        plan_fields = vars(plan)
        if "recompute_layers" in self.fixed:
            plan_fields = {**plan_fields, "recompute_layers": self.fixed["recompute_layers"]}
        zeros = self.choices["zero"]
        # A single replica has nobody to share with.
        if plan.replicas == 1:
            zeros = [zero for zero in zeros if zero == 0]
        # `plan` is valid, and so are its variants unless the user fixed one of these fields.
        needs_check = any(name in self.fixed for name in _SPLIT_DEPENDENT_FIELDS)
        for zero, recompute, offload in product(
            zeros, self.choices["recompute"], self.choices["offload"]
        ):
            choice = {"zero": zero, "recompute": recompute, "offload": offload}
            for shard in self._shards(plan, zero):
                variant = Plan(**{**plan_fields, **choice, "shard": shard})
                if not needs_check or self._is_valid(variant, sizes[0]):
                    yield PlanFamily(variant, sizes)

    def microbatch_sizes(self, replica_batch: int) -> tuple[int, ...]:
        """Return the microbatches that are tried for the batch of a replica, ascending.

        For language models their size, or their number, is a power of 2.
        """
        sizes = divisors(replica_batch)
        if "microbatch" in self.fixed:
            microbatch = self.fixed["microbatch"]
            return (microbatch,) if microbatch in sizes else ()
        if not self.is_language_model:
            return sizes
        # Fewer choices: their size, or their number, is a power of 2.
        return tuple(
            [
                size
                for size in sizes
                if _is_power_of_two(size) or _is_power_of_two(replica_batch // size)
            ]
        )

    def _schedules(self, split: PlanSplit) -> tuple[str, ...]:
        """Return the schedules that are tried with a number of stages."""
        is_interleaved = split.virtual > 1
        is_pipeline = split.pipeline > 1
        # Several stages a device make sense in a pipeline alone.
        if is_interleaved and not is_pipeline:
            return ()
        fixed_schedule = self.fixed.get("schedule")
        if fixed_schedule is not None:
            # Interleaved needs several stages a device, zero bubble one.
            conflicts = {"interleaved": not is_interleaved, "zero-bubble": is_interleaved}
            return () if conflicts.get(fixed_schedule, False) else (fixed_schedule,)
        # 1F1B with several stages a device is the interleaved schedule; zero bubble has one stage.
        # Only the pieces of language models know the part of the backward pass that it puts off.
        may_be_zero_bubble = is_pipeline and not is_interleaved and self.is_language_model
        return ("1f1b", "zero-bubble") if may_be_zero_bubble else ("1f1b",)

    def _shards(self, plan: Plan, zero: int) -> list[int]:
        """Return the replicas that share states: all (0), or those inside a level of links."""
        if "shard" in self.fixed:
            return [self.fixed["shard"]]
        shards = [0]  # all replicas
        if not zero:
            return shards
        devices_inside = 1
        for level in self.problem.cluster.ladder:
            devices_inside *= level.size
            # The replicas inside this level of links (a node, a rack).
            shard, odd_devices = divmod(devices_inside, plan.tensor)
            is_partial = 2 <= shard < plan.replicas
            if odd_devices or not is_partial or plan.replicas % shard:
                continue
            # Groups that share states and those that share experts must nest.
            fits_experts = shard % plan.expert == 0 or plan.expert % shard == 0
            if fits_experts:
                shards.append(shard)
        return shards

    def describe(self) -> str:
        """Describe the plans that are tried: `searched: tensor 1 to 8; ... Not searched: ...`."""
        names = ("tensor", "context", "pipeline", "virtual", "expert")
        phrases = [
            f"{name} {_describe_range(self.choices[name])}"
            for name in names
            if self.choices[name] != [1]
        ]
        zeros = ", ".join(map(str, self.choices["zero"]))
        phrases.append(f"ZeRO {zeros} over all replicas or those of a node")
        if "schedule" not in self.fixed and self.is_language_model:
            phrases.append("1F1B, interleaved or zero bubble")
        if "microbatch" not in self.fixed:
            phrases.append("microbatches of 2^k sequences, or 2^k of them")
        left_out = [phrase for name, phrase in LEFT_OUT.items() if name not in self.fixed]
        if self.problem.host_link is None and "offload" not in self.fixed:
            left_out.append("offload without --host-link")
        if not self.is_language_model:
            left_out = ["ZeRO 2", "chosen stages"]
        return f"searched: {'; '.join(phrases)}. Not searched: {', '.join(left_out)}"


def _describe_range(values: Iterable[int]) -> str:
    """Describe values by the smallest and the largest: `1 to 8`."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return str(ordered[0])
    return f"{ordered[0]} to {ordered[-1]}"


def powers_of_two(maximum: int) -> list[int]:
    """Return the powers of 2 up to a maximum."""
    return [2**exponent for exponent in range(maximum.bit_length())]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
