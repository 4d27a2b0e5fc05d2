"""Reading of a `.pt2` file: its document, the program in it, and which weights are tied."""

import json
import re
from collections.abc import Mapping
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.units import first_of
from steptime.formats import Source, parse_json_file
from steptime.formats.archive import read_member
from steptime.formats.code import ASSUMED, read_export_facts
from steptime.formats.pytorch.program import CheckpointedTensors, Program, SizeLimits

SCHEMA_VERSION = 8
_DOCUMENT = re.compile(r"([^/]*/)?models/model\.json")
_WEIGHTS = re.compile(r"([^/]*/)?data/weights/model_weights_config\.json")


def read_document(source: Source) -> Any:
    """Return the values of a file's `models/model.json`; raises `InputError`."""
    content = read_member(source, _DOCUMENT.fullmatch, "models/model.json of torch.export.save")
    return parse_json_file(content, f"model {shorten(source.path)}: model.json")


def read_program(
    document: Any, ties: Mapping[str, str] | None, export_facts: Mapping[str, Any] | None = None
) -> Program:
    """Return the program that a file holds.

    Args:
        document: the values of its `models/model.json`.
        ties: the second names of tied weights (`read_ties`); None if the file does not state them.
        export_facts: what our own export says of the code beside the program.

    Raises:
        InputError: if the file has another version of the schema.
    """
    _check_schema(document["schema_version"]["major"])
    program = Program()
    module = document["graph_module"]
    program.add_graph(module["graph"])
    _add_signature(program, module["signature"])
    for symbol, limits in document["range_constraints"].items():
        program.symbol_limits[symbol] = _read_size_limits(limits)
    _add_export_facts(program, export_facts or {})
    # inputs and buffers have no gradient either, but are no weights
    program.frozen_weights &= program.weight_paths.keys()
    # None: the file does not say which weights are tied
    if ties is None:
        program.tie_doubt = _describe_tie_doubt(program)
    _tie_weights(program, ties or {})
    return program


def _check_schema(version: object) -> None:
    """Raise `InputError` for another version of torch.export's schema."""
    if version != SCHEMA_VERSION:
        fault = f"version {shorten(version)} of torch.export's schema"
        raise InputError(f"{fault}; this reads {SCHEMA_VERSION}")


def _add_signature(program: Program, signature: Mapping[str, Any]) -> None:
    """Note the inputs, weights and outputs of a program."""
    for input_spec in signature["input_specs"]:
        _add_input(program, input_spec)
    for output_spec in signature["output_specs"]:
        _add_output(program, output_spec)


def _read_size_limits(limits: Mapping[str, Any]) -> SizeLimits:
    """Return the smallest and the largest value of an open size; a null limit is none."""
    lowest = int(limits["min_val"] or 0)
    highest = None if limits["max_val"] is None else int(limits["max_val"])
    return SizeLimits(lowest, highest)


def _add_export_facts(program: Program, export_facts: Mapping[str, Any]) -> None:
    """Note what our own export says: its assumptions, and tensors that checkpointing drops."""
    program.remarks += map(str, export_facts.get(ASSUMED, ()))
    for names, to_end in export_facts.get("checkpoints", ()):
        program.checkpoints.append(CheckpointedTensors(frozenset(names), bool(to_end)))


def _add_input(program: Program, input_spec: Mapping[str, Any]) -> None:
    """Note a parameter, a buffer or an input of the program's signature."""
    ((kind, spec),) = input_spec.items()  # an object of one key
    if "arg" not in spec:  # a number given at export: nodes state its value
        return
    argument = spec["arg"]
    is_tensor = "as_tensor" in argument
    name = (argument.get("as_tensor") or argument).get("name")
    if kind == "parameter":
        program.weight_paths[name] = spec["parameter_name"]
    elif kind in {"buffer", "tensor_constant"}:
        program.buffer_paths[name] = spec[f"{kind}_name"]
    elif kind == "user_input" and is_tensor:
        program.inputs.append(name)


