"""A command is a function that returns an `Answer`; `command` gives it `--json` and prints."""

import inspect
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from time import monotonic
from types import FrameType
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

from steptime.cli.options import named, option
from steptime.core.errors import InterruptError, one_line, one_of
from steptime.core.printers import PRINTERS, json_parts, prose, text, write_csv
from steptime.core.progress import Progress, listening
from steptime.core.table import Answer

PATIENCE_S = 2.0  # that people wait for a sign of life
UNSUCCESSFUL = 3  # the exit code where some experiments did not succeed

Json = Annotated[bool, option("--json", "Print one JSON document on stdout.")]
Format = Annotated[
    str, option("--format FORM", "text, csv, json, markdown or html; csv has plain numbers.")
]


def command(
    tabular: bool = False, long: str = ""
) -> Callable[[Callable[..., Answer]], Callable[..., int]]:
    """Return a decorator: the function's answer is printed as asked for, its exit code returned.

    The command gets the option `--json`, and where a table is the answer `--format`. What may take
    `long` is said on a terminal. A function that takes `whole`, which is no option, is told
    whether programs read the answer; one that takes a dataclass gets its fields as options.
    """

    def decorate(function: Callable[..., Answer]) -> Callable[..., int]:
        signature = inspect.signature(function, eval_str=True)
        named = dict(signature.parameters)
        cuts = named.pop("whole", None)
        groups = {name: one for name, one in named.items() if is_dataclass(one.annotation)}

        @wraps(function)
        def run(**given: Any) -> int:
            as_json, form = given.pop("json"), given.pop("form", "text")
            one_of("--format", form, PRINTERS)
            if cuts:
                given["whole"] = as_json or form != "text"
            for name, group in groups.items():
                kind = group.annotation
                given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
            with _interruptible():
                with listening(patience()), _sign_of_life(long):
                    answer = function(**given)
                show(answer, "json" if as_json else form)
            return answer.code

        more = {"form": (Format, "text")} if tabular else {}
        every = [*_options(named.values())] + [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind)
            for name, (kind, value) in {**more, "json": (Json, False)}.items()
        ]
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # read by inspect
            parameters=every, return_annotation=int
        )
        run.__annotations__ = {one.name: one.annotation for one in every}
        return run

    return decorate


def _options(parameters: Iterable[inspect.Parameter]) -> Iterator[inspect.Parameter]:
    """Yield parameters, and those of groups, as Typer reads them: options with names."""
    for one in parameters:
        group: Any = one.annotation
        if isinstance(group, type) and is_dataclass(group):
            yield from _options(inspect.signature(group, eval_str=True).parameters.values())
            continue
        for told in (one.default, *getattr(group, "__metadata__", ())):
            if isinstance(told, OptionInfo):
                names = told.param_decls = told.param_decls or (named(one.name),)
                read: Any = told.parser
                told.parser = read and partial(read, where=names[0])
        yield one.replace(kind=inspect.Parameter.KEYWORD_ONLY)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `typer.Abort` for whatever ends a command after Ctrl-C: libraries have their own."""
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.default_int_handler(number, frame)

    before = signal.getsignal(signal.SIGINT)
    is_ours = before is signal.default_int_handler  # and so in the main thread
    if is_ours:
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
            signal.signal(signal.SIGINT, before)


@contextmanager
def _sign_of_life(long: str) -> Iterator[None]:
    """Say on a terminal what takes longer than a second."""
    timer = threading.Timer(1.0, note, (f"{long} ...",))
    timer.daemon = True
    if long and sys.stderr.isatty():
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
            _print("\n" * (at > 0))
            write_csv(table, sys.stdout)
        _print("")
    elif form != "text":
        _print("\n".join(PRINTERS[form](table) for table in answer.tables))
    else:
        for line in answer.before:
            note(line)
        width = terminal_width()
        said = "\n".join(prose(answer.text.split("\n"), width))
        _print("".join(text(table, width) for table in answer.tables) + said)
        for line in answer.notes:
            note(line)


def terminal_width() -> int | None:
    """Return the columns of the terminal; None for a file or a pipe, which must not lose any."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _print(printed: str) -> None:
    sys.stdout.write("\n".join(map(one_line, printed.split("\n"))))
    sys.stdout.flush()


def note(line: str) -> None:
    """Print one line for people on stderr."""
    sys.stderr.write(one_line(line) + "\n")
    sys.stderr.flush()


def patience() -> Progress:
    """Return what says how far a command is, a line now and then once it takes its time."""
    spoke = monotonic()

    def say(what: str, done: int, total: int) -> None:
        nonlocal spoke
        if monotonic() > spoke + PATIENCE_S:
            spoke = monotonic()
            note(f"{what}: {done:,} of {total:,}")

    return say


def unmodelled(names: Any) -> list[str]:
    """Return the line that says which layers of unknown type are not counted, where there are."""
    return [f"note: layers of unknown type count nothing: {', '.join(names)}"] if names else []
