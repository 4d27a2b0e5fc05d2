"""What a cell needs of a node, and what is known of the node before a job runs there."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import read_packaged_toml
from steptime.hardware import catalog, device_words
from steptime.hardware.device import Device
from steptime.measure import registry
from steptime.measure.contract import is_cuda
from steptime.prediction.memory import find_process_memory
from steptime.sweeps.cells import Cell, needed_bytes
from steptime.sweeps.cluster.jobs import Need, NodeList
from steptime.sweeps.cluster.script import find_clusters, find_flag_values
from steptime.sweeps.cluster.slurm import Slurm
from steptime.sweeps.resource_request import ResourceRequest

UNKNOWN = "unknown"
_WORDS = read_packaged_toml("slurm.toml")
DEFAULT_VARIABLES: Mapping[str, list[str]] = _WORDS["defaults"]
"""Keys of `[slurm]` with the variables of sbatch that stand for one which the file leaves out."""
DEFAULT_FLAGS: Mapping[str, list[str]] = _WORDS["default_flags"]
"""The same for flags of sbatch that are no key of `[slurm]`."""
TASK_BYTES = 35_000_000
WORKER_BYTES = 310_000_000
"""Python, the framework and one tiny step: the peak (VmHWM) of a task and of a worker that has just
started, on a CPU; PyTorch 2.13, x86-64 Linux, 2026-11-21."""
CUDA_BYTES = 1_262_000_000
"""Memory of the host that a process takes more with its first op on a GPU: 1,203.5 MiB, measured in
github.com/pytorch/pytorch, issue 106511 (2023)."""


@dataclass(frozen=True)
class CellMemory:
    """Memory that a cell needs `of` a GPU or a node, and what there is (None: unknown)."""

    of: str
    needs_bytes: int
    has_bytes: float | None

    @property
    def is_sufficient(self) -> bool:
        """Whether there is enough, as far as it is known."""
        return self.has_bytes is None or self.needs_bytes <= self.has_bytes


def device_of(gpu: str) -> Device | None:
    """Return the data of a type of GPU; sites have names for GPUs that nobody else has."""
    name = device_words.platform_of(gpu)
    return catalog.device(name) if name else None


def need_of(cell: Cell) -> Need:
    """Return the need of a cell: its resources, processes and cores."""
    request = cell.request or ResourceRequest()
    cores = request.cpus or cell.options.threads or 1
    code = cell.workload.code if registry.backend(cell.backend).runs_user_code else ""
    return Need(request, cell.workload.plan.data, cores, code)


def apply_environment(
    cells: Iterable[Cell], environment: Mapping[str, str]
) -> tuple[list[Cell], list[str]]:
    """Return cells whose requests have the defaults that sbatch's variables name, and remarks.

    A key of the file wins. Batch scripts say all, so that the environment changes nothing later.
    """
    all_cells = list(cells)
    requests = {cell.request or ResourceRequest() for cell in all_cells}
    filled_requests = {}
    remarks: set[str] = set()
    for request in requests:
        filled_requests[request], request_remarks = _fill_request(request, environment)
        remarks |= set(request_remarks)
    if not remarks:
        return all_cells, []
    filled_cells = [
        replace(cell, request=filled_requests[cell.request or ResourceRequest()])
        for cell in all_cells
    ]
    return filled_cells, sorted(remarks)


def _fill_request(
    request: ResourceRequest, environment: Mapping[str, str]
) -> tuple[ResourceRequest, list[str]]:
    """Return a request with the defaults of the environment, and a remark for each of them."""
    updates: dict[str, object] = {}
    remarks = []
    for key, variables in DEFAULT_VARIABLES.items():
        variable, value = _first_value(variables, environment)
        is_open = not getattr(request, key)
        if value and is_open:
            updates[key] = value
            remarks.append(f"{key} = {shorten(value)} is from {variable} in the environment")
    flags = list(request.flags)
    for flag, variables in DEFAULT_FLAGS.items():
        variable, value = _first_value(variables, environment)
        is_open = not _names_flag(request.flags, flag)
        if value and is_open:
            flags.append(f"--{flag}={value}")
            remarks.append(f"flag --{flag}={value} is from {variable} in the environment")
    updates["flags"] = tuple(flags)
    return request.model_copy(update=updates), remarks


def _first_value(names: Iterable[str], environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the first of some variables that is set, and its value; raises for control codes."""
    for name in names:
        value = environment.get(name, "")
        if not value.isprintable():
            raise InputError(f"{name} in the environment: {shorten(value)} is no text on one line")
        if value:
            return name, value
    return "", ""


