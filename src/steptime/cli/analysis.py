"""The commands of analyses and pictures, as their rows say it."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from steptime.analysis.analyses import PLOTS, Analysis, Setting
from steptime.cli.picture import picture, picture_path
from steptime.core.errors import InputError, one_of, unknown
from steptime.core.progress import note
from steptime.core.question import File, Text, argument, option, optional, question
from steptime.core.table import UNSUCCESSFUL, Answer, JsonRows
from steptime.questions import options

MOST_SHOWN = 1000  # rows that people read
Folders = Annotated[list[Path], argument("DIR", "Folders of records.")]
Perhaps = Annotated[list[Path] | None, argument("DIR", "Folders of records.")]
Picture = Annotated[
    Path, option("-o --out FILE", "A .png, .svg, .pdf or .html file.", parser=picture_path)
]
Only = Annotated[str, option("NAME", "Only models that begin with this.")]


def question_of(analysis: Analysis) -> Callable[..., Answer]:
    """Return the question that answers what `analysis` asks of a folder of records, or of several.

    Where the table has a summary, the JSON document has it, the paragraph and the rows.
    """

    def answer(whole: bool, **given: Any) -> Answer:
        from steptime.records.data import Data
        from steptime.reports.charts.files import save

        found = given.pop("folder")
        out, fail_on = given.pop("out", None), given.pop("fail_on", None)
        if fail_on is not None:
            one_of("--fail-on", fail_on, analysis.fails)
        folders = [found] if isinstance(found, Path) else found or []
        if len(folders) > analysis.folders:
            raise InputError(f"at most {analysis.folders} folders, not {len(folders)}")
        data = Data.load(folders, note)
        data.most = None if whole else MOST_SHOWN
        table = analysis.answer(data, **given)
        failed = [data.failed] if folders and data.failed else []
        says = [*failed, *(analysis.says(table) if table.rows or not failed else ())]
        if out:
            save(analysis.draw(table), out)
        rows = table.rows if isinstance(table.rows, JsonRows) else list(table.rows)
        document = {"summary": table.summary, "says": says, "rows": rows} if table.summary else rows
        notes = [*says, *([str(out)] if out else [])]
        failed_on = analysis.fails[fail_on] if fail_on else ()
        code = UNSUCCESSFUL if any(table.summary[name] for name in failed_on) else 0
        return Answer(document, [table] if table.rows else [], notes, code=code)

    folder = options.Folder if analysis.folders == 1 else Folders if analysis.least else Perhaps
    given = inspect.Parameter.empty if analysis.least else None
    drawn = {"out": (File, picture("Draw it, too"))} if analysis.chart else {}
    if analysis.fails:
        words = ", ".join(analysis.fails)
        drawn["fail_on"] = (Text, optional("--fail-on WORD", f"Exit with 3 on {words}."))
    told = {one.name: (_annotated(one), one.default) for one in analysis.settings}
    every = {"whole": (bool, False), "folder": (folder, given), **told, **drawn}
    answer.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # read by inspect
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=a)
            for name, (a, value) in every.items()
        ]
    )
    answer.__doc__ = analysis.about
    return question(long="reading the records")(answer)


def _annotated(setting: Setting) -> Any:
    words = f"--{setting.name.replace('_', '-')}"
    if setting.kind is bool:
        return Annotated[bool, option(words, setting.meaning)]
    one = option(f"{words} {setting.metavar}", setting.meaning)
    kind: Any = list[str] if setting.several else setting.kind
    return Annotated[kind if setting.default is not None else kind | None, one]


def drawing(kind: str) -> Callable[..., Answer]:
    """Return the question that draws the records as a picture that is of no analysis."""

    @question(long="reading the records and drawing")
    def draw(folder: options.Folder, out: Picture, model: Only = "") -> Answer:
        return _drawn(kind, folder, out, model)

    return draw


@question(long="reading the records and drawing")
def plot(
    kind: Annotated[
        str, argument("KIND", f"{', '.join(PLOTS)}, or an analysis that has a picture.")
    ],
    in_dir: options.In,
    out: Picture,
    model: Only = "",
) -> Answer:
    """Draw one plot of the records as a file."""
    return _drawn(kind, in_dir, out, model)


def _drawn(kind: str, folder: Path, out: Path, model: str) -> Answer:
    from steptime.records.data import Data
    from steptime.reports.charts import draw, kinds
    from steptime.reports.charts.files import save

    one_of("plot", kind, kinds())
    data = Data.load([folder], note, model)
    data.most = MOST_SHOWN  # of a table: its picture asks for what it draws
    ((number,),) = (row.values() for row in data.rows("SELECT count(*) FROM flat"))
    if not number:
        every = Data.load([folder], note).rows("SELECT DISTINCT model FROM flat ORDER BY model")
        raise unknown("model", model, [row["model"] for row in every], str(folder))
    save(draw(kind, data), out)
    document = {"plot": kind, "path": str(out), "records": number}
    return Answer(document, notes=[f"{kind}: {out}"])
