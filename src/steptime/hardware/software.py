"""Which software a question means: stacks by name, family and year, and where nobody says one."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from steptime.core.errors import unknown
from steptime.core.toml_files import packaged
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.hardware.device import Device

_OF_YEAR = re.compile(r"(.+)-(20\d\d)")
_SERVER = 16  # devices of the largest server; a rack of more has several
_table = cache(lambda: packaged("software.toml"))
_months = cache(lambda: {n: catalog.stack_since(n) for n in catalog.stack_names(own=False)})
_LEAST = 1 / 12  # years that the newest of a family counts for, however new
_SPLITS = ("pipeline", "context", "expert")  # of a model, which FSDP does not do


class Software(NamedTuple):
    """The stack that is assumed, and how many years each that could be meant was the newest."""

    stack: str
    years: Mapping[str, float]

    @property
    def other(self) -> str | None:
        """The newest one that is not assumed, None where no other could be meant."""
        rest = [name for name in self.years if name != self.stack]
        return max(rest, key=lambda name: catalog.stack(name).since, default=None)


def defaults_for(
    device: Device,
    plan: Plan,
    per_node: int = 8,
    use: str = "training",
    year: int | None = None,
    reads_words: bool = True,
) -> Software:
    """Return the software of a plan on nodes of so many devices, where nobody names a stack.

    It is of the family that runs such plans, and of a `year`; without one, of the middle of the
    years since such a device came, in each of which a stack was the newest. Networks that read no
    words may have a family of their own.
    """
    table = _table()
    known = [
        name
        for name in table["families"][_kind(device, plan, per_node, use, reads_words)]
        if table["makers"].get(name, device.maker) == device.maker
    ]
    if year is not None and stacks_of(known[0], since_of_all()):
        stack = stack_at(known[0], f"{year}-12")
        return Software(stack, {stack: 1.0})
    every, came = since_of_all(), table["since"].get(device.architecture, 0)
    each = [newest_for(name, every, came) for name in known]
    if use == "serving":  # servers are of today
        each = [{[*one][-1]: 1.0} for one in each]
    middle, passed, stack = sum(each[0].values()) / 2, 0.0, known[0]
    for name, years in each[0].items():
        if passed < middle:
            stack = name
        passed += years
    return Software(stack, {name: years for one in each for name, years in one.items()})


def _kind(device: Device, plan: Plan, per_node: int, use: str, reads_words: bool) -> str:
    """Return what a question is, as `data/software.toml` names it."""
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


def since_of_all() -> dict[str, str]:
    """Return the month of each stack, "" where it says none."""
    known = _months()
    names = catalog.stack_names()
    return {name: known[name] if name in known else catalog.stack(name).since for name in names}


def stacks_of(family: str, every: Mapping[str, str]) -> dict[str, str]:
    """Return the dated stacks of a family and their months, in their order."""
    own = re.compile(re.escape(family) + r"-20\d\d")
    dated = [(since, name) for name, since in every.items() if since and own.fullmatch(name)]
    return {name: since for since, name in sorted(dated)}


def newest_for(family: str, every: Mapping[str, str], came: float = 0.0) -> dict[str, float]:
    """Return how many years each stack of a family was the newest since a year, in their order.

    The years end with that of the newest stack of all. A family without dates counts for one.
    """
    dated = stacks_of(family, every)
    if not dated:
        return {family: 1.0}
    last = float(max(every.values())[:4]) + 1
    spans = zip(dated, pairwise([*map(_years, dated.values()), last]), strict=True)
    result = {name: end - max(begin, came) for name, (begin, end) in spans}
    newest = next(reversed(result))
    result[newest] = max(result[newest], _LEAST)
    return {name: years for name, years in result.items() if years > 0}


def _years(month: str) -> float:
    year, _, number = month.partition("-")
    return int(year) + (int(number) - 1) / 12


def stack_at(family: str, date: str) -> str:
    """Return the stack of a family that was the newest in a month, `2024-09`; else its first."""
    every = since_of_all()
    dated = stacks_of(family, every)
    if not dated:
        raise unknown("software", family, _families(every))
    return max([name for name, since in dated.items() if since <= date] or [*dated][:1])


def year_of(text: str | None) -> int | None:
    """Return the year that a text alone names, up to that of the newest stack; else None."""
    last = max(since_of_all().values())[:4]
    return int(text) if text and re.fullmatch(r"20\d\d", text) and text <= last else None


def stack_named(text: str) -> str:
    """Return the stack that a text names: `megatron-2024`, `fsdp` (the newest), or a file.

    A family with a year that has no stack of its own means the one that was the newest then.
    Raises `InputError` for what is none of these.
    """
    word = text.lower()
    if word in (*catalog.stack_names(), "torch") or word.endswith(".toml"):
        return text
    every = since_of_all()
    parts, last = _OF_YEAR.fullmatch(word), max(every.values())[:4]
    family, year = parts.groups() if parts else (word, last)
    dated = (
        []
        if year > last
        else [name for name, since in stacks_of(family, every).items() if since[:4] <= year]
    )
    if not dated:
        raise unknown("stack", text, [*every, *_families(every)])
    return dated[-1]


def _families(every: Mapping[str, str]) -> list[str]:
    names = sorted({name.rpartition("-")[0] for name in every})
    return [name for name in names if name and stacks_of(name, every)]
