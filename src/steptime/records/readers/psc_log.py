"""Slurm logs of TensorFlow's Deep MNIST on PSC Bridges, 2018, one record a log.

What a log says goes before what its file name says: the name has the day of submission, a CPU that
is another one, and GPUs that were not used. Chosen fields are taken, never text: the logs hold
dumps of the environment of their authors.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from steptime.build import make_workload, read_model
from steptime.core.toml_files import packaged
from steptime.records.readers.sources import Reading, RecordSource, Unread, platform_of
from steptime.records.reading import MAX_EXAMPLES
from steptime.records.record import Quantity, Record, RecordMethod

SOURCE = "asakhare/Tensoflow-Benchmarking-with-CNN_DL_MNIST, PSC Bridges, 2018"
METHOD = "psc-mnist"
STAGINGS = {"local": "local", "scratch": "shared"}  # the authors' words: ours
MODES = (("INDEPENDENT", "IN"), ("_PS", "PS"), ("", "single"))  # in a program's name: ours
STRATEGIES = {"IN": "independent", "PS": "parameter-server", "single": ""}
BATCHES_AGREE = 0.01  # logged times and speeds have at least three digits
UNKNOWN_BATCH = "the log does not say the batch; the workload holds the network's usual one"

# What the nodes of a partition have, where a file's name says something else: every log of this
# partition that prints its CPU says E5-2695 v3, and the names of all say E5-2695-V2.
NODES = {("bridges", "RM"): "E5-2695 v3"}

TIMES = (  # our quantities, and the fields that hold them; a log without a time has none of them
    ("step_s", "step_s"),
    ("published_speed_per_s", "speed"),
    ("published_speed_uncertainty_per_s", "uncertainty"),
    ("published_speed_jitter_per_s", "jitter"),
)
_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
# What may follow a result: a number that another line breaks into is none.
_END = r"(?= *(?:\r?$|Images/Sec|Mean |Speed |speed |test ))"
_TABLE = packaged("psc_log.toml")
MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"


class Worked(NamedTuple):
    """Where the work was done: `type` as the log calls it, and who says so."""

    kind: str
    type: str
    devices: int | None
    says: str


@dataclass(frozen=True)
class FileName:
    """What the name of a log claims; "" and None where it says nothing."""

    gpu: str = ""
    cpu: str = ""
    count: int | None = None
    batch: int | None = None
    staging: str = ""
    mode: str = ""


Log = dict[str, Any]
"""What a log says, by the names of the table and of `log_fields`; "" and None: nothing."""


def recognises(source: RecordSource) -> bool:
    """Whether this is the log of a job of Slurm, by its name or by what the job printed first."""
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
        return Reading(unread=(Unread(source.name, None, reason),))
    return Reading((_record(log, file_name(source.name)),))


def _record(log: Log, name: FileName) -> Record:
    mode = log["mode"] or name.mode or "single"
    staging = log["staging"] or name.staging or "scratch"
    worked = _worked(log, name)
    batch, batch_source = _batch(log, name)
    replicas = 1 if mode == "single" else log["gpus_used"] or worked.devices or 1
    network = read_model("deep_mnist")
    workload = make_workload(
        network, batch=batch, dtype="float32", optimizer="adam", replicas=replicas
    )
    ok = log["step_s"] is not None and log["speed"] is not None
    causes = log["causes"] or (() if ok else ("no_result",))
    status = "ok" if ok else "timeout" if "slurm_time_limit" in causes else "failed"
    on_gpu = worked.kind == "gpu"
    found = [("accuracy", "accuracy"), *(TIMES if ok else ())]
    options = {
        "gpu": (log["gpu_type"] or worked.type).lower() if on_gpu else "",
        "device_count": worked.devices if on_gpu else 1,
        "staging": STAGINGS[staging],
        "strategy": STRATEGIES[mode],
        "program": log["program"],
    }
    return Record(
        origin="published",
        method=RecordMethod(METHOD, log["tensorflow"] or "unknown", options),
        workload=workload,
        platform=_platform(log, worked),
        quantities={name: Quantity(log[key]) for name, key in found if log[key] is not None},
        status=status,
        cause="" if ok else "+".join(causes),
        note="; ".join(_notes(log, batch, batch_source, ok=ok, alone=replicas == 1)),
        env={
            "date": log["day"],
            "submitted": log["submitted"],
            "device_kind": worked.kind,
            "device_type": worked.type,
            "device_count": worked.devices,
            "device_type_source": worked.says,
            "gpus_used": log["gpus_used"],
            "allocated_gpu_type": log["gpu_type"].upper(),
            "allocated_gpu_count": log["gpu_count"],
            "numcpus": log["cpus"],
            "batch_source": batch_source or "unknown",
            "staging": staging,
            "mode": mode,
            "outcome": "ok" if ok else "failed",
            "job_id": log["job_id"],
            "host": log["node"],
            "partition": log["partition"],
        },
        taken_at=log["started"],
    )


def _notes(log: Log, batch: int | None, batch_source: str, *, ok: bool, alone: bool) -> list[str]:
    """Return what a reader of the numbers should know; `alone` says that one device worked."""
    notes = []
    if ok and log["causes"]:
        notes.append(f"finished, but the log says {'+'.join(log['causes'])}")
    if log["results"] > 1:
        notes.append(f"the log holds {log['results']} results; this is the first")
    if not batch_source:
        notes.append(UNKNOWN_BATCH)
    elif batch and alone and log["speed"] and log["step_s"]:
        implied = log["speed"] * log["step_s"]
        if abs(implied / batch - 1) > BATCHES_AGREE:
            notes.append(f"the batch is {batch} ({batch_source}), speed x time is {implied:.6g}")
    return notes


def _batch(log: Log, name: FileName) -> tuple[int | None, str]:
    if log["batch"] is not None:
        return log["batch"], "logged"
    if name.batch is not None:
        return name.batch, "filename"
    if log["speed"] and log["step_s"]:
        implied = log["speed"] * log["step_s"]  # the speed is the batch over the mean time
        if 0.5 < implied <= MAX_EXAMPLES and abs(implied - round(implied)) < 1e-3:
            return round(implied), "implied"
    return None, ""


def _worked(log: Log, name: FileName) -> Worked:
    """Return where the work was done: where operations were placed tells, then what was seen."""
    on_gpu = bool(log["gpu_product"] or log["gpu_type"] or name.gpu)
    if log["gpus_used"] is not None:
        on_gpu = log["gpus_used"] > 0
    elif not log["gpu_product"] and (log["sees_no_gpu"] or name.cpu):
        on_gpu = False
    if on_gpu:
        said = [(log["gpu_product"], "log"), (log["gpu_type"], "slurm"), (name.gpu, "filename")]
        count = log["gpu_count"] if log["gpu_count"] is not None else name.count
    else:
        node = NODES.get((log["cluster"], log["partition"]), "") if name.cpu else ""
        said = [(log["cpu_product"], "log"), (node, "inferred"), (name.cpu, "filename")]
        did_work = log["gpus_used"] is not None or log["sees_no_gpu"] or name.cpu
        count = log["tasks"] if did_work else None
    kind, says = next((one for one in said if one[0]), ("", "unknown"))
    return Worked("gpu", kind.upper(), count, says) if on_gpu else Worked("cpu", kind, count, says)


def _platform(log: Log, worked: Worked) -> str:
    """Return the name of the device in data/; one that the log does not print by Slurm's word."""
    if worked.kind == "gpu":
        return platform_of(log["gpu_full_name"] or worked.type)
    model = re.sub(r"[^a-z0-9]+", "-", (worked.type or "unknown").lower())
    return f"cpu-{model}-{log['cpus']}t" if log["cpus"] else f"cpu-{model}"


