"""A grid as it is printed and written: a cell for every model, device, batch and replicas."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from steptime.core.assumed import assumed_line, assumed_text
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.files import check_folder, write_atomically
from steptime.core.json_types import JsonObject
from steptime.core.progress import print_note, report_progress
from steptime.core.tables.printers import csv_parts, encode_row
from steptime.core.tables.table import (
    EXTRAPOLATED_FOOTNOTE,
    Column,
    LazySequence,
    Table,
    ValueRows,
    head_step_columns,
)
from steptime.core.units import format_bytes
from steptime.grids.grid import GridCell
from steptime.hardware.prices import HOUR_S
from steptime.questions import options
from steptime.questions.predict.grid_answer import GridAnswer, GridRow
from steptime.questions.predict.grid_request import GridRequest
from steptime.questions.predict.grid_training import TRAINING_FIELDS, GridTraining
from steptime.questions.predict.written_predictions import WrittenPredictions, describe_predictions

MAX_PRINTED_ROWS = 40  # of the table for people
REPORT_CELLS = 10_000  # cells between two reports of progress
CHUNK_CELLS = 1_000  # of which the JSON texts are in memory at once


def predict_grid(request: GridRequest, out: str | None = None) -> GridAnswer | WrittenPredictions:
    """Predict every cell of a grid, and write the cells to a file where one is named.

    Args:
        request: the grid.
        out: a .csv or .jsonl file, or a folder of records.

    Raises:
        InputError: as a single prediction does, and for a file of another kind.
    """
    path = None if out is None else Path(out)
    if path is not None:
        is_records_folder = not path.suffix
        if is_records_folder:
            return _predict_into_folder(request, path)
        if path.suffix not in FORMATS:
            raise unknown("table format", path.suffix, FORMATS, shorten(path))
        check_folder(path)
    axes = request.axes
    unmodelled = request.unmodelled()
    # Rows are computed when they are read: a grid may have 100,000, of which a table shows 40.
    rows: Sequence[GridRow] = LazySequence(
        axes.cells, partial(_make_rows, request), write_chunks=partial(_write_json_chunks, request)
    )
    if path is not None:
        write_file = FORMATS[path.suffix]
        write_atomically(path, write_file(request))
        print_note(f"{axes.cells} cells in {out}")
    return GridAnswer(
        rows=rows,
        unmodelled=unmodelled,
        notes=tuple(options.describe_unmodelled(unmodelled)),
        _make_table=partial(_cell_table, request),
        _make_csv_table=partial(_csv_table, request),
        _has_file=out is not None,
    )


def _report_cells(request: GridRequest) -> Iterator[GridCell]:
    """Yield the cells of a grid, and tell how far the work is."""
    for number, cell in enumerate(request.cells(), start=1):
        yield cell
        if number % REPORT_CELLS == 0:
            report_progress("cells", number, request.axes.cells)


def _make_rows(request: GridRequest) -> Iterator[GridRow]:
    """Yield the rows of a grid, and tell how far the work is."""
    return map(partial(_make_row, request.training), _report_cells(request))


def _make_row(training: GridTraining, cell: GridCell) -> GridRow:
    return GridRow(**_make_fields(training, cell))


def _make_fields(training: GridTraining, cell: GridCell) -> JsonObject:
    """Return the fields of the row of a cell."""
    values = (*_values_of(cell), *training.values(cell), dict(cell.assumed), cell.notes)
    return dict(zip(GridRow.__struct_fields__, values, strict=True))


def _write_json_chunks(request: GridRequest) -> Iterator[list[str]]:
    """Yield lists of the JSON texts of the rows, which are made without a struct for each."""
    texts = (encode_row(_make_fields(request.training, cell)) for cell in _report_cells(request))
    while chunk := list(islice(texts, CHUNK_CELLS)):
        yield chunk


def _write_json_lines(request: GridRequest) -> Iterator[str]:
    """Yield the text of a file of JSON lines in parts, a line for each cell."""
    return ("\n".join([*texts, ""]) for texts in _write_json_chunks(request))


def _predict_into_folder(request: GridRequest, out: Path) -> WrittenPredictions:
    """Predict a grid into a folder of records."""
    from steptime.grids.folder import predict_space

    axes = request.axes
    if request.training.trainings:
        raise InputError("a folder of records has no training: leave out --tokens, or --out a .csv")
    if axes.link or axes.replicas != (1,):
        raise InputError("a folder of records takes one replica: leave out --replicas and --link")
    # Refuses unknown settings before anything is written.
    request.method.with_options(request.settings)
    batches = axes.batches or (None,)
    workloads = [request.make_workload(name, batch) for name in axes.models for batch in batches]
    predicted = predict_space(
        out, workloads, axes.places, print_note, request.method, request.settings
    )
    return describe_predictions(out, request.method.name, predicted)


_PREDICTED_FIELDS = GridRow.__struct_fields__[: -len(TRAINING_FIELDS) - 2]
_values_of = itemgetter(*map(GridCell._fields.index, _PREDICTED_FIELDS))
"""The fields of a cell in the order of those of a row, as far as its training and its texts."""


def _make_csv_values(request: GridRequest) -> Iterator[list[object]]:
    """Yield the values of each cell for CSV, and tell how far the work is."""
    return _csv_values(request.training, _report_cells(request))


def _csv_values(training: GridTraining, cells: Iterable[GridCell]) -> Iterator[list[object]]:
    """Yield the fields of the rows of cells for a CSV file: settings and notes as texts."""
    settings: Mapping[str, str] = {}
    settings_text = ""
    for cell in cells:
        # Neighbouring cells share one object of settings, whose text is made once for all.
        if cell.assumed is not settings:
            settings = cell.assumed
            settings_text = "; ".join([f"{name}={value}" for name, value in settings.items()])
        notes = "; ".join(cell.notes)
        yield [*_values_of(cell), *training.values(cell), settings_text, notes]


CELL_COLUMNS = tuple(map(Column, GridRow.__struct_fields__))
FORMATS: dict[str, Callable[[GridRequest], Iterator[str]]] = {
    ".csv": lambda request: csv_parts(GridRow.__struct_fields__, _make_csv_values(request)),
    ".jsonl": _write_json_lines,
}
"""The parts of the text of a file of cells, by its ending."""


def _csv_table(request: GridRequest) -> Table:
    """Return the cells with plain values, which are made without a struct for each."""
    make_values = partial(_make_csv_values, request)
    rows = ValueRows(GridRow.__struct_fields__, request.axes.cells, make_values)
    return Table(CELL_COLUMNS, rows)


def _cell_table(request: GridRequest, rows: Sequence[GridRow]) -> Table:
    """Return the table of cells, of which people see the first."""
    phase = request.make_workload(request.axes.models[0], None).phase
    printed_rows = rows[:MAX_PRINTED_ROWS]
    has_single_dtype = len({row.dtype for row in printed_rows}) == 1
    dtype = f", {printed_rows[0].dtype}" if has_single_dtype else ""
    table_rows = LazySequence(
        length=len(rows),
        make_items=lambda: map(_table_row, rows),
        first_items=list(map(_table_row, printed_rows)),
    )
    heads = _cell_columns(printed_rows, phase, bool(request.training.trainings))
    return Table(
        head_step_columns(heads, [row.to_dict() for row in printed_rows]),
        table_rows,
        f"{len(rows)} cells, {phase}{dtype} ({request.method.name})",
        _footnotes(printed_rows),
        max_rows=MAX_PRINTED_ROWS,
        csv_columns=CELL_COLUMNS,
    )


def _cell_columns(rows: Sequence[GridRow], phase: str, has_training: bool) -> list[Column]:
    """Return the columns of the table of cells; some are there only if rows differ in them."""
    optimizers = {row.optimizer for row in rows}
    names_optimizer = phase == "train" and len(optimizers) == 1
    memory = f"peak memory ({rows[0].optimizer})" if names_optimizer else "peak memory"
    has_equal_replicas = len({row.replicas for row in rows}) < 2
    columns = [Column("model"), Column("device")]
    if len({row.dtype for row in rows}) > 1:
        columns.append(Column("dtype"))
    columns += [
        Column("batch"),
        Column("replicas", is_spare=has_equal_replicas),
        Column("step_s", "step", ends=("low_s", "high_s")),
        Column("communication_s", "communication", is_spare=True),
        Column("examples_per_s", "speed"),
    ]
    if any(row.tokens_per_s is not None for row in rows):
        columns.append(Column("tokens_per_s", "tokens/s", is_spare=True))
    if has_training:
        columns.append(Column("train_h", "training", is_answer=True))
        columns.append(Column("cost_total", "cost", is_answer=True))
    return [*columns, Column("memory", memory)]


def _footnotes(rows: Sequence[GridRow]) -> list[str]:
    """Return the lines below the table of cells: what is assumed, and what is to know of them."""
    has_several_models = len({row.model for row in rows}) > 1
    labels_and_settings = []
    for row in rows:
        if row.step_s is not None:
            label = f"{row.model} on {row.device}" if has_several_models else row.device
            labels_and_settings.append((label, assumed_text(row.assumed)))
    footnotes = assumed_line(labels_and_settings)
    if any(row.is_extrapolated for row in rows):
        footnotes.append(EXTRAPOLATED_FOOTNOTE)
    currencies = dict.fromkeys(row.currency for row in rows if row.currency)
    if currencies:
        footnotes.append(f"cost in {', '.join(currencies)}, of all replicas")
    notes = [_describe_notes(row) for row in rows]
    distinct_notes = dict.fromkeys(text for text in notes if text)
    return [*footnotes, *distinct_notes]


def _table_row(row: GridRow) -> Mapping[str, Any]:
    """Return a row for the table of cells, with its memory as people read it."""
    train_h = None if row.train_s is None else row.train_s / HOUR_S
    return row.to_dict() | {"memory": _describe_memory(row), "train_h": train_h}


def _describe_notes(row: GridRow) -> str:
    """Return the notes below a table: without the lack of memory, which has a column."""
    # The column of the memory says why there is no time.
    if row.step_s is None:
        return ""
    is_out_of_memory = row.status == "oom"  # its first note says so, as the cell does
    notes = row.notes[1:] if is_out_of_memory else row.notes
    return "; ".join(notes)


def _describe_memory(row: GridRow) -> str:
    """Format the memory of a cell, `24.85 GB`, or `25.61 GB needed - out of memory`."""
    if row.status == "oom" and row.needed_bytes is not None:
        return f"{format_bytes(row.needed_bytes)} needed - out of memory"
    peak = format_bytes(row.peak_bytes)
    if row.status != "unsupported":
        return peak
    # The first note of an unsupported cell: "device 'h100': no float64; ...".
    refusal = row.notes[0].removeprefix(f"device '{row.device}': ")
    reason = refusal.partition(";")[0]
    return f"{peak} - {reason}" if reason else peak
