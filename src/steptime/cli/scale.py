"""The command `scale`: what more devices bring, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from steptime.cli import options, output, scale_table
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.ranges import LARGEST
from steptime.core.units import size
from steptime.predict import DEFAULT

if TYPE_CHECKING:
    from steptime.predict.parallel.collectives import Fabric
    from steptime.predict.parallel.placement import Mode
    from steptime.predict.parallel.scaling import Exchange, ScalingRow
    from steptime.predict.step_model import StepModel
    from steptime.predict.training_cost import Training

PARALLEL = ("data", "model", "hybrid")
MOST_ROWS = 100_000
DEFAULT_WORKERS = "1,2,4,8,16,32,64,128"


def scale(
    model: options.Model,
    device: options.Device,
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="LINK",
            help="What joins the workers (steptime list links) or FILE.toml; needed by more than "
            "one.",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="N",
            help="Examples a step: of each worker in weak scaling, of all in strong scaling. "
            "Default: 64, transformers 1, a file's own.",
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="N,...",
            help="Numbers of workers: 1,2,4 or 1,2,4,...,128 or 1..128 x2. Default: 1,2,4,...,128; "
            "with --parallel model or hybrid the splits of the file.",
        ),
    ] = None,
    scaling: Annotated[
        str,
        typer.Option(
            "--scaling", help="weak: a worker keeps its batch. strong: workers share the batch."
        ),
    ] = "weak",
    parallel: Annotated[
        str,
        typer.Option(
            "--parallel",
            help="data; for files with split layers also model, or hybrid (split layers model "
            "parallel, the others data parallel).",
        ),
    ] = "data",
    collective: Annotated[
        str | None,
        typer.Option(
            "--collective",
            metavar="NAME",
            help="How gradients are added up: one-to-all, tree, butterfly, butterfly-mixing, ring, "
            "halving-doubling, hierarchical or parameter-server. Default: ring, of paleo tree.",
        ),
    ] = None,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap", help="Exchange gradients in buckets during the backward pass (not paleo)."
        ),
    ] = False,
    compression: Annotated[
        str,
        typer.Option("--compression", metavar="F", help="Gradients are exchanged F times smaller."),
    ] = "1",
    per_node: Annotated[
        str | None,
        typer.Option(
            "--per-node", metavar="N", help="Devices a node, for hierarchical. Default 8."
        ),
    ] = None,
    inside: Annotated[
        str | None,
        typer.Option(
            "--inside",
            metavar="LINK",
            help="What joins the devices of a node, for hierarchical. Default: the network.",
        ),
    ] = None,
    links_per_node: Annotated[
        str | None,
        typer.Option(
            "--links-per-node",
            metavar="N",
            help="Links of a node to the network, for hierarchical. Default 1.",
        ),
    ] = None,
    servers: Annotated[
        str | None,
        typer.Option("--servers", metavar="K", help="Parameter servers. Default 1."),
    ] = None,
    latency: Annotated[
        str | None,
        typer.Option(
            "--latency-us", metavar="T", help="Latency of a message over the network (not paleo)."
        ),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option("--samples", metavar="N", help="Examples of an epoch: shows time and cost."),
    ] = None,
    epochs: Annotated[
        str | None, typer.Option("--epochs", metavar="E", help="Epochs of a training. Default 1.")
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            "--price",
            metavar="P",
            help="Price of a device for an hour.",
        ),
    ] = None,
    billing: Annotated[
        str | None,
        typer.Option(
            "--billing",
            help="What is paid: every second (default), or every started hour.",
            metavar="second|hour",
        ),
    ] = None,
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    method: options.Method = DEFAULT,
    option: options.Settings = None,
    allow_unknown: options.AllowUnknown = False,
    json: options.Json = False,
) -> None:
    """Predict training on many workers: time, speed-up and cost.

    A step takes forward + backward + update + the exchange of gradients - what overlaps.
    """
    from steptime.predict.parallel.scaling import SCALINGS, Exchange, stops_paying
    from steptime.predict.step_model import StepModel

    if parallel not in PARALLEL:
        raise unknown("--parallel", parallel, PARALLEL)
    if scaling not in SCALINGS:
        raise unknown("--scaling", scaling, SCALINGS)
    training = _training(samples, epochs, price, billing)
    workload = options.workload_of(model, batch, dtype, "train", optimizer, allow_unknown)
    if parallel == "model":
        _refuse_exchange(inside, per_node, links_per_node, servers)
    link = _fabric(network, inside, per_node, links_per_node, servers, latency)
    found = StepModel(workload, device, link, method, options.pairs(option, "option"))
    if found.as_paleo and latency is not None:
        raise InputError("--latency-us: method paleo knows no latency")
    how = Exchange(collective, _number(compression, "--compression", least=1.0), overlap)
    counts = _workers(workers, parallel)
    rows = _rows(found, parallel, counts, scaling, how)
    bills = [_bill(training, row) for row in rows]
    document: dict[str, Any] = {
        "model": workload.label,
        "device": found.device.name,
        **_of_fabric(found),
        "method": method,
        "options": found.options,
        "batch": workload.batch_per_replica,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
        "scaling": scaling,
        "parallel": parallel,
        "collective": found.collective(collective),
        "overlap": overlap,
        "compression": how.compression,
        "parameters": found.parameters,
        "gradient_bytes": found.gradient_bytes,
        "training": None if training is None else asdict(training),
        "rows": [_row(row, bill) for row, bill in zip(rows, bills, strict=True)],
        "stops_paying": stops_paying(rows),
        "notes": _notes(found, parallel, rows),
        "unmodelled": list(found.graph(workload.batch_per_replica).unmodelled),
    }
    if json:
        ops = {} if parallel == "data" else {"ops": _ops(found, cast("Mode", parallel), rows[0])}
        output.emit_json({**document, **ops})
        return
    scale_table.show(document)


def _rows(
    model: StepModel, parallel: str, counts: Sequence[int] | None, scaling: str, how: Exchange
) -> Sequence[ScalingRow]:
    from steptime.predict.parallel.model_parallel import hybrid, model_parallel
    from steptime.predict.parallel.scaling import data_parallel

    batch = model.workload.batch_per_replica
    model.collective(how.collective)
    if parallel == "data":
        return data_parallel(model, counts or (), batch, scaling, how)
    if counts is not None and len(counts) > 1:
        raise InputError(f"--workers: --parallel {parallel} has one number, the file's splits")
    one = None if counts is None else counts[0]
    if parallel == "hybrid":
        return [hybrid(model, batch, one, scaling, how)]
    if scaling == "strong" or how.overlap or how.compression != 1 or how.collective:
        raise InputError(
            "--parallel model exchanges no gradients and shares no batch: leave out --scaling, "
            "--collective, --overlap and --compression"
        )
    return [model_parallel(model, batch, one)]


def _workers(text: str | None, parallel: str) -> list[int] | None:
    """Give the numbers of workers, sorted; None for those of the file."""
    if text is None and parallel != "data":
        return None
    found = sorted(options.numbers(DEFAULT_WORKERS if text is None else text, "--workers"))
    if len(found) > MOST_ROWS:
        raise InputError(f"--workers: {len(found)} numbers of workers, at most {MOST_ROWS}")
    return found


def _number(text: str, where: str, least: float = 0.0) -> float:
    """Give a finite number above 0 and not below `least`."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0 < value < inf and least <= value <= LARGEST):
        wanted = f"from {least:g} on" if least else "above 0"
        raise InputError(f"{where}: must be a number {wanted}, not {shorten(text)}")
    return value


