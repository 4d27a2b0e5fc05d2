"""Records as charts: one file a chart, all in one table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from steptime.core.errors import InputError, unknown
from steptime.core.record import Record

Spec = dict[str, Any]

BESIDES = ("platform", "method", "predicted_by")  # that names do not tell

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


@dataclass(frozen=True)
class Data:
    """What charts are drawn from: the records, and the rows made of them once for all charts."""

    records: Sequence[Record]

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """The rows of `analysis.results`, each with a `label` that tells it from all others."""
        from steptime.analysis.results import results

        rows = results(self.records)
        telling = [name for name in BESIDES if len({row[name] for row in rows} - {None}) > 1]
        for row in rows:
            words = [row[name] for name in telling if row[name] is not None]
            row["label"] = ", ".join([row["name"], *words])
        return rows


def draw(kind: str, data: Data | Sequence[Record]) -> Spec:
    """Return the Vega-Lite of a kind of plot; raises `InputError` for an unknown kind."""
    if kind not in PLOTS:
        raise unknown("plot", kind, PLOTS)
    module, _, name = PLOTS[kind].partition(":")
    chart: Callable[[Data], Spec] = getattr(importlib.import_module(module), name)
    return chart(data if isinstance(data, Data) else Data(data))
