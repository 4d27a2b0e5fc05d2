"""The answers of `plan`: one plan, the best plan of a search, and a page to choose in."""

from dataclasses import replace
from typing import ClassVar

from steptime.core.answer import AnswerRow
from steptime.core.registry import load
from steptime.core.tables.table import Printout, Table
from steptime.core.workload import Plan
from steptime.questions.launched.answer import LaunchedAnswer

TABLES = "steptime.questions.plan.tables"
"""The module that makes the tables of answers, which needs their types."""


class JoinedLevel(AnswerRow, frozen=True, kw_only=True):
    """A level of how devices are joined.

    Attributes:
        size: number of parts that the link joins: devices of a node, or nodes.
        link: the link.
        links: links from each part to the others.
    """

    size: int
    link: str
    links: int


class SplitFields(AnswerRow, frozen=True, kw_only=True):
    """How a step is split over devices.

    Attributes:
        data: replicas.
        tensor: devices that split each matrix product (tensor parallelism).
        pipeline: stages of the pipeline.
        expert: devices that divide the experts (expert parallelism).
        sequence: whether tensor-parallel devices also split the ops between matrix products.
        context: devices that split each sequence (context parallelism).
        microbatches: microbatches of a replica in a step.
        schedule: the schedule of the pipeline.
        zero: ZeRO level, what replicas divide: 0 nothing, 1 optimizer state, 2 also gradients, 3
            also weights.
        recompute: what the backward pass recomputes: none, selective or full.
        offload: what is kept in the host's memory: none, optimizer, activations or both.
        virtual: virtual pipeline stages of a device.
        shard: replicas among which ZeRO divides; 0 means all.
        recompute_layers: layers of each stage that are recomputed; 0 means all.
        stages: layers of each stage; empty where they are divided evenly.
        context_method: how context-parallel devices get the keys and values of all.
        expert_tensor: 1 if each tensor-parallel device has whole experts, else 0.
        imbalance: tokens of the busiest expert-parallel device over the mean.
        expert_overlap: whether tokens are sent to experts while another microbatch computes.
        order: nesting of parallel groups, innermost first.
    """

    data: int
    tensor: int
    pipeline: int
    expert: int
    sequence: bool
    context: int
    microbatches: int
    schedule: str
    zero: int
    recompute: str
    offload: str
    virtual: int
    shard: int
    recompute_layers: int
    stages: tuple[int, ...]
    context_method: str
    expert_tensor: int
    imbalance: float
    expert_overlap: bool
    order: str


class PlanParts(AnswerRow, frozen=True, kw_only=True):
    """The parts of a step of the busiest device, which add up to the step.

    Attributes:
        compute_s: seconds of kernels.
        recompute_s: seconds of kernels that recompute activations.
        exposed_communication_s: seconds in which the device waits for collectives.
        host_s: seconds in which the device waits for the host that launches kernels.
        bubble_s: seconds in which the device waits for other stages of the pipeline.
        update_s: seconds of the optimizer.
        outside_layers_s: work of the software once a step, and waiting for the slowest device.
    """

    compute_s: float
    recompute_s: float
    exposed_communication_s: float
    host_s: float
    bubble_s: float
    update_s: float
    outside_layers_s: float


class MemoryParts(AnswerRow, frozen=True, kw_only=True):
    """The memory of a device by what it holds, at the worst moment of a step.

    Attributes:
        weights_bytes: size of the weights.
        gradients_bytes: size of the gradients.
        states_bytes: size of the optimizer's states.
        activations_bytes: size of the activations of all microbatches in flight.
        gathered_bytes: size of the weights that are gathered from other devices, a layer or two at
            a time.
        logits_bytes: size of logits and loss.
        buffers_bytes: size of the buffers of collectives.
        context_bytes: memory of driver and libraries.
        inputs_bytes: size of the inputs, of networks that are no language models.
        temporaries_bytes: size of tensors that live within an op or two, of networks that are no
            language models.
        blocks_bytes: memory that the allocator holds beyond tensors, of networks that are no
            language models.
    """

    weights_bytes: float
    gradients_bytes: float
    states_bytes: float
    activations_bytes: float
    gathered_bytes: float
    logits_bytes: float
    buffers_bytes: float
    context_bytes: float
    inputs_bytes: float
    temporaries_bytes: float
    blocks_bytes: float


