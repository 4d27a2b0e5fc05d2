"""A callback of Lightning's Trainer that watches its steps."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from steptime.core.errors import InputError
from steptime.integrations.loop_callback import LoopCallback

is_old_package = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
PACKAGE = "pytorch_lightning" if is_old_package else "lightning.pytorch"
try:
    Callback: Any = importlib.import_module(f"{PACKAGE}.callbacks").Callback
except ImportError as error:
    text = f"steptime.integrations.lightning needs Lightning ({error})"
    raise InputError(f"{text}; nearest: pip install lightning") from None


class LightningStepTimeCallback(LoopCallback, Callback):  # type: ignore[misc]  # without types
    """Watch the steps of a Trainer: `Trainer(callbacks=[LightningStepTimeCallback(out="runs")])`.

    A step is what updates the weights: with `accumulate_grad_batches` several batches. Times of
    validation, of logging and of checkpoints are left out. The settings are those of
    `steptime.watch`: `device`, `out`, `log_every`, `log_to`.
    """

    _updates = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch the module."""
        self._updates = _count_updates(trainer)
        self._begin_watch(find_network(pl_module), batch=None)  # counted in each batch

    def on_train_epoch_start(self, *_event: Any) -> None:
        """Begin to wait for the first batch of an epoch."""
        self._restart_wait()

    def on_train_batch_start(self, _trainer: Any, _module: Any, batch: Any, *_event: Any) -> None:
        """Begin a step, or go on with one whose gradients are accumulated."""
        self._begin_step(_count_examples(batch))

    def on_train_batch_end(self, trainer: Any, *_event: Any) -> None:
        """End the step if the weights were updated."""
        if self.watch is not None:
            updates = _count_updates(trainer)
            self.watch.end_step(is_complete=updates > self._updates)
            self._updates = updates
        self._restart_wait()

    def on_validation_end(self, *_event: Any) -> None:
        """Leave the validation out of the wait."""
        self._restart_wait()

    def on_save_checkpoint(self, *_event: Any) -> None:
        """Leave the checkpoint out of the wait."""
        self._restart_wait()

    def on_exception(self, _trainer: Any, _module: Any, exception: BaseException) -> None:
        """Write the record of the steps before an exception, Ctrl-C among them."""
        if self.watch is not None:
            self.watch.drop_step()
        self._finish(type(exception).__name__)

    def on_train_end(self, *_event: Any) -> None:
        """Write the record and log the verdict."""
        self._finish()


def find_network(module: Any) -> Any:
    """Return the part of a module that has all its weights: the network that is called.

    A `LightningModule` is itself called by nobody; its `training_step` calls the network inside.
    """
    try:
        # descend from a LightningModule to its only child with weights, as long as that is one, too
        while _is_wrapper(module) and _count_weights(module) > 0:
            weight_count = _count_weights(module)
            children_with_all_weights = [
                child for child in module.children() if _count_weights(child) == weight_count
            ]
            if len(children_with_all_weights) != 1:  # the weights lie in several children
                return module
            (module,) = children_with_all_weights
    except Exception:  # noqa: BLE001  # objects of the user may raise anything
        return module
    return module


def _count_weights(module: Any) -> int:
    """Return the number of weight tensors of a module and of the modules inside."""
    return sum(1 for _ in module.parameters())


def _is_wrapper(module: Any) -> bool:
    """Return whether a module is one of Lightning, which trains what is inside."""
    return hasattr(module, "training_step")


def _count_updates(trainer: Any) -> int:
    """Return the number of updates of the weights."""
    return int(getattr(trainer, "global_step", 0))


def _count_examples(batch: Any) -> int | None:
    from steptime.integrations.watch_model import first_size

    try:
        return first_size(batch)
    except Exception:  # noqa: BLE001  # objects of the user may raise anything
        return None
