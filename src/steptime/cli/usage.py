"""Wrong command lines: what cyclopts refuses, on one line in our words with the nearest name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from cyclopts import App, Argument, CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from steptime.cli.commands import command_names, kind_names, root_commands
from steptime.cli.complete import describe_value
from steptime.core.errors import shorten
from steptime.core.signatures.signature import QuestionParameter
from steptime.core.spelling import find_similar_names
from steptime.core.toml_files import read_packaged_toml

_OPTION = re.compile(r"--?[^\d\W].*", re.DOTALL)  # no number below zero, no lone dash


def describe_usage_error(error: CycloptsError) -> str:
    """Describe what is wrong with a command line: `no such option '--bacth'; did you mean ...`.

    An unknown option is named first: where `--devce` is typed, `--device` is missing as well.
    """
    app = error.app
    if app is None:
        return str(error)
    option = _find_unknown_option(error, app)
    if option:
        return _describe_unknown_option(option, app)
    tokens = error.unused_tokens or []
    if isinstance(error, UnknownCommandError) and tokens:
        return _describe_unknown_command(tokens[0], app)
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected argument {shorten(' '.join(tokens))}; see --help"
    return _describe_value_error(error)


def _describe_value_error(error: CycloptsError) -> str:
    """Describe an option or an argument that is missing, repeated or without its value."""
    argument = error.argument
    message_line = " ".join(str(error).split())
    if isinstance(error, RepeatArgumentError):
        return f"option {shorten(error.token.keyword)} is given twice"
    if argument is None:
        return message_line
    if isinstance(error, MissingArgumentError):
        return _describe_missing_value(error, argument)
    if isinstance(error, CoercionError):
        return f"option {shorten(argument.name)} takes no value"
    return message_line


def _describe_missing_value(error: MissingArgumentError, argument: Argument) -> str:
    """Describe an option without its value, or one that is missing, with the values it takes."""
    parameter = find_parameter(argument)
    hint = f"; {describe_value(parameter)}" if parameter else ""
    if error.keyword:
        return f"option {shorten(error.keyword)} needs a value{hint}"
    kind = "argument" if argument.field_info.is_positional else "option"
    return f"missing {kind} {' / '.join(map(shorten, argument.names))}{hint}"


def find_parameter(argument: Argument) -> QuestionParameter | None:
    """Return the parameter of a question that an argument of cyclopts was made from."""
    metadata = getattr(argument.field_info.annotation, "__metadata__", ())
    parameters = (item for item in metadata if isinstance(item, QuestionParameter))
    return next(parameters, None)


def _find_unknown_option(error: CycloptsError, app: App) -> str:
    """Return the name of the first unknown option of a line, "" where there is none."""
    if isinstance(error, UnknownOptionError):
        word = error.token.keyword or error.token.value
        return word.partition("=")[0]
    tokens = error.unused_tokens or []
    if isinstance(error, UnknownCommandError):
        # Which options are valid behind an unknown command cannot be told.
        tokens = tokens[:1]
    option_names = set(_list_option_names(app))
    hyphen_names: set[str] = set()  # of options whose values may begin with a hyphen
    for argument in _list_arguments(app):
        if argument.parameter.allow_leading_hyphen:
            hyphen_names.update(argument.names)
    previous_token = ""
    for token in tokens:
        if token == "--":  # behind it, nothing is an option
            break
        name = token.partition("=")[0]
        is_value = previous_token in hyphen_names
        previous_token = token
        is_option = _OPTION.fullmatch(name) and not is_value
        is_short_with_value = name[:2] in option_names  # -oFILE
        is_valid = name in option_names or is_short_with_value
        if is_option and not is_valid:
            return name
    return ""


def _describe_unknown_option(option: str, app: App) -> str:
    bare_option = option.lstrip("-")
    labels = [
        argument.name for argument in _list_arguments(app) if argument.field_info.is_positional
    ]
    is_argument = bare_option.upper() in labels
    advice = f"{bare_option.upper()} needs no option" if is_argument else "see --help"
    return (
        f"no such option {shorten(option)}{_suggest_name(option, _list_option_names(app), advice)}"
    )


def _describe_unknown_command(word: str, app: App) -> str:
    if app.name[0] == "analyse":
        names = help_names = kind_names()
    else:
        help_names = root_commands(command_names())
        # Kinds of analysis are suggested although they stand behind `analyse`.
        names = [*command_names(), *(f"analyse {kind}" for kind in kind_names())]
    advice = f"known: {', '.join(help_names)}"
    return f"no such command {shorten(word)}{_suggest_name(word, names, advice)}"


def _list_arguments(app: App) -> Iterable[Argument]:
    return app.assemble_argument_collection() if app.default_command else ()


def _list_option_names(app: App) -> Iterator[str]:
    """Yield the names of a command's options, `--help` among them."""
    for argument in _list_arguments(app):
        yield from (name for name in argument.names if name.startswith("-"))
    yield from (name for name in app if name.startswith("-"))


def _suggest_name(word: str, names: Iterable[str], advice: str) -> str:
    """Return a question with the nearest of the names, whatever their dashes, or the advice."""
    name_by_bare_name = {name.lstrip("-"): name for name in names}
    similar_names = find_similar_names(word.lstrip("-"), name_by_bare_name)
    shortest_similar_name = min(similar_names, key=len, default="")
    suggestion = name_by_bare_name.get(shortest_similar_name)
    # What people type for an option, by habit from elsewhere, comes before similar names.
    for option, habitual_words in read_packaged_toml("other_options.toml").items():
        if word in habitual_words and option in name_by_bare_name.values():
            suggestion = option
            break
    return f"; did you mean '{suggestion}'?" if suggestion else f"; {advice}"
