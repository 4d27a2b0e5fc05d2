"""Slurm behind the contract: its commands, its batch flags, its variables, its words.

Sites without accounting answer from the controller's own memory, which forgets a job some minutes
after its end.
"""

import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import packaged
from steptime.measure.procfs import host_list, number_list
from steptime.sweeps.cluster import scheduler as contract
from steptime.sweeps.resource_request import ResourceRequest

LIMIT_S = 120.0
RANGES = r"[0-9]{1,7}(?:-[0-9]{1,7})?(?:,[0-9]{1,7}(?:-[0-9]{1,7})?)*"  # of tasks of an array
MOST_NAMES = 500  # arrays that one squeue is asked for
DEFAULT_LARGEST = 1001  # Slurm's MaxArraySize where the site does not say
_WORDS = packaged("slurm.toml")
AWAY = _WORDS["away"]  # what Slurm's commands print where nobody answers: what is told of it
WAITING = {*_WORDS["waiting"]}
OVER: dict[str, str] = _WORDS["over"]  # of a job that is over: the cause of what it left undone
NO_JOBS = _WORDS["no_jobs"]
PRINTED = tuple((pattern, cause) for pattern, cause in _WORDS["printed"])
_BARE = re.compile(r"[\w@%+=:,./&|\[\]()*!^-]*", re.ASCII)  # what sbatch reads as it stands
FACTS = _WORDS["facts"]  # what a record keeps of where its task ran


def submit(array: contract.JobArray) -> str:
    """Submit an array and return its job id; raises `InputError` where Slurm refuses it."""
    flags = [f"--job-name={array.name}", f"--array=0-{array.tasks - 1}%{array.at_once}"]
    if array.after:
        flags.append(f"--dependency=afterany:{array.after}")
    answer = _run(["sbatch", "--parsable", *flags, str(array.script), str(array.first)])
    number = re.match(r"\d+", answer.strip())
    if not number:
        raise InputError(f"sbatch: its answer is no job id: {shorten(answer)}")
    return number[0]


