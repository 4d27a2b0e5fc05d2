"""Records as pictures: one file a plot, all in one table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from steptime.core.errors import InputError, unknown
from steptime.core.record import Record

Spec = dict[str, Any]

PLOTS = {
    "roofline": "steptime.plots.roofline:chart",
    "ops": "steptime.plots.ops:chart",
    "predicted": "steptime.plots.predicted:chart",
    "throughput": "steptime.plots.throughput:chart",
    "memory": "steptime.plots.memory:chart",
    "samples": "steptime.plots.samples:chart",
    "devices": "steptime.plots.devices:chart",
}


class EmptyPlotError(InputError):
    """The records lack what a plot shows; the message says what."""


def draw(kind: str, records: Sequence[Record]) -> Spec:
    """Give the Vega-Lite of a kind of plot; raises `InputError` for an unknown kind."""
    if kind not in PLOTS:
        raise unknown("plot", kind, PLOTS)
    module, _, name = PLOTS[kind].partition(":")
    function: Callable[[Sequence[Record]], Spec] = getattr(importlib.import_module(module), name)
    return function(records)
