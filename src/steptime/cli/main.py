"""The command `steptime`: registers the commands and turns errors into one line and a code.

Exit codes: 0 done; 2 wrong input; 3 some experiments did not succeed; 1 anything else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import click
import typer

from steptime import __version__
from steptime.cli import look, measure, model, output
from steptime.core.errors import InputError, nearest, shorten
from steptime.store import StoreError

app = typer.Typer(
    name="steptime",
    help="How long does a step take, how long would it take on other hardware, and why?",
    no_args_is_help=True,
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


COMMANDS = {
    "list": model.list_,
    "count": model.count,
    "predict": model.predict,
    "doctor": measure.doctor,
    "probe": measure.probe,
    "run": measure.run,
    "sweep": measure.sweep,
    "quickstart": measure.quickstart,
    "compare": look.compare,
    "query": look.query,
    "export": look.export,
    "report": look.report,
    "plot": look.plot,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code; errors print one line on stderr."""
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        return _fail(str(error), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        output.note(error.format_message())
        return 2
    except click.ClickException as error:
        return _fail(_usage(error), 2)
    except StoreError as error:
        return _fail(str(error), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}", 1)
    except (KeyboardInterrupt, click.Abort):
        return _fail("interrupted; everything finished so far is kept", 1)
    return code if isinstance(code, int) else 0


def _usage(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = [name for option in error.ctx.command.params for name in option.opts]
        close = nearest(error.option_name, known)
        hint = f"; did you mean '{close}'?" if close else "; see --help"
        return f"no such option {shorten(error.option_name)}{hint}"
    if isinstance(error, click.UsageError) and text.startswith("No such command"):
        word = text.split("'")[1] if "'" in text else text
        close = nearest(word, COMMANDS)
        hint = f"; did you mean '{close}'?" if close else f"; known: {', '.join(COMMANDS)}"
        return f"no such command {shorten(word)}{hint}"
    return text


def _fail(text: str, code: int) -> int:
    output.note(f"steptime: {text}")
    return code


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run())
