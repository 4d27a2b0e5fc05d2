"""The question `run`: measure one network on this machine."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from steptime.core.dtypes import check_measured_dtype
from steptime.core.errors import InputError, check_choice
from steptime.core.files import check_folder
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import text_of
from steptime.core.signatures.signature import option_name
from steptime.core.units import format_duration, format_seconds, format_si
from steptime.core.values import (
    MAX_PROCESSES,
    MAX_STEPS,
    MAX_VISITS,
    parse_count,
    parse_duration,
)
from steptime.core.workload import STAGINGS, STRATEGIES, Workload
from steptime.hardware.defaults import assumed_step, settle_dtype_by_place
from steptime.hardware.device import Device
from steptime.measure.contract import MIN_TRAIN_STEPS, Options, check_input
from steptime.questions import kinds, options
from steptime.questions.run.measured_step import RankAnswer, RunAnswer, describe_measurement
from steptime.questions.run.quickstart import DemoAnswer, run_demo
from steptime.records.record import Record
from steptime.sweeps.run import Means

LARGE_FLOP = 1e11  # a second or so on a CPU: worth a word before the first step
BUDGET_S = 3.0  # of a network and run
LONG_S = 10.0  # a run that may take longer says so


def run(
    model: kinds.Model | None = None,
    batch: kinds.Batch | None = None,
    stack: kinds.RunStack | None = None,
    backend: kinds.Backend = "torch",
    device: kinds.Place = "cpu",
    phase: kinds.Phase = "train",
    dtype: kinds.Dtype | None = None,
    optimizer: kinds.Optimizer | None = None,
    length: kinds.Length | None = None,
    strict: bool = False,
    batch_axis: kinds.Axis | None = None,
    threads: kinds.Threads | None = None,
    compile_: bool = False,
    tf32: bool = False,
    input_: kinds.Name = "device",
    data: kinds.DataFolder | None = None,
    staging: kinds.Staging | None = None,
    stage_to: kinds.DataFolder | None = None,
    loaders: kinds.LoaderCount | None = None,
    prefetch: kinds.LoaderCount | None = None,
    train_steps: kinds.Count | None = None,
    replicas: kinds.Count | None = None,
    strategy: kinds.Strategy | None = None,
    no_overlap: bool = False,
    budget: kinds.SecondCount | None = None,
    limit: kinds.SecondCount = 600.0,
    runs: kinds.Count = 1,
    parts: bool = False,
    energy: bool = False,
    profile: bool = False,
    trace: kinds.TraceFile | None = None,
    out: kinds.OutFolder | None = None,
    demo: bool = False,
) -> RunAnswer | RankAnswer | DemoAnswer:
    """Measure one network on this machine.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); with --demo none.
        batch: Examples in a step. Default: 64; for transformers 1; for a file what it states.
        stack: The software that runs the steps, by one name in place of --backend and --compile:
            `torch`, `torch-compile`, ... (steptime list stacks).
        backend: The library that runs the steps: `torch`, `jax`, `onnxruntime`, or one that a
            package adds.
        device: Where to run: `cpu`, `cuda[:n]`, `mps`, `tpu[:n]`.
        phase: `train` or `infer`.
        dtype: `float32`, `float64`, `bfloat16` or `float16`; `bfloat16-mixed` or `float16-mixed`
            with weights in `float32`. Default: `float32` on a CPU; elsewhere `bfloat16-mixed` for
            sequence models, `float32` for others.
        optimizer: `sgd`, `momentum`, `rmsprop`, `adam`, `adamw`, `lion`, `lamb`, `adafactor` or
            `muon`. `adam`, `adamw` and `lion` also with a state in 8 bits (`adam8bit`), or moved to
            the host if the device is full (`paged_adam`, `paged_adam8bit`). Default: `adam` for
            sequence models, `sgd` for others.
        length: Tokens of a sequence. Default: the model's.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.
        threads: CPU threads. Default: all cores.
        compile_: Compile the network by torch.compile.
        tf32: Allow TF32 on a GPU.
        input_: `device` (synthetic, resident), `host` (synthetic, copied each step), `dataset`, or
            FILE.py:make_loader, which returns any iterable of batches.
        data: Folder of the data set.
        staging: `shared` (files where they are, the default) or `local` (copied here).
        stage_to: Folder for the copies of --staging local. Default: $LOCAL, $TMPDIR, or the
            system's.
        loaders: Processes that read ahead. Default: 0, none.
        prefetch: Batches that each loader prepares in advance. Default: 2.
        train_steps: Train N steps, then compute the test accuracy.
        replicas: Train data-parallel in N processes, one per device; each has a batch of --batch.
            Default: what torchrun or srun started, else 1.
        strategy: How replicas reduce gradients: `allreduce` (default), `independent` (not at all),
            `sharded` (FSDP) or `parameter-server`.
        no_overlap: Communicate after the backward pass, not during it.
        budget: How long a run samples steps: 3 (seconds, the default), 500ms.
        limit: Stop a run that takes longer, with compiling and warm-up: 600 (seconds), 10min.
        runs: Number of runs, each in a fresh process.
        parts: Also time forward, backward and update separately.
        energy: Also meter the energy of a step, in further steps that take at least 1 s.
        profile: Also time each op, in further steps.
        trace: Write the profiler's timeline, for ui.perfetto.dev (.json).
        out: Keep the record in this folder.
        demo: Calibrate, measure and predict 24 small networks in the folder of --out (results),
            and write a report.

    Raises:
        InputError: for unknown names, and for options that do not go together.
    """
    budget_s = None
    if budget is not None:
        budget_s = parse_duration(text_of(budget), "--budget", "s", at_least=0.001, at_most=86_400)
    limit_s = parse_duration(text_of(limit), "--limit", "s", at_least=0.1, at_most=864_000)
    run_count = parse_count(text_of(runs), "--runs", at_most=MAX_VISITS)
    replica_count = _count(replicas, "--replicas")
    folder = None if out is None else Path(out)
    if demo:
        options.refuse({"MODEL": model}, "{} goes without --demo")
        return run_demo(folder or Path("results"), backend, budget_s)
    if model is None:
        raise InputError(options.MISSING_MODEL)
    measured_backend, is_compiled = options.stack_of(stack, backend, compile_)
    dataset_options = _read_dataset_options(data, staging, stage_to, loaders, prefetch, train_steps)
    feeding = _read_feeding(input_, dataset_options, phase)
    thread_count = options.thread_count(threads)
    typed_workload = options.workload_of(
        options.set_reading(model, strict, batch_axis),
        text_of(batch),
        dtype,
        phase,
        optimizer,
        length=_count(length, "--length"),
    )
    workload = settle_dtype_by_place(typed_workload, device)
    check_measured_dtype(workload.dtype)
    worker = replace(options.options_of(device, thread_count, is_compiled, tf32), **feeding)
    if strategy is not None:
        check_choice("--strategy", strategy, STRATEGIES)
    replicated_workload, replica_options = options.over_replicas(
        workload, worker, replica_count, strategy, no_overlap
    )
    means = Means(
        budget_s=BUDGET_S if budget_s is None else budget_s,
        time_limit_s=limit_s,
        parts=parts,
        runs=run_count,
        energy=energy,
    )
    trace_file = None if trace is None else Path(trace)
    is_profiled = profile or trace_file is not None
    return _measure(
        replicated_workload,
        replica_options,
        measured_backend,
        means,
        is_profiled,
        trace_file,
        folder,
    )


def _read_dataset_options(
    data: kinds.DataFolder | None,
    staging: kinds.Staging | None,
    stage_to: kinds.DataFolder | None,
    loaders: kinds.LoaderCount | None,
    prefetch: kinds.LoaderCount | None,
    train_steps: kinds.Count | None,
) -> Mapping[str, Any]:
    """Return the options of a data set that are given, by name; raises `InputError`."""
    values = {
        "data": None if data is None else str(data),
        "staging": check_choice("--staging", staging, STAGINGS) if staging else staging,
        "stage_to": None if stage_to is None else str(stage_to),
        "loaders": _count(loaders, "--loaders", at_least=0, at_most=MAX_PROCESSES),
        "prefetch": _count(prefetch, "--prefetch", at_most=MAX_PROCESSES),
        "train_steps": _count(
            train_steps, "--train-steps", at_least=MIN_TRAIN_STEPS, at_most=MAX_STEPS
        ),
    }
    return {name: value for name, value in values.items() if value is not None}


def _count(value: float | str | None, option: str, **bounds: int) -> int | None:
    """Return a whole number within bounds, or None."""
    return None if value is None else parse_count(text_of(value), option, **bounds)


def _measure(
    workload: Workload,
    worker_options: Options,
    backend: str,
    means: Means,
    is_profiled: bool,
    trace: Path | None,
    out: Path | None,
) -> RunAnswer | RankAnswer:
    """Measure a workload, keep its records in a folder, and return the answer."""
    from steptime.analysis.measurement import measurement
    from steptime.build import build_step
    from steptime.hardware import catalog
    from steptime.network.count import count
    from steptime.records import store
    from steptime.sweeps.cells import Cell, trials_of
    from steptime.sweeps.run import measure_cell, profile_cell
    from steptime.sweeps.workers import Workers

    flop = count(build_step(workload)).flop  # sizes that fit nowhere are refused here
    if is_profiled and workload.plan.data > 1:
        raise InputError("--profile is of one device, not of replicas")
    if trace:
        check_folder(trace)
    # Read before the measurement, so that warnings on device files come before it.
    devices = catalog.devices(print_note)
    workers = Workers()
    # Under torchrun or Slurm each rank runs this function; rank 0 alone writes and answers.
    is_first_rank = workers.rank.is_rank_zero
    progress = _progress(workload.label, flop) if is_first_rank else None
    ops: list[Record] = []
    with ExitStack() as stack:
        stack.callback(workers.close)
        writer = None
        if out and is_first_rank:
            writer = stack.enter_context(store.open_writer(out))
        cell = workers.with_threads(Cell(workload, backend, worker_options))
        (trial,) = trials_of([cell], means.runs)  # one cell is one trial, of several runs
        record = measure_cell(workers, trial, means, on_event=progress)
        if writer:
            writer.append(record)
        if is_profiled and record.status == "ok":
            ops = profile_cell(workers, trial, means, str(trace.resolve()) if trace else "")
            is_profile_complete = ops[0].status == "ok"  # else one record, which says why
            if writer and is_profile_complete:
                writer.append_all(ops)
    if not is_first_rank:
        if record.status != "ok":
            print_note(f"rank {workers.rank.rank}: {record.status}: {record.note}")
        return RankAnswer(status=record.status)
    document = measurement(record, flop, _peaks(record, devices))
    answer = describe_measurement(document, assumed=assumed_step(workload))
    return _add_ops(answer, record, ops, trace) if ops else answer


def _add_ops(answer: RunAnswer, record: Record, ops: list[Record], trace: Path | None) -> RunAnswer:
    """Return the answer with the breakdown of the profiled ops."""
    from steptime.analysis.analyses import analysis
    from steptime.records.data import Data

    if ops[0].status != "ok":  # a failed profile: one record, which says why
        return msgspec.structs.replace(answer, notes=(*answer.notes, f"no profile: {ops[0].note}"))
    breakdown = analysis("breakdown")
    table = breakdown.answer(Data.from_records([record, *ops]))
    # The last line says that no prediction is here, which this run never has.
    breakdown_lines = breakdown.describe(table)[:-1]
    trace_lines = [str(trace)] if trace else []
    return msgspec.structs.replace(
        answer,
        breakdown=tuple(dict(row) for row in table.rows),
        headline=(*answer.headline, *breakdown_lines, *trace_lines),
        _tables=(table,),
    )


def _read_feeding(input_: str, values: Mapping[str, Any], phase: str) -> Mapping[str, Any]:
    """Return the options of the worker that say where input comes from; raises `InputError`.

    An option that would mean nothing beside the others is refused, not ignored.
    """
    from steptime.measure.data.dataset import find
    from steptime.measure.data.sources import staging_folder

    check_input(input_, "--input")
    if input_ != "dataset":
        dataset_options = {option_name(name): value for name, value in values.items()}
        options.refuse(dataset_options, "{} needs --input dataset")
        return {"input": input_}
    if "data" not in values:
        raise InputError("--input dataset needs --data DIR, the folder of the data set")
    staging = values.get("staging", "shared")
    if "stage_to" in values and staging != "local":
        raise InputError("--stage-to needs --staging local")
    if "prefetch" in values and not values.get("loaders"):
        raise InputError("--prefetch needs --loaders")
    if "train_steps" in values and phase != "train":
        raise InputError(f"--train-steps needs --phase train, not {phase}")
    # Raises before the network is built if there is no data set.
    find(values["data"])
    if staging == "local":
        # Raises if the folder of copies is missing.
        staging_folder(values.get("stage_to", ""))
    return {"input": input_, **values}


def _progress(name: str, flop: float) -> Callable[[Mapping[str, Any]], None]:
    """Note the work of a large network; return a callback that notes the length of a long run."""
    if flop > LARGE_FLOP:
        print_note(f"{name}: {format_si(flop, 'FLOP')} a step, of which at least four are run")

    # The worker sends one event, after the first step.
    def announce_long_run(event: Mapping[str, Any]) -> None:
        first_step_s = event["first_step_s"]
        remaining_s = event["rest_s"]
        if first_step_s + remaining_s > LONG_S:
            first_step = f"the first step took {format_seconds(first_step_s)}"
            print_note(f"{name}: {first_step}; about {format_duration(remaining_s)} more")

    return announce_long_run


def _peaks(record: Record, devices: Iterable[Device]) -> dict[str, float | None]:
    """Return the peaks of the platform of a record: the probed one and the datasheet's."""
    from steptime.core.dtypes import precision

    dtype = precision(record.workload.dtype).compute
    if record.method.options.get("tf32") and dtype == "float32":
        dtype = "tf32"
    peaks: dict[str, float | None] = {"probed": None, "datasheet": None}
    for device in devices:
        # Only a device file that `calibrate` wrote says on which platform it was probed.
        probed_platform = device.measured.get("platform")
        if record.platform in (device.name, probed_platform):
            source = "probed" if device.measured else "datasheet"
            peaks[source] = device.datasheet.peak_flop_per_s.get(dtype)
    return peaks
