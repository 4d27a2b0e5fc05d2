"""Families of networks: their hyperparameters, which are read from text and checked."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from types import MappingProxyType
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.toml_files import read_packaged_toml
from steptime.core.values import number_of, parse_count, parse_text, parse_truth
from steptime.core.workload import STORED_ALL, Value
from steptime.network.ops.builder import Builder

Build = Callable[[Builder, Mapping[str, Any], int], str]
NO_RULES: Mapping[str, Callable[[Mapping[str, Value]], Value]] = MappingProxyType({})


@dataclass(frozen=True)
class Parameter:
    """One hyperparameter of a family.

    Attributes:
        default: its default, or the rule that makes it from the hyperparameters before it. Its
            type is the type of the hyperparameter.
        meaning: its meaning in a few words.
        sweep: its values in a sweep.
        choices: the allowed texts.
        aliases: other words for them.
        minimum: the smallest whole number.
        within: the limits of another number: at least the first, below the second.
        pattern: a regular expression that a text must match; "" for any text.
        pattern_text: the same in words.
        read: the function that reads a text; raises `ValueError`.
        detail: kept in a workload only if it departs from its default.
    """

    default: Value | Callable[[Mapping[str, Value]], Value]
    meaning: str
    sweep: str | tuple[Value, ...] = ()
    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    minimum: int = 1
    within: tuple[float, float] = (-inf, inf)
    pattern: str = ""
    pattern_text: str = ""
    read: Callable[[str], Value] = str
    detail: bool = False

    def default_in(self, values: Mapping[str, Value]) -> Value:
        """Return the default, given the hyperparameters before this one."""
        return self.default(values) if callable(self.default) else self.default


@dataclass(frozen=True)
class Family:
    """A family of networks, or one named network.

    `build(builder, params, batch)` gives the tensor that a step ends with: the loss in training,
    the output in inference. In a network with `is_preset` all hyperparameters are details, so that
    `resnet50` stays `resnet50`; `settings` are those of the family that it is a setting of.
    `weights` is the format in which a file keeps the weights (int4, float8), "" if not quantised,
    and `stored` which weights it keeps so (`Tuning.stored`).
    `dtype` is the only data type of a file that has no other, "" for any.
    """

    name: str
    build: Build
    parameters: Mapping[str, Parameter]
    source: str
    batch: int = 64
    batch_sweep: str | tuple[int, ...] = ()
    is_preset: bool = False
    check: Callable[[Mapping[str, Any]], str | None] = field(default=lambda _: None)
    settings: Mapping[str, Value] = field(default_factory=dict)
    weights: str = ""
    stored: str = STORED_ALL
    dtype: str = ""


def read_parameters(
    family: str,
    defaults: Mapping[str, Callable[[Mapping[str, Value]], Value]] = NO_RULES,
    **columns: Mapping[str, Any],
) -> dict[str, Parameter]:
    """Read the hyperparameters of a family from `families.toml`.

    Args:
        family: the name of the family.
        defaults: rules of the defaults that follow from other hyperparameters.
        columns: further columns of some hyperparameters, such as their choices.
    """
    parameters = {}
    for name, row in read_packaged_toml("families.toml")[family].items():
        # a frozen `Parameter` holds tuples, where TOML has lists
        fields: Any = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        }
        if name in defaults:
            fields["default"] = defaults[name]
        parameters[name] = Parameter(**fields, **columns.get(name, {}))
    return parameters


def preset(source: str, **parameters: Parameter) -> Callable[[Build], Family]:
    """Return a decorator that makes a function the named network of its own name."""
    return lambda build: Family(build.__name__, build, parameters, source, is_preset=True)


def resolve(family: Family, settings: Mapping[str, object], context: str = "") -> dict[str, Value]:
    """Return all hyperparameters of a family: checked settings, and defaults of the others.

    Args:
        family: the family.
        settings: values of some hyperparameters, as a user typed them.
        context: the start of messages; the name of the family by default.

    Raises:
        InputError: for an unknown hyperparameter, a wrong type, or sizes that do not fit.
    """
    place = context or family.name
    for name in settings:
        if name not in family.parameters:
            if not family.parameters:
                raise InputError(f"{place}: takes no hyperparameters, got {shorten(name)}")
            raise unknown("hyperparameter", name, family.parameters, place)
    values: dict[str, Value] = {}
    for name, parameter in family.parameters.items():
        default = parameter.default_in(values)
        if name in settings:
            values[name] = _read_value(settings[name], name, parameter, default, place)
        else:
            values[name] = default
    problem = family.check(values)
    if problem:
        raise InputError(f"{place}: {problem}")
    return values


def make_setting(
    name: str,
    base: Family,
    source: str,
    settings: Mapping[str, Value],
    free: Sequence[str],
    **build_options: Any,
) -> Family:
    """Return a family under fixed settings as a network of its own.

    Args:
        name: the name of the network.
        base: the family.
        source: the source of the settings.
        settings: the fixed hyperparameters.
        free: hyperparameters that a user may still choose.
        build_options: further arguments of the family's `build`.
    """
    values = resolve(base, settings)

    def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
        build_base = partial(base.build, **build_options)
        return build_base(b, {**values, **p}, batch)

    # a user may still choose these; all others have the values of the preset
    free_parameters = {key: Parameter(values[key], base.parameters[key].meaning) for key in free}
    return Family(
        name,
        build,
        free_parameters,
        source,
        base.batch,
        is_preset=True,
        check=lambda p: base.check({**values, **p}),
        settings=values,
    )


def drop_defaults(family: Family, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the hyperparameters that a workload keeps: all but details at their defaults."""
    workload_values = {}
    for name, value in values.items():
        parameter = family.parameters[name]
        # details, and all that a user may choose of a preset, are left out at their defaults
        may_be_left_out = family.is_preset or parameter.detail
        has_default = value == parameter.default_in(values)
        if not (may_be_left_out and has_default):
            workload_values[name] = value
    return workload_values


def _read_value(
    value: object, name: str, parameter: Parameter, default: Value, place: str
) -> Value:
    """Read a hyperparameter in the type of its default; raises `InputError`."""
    label = f"{place}: {name}"
    text = parse_text(value, label)
    if parameter.pattern and not re.fullmatch(parameter.pattern, text):
        raise InputError(f"{label}: must be {parameter.pattern_text}, not {shorten(text)}")
    if parameter.pattern or parameter.read is not str:
        try:
            return parameter.read(text)
        except ValueError as error:
            raise InputError(f"{label}: {error}") from None
    if parameter.choices:
        text = parameter.aliases.get(text.lower(), text)
        if text not in parameter.choices:
            raise unknown(name, value, parameter.choices, place)
        return text
    # the type of the default is the type of the hyperparameter
    if isinstance(default, bool):
        return parse_truth(text, f"{label}:")
    if not isinstance(default, float):
        return parse_count(value, label, parameter.minimum)
    return _read_number(value, text, parameter, label)


def _read_number(value: object, text: str, parameter: Parameter, label: str) -> float:
    number = number_of(text)
    if not isfinite(number):
        raise InputError(f"{label}: must be a number, not {shorten(value)}")
    low, high = parameter.within
    if not low <= number < high:
        below = f" and below {high:g}" if high < inf else ""
        limits = f"at least {low:g}{below}"
        raise InputError(f"{label}: must be {limits}, not {shorten(value)}")
    return number
