"""The question `evaluate`: how far predictions are from what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from steptime.calibration.cases import Case
from steptime.calibration.evaluate import Scored, by_group
from steptime.calibration.evaluation import Evaluation, case_row
from steptime.calibration.evaluation import evaluate as evaluate_cases
from steptime.calibration.mapped import read_cases
from steptime.calibration.plan_errors import PlanErrors, evaluate_tables
from steptime.calibration.plan_rows import describe_missing_columns, tables_in
from steptime.core.answer import Answer
from steptime.core.errors import InputError, shorten
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import text_of
from steptime.core.tables.table import Table, make_frame
from steptime.core.values import parse_count
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.method import Method, Price
from steptime.questions import kinds, options, step_options
from steptime.questions.evaluate.rows import (
    CalibratedErrors,
    CaseErrors,
    GroupErrors,
    MethodErrors,
    SetErrors,
    TrainingCase,
    TrainingGroupErrors,
    UnaskedRows,
    UnaskedTrainings,
)
from steptime.reports.charts.evaluated import chart
from steptime.reports.files import check_path, save

MAX_LIKELY_FACTOR = 50  # predictions of all methods that are further off have a wrong unit
MAX_WORST = 5  # cases in the answer, without --worst


class EvaluateAnswer(Answer, frozen=True, kw_only=True):
    """How far predictions are from measured cases.

    Attributes:
        path: the folder or file of the cases; "" for rows in Python.
        method: the method.
        by: the columns of `--by`.
        rows: errors of the method, of other methods and of published predictions.
        groups: errors of the method in each group.
        worst: the cases that the method misses by most.
        unasked: rows for which no prediction is possible, by cause.
        compared_cases: number of cases that all methods predict, on which they are compared.
        headline: where a picture was drawn.
        notes: remarks that change how the answer is read.
    """

    path: str
    method: str
    by: tuple[str, ...]
    rows: tuple[MethodErrors, ...]
    groups: tuple[GroupErrors, ...]
    worst: tuple[CaseErrors, ...]
    unasked: tuple[UnaskedRows, ...]
    compared_cases: int
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    _evaluation: Evaluation
    _has_worst: bool = True

    @property
    def scored(self) -> tuple[Scored, ...]:
        """The cases with the predictions of the method."""
        return self._evaluation.scored

    def tables(self) -> list[Table]:
        """Return the errors of methods and groups, and the worst cases op by op."""
        return self._evaluation.tables(self._has_worst)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each case; needs pandas."""
        return make_frame(map(case_row, self.scored))


class EvaluateTrainingsAnswer(Answer, frozen=True, kw_only=True):
    """How far predictions are from measured steps of trainings.

    Attributes:
        path: the table; "" for several.
        method: the method.
        by: the columns of `--by`; `block` without.
        rows: errors of each quantity of each set.
        groups: errors of each quantity in groups of a set.
        calibrated: with `--calibrate-with`: errors of the rows that were not used to calibrate.
        unasked: rows for which no prediction is possible, by reason.
        worst: the rows that the method misses by most.
        cases: all rows that were scored.
        headline: where a picture was drawn.
        notes: remarks that change how the answer is read.
    """

    path: str
    method: str
    by: tuple[str, ...]
    rows: tuple[SetErrors, ...]
    groups: tuple[TrainingGroupErrors, ...]
    calibrated: tuple[CalibratedErrors, ...]
    unasked: tuple[UnaskedTrainings, ...]
    worst: tuple[TrainingCase, ...]
    cases: tuple[TrainingCase, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]
    _errors: PlanErrors
    _has_worst: bool = True

    def tables(self) -> list[Table]:
        """Return the errors of sets and groups, and the worst rows."""
        return self._errors.tables(self._has_worst)


@dataclass(frozen=True)
class _EvaluateRequest:
    """The options of `evaluate`, read.

    Args:
        method: a method, or a price of the user's own.
        method_name: its name.
        group_names: the columns by which cases are grouped.
        mapping: what the columns of a table mean.
        point_count: cases of each device that calibrate it, None for none.
        draw_count: draws of these cases.
        max_rows: rows of each kind on each device that are scored, None for all.
        worst_count: number of cases with the largest errors in the answer.
        has_worst: whether people see them.
        is_strict: whether a row that cannot be asked is an error.
        picture_path: the file of a picture, None for none.
    """

    method: Method | Price
    method_name: str
    group_names: list[str]
    mapping: Path | None
    point_count: int | None
    draw_count: int
    max_rows: int | None
    worst_count: int
    has_worst: bool
    is_strict: bool
    picture_path: Path | None


