"""The same networks on changed hardware: what becomes faster or possible, which upgrade pays."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from operator import itemgetter
from statistics import median
from typing import Any

from steptime.core.progress import watched
from steptime.core.table import Result, Row, Table, columns, picked
from steptime.core.units import percent
from steptime.core.workload import Workload
from steptime.grids.grid import Steps
from steptime.hardware.device import Device
from steptime.prediction.assumed import assumed_line, assumed_of, assumed_text, common_settings
from steptime.prediction.step_model import StepModel
from steptime.questions.bound import Binding, Path, path
from steptime.questions.changes import Change, changed
from steptime.records.ratios import geometric_mean
from steptime.records.row import grouped

TRIED = tuple(1 << i for i in range(21))  # batches
EACH_STEP, EACH_EXAMPLE = "each step", "each example"


class Basis:
    """A network at a batch on the device as it is; `batch` 0 means the largest that fits."""

    def __init__(self, model: StepModel, steps: Steps, batch: int) -> None:
        self.model, self._steps = model, steps
        self.largest = self.largest_on(model.device)
        self.batch = batch or self.largest

    def largest_on(self, device: Device) -> int:
        """Return the largest power of two that fits, 0 if not even one example does."""
        return max(compress(TRIED, self._steps.fit(self.model.on(device))), default=0)

    @cached_property
    def before(self) -> Path:
        """The step on the device as it is."""
        return path(self.model, self.batch)

    def grown(self, device: Device) -> int:
        """Return the batch, as many times as large as the largest one is on another device."""
        largest = self.largest_on(device)
        return self.batch * largest // self.largest if self.largest else largest


@dataclass(frozen=True)
class WhatIf(Result):
    """Networks on a device and on a changed one; rows have speed-ups, above 1 where it is faster.

    `rows` has one for each network and batch; `classes` one for each thing that binds ops
    before the change, at the `same` batch, and examples a second at the `larger` one that more
    memory allows; `ops` one for each kind of op, unit and bound. `summary` is true of all.
    """

    device: str
    changes: Mapping[str, str]
    summary: Mapping[str, Any]
    says: Sequence[str]
    rows: Sequence[Row]
    classes: Sequence[Row]
    ops: Sequence[Row]
    method: str = ""
    dtype: str = ""
    networks: int = 0
    notes: Sequence[str] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        """Return the classes of ops, the ops and the networks as tables."""
        title = f"{self.device} with {', '.join(self.changes.values())}"
        return [
            Table(
                columns("bound=bottleneck", "batch", "?traffic", "ops", "time_share=time",
                        "speedup=speed-up", "?least_speedup=least", "?most_speedup=most"),
                self.classes, f"{title}: ops by what binds them",
                assumed_line([(self.device, assumed_text(self.assumed))]),
            ),
            Table(
                columns("kind=op", "unit", "bound=bottleneck", "ops", "time_share=time",
                        "speedup=speed-up"),
                self.ops, "by kind of op, at the same batch", most=12,
            ),
            Table(
                columns("model", "batch", "bound=bottleneck", "step_s=step",
                        "changed_step_s=step changed",
                        "speedup=speed-up", "?grown_batch=larger batch",
                        "?grown_speedup=speed-up with it", "?largest_batch=largest batch",
                        "?changed_largest_batch=largest changed", "?status"),
                self.rows, "by network", most=40,
            ),
        ]  # fmt: skip


def cases(
    workloads: Iterable[Workload],
    device: Device,
    method: str,
    options: Mapping[str, str] | None = None,
    largest: bool = False,
) -> list[Basis]:
    """Return networks on a device, at their batch or at the `largest` that fits.

    Networks that differ in their batch alone are built once. Raises `InputError` where the device
    has no peak for their type.
    """
    built: dict[str, tuple[StepModel, Steps]] = {}
    found = []
    for one in watched(list(workloads), "networks"):
        like = replace(one, batch_per_replica=1).key
        if like not in built:
            model = StepModel(one, device, None, method, options, assumes=True)
            _ = model.seen  # raises for a type without a peak
            built[like] = model, Steps(model, TRIED)
        found.append(Basis(*built[like], 0 if largest else one.batch_per_replica))
    return found


def assumed_settings(found: Sequence[Basis]) -> dict[str, str]:
    """Return the settings that are assumed alike for all networks (`assumed_of`)."""
    models = {id(case.model): case.model for case in found}
    return common_settings(map(assumed_of, models.values()))


def what_if(found: Sequence[Basis], changes: Sequence[Change]) -> WhatIf:
    """Return what changes of their device do to networks."""
    device = found[0].model.device
    other = changed(device, changes)
    rows, ops = [], []
    for case in watched(found, "networks"):
        on = case.model.on(other)
        row, grown = network(case, on)
        rows.append(row)
        if row["status"] == "ok":
            ops += _ops(case.before, path(on, case.batch), 1.0, "same")
        if grown is not None:
            ops += _ops(case.before, grown, row["grown_batch"] / case.batch, "larger")
    classes = _classes(ops, ("batch", "bound", "traffic"))
    by_op = _classes([one for one in ops if one["batch"] == "same"], ("kind", "unit", "bound"))
    summary = _summary(rows, classes)
    named = {one.key: str(one) for one in changes}
    made = WhatIf(device.name, named, summary, _says(summary), rows, classes, by_op)
    return replace(made, assumed=assumed_settings(found))


def _ops(before: Path, after: Path, growth: float, batch: str) -> list[dict[str, Any]]:
    """Return ops with their seconds before, and after for as many examples.

    Traffic that grows by less than half of what the batch does is that of each step: weights. None
    where another batch runs as other kernels.
    """
    if len(before.parts) != len(after.parts):
        return []

    def traffic(old: Binding, new: Binding) -> str | None:
        if batch == "same" or old.bound != "memory":
            return None
        return EACH_STEP if new.kernel.bytes < (1 + growth) / 2 * old.kernel.bytes else EACH_EXAMPLE

    return [
        {
            **picked(old.kernel, "kind unit"),
            "bound": old.bound,
            "batch": batch,
            "traffic": traffic(old, new),
            "before": old.time.value,
            "after": new.time.value / growth,
        }
        for old, new in zip(before.parts, after.parts, strict=True)
    ]


def _classes(ops: Sequence[Row], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each class of ops, with its share of the time of all at its batch."""
    whole = {batch: sum(one["before"] for one in alike)
             for batch, alike in grouped(ops, itemgetter("batch")).items()}  # fmt: skip
    found = []
    for key, alike in grouped(ops, itemgetter(*names)).items():
        before, after = (sum(one[name] for one in alike) for name in ("before", "after"))
        ratios = [one["before"] / one["after"] for one in alike if one["after"]]
        found.append(
            {
                **dict(zip(names, key, strict=True)),
                "ops": len(alike),
                "time_share": before / whole[alike[0]["batch"]] if before else 0.0,
                "speedup": before / after if after else None,
                "least_speedup": min(ratios, default=None),
                "most_speedup": max(ratios, default=None),
            }
        )
    return sorted(found, key=lambda row: (row.get("batch") == "larger", -row["time_share"]))


