"""The command `serve`: a language model that answers."""

from dataclasses import dataclass
from typing import Annotated, Any

from steptime.cli.picture import picture
from steptime.core.question import File, Text, number, option, optional, question, whole
from steptime.core.ranges import share
from steptime.core.table import Answer, Table, columns, facts
from steptime.core.units import interval, percent, seconds, size
from steptime.prediction import DEFAULT
from steptime.questions import options
from steptime.questions.grid_table import names
from steptime.questions.plan.answer import held
from steptime.questions.serve.answer import Service, answered
from steptime.questions.serve.load import Demand
from steptime.questions.serve.search import MOST_DEVICES, MOST_SEARCHED, ServerSearch
from steptime.questions.serve.targets import searched, split_of, targets_of
from steptime.reports.charts.files import save

PARTS = {
    "products_s": "products", "attention_s": "attention", "other_s": "norms and the like",
    "exchange_s": "communication", "host_s": "CPU-bound (kernel launches)",
    "prompt_s": "the server",
}  # fmt: skip


SERVERS = columns(
    "device", "devices", "servers", "ttft_s[ttft_s_0,ttft_s_1]=TTFT p90",
    "tpot_s[tpot_s_0,tpot_s_1]=TPOT p90",
    "cost=cost of 1M tokens", "bounded_by=bottleneck",
)  # fmt: skip
ROW = ("device", "devices", "bounded_by")
SPEEDS = ("tokens_per_s_per_user", "tokens_per_s_per_device")
Devices = Annotated[
    str, option("--device NAME", f"{options.DEVICE}; of a search a list with commas.")
]
SHOWN = 40  # points of the front that people see


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
        "NAME", "How the layers' weights are kept: float8, int8, int4, float4."
    )
    kv: Text = optional("NAME", "How keys and values are kept: float8 or int8.")
    prices: options.Prices = None
    prefix: float | None = optional(
        "W", "Share of each prompt that the cache has already, such as 0.3.", parser=share
    )
    stack: Text = optional("NAME", "The software (steptime list stacks). Default: vllm-2025.")
    method: options.Method = DEFAULT


