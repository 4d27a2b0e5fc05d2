"""The networks that a question is asked of: model texts with ranges, and their type."""

from itertools import product
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import print_note
from steptime.core.values import is_range, parse_counts, parse_range
from steptime.core.workload import Workload
from steptime.questions import options
from steptime.records import store

DEFAULT_SET = "fc:layers=4..128x2,nodes=32..8192x2"  # the plane that ParaDnn's heat maps show
DEFAULT_BATCHES = "64,1024,16384"
MAX_NETWORKS = 10_000  # of one text with ranges


def networks(text: Any) -> list[Any]:
    """Expand a model text with ranges: `fc:layers=4..8x2` gives two model texts.

    Raises:
        InputError: for a malformed range, and for more than `MAX_NETWORKS` networks.
    """
    if isinstance(text, Workload):
        return [text]
    name, colon, settings = text.partition(":")
    if not colon or not is_range(settings):
        return [text]
    axes = []  # for each setting the texts `key=value` of its range
    for setting in settings.split(","):
        key, equals, value_text = (part.strip() for part in setting.partition("="))
        values = [value_text]
        if is_range(value_text):
            values = parse_range(value_text, f"{name}: {key}")
        axes.append([f"{key}{equals}{value}" for value in values])
    texts = [f"{name}:{','.join(setting_texts)}" for setting_texts in product(*axes)]
    if len(texts) > MAX_NETWORKS:
        raise InputError(f"{text}: {len(texts)} networks; at most {MAX_NETWORKS}")
    return texts


def workloads(
    models: list[Any],
    batch: str | None,
    *,
    dtype: str | None,
    phase: str,
    optimizer: str | None,
    length: int | None = None,
) -> list[Workload]:
    """Return the workloads of models with ranges, each at each batch.

    Args:
        models: model texts, which may have ranges, or workloads.
        batch: batch sizes, as a list or a range; None for each model's default.
        dtype: the data type; None for that of each network.
        phase: train or infer.
        optimizer: the optimizer; None for that of each network.
        length: tokens of a sequence; None for each model's own.

    Raises:
        InputError: for unknown names and malformed ranges.
    """
    batches: list[str | None] = [None]
    if batch is not None:
        batches = [str(size) for size in parse_counts(batch, "--batch")]
    texts = [text for model in models for text in networks(model)]
    return [
        options.workload_of(text, batch_text, dtype, phase, optimizer, length=length)
        for text in texts
        for batch_text in batches
    ]


def of_folder(folder: Path) -> list[Workload]:
    """Return the networks of one device in a folder of records; raises `InputError`."""
    # Records with a scope are of a part of a step, such as an op.
    step_workloads = [
        record.workload for record in store.load(folder, print_note) if not record.scope
    ]
    workload_by_key = {
        workload.key: workload for workload in step_workloads if workload.plan.device_count == 1
    }
    if not workload_by_key:
        raise InputError(f"{folder}: holds no network of one device")
    return list(workload_by_key.values())
