"""Requests to an accelerator: the layers of a FODLAM configuration or of a graph."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.graph import Graph, Op
from steptime.core.values import MAX_COUNT
from steptime.formats import parse_json, read_content
from steptime.network.count import op_work
from steptime.network.ops import products_of

KEYS = ("net", "netfile", "layers")


@dataclass(frozen=True)
class ChipLayer:
    """A layer to run.

    `kind` is a kind of op or Caffe's type, and `macs` its multiply-adds for one example; they are
    "" and None for a layer that is looked up in a table.
    """

    name: str
    kind: str = ""
    macs: int | None = None


@dataclass(frozen=True)
class ChipRequest:
    """The layers of a network.

    `net` names the network of the tables in which they are looked up; "" if they are not.
    """

    name: str
    net: str
    layers: tuple[ChipLayer, ...]


def plain_layer(name: str) -> str:
    """Return a layer's name without case and signs, but those between digits.

    `CONV1-1` and `conv1_1` are one and `conv11` another; `FC6` and `fc_6` are one.
    """
    hyphenated = re.sub(r"[^a-z0-9]+", "-", name.lower())
    return re.sub(r"(?<!\d)-|-(?!\d)", "", hyphenated)


def plain_net(name: str) -> str:
    """Return a network's name without its case and signs: `VGG-16` and `vgg16` are one."""
    return re.sub(r"[^a-z0-9]+", "", name.lower())


def is_configuration(table: object) -> bool:
    """Whether a JSON document is a configuration of FODLAM, and no network."""
    return isinstance(table, dict) and (
        "net" in table or "netfile" in table or isinstance(table.get("layers"), list)
    )


def json_document(content: bytes, source: str) -> object:
    """Parse a JSON file; raises `InputError`, which names its `source`, for any other content."""
    try:
        return parse_json(content.decode())
    except (ValueError, RecursionError) as error:
        reason = shorten(str(error).partition("\n")[0] or type(error).__name__)[1:-1]
        raise InputError(f"{source}: is no JSON: {reason}") from None


def request_of_configuration(table: object, source: str, folders: Iterable[Path]) -> ChipRequest:
    """Return the request of a configuration: `net` or `netfile`, and `layers`.

    Args:
        table: the parsed configuration.
        source: the file's name for error messages.
        folders: the folders in which, or below which, a `netfile` may lie.

    Raises:
        InputError: if the configuration or the file that it names is wrong.
    """
    if not isinstance(table, dict):
        raise InputError(f"{source}: must be an object with 'layers' and 'net' or 'netfile'")
    for key in table:
        check_choice("key", key, KEYS, source)
    if ("net" in table) == ("netfile" in table):
        raise InputError(f"{source}: give one of 'net' and 'netfile'")
    key = "net" if "net" in table else "netfile"
    name = table[key]
    if not _is_name(name):
        raise InputError(f"{source}: '{key}' is a name, not {shorten(name)}")
    layer_names = _read_layer_names(table, source)
    if key == "net":  # a network of the chips' tables, in which its layers are looked up
        return ChipRequest(name, net=name, layers=tuple(map(ChipLayer, layer_names)))
    file_layers = _read_net_file(name, source, folders)
    layers = []
    for layer_name in layer_names:
        layer = file_layers.get(plain_layer(layer_name))
        if layer is None:
            names = [layer.name for layer in file_layers.values()]
            raise unknown("layer", layer_name, names, f"{source}, {shorten(name)}")
        layers.append(layer)
    return ChipRequest(name, net="", layers=tuple(layers))  # no network of the chips' tables


def request_of_graph(name: str, graph: Graph) -> ChipRequest:
    """Return the request for the forward ops of a graph of one example."""
    ops = ((op, multiply_adds(graph, op)) for op in graph.ops if op.part == "forward")
    return ChipRequest(name, "", tuple(ChipLayer(op.name, op.kind, macs) for op, macs in ops))


def multiply_adds(graph: Graph, op: Op) -> int:
    """Return the multiply-adds of an op: those of its matrix products, else half of its FLOP."""
    specs = tuple(graph.tensors[name] for name in op.inputs)
    products = products_of(op.kind, specs, op.settings)  # matrix products: (count, m, n, k) each
    if products:
        return sum(map(prod, products))
    flop, _ = op_work(graph, op)
    return flop // 2  # an op without products counts two FLOP as one multiply-add


def _is_name(value: object) -> TypeGuard[str]:
    """Whether a value is a text of one line that can be shown."""
    return isinstance(value, str) and value != "" and value.isprintable()


def _read_layer_names(table: Mapping[str, Any], source: str) -> list[str]:
    names = table.get("layers")
    if not isinstance(names, list) or not names:
        raise InputError(f"{source}: 'layers' must be a list of the layers to add up")
    plain_names = set()
    for name in names:
        if not _is_name(name):
            raise InputError(f"{source}: 'layers': a layer is a name, not {shorten(name)}")
        if plain_layer(name) in plain_names:
            raise InputError(f"{source}: layer {shorten(name)} is listed twice")
        plain_names.add(plain_layer(name))
    return names


def _read_net_file(name: str, source: str, folders: Iterable[Path]) -> dict[str, ChipLayer]:
    """Return the layers of a file by their plain names."""
    path = _find_net_file(name, source, folders)
    label = f"netfile {shorten(name)}"
    rows = json_document(read_content(str(path), "netfile"), label)
    if not isinstance(rows, list):
        raise InputError(f"{label}: must be a list of layers")
    layers: dict[str, ChipLayer] = {}
    for row in rows:
        layer = _parse_layer(row, label)
        key = plain_layer(layer.name)
        if key in layers:
            raise InputError(f"{label}: layer {shorten(layer.name)} is listed twice")
        layers[key] = layer
    return layers


def _find_net_file(name: str, source: str, folders: Iterable[Path]) -> Path:
    """Return the path of a file that lies in one of the folders or below it."""
    searched_folders = list(folders)
    for folder in searched_folders:
        try:
            path = (folder / name).resolve()
            # A configuration of somebody else must not read files elsewhere (`../../secret`).
            is_inside = path.is_relative_to(folder.resolve())
            if is_inside and path.exists():
                return path
        except (OSError, RuntimeError):  # too long, or links in a circle
            raise InputError(f"{source}: netfile {shorten(name)} is no path") from None
        if not is_inside:
            folder_text = shorten(str(folder))
            raise InputError(f"{source}: netfile {shorten(name)} lies outside of {folder_text}")
    searched = " or ".join(shorten(str(folder)) for folder in searched_folders)
    raise InputError(f"{source}: netfile {shorten(name)}: no such file in {searched}")


def _parse_layer(row: object, source: str) -> ChipLayer:
    if not isinstance(row, dict) or not _is_name(row.get("name")):
        raise InputError(f"{source}: a layer is an object with 'name' and 'type'")
    place = f"{source}, layer {shorten(row['name'])}"
    kind, macs = row.get("type"), row.get("macs")
    if not _is_name(kind):
        raise InputError(f"{place}: 'type' must be a text")
    if macs is not None:
        if isinstance(macs, bool) or not isinstance(macs, int):  # True is an int in Python
            raise InputError(f"{place}: 'macs' must be a whole number, not {shorten(macs)}")
        if not 0 <= macs <= MAX_COUNT:
            raise InputError(f"{place}: 'macs' must be from 0 to 2^53, not {shorten(macs)}")
    return ChipLayer(row["name"], kind, macs)
