"""What a network has learned by its training: its accuracy on the test set, in inference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from steptime.build import build
from steptime.core.record import Quantity
from steptime.core.workload import NO_OPTIMIZER, Workload
from steptime.measure.contract import Options, Prepared, UnsupportedError
from steptime.measure.data.loader import decode, new_slot
from steptime.measure.data.sources import Input
from steptime.measure.synthetic import LEARNING_RATE


def check_learns(workload: Workload, given: Input | None) -> None:
    """Raise `UnsupportedError` without what learning takes: training, a data set, labels."""
    if workload.phase != "train" or given is None or not given.fit.labels:
        raise UnsupportedError("train_steps is for training on a data set with labels")


def learned(
    prepared: Prepared, workload: Workload, options: Options, given: Input
) -> tuple[dict[str, Quantity], dict[str, Any]]:
    """Give accuracy and last loss of a training as quantities, and what a record says of it.

    `guess` is the accuracy of always naming the most frequent class of the test set.
    """
    if prepared.loss is None:
        raise UnsupportedError("the backend gives no loss")
    loss = prepared.loss()
    labels = given.dataset.parts["test"].labels
    facts = {
        "steps": options.train_steps,
        "epochs": options.train_steps / given.order.per_epoch,
        "seed": options.seed,
        "learning_rate": LEARNING_RATE,
        "test_images": len(labels),
        "guess": int(np.bincount(labels).max()) / len(labels),
    }
    values = {"accuracy": accuracy(prepared, workload, given), "loss": loss}
    run = {"run": (0,)}
    return {n: Quantity(samples=(v,), columns=run) for n, v in values.items()}, facts


def accuracy(prepared: Prepared, workload: Workload, given: Input) -> float:
    """Run the network as it is now over the test set, without dropout and by running statistics.

    Gives the share that it tells right. The last batch is filled up with images that do not count.
    """
    if prepared.inference is None:
        raise UnsupportedError("the backend gives no accuracy")
    outputs = prepared.inference(build(replace(workload, phase="infer", optimizer=NO_OPTIMIZER)))
    test = given.dataset.parts["test"]
    batch, total = workload.batch_per_replica, len(test.labels)
    slot = new_slot(batch, test.images.shape[1:])
    fit = replace(given.fit, labels="")
    right = 0
    for first in range(0, total, batch):
        indices = np.arange(first, first + batch)
        decode(test, np.minimum(indices, total - 1), slot)
        told = np.argmax(outputs(fit.arrays(slot.images, slot.labels)), axis=-1)
        right += int(np.count_nonzero((told == slot.labels) & (indices < total)))
    return right / total
