"""One server: its times, memory, cost and energy, from the phases of its service."""

from dataclasses import dataclass, replace
from typing import Any

from msgspec.structs import asdict

from steptime.core.errors import InputError
from steptime.core.units import counted, percent, seconds, size
from steptime.hardware.software import defaults_for
from steptime.planning.answer import find_offer, fit_notes
from steptime.planning.language_model import read_language_model
from steptime.prediction.conformal import POWER
from steptime.prediction.kernel import Interval
from steptime.questions.serve.options import ServeOptions
from steptime.questions.serve.server_answer import ServerAnswer
from steptime.questions.serve.server_fields import (
    interval_fields,
    memory_fields,
    price_tokens,
    request_spreads,
)
from steptime.questions.serve.server_parts import (
    PhaseTimes,
    PredictDifference,
    ServerLoad,
    StackTimes,
)
from steptime.serving.load import (
    ATTAINED_SHARE,
    LoadRun,
    default_max_running,
)
from steptime.serving.memory import ServerMemory, largest_running_sequences, memory_of
from steptime.serving.phases import Phases, describe_excess
from steptime.serving.predict_difference import explain_predict_difference
from steptime.serving.profile_run import describe_sampler
from steptime.serving.queueing import Load
from steptime.serving.service import FittingChange, Service, find_fitting_change
from steptime.serving.speculation import describe_speculation, price_token
from steptime.serving.step_cost import StepCost
from steptime.serving.times import (
    RequestTimes,
    StackedTimes,
    average_service,
    predict_energy,
    predict_times,
    run_service,
    widen_over_stacks,
)

ENERGY_SCOPE = "devices alone: nodes add more"


@dataclass(frozen=True)
class _Server:
    """A service with its phases, its run under load and its times.

    Args:
        service: the service; under load with the mean sequences and lengths.
        load: the requests; None where all come at once.
        phases: its phases.
        run: its run under load; None where all come at once.
        stacked: its times.
    """

    service: Service
    load: Load | None
    phases: Phases
    run: LoadRun | None
    stacked: StackedTimes

    @property
    def times(self) -> RequestTimes:
        """The times of a request."""
        return self.stacked.times

    @property
    def device_count(self) -> int:
        """The devices of all replicas."""
        if self.run is not None:
            return self.run.device_count
        return self.service.device_count * self.service.replicas

    @property
    def output_tokens_per_s(self) -> float:
        """The throughput of all replicas."""
        if self.run is not None:
            return self.run.output_tokens_per_s
        service = self.service
        tokens = service.output * service.running_sequences * service.replicas
        return tokens / self.times.request.value

    @property
    def is_single(self) -> bool:
        """Whether one sequence is served by one device, as `predict` has it."""
        is_alone = self.service.running_sequences == self.service.device_count == 1
        return self.run is None and is_alone

    @property
    def memory(self) -> ServerMemory:
        """The memory of a device; under load of as many sequences as have room."""
        service, sequences = self.service, self.service.running_sequences
        if self.run is not None:
            room = largest_running_sequences(self.phases, service.length, service.input)
            sequences = min(sequences, room)
        return memory_of(self.phases, sequences, service.length, service.input)


def answer_server(service: Service, options: ServeOptions) -> ServerAnswer:
    """Answer `serve` for one service.

    Raises:
        InputError: for a service that cannot be.
    """
    server = _predict_server(service)
    service, phases = server.service, server.phases
    problem = phases.problem
    prompts = service.price_prompts(phases, service.running_sequences)
    first = prompts if server.run is None else service.price_prompts(phases, 1)
    context = service.input + service.output / 2
    decode = price_token(phases, phases.guesses, service.running_sequences, context)
    memory, energy = server.memory, predict_energy(service, phases, prompts, decode)
    change = find_fitting_change(service) if memory.over_bytes else None
    tokens_per_s, device_count = server.output_tokens_per_s, server.device_count
    headline = (
        *_describe_memory(server, memory, change, options),
        *_describe_host_bound(phases, decode),
        *_describe_targets(server, options),
    )
    return ServerAnswer(
        emitted=None,
        understood=None,
        not_used=(),
        model=service.model,
        device=problem.device.name,
        device_count=device_count,
        **service.split,
        running_sequences=service.running_sequences,
        input_tokens=service.input,
        output_tokens=service.output,
        dtype=problem.rank.dtype,
        weights=phases.weight_format,
        kv=phases.cache_format,
        method=problem.method.name,
        stack=problem.method.settings.stack,
        nearest_stack=server.stacked.nearest,
        other_stacks=stack_times(server.stacked),
        assumed=_assumed(server, options),
        ttft_s=server.times.ttft.value,
        tpot_s=server.times.tpot.value,
        request_s=server.times.request.value,
        **interval_fields(server.stacked),
        ttft_target_s=options.ttft_s,
        tpot_target_s=options.tpot_s,
        holds_targets=_does_hold_targets(server, options),
        output_tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / device_count,
        tokens_per_s_per_user=1 / server.times.tpot.value,
        prefill=_phase_times(first, phases.prompt_overhead_s(server.service.uncached_tokens)),
        decode=_phase_times(decode),
        predict_difference=_predict_difference(server),
        energy_per_token_j=None if energy is None else energy.per_token_j,
        **_power_fields(None if energy is None else phases.interval_of(energy.device_w, POWER)),
        energy_scope=None if energy is None else ENERGY_SCOPE,
        fits=not memory.over_bytes,
        usable_bytes=problem.device.datasheet.usable_bytes,
        **memory_fields(memory),
        fitting_change=None if change is None else change.option,
        fitting_needed_bytes=None if change is None else change.needed_bytes,
        **price_tokens(find_offer(problem, service.prices), device_count, tokens_per_s),
        load=None if server.run is None else _server_load(server.run),
        headline=headline,
        notes=tuple(_make_notes(service, phases)),
    )


