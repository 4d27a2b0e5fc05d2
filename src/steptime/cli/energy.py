"""The command `energy`: latency and energy of a network on published accelerators."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError, shorten
from steptime.core.graph import Graph
from steptime.core.printers import json_text
from steptime.core.progress import note
from steptime.core.question import File, Text, argument, choice, flag, option, optional, question
from steptime.core.table import Answer, Table, columns
from steptime.core.units import shown
from steptime.energy.accelerator import (
    PROCESS,
    SCALING,
    Chip,
    Estimate,
    chips_at,
    diagnosis,
    estimate,
    published_chips,
    published_form,
)
from steptime.energy.accelerators import accelerators
from steptime.energy.operations import estimated_energy
from steptime.energy.process import beyond, read_process
from steptime.energy.request import (
    ChipRequest,
    is_configuration,
    json_document,
    request_of_configuration,
    request_of_graph,
)
from steptime.formats import LARGEST_FILE_BYTES, read_content
from steptime.questions import options

METHODS = ("accelerator", "fodlam")
STANDARD_INPUT = "standard input"


@question()
def energy(
    network: Text = argument(
        "CONFIG|MODEL",
        "A configuration of FODLAM (.json with net or netfile), or a network as for "
        "count. Default: a configuration from standard input.",
        None,
    ),
    accelerator: str = option("NAME+...", "The chips, each for its kind of layer.", "eyeriss+eie"),
    method: str = choice(METHODS, "accelerator, or fodlam: as published.", default=METHODS[0]),
    process: Text = optional(
        "NODE", "The process to scale to: 65nm (default), 45nm-lp, 65nm@1.1V."
    ),
    scaling: Text = optional(
        "NAME", "dennard (default), constant-voltage, stillmaker-baas or none."
    ),
    nets: File = optional("DIR", "Where a netfile is looked for, before its own folder."),
    dram: bool = flag("Show the energy of DRAM too, on a line of its own."),
    diagnose: bool = flag("Show cost a multiply-add, and each network from the others."),
    by_op: options.ByOp = False,
) -> Answer:
    """Estimate latency and energy on published accelerators.

    Of one example; layers run one after another.
    """
    chips, how = _chips(accelerator, method, process, scaling)
    rivals: dict[str, Any] = {"diagnosis": diagnosis(chips)} if diagnose else {}
    tables = _diagnosis(rivals["diagnosis"]) if diagnose else []
    if diagnose and network is None:
        if by_op or dram or nets is not None:
            raise InputError("--by-op, --dram and --nets need a network beside --diagnose")
        return Answer(rivals["diagnosis"], tables)
    request, graph = _request(network, nets)
    found = estimate(request, chips)
    if method == "fodlam":
        given = {"--by-op": by_op, "--dram": dram}
        options.refuse(given, "{}: method fodlam prints only what the original does")
        for line in _notes(found, "counted as nothing"):
            note(line)
        document = {**published_form(found), **rivals}
        return Answer(document, text=json_text(document))
    missing = {one.name for one in found.not_covered}
    others = None if graph is None else estimated_energy(graph, missing, how)
    document = {
        "model": request.name,
        **how,
        **found.sums(),
        "not_covered": [asdict(one) for one in found.not_covered],
        "supposed_pruned": list(found.supposed_pruned),
        "ops": [asdict(one) for one in found.layers],
        "estimated": others,
        **rivals,
        **({"dram": found.dram()} if dram else {}),
    }
    shown_first = _tables(document, by_op)
    counted = "counted as nothing" if others is None else "energy estimated, latency left out"
    notes = _notes(found, counted)
    if how["scaling"] != "none" and (said := beyond(read_process(how["process"]))):
        notes.append(f"note: {said}: scaled by the rule of {how['scaling']} alone")
    return Answer(document, [*shown_first, *tables], notes)


def _chips(
    names: str, method: str, process: str | None, scaling: str | None
) -> tuple[Sequence[Chip], dict[str, Any]]:
    """Return the chips at their process, and how they came there as keys of the answer."""
    found = accelerators(names)
    how: dict[str, Any] = {"method": method, "accelerators": [one.name for one in found]}
    if method == "fodlam":
        given = {"--process": process, "--scaling": scaling}
        options.refuse(given, "{} is of method accelerator; fodlam has a fixed one")
        return published_chips(found), how
    to = PROCESS if process is None else read_process(process)
    by = SCALING if scaling is None else scaling
    how |= {"process": to.label, "scaling": by, "sources": [one.source for one in found]}
    return chips_at(found, to, by), how


def _request(network: str | None, nets: Path | None) -> tuple[ChipRequest, Graph | None]:
    """Return what is asked for: a configuration, from a file or standard input, or a network.

    A network comes with its graph.
    """
    places = [] if nets is None else [nets]
    if nets is not None and not nets.is_dir():
        raise InputError(f"--nets {shorten(str(nets))}: no such folder")
    if network is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError("give CONFIG or MODEL, or a configuration on standard input")
        content = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
        if len(content) > LARGEST_FILE_BYTES:
            raise InputError(f"{STANDARD_INPUT}: larger than {LARGEST_FILE_BYTES} bytes")
        table = json_document(content, STANDARD_INPUT)
        return request_of_configuration(table, STANDARD_INPUT, [*places, Path()]), None
    if network.lower().endswith(".json"):
        table = json_document(read_content(network, "configuration"), network)
        if is_configuration(table):
            places.append(Path(network).parent)
            return request_of_configuration(table, network, places), None
    if nets is not None:
        raise InputError("--nets is for the netfile of a configuration; this is a network")
    workload = make_workload(
        replace(read_model(network, trusted=True), batch=None), 1, phase="infer"
    )
    graph = build(workload)
    return request_of_graph(workload.label, graph), graph


def _tables(document: Mapping[str, Any], by_op: bool) -> list[Table]:
    words = {"conv": "conv", "fc": "fc", "total": "total", "dram": "DRAM, not in the total"}
    if document["estimated"] and document["estimated"]["ops"]:
        words["estimated"] = "other ops, estimated with DRAM"
    rows = [_row(word, document[part]) for part, word in words.items() if part in document]
    said = ("latency_s=latency", "latency=low..high", "energy_j=energy", "energy=low..high")
    chips = "+".join(document["accelerators"])
    title = f"{document['model']}, one example on {chips}, {document['process']}"
    tables = [Table(columns("name=", *said), rows, f"{title} ({document['scaling']})")]
    if by_op:
        ops = [_row(one["name"], one) for one in document["ops"]]
        tables.append(Table(columns("name=op", *said), ops))
    return tables


def _row(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    row = {"name": name, "latency_s": found.get("latency_s"), "energy_j": found["energy_j"]}
    for key, unit in (("latency", "s"), ("energy", "j")):
        low, high = (found.get(f"{key}_{bound}_{unit}") for bound in ("low", "high"))
        known = low is not None and high is not None
        row[key] = f"{shown(unit, low)} .. {shown(unit, high)}" if known else None
    return row


def _notes(found: Estimate, counted: str) -> list[str]:
    kinds = Counter(one.kind for one in found.not_covered)
    names = ", ".join(f"{kind} ({count})" for kind, count in kinds.items())
    lines = [f"note: not covered by the chips, {counted}: {names}"] if kinds else []
    if found.supposed_pruned:
        layers = ", ".join(found.supposed_pruned)
        lines.append(f"note: supposed to be pruned as the measured layers were: {layers}")
    return lines


def _diagnosis(found: dict[str, list[dict[str, Any]]]) -> list[Table]:
    averages = ({**one, "net": "all", "layer": "average", "macs": None}
                for one in found["averages"])  # fmt: skip
    layers = [{**row, "macs": row["macs"] or None} for row in (*found["layers"], *averages)]
    tables = (
        ("cost a multiply-add of each measured layer", layers,
         "net layer macs=MAC latency_s_per_mac=time energy_j_per_mac=energy"),
        ("each network from the others of its table", found["cross"],
         ("net latency_s=latency predicted_latency_s=predicted latency_ratio:.3f=ratio "
          "energy_j=energy predicted_energy_j=predicted energy_ratio:.3f=ratio")),
        ("other platforms of the papers, times the accelerator (geometric means of layers)",
         found["rivals"],
         "platform weights batch latency_ratio:.4g=latency energy_ratio:,.0f=energy"),
    )  # fmt: skip
    return [
        Table(columns("accelerator", *heads.split()), rows, title)
        for title, rows, heads in tables
        if rows
    ]
