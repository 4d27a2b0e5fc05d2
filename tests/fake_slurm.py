"""A scheduler that is made up: the commands of Slurm as one script over a folder of JSON.

`install(folder)` puts `sbatch`, `squeue`, `scontrol` and `scancel` into a folder for the PATH. Jobs
wait until a test moves them with `set_state`; nothing is run. A file `refuse` in the folder holds
what sbatch answers to every array after the first so many.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COMMANDS = ("sbatch", "squeue", "scontrol", "scancel")


def install(folder: Path) -> Path:
    """Give a folder with the commands, whose jobs are kept beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs").mkdir(exist_ok=True)
    for name in COMMANDS:
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} {folder} "$@"\n')
        path.chmod(0o755)
    return folder


def jobs(folder: Path) -> dict[int, dict[str, Any]]:
    """Give every array by its id: name, script, first task, and the state of each task."""
    return {int(p.stem): json.loads(p.read_text()) for p in (folder / "jobs").glob("*.json")}


def set_state(folder: Path, state: str, job: int | None = None, task: int | None = None) -> None:
    """Bring tasks into a state: all, those of one array, or one of them."""
    for number, table in jobs(folder).items():
        if job in {None, number}:
            states = table["states"]
            for index in range(len(states)) if task is None else [task]:
                states[index] = state
            _write(folder, number, table)


def _write(folder: Path, number: int, table: dict[str, Any]) -> None:
    (folder / "jobs" / f"{number}.json").write_text(json.dumps(table))


def _sbatch(folder: Path, words: list[str]) -> str:
    flags = dict(w.removeprefix("--").partition("=")[::2] for w in words if w.startswith("--"))
    script, first = [w for w in words if not w.startswith("--")]
    refusal = folder / "refuse"
    known = jobs(folder)
    if refusal.exists():
        after, said = refusal.read_text().split("|")
        if len(known) >= int(after):
            sys.exit(f"sbatch: error: {said}")
    number = 100 + len(known)
    last = flags["array"].partition("-")[2].partition("%")[0]
    table = {
        "name": flags["job-name"],
        "script": script,
        "first": int(first),
        "flags": flags,
        "states": ["PENDING"] * (int(last) + 1),
    }
    _write(folder, number, table)
    return str(number)


def _squeue(folder: Path, words: list[str]) -> str:
    lines = []
    names = next(w for w in words if w.startswith("--name=")).removeprefix("--name=").split(",")
    for number, table in jobs(folder).items():
        for index, state in enumerate(table["states"] if table["name"] in names else []):
            if state in {"PENDING", "RUNNING", "COMPLETING"}:
                node = "" if state == "PENDING" else "n1"
                lines.append(f"{table['name']}|{number}|{index}|{state}|{node}|Resources")
    return "\n".join(lines)


def _scontrol(folder: Path, words: list[str]) -> str:
    if words[:2] == ["show", "config"]:
        return "MaxArraySize            = 1001"
    if (folder / "forgotten").exists():
        sys.exit("slurm_load_jobs error: Invalid job id specified")
    number = int(words[-1])
    return "\n".join(
        f"JobId={number + i} ArrayJobId={number} ArrayTaskId={i} JobState={state} ExitCode=0:0"
        for i, state in enumerate(jobs(folder)[number]["states"])
    )


def _scancel(folder: Path, words: list[str]) -> str:
    for word in words:
        set_state(folder, "CANCELLED", int(word))
    return ""


if __name__ == "__main__":
    name, folder, *words = sys.argv[1:]
    sys.stdout.write(globals()[f"_{name}"](Path(folder), words) + "\n")
