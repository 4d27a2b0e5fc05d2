"""The cells of an experiment: the grid, what is drawn from it, and what filters leave."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from steptime.build import Choice, build_step, make_workload
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.workload import Workload
from steptime.count import Count, count
from steptime.measure.contract import Options
from steptime.models import family
from steptime.models.family import resolve
from steptime.sweep.experiment import PLACE_AXES, STEP_AXES, Axes, Experiment, Sample, axes_of

MOST_CELLS = 10_000_000
FITS = "fits in memory"
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_FILTER = re.compile(r"\s*(\w+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
_COUNTED = ("parameters", "flop", "traffic_bytes", "activation_bytes", "peak_memory_bytes")


@dataclass(frozen=True)
class Cell:
    """One workload at one place: a backend with its options."""

    workload: Workload
    backend: str
    options: Options


@dataclass(frozen=True)
class Filter:
    """A condition on a cell: a counted quantity, the batch or a hyperparameter against a number."""

    name: str
    sign: str
    limit: float

    def holds(self, values: Mapping[str, Any], counted: Count | None) -> bool:
        """Whether the cell passes; a cell without the hyperparameter does."""
        value = getattr(counted, self.name) if self.name in _COUNTED else values.get(self.name)
        if value is None or isinstance(value, str):
            return True
        return _COMPARE[self.sign](float(value), self.limit)


def read_filters(experiment: Experiment, axes: list[Axes], where: str) -> tuple[list[Filter], bool]:
    """Give the conditions of `where`, and whether cells must fit in memory."""
    names = {*_COUNTED, *(name for one in axes for name in one.values)} - set(PLACE_AXES)
    filters, fits = [], False
    for text in experiment.where:
        if " ".join(text.split()) == FITS:
            fits = True
            continue
        found = _FILTER.fullmatch(text)
        if not found:
            raise InputError(f"{where}: where: {shorten(text)} is not 'name < number' or '{FITS}'")
        if found[1] not in names:
            raise unknown("name in where", found[1], sorted(names), where)
        try:
            limit = float(found[3])
        except ValueError:
            raise InputError(f"{where}: where: {shorten(found[3])} is no number") from None
        filters.append(Filter(found[1], found[2], limit))
    return filters, fits


def cells_of(experiment: Experiment, where: str) -> tuple[list[Cell], bool]:
    """Give the cells of an experiment in order, each once, and whether they must fit in memory.

    Raises `InputError` for what does not fit together, and for a grid of more than 10^7 cells.
    """
    axes = axes_of(experiment, where)
    filters, fits = read_filters(experiment, axes, where)
    sizes = [math.prod(len(values) for values in one.values.values()) for one in axes]
    total = sum(sizes)
    if total > MOST_CELLS:
        raise InputError(f"{where}: {total} cells are more than {MOST_CELLS}; sample or narrow it")
    counting = any(one.name in _COUNTED for one in filters)
    found: dict[tuple[str, str, Options], Cell] = {}
    for index in _indices(axes, sizes, experiment.sample, where):
        cell, values = _cell(axes, sizes, index)
        counted = count(build_step(cell.workload)) if counting else None
        if all(one.holds(values, counted) for one in filters):
            found.setdefault((cell.workload.key, cell.backend, cell.options), cell)
    if not found:
        raise InputError(f"{where}: no cell is left by 'where'")
    return list(found.values()), fits


def _cell(axes: list[Axes], sizes: list[int], index: int) -> tuple[Cell, dict[str, Any]]:
    which = 0
    while index >= sizes[which]:
        index -= sizes[which]
        which += 1
    one = axes[which]
    chosen: dict[str, Any] = {}
    for name, values in reversed(list(one.values.items())):
        index, at = divmod(index, len(values))
        chosen[name] = values[at]
    settings = {k: v for k, v in chosen.items() if k not in (*PLACE_AXES, *STEP_AXES)}
    workload = make_workload(
        Choice(one.model, settings), **{name: chosen[name] for name in STEP_AXES}
    )
    place = {name: chosen[name] for name in PLACE_AXES if name != "backend"}
    resolved = resolve(family(one.model), settings)
    return Cell(workload, chosen["backend"], Options(**place)), {**resolved, **chosen}


def _indices(axes: list[Axes], sizes: list[int], sample: Sample, where: str) -> Iterator[int]:
    total = sum(sizes)
    if sample.method == "grid" or sample.count is None:
        return iter(range(total))
    if sample.count > total:
        raise InputError(f"{where}: sample: {sample.count} of {total} cells")
    if sample.method == "random":
        import random

        return iter(sorted(random.Random(sample.seed).sample(range(total), sample.count)))  # noqa: S311  # a reproducible draw, no secret
    return _sobol(axes, sizes, sample, where)


def _sobol(axes: list[Axes], sizes: list[int], sample: Sample, where: str) -> Iterator[int]:
    """Give `count` different cells by a scrambled Sobol sequence over the axes of one network."""
    from scipy.stats import qmc

    if len(axes) != 1:
        raise InputError(f"{where}: sample: sobol takes one network, not {len(axes)}; use random")
    lengths = [len(values) for values in axes[0].values.values()]
    engine = qmc.Sobol(d=len(lengths), seed=sample.seed)
    seen: dict[int, None] = {}
    count = int(sample.count or 0)
    while len(seen) < count:
        for point in engine.random_base2(max(4, math.ceil(math.log2(count)) + 2)):
            index = 0
            for length, x in zip(lengths, point, strict=True):
                index = index * length + min(int(x * length), length - 1)
            seen.setdefault(index)
            if len(seen) == count:
                break
        if engine.num_generated > 1024 * max(count, sizes[0]):
            raise InputError(f"{where}: sample: sobol found only {len(seen)} different cells")
    return iter(seen)
