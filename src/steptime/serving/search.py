"""Which servers hold targets: every split of every device, each with as few replicas as do.

Each row is a service that one answer gives too: the same phases, pools and event loop.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import ceil, inf
from statistics import fmean
from typing import Any, NamedTuple

from steptime.core.errors import InputError
from steptime.core.table import picked
from steptime.hardware import catalog
from steptime.hardware.prices import Offer, cheapest, offers
from steptime.planning.request import Site, shape_of
from steptime.serving.answer import Service
from steptime.serving.load import (
    ATTAINED,
    COUNT,
    TRIED,
    Demand,
    link_of,
    pool_of,
    sent_by,
    summary,
)
from steptime.serving.phases import Phases
from steptime.serving.queueing import Load, Pool, at_once

MOST_DEVICES = 64  # of a service, where nobody says
MOST_SEARCHED = 4096
STAGES = (1, 2, 4)
STAYS = 8  # times that a request may take, in which requests come
FAR = 1.5  # times the fewest devices: what is expected to take more is not run
PLAN = "tensor pipeline data expert replicas"
DOES_NOT_FIT = "does not fit"
WORDS = {"ttft_s": "TTFT", "tpot_s": "TPOT"}
P90 = f"p{100 * ATTAINED:.0f}"


class Kind(NamedTuple):
    """A server: its service of one replica, phases and pool, what a request takes of it.

    Alone, a request has its first token after `first_s`, each other one after `each_s`; a `mean`
    one's prompt takes `reads_s` of the server.
    """

    service: Service
    phases: Phases
    pool: Pool
    mean: Service
    first_s: float
    each_s: float
    reads_s: float

    @property
    def device_count(self) -> int:
        """Devices of a replica."""
        return self.service.device_count


class Candidate(NamedTuple):
    """The fewest replicas of a kind that hold the targets, what requests see, and what bounds it.

    `first` are the kind and the replicas that read prompts, None where the others do.
    """

    kind: Kind
    replicas: int
    run: dict[str, Any]
    bounded_by: str
    first: tuple[Kind, int] | None = None

    @property
    def device_count(self) -> int:
        """Devices of all replicas."""
        apart = self.first[0].device_count * self.first[1] if self.first else 0
        return self.kind.device_count * self.replicas + apart


@dataclass
class ServerSearch:
    """A search for servers: `service` with its demand, on sites, of at most so many devices."""

    service: Service
    sites: Sequence[Site]
    max_device_count: int = MOST_DEVICES
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    alone: dict[str, tuple[float, float]] = field(default_factory=dict)
    candidates: int = 0
    runs: int = 0

    @cached_property
    def placed(self) -> list[Site]:
        """The sites with their devices, read once; raises `InputError` for an unknown one."""
        return [site._replace(device=catalog.device(site.device)) for site in self.sites]

    @cached_property
    def demand(self) -> Demand:
        """What is asked of the servers; raises `InputError` without arrivals and a target.

        Where nobody says how many requests, so many come that servers fill long before the end.
        """
        demand = self.service.demand or Demand()
        if not (demand.rate or demand.requests):
            raise InputError("serve: a search for targets needs --rate R or --requests FILE")
        if min(demand.ttft, demand.tpot) == inf:
            raise InputError("serve: a search holds --ttft S, --tpot S or both")
        if demand.draft or demand.prefill_replicas:
            raise InputError("serve: a search chooses --prefill-replicas, and has no --draft")
        if (split := picked(self.service, PLAN)) != dict.fromkeys(split, 1):
            name = next(name for name, number in split.items() if number != 1)
            raise InputError(f"serve: a search chooses the split: leave out --{name}")
        limits = demand.ttft, demand.tpot * self.service.output
        stays_s = sum(limit for limit in limits if limit < inf)
        enough = 0 if demand.requests else min(TRIED, ceil(STAYS * demand.rate * stays_s))
        return replace(demand, count=demand.count or (enough if enough > COUNT else 0))

    @cached_property
    def load(self) -> Load:
        """The requests."""
        return self.demand.load(self.service.input, self.service.output)

    @cached_property
    def rate(self) -> float:
        """Requests a second."""
        return self.demand.rate or len(self.load.inputs) / (self.load.arrivals_s[-1] or 1.0)

    @cached_property
    def offers(self) -> Mapping[str, Offer]:
        """The cheapest offers by device."""
        return cheapest(offers(self.service.prices))

    def kinds(self, site: Site) -> list[Kind]:
        """Return the servers of a site in which a request fits, of every split that can be."""
        inputs, outputs = max(zip(self.load.inputs, self.load.outputs, strict=True), key=sum)
        base = replace(self.service, site=site, input=inputs, output=outputs)
        tensors = [2**k for k in range(site.per_node.bit_length())]
        mixed = shape_of(base.model, trusted=base.trusted).experts
        shares = [2**k for k in range(self.max_device_count.bit_length() if mixed else 1)]
        found = []
        for tensor, pipeline, data in product(tensors, STAGES, shares):
            for expert in {1, data}:
                one = replace(base, tensor=tensor, pipeline=pipeline, data=data, expert=expert)
                if one.device_count <= self.max_device_count and (kind := self._kind(one)):
                    found.append(kind)
        return found

    def _kind(self, service: Service) -> Kind | None:
        """Return a server of a service, None where it cannot be or has no room for a request."""
        name = catalog.device(service.site.device).name
        try:
            phases = service.phases()
        except InputError as error:
            self.refused[name, str(error)] += 1
            return None
        pool = pool_of(phases, self.demand, self.load, 1, prefix=service.prefix)
        self.candidates += self.max_device_count // service.device_count
        if phases.room_bytes <= 0 or pool.blocks * pool.block < service.length:
            self.refused[name, DOES_NOT_FIT] += 1
            return None
        inputs, outputs = (max(1, round(fmean(some))) for some in self.load[:2])
        mean = replace(service, input=inputs, output=outputs)
        least = replace(service, input=min(self.load.inputs))
        first_s = least.read(phases, 1).seconds + phases.constant("prompt_s")
        each_s = phases.decode(1, least.input).seconds
        known = self.alone.get(name, (inf, inf))
        self.alone[name] = min(known[0], first_s), min(known[1], each_s)
        reads_s = mean.read(phases, service.data).seconds / service.data
        return Kind(service, phases, pool, mean, first_s, each_s, reads_s)

    def expected(self, kind: Kind, reads: bool, decodes: bool) -> int:
        """Return how many replicas a kind takes if all comes evenly, which a search begins at.

        A server reads prompts, and decodes as many sequences at once as its rate makes of them.
        """
        mean, pool = kind.mean, kind.pool
        room = min(pool.most, pool.blocks * pool.block // mean.length)

        def holds(number: int) -> bool:
            rate = self.rate / number
            busy = rate * kind.reads_s if reads else 0.0
            if decodes:
                many = max(1, int(min(room, rate * mean.output * self.demand.tpot)))
                tokens = round(many * (mean.input + mean.output / 2))
                busy += rate * mean.output / many * pool.pace.decode(many, tokens)[0]
            return busy <= 1

        return 1 + bisect_left(range(1, int(FAR * self.max_device_count) + 2), True, key=holds)

    def fewest(
        self, first: int, most: int, run: Callable[[int], dict[str, Any]]
    ) -> tuple[int, dict[str, Any], str] | None:
        """Return the fewest replicas that hold, their run, and what one fewer misses; None of none.

        More replicas hold what fewer do; tried are `first` ones to begin with.
        """
        runs: dict[int, dict[str, Any]] = {}

        def holds(number: int) -> bool:
            self.runs += 1
            runs[number] = run(number)
            return not self.missed(runs[number])

        low, high, step = 0, min(most, first), 1
        while not holds(high):
            if high == most:
                return None
            low, high, step = high, min(most, high + step), 2 * step
        step = 1
        while high - low > 1:
            number = max((low + high) // 2, high - step)
            if holds(number):
                high, step = number, 2 * step
            else:
                low = number
        return high, runs[high], self.missed(runs[low]) if low else ""

    def missed(self, run: Mapping[str, Any]) -> str:
        """Return what a run misses, "" where both targets hold for the share of requests."""
        for key, target in zip(WORDS, (self.demand.ttft, self.demand.tpot), strict=True):
            if run[key] is not None and run[key][P90] > target:
                return WORDS[key]
        return "the queue" if run["grows"] else ""

    def ordered(self, kinds: Iterable[Kind], reads: bool, decodes: bool) -> list[tuple[int, Kind]]:
        """Return the kinds that hold the targets alone, those of least devices first."""
        found = [
            (self.expected(kind, reads, decodes), kind)
            for kind in kinds
            if not (reads and kind.first_s > self.demand.ttft)
            and not (decodes and kind.each_s > self.demand.tpot)
        ]
        return sorted(found, key=lambda one: one[0] * one[1].device_count)

    def together(self, kinds: Sequence[Kind]) -> Iterator[Candidate]:
        """Yield servers that do both, each kind with the fewest replicas that hold."""
        best = self.max_device_count
        for number, kind in self.ordered(kinds, True, True):
            if number * kind.device_count > FAR * best:
                continue
            most = self.max_device_count // kind.device_count
            run = self._run(kind, self.load)
            result = self.fewest(number, most, run)
            if result:
                one = Candidate(kind, *result)
                yield one
                best = min(best, one.device_count)

    def apart(self, kinds: Sequence[Kind]) -> Iterator[Candidate]:
        """Yield servers that decode, each kind with the fewest of those that read prompts for it.

        What reads prompts waits for no decoding, so that it is chosen by itself, with what a
        request takes beside both. Where nothing is known to join servers there are none.
        """
        if kinds and link_of(kinds[0].service.site, kinds[0].phases.planner.device) is None:
            return
        readers: dict[int, tuple[Kind, int]] = {}
        ones = self.load._replace(outputs=[1] * len(self.load.inputs))
        for number, kind in self.ordered(kinds, True, False):
            known = readers.get(kind.service.pipeline)
            least = known[0].device_count * known[1] if known else self.max_device_count
            if number * kind.device_count > least:
                continue
            both = kind._replace(pool=kind.pool._replace(prompt_s=2 * kind.pool.prompt_s))
            result = self.fewest(
                number, self.max_device_count // kind.device_count, self._run(both, ones)
            )
            if result and (known is None or kind.device_count * result[0] < least):
                readers[kind.service.pipeline] = kind, result[0]
        best = self.max_device_count
        for number, kind in self.ordered(kinds, False, True):
            first = readers.get(kind.service.pipeline)
            if not first:
                continue
            left = (self.max_device_count - first[0].device_count * first[1]) // kind.device_count
            self.candidates += max(0, left) * first[1]
            if left < 1 or number * kind.device_count > FAR * best:
                continue
            result = self.fewest(number, left, self._run(kind, self.load, first))
            if result:
                one = Candidate(kind, *result, first)
                yield one
                best = min(best, kind.device_count * one.replicas)

    def _run(
        self, kind: Kind, load: Load, first: tuple[Kind, int] | None = None
    ) -> Callable[[int], dict[str, Any]]:
        """Return what runs so many replicas of a kind, behind the `first` that read prompts."""
        ahead: list[Pool] = []
        sent_s: Callable[[int], float] = at_once
        if first is not None:
            reader, many = first
            ahead = [reader.pool._replace(replicas=many)]
            sent_s = cache(sent_by(reader.phases, reader.service.site))

        def run(number: int) -> dict[str, Any]:
            pools = [*ahead, kind.pool._replace(replicas=number)]
            return summary(self.demand, load, pools, sent_s)

        return run
