"""The worker: the only process that imports a framework. JSON lines in, JSON lines out.

The first request, `start`, names backend, device and threads; cores are bound before the backend
is imported, and the answer says which framework and platform it found. After that every `measure`
request is answered by one record, every `probe` and `collectives` by one table. Whatever a library
prints goes to stderr. The worker ends when its standard input does, so it never outlives its
parent. Where it is one of several (`measure/ranks.py`), all of them get the same requests.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import queue
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TextIO

from steptime.build import Choice, build, make_workload
from steptime.core.errors import InputError, unknown
from steptime.core.record import Quantity, Record, record_to_json
from steptime.core.workload import Workload, workload_from_json
from steptime.measure import machine, ranks
from steptime.measure.contract import (
    BACKENDS,
    Options,
    OutOfMemoryError,
    Prepared,
    UnsupportedError,
    method,
)
from steptime.measure.disturbance import Watch
from steptime.measure.meters import LEAST_S, meters, take_energy
from steptime.measure.ranks import Rank
from steptime.measure.team import Pace, check_apart, shared_results, take_team_samples
from steptime.measure.timing import WARM_UP_RULE, Samples, take_samples


def _requests(stream: TextIO) -> Iterator[dict[str, Any]]:
    """Give requests as they come; the process ends at once when the stream does."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            waiting.put(line)
        os._exit(0)  # the parent is gone: nobody wants what runs now

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(waiting.get())


@dataclass
class Session:
    """What a started worker knows: its backend, where it runs, and what it says of itself."""

    backend: Any
    name: str
    options: Options
    env: dict[str, Any]


def start(request: Mapping[str, Any]) -> tuple[Session, dict[str, Any]]:
    """Bind the cores, import the backend, and give the session with its greeting."""
    if request["backend"] not in BACKENDS:
        raise unknown("backend", request["backend"], BACKENDS)
    options = Options(**request["options"])
    rank = ranks.here()
    if rank.size > 1:
        ranks.check_address(rank)
    sharing = 1 if rank.own_cpus else rank.local_size
    threads = options.threads or machine.default_threads(processes=sharing)
    cpus = machine.bind_threads(threads, rank.local_rank % sharing, sharing)
    options = replace(options, threads=threads, device=own_device(options.device, rank))
    backend = importlib.import_module(BACKENDS[request["backend"]])
    product = backend.device_product(options.device)
    prepared = _wake(backend, options, rank.size)
    gc.collect()
    gc.freeze()  # the framework's own objects would cost each later collection 0.15 s
    env = {
        **machine.environment(),
        "threads": threads,
        "cpus": list(cpus),
        "backend": request["backend"],
        "framework": f"{request['backend']} {backend.version()}",
        "product": product,
    }
    if prepared.team is not None:
        env["ranks"] = prepared.team.gather(_about(rank, options, env))
        check_apart(env["ranks"])
    greeting = {
        "version": backend.version(),
        "platform": machine.platform_name(options.device, product, threads),
        "memory_bytes": backend.device_memory_bytes(options.device)
        or machine.memory().usable_bytes,
        "threads": threads,
        "product": product,
    }
    return Session(backend, request["backend"], options, env), greeting


