"""The answers of a search for plans: the best plan, and a page of many searches."""

from dataclasses import replace
from typing import ClassVar

from steptime.core.answer import AnswerRow
from steptime.core.registry import load
from steptime.core.tables.table import Printout, Table
from steptime.questions.launched.answer import LaunchedAnswer
from steptime.questions.plan.answer import TABLES, PlanAnswer


class PlanRow(AnswerRow, frozen=True, kw_only=True):
    """A plan that a search found.

    Attributes:
        device: the device.
        tensor: devices that split each matrix product (tensor parallelism).
        context: devices that split each sequence (context parallelism).
        pipeline: stages of the pipeline.
        virtual: virtual pipeline stages of a device.
        data: replicas.
        expert: devices that divide the experts (expert parallelism).
        zero: ZeRO level, what replicas divide: 0 nothing, 1 optimizer state, 2 also gradients, 3
            also weights.
        recompute: what the backward pass recomputes: none, selective or full.
        recompute_layers: layers of each stage that are recomputed; 0 means all.
        schedule: the schedule of the pipeline.
        shard: replicas among which ZeRO divides; 0 means all.
        offload: what is kept in the host's memory.
        sequence: whether tensor-parallel devices also split the ops between matrix products.
        microbatch: sequences that pass through the network at once.
        step_s: seconds of a step.
        cost_per_step: cost of a step; null where no price is known.
        energy_j: energy of a step of all devices; null where unknown.
        needed_bytes: memory that the fullest device needs.
        device_count: the number of devices.
        low_s: lower end of the 80 % interval of `step_s` under the stack.
        high_s: upper end of the 80 % interval of `step_s` under the stack.
        any_stack_low_s: lower end of the 80 % interval of `step_s` that covers `stack` and all
            other candidates.
        any_stack_high_s: upper end of the 80 % interval of `step_s` that covers `stack` and all
            other candidates.
        examples_per_s_per_device: throughput of a device.
        tokens_per_s_per_device: throughput of a device in tokens; null for a network that reads no
            tokens.
        bound_by: what takes most of the step.
        cost_total: cost of the whole training; null without a price, and without `tokens`.
        training_days: days of the whole training; null without `tokens`.
        is_as_fast: whether it is as fast as the fastest within the error of the prediction.
        efficiency: throughput of a device, relative to the same device in its smallest number; null
            outside of `by_device_count`.
    """

    device: str
    tensor: int
    context: int
    pipeline: int
    virtual: int
    data: int
    expert: int
    zero: int
    recompute: str
    recompute_layers: int
    schedule: str
    shard: int
    offload: str
    sequence: bool
    microbatch: int
    step_s: float
    cost_per_step: float | None
    energy_j: float | None
    needed_bytes: float
    device_count: int
    low_s: float
    high_s: float
    any_stack_low_s: float
    any_stack_high_s: float
    examples_per_s_per_device: float
    tokens_per_s_per_device: float | None
    bound_by: str
    cost_total: float | None
    training_days: float | None
    is_as_fast: bool
    efficiency: float | None


class RefusedPlans(AnswerRow, frozen=True, kw_only=True):
    """The number of plans that one limit refuses.

    Attributes:
        name: memory, budget_per_hour, days or watts.
        plan_count: number of plans.
    """

    name: str
    plan_count: int


class BestPlan(AnswerRow, frozen=True, kw_only=True):
    """The plan with the least of one quantity.

    Attributes:
        name: step_s, cost_per_step, energy_j, needed_bytes or device_count.
        row: the plan.
    """

    name: str
    row: PlanRow


class PlanSearchAnswer(LaunchedAnswer, frozen=True, kw_only=True):
    """The best plan of a search, and its Pareto front.

    Attributes:
        headline: the best plan's devices, step, cost and bottleneck, and how full it is.
        considered_count: plans that were considered.
        fitting_count: plans that fit.
        refused: plans that limits refuse, by limit.
        as_fast_count: plans that are as fast as the fastest within the error of the prediction.
        space: what was searched, and what was not.
        bound_by: what takes most of the best plan's step.
        assumed: settings that were not given and decide all plans, by the option that changes them.
        best: the fastest plan.
        best_by: the plan with the least time, cost, energy, memory and number of devices.
        by_device_count: the fastest plan of each device and number of devices.
        rows: the Pareto front: plans that no other plan beats in time, cost, energy, memory and
            devices at once, fastest first.
        notes: remarks that change how the answer is read.
    """

    has_details: ClassVar[bool] = True

    headline: tuple[str, ...]
    considered_count: int
    fitting_count: int
    refused: tuple[RefusedPlans, ...]
    as_fast_count: int
    space: str
    bound_by: str
    assumed: dict[str, str]
    best: PlanAnswer
    best_by: tuple[BestPlan, ...]
    by_device_count: tuple[PlanRow, ...]
    rows: tuple[PlanRow, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the best plan, the fastest of each number of devices, and the unbeaten plans."""
        best_tables: list[Table] = load(f"{TABLES}:plan_tables")(self.best, self.headline)
        return [best_tables[0], *load(f"{TABLES}:search_tables")(self)]

    def printout(self) -> Printout:
        """Return the answer as the command line prints it, the headline above the tables."""
        return replace(super().printout(), text="")


class PlanPageAnswer(LaunchedAnswer, frozen=True, kw_only=True):
    """A page of plans to choose in.

    Attributes:
        path: the file of the page.
        search_count: searches of the page.
        successful_count: searches that find a plan.
        models: the networks to choose from.
        devices: the devices to choose from.
        device_counts: the numbers of devices to choose from.
        lengths: the lengths to choose from; empty text for the model's own.
        global_batches: the batches to choose from.
        dtypes: the data types to choose from; empty text for the usual one of each device.
        headline: the main numbers in words.
    """

    path: str
    search_count: int
    successful_count: int
    models: tuple[str, ...]
    devices: tuple[str, ...]
    device_counts: tuple[str, ...]
    lengths: tuple[str, ...]
    global_batches: tuple[str, ...]
    dtypes: tuple[str, ...]
    headline: tuple[str, ...]
