"""The store: nothing lost, nothing double, every fault named with its line."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from every import every
from steptime.core import progress
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.units import QUANTITIES
from steptime.core.workload import Workload
from steptime.records import store
from steptime.records.reading import record_from_json
from steptime.records.record import (
    STATUSES,
    Quantity,
    Record,
    RecordMethod,
    record_to_json,
    record_to_line,
)

RECORD = Record(
    origin="measured",
    method=RecordMethod("torch", "2.13.0", {"threads": 2}),
    workload=Workload("fc", {"layers": 4, "nodes": 256}, 64),
    platform="cpu-test-2t",
    quantities={"step_s": Quantity(samples=(0.01, 0.011), columns={"run": (0, 0)})},
    env={"round": 0},
    taken_at="2026-11-21T00:00:00Z",
)


def no_warning(text: str) -> None:
    raise AssertionError(text)


def write(folder: Path, *records: Record) -> Path:
    with store.open_writer(folder) as writer:
        for record in records:
            writer.append(record)
    return writer.path


def numbered(index: int) -> Record:
    return replace(RECORD, env={"round": index})


def test_what_is_appended_is_loaded_in_order(tmp_path):
    write(tmp_path, *(numbered(i) for i in range(3)))
    assert store.load(tmp_path, no_warning) == [numbered(i) for i in range(3)]


numbers = st.floats(-1e100, 1e100)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
plain = st.one_of(st.none(), st.booleans(), st.integers(), numbers, st.text())
TYPED = ("round", "run", "disturbed")  # names whose values have one type
others = st.text().filter(lambda name: name not in TYPED)
records = st.builds(
    Record,
    origin=st.sampled_from(["measured", "predicted", "published"]),
    method=st.builds(RecordMethod, st.text(), st.text(), st.dictionaries(st.text(), plain)),
    workload=st.builds(
        Workload,
        st.text(),
        st.dictionaries(names, st.one_of(st.integers(), st.booleans(), st.text())),
        st.integers(1, 2**53),
    ),
    platform=st.text(),
    quantities=st.dictionaries(
        names.filter(lambda name: name not in QUANTITIES),  # which are not below 0
        st.integers(0, 5).flatmap(
            lambda number: st.builds(
                Quantity,
                value=st.none() | numbers,
                samples=st.lists(numbers, min_size=number, max_size=number).map(tuple),
                low=st.none() | numbers,
                columns=st.dictionaries(
                    others, st.lists(plain, min_size=number, max_size=number).map(tuple)
                ),
            )
        ),
    ),
    status=st.sampled_from(STATUSES),
    cause=st.text(),
    note=st.text(),
    scope=st.text(),
    env=st.dictionaries(others, plain),
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records, min_size=1, max_size=4))
def test_every_record_comes_back_as_it_was(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("store")
    write(folder, *(replace(one, note=f"{index}{one.note}") for index, one in enumerate(written)))
    found = store.load(folder, no_warning)  # the notes tell equal records apart
    assert [replace(one, note=one.note[1:]) for one in found] == written


def test_a_torn_last_line_is_reported_and_skipped_and_never_appended_to(tmp_path):
    path = write(tmp_path, numbered(0), numbered(1))
    path.write_bytes(path.read_bytes()[:-40])
    torn = path.read_bytes()
    write(tmp_path, numbered(2))
    warnings: list[str] = []
    assert sorted(r.env["round"] for r in store.load(tmp_path, warnings.append)) == [0, 2]
    assert len(warnings) == 1
    assert f"{path}, line 2" in warnings[0]
    assert path.read_bytes() == torn


def test_a_last_line_that_lacks_only_its_end_is_a_record(tmp_path):
    path = write(tmp_path, numbered(0))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert store.load(tmp_path, no_warning) == [numbered(0)]


BROKEN = [
    b"hello",
    b"",
    b"[1, 2]",
    b'{"schema": 2}',
    b'{"schema": "x"}',
    b"\xff\xfe",
    b"[" * 5000,
    json.dumps({**record_to_json(RECORD), "origin": "guessed"}).encode(),
    json.dumps({**record_to_json(RECORD), "quantities": {"step_s": 3}}).encode(),
    json.dumps(record_to_json(RECORD)).replace("0.011", "NaN").encode(),
    json.dumps(record_to_json(RECORD)).replace("0.011", "1e400").encode(),
]


@every("line", BROKEN)
def test_a_line_that_is_no_record_is_named_and_the_others_are_read(tmp_path, line):
    path = write(tmp_path, numbered(0), numbered(1))
    path.write_bytes(path.read_bytes() + line + b"\n")
    with path.open("a") as file:
        file.write(record_to_line(numbered(2)) + "\n")
    heard: list[str] = []
    assert store.load(tmp_path, heard.append) == [numbered(0), numbered(1), numbered(2)]
    (said,) = heard
    assert said.startswith(f"{path}, line 3: is no record (")
    assert said.isprintable()


def test_many_lines_that_are_no_records_are_counted_once_and_the_first_are_named(tmp_path):
    path = write(tmp_path, numbered(0))
    path.write_bytes(path.read_bytes() + b"hello\n" * 7)
    heard: list[str] = []
    assert store.load(tmp_path, heard.append) == [numbered(0)]
    (said,) = heard
    assert said.startswith(f"{path}: 7 lines are no records, left out: line 2: is no record (")
    assert "line 6: " in said
    assert "line 7: " not in said


def test_a_folder_whose_every_line_is_no_record_is_no_store(tmp_path):
    (tmp_path / "records-0.jsonl").write_text('hello\n{"schema": 2}\n')
    for required in (True, False):  # nothing is added to what is no store
        with pytest.raises(InputError, match=r"no line of its .* is a record; .*: line 1: "):
            store.load(tmp_path, no_warning, required=required)


def _changed(**values: object) -> dict[str, Any]:
    return {**json.loads(record_to_line(RECORD)), **values}


TABLE = json.loads(record_to_line(RECORD))
STEP = TABLE["quantities"]["step_s"]
WRONG = [  # a record with one wrong value, the field that is named, and what was expected there
    (_changed(workload={**TABLE["workload"], "batch_per_replica": "evil"}),
     "workload.batch_per_replica: Expected `int`, got `str`"),
    (_changed(workload={**TABLE["workload"], "batch_per_replica": 0}),
     "workload.batch_per_replica: Expected `int` >= 1"),
    (_changed(workload={**TABLE["workload"], "params": 5}),
     "workload.params: Expected `object`, got `int`"),
    (_changed(workload={**TABLE["workload"], "params": {"layers": None}}), "workload.params[...]"),
    (_changed(workload={**TABLE["workload"], "plan": {"data": 0}}), "workload.plan: .*data"),
    (_changed(workload={**TABLE["workload"], "plan": {"dta": 1}}), "workload.plan: .*dta"),
    (_changed(workload={**TABLE["workload"], "plan": {"data": True, "tensor": 1, "pipeline": 1}}),
     "workload.plan: data: Expected `int`, got `bool`"),
    (_changed(env=[]), "env: Expected `object`, got `array`"),
    (_changed(env={"round": "x"}), "env.round: expected `int`, got 'x'"),
    (_changed(env={"round": True}), "env.round: expected `int`"),
    (_changed(platform=None), "platform: Expected `str`, got `null`"),
    (_changed(status="fine"), "unknown status 'fine'"),
    (_changed(quantities={"step_s": {**STEP, "columns": {"run": [0]}}}),
     "'step_s'.columns.'run': 1 values of 2 samples"),
    (_changed(quantities={"step_s": {**STEP, "columns": {"run": [0, "x"]}}}), "expected `int`"),
    (_changed(quantities={"step_s": {"value": 10**200}}), "'step_s': .* too large"),
    (_changed(quantities={"step_s": {"samples": [1e200]}}),
     "quantities.'step_s': '1e+200' is too large"),
    (_changed(quantities={"step_s": {"value": -1}}), "'step_s': less than 0 s"),
    (_changed(quantities={"step_s": {"samples": [0, 1e-300]}}), "'step_s': 1e-300 is too small"),
]  # fmt: skip


def test_communication_that_is_hidden_may_be_below_0():
    """It is the difference of two steps: around 0 where all of it hides behind the computation."""
    quantities = {
        **TABLE["quantities"],
        "communication_s": {"samples": [-1e-4, 2e-4, -3e-4], "value": -1e-4},
    }
    assert (
        record_from_json(_changed(quantities=quantities)).quantities["communication_s"].value
        == -1e-4
    )


@every(("table", "says"), WRONG)
def test_a_record_of_wrong_types_names_the_field_and_what_was_expected(table, says):
    pattern = ".*".join(map(re.escape, says.split(".*")))
    with pytest.raises(ValueError, match=pattern):
        record_from_json(table)
    with pytest.raises(ValueError, match=pattern):
        record_from_json(json.dumps(table).encode())


def test_keys_that_nobody_knows_do_not_make_a_record_a_fault():
    table = _changed(later={"a": [1]}, env={"round": 3, "mine": {"b": None}})
    assert record_from_json(table) == replace(RECORD, env={"round": 3, "mine": {"b": None}})


def test_a_faulty_round_does_not_keep_a_folder_from_being_added_to(tmp_path):
    path = write(tmp_path, numbered(0))
    path.write_text(path.read_text() + json.dumps(_changed(env={"round": "x"})) + "\n")
    write(tmp_path, numbered(1))
    heard: list[str] = []
    done = store.final_keys(store.load(tmp_path, heard.append))
    assert {round_ for *_, round_ in done} == {0, 1}
    assert len(heard) == 1


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        store.load(tmp_path / "absent", no_warning)
    with pytest.raises(InputError, match="holds no records"):
        store.load(tmp_path, no_warning)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        store.load(tmp_path / "file", no_warning, required=False)
    with pytest.raises(InputError, match="is a file"):
        store.open_writer(tmp_path / "file")
    with pytest.raises(InputError, match="is a file"):
        store.open_writer(tmp_path / "file" / "below")
    with pytest.raises(InputError, match="is a file"), store.exclusive(tmp_path / "file"):
        pass
    assert store.load(tmp_path, no_warning, required=False) == []
    assert store.load(tmp_path / "absent", no_warning, required=False) == []


def test_a_newer_schema_asks_to_upgrade(tmp_path):
    table = {**record_to_json(RECORD), "schema": 3}
    (tmp_path / "records-x.jsonl").write_text(json.dumps(table) + "\n")
    with pytest.raises(InputError, match=r"line 1: has schema 3, .* schema 2; upgrade"):
        store.load(tmp_path, no_warning)


def test_an_older_schema_is_refused(tmp_path):
    table = {**record_to_json(RECORD), "schema": 1}
    (tmp_path / "records-x.jsonl").write_text(json.dumps(table) + "\n")
    with pytest.raises(InputError, match=r"line 1: has schema 1, .* schema 2; measure or predict"):
        store.load(tmp_path, no_warning)


def test_a_newer_schema_is_named_by_file_and_line_without_an_end_of_line_too(tmp_path):
    table = {**record_to_json(RECORD), "schema": 3}
    path = write(tmp_path, numbered(0))
    path.write_text(path.read_text() + json.dumps(table))
    with pytest.raises(InputError, match="has schema 3") as caught:
        store.load(tmp_path, no_warning)
    assert str(caught.value).startswith(
        f"{path}, line 2: has schema 3, this steptime knows schema 2"
    )


def test_a_file_is_made_with_its_first_record_and_the_lock_goes_with_its_holder(tmp_path):
    folder = tmp_path / "new"
    with store.exclusive(folder), store.open_writer(folder) as writer:
        assert [path.name for path in folder.iterdir()] == ["sweep.lock"]
        writer.append(RECORD)
        assert writer.path.exists()
    assert list(folder.iterdir()) == [writer.path]
    with store.exclusive(tmp_path / "for nothing"):
        pass
    assert not (tmp_path / "for nothing").exists()


def test_what_is_discarded_was_never_there(tmp_path):
    with store.open_writer(tmp_path) as writer:
        writer.append(RECORD)
        writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_reading_says_how_far_it_is(tmp_path, monkeypatch):
    for index in range(3):
        write(tmp_path, numbered(index))
    monkeypatch.setattr(progress, "REPORT_INTERVAL", 2)
    told: list[tuple[str, int, int]] = []
    with progress.report_progress_to(lambda *how_far: told.append(how_far)):
        assert len(store.load(tmp_path, no_warning)) == 3
    assert told == [("files", 2, 3)]


def test_a_number_that_json_cannot_say_is_refused_at_once(tmp_path):
    bad = replace(RECORD, quantities={"step_s": Quantity(value=float("nan"))})
    with pytest.raises(ValueError, match="Out of range"), store.open_writer(tmp_path) as writer:
        writer.append(bad)


def test_a_writer_without_records_leaves_no_file(tmp_path):
    write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def _fill_disk(folder: Path, answers: multiprocessing.Queue[object]) -> None:
    size = len(json.dumps(record_to_json(RECORD), separators=(",", ":"))) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size * 5 // 2, hard))
    writer = store.open_writer(folder)
    for index in range(2):
        writer.append(numbered(index))
    for _ in range(2):  # the second shows that the torn third was taken back
        try:
            writer.append(RECORD)
        except store.StoreError as error:
            answers.put(str(error))
    writer.close()


def test_many_records_are_written_at_once_or_not_at_all(tmp_path, monkeypatch):
    synced: list[int] = []
    with store.open_writer(tmp_path) as writer:
        writer.append(numbered(-1))
        monkeypatch.setattr("os.fsync", synced.append)
        writer.append_all(numbered(index) for index in range(1000))
        assert len(synced) == 1

        def torn(descriptor: int, lines: memoryview) -> int:
            count = real(descriptor, lines[:100])
            monkeypatch.setattr("os.write", full)
            return count

        def full(_descriptor: int, _lines: memoryview) -> int:
            raise OSError(28, "No space left on device")

        real = os.write
        monkeypatch.setattr("os.write", torn)
        with pytest.raises(store.StoreError, match="No space left"):
            writer.append_all([RECORD] * 10)
        monkeypatch.setattr("os.write", real)
        writer.append_all([])
        writer.append(numbered(1000))
    found = store.load(tmp_path, pytest.fail)
    assert found == [numbered(-1), *(numbered(index) for index in range(1001))]


def test_a_full_disk_is_one_line_and_earlier_records_stay(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_fill_disk, args=(tmp_path, answers))
    process.start()
    messages = [answers.get(timeout=600) for _ in range(2)]
    process.join(600)
    assert process.exitcode == 0
    assert all("cannot write a record: " in text and "\n" not in text for text in messages)
    assert store.load(tmp_path, no_warning) == [numbered(0), numbered(1)]


def _append_many(folder: Path, who: int, count: int) -> None:
    with store.open_writer(folder) as writer:
        for index in range(count):
            writer.append(replace(RECORD, env={"round": index, "who": who}))


def test_writers_at_once_lose_nothing_and_double_nothing(tmp_path):
    writers, records = 8, 25
    context = multiprocessing.get_context("fork")
    arguments = [(tmp_path, who, records) for who in range(writers)]
    processes = [context.Process(target=_append_many, args=one) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        assert process.exitcode == 0
    found = [(r.env["who"], r.env["round"]) for r in store.load(tmp_path, no_warning)]
    assert sorted(found) == [(who, index) for who in range(writers) for index in range(records)]
    assert len(list(tmp_path.glob("*.jsonl"))) == writers


def _hold(folder: Path, held: object, end: object) -> None:
    with store.exclusive(folder):
        held.set()  # type: ignore[attr-defined]
        end.wait(30)  # type: ignore[attr-defined]


def test_a_second_sweep_into_a_folder_is_refused_by_the_pid_of_the_first(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, end = context.Event(), context.Event()
    first = context.Process(target=_hold, args=(tmp_path, held, end))
    first.start()
    assert held.wait(30)
    with (
        pytest.raises(InputError, match=f"process {first.pid} on "),
        store.exclusive(tmp_path),
    ):
        pass
    first.kill()  # a lock ends with its process, whatever ended that
    first.join(600)
    with store.exclusive(tmp_path):
        pass
    with store.exclusive(tmp_path):
        pass
    assert store.load(tmp_path, no_warning, required=False) == []


def test_a_folder_that_vanishes_is_an_error(tmp_path):
    folder = tmp_path / "records"
    with store.exclusive(folder), store.open_writer(folder) as writer:
        writer.append(RECORD)
        shutil.rmtree(folder)
        with pytest.raises(store.StoreError, match=r"was removed while records were written to it"):
            writer.append(RECORD)
    with store.open_writer(folder) as writer:
        shutil.rmtree(folder)
        with pytest.raises(store.StoreError, match="cannot make the file"):
            writer.append(RECORD)
    with store.open_writer(folder) as writer:
        writer.append(RECORD)
        folder.rename(tmp_path / "moved")  # what was written is still there
        writer.append(numbered(1))
    assert store.load(tmp_path / "moved", no_warning) == [RECORD, numbered(1)]


def test_a_lock_that_cannot_be_taken_leaves_nothing(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    for folder in (tmp_path, tmp_path / "new"):
        with (
            pytest.raises(store.StoreError, match="cannot lock: No locks available"),
            store.exclusive(folder),
        ):
            pass
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_file_is_on_the_disk_with_its_first_record(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", fsync)
    with store.open_writer(tmp_path) as writer:
        writer.append(RECORD)
        assert synced == [str(writer.path), str(tmp_path)]
        writer.append(RECORD)
        assert synced[2:] == [str(writer.path)]


def test_which_cells_are_done():
    ok, oom, failed = (
        replace(numbered(i), status=status) for i, status in enumerate(["ok", "oom", "failed"])
    )
    op = replace(numbered(3), scope="dense0")
    everything = [ok, oom, failed, op]

    assert {key[3] for key in store.final_keys(everything)} == {0, 1}
    key, platform, method, _ = next(iter(store.final_keys([ok])))
    assert (key, platform) == (RECORD.workload.key, "cpu-test-2t")
    assert method == store.identity(RecordMethod("torch", "2.13.0", {"threads": 2}))
    assert method != store.identity(RecordMethod("torch", "2.13.0", {"threads": 1}))
