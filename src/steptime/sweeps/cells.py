"""The cells of an experiment: the grid, what is drawn from it, and what filters leave."""

import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

from steptime.build import build_step, family_of, make_workload
from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.expressions.formula import Formula, formula
from steptime.core.progress import track_progress
from steptime.core.units import format_count
from steptime.core.workload import Workload
from steptime.grids.replica_records import graph_of_rank
from steptime.hardware import catalog
from steptime.hardware.defaults import settle_dtype_by_place
from steptime.hardware.stack import label_of
from steptime.measure import registry
from steptime.measure.contract import Options, make_record_method, reset_unused_options
from steptime.network.count import count, peak_bytes
from steptime.network.families.family import resolve
from steptime.records import stacks
from steptime.records.record import FINAL_STATUSES, Record
from steptime.sweeps.experiment import FEED_AXES, PLACE_AXES, STEP_AXES, Axes, Experiment, axes_of
from steptime.sweeps.resource_request import ResourceRequest

MAX_CELLS = 1_000_000
SOBOL_POINTS = 1024  # drawn at once; a power of two keeps the sequence balanced
SOBOL_PATIENCE = 64  # points per cell to draw: a draw of all cells meets many of them often
FITS = "fits in memory"
_COMPARES = re.compile(r"^[^\"']*([<>]|[=!]=)[^\"']*$")  # numbers, not texts
FIXED = ("data", "stage_to", "train_steps")  # the same for all cells of an experiment
Settings = Mapping[str, Any]  # values of axes and of keys, by their names
Processes = tuple[str, Options, int]  # backend, options of its processes, their number
PLURALS = {"batch": "batches", "dtype": "types", "request": "allocations"} | {
    name: f"{name}s" for name in ("stack", "backend", "device", "phase", "optimizer")
}
_OPTION_AXES = ("device", "tf32", *FEED_AXES)  # those that are options as they stand
_SWEEP_AXES = {"stack", *PLACE_AXES, *FEED_AXES, *STEP_AXES, "request"}
_AMOUNT_NAMES = ("parameters", "flop", "traffic_bytes", "activation_bytes", "peak_bytes")


@dataclass(frozen=True)
class Cell:
    """One workload at one place: a backend with its options, and its request to a cluster.

    `stack` is the file of the software stack that predicts it, "" where no file has this backend.
    """

    workload: Workload
    backend: str
    options: Options
    request: ResourceRequest | None = None
    stack: str = field(default="", compare=False)

    @property
    def process(self) -> Processes:
        """The processes of its workers, which may measure many cells."""
        return self.backend, self.options.process_options, self.workload.plan.data

    @property
    def is_run(self) -> bool:
        """Whether its stack runs its phase, as far as a file says it."""
        trains = not self.stack or catalog.stack(self.stack).trains
        return trains or self.workload.phase != "train"

    def id(self, runs: int, round_: int) -> str:
        """Return the identity of a visit: a hash that is known before a worker starts.

        Platform and version are not in it: these are of the record that has it in `env.cell`.
        """
        device = self.options.device
        if self.workload.plan.data == 1:  # of one process, "cuda" means "cuda:0"
            device = device.removesuffix(":0")
        table: dict[str, object] = {
            "workload": self.workload.key,
            "backend": self.backend,
            "round": round_,
            "device": device,
            "seed": self.options.seed,
            # Without the backend's version: an update of the software does not make another cell.
            "options": make_record_method(self.backend, "", self.options, runs).options,
        }
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
    """Yield the visits of all cells, one round after the other, each identity once."""
    ids = set()
    for round_, cell in product(range(rounds), cells):
        identity = cell.id(runs, round_)
        if identity not in ids:
            ids.add(identity)
            yield Trial(identity, cell, round_)


Mark = tuple[str, str, str]  # a visit of a cell, platform, version of the framework


def list_final_marks(records: Iterable[Record], retry: Collection[str], force: bool) -> set[Mark]:
    """Return the marks of records that need no further try: those of steps, by their status.

    Final are the statuses `FINAL_STATUSES` except those in `retry`; with `force` no status is.
    """
    final_statuses = set() if force else set(FINAL_STATUSES) - set(retry)

    def is_final(record: Record) -> bool:
        # A record of a whole step names no scope, and one of a sweep names its cell by the id.
        is_measured_step = record.origin == "measured" and not record.scope
        return is_measured_step and record.status in final_statuses and "cell" in record.env

    return {
        (record.env["cell"], record.platform, record.method.version)
        for record in records
        if is_final(record)
    }


def needed_bytes(cell: Cell, processes: int) -> int:
    """Return the bytes a cell's tensors need of a device, or of a machine with `processes`."""
    copies = processes if cell.options.device == "cpu" else 1
    rank = graph_of_rank(cell.workload, cell.options.strategy, cell.options.overlap)
    return copies * peak_bytes(rank)


