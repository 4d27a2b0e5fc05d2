"""The question `serve`: one server, or a search for servers that hold targets."""

from typing import Annotated, Unpack

from steptime.core.kinds import Kind
from steptime.core.values import Count
from steptime.questions import kinds
from steptime.questions.launched.question import answer_launched, read_launched
from steptime.questions.serve.options import LanguageModel, ServeKeywords, ServeOptions
from steptime.questions.serve.search import answer_search
from steptime.questions.serve.search_answer import SearchAnswer
from steptime.questions.serve.server import answer_server
from steptime.questions.serve.server_answer import ServerAnswer


def serve(
    model: LanguageModel,
    device: kinds.Devices,
    running_sequences: kinds.Count = 1,
    input: Annotated[Count, Kind("I")] | None = None,  # noqa: A002  # the option's name
    output: Annotated[Count, Kind("O")] | None = None,
    from_: kinds.LaunchFile | None = None,
    **options: Unpack[ServeKeywords],
) -> ServerAnswer | SearchAnswer:
    """Predict a language model that answers prompts.

    TTFT, TPOT, tokens/s, memory, cost; with --search the servers that hold targets.

    Args:
        model: A decoder: a family with its hyperparameters, a named network (llama3_8b), a file,
            code (model.py:NAME), or the command that another tool serves it with.
        device: A device (steptime list devices), FILE.toml or local; of a search a list with
            commas.
        running_sequences: Sequences that come at once.
        input: Tokens of a prompt. Default: 1024.
        output: Tokens that are made of each prompt. Default: 128.
        from_: The command that another tool serves it with, which names no model.
        **options: How it is split and run, and its requests: `ServeOptions`.

    Raises:
        InputError: for unknown names, options that do not go together, and a service that cannot
            be.
    """
    launched = read_launched("serve", model, from_)
    if launched is not None:
        load = {"running_sequences": running_sequences, "input": input, "output": output}
        return answer_launched(serve, launched, device, {**load, **options})
    serve_options = ServeOptions.from_keywords(options, serve)
    picture = serve_options.check_search()
    sites = serve_options.sites(device)
    service = serve_options.service(model, sites[0], running_sequences, input, output)
    if serve_options.search:
        return answer_search(service, sites, serve_options, picture)
    return answer_server(service, serve_options)
