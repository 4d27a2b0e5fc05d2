"""The cache of a folder of records: the answers are those of the lines, whatever becomes of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import duckdb
import pytest

import synthetic
from record_cases import EACH, edited  # EACH has mark.slow and mark.rare
from reference_rows import reference_row
from steptime.analysis.headline import summarise_results
from steptime.analysis.query import query
from steptime.analysis.results_table import make_results_table
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.workload import Plan
from steptime.records import folder_source, parquet_cache, results, statistics, store, tables
from steptime.records.data import Data
from steptime.records.frames import frame_builder
from steptime.records.record import Quantity, Record, record_to_line
from steptime.records.row import COLUMNS, Row
from told import frame_rows, record_rows

ASKED = "SELECT * FROM records"


def _records() -> list[Record]:
    """Records of every kind: with several runs, of files, published, odd hyperparameters."""
    found = synthetic.sweep(failures=True)
    first = next(record for record in found if record.origin == "measured")
    odd = {"lr": 1e-05, "flag": True, "mixed": 1, "Batch": 3, "it's": 'a "b"', "large": 2**70}
    samples = (0.02, 0.01, 0.04, 0.011, 0.012, 0.03)
    marks = {"run": (0, 0, 0, 1, 1, 1), "disturbed": (False, True, False, False, True, False)}
    step = Quantity(samples=samples, columns=marks)
    waited = Quantity(samples=tuple(sample / 8 for sample in samples))
    files = {"threads": 2, "gpu": "p100", "input": "dataset", "loaders": 3, "device_count": 2}
    of_file = replace(first.workload, params={}, file="net.json", sha256="ab" * 32)
    return [
        *found,
        replace(first, quantities={"step_s": step, "input_s": waited}),
        replace(
            first,
            method=replace(first.method, options=files),
            note="x\ny",
            env={"round": 2, "op_kind": "conv"},
        ),
        replace(first, workload=replace(first.workload, params=odd, plan=Plan(data=2, tensor=2))),
        replace(first, workload=replace(first.workload, params={"mixed": False, "lr": 1})),
        replace(first, workload=of_file, scope="conv1"),
        replace(
            first,
            origin="published",
            env={"batch_source": "unknown", "date": "2019"},
            quantities={
                "step_s": Quantity(0.5, low=0.4, high=0.6),
                "published_parameters": Quantity(12),
                "published_examples_per_s": Quantity(3.5),
            },
        ),
    ]


RECORDS = _records()
NEW = replace(RECORDS[0], note="new")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of two files that has a cache."""
    monkeypatch.setattr(tables, "MIN_CACHED_BYTES", 1)
    place = tmp_path / "records"
    for part in (RECORDS[:40], RECORDS[40:]):
        with store.open_writer(place) as writer:
            writer.append_all(part)
    return place


def _same(found: Sequence[Row], expected: Sequence[Row]) -> None:
    assert len(found) == len(expected)
    for row, other in zip(found, expected, strict=True):
        assert list(row) == list(other)
        for name, value in row.items():
            assert value == other[name] or math.isclose(value, other[name]), name


def test_every_column_is_what_python_says_of_the_record():
    for row, record in zip(query(Data.from_records(RECORDS), ASKED), RECORDS, strict=True):
        told: dict[str, Any] = reference_row(record)
        told["method_options"] = json.dumps(dict(record.method.options), sort_keys=True)
        told["env"] = json.dumps(dict(record.env), sort_keys=True)
        assert row["record_id"].startswith(record.record_id)
        told["record_id"] = row["record_id"]
        for name in (*COLUMNS, "published_parameters", "published_examples_per_s"):
            value, expected = row[name], told.get(name)
            same = value == expected and type(value) in (type(expected), float)
            assert same or math.isclose(value, expected, rel_tol=1e-9), name
        for name, value in record.workload.settings.items():
            assert row["param_Batch" if name == "Batch" else name] in (
                value,
                {True: "yes", False: "no"}.get(value) if isinstance(value, bool) else str(value),
            )


