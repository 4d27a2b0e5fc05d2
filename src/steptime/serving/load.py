"""A service under load: what it is asked, when requests get their tokens, how many in time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from numpy import percentile

from steptime.core.errors import InputError, shorten
from steptime.core.table_files import table_rows
from steptime.core.toml_files import shown
from steptime.core.values import parse_count, parse_number, parse_share
from steptime.hardware import catalog
from steptime.hardware.device import Device, Link
from steptime.planning.request import Site, own_link
from steptime.serving.pace import Paced
from steptime.serving.phases import Phases
from steptime.serving.queueing import Load, Pool, at_once, cached_of, simulate

ATTAINED = 0.9  # of requests in time, at a rate that a service stands (Zhong et al., OSDI 2024)
EDGE = 0.1  # of open arrivals, at the begin and at the end, that say nothing of what is between
GROWS = 0.05  # of the requests that come: a queue that grows by more has no end
MOST = 256  # sequences at once, where nobody says
VARIES = 0.2  # of an answer's tokens, longest to shortest, of many users: as benchmarks ask
GOLDEN = 0.6180339887498949  # whose multiples fill an interval evenly, however many there are
TRIES = 16  # rates, until the highest is known to a thousandth
TRIED = 20_000  # requests at each of them, the first ones
MOST_SERVERS = 1000
SOME = 32  # lengths of prompts that are priced each


def pool_of(
    phases: Phases,
    demand: Demand,
    load: Load,
    replicas: int,
    draft: Phases | None = None,
    prefix: float = 0.0,
) -> Pool:
    """Return the servers that phases make, by the rules of their software.

    Of each prompt the share `prefix` lies in the cache already.
    """
    if replicas > MOST_SERVERS:
        raise InputError(f"serve: {replicas:,} replicas under load, at most {MOST_SERVERS:,}")
    room, each, lengths = phases.room_bytes, phases.kv_token_bytes, set(load.inputs)
    if draft is not None:
        room, each = room - draft.weight_bytes, each + draft.kv_token_bytes
    lengths |= {tokens - cached_of(tokens, prefix) for tokens in lengths}
    exact = [*lengths] if len(lengths) <= SOME else []
    ranks = phases.plan.data
    pace = Paced(phases, exact, draft, demand.speculate, demand.accept, ranks)
    most = demand.max_running_sequences or -(-load.concurrency // replicas) or MOST
    room -= phases.kv_bytes(0) * -(-most // phases.plan.data)
    blocks = int(min(max(0.0, room * phases.plan.data / each), 1e12) // 16)
    budget = int(phases.constant("chunk_tokens")) or Pool._field_defaults["budget"]
    mixes, ahead, reserves = map(phases.planner.flag, ("mixes", "ahead", "reserves"))
    rules = ranks * budget, mixes, ahead, reserves, prefix, ranks, phases.constant("prompt_s")
    return Pool(pace, most, blocks, replicas, 16, *rules)


def varied(load: Load) -> Load:
    """Return the requests of users whose answers are up to a tenth longer or shorter, in pairs.

    Equal ones that begin in one step end in one step, and wait for each other ever after.
    """
    width = VARIES if load.concurrency > 1 else 0.0  # else nobody waits for another
    more = (1 + width * (k // 2 * GOLDEN % 1 - 0.5) * (-1) ** k for k in range(len(load.outputs)))
    return load._replace(outputs=[round(n * by) for n, by in zip(load.outputs, more, strict=True)])


def under_load(
    demand: Demand, load: Load, pools: Sequence[Pool], sent_s: Callable[[int], float] = at_once
) -> dict[str, Any]:
    """Return times and rates of requests; with targets the highest rate that meets them."""
    told = summary(demand, load, pools, sent_s)
    times = load.arrivals_s or by_chance(1.0, len(load.inputs), demand.seed)
    base = demand.rate or len(times) / (times[-1] or 1.0)
    low, high, rate = 0.0, inf, told["requests_per_s"]
    for _ in range(TRIES if min(demand.ttft, demand.tpot) < inf else 0):
        arrivals = [time * base / rate for time in times[:TRIED]]
        other = Load(load.inputs[:TRIED], load.outputs[:TRIED], arrivals)
        found = summary(demand, other, pools, sent_s)
        stands = found["in_time"] >= ATTAINED and not found["grows"]
        low, high = (rate, high) if stands else (low, rate)
        rate = 2 * rate if high == inf else (low + high) / 2
    told["highest_rate_per_s"] = low or None
    return told


def summary(
    demand: Demand, load: Load, pools: Sequence[Pool], sent_s: Callable[[int], float] = at_once
) -> dict[str, Any]:
    """Return what a run says of its requests; of open arrivals without filling and draining.

    While a request is beside the pools (`Pool.prompt_s`), they work on. Where they read prompts
    beside decoding, answers of users vary in length (`varied`).
    """
    load = varied(load) if pools[-1].mixed else load
    run, count = simulate(load, pools, sent_s), len(load.inputs)
    edge = 0 if load.concurrency else int(EDGE * count)
    beside_s = sum(pool.prompt_s for pool in pools)
    steady = range(edge, count - edge)
    ttft = [run.first_s[r] - run.came_s[r] + beside_s for r in steady]
    rest = [run.ended_s[r] - run.first_s[r] for r in steady]
    after = [load.outputs[r] - 1 for r in steady]
    tpot = [b / n for b, n in zip(rest, after, strict=True) if n]
    late = sum(
        a > demand.ttft or b > n * demand.tpot for a, b, n in zip(ttft, rest, after, strict=True)
    )
    in_time = 1 - late / len(steady)
    ends = sorted(run.ended_s)
    rate = len(steady) / (ends[count - edge - 1] - (ends[edge - 1] if edge else 0.0) or ends[-1])
    waiting = [
        sum(a <= t < f for a, f in zip(run.came_s, run.first_s, strict=True))
        for t in (run.came_s[count // 2], run.came_s[-1])
    ]
    servers = run.pools[-1]
    return {
        "requests": count,
        "counted": len(steady),
        "took_s": ends[-1],
        "ttft_s": _spread(ttft),
        "tpot_s": _spread(tpot),
        "request_s": _spread([a + b for a, b in zip(ttft, rest, strict=True)]),
        "requests_per_s": rate,
        "output_tokens_per_s": rate * sum(load.outputs) / count,
        "in_time": in_time,
        "goodput_per_s": rate * in_time,
        "busy": [sum(s.busy_s for s in pool) / len(pool) / ends[-1] for pool in run.pools],
        "running_sequences": sum(s.batch_s for s in servers)
        / (sum(s.busy_s for s in servers) or 1.0),
        "input": sum(load.inputs) / count,
        "output": sum(load.outputs) / count,
        "cache": 1 - min(s.least_free / s.pool.blocks for s in servers),
        "sent_back": sum(s.sent_back for pool in run.pools for s in pool),
        "grows": not load.concurrency and waiting[1] - waiting[0] > max(10.0, GROWS * count / 2),
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Return the mean and percentiles, linear between neighbours as numpy's; None of no values."""
    if not values:
        return None
    return {"mean": fmean(values)} | {f"p{n}": float(percentile(values, n)) for n in (50, 90, 99)}


