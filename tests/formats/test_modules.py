"""Modules that people write: products of a step are those that torch counts, or by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.measure.contract import UnsupportedError
from steptime.measure.interpreter import list_calls
from steptime.network.count import count, peak_bytes
from steptime.network.ops import OPS

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
TWO = "    def __init__(s): super().__init__(); s.l, s.m = nn.Linear(8, 8), nn.Linear(8, 8)\n"
WIDE = "(2, 8), 'float32'"
CODE = {  # a class with two products of 8 x 8: its inputs, its forward
    "gate": ("{'x': (WIDE)}", "return s.m(x) * ((s.l(x) > 0) & (s.l(x) < 5))"),
    "codes": ("{'x': (WIDE)}", "return s.m(F.one_hot(s.l(x).argmax(-1), 8).float())"),
    "picked": ("{'x': (WIDE)}", "return s.m(F.one_hot(s.l(x).max(-1).indices, 8).float())"),
    "graph": (
        "{'x': ((10, 8), 'float32'), 'e': ((2, 30), 'int64')}",
        "h = s.l(x); return s.m(torch.zeros_like(h).index_add(0, e[1], h[e[0]]))",
    ),
    "detached": ("{'x': (WIDE)}", "return s.m(s.l(x).detach())"),
    "no_grad": (
        "{'x': (WIDE), 'y': (WIDE)}",
        "\n        with torch.no_grad(): t = s.l(y)\n        return s.m(s.l(x)) - t",
    ),
    "sorted": ("{'x': (WIDE)}", "return s.m(s.l(x).sort(-1)[0])"),
    "outer": ("{'x': (WIDE)}", "return torch.einsum('bi,bj->bij', s.l(x), s.m(x))"),
    "loss": (
        "{'x': (WIDE), 't': ((2,), 'int64')}",
        "z = s.m(s.l(x)); return z, F.cross_entropy(z, t)",
    ),
    "ctc": (
        "{'x': ((2, 5, 8), 'float32'), 'y': ((2, 3), 'int64')}",
        "z = s.m(s.l(x)).log_softmax(-1).transpose(0, 1); return F.ctc_loss(z, y, *[y[:, 0]] * 2)",
    ),
    "masked": ("{'x': (WIDE)}", "y = s.l(x); return s.m(y[y.sum(-1) > 0])"),
    "nonzero": (
        "{'x': ((2, 5, 8), 'float32')}",
        "i = torch.nonzero(s.l(x).sum(-1) > 0); return s.m(x)[i[:, 0], i[:, 1]]",
    ),
    "strided": (
        "{'x': ((2, 6, 8), 'float32')}",
        "y = s.l(x); z = y * 2; z[:, ::2] = y[:, 1::2]; z[:, 1::2] = -y[:, ::2]; return s.m(z)",
    ),
    "diagonal": ("{'x': ((2, 8, 8), 'float32')}", "return torch.einsum('...ii->...i', s.l(x))"),
    "vmap": ("{'x': ((2, 5, 8), 'float32')}", "return torch.vmap(lambda r: s.m(s.l(r)))(x)"),
    "number": ("{'x': (WIDE), 't': (0.5, 'number')}", "return s.m(s.l(x)) * t"),
    "cosine": ("{'x': (WIDE)}", "return F.cosine_similarity(s.l(x), s.m(x))"),
    "outputs": ("{'x': (WIDE)}", "return {'a': s.l(x), 'b': s.m(x)}"),
    "dict": ("{'b': {'x': (WIDE), 'y': (WIDE)}}", "return s.l(b['x']) + s.m(b['y'])"),
}
ONE = 2 * 2 * 8 * 8  # FLOP of one product of two examples
BY_NAME = {  # products of a forward pass, of a training step
    "gate": (3 * ONE, 4 * ONE),  # the gate has no gradient
    "codes": (2 * ONE, 3 * ONE),
    "picked": (2 * ONE, 3 * ONE),
    "graph": (2 * 5 * ONE, 5 * 5 * ONE),  # 10 nodes
    "detached": (2 * ONE, 3 * ONE),
    "no_grad": (3 * ONE, 6 * ONE),
    "sorted": (2 * ONE, 5 * ONE),
    "outer": (2 * ONE, 4 * ONE),
    "loss": (2 * ONE, 5 * ONE),
    "ctc": (2 * 5 * ONE, 5 * 5 * ONE),  # 5 steps
    "masked": (2 * ONE, 5 * ONE),  # as if all were chosen
    "nonzero": (2 * 5 * ONE, 3 * 5 * ONE),  # the choice has no gradient
    "strided": (2 * 6 * ONE, 5 * 6 * ONE),
    "diagonal": (8 * ONE, 2 * 8 * ONE),
    "vmap": (2 * 5 * ONE, 5 * 5 * ONE),
    "number": (2 * ONE, 5 * ONE),
    "cosine": (2 * ONE, 4 * ONE),
    "outputs": (2 * ONE, 4 * ONE),
    "dict": (2 * ONE, 4 * ONE),
}


@pytest.fixture
def exported(tmp_path: Path) -> Callable[..., Graph]:
    """Return a function from a module's code and inputs to the graph of a step of it."""
    from torch.utils import checkpoint

    from steptime.measure.backends.native.checkpoints import mark_checkpoints
    from steptime.measure.backends.native.export import export
    from steptime.measure.backends.native.inputs import specs_of
    from steptime.measure.backends.native.module import module_of

    def make(code: str, phase: str = "train", batch: int | None = None) -> Graph:
        before = checkpoint.checkpoint
        file = tmp_path / "net.py"
        file.write_text(HEAD + code)
        try:
            mark_checkpoints()
            module, inputs = module_of(str(file), "Net")
            export(module, specs_of(inputs), tmp_path / "net.pt2", {})
        finally:
            checkpoint.checkpoint = before
        model = read_model(str(tmp_path / "net.pt2"))
        return build_step(make_workload(model, batch, phase=phase))

    return make