def test_a_folder_answers_as_its_records_do_from_lines_and_from_the_cache(folder):
    expected = query(Data.from_records(RECORDS), ASKED)
    _same(query(Data.load([folder], print), ASKED), expected)
    assert len(_cached(folder)) == 1
    _same(query(Data.load([folder], print), ASKED), expected)  # now from the cache
    assert [path.suffix for path in folder.iterdir() if path.is_file()] == [".jsonl"] * 2


def _cached(folder: Path, suffix: str = "parquet") -> list[Path]:
    return sorted((folder / ".cache").glob(f"rows-*.{suffix}"))


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flipped(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 0xFF
    path.write_bytes(held)


def _told(path: Path, **changes: object) -> None:
    """Change what a cache says, so that its mark fits, as a stranger's folder may bring it."""
    known = path.with_suffix(".json")
    note = json.loads(json.loads(known.read_text())["note"]) | changes
    text = json.dumps(note)
    known.write_text(json.dumps({"mark": parquet_cache.hash_text(text), "note": text}))


HARM: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "all of it deleted": lambda path: shutil.rmtree(path.parent),
    "torn": _torn,
    "empty": lambda path: path.write_bytes(b""),
    "with a bit flipped": _flipped,
    "of another file": lambda path: shutil.copy(__file__, path),
    "of an older version": lambda path: _told(path, format="0, steptime 0.1.0"),
    "of no file": lambda path: _told(path, stamp=[], facts={"setting_kinds": {"x": ["evil"]}}),
    "unknown": lambda path: path.with_suffix(".json").unlink(),
    "told in nonsense": lambda path: path.with_suffix(".json").write_text('{"format": 3'),
    "told of nothing": lambda path: path.with_suffix(".json").write_text("[]"),
}


def test_each_cpu_that_is_allowed_has_a_thread(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 9}, raising=False)
    assert tables.count_threads() == 5


QUICK_HARM = ("torn", "with a bit flipped", "of another file", "told in nonsense")


@pytest.mark.parametrize(
    "harm",
    [pytest.param(one, marks=() if one in QUICK_HARM else pytest.mark.slow) for one in HARM],
)
def test_a_cache_that_does_not_fit_is_made_again(folder, harm):
    expected = query(Data.load([folder], print), ASKED)
    HARM[harm](_cached(folder)[0])
    heard: list[str] = []
    _same(query(Data.load([folder], heard.append), ASKED), expected)
    assert not heard
    assert len(_cached(folder)) == len(_cached(folder, "json")) == 1


@EACH
def test_a_cache_that_was_edited_is_made_again(folder, step):
    asked = "SELECT count(*), max(step_s) FROM records"
    expected = query(Data.load([folder], print), asked)
    known = _cached(folder, "json")[0]
    whole = json.loads(known.read_text())
    inner = edited(json.loads(whole["note"]), "x", step)
    notes = ({**whole, "note": json.dumps(note)} for note in inner)
    for table in (*notes, *edited(whole, step=step)):
        known.write_text(json.dumps(table))
        assert query(Data.load([folder], print), asked) == expected
        assert json.loads(known.read_text()) != table


@pytest.mark.parametrize(
    "harm",
    [
        *("torn", "told of nothing"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("deleted", "empty", "unknown")),
    ],
)
def test_results_that_are_kept_are_those_of_the_records(folder, harm):
    places = ("folder", *results.RECORD_PLACES)  # are others in memory
    columns = [name for name in results.ALL_COLUMNS if name not in places]

    def rows() -> list[Row]:
        return Data.load([folder], print).results_frame(columns).to_dicts()

    expected = Data.from_records(RECORDS).results_frame(columns).to_dicts()
    _same(rows(), expected)
    (kept,) = (folder / ".cache").glob("results-*.parquet")
    HARM[harm](kept)
    _same(rows(), expected)
    before = kept.stat().st_ino
    _same(rows(), expected)
    assert kept.stat().st_ino == before  # they are read, not made again
    with max(folder.glob("*.jsonl")).open("a") as file:
        file.write(record_to_line(RECORDS[0]).replace("cpu-", "gpu-") + "\n")
    assert len(rows()) == len(expected) + 1


