"""A question on the command line: `--json` and `--format`, and what is printed of its answer."""

import inspect
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import Parameter, Token

from steptime import cli
from steptime.cli.arrange import arranged
from steptime.cli.complete import completer_of
from steptime.cli.panels import ARGUMENTS, MIN_GROUPED, PANEL_GROUPS, panel_of
from steptime.core.errors import InputError, InterruptError, one_line, one_of, shorten
from steptime.core.printers import PRINTERS, json_parts, prose, text, write_csv
from steptime.core.progress import Progress, listening, note, status
from steptime.core.question import Inquiry, Slot, Text, flag, named, option, optional, whole
from steptime.core.signature import REQUIRED
from steptime.core.table import Answer, answer_of
from steptime.core.units import duration
from steptime.core.values import parse_count

PATIENCE_S = 2.0  # between two lines on how far work is
SILENT_S = 1.0  # before the first sign of life
BAD = re.compile(  # words, and the mark of what is extrapolated
    r"(?<![\w-])(?:does not fit|out of memory|oom|slower|extrapolated)(?![\w-])"
    r"|(?<!\S)~(?=\d|\s|$)",
    re.MULTILINE,
)
RED, PLAIN = "\x1b[31m", "\x1b[0m"

PATH_METAVARS = ("DIR", "FILE")  # a shell completes their values by the names of files

OUTPUT_OPTIONS = {
    slot.name: slot
    for slot in (
        Slot("sort", Text, optional("COLUMN", "Rows by a column; -COLUMN: largest first."), None),
        Slot("top", int | None, whole("N", "The first N rows alone."), None),
        Slot(
            "form",
            str,
            option(
                "--format FORM",
                "text, csv, json, markdown or html; csv has plain numbers.",
                known=tuple(PRINTERS),
            ),
            "text",
        ),
        Slot("json", bool, flag("Print one JSON document on stdout."), False),
    )
}
"""The options of every command, by the names of their parameters."""


def command_of(inquiry: Inquiry, command: str = "") -> Callable[..., int]:
    """Return the function of a command that asks a question, with a signature for cyclopts.

    It has the options `--sort`, `--top`, `--format` and `--json`, but for those that the question
    has by itself; it prints the answer in the form of these options and returns its exit code.

    Args:
        inquiry: the question.
        command: the name of the command, by which the help groups options.
    """
    question_names = {slot.name for slot in inquiry.parameters}
    output_slots = [slot for name, slot in OUTPUT_OPTIONS.items() if name not in question_names]
    slots = [*inquiry.parameters, *output_slots]
    is_grouped = len(question_names) >= MIN_GROUPED
    parameters = [
        _parameter_of(slot, panel_of(command, slot) if is_grouped else "Options")
        for slot in inquiry.parameters
    ]
    parameters += [_parameter_of(slot, panel_of(command, slot)) for slot in output_slots]
    parameters.sort(key=lambda item: (item.kind, _is_optional_argument(item)))
    signature = inspect.Signature(parameters)

    def run(*arguments: Any, **options: Any) -> int:
        texts = signature.bind(*arguments, **options).arguments
        values = {
            slot.name: slot.default if value is None else read_value(slot, value)
            for slot in slots
            for value in [texts.get(slot.name)]
        }
        output = {slot.name: values.pop(slot.name) for slot in output_slots}
        return _answer_question(inquiry, values, output)

    run.__doc__ = inquiry.function.__doc__
    run.__annotations__ = {}  # cyclopts would read that of `options` for a parameter of this name
    run.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return run


def _answer_question(inquiry: Inquiry, values: Mapping[str, Any], output: Mapping[str, Any]) -> int:
    """Print the answer to a question and return its exit code."""
    form = "json" if output["json"] else one_of("--format", output["form"], PRINTERS)
    sort, top = output.get("sort"), output.get("top")
    is_arranged = sort is not None or top is not None
    with _interruptible():
        with listening(patience()), _sign_of_life(inquiry.long):
            result = inquiry(values, whole=is_arranged or form != "text")
        answer = answer_of(result)
        if form == "csv" and answer.csv is not None:
            answer = replace(answer, tables=[answer.csv])
        if is_arranged:
            answer = arranged(answer, sort, top, form == "json")
        show(answer, form)
    return answer.code


def _parameter_of(slot: Slot, panel: str) -> inspect.Parameter:
    """Return a parameter as cyclopts reads it: an argument, or an option with its names.

    Its default is None, of a flag False, whatever the question's is: cyclopts has pydantic check
    defaults, and those of a question have the types of values, not of texts.
    """
    wording = slot.option
    names = (wording.metavar or slot.name.upper(),) if wording.is_argument else option_names(slot)
    is_list = any(get_origin(kind) is list for kind in slot.kinds)
    is_flag = bool in slot.kinds
    parameter = Parameter(
        name=names,
        help=wording.meaning,
        metavar=wording.metavar,
        group=ARGUMENTS if wording.is_argument else PANEL_GROUPS[panel],
        completer=None if is_flag else completer_of(slot),
        converter=None if is_flag else _take_texts,
        show_default=_default_text(slot),
        allow_leading_hyphen=slot.name == "sort",
        allow_repeating=is_list,
        json_list=False,
    )
    is_path = Path in element_types(slot) or wording.metavar in PATH_METAVARS
    value_type: Any = bool if is_flag else Path if is_path else str
    value_type = list[value_type] if is_list else value_type
    default = False if is_flag else None
    return inspect.Parameter(
        slot.name,
        inspect.Parameter.POSITIONAL_ONLY
        if wording.is_argument
        else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if slot.default is REQUIRED else default,
        annotation=Annotated[value_type if is_flag else value_type | None, parameter],
    )


