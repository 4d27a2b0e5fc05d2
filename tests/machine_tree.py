"""Trees of /proc and /sys for tests, made from what `scripts/capture-machine` read.

A test may put other values into the files, and more CPUs beside those captured, but no file that
the captured kernel does not have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

CAPTURES = Path(__file__).parent / "data/machines"
CPUS = "sys/devices/system/cpu"
# what no capture holds: it depends on who starts the process, and is documented by the kernel
OF_THE_PROCESS = re.compile(r"proc/(self/cgroup|meminfo)|sys/(fs/cgroup|class/powercap)/.*")


def captured(name: str) -> dict[str, str]:
    """Return the files of a captured machine, by path."""
    lines = (CAPTURES / f"{name}.txt").read_text().splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {path: json.loads(text) for path, text in rows}


def write(root: Path, files: Mapping[str, str]) -> Path:
    """Write files under `root` and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else text + "\n")
    return root


def changed(files: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Return captured files with other contents; a CPU that was not captured is like CPU 0.

    Raises `KeyError` for a file that the captured machine does not have.
    """
    for path in changes:
        known = re.sub(r"cpu/cpu\d+/", "cpu/cpu0/", path)
        if known not in files and not OF_THE_PROCESS.fullmatch(path):
            raise KeyError(f"no real machine was seen to have {path}")
    return {**files, **changes}
