"""The energy of a plan's step."""

from __future__ import annotations

from steptime.planning.caches import cached_by_owner
from steptime.planning.plan_cost import PlanCost
from steptime.planning.plan_step import PlanStep
from steptime.planning.ranks.rank_model import RankModel
from steptime.planning.ranks.single_device import KernelEnergy, kernel_energy
from steptime.prediction.calibrated.power import step_joules
from steptime.prediction.power import step_energy


def step_energy_j(cost: PlanCost, step: PlanStep, step_s: float) -> float | None:
    """Return the joules of a step of all devices; None where their power is unknown.

    A device draws at most its limit. One that trains the whole network draws what `predict` says of
    its kernels.

    Args:
        cost: the costs of the plan.
        step: the step.
        step_s: its predicted seconds.
    """
    plan = step.plan
    rank = cost.rank
    # Recomputation and offloading add kernels to those of `predict`.
    has_predict_kernels = plan.recompute == plan.offload == "none"
    if has_predict_kernels and rank.runs_full_network(plan):
        device_j = _single_device_j(rank, step, step_s)
        return None if device_j is None else device_j * plan.device_count
    if rank.power_limits_w is None:  # the power of the device is unknown
        return None
    waiting_w, limit_w = rank.power_limits_w
    waiting_j = waiting_w * step_s
    limit_j = limit_w * step_s
    microbatches = step.microbatches
    pipeline_j = sum(
        [
            # A device draws at most its limit.
            device_count * min(waiting_j + microbatch_j * microbatches, limit_j)
            for device_count, microbatch_j in cost.device_energies
        ]
    )
    return pipeline_j * (plan.device_count // plan.pipeline)  # for each pipeline


def _single_device_j(rank: RankModel, step: PlanStep, step_s: float) -> float | None:
    """Return the joules of a step on a device that trains the whole network.

    The kernels of both passes run once for each microbatch, those of the update once.
    """
    microbatch = step.microbatch
    model = rank.full_step(microbatch)
    # The step is the one of `predict`, and so is its energy.
    if step.plan.device_count == step.microbatches == 1:
        columns = model.lower_step(microbatch).columns
        return step_energy(model.timeline(microbatch), model.effective_device, columns).energy_j
    kernels = _full_kernel_energy(rank, microbatch)
    kernels_j = kernels.passes_j * step.microbatches + kernels.update_j
    # Only the joules of the predicted seconds are used, so that both ends may be the same.
    value_low_high_s = (step_s, step_s, step_s)
    joules = step_joules(kernels_j, value_low_high_s, model.effective_device)
    return None if joules is None else joules.value


@cached_by_owner
def _full_kernel_energy(rank: RankModel, microbatch: int) -> KernelEnergy:
    return kernel_energy(rank.full_step(microbatch), microbatch)
