"""A command for each question of the API: its options, and how its answer is printed."""

import inspect
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Annotated, Any, Literal, get_origin, get_type_hints

from cyclopts import Parameter, Token

from steptime import cli
from steptime.cli.arrange import arrange_printout, print_csv_table
from steptime.cli.complete import describe_value, make_completer
from steptime.cli.panels import ARGUMENTS, MIN_GROUPED, PANEL_GROUPS, find_panel
from steptime.cli.printing import print_answer, print_text
from steptime.core.answer import answer_kinds
from steptime.core.errors import (
    DetailedInputError,
    InputError,
    InterruptError,
    check_choice,
)
from steptime.core.progress import Progress, print_note, report_progress_to, status
from steptime.core.signatures.docstrings import summary
from steptime.core.signatures.kinds import Kind
from steptime.core.signatures.signature import REQUIRED, QuestionParameter, parameters_of
from steptime.core.tables.printers import PRINTERS
from steptime.core.tables.table import Printout, select_tables
from steptime.core.units import format_duration
from steptime.core.values import parse_count

PATIENCE_S = 2.0  # between two lines on how far work is
SILENT_S = 1.0  # before the first sign of life

PATH_METAVARS = ("DIR", "FILE")  # a shell completes their values by the names of files


class Output:
    """How an answer is printed.

    Args:
        sort: Sort the rows by this column; -COLUMN puts the largest first.
        top: Show only the first N rows.
        form: text, csv, json, markdown or html; numbers in csv have no units.
        json: Print one JSON document on stdout.
        details: Show all tables of the answer, not only the main ones.
    """


_FORM = Kind("FORM", names=("--format",), choices=tuple(PRINTERS))
OUTPUT_OPTIONS = {
    parameter.name: parameter
    for parameter in (
        QuestionParameter("sort", str, Kind("COLUMN"), None, Output),
        QuestionParameter("top", int, Kind("N"), None, Output),
        QuestionParameter("form", str, _FORM, "text", Output),
        QuestionParameter("json", bool, Kind(), False, Output),
        QuestionParameter("details", bool, Kind(), False, Output),
    )
}
"""The options of commands, by the names of their parameters; see `output_options`."""


def make_command(
    question: Callable[..., Any], command: str = "", has_help: bool = True
) -> Callable[..., int]:
    """Return the function of a command that asks a question, with a signature for cyclopts.

    It has the options `--sort`, `--top`, `--format`, `--json` and, if an answer has tables that
    nobody asks for, `--details`; but none that the question has by itself. It prints the answer in
    the form of these options and returns its exit code.

    Args:
        question: the function that answers.
        command: the name of the command, by which the help groups options.
        has_help: whether its options have their texts, which take a twentieth of a short command.
    """
    question_parameters = parameters_of(question)  # of a function of the API such as `predict`
    question_names = {parameter.name for parameter in question_parameters}
    output_parameters = [
        parameter
        for name, parameter in output_options(question).items()
        if name not in question_names
    ]
    is_grouped = len(question_names) >= MIN_GROUPED
    panel_by_name = {
        parameter.name: find_panel(command, parameter) if is_grouped else "Options"
        for parameter in question_parameters
    }
    panel_by_name |= {
        parameter.name: find_panel(command, parameter) for parameter in output_parameters
    }
    signature = _make_signature(
        [
            _make_cyclopts_parameter(parameter, panel_by_name[parameter.name], has_help)
            for parameter in (*question_parameters, *output_parameters)
        ]
    )

    def run(*arguments: Any, **options: Any) -> int:
        texts = signature.bind(*arguments, **options).arguments
        # an option that is not typed stays out, so that the question can tell
        question_values = _read_typed_values(question_parameters, texts)
        output_defaults = {parameter.name: parameter.default for parameter in output_parameters}
        output_values = output_defaults | _read_typed_values(output_parameters, texts)
        return _answer_question(
            question, question_values, output_values, partial(_describe_work, question, command)
        )

    run.__doc__ = question.__doc__
    run.__annotations__ = {}  # cyclopts would read that of `options` for a parameter of this name
    run.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return run


def _make_signature(parameters: Iterable[inspect.Parameter]) -> inspect.Signature:
    """Return a signature: arguments before options, and arguments with a default last."""
    return inspect.Signature(
        sorted(parameters, key=lambda parameter: (parameter.kind, _is_optional_argument(parameter)))
    )


