"""The question `serve`: one server, or a search for servers that hold targets."""

from typing import Annotated, Unpack

import msgspec

from steptime.core.errors import InputError
from steptime.core.signatures.kinds import Kind
from steptime.core.values import Count
from steptime.launch.job import Facts
from steptime.questions import kinds
from steptime.questions.launched.emitted import emit_desktop, emit_server
from steptime.questions.launched.question import answer_launched, read_launched
from steptime.questions.serve.desktop import (
    answer_desktop,
    check_server_options,
    is_desktop_question,
)
from steptime.questions.serve.desktop_answer import DesktopAnswer
from steptime.questions.serve.options import LanguageModel, ServeKeywords, ServeOptions
from steptime.questions.serve.search import answer_search
from steptime.questions.serve.search_answer import SearchAnswer, SearchRow
from steptime.questions.serve.server import answer_server
from steptime.questions.serve.server_answer import ServerAnswer
from steptime.serving.service import Service


def serve(
    model: LanguageModel,
    device: kinds.Devices,
    running_sequences: kinds.Count | None = None,
    input: Annotated[Count, Kind("I")] | None = None,  # noqa: A002  # the option's name
    output: Annotated[Count, Kind("O")] | None = None,
    from_: kinds.LaunchFile | None = None,
    emit: kinds.EmittedTool | None = None,
    **options: Unpack[ServeKeywords],
) -> ServerAnswer | SearchAnswer | DesktopAnswer:
    """Predict a language model that answers prompts.

    TTFT, TPOT, tokens/s, memory, cost; with --search the servers that hold targets.

    Args:
        model: A decoder: a family with its hyperparameters, a named network (llama3_8b), a file,
            code (model.py:NAME), or the command that another tool serves it with.
        device: A name of steptime list devices, FILE.toml, or local (this machine, calibrated);
            with --search several, with commas.
        running_sequences: Sequences that start and run together. Default: 1.
        input: Tokens of a prompt. Default: 1024.
        output: Tokens of an answer. Default: 128.
        from_: The launch command of another server software. It replaces MODEL; if its file does
            not say the network, give both.
        emit: Print the server, or the best of a search, as a command of `vllm`, `sglang` or
            `llama-server`.
        **options: How it is split and run, and its requests: `ServeOptions`.

    Raises:
        InputError: for unknown names, options that do not go together, and a service that cannot
            be.
    """
    launched = read_launched("serve", model, from_)
    if launched is not None:
        load = {
            "running_sequences": running_sequences,
            "input": input,
            "output": output,
            "emit": emit,
        }
        return answer_launched(serve, launched, device, {**load, **options})
    serve_options = ServeOptions.from_keywords(options, serve)
    picture = serve_options.check_search()
    sites = serve_options.sites(device)
    sequences = 1 if running_sequences is None else running_sequences
    service = serve_options.service(model, sites[0], sequences, input, output)
    if is_desktop_question(service, serve_options):
        desktop = answer_desktop(service, serve_options)
        return desktop if emit is None else _emit_desktop(emit, desktop)
    check_server_options(serve_options)
    if serve_options.search:
        search = answer_search(service, sites, serve_options, picture)
        return search if emit is None else _emit_best(emit, search, service)
    server = answer_server(service, serve_options)
    if emit is None:
        return server
    facts = {**_default_limits(service), **_facts_of(server, service)}
    request_tokens = server.input_tokens + server.output_tokens
    max_sequences = server.largest_running_sequences
    emitted = emit_server(emit, server.model, facts, request_tokens, max_sequences)
    return msgspec.structs.replace(server, emitted=emitted)


def _default_limits(service: Service) -> Facts:
    """Return the sequences at once that the stack runs by default and keeps memory for.

    A stack whose limit follows from the memory of the cache has none.
    """
    # 0: the stack has no such limit.
    sequences = int(service.phases().limit("max_sequences"))
    return {"max_num_seqs": sequences} if sequences else {}


def _emit_desktop(tool: str, answer: DesktopAnswer) -> DesktopAnswer:
    """Return a server on one's own machine with its command.

    Raises:
        InputError: for a tool and a stack that do not go together.
    """
    is_llama_server = tool == "llama-server" and answer.stack == "llama.cpp"
    if not is_llama_server:
        nearest = "--stack llama.cpp --emit llama-server"
        raise InputError(f"--emit {tool}: {answer.stack} is no server of it; nearest: {nearest}")
    facts: Facts = {
        "tensor": answer.tensor,
        "max_model_len": answer.context_tokens,
        "max_num_seqs": answer.running_sequences,
        "weights": answer.weights,
        "kv_dtype": answer.kv,
    }
    if answer.gpu_layers < answer.layer_count:
        facts["gpu_layers"] = answer.gpu_layers
    return msgspec.structs.replace(answer, emitted=emit_desktop(answer.model, facts))


def _emit_best(tool: str, search: SearchAnswer, service: Service) -> SearchAnswer:
    """Return a search with the command of its best server.

    Raises:
        InputError: if no server holds the targets, and for prompts that are read apart.
    """
    best = search.best
    if best is None:
        raise InputError("--emit: no server holds the targets; nearest: larger --ttft or --tpot")
    if best.prefill_replicas is not None:
        raise InputError(f"--emit {tool}: prompts are read by replicas of their own there")
    request_tokens = search.input_tokens + search.output_tokens
    # The room for sequences is no part of a row of the search.
    emitted = emit_server(
        tool,
        search.model,
        _facts_of(best, service),
        request_tokens,
        sequences_in_memory=None,
    )
    notes = search.notes
    if best.replicas > 1:
        notes = (*notes, f"--emit {tool}: the command of one of {best.replicas} replicas")
    return msgspec.structs.replace(search, emitted=emitted, notes=notes)


def _facts_of(server: ServerAnswer | SearchRow, service: Service) -> Facts:
    """Return the split and the types of a server as facts of a job."""
    facts: Facts = {
        name: getattr(server, name)
        for name in ("tensor", "pipeline", "data", "expert")
        if getattr(server, name) > 1
    }
    engine = service.engine
    limits = {
        "gpu_memory_utilization": engine.memory_share,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_sequences,
        "max_num_batched_tokens": engine.step_tokens,
        "chunked_prefill": engine.chunked_prefill,
    }
    facts |= {name: value for name, value in limits.items() if value is not None}
    if service.speculation is not None:
        facts |= {"speculative": service.speculation.tokens, "draft": service.speculation.draft}
    type_texts = {"weights": service.weights, "kv_dtype": service.kv, "dtype": service.dtype}
    return facts | {name: str(value) for name, value in type_texts.items() if value}
