"""A plan's step as rows of named quantities: what commands print and programs read."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError
from steptime.core.table import picked
from steptime.core.units import percent, seconds, size
from steptime.core.workload import RECOMPUTES, Plan, plan_to_json
from steptime.hardware import catalog
from steptime.hardware.prices import Offer, cheapest, offers
from steptime.network.count import op_work
from steptime.network.ops import OPS
from steptime.planning.faults import Asked, checked, fault, words_of_change
from steptime.planning.meant import Assumed, in_words, meant
from steptime.planning.planner import Planner
from steptime.planning.request import Request
from steptime.planning.step import PlanTime, plan_time, quick
from steptime.planning.trace import write_trace
from steptime.prediction.calibrated.method import calibrated_under, notes_of
from steptime.prediction.states import host_memory

KWH_J = 3.6e6


def fits(planner: Planner, result: PlanTime) -> bool:
    """Whether the fullest device has room."""
    return result.memory[result.fullest].total <= planner.room_bytes


def spares(planner: Planner, result: PlanTime) -> bool:
    """Whether the fullest device leaves as much of its memory as predictions miss."""
    return result.memory[result.fullest].total <= (1 - planner.spare) * planner.room_bytes


def offer_of(planner: Planner, path: Path | None = None) -> Offer | None:
    """Return the cheapest price of the device, None where no file has one."""
    return cheapest(offers(path)).get(planner.device.name)


def mfu(planner: Planner, result: PlanTime) -> dict[str, float | None]:
    """Return the share of the peak that counted arithmetic reaches, by convention.

    `full` and `half` are products and attention, of which a causal mask leaves half; `6N` is six
    FLOP a parameter and token. Of experts, those that a token reaches count. Networks that are no
    language models have `full` alone, of all that is counted; beside frozen weights, whose
    gradients are not made, 6N has no meaning.
    """
    (products, attention), times = planner.flops, _forwards(planner)
    whole = planner.peak * result.step_s * result.asked.plan.device_count
    of_a_sequence = {
        "full": times * (products + attention),
        "half": times * (products + attention / 2),
        "6N": 6.0 * planner.active * planner.shape.length,
    }
    shares = {
        name: result.asked.global_batch * flop / whole for name, flop in of_a_sequence.items()
    }
    known = (*shares,) if planner.shape.unit == "tokens" else ("full",)
    known = known[:2] if planner.tuning.freezes else known
    return {name: share if name in known else None for name, share in shares.items()}


def _forwards(planner: Planner) -> float:
    """Return how many forward passes both are in arithmetic: 3, less beside frozen weights."""
    if not planner.tuning.freezes:
        return 3.0
    graph, work = planner.alone(1).graph(1), Counter[str]()
    for op in graph.ops:
        if OPS[op.kind].work:
            work[op.part] += op_work(graph, op)[0]
    return 1 + work["backward"] / work["forward"]


def document(
    planner: Planner,
    result: PlanTime,
    offer: Offer | None,
    tokens: float | None = None,
    assumed: Assumed | None = None,
) -> dict[str, Any]:
    """Return the answer to one plan as JSON values; what is not known is None.

    `assumed` are the stacks that could be meant (`meant`), None where one is named.
    """
    shape, asked = planner.shape, result.asked
    device_count = asked.plan.device_count
    in_step = asked.global_batch * shape.length
    does_fit = fits(planner, result)
    values = {
        "answer": "",
        "model": shape.label,
        "device": planner.device.name,
        "device_count": device_count,
        **picked(planner, "levels parameters"),
        "plan": {**plan_to_json(asked.plan), "order": asked.order},
        **picked(asked, "microbatch global_batch"),
        "length": shape.length if shape.unit == "tokens" else None,
        "unit": shape.unit,
        "dtype": planner.dtype,
        "tuning": planner.tuning.text or None,
        "method": planner.method.name,
        "stack": planner.method.settings.stack,
        "assumed": assumed,
        **picked(result, "step_s low_s high_s bubble"),
        "tokens_per_s": in_step / result.step_s,
        "tokens_per_s_per_device": in_step / result.step_s / device_count,
        "parts": picked(result, "compute_s recompute_s exposed_s host_s bubble_s update_s rest_s"),
        "fits": does_fit,
        "usable_bytes": planner.device.usable_bytes,
        "memory": _memory(planner, result),
        "exposed_communication": [
            {**picked(one, "collective group bytes total_s exposed_s"), "level": one.link}
            for one in result.exposures
        ],
        "mfu": mfu(planner, result),
        "cost": cost_of(offer, device_count, "step", result.step_s),
        "energy": result.energy_j
        and {
            "step_j": result.energy_j,
            "device_w": result.energy_j / result.step_s / device_count,
            "of": "devices alone: nodes add 20 to 40 %",
        },
        "training": _training(result, offer, device_count, in_step, tokens),
        "notes": _notes(planner, result),
        "nearest_that_fits": None if does_fit else nearest(planner, asked),
    }
    return {**values, "answer": sentence(values)}


def timed(request: Request) -> tuple[Planner, PlanTime]:
    """Return the step of the plan that a user asks for, and what priced it; raises `InputError`."""
    shape = request.shape
    asked = request.asked(shape)
    planner = request.planner(shape, asked.plan.device_count)
    return planner, plan_time(planner, asked)


def answered(request: Request) -> dict[str, Any]:
    """Return the answer to one plan; its pipeline's run goes to `request.trace`."""
    planner, result = timed(request)
    if request.trace is not None:
        label = f"{planner.shape.label} on {planner.device.name}"
        write_trace(result, label, request.trace)
    result, assumed = meant(planner, result)
    return document(planner, result, offer_of(planner, request.prices), request.tokens, assumed)


