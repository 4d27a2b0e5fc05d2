"""The question `why`: what a step waits for, and what would help."""

from pathlib import Path
from typing import Annotated, Unpack

from steptime.core.errors import InputError, check_choice
from steptime.core.signatures.kinds import Kind, text_of
from steptime.core.values import Share, parse_count, parse_number, parse_share
from steptime.hardware import catalog
from steptime.questions import kinds
from steptime.questions import options as shared
from steptime.questions.pictures import check_picture
from steptime.questions.step_options import StepKeywords, StepOptions
from steptime.questions.why.answer import WhyAnswer
from steptime.questions.why.corrections import CorrectionsAnswer, explain_corrections
from steptime.questions.why.diagnose import diagnose_step
from steptime.questions.why.folder import WhyFolderAnswer, explain_folder
from steptime.questions.why.setup import make_setup
from steptime.questions.why.slow_run import diagnose_speed

STARTS = ("paleo",)


def why(
    model: kinds.Model | None = None,
    device: kinds.Device | None = None,
    batch: kinds.Batch | None = None,
    measured: Annotated[float | str, Kind("SPEED")] | None = None,
    busy: Annotated[Share, Kind("X%")] | None = None,
    replicas: kinds.Count | None = None,
    link: kinds.Link | None = None,
    input_per_s: kinds.Number | None = None,
    folder: kinds.RecordsIn | None = None,
    from_: Annotated[str, Kind("NAME", choices=STARTS)] | None = None,
    out: kinds.OutFile | None = None,
    **step_options: Unpack[StepKeywords],
) -> WhyAnswer | WhyFolderAnswer | CorrectionsAnswer:
    """Say why a step takes as long as it does.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); with --in a part of the names of networks.
        device: A name of steptime list devices, FILE.toml, or local (this machine, calibrated).
            Default with --in: the device of each record.
        batch: Examples in a step. Default: 64; for transformers 1; for a file what it states.
        measured: The speed of a run of yours: 410ms, '1450 examples/s', '12k tokens/s' (of all
            replicas), 4.75it/s or '38% MFU'. The answer says how much of the step the prediction
            explains, and which causes to check.
        busy: With --measured: share of the time in which the device was busy (GPU-Util), 30%.
        replicas: Data-parallel replicas, one per device.
        link: The link between replicas: a name of steptime list links, or FILE.toml.
        input_per_s: Examples a second that the input pipeline delivers. It is assumed to read ahead
            while steps run.
        folder: Explain the steps in a folder of records.
        from_: Only `paleo`: show, correction by correction, the way from the time of Paleo, a
            published model, to the calibrated time.
        out: Draw the corrections of --from as .png, .svg, .pdf or .html.
        **step_options: Which step it is, and how it is executed: `StepOptions`.

    Returns:
        A `WhyAnswer`; of a folder with several steps a `WhyFolderAnswer`, with `from_` a
        `CorrectionsAnswer`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    picture = check_picture(out)
    if from_ is not None:
        check_choice("--from", from_, STARTS)
    step = StepOptions.from_keywords(step_options, why)
    method = step.method
    method_options = step.method_options(step.options)
    target_device = None
    if device is not None:
        # Under Paleo a device of its table has the figures of the paper.
        target_device = catalog.device(shared.single_device(text_of(device)), from_ or method)
    replica_options: dict[str, object] = {
        "--replicas": replicas,
        "--link": link,
        "--input-per-s": input_per_s,
    }
    speed_options: dict[str, object] = {"--measured": measured, "--busy": busy}
    if folder is not None:  # the measured steps of its records
        step_settings = {
            "--batch": batch,
            "--length": step.length,
            "--dtype": step.dtype,
            **replica_options,
        }
        step_settings |= speed_options
        shared.refuse(
            step_settings, "{} does not go with --in, which takes all of a folder's records"
        )
        name = None if model is None else str(model)
        return explain_folder(Path(folder), name, target_device, method, method_options)
    if model is None or target_device is None:
        raise InputError(shared.MISSING_MODEL if model is None else shared.MISSING_DEVICE)
    replica_count = _replica_count(replicas, link)
    workload = step.workload(model, batch, target_device)
    if from_ is not None:  # the way from Paleo's time of a step to the calibrated one
        shared.refuse(replica_options | speed_options, "{} does not go with --from paleo")
        return explain_corrections(workload, target_device, method_options, picture)
    shared.refuse({"--out": picture}, "{} needs --from paleo")
    joining_link = None if link is None else catalog.link(link, "--link")
    examples_per_s = None if input_per_s is None else parse_number(input_per_s, "--input-per-s")
    busy_share = None if busy is None else parse_share(busy, "--busy")
    setup = make_setup(
        workload, target_device, method, method_options, joining_link, replica_count, examples_per_s
    )
    if measured is not None:  # a run of the user's that is slower or faster than predicted
        # What the user states is no guess, so a wrong guess of it is no possible cause.
        user_options = {name for name, value in step_options.items() if value is not None}
        return diagnose_speed(measured, setup, user_options, busy_share)
    shared.refuse({"--busy": busy}, "{} goes with --measured")
    return diagnose_step(setup)


def _replica_count(replicas: kinds.Count | None, link: kinds.Link | None) -> int:
    """Return the number of replicas; raises `InputError` for several without a link."""
    count = 1 if replicas is None else parse_count(text_of(replicas), "--replicas")
    if count > 1 and link is None:
        raise InputError("several replicas all-reduce gradients: name a link with --link")
    return count
