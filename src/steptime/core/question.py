"""A question: one typed function, from which its command and its face in Python are derived.

What a parameter means, what it is called and how its text is read stands beside it as a `Wording`.
`question` makes of such a function one that Python calls with plain values; `Inquiry`, which it
keeps in `inquiry`, has what the command line, the schema and the documents are made from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from steptime.core.errors import InputError, unknown
from steptime.core.signature import (
    REQUIRED,
    OptionGroup,
    Parameter,
    group_parameters,
    parameters_of,
)
from steptime.core.values import parse_count

Function = TypeVar("Function", bound=Callable[..., Any])
Text = str | None
File = Path | None
_TYPED = str | int | float | Path  # what people type, as Python has it


@dataclass(frozen=True)
class Wording:
    """What people say for a parameter: `names` of its own, what it takes, and what it means.

    `read(text, where)` makes a value of a text; without it the text is taken as it is. Values that
    are `known` are what a shell offers.
    """

    default: Any
    names: tuple[str, ...]
    metavar: str | None
    meaning: str
    read: Callable[..., Any] | None = None
    show_default: bool = True
    is_argument: bool = False
    known: Collection[str] = ()


def option(takes: str, meaning: str, default: Any = REQUIRED, **more: Any) -> Any:
    """Return an option that takes a value: `FILE`, or under names of its own `--out -o FILE`.

    Without names it has that of the parameter: `--tensor` for `tensor`. It is the parameter's
    default, or in `Annotated` for several questions. `parser` reads its text.
    """
    words = takes.split()
    names = tuple(word for word in words if word.startswith("-"))
    metavar = " ".join(words[len(names) :]) or None
    return Wording(default, names, metavar, meaning, more.pop("parser", None), **more)


def optional(takes: str, meaning: str, **more: Any) -> Any:
    """Return an option as the default of a parameter that is None where it is left out."""
    return option(takes, meaning, None, **more)


def whole(takes: str, meaning: str, default: int | None = None, **bounds: Any) -> Any:
    """Return an option that takes a whole number, from 1 on or `at_least` to `at_most`."""
    return option(takes, meaning, default, parser=partial(parse_count, **bounds))


def flag(meaning: str, names: str = "") -> Any:
    """Return an option that is given or not."""
    return option(names, meaning, False)


def argument(metavar: str, meaning: str, default: Any = REQUIRED) -> Any:
    """Return an argument of a command line."""
    return Wording(default, (), metavar, meaning, is_argument=True)


def named(parameter: str) -> str:
    """Return the name of the option that a parameter has, where it is not given another one."""
    return f"--{parameter.strip('_').replace('_', '-')}"


@dataclass(frozen=True)
class Slot:
    """A parameter of a question: its type, what it means, and what it is if it is left out.

    Args:
        completes: `module:attribute` of a table or a function with the names that a shell offers.
        panel: the heading under which a long help lists the option.
    """

    name: str
    kind: Any
    option: Wording
    default: Any
    completes: str = ""
    panel: str = ""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that it takes, None apart: `str` and `Path` of `list[Path] | None`."""
        several = (
            get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)
        )
        return tuple(one for one in several if one is not NoneType)

    def value(self, given: Any) -> Any:
        """Return a value of Python as the command line would read its text.

        What is no text or number, such as a `Device`, is taken as it is.
        """
        several = next((one for one in self.kinds if get_origin(one) is list), None)
        if several is not None and given is not None:
            if isinstance(given, Mapping):
                texts = {k: str(v).lower() if isinstance(v, bool) else v for k, v in given.items()}
                given = [f"{name}={one}" for name, one in texts.items()]
            every = [given] if isinstance(given, str | Path) else given
            if not isinstance(every, list | tuple):  # a DataFrame
                return given
            items = [":".join(map(str, one)) if isinstance(one, tuple) else one for one in every]
            is_typed = all(isinstance(one, _TYPED) for one in items)
            return [get_args(several)[0](one) for one in items] if is_typed else given
        if isinstance(given, list | tuple | range) and str in self.kinds:
            is_typed = all(isinstance(one, _TYPED) for one in given)
            given = ",".join(map(str, given)) if is_typed else given
        if isinstance(given, bool) or not isinstance(given, _TYPED):
            return given
        if given == "" != self.default:
            raise InputError(f"{self.name}: an empty value; leave it out, or give a value")
        if self.option.read is not None:
            return self.option.read(str(given), where=self.name)
        return next((one(str(given)) for one in (Path, str) if one in self.kinds), given)

    @property
    def schema(self) -> dict[str, Any]:
        """The parameter in JSON schema."""
        words = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}
        names = [words.get(one, "array") for one in self.kinds]
        told = {"type": names[0] if len(names) == 1 else names, "description": self.option.meaning}
        return told if self.default in (REQUIRED, None) else {**told, "default": str(self.default)}


