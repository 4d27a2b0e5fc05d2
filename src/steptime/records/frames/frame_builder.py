"""Records as a frame: a row for each record, in the order in which they stand in their folders.

Lines become rows chunk by chunk. Each text of a workload, a method or an environment, which repeat
from record to record, is read once. Samples are columns of lists; free quantities (`others`) are
pairs of a name and a JSON text; hyperparameters (`params`) are one JSON text. None is unknown.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import polars as pl

from steptime.core.garbage import no_collection
from steptime.records.frames.frame_columns import (
    ENVIRONMENT_COLUMNS,
    LARGEST_INT,
    METHOD_COLUMNS,
    PLAIN_COLUMNS,
    SCHEMA,
    WORKLOAD_COLUMNS,
    describe_environment,
    describe_method,
    describe_workload,
)
from steptime.records.frames.frame_lists import NestedColumns
from steptime.records.reading import Line, workload_of
from steptime.records.record import Quantity
from steptime.records.row import (
    AMOUNTS,
    ESTIMATE,
    SPREAD,
    UNKNOWN,
    Kinds,
    Row,
    headline,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)
CHUNK_ROWS = 20_000  # records in memory as Python objects
PART_ROWS = 200_000  # rows in memory as a frame, before they go to a file
ROW_GROUP_ROWS = 20_480  # of a Parquet: the unit of reading
NO_QUANTITY = Quantity()
TIME_SPREAD = SPREAD[:5]  # of times; the later ones are of speeds


class FolderLine(NamedTuple):
    """A record's line and its place.

    Attributes:
        folder: the name of its folder.
        folder_rank: the number of its folder.
        place: where it begins in the folder (`record_files.StoredLine`).
        record_id: the identity of the record.
        seq: its place if all folders stood one behind the other.
        line: the checked values.
    """

    folder: str
    folder_rank: int
    place: int
    record_id: str
    seq: int
    line: Line


class FrameBuilder:
    """Builds the frame of records chunk by chunk.

    Attributes:
        params: the types of the values of each hyperparameter.
        others: the types of the values of each quantity that is no column of every table.
        row_count: number of rows.
    """

    def __init__(self) -> None:
        self.params: Kinds = {}
        self.others: Kinds = {}
        self.row_count = 0

    def frames(self, lines: Iterable[FolderLine]) -> Iterator[pl.DataFrame]:
        """Yield the frames of chunks of lines, at least one."""
        remaining = iter(lines)
        yield empty_frame()  # the columns of a folder without records
        while chunk := list(islice(remaining, CHUNK_ROWS)):
            with no_collection():
                frame = self._make_chunk_frame(chunk)
            self.row_count += len(chunk)
            yield frame

    def _make_chunk_frame(self, chunk: Sequence[FolderLine]) -> pl.DataFrame:
        """Return the frame of a chunk of lines; texts that repeat are described once."""
        lines = [stored.line for stored in chunk]
        workload_texts = [bytes(line.workload) for line in lines]
        for workload_text in dict.fromkeys(workload_texts):
            add_kinds(self.params, workload_of(workload_text).settings.items())
        environment_texts = [bytes(line.env) for line in lines]
        # Frames of different columns and equal rows, set side by side.
        column_frames = [
            self._make_line_columns(chunk),
            describe_distinct(workload_texts, describe_workload, WORKLOAD_COLUMNS),
            _make_method_columns(lines, workload_texts),
            describe_distinct(environment_texts, describe_environment, ENVIRONMENT_COLUMNS),
            _make_statistics_columns(lines),
        ]
        frame = pl.concat(column_frames, how="horizontal")
        return _add_derived_columns(frame).select(list(SCHEMA))

    def _make_line_columns(self, chunk: Sequence[FolderLine]) -> pl.DataFrame:
        """Return the columns of the lines themselves, without statistics of their samples."""
        columns: dict[str, list[Any]] = {name: [None] * len(chunk) for name in PLAIN_COLUMNS}
        columns |= _list_plain_values(chunk)
        nested = NestedColumns()
        for row_number, stored in enumerate(chunk):
            self._add_quantities(row_number, stored.line, columns, nested)
        plain_frame = pl.DataFrame(columns, schema=PLAIN_COLUMNS)
        return plain_frame.with_columns(nested.columns(len(chunk)))

    def _add_quantities(
        self, row_number: int, line: Line, columns: dict[str, list[Any]], nested: NestedColumns
    ) -> None:
        """Add the quantities of a line to the row of this number."""
        for name, quantity in line.quantities.items():
            value = headline(quantity)
            has_column = name in AMOUNTS
            if has_column:
                columns[name][row_number] = None if value is None else float(value)
            else:
                json_text = None if value is None else json.dumps(value)
                nested.others.append((row_number, name, json_text))
                add_kinds(self.others, [(name, value)])
            if quantity.samples and name != "step_s":  # those of the step are columns
                nested.sampled.append((row_number, name, quantity))
        _add_step(row_number, line, columns, nested)


def _list_plain_values(chunk: Sequence[FolderLine]) -> dict[str, list[Any]]:
    """Return the columns of values that lines hold as they are; an empty text is unknown."""
    columns: dict[str, list[Any]] = {}
    for name in ("folder", "folder_rank", "place", "record_id", "seq"):
        columns[name] = [getattr(stored, name) for stored in chunk]
    for name in ("origin", "status", "platform", "scope"):
        columns[name] = [getattr(stored.line, name) for stored in chunk]
    for name in ("cause", "note", "taken_at"):
        columns[name] = [getattr(stored.line, name) or None for stored in chunk]
    columns["workload_key"] = [stored.line.key for stored in chunk]
    return columns


def _add_step(
    row_number: int, line: Line, columns: dict[str, list[Any]], nested: NestedColumns
) -> None:
    """Add the interval of a line's step time and its samples to the row of this number."""
    step = line.quantities.get("step_s")
    if step is None:  # a failure, or an op without a time
        return
    columns["stated_low"][row_number] = step.low
    columns["stated_high"][row_number] = step.high
    if step.samples:
        nested.steps.append((row_number, step))
        input_wait = line.quantities.get("input_s", NO_QUANTITY)
        for name, value in _describe_samples(step, input_wait).items():
            columns[name][row_number] = value


