import gzip
import math

import pytest

from every import every
from steptime.calibration.cases import conditions, op_kernels
from steptime.calibration.evaluate import score
from steptime.calibration.mapped import cases_of, plain_case
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.prediction import cost_model
from steptime.records.readers.mapping import mapping_of

TABLE = """op, b, m, n, k, time (ms), card, other
bmm, 8, 128, 64, 32, 0.5, V100, 0.4
linear, 1, 512, 256, 128, 0.25, V100,
skip, 1, 1, 1, 1, 1, V100, 1
"""
SAID = {
    "device": "{card}",
    "words": {"card": {"V100": "v100-pcie-32gb"}},
    "seconds": "time_ms",
    "unit": "ms",
    "rivals": {"theirs": "other"},
    "rows": [
        {
            "where": 'op == "bmm"',
            "kind": "matmul",
            "group": "batched",
            "shapes": [["b", "m", "k"], ["b", "k", "n"]],
        },
        {"where": 'op == "linear"', "kind": "linear", "shapes": [["m", "k"], ["n", "k"]]},
    ],
}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_text(TABLE)
    return path


def test_rows_become_cases(table):
    first, second = cases_of(table, mapping_of(SAID))
    assert first.kernels == op_kernels("matmul", ((8, 128, 32), (8, 32, 64)), {}, "float32")
    assert (first.kind, first.device.name, first.seconds) == ("batched", "v100-pcie-32gb", 5e-4)
    assert first.published_s_by_method == {"theirs": pytest.approx(4e-4)}
    assert first.place == "ops.csv:2"
    assert second.kernels[0].products == ((1, 512, 256, 128),)
    assert (second.kind, second.condition, dict(second.published_s_by_method)) == (
        "linear",
        "isolated",
        {},
    )


def test_compressed_tables_and_json_lines_are_read_too(tmp_path, table):
    packed = tmp_path / "ops.csv.gz"
    packed.write_bytes(gzip.compress(TABLE.encode()))
    lines = tmp_path / "ops.jsonl"
    row = ('{"op": "bmm", "b": 8, "m": 128, "n": 64, "k": 32, "time (ms)": 0.5, '
           '"card": "V100", "other": 0.4}')  # fmt: skip
    lines.write_text(f"{row}\n")
    listed = tmp_path / "ops.json"
    listed.write_text(f"[\n{row}]")
    plain = list(cases_of(table, mapping_of(SAID)))
    assert [case.kernels for case in cases_of(packed, mapping_of(SAID))] == [
        case.kernels for case in plain
    ]
    for other in (lines, listed):
        assert next(cases_of(other, mapping_of(SAID))).kernels == plain[0].kernels
    for text, message in (
        (f"[{row}, 3]", "ops.json:2: a row is an object, not '3'"),
        ('{"rows": []}', "ops.json: a table is a list of rows"),
        ("[", "ops.json:1: not JSON"),
    ):
        listed.write_text(text)
        with pytest.raises(InputError, match=message):
            list(cases_of(listed, mapping_of(SAID)))


def test_a_row_that_was_not_measured_is_no_case(tmp_path):
    table = tmp_path / "ops.csv"
    table.write_text(TABLE.replace("0.5", "NaN").replace("0.25", " "))
    assert list(cases_of(table, mapping_of(SAID))) == []
    said = mapping_of({**SAID, "rivals": {}, "rows": [{"kind": "relu", "shapes": [["m"]]}]})
    for m in (math.nan, math.inf, 10**400):
        with pytest.raises(InputError, match=r"row 0: m is a whole number below 2\^63, not '"):
            list(cases_of([{"m": m, "time (ms)": 1, "card": "V100"}], said))
    with pytest.raises(InputError, match="time_ms must be above 0"):
        list(cases_of([{"m": 8, "time (ms)": 10**400, "card": "V100"}], said))


@every("column", ["time (ms)", "time_ms", "k"])
def test_columns_that_formulas_cannot_tell_apart_are_refused(tmp_path, column):
    table = tmp_path / "ops.csv"
    table.write_text(TABLE.replace("other", column))
    with pytest.raises(InputError, match=r"ops.csv: two columns are named (time_ms|k)"):
        list(cases_of(table, mapping_of({**SAID, "rivals": {}})))


