"""Which nodes of a program read a tensor, so that pieces that something else reads stay."""

from collections.abc import Mapping

from steptime.formats.pytorch.program import FxNode, Program


def _live_readers(program: Program) -> dict[str, list[FxNode]]:
    """Return the nodes that read each tensor, of those that lead to an output."""
    live = set(program.outputs)
    readers: dict[str, list[FxNode]] = {}
    for node in reversed(program.nodes):
        if not live.isdisjoint(node.outputs):
            for name in node.tensors:
                live.add(name)
                readers.setdefault(name, []).append(node)
    return readers


class TensorReaders:
    """The nodes of a program that read each tensor of the graph that is built of it."""

    def __init__(self, program: Program) -> None:
        self._outputs = frozenset(program.outputs)
        self._readers = _live_readers(program)
        self._names: dict[str, list[str]] = {}  # a tensor of the graph -> its names in the file

    def note(self, tensor: str, name: str) -> None:
        """Note that a name of the file stands for a tensor of the graph."""
        self._names.setdefault(tensor, []).append(name)

    def is_read_outside(
        self, values: Mapping[str, object], pieces: set[str], last: str, current: FxNode
    ) -> bool:
        """Whether an output, or a node that is no piece, reads one of the pieces before `last`.

        Args:
            values: what the names of the file stand for so far.
            pieces: tensors of the graph that lead to `last`.
            last: the tensor that the pieces make.
            current: the node that makes it.
        """
        inside = {*pieces, last}
        for name in [name for piece in pieces for name in self._names.get(piece, ())]:
            if name in self._outputs:
                return True
            for node in self._readers.get(name, ()):
                results = [values.get(output) for output in node.outputs]
                if node is not current and not any(result in inside for result in results):
                    return True
        return False
