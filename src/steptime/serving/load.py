"""A service under load: its requests, and when they get their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import add
from statistics import fmean
from typing import NamedTuple

from numpy import percentile

from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.device import Device, Link
from steptime.planning.ranks.site import Site, find_node_link
from steptime.serving.demand import Demand, poisson_arrivals
from steptime.serving.pace import ServerPace
from steptime.serving.phases import Phases
from steptime.serving.queueing import Load, QueueRun, simulate, transfer_free
from steptime.serving.server import Pool, Server, count_cached_tokens

ATTAINED_SHARE = 0.9  # of requests in time, at a rate that a service stands (DistServe, OSDI 2024)
EDGE_SHARE = 0.1  # of open arrivals, at the begin and at the end: the servers fill and drain
GROWTH_SHARE = 0.05  # of the requests that come: a queue that grows by more has no end
GROWTH_REQUESTS = 10.0  # by which a queue may grow at least
MAX_RUNNING = 256  # default of --max-running-sequences, as of vLLM
LENGTH_SPREAD = 0.2  # of an answer's tokens, longest to shortest, of many users: as benchmarks ask
GOLDEN_RATIO = 0.6180339887498949  # its multiples fill an interval evenly, however many there are
RATE_TRIALS = 16  # until the highest rate is known to a thousandth
TRIAL_REQUESTS = 20_000  # requests at each rate, the first of the load
MAX_REPLICAS = 1000
MAX_EXACT_LENGTHS = 32  # lengths of prompts that are priced exactly
MAX_BLOCKS = 1e12  # finite where a token takes next to no memory
BLOCK_TOKENS = 16


class TimeSpread(NamedTuple):
    """Mean and percentiles of seconds over requests, linear between neighbours as numpy's."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True)
class LoadRun:
    """Times of requests, and the work of servers.

    Args:
        request_count: requests that were simulated.
        counted_requests: requests that the times and rates are of; of open arrivals those between
            filling and draining.
        duration_s: seconds until the last request ends.
        ttft: time to the first token.
        tpot: time per output token; None where requests have one token.
        request: time of a whole request.
        requests_per_s: throughput in requests.
        output_tokens_per_s: throughput in tokens.
        in_time_share: share of requests that hold the targets.
        busy_shares: share of the time in which the servers work, for each pool of replicas.
        running_sequences: mean number of sequences in a step.
        input_tokens: mean tokens of a prompt.
        output_tokens: mean tokens of an answer.
        cache_share: the largest share of the cache in use.
        preemptions: how often a request was preempted and computed again.
        queue_grows: whether more requests arrive than are served.
        highest_rate_per_s: the highest rate that meets the targets; None where none does, and
            where none was searched.
        device_count: devices of all pools.
        varied: the same load with answers of varied length, None where that is the same run.
    """

    request_count: int
    counted_requests: int
    duration_s: float
    ttft: TimeSpread
    tpot: TimeSpread | None
    request: TimeSpread
    requests_per_s: float
    output_tokens_per_s: float
    in_time_share: float
    busy_shares: tuple[float, ...]
    running_sequences: float
    input_tokens: float
    output_tokens: float
    cache_share: float
    preemptions: int
    queue_grows: bool
    highest_rate_per_s: float | None = None
    device_count: int = 0
    varied: LoadRun | None = None


