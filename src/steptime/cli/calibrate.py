"""The command `calibrate`: what steps take here, measured, so that predictions hold."""

from steptime.calibration.from_rows import Calibration, calibrated_from
from steptime.calibration.here import POINTS, check_ceilings, measured
from steptime.cli.probe import measure_ceilings, measure_link
from steptime.core.question import File, Text, choice, flag, optional, question, time_option, whole
from steptime.core.table import Answer
from steptime.hardware.device import device_from_table
from steptime.questions import options

MINUTES = 3.0
SHORT_S = 20.0  # of ceilings or a link alone


@question(long="measuring")
def calibrate(
    of: Text = optional("NAME", "With --from: the device whose records they are."),
    records: File = optional(
        "--from DIR|FILE",
        "Take records, cases, or a table of steps of trainings, in place of measuring.",
    ),
    points: int | None = whole("N", f"At most so many. Default: {POINTS}; of rows in Python all."),
    mapping: File = optional(
        "--map --mapping MAP.toml", "With --from: what the columns of a table mean."
    ),
    dry_run: bool = flag("With --from: write no file of the device."),
    backend: options.Backend = "torch",
    device: options.Place = "cpu",
    threads: options.Threads = None,
    minutes: float | None = time_option(
        "M",
        "In all: 3 (default; with --only a third of one), 90s.",
        unit="min",
        at_least=0.05,
        at_most=1440.0,
    ),
    only: Text = choice(
        ("ceilings", "link"),
        "ceilings: the most that the machine reaches, alone; link: all-reduces among processes.",
    ),
    processes: int | None = whole("N", "With --only link: how many. Default: 2.", at_least=2),
) -> Calibration | Answer:
    """Measure what predictions need of this machine.

    Ceilings come first (--only ceilings), then small graphs and networks that tell most, until
    errors on what is kept back fall no more; it becomes the device 'local'. With --from, records
    of any device are taken in place of that, and its file is written with them; Python also takes
    rows themselves (mappings, a DataFrame), of which none is written.
    """
    if only != "link":
        options.refuse({"--processes": processes}, "{} needs --only link")
    if only is not None:
        of_rows = {"--from": records, "--map": mapping, "--of": of}
        options.refuse(of_rows, "{} measures nothing: leave out --only")
        limit_s = SHORT_S if minutes is None else minutes * 60
        worker = options.options_of(device, threads)
        if only == "link":
            return measure_link(backend, worker, processes, limit_s)
        return measure_ceilings(backend, worker, limit_s)
    if records is not None:
        named = of if of is not None or device == "cpu" else device
        return calibrated_from(records, mapping, named, points, not dry_run)
    options.refuse(
        {"--of": of, "--map": mapping, "--dry-run": dry_run or None}, "{} needs --from DIR"
    )
    check_ceilings(backend)
    limit_s = 60 * (MINUTES if minutes is None else minutes)
    chosen = options.options_of(device, threads)
    table, path = measured(backend, chosen, limit_s, points or POINTS)
    used = f"written to {path}; use it as --device local"
    return Calibration(device_from_table(table, table["name"]), table["calibration"], path, used)
