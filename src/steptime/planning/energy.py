"""The joules of a plan's step."""

from collections.abc import Iterable

from steptime.core.workload import Plan
from steptime.planning.alone import spent_j_of
from steptime.planning.faults import Asked
from steptime.planning.planner import Planner
from steptime.prediction.calibrated.power import drawn_of
from steptime.prediction.power import step_energy


def energy_of(
    planner: Planner, asked: Asked, step_s: float, loads: Iterable[tuple[int, float]]
) -> float | None:
    """Return the joules of a step of all devices, None where their power is not known.

    A device draws no more than its limit. One that runs the whole network draws what `predict` says
    of its kernels.
    """
    plan = asked.plan
    if planner.is_whole(plan) and (plan.recompute, plan.offload) == ("none", "none"):
        device_j = _single_device_j(planner, plan, asked.microbatch, asked.rounds, step_s)
        return None if device_j is None else device_j * plan.device_count
    if (draws := planner.draws) is None:
        return None
    waiting_w, most_w = draws
    m, waiting_j, most_j = asked.rounds, waiting_w * step_s, most_w * step_s
    spent = [count * min(waiting_j + each_j * m, most_j) for count, each_j in loads]
    return sum(spent) * (asked.plan.device_count // asked.plan.pipeline)


def _single_device_j(
    planner: Planner, plan: Plan, batch: int, rounds: int, step_s: float
) -> float | None:
    """Return the joules of a step on a device that runs the whole network.

    Kernels of its forward and backward pass run once a microbatch, those of its update once.
    """
    model = planner.alone(batch)
    if plan.device_count == rounds == 1:
        energy = step_energy(model.timeline(batch), model.seen, model.lowered(batch).columns)
        return energy.energy_j
    passes_j, update_j = planner.once(("alone_j", batch), lambda: spent_j_of(model, batch))
    energy_j = drawn_of(passes_j * rounds + update_j, (step_s, step_s, step_s), model.seen)
    return None if energy_j is None else energy_j[0]
