"""One server: its times, memory, cost and energy, from the phases of its service."""

from dataclasses import dataclass, replace

from msgspec.structs import asdict

from steptime.core.errors import InputError
from steptime.core.units import format_bytes, format_count, format_percent, format_seconds
from steptime.hardware.software import defaults_for
from steptime.planning.answer import find_offer, fit_notes
from steptime.planning.ranks.language_model import read_language_model
from steptime.prediction.conformal import POWER
from steptime.questions.serve.options import ServeOptions
from steptime.questions.serve.server_answer import ServerAnswer
from steptime.questions.serve.server_fields import (
    interval_fields,
    memory_fields,
    phase_times,
    power_fields,
    price_tokens,
    request_spreads,
    stack_times,
)
from steptime.questions.serve.server_parts import (
    PredictDifference,
    ServerLoad,
)
from steptime.serving.demand import Demand
from steptime.serving.lengths import describe_excess
from steptime.serving.load import ATTAINED_SHARE, LoadRun, default_max_running
from steptime.serving.memory import ServerMemory, largest_running_sequences, memory_of
from steptime.serving.phases import Phases
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
        # No more sequences run at once than have room.
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
    prefill_of_all = service.price_prompts(phases, service.running_sequences)
    # Under load prompts come one by one.
    prefill = prefill_of_all if server.run is None else service.price_prompts(phases, 1)
    # While a request decodes, its context grows from the prompt to prompt and answer.
    mean_context = service.input + service.output / 2
    decode = price_token(phases, phases.guesses, service.running_sequences, mean_context)
    prompt_overhead_s = phases.prompt_overhead_s(service.uncached_tokens)
    memory = server.memory
    energy = predict_energy(service, phases, prefill_of_all, decode)
    change = find_fitting_change(service) if memory.over_bytes else None
    tokens_per_s = server.output_tokens_per_s
    device_count = server.device_count
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
        holds_targets=_holds_targets(server, options),
        output_tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=tokens_per_s / device_count,
        tokens_per_s_per_user=1 / server.times.tpot.value,
        prefill=phase_times(prefill, prompt_overhead_s),
        decode=phase_times(decode),
        predict_difference=_predict_difference(server),
        energy_per_token_j=None if energy is None else energy.per_token_j,
        **power_fields(None if energy is None else phases.interval_of(energy.device_w, POWER)),
        energy_scope=None if energy is None else ENERGY_SCOPE,
        fits=not memory.over_bytes,
        usable_bytes=problem.device.datasheet.usable_bytes,
        **memory_fields(memory),
        fitting_change=None if change is None else change.option,
        fitting_needed_bytes=None if change is None else change.needed_bytes,
        **price_tokens(find_offer(problem, service.prices), device_count, tokens_per_s),
        load=None if server.run is None else _server_load(server.run),
        headline=_headline(server, memory, change, decode, options),
        notes=tuple(_make_notes(service, phases)),
    )


def _predict_server(service: Service) -> _Server:
    """Return a service with its phases, its run under load and its times; raises `InputError`."""
    load = None
    longest_service = service
    if service.demand is not None:
        load = service.demand.load(service.input, service.output)
        if service.running_sequences > 1:
            limit = "under load there is --max-running-sequences"
            raise InputError(f"serve: --running-sequences come at once; {limit}")
        # The longest request decides the memory, so phases and run are of a service of this length;
        # the run itself has the lengths of all requests.
        request_lengths = zip(load.inputs, load.outputs, strict=True)
        longest_input, longest_output = max(request_lengths, key=sum)
        longest_service = replace(service, input=longest_input, output=longest_output)
    phases = longest_service.phases()
    run = None if load is None else run_service(longest_service, load, phases)
    # Times are those of a mean request among the mean number of running sequences.
    mean_service = average_service(longest_service, run)
    times = predict_times(mean_service, phases, run)
    # These times, and without --stack their intervals over all stacks that the service may run on.
    # It takes the service as it was before the averages: each stack has a run and means of its own.
    stacked = widen_over_stacks(longest_service, load, phases, times)
    return _Server(service=mean_service, load=load, phases=phases, run=run, stacked=stacked)


