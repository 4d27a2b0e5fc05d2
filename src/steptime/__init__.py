"""How long a training step takes, how long it would take elsewhere, and why.

What most programs need is here, imported when asked for: `StepModel`, `count_step`, `device`,
`link`. The rest is in the rooms; `docs/python.md` shows them.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.5.0"
__all__ = ["StepModel", "__version__", "count_step", "device", "link"]  # typed in __init__.pyi

_FROM = {
    "StepModel": "steptime.predict.step_model",
    "count_step": "steptime.build",
    "device": "steptime.catalog",
    "link": "steptime.catalog",
}


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`, importing what it needs."""
    if name not in _FROM:
        raise AttributeError(f"module 'steptime' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_FROM[name]), name)


def __dir__() -> list[str]:
    """Return what `dir(steptime)` shows."""
    return sorted({*globals(), *__all__})
