"""Read networks of Keras, Functional and Sequential, from their JSON; no code is run.

A Lambda holds code, and a class or function of the user's own is only named in the file: both are
refused by name. Of a `.keras` file, a ZIP archive, only `config.json` is read.
"""

from __future__ import annotations

from collections.abc import Mapping

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.json_types import JsonObject
from steptime.formats import Source, parse_json_file
from steptime.formats.archive import read_member
from steptime.formats.keras.network import (
    MODEL_CLASSES,
    KerasNetwork,
    batch_shape,
    layer_tables,
    network_config,
    open_axes,
)
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder

DEFAULT_SIZES = {"length": 128, "height": 224, "width": 224}  # of axes that a file leaves open


def identity(source: Source) -> bytes:
    """Return the bytes of a file that decide the network: `config.json`, without the weights."""
    if source.path.lower().endswith(".keras"):
        return read_member(source, lambda name: name == "config.json", "config.json")
    return bytes(source.content)


def _list_open_sizes(table: JsonObject, place: str) -> dict[str, Parameter]:
    """Return a hyperparameter for each axis that the shapes of a network's inputs leave open."""
    open_names: set[str] = set()
    for layer_table in layer_tables(network_config(table, place), place):
        shape = batch_shape(layer_table)
        if shape:
            open_names.update(open_axes(shape))
    return {
        name: Parameter(DEFAULT_SIZES[name], f"{name} of inputs") for name in sorted(open_names)
    }


def read(source: Source, allow_unknown: bool) -> Family:
    """Read the network of a file; sizes that it leaves open become hyperparameters."""
    place = shorten(source.name)[1:-1]  # without quotes
    table = parse_json_file(identity(source), f"{place}:")
    if not isinstance(table, dict):
        raise InputError(f"{place}: is not a network of Keras")
    check_choice("kind of network", table.get("class_name"), MODEL_CLASSES, place)
    parameters = _list_open_sizes(table, place)

    def build(b: Builder, sizes: Mapping[str, object], batch: int) -> str:
        network = KerasNetwork(b, place, allow_unknown, sizes, batch)
        return network.add_network_and_loss(table)

    return Family(source.name, build, parameters, "a network of Keras", is_preset=True)
