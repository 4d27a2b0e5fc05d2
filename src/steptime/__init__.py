"""How long a training step takes, how long it would take elsewhere, and why.

What the command line answers is here as functions of the same names, imported when they are asked
for: `predict`, `fit`, `choose`, `scale`, `plan`, `serve`, `split`, `energy_`, `systolic`; `count`,
`why`, `whatif`; `doctor`, `calibrate`, `run`, `data_`, `sweep`, `sweep_status`, `sweep_collect`,
`sweep_cancel`; `import_`, `report`, `compare`, `analyse`, `evaluate`; `list`, `query`, `convert`.
So is what programs and extensions are made of: `predict_op`, `StepModel`, `count_step`, `device`,
`link`, `Kernel`, `Interval`, `Method`, `Device`, `Link`, `Cluster`; and what there is by name:
`METHODS`, `OPS` (kinds of ops), `stack_names()`. Subpackages hold the rest; `docs/python.md` shows
them.
"""

from typing import Any

__version__ = "0.15.0"


def __getattr__(name: str) -> Any:
    """Return a name of the table of questions, importing what it needs."""
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'steptime' has no attribute {name!r}")
    from importlib import import_module

    api = import_module("steptime.api")
    return ["__version__", *api.NAMES] if name == "__all__" else getattr(api, name)


def __dir__() -> list[str]:
    """Return what `dir(steptime)` shows."""
    return sorted({*globals(), *__getattr__("__all__")})
