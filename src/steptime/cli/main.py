"""The command `steptime`: registers the commands and turns errors into one line and a code.

Exit codes: 0 done; 2 wrong input; 3 some experiments did not succeed; 1 anything else.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from steptime import __version__
from steptime.cli import (
    cluster,
    data,
    devices_table,
    energy,
    explain,
    explore,
    look,
    measure,
    model,
    output,
    predict,
    published,
    scale,
    split,
    sweep,
)
from steptime.cli import run as run_one
from steptime.cluster.scheduler import SchedulerError
from steptime.core.errors import SHOWN_CHARACTERS, InputError, nearest, shorten
from steptime.store import StoreError

INTERRUPTED = 130  # what Typer gives after Ctrl-C
LONGEST_WORD = 300  # characters; a path may be so long in a message
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")

app = typer.Typer(
    name="steptime",
    help="How long does a step take, how long would it take on other hardware, and why?",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"steptime {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


COMMANDS: dict[str, Callable[..., Any]] = {
    "list": model.list_,
    "count": model.count,
    "predict": predict.predict,
    "scale": scale.scale,
    "explain": explain.explain,
    "split": split.split,
    "explore": explore.explore,
    "energy": energy.energy,
    "doctor": measure.doctor,
    "probe": measure.probe,
    "data": data.data,
    "run": run_one.run,
    "sweep": sweep.sweep,
    "status": cluster.status,
    "collect": cluster.collect,
    "cancel": cluster.cancel,
    "quickstart": sweep.quickstart,
    "import": published.import_,
    "table": devices_table.table,
    "compare": look.compare,
    "query": look.query,
    "export": look.export,
    "report": look.report,
    "plot": look.plot,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


@functools.cache
def _tree() -> Any:
    """Give the commands that `app` describes; making them takes longer than most of them run."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code; errors print one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    try:
        code = _tree()(words, prog_name="steptime", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        return _fail(str(error), 2)
    except typer.TyperException as error:
        return _fail(_usage(error, words), 2)
    except (StoreError, SchedulerError) as error:
        return _fail(str(error), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        typed = error.errno == errno.ENAMETOOLONG
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}", 2 if typed else 1)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:
        return _fail("interrupted; everything finished so far is kept", 1)
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException, words: Sequence[str]) -> str:
    """Give a usage error on one line, with the nearest name, and little of what was typed."""
    text = " ".join(error.format_message().split())
    option = getattr(error, "option_name", None)
    if option is not None and text.startswith("No such option"):
        return f"no such option {shorten(option)}{_hint(option, _options(error), 'see --help')}"
    command = re.match(r"No such command '(.*?)'", text)
    if command:
        hint = _hint(command[1], COMMANDS, f"known: {', '.join(COMMANDS)}")
        return f"no such command {shorten(command[1])}{hint}"
    for word in words:
        if len(word) > SHOWN_CHARACTERS:
            text = text.replace(word, word[:SHOWN_CHARACTERS] + "...")
    return text


def _options(error: typer.TyperException) -> list[str]:
    context = getattr(error, "ctx", None)
    parameters = context.command.params if context else ()
    return [name for one in parameters for name in one.opts if name.startswith("-")]


def _hint(word: str, known: Iterable[str], otherwise: str) -> str:
    close = nearest(word, known)
    return f"; did you mean '{close}'?" if close else f"; {otherwise}"


def _fail(text: str, code: int) -> int:
    """Print one line; a word that is longer than any path people read is cut."""
    line = "".join(c if c.isprintable() else "?" for c in text)
    line = _LONG_WORD.sub(lambda word: word[0][:SHOWN_CHARACTERS] + "...", line)
    output.note(f"steptime: {line}")
    return code


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run())
