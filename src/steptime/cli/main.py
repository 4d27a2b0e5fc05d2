"""The command `steptime`: finds the command, turns errors into one line and an exit code.

Exit codes: 0 done; 2 wrong input; 3 some experiments did not succeed; 130 Ctrl-C;
1 anything else.
"""

import errno
import functools
import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from steptime import __version__
from steptime.analysis.analyses import ANALYSES, PLOTS, analysis
from steptime.api import PANELS, QUESTIONS
from steptime.cli.command import command_of
from steptime.core import registry
from steptime.core.errors import SHOWN_CHARACTERS, InputError, OutsideError, one_line, shorten
from steptime.core.progress import note
from steptime.core.question import Inquiry, inquiry_of
from steptime.core.spelling import meant_by
from steptime.core.toml_files import packaged

COMMANDS = {name: row.answer for name, row in QUESTIONS.items()}
"""The function that answers each command, as `module:function`."""
HELP = {"help_option_names": ["-h", "--help"]}
INTERRUPTED = 130  # what Typer gives after Ctrl-C
LONGEST_WORD = 300  # characters; a path may be so long in a message
_EXTRA = re.compile(r"Got unexpected extra argument(?:\(?s?\)?) \((.*)\)")
_EMPTY = re.compile(r"(--[\w-]+)=\s*")
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


class Command(TyperCommand):
    """The command of one question; its help lists the commands that begin with its name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands of two words that belong to this one."""
        super().format_options(ctx, formatter)
        rows = [(name, _describe_command(name)) for name in _subcommands(self.name or "")]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class Commands(TyperGroup):
    """The commands by name, each imported when it is asked for."""

    about = "How long does a step take, how long would it take elsewhere, and why?"

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # Typer's signature
        """Return all names."""
        return names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, None for an unknown one."""
        return _build_command(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of the command, the command, and the words behind it.

        The name is one word, or two: `sweep status`.
        """
        pair = " ".join(args[:2])
        return super().resolve_command(ctx, [pair, *args[2:]] if pair in COMMANDS else args)

    def describe(self, name: str) -> str:
        """Return the line of the help that says what a command does."""
        return _describe_command(name)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options on one line: all of it fits on a screen."""
        self.format_commands(ctx, formatter)
        options = ", ".join(" ".join(option.opts) for option in self.get_params(ctx))
        formatter.write_paragraph()
        formatter.write_text(f"Options: {options}")

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # as above
        """Write what each command does, panel by panel."""
        for panel, panel_names in self.panels().items():
            with formatter.section(panel):
                formatter.write_dl([(name, self.describe(name)) for name in panel_names])

    def panels(self) -> dict[str, list[str]]:
        """Return the names in the help, by the heading above them."""
        panels = {panel: _panel_commands(panel) for panel in PANELS}
        added = registry.added("commands")
        return panels | ({"From other packages": [*added]} if added else {})

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands, or options, that begin so."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        matches = [name for name in self.offered() if name.startswith(incomplete)]
        return [
            SimpleNamespace(value=name, type="plain", help=self.describe(name)) for name in matches
        ]

    def offered(self) -> list[str]:
        """Return the names that a shell completes."""
        return [name for panel_names in self.panels().values() for name in panel_names]

    def suggestions(self) -> list[str]:
        """Return the words of which the nearest is suggested for an unknown command."""
        return [*names(), *(f"analyse {kind}" for kind in _kinds())]


class Kinds(Commands):
    """The kinds of `analyse`: analyses, and the pictures that are of none."""

    about = "Answer one question on records, as a table and a picture."

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a kind's command, None for an unknown one."""
        return _build_kind(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # as above
        """Return all names."""
        return _kinds()

    def describe(self, name: str) -> str:
        """Return the line of the help that says what a kind shows."""
        if name in PLOTS:
            about = registry.about(PLOTS[name]).partition(";")[0]
            return f"{about.replace('Return', 'Draw', 1)}."
        if name in ANALYSES:
            return registry.about(ANALYSES[name])
        return str(_build_kind(name).get_short_help_str(limit=80))

    def panels(self) -> dict[str, list[str]]:
        """Return the names in the help, by the heading above them."""
        return {"Kinds": _kinds()}

    def suggestions(self) -> list[str]:
        """Return the words of which the nearest is suggested for an unknown kind."""
        return _kinds()


def root_commands() -> list[str]:
    """Return the commands of one word: they stand in the help of `steptime` itself."""
    return [name for name in QUESTIONS if " " not in name]


def _panel_commands(panel: str) -> list[str]:
    return [name for name in root_commands() if QUESTIONS[name].panel == panel]


def _subcommands(name: str) -> list[str]:
    return [command for command in QUESTIONS if command.startswith(f"{name} ")]


def _kinds() -> list[str]:
    """Return the kinds of `analyse`: analyses, then pictures."""
    return [*registry.names(ANALYSES, "analyses"), *registry.names(PLOTS, "plots")]


def _describe_command(name: str) -> str:
    """Return what a command does; for one of this package, without importing it."""
    if name == "analyse":
        return Kinds.about
    if name in COMMANDS:
        return registry.about(COMMANDS[name])
    return str(_build_command(name).get_short_help_str(limit=80))


def names() -> list[str]:
    """Return the names of all commands, those of other packages last."""
    return registry.names(COMMANDS, "commands")


@functools.cache
def _build_command(name: str) -> Any:
    """Return the command that answers a question."""
    if name == "analyse":
        return typer.main.get_command(_group(name, Kinds))
    function = registry.resolve(COMMANDS, "commands", "command", name)
    return _typer_command(name, getattr(function, "inquiry", None) or inquiry_of(function))


@functools.cache
def _build_kind(name: str) -> Any:
    """Return the command of an analysis, or of a picture that is of none."""
    from steptime.cli.analysis import drawing, question_of

    is_picture = name in registry.names(PLOTS, "plots")
    return _typer_command(name, drawing(name) if is_picture else question_of(analysis(name)))


def _typer_command(name: str, inquiry: Inquiry) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, cls=Command, context_settings=HELP)(command_of(inquiry))
    command = typer.main.get_command(app)
    for parameter in command.params:
        if isinstance(parameter, TyperArgument):  # whose type reads `DIR <list[Path]>`
            parameter.__dict__["display_type_rich"] = lambda ctx: ""
    return command


