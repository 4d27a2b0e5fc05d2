"""From Paleo's number to the analytic one, correction by correction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from steptime.core.graph import Graph
from steptime.core.hardware import Device
from steptime.predict import cost_model
from steptime.predict.costs import costs
from steptime.predict.estimate import estimate
from steptime.predict.settings import CORRECTIONS, Settings, switched_off

EXTRAS = {  # settings that Paleo has no rule for: what they mean
    "tf32": "the TF32 peak for float32",
    "fuse": "elementwise ops run in the kernel before them",
}


@dataclass(frozen=True)
class Step:
    """A prediction after one more correction; `change_s` is what the correction adds to a step."""

    correction: str
    meaning: str
    forward_s: float
    backward_s: float
    update_s: float
    change_s: float

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.forward_s + self.backward_s + self.update_s


def explain(graph: Graph, dtype: str, device: Device, given: Mapping[str, str]) -> list[Step]:
    """Give the predictions from `paleo`, the first, to `analytic` under its options, the last.

    Corrections come one after another in the order of `CORRECTIONS`, each on top of those before
    it, so the changes add up from the first number to the last. One that an option switches off
    has no step. Raises `InputError` as either method does.
    """
    found: list[Step] = []
    for name, meaning, settings in _stages(cost_model("analytic").chosen(given)):
        times = estimate(costs(graph, dtype, settings), device, dtype, settings)
        change_s = times.step_s - found[-1].step_s if found else 0.0
        parts = (times.forward_s, times.backward_s, times.update_s)
        found.append(Step(name, meaning, *parts, change_s))
    return found


def _stages(target: Settings) -> Iterator[tuple[str, str, Settings]]:
    plain = replace(target, tf32=False, fuse=False)
    settings = reduce(switched_off, CORRECTIONS, plain)
    yield "paleo", "as published, compute and memory time added", settings
    for name, meaning in {**CORRECTIONS, **EXTRAS}.items():
        wanted = getattr(target, name)
        if getattr(settings, name) != wanted:
            settings = replace(settings, **{name: wanted})
            yield name, meaning, settings
