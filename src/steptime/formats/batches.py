"""How a file that was written for one batch is followed to another: what grows, what is refused."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from steptime.core.errors import shorten
from steptime.core.units import counted, first_of
from steptime.formats import elements as el
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, no_flop, require

Shape = Sequence[int]
Decisions = Mapping[str, int | None]  # by the file's name of a value, which axis of it grows


@dataclass(frozen=True)
class Batches:
    """The batch that a file was written for, its `own`, and the `new` one that is built.

    What the file says of a shape, `told`, is for its own. In a file that leaves the batch open, not
    `fixed`, a size that is as its own batch is just that size. `decided` is which axis of a value
    of the file grows, though nothing at its place says so.
    """

    own: int
    new: int
    fixed: bool = True
    decided: Decisions = field(default_factory=dict)

    @property
    def differ(self) -> bool:
        """Whether there is anything to follow."""
        return self.own != self.new

    def seen(self, before: Shape, actual: Shape, told: Shape) -> tuple[int, ...]:
        """Return the shape that a view of `actual` has, where one of `before` is `told`."""
        shape = reseen(before, actual, told, self.own) if self.differ else tuple(told)
        require(shape is not None, f"a view made for batch {self.own} fits no other batch")
        return shape or ()

    def widened(
        self, name: str, shape: Shape, told: Shape, grown: bool, follows: bool = False
    ) -> tuple[int, ...]:
        """Return what `shape` is repeated to where the file says `told` of the value `name`.

        The batch is the first size, else the only one that may be it, of what has not `grown`.
        Sizes that the file itself works out of its batch do follow another.
        """
        if not self.differ:
            return tuple(told)
        lead = len(told) - len(shape)
        wide = [
            n if i < lead or shape[i - lead] == 1 else shape[i - lead] for i, n in enumerate(told)
        ]
        ones = (1,) * lead + tuple(shape)
        free = [i for i, n in enumerate(told) if n == self.own and ones[i] == 1]
        if told[0] == self.own and ones[0] in {1, self.new}:
            free = [0]
        elif grown:
            free = []
        if len(free) == 1 and self.fixed and not follows and name not in self.decided:
            wide[free[0]] = self.new
        return tuple(wide)

    def repeated(self, b: Builder, x: str, axis: int, name: str) -> str:
        """Return a tensor of the file's own batch, along an axis, for each of the new one."""
        one = el.slice_(b, x, axis, 0, 1, f"{name}/first")
        shape = [*b.shape(one)]
        shape[axis] = self.new
        return el.expand(b, one, shape, f"{name}/batch")

    def check(self, told: Shape, made: Shape) -> None:
        """Raise `ShapeError` for what neither stays as it is nor grows as the batch does.

        Where the file leaves its batch open, products of a batch with itself grow as its square.
        """
        powers = (0, 1) if self.fixed else (0, 1, 2, 3)
        if not any(self._grows_by(power, told, made) for power in powers):
            raise ShapeError(
                f"exported for batch {self.own}, it cannot be made for {self.new}: "
                f"{list(told)} would be {list(made)}"
            )

    def fault_of_output(self, name: str, told: Shape, made: Shape) -> str:
        """Return what is wrong with an output that is not of as many examples as the new batch."""
        if told == made == () or self.grows(told, made):
            return ""
        if not self.fixed and any(self._grows_by(power, told, made) for power in (2, 3)):
            return ""
        return (
            f"exported for batch {self.own}; output {shorten(name)} does not follow "
            f"another one (--batch {self.own}, or export it with its batch left open)"
        )

    def doubt(self, b: Builder) -> list[str]:
        """Return a remark where a file for one example leaves open what is made for each."""
        moving, once = {*b.inputs}, list[str]()
        for op in b.ops:
            if not moving.isdisjoint(op.inputs):
                moving.update(op.outputs)
            elif op.kind in el.PRODUCTS:
                once.append(op.name)
        if not once or self.own != 1 or not (self.differ and self.fixed):
            return []
        what = f"{counted(len(once), 'product')} of constants alone ({first_of(once, 2)})"
        return [f"exported for batch 1: {what}, counted once a step, not for each example"]

    def grows(self, told: Shape, made: Shape) -> bool:
        """Whether a tensor has as many times its elements as the batch has grown."""
        return self._grows_by(1, told, made)

    def _grows_by(self, power: int, told: Shape, made: Shape) -> bool:
        made_count, told_count = math.prod(made), math.prod(told)
        return bool(made_count * self.own**power == told_count * self.new**power)


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