def products(graph: Graph) -> int:
    return sum(op.flop for op in count(graph).ops if OPS[op.kind].work)


@pytest.mark.parametrize("name", CODE)
def test_products_are_those_of_the_module(name, exported):
    inputs, forward = CODE[name]
    inputs = inputs.replace("WIDE", WIDE)
    names = ", ".join(part for part in ("x", "y", "e", "t", "b") if f"'{part}': (" in inputs)
    names = {"dict": "b"}.get(name, names)
    code = f"class Net(nn.Module):\n    INPUTS = {inputs}\n{TWO}    def forward(s, {names}): "
    code += forward
    graph = exported(code)
    assert (products(exported(code, "infer")), products(graph)) == BY_NAME[name]
    assert not any("unknown work" in remark for remark in graph.remarks)


@pytest.mark.parametrize(
    "inputs", ["'4x8'", "'x=4x8:float32'", "{'x': '4x8'}", "('4x8',)", "{'x': ((4, 8), 'float32')}"]
)
def test_inputs_in_the_class_may_be_texts_as_in_a_command(inputs, exported):
    forward = "def forward(s, x): return x @ x.T"
    graph = exported(f"class Net(nn.Module):\n    INPUTS = {inputs}\n    {forward}", "infer")
    assert [graph.tensors[name].shape for name in graph.inputs] == [(4, 8)]


FROZEN = f"""
class Net(nn.Module):
    INPUTS = {{"x": ({WIDE})}}
    def __init__(s):
        super().__init__(); s.l, s.m = nn.Linear(8, 8), nn.Linear(8, 8)
        s.l.requires_grad_(False)
    def forward(s, x): return s.m(s.l(x).relu())
"""


