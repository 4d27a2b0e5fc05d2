"""A Slurm of one's own on this machine: a controller and nodes with GPUs that are made up.

Every daemon runs under `minder.py`, so it ends when this process does, however that is. Nothing
outside the given folder is written, and neither root nor accounting is needed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from minder import below

MINDER = Path(__file__).with_name("minder.py")
DEVICES = "/dev/null,/dev/zero,/dev/full,/dev/random"  # as GPUs: there everywhere
GPUS_PER_NODE = 4
LIMIT_S = 600.0  # of waiting for an event: a fault, however busy this machine is
POLL_S = 0.2  # between two looks at it: most of them are commands of Slurm
NODES = {"k1": "k80", "k2": "k80", "p1": "p100", "p2": "p100"}
CPUS_PER_NODE = 8
MEMORY_MB = 4000
CONFIGURATION = """\
ClusterName=bed
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=10
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/%n.pid
SlurmdSpoolDir={root}/spool-%n
SlurmdParameters=config_overrides
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
ReturnToService=2
SlurmdTimeout={notice_s}
KillWait=30
TCPTimeout=60
MessageTimeout=60
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
DefMemPerCPU=500
"""


@dataclass
class SlurmCluster:
    """A context: in it, the daemons run and `env` makes Slurm's commands talk to them.

    `nodes` gives the type of the GPUs of each node. Partition `main` is the default, and `urgent`
    takes the place of its jobs. A job that is put back waits 10 s before it runs again
    (`cred_expire`), and two minutes where nobody says otherwise. A node that says nothing for
    `notice_s` is declared down: long, or a busy machine loses nodes that are well.
    """

    root: Path
    nodes: Mapping[str, str] = field(default_factory=lambda: NODES)
    notice_s: int = int(LIMIT_S)
    _minders: dict[str, subprocess.Popen[bytes]] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def env(self) -> dict[str, str]:
        """Return the environment in which Slurm's commands speak to this cluster."""
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_"))
        }
        return {
            **own,
            "SLURM_CONF": str(self.root / "slurm.conf"),
            "PATH": os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")),
        }

    def __enter__(self) -> Self:
        try:
            self._write()
            self._start("munged", *self._munged(), grace_s=60)
            self.wait((self.root / "munge.socket").exists, "munged's socket")
            self.controller_start()
            for name in self.nodes:
                self.node_up(name)
            self.wait(self.idle, "all nodes to be idle")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything: nodes with what runs on them, the controller, munged."""
        for name in (*self.nodes, "slurmctld", "munged"):
            self._end(name)
        for name in (*self.nodes, "slurmctld", "munged"):
            self._stop(name)

    def pids(self) -> set[int]:
        """Return all processes of this cluster, jobs too."""
        roots = {minder.pid for minder in self._minders.values()}
        return roots.union(*(below(root) for root in roots))

    def node_down(self, name: str, *, told: bool = False) -> None:
        """Cut a node's power: its slurmd and all that ran on it are gone at once.

        The controller notices some time after `notice_s`, or at once if it is told.
        """
        self._stop(name)
        if told:
            self.run("scontrol", "update", f"nodename={name}", "state=down", "reason=told")

    def node_up(self, name: str) -> None:
        """Start a node's slurmd where it does not run."""
        self._start(name, "slurmd", "-D", "-N", name)

    def controller_stop(self) -> None:
        """Take the head node away; what runs goes on running, and commands soon give up."""
        self._stop("slurmctld")
        self._patience(2)

    def controller_start(self) -> None:
        """Start the controller where it does not run, and wait until it answers."""
        self._patience(60)
        self._start("slurmctld", "slurmctld", "-D", grace_s=60)
        self.wait(lambda: "UP" in self.run("scontrol", "ping", check=False), "the controller")

    def run(self, *command: str, check: bool = True) -> str:
        """Return what a command prints, on both its outputs, or fail with it."""
        done = subprocess.run(
            command,
            env=self.env,
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: exit {done.returncode}: {done.stdout}")
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> int:
        """Return the id of a new job that runs `script` in Bash; its output is `<id>.out`.

        A task of an array writes `<id of the array>_<index>.out`.
        """
        array = any(option.startswith(("--array", "-a")) for option in options)
        output = "--output=" + ("%A_%a.out" if array else "%j.out")
        path = self.root / f"script-{secrets.token_hex(4)}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        said = self.run("sbatch", "--parsable", output, *options, str(path))
        return int(said.partition(";")[0])

    def job(self, job: int | str) -> dict[str, str]:
        """Return the fields of `scontrol show job` of one job or task."""
        line = self.run("scontrol", "show", "job", "-o", str(job))
        return dict(re.findall(r"(\S+?)=(\S*)", line))

    def output(self, job: int | str) -> str:
        """Return what a job has written so far, errors too."""
        path = self.root / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_state(self, job: int | str, *states: str) -> dict[str, str]:
        """Return the fields of a job once its state is one of `states`."""
        self.wait(
            lambda: self.job(job)["JobState"] in states,
            lambda: f"{' or '.join(states)}: {self.job(job)}",
        )
        return self.job(job)

    def idle(self) -> bool:
        """Say whether nothing runs or waits, and every node could."""
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T", check=False).split()
        return states == ["idle"] * len(self.nodes) and not self.run("squeue", "-h")

    def quiet(self) -> bool:
        """Say whether no job waits or runs, whatever the nodes do."""
        return not self.run("squeue", "-h")

    def reset(self) -> None:
        """Forget what a test left: cancel all, and bring back what is down."""
        self.controller_start()
        if self.run("squeue", "-h"):
            self.run("scancel", "--user", getpass.getuser())
        for name in self.nodes:
            self.node_up(name)
        for line in self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").splitlines():
            name, state = line.split()
            if "drain" in state:
                self.run("scontrol", "update", f"nodename={name}", "state=resume")
        self.wait(self.idle, lambda: "idle: " + self.run("squeue") + self.run("sinfo", "-N"))

    def wait(self, predicate: Callable[[], bool], what: str | Callable[[], str]) -> None:
        """Return once `predicate` holds, or fail with `what` after `LIMIT_S`.

        A daemon that ended by itself is a failure too.
        """
        end = time.monotonic() + LIMIT_S
        while not predicate():
            for name, minder in self._minders.items():
                if minder.poll() is not None:
                    log = (self.root / f"{name}.log").read_text()
                    raise AssertionError(f"{name} ended by itself: {log[-2000:]}")
            if time.monotonic() > end:
                text = what if isinstance(what, str) else what()
                raise AssertionError(f"not in {LIMIT_S} s: {text}; see {self.root}/*.log")
            time.sleep(POLL_S)

    def _write(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        key = self.root / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        port, *ports = _free_ports(1 + len(self.nodes))
        host = socket.gethostname().partition(".")[0]
        text = CONFIGURATION.format(
            host=host,
            port=port,
            user=getpass.getuser(),
            root=self.root,
            notice_s=self.notice_s,
        )
        gres = ["AutoDetect=off"]
        for (name, gpu), own in zip(self.nodes.items(), ports, strict=True):
            text += (
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={own} "
                f"CPUs={CPUS_PER_NODE} RealMemory={MEMORY_MB} Gres=gpu:{gpu}:{GPUS_PER_NODE}\n"
            )
            gres.append(f"NodeName={name} Name=gpu Type={gpu} File={DEVICES}")
            (self.root / f"spool-{name}").mkdir(exist_ok=True)
        names = ",".join(self.nodes)
        text += f"PartitionName=main Nodes={names} Default=YES MaxTime=1:00:00 DefaultTime=30\n"
        text += f"PartitionName=urgent Nodes={names} MaxTime=5 DefaultTime=1 PriorityTier=9\n"
        (self.root / "state").mkdir(exist_ok=True)
        (self.root / "slurm.conf").write_text(text)
        (self.root / "gres.conf").write_text("\n".join(gres) + "\n")
        (self.root / "cgroup.conf").write_text("")

    def _patience(self, answer_s: int) -> None:
        """Let commands, and daemons that start, wait so long for an answer of the controller."""
        path = self.root / "slurm.conf"
        new = path.with_suffix(".new")
        new.write_text(re.sub(r"(?<=MessageTimeout=)\d+", str(answer_s), path.read_text()))
        new.replace(path)

    def _munged(self) -> list[str]:
        files = {
            "key-file": "munge.key",
            "socket": "munge.socket",
            "pid-file": "munged.pid",
            "seed-file": "munge.seed",
        }
        named = [f"--{option}={self.root / name}" for option, name in files.items()]
        return ["munged", "--foreground", "--force", "--num-threads=2", *named]

    def _start(self, name: str, *command: str, grace_s: float = 0) -> None:
        minder = self._minders.get(name)
        if minder is not None and minder.poll() is None:
            return
        self._stop(name)
        tool = shutil.which(command[0], path=self.env["PATH"])
        if tool is None:
            raise AssertionError(f"no {command[0]} here: scripts/install-slurm")
        with (self.root / f"{name}.log").open("ab") as said:
            self._minders[name] = subprocess.Popen(
                [sys.executable, "-ES", str(MINDER), str(grace_s), tool, *command[1:]],
                env=self.env,
                cwd=self.root,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                start_new_session=True,  # a Ctrl-C is for the tests, which then end this
            )

    def _end(self, name: str) -> None:
        minder = self._minders.get(name)
        if minder is not None and minder.stdin is not None:
            minder.stdin.close()

    def _stop(self, name: str) -> None:
        self._end(name)
        minder = self._minders.pop(name, None)
        if minder is not None:
            minder.wait(timeout=LIMIT_S)


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody has, none of those that the kernel gives to whoever asks."""
    ports: list[int] = []
    while len(ports) < count:
        port = secrets.choice(range(10_000, 30_000))
        with contextlib.suppress(OSError), socket.socket() as own:
            own.bind(("127.0.0.1", port))
            ports += [port] * (port not in ports)
    return ports
