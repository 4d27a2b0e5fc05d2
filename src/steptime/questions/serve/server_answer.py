"""The answer of `serve` to one server: its times, memory, cost and energy, and its load."""

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

from steptime.core.assumed import assumed_row
from steptime.core.tables.table import Column, Printout, Table, make_facts_table
from steptime.core.units import format_bytes, format_interval, format_percent, format_seconds
from steptime.hardware.prices import NO_PRICE, format_offer
from steptime.questions.launched.answer import LaunchedAnswer
from steptime.questions.serve.server_parts import (
    PhaseTimes,
    PredictDifference,
    ServerLoad,
    StackTimes,
)

SPREAD_COLUMNS = (
    Column("time", ""),
    Column("mean_s", "mean"),
    Column("p50_s", "p50"),
    Column("p90_s", "p90"),
    Column("p99_s", "p99"),
)
MAX_MEMORY_PARTS = 3  # of the text


class ServerAnswer(LaunchedAnswer, frozen=True, kw_only=True):
    """A language model that answers prompts: times, throughput, memory, cost and energy.

    Attributes:
        model: the network.
        device: the device.
        device_count: devices of all replicas.
        tensor: devices that split each matrix product (tensor parallelism).
        pipeline: stages of the pipeline.
        data: ranks that divide the sequences (and experts).
        expert: data ranks that divide the experts (expert parallelism).
        replicas: independent copies of the server.
        running_sequences: sequences that a replica runs at once; under load the mean.
        input_tokens: tokens of a prompt; under load the mean.
        output_tokens: tokens of an answer; under load the mean.
        dtype: data type of matrix products.
        weights: format of the layers' weights.
        kv: format of the cached keys and values.
        method: the cost model.
        stack: the software.
        nearest_stack: the newest of `other_stacks`; null without any.
        other_stacks: times under the other candidate stacks; empty where a stack is named.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        ttft_s: seconds to the first token; under load the mean of all requests.
        ttft_low_s: lower end of the 80 % interval of `ttft_s`; null where the method has none.
        ttft_high_s: upper end of the 80 % interval of `ttft_s`; null where the method has none.
        tpot_s: seconds per further token; under load the mean of all requests.
        tpot_low_s: lower end of the 80 % interval of `tpot_s`; null where the method has none.
        tpot_high_s: upper end of the 80 % interval of `tpot_s`; null where the method has none.
        request_s: seconds of a whole request; under load the mean.
        request_low_s: lower end of the 80 % interval of `request_s`; null where there is none.
        request_high_s: upper end of the 80 % interval of `request_s`; null where there is none.
        any_stack_ttft_low_s: lower end of the 80 % interval of `ttft_s` that covers `stack` and
            `other_stacks`; it is the printed one.
        any_stack_ttft_high_s: upper end of the 80 % interval of `ttft_s` that covers `stack` and
            `other_stacks`; it is the printed one.
        any_stack_tpot_low_s: lower end of the 80 % interval of `tpot_s` that covers `stack` and
            `other_stacks`; it is the printed one.
        any_stack_tpot_high_s: upper end of the 80 % interval of `tpot_s` that covers `stack` and
            `other_stacks`; it is the printed one.
        any_stack_request_low_s: lower end of the 80 % interval of `request_s` that covers `stack`
            and `other_stacks`.
        any_stack_request_high_s: upper end of the 80 % interval of `request_s` that covers `stack`
            and `other_stacks`.
        ttft_target_s: target of the time to the first token; null without one.
        tpot_target_s: target of the time per output token; null without one.
        holds_targets: whether the server meets the targets, under load for 90 % of its requests;
            null without targets.
        output_tokens_per_s: throughput of all replicas in tokens.
        tokens_per_s_per_device: throughput of a device in tokens.
        tokens_per_s_per_user: output tokens that one user gets a second: 1 / `tpot_s`.
        prefill: seconds of the step that reads the prompts.
        decode: seconds of a step that makes a token of each sequence.
        predict_difference: seconds by which the prefill differs from the step of `predict`; null
            for more than one sequence or device.
        energy_per_token_j: joules of an output token, of all devices; null where unknown.
        device_w: mean power of a device; null where unknown.
        device_low_w: lower end of the 80 % interval of `device_w`; null where it is unknown, and
            where the method has none.
        device_high_w: upper end of the 80 % interval of `device_w`.
        energy_scope: the parts of the system that the energy covers; null where unknown.
        fits: whether the sequences fit the memory.
        usable_bytes: memory that a process may use of the device; null where unknown.
        needed_bytes: memory that a device needs.
        over_bytes: memory that is missing; null where the device's memory is unknown.
        weights_bytes: size of the weights on a device.
        cache_bytes: size of the cached keys, values and states, at the end of the sequences.
        activations_bytes: size of the tensors of the largest step.
        buffers_bytes: size of the buffers of the software.
        context_bytes: memory of the driver and libraries.
        cache_bytes_per_token: size of keys and values of a token.
        largest_running_sequences: the most sequences that fit a replica; null where the memory is
            unknown.
        cache_tokens: tokens that the cache of a replica has room for; null where the memory is
            unknown.
        longest_context: the most tokens of a sequence, with `running_sequences` at once; null where
            the memory is unknown.
        fitting_change: the smallest change with which the sequences fit, such as `--tensor 2`; null
            if they fit, or if no change helps.
        fitting_needed_bytes: memory that a device needs with `fitting_change`; null without one.
        cost_per_hour: price of all devices for an hour; null without a price.
        cost_per_million_tokens: price of all devices for a million output tokens; null without a
            price.
        currency: the currency of the price; null without a price.
        offer: the offer that the price is from; null without a price.
        price_date: the date of the price; null without a price.
        load: the server under load; null where all sequences come at once.
        headline: facts that a reader needs first: missing memory, what limits decoding, the
            targets.
        notes: remarks that change how the answer is read.
    """

    model: str
    device: str
    device_count: int
    tensor: int
    pipeline: int
    data: int
    expert: int
    replicas: int
    running_sequences: int
    input_tokens: int
    output_tokens: int
    dtype: str
    weights: str
    kv: str
    method: str
    stack: str
    nearest_stack: str | None
    other_stacks: tuple[StackTimes, ...]
    assumed: dict[str, str]
    ttft_s: float
    ttft_low_s: float | None
    ttft_high_s: float | None
    tpot_s: float
    tpot_low_s: float | None
    tpot_high_s: float | None
    request_s: float
    request_low_s: float | None
    request_high_s: float | None
    any_stack_ttft_low_s: float | None
    any_stack_ttft_high_s: float | None
    any_stack_tpot_low_s: float | None
    any_stack_tpot_high_s: float | None
    any_stack_request_low_s: float | None
    any_stack_request_high_s: float | None
    ttft_target_s: float | None
    tpot_target_s: float | None
    holds_targets: bool | None
    output_tokens_per_s: float
    tokens_per_s_per_device: float
    tokens_per_s_per_user: float
    prefill: PhaseTimes
    decode: PhaseTimes
    predict_difference: PredictDifference | None
    energy_per_token_j: float | None
    device_w: float | None
    device_low_w: float | None
    device_high_w: float | None
    energy_scope: str | None
    fits: bool
    usable_bytes: float | None
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
    fitting_change: str | None
    fitting_needed_bytes: float | None
    cost_per_hour: float | None
    cost_per_million_tokens: float | None
    currency: str | None
    offer: str | None
    price_date: str | None
    load: ServerLoad | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the server as a table, and its requests under load as another."""
        rows = [
            *assumed_row(self.assumed),
            *_phase_rows(self),
            ("request", format_seconds(self.request_s)),
            ("tokens", _describe_throughput(self)),
            ("memory", _describe_memory(self)),
            ("cost", _describe_cost(self)),
        ]
        if self.energy_per_token_j is not None and self.device_w is not None:
            power = f"{self.device_w:,.0f} W per device"
            energy = f"{self.energy_per_token_j:,.2f} J per token, {power}; {self.energy_scope}"
            rows.append(("energy", energy))
        table = make_facts_table(_describe_server(self), "serving", rows)
        return [table] if self.load is None else [table, _load_table(self.load)]

    def printout(self) -> Printout:
        """Return the answer as the command line prints it: the headline stands in the title."""
        return replace(super().printout(), text="")


def _describe_server(answer: ServerAnswer) -> str:
    """Describe the server, after its headline: `llama3_8b on 1 h100-sxm5, one device, ...`."""
    split = _describe_split(answer)
    # A format that comes with the network is said; one that the user chose needs no word.
    weights = f", {answer.weights} weights" if "weights" in answer.assumed else ""
    title = (
        f"{answer.model} on {answer.device_count} {answer.device}, {split}, "
        f"running sequences {answer.running_sequences}, {answer.input_tokens} tokens in, "
        f"{answer.output_tokens} out, {answer.dtype}{weights} ({answer.method}, {answer.stack})"
    )
    lines = [*answer.headline, title]
    for other in answer.other_stacks:
        if other.stack == answer.nearest_stack:
            token = format_seconds(other.tpot_s)
            lines.append(f"assumed: {answer.stack} (with --stack {other.stack}: {token} a token)")
    return "\n".join(lines)


def _describe_split(answer: ServerAnswer) -> str:
    """Describe the split: `tensor 4 x replicas 2`, or `one device`."""
    split = {
        "tensor": answer.tensor,
        "pipeline": answer.pipeline,
        "data": answer.data,
        "expert": answer.expert,
        "replicas": answer.replicas,
    }
    return " x ".join(f"{name} {n}" for name, n in split.items() if n > 1) or "one device"


def _phase_rows(answer: ServerAnswer) -> Iterator[tuple[str, str]]:
    """Yield the times of the phases and their parts for people."""
    ttft = format_interval(
        "ttft_s", answer.ttft_s, answer.any_stack_ttft_low_s, answer.any_stack_ttft_high_s
    )
    tpot = format_interval(
        "tpot_s", answer.tpot_s, answer.any_stack_tpot_low_s, answer.any_stack_tpot_high_s
    )
    phases = (
        ("TTFT", ttft, answer.ttft_s, answer.prefill),
        ("TPOT", tpot, answer.tpot_s, answer.decode),
    )
    for name, text, total_s, times in phases:
        yield name, text
        parts = (
            ("matrix products", times.products_s),
            ("attention", times.attention_s),
            ("norms and elementwise ops", times.other_s),
            ("communication", times.communication_s),
            ("CPU-bound (kernel launches)", times.host_s),
            ("server software", times.prompt_s),
        )
        for part, part_s in parts:
            if part_s:
                yield f"  {part}", format_seconds(part_s)
        waiting_s = total_s - times.total_s
        if answer.load and waiting_s > 0:
            yield "  other requests and queue", format_seconds(waiting_s)


def _describe_throughput(answer: ServerAnswer) -> str:
    """Describe the throughput: `119/s, 119/s per device, 130.7/s per user`."""
    of_device = f"{answer.tokens_per_s_per_device:,.0f}/s per device"
    of_user = f"{answer.tokens_per_s_per_user:,.1f}/s per user"
    return f"{answer.output_tokens_per_s:,.0f}/s, {of_device}, {of_user}"


def _describe_memory(answer: ServerAnswer) -> str:
    """Describe the memory: `19.2 GB of 85 GB (weights 16 GB, ...); room for 760 sequences`."""
    bytes_by_part = {
        "weights": answer.weights_bytes,
        "cache": answer.cache_bytes,
        "activations": answer.activations_bytes,
        "buffers": answer.buffers_bytes,
        "context": answer.context_bytes,
    }
    largest_first = sorted(bytes_by_part.items(), key=itemgetter(1), reverse=True)
    texts = ", ".join(
        f"{name} {format_bytes(part_bytes)}"
        for name, part_bytes in largest_first[:MAX_MEMORY_PARTS]
    )
    capacity = f" of {format_bytes(answer.usable_bytes)}" if answer.usable_bytes else ""
    lack = f", out of memory by {format_bytes(answer.over_bytes)}" if answer.over_bytes else ""
    room = ""
    if answer.fits and answer.largest_running_sequences is not None:
        room = f"; room for {answer.largest_running_sequences:,} sequences"
        if answer.cache_tokens:
            room += f", {answer.cache_tokens:,} tokens"
    return f"{format_bytes(answer.needed_bytes)}{capacity} ({texts}){lack}{room}"


def _describe_cost(answer: ServerAnswer) -> str:
    """Describe the cost: `9.72 USD per million tokens, 4.18 per hour (runpod, 2026)`."""
    if answer.cost_per_million_tokens is None or answer.cost_per_hour is None:
        return NO_PRICE
    tokens = f"{answer.cost_per_million_tokens:,.2f} {answer.currency} per million tokens"
    source = format_offer(answer.offer, answer.price_date or "")
    return f"{tokens}, {answer.cost_per_hour:,.2f} per hour ({source})"


def _load_table(load: ServerLoad) -> Table:
    """Return the times of requests under load as a table, with facts of the run below it."""
    spreads = [
        _spread_row("TTFT", load.ttft_mean_s, load.ttft_p50_s, load.ttft_p90_s, load.ttft_p99_s),
        _spread_row("TPOT", load.tpot_mean_s, load.tpot_p50_s, load.tpot_p90_s, load.tpot_p99_s),
        _spread_row(
            "request",
            load.request_mean_s,
            load.request_p50_s,
            load.request_p90_s,
            load.request_p99_s,
        ),
    ]
    # Requests of one token have no TPOT.
    rows = [spread for spread in spreads if spread["mean_s"] is not None]
    in_time = ""
    # Without targets every request is in time, which needs no word.
    if load.highest_rate_per_s or load.in_time_share < 1:
        in_time = f", {format_percent(load.in_time_share)} of them in time"
    cache = f"cache {format_percent(load.cache_share)} full at most"
    lines = [
        f"{load.requests_per_s:,.4g} requests/s{in_time}",
        f"{load.running_sequences:,.1f} sequences in a step, {cache}",
    ]
    if load.preemptions:
        lines.append(f"{load.preemptions:,} times a request was sent back and computed again")
    if load.queue_grows:
        lines.append("the queue grows without end: more comes than is served")
    if load.highest_rate_per_s:
        lines.append(f"{load.highest_rate_per_s:,.4g} requests/s at most meet the targets (p90)")
    return Table(SPREAD_COLUMNS, rows, f"{load.request_count:,} requests under load", lines)


def _spread_row(
    name: str, mean_s: float | None, p50_s: float | None, p90_s: float | None, p99_s: float | None
) -> dict[str, str | float | None]:
    return {"time": name, "mean_s": mean_s, "p50_s": p50_s, "p90_s": p90_s, "p99_s": p99_s}
