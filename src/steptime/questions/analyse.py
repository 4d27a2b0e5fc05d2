"""Answer one question on records: an analysis with its table and picture, or a picture alone.

Each kind of `analyse` is a question by itself on the command line. Its parameters come from the
settings of the analysis.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Annotated, Any

import msgspec

from steptime.analysis.analyses import PLOTS, Analysis, Setting
from steptime.analysis.analyses import analysis as find_analysis
from steptime.core import registry
from steptime.core.answer import Answer, AnswerRow
from steptime.core.errors import InputError, check_choice, unknown
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import Kind, paths_of, setting_texts, text_of
from steptime.core.signatures.signature import REQUIRED, option_name
from steptime.core.tables.table import CANNOT_JUDGE, UNSUCCESSFUL, LazySequence, Table
from steptime.core.values import MAX_COUNT, parse_count, parse_number
from steptime.questions import kinds
from steptime.questions.record_sources import load_records

MAX_PRINTED_ROWS = 1000
FOLDER_TEXT = "Folder of records, .jsonl file of records, or a file that import reads."
FOLDERS_TEXT = "Folders of records, .jsonl files of records, or files that import reads."
MAPPING_TEXT = "For a table in place of a folder: the mapping file that says what its columns mean."
MAX_NOTEBOOK_ROWS = 10
_DescribedParameters = list[tuple[inspect.Parameter, str]]  # with their texts


class AnalysisAnswer(Answer, frozen=True, kw_only=True):
    """The answer of an analysis of records.

    Attributes:
        summary: numbers of all rows together; empty if there are none.
        rows: the rows of the table.
        path: the picture that was drawn; None if none was.
        headline: the answer in sentences.
        notes: remarks on records that failed.
    """

    summary: Mapping[str, Any]
    rows: Sequence[AnswerRow]
    path: str | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    _analysis: Analysis
    _table: Table
    _exit_code: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 3 where the answer is one that `--fail-on` names.

        2 where nothing can be judged, as the gate could not have failed.
        """
        return self._exit_code

    def tables(self) -> list[Table]:
        """Return the rows, people see the first of them; no table without rows."""
        table = self._table
        if not self.rows:
            return []
        return [table if table.max_rows else replace(table, max_rows=MAX_PRINTED_ROWS)]

    def csv_rows(self) -> Sequence[AnswerRow]:
        """Return no structs: `--format csv` has the columns of the table."""
        return ()

    def chart(self) -> Mapping[str, object]:
        """Return the picture in Vega-Lite.

        Raises:
            InputError: if there is nothing to draw.
        """
        return self._analysis.draw(self._table)

    def _repr_html_(self) -> str:
        import vl_convert

        from steptime.core.tables.printers import html

        paragraphs = "".join(f"<p>{escape(line)}</p>\n" for line in self.headline)
        table = html(replace(self._table, rows=self._table.rows[:MAX_NOTEBOOK_ROWS]))
        hidden_count = len(self.rows) - MAX_NOTEBOOK_ROWS
        if hidden_count > 0:
            table += f"<p>and {hidden_count} more rows in <code>.rows</code></p>\n"
        picture = ""
        if self.rows and self._analysis.chart:
            with suppress(InputError):  # its rows may have nothing to draw
                picture = vl_convert.vegalite_to_svg(json.dumps(self.chart()))
        return paragraphs + picture + table


class PictureAnswer(Answer, frozen=True, kw_only=True):
    """A picture of records that belongs to no analysis.

    Attributes:
        plot: the kind of the picture.
        path: the file of the picture.
        records: number of records of which it is drawn.
        headline: the kind and the file.
    """

    plot: str
    path: str
    records: int
    headline: tuple[str, ...]


def analyse(
    kind: str,
    *folders: str | Path,
    out: kinds.OutFile | None = None,
    fail_on: str | None = None,
    mapping: kinds.MappingFile | None = None,
    **settings: object,
) -> AnalysisAnswer | PictureAnswer:
    """Answer one question on records: `analyse("results", "out")`.

    A setting has `_` where its option has `-`.

    Args:
        kind: An analysis or a picture, such as results.
        *folders: Folders of records, .jsonl files of records, or files that import reads.
        out: Also draw a picture into this file: .png, .svg, .pdf or .html.
        fail_on: The exit code is 3 on this, for analyses that know it.
        mapping: For a table in place of a folder: the mapping file that says what its columns mean.
        **settings: Options of the kind's command.

    Raises:
        InputError: for an unknown kind or setting, and for what is no folder of records.
    """
    if kind in registry.list_names(PLOTS, "plots"):
        for name in settings:
            check_choice("setting", name, ["model"])  # the only setting of a picture
        return _draw_picture(kind, folders, out, mapping, str(settings.get("model", "")))
    request = _AnalysisRequest(kind, folders, out, fail_on, mapping, settings)
    return _answer_analysis(find_analysis(kind), request)