def test_the_summary_of_many_results_is_that_of_their_rows(folder):
    data = Data.load([folder], print)
    expected = summarise_results(data.scan_results()).to_dict()
    data.max_rows = 2
    table = make_results_table(data)
    assert table.summary == expected
    assert len(table.rows) == 2
    assert table.footnotes == [
        f"... and {len(data.results) - 2} more; --json or --format csv has all"
    ]


def test_the_place_of_a_record_is_where_its_line_begins(folder, monkeypatch):
    monkeypatch.setattr(frame_builder, "CHUNK_ROWS", 7)
    first, last = sorted(folder.glob("*.jsonl"))
    with last.open("a") as file:
        file.write('{"schema":2,"orig')
    expected = query(Data.from_records(RECORDS), ASKED)
    for _ in range(2):  # the second time from the cache
        heard: list[str] = []
        data = Data.load([folder], heard.append)
        _same(query(data, ASKED), expected)
        assert len(heard) == 1
        places = [row["place"] for row in frame_rows(data, "place")]
        found = data.read_records(0, places)
        assert [found[one] for one in places] == RECORDS
        assert places == sorted(places)
        begins = [0, *accumulate(map(len, first.read_bytes().splitlines(keepends=True)))][:-1]
        assert places[:40] == begins
        assert places[40] == first.stat().st_size


@pytest.mark.slow
def test_faulty_lines_are_said_each_time_and_the_places_of_others_stay(folder):
    first = min(folder.glob("*.jsonl"))
    told = first.read_text().splitlines()
    first.write_text("\n".join(["{}", *told[1:20], "[]", *told[21:]]) + "\n")
    sound = [one for at, one in enumerate(RECORDS) if at not in (0, 20)]
    for _ in range(2):  # the second time from the cache
        heard: list[str] = []
        data = Data.load([folder], heard.append)
        _same(query(data, ASKED), query(Data.from_records(sound), ASKED))
        (said,) = heard
        assert said.startswith(f"{first}: 2 lines are no records, left out: line 1: ")
        assert "; line 21: is no record (" in said
        places = [row["place"] for row in frame_rows(data, "place")]
        assert [data.read_records(0, [place])[place] for place in places[:3]] == RECORDS[1:4]


def test_a_command_that_is_interrupted_leaves_no_half_of_a_cache(folder, monkeypatch):
    stamp, made = parquet_cache.stamp_of, count()

    def stamped(path: Path) -> list[int]:
        if path.suffix == ".parquet" and next(made) == 0:
            raise KeyboardInterrupt
        return stamp(path)

    monkeypatch.setattr(parquet_cache, "stamp_of", stamped)
    with pytest.raises(KeyboardInterrupt):
        query(Data.load([folder], print), ASKED)
    assert not _cached(folder, "json")
    assert not [*(folder / ".cache").glob(".*")]
    _same(query(Data.load([folder], print), ASKED), query(Data.from_records(RECORDS), ASKED))


def test_many_rows_come_in_parts_in_their_order(folder, monkeypatch):
    expected = query(Data.load([folder], print), ASKED)
    kept = duckdb.execute(f"FROM '{folder}/.cache/rows-*.parquet'").fetchall()
    shutil.rmtree(folder / ".cache")
    monkeypatch.setattr(frame_builder, "CHUNK_ROWS", 7)
    monkeypatch.setattr(frame_builder, "PART_ROWS", 20)
    data = Data.load([folder], print)
    _same(query(data, ASKED), expected)
    assert duckdb.execute(f"FROM '{folder}/.cache/rows-*.parquet'").fetchall() == kept
    assert not list(data._tables._scratch.glob("part-*"))


def test_many_lines_that_are_no_records_are_refused_in_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(frame_builder, "PART_ROWS", 2)
    (tmp_path / "records-a.jsonl").write_text('{"no": "record"}\n' * 9)
    with pytest.raises(InputError, match=r"no line of its \*\.jsonl files is a record"):
        query(Data.load([tmp_path], print), ASKED)


