"""Times of requests of a service: the first token, each further one, and a whole request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from steptime.core.errors import InputError
from steptime.prediction.calibrated.interval import mix_intervals
from steptime.prediction.calibrated.power import running_w, step_joules
from steptime.prediction.conformal import FIRST_TOKENS
from steptime.prediction.kernel import Interval
from steptime.serving.demand import Demand
from steptime.serving.load import (
    LoadRun,
    TimeSpread,
    make_pool,
    run_requests,
    run_with_highest_rate,
    transfer_time,
    vary_outputs,
)
from steptime.serving.phases import Phases
from steptime.serving.queueing import Load, transfer_free
from steptime.serving.service import Service, find_fitting_change
from steptime.serving.speculation import price_token
from steptime.serving.step_cost import StepCost

RunLoad = Callable[..., LoadRun]


@dataclass(frozen=True)
class RequestTimes:
    """Times of a request with their 80 % intervals; under load means over requests.

    Args:
        ttft: time to the first token [s].
        tpot: time of each further token [s].
        request: time of the whole request [s].
    """

    ttft: Interval
    tpot: Interval
    request: Interval

    @property
    def has_intervals(self) -> bool:
        """Whether the method has intervals."""
        return None not in (self.ttft.low, self.tpot.low, self.request.low)


@dataclass(frozen=True)
class StackedTimes:
    """Times of a request under the stack of a service, and under all stacks that are possible.

    Args:
        times: the times under the stack of the service.
        any_stack: the same times with intervals that hold those of all possible stacks.
        by_stack: the times under the other possible stacks, by the name of the stack.
        nearest: the newest of the other stacks; None without any.
    """

    times: RequestTimes
    any_stack: RequestTimes
    by_stack: dict[str, RequestTimes]
    nearest: str | None


def predict_times(service: Service, phases: Phases, run: LoadRun | None) -> RequestTimes:
    """Return the times of a request of a service.

    Args:
        service: the service; under load with the mean lengths of `average_service`.
        phases: its phases.
        run: its run under load, None where all requests come at once.
    """
    # In the mean half of the answer lies in the cache.
    context = service.input + service.output / 2
    decode = price_token(phases, phases.guesses, service.running_sequences, context)
    tpot_s = decode.seconds
    if run is None:
        prefill = service.price_prompts(phases, service.running_sequences)
        ttft_s = prefill.seconds + phases.prompt_overhead_s(service.uncached_tokens)
        decoding_s = (service.output - 1) * tpot_s
        request_s = ttft_s + decoding_s
        exchange_s = prefill.exchange_s + decoding_s * decode.exchange_share
        return RequestTimes(
            phases.interval_of(ttft_s, exchange_share=prefill.exchange_s / ttft_s),
            phases.interval_of(tpot_s, exchange_share=decode.exchange_share),
            phases.interval_of(request_s, exchange_share=exchange_s / request_s),
        )
    # The lengths as given and slightly varied are equally likely.
    load_runs = [load_run for load_run in (run, run.varied) if load_run is not None]
    alternatives = []
    for load_run in load_runs:
        mean_tpot_s = _mean_s(load_run.tpot, tpot_s)
        times = RequestTimes(
            phases.interval_of(load_run.ttft.mean_s, FIRST_TOKENS),
            phases.interval_of(mean_tpot_s, exchange_share=decode.exchange_share),
            phases.interval_of(load_run.request.mean_s, exchange_share=decode.exchange_share),
        )
        alternatives.append(times)
    return _mix_times(alternatives)


def _mean_s(spread: TimeSpread | None, default_s: float) -> float:
    """Return the mean, the default where requests have one token."""
    return default_s if spread is None else spread.mean_s


def _mix_times(alternatives: Sequence[RequestTimes]) -> RequestTimes:
    """Return the first times, with the 80 % intervals of all, each of the same weight."""
    # The first alternative gives the times. The others (other serving stacks, lengths that vary)
    # only widen the intervals around them: an interval covers all alternatives, equally likely.
    predicted = alternatives[0]
    if len(alternatives) == 1 or not predicted.has_intervals:
        return predicted
    return RequestTimes(
        _mix_equally([times.ttft for times in alternatives]),
        _mix_equally([times.tpot for times in alternatives]),
        _mix_equally([times.request for times in alternatives]),
    )


def _mix_equally(intervals: Sequence[Interval]) -> Interval:
    equal_weight = 1.0
    low, high = mix_intervals([(equal_weight, interval) for interval in intervals])
    return Interval(intervals[0].value, low, high)  # the value is the first one's


def widen_over_stacks(
    service: Service, load: Load | None, phases: Phases, times: RequestTimes
) -> StackedTimes:
    """Widen the intervals of a service without a named stack over all stacks that are possible.

    Each family of servers weighs the same. Times without intervals, and those of a named stack,
    stay as they are.
    """
    software = phases.problem.software
    if software is None or not times.has_intervals:
        return StackedTimes(times, any_stack=times, by_stack={}, nearest=None)
    by_stack: dict[str, RequestTimes] = {}
    for name in software.years_by_stack:
        if name == software.stack:
            continue
        try:
            candidate = replace(service, stack=name)  # replicas that only read prompts, too
            phases = candidate.phases()
            run = None if load is None else run_service(candidate, load, phases, run_requests)
            by_stack[name] = predict_times(average_service(candidate, run), phases, run)
        except InputError:  # the stack does not run such a service
            continue
    nearest = software.newest_alternative if software.newest_alternative in by_stack else None
    any_stack = _mix_times([times, *by_stack.values()])
    return StackedTimes(times, any_stack, by_stack, nearest)


def average_service(service: Service, run: LoadRun | None) -> Service:
    """Return a service with the sequences and the lengths that it has in the mean under load."""
    if run is None:
        return service
    return replace(
        service,
        running_sequences=max(1, round(run.running_sequences)),
        input=max(1, round(run.input_tokens)),
        output=max(1, round(run.output_tokens)),
    )


def run_service(
    service: Service, load: Load, phases: Phases, run_load: RunLoad = run_with_highest_rate
) -> LoadRun:
    """Run the requests of a service under load.

    Args:
        service: the service with its demand.
        load: the requests.
        phases: the phases of the service.
        run_load: `run_requests` where the highest rate that meets targets is not searched.

    Raises:
        InputError: where the weights leave no room for a cache, and for too many replicas.
    """
    demand = service.demand or Demand()
    if phases.room_bytes <= 0:
        change = find_fitting_change(replace(service, running_sequences=1))
        option = "none" if change is None else change.option
        raise InputError(f"serve: weights leave no room for a cache; nearest: {option}")
    pool = make_pool(phases, demand, load, service.replicas, service.prefix)
    pools = [pool]
    device_count = service.device_count * service.replicas
    transfer_s: Callable[[int], float] = transfer_free
    if demand.prefill_replicas:  # other servers read the prompts, and send their caches
        reader = service.readers()
        reader_phases = reader.phases()
        reader_replicas = demand.prefill_replicas
        reader_pool = make_pool(reader_phases, demand, load, reader_replicas, service.prefix)
        pools = [reader_pool, pool]
        device_count += reader.device_count * reader_replicas
        transfer_s = transfer_time(reader_phases, service.site)
    run = run_load(demand, load, pools, transfer_s)
    # A pool that mixes phases has varied lengths in any case.
    varied_load = vary_outputs(load)
    varied = None
    if varied_load != load and not pool.mixes_prefill:
        varied = run_requests(demand, varied_load, pools, transfer_s)
    return replace(run, device_count=device_count, varied=varied)


@dataclass(frozen=True)
class ServerEnergy:
    """Energy of a service.

    Args:
        per_token_j: joules of a token, of all devices of a replica.
        device_w: mean power of a device.
    """

    per_token_j: float
    device_w: float


def predict_energy(
    service: Service, phases: Phases, prefill: StepCost, decode: StepCost
) -> ServerEnergy | None:
    """Return the energy of a service; None where the power of the device is unknown.

    Args:
        service: the service.
        phases: its phases.
        prefill: the step that reads all prompts.
        decode: a step that makes a token of each sequence.
    """
    energy_j = duration_s = 0.0
    # Each of these steps runs all sequences of a replica. The prefill makes their first tokens.
    for step, count in ((prefill, 1), (decode, service.output - 1)):
        value_low_high_s = (step.seconds, step.seconds, step.seconds)  # no interval is needed
        running_j = running_w(phases.device) * (step.seconds - step.host_s)
        # The joules of a step are those of all stages of the pipeline, which this device is one of.
        device_j = step.joules / service.pipeline + running_j
        step_energy = step_joules(device_j, value_low_high_s, phases.device)
        if step_energy is None:
            return None
        energy_j += count * step_energy.value
        duration_s += count * step.seconds
    tokens = service.running_sequences * service.output
    return ServerEnergy(energy_j * service.device_count / tokens, energy_j / duration_s)
