"""The findings of a report, whatever it is written as: the words, the tables and the charts."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

from steptime.analysis.analyses import PLOTS, analysis, list_names
from steptime.analysis.headline import ResultsSummary, describe_results, summarise_results
from steptime.core import registry
from steptime.core.errors import InputError
from steptime.core.progress import report_progress
from steptime.core.tables.table import Table
from steptime.records.data import Data
from steptime.records.row import Row, group_by
from steptime.records.tables import count_threads
from steptime.reports.charts import Spec, draw
from steptime.reports.networks import MAX_NETWORKS, make_details, select_networks

MAX_ROWS = 1000  # of an analysis
MAX_FAILED_NAMES = 3  # of networks that failed for one reason


@dataclass(frozen=True)
class Section:
    """A part of a report: a heading, paragraphs, a table and a picture.

    Attributes:
        name: the name of the analysis or of the chart.
        title: the heading.
        paragraphs: the sentences of the analysis, one a line.
        table: the table; None for a chart alone.
        spec: the picture as Vega-Lite; None without a picture.
    """

    name: str
    title: str
    paragraphs: Sequence[str]
    table: Table | None
    spec: Spec | None


@dataclass(frozen=True)
class Findings:
    """The content of a report on a folder.

    Attributes:
        name: the name of the folder.
        numbers: the headline numbers.
        sentences: the same in words.
        rows: the rows of the networks.
        total: number of networks, of which `rows` may have some.
        sections: analyses and charts.
        missing: why sections and charts are missing.
        details: the details that a click on each row shows, if there are pictures.
    """

    name: str
    numbers: Row
    sentences: Sequence[str]
    rows: Sequence[Row]
    total: int
    sections: Sequence[Section]
    missing: Sequence[str]
    details: Sequence[Row]

    @property
    def failures(self) -> list[Row]:
        """The failures by status, cause and note: their number, and their first names.

        The most frequent come first.
        """
        failed = [row for row in self.rows if row["status"] not in (None, "ok")]
        groups = group_by(failed, itemgetter("platform", "status", "cause", "note"))
        return [
            {
                **rows[0],
                "number": len(rows),
                "names": [row["label"] for row in rows[:MAX_FAILED_NAMES]],
            }
            for rows in sorted(groups.values(), key=len, reverse=True)
        ]


SectionMaker = Callable[[Data], Section | None]


def gather(
    data: Data, name: str, *, pictures: bool = True, max_networks: int = MAX_NETWORKS
) -> Findings:
    """Return the findings of a report.

    Args:
        data: the records.
        name: the name of their folder.
        pictures: whether there are pictures.
        max_networks: rows of networks.

    Returns:
        The findings; an analysis or a chart that cannot be made of these records is `missing`.
    """
    data.max_rows = MAX_ROWS  # people read a page: an analysis may stop there
    rows = select_networks(data, max_networks)
    with ThreadPoolExecutor(count_threads()) as pool:
        summary = pool.submit(summarise_results, data.scan_results())
        details = pool.submit(make_details, data, rows) if pictures else None
        sections = _make_sections(pool, data, _list_section_makers(pictures=pictures))
    numbers: ResultsSummary = summary.result()
    failure = [data.failed] if data.failed else []  # a sentence if no step succeeded
    reasons = [str(section) for section in sections if isinstance(section, InputError)]
    return Findings(
        name=name,
        numbers=numbers.to_dict(),
        sentences=[*failure, *describe_results(numbers)],
        rows=rows,
        total=data.count_results(),
        sections=[section for section in sections if isinstance(section, Section)],
        missing=list(dict.fromkeys(reasons)),  # several analyses may lack the same
        details=details.result() if details else (),
    )


def _list_section_makers(*, pictures: bool) -> list[SectionMaker]:
    """Return functions that make the sections: of analyses, then of charts of no analysis."""
    analysis_makers = [
        partial(_answer_section, name, pictures=pictures)
        for name in list_names()
        if analysis(name).section
    ]
    plots = registry.list_names(PLOTS, "plots") if pictures else []
    return [*analysis_makers, *(partial(_draw_section, plot) for plot in plots)]


def _make_sections(
    pool: ThreadPoolExecutor, data: Data, makers: Sequence[SectionMaker]
) -> list[Section | InputError | None]:
    """Return the sections in their order, with progress; see `_make_section_or_error`."""
    sections = []
    for number, section in enumerate(pool.map(partial(_make_section_or_error, data), makers)):
        report_progress("sections", number, len(makers))
        sections.append(section)
    return sections


def _make_section_or_error(data: Data, make: SectionMaker) -> Section | InputError | None:
    """Return a section, None where there is nothing, or why it cannot be made."""
    try:
        return make(data)
    except InputError as error:
        return error


def _draw_section(name: str, data: Data) -> Section:
    spec = draw(name, data)
    return Section(name, title=spec["title"]["text"], paragraphs=(), table=None, spec=spec)


def _answer_section(name: str, data: Data, *, pictures: bool) -> Section | None:
    """Return the section of an analysis, None where it finds nothing."""
    question = analysis(name)
    table = question.answer(data)
    if not table.rows:
        return None
    sentences = question.describe(table)
    spec = None
    has_picture = pictures and question.chart
    try:
        spec = question.draw(table) if has_picture else None
    except InputError as error:  # its words and numbers stand without a picture
        sentences = [*sentences, str(error)]
    return Section(name, question.section, sentences, table, spec)
