"""The calibration of the machine that this runs on: its ceilings, then points for the constants."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from platform import node
from time import monotonic
from typing import TYPE_CHECKING, Any

from steptime import __version__
from steptime.calibration import log
from steptime.calibration.log import Answers
from steptime.core.errors import InputError, InterruptError
from steptime.core.files import check_writable
from steptime.core.progress import print_note
from steptime.core.units import format_count, format_duration, format_seconds
from steptime.hardware import catalog, item_files
from steptime.hardware.device_file import device_from_table
from steptime.measure import ranks, registry
from steptime.measure.contract import Options
from steptime.measure.drivers import driver_of
from steptime.measure.launch import Worker, WorkerDiedError
from steptime.measure.probe.files import device_table

if TYPE_CHECKING:
    from steptime.calibration.session import MeasuredPoint

POINTS = 60
MIN_POINTS = 40  # before errors that fall no more end it
PROBE_SHARE = 0.1  # of the time limit
MIN_PROBE_S = 8.0  # as far as that is half of the time limit: less leaves memory unmeasured
DTYPES = ("float32", "bfloat16")  # on accelerators; a CPU has no matrix units

DeviceTable = Mapping[str, Any]  # the table of a device file


@dataclass(frozen=True)
class _CalibrationStart:
    """The start of a calibration: its log, the ceilings, and the answers of one that was killed."""

    log_path: Path
    table: DeviceTable
    earlier_answers: Answers


def check_ceilings(backend: str) -> None:
    """Check that a backend runs each op as it stands.

    Raises:
        InputError: if the backend is not installed, or merges ops and drops unread results.
    """
    if registry.backend(backend).rewrites:
        raise InputError(
            f"calibrate: {backend} merges equal ops and leaves out results that nothing reads, so "
            "many ops of one kind measure nothing; calibrate with --backend torch"
        )


def probe_ceilings(backend: str, options: Options, budget_s: float) -> DeviceTable:
    """Measure the ceilings of this machine in a worker, and return the table of its device file.

    Args:
        backend: the backend that runs the ops.
        options: the device, its threads, and other options of the worker.
        budget_s: the seconds that the measurement may take.

    Raises:
        InputError: if the worker dies, or under torchrun or srun.
    """
    if ranks.find_rank().size > 1:
        raise InputError("calibrate measures one process: leave out torchrun or srun")
    request = {"do": "probe", "arguments": {"budget_s": budget_s}}
    with Worker(backend, options) as worker:
        answer = _request_worker(worker, request, timeout_s=60 + 4 * budget_s)
    return device_table(answer)


def _request_worker(
    worker: Worker, request: Mapping[str, Any], timeout_s: float
) -> Mapping[str, Any]:
    """Send a request to a worker and return its answer; its death is an `InputError`."""
    try:
        answer: Mapping[str, Any] = worker.ask(request, timeout_s)
    except WorkerDiedError as error:
        raise InputError(f"calibrate: {error}") from None
    return answer


def calibrate_machine(
    backend: str, options: Options, limit_s: float, max_points: int = POINTS
) -> tuple[DeviceTable, Path]:
    """Probe and calibrate this machine in workers; write and return the table of its device file.

    After an interrupt the points so far count, unless an earlier calibration has more points.

    Args:
        backend: the backend that runs the ops.
        options: the device, its threads, and other options of the worker.
        limit_s: the seconds that it may take.
        max_points: the largest number of points.

    Raises:
        InterruptError: if an interrupt ended it and the file was written.
    """
    from steptime.calibration.session import Session

    began = monotonic()
    start = _start_or_resume(backend, options, limit_s)
    device = device_from_table(start.table, start.table["name"])
    with Worker(backend, options) as worker:

        def report_point(measured_point: MeasuredPoint, left_s: float) -> None:
            progress = format_progress(len(session.measured_points), max_points, left_s)
            print_note(f"{progress} {_describe_point(measured_point)}")

        session = Session(
            device,
            partial(_request_point, worker),
            report_point,
            limit_s=points_s(limit_s, monotonic() - began),
            max_points=max_points,
            min_points=min(MIN_POINTS, max_points),
            dtypes=DTYPES[:1] if device.is_cpu else DTYPES,  # CPUs: float32 alone
            save_answer=partial(log.append_answer, start.log_path),
            earlier_answers=start.earlier_answers,
        )
        calibration = {
            **session.run(),
            "stack": catalog.DEFAULT_STACK,
            "backend": backend,
            "version": worker.greeting["version"],
            "threads": worker.greeting["threads"],
            **driver_of(options.device),
        }
    table = {**start.table, "calibration": calibration}
    return table, _keep_calibration(table, start.log_path, session.interrupted)


def _request_point(worker: Worker, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Send the request of a point to a worker and return its answer."""
    # Far longer than any point takes: a worker that is silent until then hangs.
    return _request_worker(worker, request, timeout_s=60 + 20 * request["budget_s"])