def test_frozen_weights_have_no_gradient_and_no_state_and_are_parameters(exported):
    graph = exported(FROZEN)
    assert products(graph) == 3 * ONE
    assert graph.weights == ("m.weight", "m.bias")
    assert count(graph).parameters == 144
    assert not any(name.startswith("l.") and "/sgd" in name for name in graph.buffers)
    note = "72 of 144 parameters are frozen: no gradient, no optimizer state: l.weight, l.bias"
    assert note in graph.remarks


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
import torch.utils.checkpoint as module
class Net(nn.Module):
    INPUTS = {"x": ((64, 16), "float32")}
    def __init__(s):
        super().__init__()
        s.b = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(4))
    def forward(s, x):
        for b in s.b: x = CALL
        return x
"""


@pytest.mark.slow
def test_a_checkpoint_computes_again_and_saves_memory(exported):
    plain = exported(CHECKPOINTED.replace("CALL", "b(x)"))
    early = exported(CHECKPOINTED.replace("CALL", "module.checkpoint(b, x, use_reentrant=False)"))
    whole = exported(CHECKPOINTED.replace("CALL", "module.checkpoint(b, x, use_reentrant=True)"))
    one = 2 * 64 * 16 * 64
    assert products(early) - products(plain) == 4 * one  # it stops before the second product
    assert products(whole) - products(plain) == 8 * one
    assert peak_bytes(early) < peak_bytes(plain)


def test_a_checkpoint_in_training_alone_computes_again(exported):
    call = "module.checkpoint(b, x, use_reentrant=False)"
    always = exported(CHECKPOINTED.replace("CALL", call))
    trained = exported(CHECKPOINTED.replace("CALL", f"{call} if s.training else b(x)"))
    assert products(trained) == products(always)


def test_an_encoder_takes_a_mask_whose_values_no_export_has(exported):
    code = """
class Net(nn.Module):
    INPUTS = "2x6x16"
    def __init__(s):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        s.encoder = nn.TransformerEncoder(layer, 1)
        s.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))
    def forward(s, x): return s.encoder(x, mask=s.mask)
"""
    projections = 2 * 12 * (16 * 48 + 16 * 16 + 2 * 16 * 32)
    attention = 2 * 2 * 2 * 2 * 6 * 6 * 8  # two products of two examples with two heads
    assert products(exported(code, "infer")) == projections + attention


SHARED = """
class Net(nn.Module):
    INPUTS = {"x": ((2, 6, 16), "float32")}
    def __init__(s): super().__init__(); s.q = nn.Linear(16, 48)
    def forward(s, x):
        q, k, v = s.q(x).chunk(3, -1)
        a = (q @ k.transpose(1, 2) / 4).softmax(-1)
        return RESULT
"""


def test_weights_of_attention_that_are_read_elsewhere_count_once(exported):
    linear, product = 2 * 2 * 6 * 16 * 48, 2 * 2 * 6 * 6 * 16
    fused = exported(SHARED.replace("RESULT", "a @ v"), "infer")
    apart = exported(SHARED.replace("RESULT", "a @ v, a"), "infer")
    assert products(fused) == products(apart) == linear + 2 * product
    assert "attention" in {op.kind for op in fused.ops}
    assert "attention" not in {op.kind for op in apart.ops}


TIME_FIRST = """
class Net(nn.Module):
    INPUTS = {"x": ((20, 4, 10), "float32")}
    def __init__(s): super().__init__(); s.r = nn.GRU(10, 20)
    def forward(s, x): return s.r(x)[0]
"""


@pytest.mark.slow
def test_the_batch_of_a_time_first_module_is_its_second_axis(exported):
    assert products(exported(TIME_FIRST, "infer", 8)) == 2 * 20 * 8 * 60 * 30


STATES = """
class Net(nn.Module):
    INPUTS = {"x": ((2, 5, 10), "float32"), "y": ((2, 3, 10), "float32")}
    def __init__(s):
        super().__init__(); s.e, s.d = (nn.LSTM(10, 20, batch_first=True) for _ in range(2))
    def forward(s, x, y): return s.d(y, s.e(x)[1])[0]
