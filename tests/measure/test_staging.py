"""Copies of a data set: checked, with room for them, made once a worker, and gone with it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import idx_folder
from steptime.build import make_workload, read_model
from steptime.core.workload import STAGINGS, workload_to_json
from steptime.measure.contract import (
    BadDataError,
    MissingFileError,
    NoSpaceError,
    Options,
)
from steptime.measure.data import sources
from steptime.measure.data.dataset import find
from steptime.measure.launch import Worker
from steptime.records.reading import record_from_json
from steptime.records.record import Record

FC = "fc:layers=1,nodes=4,inputs=16,outputs=4"


@pytest.fixture
def folder(tmp_path):
    return idx_folder.write(tmp_path / "data", gz=True)


@pytest.fixture
def disk(tmp_path):
    """A place for copies."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def _until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 600  # against waiting for ever
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_a_copy_is_the_data_set_with_what_it_cost(folder, disk):
    original = find(str(folder))
    staged = sources.copy(original, str(disk))
    (copy,) = disk.iterdir()
    assert copy.name.startswith("steptime-stage-")
    assert copy.stat().st_mode & 0o777 == 0o700
    for name, path in original.files.items():
        assert staged.dataset.files[name].parent == copy
        assert staged.dataset.files[name].read_bytes() == path.read_bytes()
    assert staged.dataset.facts == original.facts
    facts = dict(staged.facts)
    assert facts.pop("copy_s") > 0
    assert facts.pop("check_s") > 0
    assert facts.pop("checksum").startswith("sha256:")
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert facts == {"from": str(folder), "to": str(disk), "bytes": size}


def test_where_copies_go(disk, tmp_path, monkeypatch):
    for name in ("local", "tmpdir"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name.upper(), str(tmp_path / name))
    assert set(sources.STAGES) == set(STAGINGS)
    assert sources.staging_folder(str(disk)) == disk
    assert sources.staging_folder("") == tmp_path / "local"
    monkeypatch.delenv("LOCAL")
    assert sources.staging_folder("") == tmp_path / "tmpdir"
    monkeypatch.delenv("TMPDIR")
    assert sources.staging_folder("").is_dir()
    monkeypatch.setenv("LOCAL", str(tmp_path / "absent"))
    with pytest.raises(MissingFileError, match="no such folder"):
        sources.staging_folder("")


def test_space_is_asked_for_before_anything_is_copied(folder, disk, monkeypatch):
    usage = shutil.disk_usage(disk)._replace(free=100)
    monkeypatch.setattr(sources.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NoSpaceError, match=r"disk: 100 B are free, the data set needs \d+ B"):
        sources.copy(find(str(folder)), str(disk))
    assert not list(disk.iterdir())


def test_a_disk_that_fills_up_while_copying(folder, disk, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sources.os, "fsync", full)
    with pytest.raises(NoSpaceError, match="No space left on device while copying"):
        sources.copy(find(str(folder)), str(disk))
    assert not list(disk.iterdir())


def test_a_copy_that_differs_is_told_and_removed(folder, disk, monkeypatch):
    def spoil(descriptor: int) -> None:
        os.pwrite(descriptor, b"!", 0)  # never the first byte of these files

    monkeypatch.setattr(sources.os, "fsync", spoil)
    with pytest.raises(BadDataError, match=r"the copy differs from .*data/train-images"):
        sources.copy(find(str(folder)), str(disk))
    assert not list(disk.iterdir())


STAGES = """
import sys, time
from steptime.measure.data import sources
from steptime.measure.data.dataset import find
sources.copy(find(sys.argv[1]), sys.argv[2])
print("ready", flush=True)
time.sleep(600)
"""


