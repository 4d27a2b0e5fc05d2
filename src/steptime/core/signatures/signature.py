"""The parameters of a question, read from its signature and its docstring.

A question is a plain function with types, defaults and a Google docstring. The command line, the
JSON schema and the pages of the documents are derived from its `QuestionParameter`s. Options that
belong together are a frozen dataclass, a subclass of `OptionGroup`; a question takes them flat, as
`**options: Unpack[Keywords]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from steptime.core.errors import unknown
from steptime.core.signatures.docstrings import argument_texts
from steptime.core.signatures.kinds import Kind

REQUIRED: Any = ...


class OptionGroup:
    """Base of groups of options: frozen dataclasses whose fields are keywords of questions.

    `class StepOptions(OptionGroup, keywords=StepKeywords)` joins the group, which has defaults and
    texts, with the `TypedDict` that gives a question's `**options` their types.
    """

    group_by_keywords: ClassVar[dict[type, type[OptionGroup]]] = {}
    keywords: ClassVar[type]

    def __init_subclass__(cls, keywords: type) -> None:
        cls.keywords = keywords
        OptionGroup.group_by_keywords[keywords] = cls

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any], question: Callable[..., Any]) -> Self:
        """Return the group with the values of a question's keywords.

        Raises:
            InputError: for a keyword that the question does not have.
        """
        field_names = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # a dataclass
        for name in keywords:
            if name not in field_names:
                names = [parameter.name for parameter in parameters_of(question)]
                raise unknown("parameter", name, names, question.__name__)
        return cls(**keywords)


@dataclass(frozen=True)
class QuestionParameter:
    """A parameter of a question.

    Args:
        name: its name in Python.
        annotation: its type in Python, without its kind.
        kind: how it is written on the command line.
        default: its default, or `REQUIRED`.
        owner: the function or group of options whose docstring says its meaning.
    """

    name: str
    annotation: Any
    kind: Kind
    default: Any
    owner: object

    @property
    def help(self) -> str:
        """Its meaning, one or two sentences; docstrings are parsed when it is asked for."""
        return argument_texts(inspect.getdoc(self.owner) or "").get(self.name, "")

    @property
    def option(self) -> str:
        """The name of its option, `--device`, or of its argument, `MODEL`."""
        if self.kind.is_argument:
            return self.kind.metavar
        return self.option_names[0]

    @property
    def option_names(self) -> tuple[str, ...]:
        """All names of its option: `("--out", "-o")`."""
        return self.kind.names or (option_name(self.name),)

    @property
    def types(self) -> tuple[Any, ...]:
        """The types that it takes, None apart: `str` and `Path` of `str | Path | None`."""
        is_union = get_origin(self.annotation) in (Union, UnionType)
        types = get_args(self.annotation) if is_union else (self.annotation,)
        return tuple(member for member in types if member is not NoneType)

    @property
    def is_flag(self) -> bool:
        """Whether it is an option without a value."""
        return self.types == (bool,)

    @property
    def is_repeatable(self) -> bool:
        """Whether the option may stand several times: a sequence that is no text with commas."""
        return str not in self.types and any(
            _is_sequence(get_origin(member)) for member in self.types
        )

    @property
    def schema(self) -> Mapping[str, Any]:
        """The parameter in JSON schema."""
        json_types = list(dict.fromkeys(filter(None, map(_find_json_type, self.types))))
        has_single_type = len(json_types) == 1
        schema: dict[str, object] = {"type": json_types[0] if has_single_type else json_types}
        schema["description"] = self.help
        if self.kind.choices:
            schema["enum"] = list(self.kind.choices)
        has_default = self.default not in (REQUIRED, None)
        if has_default:
            is_truth_value = isinstance(self.default, bool)
            schema["default"] = self.default if is_truth_value else str(self.default)
        return schema


def option_name(parameter: str) -> str:
    """Return the name of a parameter's option: `--by-op` of `by_op`, `--from` of `from_`."""
    return f"--{parameter.strip('_').replace('_', '-')}"


@cache
def parameters_of(function: Callable[..., Any]) -> tuple[QuestionParameter, ...]:
    """Return the parameters of a question, those of its groups of options in their places."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[QuestionParameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            # `**options: Unpack[Keywords]` stands for a group of options.
            for keywords in get_args(hints[name]):
                parameters += group_parameters(OptionGroup.group_by_keywords[keywords])
            continue
        default = REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
        parameters.append(_make_parameter(name, hints[name], default, function))
    return tuple(parameters)


def group_parameters(group: Any) -> Iterator[QuestionParameter]:
    """Yield the parameters of a group of options, with the types of its keywords."""
    hints = get_type_hints(group.keywords, include_extras=True)
    for name, hint in hints.items():
        field = group.__dataclass_fields__[name]
        default = REQUIRED if field.default is MISSING else field.default
        yield _make_parameter(name, hint, default, group)


def _make_parameter(name: str, hint: Any, default: Any, owner: object) -> QuestionParameter:
    kinds = [value for value in _list_metadata(hint) if isinstance(value, Kind)]
    kind = kinds[0] if kinds else Kind()
    return QuestionParameter(name, _strip_metadata(hint), kind, default, owner)


def _list_metadata(hint: Any) -> Iterator[Any]:
    """Yield the metadata of a type, the outermost first, also inside of a union."""
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
        yield from _list_metadata(get_args(hint)[0])
    elif get_origin(hint) in (Union, UnionType):
        for member in get_args(hint):
            yield from _list_metadata(member)


def _strip_metadata(hint: Any) -> Any:
    """Return a type without its kind."""
    if get_origin(hint) is Annotated:
        return _strip_metadata(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return Union[  # noqa: UP007  # `|` joins two members
            tuple(_strip_metadata(member) for member in get_args(hint))
        ]
    return hint


def _is_sequence(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence | Mapping)


def _find_json_type(member: Any) -> str:
    """Return the name of a type in JSON schema, "" of one that JSON does not have."""
    json_types = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}
    if member in json_types:
        return json_types[member]
    origin = get_origin(member)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "object"
    return "array" if _is_sequence(origin) else ""
