"""The report as Markdown, short, for a pull request: words, networks, failures, analyses."""

from collections.abc import Sequence
from dataclasses import replace

from steptime.core.printers import markdown
from steptime.core.table import Column, Table
from steptime.core.units import counted
from steptime.records.data import Data
from steptime.records.row import Row
from steptime.reports.found import gather
from steptime.reports.networks import table_columns
from steptime.reports.sources import made_now, sources, where

MOST_NETWORKS, MOST_ROWS, MOST_COLUMNS = 20, 10, 9
FAILED = (
    Column("label", "first"),
    Column("number"),
    Column("status"),
    Column("cause"),
    Column("note"),
)
LEFT = ("interval_95", "predicted_memory_bytes", "roof_fraction", "measured_memory_bytes", "batch")


def markdown_page(data: Data, name: str, command: str) -> tuple[str, Row]:
    """Return the report on the folder `name` in GitHub's Markdown, and its headline numbers.

    `command` is the command line that makes it again. Of many networks the first are those that
    failed, then those whose prediction is farthest off, then the slowest.
    """
    found = gather(data, name, pictures=False, max_networks=MOST_NETWORKS)
    heads = [one for one in table_columns(found.rows) if one.key not in LEFT][:MOST_COLUMNS]
    lines = [f"# Step times: {_plain(name)}", _plain(where(data))]
    lines += [_listed(found.sentences)]
    if found.rows:
        shown = Table(heads, found.rows)
        lines += ["## Networks", *_of(len(found.rows), found.total, "network"), markdown(shown)]
    if found.failures:
        failed = found.failures[:MOST_ROWS]
        lines += ["## Did not succeed", *_of(len(failed), len(found.failures), "kind")]
        lines += [markdown(Table(FAILED, failed))]
    for one in found.sections:
        lines += [f"## {_plain(one.title)}", _listed(one.says)]
        if one.table and len(one.table.columns) <= MOST_COLUMNS:
            rows = one.table.rows[:MOST_ROWS]
            lines += [*_of(len(rows), len(one.table.rows), "row")]
            lines += [markdown(replace(one.table, rows=rows))]
    lines += ["<details><summary>How these numbers were obtained</summary>"]
    lines += [_listed([f"{fact}: {value}" for fact, value in sources(data)])]
    lines += [f"Made {made_now()} with `{command}`", "</details>"]
    return "\n\n".join(line.strip() for line in lines) + "\n", found.numbers


def _of(shown: int, total: int, noun: str) -> list[str]:
    """Return a line that says how many there are, if not all are shown."""
    return [f"The first {shown} of {counted(total, noun)}."] if shown < total else []


def _listed(says: Sequence[str]) -> str:
    return "\n".join(f"* {_plain(line)}" for line in says)


def _plain(text: str) -> str:
    """Return text that Markdown shows as it stands."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>#|" else c for c in " ".join(text.split()))
