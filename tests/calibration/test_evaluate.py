import json
import math
from collections import Counter
from dataclasses import replace

import pytest

from every import every
from steptime.api import evaluate as evaluate_rows
from steptime.api import predict, predict_op
from steptime.build import make_workload, read_model
from steptime.calibration import evaluation
from steptime.calibration.cases import Case, op_kernels
from steptime.calibration.evaluate import (
    Scored,
    by_group,
    errors_of,
    score,
    score_after_calibration,
)
from steptime.calibration.evaluation import evaluate
from steptime.calibration.mapped import plain_case
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.prediction import cost_model
from steptime.prediction.method import method_of_price
from steptime.prediction.steps.step_model import StepModel

V100, T4 = catalog.device("v100-sxm2-16gb"), catalog.device("t4")


def case(seconds, kind="add", device=V100, size=2**20, condition="isolated"):
    kernels = op_kernels("add", ((size,), (size,)), {}, "float32")
    return Case(kernels, device, seconds, kind, condition)


def test_errors_by_hand():
    scored = [
        Scored(case(1.0), 1.1, 0.9, 1.2), Scored(case(1.0), 0.8, 0.7, 0.9),
        Scored(case(2.0, "mul"), 3.0, None, None),
    ]  # fmt: skip
    found = errors_of(scored)
    assert found.cases == 3
    assert found.mape == pytest.approx((0.1 + 0.2 + 0.5) / 3)
    assert found.median == pytest.approx(0.2)
    assert found.p90 == pytest.approx(0.44)
    assert found.bias == pytest.approx(math.log(1.1 * 0.8 * 1.5) / 3)
    assert found.factor == pytest.approx((1.1 * 1.25 * 1.5) ** (1 / 3))
    assert found.balanced == pytest.approx((0.15 + 0.5) / 2)
    assert found.coverage == 0.5
    assert found.width == pytest.approx((0.3 / 1.1 + 0.2 / 0.8) / 2)


def test_arrays_and_steps_price_a_case_alike():
    model = StepModel("fc", V100, method="calibrated")
    row = {"model": "fc", "device": "v100", "seconds": 1e-3, "condition": "step", "batch": 64}
    (found,) = score([plain_case(row)], cost_model("calibrated"))
    assert found.value == pytest.approx(model.timeline().step_s, rel=1e-6)
    (bound,) = score([plain_case(row)], cost_model("analytic"))
    assert bound.value == StepModel("fc", V100, method="analytic").timeline().step_s


def test_a_price_of_ones_own_is_summed_over_kernels():
    kernels = case(1.0).kernels
    both = Case(kernels * 2, V100, 1.0, "add", "repeated")
    mine = method_of_price(
        "mine", lambda kernel, device: kernel.bytes / device.datasheet.memory_bytes_per_s
    )
    (found,) = score([both], mine)
    assert found.value == pytest.approx(2 * 12 * 2**20 / V100.datasheet.memory_bytes_per_s)


def test_a_price_of_ones_own_predicts_a_step_in_evaluate_as_in_predict():
    mine = method_of_price("mine", lambda kernel, device: kernel.bytes / 1e12 + 5e-6)
    row = {"model": "resnet50", "device": "v100", "seconds": 0.1, "condition": "step", "batch": 8}
    (found,) = score([plain_case(row)], mine)
    workload = make_workload(read_model("resnet50"), 8)
    assert found.value == StepModel(workload, V100, method=mine).timeline().step_s


def test_ops_in_8_and_16_bit_of_one_device_keep_their_own_times():
    device = catalog.device("h100-sxm5")
    cases = [
        Case(
            op_kernels("linear", ((m, 4096), (4096, 4096)), {}, dtype), device, 1.0, "", "repeated"
        )
        for m, dtype in ((4096, "float8"), (64, "bfloat16"), (1024, "float8"))
    ]
    method = cost_model("calibrated")
    alone = [one for case in cases for one in score([case], method)]
    assert score(cases, method) == alone