def _is_optional_argument(parameter: inspect.Parameter) -> bool:
    is_argument = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    return is_argument and parameter.default is not inspect.Parameter.empty


def _default_text(slot: Slot) -> str | Literal[False]:
    """Return the default that a help shows, False for one that says nothing."""
    is_silent = slot.default in (REQUIRED, None, False, "", ()) or not slot.option.show_default
    return False if is_silent or "efault" in slot.option.meaning else str(slot.default)


def _take_texts(value_type: Any, tokens: Sequence[Token]) -> Any:
    """Return the texts as they were typed: the question reads them, and Python's callers' alike."""
    texts = [token.value for token in tokens]
    return texts if get_origin(value_type) is list else texts[0]


def option_names(slot: Slot) -> tuple[str, ...]:
    """Return the names of an option: `("-o", "--out")`."""
    return slot.option.names or (named(slot.name),)


def element_types(slot: Slot) -> tuple[Any, ...]:
    """Return the types of a value, of a list those of its elements."""
    return tuple(
        member
        for kind in slot.kinds
        for member in (get_args(kind) if get_origin(kind) is list else (kind,))
    )


def read_value(slot: Slot, value: Any) -> Any:
    """Return the value of a parameter from the text, the texts or the flag of a command line.

    Raises:
        InputError: for a text that is no such value.
    """
    if isinstance(value, list):
        return [_read_text(slot, word) for word in value]
    return _read_text(slot, value) if isinstance(value, str) else value


def _read_text(slot: Slot, word: str) -> Any:
    where = (slot.option.metavar if slot.option.is_argument else None) or option_names(slot)[0]
    if not word.strip() and not slot.option.is_argument:
        raise InputError(f"{where}: an empty value; leave it out, or give a value (--help)")
    if slot.option.read is not None:
        return slot.option.read(word, where=where)
    types = element_types(slot)
    if int in types:
        return parse_count(word, where=where)
    if Path not in types:
        return word
    path = Path(word)
    if os.path.lexists(path) and not os.access(path, os.R_OK):
        raise InputError(f"{where}: {shorten(path)} is not readable")
    return path


@contextmanager
def _interruptible() -> Iterator[None]:
    """After Ctrl-C, turn any exception into `InterruptError`; some libraries raise their own."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        sys.unraisablehook = lambda _: None  # what drops it where an object ends is no news
        signal.default_int_handler(number, frame)

    if is_ours := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, press)
    try:
        yield
    except BaseException as error:
        if pressed or isinstance(error, KeyboardInterrupt):
            line = str(error) if isinstance(error, InterruptError) else ""
            raise InterruptError(line) from error
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:  # while an object ended, which drops what is raised
        raise InterruptError


@contextmanager
def _sign_of_life(long: str) -> Iterator[None]:
    """Say on a terminal what takes longer than a second since the imports began, until it ends."""
    left_s = max(0.0, cli.BEGAN + SILENT_S - monotonic())
    timer = threading.Timer(left_s, status.show, (f"{long or 'computing'} ...",))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        status.erase()


def show(answer: Answer, form: str) -> None:
    """Print an answer: tables or one JSON document on stdout, notes for people on stderr."""
    if form == "json":
        if answer.document is not None:
            sys.stdout.writelines(json_parts(answer.document))
            _print("\n")
    elif form == "csv":
        for at, table in enumerate(answer.tables):
            if at > 0:
                _print("\n")
            write_csv(table, sys.stdout)
        _print("")
    elif form != "text":
        _print("\n".join(PRINTERS[form](table) for table in answer.tables))
    else:
        before = dict.fromkeys(answer.before)
        for line in before:
            note(line)
        width = terminal_width()
        said = "\n".join(prose(answer.text.split("\n"), width))
        _print("".join(text(table, width) for table in answer.tables) + said, has_colours())
        for line in dict.fromkeys(answer.notes):
            if line not in before:
                note(line)


def terminal_width() -> int | None:
    """Return the columns of the terminal; None for a file or a pipe, which must not lose any."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def has_colours() -> bool:
    """Whether what is bad is red: on a terminal, where nobody asked for none (no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not is_plain


def _print(printed: str, coloured: bool = False) -> None:
    lines = "\n".join(map(one_line, printed.split("\n")))
    sys.stdout.write(BAD.sub(rf"{RED}\g<0>{PLAIN}", lines) if coloured else lines)
    sys.stdout.flush()


def patience() -> Progress:
    """Return what says how far a command is, a line now and then once it takes its time."""
    spoke = monotonic()
    began: dict[str, float] = {}  # when each kind of work was heard of

    def say(what: str, done: int, total: int) -> None:
        nonlocal spoke
        now = monotonic()
        spoke = spoke if done else now  # it begins
        took_s = now - began.setdefault(what, spoke)
        if total > 1 and now > spoke + PATIENCE_S:
            spoke = now
            note(f"{what}: {done:,} of {total:,}, {duration(took_s * (total / done - 1))} left")

    return say
