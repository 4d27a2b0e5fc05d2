"""Cost models: graph, workload and cluster -> records. Blind to every measurement.

The first record is of the whole step; one for each forward op follows, in the order of the graph.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from steptime.core.errors import unknown
from steptime.core.graph import Graph
from steptime.core.hardware import Cluster
from steptime.core.record import Record
from steptime.core.workload import Workload

METHODS = {"roofline": "steptime.predict.roofline:predict"}
DEFAULT = "roofline"


class CostModel(Protocol):
    """A cost model takes the graph of a whole step; `options` are texts by name."""

    def __call__(
        self, graph: Graph, workload: Workload, cluster: Cluster, options: Mapping[str, str]
    ) -> Sequence[Record]:
        """Give the record of the step, then one for each forward op."""


def cost_model(name: str) -> CostModel:
    """Give the cost model of a method; raises `InputError` for an unknown name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, _, attribute = METHODS[name].partition(":")
    found: Any = getattr(importlib.import_module(module), attribute)
    model: CostModel = found
    return model
