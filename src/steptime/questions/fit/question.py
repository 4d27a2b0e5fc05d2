"""Whether a step fits a device, the largest batch that does, and the best."""

from collections.abc import Sequence
from typing import Annotated, Any, Unpack

from steptime.build import tokens_per_example
from steptime.core.errors import InputError
from steptime.core.signatures.kinds import Kind, text_of
from steptime.core.units import format_percent
from steptime.grids.batches import (
    KNEE,
    MAX_BATCH,
    find_knee,
    growth_for,
    largest_batch,
    list_doubling_batches,
)
from steptime.launch.job import Facts
from steptime.prediction.assumed import assumed_of
from steptime.prediction.conformal import judge_memory
from steptime.prediction.steps.step_model import StepModel
from steptime.questions import kinds
from steptime.questions.fit.answer import FitAnswer, FitRow, Saving
from steptime.questions.fit.commands import list_fitting_commands
from steptime.questions.fit.desktop import (
    DesktopFitAnswer,
    answer_desktop_fit,
    is_desktop_fit,
)
from steptime.questions.fit.memory_savings import list_savings
from steptime.questions.fit.server import answer_engine_fit, is_engine_fit
from steptime.questions.launched.question import answer_launched, read_launched
from steptime.questions.serve.server_answer import ServerAnswer
from steptime.questions.step_options import StepKeywords, StepOptions
from steptime.questions.training import (
    StepInterval,
    TrainingTime,
    predict_training,
    tokens_per_s,
)


