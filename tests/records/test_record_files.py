"""Files of records: any number of them, nested, compressed, copied, with marks of an encoding."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import synthetic
from steptime.core.errors import InputError
from steptime.core.workload import Workload
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record import Quantity, Record
from told import frame_rows

FILES = 4_100  # more than 2^12, where the places of two folders met


def _measured(index: int, *samples: float) -> Record:
    network = Workload("fc", {"layers": 1 + index}, 8)
    step = Quantity(samples=samples or (0.01, 0.02, 0.03), columns={})
    return replace(synthetic.measured(network), quantities={"step_s": step})


def _stated(value: float) -> Record:
    return replace(_measured(0), quantities={"step_s": Quantity(value)})


def _write(path: Path, *records: Record) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{store.line_of(record)}\n" for record in records).encode()
    path.write_bytes(text)
    return text


def _load(folder: Path) -> tuple[list[Record], list[str]]:
    warnings: list[str] = []
    return store.load(folder, warnings.append), warnings


def test_a_folder_of_many_files_and_a_second_folder_exchange_no_record(tmp_path):
    line = store.line_of(_measured(0))
    for index in range(FILES):
        number = f"{index:05}"
        text = line.replace('"note":""', f'"note":"{number}"')
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.jsonl").write_text(text + "\n")
    _write(tmp_path / "b" / "0.jsonl", replace(_measured(1), note="second"))
    data = Data.load([tmp_path / "a", tmp_path / "b"], pytest.fail)
    rows = frame_rows(data, "folder_rank", "place", "seq", "note")
    assert [row["note"] for row in rows] == [*(f"{index:05}" for index in range(FILES)), "second"]
    assert len({row["seq"] for row in rows}) == FILES + 1
    for row in (rows[0], rows[4095], rows[4096], rows[-1]):
        record = data.read_records(row["folder_rank"], [row["place"]])[row["place"]]
        assert record.note == row["note"]


def test_a_copied_file_counts_once_and_is_told(tmp_path):
    _write(tmp_path / "records.jsonl", _measured(0), _measured(1))
    for number in range(1, 5):
        copied = tmp_path / f"records ({number}).jsonl"
        shutil.copy(tmp_path / "records.jsonl", copied)
    records, warnings = _load(tmp_path)
    assert sorted(record.workload.settings["layers"] for record in records) == [1, 2]
    (warning,) = warnings
    assert warning.endswith(": 8 records are copies of others; each counts once")
    assert Data.load([tmp_path], lambda _: None).count_records() == 2


def test_lines_that_were_joined_from_copies_count_once(tmp_path):
    text = _write(tmp_path / "records.jsonl", _measured(0), _measured(1))
    (tmp_path / "records.jsonl").write_bytes(text + text)
    assert len(_load(tmp_path)[0]) == 2


def test_equal_stated_values_of_a_file_are_repeats_and_those_of_its_copy_are_not(tmp_path):
    _write(tmp_path / "a.jsonl", _stated(0.01), _stated(0.01), _stated(0.02))
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    records, warnings = _load(tmp_path)
    assert [record.quantities["step_s"].value for record in records] == [0.01, 0.01, 0.02]
    assert "3 records are copies" in warnings[0]


def test_nested_folders_and_compressed_files_are_read(tmp_path):
    text = _write(tmp_path / "node1" / "deep" / "r.jsonl", _measured(0), _measured(1))
    (tmp_path / "node2").mkdir()
    third = f"{store.line_of(_measured(2))}\n".encode()
    (tmp_path / "node2" / "s.jsonl.gz").write_bytes(gzip.compress(third))
    _write(tmp_path / ".cache" / "hidden.jsonl", _measured(3))
    (tmp_path / "slurm" / "001").mkdir(parents=True)
    (tmp_path / "slurm" / "001" / "cells.jsonl").write_bytes(text)
    assert [record.workload.settings["layers"] for record in _load(tmp_path)[0]] == [1, 2, 3]
    data = Data.load([tmp_path], pytest.fail)
    places = [row["place"] for row in frame_rows(data, "place")]
    layers = [
        record.workload.settings["layers"] for record in data.read_records(0, places).values()
    ]
    assert layers == [1, 2, 3]


def test_a_mark_of_utf_8_is_skipped_and_utf_16_is_named(tmp_path):
    text = _write(tmp_path / "a.jsonl", _measured(0))
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + text)
    assert len(_load(tmp_path)[0]) == 1
    data = Data.load([tmp_path], pytest.fail)
    assert data.read_records(0, [0])[0] == _measured(0)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        (tmp_path / "b.jsonl").write_bytes(text.decode().encode(encoding))
        records, warnings = _load(tmp_path)
        assert len(records) == 1
        assert warnings == [f"{tmp_path / 'b.jsonl'}: is UTF-16 text, left out; save it as UTF-8"]
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InputError, match="is UTF-16 text"):
        store.load(tmp_path, pytest.fail)


def test_a_compressed_file_that_is_cut_is_named_and_its_beginning_is_read(tmp_path):
    records = [replace(_measured(index), note="x" * 5000) for index in range(40)]
    text = "".join(f"{store.line_of(record)}\n" for record in records).encode()
    held = gzip.compress(text, compresslevel=0)
    (tmp_path / "a.jsonl.gz").write_bytes(held[: len(held) // 2])
    found, warnings = _load(tmp_path)
    assert 0 < len(found) < 40
    assert warnings[0].startswith(f"{tmp_path / 'a.jsonl.gz'}: the compressed file is damaged")
    (tmp_path / "a.jsonl.gz").write_bytes(json.dumps({"no": "gzip"}).encode())
    _write(tmp_path / "b.jsonl", _measured(0))
    assert len(_load(tmp_path)[0]) == 1
