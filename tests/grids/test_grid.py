"""Grids: every cell is the single prediction; three batches tell all between, or each is built."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import steptime
from every import every
from steptime.build import build_step, make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.core.tables.printers import encode_row
from steptime.core.units import format_bytes
from steptime.core.values import parse_counts, parse_models
from steptime.grids import batch_steps
from steptime.grids.batch_steps import BatchSteps
from steptime.grids.grid import grid
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device
from steptime.network.count import peak_bytes
from steptime.prediction.steps import lines
from steptime.prediction.steps.network_steps import NetworkSteps
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.predict import grid_table
from steptime.questions.predict.grid_request import MAX_CELLS

NETWORKS = (
    "resnet18",
    "squeezenet1_1",
    "fc",
    "rnn:cell=lstm,length=3",
    "transformer:layers=2,width=16,heads=2,length=8,vocabulary=20,max_length=9",
)


METHODS = (
    ("analytic", {}),
    ("analytic", {"fuse": "yes"}),
    ("analytic", {"cycle": "paleo", "backward": "paleo", "ppp_comp": "0.3"}),
    ("roofline", {}),
    ("calibrated", {}),
    ("paleo", {}),
    ("paleo", {"pipeline": "true", "ppp_comp": "0.5"}),
)
K80 = catalog.device("K80", "paleo")
WAITS = Device(
    "waits", "gpu", Datasheet({"float32": 4e12}, 3e11, "made up", launch_s=5e-6, clock_hz=1e9)
)
OWN_HOST = Device("own host", "cpu", Datasheet({"float32": 1e11}, 2e10, "made up", launch_s=2e-6))


def check(model: StepModel, found: BatchSteps) -> None:
    """Every cell is the single prediction."""
    (span,), needed_bytes = found.spans([model]), found.needed_bytes(model)
    times, ends = span.times, {"low_s": span.low_s, "high_s": span.high_s}
    for i, batch in enumerate(found.batches):
        single = model.timeline(batch)
        assert needed_bytes[i] == model.needs(batch).total_bytes
        assert found.fit(model)[i] == model.needs(batch).fit(model.device)
        for end, values in ends.items():
            one, alone = None if values is None else values[i], getattr(single, end)
            assert one is alone is None or one == pytest.approx(alone, rel=1e-12)
        for values, part in zip(times, ("forward_s", "backward_s", "update_s"), strict=True):
            assert values[i] == pytest.approx(getattr(single, part), rel=1e-12, abs=1e-18)
        assert sum(values[i] for values in times) == pytest.approx(single.step_s, rel=1e-12)
        assert found.peak_bytes[i] == peak_bytes(model.graph(batch))


@pytest.mark.parametrize(
    "text",
    [  # resnet18 and the drawn cells hold convolutional networks more quickly
        pytest.param(text, marks=pytest.mark.rare) if text == "squeezenet1_1" else text
        for text in NETWORKS
    ],
)
@pytest.mark.parametrize(("name", "given"), METHODS)
def test_a_cell_is_the_single_prediction(text, name, given):
    for device in (K80, WAITS, OWN_HOST):
        model = StepModel(text, device, method=name, options=given)
        found = BatchSteps(model, (1, 2, 37, 100))
        assert found.lines
        check(model, found)
        check(model, BatchSteps(model, (2, 37)))  # few batches are built as they are


@pytest.mark.slow
@every(("name", "given"), METHODS)
def test_devices_side_by_side_are_as_each_alone(name, given):
    models = [
        StepModel(NETWORKS[0], device, method=name, options=given)
        for device in (K80, WAITS, catalog.device("V100"), OWN_HOST)
    ]
    found = BatchSteps(models[0], (1, 2, 37, 100))
    assert found.lines
    for beside, on in zip([one.times for one in found.spans(models)], models, strict=True):
        for some, alone in zip(beside, found.spans([on])[0].times, strict=True):
            assert some == pytest.approx(alone, rel=1e-12)


@pytest.mark.parametrize("examples", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_random_cells_are_single_predictions(examples):
    hypothesis_settings(max_examples=examples)(given_cells(_check_cells))()


given_cells = given(
    st.sampled_from(NETWORKS),
    st.sampled_from(METHODS),
    st.lists(st.integers(1, 3000), min_size=4, max_size=6, unique=True),
    st.floats(1e9, 1e15),
    st.floats(1e8, 1e13),
    st.floats(1e-7, 1e-3) | st.none(),
)


def _check_cells(text, method, batches, peak, rate, launch_s):
    device = Device(
        "d", "gpu", Datasheet({"float32": peak}, rate, "made up", launch_s=launch_s, clock_hz=1e9)
    )
    model = StepModel(text, device, method=method[0], options=method[1])
    found = BatchSteps(model, batches)
    assert found.lines
    check(model, found)


PADDED = (  # network, device, data type and stack, which pads rows to multiples of 8
    pytest.param("resnet18", "tpu-v4", "bfloat16", None, marks=pytest.mark.slow),
    ("fc:layers=2,nodes=64,inputs=64,outputs=64", "tpu-v3", "bfloat16", None),
    pytest.param("bert_base:length=12", "tpu-v5e", "bfloat16-mixed", None, marks=pytest.mark.slow),
    ("resnet18", "a100", "bfloat16-mixed", "torch-compile"),
)


@pytest.mark.parametrize(("text", "device", "dtype", "stack"), PADDED)
def test_padded_rows_are_as_single_predictions_and_few_batches_are_built(
    text, device, dtype, stack, monkeypatch
):
    options = {"stack": stack} if stack else {}
    workload = make_workload(read_model(text), 1, dtype)
    model = StepModel(workload, catalog.device(device), options=options, assumes=True)
    batches = [*range(1, 100), 128, 64, 200, 201, 203, 207, 2048, 2041, 4001]
    built = _count_builds(monkeypatch)
    steps = BatchSteps(model, batches)
    assert steps.groups
    assert len(built) < 40  # three for each remainder, and the seven below 8
    (span,) = steps.spans([model])
    needed_bytes = steps.needed_bytes(model)
    notes = steps.remarks(model, needed_bytes)
    single = StepModel(workload, catalog.device(device), options=options, assumes=True)
    for place in (0, 3, 6, 7, 8, 14, 40, 99, 100, 102, 103, 105, 106, 107):
        batch = batches[place]
        timeline = single.timeline(batch)
        assert sum(part[place] for part in span.times) == pytest.approx(timeline.step_s, rel=1e-12)
        for ends, end in ((span.low_s, timeline.low_s), (span.high_s, timeline.high_s)):
            assert ends[place] == pytest.approx(end, rel=1e-12), batch
        assert steps.peak_bytes[place] == max(single.living_bytes(batch))
        needs = single.needs(batch)
        assert needed_bytes[place] == needs.total_bytes, batch
        if needs.fit(single.device):
            assert notes[place] == tuple(single.remarks_on(single.graph(batch)))


def _count_builds(monkeypatch):
    """Return the batches whose graphs are asked for, a set that grows."""
    built = set()
    graph = NetworkSteps.graph

    def build(steps, batch=None):
        built.add(batch)
        return graph(steps, batch)

    monkeypatch.setattr(NetworkSteps, "graph", build)
    return built


def test_few_batches_are_built_once(monkeypatch):
    from steptime.prediction.steps import network_steps

    built = []
    original = network_steps.build_steps

    def counted(workload):
        build = original(workload)
        return lambda batch: built.append(batch) or build(batch)

    monkeypatch.setattr(network_steps, "build_steps", counted)
    model = StepModel("fc:layers=1,nodes=8", K80)
    found = BatchSteps(model, (5, 2, 7))
    for device in (K80, WAITS):
        found.spans([model.with_device(device)])
    assert built == [5, 2, 7]


def test_work_that_is_not_affine_is_found_batch_by_batch(monkeypatch):
    graph = NetworkSteps.graph

    def grow_with_the_square(steps, batch=None):
        return graph(steps, (batch or 8) ** 2)

    with monkeypatch.context() as patch:
        patch.setattr(NetworkSteps, "graph", grow_with_the_square)
        model = StepModel("fc:layers=1,nodes=8", K80)
        found = BatchSteps(model, range(1, 6))
        assert not found.lines
        (span,) = found.spans([model])
    alone = StepModel("fc:layers=1,nodes=8", K80).timeline(16)
    assert [part[3] for part in span.times] == [
        alone.forward_s, alone.backward_s, alone.update_s
    ]  # fmt: skip


def test_a_price_that_takes_no_arrays_is_asked_batch_by_batch():
    from dataclasses import replace

    from steptime.prediction import cost_model
    from steptime.prediction.kernel import Interval, Kernel

    def steps_of_a_microsecond(kernel: Kernel, _: Device) -> Interval:
        return Interval(max(1, kernel.flop // 1000) * 1e-6)

    method = replace(cost_model("analytic"), price=steps_of_a_microsecond, arrays=False)
    model = StepModel("fc:layers=1,nodes=8", K80, method=method)
    found = BatchSteps(model, range(1, 6))
    assert not found.lines
    check(model, found)


def test_models_of_a_list():
    text = "fc:layers=4,nodes=64,resnet50, nin ,a/b.json,rnn:cell=gru"
    assert parse_models(text) == ["fc:layers=4,nodes=64", "resnet50", "nin", "a/b.json",
                                  "rnn:cell=gru"]  # fmt: skip
    for wrong, message in ((",fc", "an empty name"), ("fc,fc", "'fc' is given twice")):
        with pytest.raises(InputError, match=message):
            parse_models(wrong)


def test_numbers_of_a_list():
    def numbers(text: str) -> list[int]:
        return parse_counts(text, "--replicas")

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
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return found


def test_the_grid_of_the_command_line(capsys, tmp_path):
    words = ["nin,fc:layers=2,nodes=64", "--device", "tesla-k40,titan-x-maxwell", "--batch", "1..5"]
    more = ["--replicas", "1,4", "--link", "ethernet"]
    found = cells(capsys, *words, *more)
    keys = [(c["model"], c["device"], c["batch"], c["replicas"]) for c in found]
    assert len(set(keys)) == len(found) == 2 * 2 * 5 * 2
    assert keys[:3] == [
        (name, "tesla-k40", *cell) for name, *cell in (("nin", 1, 1), ("nin", 1, 4), ("nin", 2, 1))
    ]
    for cell in found:
        workload = make_workload(read_model(cell["model"]), cell["batch"])
        one = StepModel(workload, cell["device"]).predict()
        exchange = 0.0
        if cell["replicas"] == 4:  # a ring: 2 (n - 1) messages of a quarter at 1.25 GB/s
            size = 4 * build_step(workload).parameters
            adding = 3 * size * 3 / 4 / catalog.device(cell["device"]).datasheet.memory_bytes_per_s
            exchange = 4e-5 + 6 * size / 4 / 1.25e9 + adding  # the first: what starts it
        assert cell["communication_s"] == pytest.approx(exchange, rel=1e-12)
        assert cell["step_s"] == pytest.approx(one.times.step_s + exchange, rel=1e-12)
        speed = cell["replicas"] * cell["batch"] / cell["step_s"]
        assert cell["examples_per_s"] == pytest.approx(speed, rel=1e-12)
        assert cell["peak_bytes"] == one.peak_bytes
        assert cell["status"] == "ok"
    out = tmp_path / "cells.csv"
    assert run(["predict", *words, *more, "--grid", "-o", str(out)]) == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    texts = ("assumed", "notes")  # in words, where JSON has a table and a list
    for cell, row in zip(found, rows, strict=True):
        assert cell.keys() == row.keys()
        values = {
            name: "" if value is None else str(value)
            for name, value in cell.items()
            if name not in texts
        }
        assert values == {name: value for name, value in row.items() if name not in texts}
        assert row["notes"] == "; ".join(cell["notes"])
        assert cell["assumed"]["stack"] in row["assumed"]
    out = tmp_path / "cells.jsonl"
    assert run(["predict", *words, *more, "--grid", "-o", str(out)]) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == found


def test_csv_of_a_grid_prices_each_device_once_and_makes_no_rows(capsys, monkeypatch):
    prices = []
    spans = BatchSteps.spans

    def count_spans(steps, models):
        prices.append(len(models))
        return spans(steps, models)

    monkeypatch.setattr(BatchSteps, "spans", count_spans)
    monkeypatch.setattr(grid_table, "_make_row", None)
    words = ["nin", "--device", "tesla-k40,titan-x-maxwell", "--batch", "1..5"]
    assert run(["predict", *words, "--grid", "--format", "csv"]) == 0
    rows = [*csv.DictReader(capsys.readouterr().out.splitlines())]
    assert prices == [2]
    assert len(rows) == 2 * 5
    monkeypatch.undo()
    for cell, row in zip(cells(capsys, *words), rows, strict=True):
        assert float(row["step_s"]) == cell["step_s"]
        assert row["notes"] == "; ".join(cell["notes"])


@pytest.mark.parametrize("names", [("a100",), ("a100", "k80", "tpu-v3")])
def test_the_first_cells_come_before_others_are_priced(names, monkeypatch):
    """All cells are as they are where all batches are priced at once."""
    makers = [lambda batch: make_workload(read_model("fc"), batch)]
    devices = [catalog.device(name) for name in names]
    batches = [5, 3, *range(6, 400, 7), 4_000_000, 1]
    priced = []
    spans = BatchSteps.spans

    def count_batches(steps, models):
        priced.append((len(models), len(steps.batches)))
        return spans(steps, models)

    def cells_of(head, chunk):
        monkeypatch.setattr(batch_steps, "HEAD_BATCHES", head)
        monkeypatch.setattr(lines, "CHUNK", chunk)
        return grid(makers, devices, batches, (1, 4), catalog.link("aws"), "calibrated", {})

    monkeypatch.setattr(BatchSteps, "spans", count_batches)
    early = cells_of(4, 150)
    first = next(early)
    assert priced == [(1, 4)]
    found = [first, *early]
    if len(names) == 1:
        assert max(count for _, count in priced) < len(batches) / 2
    for cell, alone in zip(found, cells_of(256, 1 << 18), strict=True):
        assert cell._replace(**SECONDS) == alone._replace(**SECONDS)
        for name in SECONDS:
            assert getattr(cell, name) == pytest.approx(getattr(alone, name), rel=1e-12)
    assert {cell.status for cell in found} == {"ok", "oom"}


def test_no_cell_comes_where_no_device_has_the_type():
    makers = [lambda batch: make_workload(read_model("fc"), batch, "bfloat16")]
    devices = [catalog.device(name) for name in ("k80", "tesla-k40")]
    for count in (1, 2):
        cells = grid(makers, devices[:count], range(1, 1000), (1,), None, "calibrated", {})
        with pytest.raises(InputError, match="no peak is known for bfloat16"):
            next(cells)


SECONDS = dict.fromkeys(
    ("step_s", "low_s", "high_s", "forward_s", "backward_s", "update_s", "examples_per_s")
)


def test_json_of_a_grid_is_that_of_its_rows_and_makes_none(capsys, monkeypatch):
    words = ["gpt2", "--device", "a100,k80", "--batch", "1,2,512", "--tokens", "1e9"]
    answer = steptime.predict(
        "gpt2", ["a100", "k80"], batch=[1, 2, 512], tokens=1e9, all_cells=True
    )
    rows = [json.loads(json.dumps(row.to_dict())) for row in answer.rows]
    assert {row["status"] for row in rows} > {"ok"}
    monkeypatch.setattr(grid_table, "_make_row", None)
    assert cells(capsys, *words) == rows == answer.to_dict()["rows"]


def test_a_row_of_json_is_ascii_and_has_no_number_that_json_has_not():
    row = {"name": "caf\u00e9 \ud800", "step_s": math.inf, "bytes": 2**70, "notes": ("a", "b")}
    assert encode_row(row) == (
        f'{{"name": "caf\\u00e9 \\ud800", "step_s": null, "bytes": {2**70}, "notes": ["a", "b"]}}'
    )
    assert encode_row({"low_s": math.nan}) == '{"low_s": null}'
    assert encode_row({"step_s": 1.5, "notes": []}) == '{"step_s": 1.5, "notes": []}'


@pytest.mark.rare
def test_the_largest_grid_keeps_within_a_gigabyte_and_says_how_far_it_is(tmp_path):
    asked = ["predict", "fc", "--grid", "--device", "T4", "--batch", f"1..{MAX_CELLS}"]
    words = [*asked, "-o", str(tmp_path / "cells.csv")]
    code = (  # VmHWM begins with the program: ru_maxrss would have what the test's process holds
        "import sys; from steptime.cli import command; from steptime.cli.main import run; "
        "command.PATIENCE_S = 0.0; assert run(sys.argv[1:]) == 0; "
        "print(*[one.split()[1] for one in open('/proc/self/status') if one.startswith('VmHWM')])"
    )
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert int(done.stdout) * 1024 < 1e9, done.stderr
    assert "cells: " in done.stderr
    assert done.stderr.endswith(f"{MAX_CELLS} cells in {tmp_path / 'cells.csv'}\n")


def test_a_grid_without_batches_takes_each_models_own(capsys):
    found = cells(capsys, "fc,transformer:layers=1", "--device", "T4")
    assert [cell["batch"] for cell in found] == [64, 1]


def test_paleo_in_a_grid_exchanges_by_a_tree(capsys):
    words = ["nin", "--device", "K20X", "--batch", "8", "--replicas", "32", "--method", "paleo",
             "--option", "ppp_comm=0.56", "--link", "infiniband"]  # fmt: skip
    (cell,) = cells(capsys, *words)
    # 2 log2 32 times the gradient, 4 bytes a parameter, over 70 Gbit/s at 56 %
    assert cell["communication_s"] == pytest.approx(
        10 * 4 * 7_595_176 / (70e9 / 8) / 0.56, rel=1e-12
    )


def test_a_device_without_the_type_does_not_end_the_grid(capsys):
    words = ["fc", "--batch", "1..5", "--dtype", "bfloat16", "--device"]
    found = cells(capsys, *words, "tesla-k40,A100")
    why = "device 'tesla-k40': no peak is known for bfloat16; known: float64, float32"
    for cell in found:
        if cell["device"] == "tesla-k40":
            assert (cell["status"], cell["notes"], cell["step_s"]) == ("unsupported", [why], None)
        else:
            assert (cell["status"], cell["notes"]) == ("ok", [])
            assert cell["step_s"] > 0
    assert run(["predict", *words, "tesla-k40,A100", "--grid"]) == 0
    shown = [line for line in capsys.readouterr().out.splitlines() if "tesla-k40" in line]
    assert len(shown) == 5
    assert all(line.endswith("- no peak is known for bfloat16") for line in shown)
    assert run(["predict", *words, "K80,K40", "--grid"]) == 2
    assert why in capsys.readouterr().err


def test_a_cell_that_does_not_fit_shows_what_the_process_needs(capsys):
    """Near the limit, the tensors alone fit the card and the process does not."""
    words = ["predict", "resnet50", "--device", "rtx-3090"]
    usable = catalog.device("rtx-3090").datasheet.usable_bytes
    assert run(["predict", *words[1:], "--batch", "200..400 +2", "--grid", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["rows"]
    assert all((cell["needed_bytes"] <= usable) == (cell["status"] == "ok") for cell in cells)
    cell = next(cell for cell in cells if cell["status"] == "oom")
    assert cell["peak_bytes"] < usable < cell["needed_bytes"]
    assert run([*words, "--batch", str(cell["batch"]), "--json"]) == 0
    single = json.loads(capsys.readouterr().out)
    assert {name: cell[name] for name in SAME} == {name: single[name] for name in SAME}
    assert run([*words, "--batch", str(cell["batch"]), "--grid"]) == 0
    assert (
        f"{format_bytes(single['needed_bytes'])} needed - out of memory" in capsys.readouterr().out
    )


SAME = ("batch", "peak_bytes", "needed_bytes", "status", "notes", "is_extrapolated")
ALONE = (  # remarks of method and device, of kernels that nobody measured, and of memory
    ("fc", "K80", "analytic", ()),
    ("resnet50", "h100-sxm5", "calibrated", ("--dtype", "bfloat16")),
    ("bert_base", "tpu-v4", "calibrated", ("--dtype", "bfloat16", "--optimizer", "adamw")),
    ("gpt2", "rtx-3090", "calibrated", ("--optimizer", "paged_adam")),
    ("gpt2", "rtx-3090", "calibrated", ("--offload", "optimizer", "--optimizer", "adam")),
    ("resnet18", "core-i9-9900k", "calibrated", ()),
)


@pytest.mark.parametrize(("model", "device", "method", "more"), ALONE)
def test_a_cell_says_all_that_a_single_prediction_says(capsys, model, device, method, more):
    """Of five batches, the last too large for most of the devices."""
    words = ["predict", model, "--device", device, "--method", method, *more, "--json"]
    batches = (1, 3, 20, 47, 512)
    assert run([*words, "--grid", "--batch", ",".join(map(str, batches))]) == 0
    cells = json.loads(capsys.readouterr().out)["rows"]
    for batch, cell in zip(batches, cells, strict=True):
        assert run([*words, "--batch", str(batch)]) == 0
        single = json.loads(capsys.readouterr().out)
        assert {name: cell[name] for name in SAME} == {name: single[name] for name in SAME}
        for name in ("step_s", "low_s", "high_s", "forward_s", "backward_s", "update_s"):
            assert cell[name] == (single[name] and pytest.approx(single[name], rel=1e-9)), name


def test_an_extrapolated_cell_has_the_mark_of_a_prediction(capsys):
    words = ["predict", "resnet18", "--device", "trainium2,h100-sxm5", "--grid", "--batch", "1..5"]
    assert run([*words, "--dtype", "bfloat16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    marked = [line for line in lines if line.lstrip().startswith("resnet18") and " ~" in line]
    assert len(marked) == 5
    assert all("trainium2" in line for line in marked)
    assert sum("~ extrapolated: " in line for line in lines) == 1


@pytest.mark.parametrize("form", ["json", "csv", "text"])
def test_a_printed_grid_is_computed_once(form, monkeypatch, capsys):
    calls = []
    find_lines = batch_steps.find_step_lines

    def count_lines(*arguments):
        calls.append(arguments)
        return find_lines(*arguments)

    monkeypatch.setattr(batch_steps, "find_step_lines", count_lines)
    words = ["predict", "fc:layers=1,nodes=4", "--device", "k80", "--batch", "1..9", "--grid"]
    assert run([*words, "--format", form]) == 0
    assert capsys.readouterr().out
    assert len(calls) == 1