def _add_output(program: Program, output_spec: Mapping[str, Any]) -> None:
    """Note an output of the program's signature."""
    ((kind, spec),) = output_spec.items()  # an object of one key
    if kind in {"user_output", "loss_output"} and "as_tensor" in spec["arg"]:
        program.outputs.append(spec["arg"]["as_tensor"]["name"])


def read_ties(source: Source) -> dict[str, str] | None:
    """Return the second names of tied weights, each with the first; None if the file cannot say.

    Our exports state them. torch.export keeps tied weights as one member of the archive, but so it
    does all weights on the meta device, which have no storage.
    """
    export_facts = read_export_facts(source)
    if "tied" in export_facts:
        return dict(export_facts["tied"])
    try:
        content = read_member(source, _WEIGHTS.fullmatch, "data/weights/model_weights_config.json")
    except InputError:
        return None
    weights = parse_json_file(content, f"model {shorten(source.path)}: weights")["config"]
    return _find_shared_weights(weights)


def _find_shared_weights(weights: Mapping[str, Any]) -> dict[str, str] | None:
    """Return weights that share storage and layout with one before, by the path of that one.

    None if a weight lies on the meta device: all of these share one storage, tied or not.

    Args:
        weights: by path, a weight as torch.export describes it.
    """
    first_path_by_storage: dict[str, str] = {}
    first_path_by_tied_path: dict[str, str] = {}
    for path, weight in weights.items():
        lacks_storage = weight["tensor_meta"]["device"]["type"] == "meta"
        if lacks_storage:
            return None
        first_path = first_path_by_storage.setdefault(_storage_key(weight), path)
        if first_path != path:
            first_path_by_tied_path[path] = first_path
    return first_path_by_tied_path


def _storage_key(weight: Mapping[str, Any]) -> str:
    """Return a text that is equal for weights of the same storage and layout."""
    meta = weight["tensor_meta"]
    layout = [meta["sizes"], meta["strides"], meta["storage_offset"]]
    return json.dumps([weight["path_name"], *layout])


def _tie_weights(program: Program, ties: Mapping[str, str]) -> None:
    """Give tied weights one path: that of the first which a node reads."""
    tensors_read = _list_tensors_read(program)
    for first_path, tied_names in _group_tied_names(program, ties).items():
        specs = {program.specs[name] for name in tied_names}
        if len(specs) > 1:
            raise ValueError(f"tied weights of unlike shapes, {shorten(first_path)}")
        # Only weights that an op reads get into the graph, so the common path is one of theirs.
        names_read = [name for name in tied_names if name in tensors_read]
        first_name = names_read[0] if names_read else tied_names[0]
        common_path = program.weight_paths[first_name]
        program.weight_paths.update(dict.fromkeys(tied_names, common_path))


def _list_tensors_read(program: Program) -> set[str]:
    """Return the names of the tensors that nodes of a program read."""
    return {name for node in program.nodes for name in node.input_names}


def _group_tied_names(program: Program, ties: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the tensors of each weight, by the first of the weight's paths."""
    names_by_first_path: dict[str, list[str]] = {}
    for name, path in program.weight_paths.items():
        first_path = ties.get(path, path)
        names_by_first_path.setdefault(first_path, []).append(name)
    return names_by_first_path


def _describe_tie_doubt(program: Program) -> str:
    """Say which weights of a file without ties may be second names; "" for none.

    These are weights that no node reads, and that have the shape of one that a node reads.
    """
    tensors_read = _list_tensors_read(program)
    specs_of_read_weights = {
        program.specs[name] for name in program.weight_paths if name in tensors_read
    }
    doubtful_paths: list[str] = []
    for name, path in program.weight_paths.items():
        is_unread = name not in tensors_read
        # a weight that nothing reads may be a second name of one of its shape
        may_be_second_name = program.specs[name] in specs_of_read_weights
        if is_unread and may_be_second_name:
            doubtful_paths.append(path)
    if not doubtful_paths:
        return ""
    paths = first_of(map(shorten, doubtful_paths), 3)
    return f"the file does not say whether {paths}, which no op reads, are tied; counted apart"
