"""The calibration of servers that `serve` uses, and the stack that it is of."""

from __future__ import annotations

from pathlib import Path

from steptime.core.errors import InputError
from steptime.core.signatures.kinds import File
from steptime.questions.options import full_stack_name
from steptime.serving.calibration import ServingCalibration, read_calibration


def find_calibration(path: File | None, stack: str | None) -> ServingCalibration | None:
    """Return the calibration of a file, None without one.

    Raises:
        InputError: for a file that is none, and for one of another stack than the named one.
    """
    if path is None:
        return None
    calibration = read_calibration(Path(path))
    if stack is not None and full_stack_name(stack) != calibration.stack:
        text = f"--calibration: its constants are of {calibration.stack}, not of {stack}"
        raise InputError(f"{text}; nearest: --stack {calibration.stack}")
    return calibration
