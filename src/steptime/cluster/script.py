"""The batch script of a job: a pure function of what its cells need."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from steptime.sweep.resource_request import Allocation

BEGUN = "steptime: begun"
READY = "steptime: ready"
NO_MODULE = "steptime: cannot load module"
RUN_FIRST_FAILED = "steptime: a line of run_first failed"


@dataclass(frozen=True)
class Need:
    """What all cells of a job need alike: an allocation, the processes of a cell, cores of each.

    With `by_srun` the processes are Slurm tasks; else the first starts the others on its node.
    """

    allocation: Allocation
    replicas: int
    cores: int

    @property
    def nodes(self) -> int:
        """Nodes of one cell."""
        each = self.allocation.replicas_per_node or self.replicas
        return -(-self.replicas // each)

    @property
    def processes_per_node(self) -> int:
        """Processes of one cell on one node, a GPU each where there are GPUs."""
        return -(-self.replicas // self.nodes)

    @property
    def text(self) -> str:
        """What tells this job from the others, for people."""
        asked = self.allocation
        found = {"name": asked.name, "gpu": asked.gpu[0], "partition": asked.partition}
        return ", ".join(f"{key} {value}" for key, value in found.items() if value) or "the job"

    @property
    def by_srun(self) -> bool:
        """Whether a cell needs several nodes, so that srun must start its processes."""
        return self.nodes > 1


def script(need: Need, name: str, folder: str, python: str) -> str:
    """Give the text of the batch script of array `name`; its argument is the first task's number.

    `folder` holds what was submitted: the manifest, progress and logs.
    """
    words = shlex.join((python, "-P", "-m", "steptime.cluster.task", folder))
    asked = need.allocation
    cores = "" if asked.exclusive else f" --cpus-per-task={need.cores}"
    start = f"exec srun --kill-on-bad-exit=1{cores}" if need.by_srun else "exec"
    lines = [
        "#!/bin/bash",
        f"# steptime: {name}",
        *(f"#SBATCH {flag}" for flag in _flags(need, name, folder)),
        f'echo "{BEGUN} $SLURM_JOB_ID"',
        *(
            _or_end(f"module load {shlex.quote(module)}", f"{NO_MODULE} {module}")
            for module in asked.modules
        ),
        *(_or_end(f"{{ {line}\n}}", f"{RUN_FIRST_FAILED}: {line}") for line in asked.run_first),
        f'echo "{READY}"',
        f'{start} {words} "$(($1 + SLURM_ARRAY_TASK_ID))"',
    ]
    return "\n".join(lines) + "\n"


def _or_end(line: str, otherwise: str) -> str:
    return f"{line} || {{ echo {shlex.quote(otherwise)} >&2; exit 1; }}"


def _flags(need: Need, name: str, folder: str) -> list[str]:
    """Give sbatch's flags; what the user wrote in `flags` comes last and wins."""
    asked = need.allocation
    each = need.processes_per_node
    found = {
        "job-name": name,
        "output": f'"{folder.replace("%", "%%")}/logs/%A_%a.out"',
        "open-mode": "append",
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "constraint": asked.constraint,
        "nodes": str(need.nodes),
        "ntasks-per-node": str(each if need.by_srun else 1),
        "cpus-per-task": "" if asked.exclusive else str(need.cores * (1 if need.by_srun else each)),
        "gres": f"gpu:{asked.gpu[0]}:{each}" if asked.gpu[0] else "",
        "mem": f"{round(asked.memory_GB * 1e9 / 2**20)}M" if asked.memory_GB else "",
        "time": asked.time,
    }
    flags = [f"--{key}={value}" for key, value in found.items() if value]
    return [
        *flags,
        "--requeue" if asked.requeues else "--no-requeue",
        *(["--exclusive"] if asked.exclusive else []),
        *asked.flags,
    ]
