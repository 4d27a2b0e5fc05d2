"""The steps of networks on devices at listed batches, as the page to explore keeps them."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any, NamedTuple

from steptime.build import make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.progress import tell
from steptime.hardware.device import Device
from steptime.prediction.calibrated.method import notes_of
from steptime.prediction.calibrated.power import drawn_of
from steptime.prediction.lines import Span, spans
from steptime.prediction.memory import Needs
from steptime.prediction.step_model import StepModel
from steptime.questions.choose import knee
from steptime.questions.grid import Steps, priced_singly

Table = dict[str, Any]
Cells = Mapping[str, Sequence[tuple[str, str]]]  # types and optimizers by method

BATCHES = tuple(2**i for i in range(17))
TWINS = {"float16-mixed": "bfloat16-mixed", "float16": "bfloat16"}  # alike but for the peaks
ENDS_PER_E = 128  # a bound is the factor exp(a byte / this) away: to 0.4 %


class NumberPool:
    """Numbers of many cells, those that are alike once: 32-bit numbers, and bytes."""

    def __init__(self) -> None:
        self._numbers, self._bytes = bytearray(), bytearray()
        self._known: dict[bytes, int] = {}

    def place_of(self, values: Sequence[float]) -> int:
        """Return the place of numbers, counted in numbers."""
        return self._place(self._numbers, array("f", values).tobytes()) // 4

    def place_of_bytes(self, values: Iterable[int]) -> int:
        """Return the place of whole numbers from 0 to 255."""
        return self._place(self._bytes, bytes(values))

    def _place(self, where: bytearray, content: bytes) -> int:
        if content not in self._known:
            self._known[content] = len(where)
            where += content
        return self._known[content]

    def planes(self) -> bytes:
        """Return the lowest byte of every number, then the next of every one, ...: it packs well.

        Of the 23 bits of a fraction 13 are kept, 6e-5 of the number: the page shows four digits.
        The bytes come last.
        """
        import numpy as np

        bits = np.frombuffer(bytes(self._numbers), dtype="<u4")
        kept = (bits + np.uint32(1 << 9)) & np.uint32(0xFFFFFC00)
        return kept.view(np.uint8).reshape(-1, 4).T.tobytes() + bytes(self._bytes)

    @property
    def count(self) -> int:
        """How many 32-bit numbers there are."""
        return len(self._numbers) // 4


class _Cell(NamedTuple):
    """A network by a method, in a type, with an optimizer: what it runs, and whose devices."""

    method: str
    dtype: str
    optimizer: str
    model: StepModel
    steps: Steps
    parameters: int
    gradient_bytes: int
    devices: Sequence[Device]

    @property
    def able(self) -> list[int]:
        """The places of the devices that have a peak for the type."""
        peak = precision(TWINS.get(self.dtype, self.dtype)).compute
        return [place for place, one in enumerate(self.devices) if peak in one.peak_flop_per_s]


def networks(
    texts: Sequence[str], devices: Sequence[Device], methods: Cells, pool: NumberPool
) -> list[Table]:
    """Return each network's memory and gradients, and its cells with places in the pool.

    Of a cell, by device: `at` are the seconds of forward, then of backward at each listed batch,
    under constants also the joules of a step at its best batch; `update` one number, or one a batch
    where the host counts; `ends` how far the bounds of a step are below it, then above, in bytes;
    `best` the place of the least batch with 90 % of the best speed, as `steptime choose` takes it,
    -1 where none fits. A place is -1 for a device without a peak for the type.
    """
    twins = [_as_twin(device) for device in devices]
    built = []
    for text in texts:
        built.append(_built(text, devices, twins, methods))
        tell(text, len(built), len(texts))
    found = _spans([cell for table, cells in built for cell in cells])
    for table, cells in built:
        for cell in cells:
            name = f"{cell.dtype} {cell.optimizer}"
            table["memory"].setdefault(name, cell.steps.peak_memory_bytes)
            table["steps"].setdefault(cell.method, {})[name] = {
                "parameters": cell.parameters,
                "gradient_bytes": cell.gradient_bytes,
                **_times(cell, found[id(cell)], pool),
            }
    return [table for table, _ in built]


def _built(
    text: str, devices: Sequence[Device], twins: Sequence[Device], methods: Cells
) -> tuple[Table, list[_Cell]]:
    """Return a network's table, without its times yet, and its cells.

    What methods lower alike is built once.
    """
    choice = read_model(text, trusted=True)
    if choice.batch is not None:
        raise InputError(f"model '{text}': the batch is chosen in the page, leave it out")
    cells: list[_Cell] = []
    notes: Table = {}
    why: dict[str, str] = {}
    known: dict[tuple[object, ...], tuple[Steps, int, int]] = {}
    clocked = replace(devices[0], clock_hz=1.0)
    for method, asked in methods.items():
        for dtype, optimizer in asked:
            lowered = TWINS.get(dtype, dtype)
            workload = make_workload(choice, BATCHES[0], lowered, "train", optimizer)
            model = StepModel(workload, clocked, None, method)
            try:
                if method not in notes:
                    its_own = notes_of(clocked)  # said of the device, not of the network
                    notes[method] = [one for one in model.remarks() if one not in its_own]
                alike = model.method.lower, model.settings, lowered
                if (*alike, optimizer) not in known:
                    same = next((one[0] for key, one in known.items() if key[:3] == alike), None)
                    found = Steps(model, BATCHES, same)
                    known[*alike, optimizer] = found, model.parameters, model.gradient_bytes
            except InputError as error:
                notes.pop(method, None)
                why[method] = str(error)
                break
            if known[*alike, optimizer][0].lines:  # its graphs and kernels are not needed more
                model = StepModel(workload, clocked, None, method)
            its = twins if dtype in TWINS else devices
            cells.append(_Cell(method, dtype, optimizer, model, *known[*alike, optimizer], its))
    if not cells:
        raise InputError(f"model '{text}': {next(iter(why.values()))}")
    table = {"name": text, "steps": {}, "memory": {}, "notes": notes, "left_out": why}
    return table, cells


def _spans(cells: Sequence[_Cell]) -> dict[int, dict[int, Span]]:
    """Return the times of each cell on each device by its place, those of a type side by side."""
    found: dict[int, dict[int, Span]] = {id(cell): {} for cell in cells}
    types: dict[tuple[str, str], list[_Cell]] = {}
    for cell in cells:
        types.setdefault((cell.method, cell.dtype), []).append(cell)
    for some in types.values():
        model, devices, able = some[0].model, some[0].devices, some[0].able
        joint = [(cell, cell.steps.lines) for cell in some if cell.steps.lines]
        places = [at for at in able if joint and not priced_singly(model.on(devices[at]))]
        models = [[cell.model.on(devices[at]) for cell, _ in joint] for at in places]
        made = spans([lines for _, lines in joint], models, BATCHES) if places else []
        for place, row in zip(places, made, strict=True):
            for (cell, _), span in zip(joint, row, strict=True):
                found[id(cell)][place] = span
        for cell in some:
            for place in able:
                if place not in found[id(cell)]:
                    (found[id(cell)][place],) = cell.steps.spans([cell.model.on(devices[place])])
    return found


def _as_twin(device: Device) -> Device:
    """Return the device with its peak of float16 as that of bfloat16, the twin's type."""
    peaks = {name: value for name, value in device.peak_flop_per_s.items() if name != "bfloat16"}
    peaks |= {"bfloat16": peaks["float16"]} if "float16" in peaks else {}
    return device if peaks == device.peak_flop_per_s else replace(device, peak_flop_per_s=peaks)