class StageMemory(MemoryParts, frozen=True, kw_only=True):
    """The memory of a device of the pipeline.

    Attributes:
        stage: the pipeline stage of the device.
        layers: layers of the device.
        needed_bytes: memory that it needs.
    """

    stage: int
    layers: int
    needed_bytes: float


class PlanMemory(AnswerRow, frozen=True, kw_only=True):
    """The memory of the devices of a plan.

    Attributes:
        needed_bytes: memory that the fullest device needs.
        needed_low_bytes: lower end of the 80 % interval of `needed_bytes`.
        needed_high_bytes: upper end of the 80 % interval of `needed_bytes`.
        usable_bytes: memory that a process may use of a device; null where unknown.
        over_bytes: memory that the fullest device lacks; null where `usable_bytes` is unknown.
        host_bytes: the most that a device keeps in its host's memory.
        fullest_stage: the pipeline stage of the fullest device.
        by_part: what the fullest device holds.
        by_stage: the memory of each device of the pipeline.
    """

    needed_bytes: float
    needed_low_bytes: float
    needed_high_bytes: float
    usable_bytes: float | None
    over_bytes: float | None
    host_bytes: float
    fullest_stage: int
    by_part: MemoryParts
    by_stage: tuple[StageMemory, ...]


class ExposedCollective(AnswerRow, frozen=True, kw_only=True):
    """A collective of a step, and how long a device waits for it.

    Attributes:
        collective: the collective, such as all_reduce.
        group: ranks that take part: `tensor`, `context`, `expert`, `data`, `pipeline`; `copies` of
            a shard; `embedding` (first and last stage share it); `host` (a device and its host).
        link: the link that it crosses, numbered where several levels have it.
        size_bytes: bytes that a device sends in a step.
        communication_s: seconds of the collective in a step.
        communication_low_s: lower end of the 80 % interval of `communication_s`; null where the
            method has none.
        communication_high_s: upper end of the 80 % interval of `communication_s`.
        exposed_communication_s: the part of `communication_s` for which the device waits.
    """

    collective: str
    group: str
    link: str
    size_bytes: float
    communication_s: float
    communication_low_s: float | None
    communication_high_s: float | None
    exposed_communication_s: float


class PeakShare(AnswerRow, frozen=True, kw_only=True):
    """The share of the peak that a step reaches, by a convention of counting (MFU).

    Attributes:
        name: full (products and attention), half (half of attention, as a causal mask leaves) or
            6N (6 FLOP a parameter and token).
        share: the share; null where the convention has no meaning for the network.
    """

    name: str
    share: float | None


class StackTime(AnswerRow, frozen=True, kw_only=True):
    """The step of a plan under another candidate stack.

    Attributes:
        stack: the stack.
        step_s: seconds of a step.
        low_s: lower end of the 80 % interval of `step_s`.
        high_s: upper end of the 80 % interval of `step_s`.
    """

    stack: str
    step_s: float
    low_s: float
    high_s: float


class TrainingRun(AnswerRow, frozen=True, kw_only=True):
    """A whole training.

    Attributes:
        tokens: tokens of the training, or what `unit` says.
        steps: steps of the training.
        train_h: hours of the training.
        low_h: lower end of the 80 % interval of `train_h` under the stack.
        high_h: upper end of the 80 % interval of `train_h` under the stack.
        any_stack_low_h: as `low_h`, of `stack` and `other_stacks`.
        any_stack_high_h: as `high_h`, of `stack` and `other_stacks`.
        device_hours: hours of the training times the number of devices.
        energy_kwh: energy of the devices; null where unknown.
    """

    tokens: float
    steps: float
    train_h: float
    low_h: float
    high_h: float
    any_stack_low_h: float
    any_stack_high_h: float
    device_hours: float
    energy_kwh: float | None


class NearestPlan(AnswerRow, frozen=True, kw_only=True):
    """The fastest plan that fits, one or two changes from the one that was asked for.

    Attributes:
        change: the options that change.
        plan: how its step is split.
        microbatch: sequences that pass through the network at once.
        step_s: seconds of its step.
        needed_bytes: memory that its fullest device needs.
    """

    change: str
    plan: SplitFields
    microbatch: int
    step_s: float
    needed_bytes: float


