"""Calls of Slurm's commands, in an environment that does not change what they answer."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from steptime.core.errors import InputError
from steptime.core.toml_files import read_packaged_toml
from steptime.sweeps.cluster.jobs import SchedulerError

LIMIT_S = 120.0
MAX_REASON_CHARACTERS = 400
_WORDS = read_packaged_toml("slurm.toml")
SILENCE: list[tuple[str, str]] = _WORDS["away"]
"""Messages of the commands where nobody answers: a pattern, and its text for people."""
_IGNORED_PREFIXES = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_", "SBATCH_")
_IGNORED_NAMES = {"SLURM_CLUSTERS", "SLURM_BITSTR_LEN", "SLURM_TIME_FORMAT", "SLURM_DEBUG_FLAGS"}
"""Variables that choose other jobs, nodes and clusters, or another form of what is printed."""
_ERROR_LINE = re.compile(r"^(?:[\w.-]+: )?(?:error|fatal): *(.*)$")
_COMMAND_PREFIX = re.compile(r"^\w+: ")


@dataclass(frozen=True)
class CommandOutput:
    """What a command printed, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that change what Slurm's commands answer."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_IGNORED_PREFIXES) and name not in _IGNORED_NAMES
    }


def execute(command: Sequence[str]) -> CommandOutput:
    """Run one of Slurm's commands.

    Raises:
        InputError: if the command is not installed here.
        SchedulerError: if it does not end within `LIMIT_S`.
    """
    try:
        process = subprocess.run(
            command,
            env=clean_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        hint = "Slurm's commands must be on the PATH"
        raise InputError(f"{command[0]} is not here: {hint}") from None
    except subprocess.TimeoutExpired:
        reason = f"Slurm did not answer within {LIMIT_S:g} s"
        raise SchedulerError(f"{command[0]}: {reason}") from None
    return CommandOutput(process.returncode, process.stdout, process.stderr)


def read_output(command: Sequence[str]) -> str:
    """Return the output of a command.

    Raises:
        InputError: if it refuses.
        SchedulerError: if Slurm does not answer.
    """
    output = execute(command)
    if output.exit_code:
        raise error_of(command[0], output)
    return output.stdout


def ask_if_possible(command: Sequence[str]) -> str:
    """Return the output of a command, "" where Slurm has forgotten or keeps no accounts."""
    with suppress(InputError, SchedulerError):
        return read_output(command)
    return ""


def error_of(command: str, output: CommandOutput) -> InputError | SchedulerError:
    """Return the error of a command that failed: Slurm is silent, or refuses."""
    for pattern, text in SILENCE:
        if silence := re.search(pattern, output.stderr):
            reason = f"Slurm does not answer: {text.format(silence[1])}"
            return SchedulerError(f"{command}: {reason}")
    return InputError(f"{command}: {find_reason(output)}")


def find_reason(output: CommandOutput) -> str:
    """Return why a command failed: its lines with `error:`, else its first line.

    Plugins of a site print lines of their own before and after.
    """
    lines = [line.strip() for line in output.stderr.splitlines() if line.strip()]
    matches = [_ERROR_LINE.match(line) for line in lines]
    messages = dict.fromkeys(match[1] for match in matches if match)  # each once
    reasons = [message for message in messages if re.search(r"\w", message)]
    if reasons:
        return "; ".join(reasons)[:MAX_REASON_CHARACTERS]
    first_line = next(iter(lines), f"exit {output.exit_code}")
    return _COMMAND_PREFIX.sub("", first_line)[:MAX_REASON_CHARACTERS]
