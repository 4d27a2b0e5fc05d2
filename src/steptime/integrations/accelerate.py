"""Watch a loop of Hugging Face's Accelerate, whose gradients may be accumulated.

The loop has an `Accelerator`, so that accelerate is never imported here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steptime.integrations.watch import DEFAULT_LOG_STEPS, Watch


class AcceleratorWatch(Watch):
    """A watched loop whose step ends where the accelerator updates the weights.

    Without gradient accumulation that is after each batch:

        with watch_accelerator(accelerator, model, out="runs") as watch:
            for batch in watch.wrap(loader):
                with watch.step(), accelerator.accumulate(model):
                    ...
    """

    def __init__(
        self,
        accelerator: Any,
        model: Any,
        device: str | None,
        out: str | Path | None,
        log_every: int,
        log_to: str | None,
    ) -> None:
        """Remember the accelerator beside what is watched."""
        super().__init__(
            model, batch=None, device=device, out=out, log_every=log_every, log_to=log_to
        )
        self._accelerator = accelerator

    def end_step(self, is_complete: bool = True) -> None:
        """End the step if the accelerator has updated the weights."""
        # True in the last microbatch of a step, after which the weights are updated.
        has_updated = getattr(self._accelerator, "sync_gradients", True)
        super().end_step(is_complete=is_complete and bool(has_updated))


def watch_accelerator(
    accelerator: Any,
    model: Any,
    device: str | None = None,
    out: str | Path | None = None,
    log_every: int = DEFAULT_LOG_STEPS,
    log_to: str | None = None,
) -> AcceleratorWatch:
    """Watch a loop of Accelerate as `steptime.watch` does; microbatches of a step are one.

    Args:
        accelerator: the `Accelerator` of the loop.
        model: the model, as `accelerator.prepare` returned it.
        device: the device of the prediction. Default: the one that runs the steps.
        out: the folder of the record. Default: none is written.
        log_every: steps between two log lines.
        log_to: a tracker for the numbers of the log lines. Default: none.

    Returns:
        A context manager with `wrap(loader)` and `step()`; after the loop `answer` has the result.

    Raises:
        InputError: for a number of steps that is no whole number of at least 1, an unknown
            tracker, and one whose library is not installed.
    """
    from steptime.core.signatures.kinds import text_of
    from steptime.core.values import parse_count

    step_count = parse_count(text_of(log_every), "log_every")
    return AcceleratorWatch(accelerator, model, device, out, step_count, log_to)
