"""Quantities of a plan's step beside its time: room, MFU, price and notes."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from steptime.core.units import format_percent
from steptime.hardware import catalog
from steptime.hardware.prices import Offer, cheapest, read_offers
from steptime.hardware.stack import Stack
from steptime.network.count import op_work
from steptime.network.ops import OPS
from steptime.planning.plan_step import PlanStep
from steptime.planning.problem import PlanProblem
from steptime.planning.ranks.rank_model import FORWARD_PASSES, RankModel
from steptime.planning.request import Request
from steptime.planning.step import PlanTime, time_plan
from steptime.prediction.calibrated.method import device_notes, stack_notes
from steptime.prediction.steps.states import host_memory

KWH_J = 3.6e6
FLOP_PER_PARAMETER = 6.0  # of a token in training, by the convention 6N


def fits(problem: PlanProblem, plan_time: PlanTime) -> bool:
    """Return whether the fullest device has room."""
    return plan_time.peak_memory.total <= problem.rank.room_bytes


def fits_with_margin(problem: PlanProblem, plan_time: PlanTime) -> bool:
    """Return whether the fullest device leaves the error of predictions free."""
    room_bytes = (1 - problem.rank.memory_error_share) * problem.rank.room_bytes
    return plan_time.peak_memory.total <= room_bytes


def find_offer(problem: PlanProblem, prices: Path | None = None) -> Offer | None:
    """Return the cheapest price of the device; None if no file of prices has one."""
    return cheapest(read_offers(prices)).get(problem.device.name)


def compute_mfu(problem: PlanProblem, plan_time: PlanTime) -> dict[str, float | None]:
    """Return the model FLOP utilisation of a step by convention; None where it has no meaning.

    `full` counts products and attention, `half` half of the attention, as a causal mask leaves it;
    `6N` counts six FLOP a parameter and token. Of experts, those that a token reaches count.
    Networks that are no language models have `full` alone. With frozen weights, whose gradients are
    not computed, `6N` has no meaning.
    """
    rank = problem.rank
    step = plan_time.step
    forward_flop = rank.forward_flop
    passes = _forward_passes(rank)
    peak_flop = rank.peak_flop_per_s * plan_time.step_s * step.plan.device_count
    sequence_flop = {
        "full": passes * (forward_flop.products + forward_flop.attention),
        # A causal mask leaves out half of the attention.
        "half": passes * (forward_flop.products + forward_flop.attention / 2),
        "6N": FLOP_PER_PARAMETER * rank.active_parameters * rank.shape.length,
    }
    # Networks that are no language models have no causal mask and no 6N rule. With frozen weights
    # fewer than 6 FLOP per parameter are computed, so 6N would be too many.
    if rank.shape.unit != "tokens":
        conventions = {"full"}
    elif rank.tuning.has_frozen_weights:
        conventions = {"full", "half"}
    else:
        conventions = set(sequence_flop)
    return {
        name: step.global_batch * flop / peak_flop if name in conventions else None
        for name, flop in sequence_flop.items()
    }


def _forward_passes(rank: RankModel) -> float:
    """Return the FLOP of a step over those of its forward pass; fewer with frozen weights."""
    # With all weights trained a backward pass has twice the FLOP of a forward pass.
    if not rank.tuning.has_frozen_weights:
        return FORWARD_PASSES
    graph = rank.full_step(1).graph(1)
    flop = Counter[str]()
    for op in graph.ops:
        if OPS[op.kind].work:
            op_flop, _moved_bytes = op_work(graph, op)
            flop[op.part] += op_flop
    return 1 + flop["backward"] / flop["forward"]


def time_request(request: Request) -> tuple[PlanProblem, PlanTime]:
    """Return the problem of a request, and the step of its plan.

    Raises:
        InputError: if the plan cannot be.
    """
    shape = request.shape
    step = request.make_step(shape)
    problem = request.make_problem(shape, step.plan.device_count)
    return problem, time_plan(problem, step)


def fit_notes(problem: PlanProblem) -> list[str]:
    """Return notes on a device and a stack for which constants were not fitted."""
    rank = problem.rank
    stack = catalog.stack(rank.method.settings.stack)
    graph = rank.graph_of_kinds()
    is_single_device = not problem.cluster.levels  # no links join devices
    if rank.is_training and is_single_device:
        batch = 1  # that of `graph`
        notes = [*rank.step_model.with_graph(graph, batch).remarks(batch)]  # those of `predict`
    else:
        notes = device_notes(rank.device) if rank.method.name == "calibrated" else []
        notes += [*stack_notes(rank.device, stack.name), *graph.remarks]
    # Constants of training are fitted on language models alone, so other networks get no note.
    is_language_model = rank.shape.unit == "tokens"
    has_fitted_constants = is_language_model or not rank.is_training
    if rank.is_training and not stack.training:
        notes.append(f"stack {stack.name}: constants of training are those of torch-eager")
    elif stack.fitted_on and has_fitted_constants and not rank.device.is_calibrated:
        notes += _unseen_device_notes(problem, stack, stack.fitted_on["devices"])
    return notes


def _unseen_device_notes(
    problem: PlanProblem, stack: Stack, fitted_devices: Sequence[str]
) -> list[str]:
    """Return a note if no step on the device was among those that a stack was fitted on."""
    device_name = problem.device.name
    if device_name in fitted_devices:
        return []
    is_single_device = not problem.cluster.levels
    if is_single_device and not fitted_devices:  # then it uses no fitted constant
        return []
    other_devices = f", but on {', '.join(fitted_devices)}" if fitted_devices else ""
    return [f"stack {stack.name}: fitted to no step on {device_name}{other_devices}"]


def plan_notes(problem: PlanProblem, plan_time: PlanTime) -> list[str]:
    """Return the notes on a step: constants, the host, and memory that is nearly full."""
    rank = problem.rank
    notes = list(dict.fromkeys([*fit_notes(problem), *_step_remarks(rank, plan_time.step)]))
    if plan_time.step.plan.offload in ("optimizer", "both"):
        bytes_per_s, device_count = host_memory()
        memory = f"{bytes_per_s / 1e9:,.0f} GB/s of memory for {device_count} devices"
        notes.append(f"a host is taken to have {memory}")
    filled_share = plan_time.peak_memory.total / rank.room_bytes
    # It fits by the prediction, but not by a prediction that is off as far as usual.
    fits_within_error = 1 - rank.memory_error_share < filled_share <= 1
    if fits_within_error:
        error = f"which predictions miss by up to {format_percent(rank.memory_error_share)}"
        notes.append(f"fills {format_percent(filled_share)} of the memory, {error}")
    if rank.device.kind != "gpu":
        notes.append(f"{rank.device.name}: collectives are rings, as those of GPUs")
    return notes


def _step_remarks(rank: RankModel, step: PlanStep) -> Sequence[str]:
    """Return the remarks of `predict` if one device runs the whole step at once."""
    plan = step.plan
    if rank.single_device_memory(plan, step.microbatch, step.microbatches) is None:
        return ()
    return rank.full_step(step.microbatch, plan.recompute).predict(step.microbatch).remarks
