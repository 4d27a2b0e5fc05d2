"""An analysis asked from Python: sentences, rows and a picture, as a notebook shows them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from steptime.analysis.analyses import analysis
from steptime.core.errors import InputError
from steptime.core.printers import html
from steptime.core.table import JsonRows, Result, Table, frame

SHOWN = 10  # rows in a notebook


@dataclass(frozen=True)
class Answered(Result):
    """What an analysis found: it `says` sentences; `summary` and `rows` are what `--json` prints.

    `table` is what a notebook shows, with the chart where there is one.
    """

    name: str
    says: tuple[str, ...]
    summary: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    table: Table

    @property
    def sentences(self) -> tuple[str, ...]:
        """The lines that `print` shows below the table."""
        return self.says

    @property
    def document(self) -> Any:
        """What `--json` prints: the rows, with the summary and the sentences if there is one."""
        rows = self.rows if isinstance(self.rows, JsonRows) else [*self.rows]
        return {"summary": self.summary, "says": self.says, "rows": rows} if self.summary else rows

    def tables(self) -> list[Table]:
        """Return the table, or nothing where it has no rows."""
        return [self.table] if self.rows else []

    def to_pandas(self) -> Any:
        """Return a DataFrame of the rows; needs pandas."""
        return frame(self.rows)

    def chart(self) -> dict[str, Any]:
        """Return the Vega-Lite of the chart; raises `InputError` where there is nothing to draw."""
        return analysis(self.name).draw(self.table)

    def _repr_html_(self) -> str:
        import vl_convert

        words = "".join(f"<p>{escape(line)}</p>\n" for line in self.says)
        shown = html(replace(self.table, rows=self.rows[:SHOWN]))
        left = len(self.rows) - SHOWN
        shown += f"<p>and {left} more rows in <code>.rows</code></p>\n" if left > 0 else ""
        drawn = ""
        if self.rows and analysis(self.name).chart:
            with suppress(InputError):
                drawn = vl_convert.vegalite_to_svg(json.dumps(self.chart()))
        return words + drawn + shown


def analyse(name: str, *folders: str | Path, **settings: Any) -> Answered:
    """Return what the analysis `name` finds in folders of records: `analyse("results", "out")`.

    `settings` are the options of its command, with `_` for `-`. Raises `InputError` for an unknown
    analysis or setting, with the nearest name, and for what is no folder of records.
    """
    from steptime.records.data import Data

    one = analysis(name)
    if len(folders) > one.folders:
        raise InputError(f"{name}: at most {one.folders} folders, not {len(folders)}")
    table = one.answer(Data.load(map(Path, folders), warnings.warn), **settings)
    return Answered(name, tuple(one.says(table)), table.summary, table.rows, table)