def test_the_words_of_a_table_mean_cards(tmp_path):
    row = {"kind": "relu", "shapes": [[8]], "seconds": 1e-5}
    found = [plain_case({**row, "device": word}).device.name for word in ("K80", "k40", "A100")]
    assert found == ["tesla-k80", "tesla-k40", "a100-sxm4-80gb"]


def test_cells_may_be_apart_by_semicolons(tmp_path, table):
    other = tmp_path / "other.csv"
    other.write_text("\ufeff" + TABLE.replace(",", ";"), encoding="utf-8")
    plain = [case.kernels for case in cases_of(table, mapping_of(SAID))]
    assert [case.kernels for case in cases_of(other, mapping_of(SAID))] == plain


def test_a_draw_is_of_each_entry_and_device(table):
    table.write_text(TABLE + "bmm, 8, 128, 64, 64, 0.9, V100, 0.4\n" * 5)
    assert len(list(cases_of(table, mapping_of(SAID), max_rows=2))) == 3  # two bmm, one linear


def test_gradients_of_an_op():
    row = {"kind": "linear", "shapes": [[64, 32], [16, 32]], "device": "v100", "seconds": 1e-3}
    both = plain_case({**row, "pass": "backward"}).kernels
    assert [kernel.products for kernel in both] == [((1, 64, 32, 16),), ((1, 16, 32, 64),)]
    weight = plain_case({**row, "pass": "backward", "gradients": [1]}).kernels
    assert [kernel.products for kernel in weight] == [((1, 16, 32, 64),)]
    every = plain_case({**row, "pass": "both"}).kernels
    assert [kernel.pass_ for kernel in every] == ["forward", "backward", "backward"]


def test_a_row_may_be_several_ops_or_a_network(table):
    ops = [
        {"kind": "linear", "shapes": [["m", "k"], ["n", "k"]], "count": 2},
        {"kind": "relu", "shapes": [["m", "n"]]},
    ]
    said = {name: SAID[name] for name in ("device", "words", "seconds", "unit")}
    layer = next(cases_of(table, mapping_of({**said, "ops": ops, "group": "layer"})))
    assert [kernel.kind for kernel in layer.kernels] == ["linear", "linear", "relu"]
    text = "fc:layers={b + 1},nodes={m}"
    whole = next(
        cases_of(table, mapping_of({**said, "model": text, "batch": "n", "condition": "step"}))
    )
    assert whole.workload.params["layers"] == 9
    assert whole.workload.batch_per_replica == 64
    assert (whole.kind, whole.condition) == ("fc", "step")
    assert {kernel.pass_ for kernel in whole.kernels} == {"forward", "backward", "update"}


def test_a_network_may_be_listed_in_a_second_table(tmp_path):
    (tmp_path / "runs.csv").write_text("net,card,ms\nsmall,t4,2\n")
    (tmp_path / "parts.csv").write_text("net,op,dims,count\nsmall,linear,64 32 16,3\nother,x,1,1\n")
    m, n, k = (f"number(dims, {i})" for i in range(3))
    op = {"where": 'op == "linear"', "kind": "linear", "shapes": [[m, k], [n, k]], "count": "count"}
    said = mapping_of({
        "device": "{card}", "seconds": "ms", "unit": "ms", "condition": "repeated",
        "rows": [{"file": "runs.csv", "parts": {"file": "parts.csv", "by": "net", "ops": [op]}}],
    })  # fmt: skip
    (case,) = cases_of(tmp_path, said)
    assert [kernel.products for kernel in case.kernels] == [((1, 64, 32, 16),)] * 3
    assert case.kind == "network"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"knd": "relu"}, r"unknown key 'knd'; did you mean 'kind'\?"),
        ({"rows": [{"where": "x"}]}, "one of kind, ops, parts or model"),
        ({"unit": "hours"}, "unknown unit 'hours'; known: s, ms, us, ns"),
        (
            {"rows": [{"kind": "relu", "shapes": [["mm"]]}]},
            r"ops.csv:2: formula 'mm': unknown name",
        ),
        (
            {"rows": [{"kind": "relu", "shapes": [["m - m"]]}]},
            "relu of .*: each size is at least 1",
        ),
        (
            {"rows": [{"kind": "relu", "shapes": [["number(op, 2)"]]}]},
            r"ops.csv:2: formula 'number\(op, 2\)': 'bmm' has 0 numbers, counted from 0",
        ),
        ({"rows": [{"kind": "rleu", "shapes": [["m"]]}]}, r"unknown op kind 'rleu'.*'relu'"),
        ({"rows": [{"kind": "linear", "shapes": [["m"]]}]}, r"linear of '\(\(\d+,\),\)': lacks w"),
        ({"words": {}, "device": "no-such"}, "unknown device 'no-such'"),
        ({"seconds": "0 * b"}, "must be above 0"),
        ({"dtype": "float3"}, "unknown dtype 'float3'"),
    ],
)
def test_a_bad_mapping_is_one_line(table, change, message):
    with pytest.raises(InputError, match=message) as error:
        list(cases_of(table, mapping_of({**SAID, **change}, "map.toml")))
    assert "\n" not in str(error.value)


