"""Small Caffe networks as text, and what the tests ask of them."""

from __future__ import annotations

from typing import Any

import pytest

from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, check
from steptime.formats import Source
from steptime.formats.caffe.read import read
from steptime.network.count import count
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph

DATA = 'input: "data" input_shape { dim: 2 dim: 3 dim: 8 dim: 10 }\n'


def layer(kind: str, more: str = "", bottom: str = "data", top: str = "y", name: str = "y") -> str:
    bottoms = " ".join(f'bottom: "{blob}"' for blob in bottom.split())
    tops = " ".join(f'top: "{blob}"' for blob in top.split())
    return f'layer {{ name: "{name}" type: "{kind}" {bottoms} {tops} {more} }}\n'


PRODUCT = "inner_product_param { num_output: 4 }"
HEAD = layer("InnerProduct", PRODUCT, top="h", name="h")


def phased(phase: str, batch: int) -> str:
    return layer(
        "Data",
        f"include {{ phase: {phase} }} data_param {{ batch_size: {batch} }}"
        " transform_param { crop_size: 6 }",
        "",
        "data label",
        "images",
    )


def network(text: str, phase: str = "infer", batch: int | None = None, **how: Any) -> Graph:
    """The checked graph of a text, in training with its gradients."""
    family = read(Source("net.prototxt", text.encode()), how.get("allow_unknown", False))
    training = phase == "train"
    b = Builder("net", precision(how.get("dtype", "float32")), training)
    graph = b.graph(family.build(b, {}, batch or family.batch))
    check(graph)
    if training:
        check(training_graph(graph, "sgd"))
    return graph


def shape(graph: Graph, name: str = "y") -> tuple[int, ...]:
    return graph.tensors[name].shape


def one(kind: str, more: str = "", **how: Any) -> Graph:
    """The graph of a single layer `y` over a blob [2, 3, 8, 10]."""
    return network(DATA + layer(kind, more), **how)


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def flop(graph: Graph, name: str = "y") -> int:
    return next(op.flop for op in count(graph).ops if op.name == name)


def fault(text: str, phase: str = "infer", **how: Any) -> str:
    with pytest.raises((InputError, ShapeError)) as caught:
        network(text, phase, **how)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message