def _group(name: str, kind: type[Commands]) -> typer.Typer:
    group = typer.Typer(
        name=name,
        cls=kind,
        help=kind.about,
        context_settings=HELP,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=name == "steptime",
    )
    group.callback()(_root if name == "steptime" else lambda: None)
    return group


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"steptime {__version__}")
        raise typer.Exit


VERSION = typer.Option(
    "--version", "-V", callback=_version, is_eager=True, help="Print the version."
)


def _root(version: Annotated[bool, VERSION] = False) -> None:
    del version


app = _group("steptime", Commands)


@functools.cache
def tree() -> Any:
    """Return the group of all commands; making it takes longer than most of them run."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors print one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    words += ["--help"] if words in ([], ["analyse"]) else []
    try:
        check_empty(words)
        code = tree()(words, prog_name="steptime", standalone_mode=False)
        sys.stdout.flush()
    except (InputError, OutsideError) as error:
        return _fail(str(error), 2 if isinstance(error, InputError) else 1)
    except typer.TyperException as error:
        return _fail(_usage(error, words), 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        typed = error.errno == errno.ENAMETOOLONG
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}", 2 if typed else 1)
    except (KeyboardInterrupt, typer.Abort) as stopped:
        return _fail("; ".join(filter(None, ("interrupted", str(stopped)))), INTERRUPTED)
    if code == INTERRUPTED:
        return _fail("interrupted", INTERRUPTED)
    return code if isinstance(code, int) else 0


def check_empty(words: Sequence[str]) -> None:
    """Raise `InputError` for an option with an empty value: `--out=`, `--out ""`."""
    for previous, word in pairwise(("", *words)):
        option = _EMPTY.fullmatch(word)
        is_value = previous.startswith("-") and "=" not in previous
        if option is not None or (is_value and not word.strip()):
            name = previous if option is None else option[1]
            raise InputError(f"{name}: an empty value; leave it out, or give a value (--help)")


def _usage(error: typer.TyperException, words: Sequence[str]) -> str:
    """Return a usage error on one line, with the nearest name, and little of what was typed."""
    text = " ".join(error.format_message().split())
    option = getattr(error, "option_name", None)
    if option is not None and text.startswith("No such option"):
        context = getattr(error, "ctx", None)
        known = [name for one in (context.command.params if context else ()) for name in one.opts]
        options = (name for name in known if name.startswith("-"))
        bare = option.lstrip("-")
        otherwise = f"{bare.upper()} needs no option" if bare in known else "see --help"
        return f"no such option {shorten(option)}{_hint(option, options, otherwise)}"
    command = re.match(r"No such command '(.*?)'", text)
    if command:
        context = getattr(error, "ctx", None)
        group = context.command if context else tree()
        hint = _hint(command[1], group.suggestions(), f"known: {', '.join(group.offered())}")
        return f"no such command {shorten(command[1])}{hint}"
    text = _EXTRA.sub(r"unexpected argument '\1'; see --help", text)
    for word in words:
        if len(word) > SHOWN_CHARACTERS:
            text = text.replace(word, word[:SHOWN_CHARACTERS] + "...")
    return text


def _hint(word: str, known: Iterable[str], otherwise: str) -> str:
    bare = {name.lstrip("-"): name for name in known}  # dashes are alike in all
    typed = packaged("other_options.toml").items()  # what people type for options
    meant = (name for name, words in typed if word in words and name in bare.values())
    near = min(meant_by(word.lstrip("-"), bare), key=len, default="")  # the shortest of several
    close = next(meant, bare.get(near))
    return f"; did you mean '{close}'?" if close else f"; {otherwise}"


def _fail(text: str, code: int) -> int:
    """Print one line; a word that is longer than any path people read is cut."""
    line = _LONG_WORD.sub(lambda word: word[0][:SHOWN_CHARACTERS] + "...", one_line(text))
    note(f"steptime: {line}")
    return code


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run())
