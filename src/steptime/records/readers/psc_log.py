"""Slurm logs of TensorFlow's Deep MNIST on PSC Bridges, 2018, one record a log.

A log goes before its file name: the name has the day of submission, a CPU that is another one, and
GPUs that were not used. Only the fields below are read, never text: the logs hold dumps of the
environment of their authors.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from steptime.build import make_workload, read_model
from steptime.core.json_types import JsonObject
from steptime.records.readers.psc_log_fields import Log, log_fields
from steptime.records.readers.sources import Reading, RecordSource, Unread, platform_of
from steptime.records.reading import MAX_EXAMPLES
from steptime.records.record import Quantity, Record, RecordMethod

SOURCE = "asakhare/Tensoflow-Benchmarking-with-CNN_DL_MNIST, PSC Bridges, 2018"
METHOD = "psc-mnist"
STAGINGS = {"local": "local", "scratch": "shared"}  # the authors' words: ours
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
ENVIRONMENT = (  # facts of a record, in order
    *("date", "submitted", "device_kind", "device_type", "device_count", "device_type_source"),
    *("gpus_used", "allocated_gpu_type", "allocated_gpu_count", "numcpus", "batch_source"),
    *("staging", "mode", "outcome", "job_id", "host", "partition"),
)


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
    """Return the record of a log; its file's name says what the log does not."""
    job = _describe_job(log, name)
    status, cause = _find_outcome(log, job.has_result)
    network = read_model("deep_mnist")
    return Record(
        origin="published",
        method=RecordMethod(METHOD, log["tensorflow"] or "unknown", _list_options(log, job)),
        workload=make_workload(
            network, batch=job.batch, dtype="float32", optimizer="adam", replicas=job.replicas
        ),
        platform=_name_platform(log, job.devices_used),
        quantities=_list_quantities(log, job.has_result),
        status=status,
        cause=cause,
        note="; ".join(_describe_doubts(log, job)),
        env=_describe_environment(log, job),
        taken_at=log["started"],
    )


@dataclass(frozen=True)
class _LoggedJob:
    """The facts of a job that its log and the name of the log say together.

    Attributes:
        mode: `single`, `IN` (independent copies) or `PS` (parameter server).
        staging: `local` or `scratch`, where the input was read from.
        devices_used: the devices that did the work.
        replicas: the copies of the network.
        batch: the batch of a step; None if nothing says it.
        batch_source: `logged`, `filename`, `implied`, or "" for an unknown batch.
        has_result: whether the job printed a time and a speed.
    """

    mode: str
    staging: str
    devices_used: DevicesUsed
    replicas: int
    batch: int | None
    batch_source: str
    has_result: bool

    @property
    def ran_on_gpu(self) -> bool:
        """Whether GPUs did the work."""
        return self.devices_used.kind == "gpu"


def _describe_job(log: Log, name: FileName) -> _LoggedJob:
    """Return the facts of a job, each from the log where it says it, else from the name."""
    mode = log["mode"] or name.mode or "single"
    devices_used = _find_devices(log, name)
    # GPUs that computed count, not those that the job was given.
    device_count = log["gpus_used"] or devices_used.devices or 1
    batch, batch_source = _find_batch(log, name)
    return _LoggedJob(
        mode=mode,
        staging=log["staging"] or name.staging or "scratch",
        devices_used=devices_used,
        replicas=1 if mode == "single" else device_count,
        batch=batch,
        batch_source=batch_source,
        has_result=log["step_s"] is not None and log["speed"] is not None,
    )


def _list_options(log: Log, job: _LoggedJob) -> JsonObject:
    """Return the options of the method: the devices, the staging and the program."""
    devices_used = job.devices_used
    gpu = log["gpu_type"] or devices_used.type
    return {
        "gpu": gpu.lower() if job.ran_on_gpu else "",
        "device_count": devices_used.devices if job.ran_on_gpu else 1,
        "staging": STAGINGS[job.staging],
        "strategy": STRATEGIES[job.mode],
        "program": log["program"],
    }


def _list_quantities(log: Log, has_result: bool) -> dict[str, Quantity]:
    """Return the numbers of a log: its times if it has a result, and its accuracy."""
    field_by_quantity = {"accuracy": "accuracy"}
    if has_result:
        field_by_quantity |= dict(TIMES)
    return {
        quantity: Quantity(log[field])
        for quantity, field in field_by_quantity.items()
        if log[field] is not None
    }


