"""What is predicted for the rows of published tables: a function a kind of question."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import inf
from operator import attrgetter
from typing import Any

from steptime.build import make_workload, read_model
from steptime.calibration.plan_rows import (
    Question,
    Reply,
    integer_of,
    prepare_plan,
    problem_of,
    reply_of,
    site_of,
)
from steptime.core.errors import InputError, check_choice
from steptime.core.tuning import make_tuning
from steptime.core.workload import Plan
from steptime.network.families.language import rows
from steptime.planning.answer import fits, fits_with_margin
from steptime.planning.ranks.site import Site
from steptime.planning.step import time_plan
from steptime.prediction import conformal, memory
from steptime.prediction.collectives import EXCHANGES
from steptime.prediction.kernel import Interval
from steptime.prediction.method import Method
from steptime.prediction.steps.step_model import StepModel
from steptime.serving.demand import ROUNDS, Demand
from steptime.serving.memory import memory_of
from steptime.serving.phases import Phases
from steptime.serving.service import Service
from steptime.serving.times import predict_energy, predict_times, run_service, widen_over_stacks
from validation.blind.answers import predict_burst, predict_network, predict_rate

PARALLEL = ("tensor", "pipeline", "data", "expert")
UNDER = (
    "concurrency",
    "max_batch",
    "prefill_replicas",
    "prefill_tensor",
    "prefill_data",
    "prefill_expert",
)
FIELDS = {"batch": "running_sequences", "max_batch": "max_running_sequences"}
COLLECTIVES = ("all_reduce", *EXCHANGES)
MOST_RUN = 20_000  # requests that an event loop runs for a row


def step(question: Question, method: str | Method) -> Reply:
    """Return the step of a training plan; of what a table does not say (`otherwise`), the fastest.

    That is where the plan as it stands leaves less of the memory than predictions miss. Whether it
    `fits` is said of the plan as it stands.
    """
    problem, sound = prepare_plan(question, method)
    stands = found = time_plan(problem, sound)
    if question.texts.get("otherwise") and not fits_with_margin(problem, stands):
        more = [_changed(sound.plan, words) for words in question.texts["otherwise"].split("|")]
        tried = [time_plan(problem, replace(sound, plan=one)) for one in more]
        found = min(
            (one for one in tried if fits_with_margin(problem, one)),
            key=attrgetter("step_s"),
            default=stands,
        )
    reply = reply_of(question, problem, found)
    fullest = found.peak_memory
    beside = sum(getattr(fullest, name) for name in METERS["allocated"])
    allocated = {"allocated_bytes": Interval(fullest.total - beside)}
    return replace(reply, values={**reply.values, **allocated}, fits=fits(problem, stands))


def _changed(plan: Plan, words: str) -> Plan:
    changes: Any = dict(part.split("=") for part in words.split())
    layers = int(changes.get("recompute_layers", 0))
    return replace(plan, **{**changes, "recompute_layers": layers})


METERS = {  # what torch, or the driver, counts of a device's memory, by what it leaves out
    "used": (),
    "reserved": ("context", "buffers"),  # of NCCL are no torch's
    "active": ("context", "buffers", "blocks"),
    "allocated": ("context", "buffers", "blocks"),
}


def fine_tuning(question: Question, method: str | Method) -> Reply:
    """Return the step of a fine-tuning on one device or several: `step_s`, `memory_bytes`.

    That is the memory as the row's `meter` counts it. Raises `InputError` for another meter, and
    for a row of more FLOP/s than a device has at its peak.
    """
    texts = question.texts
    tuning = make_tuning(
        texts["lora"] or None,
        texts["weights"] or None,
        packed=question.numbers.get("packed") or None,
        optimizer=texts["optimizer"],
        update_early=bool(question.numbers["update_early"]),
    )
    problem, sound = prepare_plan(question, method, tuning)
    found, plan = time_plan(problem, sound), sound.plan
    if problem.rank.runs_full_network(plan):
        step = problem.rank.full_step(sound.microbatch, plan.recompute).lower_step(sound.microbatch)
        if step.executed_flop > problem.rank.peak_flop_per_s * question.measured["step_s"]:
            raise InputError(
                f"more FLOP/s than the peak of {texts['device']}, as it is taken to run"
            )
    reply, fullest = reply_of(question, problem, found), found.peak_memory
    meter = check_choice("meter", texts.get("meter", "reserved"), METERS)
    beside = sum(getattr(fullest, name) for name in METERS[meter])
    bytes_ = Interval(fullest.total - beside)
    return replace(reply, values={**reply.values, "memory_bytes": bytes_})


def tune_peak(question: Question, method: str | Method) -> Reply:
    """Return the peak of a fine-tuning of which no time is asked: `memory_bytes`."""
    asked = replace(question, measured={**question.measured, "step_s": inf})
    return fine_tuning(asked, method)


def tune(question: Question, method: str | Method) -> Reply:
    """Return what a training of a part of the weights holds on one device: `memory_bytes`.

    Networks have their queries, keys and values in one product, and a head of their own. Raises
    `InputError` for a row of less than weights, gradients and states of one device.
    """
    texts = question.texts
    length = integer_of(question, "length")
    tuning = make_tuning(texts.get("lora") or None, texts.get("weights") or None)
    changes = {"length": length, "merged_qkv": "yes", "tied": "no"}
    workload = make_workload(
        read_model(changed(texts["model"], changes)),
        integer_of(question, "batch"),
        texts["dtype"],
        texts["phase"],
        "adam",
        tuning=tuning,
    )
    model = StepModel(workload, texts["device"], method=method, options={"stack": texts["stack"]})
    graph, needs = model.graph(), model.needs()
    accumulates = texts["phase"] == "train" and integer_of(question, "rounds") > 1
    held = memory.rank_peak_bytes(graph, model.stack, accumulates=accumulates, sizes=model.sizes())
    parts = model.worst_moment().bytes_by_purpose
    least = parts["weights"] + parts["state"] + sum(model.gradients.values())
    if question.measured.get("memory_bytes", inf) < least:
        raise InputError(
            "less than weights, gradients and states: the table does not say how they are sharded"
        )
    needs = needs._replace(peak_bytes=held)
    values = {"memory_bytes": Interval(float(held))}
    values["needed_bytes"] = Interval(float(needs.total_bytes))
    return Reply(values, 1, texts["stack"], needs.fit(model.device), form="fine-tunings")


def changed(name: str, changes: Mapping[str, object]) -> str:
    """Return the text of a named network with other hyperparameters."""
    row = {key: one for key, one in rows()[name].items() if key not in ("source", "parameters")}
    longest = max(int(row.get("max_length", 0)), int(str(changes["length"])))
    settings = {**row, "max_length": longest, **changes}
    return "transformer:" + ",".join(f"{key}={one}" for key, one in settings.items())


def exchange(question: Question, method: str | Method) -> Reply:
    """Return the seconds of a collective among devices: `exchange_s`."""
    device_count = integer_of(question, "device_count")
    site = site_of(question)
    stack = question.texts["stack"]
    problem = problem_of("transformer:layers=1", site, "float16", stack, device_count, method)
    kind = question.texts["collective"]
    check_choice("collective", kind, COLLECTIVES)
    ranks = range(0, device_count, device_count - 1) if kind == "send" else range(device_count)
    time = problem.collective_time(kind, integer_of(question, "bytes"), ranks)
    interval = problem.rank.widen_by_spread(conformal.COLLECTIVES, time.seconds, time.spread)
    return Reply({"exchange_s": interval}, device_count, stack)


def parameters(question: Question, method: str | Method) -> Reply:
    """Return a model's parameters, and those that a token reaches: `parameters`, `active`."""
    site = Site("a100-sxm4-80gb")
    problem = problem_of(question.texts["model"], site, "bfloat16", "torch-eager", 1, method)
    found = {"parameters": problem.rank.parameters, "active": problem.rank.active_parameters}
    return Reply({name: Interval(float(value)) for name, value in found.items()}, 1)


