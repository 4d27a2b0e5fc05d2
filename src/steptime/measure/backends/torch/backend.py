"""PyTorch: the network as one generated function, autograd, and torch.optim, eager or compiled."""

import os
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from steptime.core.dtypes import Precision, precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.json_types import JsonObject
from steptime.core.workload import Workload
from steptime.measure import contract, machine, ranks, synthetic
from steptime.measure.backends.torch import module as torch_module
from steptime.measure.backends.torch import parallel as torch_parallel
from steptime.measure.backends.torch.kinds import RUNS
from steptime.measure.backends.torch.parallel import STRATEGIES, Spread
from steptime.measure.infeed import Stopwatch, chain_calls, time_input
from steptime.records.record import current_time
from steptime.records.traces.trace_events import STEP

__all__ = ["RUNS", "STRATEGIES", "collectives", "device_facts", "prepare", "translate_error"]

MODULE_BACKEND = "native"
NO_COMPILER = (
    "torch.compile needs a C++ compiler and found none that works: install your system's package "
    "'g++', or name one in CXX"
)
EVENTS = "CUDA events: from the end of the work before to the end of the copy"
CACHE = "TORCHINDUCTOR_CACHE_DIR"
BY_THE_HOST = "host clock around every exchange of a rank, waiting for others included; mean"
WITHOUT_SYNC = "exposed: step with exchange less step without (no_sync), in turns; rank 0 leads"
AGAINST_COPY = "exposed: step less that of an unsharded copy without exchange, in turns"
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_NO_KERNEL = ("could not create a primitive", "not implemented for '")  # of oneDNN, of PyTorch


def find(name: str) -> torch.device:
    """Return the device of `cpu`, `cuda[:n]` or `mps`; raises `InputError` where it is not here."""
    mps_count = int(torch.backends.mps.is_available())
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": mps_count}
    present = {kind: count for kind, count in counts.items() if count > 0}
    kind, number = contract.pick_device(name, present)
    return torch.device(kind, number) if kind == "cuda" else torch.device(kind)


