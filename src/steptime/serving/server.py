"""One server of continuous batching: its queue, its running requests and the blocks of its cache.

A step makes a token for each running sequence, or reads prompts, or both. Decode steps between
which nothing can change are run as one, and give the times of the same steps run one by one
(a test). Where the cache is full, the newest request is preempted, and its tokens are computed
again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from steptime.serving.pace import ServerPace


class Pool(NamedTuple):
    """Equal servers, and the rules by which each of them chooses its next step.

    Attributes:
        pace: seconds of a server's steps.
        max_running: sequences that a server runs at once.
        block_count: blocks of a server's cache.
        replicas: number of servers.
        block_tokens: tokens of a block.
        step_tokens: tokens of a step that reads prompts; a prompt may be read in parts.
        mixes_prefill: one step reads prompts and decodes.
        schedules_ahead: a step is chosen as the step before it begins.
        reserves_blocks: a request gets the blocks of all its tokens when it is admitted.
        prefix_share: share of each prompt that lies in the cache already.
        rank_count: ranks that share out sequences, each with its part of `step_tokens`.
        prompt_overhead_s: seconds of a request outside of the servers until its first token.
    """

    pace: ServerPace
    max_running: int
    block_count: int
    replicas: int = 1
    block_tokens: int = 16
    step_tokens: int = 2048
    mixes_prefill: bool = True
    schedules_ahead: bool = False
    reserves_blocks: bool = False
    prefix_share: float = 0.0
    rank_count: int = 1
    prompt_overhead_s: float = 0.0

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache of a server has room for."""
        return self.block_count * self.block_tokens

    def count_blocks(self, tokens: int) -> int:
        """Return the number of blocks that the tokens of a sequence take."""
        return -(-tokens // self.block_tokens)


class PrefillChunk(NamedTuple):
    """The part of a prompt that one step reads, after `cached_tokens` of it."""

    request: int
    tokens: int
    cached_tokens: int


class RunningRequest(NamedTuple):
    """A request that decodes.

    Attributes:
        end_step: number of the server's step that makes its last token.
        offset: its tokens in the cache minus the number of the server's step, a constant.
    """

    end_step: int
    offset: int


class StepRun(NamedTuple):
    """Steps that run without a decision between them, each longer by the same growth."""

    start_s: float
    first_s: float = 0.0
    growth_s: float = 0.0
    step_count: int = 0

    def duration_s(self, count: int) -> float:
        """Return the seconds of the first `count` steps."""
        return count * self.first_s + self.growth_s * (count * (count - 1) // 2)

    def end_s(self, count: int) -> float:
        """Return the time at which the first `count` steps are over."""
        return self.start_s + self.duration_s(count)


class Server:
    """One server with its queue, its running requests and its cache.

    Attributes:
        pool: the rules of the server.
        waiting: requests that were not admitted yet, the next one first.
        cached_requests: waiting requests whose cache was sent here by a prefill server.
        running: requests that decode, by their number; the newest is the last.
        preemptions: times that a request was sent back to the queue.
        end_s: end of the steps that it is in, infinity if it does nothing.
        busy_s: seconds in which it worked.
        sequence_s: sum over steps of their sequences times their seconds.
        free_blocks: blocks of the cache that are free.
        min_free_blocks: the smallest number of free blocks until now.
    """

    def __init__(self, pool: Pool, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.pool = pool
        self.waiting: deque[int] = deque()
        self.cached_requests: set[int] = set()  # waiting, with a cache that was sent here
        self.running: dict[int, RunningRequest] = {}
        self.preemptions = 0
        self.end_s = inf  # of the steps under way
        self.busy_s = 0.0
        self.sequence_s = 0.0  # sum over steps of sequences times seconds
        self.free_blocks = pool.block_count
        self.min_free_blocks = pool.block_count
        self._inputs = inputs  # tokens of the prompts, by request
        self._outputs = outputs  # tokens of the answers
        self._arrived_s: dict[int, float] = {}
        self._preempted_outputs: dict[int, int] = {}  # output tokens of preempted requests
        self._prefilled: dict[int, int] = {}  # tokens read of the prompts that were begun
        self._step_count = 0  # decode steps until now
        self._last_start_s = 0.0  # start of the last step that is over
        self._end_steps: list[tuple[int, int]] = []  # heap of (end step, request)
        self._offset_sum = 0  # of running requests (`RunningRequest.offset`)
        self._offset_counts = [0] * pool.block_tokens  # running requests by offset modulo block
        self._steps = StepRun(0.0)  # the steps under way
        self._chunks: list[PrefillChunk] = []  # parts of prompts that they read

    def __len__(self) -> int:
        return len(self.waiting) + len(self._prefilled) + len(self.running)

    def add_request(self, request: int, time_s: float) -> bool:
        """Append a request to the queue; return whether the steps under way end earlier for it."""
        self.waiting.append(request)
        self._arrived_s[request] = time_s
        steps = self._steps
        is_first = len(self.waiting) == 1
        has_place = len(self.running) < self.pool.max_running
        can_end_earlier = steps.step_count > 1
        if not (is_first and has_place and can_end_earlier):
            return False
        # The step that runs at `time_s`, counted from 1.
        current_step = bisect_left(range(1, steps.step_count), time_s, key=steps.end_s) + 1
        # The queue's first request is admitted after the current step, or after the one behind it
        # where steps are chosen ahead: the steps under way end there.
        last_step = current_step + 1 if self.pool.schedules_ahead else current_step
        self._steps = steps._replace(step_count=min(last_step, steps.step_count))
        self.end_s = self._steps.end_s(self._steps.step_count)
        return self._steps.step_count < steps.step_count

    def start_steps(self, time_s: float) -> None:
        """Choose the next steps and set `end_s`, to infinity if there is nothing to do."""
        is_ahead = self.pool.schedules_ahead and (self.running or self._prefilled)
        arrived_by_s = self._last_start_s if is_ahead else time_s  # later ones are not seen
        has_preempted = self._preempt_requests()
        self._chunks = [] if has_preempted else self._schedule_prefill(arrived_by_s)
        if self._chunks:
            self._steps = StepRun(time_s, self._prefill_step_s(), growth_s=0.0, step_count=1)
        elif self.running:
            has_late_request = bool(self.waiting) and (
                self._arrived_s[self.waiting[0]] > arrived_by_s
            )
            is_single = has_preempted or has_late_request  # prompts may be scheduled after it
            self._steps = self._decode_steps(time_s, is_single)
        else:
            self.end_s = inf
            return
        self.end_s = time_s + self._steps.duration_s(self._steps.step_count)

    def finish_steps(self, first_token_s: list[float]) -> list[int]:
        """End the steps under way; return the requests that ended with them.

        Writes the times of first tokens into `first_token_s`.
        """
        steps = self._steps
        self._last_start_s = steps.end_s(steps.step_count - 1)
        # Without mixing nobody decodes in a step that reads prompts.
        is_decoding = self.pool.mixes_prefill or not self._chunks
        decoding_count = len(self.running) if is_decoding else 0
        duration_s = self.end_s - steps.start_s
        self.busy_s += duration_s
        self.sequence_s += duration_s * (decoding_count + len(self._chunks))
        ended_requests: list[int] = []
        if decoding_count:
            self._use_blocks(self._count_new_blocks(steps.step_count))
            self._step_count += steps.step_count
            while self.running and self._next_end_step() == self._step_count:
                _end_step, request = heappop(self._end_steps)
                ended_requests.append(request)
                self._remove_running(request)
        for chunk in self._chunks:
            ended_requests += self._finish_chunk(chunk, first_token_s)
        self._steps = StepRun(self.end_s)
        self._chunks = []
        self.end_s = inf
        return ended_requests

    def _prefill_step_s(self) -> float:
        """Return the seconds of a step that reads the scheduled chunks."""
        running_count = tokens = 0
        if self.pool.mixes_prefill:
            running_count = len(self.running)
            tokens = self._running_tokens()
        chunks = [(chunk.tokens, chunk.cached_tokens) for chunk in self._chunks]
        return self.pool.pace.prefill_s(running_count, tokens, chunks)

    def _decode_steps(self, time_s: float, is_single: bool) -> StepRun:
        """Return the decode steps until a request ends or the cache is full; one if `is_single`."""
        running_count = len(self.running)
        tokens = self._running_tokens()
        # Up to the first of: the pace grows otherwise, a request ends, the cache is full.
        first_s, growth_s, even_count = self.pool.pace.decode_steps(running_count, tokens)
        count = 1 if is_single else min(even_count, self._next_end_step() - self._step_count)
        can_exceed = count * running_count > self.free_blocks  # cheaper than the exact count
        if can_exceed and self._count_new_blocks(count) > self.free_blocks:
            # The largest number of steps for which enough blocks are free; at least 1.
            count = bisect_right(range(1, count), self.free_blocks, key=self._count_new_blocks)
        return StepRun(time_s, first_s, growth_s, count)

    def _finish_chunk(self, chunk: PrefillChunk, first_token_s: list[float]) -> list[int]:
        """Count a chunk as read; after the last of a prompt, start to decode.

        Returns the request if it is over with its first token.
        """
        request = chunk.request
        self._prefilled[request] += chunk.tokens
        if self._prefilled[request] < self._prefill_tokens(request):
            return []
        del self._prefilled[request]
        output_tokens = self._preempted_outputs.pop(request, 0)  # read again as its prompt
        if not output_tokens:  # a preempted request had it before
            first_token_s[request] = self.end_s
        return self._start_decoding(request, output_tokens + 1)

    def _prefill_tokens(self, request: int) -> int:
        """Return the tokens of a waiting request that are read before it decodes."""
        return self._inputs[request] + self._preempted_outputs.get(request, 0)

    def _running_tokens(self) -> int:
        """Return the tokens of all running requests in the cache."""
        return self._offset_sum + len(self.running) * self._step_count

    def _request_blocks(self, request: int, tokens: int) -> int:
        """Return the blocks of a request that has so many tokens in the cache."""
        if self.pool.reserves_blocks:
            tokens = self._inputs[request] + self._outputs[request] - 1
        return self.pool.count_blocks(tokens)

    def _use_blocks(self, count: int) -> None:
        self.free_blocks -= count
        self.min_free_blocks = min(self.min_free_blocks, self.free_blocks)

    def _start_decoding(self, request: int, output_tokens: int) -> list[int]:
        """Start to decode a request that has all but the last of its tokens in the cache.

        Returns the request, and frees its blocks, if that token was its last.
        """
        cached_tokens = self._inputs[request] + output_tokens - 1  # all but the newest token
        if output_tokens == self._outputs[request]:
            self.free_blocks += self._request_blocks(request, cached_tokens)
            return [request]
        end_step = self._step_count + self._outputs[request] - output_tokens
        # Constant while it decodes, since each step adds a token to the cache.
        offset = cached_tokens - self._step_count
        self.running[request] = RunningRequest(end_step, offset)
        heappush(self._end_steps, (end_step, request))
        self._offset_sum += offset
        self._offset_counts[offset % self.pool.block_tokens] += 1
        return []

    def _remove_running(self, request: int) -> int:
        """Remove a running request and free its blocks; return its tokens in the cache."""
        offset = self.running.pop(request).offset
        self._offset_sum -= offset
        self._offset_counts[offset % self.pool.block_tokens] -= 1
        cached_tokens = offset + self._step_count
        self.free_blocks += self._request_blocks(request, cached_tokens)
        return cached_tokens

    def _next_end_step(self) -> int:
        """Return the number of the step in which the next running request ends.

        Drops entries of requests that were preempted since.
        """
        # A preempted request stays in the heap: its entry is dropped when it comes to the top.
        while True:
            end_step, request = self._end_steps[0]
            running = self.running.get(request)
            if running is not None and running.end_step == end_step:
                return end_step
            heappop(self._end_steps)

    def _count_new_blocks(self, step_count: int) -> int:
        """Return the blocks that the running requests need for their next `step_count` tokens.

        A request needs a new block in each step in which offset + step is a multiple of the block.
        """
        # They got all blocks when they were admitted.
        if self.pool.reserves_blocks:
            return 0
        # In as many steps as a block has tokens every sequence fills one block. In the steps
        # beyond those, the sequences whose last block is full at that step need another.
        block_tokens = self.pool.block_tokens
        full_rounds, further_steps = divmod(step_count, block_tokens)
        further_blocks = 0
        for step in range(further_steps):
            offset = -(self._step_count + step) % block_tokens  # then the cache fills whole blocks
            further_blocks += self._offset_counts[offset]
        return full_rounds * len(self.running) + further_blocks

    def _preempt_requests(self) -> bool:
        """Send the newest requests back to the queue until the tokens of the next step fit.

        Returns whether any was sent back.
        """
        preemptions_before = self.preemptions
        while self.running and self._count_new_blocks(1) > self.free_blocks:
            # The newest goes back first: one that still reads its prompt, else the last to decode.
            if self._prefilled:
                request, _ = self._prefilled.popitem()
                self.free_blocks += self._request_blocks(request, self._prefill_tokens(request))
            else:
                request = next(reversed(self.running))
                cached_tokens = self._remove_running(request)
                self._preempted_outputs[request] = cached_tokens - self._inputs[request] + 1
            self.waiting.appendleft(request)
            self._arrived_s[request] = 0.0  # is seen at once
            self.preemptions += 1
        return self.preemptions > preemptions_before

    def _schedule_prefill(self, arrived_by_s: float) -> list[PrefillChunk]:
        """Choose the prompt chunks of the next step, and admit waiting requests.

        First come, first served: prompts that were begun go on, then the head of the queue is
        admitted while there are tokens of the step, sequences and free blocks. Requests that
        arrived after `arrived_by_s` are not seen yet. Takes admitted requests off the queue and
        their blocks off the free ones. A request whose cache was sent here starts to decode at
        once, without a chunk.
        """
        pool = self.pool
        # Each running request decodes one token of the step's budget.
        step_tokens = pool.step_tokens - (len(self.running) if pool.mixes_prefill else 0)
        rank_tokens = pool.step_tokens // pool.rank_count  # of one prompt
        chunks: list[PrefillChunk] = []
        for request, cached_tokens in self._prefilled.items():
            if step_tokens > 0:
                unread_tokens = self._prefill_tokens(request) - cached_tokens
                tokens = min(step_tokens, rank_tokens, unread_tokens)
                chunks.append(PrefillChunk(request, tokens, cached_tokens))
                step_tokens -= tokens
        while self.waiting and len(self.running) + len(self._prefilled) < pool.max_running:
            request = self.waiting[0]
            is_cached = request in self.cached_requests
            is_late = self._arrived_s[request] > arrived_by_s
            has_no_tokens = step_tokens <= 0 and not is_cached
            # First come, first served: a request that must wait holds up all behind it.
            if is_late or has_no_tokens or not self._has_room(request):
                break
            length = self._prefill_tokens(request)
            self._use_blocks(self._request_blocks(request, length))
            self.waiting.popleft()
            if is_cached:
                self.cached_requests.remove(request)
                self._start_decoding(request, output_tokens=1)
                continue
            cached_tokens = count_cached_tokens(self._inputs[request], pool.prefix_share)
            self._prefilled[request] = cached_tokens
            tokens = min(length - cached_tokens, step_tokens, rank_tokens)
            chunks.append(PrefillChunk(request, tokens, cached_tokens))
            step_tokens -= tokens
        return chunks

    def _has_room(self, request: int) -> bool:
        """Return whether the cache has room for a waiting request, as an empty server always has.

        Without reserved blocks, one block for each running request stays free.
        """
        is_empty = not self.running and not self._prefilled
        if is_empty:  # a request that does not even fit alone would wait for ever
            return True
        blocks = self._request_blocks(request, self._prefill_tokens(request))
        # Every running sequence may need a further block, unless it got all of them before.
        spare_blocks = 0 if self.pool.reserves_blocks else len(self.running)
        return blocks + spare_blocks <= self.free_blocks


def count_cached_tokens(tokens: int, prefix_share: float) -> int:
    """Return the tokens of a prompt that lie in the cache already: all but one at most."""
    return min(tokens - 1, int(prefix_share * tokens))
