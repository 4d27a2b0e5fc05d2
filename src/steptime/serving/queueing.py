"""Requests that wait for servers: an event loop over the steps of continuous batching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.progress import report_progress
from steptime.serving.server import Pool, Server

MAX_EVENTS = 20_000_000
PROGRESS_REQUESTS = 5_000  # requests between two lines of progress
ARRIVAL, STEPS_END, STEPS_START = range(3)  # kinds of events, in their order at one time


class Load(NamedTuple):
    """The requests of a run.

    Attributes:
        inputs: prompt tokens by request.
        outputs: output tokens by request.
        arrivals_s: arrival times; unused with a concurrency.
        concurrency: requests at once, the next of which arrives as one ends; 0 for arrival times.
    """

    inputs: Sequence[int]
    outputs: Sequence[int]
    arrivals_s: Sequence[float] = ()
    concurrency: int = 0


class QueueRun(NamedTuple):
    """Times of requests, and the servers at the end.

    Attributes:
        arrivals_s: arrival by request.
        first_token_s: time of the first token by request.
        ends_s: end by request.
        pools: servers by pool.
    """

    arrivals_s: list[float]
    first_token_s: list[float]
    ends_s: list[float]
    pools: list[list[Server]]


class _Event(NamedTuple):
    """An event; those of one time are sorted by kind, then by number."""

    time_s: float
    kind: int
    number: int  # of the request that arrives, or of the server
    pool: int = 0  # that a request arrives at


class _EventLoop:
    """The events of a load at one pool of servers, or at one of prefill and one of decoding."""

    def __init__(
        self, load: Load, pools: Sequence[Pool], transfer_s: Callable[[int], float]
    ) -> None:
        count = len(load.inputs)
        outputs_by_pool = [load.outputs]
        is_disaggregated = len(pools) > 1
        if is_disaggregated:  # the servers that read prompts end with the first token
            first_tokens = [1] * count
            outputs_by_pool = [first_tokens, load.outputs]
        self.load = load
        self.transfer_s = transfer_s
        self.pools = [
            [Server(pool, load.inputs, outputs) for _ in range(pool.replicas)]
            for pool, outputs in zip(pools, outputs_by_pool, strict=True)
        ]
        self.servers = [server for servers in self.pools for server in servers]
        # Users send their first requests at once, and each further one as their last one ends.
        arrivals_s = [0.0] * count if load.concurrency else [*load.arrivals_s]
        self.run = QueueRun(
            arrivals_s, first_token_s=[0.0] * count, ends_s=[0.0] * count, pools=self.pools
        )
        self.arrived_count = min(load.concurrency or count, count)
        self.ended_count = 0
        self.events = [
            _Event(arrivals_s[request], ARRIVAL, request) for request in range(self.arrived_count)
        ]
        heapify(self.events)

    def handle_arrival(self, event: _Event) -> None:
        """Send a request to the server with the fewest requests of its pool."""
        server = min(self.pools[event.pool], key=len)  # the one with the fewest requests
        is_decode_pool = event.pool == 1  # the cache comes from pool 0, which read the prompt
        if is_decode_pool:
            server.cached_requests.add(event.number)
        ends_earlier = server.add_request(event.number, event.time_s)
        if ends_earlier:
            self._push(server.end_s, STEPS_END, self.servers.index(server))
        elif server.end_s == inf:  # an idle server chooses its steps now
            self._push(event.time_s, STEPS_START, self.servers.index(server))

    def start_steps(self, event: _Event) -> None:
        """Start the next steps of an idle server."""
        server = self.servers[event.number]
        is_busy = server.end_s < inf  # an earlier event of the same time has started it
        if is_busy:
            return
        server.start_steps(event.time_s)
        has_work = server.end_s < inf
        if has_work:
            self._push(server.end_s, STEPS_END, event.number)

    def finish_steps(self, event: _Event) -> None:
        """End the steps of a server, unless their end has moved since the event was made."""
        server = self.servers[event.number]
        has_moved = server.end_s != event.time_s  # a request came, for which steps end earlier
        if has_moved:
            return
        # At one time STEPS_START comes after arrivals, so that these are seen.
        self._push(event.time_s, STEPS_START, event.number)
        is_prefill_pool = len(self.pools) > 1 and event.number < len(self.pools[0])
        for request in server.finish_steps(self.run.first_token_s):
            has_tokens_left = self.load.outputs[request] > 1
            if is_prefill_pool and has_tokens_left:  # its cache is sent to a server that decodes
                arrival_s = event.time_s + self.transfer_s(self.load.inputs[request])
                self._push(arrival_s, ARRIVAL, request, pool=1)
            else:
                self._finish_request(request, event.time_s)

    def _finish_request(self, request: int, time_s: float) -> None:
        """Note the end of a request; with a concurrency, let the next one arrive."""
        self.run.ends_s[request] = time_s
        self.ended_count += 1
        if self.ended_count % PROGRESS_REQUESTS == 0:
            report_progress("requests", self.ended_count, len(self.load.inputs))
        # The user whose request has ended sends the next one at once.
        if self.load.concurrency and self.arrived_count < len(self.load.inputs):
            self.run.arrivals_s[self.arrived_count] = time_s
            self._push(time_s, ARRIVAL, self.arrived_count)
            self.arrived_count += 1

    def _push(self, time_s: float, kind: int, number: int, pool: int = 0) -> None:
        heappush(self.events, _Event(time_s, kind, number, pool))


def transfer_free(_tokens: int) -> float:
    """Return the transfer time of a cache that stays on its server: none."""
    return 0.0


def simulate(
    load: Load, pools: Sequence[Pool], transfer_s: Callable[[int], float] = transfer_free
) -> QueueRun:
    """Run all requests through one pool of servers, or through one of prefill and one of decoding.

    Args:
        load: the requests.
        pools: one pool, or a pool of prefill and a pool of decoding.
        transfer_s: seconds in which the cache of so many tokens goes to the second pool.

    Raises:
        InputError: if a request fits into no cache, or the run has too many events.
    """
    _check_room(load, pools)
    loop = _EventLoop(load, pools, transfer_s)
    handlers = {
        ARRIVAL: loop.handle_arrival,
        STEPS_END: loop.finish_steps,
        STEPS_START: loop.start_steps,
    }
    for _ in range(MAX_EVENTS):
        if not loop.events:
            return loop.run
        event = heappop(loop.events)
        handlers[event.kind](event)
    raise InputError(f"serve: more than {MAX_EVENTS:,} events: ask for fewer requests")


def _check_room(load: Load, pools: Sequence[Pool]) -> None:
    """Raise `InputError` if the longest request fits into no cache."""
    lengths = zip(load.inputs, load.outputs, strict=True)
    longest = max(input_tokens + output_tokens - 1 for input_tokens, output_tokens in lengths)
    room = min(pool.cache_tokens for pool in pools)
    if longest > room:
        raise InputError(f"serve: a request of {longest:,} tokens, the cache has room for {room:,}")
