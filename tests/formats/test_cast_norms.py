"""Norms and activations that a module computes in float32 itself, in a run of 16 bits."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from steptime.build import build_step, make_workload, read_model  # noqa: E402
from steptime.measure.backends.native.export import export  # noqa: E402

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


class NormInFloat32(nn.Module):
    """A root-mean-square norm whose weight scales what was cast back, as in Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        h = self.linear(x)
        wide = h.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * normed.to(h.dtype)


class NormCastBehindWeight(NormInFloat32):
    """The same, but what the weight scales is in float32 and is cast behind it."""

    def forward(self, x):
        h = self.linear(x)
        wide = h.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (normed * self.weight.float()).to(h.dtype)


class VarianceInFloat32(NormInFloat32):
    """The same, but only the variance is computed in float32, as in T5."""

    def forward(self, x):
        h = self.linear(x)
        variance = h.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (h * torch.rsqrt(variance + 1e-6)).to(h.dtype)


class SiluInFloat32(nn.Module):
    """SiLU that is written out in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        h = self.linear(x)
        wide = h.float()
        return (wide * torch.sigmoid(wide)).to(h.dtype)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (NormInFloat32, "rms_norm"),
        (NormCastBehindWeight, "rms_norm"),
        (VarianceInFloat32, "rms_norm"),
        (SiluInFloat32, "silu"),
    ],
)
def test_casts_do_not_hide_a_norm_or_an_activation(tmp_path, module, kind):
    path = tmp_path / "net.pt2"
    export(module(), {"x": ((2, 8), "float32")}, path, {})
    model = read_model(str(path))
    for dtype in ("float32", "bfloat16"):
        graph = build_step(make_workload(model, 2, dtype, "infer"))
        kinds = Counter(op.kind for op in graph.ops)
        assert kinds == {"linear": 1, "bias": 1, kind: 1}
        assert graph.tensors[graph.outputs[0]].dtype == dtype
