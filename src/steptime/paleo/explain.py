"""From Paleo's number to the analytic one, correction by correction."""

from collections.abc import Iterator, Mapping
from typing import Any

from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.hardware.device import Device
from steptime.paleo.method import FAULTS, with_faults
from steptime.paleo.rules import settings_of
from steptime.prediction import cost_model
from steptime.prediction.method import ANALYTIC, Method
from steptime.prediction.step_model import StepModel

EXTRAS = {  # settings that Paleo has no rule for: what they mean
    "tf32": "the TF32 peak for float32",
    "fuse": "elementwise ops run in the kernel before them",
}


def explain(
    workload: Workload, graph: Graph, device: Device, given: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the predictions from `paleo`, the first, to `analytic` under its options, the last.

    Corrections come one after another in the order of `FAULTS`, each on top of those before
    it, so the changes add up from the first number to the last. One that an option switches off
    has no row. Raises `InputError` as either method does.
    """
    found: list[dict[str, Any]] = []
    for name, meaning, method in _stages(cost_model("analytic").under(given)):
        times = StepModel(workload, device, method=method, graph=graph).timeline()
        change_s = times.step_s - found[-1]["step_s"] if found else 0.0
        row = {
            "correction": name,
            "meaning": meaning,
            "step_s": times.step_s,
            "low_s": times.low_s,
            "high_s": times.high_s,
            "change_s": change_s,
            "forward_s": times.forward_s,
            "backward_s": times.backward_s,
            "update_s": times.update_s,
        }
        found.append(row)
    return found


def _stages(target: Method) -> Iterator[tuple[str, str, Method]]:
    kept = settings_of(target.settings).faults
    faults, extras = list(FAULTS), {name: getattr(ANALYTIC, name) for name in EXTRAS}
    start = {"paleo": "as published, compute and memory time added"}
    for name, meaning in {**start, **FAULTS, **EXTRAS}.items():
        if name in kept or (name in extras and extras[name] == getattr(target.settings, name)):
            continue  # it stays a fault, or as it is
        if name in extras:
            extras[name] = getattr(target.settings, name)
        elif name in FAULTS:
            faults.remove(name)
        yield name, meaning, with_faults(target, faults).tuned(**extras)
