"""Small networks as Paleo's files have them, and what the tests ask of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op, check
from steptime.core.workload import Workload
from steptime.paleo.layers import Layer

Table = dict[str, Any]


def workload(path: Path, batch: int | None = None, unknown: bool = False, **how: str) -> Workload:
    return make_workload(read_model(str(path), unknown), batch, **how)


def layer(kind: str, *parents: str, **keys: Any) -> Table:
    return {"type": kind, "parents": list(parents), **keys}


def image(*tensor: int) -> Table:
    return {"type": "Input", "parents": [], "tensor": list(tensor)}


def conv(parent: str, *size: int, stride: int = 1, padding: Any = "SAME", **keys: Any) -> Table:
    strides = [1, stride, stride, 1]
    parents = [parent] if parent else []
    return layer(
        "Convolution", *parents, filter=list(size), strides=strides, padding=padding, **keys
    )


def pool(kind: str, parent: str, size: int, stride: int, padding: Any = "VALID") -> Table:
    return layer(
        kind, parent, ksize=[1, size, size, 1], strides=[1, stride, stride, 1], padding=padding
    )


def block(*parents: str, endpoint: str, **layers: Table) -> Table:
    return layer("Block", *parents, endpoint=endpoint, layers=layers)


def split(parent: str, splits: int, **layers: Table) -> Table:
    return layer("ModelParallel", parent, splits=splits, layers=layers)


def written(folder: Path, layers: Mapping[str, Any], name: str = "net.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"name": "a net", "layers": layers}))
    return path


def graph_of(folder: Path, layers: Mapping[str, Any], **how: Any) -> Graph:
    graph = build(workload(written(folder, layers), **how))
    check(graph)
    return graph


def by_name(graph: Graph) -> dict[str, Layer]:
    return {made.name: made for made in graph.source}


def op_of(graph: Graph, name: str) -> Op:
    return next(op for op in graph.ops if op.name == name)


def message(folder: Path, layers: Any) -> str:
    with pytest.raises(InputError) as caught:
        build(workload(written(folder, layers)))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("net.json: ")
    return text.removeprefix("net.json: ")
