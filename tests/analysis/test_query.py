"""Rows, SQL and export: every column, proper types, and no way out of the table."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import synthetic
from every import every
from steptime.analysis.query import export, query
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.progress import report_progress_to, track_progress
from steptime.core.workload import Plan, Workload
from steptime.records.data import Data
from steptime.records.record import Quantity, Record
from steptime.records.row import COLUMNS, Row
from steptime.records.short_names import name_networks

RECORDS = synthetic.sweep(failures=True)
DATA = Data.from_records(RECORDS)
FIRST = next(record for record in RECORDS if record.origin == "measured")


def rows(records: Sequence[Record]) -> list[Row]:
    return query(Data.from_records(records), "FROM records")


ROWS = rows(RECORDS)


def test_a_row_a_record_each_with_every_column():
    assert len(ROWS) == len(RECORDS) == 48
    for row in ROWS:
        assert list(row) == list(ROWS[0])
        assert set(COLUMNS) <= set(row)
    assert {"layers", "nodes", "cell", "width", "blocks"} <= set(ROWS[0])
    assert ROWS[0]["cell"] is None


def test_numbers_of_a_measurement():
    workload = Workload("fc", {"layers": 4}, 10, plan=Plan(data=2))
    samples = (0.02, 0.01, 0.04, 0.01)
    steps = Quantity(samples=samples, columns={"disturbed": (False, True, False, False)})
    record = replace(
        synthetic.measured(workload),
        quantities={"step_s": steps, "forward_s": Quantity(samples=(1.0, 3.0))},
    )
    (row,) = rows([record])
    assert row["step_s"] == pytest.approx(0.015)  # the middle of 0.01 and 0.02
    assert row["step_s_min"] == 0.01
    assert row["step_s_mean"] == pytest.approx(0.02)
    assert row["examples_per_s"] == pytest.approx(2 * 10 / 0.02)  # two replicas of 10 in 20 ms
    assert (row["samples_n"], row["samples_disturbed"], row["runs"]) == (4, 1, 1)
    assert row["step_s_low"] <= 0.015 <= row["step_s_high"]
    assert row["forward_s"] == 2.0
    assert row["flop"] is None


def test_numbers_of_a_prediction_and_of_a_failure():
    predicted = next(row for row in ROWS if row["origin"] == "predicted")
    assert predicted["examples_per_s"] == pytest.approx(predicted["batch"] / predicted["step_s"])
    assert predicted["samples_n"] is None
    oom = next(row for row in ROWS if row["status"] == "oom")
    assert oom["step_s"] is None
    assert oom["cause"] == "killed"


def test_how_a_step_ran_has_columns():
    record = synthetic.measured(synthetic.workloads()[0])
    files = {"threads": 2, "gpu": "p100", "input": "dataset", "loaders": 3, "prefetch": 4}
    names = ("host", "threads", "gpu", "input", "staging", "loaders", "prefetch")
    found = rows([record, replace(record, method=replace(record.method, options=files))])
    assert [found[0][name] for name in names] == [
        "test-host", 2, None, "device", None, None, None,
    ]  # fmt: skip
    assert [found[1][name] for name in names] == [
        "test-host", 2, "p100", "dataset", "shared", 3, 4,
    ]  # fmt: skip


def test_a_hyperparameter_whose_name_is_taken_gets_a_prefix_whatever_its_case():
    workload = Workload("odd", {"Batch": 7, "flop": "x", "param_flop": 1, "layers": 2}, 3)
    (row,) = rows([synthetic.measured(replace(workload, model="fc"))])
    assert row["batch"] == 3
    assert row["param_Batch"] == 7
    assert row["param_flop"] == "x"
    assert row["param_param_flop"] == 1
    assert row["layers"] == 2


def test_names_tell_the_networks_apart_and_no_more():
    a = Workload("fc", {"layers": 4, "nodes": 8}, 64)
    b = Workload("fc", {"layers": 4, "nodes": 16}, 64)
    c = Workload("rnn", {"cell": "rnn"}, 1)
    d = Workload("rnn", {"cell": "gru"}, 1)

    def names(workloads: Sequence[Workload]) -> list[str]:
        first = synthetic.measured(synthetic.workloads()[0])
        data = Data.from_records([replace(first, workload=one) for one in workloads])
        return name_networks(data.scan().collect().to_dicts())

    assert names([a, b, c, d, a]) == [
        "fc nodes 8, batch 64",
        "fc nodes 16, batch 64",
        "rnn cell rnn, batch 1",
        "rnn gru, batch 1",
        "fc nodes 8, batch 64",
    ]
    assert len(set(names(synthetic.workloads()))) == 24


def test_who_listens_hears_how_far_rows_are():
    heard: list[tuple[str, int, int]] = []
    with report_progress_to(lambda *said: heard.append(said)):
        list(track_progress([FIRST] * 401, "rows"))
    assert heard == [("rows", 200, 401), ("rows", 400, 401)]
    list(track_progress([FIRST] * 201, "rows"))
    assert len(heard) == 2  # nobody listens


def test_sql_sees_proper_types():
    (row,) = query(
        DATA,
        "SELECT typeof(any_value(step_s)) AS step, typeof(any_value(nodes)) AS nodes, "
        "typeof(any_value(blocks)) AS blocks, typeof(any_value(energy_j)) AS energy, "
        "count(*) AS n, max(nodes) AS most FROM records",
    )
    assert row == {
        "step": "DOUBLE",
        "nodes": "BIGINT",
        "blocks": "VARCHAR",  # 1 and 3-4-6-3
        "energy": "DOUBLE",  # though no record has it
        "n": 48,
        "most": 1024,
    }
    assert query(DATA, "SELECT DISTINCT blocks FROM records WHERE filters = 32") == [
        {"blocks": "1"}
    ]


def test_the_answer_is_what_json_can_say():
    (row,) = query(
        DATA,
        "SELECT 'nan'::DOUBLE AS a, 1.5::DECIMAL(4,2) AS b, DATE '2026-11-21' AS c, [1.0, "
        "'inf'::DOUBLE] AS d, {'x': 1} AS e, 1 AS f, 2 AS f, sum(nodes) AS g, "
        "true AS h, 'ab'::BLOB AS i FROM records",
    )
    assert row["a"] is None
    assert (row["b"], row["c"], row["d"], row["e"]) == (1.5, "2026-11-21", [1.0, None], {"x": 1})
    assert (row["f"], row["f_1"], row["h"]) == (1, 2, True)
    json.dumps(row, allow_nan=False)


def test_one_row_a_record_comes_back_as_it_went_in():
    assert query(DATA, "SELECT step_s, model, workload_key FROM records") == [
        {name: row[name] for name in ("step_s", "model", "workload_key")} for row in ROWS
    ]
    assert query(DATA, "") == []
    assert query(
        Data.from_records([]), "SELECT count(*) AS n FROM records WHERE status = 'ok'"
    ) == [{"n": 0}]


REFUSED = [
    "SELEC 1",
    "SELECT stp_s FROM records",
    "SELECT * FROM recrds",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "COPY records TO '/tmp/steptime-never.csv'",
    "ATTACH '/tmp/steptime-never.db'",
    "SET enable_external_access = true",
    "INSTALL httpfs",
    "SELECT step_s / 'x' FROM records",
    "SELECT (",
]


@pytest.mark.slow
@every("sql", REFUSED)
def test_what_duckdb_refuses_is_one_line(sql):
    with pytest.raises(InputError) as caught:
        query(DATA, sql)
    assert "\n" not in str(caught.value)
    assert not Path("/tmp/steptime-never.csv").exists()  # noqa: S108 - that it is not there


def test_what_duckdb_cannot_hand_over_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "pytz.py").write_text("raise ImportError")  # a moment with its zone asks for it
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    with pytest.raises(InputError, match=r"^the query: .*pytz"):
        query(DATA, "SELECT now() AS moment")


def test_an_unknown_column_names_the_nearest():
    with pytest.raises(InputError, match='"step_s"'):
        query(DATA, "SELECT stp_s FROM records")


def test_export_as_csv_parquet_and_json_lines(tmp_path):
    assert export(DATA, tmp_path / "all.csv") == 48
    with (tmp_path / "all.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 48
    assert float(table[-1]["batch"]) == ROWS[-1]["batch"]
    assert float(table[30]["step_s"]) == ROWS[30]["step_s"]

    assert export(DATA, tmp_path / "fc.jsonl", "SELECT model, layers FROM records LIMIT 2") == 2
    lines = (tmp_path / "fc.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"model": ROWS[0]["model"], "layers": 4}

    import duckdb

    assert export(DATA, tmp_path / "it's.parquet") == 48
    path = str(tmp_path / "it's.parquet")
    found = duckdb.execute("SELECT step_s, blocks FROM read_parquet(?)", [path]).fetchall()
    assert found == [
        (row["step_s"], None if row["blocks"] is None else str(row["blocks"])) for row in ROWS
    ]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_file()) == [
        "all.csv",
        "fc.jsonl",
        "it's.parquet",
    ]


def test_no_cell_and_no_heading_of_an_export_is_a_formula(tmp_path):
    record = synthetic.measured(synthetic.workloads()[0])
    texts = ["=cmd|'/C calc'!A0", "+1+2", "-2+3", "@SUM(1)", "\t=1", "-5.2"]
    workload = replace(record.workload, params={f"=p{i}": one for i, one in enumerate(texts)})
    data = Data.from_records([replace(record, workload=workload, note=texts[0])])
    export(data, tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["note"] == f"'{texts[0]}"
    found = [row[f"'=p{i}"] for i in range(len(texts))]
    assert found == [*(f"'{one}" for one in texts[:-1]), texts[-1]]
    assert not [name for name in row if name.startswith("=")]


def test_an_export_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("old")
    with pytest.raises(InputError, match="recrds"):
        export(DATA, path, "FROM recrds")
    with pytest.raises(InputError, match=r"unknown export format '\.xlsx'"):
        export(DATA, tmp_path / "x.xlsx")
    with pytest.raises(InputError, match="folder that does not exist"):
        export(DATA, tmp_path / "absent" / "x.csv")
    with pytest.raises(InputError, match="gives no table"):
        export(DATA, path, "")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["x.csv"]


def test_no_cell_of_an_exported_csv_is_a_formula(tmp_path):
    sql = "SELECT unnest(['=1+1', '-5.2', '@x', 'a=b', NULL]) AS a, 2 AS b"
    export(DATA, tmp_path / "x.csv", sql)
    with (tmp_path / "x.csv").open(newline="") as file:
        assert [row["a"] for row in csv.DictReader(file)] == ["'=1+1", "-5.2", "'@x", "a=b", ""]
    export(DATA, tmp_path / "x.jsonl", sql)
    assert json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])["a"] == "=1+1"
