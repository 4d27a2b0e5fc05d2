"""ParaDnn's released JSON files: speeds of TPU and GPU, profiles of a TPU and of its operations.

All hold lists of equal length, one entry a point. The authors' scripts tell devices by the name of
the file; the data type follows from `fl` over `params` x `intensity`, the bytes of a parameter.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple

from steptime.build import Choice, make_workload, read_model
from steptime.core.errors import InputError, shorten
from steptime.core.json_types import JsonObject
from steptime.core.toml_files import packaged
from steptime.records.readers.sources import Reading, RecordSource, Unread
from steptime.records.record import Quantity, Record, RecordMethod

Lists = Mapping[str, list[Any]]

SOURCE = "Emma926/paradnn; Wang, Wei, Brooks, MLSys 2020"
FLOAT32_BYTES = 4
MAX_CORE_SHARE = 2  # FLOP of a step over batch x parameters: 6 / 8 for one core of eight, 6 for all
CORES = 8  # of a Cloud TPU v2-8: its files count FLOP of one core
TPU, GPU = "tpu-v2-8", "v100-sxm2-16gb"
BEST = "best interval of the run"

OF_CORE = ("flops", "fl")  # of one core of a TPU
OF_TRACES = ("flops_perc_m", "flops_perc_std", "infeed_m")  # mean and deviation over profiles
FAILURES = ("err_jobs", "states")
STATES = {"OOM": "oom", "Deadline Exceeded": "timeout"}  # the rest failed
_TABLE = packaged("paradnn.toml")
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
    points = list(_points(_checked(lists), source.name))
    records = [result for _, result in points if isinstance(result, Record)]
    unread = [
        Unread(source.name, label, result) for label, result in points if isinstance(result, str)
    ]
    return Reading(tuple(records), tuple(unread))


def _checked(lists: Mapping[str, Any]) -> Lists:
    for name, values in lists.items():
        if not isinstance(values, list):
            raise InputError(f"{shorten(name)} is no list")
    complete = {"labels": [], "err_jobs": [], "states": [], **lists}
    for names in (FAILURES, [name for name in complete if name not in FAILURES]):
        if len({len(complete[name]) for name in names}) > 1:
            raise InputError(f"the lists {', '.join(map(shorten, names))} differ in length")
    return complete


class _Machine(NamedTuple):
    platform: str
    dtype: str
    cores: int
    file: str  # its name may hold the kind of block or cell


def _points(lists: Lists, file: str) -> Iterator[tuple[str | None, Record | str]]:
    """Yield the label of each point with its record, or with the reason why it has none."""
    timed = "example_per_sec" in lists or bool(lists["err_jobs"])
    amounts = _TABLE["speeds" if timed else "profile"]
    uncounted = ("step_per_sec",) if timed else OF_TRACES
    machine = _Machine(TPU, "bfloat16-mixed", CORES, file)
    method = RecordMethod("paradnn-profile", "unknown", {})
    if timed:
        machine = _machine(lists, file)
        method = RecordMethod("paradnn", "unknown", {"statistic": BEST})
    for name in lists:
        if name not in {"labels", *amounts, *uncounted, *FAILURES}:
            yield None, f"list {shorten(name)} is not known"
    for index, label in enumerate(lists["labels"]):
        quantities = _quantities(lists, index, amounts, machine.cores)
        if timed:
            steps_per_s = _number(lists["step_per_sec"][index]) if "step_per_sec" in lists else None
            if not steps_per_s or steps_per_s < 0:
                yield str(label), "has no positive step_per_sec"
                continue
            quantities["step_s"] = Quantity(1 / steps_per_s)
        yield _point(label, machine, method, quantities)
    for label, state in zip(lists["err_jobs"], lists["states"], strict=True):
        status = STATES.get(str(state), "failed")
        yield _point(label, machine, method, {}, status=status, cause=str(state))


def _quantities(
    lists: Lists, index: int, amounts: Mapping[str, tuple[str, float]], cores: int
) -> dict[str, Quantity | None]:
    """Return the quantities of a point; None for one without a number."""
    return {
        quantity: _quantity(lists[name][index], unit * (cores if name in OF_CORE else 1))
        for name, (quantity, unit) in amounts.items()
        if name in lists
    }


def _number(value: Any, unit: float = 1.0) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return value * unit if plain and abs(value) < 1e300 else None


def _quantity(value: Any, unit: float) -> Quantity | None:
    if not isinstance(value, list):
        number = _number(value, unit)
        return None if number is None else Quantity(number)
    numbers = [_number(item, unit) for item in value]
    samples = tuple(number for number in numbers if number is not None)
    return Quantity(samples=samples) if samples and len(samples) == len(value) else None


def _point(
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
    absent = [name for name, quantity in quantities.items() if quantity is None]
    if absent:
        env["not_given"] = absent
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


def _machine(lists: Lists, file: str) -> _Machine:
    """Find the machine of the speeds by the name of the file and by the numbers.

    FLOP of a step over batch x parameters are 6, forward and backward; a core of eight sees an
    eighth of the batch. `intensity` is FLOP over the bytes of the parameters.

    Raises:
        InputError: if name and numbers contradict each other, or name no device.
    """
    shares, sizes = _shares_and_sizes(lists, file)
    is_wide = round(median(sizes)) == FLOAT32_BYTES if sizes else None
    name = file.rpartition("/")[2].lower()
    words = [word for word in ("tpu", "gpu") if word in name]
    implied = None
    if shares:
        implied = "tpu" if median(shares) < MAX_CORE_SHARE else "gpu"
    is_contradicted = words and implied and words[0] != implied
    if len(words) > 1 or not (words or implied) or is_contradicted:
        raise InputError(
            f"the file's name says {' and '.join(words) or 'no device'}, "
            f"its FLOP a step say {implied or 'nothing'}"
        )
    if "gpu" in (*words, implied):
        return _Machine(GPU, "float16-mixed" if is_wide is False else "float32", 1, file)
    return _Machine(TPU, "float32" if is_wide else "bfloat16-mixed", CORES, file)


def _shares_and_sizes(lists: Lists, file: str) -> tuple[list[float], list[float]]:
    """Return FLOP over batch x parameters of each label, and the bytes of a parameter."""
    shares = []
    sizes = []
    for index, label in enumerate(lists["labels"]):
        flop, params, intensity = (
            _number(lists[name][index] if name in lists else None, _TABLE["speeds"][name][1]) or 0.0
            for name in ("fl", "params", "intensity")
        )
        if not (flop and params):
            continue
        if intensity:
            sizes.append(flop / (params * intensity))
        with suppress(InputError):
            _, batch, _ = network(str(label), file)
            shares.append(flop / (batch * params))
    return shares, sizes


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
        detail = row.get("detail")
        if detail:
            words = [word for word in row["words"] if word in re.split(r"[_/.-]", file.lower())]
            if not words:
                label = text[: match.end("batch")]
                raise InputError(f"{label}: the file's name does not say the {detail}")
            model += f",{detail}={words[0]}"
        return read_model(model), int(match["batch"]), match["scope"] or ""
    raise InputError(f"is no label of ParaDnn's: {shorten(text)}")
