"""Search for servers that hold targets: each split of a device with the fewest replicas.

Each candidate is a service that `serve` answers too: the same phases, pools and event loop.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from math import ceil, inf
from statistics import fmean
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.prices import Offer, cheapest, read_offers
from steptime.planning.plan_space import powers_of_two
from steptime.planning.ranks.language_model import read_language_model
from steptime.planning.ranks.site import Site
from steptime.serving.demand import DEFAULT_REQUESTS, Demand
from steptime.serving.load import (
    TRIAL_REQUESTS,
    LoadRun,
    make_pool,
    run_requests,
    server_link,
    transfer_time,
)
from steptime.serving.phases import Phases
from steptime.serving.queueing import Load, transfer_free
from steptime.serving.server import Pool
from steptime.serving.service import Service

DEFAULT_MAX_DEVICES = 64  # of a service without --max-device-count
MAX_SEARCHED_DEVICES = 4096
STAGES = (1, 2, 4)
FILLING_TIMES = 8  # how many times the duration of a request the requests come
MAX_EXCESS = 1.5  # times the fewest devices: a kind that is expected to take more is not run
DOES_NOT_FIT = "does not fit"


class ServiceKind(NamedTuple):
    """A server with one replica, and the times of a request that is alone in it.

    `ttft_s` and `tpot_s` are those of the shortest request alone; `mean` is the service with
    requests of mean length, whose prompt takes `prompt_s` of the server.
    """

    service: Service
    phases: Phases
    pool: Pool
    mean_service: Service
    ttft_s: float
    tpot_s: float
    prompt_s: float

    @property
    def device_count(self) -> int:
        """Devices of a replica."""
        return self.service.device_count


class Readers(NamedTuple):
    """Replicas of a kind that read prompts and send the cache to other servers."""

    kind: ServiceKind
    replicas: int

    @property
    def device_count(self) -> int:
        """Devices of all replicas."""
        return self.kind.device_count * self.replicas


class Candidate(NamedTuple):
    """The fewest replicas of a kind that hold the targets.

    `bounded_by` is the target that one replica fewer misses, "" for a single replica. `readers`
    read the prompts; None where the replicas themselves do.
    """

    kind: ServiceKind
    replicas: int
    run: LoadRun
    bounded_by: str
    readers: Readers | None = None

    @property
    def device_count(self) -> int:
        """Devices of all replicas."""
        reading = self.readers.device_count if self.readers else 0
        return self.kind.device_count * self.replicas + reading


RunReplicas = Callable[[int], LoadRun]


class FewestReplicas(NamedTuple):
    """The fewest replicas that hold the targets.

    Attributes:
        replicas: their number.
        run: their run.
        bounded_by: the target that one replica fewer misses, "" for a single one.
    """

    replicas: int
    run: LoadRun
    bounded_by: str


@dataclass
class ServerSearch:
    """A search for servers of a service with its demand, on sites.

    Args:
        service: the service; the search chooses its split.
        sites: devices and their links.
        max_device_count: devices of a candidate at most.
        refusal_counts: how often a device was refused, by its name and the reason.
        isolated_times_s: the lowest TTFT and TPOT of a request alone, by device.
        candidate_count: servers that the search considers.
        run_count: simulations of servers: of the search, of the front and of relaxed limits.
    """

    service: Service
    sites: Sequence[Site]
    max_device_count: int = DEFAULT_MAX_DEVICES
    refusal_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    isolated_times_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    candidate_count: int = 0
    run_count: int = 0

    @cached_property
    def resolved_sites(self) -> list[Site]:
        """The sites with their devices, read once; raises `InputError` for an unknown one."""
        return [site._replace(device=catalog.device(site.device)) for site in self.sites]

    @cached_property
    def demand(self) -> Demand:
        """The demand; raises `InputError` without arrivals and a target.

        Without a number of requests, so many come that servers fill long before the end.
        """
        demand = self.service.demand or Demand()
        if not (demand.rate or demand.requests):
            raise InputError("serve: a search for targets needs --rate R or --requests FILE")
        if not demand.has_targets:
            raise InputError("serve: a search holds --ttft S, --tpot S or both")
        if self.service.speculation is not None or demand.prefill_replicas:
            raise InputError("serve: a search chooses --prefill-replicas, and has no --draft")
        for name, ranks in self.service.split.items():
            if ranks != 1:
                raise InputError(f"serve: a search chooses the split: leave out --{name}")
        if demand.count or demand.requests:
            return demand
        # Servers fill within some times the seconds that a request may take.
        limits_s = demand.ttft, demand.tpot * self.service.output
        request_s = sum(limit_s for limit_s in limits_s if limit_s < inf)
        filling_count = min(TRIAL_REQUESTS, ceil(FILLING_TIMES * demand.rate * request_s))
        return replace(demand, count=filling_count) if filling_count > DEFAULT_REQUESTS else demand

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
        return cheapest(read_offers(self.service.prices))

    def list_kinds(self, site: Site) -> list[ServiceKind]:
        """Return the servers of a site in which a request fits, one of every possible split."""
        # The longest request must fit.
        inputs, outputs = max(zip(self.load.inputs, self.load.outputs, strict=True), key=sum)
        base = replace(self.service, site=site, input=inputs, output=outputs)
        has_experts = read_language_model(base.model, trusted=base.trusted).experts
        tensor_ranks = powers_of_two(site.per_node)
        # Data ranks of one server share out experts; without experts each is a server of its own.
        data_ranks = powers_of_two(self.max_device_count) if has_experts else [1]
        kinds: list[ServiceKind] = []
        for tensor, pipeline, data in product(tensor_ranks, STAGES, data_ranks):
            if tensor * pipeline * data > self.max_device_count:
                continue
            for expert in {1, data}:  # experts on each rank, or shared by all
                service = replace(base, tensor=tensor, pipeline=pipeline, data=data, expert=expert)
                kind = self._make_kind(service)
                if kind:
                    kinds.append(kind)
        return kinds

    def _make_kind(self, service: Service) -> ServiceKind | None:
        """Return a server of a service, None where it cannot be or has no room for a request."""
        name = catalog.device(service.site.device).name
        try:
            phases = service.phases()
        except InputError as error:
            self.refusal_counts[name, str(error)] += 1
            return None
        pool = make_pool(phases, self.demand, self.load, replicas=1, prefix=service.prefix)
        self.candidate_count += self.max_device_count // service.device_count
        if phases.room_bytes <= 0 or pool.cache_tokens < service.length:
            self.refusal_counts[name, DOES_NOT_FIT] += 1
            return None
        mean_service = replace(
            service,
            input=max(1, round(fmean(self.load.inputs))),
            output=max(1, round(fmean(self.load.outputs))),
        )
        # The shortest request alone: no request under load is quicker.
        shortest_service = replace(service, input=min(self.load.inputs))
        overhead_s = phases.prompt_overhead_s(shortest_service.uncached_tokens)
        ttft_s = shortest_service.price_prompts(phases, sequences=1).seconds + overhead_s
        tpot_s = phases.price_decode(1, shortest_service.input).seconds
        best_ttft_s, best_tpot_s = self.isolated_times_s.get(name, (inf, inf))
        self.isolated_times_s[name] = min(best_ttft_s, ttft_s), min(best_tpot_s, tpot_s)
        prompt_s = mean_service.price_prompts(phases, service.data).seconds / service.data
        return ServiceKind(service, phases, pool, mean_service, ttft_s, tpot_s, prompt_s)

    def estimate_replicas(self, kind: ServiceKind, reads: bool, decodes: bool) -> int:
        """Estimate the replicas of a kind for requests that come evenly.

        A server reads prompts, and decodes as many sequences at once as its rate makes of them.
        """
        mean_service = kind.mean_service
        pool = kind.pool
        max_sequences = min(pool.max_running, pool.cache_tokens // mean_service.length)

        def holds(replicas: int) -> bool:
            rate = self.rate / replicas
            busy_share = rate * kind.prompt_s if reads else 0.0
            if decodes:
                tokens_per_s = rate * mean_service.output
                # Little's law: the tokens of a second, times the longest step for one.
                sequences = max(1, int(min(max_sequences, tokens_per_s * self.demand.tpot)))
                tokens = round(sequences * (mean_service.input + mean_service.output / 2))
                step_s, *_ = pool.pace.decode_steps(sequences, tokens)
                busy_share += tokens_per_s / sequences * step_s
            return busy_share <= 1

        # The first of 1, 2, ... that holds, as all larger ones do; `largest + 2` if none does.
        largest = int(MAX_EXCESS * self.max_device_count)
        return 1 + bisect_left(range(1, largest + 2), True, key=holds)

    def find_fewest_replicas(
        self, first: int, largest: int, run: RunReplicas
    ) -> FewestReplicas | None:
        """Find the fewest replicas that hold the targets; None if the largest number does not.

        A larger number holds all that a smaller one does, so the search doubles its step from
        `first` on and then bisects.
        """
        runs: dict[int, LoadRun] = {}

        def holds(replicas: int) -> bool:
            self.run_count += 1
            runs[replicas] = run(replicas)
            return not self.missed_target(runs[replicas])

        too_few = 0  # the largest number that holds no targets
        enough = min(largest, first)
        step = 1
        while not holds(enough):
            if enough == largest:
                return None
            too_few = enough
            enough = min(largest, enough + step)
            step *= 2
        step = 1
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            # The first guess is near, so that steps down double, too, until they reach the middle.
            replicas = max(middle, enough - step)
            if holds(replicas):
                enough = replicas
                step *= 2
            else:
                too_few = replicas
        missed = self.missed_target(runs[too_few]) if too_few else ""
        return FewestReplicas(enough, runs[enough], missed)

    def missed_target(self, run: LoadRun) -> str:
        """Return the target that a run misses, "" where 90 % of requests hold both."""
        if run.ttft.p90_s > self.demand.ttft:
            return "TTFT"
        if run.tpot is not None and run.tpot.p90_s > self.demand.tpot:
            return "TPOT"
        return "the queue" if run.queue_grows else ""

    def order_kinds(
        self, kinds: Iterable[ServiceKind], reads: bool, decodes: bool
    ) -> list[tuple[int, ServiceKind]]:
        """Return the kinds that hold the targets for a request alone, with estimated replicas.

        The kinds with the fewest estimated devices come first.
        """
        estimates = []
        for kind in kinds:
            reads_too_slowly = reads and kind.ttft_s > self.demand.ttft
            decodes_too_slowly = decodes and kind.tpot_s > self.demand.tpot
            if not reads_too_slowly and not decodes_too_slowly:
                estimates.append((self.estimate_replicas(kind, reads, decodes), kind))

        def count_devices(estimate: tuple[int, ServiceKind]) -> int:
            replicas, kind = estimate
            return replicas * kind.device_count

        return sorted(estimates, key=count_devices)

    def find_colocated(self, kinds: Sequence[ServiceKind]) -> Iterator[Candidate]:
        """Yield servers that read prompts and decode, each kind with the fewest replicas."""
        fewest_devices = self.max_device_count
        for estimate, kind in self.order_kinds(kinds, reads=True, decodes=True):
            is_promising = estimate * kind.device_count <= MAX_EXCESS * fewest_devices
            if not is_promising:
                continue
            max_replicas = self.max_device_count // kind.device_count
            fewest = self.find_fewest_replicas(
                estimate, max_replicas, self._runner(kind, self.load)
            )
            if fewest:
                candidate = Candidate(kind, fewest.replicas, fewest.run, fewest.bounded_by)
                yield candidate
                fewest_devices = min(fewest_devices, candidate.device_count)

    def find_disaggregated(self, kinds: Sequence[ServiceKind]) -> Iterator[Candidate]:
        """Yield servers that only decode, each kind with the fewest servers that read prompts.

        Where nothing is known to join servers there are none.
        """
        if not kinds or server_link(kinds[0].service.site, kinds[0].phases.problem.device) is None:
            return
        readers_by_stages = self._find_readers(kinds)
        fewest_devices = self.max_device_count
        for estimate, kind in self.order_kinds(kinds, reads=False, decodes=True):
            readers = readers_by_stages.get(kind.service.pipeline)  # caches go stage to stage
            if not readers:
                continue
            free_devices = self.max_device_count - readers.device_count
            max_replicas = free_devices // kind.device_count
            self.candidate_count += max(0, max_replicas) * readers.replicas
            is_promising = estimate * kind.device_count <= MAX_EXCESS * fewest_devices
            if max_replicas < 1 or not is_promising:
                continue
            run_servers = self._runner(kind, self.load, readers)
            fewest = self.find_fewest_replicas(estimate, max_replicas, run_servers)
            if fewest:
                candidate = Candidate(kind, fewest.replicas, fewest.run, fewest.bounded_by, readers)
                yield candidate
                fewest_devices = min(fewest_devices, kind.device_count * candidate.replicas)

    def _find_readers(self, kinds: Sequence[ServiceKind]) -> dict[int, Readers]:
        """Return the servers with the fewest devices that read all prompts in time, by stages.

        Reading waits for no decoding, so these servers are chosen before those that decode. A
        request takes the overhead of both.
        """
        readers: dict[int, Readers] = {}
        # Over with the first token.
        prompts = self.load._replace(outputs=[1] * len(self.load.inputs))
        for estimate, kind in self.order_kinds(kinds, reads=True, decodes=False):
            stages = kind.service.pipeline
            best = readers.get(stages)
            best_devices = best.device_count if best else self.max_device_count
            if estimate * kind.device_count > best_devices:
                continue
            # A run adds up overheads of pools: the decoding pool, here missing, has the same one.
            pool = kind.pool._replace(prompt_overhead_s=2 * kind.pool.prompt_overhead_s)
            run_readers = self._runner(kind._replace(pool=pool), prompts)
            max_replicas = self.max_device_count // kind.device_count
            fewest = self.find_fewest_replicas(estimate, max_replicas, run_readers)
            if fewest is None:
                continue
            if best is None or kind.device_count * fewest.replicas < best_devices:
                readers[stages] = Readers(kind, fewest.replicas)
        return readers

    def _runner(self, kind: ServiceKind, load: Load, readers: Readers | None = None) -> RunReplicas:
        """Return the function that runs so many replicas of a kind, behind the readers."""
        reader_pools: list[Pool] = []
        transfer_s: Callable[[int], float] = transfer_free
        if readers is not None:
            reader = readers.kind
            reader_pools = [reader.pool._replace(replicas=readers.replicas)]
            transfer_s = cache(transfer_time(reader.phases, reader.service.site))

        def run(replicas: int) -> LoadRun:
            pools = [*reader_pools, kind.pool._replace(replicas=replicas)]
            return run_requests(self.demand, load, pools, transfer_s)

        return run
