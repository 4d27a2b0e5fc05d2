"""Modules whose small integer tensors decide sizes: products are those that torch counts."""

from __future__ import annotations

import resource
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

# The imports below (E402) need torch: without it they would fail before the file is skipped.
from torch import nn  # noqa: E402
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from steptime.build import build_step, make_workload, read_model  # noqa: E402
from steptime.core.graph import Graph  # noqa: E402
from steptime.measure.backends.native.export import export  # noqa: E402
from steptime.measure.backends.native.inputs import runs_with  # noqa: E402
from steptime.measure.backends.native.known_values import INPUTS_NOTE  # noqa: E402
from steptime.measure.backends.native.making import copy_without_values  # noqa: E402
from steptime.measure.backends.native.model_inputs import propose_model_inputs  # noqa: E402
from steptime.measure.backends.native.packed_model import propose_packed_models  # noqa: E402
from steptime.measure.backends.native.transformers_models import find_inputs  # noqa: E402
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
            if tokens.numel() == 0:
                continue
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


class MergesPatches(ReadsGrid):
    """A tower that is also told how many patches of each image are merged along a side."""

    def forward(self, pixel_values, grid_thw, merge_sizes):
        features, _ = super().forward(pixel_values, grid_thw)
        parts = torch.split(features[0], grid_thw.prod(dim=1).tolist())
        images = [
            part.view(t, h // merge, merge, w // merge, merge, -1).mean((2, 4))
            for part, (t, h, w), merge in zip(parts, grid_thw, merge_sizes, strict=True)
        ]
        return torch.cat(images)


def test_a_tower_is_given_a_number_of_merged_patches_for_each_image(tmp_path):
    config = SimpleNamespace(patch_size=14, image_size=112, spatial_merge_size=2)
    form, inputs = next(propose_packed_models(MergesPatches(), "pixel_values", config, 2))
    assert runs_with(form, inputs)
    graph = build_exported(form, inputs, tmp_path / "net.pt2", 2)
    patches, grids = torch.zeros(2 * 64, 3 * 14 * 14), torch.tensor([[1, 8, 8]] * 2)
    assert count_products(graph) == count_by_torch(
        MergesPatches(), patches, grids, torch.tensor([2, 2])
    )
    assert any("merge_sizes is taken to be 2 of" in remark for remark in graph.remarks)


def test_a_model_without_grids_is_given_none():
    assert not list(propose_packed_models(nn.Linear(2, 2), "input", SimpleNamespace(), 2))


class BranchesOnMask(nn.Module):
    """Layers that depend on a mask of ones, which the module makes and pads itself."""

    def __init__(self) -> None:
        super().__init__()
        self.masked = nn.Linear(8, 16)
        self.plain = nn.Linear(8, 4)

    def forward(self, x):
        mask = functional.pad(torch.ones(x.shape[:2], dtype=torch.long), (0, 3))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
        is_masked = (bias[:, 0, 0] > 0).flatten().any().item()
        length = int(mask.sum(1).max())
        return self.masked(x) if is_masked else self.plain(x[:, :length])


def test_a_mask_of_ones_decides_a_branch_at_any_batch(tmp_path):
    module, batch = BranchesOnMask(), 3
    graph = build_exported(module, {"x": ((2, 5, 8), "float32")}, tmp_path / "net.pt2", batch)
    assert count_products(graph) == count_by_torch(module, torch.zeros(batch, 5, 8))


class CountsExamples(nn.Module):
    """A layer that runs once for each example, whose number is the sum of a tensor of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(int(torch.ones(x.shape[0]).sum())):
            x = self.layer(x)
        return x


def test_a_number_that_depends_on_the_batch_is_that_of_one_batch(tmp_path):
    path, batch = tmp_path / "net.pt2", 2
    reason = export(CountsExamples(), {"x": ((batch, 8), "float32")}, path, {})
    assert reason  # the batch is fixed
    graph = build_step(make_workload(read_model(str(path)), batch, "float32", "infer"))
    assert count_products(graph) == batch * 2 * batch * 8 * 8


class WritesIntoMask(nn.Module):
    """A branch on a mask into which values of the input are written through a view."""

    def forward(self, x):
        mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        mask[:, :2].logical_or_(x[:, :2] > 0)
        return x + 1 if mask.any() else x


def test_a_mask_that_inputs_change_has_no_value(tmp_path):
    with pytest.raises(GuardOnDataDependentSymNode):
        export(WritesIntoMask(), {"x": ((2, 5), "float32")}, tmp_path / "net.pt2", {})


class CastsItself(nn.Module):
    """A large layer whose result the module casts, so that it is exported in two types."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return self.layer(x).float().softmax(-1).to(x.dtype)


def test_an_export_in_two_types_takes_no_memory_for_weights(tmp_path):
    batch, width = 2, 24_000  # 2.3 GB of weights
    with torch.device("meta"):
        module = CastsItself(width)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = build_exported(module, {"x": ((2, width), "float32")}, tmp_path / "net.pt2", batch)
    growth_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb) * 1024
    assert growth_bytes < 2 * width * width  # a copy of the weights in bfloat16
    assert count_products(graph) == 2 * batch * width * width


