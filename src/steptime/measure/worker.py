"""The worker: the only process that imports a framework. JSON lines in, JSON lines out.

The first request, `start`, names backend, device and threads; cores are bound before the backend
is imported, and the answer says which framework and platform it found. After that every `measure`
request is answered by one record, every `profile` by one an op, every `probe`, `point` and
`collectives` by one table. Lines before the answer that have the key `event` say how far it is.
Whatever a library prints goes to stderr. The worker ends when its standard input does, so it never
outlives its parent. Where it is one of several (`measure/ranks.py`), all of them get the same
requests.
"""

import gc
import importlib
import json
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from steptime.build import Choice, build, make_workload
from steptime.core import scratch
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.core.workload import PHASES, workload_from_json
from steptime.measure import contract, cpus, machine, ranks, registry
from steptime.measure.cell import ReportEvent, measure_cell
from steptime.measure.point import time_point
from steptime.measure.probe.ceilings import probe
from steptime.measure.process_group import check_separate_cpus
from steptime.measure.profile import profile_cell
from steptime.measure.ranks import Rank
from steptime.records.record import PROFILER, Record, current_time, record_to_json


def _requests(descriptor: int) -> Iterator[JsonObject]:
    """Return requests as they come; the process ends at once when there can be no more.

    They are read without Python's streams, whose lock a forked loader would find taken.
    """
    request_lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        unread = b""
        while piece := os.read(descriptor, 1 << 16):
            *lines, unread = (unread + piece).split(b"\n")
            for line in lines:
                request_lines.put(line)
        os._exit(0)  # the parent is gone: nobody wants what runs now

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(request_lines.get())


@dataclass
class WorkerSession:
    """A started worker: its backend, the device and options, and facts for records."""

    backend: Any
    name: str
    options: contract.Options
    env: JsonObject
    version: str = ""


def start(request: Mapping[str, Any]) -> tuple[WorkerSession, JsonObject]:
    """Bind the cores, import the backend, and return the session with its greeting.

    Replicas that are devices of one process share the cores of all.
    """
    backend_row = registry.backend(request["backend"])
    options = contract.Options(**request["options"])
    scratch.set_private_tmpdir()
    rank = ranks.find_rank()
    if rank.size > 1:
        if backend_row.is_single_process:
            hint = f"--replicas {rank.size} without torchrun or srun"
            raise InputError(f"{request['backend']} runs replicas in one process: {hint}")
        ranks.check_address(rank)
    # Replicas that are devices of this process share its cores.
    local_replicas = request.get("replicas", 1) if backend_row.is_single_process else 1
    # Where the launcher gave each process CPUs of its own, they share none.
    sharing_processes = 1 if rank.has_bound_cpus else rank.local_size
    threads = options.threads or cpus.default_threads(processes=sharing_processes)
    bound_cpus = cpus.bind_threads(
        local_replicas * threads,
        process=rank.local_rank % sharing_processes,  # 0 where nothing is shared
        processes=sharing_processes,
    )
    options = replace(options, threads=threads, device=device_of_rank(options.device, rank))
    backend = importlib.import_module(backend_row.module)
    prepared = _run_tiny_step(backend, options, local_replicas * rank.size)
    facts: contract.DeviceFacts = backend.device_facts(options.device)
    version = registry.version(request["backend"])
    gc.collect()
    gc.freeze()  # the framework's own objects would cost each later collection 0.15 s
    env = {
        **machine.environment(),
        "threads": threads,
        "cpus": list(bound_cpus),
        "backend": request["backend"],
        "framework": f"{request['backend']} {version}",
        "product": facts.product,
    }
    if prepared.group is not None:
        env["ranks"] = _describe_ranks(prepared.group, env, options.device, rank, local_replicas)
    greeting = {
        "version": version,
        "platform": machine.platform_name(options.device, facts.product, threads),
        # Other programs share a host's memory, so there only what is free counts.
        "memory_bytes": facts.memory_bytes if facts.is_accelerator else facts.room_bytes,
        "threads": threads,
        "product": facts.product,
    }
    return WorkerSession(backend, request["backend"], options, env, version or ""), greeting


