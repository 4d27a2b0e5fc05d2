"""Many predictions at once: a network's work is found at three batches and known for all between.

FLOP and bytes of every op are affine in the batch, or bend one way only. So three batches, the
least, the largest and one between, tell: if they lie on a line for every kernel, all do. A network
for which they do not is built for each batch. On a device the time of a step is then a sum of
lines with bends, found once, and a cell is a look-up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from steptime.core.graph import Graph
from steptime.core.hardware import Device
from steptime.count import live_bytes, peak_memory_bytes
from steptime.predict.bends import Bends, Line, highest, straight, total
from steptime.predict.costs import Costs, costs, gradient_bytes
from steptime.predict.estimate import behind_host, estimate, host_seconds, rates, update_rates
from steptime.predict.settings import Settings
from steptime.predict.work import Overlap, Rates, Work

Group = tuple[Work, ...]  # kernels of one row: what may overlap under the pipelined rule


@dataclass(frozen=True)
class StepSeconds:
    """The parts of one step in seconds, in a grid."""

    forward_s: float
    backward_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return self.forward_s + self.backward_s + self.update_s


Kernel = tuple[Line, tuple[Line, ...]]  # FLOP, and bytes of each term


@dataclass(frozen=True)
class Affine:
    """The work of a step at any batch from `low` to `high`.

    `parts` are forward, backward and update, each with its groups of kernels and how often each
    group is there; `memory` are lines whose highest is the peak memory in bytes.
    """

    low: int
    high: int
    parts: tuple[Mapping[tuple[Kernel, ...], int], ...]
    memory: tuple[Line, ...]
    parameters: int
    gradient_bytes: int

    def peak_memory_at(self, batch: int) -> int:
        """Give the bytes that live at the worst moment of a step at a batch."""
        return round(max([at + grows * batch for at, grows in self.memory]))


def affine(
    build: Callable[[int], Graph], batches: Sequence[int], dtype: str, settings: Settings
) -> Affine | None:
    """Give the work of a step at any batch between the least and the largest of `batches`.

    `build` gives the graph of a step at a batch; it is called for three of at least three batches.
    None for a network whose work does not grow along lines.
    """
    wanted = sorted(set(batches))
    points = (wanted[0], wanted[len(wanted) // 2], wanted[-1])
    graphs = [build(batch) for batch in points]
    found = [_groups(graph, dtype, settings) for graph in graphs]
    memory = _lines(points, [live_bytes(graph) for graph in graphs])
    parts = [_group_lines(points, [one.parts[i] for one in found]) for i in range(3)]
    if memory is None or any(part is None for part in parts):
        return None
    return Affine(
        wanted[0],
        wanted[-1],
        tuple(Counter(part or ()) for part in parts),
        tuple(_upper(memory, wanted[0])),
        found[0].parameters,
        found[0].gradient_bytes,
    )


@dataclass(frozen=True)
class Steps:
    """A network's step at many batches: its memory, and its time on any device."""

    gradient_bytes: int
    peak_memory_at: Callable[[int], int]
    seconds_on: Callable[[Device], Callable[[int], StepSeconds]]


def steps(
    build: Callable[[int], Graph], batches: Sequence[int], dtype: str, settings: Settings
) -> Steps:
    """Give the steps of a network at any of `batches`; `build` gives the graph of one.

    It is called three times where the work is affine in the batch, and for each batch otherwise.
    """
    found = affine(build, batches, dtype, settings) if len(set(batches)) > 3 else None
    if found is not None:
        on = partial(_along_lines, found, dtype=dtype, settings=settings)
        return Steps(found.gradient_bytes, found.peak_memory_at, on)
    return _each_built(build, batches[0], dtype, settings)


def _each_built(build: Callable[[int], Graph], some: int, dtype: str, settings: Settings) -> Steps:
    """Give the steps of a network that is built for each batch; its gradients at `some` batch."""

    @lru_cache(maxsize=1024)
    def at(batch: int) -> tuple[Costs, int, int]:
        graph = build(batch)
        found = costs(graph, dtype, settings)
        return found, gradient_bytes(graph, found, settings), peak_memory_bytes(graph)

    def seconds(device: Device, batch: int) -> StepSeconds:
        found = estimate(at(batch)[0], device, dtype, settings)
        return StepSeconds(found.forward_s, found.backward_s, found.update_s)

    return Steps(at(some)[1], lambda batch: at(batch)[2], lambda device: partial(seconds, device))


def _along_lines(
    found: Affine, device: Device, dtype: str, settings: Settings
) -> Callable[[int], StepSeconds]:
    """Give the time of a step on a device as a function of the batch."""
    of_device = rates(device, dtype, settings)
    of_update = update_rates(of_device, settings)
    low = float(found.low)
    kernels = [sum(len(g) * times for g, times in groups.items()) for groups in found.parts]
    parts = [
        total(((_bends(g, at, settings.overlap, low), times) for g, times in groups.items()), low)
        for groups, at in zip(found.parts, (of_device, of_device, of_update), strict=True)
    ]
    issue_s = host_seconds(device, settings)
    added_s = [count * of_device.launch_s for count in kernels]

    def seconds(batch: int) -> StepSeconds:
        found_s = [part(batch) + added for part, added in zip(parts, added_s, strict=True)]
        return StepSeconds(*behind_host(found_s, kernels, issue_s))

    return seconds