def _find_outcome(log: Log, has_result: bool) -> tuple[str, str]:
    """Return the status of a job and its cause."""
    if has_result:
        return "ok", ""
    causes = log["causes"] or ("no_result",)
    status = "timeout" if "slurm_time_limit" in causes else "failed"
    return status, "+".join(causes)


def _describe_environment(log: Log, job: _LoggedJob) -> JsonObject:
    """Return the facts of a log about its job and its devices, in the order of `ENVIRONMENT`."""
    devices_used = job.devices_used
    facts = {
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
        "batch_source": job.batch_source or "unknown",
        "staging": job.staging,
        "mode": job.mode,
        "outcome": "ok" if job.has_result else "failed",
        "job_id": log["job_id"],
        "host": log["node"],
        "partition": log["partition"],
    }
    return {name: facts[name] for name in ENVIRONMENT}


def _describe_doubts(log: Log, job: _LoggedJob) -> list[str]:
    """Return remarks on numbers that may be wrong."""
    notes = []
    if job.has_result and log["causes"]:
        notes.append(f"finished, but the log says {'+'.join(log['causes'])}")
    if log["results"] > 1:
        notes.append(f"the log holds {log['results']} results; this is the first")
    if not job.batch_source:
        notes.append(UNKNOWN_BATCH)
    implied_batch = _imply_batch(log)
    # Only one device says its whole batch: speed x time of several is that of all.
    if job.batch and implied_batch and job.replicas == 1:
        is_contradicted = abs(implied_batch / job.batch - 1) > BATCHES_AGREE
        if is_contradicted:
            product = f"speed x time is {implied_batch:.6g}"
            notes.append(f"the batch is {job.batch} ({job.batch_source}), {product}")
    return notes


def _imply_batch(log: Log) -> float | None:
    """Return speed x time of a log, which is the batch; None where it lacks one of them."""
    if not log["speed"] or not log["step_s"]:
        return None
    return float(log["speed"] * log["step_s"])


def _find_batch(log: Log, name: FileName) -> tuple[int | None, str]:
    """Return the batch of a step and its source; None and "" if nothing says it."""
    if log["batch"] is not None:
        return log["batch"], "logged"
    if name.batch is not None:
        return name.batch, "filename"
    implied_batch = _imply_batch(log)
    if implied_batch is not None and 0.5 < implied_batch <= MAX_EXAMPLES:
        # A product that is no whole number is not of one batch.
        is_integer = abs(implied_batch - round(implied_batch)) < BATCH_TOLERANCE
        if is_integer:
            return round(implied_batch), "implied"
    return None, ""


def _find_devices(log: Log, name: FileName) -> DevicesUsed:
    """Find the devices of a job: by the placement of operations, then by the devices seen."""
    if _ran_on_gpu(log, name):
        return _find_gpus(log, name)
    return _find_cpus(log, name)


def _find_gpus(log: Log, name: FileName) -> DevicesUsed:
    """Return the GPUs of a job, by the surest source that names them."""
    claims = [(log["gpu_product"], "log"), (log["gpu_type"], "slurm"), (name.gpu, "filename")]
    product, source = _choose_claim(claims)
    count = log["gpu_count"] if log["gpu_count"] is not None else name.count
    return DevicesUsed("gpu", product.upper(), count, source)


def _find_cpus(log: Log, name: FileName) -> DevicesUsed:
    """Return the CPUs of a job, by the surest source that names them."""
    # File names state another CPU than the logs of this partition print: the partition decides.
    node = NODES.get((log["cluster"], log["partition"]), "") if name.cpu else ""
    claims = [(log["cpu_product"], "log"), (node, "inferred"), (name.cpu, "filename")]
    product, source = _choose_claim(claims)
    # Without one of these signs the kind of device is only assumed, so its number is unknown.
    is_surely_on_cpu = log["gpus_used"] is not None or log["sees_no_gpu"] or name.cpu
    return DevicesUsed("cpu", product, log["tasks"] if is_surely_on_cpu else None, source)


def _choose_claim(claims: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the first product that is not empty, with its source; claims are the surest first."""
    for product, source in claims:
        if product:
            return product, source
    return UNKNOWN_DEVICE


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
        staging=_find_word(words, ("local", "scratch")),
        mode=_find_word(words, ("IN", "PS")),
    )


def _find_word(words: Sequence[str], valid_words: Sequence[str]) -> str:
    """Return the first word that is one of the valid ones, "" without any."""
    return next((word for word in words if word in valid_words), "")
