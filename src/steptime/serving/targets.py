"""The answer to a search for servers that hold targets: rows, the front, and what is missing."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf
from statistics import fmean
from typing import Any

from steptime.core.table import picked
from steptime.core.units import counted, seconds
from steptime.hardware import catalog
from steptime.planning.answer import cost_of, fitted_notes
from steptime.planning.meant import Assumed
from steptime.prediction.kernel import Interval
from steptime.serving.answer import (
    Service,
    average_service,
    interval_ends,
    loaded,
    meant,
    times_of,
)
from steptime.serving.load import PREFILL, Demand, summary
from steptime.serving.queueing import Load
from steptime.serving.search import (
    DOES_NOT_FIT,
    P90,
    PLAN,
    WORDS,
    Candidate,
    Kind,
    ServerSearch,
)

SPLIT = "replicas tensor pipeline data expert"  # of servers that read prompts
TARGETS = ("ttft", "tpot")
USERS = tuple(4**k for k in range(5))  # at once, of a point of the front
FRONT = 1000  # requests of a point
MOST_KINDS = 8  # of a device, on the front


def _row(search: ServerSearch, one: Candidate) -> dict[str, Any]:
    """Return a candidate as JSON values: those of the one answer that its command gives."""
    service = replace(one.kind.service, replicas=one.replicas)
    reader = one.first and replace(one.first[0].service, replicas=one.first[1])
    name, rate = one.kind.phases.planner.device.name, one.run["output_tokens_per_s"]
    times, assumed = _times(search, one, service, reader)
    return {
        "device": name,
        "device_count": one.device_count,
        "arrangement": "apart" if reader else "together",
        "plan": picked(service, PLAN),
        "prefill": reader and picked(reader, SPLIT),
        **{
            key: one.run[key]
            for key in ("ttft_s", "tpot_s", "request_s", "busy", "running_sequences")
        },
        "output_tokens_per_s": rate,
        "tokens_per_s_per_device": rate / one.device_count,
        "tokens_per_s_per_user": 1 / times["tpot_s"].value,
        **interval_ends(times),
        "bounds": {key: _bounds(one.run[key], times[key]) for key in WORDS},
        "assumed": assumed,
        "bounded_by": one.bounded_by,
        "cost": cost_of(search.offers.get(name), one.device_count, "million_tokens", 1e6 / rate),
        "dtype": one.kind.phases.planner.dtype,
        "stack": one.kind.phases.planner.method.settings.stack,
        "command": _command(search, service, reader),
    }


def _times(
    search: ServerSearch, one: Candidate, service: Service, reader: Service | None
) -> tuple[Mapping[str, Interval], Assumed | None]:
    """Return the mean times of requests, under all stacks that could be meant, and these."""
    demand, phases = search.demand, one.kind.phases
    if reader:
        split = {word: getattr(reader, name) for word, name in PREFILL.items()}
        demand = replace(demand, prefill_replicas=reader.replicas, **split)
    service = replace(service, demand=demand)
    load = loaded(service, search.load, phases, summary)
    times = times_of(average_service(service, load), phases, load)
    return meant(service, search.load, phases, times)


def _bounds(spread: Mapping[str, float] | None, mean: Interval) -> list[float | None]:
    """Return the ends of the 90th percentile, which is as far off as the mean."""
    if spread is None:
        return [None, None]
    longer = spread[P90] / mean.value
    return [None if end is None else longer * end for end in (mean.low, mean.high)]


def _command(search: ServerSearch, service: Service, reader: Service | None) -> str:
    """Return the command line whose one answer a row is."""
    names = f"{PLAN} dtype weights kv stack prefix prices"
    every: list[tuple[Any, dict[str, Any]]] = [
        (Service, picked(search.service, "input output") | picked(service, names)),
        (Demand, vars(search.demand)),
    ]
    words = {name: getattr(service.site, name) for name in ("inside", "link")}
    words = {"device": catalog.device(service.site.device).name} | words
    for kind, said in every:
        words |= {name: one for name, one in said.items() if one != getattr(kind, name)}
    if reader:
        words |= {
            f"prefill-{name}": number
            for name, number in picked(reader, SPLIT).items()
            if name == "replicas" or number != getattr(service, name)
        }
    texts = ["steptime", "serve", search.service.model]
    for name, value in words.items():
        if value is not None:
            texts += [f"--{name.replace('_', '-')}", _format_value(value)]
    for name, value in search.service.options.items():
        texts += ["--option", f"{name}={value}"]
    return shlex.join(texts)


def _format_value(value: Any) -> str:
    """Format the value of an option so that it reads back alike: `0.5`, `10`, `nvlink-4`."""
    is_short = isinstance(value, float) and float(f"{value:g}") == value
    return f"{value:g}" if is_short else str(value)


def _front(search: ServerSearch, kinds: Sequence[Kind]) -> Iterator[dict[str, Any]]:
    """Yield tokens a second of a device and of a user, of servers with so many users at once."""
    for kind, users in product(kinds, USERS):
        many = max(2 * users, 16)
        if users > kind.pool.blocks * kind.pool.block // kind.service.length or many > FRONT:
            continue
        repeat = -(-many // len(search.load.inputs))
        inputs, outputs = (list(some)[:many] * repeat for some in search.load[:2])
        load = Load(inputs[:many], outputs[:many], (), users)
        pool = kind.pool._replace(most=users)
        run = summary(Demand(concurrency=users), load, [pool])
        if run["tpot_s"] is not None:
            search.runs += 1
            yield {
                "device": kind.phases.planner.device.name,
                "plan": picked(kind.service, PLAN),
                "concurrency": users,
                "tokens_per_s_per_user": 1 / run["tpot_s"]["mean"],
                "tokens_per_s_per_device": run["output_tokens_per_s"] / kind.device_count,
                "ttft_s": run["ttft_s"]["mean"],
            }


def _speeds(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["tokens_per_s_per_user"], row["tokens_per_s_per_device"]


def undominated(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points than which none of their device is better for users and for the owner."""
    found: list[dict[str, Any]] = []
    for row in sorted(rows, key=_speeds, reverse=True):
        most = [one["tokens_per_s_per_device"] for one in found if one["device"] == row["device"]]
        if row["tokens_per_s_per_device"] > max(most, default=0.0):
            found.append(row)
    return found


