"""References to tensors in the JSON of Keras, in the form of version 3 and that of version 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from steptime.core.json_types import JsonObject, JsonValue
from steptime.formats.keras.layer import KerasTensor

KWARGS_INDEX = 3  # of the keyword arguments behind a reference, in version 2


class TensorReference(NamedTuple):
    """An output of a call of a layer.

    Attributes:
        layer: the layer's name.
        node: which call of the layer, from 0.
        output: which output of the call, from 0.
    """

    layer: str
    node: int
    output: int


class CallArguments(NamedTuple):
    """The arguments of a call of a layer, with references in place of tensors."""

    args: list[JsonValue]
    kwargs: JsonObject


def parse_reference(value: JsonValue) -> TensorReference | None:
    """Parse the list or the serialized tensor that refers to a tensor; None if it does not."""
    history = value  # `[layer, node, output]`: the call of a layer that makes the tensor
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        config = value.get("config")
        history = config.get("keras_history") if isinstance(config, dict) else None
    if not isinstance(history, list) or len(history) < len(TensorReference._fields):
        return None
    layer, node, output = history[: len(TensorReference._fields)]
    if isinstance(layer, str) and type(node) is int and type(output) is int:
        return TensorReference(layer, node, output)
    return None


def find_references(value: JsonValue) -> list[TensorReference]:
    """Find all references in arguments, or in lists of inputs or outputs, in their order."""
    reference = parse_reference(value)
    if reference:
        return [reference]
    nested_values = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(nested_values, list):
        return []
    references: list[TensorReference] = []
    for nested_value in nested_values:
        references += find_references(nested_value)
    return references


def parse_arguments(node: JsonValue) -> CallArguments:
    """Parse the arguments of a call: in version 3 a table, in version 2 a list of tensors."""
    if isinstance(node, dict):  # version 3
        args = node.get("args")
        kwargs = node.get("kwargs")
        return CallArguments(
            args if isinstance(args, list) else [], kwargs if isinstance(kwargs, dict) else {}
        )
    tensors = node if isinstance(node, list) else []
    is_single_tensor = parse_reference(tensors) is not None
    if is_single_tensor:
        return CallArguments([tensors], {})
    # version 2: `[layer, node, output, kwargs]` of each tensor
    first: list[JsonValue] = tensors[0] if tensors and isinstance(tensors[0], list) else []
    kwargs = first[KWARGS_INDEX] if len(first) > KWARGS_INDEX else None
    return CallArguments(list(tensors), kwargs if isinstance(kwargs, dict) else {})


def fill_references(value: JsonValue, tensors: Mapping[TensorReference, KerasTensor]) -> JsonValue:
    """Return arguments with the tensors in place of the references to them."""
    reference = parse_reference(value)
    if reference:
        return tensors[reference]
    if isinstance(value, dict):
        return {key: fill_references(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_references(item, tensors) for item in value]
    return value
