"""The report as one HTML page: what was found, every network, every picture, and how."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from steptime.core.printers import html
from steptime.records.data import Data
from steptime.records.record import Record
from steptime.reports.found import Section, gather
from steptime.reports.networks import kinds_chart, pack_table, samples_chart, table_columns
from steptime.reports.sources import made_now, sources, where
from steptime.reports.templating import rendered

Row = dict[str, Any]

MOST_ROWS, FIRST_ROWS = 200, 12  # of a section's table: in the page, and not behind a disclosure


def page(data: Data | Sequence[Record], name: str, command: str = "") -> tuple[str, Row]:
    """Return the HTML of a report on the records of the folder `name`, and its headline numbers.

    `command` is the command line that makes the page again.
    """
    data = data if isinstance(data, Data) else Data.of(data)
    found = gather(data, name)
    text = rendered(
        "report.html",
        found=found,
        where=where(data),
        sections=[_shown(one) for one in found.sections],
        document={
            "columns": pack_table(found.rows, table_columns(found.rows)),
            "networks": found.details,
            "specs": {one.name: one.spec for one in found.sections if one.spec},
            "samples": samples_chart(),
            "kinds": kinds_chart(),
        },
        sources=sources(data),
        command=command,
        made=made_now(),
    )
    return text, found.numbers


def _shown(section: Section) -> Row:
    """Return a section as the template has it, the first rows of its table in HTML.

    More than a few are folded away.
    """
    rows = section.table.rows if section.table else ()
    first = replace(section.table, rows=rows[:MOST_ROWS]) if section.table else None
    return {
        "name": section.name,
        "title": section.title,
        "says": section.says,
        "caption": section.spec["title"]["subtitle"] if section.spec else None,
        "table": Markup(html(first)) if first else "",  # noqa: S704  # the printer escapes
        "rows": len(rows),
        "left_out": max(0, len(rows) - MOST_ROWS),
        "folded": len(rows) > FIRST_ROWS,
    }
