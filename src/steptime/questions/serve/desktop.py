"""`serve` of a language model on one's own machine: llama.cpp, Ollama, MLX, exllama."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from steptime.core.errors import InputError
from steptime.core.signatures.signature import option_name
from steptime.core.units import format_bytes
from steptime.formats.gguf.types import file_types
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.planning.ranks.site import Site
from steptime.questions.serve.desktop_answer import DesktopAnswer
from steptime.questions.serve.options import ServeOptions
from steptime.serving.desktop.request import (
    DesktopCase,
    DesktopPrediction,
    DesktopRequest,
    names_desktop_weights,
)
from steptime.serving.desktop.stack import is_desktop_stack
from steptime.serving.desktop.tensors import is_gguf, names_file_type
from steptime.serving.lengths import describe_excess
from steptime.serving.service import Service

DESKTOP_OPTIONS = (
    "gpu_layers",
    "cpu_moe",
    "context",
    "ubatch",
    "no_flash_attention",
    "host",
    "memory",
)
OTHER_OPTIONS = (  # that only servers of many requests have
    *("data", "expert", "replicas", "concurrency", "rate", "requests", "count", "seed"),
    *("max_running_sequences", "prefill_replicas", "prefill_tensor", "prefill_data"),
    *(
        "calibration",
        "prefill_expert",
        "draft",
        "speculate",
        "accept",
        "prefix",
        "search",
        "max_device_count",
    ),
)
SMALLER_CACHES = ("q8_0", "q4_0")
SMALLER_WEIGHTS = ("q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "iq3_xxs", "q2_k")
MAX_CARDS = 8


def is_desktop_question(service: Service, options: ServeOptions) -> bool:
    """Whether a question is about one's own machine.

    It is so with a stack of that kind, with weights that such stacks alone run, and on a device
    that servers do not run on; a stack that is named decides.
    """
    if options.stack is not None:
        return is_desktop_stack(options.stack)
    if is_gguf(service.model) or names_desktop_weights(options.weights):
        return True
    # Servers of many requests do not run on a machine whose CPU and GPU share one memory.
    return has_trait(catalog.device(service.site.device), "unified_memory")


def check_server_options(options: ServeOptions) -> None:
    """Raise `InputError` for an option of one's own machine beside a stack of servers."""
    for name in DESKTOP_OPTIONS:
        if getattr(options, name) not in (None, False):
            text = f"serve: {option_name(name)} goes with --stack llama.cpp"
            raise InputError(f"{text}, or weights of its types (--weights q4_k_m)")


def answer_desktop(service: Service, options: ServeOptions) -> DesktopAnswer:
    """Answer `serve` for one's own machine.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    _check_options(options)
    request = _make_request(service, service.site, options)
    case = request.resolve()
    prediction = case.predict()
    memory = prediction.memory
    machine = case.machine
    weights = case.weights
    change = _find_change(case) if memory.over_bytes else None
    ttft = prediction.ttft
    tpot = prediction.tpot
    prompt_tokens = request.input_tokens * request.sequences
    has_host = bool(case.placing.host_tensors) and not machine.is_unified
    return DesktopAnswer(
        model=service.model,
        device=machine.device.name,
        device_count=machine.device_count,
        tensor=machine.device_count if request.is_split_by_rows else 1,
        pipeline=1 if request.is_split_by_rows else machine.device_count,
        stack=machine.stack.name,
        weights=weights.label,
        bits_per_weight=weights.bits_per_weight,
        file_bytes=weights.file_bytes,
        kv=case.demand.cache_type,
        context_tokens=case.demand.context,
        running_sequences=request.sequences,
        input_tokens=request.input_tokens,
        output_tokens=request.output_tokens,
        gpu_layers=case.placing.layers_on_device,
        # The head counts as a layer, as in llama.cpp's --gpu-layers.
        layer_count=weights.layers + 1,
        host=machine.host.name if has_host else None,
        assumed=_assumed(case, options, has_host=has_host),
        ttft_s=ttft.value,
        ttft_low_s=ttft.low,
        ttft_high_s=ttft.high,
        tpot_s=tpot.value,
        tpot_low_s=tpot.low,
        tpot_high_s=tpot.high,
        # The prompt's step yields the first token.
        request_s=ttft.value + (request.output_tokens - 1) * tpot.value,
        tokens_per_s_per_user=1 / tpot.value,
        output_tokens_per_s=request.sequences / tpot.value,
        prefill_tokens_per_s=prompt_tokens / ttft.value,
        fits=None if memory.over_bytes is None else not memory.over_bytes,
        usable_bytes=memory.usable_bytes,
        needed_bytes=memory.needed_bytes,
        over_bytes=memory.over_bytes,
        weights_bytes=memory.weights_bytes,
        cache_bytes=memory.cache_bytes,
        buffers_bytes=memory.buffers_bytes,
        context_bytes=memory.context_bytes,
        host_bytes=memory.host_bytes,
        cache_bytes_per_token=memory.cache_bytes_per_token,
        longest_context=prediction.longest_context,
        fitting_change=change,
        headline=tuple(_headline(prediction, options, change)),
        notes=tuple(_notes(case, prediction)),
    )


def _check_options(options: ServeOptions) -> None:
    """Raise `InputError` for an option that one's own machine does not have."""
    defaults = ServeOptions()
    for name in OTHER_OPTIONS:
        is_default = getattr(options, name) in (None, False, getattr(defaults, name))
        if not is_default:
            option = option_name(name)
            text = f"serve: {option} is of servers of many requests, not of one's own machine"
            raise InputError(f"{text}; nearest: --stack vllm, or leave out {option}")
    if options.tensor_count > 1 and options.pipeline_count > 1:
        raise InputError("serve: --tensor splits by rows, --pipeline by layers; nearest: one")


