"""The walk through a network of Keras that appends the ops of each call of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.json_types import JsonObject, JsonValue
from steptime.core.values import MAX_COUNT
from steptime.formats import READ_ERRORS, describe_error
from steptime.formats.keras import convolutional_lstm, layers, operations, sequences
from steptime.formats.keras.layer import AddCall, KerasLayer, KerasTensor
from steptime.formats.keras.references import (
    CallArguments,
    TensorReference,
    fill_references,
    find_references,
    parse_arguments,
)
from steptime.formats.loss import add_loss
from steptime.formats.tensors import free_name
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError

MODEL_CLASSES = ("Functional", "Sequential", "Model")
LAYERS: dict[str, AddCall] = {**layers.LAYERS, **sequences.LAYERS, **convolutional_lstm.LAYERS}
MAX_CALLS = 200_000  # networks in networks can call each other exponentially often
MAX_DEPTH = 50  # of networks in networks
MAX_AXES = 16  # of an input
IMAGE_RANK = 3  # height, width and channels behind the batch
KERAS_PACKAGES = ("keras.", "tensorflow.keras.", "tf_keras.", "tensorflow.python.keras.")
OPERATION_PACKAGE = "keras.src.ops"
OPTION_ARGUMENTS = ("use_causal_mask", "attention_mask", "initial_state")
MASK_ARGUMENTS = ("mask", "query_mask", "value_mask", "key_mask")
MASKED_CLASSES = (  # whose masks add ops; recurrent layers compute masked steps, too
    *("Attention", "AdditiveAttention", "MultiHeadAttention", "GroupQueryAttention", "Softmax"),
)
TENSOR_ARGUMENTS = ("inputs", "x", "sequence", "x1", "x2", "query", "value", "key")  # by keyword
LayerTable = JsonObject
"""A layer as Keras serializes it: its class, its settings under `config` and its calls."""
CallKey = tuple[str, int]
"""The name of a layer and the number of its call."""


def network_config(table: JsonObject, place: str) -> JsonObject:
    """Return the settings of a network; raises `InputError` if it has none."""
    config = table.get("config")
    if isinstance(config, list):  # of Sequential in early versions
        return {"layers": config}
    if not isinstance(config, dict):
        raise InputError(f"{place}: a network without settings")
    return config


def layer_tables(config: JsonObject, place: str) -> list[LayerTable]:
    """Return the layers of a network; raises `InputError` for a layer without settings."""
    tables = config.get("layers")
    if not isinstance(tables, list) or not tables:
        raise InputError(f"{place}: a network without layers")
    for table in tables:
        if not isinstance(table, dict) or not isinstance(table.get("config"), dict):
            raise InputError(f"{place}: layer {shorten(table)} has no settings")
    return tables


def batch_shape(table: LayerTable) -> list[JsonValue] | None:
    """Return the shape of a layer's input with its batch, None if the layer does not state it."""
    config = table["config"]
    shape = config.get("batch_shape") or config.get("batch_input_shape")
    return shape if isinstance(shape, list) and shape else None


def open_axes(shape: Sequence[JsonValue]) -> list[str]:
    """Return the names of the axes behind the batch that a shape leaves open."""
    names = ("height", "width") if len(shape) == 4 else ("length",)
    return [name for size, name in zip(shape[1:], names, strict=False) if size is None]


def is_foreign_class(table: LayerTable) -> bool:
    """Whether the class of a layer is not one of Keras."""
    module = table.get("module")
    has_foreign_module = module is not None and not f"{module}.".startswith(KERAS_PACKAGES)
    if has_foreign_module:
        return True
    registered_name = table.get("registered_name")  # `package>class`
    has_package = isinstance(registered_name, str) and ">" in registered_name
    return has_package and not str(registered_name).startswith("keras.")


