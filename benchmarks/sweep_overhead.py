"""How long 100 small networks take beyond their time budget, with PyTorch on the CPU.

    python benchmarks/sweep_overhead.py

A sweep of 100 fc networks of at most 1 ms a step (their fastest sample), 0.5 s each, must end
within 150 s plus the import of the framework. Prints one JSON line; exits with 1 where that
does not hold.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXPERIMENT = """
name = "sweep-overhead"
backend = "torch"
batch = [1, 2, 4, 8, 16]
budget_s = 0.5
[[networks]]
family = "fc"
layers = [1, 2, 3, 4]
nodes = [8, 16, 32, 48, 64]
inputs = 64
outputs = 10
"""
CELLS = 100
LIMIT_S = 150.0
SLOWEST_STEP_S = 1e-3


def import_s() -> float:
    """Return the seconds that a fresh process takes to import the framework."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def main() -> int:
    """Run the sweep, print what it took, and give the exit code."""
    from steptime.records import store

    framework_s = import_s()
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "experiment.toml", Path(folder) / "records"
        file.write_text(EXPERIMENT, encoding="utf-8")
        command = [sys.executable, "-m", "steptime", "sweep", str(file), "--out", str(out)]
        began = time.perf_counter()
        subprocess.run(command, check=True)
        sweep_s = time.perf_counter() - began
        records = store.load(out, print)
    ok = [record for record in records if record.status == "ok"]
    steps_s = [min(record.quantities["step_s"].samples) for record in ok]
    result = {
        "seconds": round(sweep_s, 2),
        "import_s": round(framework_s, 2),
        "limit_s": LIMIT_S,
        "cells_ok": len(ok),
        "slowest_step_s": max(steps_s),
        "seconds_a_cell": round((sweep_s - framework_s) / CELLS, 3),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    valid = len(ok) == CELLS and max(steps_s) <= SLOWEST_STEP_S
    return 0 if valid and sweep_s <= LIMIT_S + framework_s else 1


if __name__ == "__main__":
    sys.exit(main())