def _times(cell: _Cell, known: Mapping[int, Span], pool: NumberPool) -> dict[str, list[int]]:
    """Return the places of a cell's times on each device, and its best batch there."""
    devices = cell.devices
    made = {name: [-1] * len(devices) for name in ("at", "update", "ends", "best")}
    for place, span in known.items():
        device, (forward, backward, update) = devices[place], span.times
        steps = [sum(parts) for parts in zip(*span.times, strict=True)]
        best = _best(cell.steps.needs(cell.model.on(device)), steps, device)
        at = [*forward, *backward]
        if span.dynamic_j is not None:
            seen = cell.model.on(device).seen
            drawn = drawn_of(span.dynamic_j[best], (steps[best],) * 3, seen)
            at.append(drawn[0] if drawn else 0.0)
            made["ends"][place] = pool.place_of_bytes(_ends(span, steps))
        made["best"][place] = best
        made["at"][place] = pool.place_of(at)
        kept = update if hosted(device, cell.model) else update[:1]
        made["update"][place] = pool.place_of(kept)
    return made


def _best(memory: Sequence[Needs], steps: Sequence[float], device: Device) -> int:
    """Return the place of the least batch that fits and is nearly as fast as any; -1 for none."""
    fitting = [i for i, needed in enumerate(memory) if needed.fit(device)]
    if not fitting:
        return -1
    return BATCHES.index(knee([BATCHES[i] for i in fitting], [steps[i] for i in fitting]))


def _ends(span: Span, steps: Sequence[float]) -> list[int]:
    """Return how far the lower bound of each step is below it, then how far the upper above."""
    below, above = (
        [abs(log(end / step)) for end, step in zip(ends or (), steps, strict=True)]
        for ends in (span.low_s, span.high_s)
    )
    return [min(255, round(ENDS_PER_E * far)) for far in (*below, *above)]


def hosted(device: Device, model: StepModel) -> bool:
    """Whether the update on a device takes longer at some batches, as it waits for the host."""
    return bool(device.launch_s) or bool(model.method.reads)