def limits() -> int:
    """Return how many tasks one array may have here."""
    size = re.search(r"MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]))
    return max(1, int(size[1]) if size else DEFAULT_LARGEST)


def queued(names: Collection[str]) -> dict[contract.TaskName, contract.Queued]:
    """Return the tasks of these arrays that wait or run."""
    tasks = {}
    wanted = sorted(names)
    for some in (wanted[i : i + MOST_NAMES] for i in range(0, len(wanted), MOST_NAMES)):
        which = f"--name={','.join(some)}"
        text = _run(["squeue", "--noheader", "--array", which, "--format=%j|%F|%K|%T|%N|%r"])
        for name, job, index, state, nodes, reason in _rows(text, 6):
            if state not in OVER and re.fullmatch(r"[0-9]{1,9}", index):
                runs = state not in WAITING
                where = nodes if nodes and runs else reason
                tasks[name, int(index)] = contract.Queued(f"{job}_{index}", job, state, where, runs)
    return tasks


def ended(
    tasks: Collection[contract.TaskJob], since: str
) -> dict[contract.TaskJob, contract.JobExit]:
    """Return how tasks ended, of accounting and, for what it leaves out, of the controller.

    `since` keeps accounting from answering with older jobs whose numbers have come round again.
    """
    exits: dict[contract.TaskJob, contract.JobExit] = {}
    if tasks and shutil.which("sacct"):
        jobs = ",".join(sorted({job for job, _ in tasks}))
        wanted = ["--format=JobID,State,ExitCode", f"--starttime={since}", f"--jobs={jobs}"]
        told = _tried(["sacct", "--noheader", "--allocations", "--parsable2", *wanted])
        for name, state, code in _rows(told, 3):
            exits |= _exits(name, state.partition(" ")[0], code)
    for job in sorted({job for job, index in tasks if (job, index) not in exits}):
        for line in _tried(["scontrol", "show", "job", "--oneliner", job]).splitlines():
            fields = dict(re.findall(r"(\w+)=(\S*)", line))
            if {"ArrayJobId", "ArrayTaskId", "JobState"} <= fields.keys():
                name = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
                exits = _exits(name, fields["JobState"], fields.get("ExitCode", "0:0")) | exits
    return exits


def _exits(name: str, state: str, code: str) -> dict[contract.TaskJob, contract.JobExit]:
    """Return the tasks of `12_3` or of a range that never ran, `12_[3-5,7%2]`."""
    parts = re.fullmatch(rf"([0-9]+)_\[?({RANGES})(?:%[0-9]+)?\]?", name)
    ended = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", code)
    if not parts or not ended or state not in OVER:
        return {}
    exit_code, number = map(int, ended.groups())
    said = state, exit_code, number, cause_of_exit(state, exit_code, number)
    return {
        (parts[1], i): contract.JobExit(f"{parts[1]}_{i}", *said) for i in number_list(parts[2])
    }


def cause_of_exit(state: str, exit_code: int, number: int) -> str:
    """Return the cause that a state, an exit code and a signal tell."""
    if state == "FAILED" and number == signal.SIGKILL:
        return "killed"
    if state == "FAILED" and exit_code == errno.ENOSPC:
        return "no-space"
    return OVER[state]


def cancel(jobs: Sequence[str]) -> None:
    """Cancel arrays by their job ids."""
    _run(["scancel", *jobs])


def script(need: contract.Need, name: str, folder: str, python: str) -> str:
    """Return the text of the batch script of array `name`.

    Raises `InputError` for a folder that no line of sbatch's can name.
    """
    if not folder.isprintable() or "\\" in folder:  # after a backslash sbatch knows no %A
        lack = "is no folder that sbatch can write logs to: no line break, no backslash"
        raise InputError(f"{shorten(folder)} {lack}")
    cores = "" if need.request.exclusive else f" --cpus-per-task={need.cores}"
    return contract.script_text(
        need, name, folder, python,
        flags=[f"#SBATCH {flag}" for flag in _flags(need, name, folder)],
        job="SLURM_JOB_ID",
        index="SLURM_ARRAY_TASK_ID",
        launcher=f"srun --kill-on-bad-exit=1{cores}",
    )  # fmt: skip


def _flags(need: contract.Need, name: str, folder: str) -> list[str]:
    """Return sbatch's flags; what the user wrote in `flags` comes last and wins."""
    request = need.request
    each = need.processes_per_node
    cores = need.cores * (1 if need.nodes > 1 else each)
    flags = {
        "job-name": name,
        "output": f"{folder.replace('%', '%%')}/logs/%A_%a.out",
        "open-mode": "append",
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "constraint": request.constraint,
        "nodelist": request.nodelist,
        "nodes": str(need.nodes),
        "ntasks-per-node": str(each if need.nodes > 1 else 1),
        "cpus-per-task": "" if request.exclusive else str(cores),
        "gres": f"gpu:{request.gpu[0]}:{each}" if request.gpu[0] else "",
        "mem": f"{round(request.memory_GB * 1e9 / 2**20)}M" if request.memory_GB else "",
        "time": request.time,
    }
    return [
        *(f"--{key}={_quoted(value)}" for key, value in flags.items() if value),
        "--requeue" if request.requeues else "--no-requeue",
        *(["--exclusive"] if request.exclusive else []),
        *request.flags,
    ]


def _quoted(value: str) -> str:
    """Return a value as a line `#SBATCH` says it: sbatch reads quotes and backslashes there."""
    return value if _BARE.fullmatch(value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def nodes(request: ResourceRequest) -> list[contract.Node]:
    """Return the nodes of the partition, or of `nodelist`, with the GPUs and features asked for.

    Raises `InputError` for a constraint that is more than features joined by `&` or by `|`.
    """
    every = [one.split("&") for one in request.constraint.replace(",", "&").split("|")]
    if re.search(r"[^\w.&|,-]", request.constraint):
        said = f"{shorten(request.constraint)}: is more than features joined by & or |"
        raise InputError(f'nodes = "each": {said}; name the nodes in nodelist')
    where = {"partition": request.partition, "nodes": request.nodelist}
    flags = [f"--{name}={value}" for name, value in where.items() if value]
    text = _run(["sinfo", "--noheader", "--Node", *flags, "--format=%N|%P|%T|%G|%f|%E"])
    lines = [*_rows(text, 6)]
    default = [one for one in lines if one[1].endswith("*")]
    found = {}
    for name, _, state, gpus, features, reason in (not request.partition and default) or lines:
        has, gpu = set(features.split(",")), rf"\bgpu:{re.escape(request.gpu[0])}\b"
        fits = not request.constraint or any(has.issuperset(one) for one in every)
        if fits and (not request.gpu[0] or re.search(gpu, gpus)):
            down = "*" in state or re.split(r"\W", state)[0].upper() in NO_JOBS
            found[name] = contract.Node(name, f"{state} ({reason})" if down else "")
    return list(found.values())


def placement() -> contract.Placement:
    """Return where Slurm put this process, as its variables say."""
    facts = {key: os.environ[name] for key, name in FACTS.items() if name in os.environ}
    return contract.Placement(int(facts.get("restart", "0")), facts)


def confine() -> None:
    """Bind this process to the CPUs of its job, where Slurm has given them and binds nobody.

    Without this, tasks of one node would bind their workers to the same cores. Where Slurm does not
    tell, or its numbers are none of this machine's, nothing is changed.
    """
    names = ("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_CPUS_ON_NODE")
    job, node, count = (os.environ.get(name, "") for name in names)
    if not (job and node and count.isdigit()) or not hasattr(os, "sched_getaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    if len(allowed) <= int(count):
        return
    given = cpus_of(_tried(["scontrol", "show", "job", "--details", "--oneliner", job]), node)
    if given and given <= allowed:
        os.sched_setaffinity(0, given)


def cpus_of(details: str, node: str) -> set[int]:
    """Return the CPUs that `scontrol show job --details` says a job has on a node."""
    for nodes, cpus in re.findall(r"\bNodes=(\S+) CPU_IDs=([\d,-]+)", details):
        if node in host_list(nodes):
            return set(number_list(cpus))
    return set()


def _rows(text: str, fields: int) -> Iterator[list[str]]:
    """Yield the lines of an answer that have so many fields; others are no line of a task."""
    for line in text.splitlines():
        row = [field.strip() for field in line.split("|", fields - 1)]
        if len(row) == fields:
            yield row


def _tried(command: Sequence[str]) -> str:
    """Return what a command says, "" where Slurm has forgotten or keeps no accounts."""
    with suppress(InputError, contract.SchedulerError):
        return _run(command)
    return ""


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
        )
    except FileNotFoundError:
        where = "Slurm's commands must be on the PATH"
        raise InputError(f"{command[0]} is not here: {where}") from None
    except subprocess.TimeoutExpired:
        why = f"Slurm did not answer within {LIMIT_S:g} s"
        raise contract.SchedulerError(f"{command[0]}: {why}") from None
    if done.returncode == 0:
        return done.stdout
    for pattern, text in AWAY:
        if away := re.search(pattern, done.stderr):
            why = f"Slurm does not answer: {text.format(away[1])}"
            raise contract.SchedulerError(f"{command[0]}: {why}")
    lines = (line.strip() for line in done.stderr.splitlines() if line.strip())
    plain = re.sub(r"^(\w+: )?(error: )?", "", next(lines, f"exit {done.returncode}"))
    raise InputError(f"{command[0]}: {plain}")


SCHEDULER = contract.Scheduler(
    "slurm", submit, queued, ended, cancel, script, limits, placement, confine, nodes, PRINTED
)
