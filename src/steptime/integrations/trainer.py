"""A callback of transformers' Trainer that watches its steps.

The Trainer calls the methods by their names, so that transformers is never imported here.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.integrations.watch import DEFAULT_LOG_STEPS, Watch


class StepTimeCallback:
    """Watch the steps of a Trainer: `Trainer(..., callbacks=[StepTimeCallback(out="runs")])`.

    The Trainer takes its batches between two steps, so that this time is the wait for input. Times
    of evaluation, of logging and of checkpoints are left out.
    """

    def __init__(
        self,
        device: str | None = None,
        out: str | Path | None = None,
        log_every: int = DEFAULT_LOG_STEPS,
        log_to: str | None = None,
    ) -> None:
        """Remember the settings of `steptime.watch`.

        Args:
            device: the device of the prediction. Default: the one that runs the steps.
            out: the folder of the record. Default: none is written.
            log_every: steps between two log lines.
            log_to: a tracker for the numbers of the log lines. Default: none.

        Raises:
            InputError: for an unknown tracker, and one whose library is not installed.
        """
        self.watch: Watch | None = None
        self._device = device
        self._out = out
        self._log_every = log_every
        self._log_to = log_to
        Watch(None, None, device, out, log_every, log_to)  # refuses what is wrong before training
        self._ready_s: float | None = None

    def on_train_begin(self, args: Any, *_event: Any, **objects: Any) -> None:
        """Begin to watch the model."""
        batch = getattr(args, "train_batch_size", None)
        if batch is not None:
            batch *= getattr(args, "gradient_accumulation_steps", 1)
        self.watch = Watch(
            objects.get("model"), batch, self._device, self._out, self._log_every, self._log_to
        )
        atexit.register(self.watch.finish)  # a training that fails has no end of its own
        self._restart_wait()

    def on_step_begin(self, *_event: Any, **_objects: Any) -> None:
        """Begin a step, whose batches are there."""
        if self.watch is None:
            return
        if self._ready_s is not None:
            self.watch.add_wait(time.perf_counter() - self._ready_s)
        self.watch.begin_step()

    def on_step_end(self, *_event: Any, **_objects: Any) -> None:
        """End the step."""
        if self.watch is not None:
            self.watch.end_step()
        self._restart_wait()

    def on_train_end(self, *_event: Any, **_objects: Any) -> None:
        """Write the record and log the verdict."""
        if self.watch is not None:
            self.watch.finish()
            atexit.unregister(self.watch.finish)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return the method of any other event of the Trainer: the wait begins after it."""
        if not name.startswith("on_"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")
        return self._restart_wait

    def _restart_wait(self, *_event: Any, **_objects: Any) -> None:
        self._ready_s = time.perf_counter()
