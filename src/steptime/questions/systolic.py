"""A network on systolic arrays of several sizes: the question `systolic`."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, cast

from steptime.build import build
from steptime.core.answer import Answer, AnswerRow
from steptime.core.errors import InputError, check_choice
from steptime.core.graph import Graph
from steptime.core.signatures.kinds import File, Kind, text_of
from steptime.core.tables.table import Column, Table
from steptime.core.units import format_count
from steptime.core.values import parse_counts
from steptime.energy.systolic import DATAFLOWS, Array, Dataflow, NetworkRun, network
from steptime.energy.systolic_arrays import array as array_of
from steptime.questions import kinds, options
from steptime.questions.pictures import check_picture, draw_heat_map

VALUE_KEYS = {"utilisation": "utilisation", "time": "time_s"}
"""What can be drawn, with its key in a row."""
MAX_ARRAYS = 10_000
"""Arrays of one answer, so that its rows fit a table and a picture."""
COLUMNS = (
    Column("rows"),
    Column("columns"),
    Column("cycles", form=","),
    Column("time_s", "time"),
    Column("utilisation", form=".3f"),
    Column("dram_bytes", "DRAM"),
)


class SystolicRow(AnswerRow, frozen=True, kw_only=True):
    """A network on a systolic array of one size.

    Attributes:
        rows: rows of the array.
        columns: columns of the array.
        cycles: cycles of the arithmetic, one op after another.
        time_s: seconds: the longer of arithmetic and DRAM, op by op.
        utilisation: multiply-adds as a share of all cycles of all cells of the array; null without
            cycles.
        dram_bytes: bytes between memory and buffer.
    """

    rows: int
    columns: int
    cycles: int
    time_s: float
    utilisation: float | None
    dram_bytes: int


class SystolicAnswer(Answer, frozen=True, kw_only=True):
    """The time and utilisation of systolic arrays on a network.

    Attributes:
        model: the network.
        batch: examples of the inference.
        array: the array whose number of rows and columns varies.
        dataflow: the operand that stays in the cells of the array: weight, input or output.
        rows: the arrays.
        not_covered: ops that no array runs; they count as no work.
        notes: remarks.
    """

    model: str
    batch: int
    array: str
    dataflow: str
    rows: tuple[SystolicRow, ...]
    not_covered: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        """The network and the kind of array."""
        return f"{self.model}, batch {self.batch}, on {self.array}, {self.dataflow}-stationary"

    def tables(self) -> list[Table]:
        """Return one row per array."""
        return [Table(COLUMNS, [row.to_dict() for row in self.rows], self.title)]


def systolic(
    model: kinds.Model,
    array: Annotated[
        File, Kind("NAME", completes="steptime.energy.systolic_arrays:array_names")
    ] = "tpu-v1",
    rows: kinds.Counts | None = None,
    columns_: kinds.Counts | None = None,
    dataflow: Annotated[str, Kind("NAME", choices=DATAFLOWS)] = "weight",
    batch: kinds.Batch | None = None,
    strict: bool = False,
    batch_axis: kinds.Axis | None = None,
    value: Annotated[str, Kind("NAME", choices=tuple(VALUE_KEYS))] = "utilisation",
    out: kinds.OutFile | None = None,
) -> SystolicAnswer:
    """Predict the time and utilisation of systolic arrays on a network.

    Args:
        model: A network: a family with its hyperparameters (fc:layers=4,nodes=1024), a name
            (resnet50), a file, or code (model.py:NAME).
        array: The array whose clock, buffer and bandwidth count: `tpu-v1`, `tpu-v2`, `tpu-v3`, or
            FILE.toml.
        rows: Rows of the array: numbers or a range (`16..256x2` doubles). Default: those of
            --array.
        columns_: Columns of the array, as --rows.
        dataflow: What stays in the cells of the array: `weight`, `input` or `output`.
        batch: Examples in a step. Default: 64; for transformers 1; for a file what it states.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.
        value: What the map shows: `utilisation` or `time`.
        out: Draw the map of rows and columns: .png, .svg, .pdf or .html.

    Raises:
        InputError: for unknown names, more than 10,000 arrays, and a network that cannot be read.
    """
    check_choice("--dataflow", dataflow, DATAFLOWS)
    check_choice("--value", value, VALUE_KEYS)
    picture = check_picture(out)
    basis = array_of(str(array))
    resized_arrays = _resize(
        basis,
        row_counts=_read_counts(rows, basis.rows, "--rows"),
        column_counts=_read_counts(columns_, basis.columns, "--columns"),
    )
    workload = options.workload_of(
        options.set_reading(model, strict, batch_axis), text_of(batch), "float32", phase="infer"
    )
    graph = build(workload)
    runs = [network(resized, graph, cast(Dataflow, dataflow)) for resized in resized_arrays]
    # The same ops on every array: the size decides only their time.
    not_covered = runs[0].not_covered
    answer = SystolicAnswer(
        model=workload.label,
        batch=workload.batch_per_replica,
        array=basis.name,
        dataflow=dataflow,
        rows=tuple(map(_summarise_run, resized_arrays, runs)),
        not_covered=not_covered,
        notes=_describe_uncovered(not_covered, graph),
    )
    if picture is not None:
        _draw(answer, basis.source, VALUE_KEYS[value], picture)
    return answer


def _read_counts(counts: kinds.Counts | None, default: int, option: str) -> list[int]:
    """Return the numbers of rows or columns to try: those given, else the array's own."""
    return [default] if counts is None else parse_counts(text_of(counts), option)


def _resize(basis: Array, row_counts: Sequence[int], column_counts: Sequence[int]) -> list[Array]:
    """Return the array in all sizes, rows by rows.

    Raises:
        InputError: for more arrays than an answer holds.
    """
    array_count = len(row_counts) * len(column_counts)
    if array_count > MAX_ARRAYS:
        raise InputError(f"{array_count} arrays; at most {MAX_ARRAYS}")
    sizes = product(row_counts, column_counts)
    return [replace(basis, rows=rows, columns=columns) for rows, columns in sizes]


def _summarise_run(array: Array, run: NetworkRun) -> SystolicRow:
    """Return the time and utilisation of an array on the network."""
    macs = sum(op.run.macs for op in run.ops)
    # Multiply-adds that the processing elements could have done in this time.
    pe_cycles = run.cycles * array.rows * array.columns
    return SystolicRow(
        rows=array.rows,
        columns=array.columns,
        cycles=run.cycles,
        time_s=run.time_s,
        utilisation=macs / pe_cycles if run.cycles else None,
        dram_bytes=sum(op.run.dram_bytes for op in run.ops),
    )


def _describe_uncovered(names: Sequence[str], graph: Graph) -> tuple[str, ...]:
    if not names:
        return ()
    ops = f"{format_count(len(names), 'op')} of {len(graph.ops)}"
    return (f"{ops} not on the array, counted as nothing",)


def _draw(answer: SystolicAnswer, source: str, key: str, out: Path) -> None:
    """Draw a value of every array as a map of rows and columns."""
    cells = [{"x": row.columns, "y": row.rows, "value": getattr(row, key)} for row in answer.rows]
    axis_names = {"x": "columns", "y": "rows"}
    draw_heat_map(answer.title, [source], cells, axis_names, key, out)
