"""The headings under which long helps list the options of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import Group

if TYPE_CHECKING:
    from steptime.core.signatures.signature import QuestionParameter

PANELS = (
    "Options",
    "Model",
    "Software",
    "Parallelism",
    "Memory",
    "Engine",
    "Fine-tuning",
    "Load",
    "Search",
    "Cost",
    "Output",
)
"""The headings in the order of a help; `Options` heads what no other heading does."""
ARGUMENTS = Group("Arguments", sort_key=-1)
PANEL_GROUPS = {panel: Group(panel, sort_key=rank) for rank, panel in enumerate(PANELS)}
MIN_GROUPED = 12
"""A command with fewer options of its own lists them under one heading: a screen holds them all."""

PARAMETERS_BY_PANEL = {
    "Model": (
        "allow_unknown",
        "batch",
        "batch_axis",
        "dtype",
        "epochs",
        "global_batch",
        "length",
        "optimizer",
        "packed",
        "examples",
        "padded",
        "phase",
        "steps",
        "strict",
        "tokens",
    ),
    "Software": (
        "accept",
        "backend",
        "channels_last",
        "compile_",
        "draft",
        "host",
        "method",
        "options",
        "speculate",
        "stack",
        "tf32",
        "threads",
    ),
    "Parallelism": (
        "collective",
        "compression",
        "context",
        "context_method",
        "data",
        "expert",
        "expert_overlap",
        "expert_tensor",
        "gradients",
        "imbalance",
        "inside",
        "latency_us",
        "level",
        "link",
        "links_per_node",
        "microbatch",
        "no_overlap",
        "overlap",
        "parallel",
        "per_node",
        "pipeline",
        "prefill_data",
        "prefill_expert",
        "prefill_replicas",
        "prefill_tensor",
        "replicas",
        "scaling",
        "schedule",
        "sequence_parallel",
        "servers",
        "shard",
        "stages",
        "strategy",
        "tensor",
        "virtual",
        "zero",
    ),
    "Memory": (
        "host_link",
        "kv",
        "memory",
        "offload",
        "recompute",
        "recompute_layers",
        "update_early",
    ),
    "Fine-tuning": ("adapter", "lora", "modules_to_save", "train", "weights"),
    "Load": (
        "concurrency",
        "count",
        "input",
        "lengths",
        "output",
        "prefix",
        "rate",
        "requests",
        "running_sequences",
        "seed",
    ),
    "Search": (
        "budget_per_hour",
        "days",
        "max_device_count",
        "search",
        "tpot",
        "ttft",
        "watts",
    ),
    "Cost": ("billing", "kwh_co2", "kwh_price", "max_price", "price", "prices"),
    "Output": (
        "by_op",
        "details",
        "form",
        "json",
        "out",
        "page",
        "sort",
        "sources",
        "top",
        "trace",
        "timeline",
    ),
}
PANEL_OF_PARAMETER = {name: panel for panel, names in PARAMETERS_BY_PANEL.items() for name in names}
"""The heading of a parameter by its name, where its kind says none."""
PANEL_OF_OPTION = {
    ("plan", "device_count"): "Search",
    ("plan", "order"): "Parallelism",
    ("run", "data"): "Load",
    ("run", "input_"): "Load",
    ("run", "loaders"): "Load",
    ("run", "prefetch"): "Load",
    ("run", "staging"): "Load",
    ("run", "stage_to"): "Load",
    ("serve", "memory"): "Memory",
    ("serve", "weights"): "Memory",
    ("sweep", "shard"): "Options",
}
"""The heading of a command's parameter whose name means something else there."""


def find_panel(command: str, parameter: QuestionParameter) -> str:
    """Return the heading of a parameter in the help of a command."""
    return (
        parameter.kind.panel
        or PANEL_OF_OPTION.get((command, parameter.name))
        or PANEL_OF_PARAMETER.get(parameter.name, "Options")
    )