MOST_REQUESTS = 200_000
MOST_TOKENS = 10_000_000  # of a prompt, and of an answer
MOST_S = 1e9
MOST_GUESSES = 64
ROUNDS, COUNT = 10, 1000  # requests of a user, and of all, where nobody says
COLUMNS = {  # of traces: when, tokens in and out; and the seconds of a unit of the first
    ("arrival_s", "input_tokens", "output_tokens"): 1.0,
    ("timestamp", "input_length", "output_length"): 1e-3,  # Mooncake (Qin et al., FAST 2025)
}
PREFILL = {f"prefill_{name}": name for name in ("tensor", "data", "expert")}
READ: dict[str, Callable[[Any, str], Any]] = {  # options that are no whole numbers from 1
    **dict.fromkeys(("rate", "ttft", "tpot"), parse_number),
    "accept": lambda value, where: parse_share(str(value), where),
    "seed": lambda value, where: parse_count(value, where, 0),
    "requests": lambda value, _: Path(value),
    "draft": lambda value, _: str(value),
}


@dataclass(frozen=True)
class Demand:
    """What a service is asked, in how many seconds, and how it is run for that.

    Requests come `concurrency` at once (the next as one ends), at a `rate` a second by chance, or
    as a file tells. `prefill_replicas` read prompts and send the cache to the others, split as
    `prefill_tensor`, `prefill_data` and `prefill_expert` say where they are split otherwise. A
    `draft` network guesses `speculate` tokens a step, each right with the chance `accept`.
    """

    concurrency: int = 0
    rate: float = 0.0
    requests: Path | None = None
    count: int = 0
    seed: int = 0
    ttft: float = inf
    tpot: float = inf
    max_running_sequences: int = 0
    prefill_replicas: int = 0
    prefill_tensor: int = 0
    prefill_data: int = 0
    prefill_expert: int = 0
    draft: str = ""
    speculate: int = 0
    accept: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Demand | None:
        """Return what options ask, None where none is given; raises `InputError`."""
        texts = {name: value for name, value in given.items() if value is not None}
        found = cls(**{
            name: READ.get(name, parse_count)(value, "--" + name.replace("_", "-"))
            for name, value in texts.items()
        })  # fmt: skip
        if not texts.keys() - {"ttft", "tpot"}:
            return None
        if sum(map(bool, (found.concurrency, found.rate, found.requests))) != 1:
            raise InputError("serve: requests come by one of --concurrency, --rate and --requests")
        guesses = [bool(found.draft), 0 < found.speculate <= MOST_GUESSES, 0 < found.accept <= 1]
        if texts.keys() & {"draft", "speculate", "accept"} and not all(guesses):
            raise InputError("serve: --draft MODEL, --speculate Q (1..64), --accept W (0..1): all")
        by_chance = found.rate or min(found.ttft, found.tpot) < inf
        if found.seed and (found.requests or not by_chance):
            raise InputError("serve: --seed goes with --rate; nearest: leave out --seed")
        split = [name for name in PREFILL if getattr(found, name)]
        if split and not found.prefill_replicas:
            raise InputError(f"serve: --{split[0].replace('_', '-')} goes with --prefill-replicas")
        return found

    def load(self, inputs: int, outputs: int) -> Load:
        """Return the requests, of so many tokens where no file says; raises `InputError`."""
        if self.requests is not None:
            found, most = trace(self.requests), self.count or None
            return Load(found.inputs[:most], found.outputs[:most], found.arrivals_s[:most])
        count = self.count or ROUNDS * self.concurrency or COUNT
        if count > MOST_REQUESTS:
            raise InputError(f"serve: {count:,} requests, at most {MOST_REQUESTS:,}: --count N")
        times = by_chance(self.rate, count, self.seed) if self.rate else []
        return Load([inputs] * count, [outputs] * count, times, self.concurrency)


