"""One layer of Keras: its settings, checked, its weights, and the layout of its tensors.

Keras has channels last; the op kinds here have the channels of images behind the batch. A
`KerasTensor` knows its layout, and is transposed where a layer needs the other one. Two transposes
that undo each other cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.json_types import JsonObject, JsonValue
from steptime.core.values import MAX_COUNT
from steptime.formats import elements
from steptime.formats.tensors import free_name
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require


class KerasActivation(NamedTuple):
    """An activation as a function of `elements.pointwise`.

    Attributes:
        function: the function's name.
        low: the lower limit of a clamp.
        high: the upper limit of a clamp.
        parameter: the slope or scale of a function that has one.
    """

    function: str
    low: float = -math.inf
    high: float = math.inf
    parameter: float | None = None


_PLAIN_ACTIVATIONS = (
    *("relu", "sigmoid", "tanh", "selu", "gelu", "silu", "softplus"),
    *("softsign", "hard_sigmoid", "mish", "log_sigmoid"),
)
ACTIVATIONS: Mapping[str, KerasActivation] = {  # by Keras' name
    **{name: KerasActivation(name) for name in _PLAIN_ACTIVATIONS},
    "relu6": KerasActivation("clamp", low=0.0, high=6.0),
    "swish": KerasActivation("silu"),
    "exponential": KerasActivation("exp"),
    "hard_silu": KerasActivation("hard_swish"),
    "hard_swish": KerasActivation("hard_swish"),
    "elu": KerasActivation("elu", parameter=1.0),
    "leaky_relu": KerasActivation("leaky_relu", parameter=0.2),
}
LINEAR = "linear"
SOFTMAX_ACTIVATIONS = ("softmax", "log_softmax")
ACTIVATION_NAMES = (*ACTIVATIONS, *SOFTMAX_ACTIVATIONS, LINEAR)
CHANNELS_LAST = "channels_last"
DATA_FORMATS = (CHANNELS_LAST, "channels_first")


class KerasTensor(NamedTuple):
    """A tensor of the graph.

    Attributes:
        name: its name.
        is_channels_first: whether Keras' last axis, the channels, stands behind the batch.
    """

    name: str
    is_channels_first: bool = False


AddLayer = Callable[..., KerasTensor]
"""Append the ops of a layer: `(layer, *tensors, **arguments) -> tensor`."""
AddCall = Callable[..., KerasTensor | list[KerasTensor]]
"""Append the ops of a layer that may have several outputs."""


def channels_first_axis(axis: int, rank: int) -> int:
    """Return the place of one of Keras' axes (counted from 0) in a tensor with channels first."""
    if axis == 0:
        return 0
    return 1 if axis == rank - 1 else axis + 1


