"""Reads networks of Keras, Functional and Sequential, from their JSON; nothing is executed.

A Lambda holds code, a layer or function of one's own names it: both are refused by name. Of a
`.keras`, a ZIP archive, `config.json` alone is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.values import MAX_COUNT
from steptime.formats import READ_ERRORS, Source, describe_error, elements, parse_json_file
from steptime.formats.archive import read_member
from steptime.formats.keras import layers, operations, sequences
from steptime.formats.keras.layer import KerasLayer, Value
from steptime.formats.loss import add_loss
from steptime.network.families.family import Family, Parameter
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError

MODELS = ("Functional", "Sequential", "Model")
LAYERS = {**layers.LAYERS, **sequences.LAYERS}
MOST_CALLS, MOST_NESTED, MOST_AXES = 200_000, 50, 16
FREE = {"length": 128, "height": 224, "width": 224}  # sizes that a file leaves open
_OURS = ("keras.", "tensorflow.keras.", "tf_keras.", "tensorflow.python.keras.")
Reference = tuple[str, int, int]


def identity(source: Source) -> bytes:
    """Return what says the network: of an archive its `config.json`, without the weights."""
    if source.path.lower().endswith(".keras"):
        return read_member(source, lambda name: name == "config.json", "config.json")
    return bytes(source.content)


def read(source: Source, allow_unknown: bool) -> Family:
    """Return the network of a file; sizes that it leaves open are hyperparameters."""
    place = shorten(source.name)[1:-1]
    table = parse_json_file(identity(source), f"{place}:")
    if not isinstance(table, dict):
        raise InputError(f"{place}: is not a network of Keras")
    check_choice("kind of network", table.get("class_name"), MODELS, place)
    parameters = {
        name: Parameter(FREE[name], f"{name} of inputs") for name in sorted(_open(table, place))
    }

    def build(b: Builder, sizes: Mapping[str, Any], batch: int) -> str:
        return _KerasNetwork(b, place, allow_unknown, sizes, batch).built(table)

    return Family(source.name, build, parameters, "a network of Keras", named=True)


def _list(config: Mapping[str, Any], place: str) -> list[dict[str, Any]]:
    found = config.get("layers")
    if not isinstance(found, list) or not found:
        raise InputError(f"{place}: a network without layers")
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("config"), dict):
            raise InputError(f"{place}: layer {shorten(one)} has no settings")
    return found


def _config(table: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    config = table.get("config")
    if isinstance(config, list):  # of Sequential in early versions
        config = {"layers": config}
    if not isinstance(config, dict):
        raise InputError(f"{place}: a network without settings")
    return config


def _batch_shape(layer: Mapping[str, Any]) -> list[Any] | None:
    config = layer["config"]
    found = config.get("batch_shape") or config.get("batch_input_shape")
    return found if isinstance(found, list) and found else None


def _open(table: Mapping[str, Any], place: str) -> set[str]:
    names: set[str] = set()
    for layer in _list(_config(table, place), place):
        shape = _batch_shape(layer)
        if shape:
            names.update(_names(shape))
    return names


def _names(shape: Sequence[Any]) -> list[str]:
    axes = ("height", "width") if len(shape) == 4 else ("length",)
    return [name for n, name in zip(shape[1:], axes, strict=False) if n is None]


class _KerasNetwork:
    """A network being built: what bounds it, and what its inputs are made of."""

    def __init__(
        self, b: Builder, place: str, allow_unknown: bool, sizes: Mapping[str, Any], batch: int
    ) -> None:
        self.b, self.place, self.allow_unknown = b, place, allow_unknown
        self.sizes, self.batch = sizes, batch
        self.calls = 0
        self.kept: dict[str, KerasLayer] = {}  # a layer that is called again has the same weights

    def built(self, table: Mapping[str, Any]) -> str:
        """Return the loss or the first output of the whole network."""
        try:
            outputs = self.model(table, None, "", 0)
        except InputError:
            raise
        except READ_ERRORS as error:
            raise InputError(
                f"{self.place}: not what Keras writes: {describe_error(error)}"
            ) from None
        return add_loss(self.b, [one.name for one in outputs])

    def model(
        self, table: Mapping[str, Any], given: Sequence[Value] | None, path: str, depth: int
    ) -> list[Value]:
        """Return the outputs of a network, of its own inputs where none are given."""
        if depth > MOST_NESTED:
            raise InputError(f"{self.place}: networks nested more than {MOST_NESTED} deep")
        config = _config(table, self.place)
        if table.get("class_name") == "Sequential":
            return self.sequential(config, given, path, depth)
        return self.functional(config, given, path, depth)

    def sequential(
        self, config: Mapping[str, Any], given: Sequence[Value] | None, path: str, depth: int
    ) -> list[Value]:
        """Return what layers one after the other make."""
        found = _list(config, self.place)
        values = list(given or ())
        for i, layer in enumerate(found):
            name = str(layer["config"].get("name") or f"layer{i}")
            shape = _batch_shape(layer)
            if i == 0 and not values:
                if shape is None:
                    raise InputError(f"{self.place}: layer {shorten(name)}: no shape of the input")
                values = [self.input(layer, name, shape)]
            if layer.get("class_name") != "InputLayer":
                values = self.call(layer, f"{path}{name}", values, {}, depth)
        return values

    def input(self, layer: Mapping[str, Any], name: str, shape: Sequence[Any]) -> Value:
        """Return an input of the network; an image has its channels behind the batch."""
        free = iter(_names(shape))
        sizes = []
        for n in shape[1:]:
            key = next(free, "") if n is None else ""
            size = self.sizes.get(key) if n is None else n
            if type(size) is not int or not 1 <= size <= MAX_COUNT or len(shape) > MOST_AXES:
                raise InputError(f"{self.place}: input {shorten(name)} of shape {shorten(shape)}")
            sizes.append(size)
        dtype = str(layer["config"].get("dtype"))
        dtype = "int64" if dtype.startswith(("int", "uint")) else ""
        is_image = len(sizes) == 3 and not dtype
        order = (sizes[2], *sizes[:2]) if is_image else tuple(sizes)
        path = elements.free_name(self.b, name)
        return Value(self.b.input(path, (self.batch, *order), dtype), is_image)

    def functional(
        self, config: Mapping[str, Any], given: Sequence[Value] | None, path: str, depth: int
    ) -> list[Value]:
        """Return what a graph of layers makes: each call as soon as what it reads is there."""
        found = {
            str(one.get("name") or one["config"].get("name")): one
            for one in _list(config, self.place)
        }
        inputs = _references(config.get("input_layers"))
        values: dict[Reference, Value] = {}
        for i, (name, node, _) in enumerate(inputs):
            layer = self.known(found, name)
            shape = _batch_shape(layer)
            if given is not None:
                if len(given) != len(inputs):
                    raise InputError(
                        f"{self.place}: {path or name}: {len(given)} inputs of {len(inputs)}"
                    )
                values[name, node, 0] = given[i]
            elif shape is None:
                raise InputError(f"{self.place}: input {shorten(name)} has no shape")
            else:
                values[name, node, 0] = self.input(layer, f"{path}{name}", shape)
        nodes = {
            (name, node): _arguments(said)
            for name, layer in found.items()
            for node, said in enumerate(layer.get("inbound_nodes") or ())
        }
        reads = {key: _references([*said]) for key, said in nodes.items()}
        for name, *_ in (one for wanted in reads.values() for one in wanted):
            self.known(found, name)
        after = {key: [one[:2] for one in wanted] for key, wanted in reads.items()}
        try:
            order = [*TopologicalSorter(after).static_order()]
        except CycleError as error:
            names = " and ".join(shorten(name) for name, _ in error.args[1][:2])
            raise InputError(f"{self.place}: {names} wait for each other") from None
        for name, node in order:
            ready = all(one in values for one in reads.get((name, node), ()))
            if (name, node) not in nodes or (name, node, 0) in values or not ready:
                continue
            args, kwargs = (_filled(one, values) for one in nodes[name, node])
            flat = [x for one in args for x in (one if isinstance(one, list) else [one])]
            for i, value in enumerate(self.call(found[name], f"{path}{name}", flat, kwargs, depth)):
                values[name, node, i] = value
        outputs = _references(config.get("output_layers"))
        missing = [one for one in outputs if one not in values]
        if missing or not outputs:
            name = missing[0][0] if missing else "none"
            raise InputError(
                f"{self.place}: output {shorten(name)} is never made: inputs are missing"
            )
        return [values[one] for one in outputs]

    def known(self, found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """Return a layer by name."""
        layer: Mapping[str, Any] = found[check_choice("layer", name, found, self.place)]
        return layer

    def call(
        self,
        layer: Mapping[str, Any],
        path: str,
        values: Sequence[Any],
        kwargs: Mapping[str, Any],
        depth: int,
    ) -> list[Value]:
        """Return what a layer, or a network in its place, makes of its inputs."""
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise InputError(f"{self.place}: more than {MOST_CALLS} calls of layers")
        kind = layer.get("class_name")
        where = f"{self.place}: layer {shorten(path)}"
        module, registered = layer.get("module"), layer.get("registered_name")
        own = module is not None and not f"{module}.".startswith(_OURS)
        if isinstance(registered, str) and ">" in registered:
            own = own or not registered.startswith("keras.")
        if kind in MODELS and not own:
            given = [one for one in values if isinstance(one, Value)]
            return self.model(layer, given, f"{path}/", depth + 1)
        table = operations.OPERATIONS if str(module).startswith("keras.src.ops") else LAYERS
        lower = table.get(kind) if isinstance(kind, str) else None
        if own or lower is None:
            if self.allow_unknown and values and isinstance(values[0], Value):
                self.b.unmodelled.append(path)
                return [values[0]]
            if kind == "Lambda":
                raise InputError(f"{where}: a Lambda holds code, which is not run")
            if own:
                said = shorten(registered or kind)
                raise InputError(f"{where}: {said} of {shorten(module)} is a class of its own")
            near = unknown("layer of Keras", kind, table, where)
            raise InputError(f"{near}; --allow-unknown passes its input on")
        at = self.kept.get(path) or KerasLayer(self.b, path, layer["config"], self.place)
        self.kept[path] = at
        also = {key: kwargs[key] for key in _PASSED if kwargs.get(key) is not None}
        values = [*values, *(kwargs[key] for key in _TENSORS if kwargs.get(key) is not None)]
        try:
            made: Value | list[Value] = lower(at, *values, **also)
            return made if isinstance(made, list) else [made]
        except ShapeError as error:
            raise ShapeError(f"layer {shorten(path)}: {error}") from None
        except InputError:
            raise
        except READ_ERRORS as error:
            raise InputError(f"{where}: {kind}: {describe_error(error)}") from None


_PASSED = ("use_causal_mask", "attention_mask", "initial_state")
_TENSORS = ("inputs", "x", "sequence", "x1", "x2", "query", "value", "key")  # said by name


def _reference(said: object) -> Reference | None:
    """Return the tensor that a list, or a tensor as Keras serializes it, refers to."""
    if isinstance(said, dict) and said.get("class_name") == "__keras_tensor__":
        config = said.get("config")
        said = config.get("keras_history") if isinstance(config, dict) else None
    if isinstance(said, list) and len(said) >= 3 and isinstance(said[0], str):
        node, index = said[1], said[2]
        if type(node) is int and type(index) is int:
            return said[0], node, index
    return None


def _references(said: object) -> list[Reference]:
    """Return every tensor that arguments, or lists of inputs or outputs, name."""
    one = _reference(said)
    if one:
        return [one]
    many = said.values() if isinstance(said, dict) else said if isinstance(said, list) else ()
    return [one for each in many for one in _references(each)]


def _arguments(said: object) -> tuple[Any, Any]:
    """Return the arguments of a call; version 2 of Keras has a list of tensors."""
    if isinstance(said, dict):
        args, kwargs = said.get("args"), said.get("kwargs")
        return (args if isinstance(args, list) else [], kwargs if isinstance(kwargs, dict) else {})
    tensors = said if isinstance(said, list) else []
    found = (
        tensors[0][3] if tensors and isinstance(tensors[0], list) and len(tensors[0]) > 3 else {}
    )
    one = _reference(tensors)
    return ([tensors] if one else list(tensors), found if isinstance(found, dict) else {})


def _filled(said: Any, values: Mapping[Reference, Value]) -> Any:
    one = _reference(said)
    if one:
        return values[one]
    if isinstance(said, dict):
        return {key: _filled(part, values) for key, part in said.items()}
    return [_filled(part, values) for part in said] if isinstance(said, list) else said
