"""The user's own module as a backend: its step as torch runs it, without a graph of ours.

It takes the `.pt2` file that `steptime convert` made of code, and runs that code again, here.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from steptime.core.dtypes import precision
from steptime.core.errors import shorten
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.formats import find_network_file, open_source
from steptime.formats.code import LIBRARIES, NUMBER, read_export_facts
from steptime.measure import contract
from steptime.measure.backends.native.inputs import nest_arguments
from steptime.measure.backends.native.module import module_of
from steptime.measure.backends.native.outputs import unique_tensors
from steptime.measure.backends.torch import backend as torch_backend
from steptime.measure.backends.torch.backend import device_facts, translate_error
from steptime.network.ops.loss import IGNORED_LABEL

__all__ = ["RUNS", "STRATEGIES", "device_facts", "prepare", "translate_error", "wake"]

RUNS: dict[str, Callable[..., Any]] = {}  # it runs no kinds
STRATEGIES: tuple[str, ...] = ()
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
wake = torch_backend.prepare


class _Step(nn.Module):
    """A module with the loss that the lowered graph has: of classes if there are labels."""

    def __init__(self, module: nn.Module, inputs: Mapping[str, Any], trains: bool) -> None:
        super().__init__()
        self.module = module
        self.inputs = inputs
        self.trains = trains

    def forward(self, *arguments: Tensor) -> Tensor:
        """Return the loss; in inference the first output."""
        # `arguments` are the tensors in the order of the inputs, then the labels if there are any.
        # Of an input that is a number, the spec holds the number in place of a shape.
        tensors = iter(arguments)
        values = {
            name: shape if dtype == NUMBER else next(tensors)
            for name, (shape, dtype) in self.inputs.items()
        }
        positional, keywords = nest_arguments(values)
        outputs = _list_float_tensors(self.module(*positional, **keywords))
        labels = next(tensors, None)
        if not self.trains:
            return outputs[0]
        if labels is None:
            # Outputs that are single numbers are losses; without any, means stand for a loss.
            losses = [output for output in outputs if output.dim() == 0] or outputs
            return torch.stack([output.mean() for output in losses]).sum()
        logits = outputs[0]
        has_classes_last = logits.shape[:-1] == labels.shape
        if not has_classes_last:  # they lie along axis 1, as torch's losses take them
            logits = logits.movedim(1, -1)
        return functional.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED_LABEL
        )


def prepare(
    graph: Graph, workload: Workload, options: contract.Options, feed: contract.Feed | None = None
) -> contract.Prepared:
    """Return the step of the module that a workload's file was made from, ready on its device.

    Raises `UnsupportedError` for a workload that is not of code, whose code nobody asked for, or
    has changed.
    """
    file = find_network_file(workload.file, workload.sha256)
    facts = read_export_facts(open_source(file)) if file.lower().endswith(".pt2") else {}
    source = facts.get("where")  # a library such as torchvision, or the path of a Python file
    name = facts.get("name")
    if not isinstance(source, str) or not isinstance(name, str):
        raise contract.UnsupportedError(
            "native runs networks of code: model.py:NAME, torchvision:NAME or timm:NAME"
        )
    if source not in LIBRARIES:
        is_code_of_user = workload.code == f"{source}:{name}"
        if not is_code_of_user:  # a file from elsewhere could name any code
            remedy = "it runs where a person names it, in place of this file"
            raise contract.UnsupportedError(
                f"{workload.model} is of code, {shorten(f'{source}:{name}')}: {remedy}"
            )
        exported_sha256 = facts["key"]
        if hashlib.sha256(Path(source).read_bytes()).hexdigest() != exported_sha256:
            raise contract.UnsupportedError(f"{source} has changed since it was converted")
    torch.manual_seed(options.seed)
    module, _ = module_of(source, name, "cpu", facts["inputs"])
    weight_type = getattr(torch, precision(workload.dtype).weights)
    module = module.to(torch_backend.find(options.device), weight_type)
    trains = workload.phase == "train"
    module.train(trains and bool(workload.params.get("dropout")))
    if trains:
        # Without dropout the module is in `eval` mode, but for what trains in the graph, too.
        for module_part in module.modules():
            if isinstance(module_part, (*_BATCH_NORMS, nn.RNNBase)):
                module_part.train()
    step = _Step(module, facts["inputs"], trains)
    return torch_backend.prepare(graph, workload, options, feed, step)


def _list_float_tensors(output: Any) -> list[Tensor]:
    """Return the floating tensors of what a module gives, whatever the object."""
    tensors = [tensor for tensor in unique_tensors(output) if tensor.is_floating_point()]
    if not tensors:
        raise contract.UnsupportedError(f"the module gives a {type(output).__name__}, no tensor")
    return tensors
