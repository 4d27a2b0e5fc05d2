"""Systolic arrays: the closed formulas against the machine played cycle by cycle, and by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import steptime
from every import every
from steptime.build import build, build_step, make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.energy.systolic import DATAFLOWS, Array, conv2d, matmul, network
from steptime.energy.systolic_arrays import array, array_from_table, array_names
from steptime.hardware import catalog
from steptime.network.count import count
from systolic_machine import Machine

ROOMY = Array(2, 3, clock_hz=10, buffer_bytes=10**9, memory_bytes_per_s=1e9)
sizes = st.integers(1, 11)
sides = st.integers(1, 5)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(DATAFLOWS), sides, sides, sizes, sizes, sizes, st.integers(1, 300))
@example("weight", 2, 3, 5, 7, 8, 15)  # partial tiles and several pieces
@example("input", 2, 3, 8, 7, 5, 15)
@example("output", 4, 4, 5, 1, 9, 1)
@example("weight", 5, 5, 1, 1, 1, 300)
def test_formulas_are_the_machine(dataflow, rows, columns, m, k, n, buffer_bytes):
    buffer_bytes = max(buffer_bytes, 4 * columns)  # one row of sums
    made = replace(ROOMY, rows=rows, columns=columns, buffer_bytes=buffer_bytes)
    run = matmul(made, m, k, n, dataflow)
    numbers = np.random.default_rng(m * k * n)
    a, b = numbers.integers(-9, 9, (m, k)), numbers.integers(-9, 9, (k, n))
    machine = Machine(rows, columns)
    product = machine.multiply(a, b, dataflow, run.passes)
    assert (product == a @ b).all()
    assert run.cycles == machine.cycles
    assert run.macs == machine.macs == m * k * n
    assert run.utilisation == machine.macs / (machine.cycles * rows * columns)
    words = machine.words
    assert run.buffer_read_bytes == words["in"] + 4 * words["sums in"]
    assert run.buffer_write_bytes == words["out"] + 4 * words["sums out"]
    assert run.dram_bytes >= m * k + k * n + m * n


def test_cycles_by_hand():
    assert matmul(ROOMY, 4, 5, 6, "output").cycles == 2 * 2 * (2 * 2 + 3 + 5 - 2)
    # k = 5 on 2 rows is 2 + 2 + 1, n = 3 is one tile, and 4 rows stream through each
    assert matmul(ROOMY, 4, 5, 3, "weight").cycles == 2 * (2 * 2 + 3 + 4 - 2) + (2 * 1 + 3 + 4 - 2)


@given(st.sampled_from(DATAFLOWS), sides, sides, sizes, sizes, sizes)
def test_full_tiles_are_the_published_formula(dataflow, rows, columns, x, y, t):
    """Samajdar et al. 2018 (SCALE-Sim): (2 rows + columns + t - 2) for each tile."""
    made = replace(ROOMY, rows=rows, columns=columns)

    def published(x: int, y: int) -> int:
        return (2 * rows + columns + t - 2) * ceil(x / rows) * ceil(y / columns)

    order = {"output": "xty", "weight": "txy", "input": "yxt"}[dataflow]

    def ours(x: int, y: int) -> int:
        m, k, n = ({"x": x, "y": y, "t": t}[letter] for letter in order)
        return matmul(made, m, k, n, dataflow).cycles

    assert ours(x, y) <= published(x, y)
    assert ours(x * rows, y * columns) == published(x * rows, y * columns)


@given(sides, sides, sizes, sizes, sizes, st.integers(20, 300))
def test_input_stationary_is_weight_stationary_turned(rows, columns, m, k, n, buffer_bytes):
    made = replace(ROOMY, rows=rows, columns=columns, buffer_bytes=buffer_bytes)
    assert matmul(made, m, k, n, "input") == matmul(made, n, k, m, "weight")


# DRAM by hand: 2 x 3 PEs, elements of 1 byte, sums of 4. A [8, 4] is 32 bytes, B [4, 6] 24,
# C [8, 6] 48; k has 2 tiles, n has 2, so the sums of a row of a piece are 3 * 4 = 12 bytes.
@every(
    ("buffer_bytes", "memory_bytes_per_s", "passes", "dram_bytes"),
    [
        (8 * (12 + 4) + 24, 1.0, 1, 32 + 24 + 48),  # all of it fits
        (8 * (12 + 4), 1.0, 1, 32 + 24 + 48),  # one piece of A and its sums: B is read once anyway
        (4 * (12 + 4) + 24, 1.0, 2, 32 + 24 + 48),  # B stays beside half of A
        (2 * (12 + 4), 1.0, 4, 32 + 4 * 24 + 48),  # B does not fit: read for each of four pieces
        (8 * 12, 1e9, 1, 2 * 32 + 24 + 48),  # a fast memory: sums alone, so that T is in one piece
    ],
)
def test_dram_of_weight_stationary_by_hand(buffer_bytes, memory_bytes_per_s, passes, dram_bytes):
    made = replace(ROOMY, buffer_bytes=buffer_bytes, memory_bytes_per_s=memory_bytes_per_s)
    run = matmul(made, 8, 4, 6, "weight")
    assert (run.passes, run.dram_bytes) == (passes, dram_bytes)
    assert run.time_s == max(run.cycles / 10, dram_bytes / memory_bytes_per_s)


def test_sums_of_a_single_tile_need_no_buffer():
    """k = 2 fits on the rows: A [8, 2] passes for both tiles of n, B [2, 6] once."""
    run = matmul(replace(ROOMY, buffer_bytes=1), 8, 2, 6, "weight")
    assert (run.passes, run.dram_bytes) == (1, 2 * 16 + 12 + 48)
    assert run.buffer_write_bytes == 48


# A [8, 4] B [4, 6] again, output stationary: m has 4 tiles, n has 2; a panel of A is 2*4 = 8 bytes,
# one of B 4*3 = 12.
@every(
    ("buffer_bytes", "dram_bytes"),
    [
        (7, 2 * 32 + 4 * 24 + 48),  # no panel fits: A for each tile of n, B for each of m
        (8, 32 + 4 * 24 + 48),  # a panel of A: A once
        (12, 2 * 32 + 24 + 48),  # a panel of B: B once, which saves more
        (12 + 2 * 8, 32 + 2 * 24 + 48),  # two of A beside one of B: as B in 2 groups
        (12 + 4 * 8, 32 + 24 + 48),  # all of A beside one of B
        (8 + 2 * 12, 32 + 24 + 48),  # all of B beside one of A
    ],
)
def test_dram_of_output_stationary_by_hand(buffer_bytes, dram_bytes):
    slow = replace(ROOMY, buffer_bytes=buffer_bytes, memory_bytes_per_s=1.0)
    assert matmul(slow, 8, 4, 6, "output").dram_bytes == dram_bytes


@given(
    st.sampled_from(DATAFLOWS), sides, sizes, sizes, sizes, st.integers(20, 200), st.integers(0, 99)
)
def test_more_buffer_is_never_slower(dataflow, rows, m, k, n, buffer_bytes, more):
    made = replace(ROOMY, rows=rows, buffer_bytes=buffer_bytes, memory_bytes_per_s=30.0)
    run = matmul(made, m, k, n, dataflow)
    roomier = matmul(replace(made, buffer_bytes=buffer_bytes + more), m, k, n, dataflow)
    endless = matmul(replace(made, buffer_bytes=10**9), m, k, n, dataflow)
    assert run.time_s >= roomier.time_s >= endless.time_s >= 2 * run.macs / made.peak_flop_per_s
    assert endless.dram_bytes == m * k + k * n + m * n
    assert endless.passes == 1


def test_time_is_the_longer_of_array_and_memory():
    run = matmul(ROOMY, 4, 5, 6, "output")
    assert run.time_s == run.cycles / 10  # at 10 Hz
    assert matmul(ROOMY, 4, 5, 6, "output", times=3).time_s == pytest.approx(3 * run.time_s)
    assert matmul(ROOMY, 4, 5, 6, "output", times=3).utilisation == run.utilisation


@every("dataflow", DATAFLOWS)
def test_a_convolution_is_a_product(dataflow):
    """x [2, 4, 5, 5] by w [6, 4, 3, 3]: 2*3*3 positions, 3*3*4 products each, 6 filters."""
    made = conv2d(ROOMY, (2, 4, 5, 5), (6, 4, 3, 3), dataflow)
    product = matmul(ROOMY, 18, 36, 6, dataflow)
    assert replace(made, dram_bytes=product.dram_bytes) == product
    assert made.dram_bytes == 2 * 4 * 5 * 5 + 6 * 36 + 18 * 6  # the image, not its rows
    grouped = conv2d(ROOMY, (2, 4, 5, 5), (6, 2, 3, 3), dataflow, groups=2)
    half = matmul(ROOMY, 18, 18, 3, dataflow, times=2)
    assert (grouped.cycles, grouped.macs) == (half.cycles, half.macs)


def test_depthwise_wastes_the_array():
    tpu = array("tpu-v1")
    depthwise = conv2d(tpu, (1, 64, 28, 28), (64, 1, 3, 3), padding=(1, 1, 1, 1), groups=64)
    assert depthwise.macs == 64 * 9 * 28 * 28
    assert depthwise.utilisation < 9 / (256 * 256)  # 9 rows of one column


@every("model", ["resnet18", "mobilenet_v2", "bert_base"])
def test_networks_are_covered_or_named(model):
    graph = build(make_workload(read_model(model), batch=2, phase="infer"))
    found = network(array("tpu-v3"), graph)
    costs = {op.name: op.flop for op in count(graph).ops}
    assert {op.name: 2 * op.run.macs for op in found.ops} == {
        op.name: costs[op.name]
        for op in graph.ops
        if op.kind in ("conv2d", "linear", "matmul", "attention")
    }
    assert sorted([op.name for op in found.ops] + list(found.not_covered)) == sorted(costs)
    assert found.cycles == sum(op.run.cycles for op in found.ops)
    assert found.time_s >= found.cycles / 940e6 * (1 - 1e-12)


def test_attention_is_its_two_products():
    text = "transformer:layers=1,width=8,heads=2,length=4,vocabulary=11"
    graph = build(make_workload(read_model(text), batch=3, phase="infer"))
    tpu = array("tpu-v1")
    (found,) = [op.run for op in network(tpu, graph).ops if op.kind == "attention"]
    scores, mixed = matmul(tpu, 4, 4, 4, times=6), matmul(tpu, 4, 4, 4, times=6)
    assert found.macs == scores.macs + mixed.macs == 2 * 6 * 4 * 4 * 4
    assert found.cycles == scores.cycles + mixed.cycles
    assert found.time_s == scores.time_s + mixed.time_s
    assert found.utilisation == scores.utilisation


def test_a_training_graph_is_refused():
    graph = build_step(make_workload(read_model("fc"), batch=2))
    with pytest.raises(InputError, match="phase 'infer'"):
        network(array("tpu-v1"), graph)


@every("name", ["tpu-v1", "tpu-v2", "tpu-v3"])
def test_shipped_arrays_agree_with_their_devices(name):
    made, chip = array(name), catalog.device(name)
    peak = max(chip.datasheet.peak_flop_per_s.values())
    assert made.per_chip * made.peak_flop_per_s == pytest.approx(peak, rel=0.02)
    assert made.per_chip * made.memory_bytes_per_s == chip.datasheet.memory_bytes_per_s
    assert made.source
    assert made.name == name
    assert set(array_names()) == {"tpu-v1", "tpu-v2", "tpu-v3"}


def test_tpu_v1_on_the_published_mlp():
    """Jouppi et al. 2017, tables 1 and 3: MLP0, 5 layers, 20 M weights, batch 200: 12.3 TOP/s."""
    run = matmul(array("tpu-v1"), 200, 2000, 2000)
    assert 2 * run.macs / run.time_s == pytest.approx(12.3e12, rel=0.1)
    assert run.time_s > run.cycles / 700e6  # bound by memory, as published


@every(
    ("changes", "message"),
    [
        ({"rows": 0}, "'rows' must be a whole number from 1, not '0'"),
        ({"rows": 2.5}, "'rows' must be a whole number from 1, not '2.5'"),
        ({"clock_hz": -1.0}, "'clock_hz' must be positive, not '-1.0'"),
        ({"memory_bytes_per_s": float("nan")}, "'memory_bytes_per_s' must be positive"),
    ],
)
def test_arrays_that_cannot_be(changes, message):
    with pytest.raises(InputError, match=message):
        replace(ROOMY, **changes)  # type: ignore[arg-type]  # wrong on purpose


def test_products_that_cannot_be():
    with pytest.raises(InputError, match="'k' must be a whole number from 1, not '0'"):
        matmul(ROOMY, 1, 0, 1)
    with pytest.raises(InputError, match=r"unknown dataflow 'weights'; did you mean 'weight'\?"):
        matmul(ROOMY, 1, 1, 1, "weights")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InputError, match="a buffer of 11 bytes cannot hold one row of 3 sums"):
        matmul(replace(ROOMY, buffer_bytes=11), 4, 5, 6)
    with pytest.raises(InputError, match="does not fit"):
        conv2d(ROOMY, (1, 1, 2, 2), (1, 1, 3, 3))
    with pytest.raises(InputError, match="a dimension"):
        conv2d(ROOMY, (1, 1, 2, 2), (0, 1, 1, 1))


TABLE = {
    "name": "small",
    "source": "made up",
    "rows": 4,
    "columns": 4,
    "arrays": 2,
    "clock_MHz": 100,
    "buffer_MiB": 0.5,
    "memory_GB_per_s": 10,
    "element_bytes": 1,
    "sum_bytes": 4,
}


def test_an_array_of_a_file(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text("\n".join(f"{key} = {value!r}" for key, value in TABLE.items()), "utf-8")
    found = array(file)
    assert (found.buffer_bytes, found.memory_bytes_per_s, found.clock_hz) == (2**18, 5e9, 1e8)
    file.write_text("rows = ", encoding="utf-8")
    with pytest.raises(InputError, match="not TOML"):
        array(file)
    with pytest.raises(InputError, match="No such file"):
        array(tmp_path / "none.toml")
    with pytest.raises(
        InputError, match=r"unknown systolic array 'tpu-v9'; known: tpu-v1, tpu-v2, tpu-v3"
    ):
        array("tpu-v9")


@every(
    ("changes", "message"),
    [
        ({"row": 4}, r"small.toml: unknown key 'row'; did you mean 'rows'\?"),
        ({"clock_MHz": "fast"}, "small.toml: 'clock_MHz' must be a number above 0, not 'fast'"),
        ({"buffer_MiB": 0}, "small.toml: 'buffer_MiB' must be a number above 0"),
        ({"arrays": 1.5}, "small.toml: 'arrays' must be a whole number from 1"),
        ({"source": None}, "small.toml: 'source' is missing"),
        ({"source": ""}, "small.toml: 'source' must be a text"),
        ({"unverified": "rows"}, "small.toml: 'unverified' must be a list of texts"),
    ],
)
def test_files_that_are_no_array(changes, message):
    table = {key: value for key, value in (TABLE | changes).items() if value is not None}
    with pytest.raises(InputError, match=message):
        array_from_table(table, "small.toml")


def test_the_command_asks_every_size(capsys, tmp_path):
    picture = tmp_path / "map.svg"
    line = f"systolic fc:layers=1,nodes=4,inputs=5,outputs=3 --batch 6 --rows 2,4 -o {picture}"
    assert run([*line.split(), "--columns", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["rows"], one["columns"]) for one in found["rows"]] == [(2, 3), (4, 3)]
    (two, _) = found["rows"]
    basis = replace(array("tpu-v1"), rows=2, columns=3)
    layers = [matmul(basis, m=6, k=5, n=4), matmul(basis, m=6, k=4, n=3)]
    assert two["cycles"] == sum(one.cycles for one in layers)
    macs = 6 * (5 * 4 + 4 * 3)
    assert two["utilisation"] == pytest.approx(macs / (two["cycles"] * 6))
    assert "utilisation" in picture.read_text("utf-8")


def test_python_and_command_give_one_table_of_arrays(tmp_path, capsys):
    out = tmp_path / "map.svg"
    answer = steptime.systolic("fc", rows=[8, 16], columns_=32, value="time", out=out)
    assert [(row.rows, row.columns) for row in answer.rows] == [(8, 32), (16, 32)]
    assert out.exists()
    assert run(["systolic", "fc", "--rows", "8,16", "--columns", "32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer.to_dict()
    with pytest.raises(InputError, match="--rows: must be at least 1"):
        steptime.systolic("fc", rows=0)
