"""What a report says, whatever it is written as: the words, the tables and the charts."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter

from steptime.analysis.analyses import PLOTS, analysis, names
from steptime.analysis.headline import describe_results, summarise_results
from steptime.core import registry
from steptime.core.errors import InputError
from steptime.core.progress import tell
from steptime.core.table import Table
from steptime.records.data import Data
from steptime.records.row import Row, grouped
from steptime.records.tables import threads
from steptime.reports.charts import Spec, draw
from steptime.reports.networks import MOST, details, most_telling

MOST_ROWS = 1000  # of an analysis
ALIKE = 3  # that failed alike are named


@dataclass(frozen=True)
class Section:
    """What an analysis or a chart says: a heading, paragraphs, its table and its picture."""

    name: str
    title: str
    says: Sequence[str]
    table: Table | None
    spec: Spec | None


@dataclass(frozen=True)
class Findings:
    """What was found in a folder: `numbers` and their `sentences`, the `rows` of the networks.

    `total` networks there are; `missing` says why sections and charts are not there, `details` what
    a click on each row shows, where there are pictures.
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
        """What did not succeed, by status, cause and note: how many, and the first of their names.

        The most frequent come first.
        """
        failed = [row for row in self.rows if row["status"] not in (None, "ok")]
        alike = grouped(failed, itemgetter("platform", "status", "cause", "note"))
        return [
            {**held[0], "number": len(held), "names": [row["label"] for row in held[:ALIKE]]}
            for held in sorted(alike.values(), key=len, reverse=True)
        ]


def gather(data: Data, name: str, *, pictures: bool = True, most: int = MOST) -> Findings:
    """Return what a report on `data` of the folder `name` says, with at most `most` networks.

    An analysis or a chart that cannot be made of these records is `missing`, and why.
    """
    data.most = MOST_ROWS
    rows = most_telling(data, most)
    (total,) = data.one("SELECT count(*) FROM results")
    asked = [one for one in names() if analysis(one).section]
    charts = registry.names(PLOTS, "plots") if pictures else []  # of no analysis

    def part(one: str, of_analysis: bool, here: Data) -> Section | InputError | None:
        try:
            if of_analysis:
                return _section(one, here, pictures)
            spec = draw(one, here)
            return Section(one, spec["title"]["text"], (), None, spec)
        except InputError as error:
            return error

    which, made = [True] * len(asked) + [False] * len(charts), []
    each = [data.beside() for _ in which]  # here: threads that ask for one at once collide
    with ThreadPoolExecutor(threads()) as pool:
        summary = pool.submit(summarise_results, data.beside().scan_results())
        clicks = pool.submit(details, data.beside(), rows) if pictures else None
        for done, one in enumerate(pool.map(part, [*asked, *charts], which, each)):
            tell("sections", done, len(which))
            made.append(one)
    found = summary.result()
    said = [*([data.failed] if data.failed else ()), *describe_results(found)]
    sections = [one for one in made if isinstance(one, Section)]
    missing = dict.fromkeys(str(one) for one in made if isinstance(one, InputError))
    clicked = clicks.result() if clicks else ()
    return Findings(name, found.to_dict(), said, rows, total, sections, [*missing], clicked)


def _section(name: str, data: Data, pictures: bool) -> Section | None:
    """Return what an analysis says of the records, None where it finds nothing."""
    one = analysis(name)
    table = one.answer(data)
    if not table.rows:
        return None
    said, spec = one.says(table), None
    try:
        spec = one.draw(table) if pictures and one.chart else None
    except InputError as error:  # its words and numbers stand without a picture
        said = [*said, str(error)]
    return Section(name, one.section, said, table, spec)