class CellList(NamedTuple):
    """The cells of an experiment, their number and axes in words, and whether they must fit."""

    cells: list[Cell]
    text: str
    must_fit: bool


def _describe_cells(axes: Sequence[Axes], size: int) -> str:
    """Return the number of cells and their axes: `6 cells: 3 batches x 2 types`."""
    network_count_by_axes = Counter(_describe_axes(network_axes) for network_axes in axes)
    axes_text = " + ".join(
        _describe_networks(network_count, network_axes)
        for network_axes, network_count in network_count_by_axes.items()
    )
    grid_size = sum(map(_size, axes))
    cells = format_count(size, "cell")
    is_complete = size == grid_size
    return f"{cells}: {axes_text}" if is_complete else f"{cells} of {grid_size:,}: {axes_text}"


def _describe_networks(network_count: int, axes_text: str) -> str:
    """Return `2 networks x 3 batches`; a single network has no number beside its axes."""
    networks = format_count(network_count, "network")
    if not axes_text:
        return networks
    return axes_text if network_count == 1 else f"{networks} x {axes_text}"


def read_filters(
    experiment: Experiment, axes: Sequence[Axes], place: str
) -> tuple[list[Formula], bool]:
    """Return the conditions of an experiment, and whether cells must fit in memory."""
    families = [family_of(network_axes.choice) for network_axes in axes]
    parameters = (name for family in families for name in family.parameters)
    valid_names = sorted({*_AMOUNT_NAMES, "batch", *parameters})
    filters = []
    must_fit = False
    for text in experiment.conditions:
        condition_text = " ".join(text.split())
        if condition_text == FITS:
            must_fit = True
            continue
        try:
            condition = formula(condition_text)
        except InputError:
            condition = None
        is_comparison = _COMPARES.search(text) is not None
        if condition is None or not condition.names or not is_comparison:
            fault = f"{shorten(text)} is not 'name < number' or '{FITS}'"
            raise InputError(f"{place}: where: {fault}")
        for name in sorted(condition.names):
            check_choice("name in where", name, valid_names, place)
        filters.append(condition)
    return filters, must_fit


def _meets_condition(condition: Formula, values: Mapping[str, Any], place: str) -> bool:
    """Whether a cell passes; one without a hyperparameter, or with a text as one, does."""
    inputs = [values.get(name) for name in condition.names]
    is_comparable = not any(value is None or isinstance(value, str) for value in inputs)
    if not is_comparable:
        return True  # a condition on a hyperparameter does not exclude networks without it
    try:
        return bool(condition(values))
    except InputError as error:
        raise InputError(f"{place}: where: {error}") from None


def cells_of(experiment: Experiment, place: str, on_cluster: bool = False) -> CellList:
    """Return the cells of an experiment in order, each once.

    For a cluster every cell is there once for each allocation of the file.

    Raises:
        InputError: for keys that do not fit together, and for more than 10^6 cells.
    """
    axes = axes_of(experiment, place, on_cluster)
    fixed_values = {name: getattr(experiment, name) for name in FIXED}
    filters, must_fit = read_filters(experiment, axes, place)
    cells: dict[Hashable, Cell] = {}
    for index in track_progress(_draw_indices(axes, experiment, place), "cells"):
        network_axes, settings = _find_settings(axes, index)
        cell = _make_cell(network_axes, settings, fixed_values)
        identity = (cell.workload.key, cell.backend, cell.options, cell.request)
        is_new = identity not in cells
        if is_new and _meets_conditions(cell, network_axes, settings, filters, place):
            cells[identity] = cell
    if not cells:
        raise InputError(f"{place}: no cell is left by 'where'")
    return CellList([*cells.values()], _describe_cells(axes, len(cells)), must_fit)


def _meets_conditions(
    cell: Cell, axes: Axes, settings: Settings, filters: Sequence[Formula], place: str
) -> bool:
    """Whether a cell meets all conditions; it is counted only where a condition needs that."""
    if not filters:
        return True
    parameters = resolve(family_of(axes.choice), _select_parameters(settings))
    values: dict[str, object] = {**parameters, **settings}
    if any(condition.names & {*_AMOUNT_NAMES} for condition in filters):
        values |= _count_amounts(cell)
    return all(_meets_condition(condition, values, place) for condition in filters)


def _count_amounts(cell: Cell) -> dict[str, float]:
    """Return the amounts of a cell's step that a condition may name."""
    amounts = count(build_step(cell.workload))
    return {
        "parameters": amounts.parameters,
        "flop": amounts.flop,
        "traffic_bytes": amounts.traffic_bytes,
        "activation_bytes": amounts.activation_bytes,
        "peak_bytes": amounts.peak_bytes,
    }


def _describe_axes(axes: Axes) -> str:
    """Return the axes of a network with several values: `3 batches x 2 types`."""
    sizes = [(name, len(values)) for name, values in axes.values.items() if len(values) > 1]
    return " x ".join(
        f"{size:,} {PLURALS.get(name, f'values of {name}')}" for name, size in reversed(sizes)
    )


