"""The cells of an experiment: the grid, what is drawn from it, and what filters leave."""

import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

from steptime.build import build_step, family_of, make_workload
from steptime.core.errors import InputError, one_of, shorten
from steptime.core.formula import Formula, formula
from steptime.core.progress import watched
from steptime.core.units import counted
from steptime.core.workload import Workload
from steptime.grids.replicas import graph_of_rank
from steptime.hardware import catalog
from steptime.hardware.stack import label_of
from steptime.measure import registry
from steptime.measure.contract import Options, meaningful, method
from steptime.network.count import count, peak_bytes
from steptime.network.families.family import resolve
from steptime.records import stacks, store
from steptime.records.record import DONE, Record
from steptime.sweeps.experiment import FEED_AXES, PLACE_AXES, STEP_AXES, Axes, Experiment, axes_of
from steptime.sweeps.resource_request import ResourceRequest

MOST_CELLS = 1_000_000
SOBOL_POINTS = 1024  # drawn at once; a power of two keeps the sequence balanced
SOBOL_PATIENCE = 64  # points a wanted cell: a draw of all cells meets most of them many times
FITS = "fits in memory"
_COMPARES = re.compile(r"^[^\"']*([<>]|[=!]=)[^\"']*$")  # numbers, not texts
FIXED = ("data", "stage_to", "train_steps")  # the same for all cells of an experiment
Fixed = Mapping[str, Any]
Processes = tuple[str, Options, int]  # backend, what its processes are told, how many there are
PLURALS = {"batch": "batches", "dtype": "types", "request": "allocations"} | {
    name: f"{name}s" for name in ("stack", "backend", "device", "phase", "optimizer")
}
_OWN_AXES = {"stack", *PLACE_AXES, *FEED_AXES, *STEP_AXES, "request"}


_AMOUNT_NAMES = ("parameters", "flop", "traffic_bytes", "activation_bytes", "peak_bytes")


@dataclass(frozen=True)
class Cell:
    """One workload at one place: a backend with its options, and what it needs of a cluster.

    `stack` is the file of the software stack that predicts it, "" where none says this backend.
    """

    workload: Workload
    backend: str
    options: Options
    request: ResourceRequest | None = None
    stack: str = field(default="", compare=False)

    @property
    def process(self) -> Processes:
        """What its workers are started for; they may measure many cells."""
        return self.backend, self.options.of_process, self.workload.plan.data

    @property
    def is_run(self) -> bool:
        """Whether its stack runs its phase, as far as a file says it."""
        trains = not self.stack or catalog.stack(self.stack).trains
        return trains or self.workload.phase != "train"

    def id(self, runs: int, round_: int, as_written: bool = False) -> str:
        """Return what tells a visit of it from all others: a hash, known before a worker starts.

        Platform and version are not in it: these are of the record that has it in `env.cell`. To
        versions before 0.15 `cuda:0` was, `as_written`, another device than `cuda`.
        """
        options, device = method(self.backend, "", self.options, runs).options, self.options.device
        if self.workload.plan.data == 1 and not as_written:
            device = device.removesuffix(":0")  # the first one
        table = {"workload": self.workload.key, "backend": self.backend, "round": round_}
        table |= {"device": device, "seed": self.options.seed, "options": options}
        if self.request and self.request.node:
            table["node"] = self.request.node
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Trial:
    """One visit of a cell; `id` is that of `Cell.id`."""

    id: str
    cell: Cell
    round: int = 0


def trials_of(cells: Iterable[Cell], runs: int, rounds: int = 1) -> Iterator[Trial]:
    """Yield the visits of all cells, one round after the other, those of one identity once."""
    seen = set()
    for round_, cell in product(range(rounds), cells):
        if (name := cell.id(runs, round_)) not in seen:
            seen.add(name)
            yield Trial(name, cell, round_)


Mark = tuple[object, ...]


def mark_of(record: Record) -> Mark:
    """Return which visit of which cell a record is of, and where it was taken.

    Records of sweeps here did not say their cell before 0.15: they have the mark of their step.
    """
    if "cell" in record.env:
        return record.env["cell"], record.platform, record.method.version
    return store.done_key(record)


