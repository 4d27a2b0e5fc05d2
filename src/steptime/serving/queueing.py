"""Requests that wait for servers: an event loop over the steps of continuous batching.

A server does one step after another. A step makes a token for each running sequence, or reads
prompts, or both. Decode steps between which nothing can change are done in one go, and give what
doing them one by one gives (a test). Where the cache is full, the newest request is sent back, and
its tokens are computed again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.progress import tell
from steptime.serving.pace import Paced

MOST_EVENTS = 20_000_000
TOLD = 5_000  # requests, after which progress is said


class Pool(NamedTuple):
    """Servers that are alike, and how one chooses what its next step does."""

    pace: Paced
    most: int  # sequences at once
    blocks: int  # of the cache
    replicas: int = 1
    block: int = 16  # tokens
    budget: int = 2048  # tokens of a step that reads prompts, whose last may be read in part
    mixed: bool = True  # prompts beside decoding, in one step
    ahead: bool = False  # a step is chosen as the one before it begins
    reserves: bool = False  # a request has blocks for all its tokens from the begin on
    prefix: float = 0.0  # of each prompt, what the cache has already
    ranks: int = 1  # that share out sequences, each with its part of the budget
    prompt_s: float = 0.0  # that a request takes beside them until its first token

    def held(self, tokens: int) -> int:
        """Return the blocks that so many tokens take."""
        return -(-tokens // self.block)


class Load(NamedTuple):
    """What is asked: tokens in and out; when, or how many at once (the next as one ends)."""

    inputs: Sequence[int]
    outputs: Sequence[int]
    arrivals_s: Sequence[float] = ()
    concurrency: int = 0


class QueueRun(NamedTuple):
    """When each request came, got its first token and ended [s]; the servers at the end."""

    came_s: list[float]
    first_s: list[float]
    ended_s: list[float]
    pools: list[list[Server]]


class Server:
    """One server: who waits, who runs, and the steps that it is in until `end`."""

    def __init__(self, pool: Pool, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.pool, self.inputs, self.outputs = pool, inputs, outputs
        self.waiting: deque[int] = deque()
        self.came: dict[int, float] = {}  # here
        self.made: dict[int, int] = {}  # tokens that waiting ones have, because they were sent back
        self.ready: set[int] = set()  # waiting ones whose cache came with them
        self.partial: dict[int, int] = {}  # prompts begun: tokens read
        self.running: dict[int, tuple[int, int]] = {}  # the last step, and tokens held - steps
        self.steps = self.sent_back = 0
        self.end, self.began = inf, 0.0  # of the steps it is in; of the last one before
        self.busy_s = self.batch_s = 0.0  # batch: sequences of a step x its seconds
        self.free = self.least_free = pool.blocks
        self._ends: list[tuple[int, int]] = []
        self._offsets = 0  # of running ones: they hold this + their number x steps
        self._crossing = [0] * pool.block  # running ones by when they need a block
        self._step = (0.0, 0.0, 0.0, 0)  # start, seconds of the first, growth, how many
        self._chunks: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self.waiting) + len(self.partial) + len(self.running)

    def put(self, request: int, now: float) -> bool:
        """Let a request wait; return whether the steps under way end earlier for it."""
        self.waiting.append(request)
        self.came[request] = now
        start, first, slope, count = self._step
        if count < 2 or len(self.waiting) > 1 or len(self.running) >= self.pool.most:
            return False
        over = bisect_left(range(1, count), now, key=lambda k: start + _sum(first, slope, k)) + 1
        steps = min(over + self.pool.ahead, count)
        self._step = (start, first, slope, steps)
        self.end = start + _sum(first, slope, steps)
        return steps < count

    def start(self, now: float) -> None:
        """Choose the next steps; `end` is when they are over, infinity where there are none."""
        known = self.began if self.pool.ahead and (self.running or self.partial) else now
        sent_back = self._make_room()
        chunks = self._chunks = [] if sent_back else self._admitted(known)
        is_late = bool(self.waiting) and self.came[self.waiting[0]] > known
        running = len(self.running)
        tokens = self._offsets + running * self.steps
        if chunks:
            beside = (running, tokens) if self.pool.mixed else (0, 0)
            took = self.pool.pace.prompts(*beside, [(taken, done) for _, taken, done in chunks])
            self._step = (now, took, 0.0, 1)
        elif running:
            first, slope, count = self.pool.pace.decode(running, tokens)
            count = 1 if sent_back or is_late else min(count, self._ends_at() - self.steps)
            if count * running > self.free and self._needed(count) > self.free:
                count = bisect_right(range(1, count), self.free, key=self._needed)
            self._step = (now, first, slope, count)
        self.end = now + _sum(*self._step[1:]) if chunks or running else inf

    def finish(self, first_s: list[float]) -> list[int]:
        """Return the requests that ended with these steps, and note the first tokens."""
        start, first, slope, count = self._step
        self.began = start + _sum(first, slope, count - 1)
        decoding = len(self.running) if self.pool.mixed or not self._chunks else 0
        self.busy_s += self.end - start
        self.batch_s += (self.end - start) * (decoding + len(self._chunks))
        ended: list[int] = []
        if decoding:
            self._take(self._needed(count))
            self.steps += count
        while decoding and self.running and self._ends_at() == self.steps:
            ended.append(heappop(self._ends)[1])
            self._leave(ended[-1])
        for request, taken, _ in self._chunks:
            self.partial[request] += taken
            if self.partial[request] == self._length(request):
                del self.partial[request]
                made = self.made.pop(request, 0)
                if not made:
                    first_s[request] = self.end
                ended += self._decode(request, made + 1)
        self._step, self._chunks, self.end = (self.end, 0.0, 0.0, 0), [], inf
        return ended

    def _length(self, request: int) -> int:
        """Return the tokens that a waiting request has, to be read before it decodes."""
        return self.inputs[request] + self.made.get(request, 0)

    def _blocks(self, request: int, tokens: int) -> int:
        """Return the blocks of a request that has so many tokens in the cache."""
        last = self.inputs[request] + self.outputs[request] - 1
        return self.pool.held(last if self.pool.reserves else tokens)

    def _take(self, blocks: int) -> None:
        self.free -= blocks
        self.least_free = min(self.least_free, self.free)

    def _decode(self, request: int, made: int) -> list[int]:
        """Let a request run that has all but the last of its tokens in the cache.

        Return it where that was its last.
        """
        held = self.inputs[request] + made - 1
        if made == self.outputs[request]:
            self.free += self._blocks(request, held)
            return [request]
        last, offset = self.steps + self.outputs[request] - made, held - self.steps
        self.running[request] = (last, offset)
        heappush(self._ends, (last, request))
        self._offsets += offset
        self._crossing[offset % self.pool.block] += 1
        return []

    def _leave(self, request: int) -> int:
        _, offset = self.running.pop(request)
        self._offsets -= offset
        self._crossing[offset % self.pool.block] -= 1
        self.free += self._blocks(request, offset + self.steps)
        return offset + self.steps

    def _ends_at(self) -> int:
        """Return the step in which the next running request ends."""
        while self.running.get(self._ends[0][1], (-1,))[0] != self._ends[0][0]:
            heappop(self._ends)  # one that was sent back
        return self._ends[0][0]

    def _needed(self, count: int) -> int:
        if self.pool.reserves:
            return 0
        rounds, rest = divmod(count, self.pool.block)
        crossing = sum(self._crossing[-(self.steps + k) % self.pool.block] for k in range(rest))
        return rounds * len(self.running) + crossing

    def _make_room(self) -> bool:
        """Send the newest back until the next step's tokens fit; return whether any was."""
        before = self.sent_back
        while self.running and self._needed(1) > self.free:
            if self.partial:
                request, _ = self.partial.popitem()
                self.free += self._blocks(request, self._length(request))
            else:
                request = next(reversed(self.running))
                self.made[request] = self._leave(request) - self.inputs[request] + 1
            self.waiting.appendleft(request)
            self.came[request] = 0.0
            self.sent_back += 1
        return self.sent_back > before

    def _admitted(self, known: float) -> list[tuple[int, int, int]]:
        """Return what the next step reads of prompts: request, tokens, and those done before."""
        pool, found = self.pool, []
        left = pool.budget - (len(self.running) if pool.mixed else 0)
        most = pool.budget // pool.ranks
        for request, done in self.partial.items():
            if left > 0:
                found.append((request, min(left, most, self._length(request) - done), done))
                left -= found[-1][1]
        while self.waiting and len(self.running) + len(self.partial) < pool.most:
            request, running = self.waiting[0], len(self.running)
            length, is_ready = self._length(request), request in self.ready
            blocks, more = self._blocks(request, length), 0 if pool.reserves else running
            is_full = (running or self.partial) and blocks + more > self.free
            if is_full or self.came[request] > known or (left <= 0 and not is_ready):
                break
            self._take(blocks)
            self.waiting.popleft()
            if is_ready:
                self.ready.remove(request)
                self._decode(request, 1)
            else:
                done = self.partial[request] = cached_of(self.inputs[request], pool.prefix)
                found.append((request, min(length - done, left, most), done))
                left -= found[-1][1]
        return found


