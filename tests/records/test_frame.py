"""The frame of records: a row for each record, the same whatever the folders and the threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import synthetic
from steptime import records as records_package
from steptime.analysis.analyses import analysis
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.workload import Workload
from steptime.records import store, tables
from steptime.records.data import Data
from steptime.records.frames.frame_columns import SCHEMA, other_number
from steptime.records.record import Quantity, Record
from told import frame_rows

RECORDS = synthetic.sweep(failures=True)


def _write(folder: Path, *records: Record) -> Path:
    with store.open_writer(folder) as writer:
        writer.append_all(records)
    return folder


def test_a_frame_has_a_row_for_each_record_in_their_order(tmp_path):
    folder = _write(tmp_path / "a", *RECORDS)
    frame = records_package.frame(folder, settings=["layers", "absent"])
    assert dict(frame.schema) == {**SCHEMA, "layers": pl.String(), "absent": pl.String()}
    assert frame["workload_key"].to_list() == [record.workload.key for record in RECORDS]
    layers = [record.workload.settings.get("layers") for record in RECORDS]
    assert frame["layers"].to_list() == [None if one is None else str(one) for one in layers]
    assert frame["absent"].null_count() == len(RECORDS)
    samples = [record.quantities.get("step_s", Quantity()).samples for record in RECORDS]
    assert frame["samples"].to_list() == [list(one) if one else None for one in samples]


@pytest.mark.parametrize("least_bytes", [1, 3000, 1 << 20])  # all, some and none have a cache
def test_folders_stand_one_behind_the_other_with_and_without_a_cache(
    tmp_path, monkeypatch, least_bytes
):
    monkeypatch.setattr(tables, "MIN_CACHED_BYTES", least_bytes)
    parts = [RECORDS[:1], RECORDS[1:30], RECORDS[30:31], RECORDS[31:]]
    folders = [_write(tmp_path / str(rank), *part) for rank, part in enumerate(parts)]
    for _ in range(2):  # the second time from the caches
        frame = records_package.frame(folders)
        assert frame["workload_key"].to_list() == [record.workload.key for record in RECORDS]
        assert frame["folder"].to_list() == [
            str(rank) for rank, part in enumerate(parts) for _ in part
        ]
        assert frame["seq"].is_sorted()
        assert frame["seq"].n_unique() == len(RECORDS)
        data = Data.load(folders, pytest.fail)
        rows = frame_rows(data, "seq", "folder", "workload_key")
        assert rows == frame.select("seq", "folder", "workload_key").to_dicts()


def test_free_quantities_are_numbers_of_their_name(tmp_path):
    quantities = {
        "step_s": Quantity(0.5),
        "published_x": Quantity(3.5),
        "y": Quantity(samples=(1,)),
    }
    record = replace(RECORDS[0], origin="published", quantities=quantities)
    frame = records_package.frame(_write(tmp_path / "a", record, RECORDS[1]))
    numbers = frame.select(other_number("published_x").alias("x"), other_number("y").alias("y"))
    assert numbers.to_dicts() == [{"x": 3.5, "y": 1.0}, {"x": None, "y": None}]


@pytest.mark.slow
def test_the_same_bytes_come_out_at_one_and_at_eight_threads(tmp_path):
    changed = [
        replace(one, workload=Workload("fc", {"layers": at}, 8)) for at, one in enumerate(RECORDS)
    ]
    _write(tmp_path / "a", *RECORDS)
    _write(tmp_path / "b", *changed)
    command = [sys.executable, "-m", "steptime", "analyse", "table", str(tmp_path / "a")]
    texts = {
        subprocess.run(
            [*command, "--json"],
            capture_output=True,
            check=True,
            env={**os.environ, "POLARS_MAX_THREADS": threads},
        ).stdout
        for threads in ("1", "8")
    }
    assert len(texts) == 1


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        records_package.frame(tmp_path / "absent")


def test_errors_name_the_first_of_the_farthest_in_whatever_order(tmp_path):
    def pair(layers: int, seconds: float) -> list[Record]:
        network = Workload("fc", {"layers": layers}, 8)
        measured = replace(
            synthetic.measured(network), quantities={"step_s": Quantity(samples=(seconds,))}
        )
        method = replace(measured.method, name="analytic", options={})
        predicted = {"step_s": Quantity(1.0)}
        return [
            measured,
            replace(measured, origin="predicted", method=method, quantities=predicted),
        ]

    records = [record for layers in range(1, 9) for record in pair(layers, 2.0)]
    (row,) = analysis("errors").answer(Data.from_records([*records, *pair(9, 1.5)])).rows
    assert row["farthest"] == "fc layers 1, batch 8"
    assert row["farthest_ratio"] == 2.0
    assert row["pairs"] == 9
    assert row["median_error_share"] == pytest.approx(0.5)


def test_records_without_hyperparameters_have_results(tmp_path, monkeypatch, capsys):
    from steptime.cli.main import run

    monkeypatch.chdir(tmp_path)
    predict = "predict resnet18 --grid --device t4 --batch 1,2 --out r"
    assert run(predict.split()) == 0
    for command in ("analyse results r --json", "analyse roofline r --json", "report r -o r.html"):
        capsys.readouterr()
        assert run(command.split()) == 0
    assert run(["analyse", "results", "r", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 1 + 2
