"""The command `calibrate`: what steps take here, measured, so that predictions hold."""

from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from platform import node
from time import monotonic
from typing import Any

from steptime import __version__
from steptime.calibration import log
from steptime.calibration.log import Answers
from steptime.cli.probe import check_ceilings, probe, take_probe
from steptime.core.errors import InputError, InterruptError
from steptime.core.files import check_writable
from steptime.core.progress import note
from steptime.core.question import File, Text, choice, number, optional, question, whole
from steptime.core.table import Answer, Table, columns
from steptime.core.toml_files import read_toml
from steptime.core.units import counted, duration, percent, seconds
from steptime.hardware import catalog
from steptime.hardware.device import device_from_table
from steptime.measure import registry
from steptime.measure.contract import Options
from steptime.measure.doctor import driver_of
from steptime.questions import options

POINTS = 60
MINUTES = 3.0
SHORT_S = 20.0  # of ceilings or a link alone
LEAST = 40  # points, before errors that fall no more end it
PROBE_SHARE = 0.1  # of the time
PROBE_S = 8.0  # at least, as far as that is half of the time: less leaves memory unmeasured
DTYPES = ("float32", "bfloat16")  # on accelerators; a CPU's matrix units are none


@question()
def calibrate(
    backend: options.Backend = "torch",
    device: options.Place = "cpu",
    threads: options.Threads = None,
    minutes: float | None = number(
        "M", "In all. Default: 3, with --only a third of one.", least=0.05, most=1440.0
    ),
    points: int = whole("N", "At most so many.", POINTS),
    records: File = optional(
        "--from DIR|FILE",
        "Take records, cases, or a table of steps of trainings, in place of measuring.",
    ),
    mapping: File = optional(
        "--map --mapping MAP.toml", "With --from: what the columns of a table mean."
    ),
    of: Text = optional("NAME", "With --from: the device whose records they are."),
    only: Text = choice(
        ("ceilings", "link"),
        "ceilings: the most that the machine reaches, alone; link: all-reduces among processes.",
    ),
    processes: int | None = whole("N", "With --only link: how many. Default: 2.", least=2),
) -> Answer:
    """Measure what predictions need of this machine.

    Ceilings come first (as of probe), then small graphs and networks that tell most, until errors
    on what is kept back fall no more; it becomes the device 'local'. With --from, records of any
    device are taken in place of that, and its file is written with them.
    """
    if only is not None:
        given = {"--from": records, "--map": mapping, "--of": of}
        options.refuse(given, "{} measures nothing: leave out --only")
        limit_s = SHORT_S if minutes is None else minutes * 60
        return probe(backend, device, threads, limit_s, only == "link", processes)
    options.refuse({"--processes": processes}, "{} needs --only link")
    if records is not None:
        return _from_records(records, mapping, of, points)
    options.refuse({"--of": of, "--map": mapping}, "{} needs --from DIR")
    check_ceilings(backend)
    limit_s = 60 * (MINUTES if minutes is None else minutes)
    table, path = measured(backend, options.options_of(device, threads), limit_s, points)
    return _answer(table, path, f"written to {path}; use it as --device local")


def measured(
    backend: str, chosen: Options, limit_s: float, most: int = POINTS
) -> tuple[dict[str, Any], Path]:
    """Probe and calibrate this machine in workers, write the device file, and return both.

    Interrupted, the points so far count, unless the device was calibrated with more before.
    """
    from steptime.calibration.session import Session
    from steptime.measure.launch import Worker, WorkerDiedError

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
            left = duration(max(0.0, left_s))
            note(f"[{len(session.taken)}/{most}, {left} left] {one.point.name}: {one.note or said}")

        left_s = points_s(limit_s, monotonic() - began)
        found = device_from_table(table, table["name"])
        types = DTYPES[:1] if found.is_own_host else DTYPES
        session = Session(found, ask, tell, left_s, most, min(LEAST, most), types)
        session.keep, session.earlier = partial(log.keep, kept), earlier
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
    folder = catalog.user_folder("devices")
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


def points_s(limit_s: float, spent_s: float) -> float:
    """Return the seconds for points: what is left, and half at least of a busy machine's limit."""
    return max(limit_s - spent_s, limit_s / 2)