def _describe_point(measured_point: MeasuredPoint) -> str:
    """Return a point with its seconds by part, or why it could not be measured."""
    times = [f"{name} {format_seconds(part_s)}" for name, part_s in measured_point.seconds.items()]
    return f"{measured_point.point.name}: {measured_point.note or ', '.join(times)}"


def _keep_calibration(table: DeviceTable, log_path: Path, was_interrupted: bool) -> Path:
    """Write the file of the device, which is the device `local` from now on; remove the log.

    Raises:
        KeyboardInterrupt: if an interrupted session has fewer points than an earlier calibration,
            which stays.
        InterruptError: if an interrupt ended the session and the file was written.
    """
    points = table["calibration"]["measured_points"]
    if was_interrupted and _count_earlier_points(table["name"]) > points:
        log_path.unlink()
        raise KeyboardInterrupt
    path = catalog.write_user_device(table, table["name"])
    log_path.unlink()
    if was_interrupted:
        raise InterruptError(f"{format_count(points, 'point')} kept in {path}")
    return path


def _count_earlier_points(name: str) -> int:
    """Return the number of points of a device's earlier calibration, 0 without one."""
    points = 0
    with suppress(InputError):  # a new device
        points = catalog.device(name).calibration.measured_points or 0
    return points


def _start_or_resume(backend: str, options: Options, limit_s: float) -> _CalibrationStart:
    """Measure the ceilings and begin a log, or read the log of a calibration that was killed.

    Raises:
        InputError: if the device file could not be written at the end.
    """
    folder = item_files.user_folder("devices")
    check_writable(folder)
    # One log for each backend, device and number of threads.
    log_name = f".calibrating-{backend}-{options.device}-{options.threads or 'all'}.jsonl"
    log_path = folder / log_name
    software = {
        "steptime": __version__,
        "version": registry.version(backend),
        "host": node(),
        **driver_of(options.device),
    }
    table, earlier_answers = log.resume_log(log_path, software)
    if table is not None:
        points = format_count(sum(map(len, earlier_answers.values())), "point")
        print_note(f"going on after {points} of a calibration that was killed ...")
        return _CalibrationStart(log_path, table, earlier_answers)
    probing_s = _probing_s(limit_s)
    print_note(f"measuring ceilings ({format_duration(probing_s)}), then points ...")
    table = probe_ceilings(backend, options, probing_s)
    log.begin_log(log_path, software, table)
    return _CalibrationStart(log_path, table, earlier_answers)


def _probing_s(limit_s: float) -> float:
    """Return the seconds for the ceilings: a share of all, and not too few unless half of all."""
    return max(1.0, PROBE_SHARE * limit_s, min(MIN_PROBE_S, limit_s / 2))


def format_progress(measured: int, max_points: int, left_s: float) -> str:
    """Return the progress of a calibration: "[24/24 and 2 again, 0:20 left]".

    Args:
        measured: points so far, with the repeats that follow them.
        max_points: the largest number of points.
        left_s: remaining seconds.
    """
    repeats = max(0, measured - max_points)
    repeat_text = f" and {repeats} again" if repeats else ""
    left = format_duration(max(0.0, left_s))
    return f"[{min(measured, max_points)}/{max_points}{repeat_text}, {left} left]"


def points_s(limit_s: float, spent_s: float) -> float:
    """Return the seconds for points: the remaining ones, but at least half of the limit.

    On a busy machine the ceilings may take longer than planned.
    """
    return max(limit_s - spent_s, limit_s / 2)
