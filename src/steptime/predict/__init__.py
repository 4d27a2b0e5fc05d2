"""Cost models: graph, workload and cluster -> records. Blind to every measurement.

The first record is of the whole step; one for each forward op follows, in the order of the graph.
"""

from dataclasses import replace

from steptime.core import registry
from steptime.predict.method import Method

METHODS = {
    "analytic": "steptime.predict.analytic:METHOD",
    "calibrated": "steptime.predict.calibrated.method:METHOD",
    "roofline": "steptime.predict.roofline:METHOD",
    "paleo": "steptime.paleo.method:METHOD",
}
CORRECTIONS = {"analytic": "steptime.paleo.method:CORRECTIONS"}  # options that come first
DEFAULT = "calibrated"


def cost_model(name: str) -> Method:
    """Return the method of a name; raises `InputError` for an unknown one."""
    method: Method = registry.resolve(METHODS, "methods", "method", name)
    if name not in CORRECTIONS:
        return method
    return replace(method, options={**registry.load(CORRECTIONS[name]), **method.options})
