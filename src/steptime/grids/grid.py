"""Grids: predictions over models, devices, batches and numbers of replicas, as cells or records.

Three batches tell what a network runs at any other where that lies on lines (`lines.py`). A network
for which it does not is built for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from steptime.build import tokens_per_example
from steptime.core.copying import replace
from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError
from steptime.core.graph import PASSES, Graph
from steptime.core.progress import watched
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device, Link
from steptime.prediction.assumed import assumed_of
from steptime.prediction.lines import Lines, Span, lines_of, merging_batches, spans
from steptime.prediction.memory import Needs
from steptime.prediction.method import Method
from steptime.prediction.records import costs, record_method, step_record
from steptime.prediction.remarks import RemarkKey, remark_key
from steptime.prediction.states import may_leave
from steptime.prediction.step_model import StepModel
from steptime.records.record import Quantity, Record, current_time

FEW = 3  # batches that are built as they are
KEPT = 64  # batches whose kernels are kept from device to device


class GridCell(NamedTuple):
    """One prediction of a grid. `batch` is a replica's; `step_s` includes `communication_s`.

    `low_s` and `high_s` bound the step, None where the method gives no bound; `is_extrapolated`
    says that not all of its kernels were measured on a device of this kind. Where a device has no
    peak for the dtype, `status` is `unsupported`, `notes` say why, and there are no times.
    `assumed` is the software, layout and host that it is a prediction of. `peak_bytes` are
    of the tensors, `needed_bytes` of the whole process, which decides whether the step fits; None
    without times. Of a cell with times, `notes` are the remarks of its prediction.
    """

    model: str
    device: str
    batch: int
    replicas: int
    step_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    update_s: float | None = None
    communication_s: float | None = None
    examples_per_s: float | None = None
    peak_bytes: int = 0
    status: str = "unsupported"
    notes: tuple[str, ...] = ()
    low_s: float | None = None
    high_s: float | None = None
    dtype: str = ""
    assumed: Mapping[str, str] = MappingProxyType({})
    needed_bytes: int | None = None
    is_extrapolated: bool | None = None
    optimizer: str = ""
    tokens_per_s: float | None = None


Maker = Callable[[int | None], Workload]


def grid(
    models: Sequence[Maker],
    devices: Sequence[Device],
    batches: Sequence[int] | None,
    replicas: Sequence[int],
    link: Link | None,
    method: str | Method,
    options: Mapping[str, str],
) -> Iterator[GridCell]:
    """Yield every cell, replicas changing fastest, then batches, devices and models.

    A maker returns a model's workload at a batch, at its own for None, which is taken where no
    `batches` are given. Every replica keeps the batch (weak scaling); gradients are exchanged by
    the method's usual collective. Raises `InputError` as a single prediction does, but for a
    device without a peak for the dtype, unless no device has one.
    """
    for make in models:
        first = make(batches[0] if batches else None)
        model = StepModel(first, devices[0], link, method, options, assumes=True)
        steps = Steps(model, batches or (first.batch_per_replica,))
        models_on = list(map(model.on, devices))
        spans_of = _spans(steps, models_on)
        if all(isinstance(one, InputError) for one in spans_of):
            raise spans_of[-1]  # type: ignore[misc]  # the last
        for on, span in zip(models_on, spans_of, strict=True):
            if isinstance(span, Span):
                yield from _cells(on, steps.of(on), span, replicas)
                continue
            cell = GridCell(
                first.label,
                on.device.name,
                0,
                0,
                notes=(str(span),),
                dtype=on.workload.dtype,
                optimizer=first.optimizer,
            )
            for batch, needed in zip(steps.batches, steps.of(on).peak_bytes, strict=True):
                one = cell._replace(batch=batch, peak_bytes=needed)
                yield from (one._replace(replicas=count) for count in replicas)


def _spans(steps: Steps, models: Sequence[StepModel]) -> list[Span | InputError]:
    """Return the times on each device, or why it is refused, which has no peak for the dtype."""
    try:
        return [*steps.spans(models)]
    except InputError as error:
        if len(models) == 1:
            return [error]
        half = len(models) // 2
        return [*_spans(steps, models[:half]), *_spans(steps, models[half:])]


def _cells(on: StepModel, steps: Steps, span: Span, replicas: Sequence[int]) -> Iterator[GridCell]:
    """Yield the cells of a device, made by columns: each batch, on each number of replicas."""

    def each(column: Any, more: Any = 0.0) -> Any:
        known = column is not None
        return (np.repeat(column, len(replicas)) + more).tolist() if known else repeat(None)

    def repeat_cells(column: Iterable[Any]) -> Iterator[Any]:
        return (value for value in column for _ in replicas)

    communication_s = np.tile(
        [on.estimate_comm(n) if n > 1 else 0.0 for n in replicas], len(steps.batches)
    )
    batches, step_s = each(steps.batches, 0), each(np.sum(span.times, axis=0), communication_s)
    per_s = [
        n * batch / step if step else None
        for n, batch, step in zip(cycle(replicas), batches, step_s, strict=False)
    ]
    length = tokens_per_example(on.workload)
    needs = steps.needs(on)
    columns = (
        *(repeat(on.workload.label), repeat(on.device.name), batches, cycle(replicas), step_s),
        *(*map(each, span.times), communication_s.tolist()),
        per_s,
        each(steps.peak_bytes, 0),
        repeat_cells("ok" if need.fit(on.device) else "oom" for need in needs),
        repeat_cells(steps.remarks(on, needs)),
        *(each(span.low_s, communication_s), each(span.high_s, communication_s)),
        *(repeat(on.workload.dtype), repeat(assumed_of(on))),
        repeat_cells(need.total_bytes for need in needs),
        repeat_cells(span.is_extrapolated),
        repeat(on.workload.optimizer),
        (None if length is None or rate is None else length * rate for rate in per_s),
    )
    yield from map(GridCell._make, zip(*columns, strict=False))


class Steps:
    """A network's step at many batches: its memory, and its times on any device.

    `batches` are those asked for, `peak_bytes` what lives at the worst moment at each, and
    `blocks_bytes` what an allocator takes beyond that. They are of the `model`'s stack and data
    type; a device that has another is asked under that.
    """

    def __init__(self, model: StepModel, batches: Sequence[int]) -> None:
        self.model, self.batches, wanted = model, batches, sorted(set(batches))
        self._under = {_step_key(model): self}
        on_lines = model.method.arrays and len(wanted) > FEW
        self.lines: Lines | None = lines_of(model, wanted) if on_lines else None
        self.graphs: dict[RemarkKey, Graph] = {}  # the first of each
        self.remark_keys: list[RemarkKey] = []  # by batch, one for all on lines
        self.peak_bytes, self.blocks_bytes = self._memory(model)

    def _memory(self, model: StepModel) -> tuple[list[int], list[int]]:
        if self.lines is None:
            found: list[int] = []
            blocks: list[int] = []
            for batch in self.batches:
                self._add_remark_key(model.graph(batch))
                found.append(max(model.living(batch)))
                blocks.append(model.blocks(found[-1], batch))
                if len(self.batches) <= KEPT:  # while its graph is at hand
                    model.lowered(batch)
            return found, blocks
        self._add_remark_key(model.graph(self.lines.low))
        peaks = self.lines.highest(self.lines.memory, self.batches)
        reserved = self.lines.blocks.reserved_bytes(self.lines.share(self.batches))
        return peaks, (reserved - np.array(peaks)).tolist()

    def _add_remark_key(self, graph: Graph) -> None:
        key = remark_key(graph)
        self.graphs.setdefault(key, graph)
        self.remark_keys.append(key)

    def of(self, on: StepModel) -> Steps:
        """Return the steps as a model's stack runs them, in its data type."""
        key = _step_key(on)
        if key not in self._under:
            self._under[key] = Steps(on, self.batches)
        return self._under[key]

    def needs(self, on: StepModel) -> list[Needs]:
        """Return the memory that a step needs of a model's device at each batch."""
        of = self.of(on)
        return [*map(on.process_memory.needs, of.peak_bytes, of.blocks_bytes)]

    def fit(self, on: StepModel) -> list[bool]:
        """Return whether a model's device has the memory that a step needs, at each batch."""
        return [needs.fit(on.device) for needs in self.needs(on)]

    def remarks(self, on: StepModel, needs: Sequence[Needs]) -> list[tuple[str, ...]]:
        """Return the remarks of each batch on a model's device, of which it needs this memory."""
        of = self.of(on)
        remarks_of = {key: on.remarks_on(graph) for key, graph in of.graphs.items()}
        keys = of.remark_keys * len(needs) if of.lines else of.remark_keys
        return [
            remarks_of[key]
            if need.fit(on.device)
            else (need.too_large(on.device), *remarks_of[key])
            for key, need in zip(keys, needs, strict=True)
        ]

    def spans(self, models: Sequence[StepModel]) -> list[Span]:
        """Return times with their bounds on several devices, by columns where lines tell all."""
        if any(self.of(on) is not self for on in models):  # each under its stack
            every = [(self.of(on), on) for on in models]
            asked = {one: [on for of, on in every if of is one] for one, _ in every}
            found = {one: iter(one.spans(own)) for one, own in asked.items()}
            return [next(found[one]) for one, _ in every]
        if self.lines is not None and not any(map(_lies_on_no_line, models)):
            made = spans(self.lines, models, self.batches)
            single = merging_batches(self.lines) & {*self.batches}
            places = [i for i, batch in enumerate(self.batches) if batch in single]
            return [
                _with_single(span, places, _span(on, [self.batches[i] for i in places]))
                for span, on in zip(made, models, strict=True)
            ]
        return [_span(on, self.batches) for on in models]


