"""The accuracy of a trained network on the test set, in inference."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from steptime.build import build
from steptime.core.json_types import JsonObject
from steptime.core.workload import NO_OPTIMIZER, Workload
from steptime.measure.contract import Arrays, Options, Prepared, UnsupportedError
from steptime.measure.data.idx import Split
from steptime.measure.data.loader import ImageInputs, decode
from steptime.measure.data.sources import CellInput
from steptime.measure.synthetic import LEARNING_RATE
from steptime.records.record import Quantity, single_run


def prepare_examination(
    prepared: Prepared, workload: Workload, options: Options, cell_input: CellInput | None
) -> Callable[[], tuple[dict[str, Quantity], JsonObject]]:
    """Return a function that examines a network after its training: accuracy, loss, and facts.

    `guess` is the accuracy of always naming the most frequent class of the test set. Raises
    `UnsupportedError` now, before the training, if there will be nothing to examine.
    """
    if workload.phase != "train" or cell_input is None or not cell_input.fit.labels:
        raise UnsupportedError("train_steps is for training on a data set with labels")
    if prepared.loss is None or prepared.inference is None:
        raise UnsupportedError("the backend gives neither loss nor accuracy")
    last_loss = prepared.loss
    # The same network without dropout and updates; it reads the weights as training leaves them.
    infer = prepared.inference(build(replace(workload, phase="infer", optimizer=NO_OPTIMIZER)))
    test = cell_input.dataset.parts["test"]
    facts = {
        "steps": options.train_steps,
        "epochs": options.train_steps / cell_input.order.per_epoch,
        "seed": options.seed,
        "learning_rate": LEARNING_RATE,
        "test_images": len(test.labels),
        # the accuracy of a network that always says the most frequent label
        "guess": int(np.bincount(test.labels).max()) / len(test.labels),
    }
    image_inputs = replace(cell_input.fit, labels="")  # inference takes no labels

    def examine() -> tuple[dict[str, Quantity], JsonObject]:
        loss = last_loss()
        accuracy_share = accuracy(infer, test, image_inputs, workload.batch_per_replica)
        return {"accuracy": single_run((accuracy_share,)), "loss": single_run((loss,))}, facts

    return examine


def accuracy(
    infer: Callable[[Arrays], Any], test: Split, image_inputs: ImageInputs, batch: int
) -> float:
    """Return the share of a test set that is classified correctly; the last batch is filled up."""
    image_count = len(test.labels)
    correct_count = 0
    for first_image in range(0, image_count, batch):
        indices = np.arange(first_image, first_image + batch)
        is_filler = indices >= image_count  # repeats of the last image fill up the last batch
        images, labels = decode(test, np.minimum(indices, image_count - 1))
        predicted_labels = np.argmax(infer(image_inputs.arrays(images, labels)), axis=-1)
        correct_count += int(np.count_nonzero((predicted_labels == labels) & ~is_filler))
    return correct_count / image_count
