"""Fully connected networks, as ParaDnn counts and sweeps them (Wang, Wei, Brooks 2019)."""

from collections.abc import Mapping
from typing import Any

from steptime.layers.dense import classify, linear
from steptime.models.family import Family, Parameter
from steptime.ops.builder import Builder


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return `layers` hidden layers of `nodes` with ReLU, an output layer, cross-entropy."""
    x = b.input("input", (batch, p["inputs"]))
    for i in b.repeat(p["layers"]):
        x = linear(b, x, p["nodes"], f"fc{i + 1}")
        x = b.op("relu", x, name=f"fc{i + 1}/relu")
    return classify(b, linear(b, x, p["outputs"], "output"))


FAMILY = Family(
    "fc",
    build,
    {
        "layers": Parameter(4, "hidden layers", "4..128 x2"),
        "nodes": Parameter(1024, "units of a hidden layer", "32..8192 x2"),
        "inputs": Parameter(2000, "width of the input", "2000..8000 +2000"),
        "outputs": Parameter(200, "classes", "200..1000 +200"),
    },
    "Wang, Wei, Brooks 2019, table 2",
    batch_sweep="64..16384 x2",
)