def _step_key(on: StepModel) -> tuple[str, str]:
    """Return the settings that may differ from device to device: stack and data type."""
    return on.settings.stack, on.workload.dtype


def _lies_on_no_line(on: StepModel) -> bool:
    """Return whether times are no lines: new pages of a CPU, states in the host's memory."""
    has_new_pages = on.device.is_own_host and bool(on.seen.constants)
    return has_new_pages or may_leave(on.workload.tuning)


def _with_single(span: Span, places: Sequence[int], single: Span) -> Span:
    """Return times of batches, at some places those of single predictions."""
    if not places:
        return span

    def merge(column: Any, values: Any) -> Any:
        if column is None or values is None:
            return None
        merged = [*column]
        for place, value in zip(places, values, strict=True):
            merged[place] = value
        return merged

    times = [merge(*columns) for columns in zip(span.times, single.times, strict=True)]
    return Span(times, *map(merge, span[1:], single[1:]))


def _span(on: StepModel, batches: Sequence[int]) -> Span:
    found = [on.timeline(batch) for batch in batches]
    times = [[getattr(one, f"{name}_s") for one in found] for name in PASSES]
    ends: Any = ([getattr(one, end) for one in found] for end in ("low_s", "high_s"))
    extrapolated = [one.is_extrapolated for one in found]
    return Span(times, extrapolated, *(None if None in each else each for each in ends))