def _make_method_columns(lines: Sequence[Line], workload_texts: Sequence[bytes]) -> pl.DataFrame:
    """Return the columns of the methods of lines, which depend on how workloads are fed, too."""
    keys = [
        (bytes(line.method), line.origin, workload_of(workload_text).plan.data)
        for line, workload_text in zip(lines, workload_texts, strict=True)
    ]
    return describe_distinct(keys, lambda key: describe_method(*key), METHOD_COLUMNS)


def empty_frame() -> pl.DataFrame:
    """Return a frame without rows."""
    return pl.DataFrame(schema=SCHEMA)


def describe_distinct(
    keys: Sequence[Key], describe: Callable[[Key], Row], schema: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    """Return a row of a schema for each key; each key is described once."""
    # Keys repeat from row to row: each distinct one is described once, then rows are looked up.
    key_numbers: dict[Key, int] = {}
    number_of_row = [key_numbers.setdefault(key, len(key_numbers)) for key in keys]
    descriptions = [describe(key) for key in key_numbers]
    columns = {name: [description[name] for description in descriptions] for name in schema}
    return pl.DataFrame(columns, schema=schema)[number_of_row]


def write_parquet(frames: Iterable[pl.DataFrame], path: Path, scratch: Path) -> None:
    """Write frames one behind the other to a Parquet file; many of them in parts first.

    Raises:
        OSError: if the disk does not take the file.
    """
    part_paths: list[Path] = []
    try:
        remaining = _write_full_parts(frames, scratch, part_paths)
        fits_in_memory = not part_paths  # there were fewer rows than a part has
        if fits_in_memory:
            _write_part(remaining, path)
            return
        last_path = scratch / f"part-{len(part_paths)}.parquet"
        # `empty_frame` has the columns, should there be no rows left for the last part.
        part_paths.append(_write_part([empty_frame(), *remaining], last_path))
        parts = pl.scan_parquet(part_paths, low_memory=True)
        parts.sink_parquet(path, row_group_size=ROW_GROUP_ROWS, maintain_order=True)
    except pl.exceptions.ComputeError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    finally:
        for part_path in part_paths:
            part_path.unlink()


def _write_full_parts(
    frames: Iterable[pl.DataFrame], scratch: Path, part_paths: list[Path]
) -> list[pl.DataFrame]:
    """Write a file for each `PART_ROWS` rows, add its path, and return the frames that remain."""
    pending: list[pl.DataFrame] = []
    for frame in frames:
        pending.append(frame)
        if sum(map(len, pending)) >= PART_ROWS:
            part_path = scratch / f"part-{len(part_paths)}.parquet"
            part_paths.append(_write_part(pending, part_path))
            pending = []
    return pending


def _write_part(frames: Sequence[pl.DataFrame], path: Path) -> Path:
    pl.concat(frames).write_parquet(path, row_group_size=ROW_GROUP_ROWS)
    return path


def add_kinds(kinds: Kinds, values: Iterable[tuple[str, Any]]) -> None:
    """Add the names of the types of values to those of each name."""
    for name, value in values:
        if value is None:
            continue
        kind = type(value).__name__
        if kind == "int" and not -LARGEST_INT <= value < LARGEST_INT:
            kind = "float"  # a column of integers has 64 bits
        kinds_of_name = kinds.setdefault(name, [])
        if kind not in kinds_of_name:
            kinds_of_name.append(kind)


def _describe_samples(step: Quantity, input_wait: Quantity) -> Row:
    """Count the samples of a step and their runs.

    Args:
        step: the time of the step.
        input_wait: the time of waiting for input; without samples it is unknown.
    """
    is_disturbed = step.columns.get("disturbed")  # of each sample
    run_count = len({*step.runs})
    total_s = sum(step.samples)
    has_wait = total_s > 0 and len(input_wait.samples) == len(step.samples)
    return {
        "runs": run_count,
        "step_s_interval": "between-runs" if run_count > 1 else "within-run",
        "samples_n": len(step.samples),
        "samples_disturbed": sum(is_disturbed or ()),
        "marks_n": None if is_disturbed is None else len(is_disturbed),  # samples that were watched
        "infeed": sum(input_wait.samples) / total_s if has_wait else None,
    }


def _make_statistics_columns(lines: Sequence[Line]) -> pl.DataFrame:
    """Return the spread of the samples of each step, and its `estimate`."""
    from steptime.records.statistics import estimate_samples, spreads

    rows_with_samples = []
    samples = []
    runs = []
    for row_number, line in enumerate(lines):
        step = line.quantities.get("step_s")
        if step is not None and step.samples:
            rows_with_samples.append(row_number)
            samples.append(step.samples)
            runs.append(step.runs)
    spread = spreads(samples)
    estimates = estimate_samples(samples, runs)
    numbers_by_column = {f"spread_{name}": spread[name] for name in SPREAD}
    numbers_by_column |= {f"estimate_{name}": estimates[name] for name in ESTIMATE}
    row_numbers = np.array(rows_with_samples, np.int64)
    return pl.DataFrame(
        [
            fill_column(column, numbers, row_numbers, len(lines))
            for column, numbers in numbers_by_column.items()
        ]
    )


def fill_column(
    name: str, numbers: NDArray[Any], row_numbers: NDArray[Any], row_count: int
) -> pl.Series:
    """Return a column with numbers in some rows; None elsewhere, and where one is not finite."""
    column = np.full(row_count, np.nan)
    column[row_numbers] = numbers
    column[~np.isfinite(column)] = np.nan  # an infinite number is unknown, too
    return pl.Series(name, column).fill_nan(None)


def _add_derived_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that follow from those of lines, workloads, methods and environments."""
    is_measured = pl.col("origin") == "measured"
    stack = pl.when(is_measured).then(pl.col("ran_by")).otherwise(pl.col("stack"))
    estimate = pl.struct(pl.col(f"estimate_{name}").alias(name) for name in ESTIMATE)
    has_estimate = pl.col("estimate_value").is_not_null()
    return frame.with_columns(
        pl.coalesce("date", pl.col("taken_at").str.head(10)).alias("date"),
        stack.alias("stack"),
        *(pl.col(f"spread_{name}").alias(f"step_s_{name}") for name in TIME_SPREAD),
        *_derive_batch_columns(),
        pl.when(has_estimate).then(estimate).alias("estimate"),
    )


def _derive_batch_columns() -> list[pl.Expr]:
    """Return the batch and the speed in examples, null where the batch is unknown.

    The speed of repeats, a run of one sample each, follows from their median: a single slow run of
    five does not decide. The speed of longer runs is that of all samples together.
    """
    has_batch = pl.col("batch_source").ne_missing(pl.lit(UNKNOWN))
    examples = pl.col("examples")
    nonzero_step_s = pl.when(pl.col("step_s") != 0).then(pl.col("step_s"))
    has_samples = pl.col("samples_n").is_not_null()
    is_repeated = pl.col("runs") == pl.col("samples_n")  # each sample is a run of its own
    examples_per_s = (
        pl.when(has_samples & ~is_repeated)
        .then(examples * pl.col("spread_speed"))
        .otherwise(examples / nonzero_step_s)
    )
    columns = {
        "batch": pl.col("batch"),
        "global_batch": examples,
        "examples_per_s": examples_per_s,
        "examples_uncertainty_per_s": examples * pl.col("spread_uncertainty"),
        "examples_jitter_per_s": examples * pl.col("spread_jitter"),
    }
    return [pl.when(has_batch).then(column).alias(name) for name, column in columns.items()]