def _names_flag(flags: Iterable[str], key: str) -> bool:
    """Whether flags of sbatch name an option; clusters have a short one."""
    if key == "clusters":
        options = {"clusters", "cluster"}
        return any(find_flag_values(flag, *options, short="M") for flag in flags)
    return any(find_flag_values(flag, key, short="?") for flag in flags)


def place_on_nodes(cells: Collection[Cell]) -> tuple[Collection[Cell], list[str]]:
    """Return the cells, those with `nodes = "each"` once for each node, and remarks.

    Left out are nodes where no job starts, and nodes with other GPUs.

    Raises:
        InputError: if no node is left, and for a cell of several nodes.
    """
    requests = dict.fromkeys(cell.request for cell in cells if cell.request and cell.request.nodes)
    if not requests:
        return cells, []
    if wide_cell := next((cell for cell in cells if _needs_several_nodes(cell)), None):
        nodes = need_of(wide_cell).nodes
        raise InputError(f'nodes = "each": a cell of {nodes} nodes is on none alone')
    requests_by_node: dict[ResourceRequest | None, list[ResourceRequest]] = {}
    troubles: dict[str, str] = {}  # by the name of a node
    remarks: list[str] = []
    for request in requests:
        node_list = Slurm(find_clusters(request)).list_nodes(request)
        troubles |= {node.name: node.trouble for node in node_list.nodes if node.trouble}
        unfit = [_describe_unfit(request, types, names) for types, names in node_list.unfit.items()]
        requests_by_node[request] = _list_node_requests(request, node_list)
        if not requests_by_node[request]:
            raise InputError(f'nodes = "each": {_describe_no_node(troubles, unfit)}')
        remarks += unfit
    # A cell becomes one for each usable node; a cell whose request is not `each` stays as it is.
    placed_cells = [
        replace(cell, request=request)
        for cell in cells
        for request in requests_by_node.get(cell.request, [cell.request])
    ]
    remarks += [
        f"node {name} is left out: {trouble}; the same command takes it in once it is back"
        for name, trouble in sorted(troubles.items())
    ]
    return placed_cells, remarks


def _list_node_requests(request: ResourceRequest, node_list: NodeList) -> list[ResourceRequest]:
    """Return a request for each node on which jobs start."""
    return [
        request.model_copy(update={"nodelist": node.name})
        for node in node_list.nodes
        if not node.trouble
    ]


def _needs_several_nodes(cell: Cell) -> bool:
    """Whether a cell with `nodes = "each"` needs more than one node."""
    return cell.request is not None and bool(cell.request.nodes) and need_of(cell).nodes > 1


def _describe_unfit(request: ResourceRequest, types: str, names: Collection[str]) -> str:
    """Return `gpu a100: nodes n14 are left out: they have a100-80gb`."""
    name_text = ", ".join(names)
    if len(names) == 1:
        return f"gpu {request.gpu[0]}: node {name_text} is left out: it has {types}"
    return f"gpu {request.gpu[0]}: nodes {name_text} are left out: they have {types}"


def _describe_no_node(troubles: Mapping[str, str], unfit: Iterable[str]) -> str:
    """Return the reason why no node is left, such as `no node is up: n1 is drained (fan)`."""
    down = ", ".join(f"{name} is {trouble}" for name, trouble in troubles.items())
    reason = f"no node is up: {down}" if down else "no node has what is asked for"
    return "; ".join([reason, *unfit])


