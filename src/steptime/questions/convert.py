"""A network that can be read, or code, as a file of another form: the question `convert`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from steptime.build import build, make_workload, read_model
from steptime.core.answer import Answer
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.files import check_folder, write_atomically
from steptime.core.graph import Graph
from steptime.core.graph_json import graph_to_json
from steptime.core.signatures.kinds import Kind, text_of
from steptime.core.tables.table import Table, make_facts_table
from steptime.core.units import format_value
from steptime.core.workload import PHASES, Workload
from steptime.formats.code import export_code, parse_code, parse_inputs
from steptime.network.count import count
from steptime.questions import kinds, options

Inputs = Annotated[Sequence[str], Kind("NAME=SHAPE:TYPE", names=("--input",))]
EXPORT_ENDING = ".pt2"


class ConvertAnswer(Answer, frozen=True, kw_only=True):
    """A network that was written as a file of another form.

    Attributes:
        model: the network.
        file: the file that was written.
        batch: number of examples for which the file is made.
        phase: train or infer.
        dtype: data type of weights and activations.
        parameters: parameters of the network.
        flop: work of the forward pass.
        op_count: ops of the graph.
        fixed_batch_reason: why the batch of code is fixed; "" where it is free.
        unmodelled: layers of unknown type, which count as nothing.
        notes: remarks.
    """

    model: str
    file: str
    batch: int
    phase: str
    dtype: str
    parameters: int
    flop: int
    op_count: int
    fixed_batch_reason: str
    unmodelled: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the size and the file of the network down the side."""
        rows = [
            ("parameters", format_value("parameters", self.parameters)),
            ("forward work", format_value("flop", self.flop)),
            ("ops", str(self.op_count)),
            ("file", self.file),
        ]
        return [make_facts_table(self.model, "converted", rows)]


@dataclass(frozen=True)
class Target:
    """A form of a file.

    Args:
        write: writes a graph into a file and returns remarks.
        phases: the phases that the form can hold, the default first.
    """

    write: Callable[[Path, Graph, Workload], list[str]]
    phases: tuple[str, ...]


def convert(
    model: kinds.Model,
    input_: Inputs | None = None,
    out: kinds.OutFile | None = None,
    batch: kinds.Batch | None = None,
    phase: kinds.Phase | None = None,
    dtype: kinds.Dtype = "float32",
    allow_unknown: bool = False,
    strict: bool = False,
    batch_axis: kinds.Axis | None = None,
) -> ConvertAnswer:
    """Write a network as a file of another form.

    A MODEL that is code, model.py:UNet, is run to export it: in a process of its own, with PyTorch.

    Args:
        model: A network: a family with its hyperparameters (fc:layers=4,nodes=1024), a name
            (resnet50), a file, or code (model.py:NAME).
        input_: For code: an input with its sizes, the batch first, and its type:
            x=2x3x256x256:float32; may be repeated.
        out: The file to write: .json (a graph), .onnx, .csv (SCALE-Sim) or .pt2 (for code).
            Default: next to the code.
        batch: Examples in a step. Default: 64; for transformers 1; for a file what it states.
        phase: `train` or `infer`. Default: `infer` for .onnx and .csv, else `train`.
        dtype: `float32`, `float64`, `bfloat16` or `float16`; `bfloat16-mixed` or `float16-mixed`
            with weights in `float32`.
        allow_unknown: Accept layers of unknown type in a network's file: they pass their input on
            and count as no work.
        strict: Refuse a network (.onnx, .pt2, code) with an op whose FLOP are unknown. Without this
            option such an op counts by its bytes alone.
        batch_axis: For code: which axis of its first input is the batch. Default: detected.

    Raises:
        InputError: for a network that cannot be read or exported, an unknown ending of `out`, and a
            network that the form cannot hold.
    """
    model_text = options.set_reading(model, strict, batch_axis)
    source = _resolve_source(model_text, list(input_ or ()), None if out is None else Path(out))
    path = source.out
    if path is None:
        endings = ", ".join(TARGET_BY_ENDING)
        raise InputError(f"--out FILE is needed, with one of the endings {endings}")
    target = _choose_target(path, is_code=source.is_code)
    if isinstance(source.model, Workload):
        workload = source.model
    else:
        # An export of code is a file with its batch axis settled, but not yet read strictly. The
        # text of any other model says so already.
        is_strict_export = strict and source.is_code
        text = options.set_reading(source.model, is_strict_export, None)
        # Trusted: the user typed the model, so it may be the user's own code.
        model_choice = read_model(str(text), allow_unknown, trusted=True)
        default_phase = target.phases[0]
        workload = make_workload(model_choice, text_of(batch), dtype, phase or default_phase)
    if workload.phase not in target.phases:
        ending = path.suffix.lower()
        raise InputError(f"--out: {ending} says a network that infers: --phase infer")
    graph = build(workload)
    notes = [*target.write(path, graph, workload), *options.describe_unmodelled(graph.unmodelled)]
    if source.fixed_batch_reason:
        notes.append(f"its batch is fixed: {source.fixed_batch_reason}")
    return ConvertAnswer(
        model=workload.label,
        file=str(path),
        batch=workload.batch_per_replica,
        phase=workload.phase,
        dtype=workload.dtype,
        parameters=graph.parameters,
        flop=count(graph).flop,
        op_count=len(graph.ops),
        fixed_batch_reason=source.fixed_batch_reason,
        unmodelled=tuple(graph.unmodelled),
        notes=tuple(notes),
    )


