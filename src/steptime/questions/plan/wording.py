"""Texts of plans: the headline, the split of a step, money and memory."""

from collections.abc import Mapping
from operator import itemgetter

from steptime.core.units import (
    format_bytes,
    format_hours,
    format_money,
    format_percent,
    format_seconds,
)
from steptime.core.workload import Plan
from steptime.questions.plan.answer import PlanAnswer, PlanMemory

PART_WORDS = {
    "compute_s": "computing",
    "recompute_s": "computing again",
    "exposed_communication_s": "exposed communication",
    "host_s": "CPU-bound (kernel launches)",
    "bubble_s": "pipeline bubble",
    "update_s": "update",
    "outside_layers_s": "outside of the layers",
}
"""The parts of a step in words, by the fields of `PlanParts`."""
SIZE_FIELDS = ("tensor", "context", "data", "pipeline", "virtual", "expert")
DEPARTURES = {
    "recompute_layers": "of {} layers a stage",
    "shard": "shards of {}",
    "schedule": "{}",
    "context_method": "context by {}",
    "offload": "offload {}",
    "expert_tensor": "whole experts",
    "imbalance": "imbalance {:g}",
    "expert_overlap": "tokens beside another microbatch",
}
"""Fields of a split that are said where they are not the defaults."""
LARGEST_PARTS = 4  # of the memory of a device, in its row


def describe_headline(answer: PlanAnswer) -> tuple[str, ...]:
    """Describe a plan, a fact a line: `8 h100-sxm5: 1.4 s a step (1.2 s to 1.8 s)`, and more."""
    low, high = format_seconds(answer.any_stack_low_s), format_seconds(answer.any_stack_high_s)
    step = f"{format_seconds(answer.step_s)} a step ({low} to {high})"
    devices = f"{answer.device_count} {answer.device}"
    if not answer.fits:
        lacking = format_bytes(answer.memory.over_bytes or 0.0)
        facts = (f"{devices}: out of memory by {lacking} per device", f"it would take {step}")
        return facts + _describe_stack(answer)
    return (
        f"{devices}: {step}",
        *_describe_stack(answer),
        *_describe_cost(answer),
        f"bound by {describe_bottleneck(answer)}",
    )


def _describe_stack(answer: PlanAnswer) -> tuple[str, ...]:
    """Describe the assumed stack: `assumed: fsdp-2025 (--stack fsdp-compile-2025: 1.39 s)`."""
    if answer.device_count == 1 or not answer.other_stacks:
        return ()
    alternative = ""
    for row in answer.other_stacks:
        if row.stack == answer.nearest_stack:
            alternative += f" (with --stack {row.stack}: {format_seconds(row.step_s)})"
    return (f"assumed: {answer.stack}{alternative}",)


def _describe_cost(answer: PlanAnswer) -> tuple[str, ...]:
    """Describe the cost: `33.41 USD per hour`, or `950 USD` and `1e12 tokens in 3.2 days`."""
    training = answer.training
    if training is None:
        if answer.cost_per_hour is None:
            return ()
        return (f"{format_money(answer.cost_per_hour, answer.currency)} per hour",)
    tokens = f"{training.tokens:.3g}".replace("e+", "e")
    low, high = format_hours(training.any_stack_low_h), format_hours(training.any_stack_high_h)
    time = f"{tokens} {answer.unit} in {format_hours(training.train_h)} ({low} to {high})"
    if answer.cost_total is None:
        return (time,)
    return time, f"{format_money(answer.cost_total, answer.currency)} in all"


def describe_bottleneck(answer: PlanAnswer) -> str:
    """Describe what takes most of a step: `computing (92.8 % of the step)`."""
    part_times: dict[str, float] = answer.parts.to_dict()
    longest_part, part_s = max(part_times.items(), key=itemgetter(1))
    words = PART_WORDS[longest_part]
    collectives = answer.exposed_communication
    if longest_part == "exposed_communication_s" and collectives:
        longest = max(collectives, key=lambda collective: collective.exposed_communication_s)
        words = f"{longest.collective} of {longest.group} ranks over {longest.link}"
    return f"{words} ({format_percent(part_s / answer.step_s)} of the step)"


def describe_split(fields: Mapping[str, object], microbatch: int) -> str:
    """Describe how a step is split: `tensor 8 x data 16, ZeRO 1, microbatch 2`."""
    defaults = vars(Plan())
    split = {**defaults, **fields}
    degrees = [f"{name} {split[name]}" for name in SIZE_FIELDS if split[name] != 1]
    words = [" x ".join(degrees) or "one device"]
    if split["sequence"]:
        words.append("sequence parallel")
    if split["zero"]:
        words.append(f"ZeRO {split['zero']}")
    if split["recompute"] != "none":
        words.append(f"recompute {split['recompute']}")
    for name, template in DEPARTURES.items():
        if split[name] != defaults[name]:
            words.append(template.format(split[name]))
    return ", ".join([*words, f"microbatch {microbatch}"])


def describe_split_and_size(answer: PlanAnswer) -> str:
    """Describe how a step is split, its batch, length and data type."""
    length = f" of {answer.length} tokens" if answer.length else ""
    tuning = f", {answer.tuning}" if answer.tuning else ""
    size_words = f"global batch {answer.global_batch}{length}, {answer.dtype}{tuning}"
    return f"{describe_split(answer.plan.to_dict(), answer.microbatch)}, {size_words}"


def describe_memory(memory: PlanMemory) -> str:
    """Describe the memory of the fullest device: `134.9 GB of 85.04 GB (states 80.86 GB, ...)`."""
    bytes_by_part: dict[str, float] = memory.by_part.to_dict()
    largest_first = sorted(bytes_by_part.items(), key=itemgetter(1), reverse=True)
    part_texts = [
        f"{name.removesuffix('_bytes')} {format_bytes(part_bytes)}"
        for name, part_bytes in largest_first[:LARGEST_PARTS]
    ]
    lack = f", out of memory by {format_bytes(memory.over_bytes)}" if memory.over_bytes else ""
    usable = f" of {format_bytes(memory.usable_bytes)}" if memory.usable_bytes else ""
    return f"{format_bytes(memory.needed_bytes)}{usable} ({', '.join(part_texts)}){lack}"


def describe_assumed(assumed: Mapping[str, str]) -> str:
    """Describe assumed settings as options: `--stack fsdp-2025, --inside nvlink-4`."""
    return ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in assumed.items())
