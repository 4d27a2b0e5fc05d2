"""The report as one HTML page: findings, networks, pictures, and where the numbers come from."""

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from steptime.core.json_types import JsonObject
from steptime.core.tables.printers import html
from steptime.records.data import Data
from steptime.records.record import Record
from steptime.reports.findings import Section, gather
from steptime.reports.networks import kinds_chart, pack_table, samples_chart, table_columns
from steptime.reports.sources import describe_sources, list_sources, present_time
from steptime.reports.templating import render

MAX_ROWS, FIRST_ROWS = 200, 12  # of a section's table: in the page, and not folded away


def page(
    data: Data | Sequence[Record],
    name: str,
    command: str = "",
    first_sections: Sequence[Section] = (),
) -> tuple[str, JsonObject]:
    """Return the HTML of a report, and its headline numbers.

    Args:
        data: the records.
        name: the name of their folder.
        command: the command line that makes the page again.
        first_sections: sections before the table of networks.
    """
    folders = data if isinstance(data, Data) else Data.from_records(data)
    findings = gather(folders, name)
    text = render(
        "report.html",
        findings=findings,
        where=describe_sources(folders),
        first_sections=[
            # They begin the page, so their tables are never folded away.
            _template_values(section, command) | {"folded": False}
            for section in first_sections
        ],
        sections=[
            _template_values(section, f"steptime analyse {section.name} DIR")
            for section in findings.sections
        ],
        document={
            "columns": pack_table(findings.rows, table_columns(findings.rows)),
            "networks": findings.details,
            "specs": {part.name: part.spec for part in findings.sections if part.spec},
            "samples": samples_chart(),
            "kinds": kinds_chart(),
        },
        sources=list_sources(folders),
        command=command,
        made=present_time(),
    )
    return text, findings.numbers


def _template_values(section: Section, command: str) -> JsonObject:
    """Return a section as the template has it, the first rows of its table in HTML.

    More than a few are folded away.

    Args:
        section: the section.
        command: the command that prints all rows of its table.
    """
    rows = section.table.rows if section.table else ()
    first_rows = replace(section.table, rows=rows[:MAX_ROWS]) if section.table else None
    return {
        "name": section.name,
        "title": section.title,
        "paragraphs": section.paragraphs,
        "caption": section.spec["title"]["subtitle"] if section.spec else None,
        "table": Markup(html(first_rows)) if first_rows else "",  # noqa: S704  # the printer escapes
        "rows": len(rows),
        "command": command,
        "left_out": max(0, len(rows) - MAX_ROWS),
        "folded": len(rows) > FIRST_ROWS,
    }
