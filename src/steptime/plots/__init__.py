"""Records as charts: one file a chart, all in the table `PLOTS` of `analysis.analyses`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from steptime.analysis.analyses import PLOTS
from steptime.core import registry
from steptime.core.errors import InputError
from steptime.core.record import Record
from steptime.core.units import seconds

Spec = dict[str, Any]

BESIDES = ("platform", "method", "predicted_by")  # that names do not tell


class EmptyPlotError(InputError):
    """The records lack what a plot shows; the message says what."""


@dataclass(frozen=True)
class Data:
    """What charts are drawn from: the records, and the rows made of them once for all charts."""

    records: Sequence[Record]

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """The rows of `analysis.results`, each with a `label` that tells it from all others.

        `interval_95` is the 95 % interval of its measured step in words, None where unknown.
        """
        from steptime.analysis.results import results

        rows = results(self.records)
        telling = [name for name in BESIDES if len({row[name] for row in rows} - {None}) > 1]
        for row in rows:
            words = [row[name] for name in telling if row[name] is not None]
            row["label"] = ", ".join([row["name"], *words])
            ends = [row[f"measured_{end}_s"] for end in ("low", "high")]
            row["interval_95"] = None if None in ends else " to ".join(map(seconds, ends))
        return rows


def draw(kind: str, data: Data | Sequence[Record]) -> Spec:
    """Return the Vega-Lite of a kind of plot; raises `InputError` for an unknown kind."""
    return chart_of(kind)(data if isinstance(data, Data) else Data(data))


def chart_of(kind: str) -> Callable[[Data], Spec]:
    """Return the function that draws a kind of plot; raises `InputError` for an unknown kind."""
    chart: Callable[[Data], Spec] = registry.resolve(PLOTS, "plots", "plot", kind)
    return chart
