"""A device calibrated with records, cases or a table of trainings, and its file written."""

from collections import Counter
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.toml_files import read_toml
from steptime.hardware import catalog


def calibrated_from(
    path: Path, mapping: Path | None, of: str | None, points: int
) -> tuple[dict[str, Any], Path, str]:
    """Return the table of a device that rows calibrate, its file, and how it is used."""
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
    return table | {"calibration": made}, written, said


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