@dataclass(frozen=True)
class Inquiry:
    """A question as data: its function, the parameters of it and of its groups, laid flat.

    What may take `long` is said on a terminal. One that knows the `whole` is told whether programs
    read the answer.
    """

    function: Callable[..., Any]
    long: str = ""
    parameters: tuple[Slot, ...] = ()
    groups: Mapping[str, Any] = field(default_factory=dict)
    knows_whole: bool = False

    def __call__(self, given: Mapping[str, Any], *, whole: bool = True) -> Any:
        """Return the answer to values of its parameters, all of them."""
        values = dict(given)
        for name, kind in self.groups.items():
            values[name] = kind(**{one.name: values.pop(one.name) for one in fields(kind)})
        more = {"whole": whole} if self.knows_whole else {}
        return self.function(**values, **more)

    @property
    def signature(self) -> inspect.Signature:
        """What Python sees: plain types and defaults, in the order of the function."""
        made = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if one.default is REQUIRED else one.default,
                annotation=one.kind,
            )
            for one in sorted(self.parameters, key=lambda one: one.default is not REQUIRED)
        ]
        result = inspect.signature(self.function).return_annotation
        return inspect.Signature(made, return_annotation=result)

    @property
    def schema(self) -> dict[str, Any]:
        """What it takes, in JSON schema."""
        return {
            "description": inspect.getdoc(self.function) or "",
            "type": "object",
            "properties": {one.name: one.schema for one in self.parameters},
            "required": [one.name for one in self.parameters if one.default is REQUIRED],
        }


def question(long: str = "") -> Callable[[Function], Function]:
    """Return a decorator that turns a function of plain values into a question.

    Parameters have a `Wording` as default or in `Annotated`; one whose type is a dataclass of such
    fields is a group of options that belong together.

    Args:
        long: the work that takes its time, said on a terminal; "" for none.
    """

    def decorate(function: Function) -> Function:
        every = dict(inspect.signature(function, eval_str=True).parameters)
        whole = every.pop("whole", None) is not None
        groups = {name: one.annotation for name, one in every.items() if _is_group(one.annotation)}
        inquiry = Inquiry(function, long, tuple(_flat(every.values())), groups, whole)

        @wraps(function)
        def ask(*values: Any, **given: Any) -> Any:
            given = {("option_" if name == "options" else name): it for name, it in given.items()}
            for name in given.keys() - inquiry.signature.parameters.keys():
                raise unknown("parameter", name, inquiry.signature.parameters, function.__name__)
            bound = inquiry.signature.bind(*values, **given).arguments
            told = {
                one.name: one.value(bound[one.name]) if one.name in bound else one.default
                for one in inquiry.parameters
            }
            return inquiry(told)

        ask.inquiry = inquiry  # type: ignore[attr-defined]  # read by the command line
        ask.__signature__ = inquiry.signature  # type: ignore[attr-defined]  # read by inspect
        return ask  # type: ignore[return-value]

    return decorate


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _flat(parameters: Any) -> Iterator[Slot]:
    """Yield parameters, and those of groups, each with its option."""
    for one in parameters:
        if isinstance(one.annotation, type) and issubclass(one.annotation, OptionGroup):
            yield from map(_slot_of, group_parameters(one.annotation))
            continue
        if _is_group(one.annotation):
            yield from _flat(inspect.signature(one.annotation, eval_str=True).parameters.values())
            continue
        is_said = get_origin(one.annotation) is Annotated
        kind, *more = get_args(one.annotation) if is_said else (one.annotation,)
        told = next(each for each in (one.default, *more) if isinstance(each, Wording))
        empty = one.default is inspect.Parameter.empty
        default = told.default if empty or one.default is told else one.default
        yield Slot(one.name, kind, told, default)


def inquiry_of(function: Callable[..., Any]) -> Inquiry:
    """Return a plain question for the command line, which gives it texts, flags and lists."""
    return Inquiry(function, parameters=tuple(map(_slot_of, parameters_of(function))))


def _slot_of(parameter: Parameter) -> Slot:
    kind = parameter.kind
    wording = Wording(
        parameter.default,
        kind.names or (() if kind.is_argument else (parameter.option,)),
        kind.metavar or None,
        parameter.help,
        is_argument=kind.is_argument,
        known=kind.choices,
    )
    return Slot(
        parameter.name,
        _command_type(parameter),
        wording,
        parameter.default,
        kind.completes,
        kind.panel,
    )


def _command_type(parameter: Parameter) -> Any:
    """Return the type that a parameter has on the command line: a flag, a text or several."""
    if parameter.is_flag:
        return bool
    if parameter.is_repeatable:
        return list[str] if parameter.default is REQUIRED else list[str] | None
    return str if isinstance(parameter.default, str) or parameter.default is REQUIRED else Text