def test_groups_have_names():
    scored = [Scored(case(s, device=d), 1.0, None, None) for s, d in ((1.0, V100), (1e-5, T4))]
    assert list(by_group(scored, ("device", "regime"))) == [
        ("t4", "below 0.1 ms"), ("v100-sxm2-16gb", "above 10 ms"),
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"--by: unknown group 'devices'; did you mean 'device'\?"):
        by_group(scored, ("devices",))


def slow_cases(slower=1.3):
    cases = [case(1.0, size=2**i, device=d) for i in range(12, 30) for d in (V100, T4)]
    made = score(cases, cost_model("calibrated"))
    return [replace(one.case, seconds=one.value * slower) for one in made]


def test_calibration_helps_the_cases_that_are_left():
    cases = slow_cases()
    before = errors_of(score(cases, cost_model("calibrated")))
    found, _ = score_after_calibration(cases, 8, draws=2)
    assert before.mape == pytest.approx(1 - 1 / 1.3)
    assert all(errors_of(one).mape < 0.75 * before.mape for one in found)
    assert [len(one) for one in found] == [20, 20]  # 2 devices, 18 cases, 8 of them taken
    left, _ = score_after_calibration(2 * cases, 8, draws=1)
    seen = Counter((one.case.device.name, one.case.kernels) for one in left[0])
    assert {*seen.values()} == {2}  # a row that repeats a point is not what is left
    with pytest.raises(InputError, match="no case is left"):
        score_after_calibration(cases, 18)


def test_an_evaluation_has_methods_rivals_and_the_worst_cases():
    cases = slow_cases()
    cases[0] = replace(
        cases[0], published_s_by_method={"theirs": cases[0].seconds * 2}, place="here:1"
    )
    found = evaluate(
        cases, cost_model("calibrated"), "calibrated", 8, ("device",), draws=2, worst=2
    )
    names = [row["method"] for row in found.rows]
    assert names[:2] == ["calibrated", "calibrated with 8"]
    assert {"analytic", "roofline", "theirs (published)"} <= set(names)
    assert "calibrated, the cases of theirs" in names
    theirs = next(row for row in found.rows if row["method"] == "theirs (published)")
    assert (theirs["cases"], theirs["mape"]) == (1, pytest.approx(1.0))
    assert {row["device"] for row in found.groups} == {"t4", "v100-sxm2-16gb"}
    assert len(found.worst) == 2
    assert found.worst[0]["ops"][0]["kind"] == "add"
    assert len(found.tables()) == 3


