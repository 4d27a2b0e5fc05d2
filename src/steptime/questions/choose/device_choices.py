"""Devices side by side for one training: its batch, time, cost and energy on each of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import msgspec

from steptime.build import tokens_per_example
from steptime.core.errors import InputError
from steptime.core.progress import track_progress
from steptime.grids.batch_steps import BatchSteps
from steptime.grids.batches import find_knee, largest_batch
from steptime.hardware.device import Device
from steptime.hardware.prices import Offer, Training, bill_training
from steptime.prediction.assumed import assumed_of
from steptime.prediction.memory import Needs, rank_peak_bytes
from steptime.prediction.power import step_energy
from steptime.prediction.schedule import Timeline
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.choose.answer import COLUMNS, ChooseRow
from steptime.questions.training import tokens_per_s

BATCHES = tuple(1 << exponent for exponent in range(17))  # for the best batch of a device
UNSORTED_KEYS = ("assumed", "notes")
NO_MICROBATCH = 0  # not even one example fits
PROGRESS_DEVICES = 10  # after so many the listener is told

VALUE_BY_SORT_WORD: Mapping[str, Callable[[ChooseRow], float | None]] = {
    "time": lambda row: row.train_s,
    "cost": lambda row: row.cost_total,
    "energy": lambda row: row.energy_j or row.energy_max_j,
}


@dataclass(frozen=True)
class _DeviceStep:
    """The step of a training on one device.

    Args:
        model: the network on the device.
        batch_steps: its steps at `BATCHES` under the device's stack.
        batch: examples of a step.
        find_accumulated_bytes: peak memory of a microbatch beside the gradients of those before.
    """

    model: StepModel
    batch_steps: BatchSteps
    batch: int
    find_accumulated_bytes: Callable[[int], int]

    def find_microbatch(self) -> int:
        """Return the largest divisor of the batch that fits, 0 if not even one example does."""
        device = self.model.device
        if self.model.needs(self.batch).fit(device):
            return self.batch
        usable_bytes = device.datasheet.usable_bytes or 0.0  # where it is unknown, the batch fits
        # The largest divisor of a batch that is smaller than the batch is at most half of it.
        max_microbatch = largest_batch(
            lambda size: self._find_accumulated_needs(size).total_bytes,
            usable_bytes,
            max_batch=self.batch // 2,
        )
        for microbatch in range(max_microbatch, 0, -1):
            does_divide_batch = self.batch % microbatch == 0
            if does_divide_batch:
                return microbatch
        return NO_MICROBATCH

    def find_needs(self, microbatch: int) -> Needs:
        """Return the memory of a step in microbatches, that of one example where none fits."""
        if microbatch == NO_MICROBATCH:
            return self.model.needs(1)
        is_accumulated = microbatch < self.batch
        if is_accumulated:
            return self._find_accumulated_needs(microbatch)
        return self.model.needs(microbatch)

    def _find_accumulated_needs(self, microbatch: int) -> Needs:
        needs = self.model.needs(microbatch)
        return needs._replace(peak_bytes=self.find_accumulated_bytes(microbatch))

    def find_best_batch(self) -> tuple[int | None, float | None]:
        """Return the smallest fitting batch with 90 % of the best speed, and its examples/s."""
        # The times of one model at all batches.
        (span,) = self.batch_steps.spans([self.model])
        fits = self.batch_steps.fit(self.model)
        pass_times_s = zip(*span.times, strict=True)  # for each batch, forward, backward and update
        step_s_by_batch: dict[int, float] = {}
        for batch, times_s, does_fit in zip(
            self.batch_steps.batches, pass_times_s, fits, strict=True
        ):
            if does_fit:
                step_s_by_batch[batch] = sum(times_s)
        if not step_s_by_batch:
            return None, None
        # `find_knee`: the smallest batch with 90 % of the best speed.
        best_batch = find_knee(list(step_s_by_batch), list(step_s_by_batch.values()))
        best_step_s = step_s_by_batch[best_batch]
        examples_per_s = best_batch / best_step_s if best_step_s else None
        return best_batch, examples_per_s


def compare_devices(
    model: StepModel,
    devices: Iterable[Device],
    training: Training,
    offers: Mapping[str, Offer] | None = None,
    batch: int | None = None,
) -> list[ChooseRow]:
    """Return the time, cost and energy of a training on each device, in the order of the devices.

    All run the same batch. Where it does not fit, gradients of the largest microbatch that fits
    are accumulated before an update.

    Args:
        model: the network on any of the devices.
        devices: the devices.
        training: the examples of the training; its price is that of the offer of each device.
        offers: prices by device.
        batch: examples of a step; by default those of the model.
    """
    global_batch = model.workload.batch_per_replica if batch is None else batch
    all_steps = BatchSteps(model, BATCHES)

    # Cached, since devices with one stack and data type share their `BatchSteps`.
    @cache
    def find_accumulated_bytes(batch_steps: BatchSteps, microbatch: int) -> int:
        return rank_peak_bytes(
            batch_steps.model.graph(microbatch),
            batch_steps.model.stack,
            accumulates=True,
            sizes=batch_steps.model.sizes(microbatch),
        )

    rows = []
    for device in track_progress(list(devices), "devices", PROGRESS_DEVICES):
        device_model = model.with_device(device)
        batch_steps = all_steps.for_model(device_model)
        step = _DeviceStep(
            model=device_model,
            batch_steps=batch_steps,
            batch=global_batch,
            find_accumulated_bytes=partial(find_accumulated_bytes, batch_steps),
        )
        offer = (offers or {}).get(device.name)
        rows.append(_make_row(step, training, offer))
    return rows


def map_sort_names_to_keys() -> dict[str, str]:
    """Return the sort key of each name.

    Names are words of `VALUE_BY_SORT_WORD`, keys of rows, and headings of columns.
    """
    keys = {name: name for name in ChooseRow.__struct_fields__ if name not in UNSORTED_KEYS}
    headings = {
        column.label.lower(): column.key
        for column in COLUMNS
        if column.label and column.key in keys
    }
    return headings | keys | {word: word for word in VALUE_BY_SORT_WORD}


def sort_rows(rows: Sequence[ChooseRow], column: str) -> list[ChooseRow]:
    """Return rows with the least of `column` first; unknown ones last, unfit ones after.

    Args:
        rows: the rows.
        column: a name of `map_sort_names_to_keys`; with a `-` before it the largest come first.
    """
    key = map_sort_names_to_keys()[column.removeprefix("-")]
    value_of: Callable[[ChooseRow], Any] = attrgetter(key)
    if key in VALUE_BY_SORT_WORD:  # time, cost and energy are words, not fields
        value_of = VALUE_BY_SORT_WORD[key]
    fitting_rows = [row for row in rows if row.status == "ok"]
    unfit_rows = [row for row in rows if row.status != "ok"]
    valued_rows = [row for row in fitting_rows if value_of(row) is not None]
    unvalued_rows = [row for row in fitting_rows if value_of(row) is None]
    valued_rows.sort(key=value_of, reverse=column.startswith("-"))
    return [*valued_rows, *unvalued_rows, *unfit_rows]


def _make_row(step: _DeviceStep, training: Training, offer: Offer | None) -> ChooseRow:
    """Return the row of a device: `ok`, `oom`, or `unsupported` without a peak of the type."""
    model = step.model
    microbatch = step.find_microbatch()
    needs = step.find_needs(microbatch)
    row = ChooseRow(
        status="ok",
        device=model.device.name,
        dtype=model.workload.dtype,
        batch=step.batch,
        microbatch=microbatch or None,
        accumulation=step.batch // microbatch if microbatch else None,
        peak_bytes=needs.peak_bytes,
        needed_bytes=needs.total_bytes,
        usable_bytes=model.device.datasheet.usable_bytes,
    )
    if microbatch == NO_MICROBATCH:
        note = f"one example: {needs.too_large(model.device)}"
        return msgspec.structs.replace(row, status="oom", notes=(note,))
    try:
        timeline = model.timeline(microbatch)
        best_batch, best_examples_per_s = step.find_best_batch()
    except InputError as error:
        return msgspec.structs.replace(row, status="unsupported", notes=(str(error),))
    row = msgspec.structs.replace(
        row,
        assumed=assumed_of(model),
        best_batch=best_batch,
        best_examples_per_s=best_examples_per_s,
        is_extrapolated=timeline.is_extrapolated,
        notes=tuple(model.remarks(microbatch)),
    )
    return _price_row(row, step, timeline, microbatch, training, offer)


def _price_row(
    row: ChooseRow,
    step: _DeviceStep,
    timeline: Timeline,
    microbatch: int,
    training: Training,
    offer: Offer | None,
) -> ChooseRow:
    """Return the row of a device with the time, the cost and the energy of a training.

    Args:
        row: the row of the device, without times and costs.
        step: the step on the device.
        timeline: the timeline of one microbatch.
        microbatch: examples that pass at once.
        training: the examples of the training.
        offer: the price of the device.
    """
    # Microbatches accumulate their gradients; the update runs once.
    microbatch_count = step.batch // microbatch
    microbatch_s = timeline.step_s - timeline.update_s
    step_s = microbatch_count * microbatch_s + timeline.update_s
    # The interval and the energy of the whole step are assumed to grow as its time does.
    step_over_microbatch = step_s / timeline.step_s if timeline.step_s else 1.0
    priced_training = training
    if offer is not None:
        priced_training = replace(training, price=offer.price, billing=offer.billing)
    bill = bill_training(priced_training, step_s, step.batch, device_count=1)
    kernel_columns = step.model.lower_step(microbatch).columns
    energy = step_energy(timeline, step.model.effective_device, kernel_columns)
    examples_per_s = step.batch / step_s if step_s else None
    step_count = training.examples * training.epochs / step.batch
    # `energy` is that of one microbatch and an update. A step takes `step_over_microbatch` times as
    # much, and the training `step_count` steps.
    training_over_energy = step_count * step_over_microbatch
    return msgspec.structs.replace(
        row,
        step_s=step_s,
        low_s=None if timeline.low_s is None else timeline.low_s * step_over_microbatch,
        high_s=None if timeline.high_s is None else timeline.high_s * step_over_microbatch,
        examples_per_s=examples_per_s,
        tokens_per_s=tokens_per_s(tokens_per_example(step.model.workload), examples_per_s),
        train_s=bill.train_s,
        cost_total=bill.cost_total,
        cost_per_hour=None if offer is None else offer.price,
        offer=None if offer is None else offer.name,
        price_date=None if offer is None else offer.date,
        is_price_verified=None if offer is None else offer.verified,
        energy_j=None if energy.energy_j is None else energy.energy_j * training_over_energy,
        energy_max_j=None if energy.max_j is None else energy.max_j * training_over_energy,
        energy_note=energy.note,
    )
