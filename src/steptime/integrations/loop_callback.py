"""What the callbacks of transformers' Trainer and of Lightning share: settings, and the wait."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from steptime.integrations.watch import DEFAULT_LOG_STEPS, Watch


class LoopCallback:
    """A callback that watches the steps of a trainer; its subclass hears the trainer's events.

    Between two steps the trainer takes its batches: this time is the wait for input.
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
        super().__init__()  # of the trainer's own class of callbacks
        self.watch: Watch | None = None
        self._settings = (device, out, log_every, log_to)
        self._wait_start_s: float | None = None
        # Made only to refuse wrong settings here, before the training begins.
        Watch(None, None, *self._settings)

    def _begin_watch(self, model: Any, batch: int | None) -> Watch:
        """Begin to watch a model, and to wait for its first batch."""
        self.watch = Watch(model, batch, *self._settings)
        self._restart_wait()
        return self.watch

    def _begin_step(self, examples: int | None = None) -> None:
        """End the wait and begin a step, or go on with one whose gradients are accumulated."""
        if self.watch is None:  # the training has not begun
            return
        if self._wait_start_s is not None:
            self.watch.add_wait(time.perf_counter() - self._wait_start_s, examples)
        else:  # the trainer said nothing since the last batch: no wait was timed
            self.watch.add_wait(0.0, examples)
        self._wait_start_s = None
        self.watch.begin_step()

    def _restart_wait(self, *_event: Any, **_objects: Any) -> None:
        """Begin to wait for input now: what was before is left out."""
        self._wait_start_s = time.perf_counter()

    def _finish(self, interrupted_by: str = "") -> None:
        """Write the record and log the verdict."""
        if self.watch is not None:
            self.watch.finish(interrupted_by)
