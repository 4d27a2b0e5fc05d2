"""Networks on a device and on changed devices: their steps, and the largest batches that fit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from typing import TypedDict

import msgspec

from steptime.core.progress import track_progress
from steptime.core.workload import Workload
from steptime.grids.batch_steps import BatchSteps
from steptime.grids.batches import MAX_BATCH, list_doubling_batches
from steptime.hardware.device import Device
from steptime.prediction.assumed import assumed_of, common_settings
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.bound import CriticalPath, find_critical_path
from steptime.questions.whatif.answer import NetworkRow, NetworkSettings

TRIAL_BATCHES = list_doubling_batches(MAX_BATCH)  # powers of two
LARGEST_BATCH = 0  # stands for the largest batch that fits


class NetworkCase:
    """A network at a batch on the device as it is.

    Args:
        model: the network on the device.
        steps: its steps at the trial batches.
        batch: the batch, or `LARGEST_BATCH`.
    """

    def __init__(self, model: StepModel, steps: BatchSteps, batch: int) -> None:
        self.model = model
        self._steps = steps
        self.largest = self.largest_on(model.device)
        self.batch = self.largest if batch == LARGEST_BATCH else batch

    def largest_on(self, device: Device) -> int:
        """Return the largest power of two that fits, 0 for none, at most `MAX_BATCH`."""
        does_fit = self._steps.fit(self.model.with_device(device))  # for each trial batch
        return max(compress(TRIAL_BATCHES, does_fit), default=0)

    def fits_on(self, device: Device, largest: int) -> bool:
        """Return whether the batch fits a device.

        Args:
            device: the device.
            largest: the largest trial batch that fits it.
        """
        return self._fits(self.batch, device, largest)

    def _fits(self, batch: int, device: Device, largest: int) -> bool:
        """Return whether a batch fits a device, of which `largest` is the largest trial that does.

        The trials are powers of two: that above `largest` does not fit, unless `largest` is the
        last. A batch between both was not tried.
        """
        if batch <= largest:
            return True
        is_above_unfit_trial = batch >= 2 * largest and largest < MAX_BATCH
        if is_above_unfit_trial:
            return False
        return self.model.with_device(device).needs(batch).fit(device)

    @cached_property
    def original_step(self) -> CriticalPath:
        """The step on the device as it is."""
        return find_critical_path(self.model, self.batch)

    def grow_batch(self, device: Device, largest: int) -> int:
        """Return the batch, grown as the largest trial grows to that of another device.

        Where that does not fit, which a batch above the largest trial may not, it is the largest
        trial of the device, or the batch itself if that is larger.

        Args:
            device: the other device.
            largest: the largest trial batch that fits it.
        """
        if not self.largest:
            return largest
        grown_batch = self.batch * largest // self.largest
        return grown_batch if self._fits(grown_batch, device, largest) else max(self.batch, largest)


def make_cases(
    workloads: Iterable[Workload],
    device: Device,
    method: str,
    options: Mapping[str, str] | None = None,
    largest: bool = False,
) -> list[NetworkCase]:
    """Return networks on a device; networks that differ in their batch alone are built once.

    Args:
        workloads: the networks, each with its batch.
        device: the device.
        method: the cost model.
        options: its options.
        largest: take the largest batch that fits in place of theirs.

    Raises:
        InputError: where the device has no peak for their type.
    """
    models: dict[str, tuple[StepModel, BatchSteps]] = {}  # by the network without its batch
    cases = []
    for workload in track_progress(list(workloads), "networks"):
        key = replace(workload, batch_per_replica=1).key
        if key not in models:
            # The usual stack where no option names one (`assumes`).
            model = StepModel(workload, device, method=method, options=options, assumes=True)
            _ = model.effective_device  # raises for a type without a peak
            models[key] = model, BatchSteps(model, TRIAL_BATCHES)
        model, steps = models[key]
        batch = LARGEST_BATCH if largest else workload.batch_per_replica
        cases.append(NetworkCase(model, steps, batch))
    return cases


class AssumedFields(TypedDict):
    """The fields of an answer that say which settings are assumed."""

    assumed: dict[str, str]
    network_settings: tuple[NetworkSettings, ...]


def assumed_fields(cases: Sequence[NetworkCase]) -> AssumedFields:
    """Return the settings that are assumed alike for all networks, and those of each if not all.

    A convolutional network and a sequence model differ in their data type and optimizer.
    """
    # Cases of one network at several batches share a model, which counts once.
    models = {id(case.model): case.model for case in cases}
    rows = [
        NetworkSettings(model=model.workload.label, assumed=assumed_of(model))
        for model in models.values()
    ]
    shared = common_settings(row.assumed for row in rows)
    is_uniform = all(row.assumed == shared for row in rows)
    return {"assumed": shared, "network_settings": () if is_uniform else tuple(rows)}


def predict_network(case: NetworkCase, model: StepModel) -> tuple[NetworkRow, CriticalPath | None]:
    """Return the row of a network, and its step at the larger batch where there is one.

    Args:
        case: the network on the device as it is.
        model: the same network on the changed device.
    """
    changed_largest = case.largest_on(model.device)
    status = _find_status(case, model, changed_largest)
    row = NetworkRow(
        model=case.model.workload.label,
        batch=case.batch,
        bound=None,
        step_s=None,
        changed_step_s=None,
        speedup=None,
        grown_batch=None,
        grown_speedup=None,
        largest_batch=case.largest,
        changed_largest_batch=changed_largest,
        status=status,
    )
    if status == "oom":
        return row, None
    changed_s = model.timeline(case.batch).step_s
    if status == "new":
        return _with(row, changed_step_s=changed_s), None
    step_s = case.original_step.step_s
    row = _with(
        row,
        bound=case.original_step.bound,
        step_s=step_s,
        changed_step_s=changed_s,
        speedup=step_s / changed_s,
    )
    if status == "oom after":
        return row, None
    grown_batch = case.grow_batch(model.device, changed_largest)
    if grown_batch == case.batch:
        return _with(row, grown_batch=grown_batch, grown_speedup=row.speedup), None
    grown_path = find_critical_path(model, grown_batch)
    # Seconds for as many examples as the unchanged batch has.
    grown_step_s = grown_path.step_s / grown_batch * case.batch
    return _with(row, grown_batch=grown_batch, grown_speedup=step_s / grown_step_s), grown_path


def _find_status(case: NetworkCase, model: StepModel, changed_largest: int) -> str:
    """Return whether a network fits before and after a change.

    `ok`: it fits both; `oom`: neither; `new`: only after the change; `oom after`: only before.
    """
    none_fits = case.batch == 0  # the largest batch was asked for, and none fits
    fits_before = not none_fits and case.fits_on(case.model.device, case.largest)
    fits_after = not none_fits and case.fits_on(model.device, changed_largest)
    if fits_before:
        return "ok" if fits_after else "oom after"
    return "new" if fits_after else "oom"


def _with(row: NetworkRow, **fields: object) -> NetworkRow:
    """Return a row with some of its fields replaced."""
    return msgspec.structs.replace(row, **fields)
