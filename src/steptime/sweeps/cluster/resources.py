"""What a cell needs of a node, and what is known of the node before a job runs there."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.measure import registry
from steptime.prediction.memory import find_process_memory
from steptime.sweeps.cells import Cell, needed_bytes
from steptime.sweeps.cluster.scheduler import Need, Scheduler
from steptime.sweeps.resource_request import ResourceRequest

UNKNOWN = "unknown"
TASK_BYTES = 35_000_000
WORKER_BYTES = 310_000_000
"""Python, the framework and one tiny step: the peak (VmHWM) of a task and of a worker that has just
started, on a CPU; PyTorch 2.13, x86-64 Linux, 2026-11-21."""
CUDA_BYTES = 1_262_000_000
"""Of the host, that a process takes more with its first op on a GPU: 1,203.5 MiB, measured in
github.com/pytorch/pytorch, issue 106511 (2023)."""


@dataclass(frozen=True)
class CellMemory:
    """Memory that a cell needs `of` a GPU or a node, and what there is (None: unknown)."""

    of: str
    needs_bytes: int
    has_bytes: float | None

    @property
    def suffices(self) -> bool:
        """Whether there is enough, as far as it is known."""
        return self.has_bytes is None or self.needs_bytes <= self.has_bytes


def device_of(gpu: str) -> Device | None:
    """Return the data of a type of GPU; sites have names for GPUs that nobody else has."""
    name = catalog.platform_of(gpu)
    return catalog.device(name) if name else None


def need_of(cell: Cell) -> Need:
    """Return what a cell needs of a cluster."""
    request = cell.request or ResourceRequest()
    cores = request.cpus or cell.options.threads or 1
    code = cell.workload.code if registry.backend(cell.backend).of_code else ""
    return Need(request, cell.workload.plan.data, cores, code)


def on_each_node(
    cells: Collection[Cell], scheduler: Scheduler
) -> tuple[Collection[Cell], list[str]]:
    """Return the cells, those with `nodes = "each"` once for each node, and what is left out.

    Left out are nodes where no job starts. Raises `InputError` for none, or a cell of several.
    """
    asked = {cell.request for cell in cells if cell.request and cell.request.nodes}
    if not asked:
        return cells, []
    at: dict[ResourceRequest | None, list[ResourceRequest]] = {}
    left_out: dict[str, str] = {}
    for request in asked:
        nodes = scheduler.nodes(request)
        left_out |= {node.name: node.trouble for node in nodes if node.trouble}
        up = (node.name for node in nodes if not node.trouble)
        at[request] = [request.model_copy(update={"nodelist": name}) for name in up]
        if not at[request]:
            down = ", ".join(f"{name} is {why}" for name, why in left_out.items())
            why = f"no node is up: {down}" if down else "no node has what is asked for"
            raise InputError(f'nodes = "each": {why}')
    if spans := next((cell for cell in cells if need_of(cell).nodes > 1), None):
        raise InputError(f'nodes = "each": a cell of {need_of(spans).nodes} nodes is on none alone')
    placed = [
        replace(cell, request=one) for cell in cells for one in at.get(cell.request, [cell.request])
    ]
    return placed, [
        f"node {name} is left out: {trouble}; the same command takes it in once it is back"
        for name, trouble in sorted(left_out.items())
    ]


def memories(cell: Cell) -> tuple[CellMemory, ...]:
    """Return what a cell needs of the type of GPU that it asks for, if it does, and of its node.

    A node holds Python and the framework of each process, on a CPU its step and on a GPU what CUDA
    takes of the host. Files of data that are mapped are there once, packed ones in each process. On
    a GPU context and workspaces of CUDA stand beside the tensors.
    """
    need = need_of(cell)
    gpu, processes = need.request.gpu[0], need.processes_per_node
    step, data = needed_bytes(cell, processes), cell.options.data
    mapped, packed, _ = data_here(data) if data else (0, 0, "")
    on_cpu = cell.options.device == "cpu"
    each = WORKER_BYTES + packed + (CUDA_BYTES if cell.options.device.startswith("cuda") else 0)
    own = TASK_BYTES + mapped + processes * each + (step if on_cpu else 0)
    has = need.request.memory_GB
    of_node = CellMemory("a node", own, None if has is None else has * 1e9)
    device = device_of(gpu) if gpu else None
    if device and not on_cpu:
        stack = catalog.stack(cell.stack or catalog.DEFAULT_STACK)
        process_memory = find_process_memory(device, stack, cell.workload.phase)
        step = process_memory.needs(step, 0).total_bytes
    of_gpu = CellMemory(gpu, step, device.usable_bytes if device else None)
    return (of_gpu, of_node) if gpu else (of_node,)


@lru_cache
def data_here(folder: str) -> tuple[int, int, str]:
    """Return the bytes of the plain and of the packed files of a data set, and what is wrong.

    They are those that this machine sees, 0 of none.
    """
    from steptime.measure.data.dataset import find

    try:
        sizes = {path: path.stat().st_size for path in find(folder).files.values()}
    except (InputError, OSError) as error:
        return 0, 0, str(error)
    packed = sum(many for path, many in sizes.items() if path.suffix == ".gz")
    return sum(sizes.values()) - packed, packed, ""


def fits(cell: Cell) -> bool:
    """Whether a cell is predicted to fit, or nothing is known of the memory."""
    return all(memory.suffices for memory in memories(cell))


def unseen_data(cells: Iterable[Cell]) -> list[str]:
    """Return a line for each data set that this machine does not see, so that nodes may not either.

    Cells whose table says `data_on_nodes` are passed over.
    """
    asked = (one for one in cells if one.options.data and not need_of(one).request.data_on_nodes)
    hint = "where the nodes have it, say so: data_on_nodes = true in [slurm]"
    return [
        f"{wrong} on this machine, for {count} cells; {hint}"
        for folder, count in Counter(one.options.data for one in asked).items()
        if (wrong := data_here(folder)[2])
    ]
