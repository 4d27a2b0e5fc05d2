"""The event loop of a server against a loop of single steps, formulas of queues, and counting."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import pytest

from every import every
from steptime.serving.queueing import Load, QueueRun, simulate
from steptime.serving.server import Pool


@dataclass
class Straight:
    """Seconds that are sums of powers of two, which floats add exactly; with a bend at `bend`."""

    step: float = 2**-5
    each: float = 2**-9
    held: float = 2**-16
    token: float = 2**-10
    past: float = 2**-18
    bend: int = 64

    def one(self, sequences: int, tokens: int) -> float:
        over = max(0, tokens - self.bend * sequences)
        return self.step + self.each * sequences + self.held * (tokens + 2 * over)

    def decode_steps(self, sequences: int, tokens: int) -> tuple[float, float, int]:
        first = self.one(sequences, tokens)
        slope = self.one(sequences, tokens + sequences) - first
        left = self.bend - tokens // sequences
        return first, slope, max(left, 1) if tokens < self.bend * sequences else 10**6

    def prefill_s(self, sequences: int, tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        beside = self.one(sequences, tokens) if sequences else self.step
        return beside + sum(self.token * n + self.past * n * before for n, before in chunks)


def one(load: Load, rules: Pool) -> QueueRun:
    return simulate(load, [rules])


def step_by_step(  # noqa: PLR0912, PLR0915
    load: Load, rules: Pool
) -> tuple[list[float], list[float], list[float], int]:
    """Each step alone, each request looked at in each: what the event loop must equal."""
    count = len(load.inputs)
    arrived = [0.0] * count if load.concurrency else list(load.arrivals_s)
    coming = min(load.concurrency or count, count)
    first, over = [-1.0] * count, [-1.0] * count
    arrived_ = [0.0] * count
    known, waiting, begun, running = 0, [], [], []
    held, made, target, worst = [0] * count, [0] * count, list(load.inputs), 0

    def blocks(tokens: int) -> int:
        return ceil(tokens / rules.block_tokens)

    def takes(r: int, tokens: int) -> int:
        return blocks(load.inputs[r] + load.outputs[r] - 1 if rules.reserves_blocks else tokens)

    def used() -> int:
        return sum(takes(r, target[r]) for r in begun) + sum(takes(r, held[r]) for r in running)

    def grow() -> int:
        return (
            0 if rules.reserves_blocks else sum(held[r] % rules.block_tokens == 0 for r in running)
        )

    pace, now, began = rules.pace, 0.0, 0.0
    while min(over) < 0:
        while known < coming and arrived[known] <= now:
            waiting.append(known)
            arrived_[known] = arrived[known]
            known += 1
        sent_back = False
        seen = began if rules.schedules_ahead and (running or begun) else now
        while running and used() + grow() > rules.block_count:
            last = begun.pop() if begun else running.pop()
            target[last] = load.inputs[last] + made[last]
            held[last] = 0
            arrived_[last] = 0.0
            waiting.insert(0, last)
            sent_back = True
        chunks, left = [], rules.step_tokens - (len(running) if rules.mixes_prefill else 0)
        if not sent_back:
            for r in begun:
                taken = min(left, target[r] - held[r])
                if taken > 0:
                    chunks.append((r, taken, held[r]))
                    left -= taken
            while waiting and len(running) + len(begun) < rules.max_running and left > 0:
                r = waiting[0]
                taken = min(left, target[r])
                more = 0 if rules.reserves_blocks else len(running)
                crowded = used() + takes(r, target[r]) + more > rules.block_count
                if arrived_[r] > seen:
                    break
                if crowded and (running or begun):
                    break
                begun.append(waiting.pop(0))
                chunks.append((r, taken, 0))
                left -= taken
        worst = max(worst, used())
        decoding = list(running) if rules.mixes_prefill or not chunks else []
        if not chunks and not decoding:
            now = arrived[known]
            continue
        began = now
        tokens = sum(held[r] for r in decoding)
        if chunks:
            now += pace.prefill_s(len(decoding), tokens, [(n, before) for _, n, before in chunks])
        else:
            now += pace.one(len(decoding), tokens)
        done = []
        for r in decoding:
            held[r] += 1
            made[r] += 1
            if made[r] == load.outputs[r]:
                done.append(r)
        worst = max(worst, used())
        for r, taken, _ in chunks:
            held[r] += taken
            if held[r] == target[r]:
                begun.remove(r)
                running.append(r)
                made[r] += 1
                first[r] = now if first[r] < 0 else first[r]
                if made[r] == load.outputs[r]:
                    done.append(r)
        for r in sorted(done) if not chunks else done:
            over[r] = now
            running.remove(r)
            if load.concurrency and coming < count:
                arrived[coming] = now
                coming += 1
    return arrived, first, over, worst


@pytest.mark.slow
@every("seed", range(400))
def test_the_loop_over_events_is_the_loop_over_steps(seed):
    draw = random.Random(seed)  # noqa: S311
    count = draw.randint(1, 24)
    block = draw.choice([1, 4, 16])
    inputs = [draw.randint(1, 60) for _ in range(count)]
    outputs = [draw.choice([1, 2, draw.randint(1, 80)]) for _ in range(count)]
    longest = max(i + o - 1 for i, o in zip(inputs, outputs, strict=True))
    rules = Pool(
        Straight(),  # type: ignore[arg-type]
        max_running=draw.choice([1, 2, 5, 100]),
        block_count=ceil(longest / block) + draw.choice([0, 1, 5, 1000]),
        block_tokens=block,
        step_tokens=draw.choice([1, 7, 40, 10_000]),
        mixes_prefill=draw.random() < 0.5,
        schedules_ahead=draw.random() < 0.5,
        reserves_blocks=draw.random() < 0.3,
    )
    gaps = [draw.choice([0, 1, draw.randint(0, 2000)]) for _ in range(count)]
    arrivals = [sum(gaps[: k + 1]) * 2**-8 for k in range(count)]
    at_once = draw.choice([0, 0, 1, 3, 50])
    load = Load(inputs, outputs, arrivals, at_once)
    found = one(load, rules)
    arrived, first, over, worst = step_by_step(load, rules)
    assert found.arrivals_s == arrived
    assert found.first_token_s == first
    assert found.ends_s == over
    (server,) = found.pools[0]
    assert rules.block_count - server.min_free_blocks == worst <= rules.block_count
