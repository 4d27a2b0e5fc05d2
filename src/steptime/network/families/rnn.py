"""Recurrent networks, as ParaDnn sweeps them (Wang, Wei, Brooks 2019)."""

from collections.abc import Mapping
from typing import Any

from steptime.network.families.family import Family, read_parameters
from steptime.network.layers.dense import classify, linear
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import GATES


def build(b: Builder, p: Mapping[str, Any], batch: int) -> str:
    """Return embedding, stacked cells of its size, a projection to the vocabulary at every step."""
    cell = p["cell"]
    width = p["embedding"]
    ids = b.input("tokens", (batch, p["length"]), "int64")
    table = b.weight("embedding/w", (p["vocabulary"], width))
    x = b.op("embedding", ids, table, name="embedding")
    gates_width = GATES[cell] * width
    for i in b.repeat(p["layers"]):
        with b.scope(f"layer{i + 1}"):
            w_ih = b.weight("w_ih", (gates_width, width))
            w_hh = b.weight("w_hh", (gates_width, width))
            b_ih = b.weight("b_ih", (gates_width,))
            b_hh = b.weight("b_hh", (gates_width,))
            x = b.op(cell, x, w_ih, w_hh, b_ih, b_hh, name=cell)
    return classify(b, linear(b, x, p["vocabulary"], "output"))


FAMILY = Family(
    "rnn",
    build,
    read_parameters("rnn", cell={"choices": (*GATES,)}),
    "Wang, Wei, Brooks 2019, table 2; the steps of the vocabulary are ours",
    batch_sweep="16..1024 x4",
)