def _describe_ranks(
    group: contract.ProcessGroup, env: JsonObject, device: str, rank: Rank, local_replicas: int
) -> list[JsonObject]:
    """Return host, CPUs, product and device of each rank; waits for all of them.

    Raises:
        InputError: if two processes share a CPU.
    """
    process_facts = {"rank": rank.rank, **{key: env[key] for key in ("host", "cpus", "product")}}
    rank_facts = group.gather(process_facts | {"device": device})
    if local_replicas == 1:
        check_separate_cpus(rank_facts)
        return rank_facts
    # One process has several devices, and the framework decides which of the cores each takes.
    return [
        facts | {"rank": index, "cpus": None, "device": f"{device}:{index}"}
        for index, facts in enumerate(rank_facts)
    ]


def device_of_rank(device: str, rank: Rank) -> str:
    """Return the device of this process: replicas have one each.

    Where each process is shown a single GPU, that is its own (NCCL refuses two on one).
    """
    if rank.size == 1 or device in {"cpu", "mps"}:
        return device  # `mps` with replicas is refused by its backend
    if device != "cuda":
        raise InputError(f"{device} is one device; replicas run on 'cuda', one on each GPU")
    # A launcher may show each process its own GPU alone, which then has the number 0.
    is_single_gpu = re.fullmatch(r"[^,]+", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return "cuda:0" if is_single_gpu else f"cuda:{rank.local_rank}"


def _run_tiny_step(backend: Any, options: contract.Options, replicas: int) -> contract.Prepared:
    """Run one step of a tiny network, so that no measured one pays for what is loaded at first use.

    Without it the first network of a worker would show some 80 MB of PyTorch's own as its memory.
    Replicas are joined here, if the backend can.
    """
    tiny_network = Choice("fc", {"layers": 1, "nodes": 8, "inputs": 8, "outputs": 8})
    phase = getattr(backend, "PHASES", PHASES)[0]  # any one that the backend runs
    workload = make_workload(
        tiny_network,
        batch=2,
        dtype="float32",
        phase=phase,
        optimizer="sgd",
        replicas=replicas if backend.STRATEGIES else 1,
    )
    # Each strategy once: what it loads at first use would count as a measured network's memory.
    strategies = list(backend.STRATEGIES) if workload.plan.data > 1 else [""]
    for strategy in strategies:
        tiny_options = replace(options, compile=False, strategy=strategy)
        # `native` runs no graph: its `wake` prepares the tiny one with PyTorch.
        prepare = getattr(backend, "wake", backend.prepare)
        prepared: contract.Prepared = prepare(build(workload), workload, tiny_options)
        prepared.step()
    return prepared


def _session_of_request(
    session: WorkerSession, request: Mapping[str, Any]
) -> tuple[WorkerSession, Record]:
    """Return the session under the options of a request, and its record, still empty."""
    workload = replace(workload_from_json(request["workload"]), code=request.get("code", ""))
    # Threads and device were bound when the worker started.
    fixed_options = {"threads": session.options.threads, "device": session.options.device}
    options = contract.Options(**{**request["options"], **fixed_options})
    return replace(session, options=options), Record(
        origin="measured",
        method=contract.make_record_method(session.name, session.version, options, request["runs"]),
        workload=workload,
        platform=request["platform"],
        quantities={},
        env={**session.env, **request["env"]},
        taken_at=current_time(),
    )


def measure(
    session: WorkerSession,
    request: Mapping[str, Any],
    report_event: ReportEvent = lambda *_, **__: None,
) -> Record:
    """Build the workload, prepare it, time it, and return its record, whatever happened."""
    session, record = _session_of_request(session, request)
    try:
        measurement = measure_cell(
            session.backend, record.workload, session.options, request, report_event
        )
    except Exception as error:  # noqa: BLE001  # a network that fails is a result, not the end
        return _make_failed_record(session, record, error)
    env = {**record.env, **measurement.facts}
    return replace(record, quantities=measurement.quantities, env=env)


def profile(session: WorkerSession, request: Mapping[str, Any]) -> list[Record]:
    """Return a record for each op of a step under the profiler, or one that says why not."""
    session, record = _session_of_request(session, request)
    name = session.name + PROFILER
    record = replace(record, method=replace(record.method, name=name))
    env = {name: session.env[name] for name in ("host", "threads", "product")}
    try:
        op_times = profile_cell(
            session.backend,
            record.workload,
            session.options,
            request["timing"]["budget_s"],
            request["trace"],
        )
    except Exception as error:  # noqa: BLE001  # it is a result, as in `measure`
        return [_make_failed_record(session, record, error)]
    return [
        replace(
            record,
            scope=times.scope,
            quantities=times.quantities,
            env={**env, "op_kind": times.kind},
        )
        for times in op_times
    ]


def _make_failed_record(session: WorkerSession, record: Record, error: Exception) -> Record:
    error = contract.translate_backend_error(session.backend, error)
    outcomes = (
        (status, cause) for error_types, status, cause in FAILURES if isinstance(error, error_types)
    )
    status, cause = next(outcomes, ("failed", "exception"))
    return replace(record, status=status, cause=cause, note=_format_error(error))


def point(session: WorkerSession, request: Mapping[str, Any]) -> JsonObject:
    """Time a point of a calibration; one that fails has a `note` in place of seconds."""
    try:
        return time_point(session.backend, session.options, request)
    except Exception as error:  # noqa: BLE001  # whatever a backend raises, others can be had
        return {"note": _format_error(contract.translate_backend_error(session.backend, error))}


FAILURES: tuple[tuple[tuple[type[Exception], ...], str, str], ...] = (  # error, status, cause
    ((contract.UnsupportedError,), "unsupported", "unsupported"),
    ((contract.OutOfMemoryError, MemoryError), "oom", "out-of-memory"),
    ((contract.MissingFileError,), "failed", "missing-file"),
    ((contract.BadDataError,), "failed", "bad-data"),
    ((contract.NoSpaceError,), "failed", "no-space"),
    ((InputError,), "failed", "bad-config"),
    ((contract.KilledError,), "failed", "killed"),
)
_SELF_EXPLAINING_ERRORS = (
    contract.UnsupportedError,
    contract.OutOfMemoryError,
    contract.NoSpaceError,
    InputError,
)


def _format_error(error: Exception) -> str:
    type_name = type(error).__name__
    text = " ".join(str(error).split()) or type_name
    is_self_explaining = isinstance(error, _SELF_EXPLAINING_ERRORS)
    return text if is_self_explaining else f"{type_name}: {text}"[:500]


def serve(requests: Iterator[JsonObject], answers: TextIO) -> None:
    """Answer requests until there are no more."""

    def answer(document: Mapping[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    def report_event(event: str, **numbers: float) -> None:
        answer({"event": event, **numbers})

    try:
        session, greeting = start(next(requests))
    except InputError as error:
        answer({"refused": str(error), "cause": "bad-config"})
        return
    except ImportError as error:
        refused = f"{error}; 'steptime doctor' says how to get it"
        answer({"refused": refused, "cause": "import-error"})
        return
    answer(greeting)
    backend, options = session.backend, session.options

    def measure_request(request: JsonObject) -> JsonObject:
        return record_to_json(measure(session, request, report_event))

    def profile_request(request: JsonObject) -> JsonObject:
        return {"records": list(map(record_to_json, profile(session, request)))}

    actions: Mapping[str, Callable[[JsonObject], JsonObject]] = {
        "measure": measure_request,
        "profile": profile_request,
        "point": lambda request: point(session, request),
        "probe": lambda request: probe(session.name, backend, options, **request["arguments"]),
        "collectives": lambda request: backend.collectives(options, **request["arguments"]),
    }
    for request in requests:
        document = actions[request["do"]](request)
        gc.collect()  # before the answer: nothing of this network disturbs the next
        answer(document)


def main() -> None:
    """Serve on the process's standard streams, keeping them for requests and answers alone."""
    # Code of users and libraries finds an empty standard input, and prints to standard error.
    requests, answers = os.dup(0), os.fdopen(os.dup(1), "w")
    with Path(os.devnull).open() as null_file:
        os.dup2(null_file.fileno(), 0)
    os.dup2(2, 1)
    serve(_requests(requests), answers)


if __name__ == "__main__":
    main()
