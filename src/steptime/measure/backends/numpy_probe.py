"""The roofs of this machine's CPU as numpy reaches them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from steptime.core.errors import InputError, unknown
from steptime.measure import cpus, machine, roofs

DTYPES = ("float32", "float64")
STREAMS: dict[str, Callable[..., object]] = {
    "copy": np.copyto,
    "add": np.add,  # writes to its third argument
}
TINY = {"add": np.add, "matmul": np.matmul}


def probe(
    device: str = "cpu",
    threads: int | None = None,
    dtypes: Sequence[str] | None = None,
    budget_s: float = 20.0,
) -> dict[str, Any]:
    """Give the measured roofs (seconds, FLOP, bytes) as JSON values, see `roofs.answer`.

    The number of threads is that of the BLAS, set before numpy was imported; copy, add and tiny
    ops run on one thread, because numpy does. Raises `InputError` for another device or dtype.
    """
    if device != "cpu":
        raise InputError(f"device: numpy runs on 'cpu' only, not '{device}'")
    for dtype in dtypes or ():
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES, "numpy probe")
    started = time.perf_counter()
    load = machine.load()
    allowed = cpus.cores().allowed
    cache_bytes = cpus.last_cache_bytes(allowed)
    room = machine.memory()
    cases = [
        roofs.Case(
            f"gemm.{dtype}",
            {"m": m, "k": k, "n": n},
            roofs.gemm_flop(m, k, n),
            roofs.gemm_size(m, k, n) * np.dtype(dtype).itemsize,
            _gemm(dtype, m, k, n),
        )
        for dtype in dtypes or DTYPES
        for m, k, n in roofs.GEMM_SHAPES
    ]
    cases += [
        roofs.Case(
            f"memory.{kernel}",
            {"array_bytes": size},
            size * arrays,
            size * arrays,
            _stream(kernel, size),
        )
        for kernel, arrays in roofs.ARRAYS.items()
        for size in roofs.array_sizes_bytes(cache_bytes, room.usable_bytes)
    ]
    cases += [
        roofs.Case("dispatch", {"op": name}, 1, 1, _tiny(call)) for name, call in TINY.items()
    ]
    samples = roofs.sample(cases, budget_s)
    return roofs.answer(
        samples,
        backend="numpy",
        version=np.__version__,
        device="cpu",
        kind="cpu",
        product=machine.cpu_model(),
        threads=threads or machine.environment_threads() or len(allowed),
        memory_bytes=room.limit_bytes or room.total_bytes,
        cache_bytes=cache_bytes,
        load=load,
        budget_s=budget_s,
        wall_s=time.perf_counter() - started,
    )


def _gemm(dtype: str, m: int, k: int, n: int) -> Callable[[], roofs.Timer]:
    def prepare() -> roofs.Timer:
        values = np.random.default_rng(0).standard_normal(roofs.RANDOM_VALUES).astype(dtype)
        a, b = np.resize(values, (m, k)), np.resize(values, (k, n))
        out = np.empty((m, n), dtype=dtype)
        return roofs.host_timer(partial(np.matmul, a, b, out=out))

    return prepare


def _stream(kernel: str, size_bytes: int) -> Callable[[], roofs.Timer]:
    def prepare() -> roofs.Timer:
        arrays = [np.ones(size_bytes // 4, dtype=np.float32) for _ in range(roofs.ARRAYS[kernel])]
        return roofs.host_timer(partial(STREAMS[kernel], *arrays))

    return prepare


def _tiny(call: Callable[..., object]) -> Callable[[], roofs.Timer]:
    def prepare() -> roofs.Timer:
        a, b = np.ones((8, 8), dtype=np.float32), np.ones((8, 8), dtype=np.float32)
        return roofs.host_timer(partial(call, a, b))

    return prepare
