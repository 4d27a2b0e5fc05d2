"""Slurm logs of TensorFlow's Deep MNIST on PSC Bridges, 2018, one record a log.

A log goes before its file name: the name has the day of submission, a CPU that is another one, and
GPUs that were not used. Only the fields below are read, never text: the logs hold dumps of the
environment of their authors.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from steptime.build import make_workload, read_model
from steptime.core.json_types import JsonObject
from steptime.core.toml_files import read_packaged_toml
from steptime.records.readers.sources import Reading, RecordSource, Unread, platform_of
from steptime.records.reading import MAX_EXAMPLES
from steptime.records.record import Quantity, Record, RecordMethod

SOURCE = "asakhare/Tensoflow-Benchmarking-with-CNN_DL_MNIST, PSC Bridges, 2018"
METHOD = "psc-mnist"
STAGINGS = {"local": "local", "scratch": "shared"}  # the authors' words: ours
MODES = (("INDEPENDENT", "IN"), ("_PS", "PS"), ("", "single"))  # in a program's name: ours
STRATEGIES = {"IN": "independent", "PS": "parameter-server", "single": ""}
BATCHES_AGREE = 0.01  # logged times and speeds have at least three digits
BATCH_TOLERANCE = 1e-3  # between a whole batch and speed x time, which is rounded
UNKNOWN_BATCH = "the log does not say the batch; the workload holds the network's usual one"

# CPUs of partitions, which go before file names: every log of this partition that prints its CPU
# has E5-2695 v3, and the names of all have E5-2695-V2.
NODES = {("bridges", "RM"): "E5-2695 v3"}
UNKNOWN_DEVICE = ("", "unknown")  # product and source

TIMES = (  # our quantities, and the fields that hold them; a log without a time has none of them
    ("step_s", "step_s"),
    ("published_examples_per_s", "speed"),
    ("published_examples_uncertainty_per_s", "uncertainty"),
    ("published_examples_jitter_per_s", "jitter"),
)
_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
# The text behind a result: a number that another line breaks into is none.
_END = r"(?= *(?:\r?$|Images/Sec|Mean |Speed |speed |test ))"
_TABLE = read_packaged_toml("psc_log.toml")
MAX_DIGITS = 15  # of a whole number
ENVIRONMENT = (  # facts of a record, in order
    *("date", "submitted", "device_kind", "device_type", "device_count", "device_type_source"),
    *("gpus_used", "allocated_gpu_type", "allocated_gpu_count", "numcpus", "batch_source"),
    *("staging", "mode", "outcome", "job_id", "host", "partition"),
)
MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"


class DevicesUsed(NamedTuple):
    """The devices that did the work.

    Attributes:
        kind: gpu or cpu.
        type: the product, as the log calls it; "" if unknown.
        devices: their number; None if unknown.
        source: log, slurm, filename, inferred or unknown.
    """

    kind: str
    type: str
    devices: int | None
    source: str


@dataclass(frozen=True)
class FileName:
    """The claims of the name of a log; "" and None are unknown."""

    gpu: str = ""
    cpu: str = ""
    count: int | None = None
    batch: int | None = None
    staging: str = ""
    mode: str = ""


Log = JsonObject
"""The fields of a log, by the names of the table and of `log_fields`; "" and None are unknown."""


def recognises(source: RecordSource) -> bool:
    """Return whether a file is the log of a job of Slurm, by its name or its first lines."""
    return bool(
        re.search(r"(^|/)slurm-\d+\.out$", source.name)
        or file_name(source.name) != FileName()
        or re.search(r"^JobId=\d+ JobName=", source.head, re.MULTILINE)
        or re.search(r"Mean Speed *: *\d", source.tail)
    )


def read(source: RecordSource) -> Reading:
    """Return the record of a log, or the reason why it is not one of this benchmark."""
    log = log_fields(source.text)
    if not log["is_benchmark"]:
        reason = "not_a_benchmark: no job that runs CNN_MNIST, and no result"
        return Reading(unread=(Unread(source.name, line=None, reason=reason),))
    return Reading((_make_record(log, file_name(source.name)),))


def _make_record(log: Log, name: FileName) -> Record:
    mode = log["mode"] or name.mode or "single"
    staging = log["staging"] or name.staging or "scratch"
    devices_used = _find_devices(log, name)
    batch, batch_source = _find_batch(log, name)
    # GPUs that computed count, not those that the job was given.
    device_count = log["gpus_used"] or devices_used.devices or 1
    replicas = 1 if mode == "single" else device_count
    network = read_model("deep_mnist")
    workload = make_workload(
        network, batch=batch, dtype="float32", optimizer="adam", replicas=replicas
    )
    has_result = log["step_s"] is not None and log["speed"] is not None
    status, cause = _find_outcome(log, has_result)
    ran_on_gpu = devices_used.kind == "gpu"
    field_by_quantity = {"accuracy": "accuracy"}
    if has_result:
        field_by_quantity |= dict(TIMES)
    options = {
        "gpu": (log["gpu_type"] or devices_used.type).lower() if ran_on_gpu else "",
        "device_count": devices_used.devices if ran_on_gpu else 1,
        "staging": STAGINGS[staging],
        "strategy": STRATEGIES[mode],
        "program": log["program"],
    }
    env = _describe_environment(log, devices_used)
    env |= {
        "batch_source": batch_source or "unknown",
        "staging": staging,
        "mode": mode,
        "outcome": "ok" if has_result else "failed",
    }
    notes = _describe_doubts(log, batch, batch_source, has_result, is_single=replicas == 1)
    return Record(
        origin="published",
        method=RecordMethod(METHOD, log["tensorflow"] or "unknown", options),
        workload=workload,
        platform=_name_platform(log, devices_used),
        quantities={
            quantity: Quantity(log[field])
            for quantity, field in field_by_quantity.items()
            if log[field] is not None
        },
        status=status,
        cause=cause,
        note="; ".join(notes),
        env={name: env[name] for name in ENVIRONMENT},
        taken_at=log["started"],
    )


def _find_outcome(log: Log, has_result: bool) -> tuple[str, str]:
    """Return the status of a job and its cause."""
    if has_result:
        return "ok", ""
    causes = log["causes"] or ("no_result",)
    status = "timeout" if "slurm_time_limit" in causes else "failed"
    return status, "+".join(causes)


def _describe_environment(log: Log, devices_used: DevicesUsed) -> JsonObject:
    """Return the facts of a log about its job and its devices."""
    return {
        "date": log["day"],
        "submitted": log["submitted"],
        "device_kind": devices_used.kind,
        "device_type": devices_used.type,
        "device_count": devices_used.devices,
        "device_type_source": devices_used.source,
        "gpus_used": log["gpus_used"],
        "allocated_gpu_type": log["gpu_type"].upper(),
        "allocated_gpu_count": log["gpu_count"],
        "numcpus": log["cpus"],
        "job_id": log["job_id"],
        "host": log["node"],
        "partition": log["partition"],
    }


def _describe_doubts(
    log: Log, batch: int | None, batch_source: str, has_result: bool, *, is_single: bool
) -> list[str]:
    """Return remarks on numbers that may be wrong; `is_single` is true for one device."""
    notes = []
    if has_result and log["causes"]:
        notes.append(f"finished, but the log says {'+'.join(log['causes'])}")
    if log["results"] > 1:
        notes.append(f"the log holds {log['results']} results; this is the first")
    if not batch_source:
        notes.append(UNKNOWN_BATCH)
    elif batch and is_single and log["speed"] and log["step_s"]:
        implied_batch = log["speed"] * log["step_s"]
        if abs(implied_batch / batch - 1) > BATCHES_AGREE:
            product = f"speed x time is {implied_batch:.6g}"
            notes.append(f"the batch is {batch} ({batch_source}), {product}")
    return notes


def _find_batch(log: Log, name: FileName) -> tuple[int | None, str]:
    """Return the batch of a step and its source; None and "" if nothing says it."""
    if log["batch"] is not None:
        return log["batch"], "logged"
    if name.batch is not None:
        return name.batch, "filename"
    if log["speed"] and log["step_s"]:
        implied_batch = log["speed"] * log["step_s"]  # the speed is the batch over the mean time
        is_in_range = 0.5 < implied_batch <= MAX_EXAMPLES
        # A product that is no whole number is not of one batch.
        if is_in_range and abs(implied_batch - round(implied_batch)) < BATCH_TOLERANCE:
            return round(implied_batch), "implied"
    return None, ""


def _find_devices(log: Log, name: FileName) -> DevicesUsed:
    """Find the devices of a job: by the placement of operations, then by the devices seen."""
    # Of several sources that name the device, the first one counts: the surest.
    if _ran_on_gpu(log, name):
        claims = [(log["gpu_product"], "log"), (log["gpu_type"], "slurm"), (name.gpu, "filename")]
        product, source = next((claim for claim in claims if claim[0]), UNKNOWN_DEVICE)
        count = log["gpu_count"] if log["gpu_count"] is not None else name.count
        return DevicesUsed("gpu", product.upper(), count, source)
    # File names state another CPU than the logs of this partition print: the partition decides.
    node = NODES.get((log["cluster"], log["partition"]), "") if name.cpu else ""
    claims = [(log["cpu_product"], "log"), (node, "inferred"), (name.cpu, "filename")]
    product, source = next((claim for claim in claims if claim[0]), UNKNOWN_DEVICE)
    # Without one of these signs the kind of device is only assumed, so its number is unknown.
    is_surely_on_cpu = log["gpus_used"] is not None or log["sees_no_gpu"] or name.cpu
    count = log["tasks"] if is_surely_on_cpu else None
    return DevicesUsed("cpu", product, count, source)


def _ran_on_gpu(log: Log, name: FileName) -> bool:
    """Whether a job ran on GPUs: by the placement of its operations, where that is logged."""
    if log["gpus_used"] is not None:
        return bool(log["gpus_used"] > 0)
    if log["gpu_product"]:  # TensorFlow printed the GPU that it opened
        return True
    if log["sees_no_gpu"] or name.cpu:
        return False
    return bool(log["gpu_type"] or name.gpu)


def _name_platform(log: Log, devices_used: DevicesUsed) -> str:
    """Return the name of the device in data/, by Slurm's word if the log does not print it."""
    if devices_used.kind == "gpu":
        return platform_of(log["gpu_full_name"] or devices_used.type)
    model = re.sub(r"[^a-z0-9]+", "-", (devices_used.type or "unknown").lower())
    return f"cpu-{model}-{log['cpus']}t" if log["cpus"] else f"cpu-{model}"


