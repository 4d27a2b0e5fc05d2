"""Fully connected networks, as ParaDnn counts and sweeps them (Wang, Wei, Brooks 2019)."""

from collections.abc import Mapping
from typing import Any

from steptime.network.families.family import Family, read_parameters
from steptime.network.layers.dense import classify, linear
from steptime.network.ops.builder import Builder


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
    read_parameters("fc"),
    "Wang, Wei, Brooks 2019, table 2",
    batch_sweep="64..16384 x2",
)
