"""A grid as it is printed and written: a cell for every model, device, batch and replicas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.printers import comma_separated
from steptime.core.progress import note, tell
from steptime.core.table import EXTRAPOLATED, Answer, LazySequence, Table, columns, cut, of_steps
from steptime.core.units import counted, size
from steptime.core.values import check_names, parse_counts, parse_devices, parse_models
from steptime.prediction.assumed import assumed_line
from steptime.prediction.method import Method
from steptime.questions.options import unmodelled

if TYPE_CHECKING:
    from steptime.core.workload import Workload
    from steptime.grids.folder import Predicted
    from steptime.grids.grid import GridCell, Place
    from steptime.hardware.device import Link

MOST_CELLS = 1_000_000  # which take 1.5 GB
SHOWN_ROWS = 40
TOLD_CELLS = 10_000  # told of together


@dataclass(frozen=True)
class Grid:
    """The axes of a grid, checked; `batches` is None where each model has a batch of its own."""

    models: tuple[str, ...]
    places: tuple[Place, ...]
    batches: tuple[int, ...] | None
    replicas: tuple[int, ...]
    link: Link | None

    @property
    def cells(self) -> int:
        """The number of cells."""
        of_network = len(self.places) * len(self.batches or (1,)) * len(self.replicas)
        return len(self.models) * of_network


def axes(
    models: str,
    devices: str,
    batches: str | None,
    replicas: str | None,
    link: str | None,
    method: str = "",
) -> Grid:
    """Return the axes that the texts of the command line say; raises `InputError`."""
    from steptime.grids.grid import place_of
    from steptime.hardware import catalog
    from steptime.questions.networks import networks

    found = Grid(
        tuple(one for text in parse_models(models) for one in networks(text)),
        tuple(place_of(name, method) for name in parse_devices(devices, "--device")),
        None if batches is None else tuple(parse_counts(batches, "--batch")),
        (1,) if replicas is None else tuple(parse_counts(replicas, "--replicas")),
        None if link is None else catalog.link(link, "--link"),
    )
    check_names(
        [":".join(filter(None, (one.name, dtype))) for one, dtype in found.places], "--device"
    )
    if max(found.replicas) > 1 and found.link is None:
        raise InputError("several replicas all-reduce gradients: name a link with --link")
    if found.cells > MOST_CELLS:
        raise InputError(
            f"a grid of {found.cells} cells; at most {MOST_CELLS}: a range has steps, 8..4096 +8"
        )
    return found


def answer(
    found: Grid,
    workload_of: Callable[[str, int | None], Workload],
    method: Method,
    given: Mapping[str, str],
    out: str | None,
    whole: bool,
) -> Answer:
    """Predict every cell, write them to a file where one is named, and return the answer.

    `workload_of` makes a model's workload at a batch, or at the model's own. A program reads the
    `whole`.
    """
    from steptime.core.dtypes import dtype_named
    from steptime.core.files import check_folder, write_whole
    from steptime.grids.grid import grid

    first = workload_of(found.models[0], None)
    if out is not None and not Path(out).suffix:
        return _into_folder(found, workload_of, method, given, Path(out))
    if out is not None:
        if Path(out).suffix not in FORMATS:
            raise unknown("table format", Path(out).suffix or out, FORMATS, shorten(out))
        check_folder(Path(out))

    def made(name: str, dtype: str | None, batch: int | None) -> Workload:
        one = workload_of(name, batch)
        return replace(one, dtype=dtype_named(dtype)) if dtype else one

    def make_cells() -> Iterator[GridCell]:
        return chain.from_iterable(
            grid(
                [partial(made, name, dtype) for name in found.models],
                [device for device, wanted in found.places if wanted == dtype],
                *(found.batches, found.replicas, found.link, method, given),
            )
            for dtype in dict.fromkeys(dtype for _, dtype in found.places)
        )

    missing = _unmodelled(found, workload_of)
    if whole and out is None:
        return _make_lazy_answer(found, make_cells, first, method.name, missing)
    kept, number = [], 0
    for number, cell in enumerate(make_cells(), start=1):
        if out is not None or number <= SHOWN_ROWS:
            kept.append(cell)
        if number % TOLD_CELLS == 0:
            tell("cells", number, found.cells)
    if out is not None:
        write_whole(Path(out), FORMATS[Path(out).suffix](kept))
        note(f"{len(kept)} cells in {out}")
    rows = LazySequence(len(kept), lambda: (cell._asdict() for cell in kept))
    tables = [] if out is not None else [_table(kept, number, found, first, method.name)]
    return Answer({"rows": rows, "unmodelled": missing}, tables, unmodelled(missing))


def _make_lazy_answer(
    axes: Grid,
    make_cells: Callable[[], Iterator[GridCell]],
    first: Workload,
    method: str,
    missing_layers: list[str],
) -> Answer:
    """Return an answer that predicts its cells on each pass, so that a million need no memory."""

    def make_tables() -> Iterator[Table]:
        yield _table([*make_cells()], axes.cells, axes, first, method)

    rows = LazySequence(axes.cells, lambda: (cell._asdict() for cell in make_cells()))
    document = {"rows": rows, "unmodelled": missing_layers}
    return Answer(document, LazySequence(1, make_tables), unmodelled(missing_layers))


def _into_folder(
    found: Grid,
    workload_of: Callable[[str, int | None], Workload],
    method: Method,
    given: Mapping[str, str],
    out: Path,
) -> Answer:
    from steptime.grids.folder import predict_space

    if found.link or found.replicas != (1,):
        raise InputError("a folder of records takes one replica: leave out --replicas and --link")
    method.under(given)
    batches = found.batches or (None,)
    workloads = [workload_of(name, batch) for name in found.models for batch in batches]
    made = predict_space(out, workloads, found.places, note, method, given)
    return written(out, method.name, made)


def written(folder: Path, method: str, made: Predicted) -> Answer:
    """Return how many predictions a folder got."""
    said = f"{counted(made.written, 'prediction')} written to {folder}"
    there = f", {made.there} were there" if made.there else ""
    notes = [f"{count} not predicted: {why}" for why, count in made.refused.items()]
    document = {"folder": str(folder), "method": method, **vars(made)}
    return Answer(document, (), notes, text=f"{said}{there}\n")


def _unmodelled(found: Grid, workload_of: Callable[[str, int | None], Workload]) -> list[str]:
    """Return the layers of unknown type in all models, with the model where there are several."""
    from steptime.build import build

    batch = found.batches[0] if found.batches else None
    return [
        layer if len(found.models) == 1 else f"{model}: {layer}"
        for model in found.models
        if (one := workload_of(model, batch)).file
        for layer in build(one).unmodelled
    ]


FORMATS: dict[str, Callable[[Sequence[GridCell]], str]] = {
    ".csv": lambda cells: comma_separated(
        Table(columns(*cells[0]._fields), [cell._asdict() for cell in cells])
    ),
    ".jsonl": lambda cells: "".join(json.dumps(cell._asdict()) + "\n" for cell in cells),
}


def _table(cells: Sequence[GridCell], number: int, of: Grid, first: Workload, method: str) -> Table:
    memory = "peak memory" if first.phase == "infer" else f"peak memory ({first.optimizer})"
    dtypes = ["dtype"] if any(dtype for _, dtype in of.places) else []
    dtype = "" if dtypes else f"{first.dtype} "
    rows = [{**row._asdict(), "memory": _memory(row)} for row in cells]
    may = "?" if len({row["replicas"] for row in rows}) < 2 else ""
    heads = columns(
        "model", "device", *dtypes, "batch", f"{may}replicas=replicas", "step_s[low_s,high_s]=step",
        "?communication_s=communication", "examples_per_s=speed", f"memory={memory}",
    )  # fmt: skip
    below = assumed_line((row.device, row.assumed) for row in cells if row.step_s is not None)
    below += [EXTRAPOLATED] if any(row.is_extrapolated for row in cells) else []
    below += list(dict.fromkeys(filter(None, map(_remarks, cells))))
    below += cut(number - len(rows), "--json")
    return Table(
        of_steps(heads, rows), rows, f"{number} cells, {first.phase}, {dtype}({method})", below
    )


def _remarks(cell: GridCell) -> str:
    """Return the remarks below a table: without the memory that lacks, which its column says."""
    if cell.step_s is None:
        return ""
    return cell.note.partition("; ")[2] if cell.status == "oom" else cell.note


def _memory(cell: GridCell) -> str:
    """Format the memory of a cell, `24.85 GB`, or `25.61 GB needed - out of memory`."""
    if cell.status == "oom" and cell.needed_bytes is not None:
        return f"{size(cell.needed_bytes)} needed - out of memory"
    reason = ""
    if cell.status == "unsupported":
        reason = cell.note.removeprefix(f"device '{cell.device}': ").partition(";")[0]
    return size(cell.peak_bytes) + (f" - {reason}" if reason else "")