def done_marks(records: Iterable[Record], retry: Collection[str], force: bool) -> set[Mark]:
    """Return the marks of records that need no further try: those of whole steps, by status.

    Final are `DONE` less the statuses in `retry`; with `force` nothing is.
    """
    final = set() if force else set(DONE) - set(retry)
    steps = (one for one in records if one.origin == "measured" and not one.scope)
    return {mark_of(one) for one in steps if one.status in final}


def needed_bytes(cell: Cell, processes: int) -> int:
    """Return the bytes a cell's tensors need of a device, or of a machine with `processes`."""
    together = processes if cell.options.device == "cpu" else 1
    rank = graph_of_rank(cell.workload, cell.options.strategy, cell.options.overlap)
    return together * peak_bytes(rank)


class CellList(NamedTuple):
    """The cells of an experiment, in words how many of which axes, and whether they must fit."""

    cells: list[Cell]
    text: str
    must_fit: bool


def _counted(axes: Sequence[Axes], size: int) -> str:
    """Return how many cells there are and of which axes: `6 cells: 3 batches x 2 types`."""
    spans = Counter(_span(one) for one in axes)
    of = " + ".join(
        " x ".join(filter(None, [counted(many, "network") if many > 1 else "", span]))
        or counted(many, "network")
        for span, many in spans.items()
    )
    total = sum(map(_size, axes))
    cells = counted(size, "cell")
    return f"{cells}: {of}" if size == total else f"{cells} of {total:,}: {of}"


def read_filters(
    experiment: Experiment, axes: Sequence[Axes], where: str
) -> tuple[list[Formula], bool]:
    """Return the conditions of `where`, and whether cells must fit in memory."""
    parameters = (name for one in axes for name in family_of(one.choice).parameters)
    names = sorted({*_AMOUNT_NAMES, "batch", *parameters})
    texts = [text for text in experiment.where if " ".join(text.split()) != FITS]
    filters = []
    for text in texts:
        condition = None
        with suppress(InputError):
            condition = formula(" ".join(text.split()))
        if condition is None or not condition.names or not _COMPARES.search(text):
            wrong = f"{shorten(text)} is not 'name < number' or '{FITS}'"
            raise InputError(f"{where}: where: {wrong}")
        for name in sorted(condition.names):
            one_of("name in where", name, names, where)
        filters.append(condition)
    return filters, len(texts) < len(experiment.where)


def _holds(condition: Formula, values: Mapping[str, Any], where: str) -> bool:
    """Whether a cell passes; one without a hyperparameter, or with a text as one, does."""
    if any(values.get(name) is None or isinstance(values[name], str) for name in condition.names):
        return True
    try:
        return bool(condition(values))
    except InputError as error:
        raise InputError(f"{where}: where: {error}") from None


def cells_of(experiment: Experiment, where: str, on_cluster: bool = False) -> CellList:
    """Return the cells of an experiment in order, each once.

    For a cluster every cell is there once for each allocation of the file.
    Raises `InputError` for what does not fit together, and for more than 10^6 cells.
    """
    axes = axes_of(experiment, where, on_cluster)
    fixed = {name: getattr(experiment, name) for name in FIXED}
    filters, fits = read_filters(experiment, axes, where)
    counting = any(one.names & {*_AMOUNT_NAMES} for one in filters)
    kept: dict[Hashable, Cell] = {}
    for index in watched(_indices(axes, experiment, where), "cells"):
        one, chosen = _chosen(axes, index)
        cell = _cell(one, chosen, fixed)
        mark = (cell.workload.key, cell.backend, cell.options, cell.request)
        if mark in kept:
            continue
        if filters:
            values = {**resolve(family_of(one.choice), _settings(chosen)), **chosen}
            if counting:
                values |= _count_amounts(cell)
            if not all(_holds(condition, values, where) for condition in filters):
                continue
        kept[mark] = cell
    if not kept:
        raise InputError(f"{where}: no cell is left by 'where'")
    return CellList([*kept.values()], _counted(axes, len(kept)), fits)


def _count_amounts(cell: Cell) -> dict[str, float]:
    """Return the amounts of a cell's step that a filter may name."""
    amounts = count(build_step(cell.workload))
    return {
        "parameters": amounts.parameters,
        "flop": amounts.flop,
        "traffic_bytes": amounts.traffic_bytes,
        "activation_bytes": amounts.activation_bytes,
        "peak_bytes": amounts.peak_bytes,
    }


