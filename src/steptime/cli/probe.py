"""What `calibrate --only` measures: the ceilings of this machine, or the link between processes."""

from contextlib import suppress
from typing import Any

from steptime.calibration.here import check_ceilings, take_probe
from steptime.core.errors import InputError
from steptime.core.files import check_writable
from steptime.core.table import Answer, Table, columns, facts
from steptime.core.units import percent, seconds, shown
from steptime.hardware import catalog
from steptime.hardware.device import GB, TFLOP
from steptime.measure import ranks
from steptime.measure.contract import Options
from steptime.measure.launch import WorkerDiedError
from steptime.measure.probe.files import SIZES_BYTES, link_table
from steptime.sweeps.workers import Workers

PROCESSES = 2


def measure_ceilings(backend: str, options: Options, budget_s: float) -> Answer:
    """Measure the ceilings of this machine and write them as the device `local`.

    Ceilings are the most that the machine reaches: the rates of matrix products and of memory, and
    the time to issue an op. A calibration of the device `local` is lost, and a note says so.

    Raises:
        InputError: if the backend cannot be probed, or the device file cannot be written.
    """
    check_ceilings(backend)
    check_writable(catalog.user_folder("devices"))
    calibrated_on = ""
    with suppress(InputError):  # there is no device `local` yet, or its file cannot be read
        calibrated_on = str(catalog.device(catalog.LOCAL).calibration.get("date", ""))[:10]
    table = take_probe(backend, options, budget_s)
    path = catalog.write_user_device(table, table["name"])
    notes = [f"written to {path}; use it as --device local"]
    if calibrated_on:
        notes.append(
            f"'local' was calibrated on {calibrated_on}, which is gone: steptime calibrate"
        )
    rows: list[tuple[str, Any]] = [
        (f"peak {dtype}", shown("flop_per_s", peak * TFLOP))
        for dtype, peak in table["peak_TFLOP_per_s"].items()
    ]
    rows.append(("memory bandwidth", shown("bytes_per_s", table["memory_GB_per_s"] * GB)))
    if "launch_us" in table:
        rows.append(("time to issue an op", seconds(table["launch_us"] * 1e-6)))
    ceilings = facts(f"{table['name']} ({table['source']})", "measured", rows)
    return Answer({"device": table["name"], "path": str(path), **table}, [ceilings], notes)


def measure_link(backend: str, options: Options, processes: int | None, budget_s: float) -> Answer:
    """Measure all-reduces among processes and write the link `local`.

    The answer is empty for all but rank 0 of the processes that a launcher started.

    Args:
        backend: the library that runs the all-reduces; only torch can.
        options: the device and the threads of each process.
        processes: their number; None takes those of the launcher, or 2 without one.
        budget_s: the time for all sizes.

    Raises:
        InputError: if the backend has no collectives, or a process dies.
    """
    check_ceilings(backend)
    check_writable(catalog.user_folder("links"))
    if backend != "torch":
        raise InputError(f"--only link: {backend} runs on one device; torch has several")
    launched = ranks.here().size
    default_processes = launched if launched > 1 else PROCESSES
    workers = Workers()
    try:
        arguments = {"sizes": SIZES_BYTES, "budget_s": budget_s}
        worker = workers.get(backend, options, processes or default_processes)
        answer = worker.ask({"do": "collectives", "arguments": arguments}, 60 + 4 * budget_s)
    except WorkerDiedError as error:
        raise InputError(f"calibrate --only link: {error}") from None
    finally:
        workers.close()
    if not workers.rank.is_zero:
        return Answer(None)
    table = link_table(answer)
    return _describe_link(table, str(catalog.write_user_link(table)))


def _describe_link(table: dict[str, Any], path: str) -> Answer:
    """Return the answer that shows a measured link and the file that holds it."""
    measured = table["measured"]
    keys = ("bytes", "all_reduce_s", "fit_error")
    rows = [
        {"bytes": size_bytes, "all_reduce_s": all_reduce_s, "off": percent(error, "+")}
        for size_bytes, all_reduce_s, error in zip(*(measured[key] for key in keys), strict=True)
    ]
    latency_us = table.get("latency_us")
    latency = "none shows" if latency_us is None else seconds(latency_us * 1e-6)
    bandwidth = shown("bytes_per_s", table["GB_per_s"] * GB)
    heads = columns("bytes", "all_reduce_s=median", "off=ring formula is off")
    notes = [
        f"latency {latency}, bandwidth {bandwidth}: {table['note']}",
        f"written to {path}; use it as --link local",
    ]
    return Answer(
        {"link": table["name"], "path": path, **table},
        [Table(heads, rows, f"all-reduce, {table['source']}")],
        notes,
    )