def evaluate(
    paths: kinds.CasePaths,
    method: step_options.Method = DEFAULT,
    calibrate_with: kinds.Count | None = None,
    by: kinds.Groups | None = None,
    mapping: kinds.MappingFile | None = None,
    draws: kinds.DrawCount = 5,
    max_rows: kinds.RowCount | None = None,
    worst: kinds.DrawCount | None = None,
    strict: bool = False,
    out: kinds.OutFile | None = None,
) -> EvaluateAnswer | EvaluateTrainingsAnswer:
    """Hold predictions against what was measured.

    Errors by MAPE, median, 90th percentile, bias (mean ln of predicted / measured) and factor;
    coverage and width of the intervals; beside other methods and published predictions. Python
    also takes rows themselves (mappings, a DataFrame), and a function as method.

    Args:
        paths: A folder of records, or a .csv, .tsv, .jsonl or .json (.gz) of cases; or tables of
            steps of trainings.
        method: A method (steptime list methods), or FILE.py:NAME, a function (kernel, device) ->
            seconds.
        calibrate_with: Calibrate each device with N of its cases, drawn at random, and score its
            other cases.
        by: Group the errors by these columns, with commas. Of kernels and steps: `kind` (of op, or
            step), `device`, `family` (of networks), `condition` (what was timed: `isolated`, one
            op; `repeated`, a kernel in a loop; `step`, a whole step) or `regime` (`below 0.1 ms`,
            `0.1 to 10 ms`, `above 10 ms`). Of trainings: `model`, `device`, `block` (what is
            new, compared with the trainings that the constants were fitted to: `unseen model`,
            `unseen device`, `larger scale`; `seen` if nothing is), `stack`, `dtype` or
            `device_count`.
        mapping: What the columns of a table mean.
        draws: With --calibrate-with: how often N cases are drawn.
        max_rows: With --map: score only N rows of each kind of op on each device.
        worst: Show the K cases with the largest errors. Default: 0; in JSON 5.
        strict: Stop at the first row for which no prediction is possible.
        out: Draw predicted against measured times: .png, .svg, .pdf or .html.

    Raises:
        InputError: for cases that cannot be read, unknown methods and groups.
    """
    if out is not None:
        check_path(Path(out))
    worst_count = MAX_WORST
    if worst is not None:
        worst_count = parse_count(text_of(worst), "--worst", at_least=0)
    read_method, method_name = _read_method(method)
    request = _EvaluateRequest(
        method=read_method,
        method_name=method_name,
        group_names=[word.strip() for word in text_of(by).split(",")] if by else [],
        mapping=None if mapping is None else Path(mapping),
        point_count=_read_count(calibrate_with, "--calibrate-with"),
        draw_count=parse_count(text_of(draws), "--draws"),
        max_rows=_read_count(max_rows, "--rows"),
        worst_count=worst_count,
        has_worst=worst is not None,  # people see the worst cases only if they ask for them
        is_strict=strict,
        picture_path=None if out is None else Path(out),
    )
    files = _list_file_paths(paths)
    if files is None:
        return _evaluate_cases(request, paths, None)
    # A mapping is for rows of single devices; tables of trainings on many have fixed columns.
    if not mapping:
        training_tables, unread_paths = tables_in(files)
        if training_tables:
            return _evaluate_trainings(request, files, training_tables, unread_paths)
    if len(files) > 1:
        name = shorten(files[-1])
        raise InputError(f"{len(files)} paths: {name} is no table of steps of trainings")
    return _evaluate_cases(request, files[0], files[0])


def _read_count(value: kinds.Count | None, option: str) -> int | None:
    """Return a whole number from 1 on, or None."""
    return None if value is None else parse_count(text_of(value), option)


def _list_file_paths(paths: Any) -> list[Path] | None:
    """Return the paths of files and folders, None of rows."""
    if isinstance(paths, str | PathLike):
        return [Path(paths)]
    is_list = isinstance(paths, list | tuple) and len(paths) > 0
    holds_paths = is_list and all(isinstance(path, str | PathLike) for path in paths)
    return [Path(path) for path in paths] if holds_paths else None


def _read_method(method: Any) -> tuple[Method | Price, str]:
    """Return a cost model, or the price that a function or `FILE.py:NAME` is, and its name."""
    price = options.price_of(method)
    if price is not None:
        return price, str(getattr(method, "__name__", method))
    if isinstance(method, Method):
        return cost_model(method), method.name
    return cost_model(str(method)), str(method)


