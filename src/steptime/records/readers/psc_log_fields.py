"""The fields of a Slurm log of the Deep MNIST benchmark, found by patterns in its text."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from steptime.core.json_types import JsonObject
from steptime.core.toml_files import read_packaged_toml

MODES = (("INDEPENDENT", "IN"), ("_PS", "PS"), ("", "single"))  # in a program's name: ours
_NUMBER = r"([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
# The text behind a result: a number that another line breaks into is none.
_END = r"(?= *(?:\r?$|Images/Sec|Mean |Speed |speed |test ))"
_TABLE = read_packaged_toml("psc_log.toml")
MAX_DIGITS = 15  # of a whole number
MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
Log = JsonObject
"""The fields of a log, by the names of the table and of `log_fields`; "" and None are unknown."""


def log_fields(text: str) -> Log:
    """Return the fields of a log; standard output and error may be interleaved anywhere in it.

    `results` counts its speeds, `gpus_used` those GPUs on which operations were placed.
    """
    log = _read_table_fields(text)
    return log | {
        "day": log["started"][:10] or _find_printed_day(text),
        # `P100` of `Tesla P100-PCIE-16GB`.
        "gpu_product": re.sub(r"^\w+ |-.*", "", log["gpu_full_name"]),
        "cpu_product": _find_cpu(text),
        "gpus_used": _count_gpus(text),
        "sees_no_gpu": "Device mapping: no known devices" in text,
        "tensorflow": _find_tensorflow(text),
        "mode": _find_mode(log["program"]),
        "staging": _find_staging(text),
        "batch": _find_integer(text, r"batch_size = (\d+)")
        or _find_integer(text, r"batch_size=(\d+)"),
        "step_s": log["step_s"] or None,  # no step takes no time
        "causes": _list_causes(text),
        "is_benchmark": _is_benchmark(log, text),
        "results": _count_results(text),
    }


def _read_table_fields(text: str) -> Log:
    """Return the fields that are found by a pattern of the data file, by their type."""
    readers: Mapping[str, Callable[[str, str], Any]]
    readers = {"text": _find_first, "whole": _find_integer, "number": _find_number}
    return {
        name: read_field(text, pattern)
        for kind, read_field in readers.items()
        for name, pattern in _TABLE[kind].items()
    }


def _find_tensorflow(text: str) -> str:
    """Return the version of TensorFlow in the path of the last virtual environment; "" without."""
    versions = re.findall(r"VIRTUAL_ENV=\S{0,200}/(?:tf|TensorFlow_)(\d+(?:\.\d+)+)", text)
    return str(versions[-1]) if versions else ""


def _find_mode(program: str) -> str:
    """Return the mode of parallelism that the name of a program says; "" without a program."""
    if not program:
        return ""
    return next((mode for word, mode in MODES if word in program), "")


def _find_staging(text: str) -> str:
    """Return the place that the input was read from; "" if the job ran no program.

    Lines that begin with + are commands, as `bash -x` prints them.
    """
    if re.search(r"^\+ cd /local/", text, re.MULTILINE):
        return "local"
    has_run_program = re.search(r"^\+ python", text, re.MULTILINE)
    return "scratch" if has_run_program else ""


def _list_causes(text: str) -> tuple[str, ...]:
    """Return the causes of failures of which the log has a sign."""
    causes = _TABLE["causes"].items()
    return tuple(cause for cause, pattern in causes if re.search(pattern, text, re.MULTILINE))


def _is_benchmark(log: Log, text: str) -> bool:
    """Return whether a log has a speed, or a job or program of the benchmark's name."""
    if log["speed"] is not None or "CNN_MNIST" in log["program"]:
        return True
    return bool(_find_first(text, r"^(JobId=\d+ JobName=\S*CNN_MNIST)"))


def _count_results(text: str) -> int:
    """Return the number of speeds in a log."""
    pattern = rf"(?i:{_TABLE['number']['speed']}){_NUMBER}{_END}"
    return len(re.findall(pattern, text, re.MULTILINE))


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
