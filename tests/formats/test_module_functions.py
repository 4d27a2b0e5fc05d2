"""Modules that run functions of their own: checkpoints in each other, hooks, inner gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.hardware import catalog
from steptime.network.count import count
from steptime.network.ops import OPS
from steptime.network.ops.execution import list_launches
from steptime.network.ops.reads import select_run_ops

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch", reason="its modules are what is read here")
HEAD = "import torch\nfrom torch import nn\nfrom torch.utils.checkpoint import *\n"
ONE = 2 * 4 * 16 * 16  # FLOP of one product of four examples
MAKE = """
class Net(nn.Module):
    INPUTS = {"x": ((4, 16), "float32")}
    def __init__(s):
        super().__init__()
        s.b = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)))
        REST
"""


def step_of(code: str, folder: Path, rest: str = "") -> Graph:
    """The training step of a module: what `forward` has, and what ends `__init__`."""
    from torch.utils import checkpoint

    from steptime.measure.backends.native.checkpoints import mark_checkpoints
    from steptime.measure.backends.native.export import export
    from steptime.measure.backends.native.inputs import specs_of
    from steptime.measure.backends.native.module import module_of

    before = checkpoint.checkpoint
    file = folder / "net.py"
    file.write_text(HEAD + MAKE.replace("REST", rest) + f"    def forward(s, x):\n{code}")
    try:
        mark_checkpoints()
        module, inputs = module_of(str(file), "Net", "cpu")
        export(module, specs_of(inputs), folder / "net.pt2", {})
    finally:
        checkpoint.checkpoint = before
    return build_step(make_workload(read_model(str(folder / "net.pt2"))))


def products(graph: Graph) -> int:
    return sum(op.flop for op in count(graph).ops if OPS[op.kind].work)


PLAIN = 4 + 3 * 2 + 1  # products of a step: the input has no gradient


DEAD = """
        s.b[3](s.b[2](x)).softmax(-1)
        return s.b[1](s.b[0](x))
"""


def test_products_that_lead_to_no_output_run_in_pytorch_and_not_in_a_compiler(tmp_path):
    graph = step_of(DEAD, tmp_path)
    assert products(graph) == (4 + 2 + 1) * ONE  # torch's own counter sees as many
    (remark,) = [remark for remark in graph.remarks if "lead to no output" in remark]
    assert "2 products lead to no output (b.2.0/linear, b.3.0/linear), 51.4% of the FLOP" in remark
    flop = {
        name: sum(launch.flop for launch in list_launches(graph, catalog.stack(name)))
        for name in ("torch-eager", "torch-compile")
    }
    assert flop["torch-eager"] - flop["torch-compile"] > 2 * ONE
    kinds = [op.kind for op in select_run_ops(graph, catalog.stack("torch-compile")).graph.ops]
    assert kinds.count("linear") == 2
    assert "softmax" not in kinds


def test_points_of_a_grid_are_multiplied_by_the_map_in_both_passes(tmp_path):
    code = """
        maps = s.b[0][0](x)[:, :6].view(-1, 2, 3)
        return nn.functional.affine_grid(maps, [4, 1, 8, 8], align_corners=False)
"""
    one_grid = 2 * (4 * 8 * 8) * 3 * 2  # FLOP of (x, y, 1) times a map of 3 x 2, for each pixel
    assert products(step_of(code, tmp_path)) == 2 * ONE + 2 * one_grid


def test_keys_without_a_gradient_are_said_to_be_counted_as_with_one(tmp_path):
    code = """
        q = s.b[0](x)[None, None]
        k = s.b[1](x)[None, None]
        return nn.functional.scaled_dot_product_attention(q, KEYS, KEYS)[0, 0]
"""
    detached, plain = (
        step_of(code.replace("KEYS", keys), tmp_path) for keys in ("k.detach()", "k")
    )
    said = "1 attention whose keys or values need no gradient (scaled_dot_product_attention): "
    assert any(remark.startswith(said) for remark in detached.remarks)
    assert not any("need no gradient" in remark for remark in plain.remarks)


def test_a_checkpoint_that_ends_with_a_relu_runs_to_its_end(tmp_path):
    """A ReLU keeps its result for its gradient, so the product before it runs again, too."""
    graph = step_of(
        "        return checkpoint_sequential(s.b, 2, x, use_reentrant=False)", tmp_path
    )
    # The first two of four layers are under a checkpoint; torch never puts the last under one.
    assert products(graph) == (PLAIN + 2) * ONE


def test_a_checkpoint_inside_of_another_runs_twice_more(tmp_path):
    code = """
        def inner(y): return s.b[2](y)
        def outer(y): return s.b[3](checkpoint(inner, s.b[1](y), use_reentrant=False))
        return checkpoint(outer, s.b[0](x), use_reentrant=False)
"""
    # torch's own counter sees as many: three products again, and that of the inner one once more.
    assert products(step_of(code, tmp_path)) == (PLAIN + 4) * ONE


@pytest.mark.parametrize(
    "rest",
    [
        "s.b[0].register_forward_hook(lambda m, i, o: o + s.a(i[0]))",
        "old, adapter = s.b[0].forward, s.a; s.b[0].forward = lambda x: old(x) + adapter(x)",
    ],
)
def test_a_function_that_holds_a_layer_trains_it(rest, tmp_path):
    graph = step_of("        return s.b(x)", tmp_path, f"s.a = nn.Linear(16, 16); {rest}")
    assert products(graph) == (PLAIN + 2) * ONE
    assert not any("read by no op" in remark for remark in graph.remarks)


@pytest.mark.parametrize(
    "code",
    [
        "x = x.detach().requires_grad_(); return torch.autograd.grad(s.b(x).sum(), x)[0]",
        "return torch.func.grad(lambda t: s.b(t).sum())(x)",
    ],
)
def test_gradients_inside_of_forward_are_refused_by_name(code, tmp_path):
    with pytest.raises(InputError, match="computes gradients inside of forward"):
        step_of(f"        {code}", tmp_path)