def file_name(path: str) -> FileName:
    """Return the claims of a name such as `2018-07-05-CPU-RM:E5-2695-V2:8:32:scratch`."""
    # `2018-07-05-CPU-RM:E5-2695-V2:16:8192:scratch`, `2018-08-01-GPU-p100:2:2048:scratch:PS`
    first, *words = path.rpartition("/")[2].split(":")
    start = re.fullmatch(r"\d{4}-?\d\d-?\d\d-(?:(CPU)-\w+|(?:GPU-)?(\w+))", first)
    if not start:
        return FileName()
    cpu = words.pop(0) if start[1] and words else ""
    # The first number counts devices, the second one is the batch.
    numbers = [int(word) for word in words if re.fullmatch(r"\d{1,9}", word)]
    return FileName(
        gpu=start[2] or "",
        cpu=re.sub(r"-[vV](\d+)$", r" v\1", cpu),
        count=numbers[0] if numbers else None,
        batch=numbers[1] if len(numbers) > 1 else None,
        staging=next((word for word in words if word in ("local", "scratch")), ""),
        mode=next((word for word in words if word in ("IN", "PS")), ""),
    )


def log_fields(text: str) -> Log:
    """Return the fields of a log; standard output and error may be interleaved anywhere in it.

    `results` counts its speeds, `gpus_used` those GPUs on which operations were placed.
    """
    # Most fields are found by a pattern of the data file, by the type of their value.
    readers: Mapping[str, Callable[[str, str], Any]]
    readers = {"text": _find_first, "whole": _find_integer, "number": _find_number}
    log: Log = {
        name: read_field(text, pattern)
        for kind, read_field in readers.items()
        for name, pattern in _TABLE[kind].items()
    }
    program = log["program"]
    result_pattern = rf"(?i:{_TABLE['number']['speed']}){_NUMBER}{_END}"
    versions = re.findall(r"VIRTUAL_ENV=\S{0,200}/(?:tf|TensorFlow_)(\d+(?:\.\d+)+)", text)
    is_staged_locally = re.search(r"^\+ cd /local/", text, re.MULTILINE)
    # Lines that begin with + are commands, as `bash -x` prints them.
    has_run_program = re.search(r"^\+ python", text, re.MULTILINE)
    default_staging = "scratch" if has_run_program else ""
    is_benchmark = log["speed"] is not None or "CNN_MNIST" in program
    return log | {
        "day": log["started"][:10] or _find_printed_day(text),
        # `P100` of `Tesla P100-PCIE-16GB`.
        "gpu_product": re.sub(r"^\w+ |-.*", "", log["gpu_full_name"]),
        "cpu_product": _find_cpu(text),
        "gpus_used": _count_gpus(text),
        "sees_no_gpu": "Device mapping: no known devices" in text,
        "tensorflow": versions[-1] if versions else "",
        "mode": next((mode for word, mode in MODES if word in program), "") if program else "",
        "staging": "local" if is_staged_locally else default_staging,
        "batch": _find_integer(text, r"batch_size = (\d+)")
        or _find_integer(text, r"batch_size=(\d+)"),
        "step_s": log["step_s"] or None,  # no step takes no time
        "causes": tuple(
            cause
            for cause, pattern in _TABLE["causes"].items()
            if re.search(pattern, text, re.MULTILINE)
        ),
        "is_benchmark": is_benchmark
        or bool(_find_first(text, r"^(JobId=\d+ JobName=\S*CNN_MNIST)")),
        "results": len(re.findall(result_pattern, text, re.MULTILINE)),
    }


