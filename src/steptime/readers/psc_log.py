"""Slurm logs of TensorFlow's Deep MNIST on PSC Bridges, 2018, one record a log.

What a log says goes before what its file name says: the name has the day of submission, a CPU that
is another one, and GPUs that were not used. Chosen fields are taken, never text: the logs hold
dumps of the environment of their authors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from steptime.build import make_workload, read_model
from steptime.core.record import Method, Quantity, Record
from steptime.readers.platforms import platform_of
from steptime.readers.psc_log_fields import FileName, Log, file_name, log_fields
from steptime.readers.sources import Found, Source, Unread

SOURCE = "asakhare/Tensoflow-Benchmarking-with-CNN_DL_MNIST, PSC Bridges, 2018"
METHOD = "psc-mnist"
STAGINGS = {"local": "local", "scratch": "shared"}  # the authors' words: ours
STRATEGIES = {"IN": "independent", "PS": "parameter-server", "single": ""}
BATCHES_AGREE = 0.01  # logged times and speeds have at least three digits
UNKNOWN_BATCH = "the log does not say the batch; the workload holds the network's usual one"

# What the nodes of a partition have, where a file's name says something else: every log of this
# partition that prints its CPU says E5-2695 v3, and the names of all say E5-2695-V2.
NODES = {("bridges", "RM"): "E5-2695 v3"}


@dataclass(frozen=True)
class Worked:
    """Where the work was done: `type` as the log calls it, and who says so."""

    kind: str
    type: str
    count: int | None
    says: str


def recognises(source: Source) -> bool:
    """Whether this is the log of a job of Slurm, by its name or by what the job printed first."""
    return bool(
        re.search(r"(^|/)slurm-\d+\.out$", source.name)
        or file_name(source.name) != FileName()
        or re.search(r"^JobId=\d+ JobName=", source.head, re.MULTILINE)
        or re.search(r"Mean Speed *: *\d", source.tail)
    )


def read(source: Source) -> Found:
    """Return the record of a log, or the reason why it is not one of this benchmark."""
    log = log_fields(source.text)
    if not log["is_benchmark"]:
        reason = "not_a_benchmark: no job that runs CNN_MNIST, and no result"
        return Found(unread=(Unread(source.name, None, reason),))
    return Found((_record(log, file_name(source.name)),))


def _record(log: Log, name: FileName) -> Record:
    mode = log["mode"] or name.mode or "single"
    staging = log["staging"] or name.staging or "scratch"
    worked = _worked(log, name)
    batch, batch_source = _batch(log, name)
    replicas = 1 if mode == "single" else log["gpus_used"] or worked.count or 1
    workload = make_workload(
        read_model("deep_mnist"), batch=batch, optimizer="adam", replicas=replicas
    )
    ok = log["step_s"] is not None and log["speed"] is not None
    causes = log["causes"] or (() if ok else ("no_result",))
    status = "ok" if ok else "timeout" if "slurm_time_limit" in causes else "failed"
    on_gpu = worked.kind == "gpu"
    options = {
        "gpu": (log["gpu_type"] or worked.type).lower() if on_gpu else "",
        "devices": worked.count if on_gpu else 1,
        "staging": STAGINGS[staging],
        "strategy": STRATEGIES[mode],
        "program": log["program"],
    }
    return Record(
        origin="published",
        method=Method(METHOD, log["tensorflow"] or "unknown", options),
        workload=workload,
        platform=_platform(log, worked),
        quantities=_quantities(log, timed=ok),
        status=status,
        cause="" if ok else "+".join(causes),
        note="; ".join(_notes(log, batch, batch_source, ok=ok, alone=replicas == 1)),
        env={
            "date": log["day"],
            "submitted": log["submitted"],
            "device_kind": worked.kind,
            "device_type": worked.type,
            "device_count": worked.count,
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


def _quantities(log: Log, *, timed: bool) -> Mapping[str, Quantity]:
    """Return what was logged; of a log without a time only what does not follow from times."""
    found = {"accuracy": log["accuracy"]}
    times = {
        "step_s": log["step_s"],
        "published_speed_per_s": log["speed"],
        "published_speed_uncertainty_per_s": log["uncertainty"],
        "published_speed_jitter_per_s": log["jitter"],
    }
    found |= times if timed else {}
    return {name: Quantity(value) for name, value in found.items() if value is not None}


def _batch(log: Log, name: FileName) -> tuple[int | None, str]:
    """Return the batch and who says so: the program, else the name, else speed x time."""
    if log["batch"] is not None:
        return log["batch"], "logged"
    if name.batch is not None:
        return name.batch, "filename"
    if log["speed"] and log["step_s"]:
        implied = log["speed"] * log["step_s"]  # the speed is the batch over the mean time
        if implied > 0.5 and abs(implied - round(implied)) < 1e-3:
            return round(implied), "implied"
    return None, ""


def _worked(log: Log, name: FileName) -> Worked:
    if _on_gpu(log, name):
        if log["gpu_product"]:
            kind, says = log["gpu_product"], "log"
        elif log["gpu_type"]:
            kind, says = log["gpu_type"], "slurm"
        else:
            kind, says = name.gpu, "filename"
        count = log["gpu_count"] if log["gpu_count"] is not None else name.count
        return Worked("gpu", kind.upper(), count, says if kind else "unknown")
    kind, says = _cpu(log, name)
    did_work = log["gpus_used"] is not None or log["sees_no_gpu"] or name.cpu
    return Worked("cpu", kind, log["tasks"] if did_work else None, says)


def _on_gpu(log: Log, name: FileName) -> bool:
    """Whether the work was done on GPUs; where operations were placed tells, then what was seen."""
    if log["gpus_used"] is not None:
        return bool(log["gpus_used"] > 0)
    if log["gpu_product"]:
        return True
    if log["sees_no_gpu"] or name.cpu:
        return False
    return bool(log["gpu_type"] or name.gpu)


def _cpu(log: Log, name: FileName) -> tuple[str, str]:
    if log["cpu_product"]:
        return log["cpu_product"], "log"
    if name.cpu and (log["cluster"], log["partition"]) in NODES:
        return NODES[log["cluster"], log["partition"]], "inferred"
    return (name.cpu, "filename") if name.cpu else ("", "unknown")


def _platform(log: Log, worked: Worked) -> str:
    """Return the name of the device in data/; one that the log does not print by Slurm's word."""
    if worked.kind == "gpu":
        return platform_of(log["gpu_full_name"] or worked.type)
    model = re.sub(r"[^a-z0-9]+", "-", (worked.type or "unknown").lower())
    return f"cpu-{model}-{log['cpus']}t" if log["cpus"] else f"cpu-{model}"
