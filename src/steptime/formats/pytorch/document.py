"""Reading of a `.pt2` file: its document, the program in it, and which weights are tied."""

import json
import re
from collections.abc import Mapping
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.units import first_of
from steptime.formats import Source, parse_json_file
from steptime.formats.archive import read_member
from steptime.formats.code import read_export_facts
from steptime.formats.pytorch.program import CheckpointedTensors, Program

SCHEMA_VERSION = 8
_DOCUMENT = re.compile(r"([^/]*/)?models/model\.json")
_WEIGHTS = re.compile(r"([^/]*/)?data/weights/model_weights_config\.json")


def read_document(source: Source) -> Any:
    """Return the values of a file's `models/model.json`; raises `InputError`."""
    content = read_member(source, _DOCUMENT.fullmatch, "models/model.json of torch.export.save")
    return parse_json_file(content, f"model {shorten(source.path)}: model.json")


def read_program(
    document: Any, ties: Mapping[str, str] | None, about: Mapping[str, Any] | None = None
) -> Program:
    """Return the program that a file holds.

    Args:
        document: the values of its `models/model.json`.
        ties: the second names of tied weights (`read_ties`); None if the file does not state them.
        about: what our own export says of the code beside the program.

    Raises:
        InputError: if the file has another version of the schema.
    """
    version = document["schema_version"]["major"]
    if version != SCHEMA_VERSION:
        fault = f"version {shorten(version)} of torch.export's schema"
        raise InputError(f"{fault}; this reads {SCHEMA_VERSION}")
    program = Program()
    module = document["graph_module"]
    program.add_graph(module["graph"])
    for input_spec in module["signature"]["input_specs"]:
        _add_input(program, input_spec)
    for output_spec in module["signature"]["output_specs"]:
        _add_output(program, output_spec)
    for symbol, limits in document["range_constraints"].items():
        low, high = limits["min_val"], limits["max_val"]
        program.ranges[symbol] = int(low or 0), None if high is None else int(high)
    for names, to_end in (about or {}).get("checkpoints", ()):
        program.checkpoints.append(CheckpointedTensors(frozenset(names), bool(to_end)))
    program.frozen &= program.weights.keys()
    if ties is None:
        program.doubt = _describe_doubt(program)
    _tie_weights(program, ties or {})
    return program


def _add_input(program: Program, input_spec: Mapping[str, Any]) -> None:
    """Note a parameter, a buffer or an input of the program's signature."""
    ((kind, spec),) = input_spec.items()
    if "arg" not in spec:  # a number given at export: nodes state its value
        return
    name = (spec["arg"].get("as_tensor") or spec["arg"]).get("name")
    if kind == "parameter":
        program.weights[name] = spec["parameter_name"]
    elif kind in {"buffer", "tensor_constant"}:
        program.buffers[name] = spec[f"{kind}_name"]
    elif kind == "user_input" and "as_tensor" in spec["arg"]:
        program.inputs.append(name)


def _add_output(program: Program, output_spec: Mapping[str, Any]) -> None:
    """Note an output of the program's signature."""
    ((kind, spec),) = output_spec.items()
    if kind in {"user_output", "loss_output"} and "as_tensor" in spec["arg"]:
        program.outputs.append(spec["arg"]["as_tensor"]["name"])


def read_ties(source: Source) -> dict[str, str] | None:
    """Return the second names of tied weights, each with the first; None if the file cannot say.

    Our exports state them. torch.export keeps tied weights as one member of the archive, but so it
    does all weights on the meta device, which have no storage.
    """
    about = read_export_facts(source)
    if "tied" in about:
        return dict(about["tied"])
    try:
        content = read_member(source, _WEIGHTS.fullmatch, "data/weights/model_weights_config.json")
    except InputError:
        return None
    first_paths: dict[str, str] = {}
    ties: dict[str, str] = {}
    weights = parse_json_file(content, f"model {shorten(source.path)}: weights")["config"]
    for path, row in weights.items():
        meta = row["tensor_meta"]
        if meta["device"]["type"] == "meta":
            return None
        layout = [meta["sizes"], meta["strides"], meta["storage_offset"]]
        view = json.dumps([row["path_name"], *layout])
        first_path = first_paths.setdefault(view, path)
        if first_path != path:
            ties[path] = first_path
    return ties


def _tie_weights(program: Program, ties: Mapping[str, str]) -> None:
    """Give tied weights one path: that of the first which a node reads."""
    read_names = {name for node in program.nodes for name in node.tensors}
    groups: dict[str, list[str]] = {}  # the names of a weight, by its first path
    for name, path in program.weights.items():
        first_path = ties.get(path, path)
        groups.setdefault(first_path, []).append(name)
    for first_path, names in groups.items():
        specs = {program.specs[name] for name in names}
        if len(specs) > 1:
            raise ValueError(f"tied weights of unlike shapes, {shorten(first_path)}")
        first_read = next((name for name in names if name in read_names), names[0])
        path = program.weights[first_read]
        program.weights.update(dict.fromkeys(names, path))


def _describe_doubt(program: Program) -> str:
    """Say which weights of a file without ties may be second names; "" for none.

    These are weights that no node reads, and that have the shape of one that a node reads.
    """
    read_names = {name for node in program.nodes for name in node.tensors}
    read_specs = {program.specs[name] for name in program.weights if name in read_names}
    paths = [
        path
        for name, path in program.weights.items()
        if name not in read_names and program.specs[name] in read_specs
    ]
    if not paths:
        return ""
    names = first_of(map(shorten, paths), 3)
    return f"the file does not say whether {names}, which no op reads, are tied; counted apart"
