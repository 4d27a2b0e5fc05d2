"""A small `.pt2` file made by hand, without PyTorch: a product, a ReLU, a bias, a free batch."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path
from typing import Any

BATCH = "Symbol('s77', positive=True, integer=True)"


def tensor(*sizes: int | str, dtype: int = 7) -> dict[str, Any]:
    shape = [
        {"as_int": n} if isinstance(n, int) else {"as_expr": {"expr_str": n, "hint": {"as_int": 2}}}
        for n in sizes
    ]
    return {"dtype": dtype, "sizes": shape}


def node(op: str, output: str, scope: str = "", **arguments: Any) -> dict[str, Any]:
    return {
        "target": f"torch.ops.aten.{op}",
        "inputs": [{"name": name, "arg": value} for name, value in arguments.items()],
        "outputs": [{"as_tensor": {"name": output}}],
        "metadata": {"nn_module_stack": f"L,{scope},torch.nn.Module"} if scope else {},
    }


def of(name: str) -> dict[str, Any]:
    return {"as_tensor": {"name": name}}


def document() -> dict[str, Any]:
    values = {
        "w": tensor(5, 4),
        "b": tensor(5),
        "x": tensor(BATCH, 4),
        "linear": tensor(BATCH, 5),
        "relu": tensor(BATCH, 5),
        "view": tensor(f"Mul(Integer(5), {BATCH})"),
    }
    nodes = [
        node("linear.default", "linear", "fc", input=of("x"), weight=of("w"), bias=of("b")),
        node("relu.default", "relu", "act", self=of("linear")),
        node("view.default", "view", self=of("relu"), size={"as_ints": [-1]}),
    ]
    specs = [
        {"parameter": {"arg": {"name": "w"}, "parameter_name": "fc.weight"}},
        {"parameter": {"arg": {"name": "b"}, "parameter_name": "fc.bias"}},
        {"user_input": {"arg": of("x")}},
    ]
    graph = {"nodes": nodes, "tensor_values": values, "sym_int_values": {}}
    signature = {"input_specs": specs, "output_specs": [{"user_output": {"arg": of("view")}}]}
    return {
        "schema_version": {"major": 8, "minor": 20},
        "range_constraints": {"s77": {"min_val": 0, "max_val": None}},
        "graph_module": {"graph": graph, "signature": signature},
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the document with the value at `a.0.b` another one."""
    made = copy.deepcopy(document())
    *way, last = path.split(".")
    place: Any = made
    for step in way:
        place = place[int(step) if isinstance(place, list) else step]
    place[int(last) if isinstance(place, list) else last] = value
    return made


def write(path: Path, content: Any, compression: int = zipfile.ZIP_STORED, **more: str) -> Path:
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("net/models/model.json", text)
        for name, held in more.items():
            archive.writestr(name, held)
    return path
