"""The answers of `calibrate --only`: the ceilings of this machine, or the link of processes."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from steptime.calibration.here import check_ceilings, probe_ceilings
from steptime.core.answer import Answer, AnswerRow
from steptime.core.errors import InputError
from steptime.core.files import check_writable
from steptime.core.tables.table import Column, Printout, Table, make_facts_table
from steptime.core.units import format_percent, format_seconds, format_value
from steptime.hardware import catalog, device_words, item_files
from steptime.hardware.datasheet import GB, TFLOP
from steptime.measure import ranks
from steptime.measure.contract import Options
from steptime.measure.launch import WorkerDiedError
from steptime.measure.probe.files import SIZES_BYTES, link_table
from steptime.sweeps.workers import Workers

DEFAULT_PROCESSES = 2
START_LIMIT_S = 60  # for the processes to start
MAX_BUDGETS = 4  # times the budget after which a worker counts as stuck
LINK_COLUMNS = (
    Column("bytes"),
    Column("all_reduce_s", "median"),
    Column("off", "error of ring formula"),
)


class DtypePeak(AnswerRow, frozen=True, kw_only=True):
    """The highest rate of matrix products of a data type.

    Attributes:
        dtype: the data type.
        flop_per_s: the highest rate that was measured.
    """

    dtype: str
    flop_per_s: float


class CeilingsAnswer(Answer, frozen=True, kw_only=True):
    """The highest rates that this machine reaches.

    Attributes:
        device: the name of the device that was written.
        path: its file, which also has all curves.
        kind: cpu, gpu or tpu.
        source: when, and with which library, it was measured.
        rows: the highest rates of matrix products, by data type.
        memory_bytes_per_s: the highest rate of memory, beyond the caches.
        capacity_bytes: size of the memory, None if unknown.
        launch_s: seconds to issue an op, None if it was not measured.
        headline: where the device was written.
        notes: remarks that change how the answer is read.
    """

    device: str
    path: str
    kind: str
    source: str
    rows: tuple[DtypePeak, ...]
    memory_bytes_per_s: float
    capacity_bytes: float | None
    launch_s: float | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the ceilings as facts."""
        rows = [
            (f"peak {row.dtype}", format_value("flop_per_s", row.flop_per_s)) for row in self.rows
        ]
        rows.append(("memory bandwidth", format_value("bytes_per_s", self.memory_bytes_per_s)))
        if self.launch_s is not None:
            rows.append(("time to issue an op", format_seconds(self.launch_s)))
        return [make_facts_table(f"{self.device} ({self.source})", "measured", rows)]


class AllReduceTime(AnswerRow, frozen=True, kw_only=True):
    """The all-reduces of one size.

    Attributes:
        bytes: bytes that each process holds.
        all_reduce_s: median seconds of these all-reduces.
        fit_error: predicted / measured - 1, by the ring formula with the link that was fitted.
    """

    bytes: int
    all_reduce_s: float
    fit_error: float


class MeasuredLinkAnswer(Answer, frozen=True, kw_only=True):
    """The link between processes, as all-reduces show it.

    Attributes:
        link: the name of the link that was written.
        path: its file.
        source: when, and with which library, it was measured.
        processes: number of processes.
        bytes_per_s: bandwidth of the link.
        latency_s: latency of the link, None where none shows.
        rows: the times of all-reduces, by size.
        headline: the link in words, and where it was written.
    """

    link: str
    path: str
    source: str
    processes: int
    bytes_per_s: float
    latency_s: float | None
    rows: tuple[AllReduceTime, ...]
    headline: tuple[str, ...]
    _is_first_rank: bool = True

    def tables(self) -> list[Table]:
        """Return the times of all-reduces, by size."""
        rows = [row.to_dict() | {"off": format_percent(row.fit_error, "+")} for row in self.rows]
        return [Table(LINK_COLUMNS, rows, f"all-reduce, {self.source}")]

    def printout(self) -> Printout:
        """Return the answer as rank 0 prints it; the other ranks print nothing."""
        return super().printout() if self._is_first_rank else Printout(None)