"""


def test_a_computed_first_state_has_a_gradient(exported):
    forward, data = 2 * 2 * 8 * 80 * 30, 2 * 2 * 8 * 80 * 10
    graph = exported(STATES)
    assert products(graph) == 3 * forward - data
    assert not any("no gradient" in text for text in graph.remarks)


UNROLLED = """
class Net(nn.Module):
    INPUTS = {"x": ((3, 8), "float32")}
    def __init__(s): super().__init__(); s.l = nn.Linear(8, 8)
    def forward(s, x): return torch.stack([s.l(row) for row in x])
"""


def test_a_loop_over_the_batch_is_refused_at_another_batch(exported):
    assert products(exported(UNROLLED, "infer", 3)) == 3 * 2 * 8 * 8
    with pytest.raises(Exception, match="its ops depend on the batch, 3"):
        exported(UNROLLED, "infer", 6)


def test_what_forward_lacks_is_proposed_as_a_command(tmp_path):
    from steptime.core.errors import InputError
    from steptime.measure.backends.native.export import check_arguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3)

        def forward(self, image: Any) -> Any:
            return self.conv(image)

    with pytest.raises(InputError, match=r"count net.py:Net:image=2x3x64x64"):
        check_arguments(Net(), {}, "net.py:Net")


SWITCHING = """
class Net(nn.Module):
    INPUTS = {"x": ((2, 8, 16), "float32")}
    def __init__(s): super().__init__(); s.l, s.o = nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(s, x):
        h = s.l(x)
        p = torch.sin(h.float()).to(h.dtype)
        return s.o(p * h.softmax(-1, dtype=torch.float32).type_as(h))
"""


@pytest.mark.parametrize(
    ("dtype", "types"),
    [
        ("float32", {"sin": "float32", "linear": "float32", "softmax": "float32"}),
        ("bfloat16", {"sin": "float32", "linear": "bfloat16", "softmax": "float32"}),
        ("float16", {"sin": "float32", "linear": "float16", "softmax": "float32"}),
        ("bfloat16-mixed", {"sin": "float32", "linear": "bfloat16", "softmax": "float32"}),
    ],
)
def test_a_module_that_switches_types_itself_does_so_in_the_type_asked(
    dtype, types, exported, tmp_path
):
    exported(SWITCHING, "infer")
    model = read_model(str(tmp_path / "net.pt2"))
    graph = build_step(make_workload(model, None, phase="infer", dtype=dtype))
    made = {
        op.attrs.get("function", op.kind): graph.tensors[op.outputs[0]].dtype for op in graph.ops
    }
    assert {name: made[name] for name in types} == types
    is_low = dtype in {"bfloat16", "float16"}
    casts = [graph.tensors[op.outputs[0]].dtype for op in graph.ops if op.kind == "cast"]
    assert not is_low or casts == ["float32", dtype, "float32", dtype]


HEAD_OF_TWO = f"class Net(nn.Module):\n    INPUTS = {{'x': ({WIDE})}}\n{TWO}"
SPARSE = """
class Net(nn.Module):
    INPUTS = {"ids": ((2, 6), "int64")}
    def __init__(s): super().__init__(); s.e = nn.Embedding(100, 8, sparse=True)
    def forward(s, ids): return RESULT
