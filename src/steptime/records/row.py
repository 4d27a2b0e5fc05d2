"""The columns that every table of records has, and the settings that names of rows are made of.

Names of columns carry their unit; None is unknown.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeVar

from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.core.units import QUANTITIES
from steptime.core.workload import FULL_TRAINING, Tuning, Workload, plan_to_json
from steptime.records.record import Quantity

Row = JsonObject
Kinds = dict[str, list[str]]  # by name, in the order of the records: the types of its values
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("origin", "method", "method_version", "status", "cause", "note"), str),
    **dict.fromkeys(("model", "family"), str),
    **dict.fromkeys(("batch", "replicas"), int),
    **dict.fromkeys(("dtype", "phase", "optimizer", "platform", "scope", "op_kind"), str),
    "workload_key": str,
    **dict.fromkeys(("step_s", "step_s_low", "step_s_high"), float),
    "step_s_interval": str,
    **dict.fromkeys(("step_s_min", "step_s_mean", "step_s_p5", "step_s_p95"), float),
    "steady": bool,
    **dict.fromkeys(("samples_n", "samples_disturbed", "runs"), int),
    **dict.fromkeys(
        ("examples_per_s", "examples_uncertainty_per_s", "examples_jitter_per_s"), float
    ),
    "infeed": float,
    **{
        name: float
        for name in QUANTITIES
        if name != "step_s" and not name.startswith("published_")  # columns of some tables alone
    },
    "round": int,
    **dict.fromkeys(("taken_at", "host"), str),
    "threads": int,
    **dict.fromkeys(("method_options", "env", "gpu"), str),
    "device_count": int,
    **dict.fromkeys(("stack", "strategy", "input", "staging"), str),
    **dict.fromkeys(("loaders", "prefetch"), int),
    "record_id": str,
}
"""The columns that every table has, in order; further quantities and hyperparameters follow."""
AMOUNTS = frozenset(COLUMNS.keys() & QUANTITIES.keys())  # quantities that every table has

PARALLEL_WAYS = ("tensor", "pipeline", "expert", "context")  # ways of a plan to be parallel
PARAM_PREFIX = "param_"
UNKNOWN = "unknown"
RUN_OPTIONS = ("gpu", "device_count", "input", "staging", "loaders", "prefetch", "threads")
ESTIMATE = ("value", "low", "high", "error", "drift", "steady")  # of `statistics.estimates`
RATES = ("peak_flop_per_s", "memory_bytes_per_s")  # of a device, options of prediction methods
ENVIRONMENT_TEXTS = (
    "op_kind",
    "host",
    "batch_source",
    "source_file",
    "stack",
)  # texts of an environment
SPREAD = ("min", "max", "mean", "p5", "p95", "speed", "uncertainty", "jitter")  # of samples
ROW_LABEL_COLUMNS = ("platform", "method")  # columns of their own beside the name of a row
RATE_ENDINGS = ("per_s", "accuracy", "share", "fraction", "shares")  # of quantities to raise
WASTE = ("infeed", "time_share", "uncertainty", "jitter", "std")  # to lower in spite of the ending
Texts = Mapping[str, Sequence[str | None]]  # a column of JSON texts for each setting; None: absent


def is_higher_better(quantity: str) -> bool:
    """Return whether a larger value is better: for rates and accuracies it is, for seconds not."""
    return quantity.endswith(RATE_ENDINGS) and not any(word in quantity for word in WASTE)


@lru_cache(1 << 14)
def load_json(text: str) -> Any:
    """Parse a JSON text; the value is cached, so nobody may change it."""
    return json.loads(text)


def settings_of(workload: Workload) -> Row:
    """Return the settings of a workload, except its model and batch, in the order of names."""
    step_settings = {name: getattr(workload, name) for name in ("dtype", "phase", "optimizer")}
    if workload.tuning != FULL_TRAINING:
        step_settings["tuning"] = describe_tuning(workload.tuning)
    plan_settings = {"replicas": workload.plan.data}
    for name, value in plan_to_json(workload.plan).items():
        if name != "data":
            plan_settings[f"{name}-parallel" if name in PARALLEL_WAYS else name] = value
    return {**workload.settings, **step_settings, **plan_settings}


def describe_tuning(tuning: Tuning) -> str:
    """Return all settings of a fine-tuning: "LoRA r=8 on attention, host_link pcie-4-x16"."""
    methods = {"how": "+".join(tuning.methods), "host_link": tuning.host_link}
    method_texts = [f"{name} {value}" for name, value in methods.items() if value]
    return ", ".join(filter(None, (tuning.text, *method_texts)))


def by_run(samples: Iterable[Item], runs: Iterable[int]) -> list[list[Item]]:
    """Return the samples of each run (fresh process).

    Args:
        samples: the samples of all runs.
        runs: the run of each sample.

    Raises:
        InputError: if the lengths differ.
    """
    all_samples = list(samples)
    run_numbers = list(runs)
    if len(all_samples) != len(run_numbers):
        raise InputError(f"{len(all_samples)} samples, but {len(run_numbers)} runs of samples")
    if len(set(run_numbers)) < 2:
        return [all_samples]  # one run
    pairs_by_run = group_by(zip(run_numbers, all_samples, strict=True), itemgetter(0))
    return [[sample for _, sample in pairs] for pairs in pairs_by_run.values()]


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, keys and items in the order of the items."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def divide(a: float | None, b: float | None) -> float | None:
    """Return a / b, or None if either is unknown or b is 0."""
    return a / b if a is not None and b else None


def headline(quantity: Quantity) -> float | None:
    """Return the one number of a quantity: the median of its samples, or its value."""
    if not quantity.samples:
        return quantity.value
    # The median, faster than `statistics.median`: of an even number the mean of the middle two.
    ordered, half = sorted(quantity.samples), len(quantity.samples) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


@lru_cache(64)
def exchange_name(strategy: str | None, overlap: bool) -> str:
    """Describe a strategy behind a network's name: `, sharded, no overlap`."""
    return (f", {strategy}" if strategy else "") + ("" if overlap else ", no overlap")


