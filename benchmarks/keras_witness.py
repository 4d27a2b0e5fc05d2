"""Hold networks of `keras.applications` against Keras' own count of their parameters.

Runs where Keras is (with `KERAS_BACKEND=torch` or `jax`); NASNet needs jax. Each network is written
by `to_json()` and read without Keras. Prints one JSON document; exit code 1 where a number differs.

    KERAS_BACKEND=torch python benchmarks/keras_witness.py ResNet50 MobileNetV2
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path

from steptime.build import build, make_workload, read_model
from steptime.network.count import count

NETWORKS = (
    *("ResNet50", "ResNet50V2", "MobileNet", "MobileNetV2", "MobileNetV3Small", "MobileNetV3Large"),
    *("EfficientNetB0", "EfficientNetV2B0", "DenseNet121", "InceptionV3", "Xception", "VGG16"),
    *("ConvNeXtTiny", "InceptionResNetV2"),
)


def compared(name: str, folder: Path) -> dict[str, object]:
    """Return both counts of one network."""
    import keras

    model = getattr(keras.applications, name)(weights=None)
    path = folder / f"{name}.json"
    path.write_text(model.to_json())
    graph = build(make_workload(read_model(str(path)), 1, "float32", "infer"))
    made_here = ("/w", "/b", "/scale", "/offset")  # constants that Keras does not count as weights
    kept = [one for one in graph.buffers if not one.endswith(made_here)]
    trainable = sum(math.prod(one.shape) for one in model.trainable_weights)
    return {
        "network": name,
        "trainable": graph.parameters,
        "of_keras": trainable,
        "other": sum(graph.tensors[one].size for one in kept),
        "other_of_keras": model.count_params() - trainable,
        "flop": count(graph).flop,
    }


def main() -> int:
    """Compare all networks, or those named."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [compared(name, Path(folder)) for name in sys.argv[1:] or NETWORKS]
    print(json.dumps(rows, indent=2))
    differ = [
        row["network"]
        for row in rows
        if row["trainable"] != row["of_keras"] or row["other"] != row["other_of_keras"]
    ]
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