def network(case: Basis, on: StepModel) -> tuple[dict[str, Any], Path | None]:
    """Return the row of a network, and its step at the larger batch where there is one."""
    largest = case.largest_on(on.device)
    row: dict[str, Any] = {
        "model": case.model.workload.label,
        "batch": case.batch,
        **dict.fromkeys(("bound", "step_s", "changed_step_s", "speedup")),
        **dict.fromkeys(("grown_batch", "grown_speedup")),
        "largest_batch": case.largest,
        "changed_largest_batch": largest,
        "status": "ok",
    }
    if not case.batch or case.batch > max(case.largest, largest):
        return row | {"status": "oom"}, None
    before, after_s = case.before.step_s, on.timeline(case.batch).step_s
    if case.batch > case.largest:
        return row | {"status": "new", "changed_step_s": after_s}, None
    row |= {"bound": case.before.bound, "step_s": before, "changed_step_s": after_s}
    row["speedup"] = before / after_s
    if case.batch > largest:
        return row | {"status": "oom after"}, None
    grown = case.grown(on.device)
    larger = None if grown == case.batch else path(on, grown)
    grown_s = larger.step_s / grown * case.batch if larger else after_s  # of as many examples
    return row | {"grown_batch": grown, "grown_speedup": before / grown_s}, larger