def analysis_question(analysis: Analysis) -> Callable[..., AnalysisAnswer]:
    """Return the question of one analysis, with the settings of the analysis as parameters."""

    def ask(
        folders: kinds.RecordPaths | None = None,
        out: kinds.OutFile | None = None,
        fail_on: str | None = None,
        mapping: kinds.MappingFile | None = None,
        **settings: object,
    ) -> AnalysisAnswer:
        request = _AnalysisRequest(
            name="analyse",
            folders=folders or (),
            out=out,
            fail_on=fail_on,
            mapping=mapping,
            settings=settings,
        )
        return _answer_analysis(analysis, request)

    return _set_signature_and_docstring(
        ask, analysis.about, list(_list_analysis_parameters(analysis))
    )


def picture_question(kind: str) -> Callable[..., PictureAnswer]:
    """Return the question that draws one kind of picture."""

    def ask(
        folder: kinds.RecordPath,
        out: kinds.OutFile,
        model: str = "",
        mapping: kinds.MappingFile | None = None,
    ) -> PictureAnswer:
        return _draw_picture(kind, [folder], out, mapping, model)

    about = "Draw a picture of the records"
    if kind in PLOTS:  # a plot of this package: its docstring begins "Return a chart of X; details"
        summary = registry.describe_target(PLOTS[kind]).partition(";")[0]
        about = summary.replace("Return", "Draw", 1)
    parameters = [
        _make_keyword_parameter("folder", kinds.RecordPath, REQUIRED, FOLDER_TEXT),
        _make_keyword_parameter(
            "out", kinds.OutFile, REQUIRED, "A .png, .svg, .pdf or .html file."
        ),
        _make_keyword_parameter(
            "model", kinds.Name, "", "Only networks whose name begins with NAME."
        ),
        _make_keyword_parameter("mapping", kinds.MappingFile | None, None, MAPPING_TEXT),
    ]
    return _set_signature_and_docstring(ask, f"{about}.", parameters)


def _set_signature_and_docstring(
    function: Callable[..., Any], about: str, parameters: _DescribedParameters
) -> Callable[..., Any]:
    """Set the docstring and the signature of a question that is made, and return it."""
    argument_lines = [f"    {parameter.name}: {text}" for parameter, text in parameters]
    function.__doc__ = "\n".join([inspect.cleandoc(about), "", "Args:", *argument_lines])
    function.__annotations__ = {parameter.name: parameter.annotation for parameter, _ in parameters}
    signature = inspect.Signature([parameter for parameter, _text in parameters])
    function.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return function


def _make_keyword_parameter(
    name: str, annotation: Any, default: Any, text: str
) -> tuple[inspect.Parameter, str]:
    value = inspect.Parameter.empty if default is REQUIRED else default
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=value, annotation=annotation), text


def _list_analysis_parameters(analysis: Analysis) -> Iterator[tuple[inspect.Parameter, str]]:
    """Yield the folders, the settings, the picture's file and `--fail-on` of an analysis."""
    if analysis.folders == 1:  # the largest number of folders that it takes
        yield _make_keyword_parameter("folders", kinds.RecordPath, REQUIRED, FOLDER_TEXT)
    elif analysis.min_folders:
        yield _make_keyword_parameter("folders", kinds.RecordPaths, REQUIRED, FOLDERS_TEXT)
    else:
        yield _make_keyword_parameter("folders", kinds.RecordPaths | None, None, FOLDERS_TEXT)
    for setting in analysis.settings:
        annotation = _annotate_setting(setting)
        yield _make_keyword_parameter(setting.name, annotation, setting.default, setting.meaning)
    if analysis.chart:
        text = "Also draw a picture into this file: .png, .svg, .pdf or .html."
        yield _make_keyword_parameter("out", kinds.OutFile | None, None, text)
    if analysis.fails:
        annotation = Annotated[str, Kind("NAME", choices=tuple(analysis.fails))] | None
        yield _make_keyword_parameter("fail_on", annotation, None, analysis.describe_failures())
    yield _make_keyword_parameter("mapping", kinds.MappingFile | None, None, MAPPING_TEXT)


def _annotate_setting(setting: Setting) -> Any:
    """Return the type of a setting with its form on the command line."""
    if setting.kind is bool:
        return bool
    value_type: Any = Sequence[str] if setting.is_repeatable else setting.kind
    is_number = setting.kind in (int, float)
    if is_number:
        value_type = setting.kind | str  # a command line gives numbers as texts
    annotation = Annotated[value_type, Kind(setting.metavar)]
    is_optional = setting.default is None
    return annotation | None if is_optional else annotation


@dataclass(frozen=True)
class _AnalysisRequest:
    """A question to an analysis.

    Attributes:
        name: the name of the question, for messages.
        folders: the folders and files of records.
        out: the file of the picture, or None.
        fail_on: a key of the analysis's `fails`, or None.
        mapping: what the columns of tables mean, or None.
        settings: the settings of the analysis.
    """

    name: str
    folders: kinds.RecordPaths
    out: kinds.OutFile | None
    fail_on: str | None
    mapping: kinds.MappingFile | None
    settings: Mapping[str, object]


