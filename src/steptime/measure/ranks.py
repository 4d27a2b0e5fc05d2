"""The rank of this process among several, from the environment that its launcher set.

`torchrun` and `steptime` itself set `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`,
`MASTER_ADDR` and `MASTER_PORT` (documentation of torchrun, "Environment Variables"); `srun` sets
`SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID`, `SLURM_NODEID` and the list of nodes (man srun,
"OUTPUT ENVIRONMENT VARIABLES"). A batch script has some of these too, so only `SLURM_STEP_ID`,
which no batch script has, tells that srun started this process.
"""

import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from steptime.core.errors import InputError, shorten
from steptime.measure.procfs import host_list

ATTEMPT = "STEPTIME_ATTEMPT"  # how many workers of this rank there were before
FIRST_PORT = 10_000  # of the ports that a job's number chooses, all below those of connections
PORTS = 20_000
LOOPBACK = "127.0.0.1"  # where processes of one machine meet


@dataclass(frozen=True)
class Rank:
    """One of `size` processes, `local_rank` of the `local_size` on its node.

    Attributes:
        rank: its number among all processes.
        size: the number of processes.
        local_rank: its number among the processes of its node.
        local_size: the number of processes of its node.
        address: the host at which the processes meet, "" for a single process.
        port: the port there.
        has_bound_cpus: whether the launcher gave every process CPUs of its own.
        attempt: the number of earlier workers of this rank, so that those of one time meet.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    address: str = ""
    port: int = 0
    has_bound_cpus: bool = False
    attempt: int = 0

    @property
    def is_rank_zero(self) -> bool:
        """Whether this is the process that decides, writes and prints."""
        return self.rank == 0


def find_rank(environ: Mapping[str, str] = os.environ) -> Rank:
    """Return the rank of this process; without a launcher it is the only one.

    Raises `InputError` for variables that are missing or no numbers.
    """
    read_number = partial(_read_number, environ)
    if any(name in environ for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        return _read_torchrun_rank(environ, read_number)
    return _read_srun_rank(environ, read_number) if "SLURM_STEP_ID" in environ else Rank()


def _read_torchrun_rank(environ: Mapping[str, str], read_number: Callable[..., int]) -> Rank:
    size = read_number("WORLD_SIZE")
    local_size = read_number("LOCAL_WORLD_SIZE", size)  # not said: all are on this node
    rank = Rank(
        rank=read_number("RANK"),
        size=size,
        local_rank=read_number("LOCAL_RANK"),
        local_size=local_size,
        attempt=read_number(ATTEMPT, default=0),
    )
    if size <= 1:
        return rank
    return replace(
        rank, address=_read_text(environ, "MASTER_ADDR"), port=read_number("MASTER_PORT")
    )


def _read_srun_rank(environ: Mapping[str, str], read_number: Callable[..., int]) -> Rank:
    size = read_number("SLURM_NTASKS")
    rank = read_number("SLURM_PROCID")
    if size == 1:
        return Rank(rank)
    # A step may run on a part of the job's nodes; older Slurm names only those of the job.
    has_step_nodes = "SLURM_STEP_NODELIST" in environ
    nodes = _read_text(environ, "SLURM_STEP_NODELIST" if has_step_nodes else "SLURM_JOB_NODELIST")
    job = read_number("SLURM_JOB_ID")
    step = read_number("SLURM_STEP_ID")
    attempt = read_number(ATTEMPT, default=0)
    # All ranks compute the same port. Jobs and their steps differ in it: 31 is prime, so that
    # neighbouring jobs with a few steps rarely meet.
    port = read_number("MASTER_PORT", default=FIRST_PORT + (31 * job + step) % PORTS)
    local_size = _count_node_tasks(environ, read_number("SLURM_NODEID"))
    is_single_node = local_size == size
    return Rank(
        rank=rank,
        size=size,
        local_rank=read_number("SLURM_LOCALID"),
        local_size=local_size,
        address=environ.get("MASTER_ADDR") or (LOOPBACK if is_single_node else first_host(nodes)),
        port=port + attempt,  # the store of the attempt before may still hold its port
        has_bound_cpus=environ.get("SLURM_CPU_BIND_TYPE", "").startswith(("mask_cpu", "map_cpu")),
        attempt=attempt,
    )


def _count_node_tasks(environ: Mapping[str, str], node: int) -> int:
    """Return the tasks of a node: `2(x3),1` are 2 on each of three nodes and 1 on the fourth."""
    step_variable = "SLURM_STEP_TASKS_PER_NODE"
    has_step_tasks = step_variable in environ
    text = _read_text(environ, step_variable if has_step_tasks else "SLURM_TASKS_PER_NODE")
    end_node = 0  # the first node behind those read so far
    for task_count, node_count in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):  # "4(x2),3"
        end_node += int(node_count or 1)
        if node < end_node:
            return int(task_count)
    raise InputError(f"srun: {shorten(text)} tasks a node have no node of SLURM_NODEID")


def first_host(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it: `gpu[03-05,9],login` is `gpu03`."""
    with suppress(ValueError, IndexError):
        first = host_list(nodes)[0]
        if re.fullmatch(r"[\w.-]+", first):
            return first
    raise InputError(f"srun: {shorten(nodes)} is no list of nodes")


def _read_text(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise InputError(f"{name} is not set, but other variables of the launcher are")
    return environ[name]


def _read_number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    if name not in environ and default is not None:
        return default
    text = _read_text(environ, name)
    if not (text.isascii() and text.isdigit()):
        raise InputError(f"{name} must be a whole number, not {shorten(text)}")
    return int(text)


def check_address(rank: Rank) -> None:
    """Raise `InputError` where the host at which the processes meet has no address."""
    try:
        socket.getaddrinfo(rank.address, rank.port)
    except OSError:
        host = f"host {shorten(rank.address)}, where the {rank.size} processes meet"
        lack = f"{host}, has no address here; set MASTER_ADDR"
        raise InputError(f"rank {rank.rank}: {lack}") from None


def local_variables(size: int, port: int) -> tuple[dict[str, str], ...]:
    """Return the variables of each of `size` processes on this machine."""
    common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    common |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    return tuple({**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size))


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
    return port