def file_name(path: str) -> FileName:
    """Return what a name such as `2018-07-05-CPU-RM:E5-2695-V2:8:32:scratch` claims."""
    first, *rest = path.rpartition("/")[2].split(":")
    start = re.fullmatch(r"\d{4}-?\d\d-?\d\d-(?:(CPU)-\w+|(?:GPU-)?(\w+))", first)
    if not start:
        return FileName()
    cpu = rest.pop(0) if start[1] and rest else ""
    numbers = [int(word) for word in rest if re.fullmatch(r"\d{1,9}", word)]
    return FileName(
        gpu=start[2] or "",
        cpu=re.sub(r"-[vV](\d+)$", r" v\1", cpu),
        count=numbers[0] if numbers else None,
        batch=numbers[1] if len(numbers) > 1 else None,
        staging=next((word for word in rest if word in ("local", "scratch")), ""),
        mode=next((word for word in rest if word in ("IN", "PS")), ""),
    )


def log_fields(text: str) -> Log:
    """Return the fields of a log; standard output and error may be interleaved anywhere in it.

    `results` counts its speeds, `gpus_used` those GPUs on which operations were placed.
    """
    reads: Mapping[str, Callable[[str, str], Any]]
    reads = {"text": _first, "whole": _whole, "number": _number}
    log: Log = {
        name: read(text, pattern)
        for kind, read in reads.items()
        for name, pattern in _TABLE[kind].items()
    }
    program = log["program"]
    results = rf"(?i:{_TABLE['number']['speed']}){_NUMBER}{_END}"
    versions = re.findall(r"VIRTUAL_ENV=\S{0,200}/(?:tf|TensorFlow_)(\d+(?:\.\d+)+)", text)
    ran = "scratch" if re.search(r"^\+ python", text, re.MULTILINE) else ""  # else not so far
    found = log["speed"] is not None or "CNN_MNIST" in program
    return log | {
        "day": log["started"][:10] or _printed_day(text),
        "gpu_product": re.sub(r"^\w+ |-.*", "", log["gpu_full_name"]),
        "cpu_product": _cpu(text),
        "gpus_used": _gpus_used(text),
        "sees_no_gpu": "Device mapping: no known devices" in text,
        "tensorflow": versions[-1] if versions else "",
        "mode": next((mode for word, mode in MODES if word in program), "") if program else "",
        "staging": "local" if re.search(r"^\+ cd /local/", text, re.MULTILINE) else ran,
        "batch": _whole(text, r"batch_size = (\d+)") or _whole(text, r"batch_size=(\d+)"),
        "step_s": log["step_s"] or None,  # no step takes no time
        "causes": tuple(
            word for word, says in _TABLE["causes"].items() if re.search(says, text, re.MULTILINE)
        ),
        "is_benchmark": found or bool(_first(text, r"^(JobId=\d+ JobName=\S*CNN_MNIST)")),
        "results": len(re.findall(results, text, re.MULTILINE)),
    }


