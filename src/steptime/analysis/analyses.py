"""What a folder of records can be asked, and shown as: the tables of analyses and of charts.

An analysis is one file and one row: a command, a section of docs/commands.md, and where it has a
heading a section of the report, with its chart. A chart that is of no analysis is a row of `PLOTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from steptime.core import registry
from steptime.core.errors import InputError, one_of
from steptime.core.table import Table

if TYPE_CHECKING:
    from steptime.records.data import Data

ANALYSES = {
    "table": "steptime.analysis.devices_table:ANALYSIS",
    "results": "steptime.analysis.headline:ANALYSIS",
    "errors": "steptime.analysis.errors:ANALYSIS",
    "roofline": "steptime.analysis.roofline:ANALYSIS",
    "heatmap": "steptime.analysis.heatmap:ANALYSIS",
    "nodes": "steptime.analysis.nodes:ANALYSIS",
    "history": "steptime.analysis.history:ANALYSIS",
    "breakdown": "steptime.analysis.breakdown:ANALYSIS",
    "sensitivity": "steptime.analysis.sensitivity:ANALYSIS",
    "speedup": "steptime.analysis.speedup:ANALYSIS",
}
PLOTS = {
    "ops": "steptime.reports.charts.ops:chart",
    "predicted": "steptime.reports.charts.predicted:chart",
    "throughput": "steptime.reports.charts.throughput:chart",
    "memory": "steptime.reports.charts.memory:chart",
    "samples": "steptime.reports.charts.samples:chart",
    "devices": "steptime.reports.charts.devices:chart",
}


@dataclass(frozen=True)
class Setting:
    """What an analysis leaves to its reader: `name` becomes the option `--name` of its command.

    `kind` is str, int, float or bool; a str with `several` may be given more than once.
    """

    name: str
    meaning: str
    default: Any = None
    kind: type = str
    metavar: str = "NAME"
    several: bool = False


@dataclass(frozen=True)
class Analysis:
    """What an analysis asks of records, and how it answers.

    `about` is the help of its command: a sentence, and a paragraph on what the columns mean.
    `table` makes the answer from `Data` and `settings`; without rows there is none. `says` puts a
    table in words, line by line. Under the heading `section` both stand in the report, if there are
    rows, with the `chart`: `module:function` of what draws the table. It takes `least` to `folders`
    folders at once. `fails` has the words of `--fail-on`, and which lists of the table's summary
    each of them wants empty.
    """

    about: str
    table: Callable[..., Table]
    says: Callable[[Table], list[str]]
    section: str = ""
    chart: str = ""
    settings: Sequence[Setting] = ()
    folders: int = 1
    least: int = 1
    fails: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def answer(self, data: Data, **settings: Any) -> Table:
        """Return the table of `data`, settings that are not given at their defaults.

        Raises `InputError` for a setting of another name.
        """
        known = {one.name: one.default for one in self.settings}
        for name in settings:
            one_of("setting", name, known)
        found = self.table(data, **known | settings)
        return replace(found, source=found.source or data.source)

    def draw(self, table: Table) -> dict[str, Any]:
        """Return the Vega-Lite of a table; raises `InputError` where there is nothing to draw."""
        if not table.rows:
            raise InputError("; ".join(["nothing to draw", *self.says(table)[:1]]))
        spec: dict[str, Any] = registry.load(self.chart)(table)
        return spec


def analysis(name: str) -> Analysis:
    """Return an analysis; raises `InputError` with the nearest name for an unknown one."""
    found: Analysis = registry.resolve(ANALYSES, "analyses", "analysis", name)
    return found


def names() -> list[str]:
    """Return the names of all analyses, those of other packages last."""
    return registry.names(ANALYSES, "analyses")