def asking(request: Request, values: Mapping[str, Any]) -> Request:
    """Return what asks for the very plan of an answer, such as the best that was searched."""
    split = {name: value for name, value in values["plan"].items() if name in vars(Plan())}
    split.pop("microbatches", None)
    several = (request.site, *request.others)
    site = next(one for one in several if catalog.device(one.device).name == values["device"])
    return replace(
        request, site=site, others=(), split=split, device_counts=(),
        global_batch=values["global_batch"], microbatch=values["microbatch"],
        length=values["length"], order=values["plan"]["order"], stack=values["stack"],
    )  # fmt: skip


def fitted_notes(planner: Planner) -> list[str]:
    """Return what of device and stack lies beyond what was measured."""
    device, stack = planner.device, catalog.stack(planner.method.settings.stack)
    graph = planner.graph_of_kinds()
    if planner.use == "training" and not planner.cluster.levels:
        notes = [*planner.step.of(graph, 1).remarks(1)]  # those of `predict`
    else:
        notes = notes_of(device) if planner.method.name == "calibrated" else []
        notes += [*calibrated_under(device, stack.name), *graph.remarks]
    fitted = planner.use == "serving" or planner.shape.unit == "tokens"
    if planner.use == "training" and not stack.training:
        notes.append(f"stack {stack.name}: constants of training are those of torch-eager")
    elif stack.seen and fitted and not device.calibration:
        names = stack.seen["devices"]
        on = f", but on {', '.join(names)}" if names else ""
        if device.name not in names and (names or planner.cluster.levels):
            notes.append(f"stack {stack.name}: fitted to no step on {device.name}{on}")
    return notes


def _notes(planner: Planner, result: PlanTime) -> list[str]:
    single = result.asked.plan, result.asked.microbatch, result.asked.rounds
    notes = list(dict.fromkeys([*fitted_notes(planner), *_remarks(planner, *single)]))
    if result.asked.plan.offload in ("optimizer", "both"):
        rate, devices = host_memory()
        memory = f"{rate / 1e9:,.0f} GB/s of memory for {devices} devices"
        notes.append(f"a host is taken to have {memory}")
    held = result.memory[result.fullest].total / planner.room_bytes
    if 1 - planner.spare < held <= 1:
        missed = f"which predictions miss by up to {percent(planner.spare)}"
        notes.append(f"fills {percent(held)} of the memory, {missed}")
    if planner.device.kind != "gpu":
        notes.append(f"{planner.device.name}: collectives are rings, as those of GPUs")
    return notes


def _remarks(planner: Planner, plan: Plan, batch: int, rounds: int) -> Sequence[str]:
    """Return the remarks of a prediction of the step, where one device runs all of it at once."""
    if planner.held_alone(plan, batch, rounds) is None:
        return ()
    return planner.alone(batch, plan.recompute).predict(batch).remarks


