"""The command `calibrate`: what this machine's steps take, measured, so that predictions hold."""

from pathlib import Path
from typing import Any

from steptime.cli import options
from steptime.cli.command import command, note
from steptime.cli.options import Text, option
from steptime.cli.probe import take_probe
from steptime.core.errors import InputError
from steptime.core.ranges import whole_number
from steptime.core.table import Answer, Table, columns
from steptime.core.units import duration, seconds
from steptime.measure.contract import Options

POINTS = 60
PROBE_SHARE = 0.1  # of the time


@command()
def calibrate(
    backend: options.Backend = "torch",
    device: options.Place = "cpu",
    threads: options.Threads = None,
    minutes: float = option("--minutes M", "In all.", 3.0, min=0.05, max=1440.0),
    points: Text = option("--points N", f"At most. Default: {POINTS}.", None),
) -> Answer:
    """Measure what predictions need of this machine, and write it as device 'local'.

    Ceilings first (as probe does), then the points that tell most, until errors stop falling. With
    --from the records of a device are taken in place of that.
    """
    count = POINTS if points is None else whole_number(points, "--points")
    options.check_backend(backend)
    table, path = measured(backend, options.options_of(device, threads), minutes * 60, count)
    return _answer(table, path, f"written to {path}; use it as --device local")


def measured(
    backend: str, chosen: Options, limit_s: float, most: int
) -> tuple[dict[str, Any], Path]:
    """Probe and calibrate this machine in workers, write the device file, and return both."""
    from time import monotonic

    from steptime import catalog
    from steptime.calibration.session import Session
    from steptime.core.hardware import device_from_table
    from steptime.launch.local import Worker, WorkerDiedError

    began = monotonic()
    note(f"measuring ceilings ({PROBE_SHARE * limit_s:.0f} s), then points ...")
    table, path = take_probe(backend, chosen, max(1.0, PROBE_SHARE * limit_s))
    found = device_from_table(table, str(path))

    def tell(one: Any, most: int, left_s: float) -> None:
        said = one.note or ", ".join(f"{k} {seconds(v)}" for k, v in one.seconds.items())
        where = f"[{len(session.taken)}/{most}, {duration(max(0.0, left_s))} left]"
        note(f"{where} {one.point.name}: {said}")

    with Worker(backend, chosen) as worker:

        def ask(request: Any) -> Any:
            try:
                return worker.ask(request, 60 + 20 * request["budget_s"])
            except WorkerDiedError as died:
                raise InputError(f"calibrate: {died}") from None

        session = Session(
            found, ask, limit_s - (monotonic() - began), most, min(40, most), clock=monotonic
        )
        calibration = session.run(tell)
        facts = {
            "backend": backend,
            "version": worker.greeting["version"],
            "threads": worker.greeting["threads"],
            **driver_of(chosen.device),
        }
    table["calibration"] = calibration | {"stack": catalog.DEFAULT_STACK, **facts}
    return table, catalog.write_user_device(table, table["name"])


def driver_of(device: str) -> dict[str, str]:
    """Return the version of the driver of a GPU, {} for a CPU and where no driver tells."""
    from steptime.measure.doctor import nvidia_gpus

    gpus = nvidia_gpus() if device.startswith("cuda") else None
    return {"driver": gpus[0]["driver_version"]} if gpus else {}


def _answer(table: dict[str, Any], path: Path, said: str) -> Answer:
    made = table["calibration"]
    rows = [
        {"kind": kind, "points": one["points"], "mape": f"{one['mape']:.0%}"}
        for kind, one in made["errors"].items()
    ]
    title = f"{table['name']}: {made['points']} rows, off when left out"
    notes = []
    if made.get("check_points"):
        notes.append(
            f"{made['check_points']} points were kept back: mean error {made['check_mape']:.0%}"
            if "check_mape" in made
            else ""
        )
    if "drift" in made:
        notes.append(f"the first point, again at the end: {made['drift']:+.1%}")
    notes.append(said)
    return Answer(
        {"device": table["name"], "path": str(path), "calibration": made},
        [Table(columns("kind", "points", "mape=mean error"), rows, title)],
        [line for line in notes if line],
    )
