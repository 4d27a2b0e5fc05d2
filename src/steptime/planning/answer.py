"""Quantities of a plan's step beside its time: room, MFU, price and remarks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptime.core.units import percent, size
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.prices import Offer, cheapest, offers
from steptime.network.count import op_work
from steptime.network.ops import OPS
from steptime.planning.planner import Planner
from steptime.planning.request import Request
from steptime.planning.step import PlanTime, plan_time
from steptime.prediction.calibrated.method import calibrated_under, notes_of
from steptime.prediction.states import host_memory

KWH_J = 3.6e6


def fits(planner: Planner, result: PlanTime) -> bool:
    """Whether the fullest device has room."""
    return result.memory[result.fullest].total <= planner.room_bytes


def spares(planner: Planner, result: PlanTime) -> bool:
    """Whether the fullest device leaves as much of its memory as predictions miss."""
    return result.memory[result.fullest].total <= (1 - planner.spare) * planner.room_bytes


def offer_of(planner: Planner, path: Path | None = None) -> Offer | None:
    """Return the cheapest price of the device, None where no file has one."""
    return cheapest(offers(path)).get(planner.device.name)


def mfu(planner: Planner, result: PlanTime) -> dict[str, float | None]:
    """Return the share of the peak that counted arithmetic reaches, by convention.

    `full` and `half` are products and attention, of which a causal mask leaves half; `6N` is six
    FLOP a parameter and token. Of experts, those that a token reaches count. Networks that are no
    language models have `full` alone, of all that is counted; beside frozen weights, whose
    gradients are not made, 6N has no meaning.
    """
    (products, attention), times = planner.flops, _forwards(planner)
    whole = planner.peak * result.step_s * result.asked.plan.device_count
    of_a_sequence = {
        "full": times * (products + attention),
        "half": times * (products + attention / 2),
        "6N": 6.0 * planner.active * planner.shape.length,
    }
    shares = {
        name: result.asked.global_batch * flop / whole for name, flop in of_a_sequence.items()
    }
    known = (*shares,) if planner.shape.unit == "tokens" else ("full",)
    known = known[:2] if planner.tuning.freezes else known
    return {name: share if name in known else None for name, share in shares.items()}


def _forwards(planner: Planner) -> float:
    """Return how many forward passes both are in arithmetic: 3, less beside frozen weights."""
    if not planner.tuning.freezes:
        return 3.0
    graph, work = planner.alone(1).graph(1), Counter[str]()
    for op in graph.ops:
        if OPS[op.kind].work:
            work[op.part] += op_work(graph, op)[0]
    return 1 + work["backward"] / work["forward"]


def timed(request: Request) -> tuple[Planner, PlanTime]:
    """Return the step of the plan that a user asks for, and what priced it; raises `InputError`."""
    shape = request.shape
    asked = request.asked(shape)
    planner = request.planner(shape, asked.plan.device_count)
    return planner, plan_time(planner, asked)


def fitted_notes(planner: Planner) -> list[str]:
    """Return what of device and stack lies beyond what was measured."""
    device, stack = planner.device, catalog.stack(planner.method.settings.stack)
    graph = planner.graph_of_kinds()
    if planner.use == "training" and not planner.cluster.levels:
        notes = [*planner.step.of(graph, 1).remarks(1)]  # those of `predict`
    else:
        notes = notes_of(device) if planner.method.name == "calibrated" else []
        notes += [*calibrated_under(device, stack.name), *graph.remarks]
    fitted = planner.use == "serving" or planner.shape.unit == "tokens"
    if planner.use == "training" and not stack.training:
        notes.append(f"stack {stack.name}: constants of training are those of torch-eager")
    elif stack.fitted_on and fitted and not device.calibration:
        names = stack.fitted_on["devices"]
        on = f", but on {', '.join(names)}" if names else ""
        if device.name not in names and (names or planner.cluster.levels):
            notes.append(f"stack {stack.name}: fitted to no step on {device.name}{on}")
    return notes


def plan_notes(planner: Planner, result: PlanTime) -> list[str]:
    """Return the remarks on a plan's step: constants, the host, and memory that is nearly full."""
    single = result.asked.plan, result.asked.microbatch, result.asked.rounds
    notes = list(dict.fromkeys([*fitted_notes(planner), *_remarks(planner, *single)]))
    if result.asked.plan.offload in ("optimizer", "both"):
        rate, devices = host_memory()
        memory = f"{rate / 1e9:,.0f} GB/s of memory for {devices} devices"
        notes.append(f"a host is taken to have {memory}")
    held = result.memory[result.fullest].total / planner.room_bytes
    if 1 - planner.spare < held <= 1:
        missed = f"which predictions miss by up to {percent(planner.spare)}"
        notes.append(f"fills {percent(held)} of the memory, {missed}")
    if planner.device.kind != "gpu":
        notes.append(f"{planner.device.name}: collectives are rings, as those of GPUs")
    return notes


def _remarks(planner: Planner, plan: Plan, batch: int, rounds: int) -> Sequence[str]:
    """Return the remarks of a prediction of the step, where one device runs all of it at once."""
    if planner.held_alone(plan, batch, rounds) is None:
        return ()
    return planner.alone(batch, plan.recompute).predict(batch).remarks


def cost_of(
    offer: Offer | None, device_count: int, what: str, took_s: float
) -> dict[str, Any] | None:
    """Return what devices cost for something that takes so long, and an hour; None: unknown."""
    if offer is None:
        return None
    hour = offer.price * device_count
    about = {"currency": offer.currency, "offer": offer.name, "date": offer.date}
    return {what: hour * took_s / 3600, "hour": hour, **about}


def held(memory: Mapping[str, Any], parts: int = 4) -> str:
    """Return what a device holds, of how much, its largest parts, and how much is too much."""
    largest = sorted(memory["by_part"].items(), key=lambda item: -item[1])[:parts]
    most = ", ".join(f"{name.removesuffix('_bytes')} {size(value)}" for name, value in largest)
    over, room = memory["over_bytes"], memory["usable_bytes"]
    doubt = f", out of memory by {size(over)}" if over else ""
    of = f" of {size(room)}" if room else ""
    return f"{size(memory['needed_bytes'])}{of} ({most}){doubt}"
