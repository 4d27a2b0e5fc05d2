"""PyTorch: the network as one generated function, autograd, and torch.optim, eager or compiled."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from steptime.core.dtypes import Precision, precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.measure import contract, ranks, synthetic
from steptime.measure.backends.torch import device as torch_device
from steptime.measure.backends.torch import parallel as torch_parallel
from steptime.measure.backends.torch.kinds import RUNS
from steptime.measure.backends.torch.module import annotate
from steptime.measure.backends.torch.parallel import STRATEGIES
from steptime.measure.backends.torch.step import assemble, outputs_of
from steptime.measure.infeed import HOST_CLOCK, Stopwatch, loader_death
from steptime.measure.trace import STEP

__all__ = ["RUNS", "STRATEGIES", "collectives", "device_facts", "meant", "prepare"]

NO_COMPILER = (
    "torch.compile needs a C++ compiler and found none that works: install your system's package "
    "'g++', or name one in CXX"
)
CACHE = "TORCHINDUCTOR_CACHE_DIR"
BY_THE_HOST = "host clock around every exchange of a rank, waiting for others included; mean"
WITHOUT_SYNC = "exposed: step with exchange less step without (no_sync), in turns; rank 0 leads"
BESIDE_A_COPY = "exposed: step less that of an unsharded copy without exchange, in turns"
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
_NO_KERNEL = ("could not create a primitive", "not implemented for '")  # of oneDNN, of PyTorch


def device_facts(device: str) -> contract.DeviceFacts:
    """Return what is known of a device."""
    return torch_device.facts(torch_device.find(device))


def collectives(options: contract.Options, sizes: Sequence[int], budget_s: float) -> dict[str, Any]:
    """Return the seconds of all-reduces among the processes of this worker, by bytes."""
    device = torch_device.find(options.device)
    _settings(options)
    group = torch_parallel.join(ranks.here(), device)
    sync = torch_device.sync(device)
    return {
        "processes": group.size,
        "hosts": group.gather(platform.node()),
        "comm_backend": group.backend,
        "version": torch.__version__.partition("+")[0],
        "threads": torch.get_num_threads(),
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "all_reduce_s": torch_parallel.all_reduce_s(device, sizes, sync, budget_s),
    }


def prepare(
    graph: Graph,
    workload: Workload,
    options: contract.Options,
    feed: contract.Feed | None = None,
    own: nn.Module | None = None,
) -> contract.Prepared:
    """Return the step of a forward graph, or of a module of its `own`, ready on its device."""
    device = torch_device.find(options.device)
    types = precision(workload.dtype)
    _check(workload, options, types, device)
    _settings(options)
    group = torch_parallel.join(ranks.here(), device) if workload.plan.data > 1 else None
    sync = torch_device.sync(device)
    watch = Stopwatch(sync)
    make = partial(assemble, graph, workload, group=group, watch=watch, feed=feed)
    found = make(options, own=own)

    def trace(steps: int) -> str:
        if not (options.compile or own):  # compiled ops do not say their names
            annotate(found.module)
        found.step()
        return _trace_of(found.step, sync, steps)

    def alone() -> Callable[[], None]:  # what is sharded cannot leave it out: a copy that is not
        apart = found if found.spread.quiet else make(replace(options, strategy="independent"))
        return apart.step_alone

    memory, reset_memory = torch_device.memory_meter(device)
    if group and found.spread.timed:
        group = replace(group, comm_meter=BY_THE_HOST, comm_s=watch.read)
    elif group:
        meter = WITHOUT_SYNC if found.spread.quiet else BESIDE_A_COPY
        group = replace(group, comm_meter=meter, alone=alone)
    facts = _facts(options, device)
    if workload.phase == "train":
        scaling = "torch.amp.GradScaler" if workload.dtype == "float16-mixed" else None
        facts |= {"learning_rate": synthetic.LEARNING_RATE, "loss_scaling": scaling}
    return contract.Prepared(
        step=found.step,
        sync=sync,
        memory=memory,
        reset_memory=reset_memory,
        parts=found.parts,
        timer=torch_device.timer(device),
        waited=found.waited,
        loss=found.loss,
        inference=None if own else lambda one: outputs_of(one, found.values, types, device),
        facts=facts,
        afterwards=_compiled if options.compile else dict,
        group=group,
        trace=trace,
    )


def _check(
    workload: Workload, options: contract.Options, types: Precision, device: torch.device
) -> None:
    replicas, size = workload.plan.data, ranks.here().size
    on_mps, several = device.type == "mps", replicas > 1
    scaled = workload.dtype == "float16-mixed" and workload.phase == "train"
    sharded = several and options.strategy == "sharded"
    contract.check_plan("torch", STRATEGIES, workload, options)
    contract.refuse(
        {
            "mps is one device, without replicas": on_mps and several,
            "mps has no float64": on_mps and types.weights == "float64",
            "mps has no loss scaling for float16-mixed": on_mps and scaled,
            "float16-mixed scales the loss of one replica, not of several": several and scaled,
            "torch.compile is not run on a sharded network here": sharded and options.compile,
            f"{replicas} replicas are as many processes, not {size}": replicas not in {1, size},
        }
    )


def _trace_of(step: Callable[[], None], sync: Callable[[], None], steps: int) -> str:
    """Return the trace of some steps, the device waited for at the end of each."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as made:
        for number in range(steps):
            with record_function(f"{STEP}{number}"):
                step()
                sync()
    with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
        path = Path(folder) / "trace.json"
        made.export_chrome_trace(str(path))
        return path.read_text(encoding="utf-8", errors="replace")


