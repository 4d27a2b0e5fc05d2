"""A training step under a plan: how it is split, and on which sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from steptime.core.workload import Plan
from steptime.planning.pipelines.stages import DEFAULT_ORDER


@dataclass(frozen=True)
class PlanStep:
    """A training step under a plan.

    Attributes:
        plan: how the step is split over devices.
        microbatch: the sequences of a microbatch.
        global_batch: the sequences of a step, of all replicas.
        order: the order in which dimensions of the plan number the ranks.
        pads_tokens: whether the last share of a sequence's tokens is padded, as a server does it.
            A training step sends equal shares to the ranks of the experts, so tokens must divide.
    """

    plan: Plan
    microbatch: int
    global_batch: int
    order: str = DEFAULT_ORDER
    pads_tokens: bool = False

    @property
    def microbatches(self) -> int:
        """The microbatches of a replica in a step."""
        return self.global_batch // (self.microbatch * self.plan.data)

    def change(self, fields: Mapping[str, Any]) -> PlanStep:
        """Return the step with other values of its own fields or of its plan's fields."""
        step_fields = {name: value for name, value in fields.items() if name in vars(self)}
        plan_fields = {name: value for name, value in fields.items() if name not in step_fields}
        return replace(self, plan=replace(self.plan, **plan_fields), **step_fields)