def _stages(folder: Path, disk: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", STAGES, str(folder), str(disk)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_copy_goes_with_its_process_however_that_ends(end, folder, disk):
    with _stages(folder, disk) as process:
        assert len(list(disk.iterdir())) == 1
        process.send_signal(end)
    _until(lambda: not list(disk.iterdir()), "the copy is still there")


@pytest.mark.slow
def test_a_copy_that_nobody_holds_is_removed_by_the_next_one(folder, disk):
    """A scheduler may end all processes of a job at once, the one that tidies up too."""
    with _stages(folder, disk) as alive:
        (kept,) = disk.iterdir()
        stale = disk / "steptime-stage-stale"
        shutil.copytree(kept, stale)
        foreign = disk / "steptime-stage-just-made"
        foreign.mkdir()
        sources.copy(find(str(folder)), str(disk))
        assert kept.exists()
        assert foreign.exists()
        assert not stale.exists()
        alive.kill()


# In a worker -------------------------------------------------------------------------------------


def _ask(worker: Worker, options: Options, model: str = FC, batch: int = 4) -> Record:
    request = {
        "do": "measure",
        "workload": workload_to_json(make_workload(read_model(model), batch)),
        "platform": "cpu-of-the-test",
        "timing": {"budget_s": 0.02},
        "parts": False,
        "energy": False,
        "options": asdict(options),
        "runs": 1,
        "env": {"cell": "", "round": 0},
    }
    return record_from_json(worker.ask(request, 60.0))


def _options(folder: Path, disk: Path, **changes: Any) -> Options:
    how = {"input": "dataset", "data": str(folder), "staging": "local", "stage_to": str(disk)}
    return Options(threads=1, **{**how, **changes})


@pytest.mark.slow
@pytest.mark.framework  # its loaders are PyTorch's
def test_a_worker_copies_once_for_all_its_cells(folder, disk):
    with Worker("null", Options(threads=1)) as worker:
        first = _ask(worker, _options(folder, disk))
        (copy,) = disk.iterdir()
        second = _ask(worker, _options(folder, disk, loaders=1), batch=5)
        assert list(disk.iterdir()) == [copy]
        shared = _ask(worker, _options(folder, disk, staging="shared", stage_to=""))
        again = {**first.env["staging"], "cells": 2}
        assert first.env["staging"]["cells"] == 1
        assert second.env["staging"] == again  # the same seconds: it was copied once
        assert shared.env["staging"] is None
        assert first.env["dataset"] == shared.env["dataset"]
        assert first.env["dataset"]["folder"] == str(folder)
        idx_folder.write(folder, train=44, gz=True)  # another data set now: a new copy
        third = _ask(worker, _options(folder, disk))
        assert third.env["dataset"]["images"]["train"] == 44
        assert third.env["staging"]["cells"] == 1
        assert len(list(disk.iterdir())) == 2
    _until(lambda: not list(disk.iterdir()), "the copy is still there")


@pytest.mark.slow
def test_what_is_wrong_with_the_data_is_the_cause_of_a_record(folder, disk, tmp_path):
    with Worker("null", Options(threads=1)) as worker:
        missing = _ask(worker, _options(tmp_path / "absent", disk))
        assert (missing.status, missing.cause) == ("failed", "missing-file")
        assert missing.note.endswith("absent': no such folder")
        path = folder / "train-labels-idx1-ubyte.gz"
        whole = path.read_bytes()
        path.write_bytes(whole[:-3])
        bad = _ask(worker, _options(folder, disk))
        assert (bad.status, bad.cause) == ("failed", "bad-data")
        assert bad.note.startswith(str(disk))
        assert "train-labels-idx1-ubyte.gz: is no whole gzip file" in bad.note
        path.write_bytes(whole)
        misfit = _ask(worker, _options(folder, disk), "fc:layers=1,nodes=4,inputs=17,outputs=4")
        assert (misfit.status, misfit.cause) == ("unsupported", "unsupported")
        assert "[4, 17]; the data set's images are [4, 1, 4, 4], flattened [4, 16]" in misfit.note
        assert _ask(worker, _options(folder, disk)).status == "ok"


@pytest.mark.slow
def test_a_disk_without_room_is_the_cause_of_a_record(tmp_path):
    """A data set larger than any disk: its file has a size, and no blocks."""
    folder = idx_folder.write(tmp_path)
    with (folder / "train-images-idx3-ubyte").open("r+b") as file:
        file.truncate(2 * shutil.disk_usage(tmp_path).total)
    with Worker("null", Options(threads=1)) as worker:
        record = _ask(worker, _options(folder, tmp_path))
    assert (record.status, record.cause) == ("failed", "no-space")
    assert "are free, the data set needs" in record.note
    assert not list(tmp_path.glob("steptime-stage-*"))


def test_a_copy_keeps_what_the_network_reads(folder, disk):
    original = find(str(folder))
    copy = sources.copy(original, str(disk)).dataset
    for part in ("train", "test"):
        assert np.array_equal(copy.parts[part].images, original.parts[part].images)
