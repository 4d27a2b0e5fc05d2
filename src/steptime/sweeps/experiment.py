"""Experiment files: what a user writes, checked at the edge, and the axes it spans."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from steptime.build import Choice, choice_of, family_of, read_table
from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError, one_of, shorten
from steptime.core.validated import read_by, validated
from steptime.core.values import (
    MAX_PROCESSES,
    MAX_STEPS,
    MAX_VISITS,
    is_range,
    parse_count,
    parse_range,
    parse_seconds,
)
from steptime.core.workload import Optimizer, Phase, Staging, Strategy
from steptime.measure import contract, registry
from steptime.sweeps.resource_request import ResourceRequest, one_or_more

ALL = "all"  # the range of a family, or every choice, in place of a value
Value = TypeVar("Value")


_read_by = partial(read_by, kind=BeforeValidator)


def _count(at_least: int, at_most: int = MAX_PROCESSES) -> Any:
    return _read_by(partial(parse_count, place="", at_least=at_least, at_most=at_most))


def _duration(at_most_s: float) -> Any:
    return _read_by(partial(parse_seconds, place="", at_most=at_most_s))


def _threads(value: object) -> int | None:
    return None if value is None else parse_count(value, "")


def _values(value: object, where: str = "", whole: object = ()) -> list[object]:
    """Return a scalar or a range, or a list of them, as the list of its values.

    `ALL` stands for the `whole` range of an axis that has one.
    """
    values: list[object] = []
    for one in one_or_more(value):
        if one == ALL and whole:
            values += _values(whole, where)
            continue
        values += parse_range(str(one), where) if is_range(one) else [one]
    wrong = next(
        (f"{shorten(one)} is not a value" for one in values if isinstance(one, list | dict)), ""
    )
    if wrong or not values:
        raise InputError(f"{where}{': ' if where else ''}{wrong or 'an axis without a value'}")
    return values


AXIS = _read_by(_values)
Axis = Annotated[list[Value], Field(fail_fast=True), AXIS]  # a range of 10^7 has as many faults
Name = Annotated[str, Field(min_length=1)]


class Sample(BaseModel):
    """How cells are drawn from the grid: all of them, or `count` by a method with a seed."""

    model_config = ConfigDict(extra="forbid")
    method: Literal["grid", "random", "sobol"] = "grid"
    count: int | None = Field(default=None, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**32)


class Experiment(BaseModel):
    """An experiment file; every axis may be one value, a list, or a range such as `4..16 x2`."""

    model_config = ConfigDict(extra="forbid")
    name: str
    stack: Axis[Name] = []
    backend: Axis[Name] = ["torch"]
    device: Axis[Name] = ["cpu"]
    threads: Axis[Annotated[int | None, _read_by(_threads)]] = [None]
    compile: Axis[StrictBool] = [False]
    tf32: Axis[StrictBool] = [False]
    input: Axis[Annotated[str, _read_by(partial(contract.check_input, where=""))]] = ["device"]
    staging: Axis[Staging] = ["shared"]
    loaders: Axis[Annotated[int, _count(0)]] = [0]
    prefetch: Axis[Annotated[int, _count(1)]] = [2]
    replicas: Axis[Annotated[int, _count(1)]] = [1]
    strategy: Axis[Strategy] = ["allreduce"]
    overlap: Axis[StrictBool] = [True]
    phase: Axis[Phase] = ["train"]
    dtype: Axis[Annotated[str, _read_by(lambda text: find_dtype(str(text)))]] = ["float32"]
    optimizer: Axis[Optimizer] = ["sgd"]
    batch: Axis[Any] | None = None
    networks: list[dict[str, Any]] = Field(min_length=1)
    where: Annotated[list[str], BeforeValidator(one_or_more)] = []
    sample: Sample = Sample()
    predict: Axis[Name] = []
    measure: StrictBool = True
    link: str = ""
    by_op: StrictBool = False
    parts: StrictBool = False
    rounds: Annotated[int, _count(1, MAX_VISITS)] = 1
    runs: Annotated[int, _count(1, MAX_VISITS)] = 1
    budget_s: Annotated[float, _duration(86_400)] = 3.0
    time_limit_s: Annotated[float, _duration(864_000)] = 600.0
    try_all: StrictBool = False
    data: str = ""
    stage_to: str = ""
    train_steps: Annotated[int, _count(0, MAX_STEPS)] = 0
    slurm: Annotated[list[ResourceRequest], BeforeValidator(one_or_more)] = []


NETWORK_KEYS = ("model", "family")  # of the tables in `networks`


@dataclass(frozen=True)
class Axes:
    """One network of an experiment and the values of its axes (for a cluster `request`, too)."""

    choice: Choice
    values: Mapping[str, Sequence[Any]]


STACK_AXES = ("backend", "compile")  # a stack is a name for both
PLACE_AXES = ("backend", "device", "threads", "compile", "tf32")
FEED_AXES = ("input", "staging", "loaders", "prefetch", "strategy", "overlap")
STEP_AXES = ("dtype", "phase", "optimizer", "replicas", "batch")


def read_experiment(path: Path) -> Experiment:
    """Return the experiment of a TOML file; raises `InputError` with every fault and its place."""
    return check_experiment(read_table(str(path), "experiment file"), str(path))


def check_experiment(table: object, where: str) -> Experiment:
    """Return the experiment that a table says; raises `InputError` with all faults on one line."""
    if not isinstance(table, dict):
        raise InputError(f"{where}: an experiment is a table, not {shorten(table)}")
    if of_network := [key for key in NETWORK_KEYS if key in table]:
        above = "write [[networks]] on the line above it"
        raise InputError(f"{where}: '{of_network[0]}' is a key of a table of networks: {above}")
    experiment = validated(table, Experiment, where)
    stacks = [registry.stack(name, where) for name in experiment.stack]
    backends = [one.backend for one in stacks] or experiment.backend
    for backend, device in product(backends, experiment.device):
        registry.check_device(backend, device, where)
    twice = [axis for axis in STACK_AXES if experiment.stack and axis in table]
    faults = [text for text, is_so in _mistakes(experiment).items() if is_so]
    faults += [f"stack says {axis}, too; keep one of them" for axis in twice]
    if faults:
        raise InputError(f"{where}: {'; '.join(faults)}")
    return experiment


def _mistakes(experiment: Experiment) -> dict[str, bool]:
    """Return what keys must not say together, and whether they do."""
    jobs = [(gpu, table.name) for table in experiment.slurm for gpu in table.gpu]
    twice = [gpu for gpu, name in jobs if jobs.count((gpu, name)) > 1]
    of = f"gpu {shorten(twice[0])}" if twice and twice[0] else "no gpu"
    steps, least, sample = experiment.train_steps, contract.LEAST_TRAINED, experiment.sample
    trains, predicts = steps > 0, bool(experiment.predict)
    name = experiment.name
    return {
        "name must be a text on one line": not name.strip() or not name.isprintable(),
        "measure = false predicts: name devices with predict": not experiment.measure
        and not predicts,
        "link is for predictions: it goes with predict": bool(experiment.link) and not predicts,
        f"slurm: two tables for {of}; give each a name of its own": bool(twice),
        "input 'dataset' needs data = \"FOLDER\"": "dataset" in experiment.input
        and not experiment.data,
        f"train_steps: must be 0 or at least {least}, not {steps}": trains and steps < least,
        'train_steps needs input = "dataset" and no other': trains
        and set(experiment.input) != {"dataset"},
        'train_steps needs phase = "train" and no other': trains
        and set(experiment.phase) != {"train"},
        "sample: a count goes with method random or sobol, and only so": (sample.method == "grid")
        != (sample.count is None),
    }


def axes_of(experiment: Experiment, where: str, on_cluster: bool = False) -> list[Axes]:
    """Return the axes of each network; a hyperparameter that is not named has its default.

    `ALL` stands for the range of a batch, or of a hyperparameter, in the network's family.

    What the file says of a cluster is an axis, `request`, where the cells are for one.
    Raises `InputError` for an unknown family or hyperparameter, or an axis without a value.
    """
    axes = []
    for place, entry in _each_network(experiment, where):
        choice = choice_of(entry, place, trusted=True)  # its sweep was asked for
        chosen = family_of(choice)
        values: dict[str, Sequence[Any]] = {
            axis: getattr(experiment, axis) for axis in (*PLACE_AXES, *FEED_AXES, *STEP_AXES[:-1])
        }
        if experiment.stack:  # in the place of the backend, so that it is the outer axis
            values = {"stack": experiment.stack} | {
                axis: given for axis, given in values.items() if axis not in STACK_AXES
            }
        batch = choice.batch if choice.batch is not None else experiment.batch
        if batch is None:
            batch = chosen.batch
        values["batch"] = _ranged(batch, chosen.batch_sweep, place, "batch")
        if on_cluster:
            tables = experiment.slurm or [ResourceRequest()]
            values["request"] = [one for table in tables for one in table.each()]
        for name in choice.given:
            one_of("hyperparameter", name, chosen.parameters, place)
        for name, parameter in chosen.parameters.items():
            if name in choice.given:
                whole = parameter.sweep or parameter.choices
                values[name] = _ranged(choice.given[name], whole, place, name)
        axes.append(Axes(choice, values))
    return axes


def _each_network(experiment: Experiment, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the table of each network; one table may name several."""
    for i, table in enumerate(experiment.networks):
        key = next((key for key in NETWORK_KEYS if key in table), "")
        names = table.get(key)
        for name in names if isinstance(names, list) and names else [names]:
            yield f"{where}: networks[{i}]", {**table, key: name} if key else table


def _ranged(value: object, whole: object, place: str, axis: str) -> list[object]:
    """Return the values of an axis; raises `InputError` for all of one that has no range."""
    if ALL in (values := _values(value, f"{place}: {axis}", whole)):
        raise InputError(f"{place}: {axis} has no range for '{ALL}' to stand for; name its values")
    return values
