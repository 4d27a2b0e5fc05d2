"""ParaDnn's released JSON files: speeds of TPU and GPU, profiles of a TPU and of its operations.

All hold lists of equal length, one entry a point. The authors' scripts tell devices by the name of
the file; the data type follows from `fl` over `params` x `intensity`, the bytes of a parameter.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple

from steptime.build import Choice, make_workload, read_model
from steptime.core.errors import InputError, shorten
from steptime.core.json_types import JsonObject
from steptime.core.toml_files import read_packaged_toml
from steptime.records.readers.sources import Reading, RecordSource, Unread
from steptime.records.record import Quantity, Record, RecordMethod

Lists = Mapping[str, list[Any]]

SOURCE = "Emma926/paradnn; Wang, Wei, Brooks, MLSys 2020"
FLOAT32_BYTES = 4
MAX_CORE_SHARE = 2  # FLOP of a step over batch x parameters: 6 / 8 for one core of eight, 6 for all
CORES = 8  # of a Cloud TPU v2-8: its files count FLOP of one core
TPU, GPU = "tpu-v2-8", "v100-sxm2-16gb"
BEST = "best interval of the run"
LARGEST = 1e300  # of a number: its unit may make it larger

CORE_LISTS = ("flops", "fl")  # of one core of a TPU
TRACE_LISTS = ("flops_perc_m", "flops_perc_std", "infeed_m")  # mean and deviation over profiles
FAILURES = ("err_jobs", "states")
STATES = {"OOM": "oom", "Deadline Exceeded": "timeout"}  # the rest failed
_TABLE = read_packaged_toml("paradnn.toml")
_BEHIND = r"(?:-(?P<scope>.+))?"  # names of operations hold hyphens and blanks
PATTERNS = [
    (re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>\\d{1,15})", row["form"]) + _BEHIND, re.DOTALL), row)
    for row in _TABLE["labels"]
]


def recognises(source: RecordSource) -> bool:
    """Return whether a file is a JSON object with lists of labels."""
    return source.head.lstrip().startswith("{") and (
        b'"labels"' in source.content or b'"err_jobs"' in source.content
    )


def read(source: RecordSource) -> Reading:
    """Return a record a label, failed ones too; an operation of a profile is a record's scope."""
    try:
        lists = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {shorten(str(error))[1:-1]}") from None
    points = list(_read_points(_complete_lists(lists), source.name))
    records = [result for _, result in points if isinstance(result, Record)]
    unread = [
        Unread(source.name, label, reason) for label, reason in points if isinstance(reason, str)
    ]
    return Reading(tuple(records), tuple(unread))


def _complete_lists(lists: Mapping[str, Any]) -> Lists:
    """Return the lists of a file with those of labels and failures, which may be empty.

    Raises:
        InputError: if a value is no list, or lists that belong together differ in length.
    """
    for name, values in lists.items():
        if not isinstance(values, list):
            raise InputError(f"{shorten(name)} is no list")
    all_lists = {"labels": [], "err_jobs": [], "states": [], **lists}
    # Parallel lists: an entry for each point that ran, and one for each job that failed.
    point_lists = [name for name in all_lists if name not in FAILURES]
    for names in (FAILURES, point_lists):
        lengths = {len(all_lists[name]) for name in names}
        if len(lengths) > 1:
            raise InputError(f"the lists {', '.join(map(shorten, names))} differ in length")
    return all_lists


class _Machine(NamedTuple):
    platform: str
    dtype: str
    cores: int
    file: str  # its name may hold the kind of block or cell