class KerasLayer:
    """The settings, weights and tensors of one layer.

    Attributes:
        b: the builder of the graph.
        name: the layer's path in the network.
        config: its settings.
        place: the file, for messages.
        is_trained: whether its weights are trained.
    """

    def __init__(
        self,
        b: Builder,
        name: str,
        config: Mapping[str, JsonValue],
        place: str,
        in_trained_layer: bool = True,
    ) -> None:
        self.b = b
        self.name = name
        self.config = config
        self.place = place
        self.is_trained = in_trained_layer and config.get("trainable", True) is not False
        self._weights: dict[str, str] = {}  # shared by all calls of the layer
        self._wrapped: dict[str, KerasLayer] = {}

    @property
    def layer_place(self) -> str:
        """The file and the layer, for messages."""
        return f"{self.place}: layer {shorten(self.name)}"

    def error(self, reason: str) -> InputError:
        """Return an error that names the layer."""
        return InputError(f"{self.layer_place}: {reason}")

    def wrapped_layer(self, name: str, table: object) -> KerasLayer:
        """Return a layer that this layer wraps, the same one at every call.

        Args:
            name: its name in this layer, such as `forward`.
            table: the layer as Keras serializes it.
        """
        if name not in self._wrapped:
            config = table.get("config") if isinstance(table, dict) else None
            if not isinstance(config, dict):
                raise self.error(f"{name} is not a layer")
            path = f"{self.name}/{name}"
            self._wrapped[name] = KerasLayer(self.b, path, config, self.place, self.is_trained)
        return self._wrapped[name]

    # settings

    def read_int(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """Return a setting that is a whole number."""
        value = self.config.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not minimum <= value <= MAX_COUNT:
            raise self.error(f"{key} is a whole number from {minimum} on, not {shorten(value)}")
        return value

    def read_number(self, key: str, default: float = 0.0) -> float:
        """Return a setting that is a finite number."""
        value = self.config.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.error(f"{key} is a number, not {shorten(value)}")
        return float(value)

    def read_flag(self, key: str, default: bool = False) -> bool:
        """Return a setting that is true or false."""
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is true or false, not {shorten(value)}")
        return value

    def read_choice(self, key: str, default: str, choices: Sequence[str]) -> str:
        """Return a setting that is one of some words."""
        return check_choice(key, str(self.config.get(key) or default), choices, self.layer_place)

    def read_sizes(
        self, key: str, axis_count: int, default: int | None = None, minimum: int = 1
    ) -> list[int]:
        """Return a setting that is a whole number for each axis; a single one is that of all."""
        value: JsonValue = self.config.get(key)
        if value is None:
            value = default
        sizes = value if isinstance(value, list) else [value] * axis_count
        is_valid = all(type(size) is int and size >= minimum for size in sizes)
        if len(sizes) != axis_count or not is_valid:
            raise self.error(f"{key} is {axis_count} whole numbers, not {shorten(value)}")
        return sizes

    def read_int_list(self, key: str) -> list[int] | None:
        """Return a setting that is a list of whole numbers; a single one is a list of one."""
        value: JsonValue = self.config.get(key)
        if value is None:
            return None
        numbers = [value] if type(value) is int else value
        if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
            raise self.error(f"{key} is whole numbers, not {value}")
        return numbers

    @property
    def has_channels_last(self) -> bool:
        """Whether the layer's channels are Keras' last axis."""
        return self.read_choice("data_format", CHANNELS_LAST, DATA_FORMATS) == CHANNELS_LAST

    # tensors

    def shape(self, x: KerasTensor) -> tuple[int, ...]:
        """Return the shape that a tensor has in Keras."""
        batch, *sizes = self.b.shape(x.name)
        if x.is_channels_first:
            return (batch, *sizes[1:], sizes[0])
        return (batch, *sizes)

    def to_channels_first(self, x: KerasTensor) -> str:
        """Return a tensor with Keras' last axis behind the batch."""
        rank = len(self.b.shape(x.name))
        if x.is_channels_first or rank < 3:
            return x.name
        return elements.transpose(self.b, x.name, (0, rank - 1, *range(1, rank - 1)), self.name)

    def to_channels_last(self, x: KerasTensor) -> str:
        """Return a tensor with its axes in Keras' order."""
        if not x.is_channels_first:
            return x.name
        rank = len(self.b.shape(x.name))
        return elements.transpose(self.b, x.name, (0, *range(2, rank), 1), self.name)

    def to_image(self, x: KerasTensor) -> str:
        """Return a tensor with the layer's channels behind the batch."""
        return self.to_channels_first(x) if self.has_channels_last else self.to_channels_last(x)

    def from_image(self, tensor: str) -> KerasTensor:
        """Return an image of the op kinds as a tensor of Keras; the reverse of `to_image`."""
        is_image = len(self.b.shape(tensor)) > 2
        return KerasTensor(tensor, self.has_channels_last and is_image)

    def align_layouts(
        self, operands: Sequence[KerasTensor | float]
    ) -> tuple[list[str | float], bool]:
        """Return operands in one layout, and whether their channels stand behind the batch.

        Numbers stay. Tensors of different ranks broadcast as in Keras, so they get its order.
        """
        tensors = [x for x in operands if isinstance(x, KerasTensor)]
        distinct_ranks = {len(self.b.shape(x.name)) for x in tensors}
        has_channels_first = any(x.is_channels_first for x in tensors)
        # tensors of one rank can stay channels-first; those of different ranks broadcast from the
        # last axis, which is right in Keras' own order of axes alone
        channels_first = has_channels_first and len(distinct_ranks) == 1
        convert = self.to_channels_first if channels_first else self.to_channels_last
        aligned = [convert(x) if isinstance(x, KerasTensor) else x for x in operands]
        return aligned, channels_first

    def add_weight(self, name: str, *shape: int, is_trained: bool = True, dtype: str = "") -> str:
        """Return the weight of a name, which the first call appends; a buffer if not trained."""
        if name not in self._weights:
            path = free_name(self.b, f"{self.name}/{name}")
            if is_trained and self.is_trained:
                self._weights[name] = self.b.weight(path, shape)
            else:
                self._weights[name] = self.b.buffer(path, shape, dtype)
        return self._weights[name]

    def add_optional_weight(self, key: str, name: str, *shape: int) -> str:
        """Return a weight if the flag `key` is set, as it is by default, else ""."""
        return self.add_weight(name, *shape) if self.read_flag(key, True) else ""

    def apply(
        self, function: Callable[..., str], *arguments: Any, suffix: str = "", **options: Any
    ) -> KerasTensor:
        """Apply a function of `lowering` or `elements` to tensors in Keras' order.

        Args:
            function: called with the builder, the arguments, `name` and the options.
            arguments: tensors, which are converted to Keras' order, and other values.
            suffix: what the name of the ops has behind the layer's name.
            options: keyword arguments of the function.
        """
        values = [
            self.to_channels_last(argument) if isinstance(argument, KerasTensor) else argument
            for argument in arguments
        ]
        return KerasTensor(function(self.b, *values, name=f"{self.name}{suffix}", **options))

    def apply_elementwise(
        self,
        function: str,
        x: KerasTensor,
        *operands: str | float,
        suffix: str = "",
        **options: Any,
    ) -> KerasTensor:
        """Apply a function of single elements, which keeps the layout of `x`."""
        name = f"{self.name}{suffix}"
        y = elements.pointwise(self.b, function, x.name, *operands, name=name, **options)
        return KerasTensor(y, x.is_channels_first)

    def apply_configured_activation(self, x: KerasTensor) -> KerasTensor:
        """Apply the layer's setting `activation`."""
        return self.apply_activation(x, self.config.get("activation"), f"{self.name}/activation")

    def apply_activation(self, x: KerasTensor, activation: object, name: str) -> KerasTensor:
        """Apply an activation.

        Args:
            x: the tensor.
            activation: its name, or an object as Keras serializes it.
            name: the name of its op.
        """
        activation_name = self._read_activation(activation)
        if activation_name == LINEAR:
            return x
        if activation_name in SOFTMAX_ACTIVATIONS:
            return self.apply_softmax(x, axis=-1, name=name, log=activation_name == "log_softmax")
        row = ACTIVATIONS[activation_name]
        y = elements.pointwise(
            self.b,
            row.function,
            x.name,
            name=name,
            low=row.low,
            high=row.high,
            parameter=row.parameter,
        )
        return KerasTensor(y, x.is_channels_first)

    def _read_activation(self, activation: object) -> str:
        """Return the name of an activation, one of `ACTIVATION_NAMES`."""
        word = activation
        config: JsonValue = None
        if isinstance(activation, dict):  # a class with its settings, or `function` with its name
            config = activation.get("config")
            word = config if isinstance(config, str) else activation.get("class_name")
            self._check_registered(activation, word)
        if word is None:
            return LINEAR
        name = word.lower() if isinstance(word, str) else word
        has_limit = isinstance(config, dict) and config.get("max_value") is not None
        if name == "relu" and has_limit:
            # a limit of any height costs as much
            return "relu6"
        if name not in ACTIVATION_NAMES:
            raise unknown("activation", word, ACTIVATION_NAMES, self.layer_place)
        return str(name)

    def _check_registered(self, activation: JsonObject, word: object) -> None:
        """Raise `InputError` for an activation that is a function of the user's own code."""
        registered = activation.get("registered_name")
        is_function = activation.get("class_name") == "function"
        if is_function and registered not in (None, word):
            raise self.error(f"activation {shorten(registered)} is a function of its own")

    def apply_softmax(self, x: KerasTensor, axis: int, name: str, log: bool = False) -> KerasTensor:
        """Apply a softmax along one of Keras' axes."""
        rank = len(self.b.shape(x.name))
        require(-rank <= axis < rank, f"axis {axis} of {list(self.shape(x))}")
        graph_axis = axis % rank
        if x.is_channels_first:
            graph_axis = channels_first_axis(graph_axis, rank)
        y = elements.softmax(self.b, x.name, graph_axis, name, log)
        return KerasTensor(y, x.is_channels_first)
