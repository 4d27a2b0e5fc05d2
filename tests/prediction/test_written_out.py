"""What a stack keeps for gradients beyond the op table."""

from typing import Any

import pytest

from steptime.build import make_workload, read_model
from steptime.core.workload import Tuning
from steptime.hardware import catalog
from steptime.prediction.steps.step_model import StepModel

VIEWS = ("alias", "detach", "expand", "squeeze", "t", "transpose", "unsqueeze", "view")
DECODER = (
    "transformer:kind=decoder,layers=2,width=64,heads=4,ffn=128,length=32,vocabulary=96,"
    "norm=rms,activation=swiglu,positions=rotary"
)


def test_what_transformers_writes_out_is_kept_in_float32():
    """LlamaRMSNorm keeps x in float32 in place of 16 bit, the loss logits and log_softmax in it."""
    batch, tuning = 2, Tuning(rank=2, on="q+v")
    workload = make_workload(
        read_model(DECODER), batch, dtype="bfloat16", optimizer="adam", tuning=tuning
    )
    plain, written = (
        StepModel(workload, "a100", options={"stack": stack})
        for stack in ("torch-eager", "hf-2025")
    )
    rows = batch * 32
    norms, logits = 4 * rows * 64, rows * 96  # of 2 bytes; before the first adapter nothing is kept
    kept = sum(written.sizes().values()) - sum(
        written.graph().tensors[name].size_bytes for name in written.sizes()
    )
    assert kept == 2 * (norms + 3 * logits)
    assert max(written.living_bytes()) > max(plain.living_bytes())


@pytest.mark.framework
def test_the_norm_of_transformers_moves_what_its_ops_move():
    """LlamaRMSNorm as it is written, its kernels and the bytes that they read and write."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counted(TorchDispatchMode):
        moved, kernels = 0, 0

        def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = op(*args, **(kwargs or {}))
            if op.__name__.split(".")[0] not in VIEWS:
                every = tree_leaves((args, kwargs, made))
                tensors = [one for one in every if isinstance(one, torch.Tensor)]
                self.moved += sum(one.untyped_storage().nbytes() for one in tensors)
                self.kernels += 1
            return made

    x = torch.randn(512, 1024, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(1024, dtype=torch.bfloat16, requires_grad=True)
    with Counted() as forward:
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        y = weight * h.to(torch.bfloat16)
    seed = torch.ones_like(x)
    with Counted() as backward:
        torch.autograd.grad(y, (x, weight), seed)
    kinds = catalog.stack("hf-2025").kinds
    for kind, seen in (("rms_norm", forward), ("rms_norm_grad", backward)):
        assert kinds[kind].kernels == seen.kernels
        assert kinds[kind].passes == pytest.approx(seen.moved / (2 * x.numel()), rel=0.01)
