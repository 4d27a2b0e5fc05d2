"""The text of a shell script before its syntax is read: its lines, and directives of Slurm."""

from __future__ import annotations

import re

RUNTIME_VARIABLES = {  # that a scheduler or the shell sets
    **dict.fromkeys(("RANK", "NODE_RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NODEID"), "0"),
    **dict.fromkeys(("MASTER_ADDR", "HOSTNAME"), "localhost"),
    "MASTER_PORT": "29500",
}
_CONTINUED_LINE_END = re.compile(r"\\[ \t]*\r?\n")
# Of a shell or a notebook, copied with a command.
_PROMPT = re.compile(r"^\s*[$!]\s+(?=\w)|^!(?=\w)")
_SLURM = re.compile(r"^#SBATCH\s+--?([\w-]+)[=\s]+(\S+)", re.MULTILINE)


def join_lines(text: str) -> str:
    """Return a script in which each command stands on one line, without prompts (`$ `).

    Comments between the lines of a command, which would end it, are left out.
    """
    lines: list[str] = []
    for line in text.splitlines():
        continues_command = bool(lines) and lines[-1].rstrip().endswith("\\")
        is_comment = line.lstrip().startswith("#")
        # A comment between the continued lines of a command would end it.
        if continues_command and is_comment:
            continue
        lines.append(_PROMPT.sub("", line))
    return _CONTINUED_LINE_END.sub(" ", "\n".join(lines) + "\n")


def slurm_variables(text: str) -> dict[str, str]:
    """Return the variables that Slurm sets from the directives of a batch script."""
    directives: dict[str, str] = dict(_SLURM.findall(text))
    nodes = directives.get("nodes", directives.get("N", ""))
    # `gpu:a100:4` are four GPUs.
    gpus = directives.get("gpus-per-node", directives.get("gres", "")).rpartition(":")[2]
    tasks = directives.get("ntasks-per-node", "")
    variables = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), gpus),
        "SLURM_NTASKS_PER_NODE": tasks,
    }
    return {name: value for name, value in variables.items() if value}
