"""Energy from operations and bytes, by hand."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from every import every
from places import ROOT
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.energy.operations import figures, hierarchy, hierarchy_names, op_energy, sum_energy
from steptime.energy.process import Process
from steptime.network.ops import OPS, outputs_of

PJ = 1e-12
SMALL = replace(hierarchy("systolic-128"), name="small", reuse=16, buffer_kb=8)


def _one(kind: str, *specs: TensorSpec) -> Graph:
    """Return a graph of one op of inputs of these specs."""
    names = [f"x{i}" for i in range(len(specs))]
    tensors = {**dict(zip(names, specs, strict=True)), "y": outputs_of(kind, specs)[0]}
    return Graph("g", tensors, (Op("op", kind, tuple(names), ("y",)),), tuple(names), (), ("y",))


def test_a_product_that_fits_the_buffer():
    # 8 x 4 times 4 x 16: 512 multiply-adds; 32 + 64 + 128 elements of 4 bytes are 896 bytes
    graph = _one("matmul", TensorSpec((8, 4)), TensorSpec((4, 16)))
    (row,) = op_energy(graph, "float32", SMALL)
    assert row.arithmetic_j == pytest.approx(512 * (0.9 + 3.7) * PJ, rel=1e-12)
    assert row.register_j == pytest.approx(512 * 12 * 0.5 * PJ, rel=1e-12)
    # from the buffer each tensor once, as 512 * 12 bytes / 16 = 384 are fewer; 8 kB: 10 pJ a word
    assert row.buffer_j == pytest.approx(896 * 10 / 8 * PJ, rel=1e-12)
    assert row.dram_low_j == pytest.approx(896 * 1300 / 8 * PJ, rel=1e-12)
    assert row.dram_high_j == pytest.approx(896 * 2600 / 8 * PJ, rel=1e-12)
    assert row.dram_j == pytest.approx((row.dram_low_j + row.dram_high_j) / 2, rel=1e-12)
    on_chip = row.arithmetic_j + row.register_j + row.buffer_j
    assert (row.low_j, row.total_j, row.high_j) == pytest.approx(
        (on_chip + row.dram_low_j, on_chip + row.dram_j, on_chip + row.dram_high_j), rel=1e-12
    )
    assert (row.name, row.kind, row.part, row.of) == ("op", "matmul", "forward", "op")


def test_a_product_that_does_not_fit_the_buffer():
    # 1024^3 multiply-adds of 2 bytes; 8 kB hold 4096 elements: 2 / sqrt(4096) elements each
    graph = _one("matmul", TensorSpec((1024, 1024)), TensorSpec((1024, 1024)))
    (row,) = op_energy(graph, "float16", SMALL)
    assert row.arithmetic_j == pytest.approx(2**30 * 1.5 * PJ, rel=1e-12)
    assert row.dram_low_j == pytest.approx(2**30 * 2 * 2 / 64 * 162.5 * PJ, rel=1e-12)
    assert row.buffer_j == pytest.approx(2**30 * 3 * 2 / 16 * 1.25 * PJ, rel=1e-12)


def test_an_elementwise_op_moves_its_tensors_once_whatever_the_buffer():
    # 1 FLOP an element, half an add and half a multiply; 3 * 4 bytes an element to move
    graph = _one("add", TensorSpec((1000, 1000)), TensorSpec((1000, 1000)))
    (row,) = op_energy(graph, "float32", SMALL)
    assert row.arithmetic_j == pytest.approx(1e6 / 2 * 4.6 * PJ, rel=1e-12)
    assert row.register_j == pytest.approx(1e6 / 2 * 12 * 0.5 * PJ, rel=1e-12)
    assert row.buffer_j == pytest.approx(12e6 * 1.25 * PJ, rel=1e-12)
    assert row.dram_high_j == pytest.approx(12e6 * 325 * PJ, rel=1e-12)


def test_the_dtype_is_that_of_floating_point_tensors_only():
    table, indices = TensorSpec((10, 8)), TensorSpec((4,), "int64")
    graph = _one("embedding", indices, table)
    wide = op_energy(graph, "float32", SMALL)[0].dram_low_j
    narrow = op_energy(graph, "int8", SMALL)[0].dram_low_j
    # 4 rows of 8 are read and written, 4 indices of 8 bytes read
    assert wide == pytest.approx((2 * 32 * 4 + 32) * 162.5 * PJ, rel=1e-12)
    assert narrow == pytest.approx((2 * 32 + 32) * 162.5 * PJ, rel=1e-12)


@every(
    ("dtype", "pair_pj"),
    [("int8", 0.23), ("int32", 3.2), ("float16", 1.5), ("bfloat16", 1.5), ("float32", 4.6)],
)
def test_an_add_and_a_multiply_of_each_type(dtype, pair_pj):
    graph = _one("matmul", TensorSpec((1, 1)), TensorSpec((1, 1)))
    assert op_energy(graph, dtype, SMALL)[0].arithmetic_j == pytest.approx(pair_pj * PJ, rel=1e-12)


def test_another_process_changes_all_but_dram():
    graph = _one("matmul", TensorSpec((8, 4)), TensorSpec((4, 16)))
    (old,) = op_energy(graph, "float32", SMALL)
    (new,) = op_energy(graph, "float32", SMALL, Process(90), "dennard")
    for level in ("arithmetic_j", "register_j", "buffer_j"):
        assert getattr(new, level) == pytest.approx(8 * getattr(old, level), rel=1e-12)
    assert new[-3:] == old[-3:]
    assert op_energy(graph, "float32", SMALL, Process(90)) == [new]
    for scaling in ("dennard", "stillmaker-baas"):
        assert op_energy(graph, "float32", SMALL, Process(45), scaling) == [old]


def test_more_reuse_and_a_larger_buffer_never_move_more():
    graph = _one("matmul", TensorSpec((512, 512)), TensorSpec((512, 512)))
    for reuse in (1, 4, 1000):
        few, more = (
            op_energy(graph, "float32", replace(SMALL, reuse=r))[0] for r in (reuse, 2 * reuse)
        )
        assert more.buffer_j <= few.buffer_j
    drams = [
        op_energy(graph, "float32", replace(SMALL, buffer_kb=kb))[0].dram_j for kb in (8, 32, 1024)
    ]
    assert drams == sorted(drams, reverse=True)


@every("model", ["mobilenet_v2", "bert_base", "rnn"])
@every("name", hierarchy_names())
def test_every_op_of_a_training_step_has_an_energy(model, name):
    graph = build_step(make_workload(read_model(model), 1, phase="train"))
    rows = op_energy(graph, "bfloat16", hierarchy(name))
    assert [row.name for row in rows] == [op.name for op in graph.ops]
    for row in rows:
        assert row.dram_j > 0 or OPS[row.kind].storage == "view", row
        assert row.low_j <= row.total_j <= row.high_j
    total = sum_energy(rows)
    assert total.total_j == pytest.approx(sum(row.total_j for row in rows), rel=1e-9)
    assert {"forward", "backward", "update"} == {row.part for row in rows}


def test_resnet_50_costs_its_multiply_adds_and_some_times_that():
    graph = build(make_workload(read_model("resnet50"), 1, phase="infer"))
    total = sum_energy(op_energy(graph, "bfloat16", hierarchy("systolic-128")))
    assert total.arithmetic_j == pytest.approx(4.09e9 * 1.5 * PJ, rel=0.02)
    assert 0.02 < total.low_j < total.high_j < 0.2


def test_the_sum_of_nothing_is_nothing():
    assert sum_energy([]).total_j == 0.0


def test_what_is_unknown_is_named():
    graph = _one("relu", TensorSpec((4,)))
    with pytest.raises(InputError, match=r"^horowitz-45nm: unknown dtype 'float64'; known: int8, "):
        op_energy(graph, "float64", SMALL)
    with pytest.raises(InputError, match="unknown memory hierarchy 'systolic-12'; did you mean"):
        hierarchy("systolic-12")
    with pytest.raises(InputError, match="unknown energy figures 'horowitz'"):
        figures("horowitz")
    with pytest.raises(InputError, match="unknown scaling 'denard'; did you mean 'dennard'"):
        op_energy(graph, "float32", SMALL, Process(65), "denard")
    with pytest.raises(InputError, match=r"no buffer of 64 kB; known: 8, 32, 1024$"):
        replace(SMALL, buffer_kb=64)
    for reuse in (0.5, float("nan")):
        with pytest.raises(InputError, match="'reuse' must be 1 or more"):
            replace(SMALL, reuse=reuse)


def test_files_have_a_source_and_mark_what_is_not_verified():
    found = figures("horowitz-45nm")
    assert found.process == Process(45, voltage_v=0.9)
    assert "Horowitz" in found.source
    assert "assumption" in found.note
    data = ROOT / "src" / "steptime" / "data"
    for path in [*(data / "energy").glob("*.toml"), *(data / "hierarchies").glob("*.toml")]:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        assert table["name"] == path.stem
        assert table["source"]
        for key in table.get("unverified", ()):
            outer, _, inner = key.partition(".")
            assert outer in table, key
            assert not inner or inner in table[outer], key
