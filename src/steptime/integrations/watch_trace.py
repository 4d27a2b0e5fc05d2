"""One step of a loop, recorded by PyTorch's profiler, for a network that cannot be exported."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from steptime.core.units import format_percent, format_seconds
from steptime.integrations.watch_prediction import WatchPrediction, ask_question

MAX_REASON = 200  # characters of what a library says


class TracedPrediction(NamedTuple):
    """A step that was predicted from its trace.

    Attributes:
        step: the prediction.
        uncounted_share: share of its time in ops whose FLOP are unknown.
    """

    step: WatchPrediction
    uncounted_share: float


class LoopTrace:
    """The record of one step of a loop, by PyTorch's profiler.

    A fault of it, such as another profiler at work, leaves the step without a prediction.
    """

    def __init__(self, export_fault: str, device: str) -> None:
        """Remember why the network cannot be exported, and the device of the prediction."""
        self._export_fault = export_fault
        self._device = device
        self._profiler: Any = None
        self._note = ""

    @property
    def needs_step(self) -> bool:
        """Whether the next step is to be recorded."""
        return not self._note

    @property
    def is_recording(self) -> bool:
        """Whether a step is being recorded."""
        return self._profiler is not None

    def begin(self) -> None:
        """Record a step that is about to begin."""
        try:
            import torch
            from torch.profiler import ProfilerActivity, profile

            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            profiler: Any = profile(activities=activities, record_shapes=True)
            profiler.start()
            self._profiler = profiler
        except Exception as error:  # noqa: BLE001  # another profiler may be at work
            self._note_fault(error)

    def drop(self) -> None:
        """End the record of a step that an exception ended; the next one takes its place."""
        profiler, self._profiler = self._profiler, None  # the next step is recorded instead
        if profiler is not None:
            profiler.stop()

    def predict(self, limit_s: float) -> WatchPrediction | None:
        """End the record, and return the step that `predict --trace` says; None after a fault.

        Args:
            limit_s: seconds after which nothing is predicted.
        """
        start_s = time.perf_counter()
        profiler, self._profiler = self._profiler, None
        if profiler is None:  # it could not be started
            return None
        try:
            profiler.stop()
            with tempfile.TemporaryDirectory(prefix="steptime-") as folder:
                path = Path(folder) / "step.json"
                profiler.export_chrome_trace(str(path))
                predicted = predict_traced_step(path, self._device, limit_s)
        except Exception as error:  # noqa: BLE001  # torch raises anything for what it cannot write
            self._note_fault(error)
            return None
        self._note = (
            f"the network cannot be exported ({self._export_fault}): predicted from the shapes of "
            f"the ops of one profiled step, in {format_seconds(time.perf_counter() - start_s)}; "
            "memory is measured and not predicted; "
            f"{_describe_uncounted(predicted.uncounted_share)}"
        )
        return predicted.step

    def finish(self) -> list[str]:
        """End a record that is still going on, and return the remark on all of it."""
        self.drop()
        return [self._note or f"no prediction: {self._export_fault}"]

    def _note_fault(self, error: Exception) -> None:
        """Note that a network can be neither exported nor traced."""
        self._note = f"no prediction: {self._export_fault}; of a trace: {describe_fault(error)}"


def describe_fault(error: BaseException) -> str:
    """Return the text of an error on one line, at most `MAX_REASON` characters of it."""
    return " ".join(str(error).split())[:MAX_REASON] or type(error).__name__


def _describe_uncounted(share: float) -> str:
    """Return the remark on the FLOP that MFU leaves out."""
    if not share:
        return "MFU counts all of its ops"
    return f"MFU leaves out ops of unknown FLOP, {format_percent(share)} of its predicted time"


def predict_traced_step(path: Path, device: str, limit_s: float) -> TracedPrediction:
    """Return the predicted step of a trace of one step.

    What was measured in it is not carried over, since the loop is held against the prediction.
    """
    # `predicted_s` of the answer is priced by the shapes alone: the profiled times do not enter.
    arguments = {"trace": str(path), "device": device, "from_device": device, "steps": 1}
    answer = ask_question("predict", arguments, limit_s)
    step_s = answer["predicted_s"]
    utilisation = answer["utilisation"]
    prediction = WatchPrediction(
        step_s=step_s,
        low_s=answer["predicted_low_s"],
        high_s=answer["predicted_high_s"],
        device=answer["device"],
        # the utilisation is the share of the step that its FLOP take at the peak
        peak_work_s=None if utilisation is None else step_s * utilisation,
    )
    return TracedPrediction(prediction, answer["uncounted_share"])
