"""The model as data for a program that is not this one: work, rates and links as JSON values.

Whoever evaluates them does what `work.timed`, `estimate.behind_host` and `collectives` do; a share
of the peaks that software reaches multiplies the rates. Bytes and FLOP are lines in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from steptime.build import Choice, make_workload, read_model
from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError
from steptime.core.hardware import Device, Link
from steptime.predict import cost_model
from steptime.predict.grid import Group, Lines, lines
from steptime.predict.method import Method
from steptime.predict.parallel.collectives import COLLECTIVES, GROUP
from steptime.predict.parallel.scaling import PAYS
from steptime.predict.price import issue_s
from steptime.predict.step_model import StepModel

BATCHES = (1, 4093, 65536)  # the least, one between that is no power of two, the largest
METHODS = ("analytic", "paleo")
DTYPES = ("float32", "bfloat16", "float16")
OPTIMIZER = "sgd"
SOFTWARE = {  # shares of the peaks of computing and communicating: Paleo's authors, 2017
    "none": (1.0, 1.0),
    "caffe": (0.21, 0.56),
    "mxnet": (0.49, 0.72),
    "tensorflow": (0.62, 0.72),
}
Table = dict[str, Any]


def exported(
    models: Sequence[str],
    devices: Mapping[str, Device],
    links: Sequence[Link],
    aliases: Mapping[str, str],
) -> Table:
    """Return everything that predictions of these networks on these devices need, as JSON values.

    `models` are model texts, `devices` are found under what the command line calls them; what a
    method cannot predict at any batch is in `left_out`, with the reason. Raises `InputError` for a
    text that is no network, and for a network that no method can predict.
    """
    methods = {name: cost_model(name) for name in METHODS}
    left_out: list[Table] = []
    names = {device.name for device in devices.values()}
    first = next(iter(devices.values()))
    return {
        "batches": [BATCHES[0], BATCHES[-1]],
        "group": GROUP,
        "pays": PAYS,
        "optimizer": OPTIMIZER,
        "software": {name: list(shares) for name, shares in SOFTWARE.items()},
        "dtypes": {dtype: _stored(dtype) for dtype in DTYPES},
        "methods": {name: _method(one) for name, one in methods.items()},
        "collectives": list(COLLECTIVES),
        "models": [_model(text, methods, first, left_out) for text in models],
        "left_out": left_out,
        "devices": [_device(text, device, methods) for text, device in devices.items()],
        "aliases": {alias: name for alias, name in aliases.items() if name in names},
        "links": [_link(link) for link in links],
    }


def _stored(dtype: str) -> str:
    """Return the first dtype with elements of the same size: their work is the same."""
    size = SIZE_BYTES[precision(dtype).weights]
    return next(one for one in DTYPES if SIZE_BYTES[precision(one).weights] == size)


def _method(method: Method) -> Table:
    """Return the rules that are not yet in the work and the rates."""
    return {
        "version": method.version,
        "collective": method.collective,
        "overlap": "none" if "overlap" in method.settings.faults else "op",
        "update_at_peak": "update" in method.settings.faults,
        "cycle": "cycle" in method.settings.faults,
        "as_paleo": method.as_published,
    }


def _device(text: str, device: Device, methods: Mapping[str, Method]) -> Table:
    found: dict[str, dict[str, list[float | None]]] = {name: {} for name in methods}
    for name, method in methods.items():
        for dtype in DTYPES:
            try:
                at = method.sees(device, dtype, method.settings)
            except InputError:
                continue  # no peak is known for the dtype: the page says so when it is asked for
            (peak,) = at.peak_flop_per_s.values()
            cycle_s = 1.0 / at.clock_hz if at.clock_hz and name == "paleo" else 0.0
            found[name][dtype] = [
                *map(_short, (peak, at.memory_bytes_per_s, cycle_s, at.launch_s or 0.0)),
                issue_s(device, method.settings),
            ]
    return {
        "name": device.name,
        "text": text,
        "kind": device.kind,
        "memory_bytes": device.memory_bytes,
        "memory_bytes_per_s": _short(device.memory_bytes_per_s),
        "launch_s": device.launch_s,
        "peaks": list(device.peak_flop_per_s),
        "source": device.source,
        "note": device.note,
        "unverified": list(device.unverified),
        "rates": found,
    }


def _link(link: Link) -> Table:
    return {
        "name": link.name,
        "latency_s": link.latency_s,
        "bytes_per_s": _short(link.bytes_per_s),
        "measured": bool(link.measured),
        "source": link.source,
        "note": link.note,
        "unverified": list(link.unverified),
    }


def _model(
    text: str, methods: Mapping[str, Method], device: Device, left_out: list[Table]
) -> Table:
    choice = read_model(text)
    if choice.batch is not None:
        raise InputError(f"model '{text}': the batch is chosen in the page, leave it out")
    work: dict[str, dict[str, Table]] = {}
    why: dict[str, str] = {}
    stored = dict.fromkeys(_stored(dtype) for dtype in DTYPES)
    for dtype in stored:
        workload = make_workload(choice, None, dtype, "train", OPTIMIZER)
        for name, method in methods.items():
            try:
                found = lines(StepModel(workload, device, method=method), BATCHES)
            except InputError as error:
                why.setdefault(name, str(error))
                continue
            if found is None:
                why.setdefault(name, "its work does not grow in proportion to the batch")
                continue
            work.setdefault(name, {})[dtype] = _work(found)
    if not work:
        raise InputError(f"model '{text}': {next(iter(why.values()))}")
    left_out.extend({"model": text, "method": name, "reason": one} for name, one in why.items())
    return {
        "name": text,
        "work": work,
        "notes": {name: _notes(choice, device, methods[name]) for name in work},
        "left_out": why,
    }


def _notes(choice: Choice, device: Device, method: Method) -> list[str]:
    """Return the remarks on a network; with a clock, the device has none of its own."""
    workload = make_workload(choice, BATCHES[0], "float32", "train", OPTIMIZER)
    return list(StepModel(workload, replace(device, clock_hz=1.0), method=method).remarks())


Line = tuple[float, float]  # value at batch 0, growth with the batch


def _work(found: Lines) -> Table:
    """Return work as lists: a part is groups, a group how often it is there and its kernels.

    A kernel is FLOP at batch 0 and its growth, then the same of the bytes of each term.
    """
    return {
        "parts": [
            [[group.times, *map(_flat, _kernels(group))] for group in part]
            for part in found.groups.values()
        ],
        "memory": _flat_pairs(_upper([_line(*ends) for ends in found.memory])),
        "parameters": found.parameters,
        "gradient_bytes": found.gradient_bytes,
    }


def _kernels(group: Group) -> Iterable[list[Line]]:
    """Return the lines of each kernel of a group: of its FLOP, and of the bytes of each tensor."""
    for least, largest in group.numbers:
        (flop, moved, *tensors) = (_line(*ends) for ends in zip(least, largest, strict=True))
        yield [flop, *(tensors or [moved])]


def _line(first: float, last: float) -> Line:
    slope = (last - first) / (BATCHES[-1] - BATCHES[0])
    return first - slope * BATCHES[0], slope


def _upper(found: Iterable[Line]) -> list[Line]:
    """Return the lines that are the highest at some batch."""
    kept: list[Line] = []
    for line in sorted(set(found), key=lambda one: (one[1], one[0])):
        while kept and _hidden(kept, line):
            kept.pop()
        kept.append(line)
    return kept


def _crossing(lower: Line, steeper: Line) -> float:
    return (lower[0] - steeper[0]) / (steeper[1] - lower[1])


def _hidden(kept: Sequence[Line], line: Line) -> bool:
    """Whether the last kept line is nowhere the highest once `line`, which is steeper, is there."""
    last = kept[-1]
    if last[1] == line[1]:
        return True
    least = _crossing(kept[-2], last) if len(kept) > 1 else BATCHES[0]
    return _crossing(last, line) <= least


def _flat(found: Iterable[Line]) -> list[float]:
    return [_short(value) for line in found for value in line]


def _flat_pairs(found: Iterable[Line]) -> list[list[float]]:
    return [_flat([line]) for line in found]


def _short(value: float) -> float:
    """Return a whole number as an int, which is shorter in JSON and the same number."""
    return int(value) if value == int(value) else value