def _read_typed_values(
    parameters: Iterable[QuestionParameter], texts: Mapping[str, Any]
) -> dict[str, object]:
    """Return the values of the parameters that were typed, by name."""
    typed_parameters = [item for item in parameters if texts.get(item.name) is not None]
    return {item.name: read_value(item, texts[item.name]) for item in typed_parameters}


def output_options(question: Callable[..., Any]) -> dict[str, QuestionParameter]:
    """Return the options of a question's printed answer, by the names of their parameters.

    `--details` is among them if an answer has tables that people see with it alone. There is none
    of a question of which nothing is printed.
    """
    kinds = answer_kinds(get_type_hints(question).get("return"))
    if kinds and not any(kind.has_output for kind in kinds):
        return {}
    has_details = any(kind.has_details for kind in kinds)
    return {
        name: option for name, option in OUTPUT_OPTIONS.items() if name != "details" or has_details
    }


def _answer_question(
    question: Callable[..., Any],
    question_values: Mapping[str, Any],
    output_values: Mapping[str, Any],
    describe_work: Callable[[], str],
) -> int:
    """Print the answer to a question and return its exit code."""
    output_format = "json" if output_values.get("json") else output_values.get("form", "text")
    check_choice("--format", output_format, PRINTERS)
    sort = output_values.get("sort")
    top = output_values.get("top")
    row_count = None if top is None else parse_count(top, "--top")
    with _interruptible():
        with report_progress_to(make_progress_printer()), _show_slow_work(describe_work):
            answer = _ask(question, question_values, is_json=output_format == "json")
        printout: Printout = answer.printout()
        csv_table = answer.csv_table() if output_format == "csv" else None
        if csv_table is not None:
            printout = print_csv_table(printout, csv_table, has_headings=sort is not None)
        is_arranged = sort is not None or row_count is not None
        needs_tables = is_arranged or output_format != "json"  # plain JSON needs no tables
        if needs_tables:
            tables = select_tables(printout.tables, output_values.get("details", False))
            printout = replace(printout, tables=tables)
        if is_arranged:
            printout = arrange_printout(printout, sort, row_count, as_json=output_format == "json")
        print_answer(printout, output_format)
    return printout.code


def _ask(question: Callable[..., Any], question_values: Mapping[str, Any], *, is_json: bool) -> Any:
    """Return the answer; of wrong input that was understood in part, print that part as JSON.

    Raises:
        InputError: as the question does.
    """
    try:
        return question(**question_values)
    except DetailedInputError as error:
        if is_json:
            print_text(json.dumps({"error": str(error), **error.details}, indent=2) + "\n")
        raise


def _make_cyclopts_parameter(
    parameter: QuestionParameter, panel: str, has_help: bool
) -> inspect.Parameter:
    """Return a parameter as cyclopts reads it: an argument, or an option with its names.

    Its default is None, of a flag False, whatever the question's is: cyclopts has pydantic check
    defaults, and those of a question have the types of values, not of texts.
    """
    kind = parameter.kind
    metavar = kind.metavar or None
    label = metavar or parameter.name.upper()
    cyclopts_parameter = Parameter(
        name=(label,) if kind.is_argument else parameter.option_names,
        help=parameter.help.replace("`", "") if has_help else None,  # without code marks
        metavar=metavar,
        group=ARGUMENTS if kind.is_argument else PANEL_GROUPS[panel],
        completer=None if parameter.is_flag else make_completer(parameter),
        converter=None if parameter.is_flag else _read_token_texts,
        show_default=has_help and _format_default(parameter),
        allow_leading_hyphen=parameter.name == "sort",  # `--sort -COLUMN` sorts downwards
        allow_repeating=parameter.is_repeatable,
        json_list=False,
    )
    parameter_kind = (
        inspect.Parameter.POSITIONAL_ONLY if kind.is_argument else inspect.Parameter.KEYWORD_ONLY
    )
    is_required = parameter.default is REQUIRED
    # None stands for an option that was not typed: the question has its own default.
    default = False if parameter.is_flag else None
    return inspect.Parameter(
        parameter.name,
        parameter_kind,
        default=inspect.Parameter.empty if is_required else default,
        annotation=Annotated[_find_cyclopts_type(parameter), cyclopts_parameter, parameter],
    )


