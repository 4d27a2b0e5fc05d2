"""How a file that was written for one batch is followed to another: what grows, what is refused."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steptime.core.errors import InputError, shorten
from steptime.formats import elements as el
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, no_flop, require

Shape = Sequence[int]


@dataclass(frozen=True)
class Batches:
    """The batch that a file was written for, its `own`, and the `new` one that is built.

    What the file says of a shape, `told`, is for its own. In a file that leaves the batch open, not
    `fixed`, a size that is as its own batch is just that size.
    """

    own: int
    new: int
    fixed: bool = True

    @property
    def differ(self) -> bool:
        """Whether there is anything to follow."""
        return self.own != self.new

    def seen(self, before: Shape, actual: Shape, told: Shape) -> tuple[int, ...]:
        """Return the shape that a view of `actual` has, where one of `before` is `told`."""
        shape = reseen(before, actual, told, self.own) if self.differ else tuple(told)
        require(shape is not None, f"a view made for batch {self.own} fits no other batch")
        return shape or ()

    def widened(self, shape: Shape, told: Shape, follows: bool = False) -> tuple[int, ...]:
        """Return what `shape` is repeated to where the file says `told`, the batch first.

        Sizes that the file itself works out of its batch do follow another.
        """
        if not self.differ:
            return tuple(told)
        lead = len(told) - len(shape)
        wide = [
            n if i < lead or shape[i - lead] == 1 else shape[i - lead] for i, n in enumerate(told)
        ]
        baked = self.fixed and not follows and told[0] == self.own
        if baked and (lead or shape[0] in {1, self.new}):
            wide[0] = self.new
        return tuple(wide)

    def alike(
        self, b: Builder, operands: Sequence[str | float], name: str, broadcast: bool = True
    ) -> list[str | float]:
        """Return operands, those of the file's own batch repeated where others have grown.

        Where they `broadcast`, a batch of 1 need not be.
        """
        shapes = [b.shape(x) for x in operands if isinstance(x, str)]
        grown = {len(shape) for shape in shapes if shape[:1] == (self.new,)}
        made = list(operands)
        for i, x in enumerate(operands) if self.differ and (self.own > 1 or not broadcast) else ():
            shape = b.shape(x) if isinstance(x, str) else ()
            if isinstance(x, str) and shape[:1] == (self.own,) and len(shape) in grown:
                one = el.slice_(b, x, 0, 0, 1, f"{name}/first")
                made[i] = el.expand(b, one, (self.new, *shape[1:]), f"{name}/batch")
        return made

    def concat(self, b: Builder, tensors: Sequence[str], axis: int, name: str) -> str:
        """Return tensors joined along an axis, all of one batch where that is another."""
        if el.axis_of(b, tensors[0], axis) != 0:
            tensors = [str(x) for x in self.alike(b, tensors, name, broadcast=False)]
        return el.concat(b, tensors, axis, name)

    def check(self, told: Shape, made: Shape) -> None:
        """Raise `ShapeError` for what neither stays as it is nor grows as the batch does."""
        if math.prod(made) != math.prod(told) and not self.grows(told, made):
            raise ShapeError(
                f"exported for batch {self.own}, it cannot be made for {self.new}: "
                f"{list(told)} would be {list(made)}"
            )

    def check_output(self, name: str, told: Shape, made: Shape, place: str) -> None:
        """Raise `InputError` for an output that is not of as many examples as the new batch."""
        if not self.grows(told, made):
            raise InputError(
                f"{place}: exported for batch {self.own}; output {shorten(name)} does not follow "
                f"another one (--batch {self.own}, or export it with its batch left open)"
            )

    def grows(self, told: Shape, made: Shape) -> bool:
        """Whether a tensor has as many times its elements as the batch has grown."""
        return math.prod(made) * self.own == math.prod(told) * self.new


def reseen(before: Shape, actual: Shape, told: Shape, own_batch: int) -> tuple[int, ...] | None:
    """Return the shape that a view of `actual` has, where one of `before` is `told`; None if none.

    A view keeps the order of elements: for each size that has grown one grows that lies around it,
    or around the batch at its front, or inside it, by the elements before both. Of several it is
    the batch of the file, else what begins where it does, heads of attention but not features, the
    last, else the first.
    """
    if tuple(told) == tuple(before):
        return tuple(actual)
    found = list(told)
    for i, (old, new) in enumerate(zip(before, actual, strict=True)):
        if new == old:
            continue
        start = math.prod(before[:i])
        end = start * old
        leads = [math.prod(told[:j]) for j in range(len(told))]
        held = start * own_batch
        around = {j for j, n in enumerate(told) if leads[j] <= start and held <= leads[j] * n}
        inside = {j for j, n in enumerate(told) if start <= leads[j] and leads[j] * n <= end}
        places = sorted(around | inside)
        batches = [j for j in places if told[j] == own_batch]
        behind = [j for j in places if leads[j] == start > 1 and j + 1 < len(told)]
        for j in batches if len(batches) == 1 else (behind or places)[:1]:
            found[j] = found[j] * new // old
    return tuple(found) if math.prod(found) == math.prod(actual) else None


def main_output(b: Builder, outputs: Sequence[str]) -> str:
    """Return the output that most ops which compute lead to."""
    return max(outputs, key=lambda x: _weight(b, x)) if len(outputs) > 1 else outputs[0]


def _weight(b: Builder, output: str) -> int:
    wanted = {output}
    count = 0
    for op in reversed(b.ops):
        if not wanted.isdisjoint(op.outputs):
            wanted.update(op.inputs)
            count += OPS[op.kind].flop is not no_flop
    return count