def _fabric(
    network: str | None,
    inside: str | None,
    per_node: str | None,
    links_per_node: str | None,
    servers: str | None,
    latency: str | None,
) -> Fabric | None:
    """Give what joins the workers, None where nothing does."""
    from dataclasses import replace

    from steptime import catalog
    from steptime.models.family import whole_number
    from steptime.predict.parallel.collectives import GROUP, Fabric

    given = {
        "--inside": inside,
        "--per-node": per_node,
        "--links-per-node": links_per_node,
        "--servers": servers,
        "--latency-us": latency,
    }
    if network is None:
        for name, value in given.items():
            if value is not None:
                raise InputError(f"{name} needs --network LINK")
        return None
    between = catalog.link(network)
    if latency is not None:
        between = replace(between, latency_s=_number(latency, "--latency-us") * 1e-6)
    return Fabric(
        between,
        None if inside is None else catalog.link(inside),
        GROUP if per_node is None else whole_number(per_node, "--per-node"),
        1 if links_per_node is None else whole_number(links_per_node, "--links-per-node"),
        1 if servers is None else whole_number(servers, "--servers"),
    )


def _refuse_exchange(*given: str | None) -> None:
    """Raise `InputError` for what shapes an exchange of gradients, where there is none."""
    names = ("--inside", "--per-node", "--links-per-node", "--servers")
    for name, value in zip(names, given, strict=True):
        if value is not None:
            raise InputError(f"--parallel model exchanges no gradients: leave out {name}")