def by_chance(rate: float, count: int, seed: int) -> list[float]:
    """Return when so many requests of a Poisson process come, `rate` a second."""
    draw = random.Random(seed)  # noqa: S311  # no secret
    return [time / rate for time in accumulate(draw.expovariate(1.0) for _ in range(count))]


def trace(path: Path) -> Load:
    """Return the requests of a CSV or JSON lines file, the first at 0; raises `InputError`."""
    found: list[tuple[float, int, int]] = []
    for number, row in table_rows(path):
        where = f"{shown(path)}:{number}"
        names = next((some for some in COLUMNS if row.keys() >= set(some)), None)
        if names is None:
            wanted = ", ".join(next(iter(COLUMNS)))
            raise InputError(f"{where}: a request has {wanted}, not {shorten(', '.join(row))}")
        time = row[names[0]]
        if not (type(time) in {int, float} and 0 <= time <= MOST_S / COLUMNS[names]):
            raise InputError(f"{where}: {names[0]}: from 0 to 1e9 s, not {shorten(time)}")
        tokens = [parse_count(row[n], f"{where}: {n}", 1, MOST_TOKENS) for n in names[1:]]
        found.append((time * COLUMNS[names], tokens[0], tokens[1]))
        if len(found) > MOST_REQUESTS:
            raise InputError(f"{where}: more than {MOST_REQUESTS:,} requests")
    if not found:
        raise InputError(f"{shown(path)}: holds no requests")
    times, inputs, outputs = zip(*sorted(found, key=lambda one: one[0]), strict=True)
    return Load(inputs, outputs, [time - times[0] for time in times])


def sent_by(phases: Phases, site: Site) -> Callable[[int], float]:
    """Return what gives the seconds that the cache of so many tokens is under way to a server.

    Raises `InputError` where nothing joins servers.
    """
    link = link_of(site, phases.planner.device)
    if link is None:
        raise InputError("serve: --prefill-replicas send the cache on: --link LINK")
    joins = phases.planner.method.joins(link)
    return lambda tokens: joins.message_s(phases.kv_bytes(tokens))


def link_of(site: Site, device: Device) -> Link | None:
    """Return what joins servers: where nobody says it, what the device's file names for a node."""
    name = site.link or site.inside
    return own_link(device) if name is None else catalog.link(name)
