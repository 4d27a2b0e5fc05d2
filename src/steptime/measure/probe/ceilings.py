"""The ceilings of a device: networks of one op, run by the normal backend and timed in turns.

A product of matrices gives the peak of its type, a copy and an addition of long arrays give the
bandwidth, and chains of tiny ops give what it costs to issue one. FLOP and bytes are those that
the op table counts.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from steptime.build import Choice, make_workload
from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import check_choice
from steptime.core.graph import Graph
from steptime.core.json_types import JsonObject
from steptime.measure import machine, registry
from steptime.measure.contract import DeviceFacts, Options, Prepared, translate_backend_error
from steptime.measure.probe.sampling import ProbeCase, RefusedError, Timer, sample
from steptime.measure.timing import timer_of
from steptime.network.ops.builder import Builder
from steptime.records.record import current_time

SQUARES = tuple((n, n, n) for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384))
SKEWED = ((64, 2048, 2048), (64, 8192, 8192), (8192, 512, 512), (65536, 1024, 1024))
GEMM_SHAPES = tuple(sorted((*SQUARES, *SKEWED), key=math.prod))
STREAMS: dict[str, tuple[str, int, dict[str, int]]] = {  # kind, arrays read; one more is written
    "copy": ("concat", 1, {"axis": 0}),
    "add": ("add", 2, {}),
}
FLOAT_BYTES = 4  # of an element of the arrays
SMALLEST_ARRAY_BYTES = 1 << 16
UNKNOWN_CACHE_BYTES = 1 << 27
DTYPES = ("float32", "tf32", "bfloat16", "float64", "float16")  # in the order they are tried
STEP_WORK = 1e8  # FLOP or bytes of a step: far more than it costs to start one
MAX_OPS = 200  # of a step, so that no accelerator's queue is ever full
OUT_OF_CACHE = 4  # the arrays together are at least this many last-level caches
ARRAYS_OF_COPY = 2  # one that is read, and one that is written
CACHE_LINE_BYTES = 64
# Sizes grow fourfold, so arrays of all sizes are 4/3 of the largest, with the last step up to 7/3.
# Both kernels have five arrays of each size: 5 * 7/3 < 12. They may take half of the room.
ROOM_PER_LARGEST_ARRAY = 2 * 12


def gemm_flop(m: int, k: int, n: int) -> int:
    """Return the FLOP of `[m, k] x [k, n]`; a multiply-add is 2."""
    return 2 * m * k * n


def array_sizes_bytes(cache_bytes: int | None, room_bytes: int | None) -> tuple[int, ...]:
    """Return array sizes from within the nearest cache to beyond the last, growing fourfold.

    Two arrays of the largest make `OUT_OF_CACHE` last-level caches. The five arrays of both kernels
    of all sizes (at most 7/3 of the largest) together stay within half of the room.
    """
    all_arrays_bytes = (cache_bytes or UNKNOWN_CACHE_BYTES) * OUT_OF_CACHE
    largest_bytes = all_arrays_bytes // ARRAYS_OF_COPY
    if room_bytes is not None:
        largest_bytes = min(largest_bytes, room_bytes // ROOM_PER_LARGEST_ARRAY)
    sizes_bytes = []
    size_bytes = SMALLEST_ARRAY_BYTES
    while size_bytes < largest_bytes:
        sizes_bytes.append(size_bytes)
        size_bytes *= 4
    aligned_bytes = largest_bytes // CACHE_LINE_BYTES * CACHE_LINE_BYTES
    return (*sizes_bytes, max(SMALLEST_ARRAY_BYTES, aligned_bytes))


def probe(
    name: str,
    backend: Any,
    options: Options,
    dtypes: Sequence[str] | None = None,
    budget_s: float = 20.0,
) -> JsonObject:
    """Return the measured ceilings of a backend's device (seconds, FLOP, bytes) as JSON values.

    `curves` by group have columns, a list each, among them `work`, `min_s`, `median_s`, `samples`
    (their number); `skipped` says why cases are absent: a slow type (float16 on most CPUs) ends at
    the size where its share of the budget does. None is unknown. `load` is that of the minute
    before, as a share of the CPUs. Raises `InputError` for an unknown type.
    """
    for dtype in dtypes or ():
        check_choice("dtype", dtype, DTYPES, "probe")
    start_s = time.perf_counter()
    load = machine.load_per_cpu()
    machine.keep_freed_memory()  # new pages would cost more than what is written into them
    facts: DeviceFacts = backend.device_facts(options.device)
    probed_dtypes = [dtype for dtype in dtypes or DTYPES if dtype != "tf32" or facts.has_tf32]
    cases = _list_cases(partial(_prepare_graph, backend, options), facts, probed_dtypes)
    curves, skipped = sample(cases, budget_s)
    on_cpu = options.device == "cpu"
    return {
        "backend": name,
        "version": registry.version(name),
        "device": options.device,
        "kind": "cpu" if on_cpu else "gpu",
        "product": facts.product,
        "threads": options.threads,
        "memory_bytes": facts.memory_bytes,
        "cache_bytes": facts.cache_bytes,
        "load": load,
        "budget_s": budget_s,
        "wall_s": time.perf_counter() - start_s,
        "taken_at": current_time(),
        "curves": curves,
        "skipped": skipped,
    }


Prepare = Callable[[Graph, str, str], Prepared]  # a graph, its type, its phase
Shape = tuple[int, ...]


def _prepare_graph(
    backend: Any, options: Options, graph: Graph, dtype: str, phase: str
) -> Prepared:
    """Prepare a graph as that of any network; raises `RefusedError` where that cannot be."""
    tensor_dtype = "float32" if dtype == "tf32" else dtype
    # A workload must name some network; the backend runs the graph.
    workload = make_workload(Choice("fc", {}), 1, dtype=tensor_dtype, phase=phase)
    try:
        prepared: Prepared = backend.prepare(
            graph, workload, replace(options, tf32=dtype == "tf32")
        )
        prepared.step()
        prepared.sync()
    except Exception as error:  # whatever a backend raises, this type or size cannot be had
        raise RefusedError(
            str(translate_backend_error(backend, error)).partition("\n")[0][:200]
        ) from error
    return prepared


def _list_cases(prepare: Prepare, facts: DeviceFacts, dtypes: Sequence[str]) -> list[ProbeCase]:
    """Return all cases, each group's in ascending order of work."""
    cases = [_gemm_case(prepare, dtype, shape) for dtype in dtypes for shape in GEMM_SHAPES]
    array_sizes = array_sizes_bytes(facts.cache_bytes, facts.room_bytes)
    cases += [
        _stream_case(prepare, stream, array_bytes)
        for stream in STREAMS
        for array_bytes in array_sizes
    ]
    # The work of a dispatch is one op.
    dispatch = ProbeCase(
        "dispatch", {"op": "add"}, work=1, data_bytes=1, prepare=partial(_chain, prepare)
    )
    return [*cases, dispatch]


