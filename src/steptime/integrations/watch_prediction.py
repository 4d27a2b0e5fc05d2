"""Questions that a process of its own answers, so that a training loop imports none of them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from steptime.core.dtypes import precision
from steptime.core.errors import InputError, OutsideError
from steptime.core.json_types import JsonObject
from steptime.hardware import catalog
from steptime.integrations.mcp_worker import ANSWER, ERROR, PROGRESS

WORKER_COMMAND = (sys.executable, "-m", "steptime.integrations.mcp_worker")


class WatchPrediction(NamedTuple):
    """A predicted step, without any wait for input.

    Attributes:
        step_s: its seconds.
        low_s: lower end of the 80 % interval; None where the method has none.
        high_s: upper end of the interval of the prediction, None without one.
        device: the device.
        peak_work_s: seconds that the step's FLOP take at the peak of the device; None where no
            peak is known.
        peak_bytes: memory of the tensors at the worst moment; None where unknown.
    """

    step_s: float
    low_s: float | None
    high_s: float | None
    device: str
    peak_work_s: float | None = None
    peak_bytes: int | None = None

    def utilisation(self, step_s: float) -> float | None:
        """Return the share of the peak that a step of so many seconds reaches; None if unknown."""
        return self.peak_work_s / step_s if self.peak_work_s and step_s else None


def ask_question(question: str, arguments: Mapping[str, Any], limit_s: float) -> JsonObject:
    """Return the answer of a question, from a fresh process.

    Args:
        question: its name.
        arguments: its parameters.
        limit_s: seconds after which the process is killed.

    Raises:
        InputError: for what the question refuses.
        OutsideError: where the process dies or takes too long.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        WORKER_COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        timer = threading.Timer(limit_s, process.kill)  # ends the reading below
        timer.daemon = True
        timer.start()
        try:
            reply = _send_and_receive(process, {"tool": question, "arguments": dict(arguments)})
        finally:
            timer.cancel()
            process.kill()
    if ERROR in reply:
        raise InputError(reply[ERROR])
    if ANSWER not in reply:
        raise OutsideError(f"{question}: no answer within {limit_s:g} s")
    answer: JsonObject = reply[ANSWER]
    return answer


def _send_and_receive(process: subprocess.Popen[str], call: JsonObject) -> JsonObject:
    """Send a call, and return the reply after its progress; empty where the process ended."""
    if process.stdin is None or process.stdout is None:
        return {}
    try:
        process.stdin.write(json.dumps(call) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return {}
    for line in process.stdout:
        reply: JsonObject = json.loads(line)
        if PROGRESS not in reply:
            return reply
    return {}


def find_device(platform: str) -> str | None:
    """Return the device of a platform: by its name, or calibrated on it; None where none is."""
    try:
        return catalog.device(platform).name
    except InputError:  # no device of this name: one may have been calibrated on this platform
        pass
    # faulty files of the user are passed over without a warning
    for device in catalog.devices(warn=lambda _message: None):
        if device.measured.get("platform") == platform:
            return device.name
    return None


def predict_step(
    arguments: Mapping[str, Any], forward_passes: int, limit_s: float
) -> WatchPrediction:
    """Return the predicted step of a loop.

    Args:
        arguments: parameters of `predict`.
        forward_passes: forward passes of a step, each of which takes what `predict` says.
        limit_s: seconds after which nothing is predicted.

    Raises:
        InputError: for what `predict` refuses.
        OutsideError: where the process dies or takes too long.
    """
    answer = ask_question("predict", arguments, limit_s)
    low_s = answer["low_s"]
    high_s = answer["high_s"]
    # Each microbatch of a step is predicted as a step of its own.
    step_s = forward_passes * answer["step_s"]
    # For the MFU: the time of the FLOP at the peak (`utilisation` of the answer counts no FLOP).
    peaks = catalog.device(answer["device"]).datasheet.peak_flop_per_s
    peak_flop_per_s = peaks.get(precision(answer["dtype"]).compute)
    peak_work_s = None
    if peak_flop_per_s is not None:
        peak_work_s = forward_passes * answer["flop"] / peak_flop_per_s
    return WatchPrediction(
        step_s=step_s,
        low_s=None if low_s is None else forward_passes * low_s,
        high_s=None if high_s is None else forward_passes * high_s,
        device=answer["device"],
        peak_work_s=peak_work_s,
        peak_bytes=answer.get("peak_bytes"),
    )
