"""Cost models: graph, workload and cluster -> records. Blind to every measurement.

The first record is of the whole step; one for each forward op follows, in the order of the graph.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from steptime.core.errors import unknown
from steptime.core.graph import Graph
from steptime.core.hardware import Cluster
from steptime.core.record import Record
from steptime.core.workload import Workload
from steptime.predict.records import predict
from steptime.predict.settings import Method

METHODS = {
    "analytic": "steptime.predict.analytic:METHOD",
    "roofline": "steptime.predict.roofline:METHOD",
    "paleo": "steptime.predict.paleo:METHOD",
}
DEFAULT = "analytic"


class CostModel(Protocol):
    """A cost model takes the graph of a whole step; `options` are texts by name."""

    def __call__(
        self, graph: Graph, workload: Workload, cluster: Cluster, options: Mapping[str, str]
    ) -> Sequence[Record]:
        """Give the record of the step, then one for each forward op."""


def method(name: str) -> Method:
    """Give a method's assumptions and options; raises `InputError` for an unknown name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, _, attribute = METHODS[name].partition(":")
    found: Any = getattr(importlib.import_module(module), attribute)
    chosen: Method = found
    return chosen


def cost_model(name: str) -> CostModel:
    """Give the cost model of a method; raises `InputError` for an unknown name."""
    return partial(predict, method(name))
