"""Slurm: the calls of its commands, and where it put this process.

Sites without accounting answer from the controller's own memory, which forgets a job some minutes
after its end.
"""

import os
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import read_packaged_toml
from steptime.sweeps.cluster import commands, parsing
from steptime.sweeps.cluster.jobs import (
    LOCAL_CLUSTER,
    ArrayJob,
    JobArray,
    JobExit,
    NodeList,
    Placement,
    QueuedTask,
    SchedulerError,
    TaskJob,
    TaskName,
)
from steptime.sweeps.resource_request import ResourceRequest

MAX_NAMES = 500  # arrays that one squeue is asked for
FACTS: dict[str, str] = read_packaged_toml("slurm.toml")[
    "facts"
]  # what a record keeps of its placement


@dataclass(frozen=True)
class Slurm:
    """A Slurm as one or several of its clusters; "" is the cluster of this machine."""

    clusters: tuple[str, ...] = LOCAL_CLUSTER

    def submit(self, array: JobArray) -> ArrayJob:
        """Submit an array and return its job.

        Where the answer is an error or no job id, the job is looked for by its name.

        Raises:
            InputError: if Slurm refuses the array; it has no job then.
            SchedulerError: if it cannot be known whether there is a job.
        """
        flags = [f"--job-name={array.name}", f"--array=0-{array.tasks - 1}%{array.max_running}"]
        if array.after:
            flags.append(f"--dependency=afterany:{array.after}")
        command = ["sbatch", "--parsable", *flags, str(array.script), str(array.first)]
        try:
            answer = commands.read_output(command)
        except (InputError, SchedulerError):
            # sbatch may fail after Slurm took the job: then the queue has its name.
            if job := self.find_job(array.name):
                return job
            raise
        jobs = [self._complete(job) for job in parsing.parse_job_ids(answer)]
        is_local = self.clusters == LOCAL_CLUSTER
        if len(jobs) == 1 and (jobs[0].cluster or is_local):
            return jobs[0]
        # The answer names several jobs, none, or one of an unknown cluster: the queue decides.
        if job := self.find_job(array.name):
            return job
        if jobs and is_local:
            return jobs[-1]  # wrappers print before Slurm's own line
        raise SchedulerError(f"sbatch: its answer is no job id: {shorten(answer)}")

    def _complete(self, job: ArrayJob) -> ArrayJob:
        """Return a job with its cluster where the answer leaves it out and only one is asked."""
        has_cluster = bool(job.cluster) or len(self.clusters) > 1
        return job if has_cluster else ArrayJob(job.number, self.clusters[0])

    def find_job(self, name: str) -> ArrayJob | None:
        """Return the job of an array that waits or runs, by its name; None where there is none.

        Slurm remembers a refused array as a job that failed; that one is over.
        """
        try:
            tasks = self.list_tasks([name])
        except (InputError, SchedulerError):
            return None
        if not tasks:
            return None
        first_task = next(iter(tasks.values()))[0]  # all tasks of the name are of one job
        return first_task.task.job

    def read_max_tasks(self) -> int:
        """Return the number of tasks that one array may have, on the strictest cluster."""
        return min(
            parsing.parse_max_tasks(
                commands.read_output(["scontrol", *_cluster_option(cluster), "show", "config"])
            )
            for cluster in self.clusters
        )

    def list_tasks(self, names: Collection[str]) -> dict[TaskName, list[QueuedTask]]:
        """Return the tasks of arrays that wait or run; an array may have been sent twice.

        Raises:
            SchedulerError: if a cluster does not answer: its jobs are not over then.
        """
        tasks: dict[TaskName, list[QueuedTask]] = defaultdict(list)
        array_names = set(names)
        sorted_names = sorted(array_names)
        name_batches = [
            sorted_names[start : start + MAX_NAMES]
            for start in range(0, len(sorted_names), MAX_NAMES)
        ]
        for cluster in self.clusters:
            for batch in name_batches:
                queue_options = [
                    "--noheader",
                    "--all",
                    f"--name={','.join(batch)}",
                    "--states=all",
                    "--array",
                    f"--format={parsing.QUEUE_FORMAT}",
                ]
                queue_text = commands.read_output(
                    ["squeue", *_cluster_option(cluster), *queue_options]
                )
                for task, queued in parsing.parse_queue(queue_text, array_names, cluster):
                    tasks[task].append(queued)
        return dict(tasks)

    def list_nodes(self, request: ResourceRequest) -> NodeList:
        """Return the nodes of the partition, or of `nodelist`, with a request's GPUs and features.

        Raises:
            InputError: for a constraint that is more than features joined by `&` or by `|`.
        """
        limits = {"partition": request.partition, "nodes": request.nodelist}
        flags = [f"--{name}={value}" for name, value in limits.items() if value]
        if request.partition:
            flags.append("--all")  # the partition may be a hidden one
        form = f"--format={parsing.NODE_FORMAT}"
        texts = [
            commands.read_output(
                ["sinfo", *_cluster_option(cluster), "--noheader", "--Node", *flags, form]
            )
            for cluster in self.clusters
        ]
        return parsing.parse_nodes("".join(texts), request)

    @staticmethod
    def list_exits(tasks: Collection[TaskJob], since: str) -> dict[TaskJob, JobExit]:
        """Return the exits of tasks, from accounting and, for those it leaves out, the controller.

        Args:
            tasks: the tasks.
            since: local time of the first submission; job numbers come round again after years.
        """
        exits: dict[TaskJob, JobExit] = {}
        has_accounting = bool(tasks) and shutil.which("sacct") is not None
        for cluster, cluster_tasks in _group_by_cluster(tasks):
            if has_accounting:
                jobs = sorted({task.job.number for task in cluster_tasks})
                columns = [f"--format={parsing.EXIT_FORMAT}", f"--starttime={since}"]
                text = _ask_accounting(cluster, *columns, f"--jobs={','.join(jobs)}")
                exits |= parsing.parse_accounting(text, cluster)
            remaining_tasks = [task for task in cluster_tasks if task not in exits]
            for job in sorted({task.job.number for task in remaining_tasks}):
                command = ["scontrol", *_cluster_option(cluster), "show", "job", "--oneliner", job]
                text = commands.ask_if_possible(command)
                controller_exits = parsing.parse_controller_jobs(text, cluster)
                exits = controller_exits | exits  # where both have a task, accounting counts
        return exits

    @staticmethod
    def cancel(jobs: Iterable[ArrayJob]) -> None:
        """Cancel arrays by their jobs."""
        for cluster, group in groupby(sorted(jobs, key=_cluster_of), key=_cluster_of):
            commands.read_output(
                ["scancel", *_cluster_option(cluster), *(job.number for job in group)]
            )


