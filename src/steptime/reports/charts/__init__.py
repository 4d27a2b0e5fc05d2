"""Records as charts: one file a chart, all in the table `PLOTS` of `analysis.analyses`."""

from collections.abc import Callable, Sequence

from steptime.analysis import analyses
from steptime.analysis.analyses import PLOTS
from steptime.core import registry
from steptime.core.errors import InputError, check_choice
from steptime.core.json_types import JsonObject
from steptime.records.data import Data
from steptime.records.record import Record

Spec = JsonObject


class EmptyPlotError(InputError):
    """The records lack what a plot shows; the message says what."""


def list_plots() -> list[str]:
    """Return the names of all plots: of charts alone, then of analyses that have one."""
    with_chart = [name for name in analyses.list_names() if analyses.analysis(name).chart]
    return [*registry.list_names(PLOTS, "plots"), *with_chart]


def draw(kind: str, data: Data | Sequence[Record]) -> Spec:
    """Return the Vega-Lite of a kind of plot: a row of `PLOTS`, or an analysis with a chart.

    Raises:
        InputError: for an unknown kind.
        EmptyPlotError: where there is nothing to draw.
    """
    check_choice("plot", kind, list_plots())
    records = data if isinstance(data, Data) else Data.from_records(data)
    try:
        if kind in analyses.list_names():
            return _draw_analysis(kind, analyses.analysis(kind), records)
        chart: Callable[[Data], Spec] = registry.resolve(PLOTS, "plots", "plot", kind)
        return chart(records)
    except EmptyPlotError as error:
        # If every step failed, that is why there is nothing to draw.
        raise EmptyPlotError(
            f"{kind}: {records.failed}" if records.failed else str(error)
        ) from error


def _draw_analysis(kind: str, analysis: analyses.Analysis, data: Data) -> Spec:
    """Return the chart of an analysis; raises `EmptyPlotError` where it finds no rows."""
    try:
        table = analysis.answer(data)
    except InputError as error:  # the records lack what the analysis needs
        raise EmptyPlotError(f"{kind}: {error}") from error
    if not table.rows:
        raise EmptyPlotError(f"{kind}: {'; '.join(analysis.describe(table))}")
    return analysis.draw(table)
