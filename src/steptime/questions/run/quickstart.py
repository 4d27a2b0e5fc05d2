"""What `run --demo` does: calibrate, measure, predict and report 24 small networks."""

from importlib.resources import files
from pathlib import Path
from time import monotonic

import msgspec

from steptime.core.progress import print_note
from steptime.core.units import format_duration
from steptime.questions import options
from steptime.sweeps.answers import SweepAnswer

CALIBRATION_S = 40.0
CALIBRATION_POINTS = 24


class DemoAnswer(SweepAnswer, frozen=True, kw_only=True):
    """What a demonstration measured and wrote.

    Attributes:
        device: the device that was calibrated.
        report: the page of the report.
        elapsed_s: seconds of the whole demonstration.
    """

    device: str
    report: str
    elapsed_s: float


def run_demo(out: Path, backend: str, budget_s: float | None) -> DemoAnswer:
    """Calibrate this machine, measure and predict 24 networks, and write a report.

    Args:
        out: folder for the records and the report.
        backend: the library that runs the networks.
        budget_s: seconds of a network; None for those of the experiment.

    Raises:
        InputError: if the backend cannot be probed, or the folder cannot be written.
    """
    from steptime.calibration.here import calibrate_machine, check_ceilings
    from steptime.questions.sweep.question import make_request, measure_locally
    from steptime.records import store
    from steptime.reports import write_report
    from steptime.sweeps.experiment import read_experiment

    check_ceilings(backend)
    # Before probing: refuse a folder that is no store, and one that cannot be written.
    store.load(out, print_note, required=False)
    store.open_writer(out).close()
    begin_s = monotonic()
    experiment_file = Path(str(files("steptime") / "data/experiments/quickstart.toml"))
    changes: dict[str, object] = {"backend": [backend]}
    if budget_s is not None:
        changes["budget_s"] = budget_s
    experiment = read_experiment(experiment_file).model_copy(update=changes)
    device_table, _device_file = calibrate_machine(
        backend, options.options_of(), CALIBRATION_S, CALIBRATION_POINTS
    )
    print_note(f"measuring into {out} ...")
    answer = measure_locally(make_request(experiment, "quickstart", out))
    page = out / "report.html"
    print_note(f"drawing {page} ...")
    write_report(out, page)
    elapsed_s = monotonic() - begin_s
    fields = msgspec.structs.asdict(answer)
    fields["headline"] = (
        *answer.headline,
        f"report: {page} (after {format_duration(elapsed_s)})",
        f"next:   steptime compare {out}",
        f"        steptime analyse errors {out}",
        "        steptime fit resnet50 --device local",
    )
    return DemoAnswer(**fields, device=device_table["name"], report=str(page), elapsed_s=elapsed_s)
