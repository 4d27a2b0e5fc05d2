"""Modules that switch the type of arithmetic themselves, as `x.float()` does.

In a float32 export such a cast changes nothing, and `.to(x.dtype)` looks like a cast to float32. An
export in bfloat16 tells the two apart: what is float32 there is so because the module asks for it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_iter

from steptime.measure.backends.native.inputs import Spec
from steptime.measure.backends.native.known_values import keep_values_of_copy
from steptime.measure.backends.native.making import copy_without_values

LOW = torch.bfloat16
FLOAT32 = "float32"
Export = Callable[[nn.Module, Mapping[str, Spec]], Any]


def export_in_low_type(
    program: Any, network: nn.Module, inputs: Mapping[str, Spec], export: Export
) -> Any:
    """Return the program in bfloat16 if the module casts floats, else as it was exported.

    It stays in float32 as well if the module does not run in bfloat16, or has other ops there.

    Args:
        program: the program in float32.
        network: the module; it is left as it is.
        inputs: shape and type of each input.
        export: what exported the program, of a module and its inputs.
    """
    if not _casts_floats(program):
        return program
    # In float32 a cast to float32 cannot be told from a cast to the type of the input.
    low_inputs = {
        name: (shape, "bfloat16" if dtype == FLOAT32 else dtype)
        for name, (shape, dtype) in inputs.items()
    }
    try:
        copied = copy_without_values(network, LOW)
        with keep_values_of_copy(network, copied):
            low_program = export(copied, low_inputs)
    except Exception:  # noqa: BLE001  # FFTs and some solvers have no low type
        return program
    # A module that branches on its type has other ops in bfloat16, which are not the asked network.
    is_equal_in_ops = len(low_program.graph.nodes) == len(program.graph.nodes)
    return low_program if is_equal_in_ops else program


def _casts_floats(program: Any) -> bool:
    """Whether an op of a program is told which floating type to make of floats."""
    return any(
        _is_cast(node)
        for graph_module in program.graph_module.modules()
        if isinstance(graph_module, torch.fx.GraphModule)
        for node in graph_module.graph.nodes
    )


def _is_cast(node: torch.fx.Node) -> bool:
    result = node.meta.get("val")
    makes_floats = isinstance(result, torch.Tensor) and result.is_floating_point()
    sources = [source.meta.get("val") for source in node.all_input_nodes]
    reads_floats = any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in sources)
    if not (makes_floats and reads_floats):  # a cast from or to integers
        return False
    # A cast names its type as an argument, or takes that of another tensor.
    has_type = any(isinstance(item, torch.dtype) for item in tree_iter((node.args, node.kwargs)))
    return has_type or "type_as" in str(node.target)
