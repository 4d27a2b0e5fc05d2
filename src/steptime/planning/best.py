"""The best plan of what a user leaves open, over types and numbers of devices, and why."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, inf, log, sqrt
from typing import Any, NamedTuple

from steptime.core.errors import InputError
from steptime.core.units import percent, seconds
from steptime.core.workload import Plan
from steptime.hardware.prices import NO_PRICE, Offer
from steptime.planning.answer import (
    answered,
    bound,
    cost_of,
    document,
    offer_of,
    split_in_words,
)
from steptime.planning.faults import Asked, checked, option_of, refuse_idle
from steptime.planning.meant import meant
from steptime.planning.planner import Planner
from steptime.planning.request import Request, split_of
from steptime.planning.search import (
    MEMORY,
    Cap,
    Search,
    search,
    unbeaten,
    with_fewer_again,
)
from steptime.planning.shape import Shape
from steptime.planning.space import Space
from steptime.planning.step import Quick, plan_time

AMOUNTS = (
    "step_s",
    "cost_per_step",
    "energy_j",
    "needed_bytes",
    "device_count",
)  # fewer are better
SPLIT = (
    "tensor", "context", "pipeline", "virtual", "data", "expert", "zero", "recompute",
    "recompute_layers", "schedule", "shard", "offload",
)  # fmt: skip
SIMULATED = 12  # plans of a search, beside the fastest of each number of devices
REFUSED = {  # limit: (what refused plans do, unit)
    MEMORY: ("do not fit", "GB"),
    "budget_per_hour": ("cost more than --budget-per-hour", "per hour"),
    "days": ("take more than --days", "days"),
    "watts": ("draw more than --watts", "W"),
}
DAY_S = 86400
Row = dict[str, Any]


class _Group(NamedTuple):
    """What was found on a number of devices of a type."""

    device_count: int
    planner: Planner
    offer: Offer | None
    caps: Sequence[Cap]
    result: Search
    space: str


def answer(request: Request) -> dict[str, Any]:
    """Return the answer to a request: one plan, or the best of those that it leaves open."""
    refuse_idle(request.split, bool(request.device_counts))
    if request.others and not request.device_counts:
        raise InputError("plan: several devices go with --device-count or --max-device-count")
    values = searched(request) if request.device_counts else answered(request)
    stays = request.split.get("offload", None if request.device_counts else "none") == "none"
    if request.site.host_link and stays and values.get("fits", True):
        raise InputError("plan: --host-link goes with --offload; nearest: leave out --host-link")
    return values


def searched(request: Request) -> dict[str, Any]:
    """Return the best plan and those that none beats in all of `AMOUNTS`, as JSON values.

    Raises `InputError` where a request says no batch, and where no plan is left.
    """
    if request.global_batch is None:
        raise InputError("--device-count: a search needs --global-batch, the sequences of a step")
    if request.limits.get("days") is not None and request.tokens is None:
        raise InputError("--days needs --tokens, those of the training")
    shape = request.shape
    groups = list(_groups(request, shape))
    refused = sum((group.result.refused for group in groups), Counter[str]())
    considered = sum(group.result.considered for group in groups)
    if not any(group.result.front for group in groups):
        if not considered:
            each = request.microbatch or 1  # says what of it does not divide
            checked(shape, Asked(split_of(request.split), each, request.global_batch))
            given = [
                option_of(name) if one is True else f"{option_of(name)} {one}"
                for name, one in request.split.items()
            ]
            words = f"plan: no split of these devices divides {shape.label} and its batch"
            raise InputError(f"{words} with {' '.join(given)}" if given else words)
        more = _more(request, shape) if refused[MEMORY] == considered else ""
        raise InputError(_none(groups, shape, considered, refused) + more)
    fastest = [(at, one) for at, group in enumerate(groups) for one in group.result.front[:1]]
    keys = [*fastest, *_chosen(groups)]
    rows = {key: _row(groups[key[0]], key[1], request) for key in keys}
    front = _unbeaten([row for row in rows.values() if row["within"]])
    if not front:
        raise InputError("plan: what fits by closed forms is beyond the limits once simulated")
    by_device_count = [rows[key] for key in fastest if rows[key]["within"]]
    best, hardly = _best(front[0], request), _hardly(front, groups[0].planner.spare)
    for row in rows.values():  # what could be meant is the same for all
        for end in ("low_s", "high_s"):
            row[end] *= best[end] / front[0]["document"][end]
    alike = _alike(groups, front[0], [*rows.values()])
    if request.limits.get("budget_per_hour") is not None:
        unpriced = sorted({one.planner.device.name for one in groups if one.offer is None})
        best["notes"] += [f"{name}: {NO_PRICE}, so no budget holds it" for name in unpriced]
    first: dict[str, float] = {}  # what a step of the least number takes of devices
    for row in by_device_count:
        took = row["step_s"] * row["device_count"]
        row["efficiency"] = first.setdefault(row["device"], took) / took
    for row in rows.values():
        del row["document"], row["within"], row["found"]
    return {
        "answer": best["answer"] + hardly,
        "considered": considered,
        "fitting": considered - refused[MEMORY],
        "refused": dict(refused),
        "alike": alike,
        "space": groups[-1].space,
        "bound_by": bound(best),
        "best": best,
        "best_by": _least(front),
        "by_device_count": by_device_count,
        "rows": front,
    }


def _hardly(front: Sequence[Row], spare: float) -> str:
    """Return that the fastest plan hardly fits, if so, and the fastest one that leaves a share."""

    def share(row: Row) -> float:
        room = row["document"]["memory"]["usable_bytes"]
        return row["needed_bytes"] / room if room else 0.0

    if (held := share(front[0])) <= 1 - spare:
        return ""
    words = f"; it fills {percent(held)} of the memory"
    other = next((row for row in front if share(row) <= 1 - spare), None)
    if other is None:
        return f"{words}, and no plan leaves {percent(spare)}"
    how = split_in_words(other["document"])
    return f"{words}; {how} leaves {percent(spare)} and takes {seconds(other['step_s'])}"


def _groups(request: Request, shape: Shape) -> Iterator[_Group]:
    global_batch = request.global_batch or 1
    each = request.microbatch
    fixed = {**request.split, **({} if each is None else {"microbatch": each})}
    every = (request.site, *request.others)
    for site in every:
        one, planner = replace(request, site=site, others=every if request.others else ()), None
        for count in sorted(set(request.device_counts)):
            planner = one.planner(shape, count, planner)
            offer = offer_of(planner, request.prices)
            caps = _caps(request, count, global_batch * shape.length, offer)
            space = Space(planner, count, global_batch, site.per_node, fixed)
            alike = told_apart(planner)
            if request.others:
                alike = max(alike, planner.bounds.high / planner.bounds.low) ** 2
            result = search(planner, space.ways(), global_batch, caps, alike)
            if not fixed.keys() & {"recompute", "recompute_layers"}:
                result = with_fewer_again(planner, result, caps)
            yield _Group(count, planner, offer, caps, result, space.in_words())


def _caps(request: Request, device_count: int, in_step: int, offer: Offer | None) -> list[Cap]:
    steps = (request.tokens or 0.0) / in_step
    hour = 0.0 if offer is None else offer.price * device_count
    values: dict[str, Callable[[Quick], float]] = {
        "budget_per_hour": lambda _: hour,
        "days": lambda result: result.step_s * steps / DAY_S,
        "watts": lambda one: inf if one.energy_j is None else one.energy_j / one.step_s,
    }
    limits = {**request.limits}
    if offer is None:  # what is not known is not over: it stays, and says so
        limits.pop("budget_per_hour", None)
    return [Cap(name, values[name], most) for name, most in limits.items() if most is not None]


def _none(
    groups: Sequence[_Group], shape: Shape, considered: int, refused: Mapping[str, int]
) -> str:
    """Return why there is no plan: which limit refuses how many, and the nearest."""
    every = [(group, group.result.nearest) for group in groups if group.result.nearest]
    if not every:
        return "plan: the power of these devices is not known"
    group, least = min(every, key=lambda pair: (pair[1].name == MEMORY, pair[1].ratio))
    where, value = f"{group.device_count} {group.planner.device.name}", least.value
    if least.name == MEMORY:
        near = f"the nearest needs {(value - least.most) / 1e9:,.1f} GB more ({where})"
        return f"plan: none of {considered:,} splits fits; {near}"
    counts = ", ".join(f"{count:,} {REFUSED[name][0]}" for name, count in refused.items() if count)
    has = f"{value:,.4g} {REFUSED[least.name][1]}, not {least.most:,.4g} ({where})"
    words = f"plan: none of {considered:,} splits is within the limits"
    return f"{words}: {counts}; the nearest has {has}"


def _more(request: Request, shape: Shape) -> str:
    """Return the least of 2, 4 and 8 times as many devices that have room for a plan, in words."""
    for times in (2, 4, 8):
        many = times * max(request.device_counts)
        try:
            if any(
                one.result.front for one in _groups(replace(request, device_counts=(many,)), shape)
            ):
                return f"; nearest: --device-count {many}"
        except InputError as error:  # nothing joins so many
            return f"; {many} devices: {error}"
    return ""


def _chosen(groups: Sequence[_Group]) -> list[tuple[int, Quick]]:
    """Return the plans that none beats by closed forms, the least in each amount first."""
    front = _unbeaten([
        {"key": (at, one), **_amounts(groups[at], one.step_s, one.energy_j, one.bytes)}
        for at, one in _every(groups)
    ])  # fmt: skip
    return [row["key"] for row in (*_least(front).values(), *front[:SIMULATED])]


def _every(groups: Sequence[_Group]) -> Iterator[tuple[int, Quick]]:
    return ((at, one) for at, group in enumerate(groups) for one in group.result.front)


def _amounts(
    group: _Group, step_s: float, energy_j: float | None, held: float
) -> dict[str, float | None]:
    paid = cost_of(group.offer, group.device_count, "step", step_s)
    values = (step_s, None if paid is None else paid["step"], energy_j, held, group.device_count)
    return dict(zip(AMOUNTS, values, strict=True))


def _unbeaten(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that none beats in what is known of all, the fastest first."""
    names = [name for name in AMOUNTS if all(row[name] is not None for row in rows)]
    return unbeaten(rows, lambda row: tuple(float(row[name]) for name in names))