def test_a_reader_that_is_interrupted_leaves_nothing(folder, monkeypatch):
    before, threads = folder_source.FolderLines, threading.active_count()

    class Interrupted(before):  # type: ignore[misc,valid-type]
        def __iter__(self) -> Any:
            for number, line in enumerate(super().__iter__()):
                if number == 30:
                    raise KeyboardInterrupt
                yield line

    monkeypatch.setattr(frame_builder, "CHUNK_ROWS", 7)
    monkeypatch.setattr(folder_source, "FolderLines", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        query(Data.load([folder], print), ASKED)
    assert threading.active_count() == threads
    assert [path.name for path in (folder / ".cache").iterdir()] == ["lock"]
    monkeypatch.setattr(folder_source, "FolderLines", before)
    _same(query(Data.load([folder], print), ASKED), query(Data.from_records(RECORDS), ASKED))


def test_a_file_that_changes_gets_a_new_cache(folder):
    first, last = sorted(folder.glob("*.jsonl"))
    number = "SELECT count(*) AS n FROM records"
    assert query(Data.load([folder], print), number) == [{"n": len(RECORDS)}]
    with last.open("a") as file:
        file.write(record_to_line(NEW) + "\n")
    assert query(Data.load([folder], print), number) == [{"n": len(RECORDS) + 1}]
    told = first.stat()
    text = first.read_text()
    other = text.replace('"platform":"cpu-', '"platform":"gpu-')
    assert len(other) == len(text) and other != text  # noqa: PT018 - as long, and of the same time
    first.write_text(other)
    os.utime(first, ns=(told.st_atime_ns, told.st_mtime_ns))
    sql = "SELECT count(*) AS n FROM records WHERE platform LIKE 'gpu-%'"
    assert query(Data.load([folder], print), sql) == [{"n": 40}]
    last.unlink()
    assert query(Data.load([folder], print), number) == [{"n": 40}]


def test_a_torn_last_line_is_said_each_time_and_a_whole_one_counts(folder):
    last = max(folder.glob("*.jsonl"))
    with last.open("a") as file:
        file.write(record_to_line(NEW))  # lacks only its end
    sql = "SELECT count(*) AS n FROM records"
    assert query(Data.load([folder], print), sql) == [{"n": len(RECORDS) + 1}]
    with last.open("a") as file:
        file.write('\n{"schema":2,"orig')
    number = len(RECORDS) - 40 + 2
    for _ in range(2):
        heard: list[str] = []
        assert query(Data.load([folder], heard.append), sql) == [{"n": len(RECORDS) + 1}]
        assert heard == [f"{last}, line {number}: skipped a torn last line (17 bytes)"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "is no record"),
        ("[]", "Expected `object`, got `array`"),
        ('{"schema":2}', "no 'origin'"),
        (record_to_line(RECORDS[0]).replace("predicted", "guessed"), "origin 'guessed'"),
        (
            record_to_line(RECORDS[0]).replace('"step_s":{"value":', '"step_s":{"value":NaN,"x":'),
            "",
        ),
    ],
)
def test_what_is_no_record_is_named_with_file_and_line_and_left_out(folder, line, said):
    first = min(folder.glob("*.jsonl"))
    first.write_text(first.read_text() + line + "\n")
    heard: list[str] = []
    _same(query(Data.load([folder], heard.append), ASKED), query(Data.from_records(RECORDS), ASKED))
    assert heard[0].startswith(f"{first}, line 41: is no record (")
    assert said in heard[0]


def test_a_newer_schema_is_refused_and_nothing_is_kept(folder):
    first = min(folder.glob("*.jsonl"))
    first.write_text(first.read_text() + '{"schema":3}\n')
    with pytest.raises(InputError, match=r"line 41: has schema 3.*upgrade steptime") as caught:
        query(Data.load([folder], print), ASKED)
    assert str(first) in str(caught.value)
    assert not list((folder / ".cache").glob("*.parquet"))


def test_a_folder_without_a_single_record_is_no_store(folder):
    for path in folder.glob("*.jsonl"):
        path.write_text("{}\n")
    with pytest.raises(InputError, match=r"no line of its .* is a record"):
        query(Data.load([folder], lambda _: None), ASKED)


