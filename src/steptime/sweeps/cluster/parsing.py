"""Answers of Slurm's commands, parsed: pure functions of what is printed.

Sites print lines of their own among the answers; a line without the expected fields is passed over.
"""

import errno
import re
import signal
from collections.abc import Collection, Iterator
from typing import NamedTuple

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import read_packaged_toml
from steptime.measure.procfs import host_list, number_list
from steptime.sweeps.cluster.jobs import (
    ArrayJob,
    JobExit,
    Node,
    NodeList,
    QueuedTask,
    TaskJob,
    TaskName,
)
from steptime.sweeps.resource_request import ResourceRequest

DEFAULT_MAX_TASKS = 1001  # Slurm's MaxArraySize where the site does not say
QUEUE_FORMAT = "%j|%F|%K|%T|%N|%r"  # array's name and job, index, state, nodes, reason
EXIT_FORMAT = "JobID,State,ExitCode"
NODE_FORMAT = "%N|%P|%T|%G|%f|%E"  # name, partition, state, GPUs, features, reason
_WORDS = read_packaged_toml("slurm.toml")
WAITING_STATES = {*_WORDS["waiting"]}
CAUSE_OF_STATE: dict[str, str] = _WORDS["over"]
"""The states of a job that is over, with the cause of its missing records."""
PRINTED_CAUSES = tuple((pattern, cause) for pattern, cause in _WORDS["printed"])
"""Patterns of what Slurm prints into the output of a job that it ends, each with its cause."""
USABLE_STATES = {*_WORDS["usable"]}
UNUSABLE_MARKS: str = _WORDS["unusable_marks"]
_RANGES = r"[0-9]{1,7}(?:-[0-9]{1,7})?(?:,[0-9]{1,7}(?:-[0-9]{1,7})?)*"  # of tasks of an array
_TASKS = re.compile(  # 12_3 or 12_[3-5,7%2]
    rf"(?P<job>[0-9]+)_\[?(?P<indices>{_RANGES})(?:%[0-9]+)?\]?"
)
_EXIT = re.compile(r"(?P<code>[0-9]{1,9}):(?P<signal>[0-9]{1,9})")
_INDEX = re.compile(r"[0-9]{1,9}")
_JOB_LINE = re.compile(
    r"\s*(?:Submitted batch job )?(?P<job>[0-9]+)"
    r"(?:;(?P<cluster>[\w.-]+)| on cluster (?P<wrapped_cluster>[\w.-]+))?\s*"
)
_GPU = re.compile(r"gpu(?::([^:(]+))??(?::no_consume)?:[0-9]+[KMG]?(?:\(.*)?")
"""A GPU among a node's resources: `gpu:a100:4(S:0)`, or `gpu:4` where a site has no types."""
_NO_REASON = {"", "none", "(null)"}


def parse_job_ids(text: str) -> list[ArrayJob]:
    """Return the jobs that lines of sbatch's answer name, each once, whatever stands around them.

    A line is `1000`, `1000;cluster`, or `Submitted batch job 1000`, which wrappers print.
    """
    jobs: list[ArrayJob] = []
    for line in text.splitlines():
        match = _JOB_LINE.fullmatch(line)
        if match:
            cluster = match["cluster"] or match["wrapped_cluster"] or ""
            jobs.append(ArrayJob(match["job"], cluster))
    return list(dict.fromkeys(jobs))


def parse_max_tasks(text: str) -> int:
    """Return the number of tasks that one array may have, of `scontrol show config`."""
    size = re.search(r"MaxArraySize\s*=\s*(\d+)", text)
    return max(1, int(size[1]) if size else DEFAULT_MAX_TASKS)


def parse_queue(
    text: str, names: Collection[str], cluster: str = ""
) -> Iterator[tuple[TaskName, QueuedTask]]:
    """Yield the tasks of arrays that wait or run, of squeue's lines in `QUEUE_FORMAT`."""
    for name, job, index, state, nodes, reason in _split_rows(text, QUEUE_FORMAT.count("|") + 1):
        is_over = state in CAUSE_OF_STATE
        is_single_task = _INDEX.fullmatch(index) is not None
        if name not in names or is_over or not is_single_task:
            continue
        is_running = state not in WAITING_STATES
        place_or_reason = nodes if nodes and is_running else reason
        task = TaskJob(ArrayJob(job, cluster), int(index))
        yield TaskName(name, int(index)), QueuedTask(task, state, place_or_reason, is_running)


def parse_accounting(text: str, cluster: str = "") -> dict[TaskJob, JobExit]:
    """Return the exits of tasks, of sacct's lines in `EXIT_FORMAT`."""
    exits: dict[TaskJob, JobExit] = {}
    for name, state, code in _split_rows(text, EXIT_FORMAT.count(",") + 1):
        exits |= _make_exits(name, state.partition(" ")[0], code, cluster)  # CANCELLED by 0
    return exits


def parse_controller_jobs(text: str, cluster: str = "") -> dict[TaskJob, JobExit]:
    """Return the exits of tasks, of the lines of `scontrol show job --oneliner`."""
    exits: dict[TaskJob, JobExit] = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if {"ArrayJobId", "ArrayTaskId", "JobState"} <= fields.keys():
            name = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}"
            code = fields.get("ExitCode", "0:0")
            # Of several lines on one task, the first counts.
            exits = _make_exits(name, fields["JobState"], code, cluster) | exits
    return exits


