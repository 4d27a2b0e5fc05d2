"""One layer of Keras: its settings, checked, its weights, and the layout that its tensors have.

Keras counts channels last, our kinds of images first. A `Value` says which of both it has, and is
turned where a layer wants the other; two turns that undo each other are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.values import MAX_COUNT
from steptime.formats import elements
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require

ACTIVATIONS: Mapping[str, tuple[str, dict[str, float]]] = {  # Keras' word: function, limits
    **{
        name: (name, {}) for name in ("relu", "sigmoid", "tanh", "selu", "gelu", "silu", "softplus")
    },
    **{name: (name, {}) for name in ("softsign", "hard_sigmoid", "mish", "log_sigmoid")},
    "relu6": ("clamp", {"low": 0.0, "high": 6.0}),
    "swish": ("silu", {}),
    "exponential": ("exp", {}),
    "hard_silu": ("hard_swish", {}),
    "hard_swish": ("hard_swish", {}),
    "elu": ("elu", {"parameter": 1.0}),
    "leaky_relu": ("leaky_relu", {"parameter": 0.2}),
}
SOFTMAX = ("softmax", "log_softmax")


class Value(NamedTuple):
    """A tensor of the graph; `first`: channels, Keras' last axis, stand behind the batch."""

    name: str
    first: bool = False


Lower = Callable[..., Value]


