"""The answer to a plan in a sentence, and how it is split, in words."""

from collections.abc import Mapping
from typing import Any

from steptime.core.units import seconds, size

WORDS = {  # of the parts of a step
    "compute_s": "computing",
    "recompute_s": "computing again",
    "exposed_s": "waiting for exchanges",
    "host_s": "waiting for the host",
    "bubble_s": "pipeline bubble",
    "update_s": "update",
    "rest_s": "outside of the layers",
}
_MORE = {  # that a plan says where it departs from the usual
    "recompute_layers": "of {} layers a stage", "shard": "shards of {}", "schedule": "{}",
    "context_method": "context by {}", "offload": "offload {}",
}  # fmt: skip
_SPLIT = ("tensor", "context", "data", "pipeline", "virtual", "expert")


def sentence(told: Mapping[str, Any]) -> str:
    """Return the answer of a plan's document: devices, step, money, days, and what bounds it."""
    low, high = (seconds(told[end]) for end in ("low", "high"))
    step = f"{seconds(told['step_s'])} a step ({low} to {high})"
    where = f"{told['devices']} {told['device']}"
    if not told["fits"]:
        over = size(told["memory"]["over_bytes"])
        return f"{where}: DOES NOT FIT, {over} too much per device; it would take {step}"
    return f"{where}: {step}{_paid(told)}; bound by {bound(told)}"


def _paid(told: Mapping[str, Any]) -> str:
    cost, training = told["cost"], told["training"]
    if training is None:
        return "" if cost is None else f", {money(cost['hour'], cost)} per hour"
    paid = "" if training["cost"] is None else f"{money(training['cost'], cost)} for "
    days, low, high = (training[key] / 24 for key in ("train_h", "low_h", "high_h"))
    between = f"({low:,.3g} to {high:,.3g})"
    return f", {paid}{short(training['tokens'])} {told['unit']} in {days:,.3g} days {between}"


def short(amount: float) -> str:
    """Return a number of tokens in few letters, such as 1e12."""
    return f"{amount:.3g}".replace("e+", "e")


def money(value: float, cost: Mapping[str, Any]) -> str:
    """Return an amount of money in the currency of a price."""
    return f"{value:,.2f} {cost['currency']}" if value < 100 else f"{value:,.0f} {cost['currency']}"


def bound(told: Mapping[str, Any]) -> str:
    """Return what takes most of a plan's step, and how much of it."""
    parts = dict(told["parts"])
    waits = max(told["exposed_communication"], key=lambda one: one["exposed_s"], default=None)
    name = max(parts, key=parts.__getitem__)
    word = WORDS[name]
    if name == "exposed_s" and waits is not None:
        word = f"{waits['collective']} of {waits['group']} ranks over {waits['level']}"
    return f"{word} ({parts[name] / told['step_s']:.0%} of the step)"


def split_in_words(told: Mapping[str, Any]) -> str:
    """Return how a step is split: `tensor 8 x data 16, ZeRO 1, micro-batch 2`."""
    plan = {"virtual": 1, "zero": 0, "recompute": "none", "sequence": False, **told["plan"]}
    sizes = [f"{name} {plan[name]}" for name in _SPLIT if plan.get(name, 1) > 1]
    words = [" x ".join(sizes) or "one device"]
    words += ["sequence parallel"] if plan["sequence"] else []
    words += [f"ZeRO {plan['zero']}"] if plan["zero"] else []
    words += [f"recompute {plan['recompute']}"] if plan["recompute"] != "none" else []
    words += [text.format(plan[name]) for name, text in _MORE.items() if plan.get(name)]
    return ", ".join([*words, f"micro-batch {told['micro_batch']}"])


def held(memory: Mapping[str, Any], parts: int = 4) -> str:
    """Return what a device holds, of how much, its largest parts, and how much is too much."""
    largest = sorted(memory["by_part"].items(), key=lambda item: -item[1])[:parts]
    most = ", ".join(f"{name.removesuffix('_bytes')} {size(value)}" for name, value in largest)
    over, room = memory["over_bytes"], memory["device_bytes"]
    doubt = f", DOES NOT FIT: {size(over)} too much" if over else ""
    of = f" of {size(room)}" if room else ""
    return f"{size(memory['total_bytes'])}{of} ({most}){doubt}"
