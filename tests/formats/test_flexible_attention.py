"""`flex_attention` of torch: its products, its masks and its functions of scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.graph import Graph
from steptime.network.count import count
from steptime.network.ops import OPS

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch", reason="its modules are what is read here")
CODE = """
import torch
from torch import nn
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

class Net(nn.Module):
    INPUTS = {"x": ((2, 256, 64), "float32"), "document": ((2, 256), "int64")}

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 128)
        self.bias = nn.Parameter(torch.zeros(4, 511))
        self.compiled = torch.compile(flex_attention)
        self.window = create_block_mask(lambda b, h, i, j: abs(i - j) < 16, None, None, 256, 256)

    def forward(self, x, document):
        y = self.qkv(x)
        q = y[..., :64].view(2, 256, 4, 16).transpose(1, 2)
        k, v = (z.view(2, 256, 2, 16).transpose(1, 2) for z in y[..., 64:].chunk(2, -1))
        return ATTEND
"""
TOKENS = 2 * 256
LINEAR = 2 * TOKENS * 64 * 128
PRODUCT = 2 * TOKENS * 4 * 256 * 16  # of all queries and keys
FORWARD = LINEAR + 2 * PRODUCT  # FLOP of all products


def infer(attend: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """The inference of a network that attends so."""
    from torch.nn.attention import flex_attention as library

    from steptime.measure.backends.native.export import export
    from steptime.measure.backends.native.flexible_attention import replace_flex_attention
    from steptime.measure.backends.native.inputs import specs_of
    from steptime.measure.backends.native.module import module_of

    for name in ("flex_attention", "create_block_mask"):
        monkeypatch.setattr(library, name, getattr(library, name))  # put back after the test
    file = folder / "net.py"
    file.write_text(CODE.replace("ATTEND", attend))
    replace_flex_attention()
    module, inputs = module_of(str(file), "Net", "cpu")
    export(module, specs_of(inputs), folder / "net.pt2", {})
    return build_step(make_workload(read_model(str(folder / "net.pt2")), 2, "float32", "infer"))


def products(graph: Graph) -> int:
    return sum(op.flop for op in count(graph).ops if OPS[op.kind].work)


LEARNT_BIAS = "lambda s, b, h, i, j: s + self.bias[h, i - j + 255]"
CAUSAL = "create_block_mask(lambda b, h, i, j: i >= j, B=None, H=None, Q_LEN=256, KV_LEN=256)"
OF_DOCUMENTS = (
    "create_block_mask(lambda b, h, i, j: document[b, i] == document[b, j], 2, None, 256, 256)"
)


@pytest.mark.parametrize(
    ("attend", "said"),
    [
        ("flex_attention(q, k, v, enable_gqa=True)", ""),
        (f"flex_attention(q, k, v, block_mask={CAUSAL}, enable_gqa=True)", ""),
        (
            "self.compiled(q, k, v, block_mask=self.window, enable_gqa=True)",
            "though its block mask leaves 12% of the scores",  # 31 of 256, less at both ends
        ),
        (
            f"flex_attention(q, k, v, block_mask={OF_DOCUMENTS}, enable_gqa=True)",
            "of which its block mask may leave out some",
        ),
        (f"flex_attention(q, k, v, {LEARNT_BIAS}, enable_gqa=True)", ""),
        ("flex_attention(q, k, v, enable_gqa=True, return_lse=True)", ""),
    ],
)
def test_both_products_of_flex_attention_count_over_all_keys(attend, said, tmp_path, monkeypatch):
    graph = infer(attend, tmp_path, monkeypatch)
    assert products(graph) == FORWARD
    remarks = [remark for remark in graph.remarks if "flex_attention" in remark]
    assert len(remarks) == bool(said)
    assert all(said in remark for remark in remarks)


def test_a_block_mask_of_causal_attention_makes_it_causal(tmp_path, monkeypatch):
    graph = infer(
        f"flex_attention(q, k, v, block_mask={CAUSAL}, enable_gqa=True)", tmp_path, monkeypatch
    )
    (attention,) = (op for op in graph.ops if op.kind == "attention")
    assert attention.attrs["causal"]
    assert attention.attrs["kv_heads"] == 2


@pytest.mark.parametrize(
    "sums",
    [
        lambda _: {"return_lse": True},
        lambda library: {"return_aux": library.AuxRequest(lse=True)},
    ],
    ids=["return_lse", "return_aux"],
)
def test_the_replacement_computes_what_torch_computes(sums):
    from torch.nn.attention import flex_attention as library

    from steptime.measure.backends.native.flexible_attention import attend

    q, k, v = (torch.rand(2, heads, 9, 8) for heads in (4, 2, 2))
    mask = library.create_block_mask(lambda b, h, i, j: i - j < 3, None, None, 9, 9, device="cpu")
    keywords = {"block_mask": mask, "enable_gqa": True, "scale": 0.3, **sums(library)}
    both = [
        function(q, k, v, lambda s, b, h, i, j: s + h + i * j, **keywords)
        for function in (library.flex_attention, attend)
    ]
    for right, result in zip(*both, strict=True):
        torch.testing.assert_close(getattr(result, "lse", result), getattr(right, "lse", right))