def runs_on_gpu(cell: Cell) -> bool:
    """Whether a cell runs on the GPU that it asks for, and not on a CPU beside it."""
    return bool(need_of(cell).request.gpu[0]) and cell.options.device != "cpu"


def memories(cell: Cell) -> tuple[CellMemory, ...]:
    """Return the memory that a cell needs of its type of GPU, if it runs on one, and of its node.

    A node holds Python and the framework of each process, on a CPU its step and on a GPU what CUDA
    takes of the host. Files of data that are mapped are there once, packed ones in each process. On
    a GPU context and workspaces of CUDA stand beside the tensors.
    """
    need = need_of(cell)
    gpu_type = need.request.gpu[0]
    step_bytes = needed_bytes(cell, need.processes_per_node)
    node_memory = _node_memory(cell, need, step_bytes)
    if not runs_on_gpu(cell):
        return (node_memory,)
    return (_gpu_memory(cell, gpu_type, step_bytes), node_memory)


def _node_memory(cell: Cell, need: Need, step_bytes: int) -> CellMemory:
    """Return the memory of a node: a task, mapped data once, and all processes."""
    data = cell.options.data
    mapped_bytes, packed_bytes, _fault = local_data_bytes(data) if data else (0, 0, "")
    # Processes share the pages of plain files; each unpacks the packed ones for itself.
    process_bytes = WORKER_BYTES + packed_bytes
    if is_cuda(cell.options.device):
        process_bytes += CUDA_BYTES
    needs_bytes = TASK_BYTES + mapped_bytes + need.processes_per_node * process_bytes
    if cell.options.device == "cpu":
        needs_bytes += step_bytes
    limit_gb = need.request.memory_GB
    return CellMemory("a node", needs_bytes, None if limit_gb is None else limit_gb * 1e9)


def _gpu_memory(cell: Cell, gpu_type: str, step_bytes: int) -> CellMemory:
    """Return the memory of a GPU: the step, and context and workspaces if its type is known."""
    device = device_of(gpu_type)
    if device is None:
        return CellMemory(gpu_type, step_bytes, None)
    stack = catalog.stack(cell.stack or catalog.DEFAULT_STACK)
    process_memory = find_process_memory(device, stack, cell.workload.phase)
    needs_bytes = process_memory.needs(step_bytes, blocks_bytes=0).total_bytes
    return CellMemory(gpu_type, needs_bytes, device.datasheet.usable_bytes)


@lru_cache
def local_data_bytes(folder: str) -> tuple[int, int, str]:
    """Return the bytes of the plain and of the packed files of a data set, and what is wrong.

    They are those that this machine sees, 0 of none.
    """
    from steptime.measure.data.dataset import find

    try:
        bytes_by_file = {path: path.stat().st_size for path in find(folder).files.values()}
    except (InputError, OSError) as error:
        return 0, 0, str(error)
    packed_bytes = sum(size for path, size in bytes_by_file.items() if path.suffix == ".gz")
    plain_bytes = sum(bytes_by_file.values()) - packed_bytes
    return plain_bytes, packed_bytes, ""


def fits(cell: Cell) -> bool:
    """Whether a cell is predicted to fit, or nothing is known of the memory."""
    return all(memory.is_sufficient for memory in memories(cell))


def unseen_data(cells: Iterable[Cell]) -> list[str]:
    """Return a line for each data set that this machine does not see, so that nodes may not either.

    Cells whose table says `data_on_nodes` are passed over.
    """
    cell_counts = Counter(
        cell.options.data
        for cell in cells
        if cell.options.data and not need_of(cell).request.data_on_nodes
    )
    hint = "where the nodes have it, say so: data_on_nodes = true in [slurm]"
    lines = []
    for folder, cell_count in cell_counts.items():
        _, _, fault = local_data_bytes(folder)
        if fault:
            lines.append(f"{fault} on this machine, for {cell_count} cells; {hint}")
    return lines
