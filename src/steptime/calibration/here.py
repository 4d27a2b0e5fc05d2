"""The machine that this runs on, measured: its ceilings, then what predictions need of it."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from platform import node
from time import monotonic
from typing import Any

from steptime import __version__
from steptime.calibration import log
from steptime.calibration.log import Answers
from steptime.core.errors import InputError, InterruptError
from steptime.core.files import check_writable
from steptime.core.progress import note
from steptime.core.units import counted, duration, seconds
from steptime.hardware import catalog, item_files
from steptime.hardware.device_file import device_from_table
from steptime.measure import ranks, registry
from steptime.measure.contract import Options
from steptime.measure.drivers import driver_of
from steptime.measure.launch import Worker, WorkerDiedError
from steptime.measure.probe.files import device_table

POINTS = 60
LEAST = 40  # points, before errors that fall no more end it
PROBE_SHARE = 0.1  # of the time
PROBE_S = 8.0  # at least, as far as that is half of the time: less leaves memory unmeasured
DTYPES = ("float32", "bfloat16")  # on accelerators; a CPU's matrix units are none


def check_ceilings(backend: str) -> None:
    """Raise `InputError` for a backend that is not there, or that would not run what is timed."""
    if registry.backend(backend).rewrites:
        raise InputError(
            f"calibrate: {backend} merges ops that are alike and leaves out what nobody reads, so "
            "many of one kind measure nothing; calibrate with --backend torch"
        )


def take_probe(backend: str, chosen: Options, budget: float) -> dict[str, Any]:
    """Probe this machine in a worker, and return the table of its device file."""
    if ranks.here().size > 1:
        raise InputError("calibrate measures one process: leave out torchrun or srun")
    with Worker(backend, chosen) as worker:
        arguments = {"budget_s": budget}
        try:
            answer = worker.ask({"do": "probe", "arguments": arguments}, 60 + 4 * budget)
        except WorkerDiedError as died:
            raise InputError(f"calibrate: {died}") from None
    return device_table(answer)


def measured(
    backend: str, chosen: Options, limit_s: float, most: int = POINTS
) -> tuple[dict[str, Any], Path]:
    """Probe and calibrate this machine in workers, write the device file, and return both.

    Interrupted, the points so far count, unless the device was calibrated with more before.
    """
    from steptime.calibration.session import Session

    began = monotonic()
    kept, table, earlier = _begun(backend, chosen, limit_s)

    with Worker(backend, chosen) as worker:

        def ask(request: Any) -> Any:
            try:
                return worker.ask(request, 60 + 20 * request["budget_s"])
            except WorkerDiedError as died:
                raise InputError(f"calibrate: {died}") from None

        def tell(one: Any, left_s: float) -> None:
            said = ", ".join(f"{name} {seconds(took)}" for name, took in one.seconds.items())
            progress = format_progress(len(session.taken), most, left_s)
            note(f"{progress} {one.point.name}: {one.note or said}")

        left_s = points_s(limit_s, monotonic() - began)
        found = device_from_table(table, table["name"])
        types = DTYPES[:1] if found.is_cpu else DTYPES
        session = Session(found, ask, tell, left_s, most, min(LEAST, most), types)
        session.keep = partial(log.keep, kept)
        session.earlier = earlier
        table["calibration"] = {
            **session.run(),
            "stack": catalog.DEFAULT_STACK,
            "backend": backend,
            "version": worker.greeting["version"],
            "threads": worker.greeting["threads"],
            **driver_of(chosen.device),
        }
    before = 0
    if session.interrupted:
        with suppress(InputError):  # it is new
            before = catalog.device(table["name"]).calibration.get("measured_points", 0)
    points = table["calibration"]["measured_points"]
    if before > points:
        kept.unlink()
        raise KeyboardInterrupt
    path = catalog.write_user_device(table, table["name"])
    kept.unlink()
    if session.interrupted:
        raise InterruptError(f"{counted(points, 'point')} kept in {path}")
    return table, path


def _begun(backend: str, chosen: Options, limit_s: float) -> tuple[Path, dict[str, Any], Answers]:
    """Return where points are kept as they are measured, the ceilings, and what a kill has left.

    Raises `InputError` where no device file could be written at the end.
    """
    folder = item_files.user_folder("devices")
    check_writable(folder)
    kept = folder / f".calibrating-{backend}-{chosen.device}-{chosen.threads or 'all'}.jsonl"
    of = {"steptime": __version__, "version": registry.version(backend), "host": node()}
    of |= driver_of(chosen.device)
    table, earlier = log.resume(kept, of)
    if table is not None:
        points = counted(sum(map(len, earlier.values())), "point")
        note(f"going on after {points} of a calibration that was killed ...")
        return kept, table, earlier
    probing_s = max(1.0, PROBE_SHARE * limit_s, min(PROBE_S, limit_s / 2))
    note(f"measuring ceilings ({duration(probing_s)}), then points ...")
    table = take_probe(backend, chosen, probing_s)
    log.begin(kept, of, table)
    return kept, table, earlier


def format_progress(measured: int, max_points: int, left_s: float) -> str:
    """Return the progress of a calibration: "[3/24, 0:20 left]"; repeats at its end count apart.

    Args:
        measured: points and repeats of points so far.
        max_points: the largest number of points.
        left_s: seconds that are left.
    """
    repeats = max(0, measured - max_points)
    repeat_text = f" and {repeats} again" if repeats else ""
    left = duration(max(0.0, left_s))
    return f"[{min(measured, max_points)}/{max_points}{repeat_text}, {left} left]"


def points_s(limit_s: float, spent_s: float) -> float:
    """Return the seconds for points: what is left, and half at least of a busy machine's limit."""
    return max(limit_s - spent_s, limit_s / 2)
