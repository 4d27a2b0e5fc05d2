"""The tree of commands: each is found by its name and imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

from cyclopts import App, Group, Parameter

from steptime import __version__
from steptime.analysis.analyses import ANALYSES, PLOTS, analysis
from steptime.api import PANELS, PROGRAMS, QUESTIONS
from steptime.cli.help import PlainHelp, write_names
from steptime.cli.panels import ARGUMENTS, PANEL_GROUPS
from steptime.core import registry
from steptime.core.errors import InputError, check_choice
from steptime.core.signatures.docstrings import summary
from steptime.core.signatures.signature import REQUIRED, parameters_of

COMMAND_ROWS = QUESTIONS | PROGRAMS
COMMANDS = {name: row.answer for name, row in COMMAND_ROWS.items()}
"""The function that answers each command, as `module:function`."""
ROOT_TEXT = "How long does a step take, how long would it take elsewhere, and why?"
ANALYSE_TEXT = "Answer one question on records, as a table and a picture."
OTHER_PACKAGES = "From other packages"
SHELLS = ("bash", "zsh", "fish")
COMPLETION_COMMANDS = ("--install-completion", "--show-completion")
HELP_FLAGS = ("--help", "-h")
VERSION_FLAGS = ("--version", "-V")

_COMMAND_GROUPS = {
    panel: Group(panel, sort_key=rank) for rank, panel in enumerate((*PANELS, OTHER_PACKAGES))
}
_ROOT_OPTIONS = Group("Options", sort_key=len(_COMMAND_GROUPS), help_formatter=write_names)
_SUBCOMMAND_GROUP = Group("Commands", sort_key=99)
_KIND_GROUP = Group("Kinds", sort_key=0)
_NO_NEGATIVES = Parameter(negative=())  # no --no-json, no --empty-option
_COMMAND_PREFIX = "command "  # begins the attributes of this module that stand for commands
_HELP_COMMAND_PREFIX = "help of command "  # begins those of commands whose options have their texts


def command_names() -> list[str]:
    """Return the names of all commands, those of other packages last."""
    return registry.list_names(COMMANDS, "commands")


def kind_names() -> list[str]:
    """Return the kinds of `analyse`: analyses, then pictures that belong to none."""
    return [*registry.list_names(ANALYSES, "analyses"), *registry.list_names(PLOTS, "plots")]


def root_commands(names: Iterable[str] = COMMAND_ROWS) -> list[str]:
    """Return the commands of one word, which the help of `steptime` lists."""
    return [name for name in names if " " not in name]


def describe_command(name: str) -> str:
    """Describe a command in one line, without importing one of this package."""
    if name == "analyse":
        return ANALYSE_TEXT
    if name in COMMANDS:
        return registry.describe_target(COMMANDS[name])
    is_analysis = name.startswith("analyse ")
    kind = name.removeprefix("analyse ")
    if is_analysis and kind in PLOTS:
        # "Return the times of steps as a chart; ..." becomes "Draw the times of steps as a chart."
        clause = registry.describe_target(PLOTS[kind]).partition(";")[0].rstrip(".")
        return f"{clause.replace('Return', 'Draw', 1)}."
    if is_analysis and kind in ANALYSES:
        return registry.describe_target(ANALYSES[kind])
    docstring = find_question(name).__doc__ or ""
    return summary(docstring).partition("\n")[0]


@cache
def find_question(name: str) -> Callable[..., Any]:
    """Return the question of a command: `fit`, `sweep status`, `analyse roofline`.

    Raises:
        InputError: for an unknown command.
    """
    kind = name.removeprefix("analyse ")
    is_analysis = kind != name
    if is_analysis:
        from steptime.questions.analyse import analysis_question, picture_question

        is_picture = kind in registry.list_names(PLOTS, "plots")
        return picture_question(kind) if is_picture else analysis_question(analysis(kind))
    question: Callable[..., Any] = registry.resolve(COMMANDS, "commands", "command", name)
    return question


def build_app(words: Sequence[str] = ()) -> App:
    """Return the tree of commands for a command line.

    The lines that describe commands, the texts of options and the commands of other packages take
    their time: a line that names a known command goes without, and without a help flag, too.
    """
    command = words[0] if words else ""
    kind = words[1] if len(words) > 1 else ""  # of an analysis
    is_completion = command in COMPLETION_COMMANDS
    is_chart_or_analysis = kind in ANALYSES or kind in PLOTS
    are_all_kinds_listed = is_completion or (command == "analyse" and not is_chart_or_analysis)
    has_help = is_completion or any(word in HELP_FLAGS for word in words)
    # cyclopts imports a command as an attribute of this module with this prefix (`__getattr__`).
    attribute_prefix = _HELP_COMMAND_PREFIX if has_help else _COMMAND_PREFIX
    # Help and suggestions need all commands; a command that is typed right does without them.
    are_all_commands_listed = command not in COMMANDS
    return _build_app(are_all_commands_listed, are_all_kinds_listed, attribute_prefix)


@cache
def _build_app(
    are_all_commands_listed: bool, are_all_kinds_listed: bool, attribute_prefix: str
) -> App:
    app = _new_app(
        "steptime",
        PlainHelp(lambda: ROOT_TEXT),
        usage="steptime COMMAND [OPTIONS]",
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    names = command_names() if are_all_commands_listed else COMMANDS
    for rank, name in enumerate(root_commands(names)):
        if name == "analyse":
            app.command(_build_analyse(are_all_kinds_listed, rank, attribute_prefix))
            continue
        app.command(
            f"{__name__}:{attribute_prefix}{name}",
            name=name,
            help=describe_command(name) if are_all_commands_listed else None,
            group=_COMMAND_GROUPS[
                COMMAND_ROWS[name].panel if name in COMMAND_ROWS else OTHER_PACKAGES
            ],
            sort_key=rank,
        )
    for flag in (*VERSION_FLAGS, *HELP_FLAGS):
        app[flag].group = (_ROOT_OPTIONS,)
    for name, function in zip(
        COMPLETION_COMMANDS, (_install_completion, _show_completion), strict=True
    ):
        app.command(_build_completion_app(name, partial(function, app)))
    return app


def _build_analyse(are_all_kinds_listed: bool, rank: int, attribute_prefix: str) -> App:
    app = _new_app(
        "analyse",
        PlainHelp(lambda: ANALYSE_TEXT),
        help=ANALYSE_TEXT,
        usage="steptime analyse KIND [OPTIONS]",
        group=_COMMAND_GROUPS[QUESTIONS["analyse"].panel],
        sort_key=rank,
    )
    kinds = kind_names() if are_all_kinds_listed else (*ANALYSES, *PLOTS)
    for kind_rank, kind in enumerate(kinds):
        # `__getattr__` of this module makes the command of such a name when it is asked for.
        app.command(
            f"{__name__}:{attribute_prefix}analyse {kind}",
            name=kind,
            help=describe_command(f"analyse {kind}") if are_all_kinds_listed else None,
            group=_KIND_GROUP,
            sort_key=kind_rank,
        )
    return app


def _build_command(name: str, attribute_prefix: str) -> App:
    """Return the command that answers a question, with the commands that begin with its name."""
    from steptime.cli.command import make_command  # `steptime --help` does without it

    question = find_question(name)
    has_help = attribute_prefix == _HELP_COMMAND_PREFIX  # texts of options take time to read
    function = make_command(question, name, has_help=has_help)
    last_word = name.rsplit(maxsplit=1)[-1]  # of "analyse steps": steps
    app = _new_app(
        last_word,
        PlainHelp(lambda: summary(question.__doc__ or "")),
        usage=f"steptime {name} {_describe_arguments(question)}",
    )
    app.default(function)
    commands = [command for command in QUESTIONS if command.startswith(f"{name} ")]
    for rank, command in enumerate(commands):
        app.command(
            f"{__name__}:{attribute_prefix}{command}",
            name=command.removeprefix(f"{name} "),
            help=describe_command(command),
            sort_key=rank,
        )
    return app


def __getattr__(name: str) -> Any:
    """Return a command, for cyclopts, which imports commands by names of attributes."""
    for attribute_prefix in (_COMMAND_PREFIX, _HELP_COMMAND_PREFIX):
        if name.startswith(attribute_prefix):
            return _build_command(name.removeprefix(attribute_prefix), attribute_prefix)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _new_app(name: str, formatter: PlainHelp, **settings: Any) -> App:
    return App(
        name=name,
        version=f"steptime {__version__}",
        version_flags=VERSION_FLAGS,
        version_format="plaintext",
        default_parameter=_NO_NEGATIVES,
        help_flags=HELP_FLAGS,
        help_formatter=formatter,
        group_arguments=ARGUMENTS,
        group_parameters=PANEL_GROUPS["Options"],
        group_commands=_SUBCOMMAND_GROUP,
        **settings,
    )


def _describe_arguments(question: Callable[..., Any]) -> str:
    """Describe what follows the name of a command: `[OPTIONS] MODEL`."""
    words = ["[OPTIONS]"]
    for parameter in parameters_of(question):
        if parameter.kind.is_argument:
            label = parameter.kind.metavar or parameter.name.upper()
            words.append(label if parameter.default is REQUIRED else f"[{label}]")
    return " ".join(words)


def _build_completion_app(name: str, function: Any) -> App:
    app = _new_app(name, PlainHelp(lambda: str(function.func.__doc__)), group=_ROOT_OPTIONS)
    app.default(function)
    return app


def _install_completion(app: App, shell: str = "", /) -> int:
    """Install the completion of commands, options and their values for bash, zsh or fish."""
    path = app.install_completion(shell=_find_shell(shell))
    print(f"{path}: installed; it is read when the shell starts")
    return 0


def _show_completion(app: App, shell: str = "", /) -> int:
    """Print what `--install-completion` would install."""
    print(app.generate_completion(shell=_find_shell(shell)))
    return 0


def _find_shell(shell: str) -> Any:
    """Return the name of a shell, without one that of the shell that calls.

    Raises:
        InputError: for another shell.
    """
    from cyclopts.completion import detect_shell
    from cyclopts.completion.detect import ShellDetectionError

    try:
        return check_choice("shell", shell or detect_shell(), SHELLS)
    except ShellDetectionError:
        raise InputError(f"name the shell: {', '.join(SHELLS)}") from None