def at_once(_tokens: int) -> float:
    """Return the seconds until a cache is there that is sent nowhere."""
    return 0.0


def cached_of(tokens: int, share: float) -> int:
    """Return how many tokens of a prompt the cache has already: all but one at most."""
    return min(tokens - 1, int(share * tokens))


def _sum(first: float, slope: float, count: int) -> float:
    """Return the seconds of `count` steps, each longer than the one before by `slope`."""
    return count * first + slope * (count * (count - 1) // 2)


def _check_room(load: Load, pools: Sequence[Pool]) -> None:
    """Raise `InputError` if the longest request fits into no cache."""
    lengths = zip(load.inputs, load.outputs, strict=True)
    longest = max(input_tokens + output_tokens - 1 for input_tokens, output_tokens in lengths)
    room = min(pool.blocks * pool.block for pool in pools)
    if longest > room:
        raise InputError(f"serve: a request of {longest:,} tokens, the cache has room for {room:,}")


def _tell_progress(ended_count: int, request_count: int) -> None:
    """Say how many requests have ended, now and then."""
    if ended_count % TOLD == 0:
        tell("requests", ended_count, request_count)


def simulate(
    load: Load, pools: Sequence[Pool], sent_s: Callable[[int], float] = at_once
) -> QueueRun:
    """Run all requests through one pool of servers, or through one of prompts and one of decoding.

    A request goes to the server of a pool that has the fewest; `sent_s` is how long a cache of so
    many tokens is under way between pools. Raises `InputError` where a request fits into no cache.
    """
    inputs, outputs, arrivals, at_once = load
    _check_room(load, pools)
    count, last = len(inputs), len(pools) - 1
    lengths = [[1] * count, outputs] if last else [outputs]
    groups = [
        [Server(pool, inputs, made) for _ in range(pool.replicas)]
        for pool, made in zip(pools, lengths, strict=True)
    ]
    servers = [server for group in groups for server in group]
    coming = min(at_once or count, count)
    run = QueueRun([0.0] * count if at_once else [*arrivals], [0.0] * count, [0.0] * count, groups)
    # at one time: requests come to a pool (0), steps end (1), and then steps begin (2)
    events = [(run.came_s[k], 0, k, 0) for k in range(coming)]
    heapify(events)
    ended = 0
    for _ in range(MOST_EVENTS):
        if not events:
            return run
        now, kind, number, to = heappop(events)
        if kind == 0:
            server = min(groups[to], key=len)
            server.ready |= {number} if to else set()
            if server.put(number, now):
                heappush(events, (server.end, 1, servers.index(server), 0))
            elif server.end == inf:
                heappush(events, (now, 2, servers.index(server), 0))
        elif kind == 2 and servers[number].end == inf:
            servers[number].start(now)
            if servers[number].end < inf:
                heappush(events, (servers[number].end, 1, number, 0))
        elif kind == 1 and servers[number].end == now:  # else they were to end later
            heappush(events, (now, 2, number, 0))
            for request in servers[number].finish(run.first_s):
                if last and number < pools[0].replicas and outputs[request] > 1:
                    heappush(events, (now + sent_s(inputs[request]), 0, request, 1))
                    continue
                run.ended_s[request] = now
                ended += 1
                _tell_progress(ended, count)
                if at_once and coming < count:
                    run.came_s[coming] = now
                    heappush(events, (now, 0, coming, 0))
                    coming += 1
    raise InputError(f"serve: more than {MOST_EVENTS:,} events: ask for fewer requests")
