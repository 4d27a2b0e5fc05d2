"""A device calibrated with records, cases, rows or a table of trainings, and its file written."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from steptime.calibration.here import POINTS
from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.table import Result, Table, columns, frame
from steptime.core.toml_files import read_toml
from steptime.core.units import counted, percent
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.records.row import grouped

MEND = "measure some by `steptime run --out DIR`, or name the columns by --map"


@dataclass(frozen=True)
class Calibration(Result):
    """A device with what rows told of it: `device` goes into `predict`, `table` into its file.

    `path` is where that was written, None where it was not.
    """

    device: Device
    table: Mapping[str, Any]
    path: Path | None = None
    used: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """The calibration as one JSON document."""
        path = None if self.path is None else str(self.path)
        return {"device": self.device.name, "path": path, "calibration": dict(self.table)}

    def tables(self) -> list[Table]:
        """Return the errors of what was left out of the fit, by kind."""
        heads = columns("kind", "points", "mape:.1%=MAPE", "bias:+.2f=bias")
        title = f"{self.device.name}: errors of points left out of the fit"
        return [Table(heads, self._errors, title)]

    @property
    def _errors(self) -> list[dict[str, Any]]:
        return [{"kind": kind, **row} for kind, row in self.table["errors"].items()]

    def to_pandas(self) -> Any:
        """Return a DataFrame with the cross-validated error of each kind; needs pandas."""
        return frame(self._errors)

    @property
    def says(self) -> list[str]:
        """What a reader must know, a line each."""
        made = self.table
        said = []
        if "check_mape" in made:
            kept = made["check_points"]
            said.append(f"of {kept} points that were kept back: {percent(made['check_mape'])}")
        if "drift" in made:
            said.append(f"the first point, again at the end: {percent(made['drift'], '+')}")
        if made.get("disturbed", 0) > 0.5:
            of = f"{percent(made['disturbed'])} of the rounds"
            said.append(f"other work disturbed {of}: calibrate again when it is done")
        said += [f"not measured: {name}: {why}" for name, why in made.get("failed", {}).items()]
        return [*said, self.used] if self.used else said


def calibrated_from(
    rows: Any, mapping: Path | None, of: str | Device | None, points: int | None, write: bool = True
) -> Calibration:
    """Return a device that rows calibrate, with `write` its file too, and how it is used.

    `rows` are a folder or a file, or mappings or a DataFrame, of which no file is written. Raises
    `InputError`.
    """
    from steptime.calibration.device import calibrate as calibrated
    from steptime.calibration.mapped import cases as cases_in
    from steptime.calibration.plan_errors import calibration

    path = rows if isinstance(rows, Path) else None
    points = points or (POINTS if path else None)
    where = "" if path is None else f"{path}: "
    if path is not None and not path.exists():
        raise InputError(f"{path}: no such file or folder")
    device = None if of is None else catalog.device(of)
    left: list[tuple[str, str]] = []
    steps = [] if mapping or path is None else _rows(path, left)
    how: Any = {"warn": note, "unasked": None if path is None else left}
    cases = [] if steps else cases_in(rows, mapping, device, **how)
    devices = [asked.texts["device"] for asked, _ in steps] + [case.device.name for case in cases]
    names = sorted({*devices})
    if not names and (path is not None or device is None):
        why = f": {': '.join(left[0])}" if left else f"; {MEND}"
        raise InputError(f"{where}no measured step of a device that is known{why}")
    for cause, alike in grouped(left, itemgetter(1)).items():
        note(f"{counted(len(alike), 'row')} left out: {cause} ({alike[0][0]})")
    if device is None and len(names) > 1:
        raise InputError(f"{where}steps of {', '.join(names)}; choose one with --of NAME")
    name = names[0] if device is None else device.name
    own = [i for i, one in enumerate(devices) if one == name]
    if names and not own:
        word = "step" if path else "row"
        raise InputError(f"{where}no {word} of {name}; there are those of {', '.join(names)}")
    device = device or (catalog.device(name) if steps else cases[own[0]].device)
    if steps:
        made = calibration([steps[i] for i in own], points or len(own))
        made |= {"source": f"{made['points']} steps of {path}"}
    else:
        some = [cases[i] for i in own]
        word = "rows" if any(case.alone for case in some) else "steps"
        source = f"{len(own)} {word} of {path}" if path else ""
        made = calibrated(device, some, points, source=source)
        stacks = {case.stack or catalog.DEFAULT_STACK for case in some if not case.alone}
        if others := sorted(stacks - {made.get("stack")}):
            note(f"steps of stack {made['stack']} alone are taken, none of {', '.join(others)}")
    if path is None or not write:
        return Calibration(replace(device, calibration=made), made)
    written = _written(device, of, made, path)
    under = f" --stack {made['stack']}" if steps else ""
    used = f"written to {written}; use --device {written.stem}{under}"
    return Calibration(replace(device, name=written.stem, calibration=made), made, written, used)


def _written(device: Device, of: object, made: Mapping[str, Any], path: Path) -> Path:
    """Return the file of the device, with what rows of a path tell of it."""
    if isinstance(of, str) and of.lower().endswith(".toml"):
        table = read_toml(Path(of))
    elif device.name.lower() in catalog.device_names():
        table = catalog.device_table(device.name)
    else:
        said = f"{device.name} is no device by name; choose its file: --of {device.name}.toml"
        raise InputError(f"{path}: {said}")
    if device.name in catalog.device_names(own=False):
        table["name"] = f"{device.name}-calibrated"
    if table["name"] in catalog.device_names():
        note(f"{table['name']} was calibrated before: that is replaced")
    return catalog.write_user_device(table | {"calibration": made}, table["name"], local=False)


def _rows(path: Path, left: list[tuple[str, str]]) -> list[Any]:
    """Return the rows of a table of trainings and what is predicted of each, or none.

    Those that cannot be asked go to the list `left`, with their causes.
    """
    from steptime.calibration.plan_errors import replies
    from steptime.calibration.plan_rows import lacking, questions, tables_in

    tables, _ = tables_in([path]) if path.is_file() else ([], [])
    if not tables:
        if path.is_file() and (said := lacking(path)):
            raise InputError(said)
        return []
    every = [one for *_, one in replies(questions(path), "calibrated")]
    left += [(path.name, str(one)) for one in every if isinstance(one, InputError)]
    return [one for one in every if not isinstance(one, InputError)]
