"""A device calibrated with records, cases, rows or a table of trainings, and its file written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from steptime.calibration.cases import Case
from steptime.calibration.here import POINTS
from steptime.calibration.plan_rows import Question, Reply
from steptime.core.errors import InputError
from steptime.core.progress import print_note
from steptime.core.toml_files import read_toml
from steptime.core.units import format_count
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.records.row import group_by

MEASURE_HINT = "measure some by `steptime run --out DIR`, or name the columns by --map"
Refusal = tuple[str, str]  # place of a row, and why it cannot be predicted


@dataclass(frozen=True)
class Calibration:
    """A calibrated device.

    Attributes:
        device: the device, whose `calibration` is the table below.
        table: constants, intervals and errors, as the device's file has them.
        path: the file that was written, None if none was.
        usage: how commands name the device, "" without a file.
    """

    device: Device
    table: Mapping[str, Any]
    path: Path | None = None
    usage: str = ""


@dataclass(frozen=True)
class _RowSet:
    """The rows of a source: steps of trainings with their predictions, or else cases."""

    predicted_steps: list[tuple[Question, Reply]]
    cases: list[Case]
    refusals: list[Refusal]

    @property
    def devices(self) -> list[str]:
        """The device of each row."""
        names = [question.texts["device"] for question, _ in self.predicted_steps]
        return names + [case.device.name for case in self.cases]


def calibrate_from_rows(
    rows: Any,
    mapping: Path | None,
    device_option: str | Device | None,
    points: int | None,
    write: bool = True,
) -> Calibration:
    """Calibrate a device with rows that were measured before.

    Args:
        rows: a folder or a file as a `Path`; or mappings, or a DataFrame, of which no file is
            written.
        mapping: what the columns of a table mean.
        device_option: the device, None for the only one of the rows.
        points: rows to fit at most; None for 60 of a path, and for all other rows.
        write: whether the device's file is written.

    Raises:
        InputError: for unreadable rows, and for rows of several devices without a device.
    """
    path = rows if isinstance(rows, Path) else None
    # A file may have very many rows; rows of a script are all meant.
    default_points = POINTS if path else None
    max_points = points or default_points
    option_device = None if device_option is None else catalog.device(device_option)
    row_set = _read_rows(rows, path, mapping, option_device)
    name = _choose_device(row_set, path, option_device)
    # Rows of a table of trainings are predicted steps, all other rows are cases.
    indices = [index for index, row_name in enumerate(row_set.devices) if row_name == name]
    if option_device is not None:
        device = option_device
    else:
        device = row_set.cases[indices[0]].device if row_set.cases else catalog.device(name)
    if row_set.predicted_steps:
        table = _fit_steps([row_set.predicted_steps[index] for index in indices], max_points, path)
    else:
        table = _fit_cases(device, [row_set.cases[index] for index in indices], max_points, path)
    calibrated_device = device.with_calibration(table)
    if path is None or not write:
        return Calibration(calibrated_device, table)
    file = _write_device(device, device_option, table, path)
    stack_option = f" --stack {table['stack']}" if row_set.predicted_steps else ""
    usage = f"written to {file}; use --device {file.stem}{stack_option}"
    return Calibration(replace(calibrated_device, name=file.stem), table, file, usage)


def _read_rows(
    rows: Any, path: Path | None, mapping: Path | None, device: Device | None
) -> _RowSet:
    """Read rows; those that cannot be predicted are refusals, each cause of which is noted."""
    from steptime.calibration.mapped import read_cases

    if path is not None and not path.exists():
        raise InputError(f"{path}: no such file or folder")
    refusals: list[Refusal] = []
    if path is not None and mapping is None:  # it may be a table of trainings
        predicted_steps = _read_steps(path, refusals)
        if predicted_steps:
            return _RowSet(predicted_steps, [], refusals)
    # Rows of a script that cannot be predicted raise at once; of files they are noted.
    row_refusals = None if path is None else refusals
    cases = read_cases(rows, mapping, device, warn=print_note, refusals=row_refusals)
    return _RowSet([], _pool_cases(cases), refusals)


def _pool_cases(cases: Sequence[Case]) -> list[Case]:
    """Return cases in which repeats, equal but for their seconds, are one case of the median."""
    pooled = []
    for repeats in group_by(cases, _key_of_repeats).values():
        seconds = median(case.seconds for case in repeats)
        pooled.append(replace(repeats[0], seconds=seconds) if len(repeats) > 1 else repeats[0])
    if len(pooled) < len(cases):
        row_text = format_count(len(cases), "row")
        pooled_text = format_count(len(pooled), "measurement")
        reason = "repeats, equal but for their seconds, count as their median"
        print_note(f"{row_text} are {pooled_text}: {reason}")
    return pooled


def _key_of_repeats(case: Case) -> tuple[object, ...]:
    """Return a key that is equal for cases that differ in nothing but their seconds."""
    return (
        case.device.name,
        case.kernels,
        case.kind,
        case.condition,
        case.family,
        case.workload and case.workload.key,
        case.stack,
        case.calibrates,
        case.copies,
        tuple(sorted(case.timing.items())),
        tuple(sorted(case.method_options.items())),
    )


def _choose_device(row_set: _RowSet, path: Path | None, device: Device | None) -> str:
    """Return the name of the device whose rows are taken; raises `InputError` without any."""
    prefix = "" if path is None else f"{path}: "
    names = sorted(set(row_set.devices))
    refusals = row_set.refusals
    # Rows of a script may name no device if the caller does.
    needs_names = path is not None or device is None
    if not names and needs_names:  # no row is left, or none names a device
        cause = f"; {MEASURE_HINT}"
        if refusals:
            first_place, first_cause = refusals[0]
            cause = f": {first_place}: {first_cause}"
        raise InputError(f"{prefix}no measured step of a device that is known{cause}")
    for cause, refused_rows in group_by(refusals, itemgetter(1)).items():
        first_place, _ = refused_rows[0]
        print_note(f"{format_count(len(refused_rows), 'row')} left out: {cause} ({first_place})")
    if device is None and len(names) > 1:
        raise InputError(f"{prefix}steps of {', '.join(names)}; choose one with --of NAME")
    name = names[0] if device is None else device.name
    if names and name not in names:
        word = "step" if path else "row"
        raise InputError(f"{prefix}no {word} of {name}; there are those of {', '.join(names)}")
    return name


def _fit_steps(
    predicted_steps: list[tuple[Question, Reply]], points: int | None, path: Path | None
) -> Mapping[str, Any]:
    """Return the table `calibration` that steps of trainings say."""
    from steptime.calibration.plan_calibration import calibrate_with_steps

    table = calibrate_with_steps(predicted_steps, points or len(predicted_steps))
    return table | {"source": f"{table['points']} steps of {path}"}


def _fit_cases(
    device: Device, cases: list[Case], points: int | None, path: Path | None
) -> Mapping[str, Any]:
    """Return the table `calibration` that cases say, with a note on stacks that are left out."""
    from steptime.calibration.device import calibrate

    word = "rows" if any(case.is_single_op for case in cases) else "steps"
    source = f"{len(cases)} {word} of {path}" if path else ""
    table = calibrate(device, cases, points, source=source)
    stacks = {case.stack or catalog.DEFAULT_STACK for case in cases if not case.is_single_op}
    # A calibration has the steps of one stack; others would have other times of the host.
    ignored_stacks = sorted(stacks - {table.get("stack")})
    if ignored_stacks:
        names = ", ".join(ignored_stacks)
        print_note(f"steps of stack {table['stack']} alone are taken, none of {names}")
    return table


def _write_device(
    device: Device, device_option: object, calibration: Mapping[str, Any], path: Path
) -> Path:
    """Write the file of a device with its calibration, and return the file."""
    if isinstance(device_option, str) and device_option.lower().endswith(".toml"):
        table = read_toml(Path(device_option))
    elif device.name.lower() in catalog.device_names():
        table = catalog.device_table(device.name)
    else:
        hint = f"{device.name} is no device by name; choose its file: --of {device.name}.toml"
        raise InputError(f"{path}: {hint}")
    if device.name in catalog.device_names(with_user_files=False):
        # The file of a shipped device is never changed: the user gets a device of another name.
        table["name"] = f"{device.name}-calibrated"
    if table["name"] in catalog.device_names():
        print_note(f"{table['name']} was calibrated before: that is replaced")
    file_table = table | {"calibration": calibration}
    # The rows may be of another machine: the name `local` stays with the device of this one.
    return catalog.write_user_device(file_table, table["name"], local=False)


def _read_steps(path: Path, refusals: list[Refusal]) -> list[tuple[Question, Reply]]:
    """Return the rows of a table of trainings with their predictions, none of another file.

    Rows that cannot be predicted are added to the refusals.
    """
    from steptime.calibration.plan_errors import predict_rows
    from steptime.calibration.plan_rows import describe_missing_columns, read_questions, tables_in

    tables, _ = tables_in([path]) if path.is_file() else ([], [])
    if not tables:
        missing_columns = describe_missing_columns(path) if path.is_file() else ""
        if missing_columns:
            raise InputError(missing_columns)
        return []
    predicted_rows = predict_rows(read_questions(path), "calibrated")
    steps_and_errors = [step_or_error for *_, step_or_error in predicted_rows]
    errors = [error for error in steps_and_errors if isinstance(error, InputError)]
    refusals += [(path.name, str(error)) for error in errors]
    return [step for step in steps_and_errors if not isinstance(step, InputError)]