def _make_request(service: Service, site: Site, options: ServeOptions) -> DesktopRequest:
    """Return the request that the options describe; raises `InputError`."""
    return DesktopRequest(
        model=service.model,
        device=site.device,
        # Cards split by rows (tensor) or by layers (pipeline): one of both is 1.
        device_count=max(service.tensor, service.pipeline),
        is_split_by_rows=service.tensor > 1,
        stack=options.stack or "",
        weights=options.weights,
        dtype=options.dtype,
        kv=options.kv,
        input_tokens=service.input,
        output_tokens=service.output,
        sequences=service.running_sequences,
        context=options.count_of("context"),
        gpu_layers=options.count_of("gpu_layers", at_least=0),
        cpu_moe=options.count_of("cpu_moe", at_least=0) or 0,
        ubatch=options.count_of("ubatch"),
        has_flash_attention=not options.no_flash_attention,
        host=options.host,
        memory_bytes=options.memory_bytes,
    )


def _assumed(case: DesktopCase, options: ServeOptions, *, has_host: bool) -> dict[str, str]:
    """Return the values of options that were not given and decide the answer."""
    machine = case.machine
    settings = {
        "stack": machine.stack.name,
        "weights": case.weights.label,
        "kv": case.demand.cache_type,
        "context": str(case.demand.context),
    }
    if machine.is_unified and machine.device.datasheet.memory_bytes:
        settings["memory"] = format_bytes(machine.device.datasheet.memory_bytes)
    if has_host:
        settings["host"] = machine.host.name
    has_file_of_weights = is_gguf(case.request.model)
    if has_file_of_weights:
        del settings["weights"]
    return options.keep_unstated(settings)


def _headline(
    prediction: DesktopPrediction, options: ServeOptions, change: str | None
) -> Iterator[str]:
    """Yield the memory that lacks with the change that helps, and the longest context."""
    memory = prediction.memory
    if memory.over_bytes:
        remedy = "no change fits" if change is None else f"nearest that fits: {change}"
        yield f"out of memory by {format_bytes(memory.over_bytes)} per device; {remedy}"
    if options.max_context and prediction.longest_context is not None:
        yield f"the longest context that fits is {prediction.longest_context:,} tokens"


def _notes(case: DesktopCase, prediction: DesktopPrediction) -> list[str]:
    """Return the remarks on the length and on the times."""
    request = case.request
    notes = []
    weights = request.weights
    if weights and not names_file_type(weights):
        notes.append(f"--weights {weights} is taken as {case.weights.label}")
    if prediction.memory.usable_bytes is None:
        notes.append(f"the memory of {case.machine.device.name} is unknown, so every model fits")
    if prediction.longest_context == case.trained_length:
        notes.append(f"the longest context is the model's own, {case.trained_length:,} tokens")
    length = request.input_tokens + request.output_tokens
    return [*notes, *describe_excess(case.shape, length)]


def _find_change(case: DesktopCase) -> str | None:
    """Return the first change with which a model fits, from the least cost to the most."""
    for change, request in _smaller_requests(case):
        try:
            changed_case = request.resolve()
        # This software or network does not have the changed type.
        except InputError:
            continue
        lacking_bytes = changed_case.predict().memory.over_bytes
        if not lacking_bytes:
            return change
    return None


def _smaller_requests(case: DesktopCase) -> Iterator[tuple[str, DesktopRequest]]:
    """Yield changes that save memory: a smaller cache, weights, more cards, layers on the host."""
    request = case.request
    for cache_type in SMALLER_CACHES:
        yield f"--kv {cache_type}", replace(request, kv=cache_type)
    can_change_weights = case.weights.label in file_types() and not is_gguf(request.model)
    if can_change_weights:
        for file_type in _smaller_types(case):
            yield f"--weights {file_type}", replace(request, weights=file_type)
    can_add_cards = not case.machine.is_unified
    if can_add_cards:
        for device_count in range(request.device_count + 1, MAX_CARDS + 1):
            changed = replace(request, device_count=device_count, is_split_by_rows=False)
            yield f"--pipeline {device_count}", changed
    for layer_count in range(case.weights.layers, -1, -1):
        yield f"--gpu-layers {layer_count}", replace(request, gpu_layers=layer_count)


def _smaller_types(case: DesktopCase) -> list[str]:
    """Return types of the same stack with fewer bits than the weights have, the largest first."""
    row_by_type: Mapping[str, Mapping[str, object]] = file_types()
    current_type = case.weights.label
    stack = row_by_type[current_type].get("stack")
    if stack is None:  # types of GGUF name no stack
        types = list(SMALLER_WEIGHTS)
    else:
        # The types of such a stack are listed from the smallest to the largest.
        smallest_first = [name for name, row in row_by_type.items() if row.get("stack") == stack]
        types = smallest_first[::-1]
    if current_type not in types:
        return types
    return types[types.index(current_type) + 1 :]
