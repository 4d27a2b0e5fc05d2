"""What a folder of records can be asked, and shown as: the tables of analyses and of charts.

An analysis is one file and one row: a command, a section of docs/commands.md, and where it has a
heading a section of the report. A chart is one file and one row: a plot, and a part of the report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steptime.core import registry
from steptime.core.record import Record
from steptime.core.table import Table

ANALYSES = {
    "table": "steptime.analysis.devices_table:ANALYSIS",
    "results": "steptime.analysis.headline:ANALYSIS",
    "errors": "steptime.analysis.errors:ANALYSIS",
}
PLOTS = {
    "roofline": "steptime.plots.roofline:chart",
    "ops": "steptime.plots.ops:chart",
    "predicted": "steptime.plots.predicted:chart",
    "throughput": "steptime.plots.throughput:chart",
    "memory": "steptime.plots.memory:chart",
    "samples": "steptime.plots.samples:chart",
    "devices": "steptime.plots.devices:chart",
}


@dataclass(frozen=True)
class Analysis:
    """What an analysis asks of records, and how it answers.

    `about` is the help of its command: a sentence, and a paragraph on what the columns mean.
    `table` makes the answer; without rows there is none. `says` puts a table in words, line by
    line. Under the heading `section` both stand in the report, if there are rows.
    """

    about: str
    table: Callable[[Sequence[Record]], Table]
    says: Callable[[Table], list[str]]
    section: str = ""


def analysis(name: str) -> Analysis:
    """Return an analysis; raises `InputError` with the nearest name for an unknown one."""
    found: Analysis = registry.resolve(ANALYSES, "analyses", "analysis", name)
    return found


def names() -> list[str]:
    """Return the names of all analyses, those of other packages last."""
    return registry.names(ANALYSES, "analyses")
