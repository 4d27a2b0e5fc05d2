"""Tables as people have them: encodings, marks of numbers, units, headings, cut files, JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from every import every
from steptime.calibration.mapped import cases_of
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.records.readers import read_path
from steptime.records.readers.mapping import mapping_of, read_mapping
from steptime.records.record import stack_of

KEYS = {
    "name": "mine",
    "source": "me",
    "model": "fc:layers={layers},nodes={nodes}",
    "batch": "{batch}",
    "device": "{gpu}",
    "unit": "ms",
    "seconds": "time_ms",
}
HEADING = "gpu,layers,nodes,batch,time_ms"
TABLE = f"{HEADING}\nV100,4,1024,64,12.5\nV100,4,2048,64,30.1\n"
TWO = [0.0125, 0.0301]


def _read(tmp_path, content, keys=None, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_path(path, mapping=mapping_of({**KEYS, **(keys or {})}))


def _times(reading):
    return [record.quantities["step_s"].value for record in reading.records]


def _reasons(reading):
    return [(entry.line, entry.reason) for entry in reading.unread]


@every(
    ("content", "keys"),
    [
        (TABLE.encode("utf-16"), {}),
        (TABLE.encode("utf-16-le"), {}),
        (b"\xfe\xff" + TABLE.replace(",", "\t").encode("utf-16-be"), {}),
        (TABLE.encode("utf-32"), {}),
        (TABLE.encode("utf-8-sig").replace(b"\n", b"\r\n"), {}),
        (TABLE.replace("\n", "\r").encode(), {}),
        (TABLE.replace("V100", "Tesla\u00a0V100\u00ae").encode("cp1252"), {}),
        ("# node7, 2024-03-01\n" + TABLE, {}),
        ("# node7, 2024-03-01\n" + TABLE, {"comment": "#"}),
        ("Results of run 3\n\n" + TABLE, {"skip": 1}),
        ("Results of run 3\n\n" + TABLE, {}),
        ("\n\n" + TABLE, {}),
        ("sep=;\n" + TABLE.replace(",", ";"), {}),
        (TABLE.replace(",", ";").replace(".", ","), {"decimal": ","}),
        (TABLE.replace("12.5", '"12,5"').replace("30.1", '"30,1"'), {"decimal": ","}),
        (TABLE.replace("12.5", "12.5 ms").replace("30.1", "0.0301 s"), {}),
        (
            TABLE.replace("12.5", "12500 us").replace("30.1", "30.1ms"),
            {"seconds": "number(time_ms)"},
        ),
        (
            TABLE.replace("12.5", "80 it/s").replace("30.1", "0.0301 s/it"),
            {"seconds": "number(time_ms) if 's/it' in time_ms else 1 / number(time_ms)"},
        ),
        (TABLE.replace("12.5", "1.25E+01"), {}),
        (
            TABLE.replace(",1024,", ",1.024E+03,")
            .replace("64", "64.0")
            .replace("V100,4", "V100,4.0"),
            {},
        ),
        (TABLE.replace("\n", ",\n"), {}),
        (f"{HEADING}\nV100,4,1024,64,12.5,\nV100,4,2048,64,30.1,,\n", {}),
        (TABLE.replace("gpu", ""), {"device": "{Unnamed_0}"}),
        (TABLE.replace("gpu", ""), {"device": "{Unnamed: 0}"}),
        (
            TABLE.replace("gpu", "class").replace("time_ms", "for"),
            {"device": "{class}", "seconds": "for"},
        ),
        (TABLE.replace("time_ms", "2nd_step"), {"seconds": "2nd_step"}),
        (TABLE.replace("time_ms", "99.9%"), {"seconds": "99.9%"}),
        (TABLE.replace("time_ms", "99%"), {"seconds": "99"}),
        (TABLE.replace("time_ms", "min"), {"seconds": "min(min, 1000)"}),
        (TABLE.replace("time_ms", "2nd step"), {"seconds": 'column("2nd step") * 1'}),
        (
            TABLE.replace("time_ms", "time (\u00b5s)")
            .replace("12.5", "12500")
            .replace("30.1", "30100"),
            {"seconds": "time_\u00b5s", "unit": "us"},
        ),
        (
            TABLE.replace("time_ms", '"time; fwd; bwd; upd; all; sum"'),
            {"seconds": "time_fwd_bwd_upd_all_sum"},
        ),
        (TABLE.replace("batch", "loss,loss,batch").replace(",64,", ",1,2,64,"), {}),
        (
            '"gpu","layers","nodes","batch","time_ms"\n"V100",4,1024,64,12.5\nV100,4,2048,64,30.1\n',
            {"columns": HEADING.split(",")},
        ),
        (TABLE.replace(",", "|"), {"columns": HEADING.split(",")}),
    ],
)
def test_forms_of_a_table(tmp_path, content, keys):
    reading = _read(tmp_path, content, keys)
    assert _times(reading) == pytest.approx(TWO)
    assert [record.workload.params["nodes"] for record in reading.records] == [1024, 2048]
    assert {record.platform for record in reading.records} == {"v100-sxm2-16gb"}
    assert reading.unread == []


@every(
    ("cell", "keys", "seconds"),
    [
        ("1.234,5", {"decimal": ",", "thousands": "."}, 1.2345),
        ("1,234.5", {"thousands": ","}, 1.2345),
        ("1\u2009234.5", {"thousands": " "}, 1.2345),
        ("1'234.5", {"thousands": "'"}, 1.2345),
        ("1\u2009234.5", {"thousands": "\u2009"}, 1.2345),
        ("1\u2019234.5", {"thousands": "\u2019"}, 1.2345),
        ("1_234.5", {"thousands": "_"}, 1.2345),
        ("00:01:12.5", {}, 72.5),
        ("1h 23m 45s", {}, 5025.0),
        ("2 min", {}, 120.0),
    ],
)
def test_marks_of_numbers(tmp_path, cell, keys, seconds):
    reading = _read(tmp_path, TABLE.replace(",", ";").replace("12.5", cell), keys)
    assert reading.records[0].quantities["step_s"].value == pytest.approx(seconds)


@every(
    ("content", "line", "reason"),
    [
        (TABLE.removesuffix("0.1\n"), 3, "the file ends within the number '3'"),
        (TABLE.removesuffix("1\n"), 3, "the file ends within the number '30.'"),
        (TABLE.replace("12.5", "1250").replace("30.1\n", "3"), 3, "the file ends within"),
        (TABLE.replace("30.1\n", "3.1e"), 3, "the file ends within"),
        (TABLE.replace("30.1", "0"), 3, "time_ms must be above 0, not '0'"),
        (TABLE.replace("30.1", "30,1").replace("2048,64,", "2048,64,x"), 3, "6 cells under 5"),
        (TABLE + HEADING + "\n", 4, "the headings once more"),
        (TABLE + "\0" * 40, 4, "nothing but zeros"),
        (TABLE.replace("30.1", '"1,234.5"'), 3, "thousands = ','"),
        (TABLE.replace("30.1", '"30,1"'), 3, "decimal = ','"),
        (TABLE.replace("30.1", "1\u2009234.5"), 3, 'thousands = " " in the mapping reads it'),
        (TABLE.replace("30.1", "1'234.5"), 3, 'thousands = "\'" in the mapping reads it'),
        (TABLE.replace("30.1", "30.1 W"), 3, "'30.1 W' is in W, not in s"),
        (TABLE.replace("30.1", "1.9 it/s"), 3, "1 / number(COLUMN) is its time"),
        (TABLE.replace("30.1", "True"), 3, "must be above 0, not 'True'"),
    ],
)
def test_a_row_that_is_none_is_named_and_the_others_are_records(tmp_path, content, line, reason):
    reading = _read(tmp_path, content)
    assert _times(reading)[0] in (0.0125, 1.25)
    ((place, told),) = _reasons(reading)
    assert place == line
    assert reason in told
    refusals = []
    path = tmp_path / "t.csv"
    assert len(list(cases_of(path, mapping_of(KEYS), refusals=refusals))) == len(reading.records)
    assert len(refusals) == 1


def test_a_last_line_without_an_end_that_may_be_whole_is_a_record_with_a_remark(tmp_path):
    reading = _read(tmp_path, TABLE.removesuffix("\n"))
    assert _times(reading) == pytest.approx(TWO)
    assert reading.notes == [
        "t.csv: line 3, the last, has no end; if it was cut, its number is wrong"
    ]
    reading = _read(tmp_path, TABLE.replace("30.1\n", "9.9"))
    assert _times(reading)[1] == pytest.approx(0.0099)


def test_true_and_false_are_true_and_false(tmp_path):
    table = "gpu,layers,nodes,batch,time_ms,oom\nV100,4,1024,64,12.5,False\nV100,4,2048,64,,TRUE\n"
    keys = {"status": [{"where": "oom", "status": "oom"}]}
    assert [one.status for one in _read(tmp_path, table, keys).records] == ["ok", "oom"]
    keys = {"status": [{"where": "not oom == False", "status": "oom"}]}
    assert [one.status for one in _read(tmp_path, table, keys).records] == ["ok", "oom"]
    rows = [
        {"gpu": "V100", "layers": 4, "nodes": 8, "batch": 1, "time_ms": 1, "oom": value}
        for value in (True, False)
    ]
    keys = {"status": [{"column": "oom", "equals": "true", "status": "oom"}]}
    reading = _read(tmp_path, json.dumps(rows), keys, "t.json")
    assert [one.status for one in reading.records] == ["oom", "ok"]


def test_a_comma_of_decimals_leaves_other_texts_and_refuses_dots(tmp_path):
    table = "gpu;layers;nodes;batch;time_ms;version\nV100;4;1.024;64;12,5;2.1\n"
    reading = _read(tmp_path, table, {"decimal": ",", "version": "{version}"})
    assert "nodes: must be a whole number, not '1.024'" in reading.unread[0].reason
    reading = _read(tmp_path, table, {"decimal": ",", "thousands": ".", "version": "{version}"})
    assert reading.records[0].workload.params["nodes"] == 1024
    assert reading.records[0].method.version == "2.1"
    with pytest.raises(InputError, match=r"^[^:]*: unknown thousands '~'; known: ',', '\.', "):
        mapping_of({**KEYS, "thousands": "~"})
    with pytest.raises(InputError, match=r"^[^:]*: thousands and decimal are both ','; is "):
        mapping_of({**KEYS, "decimal": ",", "thousands": ","})


ROW = '{"gpu": "V100", "layers": 4, "nodes": 1024, "batch": 64, "time_ms": 12.5}'
OTHER = ROW.replace("1024", "2048").replace("12.5", "30.1")


@every(
    ("name", "content", "keys", "unread"),
    [
        ("t.jsonl", f"{ROW}\n{OTHER}\n", {}, []),
        ("t.jsonl", f"\ufeff{ROW}\r\n\r\n{OTHER}\r\n", {}, []),
        ("t.jsonl", f"{ROW}\n{OTHER}\n{ROW[:40]}", {}, [3]),
        ("t.jsonl", f"{ROW}\nWARNING: x\n[1]\n{OTHER}", {}, [2, 3]),
        ("t.json", f"{ROW}\n{OTHER}\n", {}, []),
        ("t.json", f"[{ROW}, 3, {OTHER}]", {}, [2]),
        ("t.json", f'{{"when": 1, "runs": [{ROW}, {OTHER}]}}', {}, []),
        ("t.json", f'{{"a": {{"runs": [{ROW}, {OTHER}]}}}}', {"rows_at": "a.runs"}, []),
        ("t.json", f'{{"a": [{ROW}], "b": [{ROW}, {OTHER}]}}', {"rows_at": "b"}, []),
        ("t.log", f"starting\n0: LOG {ROW}\nLOG {OTHER}\ndone\n", {"prefix": "LOG"}, []),
        ("T.JSONL.GZ", gzip.compress(f"{ROW}\n{OTHER}\n".encode()), {}, []),
        ("T.Csv.GZ", gzip.compress(TABLE.encode()), {}, []),
        (
            "t.log",
            "V100 4\nnodes=1024 t=12.5\nother\nnodes=2048 t=30.1\n",
            {
                "row_pattern": r"nodes=(?P<nodes>\d+) t=(?P<time_ms>[\d.]+)",
                "fact_patterns": [r"^(?P<gpu>V\d+) (?P<layers>\d+)"],
                "batch": "64",
            },
            [],
        ),
        (
            "t.json",
            json.dumps(
                {
                    "gpu": "V100",
                    "layers": 4,
                    "batch": 64,
                    "runs": [
                        {"nodes": 1024, "stats": {"time": 12.5}},
                        {"nodes": 2048, "stats": {"time": 30.1}},
                    ],
                }
            ),
            {"seconds": "stats.time"},
            [],
        ),
        (
            "t.json",
            json.dumps(
                [
                    {"gpu": "V100", "layers": 4, "batch": 64, "nodes": n, "s": {"time_ms": t}}
                    for n, t in ((1024, 12.5), (2048, 30.1))
                ]
            ),
            {},
            [],
        ),
    ],
)
def test_forms_of_json_and_of_logs(tmp_path, name, content, keys, unread):
    reading = _read(tmp_path, content, keys, name)
    assert _times(reading) == pytest.approx(TWO)
    assert [entry.line for entry in reading.unread] == unread


@every(
    ("name", "content", "keys", "reason"),
    [
        ("t.json", f'{{"a": [{ROW}], "b": [{ROW}]}}', {}, "rows_at = 'a' or rows_at = 'b'"),
        ("t.json", f'{{"runs": [{ROW}]}}', {"rows_at": "run"}, "did you mean 'runs'?"),
        ("t.json", f"[{ROW}", {}, "not JSON"),
        ("t.xlsx", b"PK\x03\x04xl/", {}, "save as CSV"),
        ("t.zip", b"PK\x03\x04", {}, "save as CSV"),
        ("t.dat", TABLE, {}, "a table ends in .csv, .tsv, .txt, .jsonl or .json"),
        ("t", TABLE, {}, "a table ends in .csv, .tsv, .txt, .jsonl or .json"),
        ("t.csv", TABLE, {"columns": ["gpu", "when"]}, "it lacks columns of the mapping: when"),
        ("t.csv", "V100,4,1024,64,12.5\n", {}, "line 1, 'V100,4,1024,64,12.5', names the columns"),
        ("t.csv", "a title, of two\n" + TABLE.replace("time_ms", "time"), {}, "skip or comment"),
        ("t.csv", TABLE.replace("nodes", "time_ms"), {}, "two columns are named time_ms"),
    ],
)
def test_a_file_that_is_no_table_says_why(tmp_path, name, content, keys, reason):
    reading = _read(tmp_path, content, keys, name)
    assert reading.records == []
    assert reason in reading.unread[0].reason


@every(
    ("keys", "reason"),
    [
        ({"row_pattern": "("}, "is no regular expression"),
        ({"row_pattern": "x"}, "names no group"),
        ({"fact_patterns": ["(?P<a>x)" * 200]}, "is longer than 500 characters"),
        ({"facts": ["key"]}, "facts are two keys"),
        ({"base": "hyperfin"}, "did you mean 'hyperfine'?"),
        ({"seconds": "item(time_ms, 0)"}, "functions are ceil, .*number"),
        ({"quantities": {"step_s": "item(time_ms, 0)"}}, "functions are ceil, .*number"),
        ({"origin": "own"}, "unknown origin 'own'; known: published, measured"),
    ],
)
def test_a_key_that_is_none_is_one_line(tmp_path, keys, reason):
    path = tmp_path / "t.csv"
    path.write_text(TABLE, encoding="utf-8")
    with pytest.raises(InputError, match=reason) as error:
        list(cases_of(path, mapping_of({**KEYS, **keys})))
    assert "\n" not in str(error.value)


def test_evaluate_refuses_a_file_of_another_ending_by_name(tmp_path, capsys):
    (tmp_path / "m.toml").write_text('model = "resnet50"\nbatch = "64"\ndevice = "v100"\n')
    for name in ("results.log", "results.zip"):
        (tmp_path / name).write_bytes(b"PK\x03\x04" if "zip" in name else TABLE.encode())
        words = ["evaluate", str(tmp_path / name), "--map", str(tmp_path / "m.toml")]
        assert run(words) == 2
        told = capsys.readouterr().err
        assert ("save as CSV" if "zip" in name else "a table ends in .csv") in told
        assert run(words[:2]) == 2
        told = capsys.readouterr().err
        assert ("save it as CSV" if "zip" in name else "a table is .csv") in told


REPEATS = """gpu,layers,nodes,batch,run,time_ms
V100,4,1024,64,a,10
V100,4,1024,64,a,10.2
V100,4,1024,64,b,9.9
V100,4,512,64,a,5
"""


def test_rows_that_differ_in_their_repeat_are_one_record(tmp_path):
    reading = _read(tmp_path, REPEATS, {"repeat": "{run}"})
    first, second = reading.records
    assert first.quantities["step_s"].samples == pytest.approx((0.01, 0.0102, 0.0099))
    assert first.quantities["step_s"].columns == {"run": (0, 0, 1)}
    assert second.quantities["step_s"].value == 0.005


def test_rows_without_a_repeat_that_differ_in_their_value_alone_are_one_record(tmp_path):
    reading = _read(tmp_path, REPEATS)
    first, second = reading.records
    assert first.quantities["step_s"].samples == pytest.approx((0.01, 0.0102, 0.0099))
    assert first.quantities["step_s"].runs == (0, 1, 2)
    assert first.env["repeat_entries"] == [2, 3, 4]
    assert second.quantities["step_s"].value == 0.005
    assert any("4 rows are 2 records" in note for note in reading.notes)


def test_rows_of_two_dates_are_no_repeats(tmp_path):
    rows = REPEATS.replace(",b,", ",2026-01-02,").replace(",a,", ",2026-01-01,")
    reading = _read(tmp_path, rows, {"date": "{run}"})
    assert len(reading.records) == 3


def test_failed_rows_are_no_repeats(tmp_path):
    status = [{"column": "run", "equals": "a", "status": "oom"}]
    reading = _read(tmp_path, REPEATS, {"status": status})
    assert [record.status for record in reading.records] == ["oom", "oom", "ok", "oom"]


def test_the_samples_of_repeated_rows_stay_in_their_runs(tmp_path):
    rows = [{**json.loads(ROW), "time_ms": times} for times in ([10, 11], [12, 13])]
    text = "\n".join(map(json.dumps, rows))
    (record,) = _read(tmp_path, text, {"samples": "time_ms"}, "t.jsonl").records
    assert record.quantities["step_s"].samples == pytest.approx((0.010, 0.011, 0.012, 0.013))
    assert record.quantities["step_s"].runs == (0, 0, 1, 1)


@every(
    ("cell", "keys", "runs"),
    [
        ([10, 10.2, 9.9], {"samples": "time_ms"}, (0, 0, 0)),
        ([10, 10.2, 9.9], {"runs": "time_ms"}, (0, 1, 2)),
        ("10 10.2 9.9", {"samples": "time_ms"}, (0, 0, 0)),
        ("10 ms; 0.0102 s; 9900 us", {"samples": "time_ms"}, (0, 0, 0)),
    ],
)
def test_a_column_of_samples(tmp_path, cell, keys, runs):
    row = json.dumps([{**json.loads(ROW), "time_ms": cell}])
    quantity = _read(tmp_path, row, keys, "t.json").records[0].quantities["step_s"]
    assert quantity.samples == pytest.approx((0.01, 0.0102, 0.0099))
    assert quantity.columns["run"] == runs


def test_an_imported_table_with_repeats_can_be_gated(tmp_path, capsys):
    keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in KEYS.items())
    (tmp_path / "m.toml").write_text(f'{keys}\nrepeat = "{{run}}"\norigin = "measured"\n')
    for name, factor in (("a", 1.0), ("b", 10.0)):
        rows = [
            f"V100,4,1024,64,{run_},{factor * time}"
            for run_, time in enumerate((10, 10.1, 9.9, 10, 10.2))
        ]
        table = "\n".join(["gpu,layers,nodes,batch,run,time_ms", *rows, ""])
        (tmp_path / f"{name}.csv").write_text(table)
        words = ["import", str(tmp_path / f"{name}.csv"), "--map", str(tmp_path / "m.toml")]
        assert run([*words, "--out", str(tmp_path / name)]) == 0
    words = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--fail-on", "slower"]
    assert run(words) == 3
    capsys.readouterr()


@every(
    ("text", "taken_at"),
    [
        ("2024-03-01T10:00:00+01:00", "2024-03-01T09:00:00+00:00"),
        ("2024-03-01 10:00:00 +0100", "2024-03-01T09:00:00+00:00"),
        ("2024/03/01 10:00:00.123", "2024-03-01T10:00:00"),
        ("2024-03-01", "2024-03-01"),
        ("1.3.2024", "2024-03-01"),
        ("1709280000", "2024-03-01T08:00:00+00:00"),
        ("1709280000123", "2024-03-01T08:00:00+00:00"),
        ("Fri Mar  1 10:00:00 2024", "2024-03-01T10:00:00"),
    ],
)
def test_the_date_and_the_origin_of_a_record(tmp_path, text, taken_at):
    table = f"gpu,layers,nodes,batch,time_ms,when\nV100,4,1024,64,12.5,{text}\n"
    keys = {"date": "{when}", "origin": "measured", "options": {"layout": "nhwc", "stack": "x"}}
    (record,) = _read(tmp_path, table, keys).records
    assert record.taken_at == taken_at
    assert record.env["date"] == "2024-03-01"
    assert record.origin == "measured"
    assert record.method.options == {"layout": "nhwc", "stack": "x"}
    assert stack_of(record) == "x"
    (entry,) = _read(tmp_path, table.replace(text, "soon"), keys).unread
    assert entry.reason.startswith("date: 'soon' is no date")


def test_an_unknown_network_of_a_table_names_timm(tmp_path):
    table = "model,t\ntinynet_e,0.05\n"
    keys = {"model": "{model}", "batch": "512", "device": "v100", "seconds": "t", "unit": "s"}
    (entry,) = _read(tmp_path, table, keys).unread
    assert "timm:NAME" in entry.reason


def test_a_mapping_of_the_house_by_its_name():
    assert read_mapping(Path("hyperfine")).missing_keys == ("model", "batch", "device")
    with pytest.raises(InputError, match=r"unknown mapping 'hyperfin'; did you mean 'hyperfine'\?"):
        read_mapping(Path("hyperfin"))
