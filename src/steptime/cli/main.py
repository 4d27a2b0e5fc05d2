"""The command `steptime`: finds the command, turns errors into one line and an exit code.

Exit codes: 0 done; 2 wrong input; 3 some experiments did not succeed; 130 Ctrl-C;
1 anything else.
"""

import errno
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from steptime import __version__
from steptime.analysis.analyses import ANALYSES, PLOTS, Analysis, analysis
from steptime.api import PANELS, QUESTIONS
from steptime.cli.command import command_of
from steptime.core import registry
from steptime.core.errors import SHOWN_CHARACTERS, InputError, OutsideError, one_line, shorten
from steptime.core.progress import note
from steptime.core.question import Inquiry, inquiry_of
from steptime.core.spelling import meant_by
from steptime.core.toml_files import packaged

COMMANDS = {name: row.answer for name, row in QUESTIONS.items()} | ANALYSES
"""What answers each command: those that are shown, old names, and analyses by their own."""
WORDS = {
    "explain": "why --from paleo",
    "quickstart": "run --demo",
    "show": "list",
    **{row.renamed: name for name, row in QUESTIONS.items() if row.renamed.startswith("sweep ")},
}
"""What stands for other words on the command line: old names, and commands of two words."""
HELP = {"help_option_names": ["-h", "--help"]}
INTERRUPTED = 130  # what Typer gives after Ctrl-C
LONGEST_WORD = 300  # characters; a path may be so long in a message
_EXTRA = re.compile(r"Got unexpected extra argument(?:\(?s?\)?) \((.*)\)")
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


class _Quick:
    """What reads texts, paths, and what is left out, and other values as Typer reads them.

    Typer reads with pydantic, which takes as long to import as numpy; most values are texts.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # that of Typer
        for one in found:
            vars(one).setdefault("process_value", partial(_value, one, one.process_value))
        return found


def _is_closed(path: str) -> bool:
    """Return whether there is a file that may not be read, of which Typer says so."""
    return "\0" not in path and os.access(path, os.F_OK) and not os.access(path, os.R_OK)


def _value(one: Any, read: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    several, kind = one.multiple or one.nargs != 1, one.type_descriptor
    is_plain = kind.annotation in (str, Path) and not (several or kind.parameter_info.parser)
    if value is None and not one.required:
        value = () if several else None
    elif is_plain and isinstance(value, str) and not _is_closed(value):
        value = kind.annotation(value)
    else:
        return read(ctx, value)
    return value if one.callback is None else one.callback(ctx, one, value)


class Command(_Quick, TyperCommand):
    """A command whose help and parameters are read as `_Quick` says."""


class Commands(_Quick, TyperGroup):
    """The commands by name, each imported when it is asked for."""

    about = "How long does a step take, how long would it take elsewhere, and why?"

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # Typer's signature
        """Return all names."""
        return names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # as above
        """Return a command, None for an unknown one."""
        try:
            return _command(cmd_name, _renamed(cmd_name))
        except InputError:
            return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the command and its words, of others that stand for these: `WORDS`."""
        many = 2 if " ".join(args[:2]) in WORDS else 1
        first = " ".join(args[:many])
        return super().resolve_command(ctx, [*WORDS.get(first, first).split(), *args[many:]])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options a line each, below the commands: all of it fits on a screen."""
        self.format_commands(ctx, formatter)
        with formatter.section("Options"):
            short = [(", ".join(one.opts), one.help.partition(",")[0].rstrip("."))
                     for one in self.get_params(ctx)]  # fmt: skip
            formatter.write_dl([(names, f"{what}.") for names, what in short])

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # as above
        """Write what each command is for, panel by panel; old names are left out."""
        for panel, some in self.panels().items():
            with formatter.section(panel):
                formatter.write_dl([(name, _about(name)) for name in some])

    def panels(self) -> dict[str, list[str]]:
        """Return the names that are shown, by what stands above them."""
        panels = {panel: [name for name in shown() if QUESTIONS[name].panel == panel]
                  for panel in PANELS}  # fmt: skip
        added = registry.added("commands")
        return panels | ({"From other packages": [*added]} if added else {})

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the commands, or options, that begin so."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = [name for name in self.offered() if name.startswith(incomplete)]
        return [SimpleNamespace(value=name, type="plain", help=_about(name)) for name in found]

    def offered(self) -> list[str]:
        """Return the names that a shell completes."""
        return [name for some in self.panels().values() for name in some]


class Kinds(Commands):
    """The kinds of `analyse`: analyses, and the pictures that are of none."""

    about = "Answer one question on records, as a table and a picture."

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a kind's command, None for an unknown one."""
        return _command(cmd_name) if cmd_name in self.list_commands(ctx) else None

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # as above
        """Return all names."""
        return self.offered()

    def panels(self) -> dict[str, list[str]]:
        """Return the names that are shown, by what stands above them."""
        return {"Kinds": [*registry.names(ANALYSES, "analyses"), *registry.names(PLOTS, "plots")]}


def shown() -> list[str]:
    """Return the names of the commands that stand in a panel."""
    return [name for name, row in QUESTIONS.items() if row.panel]


def _about(name: str) -> str:
    """Return what a command is for; of ours, without importing it."""
    if name == "analyse":
        return Kinds.about
    if name in COMMANDS:
        return registry.about(COMMANDS[name])
    if name in PLOTS:
        return registry.about(PLOTS[name]).partition(";")[0].replace("Return", "Draw", 1) + "."
    return str(_command(name).get_short_help_str(limit=80))


def names() -> list[str]:
    """Return the names of all commands, those of other packages last."""
    return [*registry.names(COMMANDS, "commands"), *registry.added("analyses")]


@functools.cache
def _command(name: str, renamed: str = "") -> Any:
    if name == "analyse":
        return typer.main.get_command(_group(name, Kinds))
    inquiry = _question(name)
    run = command_of(inquiry)
    if renamed:
        run.__doc__ = f"{inspect.cleandoc(run.__doc__ or '')}\n\nIts name is now: {renamed}."
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    one.command(name, cls=Command, context_settings=HELP)(run)
    made = typer.main.get_command(one)
    for parameter in made.params:
        if isinstance(parameter, TyperArgument):  # whose type reads `DIR <list[Path]>`
            parameter.__dict__["display_type_rich"] = lambda ctx: ""
    return made


def _question(name: str) -> Inquiry:
    """Return a command's question, or that of an analysis or a picture by its own name."""
    if name in COMMANDS or name in registry.added("commands"):
        target = registry.resolve(COMMANDS, "commands", "command", name)
    else:
        drawn = name in registry.names(PLOTS, "plots")
        target = None if drawn else analysis(name)
    if target is None or isinstance(target, Analysis):
        from steptime.cli.analysis import drawing, question_of

        return drawing(name) if target is None else question_of(target)
    inquiry: Inquiry = getattr(target, "inquiry", None) or inquiry_of(target)
    return inquiry


def _renamed(name: str) -> str:
    """Return what an old name is called now."""
    row = QUESTIONS.get(name)
    return f"analyse {name}" if name in ANALYSES else row.renamed if row else ""


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
        group = getattr(error, "ctx", None)
        known = group.command.list_commands(group) if group else names()
        offered = group.command.offered() if group else shown()
        hint = _hint(command[1], known, f"known: {', '.join(offered)}")
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
