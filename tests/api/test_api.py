import json
import subprocess
import sys

import numpy as np
import pytest

import steptime
import synthetic
from every import every
from steptime.calibration.cases import describe_misfit
from steptime.core.errors import InputError
from steptime.network.ops import OPS
from steptime.prediction.steps.step_model import StepModel
from steptime.records import store

ROWS = [
    {"kind": "linear", "shapes": [[64 * i, 512], [256, 512]], "seconds": i * 2e-5}
    for i in range(1, 25)
]


def python(text):
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ASK = "print(steptime.predict('resnet18', 't4').model)"


@pytest.mark.slow
@every(
    "text",
    [
        f"import steptime; {ASK}",
        f"import steptime.prediction.method as m, steptime; assert m.Method; {ASK}",
        f"import steptime; steptime.predict; import steptime.prediction.method; {ASK}",
        "from steptime import predict; print(predict('resnet18', 't4').model)",
    ],
)
def test_predict_is_a_function_and_a_room(text):
    assert python(text) == "resnet18"


def test_a_step_is_that_of_the_driver():
    found = steptime.predict("resnet18", "v100", batch=8, dtype="float16", method="calibrated")
    times = StepModel(
        "resnet18", "v100", method="calibrated", dtype="float16"
    ).timeline(8)  # fmt: skip
    assert (found.step_s, found.low_s, found.high_s) == (times.step_s, times.low_s, times.high_s)
    assert found.low_s < found.step_s < found.high_s
    assert sum(op.step_s for op in found.ops) <= found.step_s * (1 + 1e-9)
    assert (found.batch, found.device, found.fits) == (8, "v100-sxm2-16gb", True)
    assert "resnet18, batch 8" in found._repr_html_()
    assert len(repr(found)) < 1000


def test_a_bound_has_no_upper_end():
    found = steptime.predict("fc", "t4", method="roofline")
    assert (found.high_s, found.low_s) == (None, found.step_s)
    assert "at least" in found._repr_html_()


def test_numbers_of_numpy_are_numbers():
    of_numpy = steptime.predict("fc", "t4", batch=np.int64(8))
    assert of_numpy.step_s == steptime.predict("fc", "t4", batch=8).step_s


def test_an_op_by_its_common_name():
    found = steptime.predict_op("bmm", [[8, 128, 64], [8, 64, 128]], "float32", "v100")
    bound = steptime.predict_op(
        "matmul", [[8, 128, 64], [8, 64, 128]], "float32", "v100", method="roofline"
    )
    flop = 2 * 8 * 128 * 64 * 128
    moved = 4 * 8 * (128 * 64 + 64 * 128 + 128 * 128)
    v100 = steptime.device("v100")
    peaks = v100.datasheet.peak_flop_per_s["float32"], v100.datasheet.memory_bytes_per_s
    assert bound.seconds == max(flop / peaks[0], moved / peaks[1])
    assert found.kind == "matmul"
    assert found.low < found.seconds < found.high
    alone = steptime.predict_op(
        "bmm", [[8, 128, 64], [8, 64, 128]], "float32", "v100", condition="isolated"
    )
    assert alone.seconds > found.seconds


def test_rows_calibrate_and_score():
    made = steptime.calibrate("t4", ROWS)
    assert made.calibrated_device.calibration.table["points"] == len(ROWS)
    assert "errors of points left out" in made._repr_html_()
    rows = [{**row, "device": "t4"} for row in ROWS]
    found = steptime.evaluate(rows, "roofline", by=["kind"])
    assert found.rows[0].cases == len(ROWS)
    assert found.groups[0].kind == "linear"
    mine = steptime.evaluate(rows, lambda kernel, device: 1e-4)
    wrong = [abs(1e-4 / row["seconds"] - 1) for row in ROWS]
    assert mine.rows[0].mape == pytest.approx(sum(wrong) / len(wrong))


class Frame:
    """What rows need of a DataFrame."""

    def __init__(self, rows):
        self.rows = rows

    def to_dict(self, orient):
        assert orient == "records"
        return self.rows


def test_a_data_frame_is_rows():
    assert steptime.calibrate("t4", Frame(ROWS)).points == len(ROWS)
    rows = [{**row, "attrs": float("nan"), "batch": float("nan")} for row in ROWS]  # empty cells
    assert steptime.calibrate("t4", Frame(rows)).points == len(ROWS)


