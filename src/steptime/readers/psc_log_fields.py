"""The fields of one Slurm log of Deep MNIST, and of its file name, each as it is written there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
# What may follow a result: a number that another line breaks into is none.
_END = r"(?= *(?:\r?$|Images/Sec|Mean |Speed |speed |test ))"
_TIME, _SPEED = r"Mean Time(?: Per Step)? *: *", r"Mean Speed *: *"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CAUSES = (  # word, what the log says
    ("slurm_time_limit", r"CANCELLED AT \S+ DUE TO TIME LIMIT"),
    ("module_conflict_error", r"conflicts with the currently loaded module"),
    ("slurm_cancelled", r"CANCELLED AT \S+ \*\*\*"),
    ("script_not_found", r"can't open file"),
    ("python_syntax_error", r"^SyntaxError:"),
    ("import_error_glibcxx", r"^ImportError: .{0,500}GLIBCXX_\S{1,50} not found"),
    ("import_error_no_module", r"^(?:ImportError|ModuleNotFoundError): No module named"),
    ("illegal_instruction", r"\bIllegal instruction\b"),
)


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
"""What a log says, by the names of `FIELDS` and `log_fields`; "" and None where it is silent."""


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
    log: Log = {name: read(text, pattern) for name, (read, pattern) in FIELDS.items()}
    benchmark = r"^JobId=\d+ JobName=\S*CNN_MNIST"
    return log | {
        "day": log["started"][:10] or _printed_day(text),
        "gpu_product": re.sub(r"^\w+ |-.*", "", log["gpu_full_name"]),
        "cpu_product": _cpu(text),
        "gpus_used": _gpus_used(text),
        "sees_no_gpu": "Device mapping: no known devices" in text,
        "tensorflow": _tensorflow(text),
        "mode": _mode(log["program"]),
        "staging": _staging(text),
        "batch": _whole(text, r"batch_size = (\d+)") or _whole(text, r"batch_size=(\d+)"),
        "step_s": log["step_s"] or None,  # no step takes no time
        "causes": tuple(word for word, says in _CAUSES if re.search(says, text, re.MULTILINE)),
        "is_benchmark": log["speed"] is not None
        or "CNN_MNIST" in log["program"]
        or bool(re.search(benchmark, text, re.MULTILINE)),
        "results": len(re.findall(rf"(?i:{_SPEED}){_NUMBER}{_END}", text, re.MULTILINE)),
    }


def _first(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _whole(text: str, pattern: str) -> int | None:
    found = _first(text, pattern)
    return int(found) if found and len(found) <= 15 else None


def _printed_day(text: str) -> str:
    """Return the day that `date` prints, `Fri Jun  1 12:50:37 EDT 2018`, as 2018-06-01."""
    found = re.search(r"^\w{3} (\w{3}) +(\d{1,2}) [\d:]{8} \w+ (\d{4})$", text, re.MULTILINE)
    if not found or found[1] not in MONTHS:
        return ""
    return f"{found[3]}-{MONTHS.index(found[1]) + 1:02}-{int(found[2]):02}"


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

    Each operation comes up to three times, as `name: (Kind)/job:.../device:GPU:0` from the placer
    and as `name: (Kind): /job:...` on standard output; GPUs are counted, so that does not matter.
    A line that another one breaks into has no number at its end, and is left out.
    """
    spot = r": \(\w+\):? ?/job:[^\s]*?/(?:device:)?([CG]PU):(\d{1,3})\r?$"
    placed = re.findall(spot, text, re.MULTILINE)
    return len({number for kind, number in placed if kind == "GPU"}) if placed else None


def _tensorflow(text: str) -> str:
    versions = re.findall(r"VIRTUAL_ENV=\S{0,200}/(?:tf|TensorFlow_)(\d+(?:\.\d+)+)", text)
    return versions[-1] if versions else ""


def _mode(program: str) -> str:
    if not program:
        return ""
    return "IN" if "INDEPENDENT" in program else "PS" if "_PS" in program else "single"


def _staging(text: str) -> str:
    """Return whether files were copied to the node's own disk; "" before the job got so far."""
    if re.search(r"^\+ cd /local/", text, re.MULTILINE):
        return "local"
    return "scratch" if re.search(r"^\+ python", text, re.MULTILINE) else ""


FIELDS: Mapping[str, tuple[Callable[[str, str], Any], str]] = {  # how it is read, where it stands
    "job_id": (_whole, r"^JobId=(\d+)"),
    "submitted": (_first, r"\bSubmitTime=(\d{4}-\d\d-\d\d)"),
    "started": (_first, r"\bStartTime=(\d{4}-\d\d-\d\dT[\d:]+)"),
    "cluster": (_first, r"^SLURM_CLUSTER_NAME=(\S+)"),
    "partition": (_first, r"\bPartition=(\S+)"),
    "node": (_first, r"^ *NodeList=(\w\S*)"),
    "tasks": (_whole, r"\bNumTasks=(\d+)"),
    "cpus": (_whole, r"\bNumCPUs=(\d+)"),
    "gpu_type": (_first, r"\bGres=gpu:(\w+):\d{1,6}\b"),
    "gpu_count": (_whole, r"\bGres=gpu:\w+:(\d{1,6})\b"),
    "gpu_full_name": (
        _first,
        r"\bname: ((?:Tesla|GeForce|Quadro|NVIDIA) [\w -]*?\w)(?=,| major|$)",
    ),
    "program": (_first, r"^\+ python\d? (\S+\.py)"),
    "step_s": (_number, _TIME),
    "speed": (_number, _SPEED),
    "uncertainty": (_number, r"speed uncertainty *: *"),
    "jitter": (_number, r"Speed Jitter *: *"),
    "accuracy": (_number, r"test accuracy *:? *"),
}
