"""AlexNet as "One weird trick" splits it, written as a network file by this code.

One tower (Krizhevsky 2014), with 256 filters in the fourth and fifth convolution as in the networks
of the published hybrid figures; its two large dense layers are split over the devices.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def convolution(parent: str | None, sizes: list[int], stride: int, padding: str) -> dict[str, Any]:
    return {
        "type": "Convolution",
        "parents": [parent] if parent else [],
        "filter": sizes,
        "strides": [1, stride, stride, 1],
        "padding": padding,
    }


def dropout(parent: str) -> dict[str, Any]:
    return {"type": "Dropout", "parents": [parent], "dropout_keep_prob": 0.5}


def join(parent: str) -> dict[str, Any]:
    return {"type": "Concatenate", "parents": [parent], "dim": 3}


def layers(splits: int | None) -> dict[str, Any]:
    """Give the layers; without `splits` the dense layers are whole."""
    found: dict[str, Any] = {"data": {"type": "Input", "tensor": [128, 224, 224, 3]}}
    last = "data"
    for name, shape in CONVOLUTIONS.items():
        if shape is None:
            window = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
            found[name] = {"type": "Pooling", "parents": [last], **window}
        else:
            found[name] = convolution(last, *shape)
        last = name
    mark = "" if splits is None else "@self"
    dense = {
        "fc6": convolution(None if splits else last, [5, 5, 256, 4096], 1, "VALID"),
        "drop6": dropout(f"fc6{mark}"),
        "fc7": convolution(f"join6{mark}" if splits else "drop6", [1, 1, 4096, 4096], 1, "SAME"),
        "drop7": dropout(f"fc7{mark}"),
    }
    if splits is None:
        found |= dense
    else:
        dense["join6"] = join("drop6@all")
        block = {"type": "ModelParallel", "splits": splits, "parents": [last], "layers": dense}
        found |= {"dense": block, "join7": join("dense/drop7@all")}
    last = "drop7" if splits is None else "join7"
    found["fc8"] = convolution(last, [1, 1, 4096, 1000], 1, "SAME")
    found["softmax"] = {"type": "Softmax", "parents": ["fc8"], "num_classes": 1000}
    return found


def write(folder: Path, splits: int | None) -> Path:
    """Write the network's file and give its path."""
    path = folder / f"alexnet_{splits or 'whole'}.json"
    path.write_text(json.dumps({"name": path.stem, "layers": layers(splits)}))
    return path