def fit(
    model: kinds.Model,
    device: kinds.Device,
    batch: kinds.Batch | None = None,
    tokens: kinds.Count | None = None,
    prices: kinds.PriceFile | None = None,
    from_: kinds.LaunchFile | None = None,
    emit: kinds.EmittedTool | None = None,
    max_context: Annotated[bool, Kind(panel="Memory")] = False,
    **step_options: Unpack[StepKeywords],
) -> FitAnswer | DesktopFitAnswer | ServerAnswer:
    """Say whether a network fits a device, and with which batch.

    With --weights of GGUF (q4_k_m, or all): which fit, the longest context, and the speed.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); a training command or recipe of another tool.
        device: A name of steptime list devices, FILE.toml, or local (this machine, calibrated).
        batch: Examples in a step. Default: 64; for transformers 1; for a file what it states.
        tokens: Tokens of a whole training of a language model: shows its time and cost.
        prices: With --tokens: a file of prices. Default: the shipped prices, each with its date.
        from_: A training command or recipe of another tool. It replaces MODEL; if its file does not
            say the network, give both.
        emit: Print the step as a command or recipe of a tool: `axolotl`, `trl`, `deepspeed`,
            `accelerate`, `megatron`.
        max_context: Show in the first line the longest context (tokens that the cache holds) that
            fits; needs --weights in GGUF, or --stack `vllm`, `sglang` or `trt-llm`.
        **step_options: Which step it is, and how it is executed: `StepOptions`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    launched = read_launched("fit", model, from_)
    if launched is not None:
        options = {
            "batch": batch,
            "tokens": tokens,
            "prices": prices,
            "emit": emit,
            "max_context": max_context,
            **step_options,
        }
        return answer_launched(fit, launched, device, options)
    step = StepOptions.from_keywords(step_options, fit)
    if is_desktop_fit(model, step):
        return answer_desktop_fit(model, device, step, has_max_context=max_context)
    if max_context:
        if is_engine_fit(step):
            return answer_engine_fit(model, device, batch, step)
        raise InputError(
            "fit: --max-context goes with weights of GGUF or the stack of a server; "
            "nearest: --stack vllm"
        )
    step_model = step.build_model(model, batch, text_of(device))
    times = step_model.predict().times
    step_interval = StepInterval(times.step_s, times.low_s, times.high_s)
    workload = step_model.workload
    training = predict_training(tokens, prices, workload, step_model.device.name, step_interval)
    emitted = _emit_step(emit, step_model)
    return _answer_step(step_model, step, model, training, emitted)


def _answer_step(
    step_model: StepModel,
    step: StepOptions,
    model: kinds.Model,
    training: TrainingTime | None,
    emitted: str | None,
) -> FitAnswer:
    """Answer `fit` for a step on one device."""
    workload = step_model.workload
    device = step_model.device
    usable_bytes = device.datasheet.usable_bytes
    prediction = step_model.predict()
    needs = step_model.needs()
    batch_growth = _find_growth(step_model)  # the factor from one batch of the table to the next
    largest_fitting_batch = _find_largest_batch(step_model, batch_growth)
    is_capped = largest_fitting_batch is not None and largest_fitting_batch >= MAX_BATCH
    doubled_batches = _list_doubled_batches(step_model, largest_fitting_batch, batch_growth)
    row_batches = sorted({workload.batch_per_replica, *doubled_batches})
    rows = tuple(_predict_row(step_model, size) for size in row_batches)
    best_batch = _find_best_batch([row for row in rows if row.batch in doubled_batches])
    worst_moment = step_model.worst_moment()
    bytes_by_purpose = worst_moment.bytes_by_purpose
    parts: dict[str, int | None] = {
        **bytes_by_purpose,
        "blocks": needs.blocks_bytes,
        "workspace": needs.workspace_bytes,
        "context": needs.context_bytes,
    }
    # `weights_bytes`, `gradients_bytes` and so on: fields of the answer.
    size_fields: Any = {f"{name}_bytes": value for name, value in bytes_by_purpose.items()}
    commands = []
    if not prediction.fits:
        commands = list_fitting_commands(step_model, step, model, largest_fitting_batch or 0)
    return FitAnswer(
        emitted=emitted,
        model=workload.label,
        device=device.name,
        method=step_model.method.name,
        phase=workload.phase,
        dtype=workload.dtype,
        optimizer=workload.optimizer,
        tuning=workload.tuning.text or None,
        batch=workload.batch_per_replica,
        assumed=assumed_of(step_model),
        fits=None if usable_bytes is None else prediction.fits,
        **judge_memory(needs.total_bytes, usable_bytes, device).to_fields(),
        largest_batch=None if is_capped else largest_fitting_batch,
        capped_batch=largest_fitting_batch if is_capped else None,
        best_batch=best_batch,
        usable_bytes=usable_bytes,
        peak_bytes=prediction.peak_bytes,
        needed_bytes=needs.total_bytes,
        worst_moment=worst_moment.name,
        parts={name: value for name, value in parts.items() if value},
        helps=tuple(Saving(**saving._asdict()) for saving in list_savings(step_model)),
        **size_fields,
        understood=None,  # of a launch command; this step was given by options
        not_used=(),
        blocks_bytes=needs.blocks_bytes,
        workspace_bytes=needs.workspace_bytes,
        context_bytes=needs.context_bytes,
        rows=rows,
        would_fit=tuple(commands),
        training=training,
        notes=tuple(_list_notes(step_model, largest_fitting_batch, best_batch)),
    )


def _list_doubled_batches(
    step_model: StepModel, largest_fitting_batch: int | None, growth: int
) -> list[int]:
    """Return the batches 1, 2, 4, ... of the table up to the largest that fits; [] if none does."""
    if largest_fitting_batch is None:  # the memory is unknown: up to the batch asked for
        return list_doubling_batches(step_model.workload.batch_per_replica, growth)
    return list_doubling_batches(largest_fitting_batch, growth) if largest_fitting_batch else []


def _emit_step(tool: str | None, step_model: StepModel) -> str | None:
    """Return a step on one device as a command or recipe of a tool, None without a tool."""
    if tool is None:
        return None
    from steptime.questions.launched.emitted import emit_training

    workload = step_model.workload
    facts: Facts = {
        "micro_batch": workload.batch_per_replica,
        "accumulation": 1,
        "global_batch": workload.batch_per_replica,
        "devices": 1,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
    }
    if length := tokens_per_example(workload):
        facts["length"] = length
    return emit_training(tool, workload.label, facts, workload.tuning)


def _find_growth(step_model: StepModel) -> int:
    """Return from which batch to the next the table goes; by more than 2 for unrolled modules.

    Graphs of families and of a `config.json` have few shapes, so each batch is quick.
    """
    path = step_model.workload.file  # "" for a network of a family
    is_exported = bool(path) and not path.endswith(".json")
    if not is_exported:
        return 2
    # An exported graph may have many ops, and then each batch takes long.
    return growth_for(len(step_model.graph().ops))


def _find_largest_batch(step_model: StepModel, growth: int) -> int | None:
    """Return the largest batch that fits, None where the memory of the device is unknown."""
    usable_bytes = step_model.device.datasheet.usable_bytes
    if usable_bytes is None:
        return None
    largest_fitting_batch = largest_batch(
        lambda size: step_model.needs(size).total_bytes, usable_bytes, growth=growth
    )
    is_capped = largest_fitting_batch >= MAX_BATCH  # the search ended at its cap, not at the memory
    if is_capped and step_model.predict().fits:
        # The user may ask for a batch above the cap that fits as well.
        return max(largest_fitting_batch, step_model.workload.batch_per_replica)
    return largest_fitting_batch


def _find_best_batch(rows: Sequence[FitRow]) -> int | None:
    """Return the smallest batch with 90 % of the best speed, None without any."""
    if not rows:
        return None
    return find_knee([row.batch for row in rows], [row.step_s for row in rows])


def _list_notes(
    step_model: StepModel, largest_fitting_batch: int | None, best_batch: int | None
) -> list[str]:
    """Return the remarks on a step, on its memory and on the batches."""
    device = step_model.device
    notes = list(step_model.predict().remarks)
    is_driver_unknown = device.kind == "gpu" and step_model.needs().context_bytes is None
    if is_driver_unknown:
        driver = f"that of the driver of {device.name} under {step_model.stack.name} is not known"
        notes.append(f"memory is at least what is said: {driver}")
    if largest_fitting_batch is None:
        notes.append(f"the memory of {device.name} is unknown, so every batch fits")
    elif largest_fitting_batch >= MAX_BATCH:
        notes.append(f"batch {largest_fitting_batch:,} fits, and no larger one was tried")
    if best_batch is not None:
        notes.append(f"best batch: the smallest with {format_percent(KNEE)} of the best speed")
    return notes


def _predict_row(model: StepModel, batch: int) -> FitRow:
    """Predict a step at one batch."""
    prediction = model.predict(batch)
    times = prediction.times
    examples_per_s = batch / times.step_s if times.step_s else None
    needed_bytes = prediction.needs.total_bytes
    return FitRow(
        batch=batch,
        fits=prediction.fits,
        **judge_memory(needed_bytes, model.device.datasheet.usable_bytes, model.device).to_fields(),
        step_s=times.step_s,
        low_s=times.low_s,
        high_s=times.high_s,
        examples_per_s=examples_per_s,
        tokens_per_s=tokens_per_s(tokens_per_example(model.workload), examples_per_s),
        peak_bytes=prediction.peak_bytes,
        needed_bytes=needed_bytes,
    )
