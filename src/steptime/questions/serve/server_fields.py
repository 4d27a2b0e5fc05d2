"""Fields that answers of `serve` share: costs, times, memory, and percentiles under load."""

from typing import TypedDict

from steptime.hardware.prices import Offer
from steptime.prediction.kernel import Interval
from steptime.questions.serve.server_parts import PhaseTimes, RequestSpreads, StackTimes
from steptime.serving.load import LoadRun
from steptime.serving.memory import ServerMemory
from steptime.serving.step_cost import StepCost
from steptime.serving.times import StackedTimes

SECONDS_PER_HOUR = 3600


class CostFields(TypedDict):
    """The fields of an answer with prices; None where no price is known."""

    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    currency: str | None
    offer: str | None
    price_date: str | None


class IntervalFields(TypedDict):
    """The fields of an answer with the intervals of the mean times of a request."""

    ttft_low_s: float | None
    ttft_high_s: float | None
    tpot_low_s: float | None
    tpot_high_s: float | None
    request_low_s: float | None
    request_high_s: float | None
    any_stack_ttft_low_s: float | None
    any_stack_ttft_high_s: float | None
    any_stack_tpot_low_s: float | None
    any_stack_tpot_high_s: float | None
    any_stack_request_low_s: float | None
    any_stack_request_high_s: float | None


class PowerFields(TypedDict):
    """The fields of an answer with the mean power of a device; None where unknown."""

    device_w: float | None
    device_low_w: float | None
    device_high_w: float | None


class MemoryFields(TypedDict):
    """The fields of an answer with the memory of a device."""

    needed_bytes: float
    over_bytes: float | None
    weights_bytes: float
    cache_bytes: float
    activations_bytes: float
    buffers_bytes: float
    context_bytes: float
    cache_bytes_per_token: float
    largest_running_sequences: int | None
    cache_tokens: int | None
    longest_context: int | None


def price_tokens(offer: Offer | None, device_count: int, tokens_per_s: float) -> CostFields:
    """Return the costs of a server by the price of a device; none without an offer."""
    per_hour = None
    per_million = None
    if offer is not None:
        per_hour = offer.price * device_count
        seconds_per_million = 1e6 / tokens_per_s
        per_million = per_hour * seconds_per_million / SECONDS_PER_HOUR
    return {
        "cost_per_hour": per_hour,
        "cost_per_million_tokens": per_million,
        "currency": None if offer is None else offer.currency,
        "offer": None if offer is None else offer.name,
        "price_date": None if offer is None else offer.date,
    }


def interval_fields(stacked: StackedTimes) -> IntervalFields:
    """Return the intervals of the times of a request, under its stack and over any stack."""
    times, any_stack = stacked.times, stacked.any_stack
    return {
        "ttft_low_s": times.ttft.low,
        "ttft_high_s": times.ttft.high,
        "tpot_low_s": times.tpot.low,
        "tpot_high_s": times.tpot.high,
        "request_low_s": times.request.low,
        "request_high_s": times.request.high,
        "any_stack_ttft_low_s": any_stack.ttft.low,
        "any_stack_ttft_high_s": any_stack.ttft.high,
        "any_stack_tpot_low_s": any_stack.tpot.low,
        "any_stack_tpot_high_s": any_stack.tpot.high,
        "any_stack_request_low_s": any_stack.request.low,
        "any_stack_request_high_s": any_stack.request.high,
    }


def power_fields(power: Interval | None) -> PowerFields:
    """Return the mean power of a device by the fields of an answer."""
    if power is None:
        return {"device_w": None, "device_low_w": None, "device_high_w": None}
    return {"device_w": power.value, "device_low_w": power.low, "device_high_w": power.high}


def memory_fields(memory: ServerMemory) -> MemoryFields:
    """Return the memory of a device by the fields of an answer."""
    return {
        "needed_bytes": memory.needed_bytes,
        "over_bytes": memory.over_bytes,
        "weights_bytes": memory.weights_bytes,
        "cache_bytes": memory.cache_bytes,
        "activations_bytes": memory.activations_bytes,
        "buffers_bytes": memory.buffers_bytes,
        "context_bytes": memory.context_bytes,
        "cache_bytes_per_token": memory.cache_bytes_per_token,
        "largest_running_sequences": memory.largest_running_sequences,
        "cache_tokens": memory.cache_tokens,
        "longest_context": memory.longest_context,
    }


def request_spreads(run: LoadRun) -> RequestSpreads:
    """Return the times of requests under load."""
    tpot = run.tpot  # None where all requests have one token
    return RequestSpreads(
        ttft_mean_s=run.ttft.mean_s,
        ttft_p50_s=run.ttft.p50_s,
        ttft_p90_s=run.ttft.p90_s,
        ttft_p99_s=run.ttft.p99_s,
        tpot_mean_s=None if tpot is None else tpot.mean_s,
        tpot_p50_s=None if tpot is None else tpot.p50_s,
        tpot_p90_s=None if tpot is None else tpot.p90_s,
        tpot_p99_s=None if tpot is None else tpot.p99_s,
        request_mean_s=run.request.mean_s,
        request_p50_s=run.request.p50_s,
        request_p90_s=run.request.p90_s,
        request_p99_s=run.request.p99_s,
    )


def stack_times(stacked: StackedTimes) -> tuple[StackTimes, ...]:
    """Return the times under the other possible stacks as parts of an answer."""
    return tuple(
        StackTimes(
            stack=name,
            ttft_s=times.ttft.value,
            tpot_s=times.tpot.value,
            request_s=times.request.value,
        )
        for name, times in stacked.by_stack.items()
    )


def phase_times(step: StepCost, prompt_s: float | None = None) -> PhaseTimes:
    """Return the parts of a phase's step; `prompt_s`: the server's CPU before the first token."""
    return PhaseTimes(
        products_s=step.products_s,
        attention_s=step.attention_s,
        other_s=step.other_s,
        communication_s=step.exchange_s,  # between the ranks
        host_s=step.host_s,
        prompt_s=prompt_s,
    )
