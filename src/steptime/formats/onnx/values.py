"""What a name of an ONNX file stands for: a tensor of the graph that is built, or a constant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from steptime.core.errors import one_line
from steptime.formats import constants
from steptime.formats.constants import NdArray

Shape = tuple[int, ...]
Step = tuple[str, tuple[int, ...], Shape]  # transpose or reshape, to what, the shape before
LONGEST_NAME = 200


@dataclass(frozen=True)
class Static:
    """What follows from constants alone: a weight of the file, seen through `steps`.

    `derived` is what exporters work out of sizes, positions and truth values: a table, not trained.
    """

    name: str
    array: NdArray
    steps: tuple[Step, ...] = ()
    derived: bool = False

    def viewed(self, kind: str, how: Sequence[int]) -> "Static":
        """Return the same weight, transposed by `how` or seen with the shape `how`."""
        before = self.array.shape
        order = tuple(how)
        steps = self.steps
        if kind == "transpose":
            array = constants.transpose(self.array, order)
            if steps and steps[-1][0] == "transpose":
                *rest, (_, first, before) = steps
                steps, order = tuple(rest), tuple(first[i] for i in order)
            same = order == tuple(range(len(order)))
        else:
            array = constants.reshape(self.array, order)
            if steps and steps[-1][0] == "reshape":
                *rest, (_, _, before) = steps
                steps = tuple(rest)
            same = order == before
        return replace(self, array=array, steps=steps if same else (*steps, (kind, order, before)))


Value = str | Static | None


class Quantised(NamedTuple):
    """The type that a file keeps a weight in, and its scales and zero points there."""

    dtype: str
    scales: tuple[Static, ...]


FOR_WEIGHTS = ("Gather", "GatherND", "Slice", "Split", "Expand", "Tile", "Concat", "Pad")
REPEATS = ("Gather", "Expand", "Tile")  # of rows that stay the weight that they are


def is_weight(value: Value) -> bool:
    """Whether a value is a weight, whose numbers are not known."""
    known = isinstance(value, Static) and value.array.is_float and not value.derived
    return known and isinstance(value, Static) and value.array.values is None


def as_weight(value: Value) -> Value:
    """Return floating numbers in rows as the weight that they are, though they are known."""
    if not isinstance(value, Static) or value.derived or not value.array.is_float:
        return value
    rows = len(value.array.shape) > 1 < value.array.size
    return replace(value, array=replace(value.array, values=None)) if rows else value


Function = Callable[..., Value | Sequence[Value]]


def cleaned(name: str) -> str:
    """Return a name of the file without what cannot be shown, of bounded length."""
    return one_line(name[:LONGEST_NAME])