def _of_fabric(model: StepModel) -> dict[str, Any]:
    """Give what joins the workers, as in the document."""
    fabric = model.fabric
    if fabric is None:
        return {"network": None}
    return {
        "network": fabric.between.name,
        "latency_s": fabric.between.latency_s,
        "inside": None if fabric.inside is None else fabric.inside.name,
        "per_node": fabric.per_node,
        "links_per_node": fabric.links_per_node,
        "servers": fabric.servers,
    }


def _training(
    samples: str | None, epochs: str | None, price: str | None, billing: str | None
) -> Training | None:
    from steptime.models.family import whole_number
    from steptime.predict.training_cost import BILLINGS, Training

    if samples is None:
        for name, value in (("--epochs", epochs), ("--price", price)):
            if value is not None:
                raise InputError(f"{name} needs --samples N, the examples of an epoch")
    if price is None and billing is not None:
        raise InputError("--billing needs --price P")
    if billing is not None and billing not in BILLINGS:
        raise unknown("--billing", billing, BILLINGS)
    if samples is None:
        return None
    return Training(
        whole_number(samples, "--samples"),
        1.0 if epochs is None else _number(epochs, "--epochs"),
        None if price is None else _number(price, "--price"),
        billing or BILLINGS[0],
    )


def _bill(training: Training | None, row: ScalingRow) -> dict[str, float | None]:
    from steptime.predict.training_cost import bill

    if training is None:
        return {}
    return asdict(bill(training, row.step_s, row.global_batch, row.workers))


def _row(row: ScalingRow, bill: Mapping[str, float | None]) -> dict[str, Any]:
    table = asdict(row)
    parts = table.pop("parts")
    return {**table, **parts, **bill}


def _ops(model: StepModel, parallel: Mode, row: ScalingRow) -> list[Any]:
    """Give the layers of a file, each on its device, as far as the row counts them."""
    from steptime.predict.parallel.placement import Node, device_of, nodes

    def one(node: Node) -> dict[str, Any]:
        in_turn = parallel == "model" or node.layer.split is not None
        found: dict[str, Any] = {
            "name": node.layer.name,
            "kind": node.layer.type,
            "device": device_of(node.layer),
        }
        for name, part in (("forward", node.forward), ("backward", node.backward)):
            found |= {
                f"{name}_s": part.total_s if in_turn else part.bound_s,
                f"{name}_compute_s": part.compute_s,
                f"{name}_memory_s": part.memory_s,
            }
        return found | {
            "update_s": node.update_s,
            "fetch_s": node.fetch_s,
            "parameters": node.layer.parameters,
            "flop": round(node.flop),
        }

    return [one(node) for node in nodes(model, row.batch_per_worker, parallel)]


def _notes(model: StepModel, parallel: str, rows: Sequence[ScalingRow]) -> list[str]:
    """Give what a reader must know: what does not fit, what is not counted."""
    from steptime.count import peak_memory_bytes
    from steptime.predict.prediction import fits_into, remarks

    largest = max(row.batch_per_worker for row in rows)
    graph = model.graph(largest)
    notes = list(remarks(graph, model.workload.dtype, model.device, model.settings))
    memory = peak_memory_bytes(graph) if parallel == "data" else 0  # no device holds all splits
    if not fits_into(memory, model.device):
        has = size(model.device.memory_bytes or 0)
        notes.insert(0, f"batch {largest} needs {size(memory)}, {model.device.name} has {has}")
    if model.fabric is not None and not model.as_paleo:
        notes += [
            f"{name}: no latency is known, so none is counted (--latency-us)"
            if name == model.fabric.between.name
            else f"{name}: no latency is known, so none is counted"
            for name in model.fabric.without_latency
        ]
    return notes
