"""Cost models: graph, workload and cluster -> records. Blind to every measurement.

The first record is of the whole step; one for each forward op follows, in the order of the graph.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from steptime.core.errors import unknown
from steptime.predict.method import Method

METHODS = {
    "analytic": "steptime.predict.analytic:METHOD",
    "roofline": "steptime.predict.roofline:METHOD",
    "paleo": "steptime.paleo.method:METHOD",
}
CORRECTIONS = {"analytic": "steptime.paleo.method:CORRECTIONS"}  # options that come first
DEFAULT = "analytic"


def cost_model(name: str) -> Method:
    """Return the method of a name; raises `InputError` for an unknown one."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    method: Method = _loaded(METHODS[name])
    if name not in CORRECTIONS:
        return method
    return replace(method, options={**_loaded(CORRECTIONS[name]), **method.options})


def _loaded(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
