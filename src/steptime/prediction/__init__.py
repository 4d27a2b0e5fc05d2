"""Cost models: graph, workload and cluster -> records. Blind to every measurement.

The first record is of the whole step; one for each forward op follows, in the order of the graph.
The room can be called: `steptime.predict("resnet50", "a100")` is `steptime.api.predict`.
"""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

from steptime.core import registry
from steptime.prediction.method import Method

METHODS = {
    "analytic": "steptime.prediction.analytic:METHOD",
    "calibrated": "steptime.prediction.calibrated.method:METHOD",
    "roofline": "steptime.prediction.roofline:METHOD",
    "paleo": "steptime.paleo.method:METHOD",
}
CORRECTIONS = {"analytic": "steptime.paleo.method:CORRECTIONS"}  # options that come first
DEFAULT = "calibrated"


def cost_model(name: str | Method) -> Method:
    """Return the method of a name, or itself; raises `InputError` for an unknown one."""
    if isinstance(name, Method):
        return name
    method: Method = registry.resolve(METHODS, "methods", "method", name)
    if method.name != name:  # a package's own name for a method of the house
        method = replace(method, name=name)
    if name not in CORRECTIONS:
        return method
    return replace(method, options={**registry.load(CORRECTIONS[name]), **method.options})


class _Room(ModuleType):
    """This room as a module that can be called, so that one name serves for both."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Return what `steptime.api.predict` returns."""
        return registry.load("steptime.api:predict")(*given, **named)


sys.modules[__name__].__class__ = _Room
