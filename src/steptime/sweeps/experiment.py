"""Experiment files: what a user writes, checked at the edge, and the axes it spans."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool

from steptime.build import Choice, choice_of, family_of
from steptime.core.dtypes import check_measured_dtype, find_dtype
from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.signatures.validated import read_by, validate_table
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
from steptime.formats import read_table
from steptime.measure import contract, registry
from steptime.network.families.family import Family
from steptime.sweeps.resource_request import ResourceRequest, as_list

ALL = "all"  # the range of a family, or every choice, in place of a value
NetworkTable = dict[str, object]
Value = TypeVar("Value")


_read_by = partial(read_by, kind=BeforeValidator)


def _count(at_least: int, at_most: int = MAX_PROCESSES) -> Any:
    return _read_by(partial(parse_count, place="", at_least=at_least, at_most=at_most))


def _duration(at_most_s: float) -> Any:
    return _read_by(partial(parse_seconds, place="", at_most=at_most_s))


def _threads(value: object) -> int | None:
    return None if value is None else parse_count(value, "")


def _dtype(value: object) -> str | None:
    return None if value is None else check_measured_dtype(find_dtype(str(value)))


def _list_values(value: object, place: str = "", full_range: object = ()) -> list[object]:
    """Return a scalar or a range, or a list of them, as the list of its values.

    `ALL` stands for the full range of an axis that has one.
    """
    values: list[object] = []
    for part in as_list(value):
        if part == ALL and full_range:
            values += _list_values(full_range, place)
        elif is_range(part):
            values += parse_range(str(part), place)
        else:
            values.append(part)
    nested_values = [part for part in values if isinstance(part, list | dict)]
    fault = ""
    if nested_values:
        fault = f"{shorten(nested_values[0])} is not a value"
    elif not values:
        fault = "an axis without a value"
    if fault:
        raise InputError(f"{place}: {fault}" if place else fault)
    return values


AXIS = _read_by(_list_values)
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
    input: Axis[Annotated[str, _read_by(partial(contract.check_input, option=""))]] = ["device"]
    staging: Axis[Staging] = ["shared"]
    loaders: Axis[Annotated[int, _count(0)]] = [0]
    prefetch: Axis[Annotated[int, _count(1)]] = [2]
    replicas: Axis[Annotated[int, _count(1)]] = [1]
    strategy: Axis[Strategy] = ["allreduce"]
    overlap: Axis[StrictBool] = [True]
    phase: Axis[Phase] = ["train"]
    dtype: Axis[Annotated[str | None, _read_by(_dtype)]] = [None]
    optimizer: Axis[Optimizer | None] = [None]
    batch: Axis[Any] | None = None
    networks: list[NetworkTable] = Field(min_length=1)
    conditions: Annotated[list[str], BeforeValidator(as_list)] = Field(default=[], alias="where")
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
    slurm: Annotated[list[ResourceRequest], BeforeValidator(as_list)] = []


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


def check_experiment(table: object, place: str) -> Experiment:
    """Return the experiment of a table.

    Args:
        table: the table.
        place: its file, for messages.

    Raises:
        InputError: with all faults on one line.
    """
    if not isinstance(table, dict):
        raise InputError(f"{place}: an experiment is a table, not {shorten(table)}")
    if network_keys := [key for key in NETWORK_KEYS if key in table]:
        hint = "write [[networks]] on the line above it"
        raise InputError(f"{place}: '{network_keys[0]}' is a key of a table of networks: {hint}")
    experiment = validate_table(table, Experiment, place)
    _check_devices(experiment, place)
    doubled_axes = [axis for axis in STACK_AXES if experiment.stack and axis in table]
    faults = [text for text, is_present in _list_conflicts(experiment).items() if is_present]
    faults += [f"stack says {axis}, too; keep one of them" for axis in doubled_axes]
    if faults:
        raise InputError(f"{place}: {'; '.join(faults)}")
    return experiment


def _check_devices(experiment: Experiment, place: str) -> None:
    """Raise `InputError` for an unknown stack or backend, and for a device that it cannot use."""
    stacks = [registry.stack(name, place) for name in experiment.stack]
    backends = [stack.backend for stack in stacks] or experiment.backend
    for backend, device in product(backends, experiment.device):
        registry.check_device(backend, device, place)


def _list_conflicts(experiment: Experiment) -> dict[str, bool]:
    """Return the conflicts that keys can have with one another, and whether they are present."""
    is_single_line = bool(experiment.name.strip()) and experiment.name.isprintable()
    predicts = bool(experiment.predict)
    does_nothing = not experiment.measure and not predicts
    doubled_gpu = _find_doubled_gpu(experiment)
    doubled_text = f"gpu {shorten(doubled_gpu)}" if doubled_gpu else "no gpu"
    lacks_data = "dataset" in experiment.input and not experiment.data
    is_grid = experiment.sample.method == "grid"  # which has all cells, and no count
    has_count = experiment.sample.count is not None
    return {
        "name must be a text on one line": not is_single_line,
        "measure = false predicts: name devices with predict": does_nothing,
        "link is for predictions: it goes with predict": bool(experiment.link) and not predicts,
        f"slurm: two tables for {doubled_text}; give each a name of its own": (
            doubled_gpu is not None
        ),
        "input 'dataset' needs data = \"FOLDER\"": lacks_data,
        **_list_training_conflicts(experiment),
        "sample: a count goes with method random or sobol, and only so": is_grid == has_count,
    }


def _find_doubled_gpu(experiment: Experiment) -> str | None:
    """Return the first GPU that two tables of one name ask for ("": no GPU), None for none."""
    gpus_and_names = [(gpu, table.name) for table in experiment.slurm for gpu in table.gpu]
    for gpu, name in gpus_and_names:
        if gpus_and_names.count((gpu, name)) > 1:
            return gpu
    return None


def _list_training_conflicts(experiment: Experiment) -> dict[str, bool]:
    """Return the conflicts of `train_steps` with other keys, and whether they are present."""
    steps = experiment.train_steps
    min_steps = contract.MIN_TRAIN_STEPS
    trains = steps > 0
    has_other_input = trains and set(experiment.input) != {"dataset"}
    has_other_phase = trains and set(experiment.phase) != {"train"}
    return {
        f"train_steps: must be 0 or at least {min_steps}, not {steps}": 0 < steps < min_steps,
        'train_steps needs input = "dataset" and no other': has_other_input,
        'train_steps needs phase = "train" and no other': has_other_phase,
    }


def axes_of(experiment: Experiment, place: str, on_cluster: bool = False) -> list[Axes]:
    """Return the axes of each network; a hyperparameter that is not named has its default.

    `ALL` stands for the range of a batch, or of a hyperparameter, in the network's family. For a
    cluster, the tables of the file for a cluster are an axis, too: `request`.

    Raises:
        InputError: for an unknown family or hyperparameter, or an axis without a value.
    """
    axes = []
    for network_place, table in _list_networks(experiment, place):
        # Trusted: a person asked for this experiment, so its networks may be Python code, which
        # runs when they are built.
        choice = choice_of(table, network_place, trusted=True)
        family = family_of(choice)
        values = _list_common_axes(experiment)
        values["batch"] = _list_batches(experiment, choice, family, network_place)
        if on_cluster:
            tables = experiment.slurm or [ResourceRequest()]
            values["request"] = [
                request for request_table in tables for request in request_table.split_by_gpu()
            ]
        for name in choice.settings:
            check_choice("hyperparameter", name, family.parameters, network_place)
        for name, parameter in family.parameters.items():
            if name in choice.settings:
                full_range = parameter.sweep or parameter.choices
                values[name] = _list_axis(choice.settings[name], full_range, network_place, name)
        axes.append(Axes(choice, values))
    return axes


def _list_common_axes(experiment: Experiment) -> dict[str, Sequence[Any]]:
    """Return the axes that all networks of an experiment share; the batch is not among them."""
    names = [axis for axis in (*PLACE_AXES, *FEED_AXES, *STEP_AXES) if axis != "batch"]
    if not experiment.stack:
        return {axis: getattr(experiment, axis) for axis in names}
    # A stack decides the values of `STACK_AXES`. It stands first: the outermost axis.
    further_axes = {axis: getattr(experiment, axis) for axis in names if axis not in STACK_AXES}
    return {"stack": experiment.stack, **further_axes}


def _list_batches(
    experiment: Experiment, choice: Choice, family: Family, place: str
) -> list[object]:
    """Return the batches of a network: its own, the experiment's, or its family's."""
    batch: object = choice.batch
    if batch is None:
        batch = family.batch if experiment.batch is None else experiment.batch
    return _list_axis(batch, family.batch_sweep, place, "batch")


def _list_networks(experiment: Experiment, place: str) -> Iterator[tuple[str, NetworkTable]]:
    """Yield the place and the table of each network; one table may name several."""
    for index, table in enumerate(experiment.networks):
        table_place = f"{place}: networks[{index}]"
        # `model = ["lenet", "alexnet"]` stands for a table for each.
        name_key = next((key for key in NETWORK_KEYS if key in table), "")
        names = table.get(name_key)
        if isinstance(names, list) and names:
            for name in names:
                yield table_place, {**table, name_key: name}
        else:
            yield table_place, table


def _list_axis(value: object, full_range: object, place: str, axis: str) -> list[object]:
    """Return the values of an axis; raises `InputError` for `ALL` where there is no range."""
    values = _list_values(value, f"{place}: {axis}", full_range)
    if ALL in values:
        raise InputError(f"{place}: {axis} has no range for '{ALL}' to stand for; name its values")
    return values
