"""The steps from Paleo's prediction to the analytic one, correction by correction."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.hardware.device import Device
from steptime.paleo.method import FAULTS, with_faults
from steptime.paleo.rules import settings_of
from steptime.prediction import cost_model
from steptime.prediction.method import ANALYTIC, Method
from steptime.prediction.schedule import Timeline
from steptime.prediction.steps.step_model import StepModel

EXTRAS = {  # settings that Paleo has no rule for, and their meaning
    "tf32": "products of float32 run at the TF32 peak",
    "fuse": "elementwise ops run in the kernel before them",
}


class CorrectedStep(NamedTuple):
    """The step after a correction, on top of the corrections before it.

    The first is `paleo`, the step as published; `meaning` is the correct rule.
    """

    correction: str
    meaning: str
    timeline: Timeline


def explain(
    workload: Workload, graph: Graph, device: Device, options: Mapping[str, str]
) -> list[CorrectedStep]:
    """Return the predictions from `paleo`, the first, to `analytic` under `options`, the last.

    Corrections are added one after another in the order of `FAULTS`, so the changes add up from
    the first number to the last. A correction that an option switches off has no step.

    Raises:
        InputError: as either method does.
    """
    target = cost_model("analytic").with_options(options)
    steps = []
    for correction, meaning, method in _corrected_methods(target):
        timeline = StepModel(workload, device, method=method, graph=graph).timeline()
        steps.append(CorrectedStep(correction, meaning, timeline))
    return steps


def _corrected_methods(target: Method) -> Iterator[tuple[str, str, Method]]:
    """Yield each correction, its meaning, and the method with it and those before it."""
    remaining_faults = list(FAULTS)
    extras = {name: getattr(ANALYTIC, name) for name in EXTRAS}  # the defaults

    def make_method() -> Method:
        return with_faults(target, remaining_faults).with_settings(**extras)

    # From Paleo with all its faults, one correction after the other, to the target.
    yield "paleo", "as published, compute and memory time added", make_method()
    faults_of_target = settings_of(target.settings).faults  # which an option of the user keeps
    for name, meaning in FAULTS.items():
        if name not in faults_of_target:
            remaining_faults.remove(name)
            yield name, meaning, make_method()
    for name, meaning in EXTRAS.items():
        target_setting = getattr(target.settings, name)
        if target_setting != extras[name]:
            extras[name] = target_setting
            yield name, meaning, make_method()
