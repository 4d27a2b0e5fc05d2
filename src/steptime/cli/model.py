"""Commands that need no framework: what there is, what a network costs, what it would take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.errors import unknown
from steptime.core.units import QUANTITIES, seconds, si, size

TOPICS = ("models", "devices", "links", "methods", "ops", "quantities", "accelerators")


def list_(
    topic: Annotated[
        str,
        typer.Argument(help="models, devices, links, methods, ops, quantities or accelerators."),
    ] = "models",
    json: options.Json = False,
) -> None:
    """List models, devices, links, methods, accelerators and more."""
    if topic not in TOPICS:
        raise unknown("topic", topic, TOPICS)
    rows = _TOPICS[topic]()
    if json:
        output.emit_json(rows)
        return
    columns = [name for name in rows[0] if (topic, name) not in _ONLY_JSON]
    titles = [_SHOWN[name][0] if name in _SHOWN else name for name in columns]
    output.table(topic, titles, [[_cell(row[name], name) for name in columns] for row in rows])


_OF_DEVICE = ("multiprocessors", "cores", "l2_bytes", "process_nm", "clock_hz", "idle_w", "peak_w")
_ONLY_JSON = {("devices", name) for name in (*_OF_DEVICE, "only_by_name", "details")}
_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {  # key: (title, how a person reads it)
    "peak_flop_per_s": ("peaks", lambda value: si(value, "FLOP/s")),
    "memory_bytes": ("memory", size),
    "memory_bytes_per_s": ("bandwidth", lambda value: si(value, "B/s")),
    "bytes_per_s": ("rate", lambda value: si(value, "B/s")),
    "latency_s": ("latency", seconds),
    "process_nm": ("nm", str),
    "clock_hz": ("clock", lambda value: si(value, "Hz")),
    "area_mm2": ("mm2", str),
    "power_w": ("power", lambda value: si(value, "W")),
}


def _cell(value: Any, name: str) -> object:
    if name == "options":
        return ", ".join(value)
    if name == "published":
        return ", ".join(
            f"{one['workload']} {_FIGURES[one['quantity']](one['value'])}" for one in value
        )
    if isinstance(value, dict):
        return ", ".join(f"{k}={_cell(v, name)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _SHOWN[name][1](value) if name in _SHOWN and value is not None else value


_FIGURES: dict[str, Callable[[float], str]] = {  # quantity: how a person reads it
    "op_per_s": lambda value: si(value, "op/s"),
    "op_per_j": lambda value: si(value, "op/J"),
    "op_per_s_per_mm2": lambda value: si(value, "op/s/mm2"),
    "j_per_op": lambda value: f"{value * 1e12:.4g} pJ/op",
    "examples_per_s": lambda value: f"{value:,.6g} examples/s",
    "examples_per_j": lambda value: f"{value:,.6g} examples/J",
    "latency_s": seconds,
}


def _models() -> list[dict[str, Any]]:
    from steptime.build import model_names
    from steptime.models import family

    rows = []
    for name in model_names():
        found = family(name)
        parameters = {
            key: "..." if callable(p.default) else p.default for key, p in found.parameters.items()
        }
        rows.append({"name": name, "parameters": parameters, "source": found.source})
    return rows


def _devices() -> list[dict[str, Any]]:
    from steptime import catalog

    short: dict[str, list[str]] = {}
    for alias, name in catalog.aliases().items():
        short.setdefault(name, []).append(alias)
    return [
        {
            "name": d.name,
            "kind": d.kind,
            "peak_flop_per_s": dict(d.peak_flop_per_s),
            "memory_bytes": d.memory_bytes,
            "memory_bytes_per_s": d.memory_bytes_per_s,
            **{name: getattr(d, name) for name in _OF_DEVICE},
            "only_by_name": d.only_by_name,
            "details": dict(d.details),
            "aliases": short.get(d.name, []),
            "source": d.source,
        }
        for d in catalog.devices(output.note)
    ]


def _links() -> list[dict[str, Any]]:
    from steptime import catalog

    return [
        {
            "name": link.name,
            "bytes_per_s": link.bytes_per_s,
            "latency_s": link.latency_s,
            "source": link.source,
        }
        for link in (catalog.link(name) for name in catalog.link_names())
    ]


def _methods() -> list[dict[str, Any]]:
    from importlib import import_module
    from inspect import getdoc

    from steptime.predict import METHODS, cost_model

    return [
        {
            "name": name,
            "what": (getdoc(import_module(target.partition(":")[0])) or "").partition("\n")[0],
            "options": {key: option.meaning for key, option in cost_model(name).options.items()},
        }
        for name, target in METHODS.items()
    ]


def _ops() -> list[dict[str, Any]]:
    from steptime.ops import OPS

    return [
        {"kind": kind, "gradient": row.gradient is not None, "source": row.source}
        for kind, row in OPS.items()
    ]


def _quantities() -> list[dict[str, Any]]:
    return [
        {"name": name, "unit": unit, "meaning": meaning}
        for name, (unit, meaning) in QUANTITIES.items()
    ]


def _accelerators() -> list[dict[str, Any]]:
    from dataclasses import asdict

    from steptime.energy.accelerators import designs

    return [
        {
            "name": one.name,
            "process_nm": one.process_nm,
            "clock_hz": one.clock_hz,
            "area_mm2": one.area_mm2,
            "power_w": one.power_w,
            "tables": list(one.networks),
            "published": [asdict(figure) for figure in one.figures],
            "source": one.source,
        }
        for one in designs()
    ]


_TOPICS = {
    "models": _models,
    "devices": _devices,
    "links": _links,
    "methods": _methods,
    "ops": _ops,
    "quantities": _quantities,
    "accelerators": _accelerators,
}


def count(
    model: options.Model,
    batch: options.Batch = None,
    phase: options.Phase = "train",
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    allow_unknown: options.AllowUnknown = False,
    by_op: options.ByOp = False,
    stack: Annotated[
        str,
        typer.Option(
            "--stack", metavar="NAME", help="What runs it: torch-eager, torch-compile, or a file."
        ),
    ] = "torch-eager",
    json: options.Json = False,
) -> None:
    """Count FLOP, bytes, parameters and peak memory of one step.

    A multiply-add is 2 FLOP.
    """
    from steptime import catalog
    from steptime.build import build_step
    from steptime.count import count as count_graph
    from steptime.ops import OPS

    workload = options.workload_of(model, batch, dtype, phase, optimizer, allow_unknown)
    graph = build_step(workload)
    found = count_graph(graph, catalog.stack(stack))
    document: dict[str, Any] = {
        "model": workload.label,
        "batch": workload.batch_per_replica,
        "phase": workload.phase,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
        "parameters": found.parameters,
        "flop": found.flop,
        "traffic_bytes": found.traffic_bytes,
        "stack": stack,
        "executed_flop": round(found.executed_flop),
        "executed_traffic_bytes": round(found.executed_traffic_bytes),
        "kernels": found.kernels,
        "activation_bytes": found.activation_bytes,
        "peak_memory_bytes": found.peak_memory_bytes,
        "unmodelled": list(graph.unmodelled),
    }
    ops: list[dict[str, Any]] = [
        {
            "name": op.name,
            "kind": op.kind,
            "part": op.part,
            "work": OPS[op.kind].work,
            "flop": op.flop,
            "traffic_bytes": op.traffic_bytes,
            "output_shape": list(op.output_shape),
        }
        for op in found.ops
    ]
    if json:
        output.emit_json({**document, "ops": ops})
        return
    _show_count(document, found.flop)
    if by_op:
        output.table(
            "",
            ("op", "kind", "part", "FLOP", "bytes", "output"),
            [
                (
                    op["name"],
                    op["kind"],
                    op["part"],
                    si(op["flop"], "FLOP"),
                    size(op["traffic_bytes"]),
                    "x".join(map(str, op["output_shape"])) or "scalar",
                )
                for op in ops
            ],
        )


def _executed(document: dict[str, Any]) -> str:
    """Return what a stack runs: `61.5 GB in 513 kernels (torch-eager)`."""
    moved = size(document["executed_traffic_bytes"])
    return f"{moved} in {document['kernels']:,} kernels ({document['stack']})"


def _show_count(document: dict[str, Any], flop: int) -> None:
    traffic = document["traffic_bytes"]
    output.table(
        f"{document['model']}, batch {document['batch']}, {document['phase']}, {document['dtype']}",
        ("", "one step"),
        [
            ("parameters", f"{document['parameters']:,}"),
            ("work", f"{si(flop, 'FLOP')} (a multiply-add is 2)"),
            ("traffic", f"{size(traffic)} (every op's inputs and outputs)"),
            ("executed", _executed(document)),
            ("intensity", f"{flop / traffic:.4g} FLOP/byte" if traffic else None),
            ("activations", size(document["activation_bytes"])),
            ("peak memory", size(document["peak_memory_bytes"])),
        ],
    )
    output.unmodelled(document["unmodelled"])
