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

from steptime.records.frame_columns import (
    LARGEST_INT,
    OF_ENVIRONMENT,
    OF_METHOD,
    OF_WORKLOAD,
    PLAIN_COLUMNS,
    SCHEMA,
    describe_environment,
    describe_method,
    describe_workload,
)
from steptime.records.frame_lists import NestedColumns
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
    no_collection,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)
CHUNK_ROWS = 20_000  # records in memory as Python objects
PART_ROWS = 200_000  # rows in memory as a frame, before they go to a file
ROW_GROUP_ROWS = 20_480  # of a Parquet: the unit of reading
NO_QUANTITY = Quantity()


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
        yield empty_frame()
        while chunk := list(islice(remaining, CHUNK_ROWS)):
            with no_collection():
                frame = self._chunk_frame(chunk)
            self.row_count += len(chunk)
            yield frame

    def _chunk_frame(self, chunk: Sequence[FolderLine]) -> pl.DataFrame:
        lines = [stored.line for stored in chunk]
        workloads = [bytes(line.workload) for line in lines]
        for text in dict.fromkeys(workloads):
            add_kinds(self.params, workload_of(text).settings.items())
        methods = [
            (bytes(line.method), line.origin, workload_of(text).plan.data)
            for line, text in zip(lines, workloads, strict=True)
        ]
        environments = [bytes(line.env) for line in lines]
        columns = [
            self._line_columns(chunk),
            gather(workloads, describe_workload, OF_WORKLOAD),
            gather(methods, lambda key: describe_method(*key), OF_METHOD),
            gather(environments, describe_environment, OF_ENVIRONMENT),
            _statistics_columns(lines),
        ]
        frame = pl.concat(columns, how="horizontal")
        return _with_derived_columns(frame).select(list(SCHEMA))

    def _line_columns(self, chunk: Sequence[FolderLine]) -> pl.DataFrame:
        """Return the columns of the lines themselves, without statistics of their samples."""
        columns: dict[str, list[Any]] = {name: [None] * len(chunk) for name in PLAIN_COLUMNS}
        for name in ("folder", "folder_rank", "place", "record_id", "seq"):
            columns[name] = [getattr(stored, name) for stored in chunk]
        for name in ("origin", "status", "platform", "scope"):
            columns[name] = [getattr(stored.line, name) for stored in chunk]
        for name in ("cause", "note", "taken_at"):
            columns[name] = [getattr(stored.line, name) or None for stored in chunk]
        columns["workload_key"] = [stored.line.key for stored in chunk]
        nested = NestedColumns()
        for number, stored in enumerate(chunk):
            self._add_quantities(number, stored.line, columns, nested)
        plain = pl.DataFrame(columns, schema=PLAIN_COLUMNS)
        return plain.with_columns(nested.columns(len(chunk)))

    def _add_quantities(
        self, number: int, line: Line, columns: dict[str, list[Any]], nested: NestedColumns
    ) -> None:
        """Add the quantities of a line to the row of this number."""
        for name, quantity in line.quantities.items():
            value = headline(quantity) if quantity.samples else quantity.value
            if name in AMOUNTS:
                columns[name][number] = None if value is None else float(value)
            else:
                text = None if value is None else json.dumps(value)
                nested.others.append((number, name, text))
                add_kinds(self.others, [(name, value)])
            if quantity.samples and name != "step_s":
                nested.sampled.append((number, name, quantity))
        step = line.quantities.get("step_s")
        if step is None:
            return
        columns["stated_low"][number] = step.low
        columns["stated_high"][number] = step.high
        if step.samples:
            nested.steps.append((number, step))
            waited = line.quantities.get("input_s", NO_QUANTITY)
            for name, value in _describe_samples(step, waited).items():
                columns[name][number] = value


def empty_frame() -> pl.DataFrame:
    """Return a frame without rows."""
    return pl.DataFrame(schema=SCHEMA)


def gather(
    keys: Sequence[Key], describe: Callable[[Key], Row], schema: Mapping[str, pl.DataType]
) -> pl.DataFrame:
    """Return a row of a schema for each key; each key is described once."""
    numbers: dict[Key, int] = {}
    row_numbers = [numbers.setdefault(key, len(numbers)) for key in keys]
    rows = [describe(key) for key in numbers]
    columns = {name: [row[name] for row in rows] for name in schema}
    return pl.DataFrame(columns, schema=schema)[row_numbers]