def own_device(device: str, rank: Rank) -> str:
    """Give the device of this process: replicas have one each.

    Where each process is shown a single GPU, that is its own (NCCL refuses two on one).
    """
    if rank.size == 1 or device in {"cpu", "mps"}:
        return device
    if device != "cuda":
        raise InputError(f"{device} is one device; replicas run on 'cuda', one on each GPU")
    alone = re.fullmatch(r"[^,]+", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return "cuda:0" if alone else f"cuda:{rank.local_rank}"


def _about(rank: Rank, options: Options, env: Mapping[str, Any]) -> dict[str, Any]:
    facts = {"rank": rank.rank, "host": env["host"], "cpus": env["cpus"]}
    return facts | {"device": options.device, "product": env["product"]}


def _wake(backend: Any, options: Options, replicas: int) -> Prepared:
    """Run one step of a tiny network, so that no measured one pays for what is loaded at first use.

    Without it the first network of a worker would show some 80 MB of PyTorch's own as its memory.
    Replicas are joined here, if the backend can.
    """
    tiny = Choice("fc", {"layers": 1, "nodes": 8, "inputs": 8, "outputs": 8})
    workload = make_workload(tiny, 2, replicas=replicas if backend.STRATEGIES else 1)
    strategies = list(backend.STRATEGIES) if workload.plan.data > 1 else [""]
    for strategy in strategies:
        chosen = replace(options, compile=False, strategy=strategy)
        prepared: Prepared = backend.prepare(build(workload), workload, chosen)
        prepared.step()
    return prepared


def measure(session: Session, request: Mapping[str, Any]) -> Record:
    """Build the workload, prepare it, time it, and give its record, whatever happened."""
    workload = workload_from_json(request["workload"])
    own = {"threads": session.options.threads, "device": session.options.device}
    options = Options(**{**request["options"], **own})
    session = replace(session, options=options)
    record = Record(
        origin="measured",
        method=method(session.name, session.backend.version(), session.options, request["runs"]),
        workload=workload,
        platform=request["platform"],
        quantities={},
        env={**session.env, "round": request["round"], "budget_s": request["timing"]["budget_s"]},
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        return _measured(session, workload, request, record)
    except UnsupportedError as error:
        return replace(record, status="unsupported", cause="unsupported", note=_line(error))
    except (OutOfMemoryError, MemoryError) as error:
        return replace(record, status="oom", cause="out-of-memory", note=_line(error))
    except Exception as error:  # noqa: BLE001  # a network that fails is a result, not the end
        return replace(record, status="failed", cause="exception", note=_line(error))
    finally:
        gc.collect()


def _measured(
    session: Session, workload: Workload, request: Mapping[str, Any], record: Record
) -> Record:
    read_resident = machine.resident_memory_meter()
    graph = build(workload)
    if workload.phase == "train" and not graph.weights:
        raise UnsupportedError("the network has no weights to train; --phase infer runs it")
    if request["energy"] and workload.plan.data > 1:
        raise UnsupportedError("energy is metered on one device, not on replicas")
    prepared: Prepared = session.backend.prepare(graph, workload, session.options)
    prepared.reset_memory()
    pace = Pace(prepared.team, prepared.sync) if prepared.team else None
    samples: Samples | None
    if pace:
        samples, watch = take_team_samples(prepared, pace, request["timing"])
    else:
        watch = Watch()
        samples = take_samples(
            prepared.step, prepared.sync, timer=prepared.timer, watch=watch, **request["timing"]
        )
    peak, meter = prepared.memory()
    if peak is None and session.options.device == "cpu":
        reading = read_resident()
        peak, meter = reading.value_bytes, reading.note or reading.meter
    quantities: dict[str, Quantity] = {}
    shared: dict[str, Any] = {}
    if pace:
        peak, quantities, shared = shared_results(prepared, pace, samples, peak, request)
    wanted, steps = (len(samples.step_s), samples.steps_per_sample) if samples else (0, 0)
    if pace:
        wanted, steps = pace.team.agree(wanted), pace.team.agree(steps)
    if request["parts"]:
        quantities |= _parts(prepared, wanted, steps)
    if samples is None:  # rank 0 reports
        return record
    quantities |= {
        "step_s": Quantity(samples=samples.step_s, columns=_columns(samples)),
        "first_step_s": Quantity(samples.first_step_s),
    }
    if peak is not None:
        quantities["peak_memory_bytes"] = Quantity(float(peak))
    metered = {}
    if request["energy"]:
        energy = take_energy(
            prepared.step,
            prepared.sync,
            samples.steps_per_sample,
            max(LEAST_S, request["timing"]["budget_s"]),
            lambda: meters(session.options.device),
        )
        metered["energy_meter"] = energy.meter
        for name, value in (("energy_j", energy.step_j), ("power_w", energy.power_w)):
            if value is not None:
                quantities[name] = Quantity(samples=(value,), columns={"run": (0,)})
    facts = {
        "memory_meter": meter,
        "absent_counters": dict(watch.absent),
        "warm_up_rule": WARM_UP_RULE,
        "steady": samples.steady,
        "few_samples": samples.few_samples,
        "warmup_s": list(samples.warmup_s),
        "steps_per_sample": samples.steps_per_sample,
        **metered,
        **shared,
        **prepared.facts,
    }
    return replace(record, quantities=quantities, env={**record.env, **facts})


def _columns(samples: Samples) -> dict[str, tuple[Any, ...]]:
    return {"run": (0,) * len(samples.step_s), **samples.columns}


def _parts(prepared: Prepared, wanted: int, steps: int) -> dict[str, Quantity]:
    """Time forward, backward and update apart, synchronised after each, as many samples again."""
    from time import perf_counter

    taken: dict[str, list[float]] = {name: [] for name in prepared.parts}
    for _ in range(wanted):
        totals = dict.fromkeys(prepared.parts, 0.0)
        for _ in range(steps):
            for name, part in prepared.parts.items():
                began = perf_counter()
                part()
                prepared.sync()
                totals[name] += perf_counter() - began
        for name, total in totals.items():
            taken[name].append(total / steps)
    return {f"{name}_s": Quantity(samples=tuple(values)) for name, values in taken.items()}


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return (
        text
        if isinstance(error, UnsupportedError | OutOfMemoryError)
        else f"{type(error).__name__}: {text}"[:500]
    )


def serve(requests: Iterator[dict[str, Any]], answers: TextIO) -> None:
    """Answer requests until there are no more."""

    def answer(document: Mapping[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        session, greeting = start(next(requests))
    except InputError as error:
        answer({"refused": str(error)})
        return
    except ImportError as error:
        answer({"refused": f"{error}; 'steptime doctor' says how to get it"})
        return
    answer(greeting)
    for request in requests:
        if request["do"] in {"probe", "collectives"}:
            module = importlib.import_module(f"steptime.measure.backends.{session.name}_probe")
            own = {"device": session.options.device, "threads": session.options.threads}
            answer(getattr(module, request["do"])(**request["arguments"], **own))
        else:
            answer(record_to_json(measure(session, request)))


def main() -> None:
    """Serve on the process's standard streams, keeping stdout for answers alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(_requests(sys.stdin), answers)


if __name__ == "__main__":
    main()
