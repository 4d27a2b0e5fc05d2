"""Search for the constants of a file for one batch that hold a value for each example.

Nothing at a constant's place tells whether an axis as long as the batch is the batch. The search
walks through the file with a batch that no size of it has, and tries one axis after another.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from steptime.core.errors import InputError
from steptime.formats import Source
from steptime.formats.batches import BatchAxes, Batches, Shape
from steptime.network.ops.builder import Builder

MAX_WALKS = 64  # walks through a file in one search; each takes as long as reading the file
TRIAL_FACTOR = 41  # times the file's batch: a prime, so that the product is no size of the file
KEEP_COST = 2  # rank of the choice that a value does not grow; behind all axes (0 or 1)


class BatchChoice(NamedTuple):
    """A decision on one value of a file.

    Attributes:
        name: the value's name in the file.
        axis: its batch axis, None if it has none.
    """

    name: str
    axis: int | None


class NodeLinks(NamedTuple):
    """The tensors that a node of a file reads and writes, by the file's names."""

    inputs: Sequence[str]
    outputs: Sequence[str]


class FixedBatchError(InputError):
    """A place in a file that fits no other batch.

    Attributes:
        place: the place, as messages name it.
        choices: decisions on constants before the place that may make it fit.
    """

    def __init__(self, place: str, fault: str, choices: Sequence[BatchChoice]) -> None:
        super().__init__(f"{place}: {fault}")
        self.place = place
        self.choices = choices


class BatchWalk(ABC):
    """A walk through a file that builds a graph.

    Attributes:
        b: the builder of the graph.
        batches: the batch of the file and that of the graph.
        env: the value of each name of the file: a text names a tensor of `b`, anything else is a
            constant with a method `repeated(axis, size)`.
    """

    b: Builder
    batches: Batches
    env: MutableMapping[str, Any]

    @abstractmethod
    def file_shape(self, name: str) -> Shape | None:
        """Return the shape that a value has in the file, None if the file does not state it."""

    @abstractmethod
    def shape(self, value: Any) -> Shape:
        """Return the shape of a value in the graph."""

    @abstractmethod
    def list_links(self) -> tuple[Collection[str], Sequence[tuple[Sequence[str], Sequence[str]]]]:
        """Return the inputs of the file, and the inputs and outputs of each node."""

    def repeat_constants(self, names: Iterable[str]) -> None:
        """Repeat, along their batch axes, those of the values that have one."""
        for name in names:
            axis = self.batches.batch_axes.get(name)
            value = self.env.get(name)
            if axis is None or value is None:
                continue
            if isinstance(value, str):
                self.env[name] = self.batches.repeat_tensor(self.b, value, axis, value)
            else:
                self.env[name] = value.repeated(axis, self.batches.new_batch)

    def batch_error(self, place: str, fault: str, ends: Sequence[str]) -> FixedBatchError:
        """Return the error of a place that fits no other batch, with the choices to try next.

        Candidates depend on constants alone. A candidate with an axis as long as the file's batch
        may have its batch there. A candidate that has grown may be kept as it is instead, which is
        tried last.

        Args:
            place: the place, for the message.
            fault: what does not fit there.
            ends: the values that the place reads; candidates lead to them.
        """
        inputs, link_pairs = self.list_links()
        links = [NodeLinks(*pair) for pair in link_pairs]
        sources = {name: node.inputs for node in links for name in node.outputs}
        moving = self._find_moving(inputs, links)
        cost_by_name = self._cost_sources(ends, moving, sources)
        stored = [name for name in cost_by_name if name not in sources]  # made by no node
        ranked: list[tuple[int, BatchChoice]] = []
        for name in (*stored, *sources):
            is_candidate = name in cost_by_name and name not in moving
            if is_candidate and name not in self.batches.batch_axes:
                cost = cost_by_name[name]
                ranked += self._rank_choices(name, cost, sources.get(name, ()))
        ranked.sort(key=lambda pair: pair[0])
        return FixedBatchError(place, fault, [choice for _, choice in ranked])

    def _find_moving(self, inputs: Collection[str], links: Sequence[NodeLinks]) -> set[str]:
        """Return the names of the tensors that depend on an input of the file."""
        moving = {*inputs}
        for node in links:
            if not moving.isdisjoint(node.inputs):
                moving.update(name for name in node.outputs if isinstance(self.env.get(name), str))
        return moving

    def _cost_sources(
        self, ends: Sequence[str], moving: Collection[str], sources: Mapping[str, Sequence[str]]
    ) -> dict[str, int]:
        """Return the values that lead to `ends` with the cost of repeating each.

        Values that constants alone read cost 1: they are folded, and a later choice does as well.
        All others cost 0. The search does not go beyond inputs that grow with the batch already.
        """
        cost_by_name = dict.fromkeys(ends, 0)
        open_names = [*ends]
        while open_names:
            name = open_names.pop()
            if name in moving and self._grows(name):
                continue
            reader_cost = int(not isinstance(self.env.get(name), str))
            for source in sources.get(name, ()):
                if source not in cost_by_name:
                    open_names.append(source)
                cost_by_name[source] = min(reader_cost, cost_by_name.get(source, 1))
        return cost_by_name

    def _rank_choices(
        self, name: str, cost: int, source_names: Sequence[str]
    ) -> list[tuple[int, BatchChoice]]:
        """Return the choices for one value, each with its rank; the lowest is tried first."""
        file_shape = self.file_shape(name)
        value = self.env.get(name)
        if file_shape is None or value is None:
            return []
        shape = self.shape(value)
        has_grown = file_shape != shape
        if has_grown and any(self._has_grown(source) for source in source_names):
            return []
        ranked: list[tuple[int, BatchChoice]] = []
        if has_grown:
            ranked.append((KEEP_COST, BatchChoice(name, None)))
        for axis, size in enumerate(file_shape):
            if size == self.batches.file_batch == shape[axis]:
                ranked.append((cost, BatchChoice(name, axis)))
        return ranked

    def _has_grown(self, name: str) -> bool:
        """Whether a value has another shape in the graph than in the file."""
        file_shape = self.file_shape(name)
        value = self.env.get(name)
        return file_shape is not None and value is not None and file_shape != self.shape(value)

    def _grows(self, name: str) -> bool:
        """Whether a value with axes has grown by the factor of the batch."""
        file_shape = self.file_shape(name)
        value = self.env.get(name)
        if not file_shape or value is None:
            return False
        return self.batches.grows_with_batch(file_shape, self.shape(value))