def _least(rows: Sequence[Row]) -> dict[str, Row]:
    known = {name: [row for row in rows if row[name] is not None] for name in AMOUNTS}
    return {
        name: min(some, key=lambda row: float(row[name])) for name, some in known.items() if some
    }


def _row(group: _Group, one: Quick, request: Request) -> dict[str, Any]:
    time = plan_time(group.planner, checked(group.planner.shape, one.asked))
    values = document(group.planner, time, group.offer, request.tokens)
    energy = None if values["energy"] is None else values["energy"]["step_j"]
    whole, training = Quick(time.step_s, one.bytes, energy, time.asked), values["training"]
    return {
        "device": values["device"],
        **{name: values["plan"].get(name, getattr(Plan(), name)) for name in SPLIT},
        "microbatch": values["microbatch"],
        **_amounts(group, time.step_s, energy, values["memory"]["needed_bytes"]),
        **{key: values[key] for key in ("low_s", "high_s", "tokens_per_s_per_device")},
        "bound_by": bound(values),
        "training_cost": training and training["cost"],
        "training_days": training and training["train_h"] / 24,
        "within": all(cap.holds(whole) for cap in group.caps),
        "document": values,
        "found": (group, time),
    }


def _best(row: Row, request: Request) -> dict[str, Any]:
    """Return the document of a row's plan, between what all stacks that could be meant take."""
    group, time = row["found"]
    time, assumed = meant(group.planner, time)
    return document(group.planner, time, group.offer, request.tokens, assumed)


def told_apart(planner: Planner) -> float:
    """Return the ratio beyond which two plans of a device differ by more than predictions do.

    What they share cancels; sqrt(2) of what is each one's own is left: with 0.08 a ratio of 1.12.
    """
    return exp(sqrt(2) * (log(planner.bounds.high) * sqrt(1 - planner.bounds.shared**2)))


def _alike(
    groups: Sequence[_Group], best: Mapping[str, Any], rows: Sequence[dict[str, Any]]
) -> int:
    """Return how many plans are not told apart from the best, and mark those of the rows.

    Plans of one type of device share what is wrong about it; of others, intervals overlap.
    """
    number = 0
    for group in groups:
        name = group.planner.device.name
        low = group.planner.bounds.low
        same = name == best["device"]
        most = best["step_s"] * told_apart(group.planner) if same else best["high_s"] / low
        number += sum(step_s <= most for step_s in group.result.steps_s)
        for row in rows:
            if (row["device"], row["device_count"]) == (name, group.device_count):
                row["alike"] = row["step_s"] <= most
    return number