def _read_points(lists: Lists, file: str) -> Iterator[tuple[str | None, Record | str]]:
    """Yield the label of each point with its record, or with the reason why it has none."""
    holds_speeds = "example_per_sec" in lists or bool(lists["err_jobs"])  # else a profile
    file_format = _speeds_format(lists, file) if holds_speeds else _profile_format(file)
    valid_names = {"labels", *file_format.amounts, *file_format.further_lists, *FAILURES}
    for name in lists:
        if name not in valid_names:
            yield None, f"list {shorten(name)} is not known"
    for index, label in enumerate(lists["labels"]):
        quantities = _read_quantities(lists, index, file_format.amounts, file_format.machine.cores)
        if holds_speeds:
            step_s = _read_step(lists, index)
            if step_s is None:  # a point that failed without a state
                yield str(label), "has no positive step_per_sec"
                continue
            quantities["step_s"] = Quantity(step_s)
        yield _make_point(label, file_format.machine, file_format.method, quantities)
    for label, state in zip(lists["err_jobs"], lists["states"], strict=True):
        status = STATES.get(str(state), "failed")
        yield _make_point(
            label, file_format.machine, file_format.method, {}, status=status, cause=str(state)
        )


class _FileFormat(NamedTuple):
    """The meaning of the lists of a file.

    Attributes:
        amounts: the quantity and the unit of each list of numbers, by its name.
        further_lists: lists that are no quantities.
        machine: the machine of all points.
        method: how the numbers were obtained.
    """

    amounts: Mapping[str, tuple[str, float]]
    further_lists: tuple[str, ...]
    machine: _Machine
    method: RecordMethod


def _speeds_format(lists: Lists, file: str) -> _FileFormat:
    """Return the format of a file of speeds; raises `InputError` if it names no device."""
    method = RecordMethod("paradnn", "unknown", {"statistic": BEST})
    return _FileFormat(_TABLE["speeds"], ("step_per_sec",), _find_machine(lists, file), method)


def _profile_format(file: str) -> _FileFormat:
    """Return the format of a file of profiles, which are all of a TPU."""
    machine = _Machine(TPU, "bfloat16-mixed", CORES, file)
    method = RecordMethod("paradnn-profile", "unknown", {})
    return _FileFormat(_TABLE["profile"], TRACE_LISTS, machine, method)


def _read_step(lists: Lists, index: int) -> float | None:
    """Return the seconds of a step of a point, None if its speed is no positive number."""
    if "step_per_sec" not in lists:
        return None
    steps_per_s = _scale_number(lists["step_per_sec"][index])
    return 1 / steps_per_s if steps_per_s and steps_per_s > 0 else None


def _read_quantities(
    lists: Lists, index: int, amounts: Mapping[str, tuple[str, float]], cores: int
) -> dict[str, Quantity | None]:
    """Return the quantities of a point; None for one without a number."""
    quantities = {}
    for name, (quantity, unit) in amounts.items():
        if name in lists:
            scale = unit * cores if name in CORE_LISTS else unit
            quantities[quantity] = _read_quantity(lists[name][index], scale)
    return quantities


def _scale_number(value: Any, scale: float = 1.0) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value * scale if is_number and abs(value) < LARGEST else None


def _read_quantity(value: Any, scale: float) -> Quantity | None:
    """Return a number or a list of samples as a quantity; None if one of them is no number."""
    if not isinstance(value, list):
        number = _scale_number(value, scale)
        return None if number is None else Quantity(number)
    numbers = [_scale_number(sample, scale) for sample in value]
    samples = tuple(number for number in numbers if number is not None)
    are_all_numbers = len(samples) == len(value)
    return Quantity(samples=samples) if samples and are_all_numbers else None


def _make_point(
    label: object,
    machine: _Machine,
    method: RecordMethod,
    quantities: Mapping[str, Quantity | None],
    *,
    status: str = "ok",
    cause: str = "",
) -> tuple[str, Record | str]:
    text = str(label)
    try:
        choice, batch, scope = network(text, machine.file)
        workload = make_workload(choice, batch=batch, dtype=machine.dtype, optimizer="rmsprop")
    except InputError as error:
        return text[:200], str(error)
    env: JsonObject = {"source_entry": text, "cores": machine.cores}
    unreadable_quantities = [name for name, quantity in quantities.items() if quantity is None]
    if unreadable_quantities:
        env["not_given"] = unreadable_quantities
    return text, Record(
        origin="published",
        method=method,
        workload=workload,
        platform=machine.platform,
        quantities={name: quantity for name, quantity in quantities.items() if quantity},
        status=status,
        cause=cause,
        scope=scope,
        env=env,
    )


