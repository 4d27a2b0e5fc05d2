"""Steps in another order: layers computed again, gradients applied early, few-bit states."""

from __future__ import annotations

from typing import Any

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph, check
from steptime.core.tuning import make_tuning
from steptime.network.count import count, peak_bytes
from steptime.network.recompute import find_repeated_ops

DECODER = (
    "transformer:kind=decoder,layers=3,width=64,heads=4,ffn=128,length=32,vocabulary=96,"
    "norm=rms,activation=swiglu,positions=rotary"
)


def step(text: str = DECODER, optimizer: str = "adam", batch: int = 8, **said: Any) -> Graph:
    tuning = make_tuning(**said, optimizer=optimizer)
    workload = make_workload(
        read_model(text), batch, "bfloat16", optimizer=optimizer, tuning=tuning
    )
    graph = build_step(workload)
    check(graph)
    return graph


def flop(graph: Graph) -> int:
    return sum(row.flop for row in count(graph).ops)


def test_layers_compute_again_what_their_gradients_read():
    """The last product of a layer is not among it, nor is the sum behind it."""
    plain, again = step(), step(recompute="full")
    added = [op for op in again.ops if op.name.endswith("/again")]
    names = {op.forward_op for op in added}
    assert {name.partition("/")[0] for name in names} == {"block1", "block2", "block3"}
    assert "block2/ffn/up/linear" in names
    assert "block2/ffn/down/linear" not in names
    assert all(op.part == "backward" for op in added)
    whole = {op.name for ops in find_repeated_ops(plain).values() for op in ops}
    rows = {row.name: row.flop for row in count(plain).ops}
    assert flop(again) - flop(plain) == sum(rows[name] for name in whole)
    assert peak_bytes(again) < peak_bytes(plain)


def test_beside_frozen_weights_less_is_computed_again():
    """A product whose output no gradient reads is left out: with LoRA beside queries, most."""
    few = step(lora="r=2,on=q", recompute="full")
    many = step(recompute="full")
    shares = [
        sum(op.name.endswith("/again") and op.kind == "linear" for op in graph.ops)
        for graph in (few, many)
    ]
    assert shares[0] > 0
    assert shares[1] == 3 * 6  # all of a layer but the last


def test_a_network_without_layers_is_refused():
    with pytest.raises(InputError, match="no layers that could be computed again"):
        step("fc:layers=2,nodes=8,inputs=4,outputs=3", recompute="full")


def test_gradients_that_are_applied_early_do_not_live_together():
    late, early = step(batch=1), step(batch=1, update_early=True)
    assert sorted(op.name for op in late.ops) == sorted(op.name for op in early.ops)
    assert peak_bytes(early) < peak_bytes(late)


def test_states_of_8_bits_take_a_byte_and_a_scale_for_256():
    wide = DECODER.replace("width=64", "width=128")  # no matrix is small
    plain, few = step(wide), step(wide, "adam8bit")

    def states(graph: Graph) -> int:
        parts = ("/adam0", "/adam1", "/adam_scales")
        return sum(graph.tensors[n].size_bytes for n in graph.buffers if n.endswith(parts))

    large = sum(size for name in plain.weights if (size := plain.tensors[name].size) >= 4096)
    small = sum(size for name in plain.weights if (size := plain.tensors[name].size) < 4096)
    assert states(plain) == 2 * 2 * (large + small)
    assert states(few) == 2 * (large + 4 * large // 256) + 2 * 2 * small


def test_documents_that_are_packed_do_not_see_each_other():
    """Attention to a quarter of the tokens takes a quarter of the FLOP."""
    plain, packed = step(), step(packed=8)

    def scores(graph: Graph) -> int:
        return sum(row.flop for row in count(graph).ops if row.kind == "attention")

    assert 4 * scores(packed) == scores(plain)
    assert flop(plain) - flop(packed) > 3 * scores(packed)  # in both passes


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"recompute": "selective"}, "nearest: --recompute full"),
        ({"recompute": "some"}, "unknown recompute"),
        ({"offload": "both"}, "nearest: --offload optimizer"),
        ({"packed": 8, "padded": 8}, "of one of them"),
        ({"packed": "x"}, "--packed"),
    ],
)
def test_what_cannot_be_is_refused(said, why):
    with pytest.raises(InputError, match=why):
        make_tuning(**said)