def find_batch_axes(
    batches: Batches, source: Source, key: object, walk: Callable[[Batches], object]
) -> Batches:
    """Return the batches with the batch axes of the file's constants.

    The file is searched once, with a trial batch; the result is memoised in the source.

    Args:
        batches: the batch of the file and that of the graph.
        source: the file.
        key: what the walk depends on besides the batch.
        walk: walk through the file; raises `FixedBatchError` at the first place that does not fit.

    Raises:
        FixedBatchError: if no choice makes the file fit another batch.
    """
    if not (batches.differ and batches.fixed):
        return batches
    search_result = source.memoise(
        find_batch_axes, lambda: _search_batch_axes(batches.file_batch, walk), key
    )
    if isinstance(search_result, FixedBatchError):
        walk(batches)  # raises with the batch that the user asked for, not with the trial batch
        raise search_result
    return replace(batches, batch_axes=search_result)


def _search_batch_axes(
    file_batch: int, walk: Callable[[Batches], object]
) -> BatchAxes | FixedBatchError:
    """Search depth-first for choices with which a walk fits; return the first error if none do.

    A branch ends where its walk fails at a place for which it has made a choice already, or where
    all walks are used up.
    """
    walk_budget = iter(range(MAX_WALKS))

    def search(axes: BatchAxes, places: Collection[str]) -> BatchAxes | FixedBatchError:
        try:
            walk(Batches(file_batch, file_batch * TRIAL_FACTOR, batch_axes=axes))
        except FixedBatchError as error:
            if error.place in places:
                return error
            for choice in error.choices:
                if next(walk_budget, None) is None:
                    break
                branch = search({**axes, choice.name: choice.axis}, {*places, error.place})
                if not isinstance(branch, FixedBatchError):
                    return branch
            return error
        return axes

    return search({}, ())
