"""The record of a watched loop, as `steptime run` writes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptime.core.workload import Plan, Workload
from steptime.integrations.watch_answer import MemoryUse, split_warm_up
from steptime.integrations.watch_clock import SampleList
from steptime.integrations.watch_model import FirstStep
from steptime.records.record import Quantity, Record, RecordMethod, current_time, single_run

WARM_UP_RULE = "MSER over all steps after the first"
FEW_SAMPLES = 20  # a run with fewer samples says so
KIB = 1024  # what Linux counts the resident set in
UNREAD_INPUT = "device"  # nothing was seen of the loader


@dataclass(frozen=True)
class Runtime:
    """The software and the device that run the steps.

    Attributes:
        platform: the name of the platform, as records have it.
        framework: torch, or `python` where no framework is loaded.
        version: its version.
        options: options that change the numbers.
        facts: facts for the environment of the record.
    """

    platform: str
    framework: str
    version: str
    options: Mapping[str, Any]
    facts: Mapping[str, Any]


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes of the training."""
    torch = sys.modules.get("torch")
    if torch is not None:
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
    # The variables of torchrun, before the processes are joined.
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return (int(rank), int(size)) if rank.isdigit() and size.isdigit() else (0, 1)


def find_runtime(model: Any, has_loader: bool) -> Runtime:
    """Return the software and the device of a model; without one, those that are loaded."""
    from steptime.measure import contract, machine

    torch = sys.modules.get("torch")
    device = "cpu"
    product = machine.cpu_model()
    threads = os.cpu_count() or 1
    if torch is not None:
        threads = torch.get_num_threads()
        device = _device_of(model, torch)
        if contract.is_cuda(device):
            product = torch.cuda.get_device_name(device)
    options = contract.Options(
        device=device,
        threads=threads,
        compile=hasattr(model, "_orig_mod"),  # torch.compile wraps the model so
        tf32=torch is not None and torch.backends.cuda.matmul.allow_tf32,
        input="loader" if has_loader else UNREAD_INPUT,
    )
    framework = "python" if torch is None else "torch"
    version = sys.version.split()[0] if torch is None else str(torch.__version__)
    method = contract.make_record_method(framework, version, options, runs=1)
    facts = {
        **machine.environment(),
        "threads": threads,
        "backend": framework,
        "framework": f"{framework} {version}",
        "product": product,
    }
    platform = machine.platform_name(device, product, threads)
    return Runtime(platform, framework, version, method.options, facts)


def make_workload(
    model: Any, path: str | None, first_step: FirstStep, batch: int | None
) -> Workload:
    """Return the workload of a loop: the exported network, or one that has a name alone.

    Args:
        model: the model of the user.
        path: the file that it was exported to; None where it could not be read.
        first_step: what the first step showed.
        batch: examples of a step; None where unknown.
    """
    _, size = rank_and_size()
    plan = Plan(data=size)
    if path is not None:  # the network was exported to this file
        from steptime.core.copying import replace
        from steptime.questions.options import workload_of

        is_training = first_step.phase == "train"
        workload = workload_of(
            path,
            first_step.batch,
            first_step.dtype,
            first_step.phase,
            first_step.optimizer if is_training else None,
        )
        return replace(workload, batch_per_replica=batch or first_step.batch, plan=plan)
    optimizer = first_step.optimizer or "unknown"
    # The network could not be read: the record has its name and what the first step showed.
    return Workload(
        model="steps" if model is None else type(model).__name__,
        params={},
        batch_per_replica=batch or 1,
        dtype=first_step.dtype,
        phase=first_step.phase,
        optimizer=optimizer if first_step.phase == "train" else "none",
        plan=plan,
    )


def make_record(
    runtime: Runtime,
    workload: Workload,
    samples: SampleList,
    first_step_s: float,
    has_loader: bool,
    **facts: Any,
) -> Record:
    """Return the measured record of a loop.

    Args:
        runtime: the software and the device.
        workload: the step.
        samples: the steps after the first one, at least one.
        first_step_s: seconds of the first step.
        has_loader: whether waiting for input was timed.
        **facts: further facts for its environment.
    """
    warm, steady, is_steady = split_warm_up(samples.samples)
    quantities = {
        "step_s": single_run(
            [sample.step_s for sample in steady],
            steps=(samples.steps_per_sample,) * len(steady),
        ),
        "first_step_s": Quantity(first_step_s),
    }
    if has_loader:
        quantities["input_s"] = single_run([sample.input_s for sample in steady])
    memory_meter = "none"
    memory = read_memory(runtime)
    if memory.peak_bytes is not None:
        quantities["peak_bytes"] = Quantity(float(memory.peak_bytes))
        memory_meter = "torch.cuda.max_memory_allocated"
    return Record(
        origin="measured",
        method=RecordMethod(runtime.framework, runtime.version, runtime.options),
        workload=workload,
        platform=runtime.platform,
        quantities=quantities,
        env={
            **runtime.facts,
            "warm_up_rule": WARM_UP_RULE,
            "steady": is_steady,
            "few_samples": len(steady) < FEW_SAMPLES,
            "warmup_s": [sample.step_s for sample in warm],
            "steps_per_sample": samples.steps_per_sample,
            "memory_meter": memory_meter,
            "process_bytes": memory.process_bytes,
            **facts,
        },
        taken_at=current_time(),
    )


def write_record(record: Record, folder: Path) -> None:
    """Write a record to a folder.

    Raises:
        InputError: for a folder that cannot be made or written to.
        StoreError: if the disk does not take it.
    """
    from steptime.records import store

    with store.open_writer(folder) as writer:
        writer.append(record)


def read_memory(runtime: Runtime) -> MemoryUse:
    """Return the peaks of memory since the program began."""
    return MemoryUse(_cuda_peak_bytes(runtime), _process_peak_bytes())


def _process_peak_bytes() -> int | None:
    try:
        import resource
    except ImportError:  # of Unix alone
        return None
    unit_bytes = 1 if sys.platform == "darwin" else KIB  # macOS counts bytes
    return unit_bytes * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _device_of(model: Any, torch: Any) -> str:
    if isinstance(model, torch.nn.Module):
        parameter = next(model.parameters(), None)
        return "cpu" if parameter is None else str(parameter.device)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return f"cuda:{torch.cuda.current_device()}"
    return "cpu"


def _cuda_peak_bytes(runtime: Runtime) -> int | None:
    """Return the peak of the tensors on the GPU since the program began; None elsewhere."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    # A loop on the CPU has the CPU's name as its product, though a GPU may be there.
    is_of_gpu = runtime.facts["product"] == torch.cuda.get_device_name()
    return int(torch.cuda.max_memory_allocated()) if is_of_gpu else None
