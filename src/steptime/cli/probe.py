"""The command `probe`: what this machine can do at most, or the link between processes."""

from contextlib import suppress
from typing import Any

from steptime.calibration.here import check_ceilings, take_probe
from steptime.core.errors import InputError
from steptime.core.files import check_writable
from steptime.core.question import flag, number, question, whole
from steptime.core.table import Answer, Table, columns, facts
from steptime.core.units import percent, seconds, shown
from steptime.hardware import catalog
from steptime.hardware.device import GB, TFLOP
from steptime.measure import ranks
from steptime.measure.contract import Options
from steptime.measure.launch import WorkerDiedError
from steptime.measure.probe.files import SIZES_BYTES, link_table
from steptime.questions import options
from steptime.sweeps.workers import Workers

PROCESSES = 2


@question()
def probe(
    backend: options.Backend = "torch",
    device: options.Place = "cpu",
    threads: options.Threads = None,
    budget: float = number("S", "Seconds in all.", 20.0, least=1.0, most=86_400),
    collectives: bool = flag("Measure all-reduces among processes: link 'local'."),
    processes: int | None = whole("N", "How many, for --collectives. Default: 2.", least=2),
) -> Answer:
    """Measure the ceilings of this machine, as device 'local'.

    They are the most that it reaches: matrix products, memory, and the time to issue an op.
    With --collectives the link between processes is measured, as link 'local'.
    """
    check_ceilings(backend)
    if processes is not None and not collectives:
        raise InputError("--processes needs --collectives")
    chosen = options.options_of(device, threads)
    check_writable(catalog.user_folder("links" if collectives else "devices"))
    if collectives:
        return _link(backend, chosen, processes, budget)
    gone = ""
    with suppress(InputError):  # no probe before, or a file that is none
        gone = str(catalog.device(catalog.LOCAL).calibration.get("date", ""))[:10]
    table = take_probe(backend, chosen, budget)
    path = catalog.write_user_device(table, table["name"])
    notes = [f"written to {path}; use it as --device local"]
    if gone:
        notes.append(f"'local' was calibrated on {gone}, which is gone: steptime calibrate")
    peaks = table["peak_TFLOP_per_s"].items()
    rows: list[tuple[str, Any]] = [
        (f"peak {dtype}", shown("flop_per_s", peak * TFLOP)) for dtype, peak in peaks
    ]
    rows.append(("memory bandwidth", shown("bytes_per_s", table["memory_GB_per_s"] * GB)))
    if "launch_us" in table:
        rows.append(("time to issue an op", seconds(table["launch_us"] * 1e-6)))
    shown_ = facts(f"{table['name']} ({table['source']})", "measured", rows)
    return Answer({"device": table["name"], "path": str(path), **table}, [shown_], notes)


def _link(backend: str, chosen: Options, processes: int | None, budget: float) -> Answer:
    """Measure all-reduces among processes and write the link `local`.

    The answer is empty for all but rank 0 of what a launcher started. Raises `InputError`.
    """
    if backend != "torch":
        raise InputError(f"--collectives: {backend} runs on one device; torch has several")
    size = ranks.here().size
    usual = size if size > 1 else PROCESSES
    workers = Workers()
    try:
        arguments = {"sizes": SIZES_BYTES, "budget_s": budget}
        worker = workers.get(backend, chosen, processes or usual)
        answer = worker.ask({"do": "collectives", "arguments": arguments}, 60 + 4 * budget)
    except WorkerDiedError as died:
        raise InputError(f"probe: {died}") from None
    finally:
        workers.close()
    if not workers.rank.is_zero:
        return Answer(None)
    table = link_table(answer)
    path = catalog.write_user_link(table)
    measured = table["measured"]
    keys = ("bytes", "all_reduce_s", "fit_error")
    rows = [
        {"bytes": many, "all_reduce_s": took, "off": percent(off, "+")}
        for many, took, off in zip(*(measured[key] for key in keys), strict=True)
    ]
    latency = table.get("latency_us")
    said = "none shows" if latency is None else seconds(latency * 1e-6)
    rate = shown("bytes_per_s", table["GB_per_s"] * GB)
    heads = columns("bytes", "all_reduce_s=median", "off=ring formula is off")
    notes = [f"latency {said}, bandwidth {rate}: {table['note']}"]
    return Answer(
        {"link": table["name"], "path": str(path), **table},
        [Table(heads, rows, f"all-reduce, {table['source']}")],
        [*notes, f"written to {path}; use it as --link local"],
    )