def _answer_analysis(analysis: Analysis, request: _AnalysisRequest) -> AnalysisAnswer:
    """Return the answer of an analysis, and draw its picture where it has a file."""
    from steptime.reports.files import check_path

    paths = paths_of(request.folders)
    max_folder_count = analysis.folders
    if len(paths) > max_folder_count:
        raise InputError(f"{request.name}: at most {max_folder_count} folders, not {len(paths)}")
    if request.fail_on is not None:
        check_choice("--fail-on", request.fail_on, analysis.fails)
    picture_path = None if request.out is None else Path(request.out)
    if picture_path is not None:
        check_path(picture_path)
    data = load_records(paths, _mapping_path(request.mapping), print_note)
    table = analysis.answer(data, **_read_settings(analysis, request.settings))
    # `failed`: a sentence if no step succeeded. Without a path no records were read.
    failure_note = data.failed if paths else ""
    if picture_path is not None:
        _draw_table(analysis, table, failure_note, picture_path)
    # A sentence about the rows of an empty table would hide that every record failed.
    has_only_failures = bool(failure_note) and not table.rows
    headline = [] if has_only_failures else list(analysis.describe(table))
    if picture_path is not None:
        headline.append(f"picture: {picture_path}")
    failing_fields = analysis.fails[request.fail_on] if request.fail_on else ()
    return AnalysisAnswer(
        summary=table.summary,
        rows=_type_rows(table),
        path=None if picture_path is None else str(picture_path),
        headline=tuple(headline),
        notes=(failure_note,) if failure_note else (),
        _analysis=analysis,
        _table=table,
        _exit_code=_find_exit_code(table, failing_fields),
    )


def _type_rows(table: Table) -> Sequence[AnswerRow]:
    """Return the rows of a table as structs; those of an added analysis are made of its columns."""
    # A tuple would hold every row of a large table in memory at once.
    if isinstance(table.structs, LazySequence):
        return table.structs
    if table.structs or not table.rows:
        return tuple(table.structs)
    # Rows of an analysis that a user added have no type: make one of their keys.
    names = dict.fromkeys(name for row in table.rows for name in row)
    fields = [(name, Any, None) for name in names]
    row_type = msgspec.defstruct("AddedRow", fields, bases=(AnswerRow,), frozen=True, kw_only=True)
    return msgspec.convert([dict(row) for row in table.rows], tuple[row_type, ...])  # type: ignore[valid-type]  # made above


def _find_exit_code(table: Table, failing_fields: Sequence[str]) -> int:
    """Return 3 where a list of the summary has something, 2 where nothing could be in it."""
    if any(table.summary[field] for field in failing_fields):  # such as the rows that are slower
        return UNSUCCESSFUL
    # That a step or node vanished is certain; slower and faster need records that can be judged.
    needs_verdicts = bool(set(failing_fields) - {"vanished", "not_measured"})
    is_judged = table.summary.get("is_judged", True)
    return CANNOT_JUDGE if needs_verdicts and not is_judged else 0


def _draw_table(analysis: Analysis, table: Table, failure_note: str, path: Path) -> None:
    """Draw the picture of an analysis into a file; raises `InputError` if all records failed."""
    from steptime.reports.files import save

    if failure_note and not table.rows:
        raise InputError(failure_note)
    save(analysis.draw(table), path)


def _read_settings(analysis: Analysis, settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings of the command line or of Python as the analysis takes them."""
    setting_by_name = {setting.name: setting for setting in analysis.settings}
    values: dict[str, object] = {}
    for name, value in settings.items():
        check_choice("setting", name, setting_by_name)
        values[name] = value if value is None else _read_setting(setting_by_name[name], value)
    return values


def _read_setting(setting: Setting, value: Any) -> object:
    option = option_name(setting.name)
    if setting.kind is bool:
        return value
    if setting.is_repeatable:
        return setting_texts(value)
    if setting.kind is int:  # a setting may be negative, numbers elsewhere may not
        return parse_count(text_of(value), option, at_least=-MAX_COUNT)
    if setting.kind is float:
        return parse_number(text_of(value), option, at_least=-MAX_COUNT)
    return text_of(value)


def _mapping_path(mapping: kinds.MappingFile | None) -> Path | None:
    return None if mapping is None else Path(mapping)


def _draw_picture(
    kind: str,
    folders: kinds.RecordPaths,
    out: kinds.OutFile | None,
    mapping: kinds.MappingFile | None,
    model: str,
) -> PictureAnswer:
    """Draw the records of the networks whose name begins with `model`."""
    from steptime.reports.charts import draw
    from steptime.reports.files import check_path, save

    paths = paths_of(folders)
    if out is None or len(paths) != 1:
        raise InputError(f"{kind}: takes one folder of records and --out FILE")
    (folder,) = paths
    path = Path(out)
    check_path(path)
    data = load_records([folder], _mapping_path(mapping), print_note, model)
    data.max_rows = MAX_PRINTED_ROWS  # of a table; the picture asks for the rows that it draws
    record_count = data.count_records()
    if not record_count:  # no name begins with `model`: suggest one that is there
        all_records = load_records([folder], _mapping_path(mapping), print_note)
        raise unknown("model", model, all_records.model_names(), str(folder))
    save(draw(kind, data), path)
    return PictureAnswer(
        plot=kind, path=str(path), records=record_count, headline=(f"{kind}: {path}",)
    )