class PlanAnswer(LaunchedAnswer, frozen=True, kw_only=True):
    """A training step that is split over devices: its time, memory, communication and cost.

    Attributes:
        headline: the devices with the step and its cost, and what takes most of the step.
        model: the network.
        device: the device.
        device_count: number of devices.
        levels: how the devices are joined, innermost level first.
        parameters: parameters of the network.
        plan: how the step is split.
        microbatch: sequences that pass through the network at once.
        global_batch: sequences of a step, of all replicas.
        length: tokens of a sequence; null for networks that are no language models.
        unit: what is counted: `tokens`, or `examples` for networks that read no tokens.
        dtype: data type of the step.
        tuning: the part of the network that is trained; null if all of it is.
        method: the cost model.
        stack: the software.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        other_stacks: the step under each other candidate: software that may run such a plan; empty
            where a stack was named.
        nearest_stack: the newest of `other_stacks`; null where a stack was named.
        step_s: seconds of a step.
        low_s: lower end of the 80 % interval of `step_s` under the stack.
        high_s: upper end of the 80 % interval of `step_s` under the stack.
        any_stack_low_s: lower end of the printed 80 % interval of `step_s`: `stack` and
            `other_stacks`.
        any_stack_high_s: upper end of the printed 80 % interval of `step_s`.
        bubble_share: share of the step before `outside_layers_s` in which a device of the pipeline
            waits for other stages, in the mean of its devices.
        examples_per_s: throughput of all devices.
        examples_per_s_per_device: throughput of a device.
        tokens_per_s: throughput of all devices in tokens; null for a network that reads no tokens.
        tokens_per_s_per_device: throughput of a device in tokens; null for a network that reads no
            tokens.
        parts: what the step of the busiest device consists of.
        fits: whether the fullest device has room.
        usable_bytes: memory that a process may use of the device; null where unknown.
        memory: the memory of the devices.
        exposed_communication: the collectives of a device.
        mfu: the share of the peak that is reached, by convention.
        cost_per_step: cost of a step; null, like all costs, where no price is known.
        cost_per_hour: cost of an hour of all devices.
        cost_per_million_tokens: cost of a million tokens, or of what else `unit` says.
        cost_total: cost of the whole training; null without a price, and without `tokens`.
        currency: the currency of the costs.
        price_offer: the offer of the price.
        price_date: the date of the price.
        energy_j: energy of a step of all devices; null where unknown.
        device_power_w: mean power of a device; null where unknown.
        device_power_low_w: lower end of the 80 % interval of `device_power_w`; null where it is
            unknown, and where the method has none.
        device_power_high_w: upper end of the 80 % interval of `device_power_w`.
        energy_scope: the parts of the system that the energy covers; null where unknown.
        training: the whole training; null without `tokens`.
        notes: remarks that change how the answer is read.
        nearest_fitting: for a plan that does not fit: the fastest similar plan that does; else
            null.
    """

    has_details: ClassVar[bool] = True

    headline: tuple[str, ...]
    model: str
    device: str
    device_count: int
    levels: tuple[JoinedLevel, ...]
    parameters: int
    plan: SplitFields
    microbatch: int
    global_batch: int
    length: int | None
    unit: str
    dtype: str
    tuning: str | None
    method: str
    stack: str
    assumed: dict[str, str]
    other_stacks: tuple[StackTime, ...]
    nearest_stack: str | None
    step_s: float
    low_s: float
    high_s: float
    any_stack_low_s: float
    any_stack_high_s: float
    bubble_share: float
    examples_per_s: float
    examples_per_s_per_device: float
    tokens_per_s: float | None
    tokens_per_s_per_device: float | None
    parts: PlanParts
    fits: bool
    usable_bytes: float | None
    memory: PlanMemory
    exposed_communication: tuple[ExposedCollective, ...]
    mfu: tuple[PeakShare, ...]
    cost_per_step: float | None
    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    cost_total: float | None
    currency: str | None
    price_offer: str | None
    price_date: str | None
    energy_j: float | None
    device_power_w: float | None
    device_power_low_w: float | None
    device_power_high_w: float | None
    energy_scope: str | None
    training: TrainingRun | None
    notes: tuple[str, ...]
    nearest_fitting: NearestPlan | None

    def tables(self) -> list[Table]:
        """Return the step with its memory and cost, and the communication of a device."""
        tables: list[Table] = load(f"{TABLES}:plan_tables")(self, self.headline)
        return tables

    def printout(self) -> Printout:
        """Return the answer as the command line prints it, the headline above the table."""
        return replace(super().printout(), text="")


def split_fields(plan: Plan, order: str) -> SplitFields:
    """Return the fields of a plan with the order of its groups."""
    return SplitFields(**vars(plan), order=order)
