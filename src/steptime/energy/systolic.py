"""Latency and traffic of matrix products on a systolic array, by closed formulas.

The machine. `rows` x `columns` PEs, each with one multiply-add a cycle and a register a neighbour.
A product C [m, n] = A [m, k] B [k, n] is cut into tiles; X and Y are the two dimensions that lie
on the rows and the columns of the array, T is the one that runs through time:

    dataflow   stays in the PEs   X   Y   T
    weight     a tile of B        k   n   m
    input      a tile of A        k   m   n
    output     a tile of C        m   n   k

Operands enter skewed, row i (or column j) one cycle after its neighbour, and everything that is
loaded or leaves at an end of the columns does so at the top, so that a tile of r x c PEs pays for
r rows and c columns and not for the whole array. A tile takes 2r + c + t - 2 cycles:

    weight, input   r to shift the tile in; then PE (i, j) works on step s at cycle i + j + s, so
                    the last of t steps ends after r + c + t - 2; sums move up and leave
    output          the last PE ends after r + c + t - 2; then r to shift the sums out

Tiles run one after another, without overlap (a machine that loads the next tile meanwhile is
faster). Over all tiles the sum is closed. With full tiles it is the formula of Samajdar et al.
2018 (SCALE-Sim), which also charges a partial tile as a full one. The tests play this machine
cycle by cycle.

The memory. DRAM and array overlap: a product takes the longer of the two times. The buffer gives
each operand as often as tiles need it; DRAM gives it again where the buffer cannot keep it (see
`_list_stationary_plans` and `_list_output_plans`). What only passes through needs no room in the
buffer. Of the ways to use the buffer, the fastest is taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.graph import Attrs, Graph, TensorSpec, freeze_attrs
from steptime.network.ops import products_of
from steptime.network.ops.table import ShapeError, Specs

Dataflow = Literal["weight", "input", "output"]
DATAFLOWS: tuple[Dataflow, ...] = ("weight", "input", "output")
COVERED_KINDS = ("conv2d", "linear", "matmul", "attention")
Pair = tuple[int, int]


@dataclass(frozen=True)
class Array:
    """One systolic array with its share of the chip's buffer and memory bandwidth.

    An operand or a result has `element_bytes`, a sum that is not yet whole `sum_bytes`. `per_chip`
    is the number of such arrays on a chip. Raises `InputError` unless every number is positive.
    """

    rows: int
    columns: int
    clock_hz: float
    buffer_bytes: int
    memory_bytes_per_s: float
    element_bytes: int = 1
    sum_bytes: int = 4
    per_chip: int = 1
    name: str = ""
    source: str = ""
    note: str = ""
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that every number is positive."""
        for name in ("rows", "columns", "buffer_bytes", "element_bytes", "sum_bytes", "per_chip"):
            _check_size(name, getattr(self, name))
        for name in ("clock_hz", "memory_bytes_per_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"'{name}' must be positive, not {shorten(getattr(self, name))}")

    @property
    def peak_flop_per_s(self) -> float:
        """FLOP/s with every PE busy, a multiply-add being 2."""
        return 2 * self.rows * self.columns * self.clock_hz


@dataclass(frozen=True)
class ArrayRun:
    """What products cost on an array.

    `macs` are multiply-adds; `utilisation` is macs / (cycles * PEs), stalls for memory not
    counted; `passes` is the number of pieces that T is cut into for the buffer. Buffer bytes are
    those between buffer and PEs, `dram_bytes` those between memory and buffer. `time_s` is the
    longer of cycles / clock and DRAM bytes / bandwidth.
    """

    cycles: int
    macs: int
    utilisation: float
    passes: int
    buffer_read_bytes: int
    buffer_write_bytes: int
    dram_bytes: int
    time_s: float


@dataclass(frozen=True)
class SystolicRun:
    """One op of a network on an array."""

    name: str
    kind: str
    run: ArrayRun


@dataclass(frozen=True)
class NetworkRun:
    """The ops that an array runs, in order, and the names of those that it does not know."""

    ops: tuple[SystolicRun, ...]
    not_covered: tuple[str, ...]

    @property
    def cycles(self) -> int:
        """Cycles of the covered ops, one after another."""
        return sum(op.run.cycles for op in self.ops)

    @property
    def time_s(self) -> float:
        """Seconds of the covered ops, one after another: a lower bound where some are not."""
        return sum(op.run.time_s for op in self.ops)


class _Product(NamedTuple):
    """C [m, n] = A [m, k] B [k, n], and the bytes that A and B take in memory."""

    m: int
    k: int
    n: int
    a_bytes: int
    b_bytes: int


class _BufferPlan(NamedTuple):
    """One way to use the buffer: pieces of T, and the bytes that move from and to DRAM."""

    passes: int
    dram_bytes: int


class _Panels(NamedTuple):
    """An operand cut into panels: the rows or columns of one tile, over all of k."""

    size_bytes: int
    panel_bytes: int
    panel_count: int


def matmul(
    array: Array, m: int, k: int, n: int, dataflow: Dataflow = "weight", times: int = 1
) -> ArrayRun:
    """Return the cost of `a [m, k], b [k, n] -> [m, n]`, done `times` times on other data.

    One product of 2 x 2 matrices on 2 x 2 PEs takes 2*2 + 2 + 2 - 2 = 6 cycles. Raises `InputError`
    for a size below 1, an unknown dataflow, or a buffer that cannot hold one row of sums.
    """
    for name, size in (("m", m), ("k", k), ("n", n), ("times", times)):
        _check_size(name, size)
    element_bytes = array.element_bytes
    product = _Product(m, k, n, a_bytes=m * k * element_bytes, b_bytes=k * n * element_bytes)
    return _run_products(array, product, dataflow, times)


def conv2d(
    array: Array,
    x: tuple[int, ...],
    w: tuple[int, ...],
    dataflow: Dataflow = "weight",
    stride: Pair = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> ArrayRun:
    """Return the cost of `x [n, c_in, h, w], w [c_out, c_in/groups, kh, kw] -> [n, c_out, oh, ow]`.

    An implicit product for each group: m = batch * oh * ow, k = kh * kw * c_in/groups,
    n = c_out/groups. The buffer keeps the image, from which the rows of A are made as they enter,
    so DRAM moves the image and not A; the overlap of pieces of an image is left out. Raises
    `InputError` for shapes that do not fit.
    """
    for size in (*x, *w):
        _check_size("a dimension", size)
    attrs = freeze_attrs(
        {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    )
    try:
        return _run_op(array, "conv2d", (TensorSpec(x), TensorSpec(w)), attrs, dataflow)
    except ShapeError as error:
        raise InputError(str(error)) from error


def network(array: Array, graph: Graph, dataflow: Dataflow = "weight") -> NetworkRun:
    """Return the cost of every product of an inference graph on an array: `COVERED_KINDS`.

    Attention is two products, one after the other; its softmax is not counted. Elements have the
    array's size, whatever the graph's dtype. A batch of a matmul is as many products. All other ops
    are named in `not_covered`, also those that only move data. Raises `InputError` for a graph that
    trains.
    """
    if any(op.part != "forward" for op in graph.ops):
        raise InputError(f"{graph.name}: a systolic array takes a network in phase 'infer'")
    runs, not_covered = [], []
    for op in graph.ops:
        if op.kind not in COVERED_KINDS:
            not_covered.append(op.name)
            continue
        specs = tuple(graph.tensors[name] for name in op.inputs)
        run = _run_op(array, op.kind, specs, op.settings, dataflow)
        runs.append(SystolicRun(op.name, op.kind, run))
    return NetworkRun(tuple(runs), tuple(not_covered))


def _run_op(array: Array, kind: str, specs: Specs, attrs: Attrs, dataflow: Dataflow) -> ArrayRun:
    """Return the cost of an op by its products; an image is read in place of their first matrix."""
    element_bytes = array.element_bytes
    runs: list[ArrayRun] = []
    for count, m, n, k in products_of(kind, specs, attrs):
        a_size = m * k
        if kind == "conv2d":  # the image is read; a stride above the kernel leaves parts unread
            image, *_ = specs
            a_size = min(image.size // count, m * k)
        product = _Product(m, k, n, a_bytes=a_size * element_bytes, b_bytes=k * n * element_bytes)
        runs.append(_run_products(array, product, dataflow, count))
    return runs[0] if len(runs) == 1 else _add_runs(array, runs)  # attention has two products


def _add_runs(array: Array, runs: Sequence[ArrayRun]) -> ArrayRun:
    """Return the cost of several products that run one after the other."""
    macs = sum(run.macs for run in runs)
    cycles = sum(run.cycles for run in runs)
    return ArrayRun(
        cycles=cycles,
        macs=macs,
        utilisation=macs / (cycles * array.rows * array.columns),
        passes=max(run.passes for run in runs),
        buffer_read_bytes=sum(run.buffer_read_bytes for run in runs),
        buffer_write_bytes=sum(run.buffer_write_bytes for run in runs),
        dram_bytes=sum(run.dram_bytes for run in runs),
        time_s=sum(run.time_s for run in runs),
    )


class _Loops(NamedTuple):
    """The dimensions of a product on an array, and the tiles that X and Y are cut into."""

    x: int
    y: int
    t: int
    x_tiles: int
    y_tiles: int


def _run_products(array: Array, product: _Product, dataflow: Dataflow, times: int) -> ArrayRun:
    """Return the cost of `times` products, each with the fastest plan of its dataflow."""
    check_choice("dataflow", dataflow, DATAFLOWS)
    m, k, n, _, _ = product
    loops = _arrange_loops(array, product, dataflow)
    plan = _choose_plan(array, product, dataflow, loops)
    cycles = _count_cycles(loops, plan.passes)
    macs = m * k * n
    if dataflow == "output":
        # Sums stay in the PEs. A is read once per tile of n (y), B once per tile of m (x).
        partial_sum_bytes = 0
        elements_read = m * k * loops.y_tiles + k * n * loops.x_tiles
    else:
        # One operand [x, y] is loaded once per pass, the other [x, t] streamed once per tile of y.
        # Each tile of k (x) reads the sums of the tile before again, which were written.
        partial_sum_bytes = (loops.x_tiles - 1) * m * n * array.sum_bytes
        elements_read = loops.x * loops.y * plan.passes + loops.x * loops.t * loops.y_tiles
    return ArrayRun(
        cycles=times * cycles,
        macs=times * macs,
        utilisation=macs / (cycles * array.rows * array.columns),
        passes=plan.passes,
        buffer_read_bytes=times * (elements_read * array.element_bytes + partial_sum_bytes),
        buffer_write_bytes=times * (m * n * array.element_bytes + partial_sum_bytes),
        dram_bytes=times * plan.dram_bytes,
        time_s=times * _plan_time_s(array, loops, plan),
    )


def _arrange_loops(array: Array, product: _Product, dataflow: Dataflow) -> _Loops:
    """Return the dimensions of a product on an array, by the table of dataflows of the module."""
    # x lies on the rows of PEs, y on their columns; t runs through time.
    m, k, n, _, _ = product
    if dataflow == "output":
        x, y, t = m, n, k
    elif dataflow == "weight":
        x, y, t = k, n, m
    else:
        x, y, t = k, m, n
    return _Loops(x, y, t, x_tiles=_divide_up(x, array.rows), y_tiles=_divide_up(y, array.columns))


def _choose_plan(array: Array, product: _Product, dataflow: Dataflow, loops: _Loops) -> _BufferPlan:
    """Return the fastest plan of a dataflow; raises `InputError` if the buffer is too small."""
    if dataflow == "output":
        plans = list(_list_output_plans(array, product))
    elif dataflow == "weight":
        plans = list(_list_stationary_plans(array, product))
    else:  # "input": C^T = B^T A^T, in which A^T stays in the PEs as B does otherwise
        m, k, n, a_bytes, b_bytes = product
        transposed = _Product(n, k, m, a_bytes=b_bytes, b_bytes=a_bytes)
        plans = list(_list_stationary_plans(array, transposed))
    if not plans:
        raise InputError(
            f"a buffer of {array.buffer_bytes} bytes cannot hold one row of "
            f"{min(array.columns, loops.y)} sums of {array.sum_bytes} bytes"
        )
    return min(
        plans,
        key=lambda plan: (_plan_time_s(array, loops, plan), plan.dram_bytes, plan.passes),
    )


def _plan_time_s(array: Array, loops: _Loops, plan: _BufferPlan) -> float:
    """Return the longer of the times of the array and of the memory."""
    compute_s = _count_cycles(loops, plan.passes) / array.clock_hz
    memory_s = plan.dram_bytes / array.memory_bytes_per_s
    return max(compute_s, memory_s)


def _count_cycles(loops: _Loops, passes: int) -> int:
    """Return the sum over all tiles of 2 r + c + t - 2 (see the module), T cut into `passes`."""
    tile_count = loops.x_tiles * loops.y_tiles * passes
    shift_cycles = (2 * loops.x * loops.y_tiles + loops.y * loops.x_tiles) * passes  # 2 r + c
    stream_cycles = loops.t * loops.x_tiles * loops.y_tiles
    return shift_cycles + stream_cycles - 2 * tile_count


def _list_stationary_plans(array: Array, product: _Product) -> Iterator[_BufferPlan]:
    """Return the plans of a dataflow in which tiles of B stay in the PEs and A streams.

    Pieces of m are the outermost loop, then n, then k. The sums of a piece [rows of it, columns of
    a tile] stay in the buffer while k has more than one tile: they set the size of a piece. B is
    read once if the buffer keeps it whole, else once a piece; A once if the buffer keeps the
    piece, else once a tile of n. C is written once.
    """
    m, k, n, a_bytes, b_bytes = product
    c_bytes = m * n * array.element_bytes
    column_tiles = _divide_up(n, array.columns)
    a_row_bytes = _divide_up(a_bytes, m)
    has_partial_sums = k > array.rows  # k is cut into tiles, whose sums wait in the buffer
    sums_row_bytes = min(n, array.columns) * array.sum_bytes if has_partial_sums else 0
    for keeps_b in (False, True):
        for keeps_a in (False, True):
            row_bytes = sums_row_bytes + (a_row_bytes if keeps_a else 0)  # buffered per row of m
            free_bytes = array.buffer_bytes - (b_bytes if keeps_b else 0)
            if free_bytes < row_bytes:  # not even one row fits beside B
                continue
            passes = _divide_up(m, free_bytes // row_bytes) if row_bytes else 1  # pieces of m
            a_reads = 1 if keeps_a else column_tiles  # streamed again for each tile of B
            b_reads = 1 if keeps_b else passes  # loaded again for each piece of m
            yield _BufferPlan(passes, a_bytes * a_reads + b_bytes * b_reads + c_bytes)


def _list_output_plans(array: Array, product: _Product) -> Iterator[_BufferPlan]:
    """Return the plans of the dataflow in which tiles of C stay in the PEs.

    With nothing kept, A is read once a tile of n and B once a tile of m. With as many panels of A
    (the rows of a tile, all of k) kept as fit beside one panel of B, A is read once, and B once
    for each such group; one panel of A alone needs none of B. The same with A and B exchanged.
    C is written once.
    """
    m, _, n, a_bytes, b_bytes = product
    row_tiles = _divide_up(m, array.rows)
    column_tiles = _divide_up(n, array.columns)
    c_bytes = m * n * array.element_bytes
    yield _BufferPlan(passes=1, dram_bytes=a_bytes * column_tiles + b_bytes * row_tiles + c_bytes)
    a_panels = _Panels(
        size_bytes=a_bytes,
        panel_bytes=_divide_up(a_bytes * min(m, array.rows), m),
        panel_count=row_tiles,
    )
    b_panels = _Panels(
        size_bytes=b_bytes,
        panel_bytes=_divide_up(b_bytes * min(n, array.columns), n),
        panel_count=column_tiles,
    )
    for resident, streamed in ((a_panels, b_panels), (b_panels, a_panels)):
        if resident.panel_bytes > array.buffer_bytes:  # not even one panel can be kept
            continue
        free_bytes = array.buffer_bytes - streamed.panel_bytes
        group_size = max(1, free_bytes // resident.panel_bytes)  # resident panels kept at once
        stream_count = _divide_up(resident.panel_count, group_size)
        dram_bytes = resident.size_bytes + streamed.size_bytes * stream_count + c_bytes
        yield _BufferPlan(passes=1, dram_bytes=dram_bytes)


def _divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)  # rounded up


def _check_size(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"'{name}' must be a whole number from 1, not {shorten(value)}")