def test_a_data_frame_may_have_columns_of_its_own(tmp_path):
    said = tmp_path / "map.toml"
    said.write_text('kind = "MatMul"\nshapes = [["m", 64], [64, 8]]\nseconds = "took_ms"\n'
                    'unit = "ms"\ndevice = "{gpu}"\n')  # fmt: skip
    table = Frame(
        [
            {"m": 64, "took (ms)": 0.5, "gpu": "Tesla T4"},
            {"m": 8, "took (ms)": float("nan"), "gpu": "T4"},
        ]
    )
    (case,) = steptime.evaluate(table, mapping=said).scored
    assert (case.case.seconds, case.case.kernels[0].products) == (5e-4, ((1, 64, 8, 64),))
    table.rows[1] = {"m": "many", "took (ms)": 1, "gpu": "T4"}
    with pytest.raises(InputError, match=r"row 1: m is a whole number below .*, not 'many'"):
        steptime.evaluate(table, mapping=said, strict=True)


def test_rows_of_a_file_may_name_no_device(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    assert steptime.calibrate("t4", path).points == len(ROWS)


def test_rows_of_other_devices_do_not_calibrate():
    mixed = [{**row, "device": device} for row in ROWS for device in ("t4", "l4")]
    assert steptime.calibrate("l4", mixed).points == len(ROWS)
    with pytest.raises(InputError, match="no row of h100-sxm5; there are those of l4, t4"):
        steptime.calibrate("h100", mixed)


def test_pandas_is_asked_for_when_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="needs pandas: pip install"):
        steptime.predict("fc", "t4").to_pandas()


def test_frames_have_a_row_an_op():
    pandas = pytest.importorskip("pandas")
    found = steptime.predict("fc", "t4").to_pandas()
    assert isinstance(found, pandas.DataFrame)
    assert {"name", "kind", "step_s"} <= set(found.columns)


SQUARE = [8, 8]
IMAGE = [1, 3, 8, 8]


@every(
    ("kind", "shapes", "attrs", "lacks"),
    [
        ("gemm", [], {}, "lacks a, b"),
        ("gemm", [SQUARE], {}, "lacks b"),
        ("gemm", [SQUARE] * 3, {}, "takes 2 inputs, not 3"),
        ("gemm", [SQUARE] * 2, {"transposed": True}, "takes no 'transposed'"),
        ("relu", [], {}, "lacks an input"),
        ("max_pool", [IMAGE], {"kernel": 2}, "lacks stride"),
        ("attention", [[1, 2, 4]] * 3, {"heads": 2, "causal": True}, "lacks kv_heads"),
    ],
)
def test_an_op_says_what_it_lacks(kind, shapes, attrs, lacks):
    with pytest.raises(InputError, match=f"op {kind}: .*: {lacks}$"):
        steptime.predict_op(kind, shapes, "float32", "a100", attrs=attrs)


@every("kind", OPS)
def test_the_example_of_an_op_lacks_nothing(kind):
    example = OPS[kind].example
    shapes = tuple(one.shape for one in example.specs)
    assert describe_misfit(kind, len(shapes), example.attrs) == ""


@every(
    ("call", "message"),
    [
        (lambda: steptime.predict("resnt50", "a100"), "did you mean 'resnet50'"),
        (lambda: steptime.predict_op("softmx", [[8, 8]], "float32", "a100"), "'softmax'"),
        (
            lambda: steptime.predict_op("linear", [[8, 8]], "float32", "a100"),
            "op linear: linear of",
        ),
        (lambda: steptime.predict_op("relu", [[0, 8]], "float32", "a100"), "at least 1"),
        (lambda: steptime.calibrate("t4", []), "t4: no row to calibrate with"),
        (lambda: steptime.evaluate(ROWS), "row 0: 'device' is missing"),
        (lambda: steptime.evaluate([]), "no case to evaluate"),
    ],
)
def test_mistakes_say_what_is_meant(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)


@every(
    ("short", "whole"),
    [
        (("ln", [[64, 128]]), ("layer_norm", [[64, 128], [128], [128]])),
        (("batchnorm", [[8, 16, 4, 4]]), ("batch_norm", [[8, 16, 4, 4], *[[16]] * 4])),
        (("bmm", [[8, 16, 32], [8, 32, 16]]), ("matmul", [[8, 16, 32], [8, 32, 16]])),
        (("Conv2d", [[2, 3, 8, 8], [4, 3, 3, 3]]), ("conv2d", [[2, 3, 8, 8], [4, 3, 3, 3]])),
        (("div", [[64, 128], [64, 128]]), ("mul", [[64, 128], [64, 128]])),
    ],
)
def test_ops_as_people_call_them(short, whole):
    (kind, shapes), (own, every) = short, whole
    found = steptime.predict_op(kind, shapes, "float32", "t4")
    assert found.kernels == steptime.predict_op(own, every, "float32", "t4").kernels
    assert found.kernels


IMAGE, FILTER = (2, 4, 9, 9), (8, 4, 3, 3)


def test_a_kind_that_is_part_of_another_by_now_is_still_known():
    found, now = (
        steptime.predict_op(kind, [IMAGE], "float32", "t4", attrs).kernels
        for kind, attrs in (
            ("upsample2d", {"scale": (2, 3)}),
            ("resize2d", {"size": (18, 27), "mode": "nearest"}),
        )
    )
    assert found == now