def _find_cyclopts_type(parameter: QuestionParameter) -> Any:
    """Return the type that cyclopts reads: a flag, a text or path, or several of them."""
    if parameter.is_flag:
        return bool
    value_type: Any = Path if parameter.kind.metavar in PATH_METAVARS else str
    return (list[value_type] if parameter.is_repeatable else value_type) | None


def _is_optional_argument(parameter: inspect.Parameter) -> bool:
    is_argument = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    return is_argument and parameter.default is not inspect.Parameter.empty


def _format_default(parameter: QuestionParameter) -> str | Literal[False]:
    """Return the default that a help shows, False for one that says nothing."""
    is_empty = parameter.default in (REQUIRED, None, False, "", ())
    is_in_help = "efault" in parameter.help  # `Default: 8`, or `by default`
    return False if is_empty or is_in_help else str(parameter.default)


def _read_token_texts(value_type: Any, tokens: Sequence[Token]) -> Any:
    """Return the texts as they were typed: the question reads them, and Python's callers' alike."""
    texts = [token.value for token in tokens]
    return texts if get_origin(value_type) is list else texts[0]


def read_value(parameter: QuestionParameter, value: Any) -> Any:
    """Return the text, the texts or the flag of a command line, which the question reads.

    Raises:
        InputError: for an empty value of an option or an argument.
    """
    texts = value if isinstance(value, list) else [value]
    is_empty = any(isinstance(text, str) and not text.strip() for text in texts)
    if is_empty:
        advice = "" if parameter.default is REQUIRED else "leave it out, or "
        hint = f"{advice}give a value; {describe_value(parameter)}"
        raise InputError(f"{parameter.option}: an empty value; {hint}")
    return value


@contextmanager
def _interruptible() -> Iterator[None]:
    """After Ctrl-C, turn any exception into `InterruptError`; some libraries raise their own."""
    is_interrupted = False  # libraries drop a KeyboardInterrupt, or raise errors of their own

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        sys.unraisablehook = lambda _: None  # no traceback if a destructor drops the exception
        signal.default_int_handler(number, frame)

    has_default_handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if has_default_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except BaseException as error:
        if is_interrupted or isinstance(error, KeyboardInterrupt):
            line = str(error) if isinstance(error, InterruptError) else ""
            raise InterruptError(line) from error
        raise
    finally:
        if has_default_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_interrupted:  # but a destructor ran, and Python drops what is raised in one
        raise InterruptError


@contextmanager
def _show_slow_work(describe_work: Callable[[], str]) -> Iterator[None]:
    """Show on a terminal what takes longer than a second since the imports began, until it ends."""
    if not sys.stderr.isatty():
        yield
        return
    silent_until_s = cli.START_CLOCK_S + SILENT_S
    remaining_s = max(0.0, silent_until_s - monotonic())
    timer = threading.Timer(remaining_s, lambda: status.show(describe_work()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # it may be drawing
        status.erase()


def _describe_work(question: Callable[..., Any], command: str) -> str:
    """Describe what a command does: `plan: find the fastest parallel plan ...`."""
    text = summary(question.__doc__ or "").rstrip(".")
    return f"{command or question.__name__}: {text[:1].lower()}{text[1:]} ..."


def make_progress_printer() -> Progress:
    """Return a listener that says every `PATIENCE_S` seconds how far slow work is.

    It changes the line about the running work on a terminal, else it prints one.
    """
    last_line_s = monotonic()  # clock time of the last line, or of the begin of the work
    begin_s_by_work: dict[str, float] = {}  # clock time of the first report of each kind of work

    def print_progress(work: str, part_count: int, total: int) -> None:
        nonlocal last_line_s
        clock_s = monotonic()
        if part_count == 0:  # the work begins, and with it the time without a line
            last_line_s = clock_s
        elapsed_s = clock_s - begin_s_by_work.setdefault(work, last_line_s)
        is_due = clock_s > last_line_s + PATIENCE_S  # false for 0 parts: no division by 0 below
        if total > 1 and is_due:
            last_line_s = clock_s
            remaining_s = elapsed_s * (total / part_count - 1)
            line = f"{work}: {part_count:,} of {total:,}, {format_duration(remaining_s)} left"
            print_line = status.show if status.is_visible else print_note
            print_line(line)

    return print_progress
