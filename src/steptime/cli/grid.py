"""`predict --grid`: every model, device, batch and number of workers, as one table of cells."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steptime.cli import options, output
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.units import seconds, size

if TYPE_CHECKING:
    from steptime.core.hardware import Device, Link
    from steptime.predict.grid import Cell

MOST_CELLS = 10_000_000
SHOWN_ROWS = 40


@dataclass(frozen=True)
class How:
    """What all cells of a grid share: the options of a single prediction."""

    phase: str
    dtype: str
    optimizer: str
    method: str
    options: Mapping[str, str]
    allow_unknown: bool


@dataclass(frozen=True)
class Axes:
    """The axes of a grid, checked; `batches` is None where each model has a batch of its own."""

    models: tuple[str, ...]
    devices: tuple[Device, ...]
    batches: tuple[int, ...] | None
    workers: tuple[int, ...]
    link: Link | None
    how: How


def axes(
    models: str,
    devices: str,
    batches: str | None,
    workers: str | None,
    link: str | None,
    how: How,
) -> Axes:
    """Give the axes that the texts of the command line say; raises `InputError`."""
    from steptime import catalog

    found = Axes(
        tuple(split_models(models)),
        tuple(catalog.device(name) for name in _names(devices, "--device")),
        None if batches is None else tuple(options.numbers(batches, "--batch")),
        (1,) if workers is None else tuple(options.numbers(workers, "--workers")),
        None if link is None else catalog.link(link),
        how,
    )
    _checked([device.name for device in found.devices], "--device")
    if max(found.workers) > 1 and found.link is None:
        raise InputError("several workers exchange gradients: name a link with --network")
    cells = len(found.models) * len(found.devices) * len(found.batches or (1,))
    if cells * len(found.workers) > MOST_CELLS:
        raise InputError(f"a grid of {cells * len(found.workers)} cells; at most {MOST_CELLS}")
    return found


def split_models(text: str) -> list[str]:
    """Give the models of a list: `fc:layers=4,nodes=64,resnet50` is two."""
    found: list[str] = []
    for piece in text.split(","):
        if "=" in piece and ":" not in piece and found and ":" in found[-1]:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return _checked([piece.strip() for piece in found], "MODEL")


def _names(text: str, where: str) -> list[str]:
    return _checked([piece.strip() for piece in text.split(",")], where)


def _checked(names: list[str], where: str) -> list[str]:
    if not all(names):
        raise InputError(f"{where}: {shorten(','.join(names))} has an empty name")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise InputError(f"{where}: {shorten(twice)} is given twice")
    return names


def show(found: Axes, out: str | None, as_json: bool) -> None:
    """Predict every cell and write them: to a file, as JSON, or as a table."""
    from steptime.plots.files import check_folder, write_whole
    from steptime.predict.grid import grid

    if out is not None:
        if Path(out).suffix not in FORMATS:
            raise unknown("table format", Path(out).suffix or out, FORMATS, shorten(out))
        check_folder(Path(out))
    cells = grid(
        [_maker(name, found.how) for name in found.models],
        found.devices,
        found.batches,
        found.workers,
        found.link,
        found.how.method,
        found.how.options,
    )
    if out is not None:
        kept = list(cells)
        write_whole(Path(out), FORMATS[Path(out).suffix](kept).encode())
        output.note(f"{len(kept)} cells in {out}")
        cells = iter(kept)
    names = _unmodelled(found)
    if as_json:
        _emit(cells, names)
    else:
        if out is None:
            _table(list(cells), found)
        output.unmodelled(names)


def _maker(name: str, how: How) -> Any:
    """Give the function that makes a model's workload at a batch, or at its own (None)."""
    from steptime.build import make_workload, read_model

    choice = read_model(name, how.allow_unknown)
    return lambda batch: make_workload(choice, batch, how.dtype, how.phase, how.optimizer)


def _unmodelled(found: Axes) -> list[str]:
    """Give the layers of unknown type in all models, with the model where there are several."""
    from steptime.build import build

    batch = found.batches[0] if found.batches else None
    return [
        layer if len(found.models) == 1 else f"{model}: {layer}"
        for model in (found.models if found.how.allow_unknown else ())
        for layer in build(_maker(model, found.how)(batch)).unmodelled
    ]


def _emit(cells: Iterable[Cell], unmodelled: Sequence[str]) -> None:
    """Print one JSON document, a line for each cell."""
    out = sys.stdout
    out.write('{"cells": [')
    between = "\n"
    for cell in cells:
        out.write(between + json.dumps(cell._asdict()))
        between = ",\n"
    out.write(f'\n], "unmodelled": {json.dumps(list(unmodelled))}}}\n')
    out.flush()


def _csv(cells: Sequence[Cell]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(cells[0]._fields)
    writer.writerows(cells)
    return text.getvalue()


def _jsonl(cells: Sequence[Cell]) -> str:
    return "".join(json.dumps(cell._asdict()) + "\n" for cell in cells)


FORMATS: dict[str, Callable[[Sequence[Cell]], str]] = {".csv": _csv, ".jsonl": _jsonl}


def _table(cells: Sequence[Cell], found: Axes) -> None:
    shown = cells[:SHOWN_ROWS]
    output.table(
        f"{len(cells)} cells, {found.how.phase}, {found.how.dtype} ({found.how.method})",
        ("model", "device", "batch", "workers", "step", "exchange", "examples/s", "peak memory"),
        [
            (
                cell.model,
                cell.device,
                cell.batch,
                cell.workers,
                None if cell.step_s is None else seconds(cell.step_s),
                cell.note if cell.comm_s is None else seconds(cell.comm_s),
                f"{cell.samples_per_s:.4g}" if cell.samples_per_s else None,
                size(cell.peak_memory_bytes) + ("" if cell.status != "oom" else " - too much"),
            )
            for cell in shown
        ],
    )
    if len(cells) > len(shown):
        output.note(f"{len(cells) - len(shown)} more; --json or --out shows them all")
