"""A service under load, held against formulas of queues; traces; two pools; guessing ahead."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from steptime import serve
from steptime.core.errors import InputError
from steptime.planning.ranks.site import Site
from steptime.serving.demand import Demand, poisson_arrivals, read_trace
from steptime.serving.kernels import SequenceGroup
from steptime.serving.load import TimeSpread, _spread_of, run_with_highest_rate, vary_outputs
from steptime.serving.pace import ServerPace
from steptime.serving.queueing import Load, simulate
from steptime.serving.server import Pool
from steptime.serving.service import Service
from steptime.serving.speculation import Guesses, Speculation
from steptime.serving.step_cost import StepCost

TOKEN, STEP, EACH, HELD = 2e-5, 0.008, 1e-4, 5e-8


class Straight:
    """Phases whose seconds are sums: what is between knots is exact."""

    def price_prefill(self, sequences: int, tokens: int, past: int = 0) -> StepCost:
        return StepCost(TOKEN * sequences * tokens + 1e-9 * tokens * past)

    def price_decode(self, sequences: int, context: float) -> StepCost:
        return StepCost(EACH * sequences + HELD * sequences * context, host_s=STEP)

    def price_mixed_step(
        self, sequences: int, context: float, prompts: int, tokens: int
    ) -> StepCost:
        return self.price_decode(sequences, context).add(self.price_prefill(prompts, tokens))


def pool(most: int, replicas: int = 1, **rules: float) -> Pool:
    return Pool(ServerPace(Straight()), most, 10**6, replicas, **rules)  # type: ignore[arg-type]


def alone(inputs: list[int], rate: float, seed: int = 1) -> Load:
    """Prompts alone, one after another: a queue with one server."""
    return Load(inputs, [1] * len(inputs), poisson_arrivals(rate, len(inputs), seed))


def waited(load: Load, servers: int = 1) -> float:
    run = simulate(load, [pool(1, servers, step_tokens=10**9)])
    took = [TOKEN * tokens for tokens in load.inputs]
    n = len(took)
    return sum(run.first_token_s[k] - run.arrivals_s[k] - took[k] for k in range(n)) / n


@pytest.mark.slow
@pytest.mark.parametrize(
    "busy",
    [pytest.param(0.3, marks=pytest.mark.rare), 0.6, pytest.param(0.8, marks=pytest.mark.rare)],
)
def test_the_mean_wait_of_equal_prompts_is_that_of_m_d_1(busy):
    """Pollaczek and Khinchine: W = rho S / (2 (1 - rho)) with S = 1,000 x 20 us."""
    found = [waited(alone([1000] * 40_000, busy / 0.02, seed)) for seed in (1, 2, 3)]
    assert sum(found) / 3 == pytest.approx(busy * 0.02 / (2 * (1 - busy)), rel=0.05)


@pytest.mark.slow
def test_the_mean_wait_of_unequal_prompts_is_that_of_m_m_1():
    """W = rho S / (1 - rho): prompts of lengths by chance, 10,000 tokens in the mean."""
    draw = Random(5)  # noqa: S311
    found = []
    for seed in (1, 2, 3):
        inputs = [max(1, round(draw.expovariate(1e-4))) for _ in range(40_000)]
        found.append(waited(alone(inputs, 0.6 / 0.2, seed)))
    assert sum(found) / 3 == pytest.approx(0.6 * 0.2 / 0.4, rel=0.05)


def test_two_servers_wait_less_than_half_as_long():
    one, two = alone([1000] * 20_000, 30.0), alone([1000] * 20_000, 60.0)
    assert waited(two, 2) < waited(one) / 1.5


def test_at_a_constant_concurrency_a_token_takes_decode_and_its_part_of_prompts():
    """TPOT = decode + n / output x prefill; and n = requests a second x seconds of a request."""
    n, inputs, outputs = 16, 1000, 400
    demand = Demand(concurrency=n, count=n * 60)
    found = run_with_highest_rate(demand, demand.load(inputs, outputs), [pool(n)])
    decode = STEP + EACH * n + HELD * n * (inputs + outputs / 2)
    tpot = decode + n / outputs * TOKEN * inputs
    assert found.tpot.mean_s == pytest.approx(tpot, rel=0.02)
    assert found.requests_per_s * found.request.mean_s == pytest.approx(n, rel=0.01)
    assert found.running_sequences == pytest.approx(n, rel=0.03)


def test_what_a_request_takes_beside_the_servers_is_added_and_holds_up_no_step():
    demand = Demand(concurrency=8, count=80)
    load = demand.load(1000, 200)
    bare, later = (
        run_with_highest_rate(demand, load, [pool(8, prompt_overhead_s=s)]) for s in (0.0, 0.5)
    )
    assert later.ttft.mean_s == pytest.approx(bare.ttft.mean_s + 0.5)
    assert later.request.mean_s == pytest.approx(bare.request.mean_s + 0.5)
    assert later.requests_per_s == bare.requests_per_s


def test_who_reserves_all_blocks_sends_nobody_back():
    """Blocks of 16 for 10: 8 requests of 16 tokens grow to 32, of which 5 at a time have room."""
    load = Load([16] * 8, [17] * 8, [0.0] * 8)
    grown, reserved = (
        simulate(load, [pool(8)._replace(block_count=10, reserves_blocks=reserves)]).pools[0][0]
        for reserves in (False, True)
    )
    assert (reserved.preemptions, reserved.free_blocks, reserved.min_free_blocks) == (0, 10, 0)
    assert grown.preemptions > 0
    step_s = STEP + EACH * 5
    assert reserved.busy_s > 2 * 16 * STEP > step_s  # two rounds: five, and then three


def test_little_s_law_holds_where_the_cache_is_too_small():
    """The number there, integrated over time, is the sum of the times that requests are there."""
    draw = Random(3)  # noqa: S311
    n = 300
    load = Load(
        [draw.randint(10, 500) for _ in range(n)], [draw.randint(1, 300) for _ in range(n)],
        poisson_arrivals(20.0, n, 3),
    )  # fmt: skip
    small = pool(64)._replace(block_count=100)
    run = simulate(load, [small])
    (server,) = run.pools[0]
    assert server.preemptions > 0
    assert server.min_free_blocks >= 0
    assert server.free_blocks == 100
    marks = sorted([(t, 1) for t in run.arrivals_s] + [(t, -1) for t in run.ends_s])
    area = there = last = 0.0
    for now, change in marks:
        area, there, last = area + there * (now - last), there + change, now
    stayed = sum(b - a for a, b in zip(run.arrivals_s, run.ends_s, strict=True))
    assert there == 0
    assert area == pytest.approx(stayed)
    with pytest.raises(InputError, match="a request of 1,601 tokens, the cache has room for 1,600"):
        simulate(Load([1600], [2], [0.0]), [small])


def test_what_is_straight_is_priced_exactly_between_knots():
    pace = ServerPace(Straight())  # type: ignore[arg-type]
    first, slope, steps = pace.decode_steps(37, 37 * 900 + 5)
    assert first == pytest.approx(STEP + EACH * 37 + HELD * (37 * 900 + 5))
    assert slope == pytest.approx(HELD * 37)
    assert steps == 1024 - 900  # up to the next knot
    assert pace.prefill_s(5, 5000, [(300, 0), (100, 700)]) == pytest.approx(
        STEP + 5 * EACH + HELD * 5000 + 400 * TOKEN + 1e-9 * 100 * 700
    )


@pytest.mark.slow
def test_steps_between_those_that_are_priced_are_near_them():
    """A hundred steps of a network at any numbers, against the same step priced itself."""
    phases = Service("llama3_8b", Site("h100"), 1, 4096, 1024).phases()
    pace, draw, wrong = ServerPace(phases), Random(1), []  # noqa: S311
    for _ in range(100):
        n, context, prompts = draw.randint(1, 200), draw.randint(50, 9000), draw.randint(1, 4)
        tokens = draw.randint(20, 2048)
        alone = pace.decode_steps(n, n * context)[0] / phases.price_decode(n, context).seconds
        both = phases.price_step(
            [SequenceGroup(prompts, tokens, 0), SequenceGroup(n, 1, context)]
        ).seconds
        beside = pace.prefill_s(n, n * context, [(tokens, 0)] * prompts) / both
        after = (
            pace.prefill_s(0, 0, [(tokens, context)])
            / phases.price_prefill(1, tokens, context).seconds
        )
        wrong += [abs(one - 1) for one in (alone, beside, after)]
    assert np.median(wrong) < 0.018  # steps of over 512 tokens replay no graph: a jump
    assert max(wrong) < 0.3  # a chunk just above a power of two: attention goes by blocks


def guesses(accept: float) -> Guesses:
    return Guesses(Speculation("gpt2", 3, accept), Straight())  # type: ignore[arg-type]


def test_guesses_that_are_right_save_steps():
    """A step of 3 guesses verifies 4 tokens; 1 + w + w^2 + w^3 are made, in one of the server."""
    right, wrong = (
        ServerPace(Straight(), (), guesses(w)).decode_steps(4, 400)[0]  # type: ignore[arg-type]
        for w in (1.0, 0.0)
    )
    both = (STEP + EACH * 16 + HELD * 400) + 3 * (EACH * 4 + HELD * 400)
    assert wrong == pytest.approx(both)
    assert right == pytest.approx(both / 4)


def test_prompts_apart_leave_decoding_alone_and_send_the_cache_once():
    n, inputs, outputs = 4, 1000, 101
    load = Load([inputs] * 200, [outputs] * 200, [k * 1.0 for k in range(200)])
    run = simulate(load, [pool(1, 2), pool(n)], lambda tokens: tokens * 1e-5)
    assert run.first_token_s[50] - run.arrivals_s[50] == pytest.approx(TOKEN * inputs)
    steps = sum(STEP + EACH + HELD * (inputs + k) for k in range(outputs - 1))
    assert run.ends_s[50] - run.first_token_s[50] == pytest.approx(steps + inputs * 1e-5)


@pytest.mark.slow
def test_the_highest_rate_meets_the_targets_and_a_higher_one_does_not():
    demand = Demand(rate=5.0, count=500, ttft=0.2, tpot=0.02)
    found = run_with_highest_rate(demand, demand.load(1000, 100), [pool(64)])
    most = found.highest_rate_per_s
    share = []
    for rate in (most, 1.02 * most):
        other = replace(demand, rate=rate)
        share.append(run_with_highest_rate(other, other.load(1000, 100), [pool(64)]).in_time_share)
    assert share[0] >= 0.9 > share[1]


def test_more_than_can_be_served_is_said():
    demand = Demand(rate=400.0, count=2000)
    assert run_with_highest_rate(demand, demand.load(1000, 100), [pool(64)]).queue_grows
    assert not run_with_highest_rate(
        Demand(rate=5.0), demand.load(1000, 100), [pool(2000)]
    ).preemptions


def test_percentiles_are_numpys():
    values = [*np.random.default_rng(2).random(101).tolist(), 3.0, 2.0]
    assert _spread_of(values)[1:] == pytest.approx(tuple(np.percentile(values, (50, 90, 99))))
    assert _spread_of([1.0]) == TimeSpread(1.0, 1.0, 1.0, 1.0)


def test_traces(tmp_path):
    csv = tmp_path / "a.csv"
    csv.write_text("arrival_s,input_tokens,output_tokens\n7,10,20\n5.5,3,1\n")
    assert read_trace(csv) == Load((3, 10), (1, 20), [0.0, 1.5])
    lines = tmp_path / "a.jsonl"
    rows = [{"timestamp": 500, "input_length": 3, "output_length": 2, "hash_ids": [1]}]
    lines.write_text("\n".join(json.dumps(row) for row in rows * 2))
    assert read_trace(lines).inputs == (3, 3)
    for text, said in {
        "a,b\n1,2\n": "a.csv:2: a request has arrival_s, input_tokens, output_tokens, not 'a, b'",
        "arrival_s,input_tokens,output_tokens\n": "holds no requests",
        "arrival_s,input_tokens,output_tokens\n-1,1,1\n": "arrival_s: from 0 to 1e9 s",
        "arrival_s,input_tokens,output_tokens\nnan,1,1\n": "arrival_s: from 0 to 1e9 s",
        "arrival_s,input_tokens,output_tokens\n1,0,1\n": "input_tokens: must be at least 1",
        "arrival_s,input_tokens,output_tokens\n1,1,1.5\n": "output_tokens: must be a whole",
    }.items():
        csv.write_text(text)
        with pytest.raises(InputError, match=r"a\.csv") as caught:
            read_trace(csv)
        assert said in str(caught.value)


@pytest.mark.slow
def test_a_model_under_load_in_python():
    told = serve("llama3_8b", "h100", input=1024, output=64, concurrency=16, count=64)
    load = told.load
    assert told.tpot_s == load.tpot_mean_s
    assert told.output_tokens_per_s == pytest.approx(64 * load.requests_per_s)
    assert told.tpot_s > serve("llama3_8b", "h100", 16, 1024, 64).tpot_s
    again = serve("llama3_8b", "h100", input=1024, output=64, concurrency=16, count=64)
    assert again == told
    apart = serve(
        "llama3_8b", "h100", link="infiniband-ndr", rate=2.0, count=100, prefill_replicas=2,
        prefill_tensor=2,
    )  # fmt: skip
    assert apart.device_count == 5
    assert apart.ttft_s == apart.load.ttft_mean_s
    assert apart.load.varied is None


def test_answers_of_users_differ_by_a_tenth_and_are_as_long_in_the_mean():
    load = vary_outputs(Load([100] * 40, [200] * 40, (), 4))
    assert (min(load.outputs), max(load.outputs), sum(load.outputs)) == (180, 220, 40 * 200)
    assert load.inputs == [100] * 40
    one, by_rate = Load([100], [200], (), 1), Load([100] * 2, [200] * 2, [0.0, 0.1])
    assert vary_outputs(one) == one
    assert vary_outputs(by_rate) == by_rate


def test_prompts_that_are_read_first_come_in_waves():
    """Of 16 equal ones each waits for half of a wave; of unlike ones for little but its own."""
    asked = {"input": 1024, "output": 256, "concurrency": 16}
    told = serve("llama3_8b", "h100", stack="sglang-2025", **asked)
    load = told.load
    first, other = load.ttft_mean_s, load.varied.ttft_mean_s
    assert 2.0 < first / other < 8.0
    assert told.ttft_low_s < other < first == told.ttft_s
    assert load.varied.tpot_mean_s > load.tpot_mean_s  # they wait for the others'
    assert serve("llama3_8b", "h100", stack="vllm-2025", **asked).load.varied is None


def test_each_rank_reads_a_budget_of_its_own():
    """Four prompts of 2,000 tokens: one step of four ranks, four steps of a budget for all."""
    load = Load([2000] * 4, [2] * 4, [0.0] * 4)
    ranks = pool(8, step_tokens=8000, rank_count=4)
    assert simulate(load, [ranks]).first_token_s == pytest.approx([4 * 2000 * TOKEN] * 4)
    steps = simulate(Load([8000], [2], [0.0]), [ranks]).pools[0][0]
    assert steps.busy_s > 4 * 2000 * TOKEN  # of a prompt each rank reads no more than its budget


@pytest.mark.parametrize("method", ["roofline", "analytic"])
def test_methods_without_constants_serve_too(method):
    told = serve(
        "gpt2", "t4", dtype="float16", input=900, output=20, method=method, rate=1.0, count=20
    )
    assert told.tpot_low_s is None
    assert 0 < told.tpot_s < told.ttft_s < told.load.request_p50_s


def test_a_trace_with_long_prompts_and_long_answers(tmp_path):
    rows = tmp_path / "a.csv"
    rows.write_text("arrival_s,input_tokens,output_tokens\n0,900,100\n1,1000,20\n2,1000,9999\n")
    told = serve("gpt2", "t4", dtype="float16", requests=rows, count=2)
    assert (told.input_tokens, told.output_tokens, told.load.request_count) == (950, 60, 2)
    with pytest.raises(InputError, match="10999 tokens, and gpt2 has 1024 positions"):
        serve("gpt2", "t4", dtype="float16", requests=rows)
    one = serve("gpt2", "t4", dtype="float16", concurrency=2, output=1, prefill_replicas=1,
                link="ethernet-10", count=10, input=100)  # fmt: skip
    assert one.load.tpot_mean_s is None
