"""Cost models: graph, workload and cluster -> records. Blind to every measurement.

The first record is of the whole step; one for each forward op follows, in the order of the graph.
"""

from __future__ import annotations

import importlib
from typing import Any

from steptime.core.errors import unknown
from steptime.predict.settings import CostModel

METHODS = {
    "analytic": "steptime.predict.analytic:METHOD",
    "roofline": "steptime.predict.roofline:METHOD",
    "paleo": "steptime.paleo.method:METHOD",
}
DEFAULT = "analytic"


def cost_model(name: str) -> CostModel:
    """Give the cost model of a method; raises `InputError` for an unknown name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, _, attribute = METHODS[name].partition(":")
    found: Any = getattr(importlib.import_module(module), attribute)
    model: CostModel = found
    return model
