"""The command `why`: what a step waits for, and what would help."""

from __future__ import annotations

from typing import Annotated

from steptime.cli.picture import picture
from steptime.cli.whatif import DTYPE
from steptime.core.errors import InputError
from steptime.core.question import File, Text, argument, choice, number, optional, question, whole
from steptime.core.table import Answer
from steptime.prediction import DEFAULT
from steptime.questions import options
from steptime.questions.step_options import ExecutionOptions
from steptime.questions.why import Diagnosis


@question(long="asking the model")
def why(
    model: Annotated[
        Text, argument("MODEL", f"{options.MODEL}; with --in those asked for.")
    ] = None,
    device: Text = optional("NAME", f"{options.DEVICE}. Default with --in: each record's."),
    batch: options.Batch = None,
    dtype: Text = optional("NAME", DTYPE),
    phase: options.Phase = "train",
    optimizer: options.Optimizer = "sgd",
    replicas: int | None = whole("N", "Data-parallel replicas, one per device."),
    link: Text = optional("LINK", "What joins the replicas."),
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
    input_per_s: float | None = number("N", "Examples a second that input brings, read ahead."),
    folder: File = optional("--in DIR", "Explain the steps in a folder of records."),
    start: Text = choice(
        ("paleo",), "paleo: show how corrections lead from Paleo's number to ours.", "--from"
    ),
    allow_unknown: options.AllowUnknown = False,
    length: options.Length = None,
    out: File = picture("With --from: draw it"),
    *,
    execution: ExecutionOptions,
) -> Diagnosis | Answer:
    """Say why a step takes as long as it does."""
    from steptime.hardware import catalog
    from steptime.questions import why as asked
    from steptime.questions.networks import dtype_for

    given = execution.method_options(option_)
    found = None if device is None else catalog.device(options.one_device(device), start or method)
    if folder is not None:
        options.refuse(
            {"--batch": batch, "--length": length, "--dtype": dtype, "--replicas": replicas,
             "--link": link, "--input-per-s": input_per_s},
            "{} does not go with --in, which takes all of a folder's records",
        )  # fmt: skip
        from steptime.questions.why_folder import of_folder

        return of_folder(folder, model, found, method, given)
    if model is None or device is None or found is None:
        missing = "argument 'MODEL'" if model is None else "option '--device'"
        raise InputError(f"Missing {missing}.")
    if (replicas or 1) > 1 and link is None:
        raise InputError("several replicas all-reduce gradients: name a link with --link")
    kind = dtype_for(found, dtype)
    workload = options.workload_of(
        model, batch, kind, phase, optimizer, allow_unknown, length=length
    )
    if start is not None:
        from steptime.cli.explain import explain

        options.refuse(
            {"--replicas": replicas, "--link": link, "--input-per-s": input_per_s},
            "{} does not go with --from paleo",
        )
        return explain(workload, found, given, out)
    options.refuse({"--out": out}, "{} needs --from paleo")
    joined = None if link is None else catalog.link(link, "--link")
    return asked.why(workload, found, method, given, joined, replicas or 1, input_per_s)
