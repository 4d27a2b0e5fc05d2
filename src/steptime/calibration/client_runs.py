"""Runs of clients against a server of a language model, and the cases that they are of a service.

A run has the requests of a client and what it measured of them: means of the time to the first
token and of the whole request.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from statistics import fmean

from steptime.core.errors import InputError
from steptime.serving.load import EDGE_SHARE
from steptime.serving.queueing import Load

MAX_SIMULATED = 1000  # requests of a run; those of a longer one say the same
MIN_REQUESTS = 4  # that succeeded: fewer tell no mean
MAX_SECONDS = 1e6
MAX_TOKENS = 10_000_000


@dataclass(frozen=True)
class ClientRequest:
    """A request as a client saw it.

    Args:
        arrival_s: when it was sent; None where nobody says.
        input_tokens: tokens of the prompt.
        output_tokens: tokens of the answer.
        ttft_s: time to the first token; None where the answer did not stream.
        request_s: time until the last token.
    """

    arrival_s: float | None
    input_tokens: int
    output_tokens: int
    ttft_s: float | None
    request_s: float


@dataclass(frozen=True)
class Traffic:
    """How a client sends its requests.

    Args:
        concurrency: requests that are under way at once; 0 without a limit.
        rate: requests a second; 0 where all are sent at once, or nobody says.
        burstiness: shape of the gamma distribution of the gaps between requests: 1 is a Poisson
            process, infinity a constant gap.
    """

    concurrency: int = 0
    rate: float = 0.0
    burstiness: float = 1.0

    @property
    def is_closed_loop(self) -> bool:
        """Whether each user waits for an answer before the next request."""
        return self.concurrency > 0 and not self.rate

    def arrivals_s(self, count: int) -> list[float]:
        """Return when so many requests are sent, the first at 0; the same at each call."""
        if not self.rate:
            return [0.0] * count
        # Equal gaps.
        if self.burstiness == inf:
            return [k / self.rate for k in range(count)]
        # Always the same seed, so that a run is simulated alike each time.
        draw = random.Random(0)  # noqa: S311  # no secret
        scale_s = 1 / (self.rate * self.burstiness)
        gaps_s = [draw.gammavariate(self.burstiness, scale_s) for _ in range(count - 1)]
        return list(accumulate(gaps_s, initial=0.0))


@dataclass(frozen=True)
class ClientRun:
    """A run of a client against one server.

    Args:
        place: the file, and the place in it.
        group: what is left out of a fit at once: the run that the place is a part of.
        settings: what the file says of the server, by names of `serve`'s options.
        load: the requests that are simulated.
        ttft_s: mean time to the first token; None where answers did not stream.
        request_s: mean time of a whole request.
        request_count: requests that succeeded.
        failed_count: requests that failed, which are left out.
    """

    place: str
    group: str
    settings: Mapping[str, object]
    load: Load
    ttft_s: float | None
    request_s: float
    request_count: int
    failed_count: int = 0


@dataclass(frozen=True)
class RunMeans:
    """What a summary says of a run.

    Args:
        count: requests that succeeded.
        input_tokens: mean tokens of a prompt.
        output_tokens: mean tokens of an answer.
        ttft_s: mean time to the first token; None where answers did not stream.
        request_s: mean time of a whole request; None where only `tpot_s` says it.
        tpot_s: mean time per output token after the first.
    """

    count: int
    input_tokens: float
    output_tokens: float
    ttft_s: float | None
    request_s: float | None
    tpot_s: float | None = None


@dataclass(frozen=True)
class RunFacts:
    """What is said of a run beside its requests.

    Args:
        place: the file, and the place in it.
        group: the run that the place is a part of.
        settings: what the file says of the server.
        traffic: how requests are sent.
        failed_count: requests that failed.
    """

    place: str
    group: str
    settings: Mapping[str, object] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    failed_count: int = 0


def make_run_from_requests(requests: Sequence[ClientRequest], facts: RunFacts) -> ClientRun:
    """Return the run of requests that are known one by one.

    Requests of a limited number at once follow each other as answers come; others come when they
    were sent, or as their rate says. Means of the latter leave out the first and last tenth, in
    which the server fills and drains, as the simulation does.

    Raises:
        InputError: for too few requests.
    """
    _check_count(len(requests), facts)
    has_arrivals = all(request.arrival_s is not None for request in requests)
    ordered_requests = [*requests]
    if has_arrivals:
        ordered_requests.sort(key=lambda request: request.arrival_s or 0.0)
    simulated_requests = ordered_requests[:MAX_SIMULATED]
    inputs = [request.input_tokens for request in simulated_requests]
    outputs = [request.output_tokens for request in simulated_requests]
    traffic = facts.traffic
    if traffic.is_closed_loop:
        concurrency = min(traffic.concurrency, len(simulated_requests))
        load = Load(inputs, outputs, concurrency=concurrency)
    elif has_arrivals:
        first_arrival_s = simulated_requests[0].arrival_s or 0.0
        arrivals_s = [
            (request.arrival_s or 0.0) - first_arrival_s for request in simulated_requests
        ]
        load = _make_open_load(inputs, outputs, arrivals_s)
    else:
        load = _make_open_load(inputs, outputs, traffic.arrivals_s(len(simulated_requests)))
    # Open arrivals: the first and the last requests meet servers that fill and drain.
    edge_count = 0 if load.concurrency else int(EDGE_SHARE * len(simulated_requests))
    steady_requests = simulated_requests[edge_count : len(simulated_requests) - edge_count]
    ttfts_s = [request.ttft_s for request in steady_requests if request.ttft_s is not None]
    return _make_run(
        facts,
        load,
        # A mean over some of the requests could not be compared.
        ttft_s=fmean(ttfts_s) if len(ttfts_s) == len(steady_requests) else None,
        request_s=fmean(request.request_s for request in steady_requests),
        count=len(requests),
    )


def make_run_from_means(means: RunMeans, facts: RunFacts) -> ClientRun:
    """Return the run of a summary, whose requests all have its mean lengths.

    Raises:
        InputError: for too few requests, and for a summary without the time of a request.
    """
    _check_count(means.count, facts)
    request_s = means.request_s
    if request_s is None and means.ttft_s is not None and means.tpot_s is not None:
        request_s = means.ttft_s + means.tpot_s * (means.output_tokens - 1)
    if request_s is None:
        raise InputError(f"{facts.place}: has neither the time of a request nor TTFT and TPOT")
    count = min(means.count, MAX_SIMULATED)
    inputs = [max(1, round(means.input_tokens))] * count
    outputs = [max(1, round(means.output_tokens))] * count
    traffic = facts.traffic
    if traffic.is_closed_loop:
        load = Load(inputs, outputs, concurrency=min(traffic.concurrency, count))
    else:
        load = _make_open_load(inputs, outputs, traffic.arrivals_s(count))
    return _make_run(facts, load, means.ttft_s, request_s, means.count)


def _make_open_load(
    inputs: Sequence[int], outputs: Sequence[int], arrivals_s: Sequence[float]
) -> Load:
    """Return requests that come at times, or that all come at once."""
    has_equal_arrivals = arrivals_s[-1] == arrivals_s[0]
    if has_equal_arrivals:  # all come at once, as from as many users with one request each
        return Load(inputs, outputs, concurrency=len(inputs))
    return Load(inputs, outputs, arrivals_s)


def _make_run(
    facts: RunFacts, load: Load, ttft_s: float | None, request_s: float, count: int
) -> ClientRun:
    """Return the run with its means, each of them checked."""
    for name, value in (("TTFT", ttft_s), ("time of a request", request_s)):
        if value is not None and not 0 < value <= MAX_SECONDS:
            raise InputError(f"{facts.place}: the mean {name} is {value:g} s: no time of a request")
    if ttft_s is not None and ttft_s > request_s:
        text = f"the mean TTFT, {ttft_s:g} s, is above the mean time of a request"
        raise InputError(f"{facts.place}: {text}, {request_s:g} s")
    return ClientRun(
        place=facts.place,
        group=facts.group,
        settings=facts.settings,
        load=load,
        ttft_s=ttft_s,
        request_s=request_s,
        request_count=count,
        failed_count=facts.failed_count,
    )


def _check_count(count: int, facts: RunFacts) -> None:
    if count >= MIN_REQUESTS:
        return
    failed = f", and {facts.failed_count} that failed" if facts.failed_count else ""
    text = f"{facts.place}: {count} requests with times{failed}"
    raise InputError(f"{text}: a calibration needs {MIN_REQUESTS} at least")