def make_pool(
    phases: Phases,
    demand: Demand,
    load: Load,
    replicas: int,
    prefix: float = 0.0,
) -> Pool:
    """Return servers of the same kind that follow the rules of their software.

    Args:
        phases: seconds and bytes of a replica.
        demand: the limits of a replica.
        load: the requests.
        replicas: number of servers.
        prefix: share of each prompt that lies in the cache already.

    Raises:
        InputError: for too many replicas.
    """
    if replicas > MAX_REPLICAS:
        raise InputError(f"serve: {replicas:,} replicas under load, at most {MAX_REPLICAS:,}")
    prompt_lengths = set(load.inputs)
    # Prompts of which a part is cached already are read from there on.
    lengths = prompt_lengths | {
        tokens - count_cached_tokens(tokens, prefix) for tokens in prompt_lengths
    }
    # Few lengths are priced as they are, many are interpolated.
    exact_lengths = [*lengths] if len(lengths) <= MAX_EXACT_LENGTHS else []
    ranks = phases.plan.data
    max_running = default_max_running(demand, load, replicas, int(phases.limit("max_sequences")))
    rank_sequences = -(-max_running // ranks)
    state_bytes = phases.kv_bytes(0)  # of linear attention: the same at any number of tokens
    cache_bytes = phases.room_bytes - state_bytes * rank_sequences
    cache_tokens = max(0.0, cache_bytes * ranks / phases.kv_token_bytes)
    # 0: the stack has no limit, and that of a `Pool` holds.
    rank_step_tokens = int(phases.limit("chunk_tokens")) or Pool._field_defaults["step_tokens"]
    mean_tokens = round(fmean(load.inputs))
    uncached_tokens = mean_tokens - count_cached_tokens(mean_tokens, prefix)
    has_flag = phases.problem.rank.flag
    return Pool(
        pace=ServerPace(phases, exact_lengths, phases.guesses, ranks),
        max_running=max_running,
        block_count=int(min(cache_tokens, MAX_BLOCKS) // BLOCK_TOKENS),
        replicas=replicas,
        block_tokens=BLOCK_TOKENS,
        step_tokens=ranks * rank_step_tokens,
        mixes_prefill=phases.mixes_prefill,
        schedules_ahead=has_flag("ahead"),
        reserves_blocks=has_flag("reserves"),
        prefix_share=prefix,
        rank_count=ranks,
        prompt_overhead_s=phases.prompt_overhead_s(uncached_tokens),
    )


def default_max_running(demand: Demand, load: Load, replicas: int, software_max: int = 0) -> int:
    """Return the sequences that a replica runs at once.

    They are those of the demand; else its users, or 256, and no more than the software runs where
    nobody says otherwise (`software_max`, 0 where it has no limit).
    """
    if demand.max_running_sequences:
        return demand.max_running_sequences
    users_per_replica = -(-load.concurrency // replicas)
    if not users_per_replica:  # open arrivals: any number of users
        return software_max or MAX_RUNNING
    return min(users_per_replica, software_max) if software_max else users_per_replica


def vary_outputs(load: Load) -> Load:
    """Return a load in which answers of users are up to a tenth longer or shorter, in pairs.

    Without that, requests that begin in one step end in one step, and stay synchronised.
    """
    is_varied = len(set(load.outputs)) > 1
    is_shared = load.concurrency > 1  # a single user waits for nobody
    width = LENGTH_SPREAD if is_shared and not is_varied else 0.0
    outputs = []
    for k, tokens in enumerate(load.outputs):
        # Multiples of the golden ratio fill [0, 1) evenly. The second of a pair has the opposite
        # sign, so that the mean length stays.
        pair = k // 2
        sign = (-1) ** k
        offset = (pair * GOLDEN_RATIO % 1 - 0.5) * sign
        outputs.append(round(tokens * (1 + width * offset)))
    return load._replace(outputs=outputs)


def run_with_highest_rate(
    demand: Demand,
    load: Load,
    pools: Sequence[Pool],
    transfer_s: Callable[[int], float] = transfer_free,
) -> LoadRun:
    """Run the requests; with targets find the highest rate that meets them, by bisection."""
    run = run_requests(demand, load, pools, transfer_s)
    arrivals_s = load.arrivals_s or poisson_arrivals(1.0, len(load.inputs), demand.seed)
    arrival_span_s = arrivals_s[-1] or 1.0  # 0 if all requests come at once
    load_rate = demand.rate or len(arrivals_s) / arrival_span_s
    met_rate = 0.0  # the highest rate that met the targets
    missed_rate = inf  # the lowest rate that missed them
    rate = run.requests_per_s  # the search begins at the throughput of the load
    trial_count = RATE_TRIALS if demand.has_targets else 0
    for _ in range(trial_count):
        # The same requests at another rate: their arrivals are moved together.
        trial_arrivals_s = [time_s * load_rate / rate for time_s in arrivals_s[:TRIAL_REQUESTS]]
        trial_load = Load(
            load.inputs[:TRIAL_REQUESTS], load.outputs[:TRIAL_REQUESTS], trial_arrivals_s
        )
        trial = run_requests(demand, trial_load, pools, transfer_s)
        meets_targets = trial.in_time_share >= ATTAINED_SHARE
        if meets_targets and not trial.queue_grows:
            met_rate = rate
        else:
            missed_rate = rate
        # Doubles until a rate misses the targets, then bisects.
        rate = 2 * rate if missed_rate == inf else (met_rate + missed_rate) / 2
    return replace(run, highest_rate_per_s=met_rate or None)


def run_requests(
    demand: Demand,
    load: Load,
    pools: Sequence[Pool],
    transfer_s: Callable[[int], float] = transfer_free,
) -> LoadRun:
    """Run the requests and return their times; of open arrivals without filling and draining.

    The servers work on during the overhead of a request (`Pool.prompt_overhead_s`). If they read
    prompts beside decoding, answers of users vary in length (`vary_outputs`).
    """
    # Equal requests of a server that mixes prompts with decoding would stay synchronised.
    load = vary_outputs(load) if pools[-1].mixes_prefill else load
    run = simulate(load, pools, transfer_s)
    count = len(load.inputs)
    # With open arrivals the first and last requests, which find few others, are not counted.
    edge_count = 0 if load.concurrency else int(EDGE_SHARE * count)
    counted_requests = range(edge_count, count - edge_count)
    overhead_s = sum(pool.prompt_overhead_s for pool in pools)
    latencies = _latencies(load, run, counted_requests, overhead_s)
    tpot_s = latencies.tpot_s()
    duration_s = max(run.ends_s)
    rate = len(counted_requests) / _counted_span_s(run.ends_s, edge_count)
    decode_servers = run.pools[-1]
    return LoadRun(
        request_count=count,
        counted_requests=len(counted_requests),
        duration_s=duration_s,
        ttft=_spread_of(latencies.ttft_s),
        tpot=_spread_of(tpot_s) if tpot_s else None,
        request=_spread_of(list(map(add, latencies.ttft_s, latencies.decode_s))),
        requests_per_s=rate,
        output_tokens_per_s=rate * sum(load.outputs) / count,
        in_time_share=_in_time_share(
            demand, latencies.ttft_s, latencies.decode_s, latencies.decode_steps
        ),
        busy_shares=tuple(_busy_share(pool, duration_s) for pool in run.pools),
        running_sequences=_mean_running(decode_servers),
        input_tokens=sum(load.inputs) / count,
        output_tokens=sum(load.outputs) / count,
        cache_share=_cache_share(decode_servers),
        preemptions=sum(server.preemptions for pool in run.pools for server in pool),
        queue_grows=not load.concurrency and _does_queue_grow(run),
    )


class _Latencies(NamedTuple):
    """The latencies of requests, in their order.

    Attributes:
        ttft_s: from the arrival to the first token.
        decode_s: from the first token to the last one.
        decode_steps: the tokens after the first one.
    """

    ttft_s: list[float]
    decode_s: list[float]
    decode_steps: list[int]

    def tpot_s(self) -> list[float]:
        """Return the mean seconds of a token after the first, of requests that have such ones."""
        return [
            seconds / steps
            for seconds, steps in zip(self.decode_s, self.decode_steps, strict=True)
            if steps
        ]


def _latencies(load: Load, run: QueueRun, requests: Sequence[int], overhead_s: float) -> _Latencies:
    """Return the latencies of some requests of a run, given as indices."""
    ttft_s = []
    decode_s = []
    decode_steps = []
    for request in requests:
        wait_s = run.first_token_s[request] - run.arrivals_s[request]
        ttft_s.append(wait_s + overhead_s)
        decode_s.append(run.ends_s[request] - run.first_token_s[request])
        decode_steps.append(load.outputs[request] - 1)  # prefill gives the first token
    return _Latencies(ttft_s, decode_s, decode_steps)


def _counted_span_s(ends_s: Sequence[float], edge_count: int) -> float:
    """Return the seconds in which the requests end that are not cut off at either edge."""
    ascending_s = sorted(ends_s)
    start_s = ascending_s[edge_count - 1] if edge_count else 0.0
    span_s = ascending_s[len(ends_s) - edge_count - 1] - start_s
    return span_s or ascending_s[-1]  # all at once


def _in_time_share(
    demand: Demand, ttft_s: Sequence[float], decode_s: Sequence[float], steps: Sequence[int]
) -> float:
    """Return the share of requests that hold both targets."""
    late = sum(
        first_s > demand.ttft or time_s > n * demand.tpot
        for first_s, time_s, n in zip(ttft_s, decode_s, steps, strict=True)
    )
    return 1 - late / len(steps)


def _busy_share(servers: Sequence[Server], duration_s: float) -> float:
    return sum(server.busy_s for server in servers) / len(servers) / duration_s


def _cache_share(servers: Sequence[Server]) -> float:
    """Return the largest share of a cache that was in use."""
    return 1 - min(server.min_free_blocks / server.pool.block_count for server in servers)


def _mean_running(servers: Sequence[Server]) -> float:
    """Return the sequences of a step, weighted by its seconds."""
    busy_s = sum(server.busy_s for server in servers)
    return sum(server.sequence_s for server in servers) / (busy_s or 1.0)


def _does_queue_grow(run: QueueRun) -> bool:
    """Return whether more requests wait as the last one comes than halfway."""

    def count_waiting(time_s: float) -> int:
        waits = zip(run.arrivals_s, run.first_token_s, strict=True)
        return sum(arrival_s <= time_s < first_token_s for arrival_s, first_token_s in waits)

    count = len(run.arrivals_s)
    halfway_waiting = count_waiting(run.arrivals_s[count // 2])
    final_waiting = count_waiting(run.arrivals_s[-1])
    # Against the requests that come in the second half of the run.
    max_growth = max(GROWTH_REQUESTS, GROWTH_SHARE * count / 2)
    return final_waiting - halfway_waiting > max_growth


def _spread_of(times_s: Sequence[float]) -> TimeSpread:
    p50_s, p90_s, p99_s = (float(percentile(times_s, share)) for share in (50, 90, 99))
    return TimeSpread(fmean(times_s), p50_s, p90_s, p99_s)


def transfer_time(phases: Phases, site: Site) -> Callable[[int], float]:
    """Return the function from tokens to the seconds in which their cache goes to a server.

    Raises:
        InputError: where nothing joins servers.
    """
    link = server_link(site, phases.problem.device)
    if link is None:
        raise InputError("serve: --prefill-replicas send the cache on: --link LINK")
    method = phases.problem.method.join_devices(link)
    return lambda tokens: method.message_s(phases.kv_bytes(tokens))


def server_link(site: Site, device: Device) -> Link | None:
    """Return the link between servers: without an option the one that the device's file names."""
    name = site.link or site.inside
    return find_node_link(device) if name is None else catalog.link(name)
