"""Small networks of Keras as JSON, and the numbers of their graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steptime.build import build, make_workload, read_model
from steptime.core.graph import Graph
from steptime.network.count import count


def layer(kind: str, name: str, *inputs: str, **config: Any) -> dict[str, Any]:
    """A layer as Keras 3 writes it; `inputs` are the layers that it reads."""
    tensors = [
        {"class_name": "__keras_tensor__", "config": {"keras_history": [source, 0, 0]}}
        for source in inputs
    ]
    args = [tensors] if len(tensors) > 1 else tensors
    return {
        "module": "keras.layers",
        "class_name": kind,
        "config": {"name": name, "trainable": True, **config},
        "registered_name": None,
        "name": name,
        "inbound_nodes": [{"args": args, "kwargs": {}}] if inputs else [],
    }


def input_layer(name: str, *shape: int | None, dtype: str = "float32") -> dict[str, Any]:
    return layer("InputLayer", name, batch_shape=[None, *shape], dtype=dtype)


def functional(*layers: dict[str, Any], inputs: tuple[str, ...] = ("x",)) -> dict[str, Any]:
    """A Functional network whose output is that of the last layer."""
    return {
        "module": "keras",
        "class_name": "Functional",
        "config": {
            "name": "net",
            "layers": list(layers),
            "input_layers": [[name, 0, 0] for name in inputs],
            "output_layers": [[layers[-1]["name"], 0, 0]],
        },
        "registered_name": "Functional",
    }


def sequential(*layers: dict[str, Any]) -> dict[str, Any]:
    for table in layers:
        table.pop("inbound_nodes")
    return {"class_name": "Sequential", "config": {"name": "net", "layers": list(layers)}}


def graph_of(
    table: object, folder: Path, settings: str = "", batch: int = 2, **options: Any
) -> Graph:
    """The graph of a network, by default in inference."""
    path = folder / "net.json"
    path.write_text(json.dumps(table))
    choice = read_model(f"{path}{settings}", options.pop("allow_unknown", False))
    return build(make_workload(choice, batch, **{"phase": "infer", **options}))


def flop_of(graph: Graph, kind: str) -> int:
    """FLOP of all ops of a kind."""
    return sum(cost.flop for cost in count(graph).ops if cost.kind == kind)


def buffer_elements(graph: Graph) -> int:
    """Elements of all buffers."""
    return sum(graph.tensors[name].size for name in graph.buffers)