def _predict_server(service: Service) -> _Server:
    """Return a service with its phases, its run under load and its times; raises `InputError`."""
    load = None
    if service.demand is not None:
        load = service.demand.load(service.input, service.output)
        if service.running_sequences > 1:
            limit = "under load there is --max-running-sequences"
            raise InputError(f"serve: --running-sequences come at once; {limit}")
        # The longest request decides the memory; the run has the lengths of all.
        request_lengths = zip(load.inputs, load.outputs, strict=True)
        longest_input, longest_output = max(request_lengths, key=sum)
        service = replace(service, input=longest_input, output=longest_output)
    phases = service.phases()
    run = None if load is None else run_service(service, load, phases)
    average = average_service(service, run)
    times = predict_times(average, phases, run)
    stacked = widen_over_stacks(service, load, phases, times)
    return _Server(average, load, phases, run, stacked)


def _assumed(server: _Server, options: ServeOptions) -> dict[str, str]:
    """Return the values of options that were not given and decide the answer.

    Where the stack is named, the other stacks that could be meant are no longer part of the answer.
    """
    service, problem = server.service, server.phases.problem
    values = {"dtype": problem.rank.dtype}
    if "stack" in problem.method.options:
        values["stack"] = problem.method.settings.stack
    if service.weights is None and problem.shape.family.weights and server.phases.weight_format:
        values["weights"] = server.phases.weight_format
    if server.device_count > 1:
        values["per_node"] = str(service.site.per_node)
        if service.site.inside is not None:
            values["inside"] = service.site.inside
    if service.speculation is not None:
        speculation = service.speculation
        values |= {"speculate": str(speculation.tokens), "accept": f"{speculation.accept:g}"}
    demand, load = service.demand, server.load
    if demand is not None and load is not None:
        values["count"] = str(len(load.inputs))
        if demand.rate:
            values["seed"] = str(demand.seed)
        if not demand.requests:
            values["lengths"] = "constant"
        if not demand.prefill_replicas:
            software_max = int(server.phases.limit("max_sequences"))
            limit = default_max_running(demand, load, service.replicas, software_max)
            values["max_running_sequences"] = str(limit)
    return options.without_default(values)


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


def _phase_times(step: StepCost, prompt_s: float | None = None) -> PhaseTimes:
    return PhaseTimes(
        products_s=step.products_s,
        attention_s=step.attention_s,
        other_s=step.other_s,
        communication_s=step.exchange_s,
        host_s=step.host_s,
        prompt_s=prompt_s,
    )


def _predict_difference(server: _Server) -> PredictDifference | None:
    """Return the difference from `predict`, None for several sequences or devices."""
    if not server.is_single:
        return None
    return PredictDifference(**explain_predict_difference(server.phases, server.service.input))


def _server_load(run: LoadRun) -> ServerLoad:
    """Return a run under load as a part of an answer."""
    return ServerLoad(
        **asdict(request_spreads(run)),
        request_count=run.request_count,
        counted_requests=run.counted_requests,
        duration_s=run.duration_s,
        requests_per_s=run.requests_per_s,
        output_tokens_per_s=run.output_tokens_per_s,
        in_time_share=run.in_time_share,
        goodput_per_s=run.requests_per_s * run.in_time_share,
        highest_rate_per_s=run.highest_rate_per_s,
        busy_shares=run.busy_shares,
        running_sequences=run.running_sequences,
        input_tokens=run.input_tokens,
        output_tokens=run.output_tokens,
        cache_share=run.cache_share,
        preemptions=run.preemptions,
        queue_grows=run.queue_grows,
        varied=None if run.varied is None else request_spreads(run.varied),
    )