def read_placement() -> Placement:
    """Return the placement of this process, as Slurm's variables say it."""
    facts = {key: os.environ[name] for key, name in FACTS.items() if name in os.environ}
    return Placement(int(facts.get("restart", "0")), facts)


def bind_to_job() -> None:
    """Bind this process to the CPUs of its job, where Slurm has given them and binds nobody.

    Without this, tasks of one node would bind their workers to the same cores. Where Slurm does not
    tell, or its numbers are none of this machine's, nothing is changed.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    node = os.environ.get("SLURMD_NODENAME", "")
    cpu_count_text = os.environ.get("SLURM_CPUS_ON_NODE", "")
    is_in_job = job and node and cpu_count_text.isdigit()
    if not is_in_job or not hasattr(os, "sched_getaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    # More CPUs than the job has: Slurm does not bind processes at this site.
    is_bound_already = len(allowed) <= int(cpu_count_text)
    if is_bound_already:
        return
    details = commands.ask_if_possible(["scontrol", "show", "job", "--details", "--oneliner", job])
    cpus = parsing.parse_cpus(details, node)
    if cpus and cpus <= allowed:
        os.sched_setaffinity(0, cpus)


def _cluster_option(cluster: str) -> list[str]:
    """Return the option that asks a cluster."""
    return [f"--clusters={cluster}"] if cluster else []


def _ask_accounting(cluster: str, *options: str) -> str:
    form = ["--noheader", "--allocations", "--parsable2"]
    return commands.ask_if_possible(["sacct", *_cluster_option(cluster), *form, *options])


def _cluster_of(job: ArrayJob) -> str:
    return job.cluster


def _group_by_cluster(tasks: Collection[TaskJob]) -> list[tuple[str, list[TaskJob]]]:
    groups: dict[str, list[TaskJob]] = defaultdict(list)
    for task in tasks:
        groups[task.job.cluster].append(task)
    return sorted(groups.items())