def test_a_bad_row_of_plain_columns_is_one_line():
    good = {"kind": "relu", "shapes": [[8]], "device": "t4", "seconds": 1e-5}
    assert plain_case(good).kernels[0].kind == "relu"
    for change, message in (
        ({"seconds": None}, "row: 'seconds' is missing"),
        ({"kind": None}, "row: a row has a kind of op or a model"),
        ({"seconds": -1}, "row: seconds must be above 0"),
        ({"shapes": "8"}, "row: shapes"),
        ({"shapes": [[-8]]}, r"row: a size is a whole number below 2\^63, not '-8'"),
        (
            {"kind": None, "model": "fc", "batch": 2.5},
            r"row: batch is a whole number below .*'2.5'",
        ),
    ):
        with pytest.raises(InputError, match=message):
            plain_case({**good, **change})


def test_a_cell_that_says_no_layout_is_refused(tmp_path):
    path = tmp_path / "zoo.csv"
    path.write_text("batch,layout,ms\n32,nhwc,20\n")
    said = {"model": "fc:layers=1,nodes=8", "batch": "batch", "device": "rtx-3090",
            "seconds": "ms", "unit": "ms", "condition": "step",
            "channels_last": "layout"}  # fmt: skip  # a text: true for "nchw", too
    with pytest.raises(InputError, match=r"channels_last of a .* be yes or no, not 'nhwc'"):
        list(cases_of(path, mapping_of(said)))


def test_networks_that_nobody_knows_are_counted_with_the_nearest_known(tmp_path):
    path = tmp_path / "zoo.csv"
    path.write_text("net,batch,ms\nresnet5O,32,20\nresnet18,8,5\nresnet5O,8,9\n")
    said = {"model": "{net}", "batch": "batch", "device": "rtx-3090",
            "seconds": "ms", "unit": "ms", "condition": "step"}  # fmt: skip
    refusals = []
    (case,) = cases_of(path, mapping_of(said), refusals=refusals)
    assert case.workload.model == "resnet18"
    cause = "unknown model 'resnet5O'; did you mean 'resnet50'?"
    assert refusals == [(f"{path}:2", cause), (f"{path}:4", cause)]


def test_a_mapping_says_how_its_ops_were_timed():
    row = {"kind": "linear", "shapes": [[64, 32], [16, 32]], "device": "v100", "seconds": 1e-3}
    mine = plain_case({**row, "timing": {"linear": 4.0, "seen": 1.0, "pause_s": 0.0}})
    assert dict(mine.timing) == {"linear": 4.0, "seen": 1.0, "pause_s": 0.0}
    seconds = [one.value for one in score([plain_case(row), mine], cost_model("calibrated"))]
    call_s = catalog.priors("gpu")["launch.isolated_s"].value
    assert seconds[0] == pytest.approx(call_s * conditions()["isolated.linear"].value, rel=0.2)
    assert seconds[1] == pytest.approx(4 * call_s, rel=0.2)
    with pytest.raises(InputError, match="timing 'lineer'"):
        plain_case({**row, "timing": {"lineer": 2.0}})
    with pytest.raises(InputError, match=r"timing\.linear"):
        plain_case({**row, "timing": {"linear": -1.0}})
