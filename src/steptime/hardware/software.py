"""The software of a question: a stack by name, family or year, or the usual one of a device."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from steptime.core.errors import unknown
from steptime.core.toml_files import packaged
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.architectures import architectures, family_of
from steptime.hardware.device import Device

_OF_YEAR = re.compile(r"(.+)-(20\d\d)")
_SERVER = 16  # devices of the largest server; a rack of more has several
_MIN_YEARS = 1 / 12  # that the newest of a family counts for, however new
_SPLITS = ("pipeline", "context", "expert")  # of a model, which FSDP does not do


class Software(NamedTuple):
    """The stack that is assumed where nobody names one.

    Attributes:
        stack: the assumed stack.
        years: for each stack that could be meant, how many years it was the newest.
    """

    stack: str
    years: Mapping[str, float]

    @property
    def other(self) -> str | None:
        """The newest stack that is not assumed, None where no other could be meant."""
        names = [name for name in self.years if name != self.stack]
        return max(names, key=lambda name: catalog.stack(name).since, default=None)


def defaults_for(
    device: Device,
    plan: Plan,
    per_node: int = 8,
    use: str = "training",
    year: int | None = None,
    reads_words: bool = True,
) -> Software:
    """Return the software of a plan where nobody names a stack.

    Args:
        device: the device.
        plan: how the step is split.
        per_node: devices of a node.
        use: training or serving.
        year: the year of the software. Default: the middle of the years since such a device came,
            in each of which a stack was the newest; of servers the present year.
        reads_words: whether the network is a language model; others may have their own family.
    """
    table = packaged("software.toml")
    question_kind = _question_kind(device, plan, per_node, use, reads_words)
    families = [
        name
        for name in table["families"][question_kind]
        if table["makers"].get(name, device.datasheet.maker) == device.datasheet.maker
    ]
    months = months_of_stacks()
    if year is not None and stacks_of(families[0], months):
        stack = newest_in(families[0], f"{year}-12")
        return Software(stack, {stack: 1.0})
    first_year = architectures().since.value_of(family_of(device))
    years_by_family = [years_as_newest(name, months, first_year) for name in families]
    if use == "serving":  # servers are of today
        years_by_family = [{list(years)[-1]: 1.0} for years in years_by_family]
    all_years = {name: years for family in years_by_family for name, years in family.items()}
    return Software(_middle_stack(years_by_family[0]), all_years)


def _middle_stack(years_by_stack: Mapping[str, float]) -> str:
    """Return the stack that was the newest in the middle of the years of all."""
    middle, passed = sum(years_by_stack.values()) / 2, 0.0
    for name, years in years_by_stack.items():
        passed += years
        if passed >= middle:
            return name
    raise ValueError("no stack has a year")


def _question_kind(device: Device, plan: Plan, per_node: int, use: str, reads_words: bool) -> str:
    """Return the kind of a question, as `data/software.toml` names it."""
    if use == "serving":
        return use
    if device.kind == "tpu":
        return "tpu" if reads_words else "tpu, other networks"
    if plan.device_count == 1:
        return "device"
    if plan.zero == 3:
        return "sharded"
    is_split = any(getattr(plan, name) > 1 for name in _SPLITS)
    return "nodes" if is_split or plan.device_count > min(per_node, _SERVER) else "node"


@cache
def _shipped_months() -> dict[str, str]:
    """Return the month of each shipped stack, which do not change while a program runs."""
    names = catalog.stack_names(with_user_files=False)
    return {name: catalog.stack_since(name) for name in names}


def months_of_stacks() -> dict[str, str]:
    """Return the month of each stack, "" where it has none."""
    shipped = _shipped_months()
    return {
        name: shipped[name] if name in shipped else catalog.stack(name).since
        for name in catalog.stack_names()
    }


def stacks_of(family: str, months: Mapping[str, str]) -> dict[str, str]:
    """Return the dated stacks of a family and their months, in their order."""
    pattern = re.compile(re.escape(family) + r"-20\d\d")
    dated = [(since, name) for name, since in months.items() if since and pattern.fullmatch(name)]
    return {name: since for since, name in sorted(dated)}


def years_as_newest(
    family: str, months: Mapping[str, str], first_year: float = 0.0
) -> dict[str, float]:
    """Return for each stack of a family how many years it was the newest, in their order.

    The years end with that of the newest stack of all. A family without dates counts for one.

    Args:
        family: the family.
        months: the month of each stack.
        first_year: the year from which on they count.
    """
    dated = stacks_of(family, months)
    if not dated:
        return {family: 1.0}
    last = float(max(months.values())[:4]) + 1
    spans = zip(dated, pairwise([*map(_years, dated.values()), last]), strict=True)
    result = {name: end - max(begin, first_year) for name, (begin, end) in spans}
    newest = next(reversed(result))
    result[newest] = max(result[newest], _MIN_YEARS)
    return {name: years for name, years in result.items() if years > 0}


def _years(month: str) -> float:
    """Return a month as a number of years: 2024.5 of `2024-07`."""
    year, _, number = month.partition("-")
    return int(year) + (int(number) - 1) / 12


def newest_in(family: str, date: str) -> str:
    """Return the stack of a family that was the newest in a month, `2024-09`; else its first.

    Raises:
        InputError: for a family without dated stacks.
    """
    months = months_of_stacks()
    dated = stacks_of(family, months)
    if not dated:
        raise unknown("software", family, _families(months))
    return max([name for name, since in dated.items() if since <= date] or [*dated][:1])


def year_of(text: str | None) -> int | None:
    """Return the year that a text is, up to that of the newest stack; else None."""
    last = max(months_of_stacks().values())[:4]
    return int(text) if text and re.fullmatch(r"20\d\d", text) and text <= last else None


def resolve_stack(text: str) -> str:
    """Return the stack that a text names: `megatron-2024`, `fsdp` (the newest), or a file.

    A family with a year that has no stack of its own stands for the one that was the newest then.

    Raises:
        InputError: for a text that is none of these.
    """
    word = text.lower()
    if word in (*catalog.stack_names(), "torch") or word.endswith(".toml"):
        return text
    months = months_of_stacks()
    parts, last = _OF_YEAR.fullmatch(word), max(months.values())[:4]
    family, year = parts.groups() if parts else (word, last)
    dated = (
        []
        if year > last
        else [name for name, since in stacks_of(family, months).items() if since[:4] <= year]
    )
    if not dated:
        raise unknown("stack", text, [*months, *_families(months)])
    return dated[-1]


def _families(months: Mapping[str, str]) -> list[str]:
    """Return the families that have dated stacks."""
    names = sorted({name.rpartition("-")[0] for name in months})
    return [name for name in names if name and stacks_of(name, months)]