def _make_exits(name: str, state: str, code: str, cluster: str) -> dict[TaskJob, JobExit]:
    """Return the exits of `12_3`, or of tasks that never ran, `12_[3-5,7%2]`."""
    name_match = _TASKS.fullmatch(name)
    code_match = _EXIT.fullmatch(code)
    is_over = state in CAUSE_OF_STATE
    if not name_match or not code_match or not is_over:
        return {}
    exit_code = int(code_match["code"])
    signal_number = int(code_match["signal"])
    cause = cause_of_exit(state, exit_code, signal_number)
    job = ArrayJob(name_match["job"], cluster)
    exits = {}
    for index in number_list(name_match["indices"]):
        task = TaskJob(job, index)
        exits[task] = JobExit(task, state, exit_code, signal_number, cause)
    return exits


def cause_of_exit(state: str, exit_code: int, signal_number: int) -> str:
    """Return the cause that a state, an exit code and a signal tell."""
    if state == "FAILED" and signal_number == signal.SIGKILL:
        return "killed"
    if state == "FAILED" and exit_code == errno.ENOSPC:
        return "no-space"
    return CAUSE_OF_STATE[state]


def parse_nodes(text: str, request: ResourceRequest) -> NodeList:
    """Return the nodes that have a request's GPUs and features, of lines in `NODE_FORMAT`.

    Without a partition, those of the default partition count.

    Raises:
        InputError: for a constraint that is more than features joined by `&` or by `|`.
    """
    feature_sets = _split_constraint(request.constraint)
    gpu_type = request.gpu[0]  # a request has one type here; "" for no GPU
    nodes: dict[str, Node] = {}
    unfit_names: dict[str, set[str]] = {}  # by the GPUs that a node has instead
    for line in _read_node_lines(text, has_partition=bool(request.partition)):
        has_features = not feature_sets or any(map(line.features.issuperset, feature_sets))
        if not has_features:
            continue
        if gpu_type and gpu_type not in line.gpu_types:
            types_text = ", ".join(line.gpu_types) or "no GPU"
            unfit_names.setdefault(types_text, set()).add(line.name)
        else:
            nodes[line.name] = Node(line.name, line.trouble)
    # A node stands on several lines; one line that fits is enough.
    unfit_nodes = {
        types_text: tuple(sorted(names - nodes.keys())) for types_text, names in unfit_names.items()
    }
    unfit_nodes = {types_text: names for types_text, names in unfit_nodes.items() if names}
    return NodeList(tuple(nodes.values()), unfit_nodes)


class _NodeLine(NamedTuple):
    """A node in one partition, as a line of sinfo has it.

    Attributes:
        name: the node.
        gpu_types: its types of GPU.
        features: its features, by which constraints select nodes.
        trouble: why no job starts there; "" where jobs do.
    """

    name: str
    gpu_types: list[str]
    features: set[str]
    trouble: str


def _read_node_lines(text: str, *, has_partition: bool) -> Iterator[_NodeLine]:
    """Yield the lines on nodes; without a partition those of the default one, if there is one."""
    rows = list(_split_rows(text, NODE_FORMAT.count("|") + 1))
    if not has_partition:
        default_rows = [row for row in rows if row[1].endswith("*")]  # so sinfo marks it
        rows = default_rows or rows
    for name, _partition, state, gpus, features, reason in rows:
        yield _NodeLine(
            name, parse_gpu_types(gpus), set(features.split(",")), describe_trouble(state, reason)
        )


def _split_constraint(constraint: str) -> list[list[str]]:
    """Return the sets of features of which a node needs one; [] where it needs none."""
    if re.search(r"[^\w.&|,-]", constraint):
        problem = f"{shorten(constraint)}: is more than features joined by & or |"
        raise InputError(f'nodes = "each": {problem}; name the nodes in nodelist')
    choices = constraint.replace(",", "&").split("|") if constraint else []
    return [choice.split("&") for choice in choices]


def parse_gpu_types(gres: str) -> list[str]:
    """Return the types of GPU in a node's generic resources, `gpu:a100:4(S:0-1),gpu:v100:2`."""
    matches = (_GPU.fullmatch(part.strip()) for part in re.split(r",(?![^(]*\))", gres))
    return list(dict.fromkeys(match[1] or "without a type" for match in matches if match))


def describe_trouble(state: str, reason: str) -> str:
    """Return why no job starts on a node: `drained (fan)`; "" where jobs do."""
    words = re.findall(r"\w+", state.upper())
    is_usable = bool(words) and USABLE_STATES.issuperset(words)
    is_marked = any(mark in state for mark in UNUSABLE_MARKS)
    if is_usable and not is_marked:
        return ""
    return state if reason.lower() in _NO_REASON else f"{state} ({reason})"


def parse_cpus(details: str, node: str) -> set[int]:
    """Return the CPUs that `scontrol show job --details` says a job has on a node."""
    for nodes, cpus in re.findall(r"\bNodes=(\S+) CPU_IDs=([\d,-]+)", details):
        if node in host_list(nodes):
            return set(number_list(cpus))
    return set()


def _split_rows(text: str, field_count: int) -> Iterator[list[str]]:
    """Yield the fields of the lines that have so many; the last field may hold bars."""
    for line in text.splitlines():
        row = [field.strip() for field in line.split("|", field_count - 1)]
        if len(row) == field_count:
            yield row