@every(
    ("short", "whole"),
    [
        ({"stride": 2, "padding": 1}, {"stride": (2, 2), "padding": (1, 1, 1, 1)}),
        ({"padding": [1, 0]}, {"padding": (1, 1, 0, 0)}),  # (height, width), as in frameworks
        ({"dilation": 2, "groups": 1}, {"dilation": (2, 2), "groups": 1}),
    ],
)
def test_one_number_is_that_of_each_side_of_an_image(short, whole):
    found, other = (
        steptime.predict_op("conv2d", [IMAGE, FILTER], "float32", "t4", attrs).kernels
        for attrs in (short, whole)
    )
    assert found == other


def test_sides_that_are_missing_are_not_taken_to_be_without_padding():
    with pytest.raises(InputError, match="not top, bottom, left, right"):
        steptime.predict_op("conv2d", [IMAGE, FILTER], "float32", "t4", {"padding": (1, 1, 1)})
    with pytest.raises(InputError, match=r"a window \[2, 2, 2\]"):
        steptime.predict_op("max_pool", [IMAGE], "float32", "t4", {"kernel": (2,) * 3, "stride": 2})


def test_an_op_by_itself_on_a_cpu_is_called_by_its_own_host():
    one, many = (
        steptime.predict_op("relu", [[64, 64]], "float32", "epyc-7763", condition=condition)
        for condition in ("isolated", "repeated")
    )
    assert 0 < one.low < one.seconds < one.high
    assert one.seconds == many.seconds


def test_what_runs_no_kernel_has_no_time():
    with pytest.raises(InputError, match="op add: no kernel runs"):
        steptime.predict_op("add", [[8, 8], [8, 8]], "float32", "t4", pass_="backward")  # noqa: S106  # of a step


def test_the_numbers_of_an_embedding_are_whole():
    (kernel,) = steptime.predict_op("embedding", [[8, 16], [100, 32]], "float32", "t4").kernels
    assert kernel.bytes == 8 * 16 * 8 + 2 * 8 * 16 * 32 * 4


def test_an_analysis_is_asked_as_its_command_is(tmp_path):
    with store.open_writer(tmp_path) as writer:
        writer.append_all(synthetic.sweep())
    found = steptime.analyse("errors", tmp_path)
    assert found.headline[0].startswith("The largest median error is ")
    assert {row.family for row in found.rows} == {"fc", "cnn", "rnn", "transformer"}
    assert len(found.to_pandas()) == len(found.rows)
    assert found._repr_html_().startswith("<p>The largest median error")
    drawn = steptime.analyse("roofline", tmp_path)
    assert "<svg" in drawn._repr_html_()
    assert "and 14 more rows" in drawn._repr_html_()
    with pytest.raises(InputError, match="did you mean 'errors'"):
        steptime.analyse("error", tmp_path)
    with pytest.raises(InputError, match="unknown setting 'nosuch'"):
        steptime.analyse("roofline", tmp_path, nosuch=1)
    with pytest.raises(InputError, match="at most 1 folders"):
        steptime.analyse("errors", tmp_path, tmp_path)


def _assert_reads_twice(answer, row_count):
    """Assert that each form of an answer is the same at the second reading."""
    document = answer.to_dict()
    assert answer.to_dict() == document
    assert len(answer.to_pandas()) == len(answer.to_pandas()) == row_count
    screen = str(answer)
    assert len(screen) > 1
    assert str(answer) == screen
    assert answer.to_dict() == document


def test_a_grid_can_be_read_any_number_of_times(tmp_path):
    grid = {"device": "v100,a100", "batch": "8,16", "all_cells": True}
    answer = steptime.predict("alexnet,resnet50", **grid)
    _assert_reads_twice(answer, row_count=8)
    assert len(answer.rows) == 8
    written = steptime.predict("alexnet", out=str(tmp_path / "cells.csv"), **grid)
    assert len(written.to_pandas()) == len(written.to_pandas()) == 4


def test_a_comparison_can_be_read_any_number_of_times(tmp_path):
    with store.open_writer(tmp_path) as writer:
        writer.append_all(synthetic.sweep())
    answer = steptime.compare([tmp_path])
    _assert_reads_twice(answer, row_count=len(answer.rows))
    assert len(answer.rows) > 1


@pytest.mark.parametrize("name", ["errors", "roofline", "results"])
def test_an_analysis_has_the_forms_of_other_answers(tmp_path, name):
    with store.open_writer(tmp_path) as writer:
        writer.append_all(synthetic.sweep())
    answer = steptime.analyse(name, tmp_path)
    document = answer.to_dict()
    _assert_reads_twice(answer, row_count=len(document["rows"]))
    assert "AnalysisAnswer(" not in str(answer)
    assert answer.headline[0] in str(answer)
