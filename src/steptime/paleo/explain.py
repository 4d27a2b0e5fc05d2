"""From Paleo's number to the analytic one, correction by correction."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.hardware.device import Device
from steptime.paleo.method import FAULTS, with_faults
from steptime.paleo.rules import kept
from steptime.prediction import cost_model
from steptime.prediction.method import ANALYTIC, Method
from steptime.prediction.step_model import StepModel

EXTRAS = {  # settings that Paleo has no rule for: what they mean
    "tf32": "the TF32 peak for float32",
    "fuse": "elementwise ops run in the kernel before them",
}


@dataclass(frozen=True)
class Step:
    """A prediction after one more correction; `change_s` is what the correction adds to a step.

    `low_s` and `high_s` bound the step, None where the prediction has no bound.
    """

    correction: str
    meaning: str
    forward_s: float
    backward_s: float
    update_s: float
    change_s: float
    low_s: float | None = None
    high_s: float | None = None

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.forward_s + self.backward_s + self.update_s


def explain(
    workload: Workload, graph: Graph, device: Device, given: Mapping[str, str]
) -> list[Step]:
    """Return the predictions from `paleo`, the first, to `analytic` under its options, the last.

    Corrections come one after another in the order of `FAULTS`, each on top of those before
    it, so the changes add up from the first number to the last. One that an option switches off
    has no step. Raises `InputError` as either method does.
    """
    found: list[Step] = []
    for name, meaning, method in _stages(cost_model("analytic").under(given)):
        times = StepModel(workload, device, method=method, graph=graph).timeline()
        change_s = times.step_s - found[-1].step_s if found else 0.0
        parts = (times.forward_s, times.backward_s, times.update_s)
        found.append(Step(name, meaning, *parts, change_s, times.low_s, times.high_s))
    return found


def calibrated(
    workload: Workload, graph: Graph, device: Device, given: Mapping[str, str]
) -> tuple[StepModel, list[dict[str, Any]]]:
    """Return the model of the step by `calibrated`, and its ops beside those of `analytic`.

    Of the options of `analytic` those hold that `calibrated` has, too.
    """
    method = cost_model("calibrated")
    known = {name: text for name, text in given.items() if name in method.options}
    model = StepModel(workload, device, method=method, options=known, graph=graph)
    bound = StepModel(workload, device, method="analytic", options=given, graph=graph).timeline()
    least = {one.row.name: one.step_s for one in bound.rows}
    return model, [
        {**one.told, "analytic_s": least.get(one.row.name)} for one in model.timeline().rows
    ]


def _stages(target: Method) -> Iterator[tuple[str, str, Method]]:
    own = kept(target.settings).faults
    faults, extras = list(FAULTS), {name: getattr(ANALYTIC, name) for name in EXTRAS}
    yield (
        "paleo",
        "as published, compute and memory time added",
        with_faults(target, faults).tuned(**extras),
    )
    for name, meaning in FAULTS.items():
        if name not in own:
            faults.remove(name)
            yield name, meaning, with_faults(target, faults).tuned(**extras)
    for name, meaning in EXTRAS.items():
        if getattr(target.settings, name) != extras[name]:
            extras[name] = getattr(target.settings, name)
            yield name, meaning, with_faults(target, faults).tuned(**extras)
