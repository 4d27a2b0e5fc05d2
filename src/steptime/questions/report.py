"""Write one offline page on a folder of records."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from steptime.analysis.acceptances.expectations import parse_limit
from steptime.core.answer import Answer, AnswerRow
from steptime.core.json_types import JsonObject
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import File, Kind, text_of
from steptime.core.tables.table import Table, make_facts_table
from steptime.core.units import format_count, format_percent, format_seconds
from steptime.questions import kinds
from steptime.questions.acceptance import (
    AcceptanceAnswer,
    accept_records,
    make_answer,
    make_node_table,
    make_step_table,
)
from steptime.questions.evaluate.accuracy import Accuracy
from steptime.questions.options import refuse, words_of
from steptime.questions.record_sources import load_records

if TYPE_CHECKING:
    from steptime.reports.findings import Section


class BestNetwork(AnswerRow, frozen=True, kw_only=True):
    """The measured network with the largest share of its device's peak.

    Attributes:
        name: the network, with the settings in which it differs from other rows.
        model: the network.
        batch: examples of one replica in a step.
        peak_fraction: its speed over the device's peak.
        flop_per_s: its speed: predicted FLOP over measured seconds.
        peak_flop_per_s: the device's peak.
    """

    name: str
    model: str
    batch: int | None
    peak_fraction: float | None
    flop_per_s: float | None
    peak_flop_per_s: float | None


class RecordCount(AnswerRow, frozen=True, kw_only=True):
    """The number of steps with one status.

    Attributes:
        status: oom, timeout, unsupported or failed.
        count: number of steps.
    """

    status: str
    count: int


class FarPredictions(AnswerRow, frozen=True, kw_only=True):
    """Predictions that are off by more than 20 %.

    Attributes:
        number: number of such predictions.
        disturbed: number of these whose measurement other work disturbed; None if unknown.
    """

    number: int
    disturbed: int | None


class ReportAnswer(Answer, frozen=True, kw_only=True):
    """A report that was written, and the numbers at its top.

    Attributes:
        path: the file of the report.
        networks: number of networks that were measured or predicted here.
        measured: number of these networks that were measured.
        platforms: number of platforms of these networks.
        measured_platforms: number of platforms with a measurement.
        fastest_s: seconds of the fastest measured step.
        slowest_s: seconds of the slowest measured step.
        best: the network nearest to its device's peak; None if no share is known.
        median_peak_fraction: median of the speeds over the devices' peaks.
        median_roof_fraction: median of the speeds over the roofline's bounds (the lower of the peak
            and what the memory's bandwidth allows).
        above_peak: number of networks that are faster than the peak in their device's file.
        published: number of published results (measured by others) without a prediction here.
        published_platforms: number of platforms of published results.
        published_fastest_s: seconds of the fastest published step.
        published_slowest_s: seconds of the slowest published step.
        unsuccessful: steps that did not succeed, by status.
        prediction: errors of the predictions that have a measurement.
        far: predictions that are more than 20 % off.
        headline: the number of networks and the file.
    """

    path: str
    networks: int
    measured: int
    platforms: int
    measured_platforms: int
    fastest_s: float | None
    slowest_s: float | None
    best: BestNetwork | None
    median_peak_fraction: float | None
    median_roof_fraction: float | None
    above_peak: int
    published: int
    published_platforms: int
    published_fastest_s: float | None
    published_slowest_s: float | None
    unsuccessful: tuple[RecordCount, ...]
    prediction: Accuracy
    far: FarPredictions
    headline: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the numbers at the top of the report."""
        extremes_s = (self.fastest_s, self.slowest_s)
        extremes = [format_seconds(step_s) for step_s in extremes_s if step_s is not None]
        rows = [
            ("networks", str(self.networks)),
            ("measured", str(self.measured)),
            ("published", str(self.published)),
            ("fastest and slowest step", ", ".join(extremes) or None),
            ("median share of the peak", _format_share(self.median_peak_fraction)),
            ("median error of predictions", _format_share(self.prediction.median_error)),
        ]
        return [make_facts_table("", "", rows)]


