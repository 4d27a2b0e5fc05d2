"""References to tensors in the JSON of Keras, in the form of version 3 and that of version 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from steptime.core.json_types import JsonObject, JsonValue
from steptime.formats.keras.layer import KerasTensor


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
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        config = value.get("config")
        value = config.get("keras_history") if isinstance(config, dict) else None
    if not isinstance(value, list) or len(value) < 3:
        return None
    layer, node, output = value[:3]
    if isinstance(layer, str) and type(node) is int and type(output) is int:
        return TensorReference(layer, node, output)
    return None


def find_references(value: JsonValue) -> list[TensorReference]:
    """Find all references in arguments, or in lists of inputs or outputs, in their order."""
    reference = parse_reference(value)
    if reference:
        return [reference]
    references: list[TensorReference] = []
    if isinstance(value, dict):
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        references += find_references(item)
    return references


def parse_arguments(node: JsonValue) -> CallArguments:
    """Parse the arguments of a call: in version 3 a table, in version 2 a list of tensors."""
    if isinstance(node, dict):
        args = node.get("args")
        kwargs = node.get("kwargs")
        return CallArguments(
            args if isinstance(args, list) else [], kwargs if isinstance(kwargs, dict) else {}
        )
    tensors = node if isinstance(node, list) else []
    if parse_reference(tensors):
        return CallArguments([tensors], {})
    first = tensors[0] if tensors else None
    kwargs = first[3] if isinstance(first, list) and len(first) > 3 else None
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