ROWS = [
    {"kind": "linear", "shapes": [[64 * i, 512], [256, 512]], "device": "t4", "seconds": i * 1e-4}
    for i in range(1, 9)
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "ops.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_of_many_causes_the_commonest_are_shown():
    cases = [plain_case(row) for row in ROWS]
    refusals = [(f"row {i}", f"cause {i}") for i in range(30)] + [("row 30", "cause 29")]
    found = evaluate(cases, cost_model("roofline"), "roofline", refusals=refusals)
    (shown,) = [one for one in found.tables() if one.title.startswith("Rows that cannot be asked")]
    assert shown.title == "Rows that cannot be asked; 10 more causes"
    assert [row["rows"] for row in shown.rows] == [2, *[1] * 19]
    assert len(found.unasked) == 30


def test_the_command_prints_tables_and_a_document(table, capsys):
    assert run(["evaluate", str(table), "--by", "kind", "--worst", "1"]) == 0
    printed = capsys.readouterr().out
    assert "roofline" in printed
    assert "linear 1x512x256x512" in printed
    assert run(["evaluate", str(table), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"][0]["cases"] == 8
    assert document["worst"][0]["place"].startswith("ops.jsonl:")


def test_a_wrong_unit_is_asked_about(table, tmp_path, capsys):
    assert run(["evaluate", str(table)]) == 0
    assert "is the unit right?" not in capsys.readouterr().err
    rows = [row | {"seconds": row["seconds"] * 1e3} for row in ROWS]  # milliseconds, said to be s
    (tmp_path / "ms.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["evaluate", str(tmp_path / "ms.jsonl")]) == 0
    assert "is the unit right?" in capsys.readouterr().err


def test_a_file_of_ones_own_prices(table, tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text("def price(kernel, device):\n    return kernel.flop / 1e12\n")
    assert run(["evaluate", str(table), "--method", f"{mine}:price", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    flop = [2 * 64 * i * 256 * 512 for i in range(1, 9)]
    wrong = [abs(one / 1e12 / (i * 1e-4) - 1) for i, one in enumerate(flop, 1)]
    assert row["mape"] == pytest.approx(sum(wrong) / 8)
    assert row["constants"] is None


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "(kernel): return 1",
            "linear fails: TypeError: price() takes 1 positional argument",
        ),
        (
            "(kernel, device): return 'a'",
            "linear fails: ValueError: could not convert",
        ),
        ("(kernel, device): return -1", "linear is -1 s, not a time"),
        ("(kernel, device): return float('nan')", "linear is nan s, not a time"),
        ("(kernel, device): return 0", "a time of 0 s"),
    ],
)
def test_mistakes_in_a_price_are_one_line(table, tmp_path, code, message, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(f"def price{code}\n")
    assert run(["evaluate", str(table), "--method", f"{mine}:price"]) == 2
    said = capsys.readouterr().err
    assert f"ops.jsonl:1: {mine}:price: " in said
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_the_picture(table, tmp_path):
    assert run(["evaluate", str(table), "--out", str(tmp_path / "errors.svg")]) == 0
    assert "predicted / measured" in (tmp_path / "errors.svg").read_text()


STRANGE = (  # device, type, size, and how the command says what keeps it from being asked
    ("v100", "float32", 64, None),
    ("v100", "float16", 64, None),
    ("v100", "float32", 0, "matmul: each size is at least 1"),
    ("v100", "bfloat16", 64, "no peak is known for bfloat16"),
    ("v100", "float8", 64, "matmul: has no products of float8 operands"),
    ("v1000", "float32", 64, "unknown device 'v1000'"),
    ("", "float32", 64, "unknown device ''"),
)


def _strange(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [
        {"kind": "matmul", "shapes": [[64, size], [size, 64]], "dtype": dtype}
        | {"device": device, "seconds": 1e-5}
        for device, dtype, size, _ in STRANGE
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def test_rows_that_cannot_be_asked_are_counted_by_cause(tmp_path, capsys):
    assert run(["evaluate", _strange(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"][0]["cases"] == 2
    causes = [cause for *_, cause in STRANGE if cause]
    for line, (cause, one) in enumerate(zip(causes, document["unasked"], strict=True), start=3):
        assert cause in one["cause"]
        assert (one["rows"], one["example"]) == (1, f"rows.jsonl:{line}")


def test_strict_refuses_the_first_row_that_cannot_be_asked(tmp_path, capsys):
    assert run(["evaluate", _strange(tmp_path), "--strict"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "rows.jsonl:3: matmul of" in line


def test_methods_are_compared_on_what_all_of_them_answer(monkeypatch):
    row = {"kind": "matmul", "shapes": [[64, 64], [64, 64]], "dtype": "float32", "device": "v100"}
    cases = [plain_case(row | {"seconds": s}) for s in (1e-5, 2e-5, 3e-5)]
    real = evaluation.score

    def score(some, method):
        scored = real(some, method)
        return scored[:2] if method.name == "paleo" else scored

    monkeypatch.setattr(evaluation, "score", score)
    found = evaluate(cases, cost_model("calibrated"), "calibrated")
    assert found.compared_cases == 2
    sizes = {row["method"]: row["cases"] for row in found.rows}
    assert sizes.pop("calibrated") == 3
    assert set(sizes.values()) == {2}
    assert "calibrated, the cases of all" in sizes


ASKED = [
    {},
    {"tf32": "on"},
    {"tf32": "off"},
    {"host": "slow"},
    {"channels_last": True},
    {"tf32": "off", "host": "fast", "channels_last": False, "stack": "torch-compile"},
]
STEP = {
    "model": "cnn:blocks=1,filters=16,image=64",
    "batch": 2,
    "dtype": "float32",
    "optimizer": "sgd",
}


@every("cell", ["yes", "TRUE", "on", True])
def test_a_cell_says_yes_in_several_spellings(cell):
    row = {**STEP, "device": "a100", "condition": "step", "seconds": 1.0}
    assert plain_case({**row, "channels_last": cell}).method_options == {"channels_last": "yes"}
    assert plain_case({**row, "channels_last": "off"}).method_options == {"channels_last": "no"}
    with pytest.raises(InputError, match=r"row: channels_last must be yes or no, not 'nhwc'"):
        plain_case({**row, "channels_last": "nhwc"})


@pytest.mark.slow
@every("asked", ASKED, ids=str)
@every("model", [STEP["model"], "resnet18", "bert_base"])
def test_rows_ask_as_predict_does(asked, model):
    """A table's `tf32`, `host` and `channels_last` mean what they mean in `predict`."""
    step = {**STEP, "model": model}
    row = {**step, **asked, "device": "a100", "condition": "step", "seconds": 1.0}
    stack = asked.get("stack")
    wishes = {name: value for name, value in asked.items() if name != "stack"}
    options = {"stack": stack} if stack else None
    told = predict(**step, device="a100", options=options, **wishes)
    (one,) = evaluate_rows([row]).scored
    ends = told.step_s, told.low_s, told.high_s
    assert (one.value, one.low, one.high) == pytest.approx(ends, rel=1e-12)
    (analytic,) = score([plain_case(row)], cost_model("analytic"))
    known = {name: value for name, value in wishes.items() if name == "tf32"}
    told = predict(**step, device="a100", method="analytic", options=options, **known)
    assert analytic.value == pytest.approx(told.step_s)


def test_tf32_is_wished_for_in_vain_where_nothing_is_float32():
    """A device without TF32 computes in bfloat16 all the same, in a table as in `predict`."""
    step = {**STEP, "dtype": "bfloat16", "device": "jetson-agx-thor", "tf32": "on"}
    told = predict(**step)
    (one,) = evaluate_rows([{**step, "condition": "step", "seconds": 1.0}]).scored
    assert (one.value, one.low, one.high) == pytest.approx((told.step_s, told.low_s, told.high_s))


def test_an_op_may_run_as_tf32():
    of = {"shapes": [[1024, 1024]] * 2, "dtype": "float32", "device": "a100"}
    plain, fast = (predict_op("matmul", **of, tf32=one).seconds for one in ("auto", "on"))
    assert 3 < plain / fast < 10
    with pytest.raises(InputError, match="no peak is known for tf32"):
        predict_op("matmul", **{**of, "device": "v100"}, tf32="on")


def test_what_a_row_cannot_ask_for_is_counted(tmp_path):
    rows = [
        {**STEP, "device": "a100", "condition": "step", "seconds": 1.0, "host": "slwo"},
        {**STEP, "device": "v100", "condition": "step", "seconds": 1.0, "tf32": "on"},
        {**STEP, "device": "core-i9-9900k", "condition": "step", "seconds": 1.0, "host": "slow"},
        {**STEP, "device": "v100", "condition": "step", "seconds": 1.0},
    ]
    found = evaluate_rows(rows)
    assert len(found.scored) == 1
    causes = [one.cause for one in found.unasked]
    assert "unknown host 'slwo'; did you mean 'slow'?" in causes[0]
    assert "no peak is known for tf32" in causes[1]
    assert causes[2] == "device 'core-i9-9900k' is its own host; leave out --host"