@dataclass(frozen=True)
class LoadOptions:
    """The options of a service under load, by the fields of `Demand`."""

    concurrency: Text = optional("N", "Under load: so many users, each waits.")
    rate: Text = optional("R", "Under load: requests a second, by chance (Poisson).")
    requests: File = optional("FILE", "Under load: a trace, CSV or JSONL.")
    count: Text = optional("N", "Requests. Default: 10 a user, 1000, or a trace's.")
    seed: Text = optional("N", "Of the chance in which requests come. Default: 0.")
    ttft_target: Text = optional("S", "TTFT target, in seconds.")
    tpot_target: Text = optional("S", "TPOT target, in seconds.")
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

    ttft: float | None = number("S", "Search: TTFT p90, in seconds at most.")
    tpot: float | None = number("S", "Search: TPOT p90, in seconds at most.")
    max_devices: int | None = whole(
        "N", "Search: at most so many. Default: 64.", most=MOST_SEARCHED
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
    nodes: options.NodeOptions,
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
    goals, every = options.given(search), nodes.sites(names(device, "--device"))
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
        told = searched(ServerSearch(service, every, search.max_devices or MOST_DEVICES))
        notes = [f"note: {said}" for said in told["notes"]]
        if search.out is not None:
            from steptime.reports.charts.serving import front

            save(front(told), search.out)
            notes.append(f"picture: {search.out}")
        return Answer(told, [servers(told), fronts(told)], notes)
    told = answered(service)
    tables = [table(told)] if told["load"] is None else [table(told), under_load(told["load"])]
    return Answer(told, tables, [f"note: {said}" for said in told["notes"]])


def servers(told: dict[str, Any]) -> Table:
    """Return the best servers of each device, together and apart."""
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for row in told["rows"]:
        first.setdefault((row["device"], row["arrangement"]), row)
    rows = [
        {
            **{name: row[name] for name in ROW},
            "servers": split_of(row),
            **{key: (row[key] or {}).get("p90") for key in row["bounds"]},
            **{
                f"{key}_{end}": s
                for key, both in row["bounds"].items()
                for end, s in enumerate(both)
            },
            "cost": _paid(row["cost"]),
        }
        for row in first.values()
    ]
    title = f"{told['model']}, {told['requests_per_s']:,.4g} requests/s: {told['answer']}"
    more = len(told["rows"]) - len(rows)
    below = [
        f"the best of {told['candidates']:,} services of at most {told['max_devices']} devices, "
        f"{told['runs']:,} of them run" + (f"; --json has {more} more rows" if more > 0 else ""),
        *([f"one answer of the first: {told['best']['command']}"] if rows else []),
    ]
    return Table(SERVERS, rows, "\n".join([*told["missing"], title]), below)


def _paid(cost: dict[str, Any] | None) -> str:
    """Return what a million tokens cost, by which offer and of which date."""
    if cost is None:
        return "no price is known"
    by = f"{cost['offer']}, {cost['date']}"
    return f"{cost['million_tokens']:,.2f} {cost['currency']} ({by})"


def fronts(told: dict[str, Any]) -> Table:
    """Return the front: more tokens a second of a device or of a user, not both."""
    heads = columns(
        "device", "servers", "concurrency=users", "tokens_per_s_per_user=tokens/s a user",
        "tokens_per_s_per_device=tokens/s a device", "ttft_s=TTFT",
    )  # fmt: skip
    rows = [
        row | {"servers": split_of(row)} | {name: round(row[name], 1) for name in SPEEDS}
        for row in sorted(told["front"], key=lambda one: one["device"])
    ]
    return Table(heads, rows, "tokens/s of a device over tokens/s of a user", most=SHOWN)


def _split(told: dict[str, Any]) -> str:
    return " x ".join(f"{name} {n}" for name, n in told["plan"].items() if n > 1) or "one device"


def table(told: dict[str, Any]) -> Table:
    """Return an answer for people."""
    title = (
        f"{told['model']} on {told['devices']} {told['device']}, {_split(told)}, batch "
        f"{told['batch']}, {told['input']} tokens in, {told['output']} out, {told['dtype']} "
        f"({told['method']}, {told['stack']})"
    )
    near = told["nearest_that_fits"]
    if not told["fits"]:
        fits = f"nearest that fits: {near['change']}" if near else "no change fits"
        over = size(told["memory"]["over_bytes"])
        title = f"out of memory by {over} per device; {fits}\n{title}"
    rows = []
    for key, word, phase in (
        ("ttft_s", "TTFT", "prefill"), ("tpot_s", "TPOT", "decode"),
    ):  # fmt: skip
        rows.append((word, interval(key, told[key], *told["bounds"][key])))
        parts = told["parts"][phase]
        rows += [(f"  {said}", seconds(parts[k])) for k, said in PARTS.items() if parts.get(k)]
        rest = told[key] - sum(parts.values())
        rows += [("  others, and the queue", seconds(rest))] if told["load"] and rest > 0 else []
    own = f"{told['tokens_per_s_per_device']:,.0f}/s per device"
    speed = f"{told['tokens_per_s']:,.0f}/s, {own}, {told['tokens_per_s_per_user']:,.1f}/s per user"
    most = told["memory"]["largest_batch"]
    room = f"; room for a batch of {most:,}" if told["fits"] and most is not None else ""
    rows += [
        ("request", seconds(told["request_s"])),
        ("tokens", speed),
        ("memory", held(told["memory"], 3) + room),
    ]
    cost = told["cost"]
    if cost is not None:
        paid = f"{cost['million_tokens']:,.2f} {cost['currency']} per million tokens"
        rows.append(("cost", f"{paid}, {cost['hour']:,.2f} per hour ({cost['date']})"))
    energy = told["energy"]
    if energy is not None:
        watts = f"{energy['device_w']:,.0f} W per device"
        rows.append(("energy", f"{energy['token_j']:,.2f} J per token, {watts}; {energy['of']}"))
    return facts(title, "serving", rows)


def under_load(load: dict[str, Any]) -> Table:
    """Return what requests see of a service under load."""
    heads = columns("time=", "mean_s=mean", "p50_s=p50", "p90_s=p90", "p99_s=p99")
    words = {"ttft_s": "TTFT", "tpot_s": "TPOT", "request_s": "request"}
    rows = [
        {"time": word, **{f"{name}_s": value for name, value in load[key].items()}}
        for key, word in words.items()
        if load[key] is not None
    ]
    most, again = load["highest_rate_per_s"], load["sent_back"]
    below = [
        f"{load['requests_per_s']:,.4g} requests/s"
        + (f", {percent(load['in_time'])} of them in time" if most or load["in_time"] < 1 else ""),
        f"{load['batch']:,.1f} sequences in a step, cache {percent(load['cache'])} full at most",
        *([f"{again:,} times a request was sent back and computed again"] if again else []),
        *(["the queue grows without end: more comes than is served"] if load["grows"] else []),
        *([f"{most:,.4g} requests/s at most meet the targets (p90)"] if most else []),
    ]
    return Table(heads, rows, f"{load['requests']:,} requests under load", below)
