"""The measured steps that each line of a file of expectations means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from steptime.analysis.acceptances.accepted_steps import MeasuredSteps, StepMeasurement
from steptime.analysis.acceptances.expectations import NETWORK, QUANTITY_NAMES, Expectation
from steptime.core.errors import InputError, unknown
from steptime.core.units import first_of
from steptime.core.values import number_of
from steptime.records.pair_keys import find_level
from steptime.records.row import Row

MAX_NAMES = 4  # of a message
COLUMNS = (NETWORK, "limit", "node", "device", "batch", "dtype", "phase", "optimizer", "replicas")


class Matching(NamedTuple):
    """What the lines of a file mean.

    Attributes:
        line_by_group: the line of each measured step, by the group of its records.
        missing_lines: the lines that no record has, each with the reason.
    """

    line_by_group: Mapping[int, Expectation]
    missing_lines: Sequence[tuple[Expectation, str]]


def match_expectations(
    measured: MeasuredSteps, lines: Sequence[Expectation], source: str
) -> Matching:
    """Find the measured steps that each line means.

    Args:
        measured: the measured steps.
        lines: the lines of the file, all of the quantity that was measured.
        source: the file, for an error message.

    Raises:
        InputError: for a network that nobody knows, a column that no record has, and a line that
            means several measured steps or a step that another line means.
    """
    # Each line states a network and further settings, such as `batch`; all must fit a step.
    columns = dict.fromkeys(name for line in lines for name in line.settings)
    setting_texts = measured.read_texts(
        {name: _find_column(measured, name, source) for name in columns}
    )
    by_network = _index_networks(measured.steps)
    line_by_group: dict[int, Expectation] = {}
    missing_lines = []
    for line in lines:
        candidates = _find_network(line, by_network)
        steps = [step for step in candidates if _has_settings(setting_texts[step.group], line)]
        _check_single_step(line, steps)
        if not steps:
            missing_lines.append((line, _explain_missing(line, candidates, measured.steps)))
        for step in steps:
            if step.group in line_by_group:
                first_place = line_by_group[step.group].place
                raise InputError(f"{line.place}: {step.name} has a reference in {first_place}")
            line_by_group[step.group] = line
    return Matching(line_by_group, missing_lines)


def _find_column(measured: MeasuredSteps, name: str, source: str) -> pl.Expr:
    """Return the expression of a column of records; raises `InputError` with the nearest one."""
    try:
        return find_level(measured.data, name, source)
    except InputError as error:
        is_unknown_column = "unknown column" in str(error)
        if not is_unknown_column:
            raise
        # The proposal may also name the other columns that a file of expectations has.
        names = [*COLUMNS, *sorted(QUANTITY_NAMES), *measured.data.settings]
        raise unknown("column", name, names, source) from None


def _index_networks(steps: Sequence[StepMeasurement]) -> Mapping[str, list[StepMeasurement]]:
    """Return the steps by the words that name their network: model, family, name in tables."""
    by_network: dict[str, list[StepMeasurement]] = {}
    for step in steps:
        names = (step.facts["model"], step.facts["family"], step.name)
        for key in set(map(_network_key, names)):
            by_network.setdefault(key, []).append(step)
    return by_network


def _network_key(text: str) -> str:
    return "".join(text.split()).casefold()


def _find_network(
    line: Expectation, by_network: Mapping[str, Sequence[StepMeasurement]]
) -> Sequence[StepMeasurement]:
    """Return the steps of the network of a line, none of a known network that is not measured.

    Raises:
        InputError: for a text that names neither a measured nor another known network.
    """
    steps = by_network.get(_network_key(line.network))
    if steps is not None:
        return steps
    all_steps = [step for steps in by_network.values() for step in steps]
    names = sorted({str(step.facts["model"]) for step in all_steps})
    # `lenet` may be recorded as `lenet:batch=64`: read the text as a network, and take the name
    # that a record of it would have.
    network_name, batch = _read_network(line, names)
    return [
        step
        for step in by_network.get(_network_key(network_name), ())
        if batch is None or step.facts["batch"] == batch
    ]


def _read_network(line: Expectation, measured_names: Sequence[str]) -> tuple[str, int | None]:
    """Return the text that records have for a network, and its batch if the line says one there.

    `fc:nodes=64,layers=2,batch=8` has the hyperparameters of its records in their order.
    """
    from steptime.build import family_of, make_workload, read_model

    try:
        choice = read_model(line.network, source=line.place)
        family_of(choice)
    except InputError:
        raise unknown("network", line.network, measured_names, line.place) from None
    try:
        # Type and optimizer play no part in the name.
        workload = make_workload(
            choice, batch=None, dtype="float32", phase="train", optimizer="sgd"
        )
    except InputError as error:
        raise InputError(f"{line.place}: {error}") from None
    has_batch = choice.batch is not None  # otherwise the workload has a default batch
    batch = workload.batch_per_replica if has_batch else None
    return workload.file or workload.label, batch  # records name a network from a file by the file


def _has_settings(texts: Row, line: Expectation) -> bool:
    return all(_is_equal_text(name, texts[name], text) for name, text in line.settings.items())


def _is_equal_text(column: str, recorded: str | None, text: str) -> bool:
    """Whether a record has a setting: numbers by value, devices by any of their names."""
    if recorded is None:
        return False
    if recorded.casefold() == text.casefold() or number_of(recorded) == number_of(text):
        return True
    return column == "platform" and recorded == _device_name(text)


def _device_name(text: str) -> str:
    """Return the full name of a device, `a100-sxm4-80gb` of `a100`; the text of an unknown one."""
    from steptime.hardware import catalog

    try:
        return catalog.device(text).name
    except InputError:
        return text


def _check_single_step(line: Expectation, steps: Sequence[StepMeasurement]) -> None:
    """Raise `InputError` for a line that means steps that differ in more than their node."""
    names = list(dict.fromkeys(map(_describe_step, steps)))
    if len(names) > 1:
        raise InputError(
            f"{line.place}: {line.network} means {len(names)} measured steps, "
            f"{first_of(names, MAX_NAMES, '; ')}; a further column tells them apart"
        )


def _explain_missing(
    line: Expectation, candidates: Sequence[StepMeasurement], steps: Sequence[StepMeasurement]
) -> str:
    """Return the reason why no record fits a line: "measured: resnet50, batch 64"."""
    host = line.settings.get("host")
    if host is not None and host not in {step.host for step in steps}:
        return f"no record of node {host}"
    names = list(dict.fromkeys(map(_describe_step, candidates)))
    return f"measured: {first_of(names, MAX_NAMES, '; ')}" if names else "no record"


def _describe_step(step: StepMeasurement) -> str:
    return f"{step.name} on {step.facts['platform']}"


def describe_line(line: Expectation) -> str:
    """Return a line as the name of a step: "resnet50, batch 64"."""
    settings = [f"{name} {text}" for name, text in line.settings.items() if name != "host"]
    return ", ".join([line.network, *settings])