@pytest.mark.slow
def test_where_nothing_can_be_written_the_cache_lies_elsewhere(folder, tmp_path, monkeypatch):
    (folder / ".cache").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    expected = query(Data.from_records(RECORDS), ASKED)
    _same(query(Data.load([folder], print), ASKED), expected)
    assert len(list((tmp_path / "caches").rglob("rows-*.parquet"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
    _same(query(Data.load([folder], print), ASKED), expected)


def test_where_the_disk_is_full_the_cache_lies_elsewhere(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    before = frame_builder.write_parquet

    def write(frames: Any, path: Path, scratch: Path) -> None:
        is_beside_records = folder in path.parents
        before(frames, Path("/dev/full") if is_beside_records else path, scratch)

    monkeypatch.setattr(frame_builder, "write_parquet", write)
    _same(query(Data.load([folder], print), ASKED), query(Data.from_records(RECORDS), ASKED))
    assert not _cached(folder)
    assert len(list((tmp_path / "caches").rglob("rows-*.parquet"))) == 1


def test_many_small_files_are_read_as_they_stand(folder, monkeypatch):
    monkeypatch.setattr(tables, "MIN_CACHED_BYTES", 1 << 20)
    _same(query(Data.load([folder], print), ASKED), query(Data.from_records(RECORDS), ASKED))
    assert not (folder / ".cache").exists()


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{}'",
        "PREPARE p AS COPY (SELECT 1) TO '{}'; EXECUTE p",
        *(
            pytest.param(sql, marks=pytest.mark.slow)
            for sql in (
                "EXPLAIN ANALYZE COPY (SELECT 1) TO '{}'",
                "SELECT 1; COPY (SELECT 1) TO '{}' (FORMAT csv)",
                "EXPORT DATABASE '{}'",
            )
        ),
    ],
)
def test_a_statement_cannot_write_to_the_cache(folder, sql):
    query(Data.load([folder], print), ASKED)
    path = _cached(folder)[0]
    before = path.read_bytes()
    with pytest.raises(InputError, match="query"):
        query(Data.load([folder], print), sql.format(path))
    assert path.read_bytes() == before


@pytest.mark.slow
def test_processes_that_fill_one_cache_at_once_all_get_the_answer(folder):
    many = min(folder.glob("*.jsonl"))
    text = many.read_text()
    many.write_text("".join(text.replace('"note":"', f'"note":"{index}') for index in range(100)))
    code = (
        "import sys; from pathlib import Path; from steptime.records.data import Data;"
        "print(Data.load([Path(sys.argv[1])], print).count_records())"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for run in runs:
        out, err = run.communicate(timeout=600)
        assert (out.decode().strip(), err) == (str(len(RECORDS) + 3960), b"")
    assert not [path for path in (folder / ".cache").iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_a_folder_that_is_being_written_gives_whole_records(tmp_path):
    """A writer appends torn lines all the while; each answer is a number of whole records."""
    path = tmp_path / "records-0.jsonl"
    line = record_to_line(RECORDS[0]) + "\n"
    code = (
        "import itertools, sys, time\n"
        "text = sys.stdin.read()\n"
        "lines = (text.replace('note\":\"', f'note\":\"{n}', 1) for n in itertools.count())\n"
        "with open(sys.argv[1], 'a', buffering=1) as file:\n"
        "    file.write(''.join(itertools.islice(lines, 2000)))\n"
        "    print('ready', flush=True)\n"
        "    for line in lines:\n"
        "        for part in (line[:100], line[100:]):\n"
        "            file.write(part); file.flush(); time.sleep(0.0005)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert writer.stdin and writer.stdout  # noqa: PT018
    try:
        writer.stdin.write(line.encode())
        writer.stdin.close()
        assert writer.stdout.readline() == b"ready\n"
        before = 0
        for _ in range(4):
            data = Data.load([tmp_path], lambda _: None)
            count = data.count_records()
            assert count >= max(before, 2000)
            assert len(data.model_names()) == 1
            before = count
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert before <= path.read_text().count("\n")


def test_samples_are_looked_at_once(folder, monkeypatch):
    data = Data.load([folder], print)
    columns = ("step_s_low", "step_s_high", "steady")
    expected = record_rows(data, *columns)
    monkeypatch.setattr(statistics, "estimate_samples", None)
    data = Data.load([folder], print)
    assert record_rows(data, *columns) == expected