class KerasLayer:
    """What the functions of `LAYERS` are given: settings, weights and tensors of one layer."""

    def __init__(self, b: Builder, name: str, config: Mapping[str, Any], place: str) -> None:
        self.b, self.name, self.config, self.place = b, name, config, place
        self.kept: dict[str, str] = {}  # weights, shared by all calls of the layer
        self.trained = config.get("trainable", True) is not False
        self.calls = 0

    def refuse(self, what: str) -> InputError:
        """Return an error that names the layer."""
        return InputError(f"{self.place}: layer {shorten(self.name)}: {what}")

    def inner(self, name: str, config: object) -> KerasLayer:
        """Return the layer that a wrapper holds, the same one at every call."""
        key = f"/{name}"
        if key not in self.__dict__:
            if not isinstance(config, dict) or not isinstance(config.get("config"), dict):
                raise self.refuse(f"{name} is not a layer")
            own = KerasLayer(self.b, f"{self.name}/{name}", config["config"], self.place)
            own.trained = own.trained and self.trained
            self.__dict__[key] = own
        made: KerasLayer = self.__dict__[key]
        return made

    # settings

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number."""
        value = self.config.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= MAX_COUNT:
            raise self.refuse(f"{key} is a whole number from {least} on, not {shorten(value)}")
        return value

    def number(self, key: str, default: float = 0.0) -> float:
        """Return a number that is finite."""
        value = self.config.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.refuse(f"{key} is a number, not {shorten(value)}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return yes or no."""
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(f"{key} is true or false, not {shorten(value)}")
        return value

    def word(self, key: str, default: str, known: Sequence[str]) -> str:
        """Return one of the words that are known."""
        place = f"{self.place}: layer {shorten(self.name)}"
        return check_choice(key, str(self.config.get(key) or default), known, place)

    def sizes(self, key: str, axes: int, default: int | None = None, least: int = 1) -> list[int]:
        """Return a whole number for each of so many axes, one alone being that of all."""
        value: Any = self.config.get(key)
        value = default if value is None else value
        found: list[Any] = value if isinstance(value, list) else [value] * axes
        if len(found) != axes or any(type(n) is not int or n < least for n in found):
            raise self.refuse(f"{key} is {axes} whole numbers, not {shorten(value)}")
        return found

    @property
    def is_last(self) -> bool:
        """Whether channels are Keras' last axis."""
        return self.word("data_format", "channels_last", ("channels_last", "channels_first")) == (
            "channels_last"
        )

    # tensors

    def shape(self, x: Value) -> tuple[int, ...]:
        """Return the shape as Keras has it."""
        batch, *rest = self.b.shape(x.name)
        return (batch, *rest[1:], rest[0]) if x.first else (batch, *rest)

    def first(self, x: Value) -> str:
        """Return the tensor with Keras' last axis behind the batch."""
        rank = len(self.b.shape(x.name))
        if x.first or rank < 3:
            return x.name
        return elements.transpose(self.b, x.name, (0, rank - 1, *range(1, rank - 1)), self.name)

    def last(self, x: Value) -> str:
        """Return the tensor as Keras has it."""
        rank = len(self.b.shape(x.name))
        order = (0, *range(2, rank), 1)
        return elements.transpose(self.b, x.name, order, self.name) if x.first else x.name

    def image(self, x: Value) -> str:
        """Return the tensor with its channels behind the batch."""
        return self.first(x) if self.is_last else self.last(x)

    def of_image(self, tensor: str) -> Value:
        """Return what is made of `image`."""
        return Value(tensor, self.is_last and len(self.b.shape(tensor)) > 2)

    def alike(self, values: Sequence[Value | float]) -> tuple[list[str | float], bool]:
        """Return tensors of one layout, and whether their channels stand behind the batch."""
        tensors = [x for x in values if isinstance(x, Value)]
        ranks = {len(self.b.shape(x.name)) for x in tensors}
        first = len(ranks) == 1 and any(x.first for x in tensors)
        turn = self.first if first else self.last
        return [turn(x) if isinstance(x, Value) else x for x in values], first

    def weight(self, name: str, *shape: int, trained: bool = True, dtype: str = "") -> str:
        """Return a weight by Keras' name, a buffer where it is not trained."""
        if name not in self.kept:
            path = elements.free_name(self.b, f"{self.name}/{name}")
            if trained and self.trained:
                self.kept[name] = self.b.weight(path, shape)
            else:
                self.kept[name] = self.b.buffer(path, shape, dtype)
        return self.kept[name]

    def chosen(self, key: str, name: str, *shape: int) -> str:
        """Return a weight that a setting asks for, as it does where it is not said, else ""."""
        return self.weight(name, *shape) if self.flag(key, True) else ""

    def do(self, function: Callable[..., str], *given: Any, at: str = "", **how: Any) -> Value:
        """Return what a function of `lowering` makes of values, channels last, and of numbers."""
        tensors = [self.last(x) if isinstance(x, Value) else x for x in given]
        return Value(function(self.b, *tensors, name=f"{self.name}{at}", **how))

    def each(self, function: str, x: Value, *more: str | float, at: str = "", **how: Any) -> Value:
        """Return a function of the elements of `x`, whatever its layout."""
        name = f"{self.name}{at}"
        return Value(elements.pointwise(self.b, function, x.name, *more, name=name, **how), x.first)

    def ended(self, x: Value) -> Value:
        """Return the layer's own activation of `x`."""
        return self.activated(x, self.config.get("activation"), f"{self.name}/activation")

    def activated(self, x: Value, said: object, name: str) -> Value:
        """Return an activation of `x`, said by a word or as Keras serializes an object."""
        word: Any = said
        config: Any = None
        if isinstance(said, dict):
            config = said.get("config")
            word = config if isinstance(config, str) else said.get("class_name")
            registered = said.get("registered_name")
            if registered not in (None, word) and said.get("class_name") == "function":
                raise self.refuse(f"activation {shorten(registered)} is a function of its own")
        if word in (None, "linear"):
            return x
        known = (*ACTIVATIONS, *SOFTMAX, "linear")
        lowered = str(word).lower() if isinstance(word, str) else word
        if lowered == "relu" and isinstance(config, dict) and config.get("max_value") is not None:
            lowered = "relu6"
        if lowered not in known:
            raise unknown("activation", word, known, f"{self.place}: layer {shorten(self.name)}")
        if lowered in SOFTMAX:
            return self.softmax(x, -1, name, log=lowered == "log_softmax")
        function, limits = ACTIVATIONS[str(lowered)]
        return Value(elements.pointwise(self.b, function, x.name, name=name, **limits), x.first)

    def softmax(self, x: Value, axis: int, name: str, log: bool = False) -> Value:
        """Return a softmax along an axis of Keras'."""
        rank = len(self.b.shape(x.name))
        require(-rank <= axis < rank, f"axis {axis} of {list(self.shape(x))}")
        place = axis % rank
        if x.first and place:
            place = 1 if place == rank - 1 else place + 1
        return Value(elements.softmax(self.b, x.name, place, name, log), x.first)
