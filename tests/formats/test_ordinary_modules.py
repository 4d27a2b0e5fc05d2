"""Modules as users bring them, held against torch's own counter in both passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.graph import Graph
from steptime.network.count import count
from steptime.network.ops import OPS

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")
NAMES = (
    *("GraphAttention", "CodedImage", "ExpertsInPlaces", "ExpertsByCode", "DeltaRule"),
    *("Modulated", "Indexed", "Flow", "Upscaled", "Triplet"),
)
LONG = ("DeltaRule", "Modulated", "Flow")


def graphs_of(name: str, folder: Path) -> tuple[Any, dict[str, Graph]]:
    """Return a module and the graphs of its steps by phase."""
    from ordinary_networks import NETWORKS
    from steptime.measure.backends.native.export import export
    from steptime.measure.backends.native.inputs import specs_of

    module = NETWORKS[name]()
    path = folder / "net.pt2"
    export(module.eval(), specs_of(module.INPUTS), path, {})
    model = read_model(str(path))
    batch = next(iter(module.INPUTS.values()))[0][0]
    phases = ("infer", "train")
    return module, {phase: build_step(make_workload(model, batch, phase=phase)) for phase in phases}


def flop_by_torch(module: Any) -> tuple[int, int]:
    """Return the FLOP that torch's counter sees in a forward pass, and in both passes.

    Integers are the numbers from 0, so that experts and edges have even shares.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    values = []
    for shape, dtype in module.INPUTS.values():
        size = torch.Size(shape).numel()
        is_integer = dtype == "int64"
        values.append(torch.arange(size).view(shape) % 10 if is_integer else torch.randn(shape))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*values)
        forward_flop = counter.get_total_flops()
        # the counter starts again at each use, not within one
        module(*values).mean().backward()
    return forward_flop, counter.get_total_flops() - forward_flop


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NAMES],
)
def test_products_of_both_passes_are_torchs(name: str, tmp_path: Path) -> None:
    module, graphs = graphs_of(name, tmp_path)
    products = [
        sum(row.flop for row in count(graph).ops if OPS[row.kind].work) for graph in graphs.values()
    ]
    assert tuple(products) == flop_by_torch(module.train())
    parameters = sum(weight.numel() for weight in module.parameters())
    assert {count(graph).parameters for graph in graphs.values()} == {parameters}
    remarks = [remark for graph in graphs.values() for remark in graph.remarks]
    assert not any("unknown work" in remark for remark in remarks)


def test_experts_count_an_even_share_of_the_tokens(tmp_path: Path) -> None:
    _, graphs = graphs_of("ExpertsByCode", tmp_path)
    (remark,) = [remark for remark in graphs["infer"].remarks if "values decide" in remark]
    assert "u2 and 1 more: counted as an even share among 4 choices, 12" in remark
