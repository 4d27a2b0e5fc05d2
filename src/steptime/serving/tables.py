"""What people see of a service: its times and parts, the servers of a search, their front."""

from typing import Any

from steptime.core.table import Table, columns, facts
from steptime.core.units import interval, percent, seconds, size
from steptime.hardware.prices import NO_PRICE, by_offer
from steptime.planning.answer import held
from steptime.planning.meant import in_words
from steptime.serving.answer import HOST_BOUND
from steptime.serving.targets import split_of

PARTS = {
    "products_s": "products", "attention_s": "attention", "other_s": "norms and the like",
    "exchange_s": "communication", "host_s": "CPU-bound (kernel launches)",
    "prompt_s": "the server",
}  # fmt: skip


SERVERS = columns(
    "device", "?device_count", "servers", "ttft_s[ttft_s_0,ttft_s_1]=TTFT p90",
    "tpot_s[tpot_s_0,tpot_s_1]=TPOT p90",
    "cost=cost of 1M tokens", "?bounded_by=bottleneck",
)  # fmt: skip
SPEEDS = ("tokens_per_s_per_user", "tokens_per_s_per_device")
SHOWN = 40  # points of the front that people see


def servers(told: dict[str, Any]) -> Table:
    """Return the best servers of each device, together and apart."""
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for row in told["rows"]:
        first.setdefault((row["device"], row["arrangement"]), row)
    rows = [
        {
            **{name: row[name] for name in ("device", "device_count", "bounded_by")},
            "servers": split_of(row),
            **{key: (row[key] or {}).get("p90") for key in row["bounds"]},
            **{
                f"{key}_{end}": s
                for key, both in row["bounds"].items()
                for end, s in enumerate(both)
            },
            "cost": f"{c['million_tokens']:,.2f} {c['currency']}"
            if (c := row["cost"])
            else NO_PRICE,
        }
        for row in first.values()
    ]
    title = f"{told['model']}, {told['requests_per_s']:,.4g} requests/s: {told['answer']}"
    ways = dict.fromkeys(f"{row['dtype']}, {row['stack']}" for row in told["rows"])
    of = f"requests of {told['input_tokens']:,.4g} tokens in, {told['output_tokens']:,.4g} out"
    title += f"\n{of}{''.join(f'; {way}' for way in ways)}"
    more = len(told["rows"]) - len(rows)
    offers = {row["device"]: row["cost"] for row in first.values() if row["cost"]}
    paid = (f"{name}: {by_offer(cost['offer'], cost['date'])}" for name, cost in offers.items())
    below = [
        *([f"prices: {'; '.join(paid)}"] if offers else []),
        f"the best of {told['candidates']:,} services of at most "
        f"{told['max_device_count']} devices, {told['runs']:,} of them run"
        + (f"; --json has {more} more" if more > 0 else ""),
        *([f"one answer of the first: {told['best']['command']}"] if rows else []),
    ]
    return Table(SERVERS, rows, "\n".join([*told["missing"], title]), below)


def fronts(told: dict[str, Any]) -> Table:
    """Return the front: more tokens a second of a device or of a user, not both."""
    heads = columns(
        "device", "servers", "concurrency=users", "tokens_per_s_per_user=tokens/s a user",
        "tokens_per_s_per_device=tokens/s a device", "ttft_s=TTFT",
    )  # fmt: skip
    rows = [
        row | {"servers": split_of(row)} | {name: f"{row[name]:,.1f}" for name in SPEEDS}
        for row in sorted(told["front"], key=lambda one: one["device"])
    ]
    return Table(heads, rows, "tokens/s of a device over tokens/s of a user", most=SHOWN)


def _split(told: dict[str, Any]) -> str:
    return " x ".join(f"{name} {n}" for name, n in told["plan"].items() if n > 1) or "one device"


def table(told: dict[str, Any]) -> Table:
    """Return an answer for people."""
    title = (
        f"{told['model']} on {told['device_count']} {told['device']}, {_split(told)}, "
        f"{told['running_sequences']} running sequences, {told['input_tokens']} tokens in, {told['output_tokens']} out, "
        f"{told['dtype']} "
        f"({told['method']}, {told['stack']})"
    )
    if said := in_words(told["assumed"], "tpot_s"):
        title += f"\n{said} a token"
    title += "".join(f"\n{said}" for said in told["notes"] if said.startswith(HOST_BOUND))
    near = told["nearest_that_fits"]
    if not told["fits"]:
        fits = f"nearest that fits: {near['change']}" if near else "no change fits"
        over = size(told["memory"]["over_bytes"])
        title = f"out of memory by {over} per device; {fits}\n{title}"
    rows = []
    for key, word, phase in (
        ("ttft_s", "TTFT", "prefill"), ("tpot_s", "TPOT", "decode"),
    ):  # fmt: skip
        ends = (told[key.replace("_s", f"_{end}_s")] for end in ("low", "high"))
        rows.append((word, interval(key, told[key], *ends)))
        parts = told["parts"][phase]
        rows += [(f"  {said}", seconds(parts[k])) for k, said in PARTS.items() if parts.get(k)]
        rest = told[key] - sum(parts.values())
        rows += [("  others, and the queue", seconds(rest))] if told["load"] and rest > 0 else []
    own = f"{told['tokens_per_s_per_device']:,.0f}/s per device"
    of_user = f"{told['tokens_per_s_per_user']:,.1f}/s per user"
    speed = f"{told['output_tokens_per_s']:,.0f}/s, {own}, {of_user}"
    most = told["memory"]["largest_running_sequences"]
    room = f"; room for {most:,}" if told["fits"] and most is not None else ""
    rows += [
        ("request", seconds(told["request_s"])),
        ("tokens", speed),
        ("memory", held(told["memory"], 3) + room),
    ]
    paid = NO_PRICE
    if cost := told["cost"]:
        paid = f"{cost['million_tokens']:,.2f} {cost['currency']} per million tokens, "
        paid += f"{cost['hour']:,.2f} per hour ({by_offer(cost['offer'], cost['date'])})"
    rows.append(("cost", paid))
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
        f"{load['running_sequences']:,.1f} sequences in a step, cache {percent(load['cache'])} full at most",
        *([f"{again:,} times a request was sent back and computed again"] if again else []),
        *(["the queue grows without end: more comes than is served"] if load["grows"] else []),
        *([f"{most:,.4g} requests/s at most meet the targets (p90)"] if most else []),
    ]
    return Table(heads, rows, f"{load['requests']:,} requests under load", below)
