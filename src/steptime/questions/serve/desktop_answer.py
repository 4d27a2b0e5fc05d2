"""The answer of `serve` to a language model on one's own machine."""

from collections.abc import Iterator
from dataclasses import replace

from steptime.core.signatures.signature import option_name
from steptime.core.tables.table import Printout, Table, make_facts_table
from steptime.core.units import format_bytes, format_interval, format_seconds
from steptime.questions.launched.answer import LaunchedAnswer


class DesktopAnswer(LaunchedAnswer, frozen=True, kw_only=True):
    """A language model on one's own machine: memory, speed, and the longest context.

    Attributes:
        model: the network.
        device: the device.
        device_count: number of devices.
        tensor: devices that split each matrix product (tensor parallelism).
        pipeline: devices among which the layers are divided.
        stack: the software.
        weights: type of the weights.
        bits_per_weight: mean bits of a weight.
        file_bytes: size of the file of the weights.
        kv: type of the cached keys and values.
        context_tokens: tokens that the cache of a sequence has room for.
        running_sequences: sequences at once.
        input_tokens: tokens of a prompt.
        output_tokens: tokens of an answer.
        gpu_layers: layers on devices, the output layer counted as one.
        layer_count: layers of the network, the output layer counted as one.
        host: the CPU that runs the other layers; null where all run on devices.
        assumed: settings that were not given and decide the answer, by the option that changes
            them.
        ttft_s: seconds to the first token.
        ttft_low_s: lower end of the 80 % interval of `ttft_s`.
        ttft_high_s: upper end of the 80 % interval of `ttft_s`.
        tpot_s: seconds per further token.
        tpot_low_s: lower end of the 80 % interval of `tpot_s`.
        tpot_high_s: upper end of the 80 % interval of `tpot_s`.
        request_s: seconds of a whole request.
        tokens_per_s_per_user: output tokens of a sequence a second.
        output_tokens_per_s: output tokens of all sequences a second.
        prefill_tokens_per_s: prompt tokens that are read a second.
        fits: whether it fits the memory of the device; null where that is unknown.
        usable_bytes: memory that a process may use of a device; null where unknown.
        needed_bytes: memory that the fullest device needs.
        over_bytes: memory that is missing; null where the device's memory is unknown.
        weights_bytes: size of the weights on the fullest device.
        cache_bytes: size of the cached keys and values on the fullest device.
        buffers_bytes: size of the compute buffer.
        context_bytes: memory of the driver and libraries.
        host_bytes: memory of weights and cache on the host.
        cache_bytes_per_token: size of keys and values of a token in all layers.
        longest_context: tokens of the longest context that fits; null where the memory is unknown.
        fitting_change: the cheapest change with which the model fits; null if it fits, or if no
            change helps.
        headline: facts that a reader needs first.
        notes: remarks that change how the answer is read.
    """

    model: str
    device: str
    device_count: int
    tensor: int
    pipeline: int
    stack: str
    weights: str
    bits_per_weight: float
    file_bytes: int
    kv: str
    context_tokens: int
    running_sequences: int
    input_tokens: int
    output_tokens: int
    gpu_layers: int
    layer_count: int
    host: str | None
    assumed: dict[str, str]
    ttft_s: float
    ttft_low_s: float | None
    ttft_high_s: float | None
    tpot_s: float
    tpot_low_s: float | None
    tpot_high_s: float | None
    request_s: float
    tokens_per_s_per_user: float
    output_tokens_per_s: float
    prefill_tokens_per_s: float
    fits: bool | None
    usable_bytes: float | None
    needed_bytes: float
    over_bytes: float | None
    weights_bytes: float
    cache_bytes: float
    buffers_bytes: float
    context_bytes: float
    host_bytes: float
    cache_bytes_per_token: float
    longest_context: int | None
    fitting_change: str | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the answer as one table."""
        rows = [
            *([("assumed", _describe_assumed(self))] if self.assumed else []),
            *_speed_rows(self),
            ("memory", _describe_memory(self)),
            ("longest context", _describe_longest(self)),
            ("file", f"{format_bytes(self.file_bytes)}, {self.bits_per_weight:.2f} bits a weight"),
        ]
        if self.host is not None:
            rows.append(("host", f"{format_bytes(self.host_bytes)} on {self.host}"))
        return [make_facts_table(_describe_title(self), "serving", rows)]

    def printout(self) -> Printout:
        """Return the answer as the command line prints it: the headline stands in the title."""
        return replace(super().printout(), text="")


def _describe_title(answer: DesktopAnswer) -> str:
    """Describe the question behind its headline: `llama3_8b q4_k_m on 1 rtx-3070, ...`."""
    parts = [
        f"{answer.model} {answer.weights} on {answer.device_count} {answer.device}",
        f"{answer.input_tokens} tokens in, {answer.output_tokens} out",
        f"a context of {answer.context_tokens:,}",
    ]
    if answer.running_sequences > 1:
        parts.append(f"running sequences {answer.running_sequences}")
    if answer.gpu_layers < answer.layer_count:
        parts.append(f"{answer.gpu_layers} of {answer.layer_count} layers on the device")
    return "\n".join([*answer.headline, f"{', '.join(parts)} ({answer.stack})"])


def _describe_assumed(answer: DesktopAnswer) -> str:
    """Describe the assumed options: `--stack llama.cpp, --kv f16`."""
    return ", ".join(f"{option_name(name)} {value}" for name, value in answer.assumed.items())


def _speed_rows(answer: DesktopAnswer) -> Iterator[tuple[str, str]]:
    """Yield the times and the speeds for people."""
    ttft = format_interval("ttft_s", answer.ttft_s, answer.ttft_low_s, answer.ttft_high_s)
    tpot = format_interval("tpot_s", answer.tpot_s, answer.tpot_low_s, answer.tpot_high_s)
    decode = f"{answer.tokens_per_s_per_user:,.1f} tokens/s"
    if answer.tpot_low_s and answer.tpot_high_s:
        low_tokens_per_s = 1 / answer.tpot_high_s
        high_tokens_per_s = 1 / answer.tpot_low_s
        decode += f" [{low_tokens_per_s:,.1f}-{high_tokens_per_s:,.1f}]"
    yield "decode", decode
    yield "prefill", f"{answer.prefill_tokens_per_s:,.0f} tokens/s"
    yield "TTFT", ttft
    yield "TPOT", tpot
    yield "request", format_seconds(answer.request_s)


def _describe_memory(answer: DesktopAnswer) -> str:
    """Describe the memory: `5.4 GB of 8.4 GB (weights 4.6 GB, cache 151 MB, ...)`."""
    bytes_by_part = {
        "weights": answer.weights_bytes,
        "cache": answer.cache_bytes,
        "compute buffer": answer.buffers_bytes,
        "context": answer.context_bytes,
    }
    texts = ", ".join(
        f"{part} {format_bytes(part_bytes)}"
        for part, part_bytes in bytes_by_part.items()
        if part_bytes
    )
    capacity = f" of {format_bytes(answer.usable_bytes)}" if answer.usable_bytes else ""
    lack = f", out of memory by {format_bytes(answer.over_bytes)}" if answer.over_bytes else ""
    return f"{format_bytes(answer.needed_bytes)}{capacity} ({texts}){lack}"


def _describe_longest(answer: DesktopAnswer) -> str | None:
    """Describe the longest context that fits: `32,768 tokens`; None where memory is unknown."""
    if answer.longest_context is None:
        return None
    return f"{answer.longest_context:,} tokens" if answer.longest_context else "none fits"