"""


def moved_bytes(graph: Graph, kind: str) -> list[int]:
    return [op.traffic_bytes for op in count(graph).ops if op.kind == kind]


def test_a_sparse_table_has_a_gradient_and_an_update_of_the_rows_read(exported):
    sparse = exported(SPARSE.replace("RESULT", "s.e(ids)"))
    dense = exported(SPARSE.replace("RESULT", "s.e(ids)").replace("True", "False"))
    row = 8 * 4
    assert sparse.tensors["e/embedding/grad_weight"].shape == (2 * 6, 8)
    assert dense.tensors["e/embedding/grad_weight"].shape == (100, 8)
    passes = 7  # Adam reads weight, states and gradient, and writes weight and states
    assert moved_bytes(sparse, "adam") == [passes * 12 * row]
    assert moved_bytes(dense, "adam") == [passes * 100 * row]
    assert peak_bytes(sparse) < peak_bytes(dense)
    assert any("of the rows read" in remark for remark in sparse.remarks)


def test_two_sparse_look_ups_join_their_rows(exported):
    graph = exported(SPARSE.replace("RESULT", "s.e(ids) + s.e(ids.flip(1))"))
    assert moved_bytes(graph, "adam") == [7 * 24 * 8 * 4]


def test_a_sparse_table_that_another_op_reads_is_counted_as_a_dense_one(exported):
    graph = exported(SPARSE.replace("RESULT", "s.e(ids) @ s.e.weight.t()"))
    assert moved_bytes(graph, "adam") == [7 * 100 * 8 * 4]
    assert any("of all rows" in remark for remark in graph.remarks)


def test_sizes_of_values_are_counted_at_their_largest_with_a_note_or_as_stated(exported, tmp_path):
    code = HEAD_OF_TWO + "    def forward(s, x): y = s.l(x); return s.m(y[y.sum(-1) > 0])\n"
    assert any("counted as the largest, 2" in remark for remark in exported(code).remarks)
    model = read_model(f"{tmp_path / 'net.pt2'}:u0=1")
    assert products(build_step(make_workload(model, None, phase="infer"))) == ONE + ONE // 2


def test_a_size_that_nothing_limits_is_asked_for(exported, tmp_path):
    body = "    def forward(s, x): return s.l(torch.repeat_interleave(s.m(x), x[0].long(), 1))\n"
    body = body.replace("s.l(", "(")
    with pytest.raises(InputError, match=r"size u0 depends on values; state it .*:u0=100"):
        exported(HEAD_OF_TWO + body)
    model = read_model(f"{tmp_path / 'net.pt2'}:u0=12")
    assert products(build_step(make_workload(model, None, phase="infer"))) == ONE


def test_a_backend_that_lacks_an_op_names_it_and_the_backend_that_runs_the_module(exported):
    code = HEAD_OF_TWO + "    def forward(s, x): return s.m(s.l(x).sort(-1)[0])\n"
    graph = exported(code, "infer")
    with pytest.raises(UnsupportedError, match=r"opaque \(sort\); .*--backend native runs"):
        list_calls(graph, {}, "torch")


@pytest.mark.usefixtures("exported_here")
def test_code_that_values_steer_is_refused_with_its_line(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        HEAD + HEAD_OF_TWO + "    def forward(s, x):\n"
        "        n = int(x.max()) + 1\n        return torch.zeros(n, 8) + s.l(x)[:1]\n"
    )
    with pytest.raises(InputError, match=r"a value decides .* \(net.py, line 8: n = int"):
        read_model(f"{path}:Net", trusted=True)


@pytest.mark.usefixtures("exported_here")
def test_packed_sequences_are_refused_with_the_reason(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(
        f"{HEAD}from torch.nn.utils.rnn import pack_padded_sequence\n"
        "class Net(nn.Module):\n"
        "    INPUTS = {'x': ((4, 20, 10), 'float32'), 'lengths': ((4,), 'int64')}\n"
        "    def __init__(s): super().__init__(); s.r = nn.GRU(10, 20, batch_first=True)\n"
        "    def forward(s, x, lengths):\n"
        "        return s.r(pack_padded_sequence(x, lengths, True, False))[1]\n"
    )
    with pytest.raises(InputError, match=r"packs sequences by their lengths.*padded tensor"):
        read_model(f"{path}:Net", trusted=True)