@dataclass
class KerasNetwork:
    """A network whose graph is being built.

    Attributes:
        b: the builder of the graph.
        place: the file, for messages.
        allow_unknown: let layers of unknown type pass their input on.
        sizes: the hyperparameters: the axes that the file leaves open.
        batch: examples of a step.
        call_count: calls of layers so far.
        layers: the layers so far by path; a layer that is called again has the same weights.
    """

    b: Builder
    place: str
    allow_unknown: bool
    sizes: Mapping[str, object]
    batch: int
    call_count: int = 0
    layers: dict[str, KerasLayer] = field(default_factory=dict)

    def add_network_and_loss(self, table: JsonObject) -> str:
        """Append the whole network and, in training, its loss; return the loss or the output."""
        try:
            outputs = self._add_network(table, inputs=None, path="", depth=0)
        except InputError:
            raise
        except READ_ERRORS as error:
            reason = describe_error(error)
            raise InputError(f"{self.place}: not what Keras writes: {reason}") from None
        return add_loss(self.b, [output.name for output in outputs])

    def _add_network(
        self, table: JsonObject, inputs: Sequence[KerasTensor] | None, path: str, depth: int
    ) -> list[KerasTensor]:
        """Append a network and return its outputs.

        Args:
            table: the network as Keras serializes it.
            inputs: its inputs, None for new inputs of the graph.
            path: what the names of its layers begin with.
            depth: the number of networks around it.
        """
        if depth > MAX_DEPTH:
            raise InputError(f"{self.place}: networks nested more than {MAX_DEPTH} deep")
        config = network_config(table, self.place)
        if table.get("class_name") == "Sequential":
            return self._add_sequential(config, inputs, path, depth)
        return self._add_functional(config, inputs, path, depth)

    def _add_sequential(
        self, config: JsonObject, inputs: Sequence[KerasTensor] | None, path: str, depth: int
    ) -> list[KerasTensor]:
        """Append layers one after the other."""
        tensors = list(inputs or ())
        for number, table in enumerate(layer_tables(config, self.place)):
            name = str(table["config"].get("name") or f"layer{number}")
            if number == 0 and not tensors:
                shape = batch_shape(table)
                if shape is None:
                    raise InputError(f"{self.place}: layer {shorten(name)}: no shape of the input")
                tensors = [self._add_input(table, name, shape)]
            if table.get("class_name") != "InputLayer":
                arguments = CallArguments(list(tensors), {})
                tensors = self._add_call(table, f"{path}{name}", arguments, depth)
        return tensors

    def _add_input(self, table: LayerTable, name: str, shape: Sequence[JsonValue]) -> KerasTensor:
        """Append an input of the graph; an image gets its channels behind the batch."""
        open_names = iter(open_axes(shape))
        sizes: list[int] = []
        for stated_size in shape[1:]:
            is_open = stated_size is None  # the user says its size, not the file
            size = self.sizes.get(next(open_names, "")) if is_open else stated_size
            if type(size) is not int or not 1 <= size <= MAX_COUNT or len(shape) > MAX_AXES:
                raise InputError(f"{self.place}: input {shorten(name)} of shape {shorten(shape)}")
            sizes.append(size)
        is_integer = str(table["config"].get("dtype")).startswith(("int", "uint"))
        # ids in three axes are no image
        is_image = len(sizes) == IMAGE_RANK and not is_integer
        if is_image:
            height, width, channels = sizes
            sizes = [channels, height, width]
        path = free_name(self.b, name)
        tensor = self.b.input(path, (self.batch, *sizes), "int64" if is_integer else "")
        return KerasTensor(tensor, is_image)

    def _add_functional(
        self, config: JsonObject, inputs: Sequence[KerasTensor] | None, path: str, depth: int
    ) -> list[KerasTensor]:
        """Append a graph of layers, each call after those whose outputs it reads."""
        tables = {
            str(table.get("name") or table["config"].get("name")): table
            for table in layer_tables(config, self.place)
        }
        tensors = self._bind_inputs(config, tables, inputs, path)
        calls = _list_calls(tables)
        references_by_call = self._find_call_references(calls, tables)
        for key in self._order_calls(references_by_call):
            name, number = key
            # inputs of the network are bound already
            is_bound = TensorReference(name, number, output=0) in tensors
            if key not in calls or is_bound:
                continue
            # a call may read an output that no call makes: `_find_outputs` refuses what depends
            # on it
            has_all_inputs = all(reference in tensors for reference in references_by_call[key])
            if not has_all_inputs:
                continue
            arguments = _fill_arguments(calls[key], tensors)
            outputs = self._add_call(tables[name], f"{path}{name}", arguments, depth)
            for output_number, output in enumerate(outputs):
                tensors[TensorReference(name, number, output_number)] = output
        return self._find_outputs(config, tensors)

    def _find_call_references(
        self, calls: Mapping[CallKey, CallArguments], tables: Mapping[str, LayerTable]
    ) -> dict[CallKey, list[TensorReference]]:
        """Return the tensors that each call reads; refuses those of unknown layers."""
        references_by_call: dict[CallKey, list[TensorReference]] = {}
        for key, arguments in calls.items():
            references = find_references([arguments.args, arguments.kwargs])
            for reference in references:
                self._find_layer_table(tables, reference.layer)
            references_by_call[key] = references
        return references_by_call

    def _bind_inputs(
        self,
        config: JsonObject,
        tables: Mapping[str, LayerTable],
        inputs: Sequence[KerasTensor] | None,
        path: str,
    ) -> dict[TensorReference, KerasTensor]:
        """Return the inputs of a network by their references, new ones if none are passed in."""
        references = find_references(config.get("input_layers"))
        if inputs is not None and references and len(inputs) != len(references):
            counts = f"{len(inputs)} inputs of {len(references)}"
            raise InputError(f"{self.place}: {path or references[0].layer}: {counts}")
        tensors: dict[TensorReference, KerasTensor] = {}
        for number, reference in enumerate(references):
            table = self._find_layer_table(tables, reference.layer)
            if inputs is None:
                tensor = self._add_graph_input(table, reference.layer, path)
            else:  # of a network within a network
                tensor = inputs[number]
            tensors[TensorReference(reference.layer, reference.node, output=0)] = tensor
        return tensors

    def _add_graph_input(self, table: LayerTable, name: str, path: str) -> KerasTensor:
        """Append the input of the graph that an input layer describes."""
        shape = batch_shape(table)
        if shape is None:
            raise InputError(f"{self.place}: input {shorten(name)} has no shape")
        return self._add_input(table, f"{path}{name}", shape)

    def _find_layer_table(self, tables: Mapping[str, LayerTable], name: str) -> LayerTable:
        """Return a layer by name; raises `InputError` with the nearest name."""
        return tables[check_choice("layer", name, tables, self.place)]

    def _order_calls(
        self, references_by_call: Mapping[CallKey, Iterable[TensorReference]]
    ) -> list[CallKey]:
        """Return calls and inputs in topological order."""
        predecessors = {
            key: [(reference.layer, reference.node) for reference in call_references]
            for key, call_references in references_by_call.items()
        }
        try:
            return [*TopologicalSorter(predecessors).static_order()]
        except CycleError as error:
            # the second argument of a `CycleError` is the cycle
            names = " and ".join(shorten(name) for name, _ in error.args[1][:2])
            raise InputError(f"{self.place}: {names} wait for each other") from None

    def _find_outputs(
        self, config: JsonObject, tensors: Mapping[TensorReference, KerasTensor]
    ) -> list[KerasTensor]:
        """Return the outputs of a network; raises `InputError` for one that no call makes."""
        references = find_references(config.get("output_layers"))
        missing = [reference for reference in references if reference not in tensors]
        if missing or not references:
            name = missing[0].layer if missing else "none"
            raise InputError(
                f"{self.place}: output {shorten(name)} is never made: inputs are missing"
            )
        return [tensors[reference] for reference in references]

    def _add_call(
        self, table: LayerTable, path: str, arguments: CallArguments, depth: int
    ) -> list[KerasTensor]:
        """Append a call of a layer, or of a network in its place, and return its outputs."""
        self.call_count += 1
        if self.call_count > MAX_CALLS:
            raise InputError(f"{self.place}: more than {MAX_CALLS} calls of layers")
        is_foreign = is_foreign_class(table)
        if table.get("class_name") in MODEL_CLASSES and not is_foreign:
            inputs = [value for value in arguments.args if isinstance(value, KerasTensor)]
            return self._add_network(table, inputs, f"{path}/", depth + 1)
        add_call = None if is_foreign else _find_function(table)
        if add_call is None:
            return [self._pass_unknown(table, path, arguments)]
        if path not in self.layers:
            self.layers[path] = KerasLayer(self.b, path, table["config"], self.place)
        return self._run_function(add_call, self.layers[path], table, arguments)

    def _pass_unknown(self, table: LayerTable, path: str, arguments: CallArguments) -> KerasTensor:
        """Return the input of a layer of unknown type, or raise `InputError` if not allowed."""
        inputs = arguments.args[:1]
        if self.allow_unknown and inputs and isinstance(inputs[0], KerasTensor):
            self.b.unmodelled.append(path)
            return inputs[0]
        layer_place = f"{self.place}: layer {shorten(path)}"
        class_name = table.get("class_name")
        if class_name == "Lambda":
            raise InputError(f"{layer_place}: a Lambda holds code, which is not run")
        if is_foreign_class(table):
            class_text = shorten(table.get("registered_name") or class_name)
            module_text = shorten(table.get("module"))
            raise InputError(f"{layer_place}: {class_text} of {module_text} is a class of its own")
        reason = unknown("layer of Keras", class_name, _select_function_table(table), layer_place)
        raise InputError(f"{reason}; --allow-unknown passes its input on")

    def _run_function(
        self, add_call: AddCall, layer: KerasLayer, table: LayerTable, arguments: CallArguments
    ) -> list[KerasTensor]:
        """Append the ops of a layer; errors name it."""
        kwargs = {key: value for key, value in arguments.kwargs.items() if value is not None}
        tensors = [kwargs[key] for key in TENSOR_ARGUMENTS if key in kwargs]
        options = {key: kwargs[key] for key in OPTION_ARGUMENTS if key in kwargs}
        has_mask = any(_holds_tensor(kwargs.get(key)) for key in MASK_ARGUMENTS)
        if has_mask and table.get("class_name") in MASKED_CLASSES:
            raise layer.error("a mask given as a tensor is not counted")
        try:
            outputs = add_call(layer, *arguments.args, *tensors, **options)
        except ShapeError as error:
            raise ShapeError(f"layer {shorten(layer.name)}: {error}") from None
        except InputError:
            raise
        except READ_ERRORS as error:
            reason = f"{table.get('class_name')}: {describe_error(error)}"
            raise layer.error(reason) from None
        return outputs if isinstance(outputs, list) else [outputs]


