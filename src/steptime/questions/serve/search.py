"""Which servers hold targets: every split of every device, each with as few replicas as do.

Each row is a service that one answer gives too: the same phases, pools and event loop.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import ceil, inf
from typing import Any, NamedTuple

from steptime.core.errors import InputError
from steptime.core.table import picked
from steptime.hardware import catalog
from steptime.questions.plan.request import Site, shape_of
from steptime.questions.serve.answer import Service, sent_over
from steptime.questions.serve.load import ATTAINED, Demand, pool_of, summary
from steptime.questions.serve.phases import Phases
from steptime.questions.serve.queueing import Load, Pool

MOST_DEVICES = 64  # of a service, where nobody says
MOST_SEARCHED = 4096
STAGES = (1, 2, 4)
FAR = 2.0  # times the fewest devices: what is expected to take more is not run
PLAN = "tensor pipeline data expert replicas"
DOES_NOT_FIT = "does not fit"
WORDS = {"ttft_s": "first token", "tpot_s": "each token"}
P90 = f"p{100 * ATTAINED:.0f}"


class Kind(NamedTuple):
    """A server: its service of one replica, phases and pool, what a request takes of it.

    Alone, a request has its first token after `first_s`, each other one after `each_s`; under load
    its prompt takes `reads_s` of the server, its other tokens `decodes_s`.
    """

    service: Service
    phases: Phases
    pool: Pool
    first_s: float
    each_s: float
    reads_s: float
    decodes_s: float

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.service.devices


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
    def devices(self) -> int:
        """Devices of all replicas."""
        apart = self.first[0].devices * self.first[1] if self.first else 0
        return self.kind.devices * self.replicas + apart


@dataclass
class Search:
    """A search for servers: `service` with its demand, on sites, of at most so many devices."""

    service: Service
    sites: Sequence[Site]
    max_devices: int = MOST_DEVICES
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    alone: dict[str, tuple[float, float]] = field(default_factory=dict)
    candidates: int = 0
    runs: int = 0

    @cached_property
    def demand(self) -> Demand:
        """What is asked of the servers; raises `InputError` without arrivals and a target."""
        demand = self.service.demand or Demand()
        if not (demand.rate or demand.requests):
            raise InputError("serve: a search for targets needs --rate R or --requests FILE")
        if min(demand.ttft_target, demand.tpot_target) == inf:
            raise InputError("serve: a search holds --ttft S, --tpot S or both")
        if demand.draft or demand.prefill_replicas:
            raise InputError("serve: a search chooses --prefill-replicas, and has no --draft")
        if (split := picked(self.service, PLAN)) != dict.fromkeys(split, 1):
            name = next(name for name, number in split.items() if number != 1)
            raise InputError(f"serve: a search chooses the split: leave out --{name}")
        return demand

    @cached_property
    def load(self) -> Load:
        """The requests."""
        return self.demand.load(self.service.input, self.service.output)

    @cached_property
    def rate(self) -> float:
        """Requests a second."""
        return self.demand.rate or len(self.load.inputs) / (self.load.arrivals_s[-1] or 1.0)

    def kinds(self, site: Site) -> list[Kind]:
        """Return the servers of a site in which a request fits, of every split that can be."""
        inputs, outputs = max(zip(self.load.inputs, self.load.outputs, strict=True), key=sum)
        base = replace(self.service, site=site, input=inputs, output=outputs)
        tensors = [2**k for k in range(site.per_node.bit_length())]
        mixed = shape_of(base.model, trusted=base.trusted).experts
        shares = [2**k for k in range(self.max_devices.bit_length() if mixed else 1)]
        found = []
        for tensor, pipeline, data in product(tensors, STAGES, shares):
            for expert in {1, data}:
                one = replace(base, tensor=tensor, pipeline=pipeline, data=data, expert=expert)
                if one.devices <= self.max_devices and (kind := self._kind(one)):
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
        self.candidates += self.max_devices // service.devices
        if phases.room_bytes <= 0 or pool.blocks * pool.block < service.length:
            self.refused[name, DOES_NOT_FIT] += 1
            return None
        count, ranks = len(self.load.inputs), service.data
        mean = replace(
            service,
            input=max(1, round(sum(self.load.inputs) / count)),
            output=max(1, round(sum(self.load.outputs) / count)),
        )
        least = replace(service, input=min(self.load.inputs))
        context = mean.input + mean.output / 2
        first_s = least.read(phases, 1).seconds + phases.constant("prompt_s")
        each_s = phases.decode(1, least.input).seconds
        fit = max(1, min(pool.most, pool.blocks * pool.block // mean.length))
        decodes_s = inf
        for batch in (2**k for k in range(fit.bit_length())):
            took_s = phases.decode(batch, context).seconds
            if took_s > self.demand.tpot_target:
                break
            decodes_s = mean.output * took_s / batch
        known = self.alone.get(name, (inf, inf))
        self.alone[name] = min(known[0], first_s), min(known[1], each_s)
        reads_s = mean.read(phases, ranks).seconds / ranks
        return Kind(service, phases, pool, first_s, each_s, reads_s, decodes_s)

    def fewest(
        self, work_s: float, most: int, run: Callable[[int], dict[str, Any]]
    ) -> tuple[int, dict[str, Any], str] | None:
        """Return the fewest replicas that hold, their run, and what one fewer misses; None of none.

        Of each replica `work_s` of a second are a request's, which is the first guess; more
        replicas hold what fewer do.
        """
        runs: dict[int, dict[str, Any]] = {}

        def holds(number: int) -> bool:
            self.runs += 1
            runs[number] = run(number)
            return not self.missed(runs[number])

        low, high, step = 0, min(most, max(1, ceil(self.rate * work_s))), 1
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
        for key, target in zip(
            WORDS, (self.demand.ttft_target, self.demand.tpot_target), strict=True
        ):
            if run[key] is not None and run[key][P90] > target:
                return WORDS[key]
        return "the queue" if run["grows"] else ""

    def together(self, kinds: Sequence[Kind]) -> Iterator[Candidate]:
        """Yield servers that do both, each kind with the fewest replicas that hold."""
        best: float = inf
        for kind in sorted(kinds, key=lambda one: self._expected(one, one.reads_s + one.decodes_s)):
            work_s, prompt_s = kind.reads_s + kind.decodes_s, kind.phases.constant("prompt_s")
            if self._slow(kind) or self._expected(kind, work_s) > FAR * min(best, self.max_devices):
                continue

            def run(number: int, kind: Kind = kind, prompt_s: float = prompt_s) -> dict[str, Any]:
                pools = [kind.pool._replace(replicas=number)]
                return summary(self.demand, self.load, pools, prompt_s)

            result = self.fewest(work_s, self.max_devices // kind.devices, run)
            if result is not None:
                yield (one := Candidate(kind, *result))
                best = min(best, one.devices)

    def apart(self, kinds: Sequence[Kind]) -> Iterator[Candidate]:
        """Yield servers that decode, each kind with the fewest of those that read prompts for it.

        What reads prompts waits for no decoding, so that it is chosen by itself.
        """
        readers: dict[int, tuple[Kind, int]] = {}
        ones = self.load._replace(outputs=[1] * len(self.load.inputs))
        for kind in sorted(kinds, key=lambda one: self._expected(one, one.reads_s)):
            stages, prompt_s = kind.service.pipeline, kind.phases.constant("prompt_s")
            known = readers.get(stages)
            least = known[0].devices * known[1] if known else self.max_devices
            if kind.first_s > self.demand.ttft_target or self._expected(kind, kind.reads_s) > least:
                continue

            def reads(number: int, kind: Kind = kind, prompt_s: float = prompt_s) -> dict[str, Any]:
                return summary(self.demand, ones, [kind.pool._replace(replicas=number)], prompt_s)

            result = self.fewest(kind.reads_s, self.max_devices // kind.devices, reads)
            if result and (known is None or kind.devices * result[0] < least):
                readers[stages] = kind, result[0]
        best: float = inf
        for kind in sorted(kinds, key=lambda one: self._expected(one, one.decodes_s)):
            first = readers.get(kind.service.pipeline)
            if first is None or kind.each_s > self.demand.tpot_target:
                continue
            left = (self.max_devices - first[0].devices * first[1]) // kind.devices
            self.candidates += max(0, left) * first[1]
            if left < 1 or self._expected(kind, kind.decodes_s) > FAR * min(best, self.max_devices):
                continue
            result = self.fewest(kind.decodes_s, left, self._decoding(kind, first))
            if result is not None:
                yield (one := Candidate(kind, *result, first))
                best = min(best, kind.devices * one.replicas)

    def _decoding(self, kind: Kind, first: tuple[Kind, int]) -> Callable[[int], dict[str, Any]]:
        """Return what runs so many replicas of a kind behind the `first` that read prompts."""
        reader, many = first
        joins = reader.phases.planner.method.joins(sent_over(reader.service.site))
        token_bytes = reader.phases.kv_token_bytes

        def run(number: int) -> dict[str, Any]:
            pools = [reader.pool._replace(replicas=many), kind.pool._replace(replicas=number)]
            prompt_s = kind.phases.constant("prompt_s")
            sent = cache(lambda tokens: joins.message_s(tokens * token_bytes))
            return summary(self.demand, self.load, pools, prompt_s, sent)

        return run

    def _slow(self, kind: Kind) -> bool:
        """Whether a request alone misses a target."""
        demand = self.demand
        return kind.first_s > demand.ttft_target or kind.each_s > demand.tpot_target

    def _expected(self, kind: Kind, work_s: float) -> float:
        """Return the devices that replicas of a kind take whose requests take them so long."""
        return inf if work_s == inf else kind.devices * max(1, ceil(self.rate * work_s))
