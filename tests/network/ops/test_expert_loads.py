"""Rows of a token and an expert that ranks have, by hand and by random draws."""

import re

import numpy as np
import pytest

from steptime.core.graph import TensorSpec
from steptime.network.ops import cost_of
from steptime.network.ops.expert_loads import find_rank_load, format_load
from steptime.network.ops.experts import experts_products
from steptime.network.ops.table import ShapeError

POWER_LAWS = ("power_law_1.01", "power_law_1.2")


def draw_busiest_rank(tokens, experts, per_token, ranks, exponent, draws=400):
    """Mean rows of the busiest of some ranks, and of its experts with tokens, of random loads."""
    random = np.random.default_rng(1)
    low, high = (1, 0.8 * tokens) if tokens * per_token > experts else (0.01, 2)
    power = 1 - exponent
    busiest_rows, hit_experts = [], []
    for _ in range(draws):
        share = random.random(experts)
        loads = (low**power + share * (high**power - low**power)) ** (1 / power)
        exact_rows = np.minimum(loads / loads.sum() * per_token, 1) * tokens
        # a fraction of a row is there with its probability
        rows = np.floor(exact_rows + random.random(experts)).reshape(ranks, -1)
        busiest = rows[rows.sum(axis=1).argmax()]
        busiest_rows.append(busiest.sum())
        hit_experts.append((busiest > 0).sum())
    return np.mean(busiest_rows), np.mean(hit_experts)


def test_even_routing_leaves_each_rank_its_share():
    # 4096 tokens choose 8 of 256 experts: 32,768 rows on 32 ranks of 8 experts
    for routing in ("uniform", "balanced"):
        load = find_rank_load(4096, 256, 8, 32, routing)
        assert load.experts == 8
        assert load.rows == 4096 * 8 / 32 == 1024
        assert load.remote_rows == 31 * 1024
        assert load.imbalance == 1
        assert load.read_experts == pytest.approx(8)


def test_few_tokens_reach_some_experts():
    # a token misses an expert with 1 - 8 / 256; of the 64 experts of a rank, 16 tokens hit 25.5
    uniform = find_rank_load(16, 256, 8, 4)
    assert uniform.read_experts == pytest.approx(64 * (1 - (31 / 32) ** 16))
    assert find_rank_load(16, 256, 8, 4, "balanced").read_experts == 32  # a row each
    assert find_rank_load(64, 256, 8, 4, "balanced").read_experts == 64
    # two rows of one token on 8 ranks: one of them has a row, four times the mean
    single = find_rank_load(1, 8, 2, 8)
    assert (single.rows, single.read_experts, single.imbalance) == (1, 1, 4)


@pytest.mark.parametrize("routing", POWER_LAWS)
@pytest.mark.parametrize(
    ("tokens", "experts", "per_token", "ranks"),
    [(4096, 128, 8, 1), (4096, 128, 8, 8), (512, 256, 8, 32), (8, 128, 8, 4), (16384, 16, 1, 4)],
)
def test_skewed_routing_is_that_of_random_draws(tokens, experts, per_token, ranks, routing):
    load = find_rank_load(tokens, experts, per_token, ranks, routing)
    exponent = float(routing.removeprefix("power_law_"))
    rows, hit_experts = draw_busiest_rank(tokens, experts, per_token, ranks, exponent)
    assert load.rows == pytest.approx(rows, rel=0.15)
    assert load.read_experts == pytest.approx(hit_experts, rel=0.15)
    assert load.rows + load.remote_rows == tokens * per_token
    assert load.imbalance == pytest.approx(load.rows / (tokens * per_token / ranks))


def test_a_skewed_router_gives_no_expert_more_than_all_tokens():
    for per_token in (7, 8):  # of 8 experts
        load = find_rank_load(1000, 8, per_token, 8, "power_law_1.2")
        assert load.rows == pytest.approx(1000)
    assert find_rank_load(100, 8, 2, 1, "power_law_1").rows == pytest.approx(200)


def test_a_rank_multiplies_its_rows_and_reads_its_experts():
    shapes = (32, 4), (32, 256), (64, 12, 4), (64, 4, 6)  # 64 of 256 experts
    specs = tuple(TensorSpec(shape, "bfloat16") for shape in shapes)
    attrs = {"per_token": 8, "activation": "swiglu", "expert": 4}
    # 32 * 8 / 4 = 64 rows, one for each expert
    assert experts_products(*specs, **attrs) == ((64, 1, 12, 4), (64, 1, 4, 6))
    flop, moved_bytes = cost_of("experts", specs, tuple(attrs.items()), specs[:1])
    assert flop == 2 * 64 * (12 * 4 + 4 * 6)
    matrix_bytes = 2 * (12 * 4 + 4 * 6) * 64 * (1 - (31 / 32) ** 32)
    other_bytes = 2 * (32 * 4 * 2 + 32 * 256)  # tokens in and out, and their logits
    assert moved_bytes == pytest.approx(matrix_bytes + other_bytes, abs=1)
    skewed = find_rank_load(32, 256, 8, 4, "power_law_1.2")
    (first, *_) = experts_products(*specs, **attrs, routing="power_law_1.2")
    assert first[0] <= round(skewed.read_experts) < 64


def test_a_load_is_described():
    text = "8 experts, 8 of them read, 1,024 rows, 1 x the mean"
    assert format_load(find_rank_load(4096, 256, 8, 32)) == text


@pytest.mark.parametrize(
    ("ranks", "routing", "message"),
    [
        (3, "uniform", "8 experts do not divide into expert 3"),
        (2, "zipf", "routing 'zipf'; those known: uniform, balanced or power_law_A"),
        (2, "power_law_", "routing 'power_law_'"),
        (2, "power_law_400", "routing 'power_law_400'"),
    ],
)
def test_wrong_loads_are_refused(ranks, routing, message):
    with pytest.raises(ShapeError, match=re.escape(message)):
        find_rank_load(10, 8, 2, ranks, routing)
