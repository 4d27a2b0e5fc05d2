"""How fast a core of this machine is now: fixed work that is timed beside a measured step.

Other programs and virtual machines make a core slower for minutes. What is measured in such minutes
looks slower than what was measured earlier, though no network changed. The reference becomes slower
in the same minutes, so that a comparison can tell a slower machine from a slower step.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from statistics import median

from steptime.core.copying import replace
from steptime.records.record import Record, single_run

REFERENCE = "reference_s"  # the quantity of a record: one sample for each of its runs
SIDE = 512  # of the matrices
MEASURED_S = 0.5  # of products beside a run: half as long as the steps of a benchmark
LIMIT_S = 60.0
SINGLE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def measure_reference() -> float:
    """Return the seconds of the reference product in a fresh process; NaN where it fails."""
    command = [sys.executable, "-m", __name__]
    environment = {**os.environ, **SINGLE_THREAD}
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        return float(process.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return math.nan  # a record then holds no reference


def add_reference(record: Record) -> Record:
    """Return the record of a single run with the reference of now; without one where it fails."""
    reference_s = measure_reference()
    if not reference_s > 0:  # NaN: the process failed
        return record
    return replace(record, quantities={**record.quantities, REFERENCE: single_run([reference_s])})


def _time_products() -> float:
    """Return the median seconds of a product of matrices."""
    import numpy as np

    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    matrix @ matrix  # the first one loads the library
    times_s: list[float] = []
    end_s = time.perf_counter() + MEASURED_S
    while not times_s or time.perf_counter() < end_s:
        start_s = time.perf_counter()
        matrix @ matrix
        times_s.append(time.perf_counter() - start_s)
    return median(times_s)


if __name__ == "__main__":
    print(_time_products())