def serve(question: Question, method: str | Method) -> Reply:
    """Return what serving takes: `ttft_s`, `tpot_s`, `request_s`, `tokens_per_s_per_device`.

    Of a static `batch`, or of a number of requests at once, the `concurrency`.
    """
    texts, numbers = question.texts, question.numbers

    def given(names: Iterable[str]) -> dict[str, Any]:
        return {n: integer_of(question, n) for n in names if numbers.get(n) not in (None, "", 0)}

    model, site, split = texts["model"], site_of(question), given(PARALLEL)
    limits, sizes = given(UNDER), given(("batch", "input", "output"))
    demand = Demand(**{FIELDS.get(name, name): n for name, n in limits.items()})
    sizes = {FIELDS.get(name, name): n for name, n in sizes.items()}
    demand = replace(demand, count=min(ROUNDS * demand.concurrency, MOST_RUN))
    formats: Any = {name: texts.get(name) or None for name in ("dtype", "weights")}  # may be empty
    how: Any = {**formats, **split, "stack": texts["stack"] or None, "method": method}
    sizes = {"input": 1, "output": 1, **sizes, **given(("replicas",))}
    one = Service(model, site, **sizes, **how, demand=demand)
    phases = _phases(model, site, one.length, **how)
    requests = demand.load(one.input, one.output) if demand.concurrency else None
    run = None if requests is None else run_service(one, requests, phases)
    times = widen_over_stacks(one, requests, phases, predict_times(one, phases, run)).times
    device_count = one.device_count if run is None else run.device_count
    rate = (
        one.running_sequences * one.output / times.request.value
        if run is None
        else run.output_tokens_per_s
    )
    values = {
        "ttft_s": times.ttft,
        "tpot_s": times.tpot,
        "request_s": times.request,
        "tokens_per_s_per_device": phases.interval_of(rate / device_count),
    }
    if phases.device.datasheet.peak_w and not demand.concurrency:
        reads = one.price_prompts(phases, one.running_sequences)
        decode = phases.price_decode(one.running_sequences, one.input + one.output / 2)
        energy = predict_energy(one, phases, reads, decode)
        if energy is not None:
            values["device_w"] = Interval(energy.device_w)
    if not demand.concurrency:
        values["prefill_s"] = values["ttft_s"]
    is_held = not memory_of(phases, one.running_sequences, one.length, one.input).over_bytes
    return Reply(
        values,
        device_count,
        phases.problem.method.settings.stack,
        is_held,
        form=phases.interval_form,
    )


@lru_cache(maxsize=512)
def _phases(model: str, site: Site, length: int, **how: Any) -> Phases:
    return Service(model, site, 1, length - 1, 1, **how).phases()


KINDS: Mapping[str, Callable[[Question, str | Method], Reply]] = {
    "serve": serve,
    "step": step,
    "tune": tune,
    "fine_tuning": fine_tuning,
    "tune_peak": tune_peak,
    "exchange": exchange,
    "parameters": parameters,
    "network": predict_network,
    "burst": predict_burst,
    "rate": predict_rate,
}
