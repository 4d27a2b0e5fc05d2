"""The software of a question: a stack by name, family or year, or the usual one of a device."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from steptime.core.errors import unknown
from steptime.core.toml_files import read_packaged_toml
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.architectures import architectures, family_of
from steptime.hardware.device import Device

_STACK_OF_YEAR = re.compile(r"(.+)-(20\d\d)")
_MAX_SERVER_DEVICES = 16  # devices of the largest server; a rack of more has several
_MIN_YEARS_OF_NEWEST = 1 / 12  # that the newest of a family counts for, however new
_MODEL_SPLITS = ("pipeline", "context", "expert")  # of a model, which FSDP does not do


class Software(NamedTuple):
    """The stack that is assumed where nobody names one.

    Attributes:
        stack: the assumed stack.
        years_by_stack: for each stack that could be meant, how many years it was the newest.
    """

    stack: str
    years_by_stack: Mapping[str, float]

    @property
    def newest_alternative(self) -> str | None:
        """The newest stack that is not assumed, None where no other could be meant."""
        names = [name for name in self.years_by_stack if name != self.stack]
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
    question_kind = _name_question_kind(device, plan, per_node, use, reads_words)
    families = _list_families(question_kind, device.datasheet.maker)
    months = months_of_stacks()
    has_dated_stacks = bool(stacks_of(families[0], months))
    if year is not None and has_dated_stacks:
        stack = newest_in(families[0], f"{year}-12")
        return Software(stack, {stack: 1.0})  # the only stack that could be meant
    # Otherwise each stack of these families could be meant, and is the more likely the longer it
    # was the newest one since the device came out.
    first_year = architectures().since.value_of(family_of(device))
    years_by_family = [years_as_newest(name, months, first_year) for name in families]
    if use == "serving":  # servers run the newest stack: the last one of each family
        years_by_family = [{list(stack_years)[-1]: 1.0} for stack_years in years_by_family]
    all_years = {
        stack: years for stack_years in years_by_family for stack, years in stack_years.items()
    }
    return Software(_middle_stack(years_by_family[0]), all_years)


def _list_families(question_kind: str, maker: str | None) -> list[str]:
    """Return the families of stacks for a kind of question, the most usual one first.

    Some families run on the devices of a single maker alone.
    """
    table = read_packaged_toml("software.toml")
    return [
        name
        for name in table["families"][question_kind]
        if table["makers"].get(name, maker) == maker
    ]


def _middle_stack(years_by_stack: Mapping[str, float]) -> str:
    """Return the stack that was the newest in the middle of the years of all."""
    # The stack of the middle year is as likely too old as too new.
    half_years = sum(years_by_stack.values()) / 2
    passed_years = 0.0
    for name, years in years_by_stack.items():
        passed_years += years
        if passed_years >= half_years:
            return name
    raise ValueError("no stack has a year")


def _name_question_kind(
    device: Device, plan: Plan, per_node: int, use: str, reads_words: bool
) -> str:
    """Return the kind of a question, as `data/software.toml` names it."""
    if use == "serving":
        return use
    if device.kind == "tpu":
        return "tpu" if reads_words else "tpu, other networks"
    if plan.device_count == 1:
        return "device"
    if plan.zero == 3:
        return "sharded"
    is_split = any(getattr(plan, name) > 1 for name in _MODEL_SPLITS)
    exceeds_server = plan.device_count > min(per_node, _MAX_SERVER_DEVICES)
    return "nodes" if is_split or exceeds_server else "node"


@cache
def _months_of_shipped_stacks() -> dict[str, str]:
    """Return the month of each shipped stack, which do not change while a program runs."""
    names = catalog.stack_names(with_user_files=False)
    return {name: catalog.stack_since(name) for name in names}


def months_of_stacks() -> dict[str, str]:
    """Return the month of each stack, "" where it has none."""
    shipped = _months_of_shipped_stacks()
    return {
        name: shipped[name] if name in shipped else catalog.stack(name).since
        for name in catalog.stack_names()
    }


def stacks_of(family: str, months: Mapping[str, str]) -> dict[str, str]:
    """Return the dated stacks of a family and their months, in their order."""
    pattern = re.compile(re.escape(family) + r"-20\d\d")
    months_and_names = [
        (since, name) for name, since in months.items() if since and pattern.fullmatch(name)
    ]
    return {name: since for since, name in sorted(months_and_names)}


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
    month_by_stack = stacks_of(family, months)
    if not month_by_stack:
        return {family: 1.0}
    # Each stack was the newest until the next one came, the last until the end of the newest year.
    begins = [_convert_to_years(month) for month in month_by_stack.values()]
    end_of_newest_year = float(max(months.values())[:4]) + 1
    spans = zip(month_by_stack, pairwise([*begins, end_of_newest_year]), strict=True)
    years_by_stack = {name: end - max(begin, first_year) for name, (begin, end) in spans}
    newest = next(reversed(years_by_stack))
    years_by_stack[newest] = max(years_by_stack[newest], _MIN_YEARS_OF_NEWEST)
    return {name: years for name, years in years_by_stack.items() if years > 0}


def _convert_to_years(month: str) -> float:
    """Return a month as a number of years: 2024.5 of `2024-07`."""
    year, _, month_of_year = month.partition("-")
    return int(year) + (int(month_of_year) - 1) / 12


def newest_in(family: str, date: str) -> str:
    """Return the stack of a family that was the newest in a month, `2024-09`; else its first.

    Raises:
        InputError: for a family without dated stacks.
    """
    months = months_of_stacks()
    month_by_stack = stacks_of(family, months)
    if not month_by_stack:
        raise unknown("software", family, _list_dated_families(months))
    stacks_so_far = [name for name, since in month_by_stack.items() if since <= date]
    oldest_stack = next(iter(month_by_stack))
    # Names of a family end in their year, so that the largest name is the newest.
    return max(stacks_so_far, default=oldest_stack)


def year_of(text: str | None) -> int | None:
    """Return the year that a text is, up to that of the newest stack; else None."""
    newest_year = max(months_of_stacks().values())[:4]
    is_year = bool(text and re.fullmatch(r"20\d\d", text))
    return int(text) if text and is_year and text <= newest_year else None


def resolve_stack(text: str) -> str:
    """Return the stack that a text names: `megatron-2024`, `fsdp` (the newest), or a file.

    A family with a year that has no stack of its own stands for the one that was the newest then.

    Raises:
        InputError: for a text that is none of these.
    """
    word = text.lower()
    # Names and files are read elsewhere; only families and years are resolved here.
    if word in (*catalog.stack_names(), "torch") or word.endswith(".toml"):
        return text
    months = months_of_stacks()
    family_and_year = _STACK_OF_YEAR.fullmatch(word)
    newest_year = max(months.values())[:4]
    family, year = family_and_year.groups() if family_and_year else (word, newest_year)
    month_by_stack = stacks_of(family, months)
    stacks_until_year = [name for name, since in month_by_stack.items() if since[:4] <= year]
    is_in_future = year > newest_year
    if is_in_future or not stacks_until_year:
        raise unknown("stack", text, [*months, *_list_dated_families(months)])
    return stacks_until_year[-1]  # they are in order of their months


def _list_dated_families(months: Mapping[str, str]) -> list[str]:
    """Return the families that have dated stacks."""
    names = sorted({name.rpartition("-")[0] for name in months})
    return [name for name in names if name and stacks_of(name, months)]