def _memory(planner: Planner, result: PlanTime) -> dict[str, Any]:
    fullest = result.memory[result.fullest]
    room = planner.room_bytes if planner.room_bytes < inf else None
    stages = result.asked.plan.pipeline
    layers = [sum(result.layers[d::stages]) for d in range(stages)]
    return {
        "needed_bytes": fullest.total,
        "usable_bytes": room,
        "over_bytes": max(0.0, fullest.total - room) if room else None,
        "host_bytes": result.host_bytes,
        "fullest_stage": result.fullest,
        "by_part": fullest.parts,
        "by_stage": [
            {"stage": d, "layers": layers[d], "needed_bytes": one.total, **one.parts}
            for d, one in enumerate(result.memory)
        ],
    }


def cost_of(
    offer: Offer | None, device_count: int, what: str, took_s: float
) -> dict[str, Any] | None:
    """Return what devices cost for something that takes so long, and an hour; None: unknown."""
    if offer is None:
        return None
    hour = offer.price * device_count
    about = {"currency": offer.currency, "offer": offer.name, "date": offer.date}
    return {what: hour * took_s / 3600, "hour": hour, **about}


def _training(
    result: PlanTime, offer: Offer | None, device_count: int, in_step: int, tokens: float | None
) -> dict[str, Any] | None:
    if tokens is None:
        return None
    steps, energy = tokens / in_step, result.energy_j
    hours, low, high = (steps * one / 3600 for one in (result.step_s, result.low_s, result.high_s))
    return {
        "tokens": tokens,
        "steps": steps,
        "train_h": hours,
        "low_h": low,
        "high_h": high,
        "device_hours": hours * device_count,
        "cost": None if offer is None else hours * offer.price * device_count,
        "energy_kwh": None if energy is None else energy * steps / KWH_J,
    }


def nearest(planner: Planner, asked: Asked) -> dict[str, Any] | None:
    """Return the change of a plan that fits and is fastest, one change before two; None for none.

    Tried are recomputing (the first layers of each stage, or all), smaller microbatches, states,
    gradients and weights shared out, what the host can take if it is joined, and the same devices
    with more tensor, pipeline or context parallel.
    """
    singles = list(_changes(planner, asked))
    doubles = [
        (change | more, other) for change, one in singles for more, other in _changes(planner, one)
    ]
    for tries in (singles, doubles):
        result: list[dict[str, Any]] = []
        for change, other in tries:
            try:
                time = quick(planner, checked(planner.shape, other))
            except InputError:
                continue
            if time.step_s < inf:
                result.append({
                    "change": words_of_change(asked, change), "plan": asdict(time.asked.plan),
                    "microbatch": time.asked.microbatch, "step_s": time.step_s,
                    "needed_bytes": time.bytes,
                })  # fmt: skip
        if result:
            return min(result, key=itemgetter("step_s"))
    return None


