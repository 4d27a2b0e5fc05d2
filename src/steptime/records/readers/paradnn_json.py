"""ParaDnn's released JSON files: speeds of TPU and GPU, profiles of a TPU and of its operations.

All hold lists of equal length, one entry a point. The authors' scripts say by the file's name
where a file is from; `fl` over `params` x `intensity`, the bytes of a parameter, says the type.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple

from steptime.build import Choice, make_workload, read_model
from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import packaged
from steptime.records.readers.sources import Reading, RecordSource, Unread
from steptime.records.record import Quantity, Record, RecordMethod

Lists = Mapping[str, list[Any]]

SOURCE = "Emma926/paradnn; Wang, Wei, Brooks, MLSys 2020"
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
    """Whether this is a JSON object with lists of labels."""
    return source.head.lstrip().startswith("{") and (
        b'"labels"' in source.content or b'"err_jobs"' in source.content
    )


def read(source: RecordSource) -> Reading:
    """Return a record a label, failed ones too; an operation of a profile is a record's scope."""
    try:
        lists = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {shorten(str(error))[1:-1]}") from None
    found = list(_points(_checked(lists), source.name))
    records = [one for _, one in found if isinstance(one, Record)]
    unread = [Unread(source.name, at, one) for at, one in found if isinstance(one, str)]
    return Reading(tuple(records), tuple(unread))


def _checked(lists: Mapping[str, Any]) -> Lists:
    for name, values in lists.items():
        if not isinstance(values, list):
            raise InputError(f"{shorten(name)} is no list")
    found = {"labels": [], "err_jobs": [], "states": [], **lists}
    for names in (FAILURES, [name for name in found if name not in FAILURES]):
        if len({len(found[name]) for name in names}) > 1:
            raise InputError(f"the lists {', '.join(map(shorten, names))} differ in length")
    return found


class _Machine(NamedTuple):
    platform: str
    dtype: str
    cores: int
    file: str  # whose name may say the kind of block or cell


def _points(lists: Lists, file: str) -> Iterator[tuple[str | None, Record | str]]:
    timed = "example_per_sec" in lists or bool(lists["err_jobs"])
    amounts = _TABLE["speeds" if timed else "profile"]
    others = ("step_per_sec",) if timed else OF_TRACES
    machine = _Machine(TPU, "bfloat16-mixed", CORES, file)
    method = RecordMethod("paradnn-profile", "unknown", {})
    if timed:
        machine = _machine(lists, file)
        method = RecordMethod("paradnn", "unknown", {"statistic": BEST})
    for name in lists:
        if name not in {"labels", *amounts, *others, *FAILURES}:
            yield None, f"list {shorten(name)} is not known"
    for index, label in enumerate(lists["labels"]):
        held = {
            ours: _quantity(lists[name][index], unit * (machine.cores if name in OF_CORE else 1))
            for name, (ours, unit) in amounts.items()
            if name in lists
        }
        steps = _number(lists["step_per_sec"][index]) if "step_per_sec" in lists else None
        if timed and not (steps and steps > 0):
            yield str(label), "has no positive step_per_sec"
            continue
        if timed and steps:
            held["step_s"] = Quantity(1 / steps)
        yield _point(label, machine, method, held)
    for label, state in zip(lists["err_jobs"], lists["states"], strict=True):
        status = STATES.get(str(state), "failed")
        yield _point(label, machine, method, {}, status=status, cause=str(state))


def _number(value: Any, unit: float = 1.0) -> float | None:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return value * unit if plain and abs(value) < 1e300 else None


def _quantity(value: Any, unit: float) -> Quantity | None:
    if not isinstance(value, list):
        number = _number(value, unit)
        return None if number is None else Quantity(number)
    numbers = [n for one in value if (n := _number(one, unit)) is not None]
    return Quantity(samples=tuple(numbers)) if numbers and len(numbers) == len(value) else None


def _point(
    label: object,
    machine: _Machine,
    method: RecordMethod,
    held: Mapping[str, Quantity | None],
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
    env: dict[str, Any] = {"source_entry": text, "cores": machine.cores}
    if absent := [name for name, quantity in held.items() if quantity is None]:
        env["not_given"] = absent
    return text, Record(
        origin="published",
        method=method,
        workload=workload,
        platform=machine.platform,
        quantities={name: quantity for name, quantity in held.items() if quantity},
        status=status,
        cause=cause,
        scope=scope,
        env=env,
    )


def _machine(lists: Lists, file: str) -> _Machine:
    """Return where the speeds are from; raises `InputError` where name and numbers do not say.

    FLOP of a step over batch x parameters are 6, forward and backward; a core of eight sees an
    eighth of the batch. `intensity` is FLOP over the bytes of the parameters.
    """
    shares, sizes = [], []
    for index, label in enumerate(lists["labels"]):
        flop, params, intensity = (
            _number(lists[name][index] if name in lists else None, _TABLE["speeds"][name][1]) or 0.0
            for name in ("fl", "params", "intensity")
        )
        if flop and params and intensity:
            sizes.append(flop / (params * intensity))
        with suppress(InputError):
            if flop and params:
                shares.append(flop / (network(str(label), file)[1] * params))
    wide = round(median(sizes)) == 4 if sizes else None
    name = file.rpartition("/")[2].lower()
    named = [word for word in ("tpu", "gpu") if word in name]
    seen = ("tpu" if median(shares) < 2 else "gpu") if shares else None
    if len(named) > 1 or not (named or seen) or (named and seen and named[0] != seen):
        raise InputError(
            f"the file's name says {' and '.join(named) or 'no device'}, "
            f"its FLOP a step say {seen or 'nothing'}"
        )
    if "gpu" in (*named, seen):
        return _Machine(GPU, "float16-mixed" if wide is False else "float32", 1, file)
    return _Machine(TPU, "float32" if wide else "bfloat16-mixed", CORES, file)


def network(text: str, file: str = "") -> tuple[Choice, int, str]:
    """Return the network of a label, its batch, and the operation behind it: `...-bs_512-infeed`.

    The `file` names the kind of block or cell. Raises `InputError` for what is no label.
    """
    for pattern, row in PATTERNS:
        found = pattern.fullmatch(text)
        if not found:
            continue
        said = row["model"].format(**found.groupdict())
        detail = row.get("detail")
        if detail:
            named = [word for word in row["words"] if word in re.split(r"[_/.-]", file.lower())]
            if not named:
                label = text[: found.end("batch")]
                raise InputError(f"{label}: the file's name does not say the {detail}")
            said += f",{detail}={named[0]}"
        return read_model(said), int(found["batch"]), found["scope"] or ""
    raise InputError(f"is no label of ParaDnn's: {shorten(text)}")
