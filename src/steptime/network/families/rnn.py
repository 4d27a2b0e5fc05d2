"""Recurrent networks, as ParaDnn sweeps them (Wang, Wei, Brooks 2019)."""

from collections.abc import Mapping
from typing import Any

from steptime.network.families.family import Family, read_parameters
from steptime.network.layers.dense import classify, linear
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import GATES


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return embedding, stacked cells of its size, a projection to the vocabulary at every step."""
    cell, width = p["cell"], p["embedding"]
    ids = b.input("tokens", (batch, p["length"]), "int64")
    table = b.weight("embedding/w", (p["vocabulary"], width))
    x = b.op("embedding", ids, table, name="embedding")
    rows = GATES[cell] * width
    for i in b.repeat(p["layers"]):
        with b.scope(f"layer{i + 1}"):
            weights = [b.weight(name, (rows, width)) for name in ("w_ih", "w_hh")]
            weights += [b.weight(name, (rows,)) for name in ("b_ih", "b_hh")]
            x = b.op(cell, x, *weights, name=cell)
    return classify(b, linear(b, x, p["vocabulary"], "output"))


FAMILY = Family(
    "rnn",
    build,
    read_parameters("rnn", cell={"choices": (*GATES,)}),
    "Wang, Wei, Brooks 2019, table 2; the steps of the vocabulary are ours",
    batch_sweep="16..1024 x4",
)