def _gemm_case(prepare: Prepare, dtype: str, shape: tuple[int, int, int]) -> ProbeCase:
    """Return the case of a product of matrices, `m x k` by `k x n`."""
    m, k, n = shape
    flop = gemm_flop(m, k, n)
    element_bytes = SIZE_BYTES["float32" if dtype == "tf32" else dtype]
    return ProbeCase(
        f"gemm.{dtype}",
        {"m": m, "k": k, "n": n},
        work=flop,
        data_bytes=(m * k + k * n + m * n) * element_bytes,
        prepare=partial(
            _make_op_timer, prepare, dtype, work=flop, kind="matmul", shapes=((m, k), (k, n))
        ),
    )


def _stream_case(prepare: Prepare, stream: str, array_bytes: int) -> ProbeCase:
    """Return the case of an op that reads one array or two, and writes one of the same size."""
    kind, read_arrays, attrs = STREAMS[stream]
    moved_bytes = array_bytes * (read_arrays + 1)
    shapes = ((array_bytes // FLOAT_BYTES,),) * read_arrays
    return ProbeCase(
        f"memory.{stream}",
        {"array_bytes": array_bytes},
        work=moved_bytes,
        data_bytes=moved_bytes,
        prepare=partial(
            _make_op_timer,
            prepare,
            "float32",
            work=moved_bytes,
            kind=kind,
            shapes=shapes,
            **attrs,
        ),
    )


def _make_op_timer(
    prepare: Prepare, dtype: str, work: float, kind: str, shapes: Sequence[Shape], **attrs: Any
) -> Timer:
    """Return the timer of one op, of which a step runs as many as are worth a step."""
    tensor_dtype = "float32" if dtype == "tf32" else dtype
    # many small ops in a step, so that its start does not count
    count = max(1, min(MAX_OPS, int(STEP_WORK / work)))
    builder = Builder("ceiling", precision(tensor_dtype), training=False)
    inputs = [builder.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    outputs = [builder.op(kind, *inputs, name=f"{kind}{i}", **attrs) for i in range(count)]
    # The backends that are probed run every op, though nothing reads the outputs but the last.
    prepared = prepare(builder.graph(outputs[-1]), dtype, "infer")
    seconds_of = prepared.timer or timer_of(prepared.sync)
    return _per_op(lambda steps: seconds_of(prepared.step, steps), count)


def _per_op(timer: Timer, count: int) -> Timer:
    """Return a timer of single ops from that of steps of `count`, which it rounds up to."""

    def per_op(calls: int) -> float:
        steps = math.ceil(calls / count)  # a step holds `count` ops: whole steps are timed
        return timer(steps) * calls / (steps * count)

    return per_op


def _chain(prepare: Prepare) -> Timer:
    """Return the timer of issuing a tiny op in a chain; the device is awaited after it, untimed."""
    b = Builder("chain", precision("float32"), training=False)
    x = b.input("x", (8, 8))
    y = b.input("y", (8, 8))
    for i in range(MAX_OPS):
        x = b.op("add", x, y, name=f"add{i}")
    prepared = prepare(b.graph(x), "float32", "infer")

    def timer(steps: int) -> float:
        spent_s = 0.0
        for _ in range(steps):
            prepared.sync()  # an empty queue: the host never waits for the device below
            start_s = time.perf_counter()
            prepared.step()
            spent_s += time.perf_counter() - start_s
        prepared.sync()
        return spent_s

    return _per_op(timer, MAX_OPS)