def _span(axes: Axes) -> str:
    """Return how many values the axes of a network have, without those of one."""
    many = [(name, len(values)) for name, values in axes.values.items() if len(values) > 1]
    return " x ".join(f"{n:,} {PLURALS.get(name, f'values of {name}')}" for name, n in many[::-1])


def _size(axes: Axes) -> int:
    return math.prod(len(values) for values in axes.values.values())


def _chosen(axes: Sequence[Axes], index: int) -> tuple[Axes, dict[str, Any]]:
    """Return the network and the values of every axis at an index; the last axis runs fastest."""
    for one in axes:
        size = _size(one)
        if index < size:
            break
        index -= size
    chosen: dict[str, Any] = {}
    for name, values in reversed(list(one.values.items())):
        index, at = divmod(index, len(values))
        chosen[name] = values[at]
    return one, chosen


def _settings(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in chosen.items() if k not in _OWN_AXES}


def _cell(one: Axes, chosen: Mapping[str, Any], fixed: Fixed) -> Cell:
    choice = replace(one.choice, given=_settings(chosen), batch=None)
    workload = make_workload(choice, **{name: chosen[name] for name in STEP_AXES})
    request: ResourceRequest | None = chosen.get("request")
    if request and chosen["threads"] is None:
        chosen = {**chosen, "threads": request.cpus or (None if request.exclusive else 1)}
    if request and request.cpus and (chosen["threads"] or 0) > request.cpus:
        threads = f"{chosen['threads']} threads on cpus = {request.cpus}"
        raise InputError(f"{one.choice.where}: {threads}: a thread needs a core of its own")
    if "stack" in chosen:
        named = registry.stack(chosen["stack"], one.choice.where)
        chosen = {**chosen, "backend": named.backend, "compile": named.compile}
        stack = named.name if named.source else ""
    else:
        compiled = registry.compiles(chosen["backend"], chosen["compile"]) and chosen["compile"]
        chosen = {**chosen, "compile": compiled}  # for others the same cell
        stack = stacks.measured().get(label_of(chosen["backend"], compiled), "")
    options = Options(
        **{name: chosen[name] for name in (*PLACE_AXES[1:], *FEED_AXES)},
        **fixed,
        gpu=request.gpu[0] if request else "",
        allocation=request.name if request else "",
    )
    backend = chosen["backend"]
    return Cell(workload, backend, meaningful(options, workload.plan.data), request, stack)


def _indices(axes: Sequence[Axes], experiment: Experiment, where: str) -> Sequence[int]:
    sample = experiment.sample
    total = sum(map(_size, axes))
    wanted = total if sample.count is None else sample.count
    if wanted > MOST_CELLS:
        raise InputError(f"{where}: {wanted} cells are more than {MOST_CELLS}; sample or narrow it")
    if wanted > total:
        raise InputError(f"{where}: sample: {wanted} of {counted(total, 'cell')}")
    return DRAWS[sample.method](axes, total, wanted, sample.seed, where)


def _sobol(axes: Sequence[Axes], total: int, wanted: int, seed: int, where: str) -> Sequence[int]:
    """Return `wanted` different cells by a scrambled Sobol sequence over axes of one network."""
    from scipy.stats import qmc

    if len(axes) != 1:
        raise InputError(f"{where}: sample: sobol takes one network, not {len(axes)}; use random")
    lengths = [len(values) for values in axes[0].values.values()]
    engine = qmc.Sobol(d=len(lengths), rng=seed)
    seen: dict[int, None] = {}
    while engine.num_generated < SOBOL_PATIENCE * (wanted + SOBOL_POINTS):
        for point in engine.integers(0, u_bounds=lengths, n=SOBOL_POINTS).tolist():
            index = 0
            for length, place in zip(lengths, point, strict=True):
                index = index * length + place
            seen.setdefault(index)
            if len(seen) == wanted:
                return list(seen)
    raise InputError(f"{where}: sample: sobol found only {len(seen)} different cells; use random")


DRAWS: Mapping[str, Callable[[Sequence[Axes], int, int, int, str], Sequence[int]]] = {
    "grid": lambda _, total, *__: range(total),
    "random": lambda _, total, wanted, seed, __: sorted(
        random.Random(seed).sample(range(total), wanted)  # noqa: S311  # reproducible, no secret
    ),
    "sobol": _sobol,
}
