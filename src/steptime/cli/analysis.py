"""The commands of analyses and pictures, as their rows say it."""

from pathlib import Path
from typing import Annotated, Any

from steptime.analysis.analyses import Analysis, Setting
from steptime.cli.picture import picture, picture_path
from steptime.core.errors import InputError, unknown
from steptime.core.progress import note
from steptime.core.question import (
    File,
    Inquiry,
    Slot,
    Text,
    argument,
    choice,
    named,
    option,
    question,
)
from steptime.core.signature import REQUIRED
from steptime.core.table import UNSUCCESSFUL, Answer, JsonRows
from steptime.questions import options

MOST_SHOWN = 1000  # rows that people read
Picture = Annotated[
    Path, option("-o --out FILE", "A .png, .svg, .pdf or .html file.", parser=picture_path)
]
Only = Annotated[str, option("NAME", "Only models that begin with this.")]


def question_of(analysis: Analysis) -> Inquiry:
    """Return the question that answers what `analysis` asks of a folder of records, or of several.

    Where the table has a summary, the JSON document has it, the paragraph and the rows.
    """

    def answer(whole: bool, **given: Any) -> Answer:
        from steptime.records.data import Data
        from steptime.reports.files import save

        found = given.pop("folder")
        out, fail_on = given.pop("out", None), given.pop("fail_on", None)
        folders = [found] if isinstance(found, Path) else found or []
        if len(folders) > analysis.folders:
            raise InputError(f"at most {analysis.folders} folders, not {len(folders)}")
        data = Data.load(folders, note)
        data.most = None if whole else MOST_SHOWN
        table = analysis.answer(data, **given)
        failed = [data.failed] if folders and data.failed else []
        says = [*failed, *(analysis.says(table) if table.rows or not failed else ())]
        if out and failed and not table.rows:
            raise InputError(data.failed)
        if out:
            save(analysis.draw(table), out)
        rows = table.rows if isinstance(table.rows, JsonRows) else list(table.rows)
        document = {"summary": table.summary, "says": says, "rows": rows} if table.summary else rows
        notes = [*says, *([str(out)] if out else [])]
        failed_on = analysis.fails[fail_on] if fail_on else ()
        code = UNSUCCESSFUL if any(table.summary[name] for name in failed_on) else 0
        return Answer(document, [table] if table.rows else [], notes, code=code)

    answer.__doc__ = analysis.about
    kind = Path if analysis.folders == 1 else list[Path] if analysis.least else list[Path] | None
    said = "Folder of records." if analysis.folders == 1 else "Folders of records."
    slots = [Slot("folder", kind, argument("DIR", said), REQUIRED if analysis.least else None)]
    slots += [_slot(one) for one in analysis.settings]
    if analysis.chart:
        slots.append(Slot("out", File, picture("Draw it, too"), None))
    if analysis.fails:
        told = f"Exit with 3 on {', '.join(analysis.fails)}."
        slots.append(Slot("fail_on", Text, choice(analysis.fails, told), None))
    return Inquiry(answer, "reading the records", tuple(slots), knows_whole=True)


def _slot(setting: Setting) -> Slot:
    takes = "" if setting.kind is bool else f" {setting.metavar}"
    said = option(f"{named(setting.name)}{takes}", setting.meaning)
    kind: Any = list[str] if setting.several else setting.kind
    is_given = setting.default is not None
    return Slot(setting.name, kind if is_given else kind | None, said, setting.default)


def drawing(kind: str) -> Inquiry:
    """Return the question that draws the records as a picture that is of no analysis."""

    @question(long="reading the records and drawing")
    def draw(folder: options.Folder, out: Picture, model: Only = "") -> Answer:
        return _draw_picture(kind, folder, out, model)

    inquiry: Inquiry = draw.inquiry  # type: ignore[attr-defined]  # which the decorator adds
    return inquiry


def _draw_picture(kind: str, folder: Path, out: Path, model: str) -> Answer:
    """Draw the records of the networks whose name begins with `model`, as the file `out`."""
    from steptime.records.data import Data
    from steptime.reports.charts import draw
    from steptime.reports.files import save

    data = Data.load([folder], note, model)
    data.most = MOST_SHOWN  # of a table: its picture asks for what it draws
    (number,) = data.one("SELECT count(*) FROM flat")
    if not number:
        every = Data.load([folder], note).rows("SELECT DISTINCT model FROM flat ORDER BY model")
        raise unknown("model", model, [row["model"] for row in every], str(folder))
    save(draw(kind, data), out)
    document = {"plot": kind, "path": str(out), "records": number}
    return Answer(document, notes=[f"{kind}: {out}"])
