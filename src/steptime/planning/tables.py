"""What people see of a plan: the step, the memory, the communication, and those of a search."""

from typing import Any

from steptime.core.table import Table, columns, facts
from steptime.core.units import interval, percent, seconds, shown, size
from steptime.hardware.prices import NO_PRICE, by_offer
from steptime.planning.answer import WORDS, held, money, split_in_words

_FOUND = ("split=split", "step_s[low_s,high_s]=step", "same=")


def search_tables(told: dict[str, Any]) -> list[Table]:
    """Return the plans that a search found, and the fastest of each number of devices."""
    notes = f"{told['considered']:,} splits, {told['fitting']:,} fit"
    least: dict[int, list[str]] = {}
    for name, row in told["best_by"].items():
        least.setdefault(told["rows"].index(row), []).append(_LEAST[name])
    order = sorted(range(len(told["rows"])), key=lambda at: (at not in least, at))
    many = [{**_in_words(told["rows"][k]), "least": ", ".join(least.get(k, ()))} for k in order]
    places = {(row["device"], row["device_count"]) for row in told["rows"]}
    may = "?" if len(places) == 1 else ""  # in title
    heads = columns(
        f"{may}device", f"{may}device_count", *_FOUND, "needed_bytes=memory", "least=least"
    )
    same = f"= {told['alike']:,} plans are as fast within the error of this prediction"
    below = [same, told["space"]]
    every = Table(heads, many, f"{notes}. Unbeaten in {', '.join(_LEAST.values())}", below, most=6)
    if len(told["by_device_count"]) == 1:
        return [every]
    paid = ["cost_per_step:.3g=cost a step"]
    if told["best"]["training"]:
        paid = ["training_days:,.3g=days", "training_cost:,.0f=cost"]
    rest = ("efficiency:.0%", *paid, "energy_j=energy a step", "?bound_by=bottleneck")
    heads = columns("device", "device_count", *_FOUND, *rest)
    rows = [_in_words(row) for row in told["by_device_count"]]
    return [Table(heads, rows, "The fastest of each number of devices"), every]


_MFU = {"full": "attention in full", "half": "half of it", "6N": "as 6N"}
_LEAST = {
    "step_s": "time", "cost_per_step": "cost", "energy_j": "energy", "needed_bytes": "memory",
    "device_count": "device_count",
}  # fmt: skip


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "split": split_in_words({"plan": row, **row}),
        "same": "=" if row["alike"] else "",
    }


def split_and_size(told: dict[str, Any]) -> str:
    """Return how a step is split, its batch, length and type, in words."""
    length = f" of {told['length']} tokens" if told["length"] else ""
    tuning = f", {told['tuning']}" if told["tuning"] else ""
    of = f"global batch {told['global_batch']}{length}, {told['dtype']}{tuning}"
    return f"{split_in_words(told)}, {of}"


def tables(told: dict[str, Any]) -> list[Table]:
    """Return an answer for people: the sentence, the step, the memory, and what waits."""
    under = f"({told['method']}, {told['stack']})"
    title = f"{told['answer']}\n{told['model']}: {split_and_size(told)} {under}"
    parts, mfu, memory = told["parts"], told["mfu"], told["memory"]
    rows = [
        ("step", interval("step_s", told["step_s"], told["low_s"], told["high_s"])),
        ("  computing", seconds(parts["compute_s"])),
    ]
    for key, word in WORDS.items():
        if key != "compute_s" and parts[key] > 0:
            share = f" ({percent(told['bubble'])} of the pipeline)" if key == "bubble_s" else ""
            rows.append((f"  {word}", seconds(parts[key]) + share))
    speed = f"{told['tokens_per_s']:,.0f}/s, {told['tokens_per_s_per_device']:,.0f}/s per device"
    shares = [f"{word} {percent(mfu[key])}" for key, word in _MFU.items() if mfu[key] is not None]
    shares = shares if len(shares) > 1 else [f"{percent(mfu['full'])} of all that is counted"]
    stages = len(memory["by_stage"])
    where = f"stage {memory['fullest_stage']} of {stages}: " if stages > 1 else ""
    rows += [(told["unit"], speed), ("MFU", ", ".join(shares)), ("memory", where + held(memory))]
    near = told["nearest_that_fits"]
    if near is not None:
        fits = f"{size(near['needed_bytes'])}, {seconds(near['step_s'])}"
        rows.append(("", f"nearest that fits: {near['change']} ({fits})"))
    elif not told["fits"]:
        rows.append(("", "no single or double change of this plan fits"))
    rows += _of_money(told)
    tables_ = [facts(title, "one step", rows)]
    waits = sorted(told["exposed_communication"], key=lambda one: -one["exposed_s"])
    heads = columns(
        "group=communication", "collective=", "level=over", "total_s=takes", "exposed_s=exposed"
    )
    if waits:
        tables_.append(Table(heads, waits, "Communication of a device", most=8))
    return tables_


def _of_money(told: dict[str, Any]) -> list[tuple[str, str]]:
    cost, energy = told["cost"], told["energy"]
    by = cost and by_offer(cost["offer"], cost["date"])
    rows = [("cost", f"{money(cost['hour'], cost)} per hour ({by})" if cost else NO_PRICE)]
    if energy is not None:
        kwh = told["training"] and told["training"]["energy_kwh"]
        whole = f", {shown('kwh', kwh)} in all" if kwh else ""
        said = f"about {energy['device_w']:,.0f} W per device{whole}; {energy['of']}"
        rows.append(("energy", said))
    return rows