def _find_first(text: str, pattern: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else ""


def _find_integer(text: str, pattern: str) -> int | None:
    digits = _find_first(text, pattern)
    return int(digits) if digits and len(digits) <= MAX_DIGITS else None


def _find_printed_day(text: str) -> str:
    """Return the day that `date` prints, `Fri Jun  1 12:50:37 EDT 2018`, as 2018-06-01."""
    printed = rf"^\w{{3}} ({MONTHS}) +(\d{{1,2}}) [\d:]{{8}} \w+ (\d{{4}})$"
    match = re.search(printed, text, re.MULTILINE)
    if not match:
        return ""
    month = MONTHS.split("|").index(match[1]) + 1
    return f"{match[3]}-{month:02}-{int(match[2]):02}"


def _find_number(text: str, label: str) -> float | None:
    """Return the first number behind a label; a line of code with the label has none there."""
    digits = _find_first(text, rf"(?i:{label}){_NUMBER}{_END}")
    value = float(digits) if digits else math.nan
    return value if math.isfinite(value) and value >= 0 else None


def _find_cpu(text: str) -> str:
    """Return the CPU that lscpu prints, without maker and clock: E5-2695 v3."""
    product = _find_first(text, r"^Model name: *(.+)$").partition("@")[0]
    return " ".join(re.sub(r"\(R\)|\(TM\)|\b(Intel|Xeon|CPU|Processor)\b", " ", product).split())


def _count_gpus(text: str) -> int | None:
    """Count the GPUs on which operations were placed; None if placement was not logged.

    A line that another one breaks into has no number at its end, and is left out.
    """
    placement_pattern = r": \(\w+\):? ?/job:[^\s]*?/(?:device:)?([CG]PU):(\d{1,3})\r?$"
    placements = re.findall(placement_pattern, text, re.MULTILINE)  # kind and number of a device
    if not placements:
        return None
    return len({number for kind, number in placements if kind == "GPU"})
