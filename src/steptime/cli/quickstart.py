"""What `run --demo` does: calibrate, measure, predict and report 24 small networks."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from steptime.calibration.here import check_ceilings
from steptime.core.progress import note
from steptime.core.table import Answer
from steptime.core.units import duration
from steptime.questions import options

CALIBRATION_S = 40.0
POINTS = 24


def quickstart(out: Path, backend: str, budget: float | None) -> Answer:
    """Calibrate, measure and predict 24 networks, write a report; return what was measured."""
    from importlib.resources import files
    from time import monotonic

    from steptime.calibration.here import measured
    from steptime.questions.sweep import request_of, run_here
    from steptime.records import store
    from steptime.reports import write_report
    from steptime.sweeps.experiment import read_experiment

    check_ceilings(backend)
    store.load(out, note, required=False)  # a folder that is none is refused before probing,
    store.open_writer(out).close()  # and one that cannot be made or written to
    began = monotonic()
    experiment = read_experiment(Path(str(files("steptime") / "data/experiments/quickstart.toml")))
    changes: dict[str, Any] = {"backend": [backend]}
    if budget is not None:
        changes["budget_s"] = budget
    table, _ = measured(backend, options.options_of(), CALIBRATION_S, POINTS)
    note(f"measuring into {out} ...")
    found = run_here(request_of(experiment.model_copy(update=changes), "quickstart", out))
    page = out / "report.html"
    note(f"drawing {page} ...")
    write_report(out, page)
    seconds = monotonic() - began
    more = {"device": table["name"], "report": str(page), "seconds": seconds}
    notes = [
        *found.notes,
        f"report: {page} (after {duration(seconds)})",
        f"next:   steptime compare {out}",
        f"        steptime analyse errors {out}",
        "        steptime fit resnet50 --device local",
    ]
    return replace(found, document=found.document | more, notes=notes)