def _evaluate_cases(request: _EvaluateRequest, rows: Any, path: Path | None) -> EvaluateAnswer:
    """Evaluate a method on cases of a file, a folder or rows."""
    by_group([], request.group_names)  # refuses unknown groups before anything is read
    if path is not None and not request.mapping:
        missing_columns = describe_missing_columns(path)
        if missing_columns:
            raise InputError(missing_columns)
    # `read_cases` adds the rows that cannot be asked to this list; without a list it raises.
    refusals: list[tuple[str, str]] = []
    cases = read_cases(
        rows,
        request.mapping,
        max_rows=request.max_rows,
        warn=print_note,
        refusals=None if request.is_strict else refusals,
    )
    evaluation = evaluate_cases(
        cases,
        request.method,
        request.method_name,
        request.point_count,
        request.group_names,
        request.draw_count,
        request.worst_count,
        refusals,
    )
    return EvaluateAnswer(
        path="" if path is None else str(path),
        method=request.method_name,
        by=tuple(request.group_names),
        rows=msgspec.convert(evaluation.rows, tuple[MethodErrors, ...]),
        groups=msgspec.convert(evaluation.groups, tuple[GroupErrors, ...]),
        worst=msgspec.convert(evaluation.worst, tuple[CaseErrors, ...]),
        unasked=msgspec.convert(evaluation.unasked, tuple[UnaskedRows, ...]),
        compared_cases=evaluation.compared_cases,
        headline=_draw_chart(request, [case_row(case) for case in evaluation.scored]),
        notes=tuple(_list_case_notes(cases, evaluation, len(refusals))),
        _evaluation=evaluation,
        _has_worst=request.has_worst,
    )


def _list_case_notes(
    cases: Sequence[Case], evaluation: Evaluation, refusal_count: int
) -> list[str]:
    """Return remarks on an evaluation: the cases that are left out, and doubts about them."""
    notes = []
    if refusal_count:
        row_count = len(cases) + refusal_count
        notes.append(f"{refusal_count:,} of {row_count:,} rows cannot be asked; --strict refuses")
    if evaluation.compared_cases < len(evaluation.scored):
        compared_text = f"{evaluation.compared_cases:,} of {len(cases):,} cases"
        notes.append(f"methods are compared on the {compared_text} that all of them predict")
    # Published predictions come with the rows and may share their wrong unit: leave them out.
    factors_of_methods = [
        row["factor"] for row in evaluation.rows if "(published)" not in row["method"]
    ]
    factor = min(factors_of_methods)  # even the best method is off by it
    if factor > MAX_LIKELY_FACTOR:
        notes.append(f"all are off by a factor of {factor:,.0f} or more: is the unit right?")
    calibrations = {case.device.name: case.device.calibration for case in cases}
    for device, calibration in sorted(calibrations.items()):
        # `measured_points` counts points that a calibration measured itself; rows have none.
        is_from_rows = calibration.source and calibration.measured_points is None
        if is_from_rows:  # maybe from the very rows that are evaluated here
            notes.append(f"{device} was calibrated with {calibration.source}: they are no check")
    unpredicted_count = len(cases) - len(evaluation.scored)
    if unpredicted_count:
        unpredicted_text = f"{unpredicted_count:,} of {len(cases):,} cases"
        notes.append(f"{evaluation.method} predicts nothing for {unpredicted_text}")
    return notes


def _evaluate_trainings(
    request: _EvaluateRequest,
    files: Sequence[Path],
    tables: Sequence[Path],
    unread_paths: Sequence[Path],
) -> EvaluateTrainingsAnswer:
    """Evaluate a method on tables of steps of trainings."""
    options.refuse(
        {"--rows": request.max_rows, "--strict": request.is_strict},
        "steps of trainings are scored as they are: leave out {}",
    )
    if request.point_count and request.method_name != "calibrated":
        raise InputError("--calibrate-with: steps of trainings calibrate --method calibrated")
    if ".py:" in request.method_name:
        method = f"--method {shorten(request.method_name)}"
        raise InputError(f"{method}: steps of trainings need a method of the house")
    errors = evaluate_tables(
        tables,
        request.method_name,
        # `block`: what of a training the fitted constants have not seen, such as `unseen model`.
        group_names=request.group_names or ("block",),
        worst=request.worst_count,
        points=request.point_count,
        draws=request.draw_count,
    )
    document = errors.document
    return EvaluateTrainingsAnswer(
        path=str(files[0]) if len(files) == 1 else "",
        method=request.method_name,
        by=tuple(document["by"]),
        rows=msgspec.convert(document["rows"], tuple[SetErrors, ...]),
        groups=msgspec.convert(document["groups"], tuple[TrainingGroupErrors, ...]),
        calibrated=msgspec.convert(document["calibrated"], tuple[CalibratedErrors, ...]),
        # Rows for which no prediction is possible, by reason.
        unasked=msgspec.convert(document["unasked"], tuple[UnaskedTrainings, ...]),
        worst=msgspec.convert(document["worst"], tuple[TrainingCase, ...]),
        cases=msgspec.convert(document["cases"], tuple[TrainingCase, ...]),
        headline=_draw_chart(request, errors.times),
        notes=tuple(f"{path}: no table of steps of trainings" for path in unread_paths),
        _errors=errors,
        _has_worst=request.has_worst,
    )


def _draw_chart(request: _EvaluateRequest, rows: Sequence[Any]) -> tuple[str, ...]:
    """Draw rows into the file that was asked for, and return the line that names it."""
    if request.picture_path is None:
        return ()
    save(chart(rows, request.method_name), request.picture_path)
    return (f"picture: {request.picture_path}",)
