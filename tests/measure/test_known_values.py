"""Modules whose small integer tensors decide sizes: products are those that torch counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from steptime.build import build_step, make_workload, read_model  # noqa: E402
from steptime.core.graph import Graph  # noqa: E402
from steptime.measure.backends.native.export import export  # noqa: E402
from steptime.measure.backends.native.inputs import runs_with  # noqa: E402
from steptime.measure.backends.native.packed_model import propose_packed_models  # noqa: E402
from steptime.network.count import count  # noqa: E402
from steptime.network.ops import OPS  # noqa: E402

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


def build_exported(module: Any, inputs: Any, path: Any, batch: int) -> Graph:
    """Return the graph of a forward pass of an exported module."""
    export(module, inputs, path, {})
    return build_step(make_workload(read_model(str(path)), batch, "float32", "infer"))


def count_products(graph: Graph) -> int:
    """Return the FLOP of products."""
    return sum(op.flop for op in count(graph).ops if OPS[op.kind].work)


def count_by_torch(module: Any, *inputs: Any) -> int:
    """Return the FLOP that torch counts while it computes."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*inputs)
    return int(counter.get_total_flops())


class PadsByBuffers(nn.Module):
    """A strided convolution padded to whole windows, its sizes kept as buffers as codecs do."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(3, 5, 7, stride=4)
        self.register_buffer("stride", torch.tensor(4), persistent=False)
        self.register_buffer("padding", torch.tensor(3), persistent=False)

    def forward(self, x):
        length = x.shape[-1]
        windows = torch.ceil((length - 7 + self.padding) / self.stride + 1).to(torch.int64) - 1
        extra = windows * self.stride + 7 - self.padding - length
        return self.convolution(functional.pad(x, (self.padding, extra)))


def test_padding_that_buffers_decide_is_counted_at_any_batch(tmp_path):
    module, batch = PadsByBuffers(), 3
    inputs = {"x": ((2, 3, 30), "float32")}
    graph = build_exported(module, inputs, tmp_path / "net.pt2", batch)
    assert count_products(graph) == count_by_torch(module, torch.zeros(batch, 3, 30))
    assert [name for name, _ in module.named_buffers()] == ["stride", "padding"]


class LoopsOverChosen(nn.Module):
    """A mixture whose loop runs over the experts that some token chose."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        chosen = self.router.to(torch.float32)(x).topk(2, dim=-1).indices
        mask = functional.one_hot(chosen, 4).permute(2, 1, 0)
        result = torch.zeros_like(x)
        for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            _, tokens = torch.where(mask[expert].squeeze(0))
            result.index_add_(0, tokens, self.experts[expert](x[tokens]))
        return result


def test_a_loop_over_experts_gives_each_an_even_share(tmp_path):
    tokens = 6
    graph = build_exported(
        LoopsOverChosen(), {"x": ((tokens, 8), "float32")}, tmp_path / "net.pt2", tokens
    )
    assert count_products(graph) == 2 * tokens * 8 * 4 + 2 * 2 * tokens * 8 * 8
    assert any("all 4 elements" in remark for remark in graph.remarks)
    assert any("an even share among 4 choices" in remark for remark in graph.remarks)


class ReadsGrid(nn.Module):
    """A tower of vision that attends within images, whose grids it is told."""

    main_input_name = "pixel_values"

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 14, stride=14)

    def forward(self, pixel_values, grid_thw):
        x = self.patches(pixel_values.view(-1, 3, 14, 14)).flatten(1)
        frames = torch.repeat_interleave(grid_thw[:, 1] * grid_thw[:, 2], grid_thw[:, 0])
        ends = functional.pad(frames.cumsum(0), (1, 0))
        columns = torch.cat([torch.arange(width) for _, _, width in grid_thw.tolist()])
        parts = torch.split(x[None], (ends[1:] - ends[:-1]).tolist(), dim=1)
        images = [functional.scaled_dot_product_attention(part, part, part) for part in parts]
        return torch.cat(images, dim=1), columns


def test_a_tower_is_given_the_grids_of_images_of_one_size(tmp_path):
    model = ReadsGrid()
    config = SimpleNamespace(patch_size=14, image_size=112, spatial_merge_size=2)
    form, inputs = next(propose_packed_models(model, "pixel_values", config, 2))
    assert inputs == {"pixel_values": ((2, 64, 3 * 14 * 14), "float32")}
    assert runs_with(form, inputs)
    graph = build_exported(form, inputs, tmp_path / "net.pt2", 2)
    patches, grids = torch.zeros(2 * 64, 3 * 14 * 14), torch.tensor([[1, 8, 8]] * 2)
    assert count_products(graph) == count_by_torch(model, patches, grids)
    assert any("grid_thw is taken to be 1x8x8" in remark for remark in graph.remarks)


def test_a_model_without_grids_is_given_none():
    assert not list(propose_packed_models(nn.Linear(2, 2), "input", SimpleNamespace(), 2))
