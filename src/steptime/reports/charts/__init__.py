"""Records as charts: one file a chart, all in the table `PLOTS` of `analysis.analyses`."""

from collections.abc import Callable, Sequence
from typing import Any

from steptime.analysis import analyses
from steptime.analysis.analyses import PLOTS
from steptime.core import registry
from steptime.core.errors import InputError, check_choice
from steptime.records.data import Data
from steptime.records.record import Record

Spec = dict[str, Any]


class EmptyPlotError(InputError):
    """The records lack what a plot shows; the message says what."""


def kinds() -> list[str]:
    """Return the names of all plots: of charts alone, then of analyses that have one."""
    drawn = [name for name in analyses.names() if analyses.analysis(name).chart]
    return [*registry.names(PLOTS, "plots"), *drawn]


def draw(kind: str, data: Data | Sequence[Record]) -> Spec:
    """Return the Vega-Lite of a kind of plot: a row of `PLOTS`, or an analysis with a chart.

    Raises `InputError` for an unknown kind, `EmptyPlotError` where there is nothing to draw.
    """
    check_choice("plot", kind, kinds())
    held = data if isinstance(data, Data) else Data.of(data)
    try:
        if kind in analyses.names():
            return _drawn(kind, analyses.analysis(kind), held)
        chart: Callable[[Data], Spec] = registry.resolve(PLOTS, "plots", "plot", kind)
        return chart(held)
    except EmptyPlotError as error:
        raise EmptyPlotError(f"{kind}: {held.failed}" if held.failed else str(error)) from error


def _drawn(kind: str, one: analyses.Analysis, data: Data) -> Spec:
    try:
        table = one.answer(data)
    except InputError as error:  # what it asks of its settings, it does not find here
        raise EmptyPlotError(f"{kind}: {error}") from error
    if not table.rows:
        raise EmptyPlotError(f"{kind}: {'; '.join(one.says(table))}")
    return one.draw(table)