def _first(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _whole(text: str, pattern: str) -> int | None:
    found = _first(text, pattern)
    return int(found) if found and len(found) <= 15 else None


def _printed_day(text: str) -> str:
    """Return the day that `date` prints, `Fri Jun  1 12:50:37 EDT 2018`, as 2018-06-01."""
    printed = rf"^\w{{3}} ({MONTHS}) +(\d{{1,2}}) [\d:]{{8}} \w+ (\d{{4}})$"
    found = re.search(printed, text, re.MULTILINE)
    month = MONTHS.split("|").index(found[1]) + 1 if found else 0
    return f"{found[3]}-{month:02}-{int(found[2]):02}" if found else ""


def _number(text: str, label: str) -> float | None:
    """Return the first number behind a label; a line of code with the label has none there."""
    found = _first(text, rf"(?i:{label}){_NUMBER}{_END}")
    value = float(found) if found else math.nan
    return value if math.isfinite(value) and value >= 0 else None


def _cpu(text: str) -> str:
    """Return the CPU that lscpu prints, without maker and clock: E5-2695 v3."""
    product = _first(text, r"^Model name: *(.+)$").partition("@")[0]
    return " ".join(re.sub(r"\(R\)|\(TM\)|\b(Intel|Xeon|CPU|Processor)\b", " ", product).split())


def _gpus_used(text: str) -> int | None:
    """Return on how many GPUs operations were placed, None where placement was not logged.

    A line that another one breaks into has no number at its end, and is left out.
    """
    spot = r": \(\w+\):? ?/job:[^\s]*?/(?:device:)?([CG]PU):(\d{1,3})\r?$"
    placed = re.findall(spot, text, re.MULTILINE)
    return len({number for kind, number in placed if kind == "GPU"}) if placed else None
