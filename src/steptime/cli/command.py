"""A question on the command line: `--json` and `--format`, and what is printed of its answer."""

import inspect
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from types import FrameType
from typing import Annotated, Any

import typer

from steptime import cli
from steptime.cli.arrange import arranged
from steptime.cli.complete import completion
from steptime.core.docstrings import summary
from steptime.core.errors import InterruptError, one_line, one_of
from steptime.core.printers import PRINTERS, json_parts, prose, text, write_csv
from steptime.core.progress import Progress, listening, note
from steptime.core.question import Inquiry, Slot, named
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

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORM",
        autocompletion=lambda: [*PRINTERS],
        help="text, csv, json, markdown or html; csv has plain numbers.",
    ),
]
Sort = Annotated[
    str | None,
    typer.Option("--sort", metavar="COLUMN", help="Rows by a column; -COLUMN: largest first."),
]
Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        metavar="N",
        parser=partial(parse_count, where="--top"),
        help="The first N rows alone.",
    ),
]

PRINTED: dict[str, tuple[Any, Any]] = {  # what every command takes, and its default
    "sort": (Sort, None),
    "top": (Top, None),
    "form": (Format, "text"),
    "json": (Json, False),
}


def command_of(inquiry: Inquiry) -> Callable[..., int]:
    """Return the function of a command line that asks a question, as Typer reads it.

    It has the options `--sort`, `--top`, `--format` and `--json`, but for those that the question
    has by itself; it prints the answer as asked for and returns its exit code.
    """
    asked = {one.name for one in inquiry.parameters}
    printed = {name: one for name, one in PRINTED.items() if name not in asked}

    def run(**given: Any) -> int:
        how = {name: given.pop(name, default) for name, (_, default) in printed.items()}
        form = "json" if how["json"] else one_of("--format", how["form"], PRINTERS)
        sort, top = how.get("sort"), how.get("top")
        is_arranged = sort is not None or top is not None
        with _interruptible():
            with listening(patience()), _sign_of_life(inquiry.long):
                result = inquiry(given, whole=is_arranged or form != "text")
            answer = answer_of(result)
            if is_arranged:
                answer = arranged(answer, sort, top, form == "json")
            show(answer, form)
        return answer.code

    every = [
        *map(_typed, inquiry.parameters),
        *(_parameter(name, kind, default) for name, (kind, default) in printed.items()),
    ]
    run.__doc__ = summary(inquiry.function.__doc__ or "")
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]  # read by inspect
    run.__annotations__ = {one.name: one.annotation for one in every}
    return run


def _typed(one: Slot) -> inspect.Parameter:
    """Return a parameter as Typer reads it: an argument, or an option with its names."""
    said, default, completes = one.option, one.default, completion(one)
    if said.is_argument:
        return _parameter(
            one.name,
            Annotated[
                one.kind,
                typer.Argument(metavar=said.metavar, help=said.meaning, autocompletion=completes),
            ],
            default,
        )
    names = said.names or (named(one.name),)
    read = said.read and partial(said.read, where=names[0])
    made = typer.Option(
        *names,
        metavar=said.metavar,
        help=said.meaning,
        parser=read,
        show_default=said.show_default,
        autocompletion=completes,
    )
    return _parameter(one.name, Annotated[one.kind, made], default)


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty if default is REQUIRED else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=kind)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `typer.Abort` for whatever ends a command after Ctrl-C: libraries have their own."""
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
            kept = str(error) if isinstance(error, InterruptError) else ""
            raise typer.Abort(kept) from error
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:  # while an object ended, which drops what is raised
        raise typer.Abort


@contextmanager
def _sign_of_life(long: str) -> Iterator[None]:
    """Say on a terminal what takes longer than a second, from the begin of the imports on."""
    left_s = max(0.0, cli.BEGAN + SILENT_S - monotonic())
    timer = threading.Timer(left_s, note, (f"{long or 'computing'} ...",))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
