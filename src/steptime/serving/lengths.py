"""Lengths of prompts and answers that vary as those of chats do, in the mean as they are given.

The logarithm of a length is normal (quantiles in shuffled order, so that the mean is exact), as
those of conversations are: of ShareGPT, as Sarathi-Serve samples it (Agrawal et al. 2024, table 2,
openchat_sharegpt4), prompts have a median of 1,730 and a 90th percentile of 5,696 tokens, which is
a standard deviation of 0.93.
"""

import random
from collections.abc import Mapping
from math import exp, inf
from pathlib import Path
from statistics import NormalDist

from steptime.core.errors import InputError, unknown
from steptime.core.tables.table_files import table_rows
from steptime.core.toml_files import format_path
from steptime.core.values import parse_count
from steptime.network.families import language
from steptime.planning.ranks.shape import Shape

DISTRIBUTIONS: Mapping[str, float] = {"constant": 0.0, "sharegpt": 0.93}  # deviation of ln(tokens)
LENGTH_COLUMNS = ("input_tokens", "output_tokens")
LONGEST = 10.0  # times the mean: servers and benchmarks refuse longer ones
MAX_TOKENS = 10_000_000
ROUNDS = 20  # until the mean of lengths that are cut is as it should be


def check_lengths(text: str | None) -> None:
    """Raise `InputError` for a text that is neither a name of `DISTRIBUTIONS` nor a file."""
    if text and text not in DISTRIBUTIONS and not Path(text).is_file():
        raise unknown("distribution of lengths", text, [*DISTRIBUTIONS], "--lengths")


def read_lengths(
    text: str, input_tokens: int, output_tokens: int, count: int, seed: int
) -> tuple[list[int], list[int]]:
    """Return the tokens of prompts and of answers of so many requests.

    Args:
        text: a name of `DISTRIBUTIONS`, or a table with `LENGTH_COLUMNS`, whose rows are repeated.
        input_tokens: mean of prompts; a file has its own.
        output_tokens: mean of answers; a file has its own.
        count: number of requests.
        seed: of the order.

    Raises:
        InputError: for another name, and a file without such rows.
    """
    if text in DISTRIBUTIONS:
        draw = random.Random(seed)  # noqa: S311  # no secret
        deviation = DISTRIBUTIONS[text]
        return (
            _spread_lengths(input_tokens, count, deviation, draw),
            _spread_lengths(output_tokens, count, deviation, draw),
        )
    check_lengths(text)
    path = Path(text)
    rows = [_tokens_of(row, f"{format_path(path)}:{line}") for line, row in table_rows(path)]
    if not rows:
        raise InputError(f"--lengths: {format_path(path)}: holds no requests")
    repeated = [rows[i % len(rows)] for i in range(count)]
    return [tokens for tokens, _ in repeated], [tokens for _, tokens in repeated]


def _tokens_of(row: Mapping[str, object], place: str) -> tuple[int, int]:
    """Return the tokens of prompt and answer of a row; raises `InputError` without them."""
    missing = [name for name in LENGTH_COLUMNS if name not in row]
    if missing:
        raise InputError(f"--lengths: {place}: a row has {', '.join(LENGTH_COLUMNS)}")
    first, second = (
        parse_count(row[name], f"{place}: {name}", 1, MAX_TOKENS) for name in LENGTH_COLUMNS
    )
    return first, second


def _spread_lengths(mean: int, count: int, deviation: float, draw: random.Random) -> list[int]:
    """Return lengths of a lognormal distribution, cut at `LONGEST` times their mean."""
    if not deviation or count == 1:
        return [mean] * count
    normal = NormalDist()
    # Quantiles at even distances instead of random draws: the distribution is exact.
    shares = [exp(deviation * normal.inv_cdf((i + 0.5) / count)) for i in range(count)]
    draw.shuffle(shares)
    scale = count / sum(shares)
    # Cutting the longest lowers the mean, so the scale is raised until the mean is right.
    for _ in range(ROUNDS):
        cut = [min(LONGEST, scale * share) for share in shares]
        scale *= count / sum(cut)
    return [max(1, round(mean * min(LONGEST, scale * share))) for share in shares]


def describe_excess(shape: Shape, length: int) -> list[str]:
    """Describe a request that is longer than the sequences that a model is trained for.

    Outside of the catalogue, a `max_length` that only follows from the usual `length` says nothing
    of the model's limits. For example `9,000 tokens are beyond the length of llama3_8b, 8,192`.
    """
    max_length = language.rows().get(shape.family.name, {}).get("max_length")  # of the catalogue
    if max_length is None:
        # Networks that state no `max_length` have that of their usual `length`: it is no limit.
        network_length = int(shape.kind_settings["max_length"])
        max_length = network_length if network_length > shape.length else inf
    if length <= max_length:
        return []
    return [f"{length:,} tokens are beyond the length of {shape.label}, {max_length:,}"]
