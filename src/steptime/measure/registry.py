"""The backends by name: the modules that run graphs, and the packages that they need.

Other packages add their own as entry points of the group `steptime.backends`: a name, and the
module that has what `measure/contract.py` describes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from steptime.core.errors import InputError, unknown

GROUP = "steptime.backends"


@dataclass(frozen=True)
class Row:
    """The module of a backend, and the distribution whose version its records carry."""

    module: str
    package: str


BACKENDS: Mapping[str, Row] = {
    "torch": Row("steptime.measure.backends.torch.backend", "torch"),
    "onnxruntime": Row("steptime.measure.backends.onnxruntime.backend", "onnxruntime"),
}
GONE = {
    "numpy": "it was a reference for values, which the tests keep; measure with torch",
}


def backend(name: str, where: str = "") -> Row:
    """Return the row of a backend; raises `InputError` for a name that no package has."""
    if name in BACKENDS:
        return BACKENDS[name]
    if name in GONE:
        raise InputError(f"{where}{': ' if where else ''}backend {name} is gone: {GONE[name]}")
    added = {
        point.name: Row(point.value, point.dist.name if point.dist else "")
        for point in metadata.entry_points(group=GROUP)
    }
    if name not in added:
        raise unknown("backend", name, (*BACKENDS, *added), where)
    return added[name]