def _changes(planner: Planner, asked: Asked) -> Iterator[tuple[dict[str, Any], Asked]]:
    """Return plans with less memory by one option or two, each after these."""
    plan = asked.plan
    later = RECOMPUTES[RECOMPUTES.index(plan.recompute) + 1 :]
    changes: list[dict[str, Any]] = [{"recompute": one, "recompute_layers": 0} for one in later]
    layers = len(planner.shape.kinds) // (plan.pipeline * plan.virtual)
    if plan.recompute == "none":
        some = [2**k for k in range(layers.bit_length()) if 2**k < layers]
        changes += [{"recompute": "full", "recompute_layers": n} for n in some]
    elif plan.recompute_layers:
        changes.append({"recompute_layers": 0})
    halves = (asked.microbatch >> k for k in range(1, asked.microbatch.bit_length()))
    changes += [{"microbatch": half} for half in halves if not asked.microbatch % half]
    if plan.replicas > 1:
        changes += [{"zero": zero} for zero in range(plan.zero + 1, 4)]
    if plan.zero and plan.shards < plan.replicas:
        changes += [{"shard": 2 * plan.shard}, {"shard": 0}]
    if plan.tensor > 1 and not plan.sequence:
        changes.append({"sequence": True})
    if planner.host is not None and plan.offload != "both":
        more = {"none": ("optimizer", "activations")}.get(plan.offload, ("both",))
        changes += [{"offload": one} for one in more]
    if plan.data % 2 == 0:
        wider = picked(plan, "tensor pipeline context").items()
        changes += [{name: 2 * ranks, "data": plan.data // 2} for name, ranks in wider]
    every = ((change, asked.but(change)) for change in changes)
    return (one for one in every if fault(planner.shape, one[1]) is None)


WORDS = {  # of the parts of a step
    "compute_s": "computing",
    "recompute_s": "computing again",
    "exposed_s": "exposed communication",
    "host_s": "CPU-bound (kernel launches)",
    "bubble_s": "pipeline bubble",
    "update_s": "update",
    "rest_s": "outside of the layers",
}
_MORE = {  # that a plan says where it departs from the usual
    "recompute_layers": "of {} layers a stage", "shard": "shards of {}", "schedule": "{}",
    "context_method": "context by {}", "offload": "offload {}",
    "expert_tensor": "whole experts", "imbalance": "imbalance {:g}",
    "expert_overlap": "tokens beside another microbatch",
}  # fmt: skip
_SPLIT = ("tensor", "context", "data", "pipeline", "virtual", "expert")


def sentence(values: Mapping[str, Any]) -> str:
    """Return the answer of a plan's document: devices, step, money, days, and what bounds it."""
    low, high = (seconds(values[end]) for end in ("low_s", "high_s"))
    step = f"{seconds(values['step_s'])} a step ({low} to {high})"
    where = f"{values['device_count']} {values['device']}"
    words = in_words(values["assumed"]) if values["device_count"] > 1 else ""
    assumed = f", {words}" if words else ""
    if not values["fits"]:
        over = size(values["memory"]["over_bytes"])
        return f"{where}: out of memory by {over} per device; it would take {step}{assumed}"
    return f"{where}: {step}{assumed}{_paid(values)}; bound by {bound(values)}"


def _paid(values: Mapping[str, Any]) -> str:
    cost, training = values["cost"], values["training"]
    if training is None:
        return "" if cost is None else f", {money(cost['hour'], cost)} per hour"
    paid = "" if training["cost"] is None else f"{money(training['cost'], cost)} for "
    days, low, high = (training[key] / 24 for key in ("train_h", "low_h", "high_h"))
    between = f"({low:,.3g} to {high:,.3g})"
    return f", {paid}{short(training['tokens'])} {values['unit']} in {days:,.3g} days {between}"


def short(amount: float) -> str:
    """Return a number of tokens in few letters, such as 1e12."""
    return f"{amount:.3g}".replace("e+", "e")


def money(value: float, cost: Mapping[str, Any]) -> str:
    """Return an amount of money in the currency of a price."""
    return f"{value:,.2f} {cost['currency']}" if value < 100 else f"{value:,.0f} {cost['currency']}"


def bound(values: Mapping[str, Any]) -> str:
    """Return what takes most of a plan's step, and how much of it."""
    parts = dict(values["parts"])
    waits = max(values["exposed_communication"], key=lambda one: one["exposed_s"], default=None)
    name = max(parts, key=parts.__getitem__)
    word = WORDS[name]
    if name == "exposed_s" and waits is not None:
        word = f"{waits['collective']} of {waits['group']} ranks over {waits['level']}"
    return f"{word} ({percent(parts[name] / values['step_s'])} of the step)"


def split_in_words(values: Mapping[str, Any]) -> str:
    """Return how a step is split: `tensor 8 x data 16, ZeRO 1, microbatch 2`."""
    usual = vars(Plan())
    plan = {**usual, **values["plan"]}
    sizes = [f"{name} {plan[name]}" for name in _SPLIT if plan[name] > 1]
    words = [" x ".join(sizes) or "one device"]
    words += ["sequence parallel"] if plan["sequence"] else []
    words += [f"ZeRO {plan['zero']}"] if plan["zero"] else []
    words += [f"recompute {plan['recompute']}"] if plan["recompute"] != "none" else []
    words += [text.format(plan[name]) for name, text in _MORE.items() if plan[name] != usual[name]]
    return ", ".join([*words, f"microbatch {values['microbatch']}"])


def held(memory: Mapping[str, Any], parts: int = 4) -> str:
    """Return what a device holds, of how much, its largest parts, and how much is too much."""
    largest = sorted(memory["by_part"].items(), key=lambda item: -item[1])[:parts]
    most = ", ".join(f"{name.removesuffix('_bytes')} {size(value)}" for name, value in largest)
    over, room = memory["over_bytes"], memory["usable_bytes"]
    doubt = f", out of memory by {size(over)}" if over else ""
    of = f" of {size(room)}" if room else ""
    return f"{size(memory['needed_bytes'])}{of} ({most}){doubt}"