def collect_setting_texts(rows: Sequence[Mapping[str, object]]) -> Texts:
    """Return the settings of several rows as columns, in the order of the first row with each."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: [json.dumps(row[name]) if name in row else None for row in rows] for name in names
    }


def find_distinguishing_settings(settings: Texts) -> list[str]:
    """Return the settings that tell rows apart, greedily in their order.

    A setting is kept if it increases the number of distinct rows.
    """
    names: list[str] = []
    row_count = max(map(len, settings.values()), default=0)
    # A class of rows: those that are equal in all settings of `names`.
    row_classes = [0] * row_count
    class_count = 1
    for name, column in settings.items():
        if len(set(column)) == 1:  # equal in all rows
            continue
        split_classes = _split_classes(row_classes, column)
        split_count = len(set(split_classes))
        if split_count > class_count:
            names.append(name)
            row_classes = split_classes
            class_count = split_count
    return names


def _split_classes(row_classes: Sequence[int], texts: Sequence[str | None]) -> list[int]:
    """Return a number for each pair of class and text: rows that are equal in both share it."""
    # An absent setting (None) counts as the text "null".
    distinct_texts = {text for text in texts if text is not None} | {"null"}
    codes: dict[str | None, int] = {text: code for code, text in enumerate(distinct_texts)}
    codes[None] = codes["null"]
    return [
        row_class * len(codes) + codes[text]
        for row_class, text in zip(row_classes, texts, strict=True)
    ]


def describe_value(name: str, value: object, model: str = "") -> str:
    """Describe a setting in few words: `nodes 64`; a word such as `lstm` needs no name."""
    if isinstance(value, str) and value.isidentifier() and value != model:
        return value
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return f"{name} {text}"