def _summary(rows: Sequence[Row], classes: Sequence[Row]) -> dict[str, Any]:
    speeds = [row["speedup"] for row in rows if row["status"] == "ok"]
    more = [row for row in rows if row["status"] == "ok" and row["grown_batch"] != row["batch"]]
    found: dict[str, Any] = {
        "networks": len(rows),
        "speedup": geometric_mean(speeds),
        "least_speedup": min(speeds, default=None),
        "median_speedup": median(speeds) if speeds else None,
        "most_speedup": max(speeds, default=None),
        "bound": dict(Counter(row["bound"] for row in rows if row["bound"])),
        "newly_possible": sum(row["status"] == "new" for row in rows),
        "no_longer_possible": sum(row["status"] == "oom after" for row in rows),
        "larger_batch": len(more),
        "batch_growth": geometric_mean([row["grown_batch"] / row["batch"] for row in more]),
        "larger_batch_speedup": geometric_mean([row["grown_speedup"] for row in more]),
        "most_larger_batch_speedup": max((row["grown_speedup"] for row in more), default=None),
    }
    by = {(row["bound"], row["batch"], row["traffic"]): row["speedup"] for row in classes}
    for bound in ("compute", "memory", "host"):
        found[f"{bound}_bound_speedup"] = by.get((bound, "same", None))
    found["memory_bound_larger_batch_speedup"] = by.get(("memory", "larger", EACH_STEP))
    return found


def _says(found: Mapping[str, Any]) -> list[str]:
    said = []
    told = {name: value if isinstance(value, dict) else f"{value or 0:.3g}"
            for name, value in found.items()}  # fmt: skip
    if found["speedup"]:
        by = {name: found[f"{name}_bound_speedup"] for name in ("compute", "memory", "host")}
        ops = ", ".join(f"{name}-bound {value:.3g}x" for name, value in by.items() if value)
        bound = ", ".join(f"{name} {count}" for name, count in found["bound"].items())
        said = [
            "At the same batch steps are {speedup} times as fast (geometric mean of {networks} "
            "networks; {least_speedup} to {most_speedup}).".format(**told),
            f"Ops, by what binds them before the change: {ops}.",
            f"Networks, by what most of their step waits for: {bound}.",
        ]
    if found["larger_batch"]:
        line = (
            "Where memory lets the batch grow ({batch_growth} times, {larger_batch} networks), "
            "examples a second grow {larger_batch_speedup} times (at most "
            "{most_larger_batch_speedup}); memory-bound ops that move the same bytes at any batch "
            "{memory_bound_larger_batch_speedup} times."
        )
        fixed = found["memory_bound_larger_batch_speedup"]
        said.append((line if fixed else line.partition(";")[0] + ".").format(**told))
    for key, when in (("newly_possible", "after"), ("no_longer_possible", "before")):
        if found[key]:
            said.append(f"{found[key]} networks fit only {when} the change.")
    return said


def sweep(found: Sequence[Basis], combinations: Sequence[Sequence[Change]]) -> list[dict[str, Any]]:
    """Return a row for each combination of changes: its speed-ups over all networks.

    `speedup` is at the same batch, `grown_speedup` that of examples a second with the batch growing
    as the largest that fits does; both are geometric means over networks that fit before and after.
    """
    rows = []
    for changes in watched(list(combinations), "changed devices"):
        every = [network(case, case.model.on(changed(case.model.device, changes)))[0]
                 for case in found]  # fmt: skip
        fit = [row for row in every if row["status"] == "ok"]
        rows.append(
            {
                **{one.key: one.value for one in changes},
                "speedup": geometric_mean([row["speedup"] for row in fit]),
                "grown_speedup": geometric_mean([row["grown_speedup"] for row in fit]),
                "networks": len(fit),
                "newly_possible": sum(row["status"] == "new" for row in every),
            }
        )
    return rows


def upgrades(found: Sequence[Basis], changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Return a row for each single change, the one that pays most first.

    `gain` is how much faster all networks become (`grown_speedup` - 1).
    """
    rows = []
    for change, row in zip(changes, sweep(found, [(one,) for one in changes]), strict=True):
        gain = round((row["grown_speedup"] or 1.0) - 1, 9)
        told = {name: row[name] for name in ("speedup", "grown_speedup", "newly_possible")}
        rows.append({"upgrade": str(change), **told, "gain": gain})
    return sorted(rows, key=itemgetter("gain"), reverse=True)


def best_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return which upgrade pays most, in a sentence."""
    one = rows[0]
    if one["gain"] <= 0:
        return "No upgrade makes these networks faster."
    return f"{one['upgrade']} pays most: {percent(one['gain'])} faster."