def _assumed(server: _Server, options: ServeOptions) -> dict[str, str]:
    """Return the values of options that were not given and decide the answer.

    Where the stack is named, the other stacks that could be meant are no longer part of the answer.
    """
    service, problem = server.service, server.phases.problem
    settings = {"dtype": problem.rank.dtype}
    if "stack" in problem.method.options:
        settings["stack"] = problem.method.settings.stack
    # Without --weights, a network that its maker quantized keeps the maker's format.
    is_quantized_by_maker = service.weights is None and problem.shape.family.weights
    if is_quantized_by_maker and server.phases.weight_format:
        settings["weights"] = server.phases.weight_format
    if server.device_count > 1:
        settings["per_node"] = str(service.site.per_node)
        if service.site.inside is not None:
            settings["inside"] = service.site.inside
    if service.speculation is not None:
        speculation = service.speculation
        settings |= {"speculate": str(speculation.tokens), "accept": f"{speculation.accept:g}"}
    if service.demand is not None and server.load is not None:
        settings |= _assumed_load(service.demand, server.load, server)
    return options.keep_unstated(settings)


def _assumed_load(demand: Demand, load: Load, server: _Server) -> dict[str, str]:
    """Return the settings of a server's load, as they were given or assumed."""
    settings = {"count": str(len(load.inputs))}
    has_random_arrivals = bool(demand.rate)
    if has_random_arrivals:
        settings["seed"] = str(demand.seed)
    has_request_file = bool(demand.requests)
    if not has_request_file:
        settings["lengths"] = "constant"
    # Prefill and decode replicas have limits of their own: no one number is assumed.
    has_prefill_replicas = bool(demand.prefill_replicas)
    if not has_prefill_replicas:
        software_max = int(server.phases.limit("max_sequences"))
        limit = default_max_running(demand, load, server.service.replicas, software_max)
        settings["max_running_sequences"] = str(limit)
    return settings


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


def _holds_targets(server: _Server, options: ServeOptions) -> bool | None:
    """Return whether a server holds its targets; None without targets."""
    ttft_s, tpot_s = options.ttft_s, options.tpot_s
    if ttft_s is None and tpot_s is None:
        return None
    if server.run is not None:
        are_enough_in_time = server.run.in_time_share >= ATTAINED_SHARE
        return are_enough_in_time and not server.run.queue_grows
    holds_ttft = ttft_s is None or server.times.ttft.value <= ttft_s
    holds_tpot = tpot_s is None or server.times.tpot.value <= tpot_s
    return holds_ttft and holds_tpot


def _describe_targets(server: _Server, options: ServeOptions) -> list[str]:
    """Describe whether targets hold: `97 % of requests hold TTFT 500 ms`; none without targets."""
    holds = _holds_targets(server, options)
    if holds is None:
        return []
    latencies = (("TTFT", options.ttft_s), ("TPOT", options.tpot_s))
    target_texts = [f"{name} {format_seconds(limit_s)}" for name, limit_s in latencies if limit_s]
    targets = " and ".join(target_texts)
    if server.run is not None:
        return [f"{format_percent(server.run.in_time_share)} of requests hold {targets}"]
    return [f"{'holds' if holds else 'misses'} {targets}"]


def _describe_lack(memory: ServerMemory, change: FittingChange | None) -> list[str]:
    """Describe the memory that lacks and the change that helps; none where all fits."""
    if not memory.over_bytes:
        return []
    remedy = "no change fits" if change is None else f"nearest that fits: {change.option}"
    return [f"out of memory by {format_bytes(memory.over_bytes)} per device; {remedy}"]