class PadsAndCasts(PadsByBuffers):
    """A padded convolution whose result the module normalises in float32."""

    def forward(self, x):
        return super().forward(x).float().softmax(-1).to(x.dtype)


def test_a_module_with_values_is_exported_in_two_types(tmp_path):
    path = tmp_path / "net.pt2"
    export(PadsAndCasts(), {"x": ((2, 3, 30), "float32")}, path, {})
    program = torch.export.load(path)
    assert program.state_dict["convolution.weight"].dtype == torch.bfloat16
    graph = build_step(make_workload(read_model(str(path)), 3, "float32", "infer"))
    assert count_products(graph) == count_by_torch(PadsByBuffers(), torch.zeros(3, 3, 30))


def test_a_copy_in_another_type_keeps_ties_and_values_of_small_buffers():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), PadsByBuffers())
    module[1].weight = module[0].weight
    module.register_buffer("scales", torch.full((3,), 0.5))
    copied = copy_without_values(module, torch.bfloat16)
    assert copied[1].weight is copied[0].weight
    assert {weight.dtype for weight in copied.parameters()} == {torch.bfloat16}
    assert copied.scales.dtype == torch.bfloat16
    assert copied.scales.tolist() == [0.5] * 3
    assert int(copied[2].stride) == 4
    assert {weight.dtype for weight in module.parameters()} == {torch.float32}


class ChecksLengths(nn.Module):
    """Embeddings of tokens, after a check of the lengths that the tokens say."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layer = nn.Linear(8, 8)

    def forward(self, ids, attention_mask):
        lengths = (ids != 0).sum(1)
        assert lengths.max().item() <= ids.shape[1]
        x = self.layer(self.table(ids))
        return x if attention_mask.all() else self.layer(x)


def test_values_of_inputs_that_decide_are_ordinary_and_said(tmp_path):
    batch, tokens = 3, 5
    inputs = {"ids": ((2, tokens), "int64"), "attention_mask": ((2, tokens), "int64")}
    graph = build_exported(ChecksLengths(), inputs, tmp_path / "net.pt2", batch)
    assert count_products(graph) == 2 * batch * tokens * 8 * 8
    assert INPUTS_NOTE in str(graph.remarks)


def test_no_value_of_an_input_is_said_where_none_decides(tmp_path):
    graph = build_exported(
        BranchesOnMask(), {"x": ((2, 5, 8), "float32")}, tmp_path / "net.pt2", batch=3
    )
    assert INPUTS_NOTE not in str(graph.remarks)


class MakesGrid(nn.Module):
    """A layer on coordinates of a grid, whose height and width lie in a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 8)

    def forward(self, x):
        shapes = torch.tensor([[x.shape[2], x.shape[3]]])
        height, width = shapes[0, 0], shapes[0, 1]
        rows = self.layer((torch.arange(0, height) / height)[:, None])
        columns = self.layer((torch.arange(0, width) / width)[:, None])
        return x + (rows[:, None] + columns[None]).mean(-1)


def test_sizes_in_a_tensor_of_numbers_are_known(tmp_path):
    module, batch = MakesGrid(), 3
    inputs = {"x": ((2, 1, 6, 5), "float32")}
    graph = build_exported(module, inputs, tmp_path / "net.pt2", batch)
    assert count_products(graph) == count_by_torch(module, torch.zeros(batch, 1, 6, 5))
    assert "values decide" not in str(graph.remarks)


class ChecksItsInput(nn.Module):
    """Looks whether a value is right, and goes on as if it were, as detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        torch._check_tensor_all(x.sum() <= 8)
        return self.layer(x)


def test_checks_of_values_are_left_out_of_an_export(tmp_path):
    inputs = {"x": ((2, 8), "float32")}
    graph = build_exported(ChecksItsInput(), inputs, tmp_path / "net.pt2", 4)
    assert count_products(graph) == 2 * 4 * 8 * 8
    assert [op.kind for op in graph.ops] == ["linear", "bias"]


class HearsAndReads(nn.Module):
    """A model of words and of sound, which needs both though its signature names neither."""

    main_input_name = "input_ids"

    def forward(self, input_ids=None, input_features=None):
        return input_features.mean(-1) * input_ids[:, :1, None]


def test_a_model_of_words_and_sound_is_given_both():
    model = HearsAndReads()
    _, inputs = find_inputs(model, SimpleNamespace(num_mel_bins=20))
    assert inputs["input_ids"][1] == "int64"
    assert inputs["input_features"][0][1] == 20


@pytest.mark.parametrize(
    ("name", "shape"),
    [("latents", (2, 128, 32)), ("flattened_patches", (2, 128, 2 + 3 * 8 * 8))],
)
def test_the_usual_shape_of_a_main_input(name, shape):
    config = SimpleNamespace(hidden_size=32, patch_size=8)
    assert next(propose_model_inputs(name, config, 2)) == {name: (shape, "float32")}


def test_a_model_that_convolves_latents_is_given_channels_first():
    model = nn.Conv1d(32, 4, 3)

    proposals = propose_model_inputs("latents", SimpleNamespace(hidden_size=32), 2)
    assert any(runs_with(model, {"input": proposal["latents"]}) for proposal in proposals)
