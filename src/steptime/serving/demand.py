"""The demand on a service: requests, their targets, and how the servers are run for them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path

from steptime.core.errors import InputError, shorten
from steptime.core.tables.table_files import table_rows
from steptime.core.toml_files import format_path
from steptime.core.values import parse_count
from steptime.serving.lengths import check_lengths, read_lengths
from steptime.serving.queueing import Load

MAX_REQUESTS = 200_000
MAX_TOKENS = 10_000_000  # of a prompt, and of an answer
MAX_ARRIVAL_S = 1e9
ROUNDS = 10  # requests of a user without --count
DEFAULT_REQUESTS = 1000  # of an open arrival without --count
LOAD_FIELDS = (  # of `Demand`, any of which says that there is a load
    "concurrency",
    "rate",
    "requests",
    "count",
    "seed",
    "lengths",
    "prefill_replicas",
    "prefill_tensor",
    "prefill_data",
    "prefill_expert",
)
COLUMNS = {  # of traces: when, tokens in and out; and the seconds of a unit of the first
    ("arrival_s", "input_tokens", "output_tokens"): 1.0,
    ("timestamp", "input_length", "output_length"): 1e-3,  # Mooncake (Qin et al., FAST 2025)
}


@dataclass(frozen=True)
class Demand:
    """Requests of a service, their targets, and how it is run for them.

    Args:
        concurrency: users, each of whom asks again when the answer is complete.
        rate: requests a second by chance (Poisson).
        requests: a trace of requests.
        count: number of requests; 0 for the default.
        seed: of the chance in which requests come.
        ttft: target of the time to the first token [s].
        tpot: target of the time per output token [s].
        max_running_sequences: sequences of a replica at once; 0 for the default.
        prefill_replicas: further replicas that read prompts and send the cache to the others.
        prefill_tensor: tensor ranks of these; 0 for those of the others.
        prefill_data: data ranks of these; 0 for those of the others.
        prefill_expert: expert ranks of these; 0 for those of the others.
        lengths: how lengths of requests vary about their mean, or a file of them; None for not.
    """

    concurrency: int = 0
    rate: float = 0.0
    requests: Path | None = None
    count: int = 0
    seed: int = 0
    ttft: float = inf
    tpot: float = inf
    max_running_sequences: int = 0
    prefill_replicas: int = 0
    prefill_tensor: int = 0
    prefill_data: int = 0
    prefill_expert: int = 0
    lengths: str | None = None

    @property
    def has_targets(self) -> bool:
        """Whether there is a target."""
        return min(self.ttft, self.tpot) < inf

    @property
    def request_count(self) -> int:
        """The number of requests where no file has them."""
        return self.count or ROUNDS * self.concurrency or DEFAULT_REQUESTS

    def load(self, input_tokens: int, output_tokens: int) -> Load:
        """Return the requests, of so many tokens where no file has them.

        Raises:
            InputError: for too many requests, and a file that holds none.
        """
        if self.requests is not None:
            trace = read_trace(self.requests)
            count = self.count or len(trace.inputs)
            return Load(trace.inputs[:count], trace.outputs[:count], trace.arrivals_s[:count])
        count = self.request_count
        if count > MAX_REQUESTS:
            raise InputError(f"serve: {count:,} requests, at most {MAX_REQUESTS:,}: --count N")
        arrivals_s = poisson_arrivals(self.rate, count, self.seed) if self.rate else []
        inputs = [input_tokens] * count
        outputs = [output_tokens] * count
        if self.lengths:
            inputs, outputs = read_lengths(
                self.lengths, input_tokens, output_tokens, count, self.seed
            )
        # Without a rate, users of a `concurrency` each send a request as their last one ends.
        return Load(inputs, outputs, arrivals_s, self.concurrency)


def check_demand(demand: Demand) -> None:
    """Check that the options of a demand go together.

    Raises:
        InputError: where they do not.
    """
    check_lengths(demand.lengths)
    arrivals = (demand.concurrency, demand.rate, demand.requests)
    if sum(map(bool, arrivals)) != 1:
        raise InputError("serve: a load needs one of --concurrency N, --rate R and --requests FILE")
    if demand.lengths and demand.requests:
        raise InputError("serve: --requests says its lengths; nearest: leave out --lengths")
    # Arrivals at a rate are drawn at random, also at the rates that a search for targets tries.
    draws_arrivals = demand.rate or demand.has_targets
    needs_seed = not demand.requests and (draws_arrivals or demand.lengths)
    if demand.seed and not needs_seed:
        raise InputError("serve: --seed goes with --rate; nearest: leave out --seed")
    split = {
        "tensor": demand.prefill_tensor,
        "data": demand.prefill_data,
        "expert": demand.prefill_expert,
    }
    for name, ranks in split.items():
        if ranks and not demand.prefill_replicas:
            raise InputError(f"serve: --prefill-{name} goes with --prefill-replicas")


def poisson_arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Return the seconds at which requests of a Poisson process come, `rate` a second."""
    draw = random.Random(seed)  # noqa: S311  # no secret
    return [time / rate for time in accumulate(draw.expovariate(1.0) for _ in range(count))]


def read_trace(path: Path) -> Load:
    """Read the requests of a CSV or JSON lines file, the first at 0.

    Raises:
        InputError: for a row without times and tokens, and a file without rows.
    """
    requests: list[tuple[float, int, int]] = []
    for number, row in table_rows(path):
        place = f"{format_path(path)}:{number}"
        # Each known format of columns has its own unit of time.
        names = next((columns for columns in COLUMNS if row.keys() >= set(columns)), None)
        if names is None:
            expected = ", ".join(next(iter(COLUMNS)))
            raise InputError(f"{place}: a request has {expected}, not {shorten(', '.join(row))}")
        unit_s = COLUMNS[names]
        time_name, *token_names = names
        time = row[time_name]
        is_number = type(time) in {int, float}
        if not (is_number and 0 <= time <= MAX_ARRIVAL_S / unit_s):
            raise InputError(f"{place}: {time_name}: from 0 to 1e9 s, not {shorten(time)}")
        input_tokens, output_tokens = (
            parse_count(row[name], f"{place}: {name}", 1, MAX_TOKENS) for name in token_names
        )
        requests.append((time * unit_s, input_tokens, output_tokens))
        if len(requests) > MAX_REQUESTS:
            raise InputError(f"{place}: more than {MAX_REQUESTS:,} requests")
    if not requests:
        raise InputError(f"{format_path(path)}: holds no requests")
    requests.sort(key=lambda request: request[0])
    times_s, inputs, outputs = zip(*requests, strict=True)
    first_s = times_s[0]
    return Load(inputs, outputs, [time_s - first_s for time_s in times_s])