def _from_records(path: Path, mapping: Path | None, of: str | None, points: int) -> Answer:
    from steptime.calibration.device import calibrate as calibrated
    from steptime.calibration.mapped import cases as cases_in
    from steptime.calibration.plan_errors import calibration

    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    rows = [] if mapping else _rows(path)
    unasked: list[tuple[str, str]] = []
    cases = [] if rows else cases_in(path, mapping, warn=note, unasked=unasked)
    for cause, count in Counter(cause for _, cause in unasked).most_common():
        first = next(place for place, one in unasked if one == cause)
        note(f"{count:,} rows left out: {cause} ({first})")
    devices = [asked.texts["device"] for asked, _ in rows] + [case.device.name for case in cases]
    names = sorted({*devices})
    if not names:
        raise InputError(f"{path}: no measured step of a device that is known")
    if of is None and len(names) > 1:
        raise InputError(f"{path}: steps of {', '.join(names)}; choose one with --of NAME")
    name = names[0] if of is None else catalog.device(of).name
    own = [i for i, device in enumerate(devices) if device == name]
    if not own:
        raise InputError(f"{path}: no step of {name}; there are those of {', '.join(names)}")
    if rows:
        made = calibration([rows[i] for i in own], points)
        made |= {"source": f"{made['points']} steps of {path}"}
    else:
        some = [cases[i] for i in own]
        word = "rows" if any(case.alone for case in some) else "steps"
        device = catalog.device(of) if of else some[0].device
        made = calibrated(device, some, points, source=f"{len(own)} {word} of {path}")
        stacks = {case.stack or catalog.DEFAULT_STACK for case in some if not case.alone}
        if others := sorted(stacks - {made.get("stack")}):
            note(f"steps of stack {made['stack']} alone are taken, none of {', '.join(others)}")
    if of and of.lower().endswith(".toml"):
        table = read_toml(Path(of))
    elif name.lower() in catalog.device_names():
        table = catalog.device_table(name)
    else:
        raise InputError(f"{path}: {name} is no device by name; choose its file: --of {name}.toml")
    if name in catalog.device_names(own=False):
        table["name"] = f"{name}-calibrated"
    if table["name"] in catalog.device_names():
        note(f"{table['name']} was calibrated before: that is replaced")
    written = catalog.write_user_device(table | {"calibration": made}, table["name"], local=False)
    under = f" --stack {made['stack']}" if rows else ""
    said = f"written to {written}; use --device {table['name']}{under}"
    return _answer(table | {"calibration": made}, written, said)


def _rows(path: Path) -> list[Any]:
    """Return the rows of a table of trainings and what is predicted of each, or none."""
    from steptime.calibration.plan_errors import replies
    from steptime.calibration.plan_rows import lacking, questions, tables_in

    tables, _ = tables_in([path]) if path.is_file() else ([], [])
    if not tables:
        if path.is_file() and (said := lacking(path)):
            raise InputError(said)
        return []
    every = [one for *_, one in replies(questions(path), "calibrated")]
    for reason, count in Counter(str(one) for one in every if isinstance(one, InputError)).items():
        note(f"{count:,} rows left out: {reason}")
    return [one for one in every if not isinstance(one, InputError)]


def _answer(table: dict[str, Any], path: Path, said: str) -> Answer:
    made = table["calibration"]
    rows = [
        {"kind": kind, "points": one["points"], "mape": percent(one["mape"])}
        for kind, one in made["errors"].items()
    ]
    title = f"{table['name']}: how far predictions are off of what was left out of the fit"
    notes = []
    if "check_mape" in made:
        kept = made["check_points"]
        notes.append(f"of {kept} points that were kept back: {percent(made['check_mape'])}")
    if "drift" in made:
        notes.append(f"the first point, again at the end: {percent(made['drift'], '+')}")
    if made.get("disturbed", 0) > 0.5:
        share = percent(made["disturbed"])
        notes.append(f"other work disturbed {share} of the rounds: calibrate again when it is done")
    notes += [f"not measured: {name}: {why}" for name, why in made.get("failed", {}).items()]
    return Answer(
        {"device": table["name"], "path": str(path), "calibration": made},
        [Table(columns("kind", "points", "mape=mean error"), rows, title)],
        [*notes, said],
    )
