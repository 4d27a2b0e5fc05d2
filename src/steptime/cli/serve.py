"""The command `serve`: a language model that answers."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from steptime.cli.picture import drawn, picture
from steptime.core.question import File, Text, option, optional, question, whole
from steptime.core.table import Answer
from steptime.core.values import parse_devices, parse_latency_s, parse_share
from steptime.prediction import DEFAULT
from steptime.questions import options
from steptime.questions.node_options import NodeOptions
from steptime.serving.answer import HOST_BOUND, Service, answered
from steptime.serving.load import Demand
from steptime.serving.search import MOST_DEVICES, MOST_SEARCHED, ServerSearch
from steptime.serving.tables import fronts, servers, table, under_load
from steptime.serving.targets import searched, targets_of

Devices = Annotated[
    str, option("--device NAME", f"{options.DEVICE}; of a search a list with commas.")
]

# A bare number above these is meant in milliseconds: no user waits so many seconds for a token.
MAX_BARE_TTFT_S = 60.0
MAX_BARE_TPOT_S = 2.0
read_ttft = partial(parse_latency_s, bare_max_s=MAX_BARE_TTFT_S)
read_tpot = partial(parse_latency_s, bare_max_s=MAX_BARE_TPOT_S)


@dataclass(frozen=True)
class ServeOptions:
    """The options that say how a model is split and run, by the fields of `Service`."""

    tensor: int = whole("T", "Devices that share each product.", 1)
    pipeline: int = whole("P", "Stages of the pipeline.", 1)
    data: int = whole("N", "Ranks that share out sequences, and experts.", 1)
    expert: int = whole("E", "Ranks of these that share out experts.", 1)
    replicas: int = whole("N", "Copies of all that, each with its batch.", 1)
    dtype: Text = optional("NAME", options.LOW_DTYPE)
    weights: Text = optional(
        "NAME", "How the layers' weights are kept: float8, int8, int4, float4, mxfp4."
    )
    kv: Text = optional("NAME", "How keys and values are kept: float8 or int8.")
    prices: options.Prices = None
    prefix: float | None = optional(
        "W", "Share of each prompt that the cache has already, such as 0.3.", parser=parse_share
    )
    stack: Text = optional(
        "NAME",
        "The software: a name or a family (vllm, sglang, trt-llm: its newest). Default: vllm; the "
        "interval then holds the others.",
    )
    method: options.Method = DEFAULT


@dataclass(frozen=True)
class LoadOptions:
    """The options of a service under load, by the fields of `Demand`."""

    concurrency: Text = optional("N", "Under load: so many users, each waits.")
    rate: Text = optional("R", "Under load: requests a second, by chance (Poisson).")
    requests: File = optional("FILE", "Under load: a trace, CSV or JSONL.")
    count: Text = optional("N", "Requests. Default: 10 a user, 1000, or a trace's.")
    seed: Text = optional("N", "Of the chance in which requests come. Default: 0.")
    ttft_target: float | None = optional("S", "TTFT target: 0.5 or 500ms.", parser=read_ttft)
    tpot_target: float | None = optional("S", "TPOT target: 0.02 or 20ms.", parser=read_tpot)
    max_batch: Text = optional("N", "Sequences at once of a replica. Default: its users, or 256.")
    prefill_replicas: Text = optional("N", "So many more replicas read prompts; the others decode.")
    prefill_tensor: Text = optional("T", "Of these. Default: --tensor.")
    prefill_data: Text = optional("N", "Of these. Default: --data.")
    prefill_expert: Text = optional("E", "Of these. Default: --expert.")
    draft: Text = optional("MODEL", "It guesses tokens, which the model verifies.")
    speculate: Text = optional("Q", "Tokens that it guesses for a step.")
    accept: Text = optional("W", "Chance of each to be right, such as 0.7.")


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search for servers that hold targets."""

    ttft: float | None = optional(
        "S", "Search: TTFT p90 at most, in seconds, or 500ms.", parser=read_ttft
    )
    tpot: float | None = optional(
        "S", "Search: TPOT p90 at most, in seconds, or 20ms.", parser=read_tpot
    )
    max_device_count: int | None = whole(
        "N", "Search: at most so many. Default: 64.", at_most=MOST_SEARCHED
    )
    out: File = picture("Search: draw tokens/s of a device over those of a user")


@question(long="pricing the layers of the network")
def serve(
    model: options.Model,
    device: Devices,
    batch: int = whole("N", "Sequences that come at once.", 1),
    input: int | None = whole("I", "Tokens of a prompt. Default: 1024."),  # noqa: A002
    output: int | None = whole("O", "Tokens that are made of it. Default: 128."),
    *,
    how: ServeOptions,
    nodes: NodeOptions,
    load: LoadOptions,
    search: SearchOptions,
    option_: options.Settings = None,
) -> Answer:
    """Predict a language model that answers prompts.

    TTFT, TPOT, tokens/s, memory, cost; or the servers that hold targets.
    """
    if load.requests is not None:
        said = {"--input": input, "--output": output}
        options.refuse(said, "--requests says it: leave out {}")
    goals, every = options.given(search), nodes.sites(parse_devices(device))
    clash = {"--ttft-target": load.ttft_target, "--tpot-target": load.tpot_target}
    if goals or len(every) > 1:
        options.refuse(clash, "a search has --ttft and --tpot: leave out {}")
    service = Service(
        model, every[0], **options.given_of({"batch": batch, "input": input, "output": output}),
        **options.given(how),
        demand=Demand.of(vars(load) | targets_of(goals)),
        options=options.pairs(option_, "option"), trusted=True,
    )  # fmt: skip
    if goals or len(every) > 1:
        told = searched(ServerSearch(service, every, search.max_device_count or MOST_DEVICES))
        notes = [f"note: {said}" for said in told["notes"]]
        if search.out is not None:
            from steptime.reports.charts.serving import front

            notes.append(drawn(front(told), search.out))
        return Answer(told, [servers(told), fronts(told)], notes)
    told = answered(service)
    tables = [table(told)] if told["load"] is None else [table(told), under_load(told["load"])]
    rest = (said for said in told["notes"] if not said.startswith(HOST_BOUND))
    return Answer(told, tables, [f"note: {said}" for said in rest])
