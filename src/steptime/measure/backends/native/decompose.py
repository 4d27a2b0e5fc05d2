"""Ops that our table lacks, in an exported program, written out in ops that it knows.

Only those nodes change: whatever the table knows stays as it was exported.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export.graph_signature import TensorArgument
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from steptime.formats.pytorch.aten import ATEN
from steptime.formats.pytorch.opaque import TABLE

_CHECKS = ("_assert_scalar", "_assert_async", "_assert_tensor_metadata")
_SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_COPIED_META = ("nn_module_stack", "stack_trace", "torch_fn", "custom", "source_fn_stack")


class _NoDecompositionError(Exception):
    """An op that cannot be written out: it stays as it is."""


def drop_checks(program: Any) -> None:
    """Take checks of values out of an exported program, in place, and numbers that they read.

    A step costs nothing for them, and some cannot be written to a file (`torch.sym_ite`).
    """
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):  # it has no graph
            continue
        for node in reversed(list(module.graph.nodes)):
            is_number = isinstance(node.meta.get("val"), _SYMBOLIC_NUMBERS)
            is_check = isinstance(node.target, OpOverload) and op_name(node.target) in _CHECKS
            if node.op == "call_function" and not node.users and (is_number or is_check):
                module.graph.erase_node(node)
        module.recompile()


def decompose_unknown(program: Any) -> None:
    """Write out each op of an exported program that the table of ATEN ops lacks, in place.

    What has no decomposition stays, and is priced by its bytes when the file is read.
    """
    table = dict(torch.export.default_decompositions())
    for module in program.graph_module.modules():
        if not isinstance(module, GraphModule):  # it has no graph
            continue
        for node in list(module.graph.nodes):
            if isinstance(node.target, OpOverload) and not _has_op_kind(node.target):
                _decompose_node(module.graph, node, table)
        module.recompile()
    _rename_outputs(program)


def _rename_outputs(program: Any) -> None:
    """Let the signature of a program name the nodes that give its outputs now."""
    results = program.graph_module.graph.output_node().args[0]
    for node, spec in zip(results, program.graph_signature.output_specs, strict=True):
        if isinstance(node, Node) and isinstance(spec.arg, TensorArgument):
            spec.arg = TensorArgument(node.name)


def op_name(target: Any) -> str:
    """Return the name of an ATen op without its overload: `add` of `aten.add_.Tensor`."""
    name = str(target).split(".")[1]
    return name if name.startswith("_") else name.rstrip("_")


def _has_op_kind(target: Any) -> bool:
    name = op_name(target)
    return name in ATEN or name in TABLE or name.startswith(("sym_", "_assert"))


def _decompose_node(graph: Graph, node: Node, table: dict[Any, Callable[..., Any]]) -> None:
    nodes_before = set(graph.nodes)
    input_values = [arg.meta.get("val") for arg in node.all_input_nodes]
    # Fake tensors have shapes and no values: the op is run on them to see what it consists of.
    fake_modes = (getattr(value, "fake_mode", None) for value in input_values)
    fake_mode: Any = next(filter(None, fake_modes), None)
    if fake_mode is None:  # without a fake tensor there is nothing to run the op on
        return
    recorder = _Recorder(graph, node, table)
    with graph.inserting_before(node):
        try:
            args, kwargs = tree_map(_value_of, (node.args, node.kwargs), is_leaf=_is_node)
            with torch.no_grad(), fake_mode, recorder:
                target: Any = node.target
                results = target(*args, **kwargs)
            nodes = tree_map(recorder.node_of, results)
        except Exception:  # noqa: BLE001  # the op stays: whatever stood in the way
            created = [node for node in graph.nodes if node not in nodes_before]
            for created_node in reversed(created):  # users before what they use
                graph.erase_node(created_node)
            return
    _replace_results(graph, node, nodes)


def _replace_results(graph: Graph, node: Node, nodes: Any) -> None:
    """Let readers of a node read what stands for it, and take it out."""
    if isinstance(nodes, tuple | list):
        # The users of an op with several results are nodes `getitem(op, index)`.
        for getitem in list(node.users):
            index: Any = getitem.args[1]
            getitem.replace_all_uses_with(nodes[index])
            graph.erase_node(getitem)
    else:
        node.replace_all_uses_with(nodes)
    graph.erase_node(node)


def _is_node(value: Any) -> bool:
    return isinstance(value, Node)


def _value_of(value: Any) -> Any:
    return value.meta["val"] if isinstance(value, Node) else value


class _Recorder(TorchDispatchMode):
    """Runs ops on fake tensors and appends a node for each to a graph."""

    def __init__(self, graph: Graph, origin: Node, table: dict[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.origin = origin
        self.table = table
        self.nodes: dict[int, Node] = {}  # by the `id` of the value that a node makes
        self.alive: list[Any] = []  # keeps the values, so that no id is given twice
        for node in origin.all_input_nodes:
            for value in tree_iter(node.meta.get("val")):
                self._note(value, node)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an op that is read, or write it out further."""
        kwargs = kwargs or {}
        if not _has_op_kind(func) and func in self.table:
            with self:  # the ops of the decomposition are recorded in turn
                return self.table[func](*args, **kwargs)
        if func is self.origin.target:  # the op itself again: torch has not written it out
            raise _NoDecompositionError
        result = func(*args, **kwargs)
        if not any(isinstance(value, torch.Tensor) for value in tree_iter(result)):
            return result  # a device, a size
        node_args = tree_map(self.node_of, (args, kwargs))
        node = self.graph.call_function(func, *node_args)
        self._describe(node, result)
        if isinstance(result, tuple | list):
            for i, value in enumerate(result):
                item = self.graph.call_function(operator.getitem, (node, i))
                self._describe(item, value)
                self._note(value, item)
        else:
            self._note(result, node)
        return result

    def node_of(self, value: Any) -> Any:
        """Return the node that makes a tensor or a symbolic size, any other value as it is."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self.nodes:  # made by no node of the graph, such as a constant
                raise _NoDecompositionError
            return self.nodes[id(value)]
        if isinstance(value, torch.SymInt):
            return self._size_node(value)
        return value

    def _size_node(self, size: torch.SymInt) -> Any:
        """Return a node that gives a size: one axis of a tensor that is as long."""
        number = size.node.maybe_as_int()
        if number is not None:
            return number
        # A size that varies with the batch: read it from any tensor that has an axis of this size.
        for tensor in self.alive:
            for axis, length in enumerate(getattr(tensor, "shape", ())):
                if isinstance(length, torch.SymInt) and length.node.expr == size.node.expr:
                    node = self.graph.call_function(
                        torch.ops.aten.sym_size.int, (self.nodes[id(tensor)], axis)
                    )
                    self._describe(node, length)
                    return node
        raise _NoDecompositionError

    def _describe(self, node: Node, value: Any) -> None:
        node.meta["val"] = value
        for key in _COPIED_META:
            if key in self.origin.meta:
                node.meta[key] = self.origin.meta[key]

    def _note(self, value: Any, node: Node) -> None:
        if isinstance(value, torch.Tensor):
            self.nodes[id(value)] = node
            self.alive.append(value)