def _select_function_table(table: LayerTable) -> Mapping[str, AddCall]:
    """Return the functions by class among which that of a layer is."""
    is_operation = str(table.get("module")).startswith(OPERATION_PACKAGE)
    return operations.OPERATIONS if is_operation else LAYERS


def _find_function(table: LayerTable) -> AddCall | None:
    """Return the function that appends a layer, None for a layer of unknown type."""
    class_name = table.get("class_name")
    return _select_function_table(table).get(class_name) if isinstance(class_name, str) else None


def _holds_tensor(value: JsonValue) -> bool:
    """Whether an argument is a tensor or a list with one."""
    values = value if isinstance(value, list) else [value]
    return any(isinstance(item, KerasTensor) for item in values)


def _list_calls(tables: Mapping[str, LayerTable]) -> dict[CallKey, CallArguments]:
    """Return the calls of layers: a layer has one for each of its inbound nodes."""
    calls: dict[CallKey, CallArguments] = {}
    for name, table in tables.items():
        for number, node in enumerate(table.get("inbound_nodes") or ()):
            calls[name, number] = parse_arguments(node)
    return calls


def _fill_arguments(
    arguments: CallArguments, tensors: Mapping[TensorReference, KerasTensor]
) -> CallArguments:
    """Return arguments with tensors in place of references; lists of tensors are unpacked."""
    args: list[JsonValue] = []
    for argument in arguments.args:
        value = fill_references(argument, tensors)
        args += value if isinstance(value, list) else [value]
    return CallArguments(args, fill_references(arguments.kwargs, tensors))
