"""What a service is asked under load: when requests come, and in how many seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.ranges import amount, share, whole_number
from steptime.core.table_files import table_rows
from steptime.core.toml_files import shown
from steptime.serving.queueing import Load

MOST_REQUESTS = 200_000
MOST_TOKENS = 10_000_000  # of a prompt, and of an answer
MOST_S = 1e9
MOST_GUESSES = 64
ROUNDS, COUNT = 10, 1000  # requests of a user, and of all, where nobody says
COLUMNS = {  # of traces: when, tokens in and out; and the seconds of a unit of the first
    ("arrival_s", "input_tokens", "output_tokens"): 1.0,
    ("timestamp", "input_length", "output_length"): 1e-3,  # Mooncake (Qin et al., FAST 2025)
}
READ: dict[str, Callable[[Any, str], Any]] = {  # options that are no whole numbers from 1
    **dict.fromkeys(("rate", "ttft_target", "tpot_target"), amount),
    "accept": share,
    "seed": lambda value, where: whole_number(value, where, 0),
    "requests": lambda value, _: Path(value),
    "draft": lambda value, _: str(value),
}


@dataclass(frozen=True)
class Demand:
    """What a service is asked, in how many seconds, and how it is run for that.

    Requests come `concurrency` at once (the next as one ends), at a `rate` a second by chance, or
    as a file tells. `prefill_replicas` read prompts and send the cache to the others. A `draft`
    network guesses `speculate` tokens a step, each right with the chance `accept`.
    """

    concurrency: int = 0
    rate: float = 0.0
    requests: Path | None = None
    count: int = 0
    seed: int = 0
    ttft_target: float = inf
    tpot_target: float = inf
    max_batch: int = 0
    prefill_replicas: int = 0
    prefill_tensor: int = 0
    draft: str = ""
    speculate: int = 0
    accept: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Demand | None:
        """Return what options ask, None where none is given; raises `InputError`."""
        texts = {name: value for name, value in given.items() if value is not None}
        found = cls(**{
            name: READ.get(name, whole_number)(value, "--" + name.replace("_", "-"))
            for name, value in texts.items()
        })  # fmt: skip
        if texts and sum(map(bool, (found.concurrency, found.rate, found.requests))) != 1:
            raise InputError("serve: requests come by one of --concurrency, --rate and --requests")
        guesses = [bool(found.draft), 0 < found.speculate <= MOST_GUESSES, 0 < found.accept <= 1]
        if texts.keys() & {"draft", "speculate", "accept"} and not all(guesses):
            raise InputError("serve: --draft MODEL, --speculate Q (1..64), --accept W (0..1): all")
        by_chance = found.rate or min(found.ttft_target, found.tpot_target) < inf
        if found.seed and (found.requests or not by_chance):
            raise InputError("serve: --seed goes with --rate; nearest: leave out --seed")
        if found.prefill_tensor and not found.prefill_replicas:
            raise InputError("serve: --prefill-tensor goes with --prefill-replicas")
        return found if texts else None

    def load(self, inputs: int, outputs: int) -> Load:
        """Return the requests, of so many tokens where no file says; raises `InputError`."""
        if self.requests is not None:
            found, most = trace(self.requests), self.count or None
            return Load(found.inputs[:most], found.outputs[:most], found.arrivals_s[:most])
        count = self.count or ROUNDS * self.concurrency or COUNT
        if count > MOST_REQUESTS:
            raise InputError(f"serve: {count:,} requests, at most {MOST_REQUESTS:,}: --count N")
        times = by_chance(self.rate, count, self.seed) if self.rate else []
        return Load([inputs] * count, [outputs] * count, times, self.concurrency)


def by_chance(rate: float, count: int, seed: int) -> list[float]:
    """Return when so many requests of a Poisson process come, `rate` a second."""
    draw = random.Random(seed)  # noqa: S311  # no secret
    return [time / rate for time in accumulate(draw.expovariate(1.0) for _ in range(count))]


def trace(path: Path) -> Load:
    """Return the requests of a CSV or JSON lines file, the first at 0; raises `InputError`."""
    found: list[tuple[float, int, int]] = []
    for number, row in table_rows(path):
        where = f"{shown(path)}:{number}"
        names = next((some for some in COLUMNS if row.keys() >= set(some)), None)
        if names is None:
            wanted = ", ".join(next(iter(COLUMNS)))
            raise InputError(f"{where}: a request has {wanted}, not {shorten(', '.join(row))}")
        time = row[names[0]]
        if not (type(time) in {int, float} and 0 <= time <= MOST_S / COLUMNS[names]):
            raise InputError(f"{where}: {names[0]}: from 0 to 1e9 s, not {shorten(time)}")
        tokens = [whole_number(row[n], f"{where}: {n}", 1, MOST_TOKENS) for n in names[1:]]
        found.append((time * COLUMNS[names], tokens[0], tokens[1]))
        if len(found) > MOST_REQUESTS:
            raise InputError(f"{where}: more than {MOST_REQUESTS:,} requests")
    if not found:
        raise InputError(f"{shown(path)}: holds no requests")
    times, inputs, outputs = zip(*sorted(found, key=lambda one: one[0]), strict=True)
    return Load(inputs, outputs, [time - times[0] for time in times])