def _find_machine(lists: Lists, file: str) -> _Machine:
    """Find the machine of the speeds by the name of the file and by the numbers.

    `intensity` is FLOP over the bytes of the parameters, which tells their type.

    Raises:
        InputError: if name and numbers contradict each other, or name no device.
    """
    flop_shares, parameter_bytes = _list_flop_shares_and_sizes(lists, file)
    is_float32 = None  # unknown
    if parameter_bytes:
        is_float32 = round(median(parameter_bytes)) == FLOAT32_BYTES
    # Where no sizes tell the type, it is ParaDnn's: float32 on GPUs, bfloat16 on TPUs.
    if _find_device(file, flop_shares) == "gpu":
        dtype = "float16-mixed" if is_float32 is False else "float32"
        return _Machine(GPU, dtype, cores=1, file=file)
    dtype = "float32" if is_float32 else "bfloat16-mixed"
    return _Machine(TPU, dtype, CORES, file)


def _find_device(file: str, flop_shares: Sequence[float]) -> str:
    """Return `tpu` or `gpu`, as the name of the file and the FLOP of a step say.

    FLOP of a step over batch x parameters are 6, forward and backward. Files of a TPU count one of
    its eight cores, which sees an eighth of the batch: 6 / 8.

    Args:
        file: the name of the file.
        flop_shares: FLOP over batch x parameters of each point.

    Raises:
        InputError: if name and numbers contradict each other, or name no device.
    """
    file_name = file.rpartition("/")[2].lower()
    devices_of_name = [device for device in ("tpu", "gpu") if device in file_name]
    implied_device = None
    if flop_shares:
        implied_device = "tpu" if median(flop_shares) < MAX_CORE_SHARE else "gpu"
    is_ambiguous = len(devices_of_name) > 1
    is_unknown = not devices_of_name and not implied_device
    is_contradicted = devices_of_name and implied_device and devices_of_name[0] != implied_device
    if is_ambiguous or is_unknown or is_contradicted:
        raise InputError(
            f"the file's name says {' and '.join(devices_of_name) or 'no device'}, "
            f"its FLOP a step say {implied_device or 'nothing'}"
        )
    return devices_of_name[0] if devices_of_name else str(implied_device)


def _list_flop_shares_and_sizes(lists: Lists, file: str) -> tuple[list[float], list[float]]:
    """Return FLOP over batch x parameters of each label, and the bytes of a parameter."""
    flop_shares = []
    parameter_bytes = []

    def read_number(name: str, index: int) -> float:
        if name not in lists:
            return 0.0
        _, unit = _TABLE["speeds"][name]
        return _scale_number(lists[name][index], unit) or 0.0

    for index, label in enumerate(lists["labels"]):
        flop = read_number("fl", index)
        params = read_number("params", index)
        flop_per_byte = read_number("intensity", index)
        if not (flop and params):  # not stated in this file
            continue
        if flop_per_byte:
            # ParaDnn's intensity is FLOP over the bytes of the parameters: 4 bytes are float32.
            parameter_bytes.append(flop / (params * flop_per_byte))
        with suppress(InputError):  # a text that is no label
            _, batch, _ = network(str(label), file)
            flop_shares.append(flop / (batch * params))
    return flop_shares, parameter_bytes


def network(text: str, file: str = "") -> tuple[Choice, int, str]:
    """Return the network of a label, its batch, and the operation behind it: `...-bs_512-infeed`.

    Args:
        text: the label.
        file: its name holds the kind of block or cell.

    Raises:
        InputError: for a text that is no label.
    """
    for pattern, row in PATTERNS:
        match = pattern.fullmatch(text)
        if not match:
            continue
        model = row["model"].format(**match.groupdict())
        detail = row.get("detail")  # a setting that the label lacks, such as the kind of cell
        if detail:
            words = [word for word in row["words"] if word in re.split(r"[_/.-]", file.lower())]
            if not words:
                label = text[: match.end("batch")]
                raise InputError(f"{label}: the file's name does not say the {detail}")
            model += f",{detail}={words[0]}"
        return read_model(model), int(match["batch"]), match["scope"] or ""
    raise InputError(f"is no label of ParaDnn's: {shorten(text)}")
