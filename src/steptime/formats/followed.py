"""Which constants of a file for one batch are made for each example, where no place says so."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from steptime.core.errors import InputError
from steptime.formats import Source
from steptime.formats.batches import Batches, Decisions, Shape
from steptime.network.ops.builder import Builder

MOST_WALKS = 64  # through a file, to decide what of it is made for each example
UNLIKE = 41  # times the batch of a file: as long as nothing else in it
Choice = tuple[str, int | None]


class UnfollowedError(InputError):
    """A place in a file that fits no other batch, and what of constants could be decided there."""

    def __init__(self, place: str, fault: str, choices: Sequence[Choice]) -> None:
        super().__init__(f"{place}: {fault}")
        self.place, self.choices = place, choices


class Follower(ABC):
    """A walk through a file: `env` holds what each of its names stands for.

    A text is a tensor of `b`; all else is a constant, which can be `repeated(axis, size)`.
    """

    b: Builder
    batches: Batches
    env: dict[str, Any]

    @abstractmethod
    def old(self, name: str) -> Shape | None:
        """Return the shape that a tensor has with the file's own batch."""

    @abstractmethod
    def shape(self, value: Any) -> Shape:
        """Return a value's shape."""

    @abstractmethod
    def links(self) -> tuple[Collection[str], Sequence[tuple[Sequence[str], Sequence[str]]]]:
        """Return the file's inputs, and the tensors that each node reads and makes."""

    def decide(self, names: Iterable[str]) -> None:
        """Repeat values that were decided to be of the batch for each example."""
        for name in names:
            axis, value = self.batches.decided.get(name), self.env.get(name)
            if axis is None or value is None:
                continue
            if isinstance(value, str):
                self.env[name] = self.batches.repeated(self.b, value, axis, value)
            else:
                self.env[name] = value.repeated(axis, self.batches.new)

    def refusal(self, place: str, fault: str, ends: Sequence[str]) -> UnfollowedError:
        """Return the error of a place, with what may be decided otherwise behind `ends`.

        Candidates follow from constants alone and have an axis as long as the file's own batch.
        Earlier values come first, but what constants are made of costs nothing and comes later;
        last, that what has grown does not.
        """
        given, nodes = self.links()
        moving = {*given}
        sources = {name: inputs for inputs, outputs in nodes for name in outputs}
        for inputs, outputs in nodes:
            if not moving.isdisjoint(inputs):
                moving.update(name for name in outputs if isinstance(self.env.get(name), str))
        cost = dict.fromkeys(ends, 0)  # 1 of what constants alone read
        wanted = [*ends]
        while wanted:
            name = wanted.pop()
            if name in moving and self._grows(name):
                continue
            free = int(not isinstance(self.env.get(name), str))
            wanted += [source for source in sources.get(name, ()) if source not in cost]
            cost |= {source: min(free, cost.get(source, 1)) for source in sources.get(name, ())}
        ranked: list[tuple[int, Choice]] = []
        for name in (*(one for one in cost if one not in sources), *sources):
            old, value = self.old(name), self.env.get(name)
            if name not in cost or name in moving or name in self.batches.decided:
                continue
            if old is None or value is None:
                continue
            new = self.shape(value)
            if any(map(self._differs, sources.get(name, ()))) and old != new:
                continue
            ranked += [(2, (name, None))] if old != new else []
            axes = [i for i, n in enumerate(old) if n == self.batches.own == new[i]]
            ranked += [(cost[name], (name, i)) for i in axes]
        ranked.sort(key=lambda one: one[0])
        return UnfollowedError(place, fault, [choice for _, choice in ranked])

    def _differs(self, name: str) -> bool:
        old, value = self.old(name), self.env.get(name)
        return old is not None and value is not None and old != self.shape(value)

    def _grows(self, name: str) -> bool:
        old, value = self.old(name), self.env.get(name)
        return bool(old and value is not None and self.batches.grows(old, self.shape(value)))


def followed(
    batches: Batches, source: Source, key: object, walk: Callable[[Batches], object]
) -> Batches:
    """Return batches with what is decided of a file; raises `UnfollowedError` for one that cannot.

    That is searched for once, with a batch that no size of the file is.
    """
    if not (batches.differ and batches.fixed):
        return batches
    made = source.once(followed, lambda: _decisions(batches.own, walk), key)
    if isinstance(made, UnfollowedError):
        walk(batches)  # says it of the batch that is wanted
        raise made
    return replace(batches, decided=made)


def _decisions(own: int, walk: Callable[[Batches], object]) -> Decisions | UnfollowedError:
    """Return which constants of a file have an axis that is its batch.

    Where a walk does not fit, an earlier value with an axis as long as the batch is taken to be
    made for each example, and the rest must fit then.
    """
    left = iter(range(MOST_WALKS))

    def tried(so_far: Decisions, places: Collection[str]) -> Decisions | UnfollowedError:
        try:
            walk(Batches(own, own * UNLIKE, decided=so_far))
        except UnfollowedError as error:
            for choice in error.choices if error.place not in places else ():
                if next(left, None) is None:
                    break
                made = tried(dict([*so_far.items(), choice]), {*places, error.place})
                if not isinstance(made, UnfollowedError):
                    return made
            return error
        return so_far

    return tried({}, ())