def _does_hold_targets(server: _Server, options: ServeOptions) -> bool | None:
    """Return whether a server holds its targets; None without targets."""
    ttft_s, tpot_s = options.ttft_s, options.tpot_s
    if ttft_s is None and tpot_s is None:
        return None
    if server.run is not None:
        return server.run.in_time_share >= ATTAINED_SHARE and not server.run.queue_grows
    holds_ttft = ttft_s is None or server.times.ttft.value <= ttft_s
    return holds_ttft and (tpot_s is None or server.times.tpot.value <= tpot_s)


def _describe_targets(server: _Server, options: ServeOptions) -> list[str]:
    """Describe whether targets hold: `97 % of requests hold TTFT 500 ms`; none without targets."""
    holds = _does_hold_targets(server, options)
    if holds is None:
        return []
    values = (("TTFT", options.ttft_s), ("TPOT", options.tpot_s))
    targets = " and ".join(f"{name} {seconds(value)}" for name, value in values if value)
    if server.run is not None:
        return [f"{percent(server.run.in_time_share)} of requests hold {targets}"]
    return [f"{'holds' if holds else 'misses'} {targets}"]


def _describe_lack(memory: ServerMemory, change: FittingChange | None) -> list[str]:
    """Describe the memory that lacks and the change that helps; none where all fits."""
    if not memory.over_bytes:
        return []
    remedy = "no change fits" if change is None else f"nearest that fits: {change.option}"
    return [f"out of memory by {size(memory.over_bytes)} per device; {remedy}"]


def _describe_memory(
    server: _Server, memory: ServerMemory, change: FittingChange | None, options: ServeOptions
) -> list[str]:
    """Describe the capacity of the memory, what it lacks, and whether an engine starts."""
    capacity = _describe_capacity(server, memory, options)
    return [*capacity, *_describe_lack(memory, change), *_describe_start(server.phases, memory)]


def _describe_capacity(server: _Server, memory: ServerMemory, options: ServeOptions) -> list[str]:
    """Describe the longest context and the users that fit, where the options ask for them.

    For example `longest context: 131,072 tokens, with 1 sequence at once`.
    """
    service, lines = server.service, []
    if memory.longest_context is None and (options.max_context or options.max_users):
        name = server.phases.problem.device.name
        raise InputError(f"serve: the memory of {name} is unknown: --max-context, --max-users")
    if options.max_context:
        sequences = counted(service.running_sequences, "sequence")
        longest = f"{memory.longest_context:,} tokens"
        lines.append(f"longest context: {longest}, with {sequences} at once")
    if options.max_users:
        room = (memory.largest_running_sequences or 0) * service.replicas
        limit = service.engine.max_sequences
        users = room if limit is None else min(room, limit * service.replicas)
        kind = f"{service.input:,} tokens in and {service.output:,} out"
        capacity = f"the cache has room for {memory.cache_tokens:,} tokens"
        lines.append(f"users at most: {users:,} with {kind}; {capacity}")
    return lines


def _describe_start(phases: Phases, memory: ServerMemory) -> list[str]:
    """Describe a longest sequence that has no room, with which an engine does not start."""
    longest = phases.engine.max_model_len
    if longest is None or memory.cache_tokens is None or memory.over_bytes:
        return []
    room = memory.cache_tokens // phases.plan.data
    if room >= longest:
        return []
    text = f"the cache has room for {room:,} tokens, --max-model-len is {longest:,}"
    return [f"{text}: vLLM does not start; nearest: --max-model-len {room}"]


def _describe_host_bound(phases: Phases, decode: StepCost) -> list[str]:
    """Describe a decode step that waits for the host, and the stack that avoids it."""
    device_s = decode.seconds - decode.host_s
    if decode.issue_s <= device_s or phases.problem.rank.flag("graphs"):
        return []
    stack = phases.problem.method.settings.stack
    nearest = defaults_for(phases.problem.device, phases.plan, use="serving").stack
    text = f"decoding is bound by the host: {stack} issues op by op, which takes "
    text += f"{seconds(decode.issue_s)} a token, and the device {seconds(device_s)}"
    return [f"{text}; nearest that replays graphs: --stack {nearest}"]


def _make_notes(service: Service, phases: Phases) -> list[str]:
    """Return the remarks on device, stack, data type and length."""
    notes = fit_notes(phases.problem)
    low = service.weights_only_type
    if low:
        device = phases.problem.device.name
        notes = [*notes, f"{device} has no arithmetic of {low}: weights alone are kept so"]
    shape = read_language_model(service.model, trusted=service.trusted)
    if service.calibration is not None:
        device = phases.problem.device.name
        notes = [*service.calibration.describe(phases.problem.shape, device), *notes]
    if service.speculation is not None:
        notes = [*notes, *describe_speculation(service.speculation)]
    return [*notes, *describe_sampler(phases), *describe_excess(shape, service.length)]


def _power_fields(power: Interval | None) -> Any:
    """Return the mean power of a device by the fields of an answer."""
    ends = (None, None, None) if power is None else (power.value, power.low, power.high)
    return dict(zip(("device_w", "device_low_w", "device_high_w"), ends, strict=True))
