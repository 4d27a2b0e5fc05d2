"""`predict --grid`: every model, device, batch and number of replicas, as one table of cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptime.cli.command import note, unmodelled
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.printers import comma_separated
from steptime.core.ranges import numbers
from steptime.core.table import Answer, Row, Table, columns
from steptime.core.units import size

if TYPE_CHECKING:
    from steptime.core.hardware import Device, Link
    from steptime.core.workload import Workload
    from steptime.predict.grid import Cell

MOST_CELLS = 10_000_000
SHOWN_ROWS = 40


@dataclass(frozen=True)
class Axes:
    """The axes of a grid, checked; `batches` is None where each model has a batch of its own."""

    models: tuple[str, ...]
    devices: tuple[Device, ...]
    batches: tuple[int, ...] | None
    workers: tuple[int, ...]
    link: Link | None


def axes(
    models: str, devices: str, batches: str | None, replicas: str | None, link: str | None
) -> Axes:
    """Return the axes that the texts of the command line say; raises `InputError`."""
    from steptime import catalog

    found = Axes(
        tuple(split_models(models)),
        tuple(catalog.device(name) for name in names(devices, "--device")),
        None if batches is None else tuple(numbers(batches, "--batch")),
        (1,) if replicas is None else tuple(numbers(replicas, "--replicas")),
        None if link is None else catalog.link(link),
    )
    _checked([device.name for device in found.devices], "--device")
    if max(found.workers) > 1 and found.link is None:
        raise InputError("several replicas exchange gradients: name a link with --link")
    cells = len(found.models) * len(found.devices) * len(found.batches or (1,))
    if cells * len(found.workers) > MOST_CELLS:
        raise InputError(f"a grid of {cells * len(found.workers)} cells; at most {MOST_CELLS}")
    return found


def split_models(text: str) -> list[str]:
    """Return the models of a list: `fc:layers=4,nodes=64,resnet50` is two."""
    found: list[str] = []
    for piece in text.split(","):
        if "=" in piece and ":" not in piece and found and ":" in found[-1]:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return _checked([piece.strip() for piece in found], "MODEL")


def names(text: str, where: str) -> list[str]:
    """Return the names of a list; raises `InputError` for an empty one and for one given twice."""
    return _checked([piece.strip() for piece in text.split(",")], where)


def _checked(names: list[str], where: str) -> list[str]:
    if not all(names):
        raise InputError(f"{where}: {shorten(','.join(names))} has an empty name")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise InputError(f"{where}: {shorten(twice)} is given twice")
    return names


def answer(
    found: Axes,
    workload_of: Callable[[str, int | None], Workload],
    method: str,
    given: Mapping[str, str],
    out: str | None,
) -> Answer:
    """Predict every cell, write them to a file where one is named, and return the answer.

    `workload_of` makes a model's workload at a batch, or at the model's own.
    """
    from steptime.core.files import check_folder
    from steptime.plots.files import write_whole
    from steptime.predict.grid import grid

    if out is not None:
        if Path(out).suffix not in FORMATS:
            raise unknown("table format", Path(out).suffix or out, FORMATS, shorten(out))
        check_folder(Path(out))
    first = workload_of(found.models[0], None)
    makers = [partial(workload_of, name) for name in found.models]
    cells = grid(makers, found.devices, found.batches, found.workers, found.link, method, given)
    missing = _unmodelled(found, workload_of)
    tables: tuple[Table, ...] = (_table(cells, found, first, method),)
    if out is not None:
        kept = list(cells)
        write_whole(Path(out), FORMATS[Path(out).suffix](kept).encode())
        note(f"{len(kept)} cells in {out}")
        cells, tables = iter(kept), ()
    document = {"cells": (cell._asdict() for cell in cells), "unmodelled": missing}
    return Answer(document, tables, unmodelled(missing))


def _unmodelled(found: Axes, workload_of: Callable[[str, int | None], Workload]) -> list[str]:
    """Return the layers of unknown type in all models, with the model where there are several."""
    from steptime.build import build

    batch = found.batches[0] if found.batches else None
    return [
        layer if len(found.models) == 1 else f"{model}: {layer}"
        for model in found.models
        for layer in build(workload_of(model, batch)).unmodelled
    ]


def _csv(cells: Sequence[Cell]) -> str:
    heads = columns(*cells[0]._fields)
    return comma_separated(Table(heads, [cell._asdict() for cell in cells]))


def _jsonl(cells: Sequence[Cell]) -> str:
    return "".join(json.dumps(cell._asdict()) + "\n" for cell in cells)


FORMATS: dict[str, Callable[[Sequence[Cell]], str]] = {".csv": _csv, ".jsonl": _jsonl}


class _Rows(Sequence[Row]):
    """The rows of cells, predicted when people are shown them: a document takes them one by one."""

    def __init__(self, cells: Iterator[Cell]) -> None:
        self._cells = cells

    @cached_property
    def _rows(self) -> list[Cell]:
        return list(self._cells)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return self[index : index + 1][0]
        return [{**row._asdict(), "memory": _memory(row)} for row in self._rows[index]]


def _table(cells: Iterator[Cell], found: Axes, first: Workload, method: str) -> Table:
    memory = "peak memory" if first.phase == "infer" else f"peak memory ({first.optimizer})"
    batches = len(found.batches or (1,))
    cells_in_all = len(found.models) * len(found.devices) * batches * len(found.workers)
    return Table(
        columns("model", "device", "batch", "?workers=replicas", "step_s=step", "?low_s=from",
                "?high_s=to", "?comm_s=exchange", "samples_per_s=examples/s", f"memory={memory}"),
        _Rows(cells),
        f"{cells_in_all} cells, {first.phase}, {first.dtype} ({method})",
        most=SHOWN_ROWS,
    )  # fmt: skip


def _memory(cell: Cell) -> str:
    why = cell.note.removeprefix(f"device '{cell.device}': ").partition(";")[0]
    why = why or ("too much" if cell.status == "oom" else "")
    return size(cell.peak_memory_bytes) + (f" - {why}" if why else "")
