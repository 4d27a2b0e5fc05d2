"""Which nodes of a file read a tensor, so that pieces that something else reads stay."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class FileNode(NamedTuple):
    """The tensors that a node of a file reads and makes, by the file's names."""

    inputs: Sequence[str]
    outputs: Sequence[str]


def _live_readers(nodes: Sequence[FileNode], outputs: Collection[str]) -> dict[str, list[FileNode]]:
    """Return the nodes that read each tensor, of those that lead to an output."""
    live = set(outputs)
    readers: dict[str, list[FileNode]] = {}
    for node in reversed(nodes):
        if not live.isdisjoint(node.outputs):
            for name in node.inputs:
                live.add(name)
                readers.setdefault(name, []).append(node)
    return readers


class TensorReaders:
    """The nodes of a file that read each tensor of the graph that is built of it."""

    def __init__(self, nodes: Sequence[FileNode], outputs: Collection[str]) -> None:
        """Find the readers.

        Args:
            nodes: the nodes of the file, in their order.
            outputs: the outputs of the file.
        """
        self._outputs = frozenset(outputs)
        self._readers = _live_readers(nodes, outputs)
        self._names: dict[str, list[str]] = {}  # a tensor of the graph -> its names in the file

    def note(self, tensor: str, name: str) -> None:
        """Note that a name of the file stands for a tensor of the graph."""
        self._names.setdefault(tensor, []).append(name)

    def is_read_outside(
        self,
        values: Mapping[str, object],
        pieces: set[str],
        last: str,
        current_outputs: Sequence[str],
    ) -> bool:
        """Whether an output, or a node that is no piece, reads one of the pieces before `last`.

        A node whose results the pieces alone read is a piece: a larger op has replaced it.

        Args:
            values: what the names of the file stand for so far.
            pieces: tensors of the graph that lead to `last`.
            last: the tensor that the pieces make.
            current_outputs: what the node makes that makes `last`.
        """
        inside = {*pieces, last}
        piece_names = [name for piece in pieces for name in self._names.get(piece, ())]
        outer_names: list[str] = []  # names that pieces lead to, and that are no pieces
        for name in piece_names:
            if name in self._outputs:
                return True
            for node in self._readers.get(name, ()):
                if tuple(node.outputs) == tuple(current_outputs):
                    continue
                if not self._is_visited(values, node):
                    return True
                if not self._is_inside(values, node, inside):
                    outer_names += node.outputs
        return self._is_used(values, outer_names, inside)

    def _is_used(self, values: Mapping[str, object], names: list[str], inside: set[str]) -> bool:
        """Whether an output, or what the pieces themselves read, needs one of these names."""
        checked: set[str] = set()
        while names:
            name = names.pop()
            if name in self._outputs:
                return True
            for node in self._readers.get(name, ()):
                if not self._is_visited(values, node):  # it comes later, or makes the last piece
                    return True
                if not self._is_inside(values, node, inside) and node.outputs[0] not in checked:
                    names += node.outputs
                    checked.update(node.outputs)
        return False

    @staticmethod
    def _is_visited(values: Mapping[str, object], node: FileNode) -> bool:
        return any(values.get(output) is not None for output in node.outputs)

    @staticmethod
    def _is_inside(values: Mapping[str, object], node: FileNode, inside: set[str]) -> bool:
        return any(values.get(output) in inside for output in node.outputs)