def _bends(group: Sequence[Kernel], at: Rates, overlap: Overlap, low: float) -> Bends:
    """Give the time of kernels as `work.timed` does, as a function of the batch."""
    compute = [_part_of(flop, at.flop_per_s, at.cycle_s, low) for flop, _ in group]
    memory = [
        total(((_part_of(term, at.bytes_per_s, at.cycle_s, low, 1), 1) for term in terms), low)
        for _, terms in group
    ]
    if overlap == "op":
        both = (highest(one, other) for one, other in zip(compute, memory, strict=True))
        return total(((one, 1) for one in both), low)
    sums = [total(((one, 1) for one in ones), low) for ones in (compute, memory)]
    return highest(*sums) if overlap == "layer" else total(((one, 1) for one in sums), low)


def _part_of(line: Line, per_s: float, cycle_s: float, low: float, least: int = 0) -> Bends:
    """Give FLOP or bytes over a rate, at least a cycle; no FLOP at all take no time."""
    seconds = straight((line[0] / per_s, line[1] / per_s), low)
    if not cycle_s or (not least and line == (0.0, 0.0)):
        return seconds
    return highest(seconds, straight((cycle_s, 0.0), low))


@dataclass(frozen=True)
class _Groups:
    parts: tuple[tuple[Group, ...], ...]
    parameters: int
    gradient_bytes: int


def _groups(graph: Graph, dtype: str, settings: Settings) -> _Groups:
    found = costs(graph, dtype, settings)
    whole = settings.overlap == "layer"
    parts = tuple(tuple(_part(found, name, whole)) for name in ("forward", "backward", "update"))
    return _Groups(parts, found.parameters, gradient_bytes(graph, found, settings))


def _part(found: Costs, name: str, whole: bool) -> Iterator[Group]:
    """Give the kernels of a part, row by row if they may overlap in a row, else one by one."""
    rows: list[Group] = [getattr(row, name) for row in found.rows]
    if name == "update":
        rows.append(found.update)
    for works in rows:
        if whole and works:
            yield works
        elif works:
            yield from ((work,) for work in works)


def _line(points: tuple[int, ...], values: Sequence[float]) -> Line | None:
    """Give the line through three points, None if they lie on none."""
    (low, between, high), (first, middle, last) = points, values
    slope = (last - first) / (high - low)
    if abs(first + slope * (between - low) - middle) > 1e-12 * abs(middle):
        return None
    return first - slope * low, slope


def _lines(points: tuple[int, ...], values: Sequence[Sequence[float]]) -> list[Line] | None:
    """Give a line for each place of equally long rows of values, None if one has none."""
    if len({len(row) for row in values}) > 1:
        return None
    found = [_line(points, column) for column in zip(*values, strict=True)]
    kept = [line for line in found if line is not None]
    return kept if len(kept) == len(found) else None


def _group_lines(
    points: tuple[int, ...], at: Sequence[tuple[Group, ...]]
) -> list[tuple[Kernel, ...]] | None:
    if len({len(groups) for groups in at}) > 1:
        return None
    found = []
    for same in zip(*at, strict=True):
        if len({tuple(len(work.terms) for work in group) for group in same}) > 1:
            return None
        lines = _lines(
            points, [[v for work in group for v in (work.flop, *work.terms)] for group in same]
        )
        if lines is None:
            return None
        rest, kernels = iter(lines), []
        for work in same[0]:
            flop = next(rest)
            kernels.append((flop, tuple(next(rest) for _ in work.terms)))
        found.append(tuple(kernels))
    return found


def _upper(lines: Sequence[Line], low: int) -> list[Line]:
    """Give the lines that are the highest at some batch from `low` on."""
    kept: list[Line] = []
    for line in sorted(set(lines), key=lambda one: (one[1], one[0])):
        while kept and _hidden(kept, line):
            kept.pop()
        kept.append(line)
    return [
        line
        for line, after in zip(kept, [*kept[1:], None], strict=True)
        if after is None or _crossing(line, after) >= low
    ] or kept[-1:]


def _crossing(lower: Line, steeper: Line) -> float:
    return (lower[0] - steeper[0]) / (steeper[1] - lower[1])


def _hidden(kept: Sequence[Line], line: Line) -> bool:
    """Whether the last kept line is nowhere the highest once `line`, which is steeper, is there."""
    last = kept[-1]
    if last[1] == line[1]:
        return True
    return len(kept) > 1 and _crossing(kept[-2], line) <= _crossing(kept[-2], last)