def _format_share(share: float | None) -> str | None:
    """Return a share in percent; None, an empty cell, where it is unknown."""
    return None if share is None else format_percent(share)


Expected = Annotated[File, Kind("FILE")]
Limit = Annotated[str | float, Kind("SHARE")]


def report(
    folder: kinds.RecordPath,
    out: kinds.OutFile | None = None,
    mapping: kinds.MappingFile | None = None,
    expected: Expected | None = None,
    limit: Limit | None = None,
) -> ReportAnswer | AcceptanceAnswer:
    """Write one offline page, HTML or Markdown, of all results.

    With --expected the page begins with an acceptance: each step on each
    node beside what it should reach, with a limit, and pass or fail. Then
    the exit code is 3 if a step fails, and 2 where nothing can be judged.

    Args:
        folder: Folder of records, .jsonl file of records, or a file that import reads.
        out: A .html or .md file. Default: report.html in the folder.
        mapping: For a table in place of a folder: the mapping file that says what its columns mean.
        expected: Check each step against what it should reach: a table of references (networks and
            quantities), records of a reference machine, or the word `predicted`. A step without a
            reference is compared with its prediction.
        limit: With --expected: the share of the expected speed that passes. Default: 95% of a
            reference, the slow end of the 80 % interval of a prediction.

    Returns:
        A `ReportAnswer`; with `expected` an `AcceptanceAnswer`.

    Raises:
        InputError: if there are no records or no place for the file, and for a file of
            references that holds none.
        OutsideError: if the disk does not take the file.
    """
    from steptime.reports import check_report_path, write_page

    source = Path(folder)
    default_folder = source.parent if source.is_file() else source
    path = Path(out) if out else default_folder / "report.html"
    if out:
        check_report_path(path)
    map_file = None if mapping is None else Path(mapping)
    if expected is None:
        refuse({"--limit": limit}, "{} goes with --expected FILE")
    limit_share = None if limit is None else parse_limit(text_of(limit), "--limit")
    data = load_records([source], map_file, print_note)
    option_words = words_of({"map": map_file, "expected": expected, "limit": limit})
    command = shlex.join(["steptime", "report", str(source), *option_words, "-o", str(path)])
    name = source.resolve().name
    if expected is not None:
        rows = accept_records(data, Path(expected), limit_share, map_file)
        acceptance = make_answer(rows, path, limit_share)
        write_page(data, name, path, command, _acceptance_sections(acceptance))
        return acceptance
    page_numbers = write_page(data, name, path, command)
    return _report_answer(page_numbers, path)


def _acceptance_sections(answer: AcceptanceAnswer) -> "list[Section]":
    """Return the sections of an acceptance, with which the page begins."""
    from steptime.reports.findings import Section

    # The last line of the headline sums up the lines before it, and ends with the path.
    *failures, counts = answer.headline
    lines = [
        counts.removesuffix(f": {answer.path}"),
        *failures,
        *(f"Limit: {text}." for text in answer.assumed.values()),
        *answer.notes,
    ]
    sections = [Section("acceptance", "Acceptance", lines, make_step_table(answer.rows), None)]
    if len(answer.nodes) > 1:
        nodes = make_node_table(answer.nodes)
        sections.append(Section("acceptance-nodes", "Acceptance by node", (), nodes, None))
    return sections


def _report_answer(page_numbers: JsonObject, path: Path) -> ReportAnswer:
    """Return the answer of a page from its headline numbers."""
    headline = format_count(page_numbers["networks"], "network")
    if page_numbers["published"]:
        headline += f", {format_count(page_numbers['published'], 'published result')}"
    counts = [
        {"status": status, "count": count} for status, count in page_numbers["unsuccessful"].items()
    ]
    fields = {**page_numbers, "unsuccessful": counts, "headline": [f"{headline}, {path}"]}
    return msgspec.convert(fields, ReportAnswer)
