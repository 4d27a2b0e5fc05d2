"""A callback of transformers' Trainer that watches its steps.

The Trainer calls the methods by their names, so that transformers is never imported here.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

from steptime.integrations.loop_callback import LoopCallback


class StepTimeCallback(LoopCallback):
    """Watch the steps of a Trainer: `Trainer(..., callbacks=[StepTimeCallback(out="runs")])`.

    Times of evaluation, of logging and of checkpoints are left out. The settings are those of
    `steptime.watch`: `device`, `out`, `log_every`, `log_to`.
    """

    def on_train_begin(self, args: Any, *_event: Any, **objects: Any) -> None:
        """Begin to watch the model."""
        batch = getattr(args, "train_batch_size", None)
        if batch is not None:  # the Trainer's is that of a microbatch
            batch *= getattr(args, "gradient_accumulation_steps", 1)
        watch = self._begin_watch(objects.get("model"), batch)
        atexit.register(watch.finish)  # a training that fails has no end of its own

    def on_step_begin(self, *_event: Any, **_objects: Any) -> None:
        """Begin a step, whose batches are there."""
        self._begin_step()

    def on_step_end(self, *_event: Any, **_objects: Any) -> None:
        """End the step."""
        if self.watch is not None:
            self.watch.end_step()
        self._restart_wait()

    def on_train_end(self, *_event: Any, **_objects: Any) -> None:
        """Write the record and log the verdict."""
        self._finish()
        if self.watch is not None:
            atexit.unregister(self.watch.finish)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return the method of any other event of the Trainer: the wait begins after it."""
        if not name.startswith("on_"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")
        return self._restart_wait
