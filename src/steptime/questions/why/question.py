"""The question `why`: what a step waits for, and what would help."""

from pathlib import Path
from typing import Annotated, Unpack

from steptime.core.errors import InputError, check_choice
from steptime.core.kinds import Kind, text_of
from steptime.core.values import parse_count, parse_number
from steptime.hardware import catalog
from steptime.prediction import DEFAULT
from steptime.questions import kinds
from steptime.questions import options as shared
from steptime.questions.pictures import check_picture
from steptime.questions.step_options import ExecutionKeywords, ExecutionOptions
from steptime.questions.why.answer import WhyAnswer
from steptime.questions.why.corrections import CorrectionsAnswer, explain_corrections
from steptime.questions.why.diagnose import diagnose_step
from steptime.questions.why.folder import WhyFolderAnswer, explain_folder

STARTS = ("paleo",)


def why(
    model: kinds.Model | None = None,
    device: kinds.Device | None = None,
    batch: kinds.Batch | None = None,
    dtype: kinds.Dtype | None = None,
    phase: kinds.Phase = "train",
    optimizer: kinds.Optimizer | None = None,
    replicas: kinds.Count | None = None,
    link: kinds.Link | None = None,
    method: kinds.MethodName = DEFAULT,
    options: kinds.MethodSettings | None = None,
    input_per_s: kinds.Number | None = None,
    folder: kinds.RecordsIn | None = None,
    from_: Annotated[str, Kind("NAME", choices=STARTS)] | None = None,
    allow_unknown: bool = False,
    strict: bool = False,
    batch_axis: kinds.Axis | None = None,
    length: kinds.Length | None = None,
    out: kinds.OutFile | None = None,
    **execution: Unpack[ExecutionKeywords],
) -> WhyAnswer | WhyFolderAnswer | CorrectionsAnswer:
    """Say why a step takes as long as it does.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); with --in a part of the names of networks.
        device: A device (steptime list devices), FILE.toml or local. Default with --in: each
            record's.
        batch: Batch size. Default: 64, transformers 1, a file's own.
        dtype: float32, float64, bfloat16, float16, or with float32 weights bfloat16-mixed,
            float16-mixed. Default: bfloat16-mixed of sequence models (float16-mixed where a device
            has no bfloat16), float32 of others and on a CPU.
        phase: train or infer.
        optimizer: sgd, momentum, rmsprop, adam, adamw, or adam with states of 8 bits, or that may
            be paged to the host: adam8bit, paged_adam, paged_adam8bit. Default: adam of sequence
            models, sgd of others.
        replicas: Data-parallel replicas, one per device.
        link: What joins the replicas.
        method: The cost model (steptime list methods).
        options: An option of the method; repeatable.
        input_per_s: Examples a second that input brings, read ahead.
        folder: Explain the steps in a folder of records.
        from_: paleo shows how corrections lead from Paleo's number to ours.
        allow_unknown: Let layers of unknown type in a network's file pass their input on.
        strict: Refuse a network with an op of unknown work (of .onnx, .pt2 and code).
        batch_axis: Of code: the axis of its first input that is the batch. Default: found out.
        length: Tokens of a sequence. Default: the model's.
        out: Draw the corrections of --from as .png, .svg, .pdf or .html.
        **execution: How the step is executed: `ExecutionOptions`.

    Returns:
        A `WhyAnswer`; of a folder with several steps a `WhyFolderAnswer`, with `from_` a
        `CorrectionsAnswer`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    picture = check_picture(out)
    if from_ is not None:
        check_choice("--from", from_, STARTS)
    method_options = ExecutionOptions.from_keywords(execution, why).method_options(options)
    target = None
    if device is not None:
        target = catalog.device(shared.single_device(text_of(device)), from_ or method)
    of_replicas = {"--replicas": replicas, "--link": link, "--input-per-s": input_per_s}
    if folder is not None:
        single = {"--batch": batch, "--length": length, "--dtype": dtype, **of_replicas}
        shared.refuse(single, "{} does not go with --in, which takes all of a folder's records")
        name = None if model is None else str(model)
        return explain_folder(Path(folder), name, target, method, method_options)
    if model is None or target is None:
        missing = "argument 'MODEL'" if model is None else "option '--device'"
        raise InputError(f"Missing {missing}.")
    count = 1 if replicas is None else parse_count(text_of(replicas), "--replicas")
    if count > 1 and link is None:
        raise InputError("several replicas all-reduce gradients: name a link with --link")
    workload = shared.workload_of(
        shared.set_reading(model, strict, batch_axis),
        text_of(batch),
        dtype,
        phase,
        optimizer,
        allow_unknown,
        length=None if length is None else parse_count(text_of(length), "--length"),
        device=target,
    )
    if from_ is not None:
        shared.refuse(of_replicas, "{} does not go with --from paleo")
        return explain_corrections(workload, target, method_options, picture)
    shared.refuse({"--out": picture}, "{} needs --from paleo")
    joining_link = None if link is None else catalog.link(link, "--link")
    examples_per_s = None if input_per_s is None else parse_number(input_per_s, "--input-per-s")
    return diagnose_step(
        workload, target, method, method_options, joining_link, count, examples_per_s
    )
