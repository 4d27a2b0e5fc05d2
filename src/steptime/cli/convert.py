"""The command `convert`: a network that can be read, or code, as a file of another form."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.files import check_folder, write_whole
from steptime.core.graph import Graph
from steptime.core.graph_json import graph_to_json
from steptime.core.question import File, Text, optional, question
from steptime.core.table import Answer, facts, picked
from steptime.core.units import shown
from steptime.core.workload import PHASES, Workload
from steptime.formats.code import code_of, file_of, inputs_of
from steptime.network.count import count
from steptime.questions import options
from steptime.questions.options import unmodelled


@question(long="exporting")
def convert(
    model: options.Model,
    input_: list[str] | None = optional(
        "NAME=SHAPE:TYPE",
        "Of code: an input, x=2x3x256x256:float32, its first size the batch; repeatable.",
    ),
    out: File = optional(
        "--out -o FILE",
        "Where it goes: .json (a graph), .onnx, .csv (SCALE-Sim) or .pt2 (of code). "
        "Default: beside the code.",
    ),
    batch: options.Batch = None,
    phase: Text = optional(
        "NAME", "train or infer. Default: infer for .onnx and .csv, else train."
    ),
    dtype: options.Dtype = "float32",
    allow_unknown: options.AllowUnknown = False,
) -> Answer:
    """Write a network as a file of another form.

    A MODEL that is code, model.py:UNet, is run to export it: in a process of its own, with PyTorch.
    """
    code, static = code_of(model), ""
    given = inputs_of(input_ or [], "--input")
    if code is None and given:
        raise InputError("--input is of code: model.py:UNet")
    if out is not None:
        check_folder(out)
    if code is not None:
        if given and code.inputs:
            raise InputError(f"model {shorten(model)} says its inputs, too; leave out --input")
        code = type(code)(code.where, code.name, given or code.inputs)
        is_last = out is None or out.suffix.lower() == ".pt2"
        path, static = file_of(code, (out or code.beside) if is_last else None)
        model, out = str(path), path if is_last else out
    if out is None:
        raise InputError(f"-o FILE is needed, with one of the endings {', '.join(TARGETS)}")
    ending = out.suffix.lower()
    if ending not in TARGETS or (ending == ".pt2" and code is None):
        raise unknown("ending of the new file", ending, TARGETS, "-o")
    write, phases = TARGETS[ending]
    phase = phases[0] if phase is None else phase
    workload = make_workload(read_model(model, allow_unknown, trusted=True), batch, dtype, phase)
    if workload.phase not in phases:
        raise InputError(f"-o: {ending} says a network that infers: --phase infer")
    graph = build(workload)
    notes = write(out, graph, workload)
    document = {
        "model": workload.label,
        "file": str(out),
        "batch": workload.batch_per_replica,
        **picked(workload, "phase dtype"),
        "parameters": graph.parameters,
        "flop": count(graph).flop,
        "ops": len(graph.ops),
        "static": static,
        "unmodelled": list(graph.unmodelled),
    }
    words = {"parameters": "parameters", "flop": "forward work", "ops": "ops", "file": "file"}
    rows = [(word, shown(key, document[key])) for key, word in words.items()]
    notes += unmodelled(graph.unmodelled)
    if static:
        notes.append(f"note: its batch is fixed: {static}")
    return Answer(document, [facts(workload.label, "converted", rows)], notes)


def _graph(path: Path, graph: Graph, workload: Workload) -> list[str]:
    batch = workload.batch_per_replica
    table = graph_to_json(graph, phase=workload.phase, dtype=workload.dtype, batch=batch)
    write_whole(path, json.dumps(table) + "\n", f"-o {shorten(path)}")
    return []


def _onnx(path: Path, graph: Graph, _: Workload) -> list[str]:
    from steptime.formats.export.onnx import model_of
    from steptime.formats.export.onnx_nodes import NoOnnxError

    try:
        content = model_of(graph)
    except NoOnnxError as error:
        raise InputError(f"-o {shorten(path)}: {error}") from None
    write_whole(path, content, f"-o {shorten(path)}")
    return []


def _topology(path: Path, graph: Graph, _: Workload) -> list[str]:
    from steptime.energy.scale_sim import topology

    text, left = topology(graph)
    write_whole(path, text, f"-o {shorten(path)}")
    said = ", ".join(f"{kind} {count}" for kind, count in left.items())
    return [f"note: no products, so not in the file: {said}"] if left else []


Write = Callable[[Path, Graph, Workload], list[str]]  # returns notes
TARGETS: Mapping[str, tuple[Write, tuple[str, ...]]] = {  # and phases, the first by default
    ".json": (_graph, PHASES),
    ".onnx": (_onnx, ("infer",)),
    ".csv": (_topology, ("infer",)),
    ".pt2": (lambda *_: [], PHASES),  # the export is the file
}
