"""Networks before and after changes of their device: speed-ups, of ops by what binds them too."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypedDict

from steptime.core.progress import track_progress
from steptime.core.units import first_of, format_count, format_percent
from steptime.grids.batches import MAX_BATCH
from steptime.hardware.device import Device
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.bound import Binding, CriticalPath, find_critical_path
from steptime.questions.whatif.answer import (
    BoundCount,
    ChangedDevice,
    NetworkRow,
    OpClass,
    OpKindClass,
    Summary,
    Upgrade,
)
from steptime.questions.whatif.changes import Change, change_device
from steptime.questions.whatif.networks_on_devices import NetworkCase, predict_network
from steptime.records.ratios import geometric_mean
from steptime.records.row import group_by

STEP_TRAFFIC, EXAMPLE_TRAFFIC = "each step", "each example"
UNCHANGED_BATCH, LARGER_BATCH = "same", "larger"
MAX_NAMES = 3  # networks in a note
GAIN_DIGITS = 9  # rounding errors of a speed-up of 1 are no gain


@dataclass(frozen=True)
class ComparedOp:
    """An op before and after the change.

    Args:
        kind: its kind.
        unit: the unit of the device that computes it.
        bound: what binds it before the change.
        batch: whether the batch after the change is the `same` or `larger`.
        traffic: what a memory-bound op at a larger batch moves; None of others.
        before_s: seconds before the change.
        after_s: seconds after the change, for as many examples.
    """

    kind: str
    unit: str
    bound: str
    batch: str
    traffic: str | None
    before_s: float
    after_s: float


@dataclass(frozen=True)
class ComparedNetworks:
    """Networks before and after the change of their device.

    Args:
        rows: the networks.
        classes: their ops by what binds them.
        ops: their ops by kind, unit and what binds them, at the same batch.
        summary: the speed-ups of all together.
    """

    rows: tuple[NetworkRow, ...]
    classes: tuple[OpClass, ...]
    ops: tuple[OpKindClass, ...]
    summary: Summary


def compare_networks(cases: Sequence[NetworkCase], changes: Sequence[Change]) -> ComparedNetworks:
    """Compare networks on a device and on the changed device."""
    device = change_device(cases[0].model.device, changes)
    rows: list[NetworkRow] = []
    ops: list[ComparedOp] = []
    for case in track_progress(cases, "networks"):
        model = case.model.with_device(device)
        # With the larger batch that fits after the change; None where the batch does not grow.
        row, grown_path = predict_network(case, model)
        rows.append(row)
        ops += _compare_network_ops(case, model, row, grown_path)
    classes = _group_by_bound(ops)  # of both batches, one a row
    # Rows of kinds have no batch: ops at the larger batch would count twice.
    op_kinds = _group_by_kind([op for op in ops if op.batch == UNCHANGED_BATCH])
    summary = _summarise(rows, classes)
    return ComparedNetworks(tuple(rows), tuple(classes), tuple(op_kinds), summary)


def _group_by_bound(ops: Sequence[ComparedOp]) -> list[OpClass]:
    """Return classes of ops by batch, bound and traffic, the unchanged batch first."""
    unchanged_batch_s = sum(op.before_s for op in ops if op.batch == UNCHANGED_BATCH)
    larger_batch_s = sum(op.before_s for op in ops) - unchanged_batch_s
    total_s_by_batch = {UNCHANGED_BATCH: unchanged_batch_s, LARGER_BATCH: larger_batch_s}
    ops_by_class = group_by(ops, lambda op: (op.batch, op.bound, op.traffic))
    classes = []
    for (batch, bound, traffic), ops_of_class in ops_by_class.items():
        speeds = _speeds(ops_of_class, total_s_by_batch[batch])
        classes.append(OpClass(batch=batch, bound=bound, traffic=traffic, **speeds))
    classes.sort(key=lambda row: (row.batch == LARGER_BATCH, -row.time_share))
    return classes


def _group_by_kind(ops: Sequence[ComparedOp]) -> list[OpKindClass]:
    """Return classes of ops by kind, unit and bound, those that take longest first."""
    total_s = sum(op.before_s for op in ops)
    ops_by_kind = group_by(ops, lambda op: (op.kind, op.unit, op.bound))
    classes = [
        OpKindClass(kind=kind, unit=unit, bound=bound, **_speeds(ops_of_kind, total_s))
        for (kind, unit, bound), ops_of_kind in ops_by_kind.items()
    ]
    classes.sort(key=lambda row: -row.time_share)
    return classes


def _compare_network_ops(
    case: NetworkCase, model: StepModel, row: NetworkRow, grown_path: CriticalPath | None
) -> list[ComparedOp]:
    """Return the ops of a network at the same batch and, where it grows, at the larger one."""
    ops: list[ComparedOp] = []
    if row.status == "ok":
        changed_path = find_critical_path(model, case.batch)
        ops += _compare_ops(
            case.original_step, changed_path, batch_ratio=1.0, batch=UNCHANGED_BATCH
        )
    if grown_path is not None and row.grown_batch is not None:
        batch_ratio = row.grown_batch / case.batch
        ops += _compare_ops(case.original_step, grown_path, batch_ratio, batch=LARGER_BATCH)
    return ops


def _compare_ops(
    before: CriticalPath, after: CriticalPath, batch_ratio: float, batch: str
) -> list[ComparedOp]:
    """Return ops with their seconds before, and after for as many examples.

    There are none where another batch runs as other kernels.
    """
    are_kernels_paired = len(before.bindings) == len(after.bindings)
    # Another batch may run as other kernels, which cannot be compared one by one.
    if not are_kernels_paired:
        return []
    return [
        ComparedOp(
            kind=old.kernel.kind,
            unit=old.kernel.unit,
            bound=old.bound,
            batch=batch,
            traffic=None if batch == UNCHANGED_BATCH else _traffic_of(old, new, batch_ratio),
            before_s=old.time.value,
            # For as many examples as before.
            after_s=new.time.value / batch_ratio,
        )
        for old, new in zip(before.bindings, after.bindings, strict=True)
    ]


def _traffic_of(old: Binding, new: Binding, batch_ratio: float) -> str | None:
    """Return the traffic of a memory-bound op: weights each step, or activations each example.

    Traffic of each step grows by less than half of what the batch does.
    """
    if old.bound != "memory":
        return None
    # Bytes of a step (weights) stay as many in a larger batch, those of examples grow with it.
    midway_bytes = (1 + batch_ratio) / 2 * old.kernel.bytes
    return STEP_TRAFFIC if new.kernel.bytes < midway_bytes else EXAMPLE_TRAFFIC


class Speeds(TypedDict):
    """The speed-ups of a group of ops."""

    op_count: int
    time_share: float
    speedup: float | None
    min_speedup: float | None
    max_speedup: float | None


def _speeds(ops: Sequence[ComparedOp], all_ops_s: float) -> Speeds:
    """Return the speed-ups of ops, and their share of the seconds of all ops."""
    before_s = sum(op.before_s for op in ops)
    after_s = sum(op.after_s for op in ops)
    speedups = [op.before_s / op.after_s for op in ops if op.after_s]
    return Speeds(
        op_count=len(ops),
        time_share=before_s / all_ops_s if before_s else 0.0,
        speedup=before_s / after_s if after_s else None,
        min_speedup=min(speedups, default=None),
        max_speedup=max(speedups, default=None),
    )


def _summarise(rows: Sequence[NetworkRow], classes: Sequence[OpClass]) -> Summary:
    """Return the speed-ups of all networks together."""
    fitting_rows = [row for row in rows if row.status == "ok"]
    speedups = [row.speedup for row in fitting_rows if row.speedup is not None]
    grown_rows = [row for row in fitting_rows if row.grown_batch not in (None, row.batch)]
    grown_speedups = [row.grown_speedup or 0.0 for row in grown_rows]
    network_counts = Counter(row.bound for row in rows if row.bound)
    speedup_by_bound = {row.bound: row.speedup for row in classes if row.batch == UNCHANGED_BATCH}
    return Summary(
        network_count=len(rows),
        speedup=geometric_mean(speedups),
        min_speedup=min(speedups, default=None),
        median_speedup=median(speedups) if speedups else None,
        max_speedup=max(speedups, default=None),
        bounds=tuple(
            BoundCount(bound=bound, network_count=count) for bound, count in network_counts.items()
        ),
        newly_fitting_count=sum(row.status == "new" for row in rows),
        no_longer_fitting_count=sum(row.status == "oom after" for row in rows),
        larger_batch_count=len(grown_rows),
        batch_growth=geometric_mean([(row.grown_batch or 0) / row.batch for row in grown_rows]),
        larger_batch_speedup=geometric_mean(grown_speedups),
        max_larger_batch_speedup=max(grown_speedups, default=None),
        compute_bound_speedup=speedup_by_bound.get("compute"),
        memory_bound_speedup=speedup_by_bound.get("memory"),
        host_bound_speedup=speedup_by_bound.get("host"),
        memory_bound_larger_batch_speedup=_step_traffic_speedup(classes),
    )


def _step_traffic_speedup(classes: Sequence[OpClass]) -> float | None:
    """Return the speed-up of memory-bound ops that move as many bytes in a larger batch.

    Such ops move weights and states. None if there are none.
    """
    for row in classes:
        if (row.bound, row.batch, row.traffic) == ("memory", LARGER_BATCH, STEP_TRAFFIC):
            return row.speedup
    return None


def describe_summary(summary: Summary) -> list[str]:
    """Describe the summary: `At the same batch steps are 1.5 times as fast (...)`."""
    lines = _describe_unchanged_batch(summary, summary.speedup) if summary.speedup else []
    if summary.larger_batch_count:
        lines.append(_describe_larger_batch(summary))
    fitting = (
        (summary.newly_fitting_count, "after"),
        (summary.no_longer_fitting_count, "before"),
    )
    lines += [
        f"{count} networks fit only {moment} the change." for count, moment in fitting if count
    ]
    return lines


def _describe_unchanged_batch(summary: Summary, mean_speedup: float) -> list[str]:
    """Describe the speed-ups at the same batch: of steps, of their ops, and what steps wait for."""
    speedup_by_bound = {
        "compute": summary.compute_bound_speedup,
        "memory": summary.memory_bound_speedup,
        "host": summary.host_bound_speedup,
    }
    ops = ", ".join(
        f"{bound}-bound {gain:.3g}x" for bound, gain in speedup_by_bound.items() if gain
    )
    spread = (
        f"(geometric mean of {format_count(summary.network_count, 'network')}; "
        f"{summary.min_speedup or 0:.3g} to {summary.max_speedup or 0:.3g})"
    )
    network_counts = ", ".join(f"{row.bound} {row.network_count}" for row in summary.bounds)
    return [
        f"At the same batch steps are {mean_speedup:.3g} times as fast {spread}.",
        f"Ops, by what binds them before the change: {ops}.",
        f"Networks, by what most of their step waits for: {network_counts}.",
    ]


def _describe_larger_batch(summary: Summary) -> str:
    """Describe the networks whose batch may grow."""
    text = (
        f"Where memory lets the batch grow ({summary.batch_growth or 0:.3g} times, "
        f"{summary.larger_batch_count} networks), examples a second grow "
        f"{summary.larger_batch_speedup or 0:.3g} times (at most "
        f"{summary.max_larger_batch_speedup or 0:.3g})"
    )
    speedup = summary.memory_bound_larger_batch_speedup
    if not speedup:
        return f"{text}."
    return f"{text}; memory-bound ops that move the same bytes at any batch {speedup:.3g} times."


class TriedDevices(NamedTuple):
    """The networks on many changed devices.

    Args:
        rows: the speed-ups on each device.
        capped: names of networks whose largest batch on one of them is at least the largest that
            is tried.
    """

    rows: tuple[ChangedDevice, ...]
    capped: frozenset[str]


def try_devices(
    cases: Sequence[NetworkCase], combinations: Sequence[Sequence[Change]]
) -> TriedDevices:
    """Return the speed-ups of networks on devices with each combination of changes."""
    devices = []
    capped: set[str] = set()  # networks that fit with the largest batch that is tried
    for changes in track_progress(list(combinations), "changed devices"):
        rows = [_predict_changed_network(case, changes) for case in cases]
        capped.update(row.model for row in rows if row.is_capped)
        devices.append(_summarise_device(changes, rows))
    return TriedDevices(tuple(devices), frozenset(capped))


def _predict_changed_network(case: NetworkCase, changes: Sequence[Change]) -> NetworkRow:
    """Return a network before and after changes of its device."""
    changed_device = change_device(case.model.device, changes)
    row, _grown_path = predict_network(case, case.model.with_device(changed_device))
    return row


def _summarise_device(changes: Sequence[Change], rows: Sequence[NetworkRow]) -> ChangedDevice:
    """Return the mean speed-ups of the networks that fit both before and after the changes."""
    fitting_rows = [row for row in rows if row.status == "ok"]
    return ChangedDevice(
        changes={change.key: change.value for change in changes},
        speedup=geometric_mean([row.speedup or 0.0 for row in fitting_rows]),
        grown_speedup=geometric_mean([row.grown_speedup or 0.0 for row in fitting_rows]),
        network_count=len(fitting_rows),
        newly_fitting_count=sum(row.status == "new" for row in rows),
    )


def describe_fastest(devices: Sequence[ChangedDevice]) -> list[str]:
    """Describe the fastest changed device: `memory_GB_per_s 4 and peak 2: 3.1 times as fast.`."""
    fastest = max(devices, key=lambda device: device.grown_speedup or 0.0)
    if fastest.grown_speedup is None:
        return []
    figures = " and ".join(f"{key} {value:g}" for key, value in fastest.changes.items())
    return [f"Fastest with {figures}: {fastest.grown_speedup:.3g} times as fast."]


def rank_upgrades(
    changes: Sequence[Change], devices: Sequence[ChangedDevice]
) -> tuple[Upgrade, ...]:
    """Return the upgrades, the largest gain first.

    Args:
        changes: the upgrades.
        devices: the networks on a device with each of them alone.
    """
    upgrades = [
        Upgrade(
            upgrade=str(change),
            speedup=device.speedup,
            grown_speedup=device.grown_speedup,
            newly_fitting_count=device.newly_fitting_count,
            # `grown_speedup` is in examples a second, with a batch that grows as memory allows; it
            # is None where no network fits both before and after, which counts as no gain.
            gain_share=round((device.grown_speedup or 1.0) - 1, GAIN_DIGITS),
        )
        for change, device in zip(changes, devices, strict=True)
    ]
    return tuple(sorted(upgrades, key=lambda upgrade: upgrade.gain_share, reverse=True))


def describe_best(upgrades: Sequence[Upgrade]) -> str:
    """Describe the upgrade that pays most: `peak=x2 pays most: 40 % faster.`."""
    best = upgrades[0]
    if best.gain_share <= 0:
        return "No upgrade makes these networks faster."
    return f"{best.upgrade} pays most: {format_percent(best.gain_share)} faster."


def describe_caps(device: Device, capped: Iterable[str]) -> list[str]:
    """Return the note on networks that fit with the largest batch that a search tries.

    Args:
        device: the device as it is.
        capped: the networks, in any order, each once or several times.
    """
    if device.datasheet.usable_bytes is None:
        return [f"the memory of {device.name} is unknown, so every batch fits"]
    names = sorted(set(capped))
    if not names:
        return []
    networks = first_of(names, MAX_NAMES)
    return [f"{networks}: batch {MAX_BATCH:,} fits, and no larger one was tried"]
