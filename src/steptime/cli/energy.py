"""The command `energy`: latency and energy of a network on published accelerators."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.units import seconds, si

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steptime.core.graph import Graph
    from steptime.energy.accelerator import Chip, Estimate
    from steptime.energy.request import Request

METHODS = ("accelerator", "fodlam")
STANDARD_INPUT = "standard input"
ESTIMATED_AS = "float16"  # the chips compute in 16 bits
ESTIMATED_ON = "row-stationary-12x14"
_ALL = {"net": "all", "layer": "average", "macs": None}  # a row of the table of layers


def energy(
    network: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG|MODEL",
            help="A configuration of FODLAM (.json with net or netfile), or a network as for "
            "count. Default: a configuration from standard input.",
        ),
    ] = None,
    accelerator: Annotated[
        str,
        typer.Option(
            "--accelerator", metavar="NAME+...", help="The chips, each for its kind of layer."
        ),
    ] = "eyeriss+eie",
    method: Annotated[
        str, typer.Option("--method", help="accelerator, or fodlam: as published.")
    ] = "accelerator",
    process: Annotated[
        str | None,
        typer.Option(
            "--process",
            metavar="NODE",
            help="The process to scale to: 65nm, 45nm-lp, 65nm@1.1V. Default: 65nm.",
        ),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(
            "--scaling",
            metavar="NAME",
            help="dennard (default), constant-voltage, stillmaker-baas or none.",
        ),
    ] = None,
    nets: Annotated[
        Path | None,
        typer.Option(
            "--nets", metavar="DIR", help="Where a netfile is looked for, before its own folder."
        ),
    ] = None,
    dram: Annotated[
        bool, typer.Option("--dram", help="Show the energy of DRAM too, on a line of its own.")
    ] = False,
    diagnose: Annotated[
        bool,
        typer.Option(
            "--diagnose", help="Show cost a multiply-add, and each network from the others."
        ),
    ] = False,
    by_op: options.ByOp = False,
    json: options.Json = False,
) -> None:
    """Estimate latency and energy on published accelerators.

    Of one example; layers run one after another.
    """
    from steptime.energy.accelerator import diagnosis, estimate
    from steptime.energy.fodlam import published_form

    if method not in METHODS:
        raise unknown("method", method, METHODS)
    chips, how = _chips(accelerator, method, process, scaling)
    if diagnose and network is None:
        if by_op or dram or nets is not None:
            raise InputError("--by-op, --dram and --nets need a network beside --diagnose")
        _emit_diagnosis(diagnosis(chips), json)
        return
    request, graph = _request(network, nets)
    found = estimate(request, chips)
    more: dict[str, Any] = {"diagnosis": diagnosis(chips)} if diagnose else {}
    if method == "fodlam":
        for asked, option in ((by_op, "--by-op"), (dram, "--dram")):
            if asked:
                raise InputError(f"{option}: method fodlam prints only what the original does")
        _note_not_covered(found, "counted as nothing")
        output.emit_json({**published_form(found), **more})
        return
    others = None if graph is None else _estimated(graph, found, how)
    if json:
        more |= {"dram": found.dram()} if dram else {}
        output.emit_json({**_document(request, found, how), "estimated": others, **more})
    else:
        _show(request, found, how, dram, by_op, others)
        if diagnose:
            _emit_diagnosis(more["diagnosis"], json=False)


def _chips(
    names: str, method: str, process: str | None, scaling: str | None
) -> tuple[Sequence[Chip], dict[str, Any]]:
    """Give the chips at their process, and how they came there as keys of the answer."""
    from steptime.energy.accelerator import chips_at
    from steptime.energy.accelerators import accelerators
    from steptime.energy.fodlam import PROCESS, SCALING, published_chips
    from steptime.energy.process import read_process

    found = accelerators(names)
    how = {"method": method, "accelerators": [one.name for one in found]}
    if method == "fodlam":
        for value, option in ((process, "--process"), (scaling, "--scaling")):
            if value is not None:
                raise InputError(f"{option} is of method accelerator; fodlam has a fixed one")
        return published_chips(found), how
    to = PROCESS if process is None else read_process(process)
    by = SCALING if scaling is None else scaling
    chips = chips_at(found, to, by)
    return chips, {
        **how,
        "process": to.label,
        "scaling": by,
        "sources": [one.source for one in found],
    }


def _estimated(graph: Graph, found: Estimate, how: dict[str, Any]) -> dict[str, Any]:
    """Give the energy of the ops that no chip covers, by operations: an estimate, no measurement.

    16-bit arithmetic and a row-stationary array, as the chips have; on the way to their process
    where the scaling knows one.
    """
    from steptime.energy.operations import hierarchy, op_energy, sum_energy
    from steptime.energy.process import read_process

    names = {one.name for one in found.not_covered}
    memory = hierarchy(ESTIMATED_ON)
    process, scaling = read_process(how["process"]), how["scaling"]
    rows = [
        row for row in op_energy(graph, ESTIMATED_AS, memory, process, scaling) if row.name in names
    ]
    total = sum_energy(rows)
    return {
        "dtype": ESTIMATED_AS,
        "hierarchy": ESTIMATED_ON,
        "energy_j": total.total_j,
        "energy_low_j": total.low_j,
        "energy_high_j": total.high_j,
        "ops": [{"name": row.name, "energy_j": row.total_j} for row in rows],
    }


def _request(network: str | None, nets: Path | None) -> tuple[Request, Graph | None]:
    """Give what is asked for: a configuration, from a file or standard input, or a network.

    A network comes with its graph.
    """
    from steptime.build import build, make_workload, read_model
    from steptime.energy.request import (
        is_configuration,
        json_document,
        request_of_configuration,
        request_of_graph,
    )
    from steptime.importers import read_content

    places = [] if nets is None else [nets]
    if nets is not None and not nets.is_dir():
        raise InputError(f"--nets {shorten(str(nets))}: no such folder")
    if network is None:
        table = json_document(_standard_input(), STANDARD_INPUT)
        return request_of_configuration(table, STANDARD_INPUT, [*places, Path()]), None
    if network.lower().endswith(".json"):
        table = json_document(read_content(network, "configuration"), network)
        if is_configuration(table):
            places.append(Path(network).parent)
            return request_of_configuration(table, network, places), None
    if nets is not None:
        raise InputError("--nets is for the netfile of a configuration; this is a network")
    choice = replace(read_model(network), batch=None)
    workload = make_workload(choice, 1, phase="infer")
    graph = build(workload)
    return request_of_graph(workload.label, graph), graph


def _standard_input() -> bytes:
    from steptime.importers import LARGEST_FILE_BYTES

    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("give CONFIG or MODEL, or a configuration on standard input")
    content = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{STANDARD_INPUT}: larger than {LARGEST_FILE_BYTES} bytes")
    return content


def _document(request: Request, found: Estimate, how: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": request.name,
        **how,
        **found.sums(),
        "not_covered": [asdict(one) for one in found.not_covered],
        "ops": [asdict(one) for one in found.layers],
    }


def _show(
    request: Request,
    found: Estimate,
    how: dict[str, Any],
    dram: bool,
    by_op: bool,
    others: dict[str, Any] | None,
) -> None:
    title = (
        f"{request.name}, one example on {'+'.join(how['accelerators'])}, "
        f"{how['process']} ({how['scaling']})"
    )
    columns = ("", "latency", "low..high", "energy", "low..high")
    rows = [_row(part, sums) for part, sums in found.sums().items()]
    if dram:
        rows.append(_row("DRAM, not in the total", found.dram()))
    if others is not None and others["ops"]:
        rows.append(_row("other ops, estimated with DRAM", others))
    output.table(title, columns, rows)
    if by_op:
        output.table(
            "", ("op", *columns[1:]), [_row(one.name, asdict(one)) for one in found.layers]
        )
    counted = "counted as nothing" if others is None else "energy estimated, latency left out"
    _note_not_covered(found, counted)


def _note_not_covered(found: Estimate, counted: str) -> None:
    if found.not_covered:
        kinds: dict[str, int] = {}
        for one in found.not_covered:
            kinds[one.kind] = kinds.get(one.kind, 0) + 1
        names = ", ".join(f"{kind} ({count})" for kind, count in kinds.items())
        output.note(f"note: not covered by the chips, {counted}: {names}")


def _row(name: str, found: Mapping[str, Any]) -> tuple[object, ...]:
    latency = found.get("latency_s")
    return (
        name,
        None if latency is None else seconds(latency),
        _range(found.get("latency_low_s"), found.get("latency_high_s"), "s"),
        si(found["energy_j"], "J"),
        _range(found["energy_low_j"], found["energy_high_j"], "J"),
    )


def _range(low: float | None, high: float | None, unit: str) -> str | None:
    if low is None or high is None:
        return None
    return f"{si(low, unit)} .. {si(high, unit)}"


def _emit_diagnosis(found: dict[str, list[dict[str, Any]]], json: bool) -> None:
    if json:
        output.emit_json(found)
        return
    output.table(
        "cost a multiply-add of each measured layer",
        ("accelerator", "net", "layer", "MAC", "time", "energy"),
        [
            (
                row["accelerator"],
                row["net"],
                row["layer"],
                f"{row['macs']:,}" if row["macs"] else None,
                f"{row['latency_s_per_mac'] * 1e12:.4g} ps",
                f"{row['energy_j_per_mac'] * 1e12:.4g} pJ",
            )
            for row in [*found["layers"], *({**one, **_ALL} for one in found["averages"])]
        ],
    )
    output.table(
        "each network from the others of its table",
        ("accelerator", "net", "latency", "predicted", "ratio", "energy", "predicted", "ratio"),
        [
            (
                row["accelerator"],
                row["net"],
                seconds(row["latency_s"]),
                seconds(row["predicted_latency_s"]),
                f"{row['latency_ratio']:.3f}",
                si(row["energy_j"], "J"),
                si(row["predicted_energy_j"], "J"),
                f"{row['energy_ratio']:.3f}",
            )
            for row in found["cross"]
        ],
    )
    if found["rivals"]:
        output.table(
            "other platforms of the papers, over the accelerator (geometric means of layers)",
            ("accelerator", "platform", "weights", "batch", "latency", "energy"),
            [
                (
                    row["accelerator"],
                    row["platform"],
                    row["weights"],
                    row["batch"],
                    f"{row['latency_ratio']:.4g} x",
                    f"{row['energy_ratio']:,.0f} x",
                )
                for row in found["rivals"]
            ],
        )
