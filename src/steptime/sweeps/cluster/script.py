"""The batch script of a job: sbatch's flags, environment modules, and the task."""

import re
import shlex

from steptime.core.errors import InputError, shorten
from steptime.sweeps.cluster.jobs import (
    BEGUN,
    LOCAL_CLUSTER,
    NO_MODULE,
    READY,
    RUN_FIRST_FAILED,
    Need,
)
from steptime.sweeps.resource_request import ResourceRequest

_BARE_VALUE = re.compile(r"[\w@%+=:,./&|\[\]()*!^-]*", re.ASCII)  # sbatch reads it as it stands
TASK_MODULE = "steptime.sweeps.cluster.task"
TASK_NUMBER = '"$(($1 + SLURM_ARRAY_TASK_ID))"'  # $1 is the number of the array's first task


def make_script(need: Need, name: str, folder: str, python: str) -> str:
    """Return the batch script of the arrays whose names begin with `name`.

    Args:
        need: what the cells of the job need.
        name: the name of the submission.
        folder: the folder of the submission, where logs go.
        python: the interpreter on the nodes.

    Raises:
        InputError: for a folder that no line of sbatch's can name.
    """
    if not folder.isprintable() or "\\" in folder:  # after a backslash sbatch knows no %A
        lack = "is no folder that sbatch can write logs to: no line break, no backslash"
        raise InputError(f"{shorten(folder)} {lack}")
    request = need.request
    cores = "" if request.exclusive else f" --cpus-per-task={need.cores}"
    launcher = f"srun --kill-on-bad-exit=1{cores} " if need.nodes > 1 else ""
    code = f" {shlex.quote(need.code)}" if need.code else ""
    # -P: a file torch.py in the current folder is not PyTorch.
    task = shlex.join((python, "-P", "-m", TASK_MODULE, folder))
    lines = [
        "#!/bin/bash",
        f"# steptime: {name}",
        *(f"#SBATCH {flag}" for flag in make_flags(need, name, folder)),
        f'echo "{BEGUN} $SLURM_JOB_ID"',
        *(_load_module(module) for module in request.modules),
        *(_run_line(line) for line in request.run_first),
        f'echo "{READY}"',
        f"exec {launcher}{task} {TASK_NUMBER}{code}",
    ]
    return "\n".join(lines) + "\n"


def _load_module(module: str) -> str:
    """Return the line that loads an environment module, or ends the script."""
    return _or_exit(f"module load {shlex.quote(module)}", f"{NO_MODULE} {module}")


def _run_line(line: str) -> str:
    """Return a line of `run_first`, which may end with a comment; its failure ends the script."""
    return _or_exit(f"{{ {line}\n}}", f"{RUN_FIRST_FAILED}: {line}")


def _or_exit(line: str, message: str) -> str:
    return f"{line} || {{ echo {shlex.quote(message)} >&2; exit 1; }}"


def make_flags(need: Need, name: str, folder: str) -> list[str]:
    """Return sbatch's flags; the user's own `flags` come last and win."""
    request = need.request
    processes = need.processes_per_node
    # Over several nodes Slurm starts every process; on one node a single task starts them all.
    tasks_per_node = processes if need.nodes > 1 else 1
    cores_per_task = need.cores * processes // tasks_per_node
    gpu_type = request.gpu[0]  # its only one; "" for no GPU
    memory = f"{round(request.memory_GB * 1e9 / 2**20)}M" if request.memory_GB else ""
    values = {
        "job-name": name,
        "output": f"{folder.replace('%', '%%')}/logs/%A_%a.out",
        "open-mode": "append",
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "constraint": request.constraint,
        "nodelist": request.nodelist,
        "nodes": str(need.nodes),
        "ntasks-per-node": str(tasks_per_node),
        "cpus-per-task": "" if request.exclusive else str(cores_per_task),
        "gres": f"gpu:{gpu_type}:{processes}" if gpu_type else "",
        "mem": memory,
        "time": request.time,
    }
    return [
        *(f"--{flag}={_quote_value(value)}" for flag, value in values.items() if value),
        "--requeue" if request.requeues else "--no-requeue",
        *(["--exclusive"] if request.exclusive else []),
        *request.flags,
    ]


def _quote_value(value: str) -> str:
    """Return a value as a line `#SBATCH` has it: sbatch reads quotes and backslashes there."""
    return value if _BARE_VALUE.fullmatch(value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def find_clusters(request: ResourceRequest) -> tuple[str, ...]:
    """Return the clusters that a request's `flags` name, `("",)` for the one of this machine.

    sbatch sends a job to the first free one of several, and the last such flag counts.
    """
    clusters = LOCAL_CLUSTER
    # As for sbatch, the last of several flags counts.
    for flag in request.flags:
        for name in find_flag_values(flag, "clusters", "cluster", short="M"):
            clusters = tuple(dict.fromkeys(filter(None, name.split(",")))) or LOCAL_CLUSTER
    return clusters


def find_flag_values(line: str, *names: str, short: str) -> list[str]:
    """Return the values of an option in a line of sbatch's flags, in each way of writing it."""
    words = _split_line(line)
    values = []
    for position, word in enumerate(words):
        option, equals, value = word.partition("=")
        following = words[position + 1] if position + 1 < len(words) else ""
        if option.startswith("--"):
            if option[2:] in names:
                values.append(value if equals else following)
        elif word == f"-{short}":
            values.append(following)
        elif word.startswith(f"-{short}"):
            values.append(word[2:].removeprefix("="))
    return values


def _split_line(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quote without its partner, which sbatch refuses
        return line.split()
