"""AlexNet as "One weird trick" splits it, written as a network file by this code.

One tower (Krizhevsky 2014), with 256 filters in the fourth and fifth convolution as in the networks
of the published hybrid figures; its two large dense layers are split over the devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paleo_net import conv, image, layer, pool, split, written

CONVOLUTIONS = {  # filter, stride, padding; a pool of 3 by stride 2 follows where there is one
    "conv1": ([11, 11, 3, 64], 4, "VALID"),
    "pool1": None,
    "conv2": ([5, 5, 64, 192], 1, "SAME"),
    "pool2": None,
    "conv3": ([3, 3, 192, 384], 1, "SAME"),
    "conv4": ([3, 3, 384, 256], 1, "SAME"),
    "conv5": ([3, 3, 256, 256], 1, "SAME"),
    "pool5": None,
}


def layers(splits: int | None) -> dict[str, Any]:
    """Return the layers; without `splits` the dense layers are whole."""
    found: dict[str, Any] = {"data": image(128, 224, 224, 3)}
    last = "data"
    for name, shape in CONVOLUTIONS.items():
        if shape is None:
            found[name] = pool("Pooling", last, 3, 2)
        else:
            sizes, stride, padding = shape
            found[name] = conv(last, *sizes, stride=stride, padding=padding)
        last = name
    mark = "" if splits is None else "@self"
    dense = {
        "fc6": conv("" if splits else last, 5, 5, 256, 4096, padding="VALID"),
        "drop6": layer("Dropout", f"fc6{mark}", dropout_keep_prob=0.5),
        "fc7": conv(f"join6{mark}" if splits else "drop6", 1, 1, 4096, 4096),
        "drop7": layer("Dropout", f"fc7{mark}", dropout_keep_prob=0.5),
    }
    if splits is None:
        found |= dense
    else:
        dense["join6"] = layer("Concatenate", "drop6@all", dim=3)
        found["dense"] = split(last, splits, **dense)
        found["join7"] = layer("Concatenate", "dense/drop7@all", dim=3)
    last = "drop7" if splits is None else "join7"
    found["fc8"] = conv(last, 1, 1, 4096, 1000)
    found["softmax"] = layer("Softmax", "fc8", num_classes=1000)
    return found


def write(folder: Path, splits: int | None) -> Path:
    """Write the network's file and give its path."""
    return written(folder, layers(splits), f"alexnet_{splits or 'whole'}.json")
