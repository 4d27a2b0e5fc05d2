"""How long a training step takes, how long it would take elsewhere, and why.

What most programs need is here, imported when asked for: `predict`, `predict_op`, `why`, `whatif`,
`plan`, `serve`, `analyse`, `calibrate`, `evaluate`, `StepModel`, `count_step`, `device`, `link`;
what extensions are made of: `Kernel`, `Interval`, `Method`, `Device`, `Link`, `Cluster`; and what
there is by name: `METHODS`, `OPS` (kinds of ops), `stack_names()`. The rest is in the rooms;
`docs/python.md` shows them.
"""

from typing import Any

__version__ = "0.15.0"
_FROM = {
    "Cluster": "steptime.hardware.device:Cluster",
    "Device": "steptime.hardware.device:Device",
    "Interval": "steptime.prediction.kernel:Interval",
    "Kernel": "steptime.prediction.kernel:Kernel",
    "Link": "steptime.hardware.device:Link",
    "METHODS": "steptime.prediction:METHODS",
    "Method": "steptime.prediction.method:Method",
    "OPS": "steptime.network.ops:OPS",
    "StepModel": "steptime.prediction.step_model:StepModel",
    "analyse": "steptime.reports.answered:analyse",
    "calibrate": "steptime.api:calibrate",
    "count_step": "steptime.build:count_step",
    "device": "steptime.hardware.catalog:device",
    "evaluate": "steptime.api:evaluate",
    "from_module": "steptime.api:from_module",
    "link": "steptime.hardware.catalog:link",
    "plan": "steptime.questions.plan.best:plan",
    "predict": "steptime.api:predict",
    "predict_op": "steptime.api:predict_op",
    "serve": "steptime.questions.serve.targets:serve",
    "stack_names": "steptime.hardware.catalog:stack_names",
    "whatif": "steptime.api:whatif",
    "why": "steptime.api:why",
}
__all__ = ["__version__", *_FROM]  # noqa: PLE0604  # typed in __init__.pyi


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`, importing what it needs."""
    if name not in _FROM:
        raise AttributeError(f"module 'steptime' has no attribute {name!r}")
    from steptime.core.registry import load

    return load(_FROM[name])


def __dir__() -> list[str]:
    """Return what `dir(steptime)` shows."""
    return sorted({*globals(), *__all__})