def _choose_target(path: Path, *, is_code: bool) -> Target:
    """Return the form of the file to write, by its ending.

    Raises:
        InputError: for an unknown ending, and for `.pt2` of a network that is no code.
    """
    ending = path.suffix.lower()
    needs_code = ending == EXPORT_ENDING  # no other source can be exported by PyTorch
    if ending not in TARGET_BY_ENDING or (needs_code and not is_code):
        raise unknown("ending of the new file", ending, TARGET_BY_ENDING, "--out")
    return TARGET_BY_ENDING[ending]


@dataclass(frozen=True)
class _ConvertSource:
    """The network to write.

    Args:
        model: the network, or the file that its code was exported to.
        out: the file to write, or None.
        is_code: the network is code.
        fixed_batch_reason: why the batch of code is fixed; "" where it is free.
    """

    model: kinds.Model
    out: Path | None
    is_code: bool = False
    fixed_batch_reason: str = ""


def _resolve_source(model: kinds.Model, input_texts: list[str], out: Path | None) -> _ConvertSource:
    """Export a network that is code to a `.pt2` file, and return any network with its new file.

    Raises:
        InputError: for inputs of a network that is no code, and for code that cannot be exported.
    """
    # None: the model text names a network or a file, not code such as `model.py:UNet`.
    parsed_code = None if isinstance(model, Workload) else parse_code(str(model))
    inputs = parse_inputs(input_texts, "--input")
    if out is not None:
        check_folder(out)
    if parsed_code is None:
        if inputs:
            raise InputError("--input is of code: model.py:UNet")
        return _ConvertSource(model, out)
    if inputs and parsed_code.inputs:
        raise InputError(f"model {shorten(model)} says its inputs, too; leave out --input")
    code = replace(parsed_code, inputs=inputs or parsed_code.inputs)
    if out is None or out.suffix.lower() == EXPORT_ENDING:
        path, fixed_batch_reason = export_code(code, out or code.default_path)
        return _ConvertSource(str(path), path, is_code=True, fixed_batch_reason=fixed_batch_reason)
    # Any other format is written from the cached export.
    path, fixed_batch_reason = export_code(code)
    return _ConvertSource(str(path), out, is_code=True, fixed_batch_reason=fixed_batch_reason)


def _write_graph(path: Path, graph: Graph, workload: Workload) -> list[str]:
    batch = workload.batch_per_replica
    table = graph_to_json(graph, phase=workload.phase, dtype=workload.dtype, batch=batch)
    write_atomically(path, json.dumps(table) + "\n", f"--out {shorten(path)}")
    return []


def _write_onnx(path: Path, graph: Graph, _: Workload) -> list[str]:
    from steptime.formats.export.onnx import export_onnx
    from steptime.formats.export.onnx_nodes import NoOnnxError

    try:
        content = export_onnx(graph)
    except NoOnnxError as error:
        raise InputError(f"--out {shorten(path)}: {error}") from None
    write_atomically(path, content, f"--out {shorten(path)}")
    return []


def _write_topology(path: Path, graph: Graph, _: Workload) -> list[str]:
    from steptime.energy.scale_sim import topology

    text, omitted = topology(graph)
    write_atomically(path, text, f"--out {shorten(path)}")
    omitted_counts = ", ".join(f"{kind} {number}" for kind, number in omitted.items())
    return [f"no products, so not in the file: {omitted_counts}"] if omitted else []


def _leave_export_unchanged(_path: Path, _graph: Graph, _workload: Workload) -> list[str]:
    """Write nothing: the export is the file."""
    return []


TARGET_BY_ENDING: Mapping[str, Target] = {
    ".json": Target(_write_graph, PHASES),
    ".onnx": Target(_write_onnx, ("infer",)),
    ".csv": Target(_write_topology, ("infer",)),
    EXPORT_ENDING: Target(_leave_export_unchanged, PHASES),
}
"""The forms by the ending of their files."""
