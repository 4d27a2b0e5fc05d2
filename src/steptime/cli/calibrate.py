"""The command `calibrate`: what steps take here, measured, so that predictions hold."""

from pathlib import Path
from typing import Any

from steptime.calibration.from_rows import calibrated_from
from steptime.calibration.here import POINTS, check_ceilings, measured
from steptime.cli.probe import probe
from steptime.core.question import File, Text, choice, number, optional, question, whole
from steptime.core.table import Answer, Table, columns
from steptime.core.units import percent
from steptime.questions import options

MINUTES = 3.0
SHORT_S = 20.0  # of ceilings or a link alone


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
        return _answer(*calibrated_from(records, mapping, of, points))
    options.refuse({"--of": of, "--map": mapping}, "{} needs --from DIR")
    check_ceilings(backend)
    limit_s = 60 * (MINUTES if minutes is None else minutes)
    table, path = measured(backend, options.options_of(device, threads), limit_s, points)
    return _answer(table, path, f"written to {path}; use it as --device local")


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
