"""Changes of a training step that need less memory at its worst moment."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from steptime.core.workload import Workload
from steptime.network.recompute import find_repeated_ops
from steptime.prediction.memory import Sharding, rank_peak_bytes
from steptime.prediction.steps.step_model import StepModel

FROZEN_WEIGHTS = "nf4"  # of QLoRA
ZERO_STAGES = (1, 2, 3)
ZERO_DEVICES = 8  # over which ZeRO is counted: a node


class MemorySaving(NamedTuple):
    """A change that saves memory.

    Args:
        change: the change, such as `full recompute`.
        saves_bytes: memory that the change saves.
        fits: whether the changed step fits the device; None where its memory is unknown.
    """

    change: str
    saves_bytes: int
    fits: bool | None


def list_savings(model: StepModel) -> list[MemorySaving]:
    """Return the changes that make a step need less memory, the largest saving first.

    Each is counted on the changed step. ZeRO is counted over `ZERO_DEVICES` devices.
    """
    unchanged_bytes = model.needs().total_bytes
    bytes_by_change: dict[str, int] = {}
    half_batch = model.workload.batch_per_replica // 2
    if half_batch > 0:
        bytes_by_change[f"batch {half_batch}"] = model.needs(half_batch).total_bytes
    if model.workload.phase == "train":
        for change, workload in _list_changed_workloads(model):
            changed_model = StepModel(workload, model.device, method=model.method)
            bytes_by_change[change] = changed_model.needs().total_bytes
        bytes_by_change |= _find_changed_state_bytes(model)
    savings = [
        MemorySaving(change, unchanged_bytes - needed_bytes, _has_room(model, needed_bytes))
        for change, needed_bytes in bytes_by_change.items()
        if needed_bytes < unchanged_bytes
    ]
    return sorted(savings, key=lambda saving: -saving.saves_bytes)


def _list_changed_workloads(model: StepModel) -> Iterator[tuple[str, Workload]]:
    """Yield the changed trainings of a network, each with the words of its change."""
    workload = model.workload
    if workload.dtype == "float32":
        yield "bfloat16-mixed", workload.with_dtype("bfloat16-mixed")
    if workload.tuning.has_adapter and not workload.tuning.weights:
        quantised_tuning = replace(workload.tuning, weights=FROZEN_WEIGHTS)
        yield f"{FROZEN_WEIGHTS} weights", replace(workload, tuning=quantised_tuning)
    # `to_end=False` counts only ops whose outputs a gradient reads.
    can_recompute = bool(find_repeated_ops(model.graph(), to_end=False))
    if workload.tuning.recompute == "none" and can_recompute:
        recomputing_tuning = replace(workload.tuning, recompute="full")
        yield "full recompute", replace(workload, tuning=recomputing_tuning)


def _find_changed_state_bytes(model: StepModel) -> Mapping[str, int]:
    """Return the needed memory of the same step with another optimizer or with ZeRO, by change."""
    needs = model.needs()
    process_bytes = needs.total_bytes - needs.peak_bytes  # what no change of the states saves
    find_peak_bytes = partial(rank_peak_bytes, model.graph(), model.stack, sizes=model.sizes())
    peak_bytes_by_change = {
        "fused optimizer": find_peak_bytes(fused=True),  # makes no temporaries
        "8-bit optimizer": find_peak_bytes(state_bytes=1),
    }
    for stage in ZERO_STAGES:
        change = f"ZeRO {stage} over {ZERO_DEVICES} devices"
        peak_bytes_by_change[change] = find_peak_bytes(Sharding(stage, ZERO_DEVICES))
    return {
        change: tensors_bytes + process_bytes
        for change, tensors_bytes in peak_bytes_by_change.items()
    }


def _has_room(model: StepModel, needed_bytes: int) -> bool | None:
    """Return whether a model's device has so much memory, None where its memory is unknown."""
    usable_bytes = model.device.datasheet.usable_bytes
    return None if usable_bytes is None else needed_bytes <= usable_bytes
