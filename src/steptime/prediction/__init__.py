"""Cost models: lower a graph to kernels, price them on a device, schedule the step.

The first record is of the whole step; one for each forward op follows, in the order of the graph.
"""

from dataclasses import replace

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
    if method.name != name:  # a package registers a method of this module under its own name
        method = replace(method, name=name)
    # `analytic` corrects Paleo's model: the corrections are options, shown before its own.
    if name not in CORRECTIONS:
        return method
    return replace(method, options={**registry.load(CORRECTIONS[name]), **method.options})
