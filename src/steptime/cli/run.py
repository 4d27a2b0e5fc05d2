"""The command `run`: one network measured on this machine."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from steptime.core.errors import InputError
from steptime.core.files import check_folder
from steptime.core.progress import note
from steptime.core.question import (
    File,
    Text,
    argument,
    choice,
    flag,
    named,
    option,
    optional,
    question,
    time_option,
    whole,
)
from steptime.core.table import UNSUCCESSFUL, Answer, facts
from steptime.core.units import duration, percent, seconds, shown, si, size
from steptime.core.values import MAX_PROCESSES, MAX_STEPS, MAX_VISITS
from steptime.core.workload import STAGINGS, STRATEGIES
from steptime.hardware.device import Device
from steptime.measure.contract import LEAST_TRAINED, check_input
from steptime.questions import options
from steptime.questions.quickstart import DemoAnswer, run_demo
from steptime.records.record import Record

LARGE_FLOP = 1e11  # a second or so on a CPU: worth a word before the first step
BUDGET_S = 3.0  # of a network and run
LONG_S = 10.0  # a run that may take longer says so


@question(long="measuring")
def run(
    model: Annotated[Text, argument("MODEL", f"{options.MODEL}; with --demo none.")] = None,
    batch: options.Batch = None,
    stack: Text = optional(
        "NAME",
        "A backend and how it is told to run: torch, torch-compile, ... (steptime list stacks).",
    ),
    backend: options.Backend = "torch",
    device: options.Place = "cpu",
    phase: options.Phase = "train",
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    length: options.Length = None,
    threads: options.Threads = None,
    compile_: bool = flag("Use torch.compile."),
    tf32: bool = flag("Allow TF32 on a GPU."),
    input_: str = option(
        "NAME",
        "device (synthetic, resident), host (synthetic, copied each step), dataset, or "
        "FILE.py:make_loader, which returns any iterable of batches.",
        "device",
    ),
    data: Text = optional("DIR", "Folder of the data set."),
    staging: Text = choice(
        STAGINGS, "shared (files where they are, the default) or local (copied here)."
    ),
    stage_to: Text = optional("DIR", "Where copies go. Default: $LOCAL, $TMPDIR, the system's."),
    loaders: int | None = whole(
        "K", "Processes that read ahead. Default: 0, none.", at_least=0, at_most=MAX_PROCESSES
    ),
    prefetch: int | None = whole(
        "K", "Batches that each loader has ready. Default: 2.", at_most=MAX_PROCESSES
    ),
    train_steps: int | None = whole(
        "N",
        "Train so many steps, then take the test accuracy.",
        at_least=LEAST_TRAINED,
        at_most=MAX_STEPS,
    ),
    replicas: int | None = whole(
        "N",
        "Train data-parallel in N processes, one per device; --batch is of each. Default: what "
        "torchrun or srun started, else 1.",
    ),
    strategy: Text = choice(
        STRATEGIES, "Of replicas: allreduce (default), independent, sharded or parameter-server."
    ),
    no_overlap: bool = flag("Communicate after the backward pass, not during it."),
    budget: float | None = time_option(
        "S", "Time of a network and run: 3 (default), 500ms.", at_least=0.001, at_most=86_400
    ),
    limit: float = time_option(
        "S", "Time before a run is ended: 600, 10min.", 600.0, at_least=0.1, at_most=864_000
    ),
    runs: int = whole("N", "Fresh processes.", 1, at_most=MAX_VISITS),
    parts: bool = flag("Time forward, backward and update apart, too."),
    energy: bool = flag("Meter the energy of a step, in as long again."),
    profile: bool = flag("Time each op, too, in further steps."),
    trace: File = optional("FILE", "Write what the profiler saw, for ui.perfetto.dev (.json)."),
    out: File = optional("DIR", "Keep the record in this folder."),
    demo: bool = flag(
        "Calibrate, measure and predict 24 small networks in the folder of --out (results), and "
        "write a report."
    ),
) -> Answer | DemoAnswer:
    """Measure one network on this machine."""
    from steptime.analysis.measurement import measurement
    from steptime.build import build_step
    from steptime.hardware import catalog
    from steptime.network.count import count
    from steptime.records import store
    from steptime.sweeps.cells import Cell, trials_of
    from steptime.sweeps.run import Means, measure_cell, profile_cell
    from steptime.sweeps.workers import Workers

    if demo:
        options.refuse({"MODEL": model}, "{} goes without --demo")
        return run_demo(out or Path("results"), backend, budget)
    if model is None:
        raise InputError("Missing argument 'MODEL'.")
    backend, compile_ = options.stack_of(stack, backend, compile_)
    given: dict[str, Any] = {"data": data, "staging": staging, "stage_to": stage_to}
    given |= {"loaders": loaders, "prefetch": prefetch, "train_steps": train_steps}
    feeding = _feeding(input_, {k: v for k, v in given.items() if v is not None}, phase)
    workload = options.workload_of(model, batch, dtype, phase, optimizer, length=length)
    chosen = replace(options.options_of(device, threads, compile_, tf32), **feeding)
    workload, chosen = options.over_replicas(workload, chosen, replicas, strategy, no_overlap)
    flop = count(build_step(workload)).flop  # sizes that fit nowhere are refused here
    if (profile or trace) and workload.plan.data > 1:
        raise InputError("--profile is of one device, not of replicas")
    if trace:
        check_folder(trace)
    devices = catalog.devices(note)  # what is wrong with these is said before, too
    budget_s = BUDGET_S if budget is None else budget
    how = Means(budget_s=budget_s, time_limit_s=limit, parts=parts, runs=runs, energy=energy)
    workers = Workers()
    progress = _progress(workload.label, flop) if workers.rank.is_zero else None
    ops: list[Record] = []
    with ExitStack() as held:
        held.callback(workers.close)
        writes = out is not None and workers.rank.is_zero
        writer = held.enter_context(store.open_writer(out)) if out and writes else None
        (trial,) = trials_of([workers.settled(Cell(workload, backend, chosen))], runs)
        record = measure_cell(workers, trial, how, on_event=progress)
        if writer:
            writer.append(record)
        if (profile or trace) and record.status == "ok":
            ops = profile_cell(workers, trial, how, str(trace.resolve()) if trace else "")
            if writer and ops[0].status == "ok":
                writer.append_all(ops)
    code = 0 if record.status == "ok" else UNSUCCESSFUL
    if workers.rank.is_zero:
        answer = _answer(measurement(record, flop, _peaks(record, devices)))
        return replace(_with_ops(answer, record, ops, trace) if ops else answer, code=code)
    if code:
        note(f"rank {workers.rank.rank}: {record.status}: {record.note}")
    return Answer(None, code=code)


def _with_ops(answer: Answer, record: Record, ops: list[Record], trace: Path | None) -> Answer:
    from steptime.analysis.analyses import analysis
    from steptime.records.data import Data

    if ops[0].status != "ok":
        return replace(answer, notes=[*answer.notes, f"! no profile: {ops[0].note}"])
    one = analysis("breakdown")
    table = one.answer(Data.of([record, *ops]))
    rows = [dict(row) for row in table.rows]
    written = [str(trace)] if trace else []
    return replace(
        answer,
        document=answer.document | {"breakdown": rows},
        tables=[*answer.tables, table],
        notes=[*answer.notes, *one.says(table)[:-1], *written],
    )


def _feeding(input_: str, given: dict[str, Any], phase: str) -> dict[str, Any]:
    """Return the options that say where input comes from; raises `InputError`.

    An option that would mean nothing beside the others is refused, not ignored.
    """
    from steptime.measure.data.dataset import find
    from steptime.measure.data.sources import place

    check_input(input_, "--input")
    if input_ != "dataset":
        options.refuse({named(k): v for k, v in given.items()}, "{} needs --input dataset")
        return {"input": input_}
    if "data" not in given:
        raise InputError("--input dataset needs --data DIR, the folder of the data set")
    staging = given.get("staging", "shared")
    if "stage_to" in given and staging != "local":
        raise InputError("--stage-to needs --staging local")
    if "prefetch" in given and not given.get("loaders"):
        raise InputError("--prefetch needs --loaders")
    if "train_steps" in given and phase != "train":
        raise InputError(f"--train-steps needs --phase train, not {phase}")
    find(given["data"])
    if staging == "local":
        place(given.get("stage_to", ""))
    return {"input": input_, **given}


def _progress(name: str, flop: float) -> Callable[[Mapping[str, Any]], None]:
    """Say how much work a large network is, and return what says how long a long run will take."""
    if flop > LARGE_FLOP:
        note(f"{name}: {si(flop, 'FLOP')} a step, of which at least four are run")

    def say(event: Mapping[str, Any]) -> None:
        first_s, rest_s = event["first_step_s"], event["rest_s"]
        if first_s + rest_s > LONG_S:
            note(f"{name}: the first step took {seconds(first_s)}; about {duration(rest_s)} more")

    return say


def _peaks(record: Record, devices: Iterable[Device]) -> dict[str, float | None]:
    from steptime.core.dtypes import precision

    wanted = precision(record.workload.dtype).compute
    if record.method.options.get("tf32") and wanted == "float32":
        wanted = "tf32"
    peaks: dict[str, float | None] = {"probed": None, "datasheet": None}
    for device in devices:
        if record.platform in (device.name, device.measured.get("platform")):
            peaks["probed" if device.measured else "datasheet"] = device.peak_flop_per_s.get(wanted)
    return peaks


def _answer(document: dict[str, Any]) -> Answer:
    title = f"{document['model']}, batch {document['batch']} on {document['platform']}"
    if document["replicas"] > 1:
        title = f"{title}, {document['replicas']} replicas, {document['strategy']}"
    step, speed, env = document["step_s"], document["speed"], document["env"]
    if step is None:
        failed = f"{title}: {document['status']} ({document['cause']}): {document['note']}"
        return Answer(document, notes=[failed])
    ends = [seconds(step[name]) for name in ("low", "high") if step[name] is not None]
    rows: list[tuple[str, Any]] = [
        ("step, median", seconds(step["median"])),
        ("  95 % interval", f"{' .. '.join(ends)} ({step['interval']})" if ends else "unknown"),
        ("  minimum, p5, p95", ", ".join(seconds(step[k]) for k in ("min", "p5", "p95"))),
    ]
    if document["replicas"] > 1:
        exposed = "  not hidden, of communication" if env["overlap"] else "  communication"
        rows.append((exposed, shown("communication_s", document["communication_s"])))
        rows.append(("global batch", shown("batch", document["global_batch"])))
    rows.append(("speed", f"{speed['mean']:.4g} examples/s"))
    rows.append(("  uncertainty, jitter", f"{speed['uncertainty']:.3g}, {speed['jitter']:.3g}"))
    rows.append(("work", shown("flop_per_s", document["flop_per_s"])))
    for name, share in document["fraction_of_peak"].items():
        rows.append((f"  of the {name} peak", PEAKS[name] if share is None else percent(share)))
    if (compile_s := env.get("compile_s")) is not None:
        first = seconds(document["first_step_s"])
        rows.append(("compiling", f"{seconds(compile_s)}; the first step took {first}"))
    if document["input_s"] is not None:
        share = f"{percent(document['infeed'])} of all steps' time"
        rows.append(("waiting for input", f"{seconds(document['input_s'])} ({share})"))
    if document["accuracy"] is not None:
        steps = f"after {env['training']['steps']:,} steps, {env['training']['epochs']:.3g} epochs"
        rows.append(("test accuracy", f"{100 * document['accuracy']:.2f} % {steps}"))
        rows.append(("  loss of the last step", f"{document['loss']:.4g}"))
    if document["planned_memory_bytes"] is not None:
        rows.append(("memory, as compiled", size(document["planned_memory_bytes"])))
    known = document["peak_bytes"] is not None
    rows.append(("peak memory", options.memory_shown(document) if known else None))
    if document["energy_j"] is not None:
        power = f"{shown('power_w', document['power_w'])} ({env['energy_meter']})"
        rows += [("energy", shown("energy_j", document["energy_j"])), ("  mean power", power)]
    rows.append(("samples", f"{len(step['samples'])}, {document['disturbed']} of them disturbed"))
    notes = [f"! {one}" for one in document["remarks"]]
    return Answer(document, [facts(title, "measured", rows)], notes)


PEAKS = {  # whose peak: what is said where it is not known
    "probed": "unknown; steptime calibrate measures it",
    "datasheet": "unknown; steptime list devices",
}
