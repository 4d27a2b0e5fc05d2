"""The report as Markdown, short, for a pull request: words, networks, failures, analyses."""

from collections.abc import Sequence
from dataclasses import replace

from steptime.core.tables.printers import markdown
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_count
from steptime.records.data import Data
from steptime.records.row import Row
from steptime.reports.findings import Findings, Section, gather
from steptime.reports.networks import table_columns
from steptime.reports.sources import describe_sources, list_sources, present_time

MAX_NETWORKS, MAX_ROWS, MAX_COLUMNS = 20, 10, 9
FAILED = (
    Column("label", "first"),
    Column("number"),
    Column("status"),
    Column("cause"),
    Column("note"),
)
LEFT_OUT_COLUMNS = (
    "interval_95",
    "predicted_memory_bytes",
    "roof_fraction",
    "measured_memory_bytes",
    "batch",
)


def markdown_page(
    data: Data, name: str, command: str, first_sections: Sequence[Section] = ()
) -> tuple[str, Row]:
    """Return the report on a folder in GitHub's Markdown, and its headline numbers.

    Of many networks the first are those that failed, then those whose prediction is farthest off,
    then the slowest.

    Args:
        data: the records of the folder.
        name: the name of the folder.
        command: the command line that makes the report again.
        first_sections: sections before the table of networks.
    """
    findings = gather(data, name, pictures=False, max_networks=MAX_NETWORKS)
    paragraphs = [
        f"# Step times: {_escape(name)}",
        _escape(describe_sources(data)),
        _bullets(findings.sentences),
        *_list_sections(first_sections),
        *_list_networks(findings),
        *_list_failures(findings),
        *_list_sections(findings.sections),
        *_list_origins(data, command),
    ]
    page = "\n\n".join(paragraph.strip() for paragraph in paragraphs) + "\n"
    return page, findings.numbers


def _list_networks(findings: Findings) -> list[str]:
    """Return the heading and the table of networks; nothing without any."""
    rows = findings.rows
    if not rows:
        return []
    count = _count_line(len(rows), findings.total, "network")
    return ["## Networks", *count, markdown(Table(_network_columns(rows), rows))]


def _list_failures(findings: Findings) -> list[str]:
    """Return the heading and the table of the most frequent failures; nothing without any."""
    kinds = findings.failures
    if not kinds:
        return []
    first_kinds = kinds[:MAX_ROWS]
    count = _count_line(len(first_kinds), len(kinds), "kind")
    return ["## Did not succeed", *count, markdown(Table(FAILED, first_kinds))]


def _list_origins(data: Data, command: str) -> list[str]:
    """Return the origin of the numbers, folded: sources, time and command line."""
    return [
        "<details><summary>How these numbers were obtained</summary>",
        _bullets([f"{fact}: {value}" for fact, value in list_sources(data)]),
        f"Made {present_time()} with `{command}`",
        "</details>",
    ]


def _list_sections(sections: Sequence[Section]) -> list[str]:
    """Return the paragraphs of sections, one after the other."""
    return [line for section in sections for line in _section_lines(section)]


def _network_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns of the table of networks that a comment has room for."""
    columns = [column for column in table_columns(rows) if column.key not in LEFT_OUT_COLUMNS]
    return columns[:MAX_COLUMNS]


def _section_lines(section: Section) -> list[str]:
    """Return the heading, the sentences and the table of a section; no table that is too wide."""
    lines = [f"## {_escape(section.title)}", _bullets(section.paragraphs)]
    table = section.table
    if table and len(table.columns) <= MAX_COLUMNS:
        rows = table.rows[:MAX_ROWS]
        lines += _count_line(len(rows), len(table.rows), "row")
        lines.append(markdown(replace(table, rows=rows)))
    return lines


def _count_line(row_count: int, total: int, noun: str) -> list[str]:
    """Return a line that says how many there are, where not all are listed."""
    return [f"The first {row_count} of {format_count(total, noun)}."] if row_count < total else []


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"* {_escape(sentence)}" for sentence in sentences)


def _escape(text: str) -> str:
    """Return text that Markdown shows as it stands."""
    single_line = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>#|" else letter for letter in single_line)