def searched(search: ServerSearch) -> dict[str, Any]:
    """Return the answer to a search for servers, as JSON values; raises `InputError`."""
    rows: list[dict[str, Any]] = []
    front: list[dict[str, Any]] = []
    notes: list[str] = []
    for site in search.placed:
        kinds = search.kinds(site)
        both = [*search.together(kinds), *search.apart(kinds)]
        rows += [_row(search, one) for one in both]
        fast = {id(one.kind): one.kind for one in both if one.first is None}
        few = sorted(kinds, key=lambda one: one.device_count)
        front += _front(search, [*fast.values(), *few][:MOST_KINDS])
        notes += fitted_notes(kinds[0].phases.planner) if kinds else []
    rows.sort(
        key=lambda row: (row["cost"]["million_tokens"] if row["cost"] else inf, row["device_count"])
    )
    targets = {name: getattr(search.demand, name) for name in TARGETS}
    told = {
        "answer": "",
        "model": search.service.model,
        "requests_per_s": search.rate,
        "input_tokens": round(fmean(search.load.inputs)),
        "output_tokens": round(fmean(search.load.outputs)),
        **{name: None if most == inf else most for name, most in targets.items()},
        "max_device_count": search.max_device_count,
        "candidates": search.candidates,
        "runs": search.runs,
        "best": rows[0] if rows else None,
        "fewest": min(rows, key=lambda row: _order(row)[1:], default=None),
        "rows": rows,
        "front": undominated(front),
        "missing": _missing(search, rows),
        "notes": list(dict.fromkeys(notes)),
    }
    return told | {"answer": sentence(told)}


def _order(row: Mapping[str, Any]) -> tuple[float, int, bool, float]:
    """Return what rows are sorted by: cost, devices, simple before apart, and a request's time."""
    cost = row["cost"]["million_tokens"] if row["cost"] else inf
    return cost, row["device_count"], row["prefill"] is not None, row["request_s"]["mean"]


def _missing(search: ServerSearch, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each device that no server holds the targets on, and why."""
    found, held = [], {row["device"] for row in rows}
    most = f"at most {counted(search.max_device_count, 'device')}"
    for name in (catalog.device(site.device).name for site in search.sites):
        refused = [said for device, said in search.refused if device == name]
        if name in held:
            continue
        if name in search.alone:
            first, each = map(seconds, search.alone[name])
            found.append(
                f"{name}: no server of {most} holds the targets; "
                f"a request alone has its TTFT of {first} at best, and a TPOT of {each}"
            )
        else:
            rest = [said for said in refused if said != DOES_NOT_FIT]
            fits = "" if DOES_NOT_FIT not in refused else f"out of memory on {most}; "
            found.append(f"{name}: {fits}{'; '.join(rest[:1])}".removesuffix("; "))
    return found


def split_of(row: Mapping[str, Any]) -> str:
    """Return how a row's servers are split, in words."""
    of = row.get("prefill") and _split(row["prefill"])
    return f"{of} prefill, {_split(row['plan'])} decode" if of else _split(row["plan"])


def _split(plan: Mapping[str, int]) -> str:
    names = (f"{name} {n}" for name, n in plan.items() if n > 1 and name != "replicas")
    return f"{plan['replicas']} x {' '.join(names) or '1 device'}"


def sentence(told: Mapping[str, Any]) -> str:
    """Return the answer in a sentence: the cheapest server, the smallest, and apart or not."""
    best, fewest = told["best"], told["fewest"]
    if best is None:
        return "no server holds the targets"
    said = [f"{best['device_count']} {best['device']} ({split_of(best)})"]
    if cost := best["cost"]:
        said[0] += f", {cost['million_tokens']:,.2f} {cost['currency']} a million tokens"
    if fewest["device_count"] < best["device_count"]:
        said.append(f"fewest: {fewest['device_count']} {fewest['device']} ({split_of(fewest)})")
    rows = [row for row in reversed(told["rows"]) if row["device"] == best["device"]]
    ways = {row["arrangement"]: row for row in sorted(rows, key=lambda row: -row["device_count"])}
    if len(ways) == 2:
        less, more = sorted(ways, key=lambda way: ways[way]["device_count"])
        number, other = ways[less]["device_count"], ways[more]["device_count"]
        bound = ways[more]["bounded_by"]
        why = f" (with a replica less {bound} is late)" if bound and number < other else ""
        said.append(f"prompts and decoding {less} take {number}, {more} {other}{why}")
    return "; ".join(said)
