"""What a folder of records can be asked, and shown as: the tables of analyses and of charts.

An analysis is one file and one row. It is a command with a page in docs/commands and, if it has a
heading, a section of the report with its chart. A chart that is of no analysis is a row of `PLOTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from steptime.core import registry
from steptime.core.errors import InputError, check_choice
from steptime.core.json_types import JsonObject
from steptime.core.tables.table import Table

if TYPE_CHECKING:
    from steptime.records.data import Data

ANALYSES = {
    "table": "steptime.analysis.devices_table:ANALYSIS",
    "results": "steptime.analysis.results_table:ANALYSIS",
    "errors": "steptime.analysis.errors:ANALYSIS",
    "roofline": "steptime.analysis.rooflines.roofline:ANALYSIS",
    "heatmap": "steptime.analysis.heatmap:ANALYSIS",
    "nodes": "steptime.analysis.nodes:ANALYSIS",
    "history": "steptime.analysis.history:ANALYSIS",
    "breakdown": "steptime.analysis.breakdown:ANALYSIS",
    "sensitivity": "steptime.analysis.sensitivities.sensitivity:ANALYSIS",
    "speedup": "steptime.analysis.comparison.speedup:ANALYSIS",
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
    """A setting of an analysis, the option `--name` of its command.

    Args:
        name: its name in Python.
        meaning: its help, one sentence.
        default: its value where it is left out.
        kind: str, int, float or bool.
        metavar: stands for the value in the help.
        is_repeatable: whether a text may stand several times.
    """

    name: str
    meaning: str
    default: Any = None
    kind: type = str
    metavar: str = "NAME"
    is_repeatable: bool = False


@dataclass(frozen=True)
class Analysis:
    """An analysis of records.

    Args:
        about: help of its command: a sentence, and a paragraph on the meaning of the columns.
        table: makes the table from `Data` and the settings; no rows means no answer.
        describe: puts a table in words, one sentence a line.
        row_struct: type of the rows; None for rows of plain tables, as another package may have.
        summary_struct: type of the summary; None for a summary that is no struct.
        section: heading of its section in the report; "" for none.
        chart: `module:function` that draws the table; "" for none.
        settings: options of its command.
        folders: largest number of folders of records.
        min_folders: smallest number of folders of records.
        fails: words of `--fail-on`, each with the lists of the summary that must be empty.
    """

    about: str
    table: Callable[..., Table]
    describe: Callable[[Table], list[str]]
    row_struct: type[Struct] | None = None
    summary_struct: type[Struct] | None = None
    section: str = ""
    chart: str = ""
    settings: Sequence[Setting] = ()
    folders: int = 1
    min_folders: int = 1
    fails: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def describe_failures(self) -> str:
        """Describe `--fail-on`: `Exit with code 3: with `slow`, if anything is slow; ...`.

        Words with the same kinds stand together: "with `slow` or `slower`, if anything is slow".
        """
        # A word fails if the summary lists anything of its kinds; some words have equal kinds.
        words_by_kinds: dict[tuple[str, ...], list[str]] = {}
        for word, kinds in self.fails.items():
            words_by_kinds.setdefault(tuple(kinds), []).append(f"`{word}`")
        conditions = (
            f"{' or '.join(names)}, if anything is {' or '.join(kinds).replace('_', ' ')}"
            for kinds, names in words_by_kinds.items()
        )
        return f"Exit with code 3: with {'; with '.join(conditions)}."

    def answer(self, data: Data, **settings: Any) -> Table:
        """Return the table of `data`; settings have defaults.

        Raises:
            InputError: for an unknown setting.
        """
        defaults = {setting.name: setting.default for setting in self.settings}
        for name in settings:
            check_choice("setting", name, defaults)
        all_settings = defaults | settings
        table = self.table(data, **all_settings)
        return replace(table, source=table.source or data.source)

    def draw(self, table: Table) -> JsonObject:
        """Return the Vega-Lite of a table.

        Raises:
            InputError: if there is nothing to draw.
        """
        if not table.rows:
            reasons = self.describe(table)[:1]  # the first line says why there are no rows
            raise InputError("; ".join(["nothing to draw", *reasons]))
        spec: JsonObject = registry.load(self.chart)(table)
        return spec


def analysis(name: str) -> Analysis:
    """Return an analysis.

    Raises:
        InputError: for an unknown name, with the nearest name.
    """
    row: Analysis = registry.resolve(ANALYSES, "analyses", "analysis", name)
    return row


def list_names() -> list[str]:
    """Return the names of all analyses, those of other packages last."""
    return registry.list_names(ANALYSES, "analyses")
