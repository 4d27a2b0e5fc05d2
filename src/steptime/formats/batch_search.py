"""Find which constants of a file exported for one batch hold a value for each example.

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
from steptime.formats.readers import FileNode
from steptime.network.ops.builder import Builder

MAX_WALKS = 64  # walks through a file in one search; each takes as long as reading the file
TRIAL_FACTOR = 41  # times the file's batch: a prime, so that the product is no size of the file
# ranks of choices, of which the lowest is tried first
COMPUTED_READER_RANK = 0  # a tensor that the network computes reads the value
FOLDED_READER_RANK = 1  # constants alone read the value: they are folded, and can be chosen later
KEEP_RANK = 2  # the value does not grow: behind all axes


class BatchChoice(NamedTuple):
    """A decision on one value of a file.

    Attributes:
        name: the value's name in the file.
        axis: its batch axis, None if it has none.
    """

    name: str
    axis: int | None


class RankedChoice(NamedTuple):
    """A choice with its rank; the lowest rank is tried first."""

    rank: int
    choice: BatchChoice


class FixedBatchError(InputError):
    """A place in a file that fits no other batch.

    Attributes:
        location: the place, as messages name it.
        choices: decisions on constants before the place that may make it fit.
    """

    def __init__(self, location: str, fault: str, choices: Sequence[BatchChoice]) -> None:
        super().__init__(f"{location}: {fault}")
        self.location = location
        self.choices = choices


class BatchWalk(ABC):
    """A walk through a file that builds a graph.

    Attributes:
        b: the builder of the graph.
        batches: the batch of the file and that of the graph.
        value_by_name: the value of each name of the file: a text names a tensor of `b`, anything
            else is a constant with a method `repeated(axis, size)`.
    """

    b: Builder
    batches: Batches
    value_by_name: MutableMapping[str, Any]

    @abstractmethod
    def file_shape(self, name: str) -> Shape | None:
        """Return the shape that a value has in the file, None if the file does not state it."""

    @abstractmethod
    def shape(self, value: Any) -> Shape:
        """Return the shape of a value in the graph."""

    @abstractmethod
    def list_inputs(self) -> Collection[str]:
        """Return the inputs of the file."""

    @abstractmethod
    def list_nodes(self) -> Sequence[FileNode]:
        """Return the nodes of the file, with the tensors that they read and make."""

    def repeat_constants(self, names: Iterable[str]) -> None:
        """Repeat, along their batch axes, those of the values that have one."""
        for name in names:
            batch_axis = self.batches.batch_axes.get(name)
            value = self.value_by_name.get(name)
            if batch_axis is None or value is None:
                continue
            is_tensor = isinstance(value, str)
            if is_tensor:
                self.value_by_name[name] = self.batches.repeat_tensor(
                    self.b, value, batch_axis, name=value
                )
            else:
                self.value_by_name[name] = value.repeat(batch_axis, self.batches.new_batch)

    def make_batch_error(
        self, location: str, fault: str, values_read: Sequence[str]
    ) -> FixedBatchError:
        """Return the error of a place that fits no other batch, with the choices to try next.

        Candidates depend on constants alone. A candidate with an axis as long as the file's batch
        may have its batch there. A candidate that has grown may be kept as it is instead, which is
        tried last.

        Args:
            location: the place, for the message.
            fault: what does not fit there.
            values_read: the values that the place reads; candidates lead to them.
        """
        nodes = self.list_nodes()
        inputs_by_output = {output: node.inputs for node in nodes for output in node.outputs}
        input_dependent = self._find_input_dependent(nodes)
        rank_by_name = self._rank_sources(values_read, input_dependent, inputs_by_output)
        ranked_choices: list[RankedChoice] = []
        # stored constants first, then computed ones in the order of the file
        stored_names = [name for name in rank_by_name if name not in inputs_by_output]
        for name in (*stored_names, *inputs_by_output):
            leads_to_fault = name in rank_by_name
            # what depends on an input grows with it: the search decides on constants alone
            is_constant = name not in input_dependent
            is_undecided = name not in self.batches.batch_axes
            if not (leads_to_fault and is_constant and is_undecided):
                continue
            axis_rank = rank_by_name[name]
            node_inputs = inputs_by_output.get(name, ())  # none of a stored constant
            ranked_choices += self._rank_choices(name, axis_rank, node_inputs)
        # a stable sort: choices of one rank are tried in the order above
        ranked_choices.sort(key=lambda ranked: ranked.rank)
        return FixedBatchError(location, fault, [ranked.choice for ranked in ranked_choices])

    def _find_input_dependent(self, nodes: Sequence[FileNode]) -> set[str]:
        """Return the names of the tensors that depend on an input of the file."""
        input_dependent = {*self.list_inputs()}
        for node in nodes:
            reads_dependent = not input_dependent.isdisjoint(node.inputs)
            if reads_dependent:
                tensors = [
                    name for name in node.outputs if isinstance(self.value_by_name.get(name), str)
                ]
                input_dependent.update(tensors)
        return input_dependent

    def _rank_sources(
        self,
        values_read: Sequence[str],
        input_dependent: Collection[str],
        inputs_by_output: Mapping[str, Sequence[str]],
    ) -> dict[str, int]:
        """Return the values that lead to `values_read` with the rank of repeating each.

        The search does not go beyond inputs that grow with the batch already.
        """
        # Walk back from the values that the place reads to all that they are made of.
        rank_by_name = dict.fromkeys(values_read, COMPUTED_READER_RANK)
        open_names = [*values_read]
        while open_names:
            reader = open_names.pop()
            # what leads to a tensor that grows with the batch needs no choice
            if reader in input_dependent and self._has_grown_with_batch(reader):
                continue
            is_computed = isinstance(self.value_by_name.get(reader), str)
            reader_rank = COMPUTED_READER_RANK if is_computed else FOLDED_READER_RANK
            for source in inputs_by_output.get(reader, ()):
                if source not in rank_by_name:
                    open_names.append(source)
                # the lowest rank is tried first: values that a computed tensor reads
                earlier_rank = rank_by_name.get(source, FOLDED_READER_RANK)
                rank_by_name[source] = min(reader_rank, earlier_rank)
        return rank_by_name

    def _rank_choices(
        self, name: str, axis_rank: int, node_inputs: Sequence[str]
    ) -> list[RankedChoice]:
        """Return the choices for one value: to keep it, or the axis that is its batch.

        Args:
            name: the value.
            axis_rank: the rank of a choice of an axis.
            node_inputs: the inputs of the node that makes the value.
        """
        file_shape = self.file_shape(name)
        value = self.value_by_name.get(name)
        if file_shape is None or value is None:
            return []
        shape = self.shape(value)
        has_grown = file_shape != shape
        grows_by_its_inputs = has_grown and any(map(self._has_grown, node_inputs))
        # it follows its inputs: the decision is on these
        if grows_by_its_inputs:
            return []
        ranked_choices: list[RankedChoice] = []
        if has_grown:  # without a batch axis it keeps the shape of the file
            ranked_choices.append(RankedChoice(KEEP_RANK, BatchChoice(name, axis=None)))
        for axis, file_size in enumerate(file_shape):
            may_be_batch = file_size == self.batches.file_batch
            if may_be_batch and shape[axis] == file_size:
                ranked_choices.append(RankedChoice(axis_rank, BatchChoice(name, axis)))
        return ranked_choices

    def _has_grown(self, name: str) -> bool:
        """Whether a value has another shape in the graph than in the file."""
        file_shape = self.file_shape(name)
        value = self.value_by_name.get(name)
        return file_shape is not None and value is not None and file_shape != self.shape(value)

    def _has_grown_with_batch(self, name: str) -> bool:
        """Whether a value with axes has grown by the factor of the batch."""
        file_shape = self.file_shape(name)
        value = self.value_by_name.get(name)
        if not file_shape or value is None:
            return False
        return self.batches.grows_with_batch(file_shape, self.shape(value))


def find_batch_axes(
    batches: Batches, source: Source, memo_key: object, walk_file: Callable[[Batches], object]
) -> Batches:
    """Return the batches with the batch axes of the file's constants.

    The file is searched once, with a trial batch; the result is memoised in the source.

    Args:
        batches: the batch of the file and that of the graph.
        source: the file.
        memo_key: what the walk depends on besides the batch.
        walk_file: walk through the file; raises `FixedBatchError` at the first place that does not
            fit.

    Raises:
        FixedBatchError: if no choice makes the file fit another batch.
    """
    if not (batches.differs_from_file and batches.is_fixed):
        return batches
    search_result = source.memoise(  # under the name of this function
        find_batch_axes, lambda: _search_batch_axes(batches.file_batch, walk_file), memo_key
    )
    if isinstance(search_result, FixedBatchError):
        # This walk fails at the same place: its error names the user's batch, not the trial batch.
        walk_file(batches)
        raise search_result
    return replace(batches, batch_axes=search_result)


def _search_batch_axes(
    file_batch: int, walk_file: Callable[[Batches], object]
) -> BatchAxes | FixedBatchError:
    """Search depth-first for choices with which a walk fits; return the first error if none do.

    A branch ends where its walk fails at a place for which it has made a choice already, or where
    all walks are used up.
    """
    trial_batch = file_batch * TRIAL_FACTOR
    walks_left = MAX_WALKS

    def search(axes: BatchAxes, decided_locations: Collection[str]) -> BatchAxes | FixedBatchError:
        nonlocal walks_left
        try:
            walk_file(Batches(file_batch, trial_batch, batch_axes=axes))
        except FixedBatchError as error:
            # a choice was made for this place already and did not mend it
            if error.location in decided_locations:
                return error
            # try each choice, and with it all later places, until one leads to the end of the file
            for choice in error.choices:
                if walks_left == 0:
                    break
                walks_left -= 1
                axes_with_choice = {**axes, choice.name: choice.axis}
                result = search(axes_with_choice, {*decided_locations, error.location})
                if not isinstance(result, FixedBatchError):
                    return result
            return error
        return axes

    return search(axes={}, decided_locations=())
