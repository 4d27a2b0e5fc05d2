"""Grids: every cell is the single prediction; three batches tell all between, or each is built."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime import catalog
from steptime.build import build_step, make_workload, read_model
from steptime.cli.grid import split_models
from steptime.cli.main import run
from steptime.core import ranges
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.hardware import Device
from steptime.count import peak_memory_bytes
from steptime.predict import cost_model
from steptime.predict.bends import Bends, highest, straight, total
from steptime.predict.costs import costs
from steptime.predict.estimate import estimate
from steptime.predict.grid import StepSeconds, _upper, affine, steps
from steptime.predict.prediction import prediction
from steptime.predict.settings import Settings

NETWORKS = (
    "resnet18",
    "densenet_cifar",
    "fc",
    "rnn:cell=lstm,length=3",
    "transformer:layers=2,width=16,heads=2,length=8,vocabulary=20,max_length=9",
)


def exactly(graph: Graph, device: Device, settings: Settings) -> StepSeconds:
    single = estimate(costs(graph, "float32", settings), device, "float32", settings)
    return StepSeconds(single.forward_s, single.backward_s, single.update_s)


def maker(text: str, phase: str = "train") -> Any:
    def make(batch: int) -> Graph:
        return build_step(make_workload(read_model(text), batch, phase=phase))

    return make


@pytest.mark.parametrize("text", NETWORKS)
@pytest.mark.parametrize(
    ("name", "given"),
    [("analytic", {}), ("analytic", {"fuse": "yes"}), ("roofline", {}), ("paleo", {}),
     ("paleo", {"pipeline": "true", "ppp_comp": "0.5"})],
)  # fmt: skip
def test_a_cell_is_the_single_prediction(text: str, name: str, given: dict[str, str]) -> None:
    settings = cost_model(name).chosen(given)
    batches = range(1, 101)
    assert affine(maker(text), batches, "float32", settings) is not None  # three batches told all
    found = steps(maker(text), batches, "float32", settings)
    device = catalog.device("K80")
    seconds_at = found.seconds_on(device)
    for batch in (1, 2, 37, 100):
        graph = maker(text)(batch)
        alone = steps(maker(text), [batch], "float32", settings).seconds_on(device)(batch)
        single = estimate(costs(graph, "float32", settings), device, "float32", settings)
        for cell in (seconds_at(batch), alone):
            for part in ("forward_s", "backward_s", "update_s", "step_s"):
                assert getattr(cell, part) == pytest.approx(getattr(single, part), rel=1e-12)
        assert found.peak_memory_at(batch) == peak_memory_bytes(graph)


def test_work_that_is_not_affine_is_found_batch_by_batch() -> None:
    built = []

    def make(batch: int) -> Graph:
        built.append(batch)
        return maker("fc:layers=1,nodes=8")(batch * batch)  # as if work grew with the square

    settings = cost_model("analytic").settings
    assert affine(make, range(1, 6), "float32", settings) is None
    device = catalog.device("K80")
    seconds_at = steps(make, range(1, 6), "float32", settings).seconds_on(device)
    square = maker("fc:layers=1,nodes=8")(16)
    assert seconds_at(4) == exactly(square, device, settings)


def test_few_batches_are_built_as_they_are() -> None:
    settings = cost_model("analytic").settings
    device = catalog.device("K80")
    found = steps(maker("fc"), [3, 5], "float32", settings)
    five = maker("fc")(5)
    assert found.seconds_on(device)(5) == exactly(five, device, settings)
    assert found.peak_memory_at(5) == peak_memory_bytes(five)


def test_lines_with_bends_by_hand() -> None:
    longer = highest(straight((2.0, 0.0), 1.0), straight((0.0, 1.0), 1.0))  # 2 or n
    assert longer == Bends((1.0, 2.0), ((2.0, 0.0), (0.0, 1.0)))
    twice = total([(longer, 2), (straight((1.0, 1.0), 1.0), 1)], 1.0)  # 2 max(2, n) + 1 + n
    assert [twice(n) for n in (1, 2, 3)] == [6.0, 7.0, 10.0]


LINES = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=6)


@given(st.lists(LINES, min_size=1, max_size=5), st.integers(1, 9))
def test_sums_of_the_highest_of_lines(groups: list[list[tuple[int, int]]], low: int) -> None:
    made = []
    for lines in groups:
        top, *rest = [straight((float(a), float(b)), low) for a, b in lines]
        for line in rest:
            top = highest(top, line)
        made.append(top)
    both = total([(one, 3) for one in made], low)
    for n in range(low, low + 30):
        plain = sum(3 * max(a + b * n for a, b in lines) for lines in groups)
        assert both(n) == pytest.approx(plain, rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1), st.integers(1, 20))
def test_the_highest_lines_are_kept(lines: list[tuple[int, int]], low: int) -> None:
    kept = _upper([(float(a), float(b)) for a, b in lines], low)
    for x in range(low, low + 60):
        assert max(a + b * x for a, b in kept) == max(a + b * x for a, b in lines)


def test_models_of_a_list() -> None:
    text = "fc:layers=4,nodes=64,resnet50, nin ,a/b.json,rnn:cell=gru"
    assert split_models(text) == ["fc:layers=4,nodes=64", "resnet50", "nin", "a/b.json",
                                  "rnn:cell=gru"]  # fmt: skip
    for wrong, message in ((",fc", "an empty name"), ("fc,fc", "'fc' is given twice")):
        with pytest.raises(InputError, match=message):
            split_models(wrong)


def test_numbers_of_a_list() -> None:
    def numbers(text: str) -> list[int]:
        return ranges.numbers(text, "--replicas")

    assert numbers("1,2,4,...,128") == [1, 2, 4, 8, 16, 32, 64, 128]
    assert numbers("1,2,...,16") == [1, 2, 4, 8, 16]
    assert numbers("2,4,6,...,12") == [2, 4, 6, 8, 10, 12]
    assert numbers("1..4") == [1, 2, 3, 4]
    assert numbers("1..8 x2,3") == [1, 2, 4, 8, 3]
    for wrong, message in (
        ("1,2,4,...,100", "does not lead to 100"),
        ("...,8", "needs two growing numbers"),
        ("4,2,...,8", "needs two growing numbers"),
        ("1,2,...", "must be a whole number"),
        ("0", "must be at least 1, not 0"),
        ("2,2", "2 is given twice"),
        ("1..", "is not a range"),
        ("1,,2", "must be a whole number"),
    ):
        with pytest.raises(InputError, match=f"--replicas: .*{message}"):
            numbers(wrong)


def cells(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["predict", *words, "--grid", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["cells"]
    return found


def test_the_grid_of_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["nin,fc:layers=2,nodes=64", "--device", "K40,TITAN_X", "--batch", "1..5"]
    more = ["--workers", "1,4", "--network", "ethernet"]
    found = cells(capsys, *words, *more)
    keys = [(c["model"], c["device"], c["batch"], c["workers"]) for c in found]
    assert len(set(keys)) == len(found) == 2 * 2 * 5 * 2
    assert keys[:3] == [("nin", "K40", 1, 1), ("nin", "K40", 1, 4), ("nin", "K40", 2, 1)]
    for cell in found:
        workload = make_workload(read_model(cell["model"]), cell["batch"])
        device = catalog.device(cell["device"])
        one = prediction(cost_model("analytic"), build_step(workload), "float32", device, {})
        exchange = 0.0
        if cell["workers"] == 4:  # a ring: 2 (n - 1) messages of a quarter at 1.25 GB/s
            size = 4 * build_step(workload).parameters
            adding = 3 * size * 3 / 4 / device.memory_bytes_per_s
            exchange = 6 * size / 4 / 1.25e9 + adding
        assert cell["comm_s"] == pytest.approx(exchange, rel=1e-12)
        assert cell["step_s"] == pytest.approx(one.estimate.step_s + exchange, rel=1e-12)
        speed = cell["workers"] * cell["batch"] / cell["step_s"]
        assert cell["samples_per_s"] == pytest.approx(speed, rel=1e-12)
        assert cell["peak_memory_bytes"] == one.peak_memory_bytes
        assert cell["status"] == "ok"
    out = tmp_path / "cells.csv"
    assert run(["predict", *words, *more, "--grid", "-o", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [{k: str(v) for k, v in cell.items()} for cell in found] == rows
    out = tmp_path / "cells.jsonl"
    assert run(["predict", *words, *more, "--grid", "-o", str(out)]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == found


def test_a_grid_without_batches_takes_each_models_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = cells(capsys, "fc,transformer:layers=1", "--device", "T4")
    assert [cell["batch"] for cell in found] == [64, 1]


def test_paleo_in_a_grid_exchanges_by_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["nin", "--device", "K20X", "--batch", "8", "--workers", "32", "--method", "paleo",
             "--option", "ppp_comm=0.56", "--network", "infiniband"]  # fmt: skip
    (cell,) = cells(capsys, *words)
    # 2 log2 32 times the gradient, 4 bytes a parameter, over 70 Gbit/s at 56 %
    assert cell["comm_s"] == pytest.approx(10 * 4 * 7_595_176 / (70e9 / 8) / 0.56, rel=1e-12)
