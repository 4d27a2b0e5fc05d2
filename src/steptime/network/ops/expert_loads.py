"""How a router spreads tokens over experts, and what that leaves for a rank that holds some."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import exp, log
from statistics import fmean
from typing import NamedTuple

from steptime.network.ops.table import ShapeError

UNIFORM = "uniform"
BALANCED = "balanced"
EVEN_ROUTINGS = (UNIFORM, BALANCED)
_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")
PLACEMENTS = 32  # of experts on ranks, over which the busiest rank is averaged
# Numbers of tokens that a power law spreads: up to this share of all tokens, or a few.
MAX_LOAD_SHARE = 0.8
FEW_TOKENS_RANGE = (0.01, 2.0)
MAX_EXPONENT = 10.0  # of a power law: with more, all experts but one have the fewest tokens
ROUNDING = 1e-9  # of a chance, which is at most 1


class RankLoad(NamedTuple):
    """What the busiest rank of a layer of experts does.

    A row is a token for one expert: a token has as many rows as it chooses experts.

    Attributes:
        experts: experts that lie on a rank.
        rows: rows of the rank's experts.
        remote_rows: rows of the same tokens for experts of other ranks.
        read_experts: expected number of its experts that have tokens, whose weights are read.
        imbalance: its rows over the mean of all ranks.
    """

    experts: int
    rows: float
    remote_rows: float
    read_experts: float
    imbalance: float


def format_load(load: RankLoad) -> str:
    """Return a load as text: `8 experts, 7.4 of them read, 2,645 rows, 2.58 x the mean`."""
    rows = f"{load.rows:,.0f} rows, {load.imbalance:.3g} x the mean"
    return f"{load.experts} experts, {load.read_experts:.3g} of them read, {rows}"


def experts_read(experts: int, per_token: int, tokens: float) -> float:
    """Return the expected number of experts that have tokens, whose weights are read.

    Each token chooses `per_token` experts with equal chances. With 8 experts and 2 a token, one
    token reads 2 and two tokens read 8 (1 - 0.75^2) = 3.5.
    """
    return float(experts * (1 - (1 - per_token / experts) ** tokens))


@lru_cache(maxsize=4096)
def find_rank_load(
    tokens: int, experts: int, per_token: int, ranks: int = 1, routing: str = UNIFORM
) -> RankLoad:
    """Return the load of the busiest rank of a layer of experts.

    If routing is even, 4,096 tokens that choose 8 of 256 experts on 32 ranks are
    4096 * 8 / 32 = 1,024 rows for the 8 experts of each rank.

    Args:
        tokens: tokens of all ranks that share the experts.
        experts: experts of the layer.
        per_token: experts that a token chooses.
        ranks: ranks that share out the experts, equally many on each.
        routing: `uniform`, tokens choose experts with equal chances; `balanced`, experts have
            equally many rows; or `power_law_A`, their numbers of rows, from one to 80 % of the
            tokens, have the density x^-A.

    Raises:
        ShapeError: if ranks do not divide experts, or for an unknown routing.
    """
    check_spread(experts, ranks, routing)
    rank_experts = experts // ranks
    all_rows = float(tokens * per_token)
    if routing == UNIFORM:
        rows = all_rows / ranks
        read_experts = experts_read(experts, per_token, tokens) / ranks
    elif routing == BALANCED:
        rows = all_rows / ranks
        read_experts = rows
    else:
        exponent = _parse_exponent(routing)
        chances = _choice_chances(tokens, experts, per_token, exponent)
        rows, read_experts = _find_busiest(tokens, chances, ranks)
    rows = max(1.0, rows)  # the busiest rank has a row
    read_experts = min(max(1.0, read_experts), float(rank_experts))
    return RankLoad(rank_experts, rows, all_rows - rows, read_experts, rows * ranks / all_rows)


def check_spread(experts: int, ranks: int, routing: str) -> None:
    """Raise `ShapeError` if ranks do not divide experts, or for an unknown routing."""
    if ranks < 1 or experts % ranks:
        raise ShapeError(f"{experts} experts do not divide into expert {ranks}")
    if routing not in EVEN_ROUTINGS:
        _parse_exponent(routing)


def _parse_exponent(routing: str) -> float:
    match = _POWER_LAW.fullmatch(routing)
    exponent = float(match[1]) if match else MAX_EXPONENT + 1
    if exponent > MAX_EXPONENT:
        choices = f"{UNIFORM}, {BALANCED} or power_law_A, such as power_law_1.2"
        raise ShapeError(f"routing {routing!r}; those known: {choices}")
    return exponent


def _find_busiest(tokens: int, chances: Sequence[float], ranks: int) -> tuple[float, float]:
    """Return the expected rows of the busiest rank, and its experts that have rows.

    The numbers of rows are given, not drawn: an expert with half a row has one half of the time.

    Args:
        tokens: tokens of all ranks.
        chances: the chance of each expert to be chosen by a token.
        ranks: ranks on which the experts are placed at random.
    """
    busiest_ranks = [
        max((placed_chances[rank::ranks] for rank in range(ranks)), key=sum)
        for placed_chances in _place_randomly(chances, 1 if ranks == 1 else PLACEMENTS)
    ]
    rows = fmean(tokens * sum(rank_chances) for rank_chances in busiest_ranks)
    read_experts = fmean(
        sum(min(1.0, tokens * chance) for chance in rank_chances) for rank_chances in busiest_ranks
    )
    return rows, read_experts


def _choice_chances(
    tokens: int, experts: int, per_token: int, exponent: float
) -> tuple[float, ...]:
    """Return the chance of each expert to be chosen by a token, the rarest first.

    The quantiles of a power law, scaled to `per_token` choices of a token. A token chooses an
    expert once at most: what a chance has above 1 goes to the other experts.

    Source: ai-dynamo/aiconfigurator, collector/helper.py: rows of an expert lie between 1 and 80 %
    of the tokens, or between 0.01 and 2 if no expert has more than one row in the mean.
    """
    low, high = FEW_TOKENS_RANGE
    if tokens * per_token > experts:
        low, high = 1.0, max(1.0, MAX_LOAD_SHARE * tokens)
    loads = [_power_law_quantile((i + 0.5) / experts, exponent, low, high) for i in range(experts)]
    certain_experts = 0  # of chance 1, behind all others
    while True:
        rarer_loads = loads[: experts - certain_experts]
        scale = (per_token - certain_experts) / sum(rarer_loads)
        if scale * rarer_loads[-1] <= 1 + ROUNDING:
            return (*(scale * load for load in rarer_loads), *[1.0] * certain_experts)
        certain_experts += 1


def _power_law_quantile(share: float, exponent: float, low: float, high: float) -> float:
    """Return the number below which a share of those with the density x^-exponent lies."""
    if exponent == 1:
        return low * exp(share * log(high / low))
    power = 1 - exponent
    return float((low**power + share * (high**power - low**power)) ** (1 / power))


def _place_randomly(chances: Sequence[float], count: int) -> Iterator[list[float]]:
    """Yield the chances in several random orders, the same in each call."""
    for i in range(count):
        keys = [blake2b(f"{i} {expert}".encode()).digest() for expert in range(len(chances))]
        order = sorted(range(len(chances)), key=keys.__getitem__)
        yield [chances[expert] for expert in order]