def device_facts(device: str) -> contract.DeviceFacts:
    """Return the facts of a device."""
    torch_device = find(device)
    if torch_device.type == "cuda":
        properties = torch.cuda.get_device_properties(torch_device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(torch_device)
        cache_bytes = getattr(properties, "L2_cache_size", None) or None
        # `hip` is set on AMD's GPUs; of NVIDIA's, Ampere (compute capability 8) was the first.
        has_tf32 = torch.version.hip is None and properties.major >= 8
        product = torch.cuda.get_device_name(torch_device)
        memory_and_caches = {"room_bytes": free_bytes, "cache_bytes": cache_bytes}
        return contract.DeviceFacts(
            product, total_bytes, **memory_and_caches, is_accelerator=True, has_tf32=has_tf32
        )
    if torch_device.type == "mps":
        total_bytes = int(torch.mps.recommended_max_memory())
        room_bytes = total_bytes - torch.mps.driver_allocated_memory()
        chip = machine.cpu_model()  # which an Apple GPU is part of
        return contract.DeviceFacts(
            chip, total_bytes, room_bytes, cache_bytes=None, is_accelerator=True
        )
    return machine.host_facts()


def collectives(options: contract.Options, sizes: Sequence[int], budget_s: float) -> JsonObject:
    """Return the seconds of all-reduces among the processes of this worker, by bytes."""
    device = find(options.device)
    _apply_settings(options)
    group = torch_parallel.join(ranks.find_rank(), device)
    sync = _make_sync(device)
    return {
        "processes": group.size,
        "hosts": group.gather(platform.node()),
        "comm_backend": group.backend,
        "version": torch.__version__.partition("+")[0],
        "threads": torch.get_num_threads(),
        "taken_at": current_time(),
        "all_reduce_s": torch_parallel.all_reduce_s(device, sizes, sync, budget_s),
    }


@dataclass(frozen=True)
class _Network:
    """A network on its device, with all that its step needs.

    Attributes:
        module: the module, not compiled.
        run: the network as a function: compiled if asked for, under autocast if mixed.
        spread: how replicas stay together.
        values: inputs, weights and buffers by name.
        types: the types of weights and of computation.
    """

    module: Any
    run: torch_module.Network
    spread: Spread
    values: dict[str, torch.Tensor]
    types: Precision


def prepare(
    graph: Graph,
    workload: Workload,
    options: contract.Options,
    feed: contract.Feed | None = None,
    user_module: nn.Module | None = None,
) -> contract.Prepared:
    """Prepare the step of a forward graph, or of the user's module, on its device.

    Args:
        graph: the forward graph, which also names the inputs of a module.
        workload: the batch, types, phase and optimizer.
        options: the device and how it runs.
        feed: batches of a data set, None for synthetic input.
        user_module: a module that runs in place of the graph.
    """
    device = find(options.device)
    _check(workload, options, precision(workload.dtype), device)
    _apply_settings(options)
    group = torch_parallel.join(ranks.find_rank(), device) if workload.plan.data > 1 else None
    sync = _make_sync(device)
    exchange_watch = Stopwatch(sync)  # adds up the seconds in which replicas exchange gradients
    network = _make_network(graph, workload, options, group, exchange_watch, user_module)
    values, types = network.values, network.types
    spread = network.spread  # how replicas exchange gradients; nothing for one replica
    load_batch, waited = None, None
    if options.input != "device":  # else the inputs are on the device from the start
        copy_batch = torch_module.input_copier(graph, values, device, feed)
        load_batch, waited = _clocked_input(copy_batch, device)
    inputs = [values[name] for name in graph.inputs]
    parts, loss = torch_module.parts_of(network.run, inputs, workload, types, device, spread)
    run = chain_calls(load_batch, *parts.values())

    def trace(steps: int) -> str:
        if not (options.compile or user_module):  # compiled ops do not say their names
            torch_module.annotate(network.module)
        run()  # a warm-up of the annotated network, which is not traced
        return _trace_of(run, sync, steps)

    def step_without_exchange() -> Callable[[], None]:
        if spread.make_step_without_exchange:
            return spread.make_step_without_exchange(run)
        # A sharded network cannot leave the exchange out: an unsharded copy without it is timed.
        return prepare(graph, workload, replace(options, strategy="independent"), feed).step

    memory, reset_memory = _memory_meter(device)
    # The host times exchanges that overlap with nothing; others are the excess over a step without.
    if group and spread.is_timed:
        group = replace(group, comm_meter=BY_THE_HOST, communication_s=exchange_watch.read)
    elif group:
        meter = WITHOUT_SYNC if spread.make_step_without_exchange else AGAINST_COPY
        group = replace(group, comm_meter=meter, make_step_without_exchange=step_without_exchange)
    return contract.Prepared(
        step=run,
        sync=sync,
        memory=memory,
        reset_memory=reset_memory,
        parts=parts,
        timer=_make_timer(device),
        waited=waited,
        input_clock=EVENTS if device.type == "cuda" else contract.HOST_CLOCK,
        loss=loss,
        inference=None
        if user_module  # its weights are not those of a graph
        else lambda inference: torch_module.outputs_of(inference, values, types, device),
        facts=_facts(workload, options, device),
        afterwards=_compiler_facts if options.compile else dict,
        group=group,
        trace=trace,
    )


def _make_network(
    graph: Graph,
    workload: Workload,
    options: contract.Options,
    group: contract.ProcessGroup | None,
    watch: Stopwatch,
    user_module: nn.Module | None,
) -> _Network:
    """Return the network of a graph, or the user's module, with its values on the device."""
    device = find(options.device)
    types = precision(workload.dtype)
    rank = group.rank if group else 0
    values = torch_module.values_of(graph, device, options.seed, rank, user_module is None)
    module: Any = user_module or torch_module.module_of(graph, values, types, options.compile)
    spread = Spread(module, list(module.parameters()))
    if group and workload.phase == "train":
        spread = STRATEGIES[options.strategy](module, group, watch, options.overlap)
    run: torch_module.Network = spread.network
    if options.compile:
        run = torch.compile(run, dynamic=False)
    run = torch_module.under_autocast(run, types, device)
    return _Network(module, run, spread, values, types)


def _make_sync(device: torch.device) -> Callable[[], None]:
    """Return a function that waits until the device has finished its work."""
    if device.type == "cuda":
        return partial(torch.cuda.synchronize, device)
    if device.type == "mps":
        return torch.mps.synchronize
    return lambda: None


def _make_timer(device: torch.device) -> Callable[[Callable[[], None], int], float] | None:
    """Return a timer of n steps by the device's own clock, in seconds; None where it has none."""
    if device.type != "cuda":
        return None  # the host's clock is used

    def seconds_of(step: Callable[[], None], steps: int) -> float:
        with torch.cuda.device(device):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            first.record()
            for _ in repeat(None, steps):
                step()
            last.record()
            last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    return seconds_of


def _clocked_input(
    copy_batch: torch_module.Part, device: torch.device
) -> tuple[torch_module.Part, Callable[[], float]]:
    """Return `copy_batch` on a clock, and a reader of the seconds in it since the last reading.

    A CUDA device has an event before and one after: the first comes when the work before is done,
    so time in which the host reads while the device still computes is not waited for.
    """
    if device.type != "cuda":
        return time_input(copy_batch)
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # around the input of a step

    # The first event comes when earlier work is done: reading while the device computes is free.
    def copy_and_time() -> None:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(device)
        before.record(stream)
        copy_batch()
        after.record(stream)
        events.append((before, after))

    def take_wait_s() -> float:
        torch.cuda.synchronize(device)
        total_ms = sum(float(before.elapsed_time(after)) for before, after in events)
        events.clear()
        return total_ms / 1e3

    return copy_and_time, take_wait_s


def _memory_meter(device: torch.device) -> tuple[contract.Peak, Callable[[], None]]:
    """Return a reader of the peak bytes with the meter's name, and a function that resets them."""
    if device.type == "cuda":
        return (
            lambda: (torch.cuda.max_memory_allocated(device), "torch.cuda.max_memory_allocated"),
            partial(torch.cuda.reset_peak_memory_stats, device),
        )
    if device.type == "mps":  # has no high-water mark: what the pool has grown to
        meter = "torch.mps.driver_allocated_memory"
        return lambda: (torch.mps.driver_allocated_memory(), meter), torch.mps.empty_cache
    return lambda: (None, "resident set, by the worker"), lambda: None


def _check(
    workload: Workload, options: contract.Options, types: Precision, device: torch.device
) -> None:
    replicas, process_count = workload.plan.data, ranks.find_rank().size
    on_mps, has_replicas = device.type == "mps", replicas > 1
    scales_loss = workload.dtype == "float16-mixed" and workload.phase == "train"
    is_sharded = has_replicas and options.strategy == "sharded"
    has_other_processes = replicas not in {1, process_count}
    contract.check_plan("torch", STRATEGIES, workload, options)
    contract.refuse(
        {
            "mps is one device, without replicas": on_mps and has_replicas,
            "mps has no float64": on_mps and types.weights == "float64",
            "mps has no loss scaling for float16-mixed": on_mps and scales_loss,
            "float16-mixed scales the loss of one replica, not of several": has_replicas
            and scales_loss,
            "torch.compile is not run on a sharded network here": is_sharded and options.compile,
            f"{replicas} replicas are as many processes, not {process_count}": has_other_processes,
        }
    )


def _trace_of(step: Callable[[], None], sync: Callable[[], None], steps: int) -> str:
    """Return the trace of some steps, the device waited for at the end of each."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        for number in range(steps):
            with record_function(f"{STEP}{number}"):
                step()
                sync()
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return path.read_text(encoding="utf-8", errors="replace")


def _apply_settings(options: contract.Options) -> None:
    """Set what holds for the whole process; tf32 both ways, because defaults have changed."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True  # shapes never change, so the search pays
    if options.compile:
        # The compiler's cache is not keyed by vector width: code for 16 numbers a vector would skip
        # half of them on a CPU with 8. So each kind of CPU gets a folder of its own.
        cpu_kind, folder = torch.backends.cpu.get_cpu_capability(), os.environ.get(CACHE)
        if folder and Path(folder).name != cpu_kind:
            os.environ[CACHE] = str(Path(folder) / cpu_kind)
        from torch._dynamo.utils import counters  # takes a second

        torch.compiler.reset()  # drops compiled code and the compiler's clock of earlier cells
        counters.clear()


def translate_error(error: Exception) -> Exception | None:
    """Return the error of `contract` for one of PyTorch or its compiler; None if unknown."""
    if not isinstance(error, MemoryError | RuntimeError):  # not of PyTorch
        return None
    text = str(error).strip().partition("\n")[0]
    if "InvalidCxxCompiler" in str(error):
        return InputError(NO_COMPILER)
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
        return contract.OutOfMemoryError(text or "no memory left")
    if any(sign in text for sign in _NO_KERNEL):
        sentence = text.partition(". ")[0]
        return contract.UnsupportedError(f"torch has no kernel for it here: {sentence}")
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return RuntimeError(f"torch.compile: {text}")
    return None


def _compiler_facts() -> dict[str, object]:
    """Return the compiler's seconds, graphs, graph breaks by reason, and hits of its cache."""
    from torch._dynamo.utils import calculate_time_spent, counters

    inductor = counters["inductor"]
    return {
        "compile_s": calculate_time_spent()["total_wall_time"],
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": {
            re.sub(r" at 0x[0-9a-f]+", "", reason): count  # without the addresses of objects
            for reason, count in counters["graph_break"].items()
        },
        "cache_hits": inductor["fxgraph_cache_hit"],
        "cache_misses": inductor["fxgraph_cache_miss"],
    }


def _facts(
    workload: Workload, options: contract.Options, device: torch.device
) -> dict[str, object]:
    """Return the versions and settings of PyTorch that change numbers."""
    facts: dict[str, object] = {
        "torch": torch.__version__,
        "compile": "inductor, default mode" if options.compile else None,
        "tf32": options.tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        facts |= {
            "gpu": torch.cuda.get_device_name(device),
            "compute_capability": f"{major}.{minor}",
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "cudnn": torch.backends.cudnn.version(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
        }
    if workload.phase == "train":
        scaling = "torch.amp.GradScaler" if workload.dtype == "float16-mixed" else None
        facts |= {"learning_rate": synthetic.LEARNING_RATE, "loss_scaling": scaling}
    return facts
