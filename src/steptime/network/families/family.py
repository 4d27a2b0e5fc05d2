"""What a family of networks says of itself, and how its hyperparameters are read and checked."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.formula import formula
from steptime.core.toml_files import packaged
from steptime.core.values import number_of, parse_count, parse_text, parse_truth
from steptime.core.workload import STORED_ALL, Value
from steptime.network.ops.builder import Builder

Build = Callable[[Builder, Mapping[str, Any], int], str]


@dataclass(frozen=True)
class Parameter:
    """One hyperparameter: its default (or a function of the others), its range in a sweep.

    `choices` lists the allowed texts, `aliases` other words for them; otherwise the type is that of
    the default, whole numbers being at least `least`, other numbers at least the first and below
    the second of `within`. A text of a `form` of its own, a regular
    expression and what it must be in words, stays as it is. `read` reads a text, of that form if
    there is one, or raises `ValueError`. A `detail` is kept in a workload only where it departs
    from its default.
    """

    default: Value | Callable[[Mapping[str, Value]], Value]
    meaning: str
    sweep: str | tuple[Value, ...] = ()
    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    least: int = 1
    within: tuple[float, float] = (-inf, inf)
    form: tuple[str, ...] = ()
    read: Callable[[str], Value] = str
    detail: bool = False

    def default_in(self, values: Mapping[str, Value]) -> Value:
        """Return the default, given the hyperparameters that stand before this one."""
        return self.default(values) if callable(self.default) else self.default


@dataclass(frozen=True)
class Family:
    """A family of networks, or one named network.

    `build(builder, params, batch)` gives the tensor that a step ends with: the loss in training,
    the output in inference. In a `named` network every hyperparameter is a detail, so that
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
    named: bool = False
    check: Callable[[Mapping[str, Any]], str | None] = field(default=lambda _: None)
    settings: Mapping[str, Value] = field(default_factory=dict)
    weights: str = ""
    stored: str = STORED_ALL
    dtype: str = ""


def parameters_of(family: str, **more: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the hyperparameters of a family as the table has them, with `more` of some of them."""
    made = {}
    for name, row in packaged("families.toml")[family].items():
        own: dict[str, Any] = {
            key: tuple(one) if isinstance(one, list) else one for key, one in row.items()
        }
        if "follows" in own:
            own["default"] = formula(own.pop("follows"))
        made[name] = Parameter(**own, **more.get(name, {}))
    return made


def fault_of(family: str) -> Callable[[Mapping[str, Any]], str | None]:
    """Return what says which sizes of a family do not fit together, None if all do."""
    rules = [
        (formula(when), said) for when, said in packaged("families.toml")["faults"][family].items()
    ]
    return lambda p: next((said.format_map(p) for when, said in rules if when(p)), None)


def named(source: str, **parameters: Parameter) -> Callable[[Build], Family]:
    """Return a decorator: the function builds the named network that is called as it is."""
    return lambda build: Family(build.__name__, build, parameters, source, named=True)


def resolve(family: Family, given: Mapping[str, object], where: str = "") -> dict[str, Value]:
    """Return every hyperparameter of the family, `given` ones checked and the others by default.

    Raises `InputError` for an unknown hyperparameter, a wrong type, or sizes that do not fit.
    """
    place = where or family.name
    for name in given:
        if name not in family.parameters:
            if not family.parameters:
                raise InputError(f"{place}: takes no hyperparameters, got {shorten(name)}")
            raise unknown("hyperparameter", name, family.parameters, place)
    values: dict[str, Value] = {}
    for name, parameter in family.parameters.items():
        default = parameter.default_in(values)
        values[name] = (
            _read(given[name], name, parameter, default, place) if name in given else default
        )
    problem = family.check(values)
    if problem:
        raise InputError(f"{place}: {problem}")
    return values


def setting(
    name: str, base: Family, source: str, settings: Mapping[str, Value], *free: str, **how: Any
) -> Family:
    """Return `base` under fixed `settings`, of which the `free` ones may still be chosen."""
    values = resolve(base, settings)
    return Family(
        name,
        lambda b, p, batch: partial(base.build, **how)(b, {**values, **p}, batch),
        {key: Parameter(values[key], base.parameters[key].meaning) for key in free},
        source,
        base.batch,
        named=True,
        check=lambda p: base.check({**values, **p}),
        settings=values,
    )


def stored(family: Family, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the hyperparameters that a workload keeps: all but details at their defaults."""
    return {
        name: value
        for name, value in values.items()
        if not (family.named or family.parameters[name].detail)
        or value != family.parameters[name].default_in(values)
    }


def _read(value: object, name: str, parameter: Parameter, default: Value, place: str) -> Value:
    where = f"{place}: {name}"
    text = parse_text(value, where)
    if parameter.form and not re.fullmatch(parameter.form[0], text):
        raise InputError(f"{where}: must be {parameter.form[1]}, not {shorten(text)}")
    if parameter.form or parameter.read is not str:
        try:
            return parameter.read(text)
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
    if parameter.choices:
        text = parameter.aliases.get(text.lower(), text)
        if text not in parameter.choices:
            raise unknown(name, value, parameter.choices, place)
        return text
    if isinstance(default, bool):
        return parse_truth(text, f"{where}:")
    if not isinstance(default, float):
        return parse_count(value, where, parameter.least)
    number = number_of(text)
    if not isfinite(number):
        raise InputError(f"{where}: must be a number, not {shorten(value)}")
    low, high = parameter.within
    if not low <= number < high:
        below = f" and below {high:g}" if high < inf else ""
        limits = f"at least {low:g}{below}"
        raise InputError(f"{where}: must be {limits}, not {shorten(value)}")
    return number