def measure_ceilings(backend: str, options: Options, budget_s: float) -> CeilingsAnswer:
    """Measure the ceilings of this machine and write them as the device `local`.

    Ceilings are the most that the machine reaches: the rates of matrix products and of memory, and
    the time to issue an op. A calibration of the device `local` is lost, and a note says so.

    Raises:
        InputError: if the backend cannot be probed, or the device file cannot be written.
    """
    check_ceilings(backend)
    check_writable(item_files.user_folder("devices"))
    earlier_time = ""  # of the calibration that the new file replaces
    with suppress(InputError):  # there is no device `local` yet, or its file cannot be read
        earlier_time = catalog.device(device_words.LOCAL).calibration.date
    device_table = probe_ceilings(backend, options, budget_s)
    path = catalog.write_user_device(device_table, device_table["name"])
    notes = [device_table["note"]] if device_table.get("note") else []
    if earlier_time:
        earlier_date = earlier_time[: len("2026-01-31")]
        notes.append(f"'local' was calibrated on {earlier_date}, which is gone: steptime calibrate")
    return CeilingsAnswer(
        device=device_table["name"],
        path=str(path),
        kind=device_table["kind"],
        source=device_table["source"],
        rows=tuple(
            DtypePeak(dtype=dtype, flop_per_s=peak * TFLOP)
            for dtype, peak in device_table["peak_TFLOP_per_s"].items()
        ),
        memory_bytes_per_s=device_table["memory_GB_per_s"] * GB,
        # Keys of a device file have the unit in the name; an answer is in SI units.
        capacity_bytes=device_table["memory_GB"] * GB if "memory_GB" in device_table else None,
        launch_s=device_table["launch_us"] * 1e-6 if "launch_us" in device_table else None,
        headline=(f"written to {path}; use it as --device local",),
        notes=tuple(notes),
    )


def measure_link(
    backend: str, options: Options, processes: int | None, budget_s: float
) -> MeasuredLinkAnswer:
    """Measure all-reduces among processes and write the link `local`.

    Of the processes that a launcher started, rank 0 alone writes and prints the link.

    Args:
        backend: the library that runs the all-reduces; only `torch` can.
        options: the device and the threads of each process.
        processes: their number; None takes those of the launcher, or 2 without one.
        budget_s: the time for all sizes.

    Raises:
        InputError: if the backend has no collectives, or a process dies.
    """
    check_ceilings(backend)
    check_writable(item_files.user_folder("links"))
    if backend != "torch":
        raise InputError(f"--only link: {backend} runs on one device; torch has several")
    launched_processes = ranks.find_rank().size  # by torchrun or Slurm
    is_launched = launched_processes > 1
    default_processes = launched_processes if is_launched else DEFAULT_PROCESSES
    workers = Workers()
    try:
        arguments = {"sizes": SIZES_BYTES, "budget_s": budget_s}
        worker = workers.get(backend, options, processes or default_processes)
        time_limit_s = START_LIMIT_S + MAX_BUDGETS * budget_s
        measured_times = worker.ask({"do": "collectives", "arguments": arguments}, time_limit_s)
    except WorkerDiedError as error:
        raise InputError(f"calibrate --only link: {error}") from None
    finally:
        workers.close()
    # Rank 0 alone writes and prints; the other processes of a launcher return an empty answer.
    if not workers.rank.is_rank_zero:
        return MeasuredLinkAnswer(
            link="",
            path="",
            source="",
            processes=launched_processes,
            bytes_per_s=0.0,
            latency_s=None,
            rows=(),
            headline=(),
            _is_first_rank=False,
        )
    link_facts = link_table(measured_times)
    return _make_link_answer(link_facts, str(catalog.write_user_link(link_facts)))


def _make_link_answer(link_facts: Mapping[str, Any], path: str) -> MeasuredLinkAnswer:
    """Return the answer that shows a measured link and the file that holds it."""
    measurements = link_facts["measured"]
    latency_us = link_facts.get("latency_us")
    latency_s = None if latency_us is None else latency_us * 1e-6
    # None: the measured times show no latency.
    latency = "none shows" if latency_s is None else format_seconds(latency_s)
    bytes_per_s = link_facts["GB_per_s"] * GB
    bandwidth = format_value("bytes_per_s", bytes_per_s)
    points = zip(
        measurements["bytes"], measurements["all_reduce_s"], measurements["fit_error"], strict=True
    )
    return MeasuredLinkAnswer(
        link=link_facts["name"],
        path=path,
        source=link_facts["source"],
        processes=measurements["processes"],
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        rows=tuple(
            AllReduceTime(bytes=size_bytes, all_reduce_s=all_reduce_s, fit_error=fit_error)
            for size_bytes, all_reduce_s, fit_error in points
        ),
        headline=(
            f"latency {latency}, bandwidth {bandwidth}: {link_facts['note']}",
            f"written to {path}; use it as --link local",
        ),
    )