def _size(axes: Axes) -> int:
    return math.prod(len(values) for values in axes.values.values())


def _find_settings(axes: Sequence[Axes], index: int) -> tuple[Axes, Settings]:
    """Return the network and the value of every axis at an index; the last axis runs fastest."""
    # The cells of all networks are numbered one after another. Within a network the values of the
    # axes are the digits of the number, the last axis the fastest.
    index_in_network = index
    for network_axes in axes:
        grid_size = _size(network_axes)
        if index_in_network < grid_size:
            break
        index_in_network -= grid_size
    outer_index = index_in_network
    settings: dict[str, object] = {}
    for name, values in reversed(list(network_axes.values.items())):
        outer_index, position = divmod(outer_index, len(values))
        settings[name] = values[position]
    return network_axes, settings


def _select_parameters(settings: Settings) -> Settings:
    """Return the hyperparameters among the settings of a cell."""
    return {name: value for name, value in settings.items() if name not in _SWEEP_AXES}


def _make_cell(axes: Axes, settings: Settings, fixed: Settings) -> Cell:
    choice = replace(axes.choice, settings=dict(_select_parameters(settings)), batch=None)
    workload = make_workload(choice, **{name: settings[name] for name in STEP_AXES})
    workload = settle_dtype_by_place(workload, settings["device"])
    request: ResourceRequest | None = settings.get("request")
    threads = _find_threads(settings, request, axes.choice.source)
    if "stack" in settings:
        software = registry.stack(settings["stack"], axes.choice.source)
        backend = software.backend
        is_compiled = software.compile
        # A backend without a data file is a stack without a source: nothing predicts it.
        stack = software.name if software.source else ""
    else:
        backend = settings["backend"]
        is_compiled = registry.accepts_compile(backend, settings["compile"]) and settings["compile"]
        # The stack that predicts what this backend measures, if a data file describes it.
        stack = stacks.measured_labels().get(label_of(backend, is_compiled), "")
    options = Options(
        **{name: settings[name] for name in _OPTION_AXES},
        **fixed,
        threads=threads,
        compile=is_compiled,
        gpu=request.gpu[0] if request else "",
        allocation=request.name if request else "",
    )
    return Cell(
        workload, backend, reset_unused_options(options, workload.plan.data), request, stack
    )


def _find_threads(settings: Settings, request: ResourceRequest | None, place: str) -> int | None:
    """Return the threads of a process; on a cluster by default its cores, or one."""
    threads: int | None = settings["threads"]
    if request is None:
        return threads
    if threads is None:
        # A node of one's own leaves the choice to the framework; else Slurm gives one core.
        return request.cpus or (None if request.exclusive else 1)
    if request.cpus and threads > request.cpus:
        text = f"{threads} threads on cpus = {request.cpus}"
        raise InputError(f"{place}: {text}: a thread needs a core of its own")
    return threads


def _draw_indices(axes: Sequence[Axes], experiment: Experiment, place: str) -> Sequence[int]:
    sample = experiment.sample
    total = sum(map(_size, axes))
    number = total if sample.count is None else sample.count
    if number > MAX_CELLS:
        raise InputError(f"{place}: {number} cells are more than {MAX_CELLS}; sample or narrow it")
    if number > total:
        raise InputError(f"{place}: sample: {number} of {format_count(total, 'cell')}")
    return DRAWS[sample.method](axes, total, number, sample.seed, place)


def _draw_sobol(
    axes: Sequence[Axes], total: int, number: int, seed: int, place: str
) -> Sequence[int]:
    """Return the indices of different cells by a scrambled Sobol sequence over one network."""
    from scipy.stats import qmc

    if len(axes) != 1:
        raise InputError(f"{place}: sample: sobol takes one network, not {len(axes)}; use random")
    axis_lengths = [len(values) for values in axes[0].values.values()]
    engine = qmc.Sobol(d=len(axis_lengths), rng=seed)
    indices: dict[int, None] = {}  # in the order in which they are drawn
    max_points = SOBOL_PATIENCE * (number + SOBOL_POINTS)
    while engine.num_generated < max_points:
        for positions in engine.integers(0, u_bounds=axis_lengths, n=SOBOL_POINTS).tolist():
            index = 0
            for axis_length, position in zip(axis_lengths, positions, strict=True):
                index = index * axis_length + position  # the last axis runs fastest
            indices.setdefault(index)
            if len(indices) == number:
                return list(indices)
    count_text = f"{len(indices)} different cells"
    raise InputError(f"{place}: sample: sobol found only {count_text}; use random")


DRAWS: Mapping[str, Callable[[Sequence[Axes], int, int, int, str], Sequence[int]]] = {
    "grid": lambda _, total, *__: range(total),
    "random": lambda _, total, number, seed, __: sorted(
        random.Random(seed).sample(range(total), number)  # noqa: S311  # reproducible, no secret
    ),
    "sobol": _draw_sobol,
}
