"""Which nodes of a file read a tensor: a fused op replaces only ops that nothing else reads."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class FileNode(NamedTuple):
    """The tensors that a node of a file reads and makes, by the file's names."""

    inputs: Sequence[str]
    outputs: Sequence[str]


def _find_live_readers(
    nodes: Sequence[FileNode], outputs: Collection[str]
) -> dict[str, list[FileNode]]:
    """Return the nodes that read each tensor, of those that lead to an output."""
    # Walk back from the outputs: a node that leads to none of them is dead, and reads nothing.
    live_names = set(outputs)
    nodes_by_input: dict[str, list[FileNode]] = {}
    for node in reversed(nodes):
        if not live_names.isdisjoint(node.outputs):
            for name in node.inputs:
                live_names.add(name)
                nodes_by_input.setdefault(name, []).append(node)
    return nodes_by_input


class TensorReaders:
    """The nodes of a file that read each tensor of the graph that is built of it."""

    def __init__(self, nodes: Sequence[FileNode], outputs: Collection[str]) -> None:
        """Find the readers.

        Args:
            nodes: the nodes of the file, in their order.
            outputs: the outputs of the file.
        """
        self._output_names = frozenset(outputs)
        self._nodes_by_input = _find_live_readers(nodes, outputs)
        # a tensor of the graph -> its names in the file
        self._names_in_file_by_tensor: dict[str, list[str]] = {}

    def add_name_in_file(self, tensor: str, name: str) -> None:
        """Note that a name of the file stands for a tensor of the graph."""
        self._names_in_file_by_tensor.setdefault(tensor, []).append(name)

    def is_read_outside(
        self,
        value_by_name: Mapping[str, object],
        pieces: set[str],
        last_piece: str,
        current_outputs: Sequence[str],
    ) -> bool:
        """Whether an output, or a node that is no piece, reads a piece before `last_piece`.

        A node whose results the pieces alone read is a piece: a larger op has replaced it.

        Args:
            value_by_name: what the names of the file stand for so far.
            pieces: tensors of the graph that lead to `last_piece`.
            last_piece: the tensor that the pieces make.
            current_outputs: what the node makes that makes `last_piece`.
        """
        # A fused op replaces its pieces only if nothing else reads them, now or later in the file.
        replaced_tensors = {*pieces, last_piece}
        piece_names = [
            name for piece in pieces for name in self._names_in_file_by_tensor.get(piece, ())
        ]
        is_output = not self._output_names.isdisjoint(piece_names)
        if is_output:
            return True
        outer_names: list[str] = []  # what nodes outside of the fused op make of its pieces
        for node in self._list_readers(piece_names):
            # the node being lowered makes `last_piece`: it is the fused op itself
            is_current_node = tuple(node.outputs) == tuple(current_outputs)
            if is_current_node:
                continue
            # nodes are lowered in their order: one that comes later still needs the piece
            comes_later = not self._is_lowered(value_by_name, node)
            if comes_later:
                return True
            if not self._makes_piece(value_by_name, node, replaced_tensors):
                outer_names += node.outputs
        # A node whose results only the pieces read, such as a shape, is replaced with them.
        return self._leads_outside(value_by_name, outer_names, replaced_tensors)

    def _list_readers(self, names: Sequence[str]) -> list[FileNode]:
        """Return the nodes that read one of these names."""
        return [node for name in names for node in self._nodes_by_input.get(name, ())]

    def _leads_outside(
        self,
        value_by_name: Mapping[str, object],
        open_names: list[str],
        replaced_tensors: set[str],
    ) -> bool:
        """Whether an output, or what the pieces themselves read, needs one of these names."""
        # follow the names forward, to an output or to a node that no piece replaces
        checked_names: set[str] = set()
        while open_names:
            name = open_names.pop()
            if name in self._output_names:
                return True
            for node in self._nodes_by_input.get(name, ()):
                if not self._is_lowered(value_by_name, node):
                    return True  # it comes later, or makes the last piece
                makes_piece = self._makes_piece(value_by_name, node, replaced_tensors)
                is_checked = node.outputs[0] in checked_names
                if not makes_piece and not is_checked:
                    open_names += node.outputs
                    checked_names.update(node.outputs)
        return False

    @staticmethod
    def _is_lowered(value_by_name: Mapping[str, object], node: FileNode) -> bool:
        return any(value_by_name.get(output) is not None for output in node.outputs)

    @staticmethod
    def _makes_piece(
        value_by_name: Mapping[str, object], node: FileNode, replaced_tensors: set[str]
    ) -> bool:
        return any(value_by_name.get(output) in replaced_tensors for output in node.outputs)