def _settings(options: contract.Options) -> None:
    """Set what holds for the whole process; tf32 both ways, because defaults have changed."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.backends.cudnn.benchmark = True  # shapes never change, so the search pays
    if options.compile:
        # the compiler's cache does not tell vector units apart: a loop over 16 numbers at a time
        # that another CPU has left there would be built for 8, and leave out every other half
        units, folder = torch.backends.cpu.get_cpu_capability(), os.environ.get(CACHE)
        if folder and Path(folder).name != units:
            os.environ[CACHE] = str(Path(folder) / units)
        from torch._dynamo.utils import counters  # takes a second

        torch.compiler.reset()  # and its clock
        counters.clear()


def meant(error: Exception) -> Exception | None:
    """Return what an error of PyTorch, of a loader or of the compiler means; None is unknown."""
    if not isinstance(error, MemoryError | RuntimeError):
        return None
    text = str(error).strip().partition("\n")[0]
    if "InvalidCxxCompiler" in str(error):
        return InputError(NO_COMPILER)
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
        return contract.OutOfMemoryError(text or "no memory left")
    if any(sign in text for sign in _NO_KERNEL):
        said = text.partition(". ")[0]
        return contract.UnsupportedError(f"torch has no kernel for it here: {said}")
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return RuntimeError(f"torch.compile: {text}")
    return loader_death(error)  # a signal, so it comes at any moment


def _compiled() -> dict[str, object]:
    """Return what the compiler did: seconds, graphs, breaks by reason, what its cache had."""
    from torch._dynamo.utils import calculate_time_spent, counters

    inductor = counters["inductor"]
    return {
        "compile_s": calculate_time_spent()["total_wall_time"],
        "graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": {
            re.sub(r" at 0x[0-9a-f]+", "", why): count
            for why, count in counters["graph_break"].items()
        },
        "cache_hits": inductor["fxgraph_cache_hit"],
        "cache_misses": inductor["fxgraph_cache_miss"],
    }


def _facts(options: contract.Options, device: torch.device) -> dict[str, object]:
    facts: dict[str, object] = {
        "torch": torch.__version__,
        "compile": "inductor, default mode" if options.compile else None,
        "tf32": options.tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if options.input != "device":
        facts["input_clock"] = torch_device.EVENTS if device.type == "cuda" else HOST_CLOCK
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
    return facts