def write_parquet(frames: Iterable[pl.DataFrame], path: Path, scratch: Path) -> None:
    """Write frames one behind the other to a Parquet file; many of them in parts first.

    Raises:
        OSError: if the disk does not take the file.
    """
    parts: list[Path] = []
    pending: list[pl.DataFrame] = []
    try:
        for frame in frames:
            pending.append(frame)
            if sum(map(len, pending)) >= PART_ROWS:
                parts.append(_write_part(pending, scratch / f"part-{len(parts)}.parquet"))
                pending = []
        if not parts:
            _write_part(pending, path)
            return
        parts.append(_write_part([empty_frame(), *pending], scratch / f"part-{len(parts)}.parquet"))
        lazy = pl.scan_parquet(parts, low_memory=True)
        lazy.sink_parquet(path, row_group_size=ROW_GROUP_ROWS, maintain_order=True)
    except pl.exceptions.ComputeError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    finally:
        for part in parts:
            part.unlink()


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
            kind = "float"
        kind_names = kinds.setdefault(name, [])
        if kind not in kind_names:
            kind_names.append(kind)


def _describe_samples(step: Quantity, waited: Quantity) -> Row:
    """Count the samples of a step and their runs; `waited` is the time of waiting for input."""
    disturbed = step.columns.get("disturbed")
    run_count = len({*step.runs})
    total_s = sum(step.samples)
    is_fed = total_s > 0 and len(waited.samples) == len(step.samples)
    return {
        "runs": run_count,
        "step_s_interval": "between-runs" if run_count > 1 else "within-run",
        "samples_n": len(step.samples),
        "samples_disturbed": sum(disturbed or ()),
        "marks_n": None if disturbed is None else len(disturbed),
        "infeed": sum(waited.samples) / total_s if is_fed else None,
    }


def _statistics_columns(lines: Sequence[Line]) -> pl.DataFrame:
    """Return the spread of the samples of each step, and its `estimate`."""
    from steptime.records.statistics import of_samples, spreads

    row_numbers = []
    samples = []
    runs = []
    for number, line in enumerate(lines):
        step = line.quantities.get("step_s")
        if step is not None and step.samples:
            row_numbers.append(number)
            samples.append(step.samples)
            runs.append(step.runs)
    places = np.array(row_numbers, np.int64)
    spread = spreads(samples)
    estimates = of_samples(samples, runs)
    columns = [scatter(f"spread_{name}", spread[name], places, len(lines)) for name in SPREAD]
    columns += [
        scatter(f"estimate_{name}", estimates[name], places, len(lines)) for name in ESTIMATE
    ]
    return pl.DataFrame(columns)


def scatter(name: str, values: NDArray[Any], places: NDArray[Any], length: int) -> pl.Series:
    """Return a column with values at places, None elsewhere and for numbers that are not finite."""
    column = np.full(length, np.nan)
    column[places] = values
    column[~np.isfinite(column)] = np.nan
    return pl.Series(name, column).fill_nan(None)


def _with_derived_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that follow from those of lines, workloads, methods and environments.

    The speed of repeats, a run of one sample each, follows from their median: a single slow run of
    five does not decide. The speed of longer runs is that of all samples together.
    """
    has_batch = pl.col("batch_source").ne_missing(pl.lit(UNKNOWN))
    examples = pl.col("examples")
    positive_s = pl.when(pl.col("step_s") != 0).then(pl.col("step_s"))
    has_samples = pl.col("samples_n").is_not_null()
    is_repeated = pl.col("runs") == pl.col("samples_n")
    sampled_speed = pl.when(has_samples & ~is_repeated).then(examples * pl.col("spread_speed"))
    speed = sampled_speed.otherwise(examples / positive_s)
    estimate = pl.struct(pl.col(f"estimate_{name}").alias(name) for name in ESTIMATE)
    return frame.with_columns(
        pl.when(has_batch).then(pl.col("batch")).alias("batch"),
        pl.when(has_batch).then(examples).alias("global_batch"),
        pl.coalesce("date", pl.col("taken_at").str.head(10)).alias("date"),
        pl.when(pl.col("origin") == "measured")
        .then(pl.col("ran_by"))
        .otherwise(pl.col("stack"))
        .alias("stack"),
        *(pl.col(f"spread_{name}").alias(f"step_s_{name}") for name in SPREAD[:5]),
        pl.when(has_batch).then(speed).alias("examples_per_s"),
        *(
            pl.when(has_batch)
            .then(examples * pl.col(f"spread_{name}"))
            .alias(f"examples_{name}_per_s")
            for name in ("uncertainty", "jitter")
        ),
        pl.when(pl.col("estimate_value").is_not_null()).then(estimate).alias("estimate"),
    )
