"""The roofs of a device as PyTorch reaches them: CPU, CUDA or ROCm GPU, Apple GPU."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import repeat
from typing import Any, cast

import torch

from steptime.core.errors import InputError, unknown
from steptime.measure import cpus, machine, ranks, roofs
from steptime.measure.backends import torch_device, torch_parallel

DTYPES = {  # by kind of device, in the order they are tried
    "cpu": ("float32", "bfloat16", "float64", "float16"),
    "cuda": ("float32", "tf32", "bfloat16", "float16", "float64"),
    "mps": ("float32", "bfloat16", "float16"),
}
CHAIN = 50  # ops before a backward pass
QUEUED = 200  # calls before a GPU's queue is awaited; far fewer than a queue holds


def collectives(
    device: str, sizes: Sequence[int], budget_s: float, threads: int | None = None
) -> dict[str, Any]:
    """Give the seconds of all-reduces among the processes of this worker, by bytes."""
    found = torch_device.find(device)
    if threads is not None:
        torch.set_num_threads(threads)
    joined = torch_parallel.join(ranks.here(), found)
    sync = torch_device.sync(found)
    return {
        "processes": joined.rank.size,
        "hosts": joined.gather(platform.node()),
        "comm_backend": joined.backend,
        "version": torch.__version__.partition("+")[0],
        "threads": torch.get_num_threads(),
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "all_reduce_s": torch_parallel.all_reduce_s(found, sizes, sync, budget_s),
    }


@dataclass(frozen=True)
class _Place:
    """Where to run, and what there is to know about it."""

    device: torch.device
    kind: str
    product: str
    memory_bytes: int | None
    room_bytes: int | None
    cache_bytes: int | None
    has_tf32: bool = False


def probe(
    device: str = "cpu",
    threads: int | None = None,
    dtypes: Sequence[str] | None = None,
    budget_s: float = 20.0,
) -> dict[str, Any]:
    """Give the measured roofs (seconds, FLOP, bytes) as JSON values, see `roofs.answer`.

    A slow type (float16 on most CPUs) ends at the size where its share of the budget does.
    Raises `InputError` for an unknown dtype or a device that is not here.
    """
    started = time.perf_counter()
    place = _place(device)
    load = machine.load()
    if threads is not None:
        torch.set_num_threads(threads)
    known = DTYPES[place.device.type]
    for dtype in dtypes or ():
        if dtype not in known:
            raise unknown("dtype", dtype, known, f"torch probe on {device}")
    chosen = [d for d in dtypes or known if d != "tf32" or place.has_tf32]
    cases = [
        roofs.Case(
            f"gemm.{dtype}",
            {"m": m, "k": k, "n": n},
            roofs.gemm_flop(m, k, n),
            roofs.gemm_size(m, k, n) * _stored(dtype).itemsize,
            partial(_gemm, place, dtype, m, k, n),
        )
        for dtype in chosen
        for m, k, n in roofs.GEMM_SHAPES
    ]
    cases += [
        roofs.Case(
            f"memory.{kernel}",
            {"array_bytes": size},
            size * arrays,
            size * arrays,
            partial(_stream, place, kernel, size),
        )
        for kernel, arrays in roofs.ARRAYS.items()
        for size in roofs.array_sizes_bytes(place.cache_bytes, place.room_bytes)
    ]
    cases += _dispatch(place)
    with torch.no_grad():
        samples = roofs.sample(cases, budget_s)
    return roofs.answer(
        samples,
        backend="torch",
        version=torch.__version__.partition("+")[0],
        device=device,
        kind="cpu" if place.device.type == "cpu" else "gpu",
        product=place.product,
        threads=torch.get_num_threads(),
        memory_bytes=place.memory_bytes,
        cache_bytes=place.cache_bytes,
        load=load,
        budget_s=budget_s,
        wall_s=time.perf_counter() - started,
    )


def _place(device: str) -> _Place:
    """Give what is known of `device`; raises `InputError` where it is not here."""
    here = ["cpu"]
    here += [f"cuda:{n}" for n in range(torch.cuda.device_count())]
    here += ["mps"] if torch.backends.mps.is_available() else []
    named = "cuda:0" if device == "cuda" else device
    if named not in here:
        raise InputError(f"device: torch finds no '{device[:60]}' here; it has {', '.join(here)}")
    return _PLACES[named.partition(":")[0]](torch.device(named))


def _cpu(device: torch.device) -> _Place:
    room = machine.memory()
    cache_bytes = cpus.last_cache_bytes(cpus.cores().allowed)
    total = room.limit_bytes or room.total_bytes
    return _Place(device, "cpu", machine.cpu_model(), total, room.usable_bytes, cache_bytes)


def _cuda(device: torch.device) -> _Place:
    facts = torch.cuda.get_device_properties(device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    cache_bytes = getattr(facts, "L2_cache_size", None) or None
    has_tf32 = torch.version.hip is None and facts.major >= 8  # Ampere was the first with TF32
    return _Place(device, "gpu", facts.name, total_bytes, free_bytes, cache_bytes, has_tf32)


def _mps(device: torch.device) -> _Place:
    total_bytes = torch.mps.recommended_max_memory()
    room_bytes = total_bytes - torch.mps.driver_allocated_memory()
    return _Place(device, "gpu", machine.cpu_model(), total_bytes, room_bytes, None)


_PLACES = {"cpu": _cpu, "cuda": _cuda, "mps": _mps}


def _timer(place: _Place, call: Callable[[], object]) -> roofs.Timer:
    """Give a timer whose seconds end when the device has done the work."""
    if place.device.type == "cpu":
        return roofs.host_timer(call)
    if place.device.type == "cuda":
        return partial(_event_time, place.device, call)
    return partial(_awaited_time, place.device, call)


def _event_time(device: torch.device, call: Callable[[], object], calls: int) -> float:
    with torch.cuda.device(device):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in repeat(None, calls):
            call()
        last.record()
        last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def _awaited_time(device: torch.device, call: Callable[[], object], calls: int) -> float:
    _await(device)
    started = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    _await(device)
    return time.perf_counter() - started


def _issue_time(device: torch.device, call: Callable[[], object], calls: int) -> float:
    """Give the host's seconds to issue the calls; the device is awaited outside of them."""
    _await(device)
    started = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    issued_s = time.perf_counter() - started
    _await(device)
    return issued_s


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what a device cannot do, or has no memory for, into a stated reason."""
    try:
        yield
    except (RuntimeError, TypeError) as error:  # out of memory is a RuntimeError
        raise roofs.RefusedError(str(error).partition("\n")[0][:200]) from error


def _gemm(place: _Place, dtype: str, m: int, k: int, n: int) -> roofs.Timer:
    with _refusals():
        values = torch.randn(roofs.RANDOM_VALUES, device=place.device).to(_stored(dtype))
        a, b = (_filled(values, *shape) for shape in ((m, k), (k, n)))
        out = torch.empty(m, n, dtype=a.dtype, device=place.device)
        torch.mm(a[:1], b)  # a type without a kernel says so here
        _await(place.device)
    timer = _timer(place, partial(torch.mm, a, b, out=out))
    return partial(_with_precision, "high", timer) if dtype == "tf32" else timer


def _stored(dtype: str) -> torch.dtype:
    found = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    return cast("torch.dtype", found)


def _filled(values: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Give a matrix `[rows, columns]` of the values again and again: quicker than new ones."""
    size = rows * columns
    return values.repeat(-(-size // values.numel()))[:size].view(rows, columns)


def _with_precision(precision: str, timer: roofs.Timer, calls: int) -> float:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        return timer(calls)
    finally:
        torch.set_float32_matmul_precision(before)


def _stream(place: _Place, kernel: str, size_bytes: int) -> roofs.Timer:
    with _refusals():
        arrays = [
            torch.ones(size_bytes // 4, device=place.device) for _ in range(roofs.ARRAYS[kernel])
        ]
        _await(place.device)
    return _timer(place, partial(_STREAMS[kernel], *arrays))


def _add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.add(a, b, out=out)


_STREAMS: dict[str, Callable[..., torch.Tensor]] = {"copy": torch.Tensor.copy_, "add": _add}


def _ready(timer: roofs.Timer) -> roofs.Timer:
    return timer


def _dispatch(place: _Place) -> list[roofs.Case]:
    """Give the cases of issuing tiny ops from Python: of the host alone, and until they are done.

    `mul_and_gradient` is one op and its gradient op together, in a chain that autograd runs back.
    """
    a, b = (torch.ones(8, 8, device=place.device) for _ in range(2))
    add, matmul = partial(torch.add, a, b), partial(torch.mm, a, b)
    timers: dict[str, roofs.Timer] = {
        "add": partial(_issue_time, place.device, add),
        "matmul": partial(_issue_time, place.device, matmul),
        "mul_and_gradient": partial(_chain_time, place.device, a, b),
    }
    if place.device.type != "cpu":
        timers["add_until_done"] = partial(_awaited_time, place.device, add)
    most = 1 << 20 if place.device.type == "cpu" else QUEUED
    return [
        roofs.Case("dispatch", {"op": name}, 1, 1, partial(_ready, timer), most)
        for name, timer in timers.items()
    ]


def _chain_time(device: torch.device, a: torch.Tensor, b: torch.Tensor, calls: int) -> float:
    """Give the seconds of `calls` multiplications and their gradients, done in chains."""
    start = a.clone().requires_grad_()
    seed = torch.ones_like(a)
    spent_s = 0.0
    for first in range(0, calls, CHAIN):
        length = min(CHAIN, calls - first)
        _await(device)
        started = time.perf_counter()
        with torch.enable_grad():
            x = start
            for _ in repeat(None, length):
                x = x * b
            torch.autograd.grad(x, start, seed)
        _await(device)
        spent_s += time.perf_counter() - started
    return spent_s