def _headline(
    server: _Server,
    memory: ServerMemory,
    change: FittingChange | None,
    decode: StepCost,
    options: ServeOptions,
) -> tuple[str, ...]:
    """Return the lines that stand first: memory, whether an engine starts, host, targets."""
    return (
        *_describe_capacity(server, memory, options),
        *_describe_lack(memory, change),
        *_describe_start(server.phases, memory),
        *_describe_host_bound(server.phases, decode),
        *_describe_targets(server, options),
    )


def _describe_capacity(server: _Server, memory: ServerMemory, options: ServeOptions) -> list[str]:
    """Describe the longest context and the users that fit, where the options ask for them.

    For example `longest context: 131,072 tokens, with 1 sequence at once`.
    """
    service = server.service
    lines = []
    needs_capacity = options.max_context or options.max_users
    if needs_capacity and memory.longest_context is None:
        name = server.phases.problem.device.name
        raise InputError(f"serve: the memory of {name} is unknown: --max-context, --max-users")
    if options.max_context:
        sequences = format_count(service.running_sequences, "sequence")
        longest = f"{memory.longest_context:,} tokens"
        lines.append(f"longest context: {longest}, with {sequences} at once")
    if options.max_users:
        users = (memory.largest_running_sequences or 0) * service.replicas
        max_sequences = service.engine.max_sequences
        if max_sequences is not None:
            users = min(users, max_sequences * service.replicas)
        request = f"{service.input:,} tokens in and {service.output:,} out"
        capacity = f"the cache has room for {memory.cache_tokens:,} tokens"
        lines.append(f"users at most: {users:,} with {request}; {capacity}")
    return lines


def _describe_start(phases: Phases, memory: ServerMemory) -> list[str]:
    """Describe a longest sequence that has no room, with which an engine does not start."""
    max_model_len = phases.engine.max_model_len
    if max_model_len is None or memory.cache_tokens is None or memory.over_bytes:
        return []
    cache_tokens = memory.cache_tokens // phases.plan.data  # of one data-parallel rank
    if cache_tokens >= max_model_len:
        return []
    text = f"the cache has room for {cache_tokens:,} tokens, --max-model-len is {max_model_len:,}"
    return [f"{text}: vLLM does not start; nearest: --max-model-len {cache_tokens}"]


def _describe_host_bound(phases: Phases, decode: StepCost) -> list[str]:
    """Describe a decode step that waits for the host, and the stack that avoids it."""
    # `issue_s`: the host's time to launch all kernels of a step; `host_s`: what of it is exposed.
    device_s = decode.seconds - decode.host_s
    is_bound_by_device = decode.issue_s <= device_s
    replays_cuda_graphs = phases.problem.rank.flag("graphs")  # a step is launched as a whole
    if is_bound_by_device or replays_cuda_graphs:
        return []
    stack = phases.problem.method.settings.stack
    nearest = defaults_for(phases.problem.device, phases.plan, use="serving").stack
    text = f"decoding is bound by the host: {stack} issues op by op, which takes "
    text += f"{format_seconds(decode.issue_s)} a token, and the device {format_seconds(device_s)}"
    return [f"{text}; nearest that replays graphs: --stack {nearest}"]


def _make_notes(service: Service, phases: Phases) -> list[str]:
    """Return the remarks on device, stack, data type and length."""
    notes = fit_notes(phases.problem)
    device = phases.problem.device.name
    weights_type = service.weights_only_type
    if weights_type:
        notes = [*notes, f"{device} has no arithmetic of {weights_type}: weights alone are kept so"]
    shape = read_language_model(service.model, trusted=service.trusted)
    if service.calibration is not None:  # its notes come first
        notes = [*service.calibration.describe(phases.problem.shape, device), *notes]
    if service.speculation is not None:
        notes = [*notes, *describe_speculation(service.speculation)]
    return [*notes, *describe_sampler(phases), *describe_excess(shape, service.length)]
