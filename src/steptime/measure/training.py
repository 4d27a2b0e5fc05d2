"""What a network has learned by its training: its accuracy on the test set, in inference."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from steptime.build import build
from steptime.core.workload import NO_OPTIMIZER, Workload
from steptime.measure.contract import Arrays, Options, Prepared, UnsupportedError
from steptime.measure.data.idx import Split
from steptime.measure.data.loader import ImageInputs, decode
from steptime.measure.data.sources import CellInput
from steptime.measure.synthetic import LEARNING_RATE
from steptime.records.record import Quantity, single_run


def examination(
    prepared: Prepared, workload: Workload, options: Options, given: CellInput | None
) -> Callable[[], tuple[dict[str, Quantity], dict[str, Any]]]:
    """Return what is called after a training: its last loss and accuracy, and what a record says.

    `guess` is the accuracy of always naming the most frequent class of the test set. Raises
    `UnsupportedError` now, before the training, where there will be nothing to say.
    """
    if workload.phase != "train" or given is None or not given.fit.labels:
        raise UnsupportedError("train_steps is for training on a data set with labels")
    if prepared.loss is None or prepared.inference is None:
        raise UnsupportedError("the backend gives neither loss nor accuracy")
    last_loss = prepared.loss
    network = prepared.inference(build(replace(workload, phase="infer", optimizer=NO_OPTIMIZER)))
    test, per_epoch = given.dataset.parts["test"], given.order.per_epoch
    facts = {
        "steps": options.train_steps,
        "epochs": options.train_steps / per_epoch,
        "seed": options.seed,
        "learning_rate": LEARNING_RATE,
        "test_images": len(test.labels),
        "guess": int(np.bincount(test.labels).max()) / len(test.labels),
    }
    fit = replace(given.fit, labels="")

    def examine() -> tuple[dict[str, Quantity], dict[str, Any]]:
        loss = last_loss()
        share = accuracy(network, test, fit, workload.batch_per_replica)
        return {"accuracy": single_run((share,)), "loss": single_run((loss,))}, facts

    return examine


def accuracy(network: Callable[[Arrays], Any], test: Split, fit: ImageInputs, batch: int) -> float:
    """Return the share of a test set told right, by batches, of which the last is filled up."""
    total, right = len(test.labels), 0
    for first in range(0, total, batch):
        indices = np.arange(first, first + batch)
        images, labels = decode(test, np.minimum(indices, total - 1))
        told = np.argmax(network(fit.arrays(images, labels)), axis=-1)
        right += int(np.count_nonzero((told == labels) & (indices < total)))
    return right / total