Place = tuple[Device, str | None]  # and the dtype there, None for that of each workload


def place_of(text: str, method: str = "") -> Place:
    """Return the device that a text such as `tpu-v2-8:bfloat16-mixed` names, and its dtype."""
    name, _, dtype = text.rpartition(":") if ":" in text else (text, "", "")
    return catalog.device(name.strip(), method), find_dtype(
        dtype.strip()
    ) if dtype.strip() else None


def predicted(
    workloads: Iterable[Workload],
    places: Sequence[Place],
    method: str | Method,
    options: Mapping[str, object],
    refused: dict[str, int],
) -> Iterator[Record]:
    """Yield the record of each step of one replica at each place, network by network.

    Networks that a place cannot run are counted in `refused` under the reason. Raises `InputError`
    for what does not depend on the place.
    """
    networks: dict[str, list[Workload]] = {}
    for one in workloads:
        networks.setdefault(replace(one, batch_per_replica=1).key, []).append(one)
    for some in watched(list(networks.values()), "networks"):
        first, sizes = some[0], list(dict.fromkeys(one.batch_per_replica for one in some))
        for dtype in dict.fromkeys(dtype for _, dtype in places):
            network = first.with_dtype(find_dtype(dtype)) if dtype else first
            model = StepModel(network, places[0][0], None, method, options, assumes=True)
            steps = Steps(model, sizes)
            counted: dict[Steps, list[dict[str, float]]] = {}
            for device in (device for device, wanted in places if wanted == dtype):
                try:
                    on = model.on(device)
                    of = steps.of(on)
                    if of not in counted:
                        counted[of] = _costs(of.model, of)
                    yield from _of_device(on, of, counted[of])
                except InputError as error:
                    refused[str(error)] = refused.get(str(error), 0) + len(steps.batches)


def _costs(model: StepModel, steps: Steps) -> list[dict[str, float]]:
    """Return FLOP and traffic at each batch, between the ends of lines where it lies on these."""
    if steps.lines is None:
        return [costs(model, batch) for batch in steps.batches]
    high, low = costs(model, steps.lines.high), costs(model, steps.lines.low)
    shares = steps.lines.share(steps.batches).tolist()
    return [{k: round(low[k] + (high[k] - low[k]) * share) for k in low} for share in shares]


def _of_device(
    on: StepModel, steps: Steps, counted: Sequence[Mapping[str, float]]
) -> Iterator[Record]:
    """Yield the records of a network on a device; raises `InputError` as a prediction does."""
    (span,), named, taken_at = steps.spans([on]), record_method(on), current_time()
    step_needs = steps.needs(on)
    remarks = steps.remarks(on, step_needs)
    ends = (end or repeat(None, len(counted)) for end in (span.low_s, span.high_s))
    rows = zip(steps.batches, zip(*span.times, strict=True), *ends, step_needs, strict=True)
    for (batch, times, low, high, needs), cost, notes in zip(rows, counted, remarks, strict=True):
        values = {**dict(zip((f"{one}_s" for one in PASSES), times, strict=True)), **cost}
        quantities = {name: Quantity(value) for name, value in values.items()}
        quantities["step_s"] = Quantity(sum(times), low=low, high=high)
        quantities["peak_bytes"] = Quantity(needs.peak_bytes)
        workload = replace(on.workload, batch_per_replica=batch)
        fits = needs.fit(on.device)
        yield step_record(on, workload, named, quantities, fits, notes, taken_at)
