"""Broken, hostile and meaningless files: a line that says so, never a traceback."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from psc_log_text import psc_log
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.records.readers import READERS, read_path, reader_of
from steptime.records.readers import sources as source_files
from steptime.records.readers.sources import RecordSource, Unread, list_sources
from steptime.records.record import record_to_json

LABEL = "layer_4-node_32-input_2000-output_1000-bs_64"
JSON = {
    "labels": [LABEL, LABEL + "0"],
    "example_per_sec": [640.0, 1.0],
    "step_per_sec": [10.0, 1.0],
    "flops": [1.0, 2.0],
    "fl": [1.0, 2.0],
    "params": [1.0, 2.0],
    "intensity": [1.0, 2.0],
    "err_jobs": [LABEL],
    "states": ["OOM"],
}
CSV = (
    "device,input_type,layers,nodes,batch_size,input_size,output_size,#params,duration,tflops\n"
    "Tesla T4,f32,4,32,64,2000,200,1,1,0\n"
)
COLLECTOR = (
    ",mean_speed,Mean_Time_Per_Step,speed_uncertainty,Speed_Jitter,gpu_type,num_gpu,staged_from\n"
    "0,5000,0.01,1,2,k80,2,$LOCAL\n"
)
GOOD = {
    "slurm-1.out": psc_log(more="batch_size = 50\n", placed=(0, 1)),
    "gpu.json": json.dumps(JSON),
    "t.csv": CSV,
    "c.csv": COLLECTOR,
}


def _tar(members: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return held.getvalue()


LOG = psc_log().encode()


@every(
    ("name", "content", "said"),
    [
        ("a.bin", bytes(range(256)) * 40, "no known format: binary data"),
        ("empty", b"", "no known format: an empty file"),
        ("a.tar", b"\0" * 10_240, "no known format: nothing but zeros, as an archive of no files"),
        ("a.txt", b"hello\nworld", "no known format: begins with 'hello'"),
        (
            "a.csv",
            CSV.replace(",", ";").replace("layers", "depth").encode(),
            "output_s...'; --map FILE.toml says what columns mean",
        ),
        ("a.tar.gz", _tar({"a": os.urandom(9000)})[:5000], "cannot be read"),
        ("a.gz", gzip.compress(LOG)[:500], "cannot be read"),
        ("a.gz", b"\x1f\x8b junk", "cannot be read"),
        ("a.json", b'{"labels": [1', "is no JSON"),
        ("a.json", b'{"labels": ' + b"[" * 100_000, "is no JSON"),
        ("a.json", b'{"labels": ' + b"9" * 5000 + b"}", "is no JSON"),
        ("a.json", b'{"labels": 3}', "'labels' is no list"),
        ("a.json", b'{"labels": [], "": 5}', "'' is no list"),
        ("a.json", b'{"labels": ["x"], "fl": [1, 2]}', "differ in length"),
        ("a.json", b'{"labels": [], "err_jobs": ["x"], "states": []}', "differ in length"),
        ("a.json", b'{"labels": [], "err_jobs": ["x"], "states": ["OOM"]}', "no device"),
        ("tpu.json", b'{"labels": [], "err_jobs": ["x"], "states": ["OOM"]}', "no label"),
        ("t.csv", CSV.partition("\n")[0].encode() + b",nodes\n", "two columns are named nodes"),
        ("slurm-1.out", b"Batch Size\n45\n", "not_a_benchmark"),
    ],
)
def test_what_is_no_result_is_one_line_and_exit_code_2(name, content, said, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert run(["import", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err
    assert "nothing here became a record" in err
    assert not (tmp_path / "out").exists()


@every("name", ["absent", "fifo", "folder"])
def test_what_is_no_file(name, tmp_path, capsys):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    assert run(["import", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_names_of_archives_are_only_names(tmp_path):
    members = {"/etc/slurm-1.out": LOG, "../../slurm-2.out": LOG + b"\n", "a\n\x1b:b": b"junk"}
    (tmp_path / "a.tar.gz").write_bytes(_tar(members))
    found = read_path(tmp_path / "a.tar.gz")
    assert [r.env["source_file"] for r in found.records] == [
        "/etc/slurm-1.out",
        "../../slurm-2.out",
    ]
    assert found.unread[0].file == "a??:b"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar.gz"]


def test_an_archive_within_an_archive_is_named(tmp_path):
    inner = {"slurm-1.out": LOG, "slurm-2.out": LOG + b"\n"}
    packed = _tar(inner)
    members = {"a.tar": gzip.decompress(packed), "b.tar.gz": packed, "slurm-3.out": LOG}
    (tmp_path / "c.tar.gz").write_bytes(_tar(members))
    (tmp_path / "d.gz").write_bytes(gzip.compress(packed))
    found = read_path(tmp_path)
    assert [record.env["source_file"] for record in found.records] == ["slurm-3.out"]
    why = "an archive within an archive"
    assert [(one.file, one.reason) for one in found.unread] == [
        ("a.tar", why), ("b.tar", why), ("d", why),
    ]  # fmt: skip


def test_links_and_folders_of_archives_and_folders(tmp_path):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    (tmp_path / "a.tar").write_bytes(held.getvalue())
    (tmp_path / "there").symlink_to("/etc")
    (tmp_path / "gone").symlink_to("/nonexistent")
    found = {one.file: one.reason for one in list_sources(tmp_path) if isinstance(one, Unread)}
    assert found == {
        "link": "is no plain file",
        "there": "is no plain file",
        "gone": "cannot be read: No such file or directory",
    }


def test_what_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(source_files, "LARGEST_BYTES", 10_000)
    monkeypatch.setattr(source_files, "MAX_ARCHIVE_BYTES", 50_000)
    (tmp_path / "a").write_bytes(b"x" * 10_001)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"\0" * 10_000_000))  # a bomb
    bomb = {"small": b"x", "large": b"x" * 10_001, "last": b"x" * 60_000, "never": b"x"}
    (tmp_path / "c.tar.gz").write_bytes(_tar(bomb))
    (tmp_path / "d.tar").write_bytes(_tar({"e.gz": gzip.compress(b"\0" * 10_000_000)}))
    found = [one for one in list_sources(tmp_path) if isinstance(one, Unread)]
    assert [(one.file, one.reason) for one in found] == [
        ("a", "holds more than 10000 bytes"),
        ("b", "holds more than 10000 bytes"),
        ("large", "holds more than 10000 bytes"),
        ("last", "not looked at: the archive holds too much"),
        ("e", "holds more than 10000 bytes"),
    ]


def test_a_line_of_a_hundred_megabytes(tmp_path):
    with (tmp_path / "slurm-1.out").open("wb") as file:
        file.seek(100_000_000)
        file.write(b"x")
    (unread,) = read_path(tmp_path).unread
    assert "holds more than" in unread.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [" ", "\n", "9", "x", "Mean Speed : ", "VIRTUAL_ENV=", "ImportError: GLIBCXX_",
     "name: Tesla ", ": (Add)/job:", ",", '"', "[", "{"],
)  # fmt: skip
def test_long_repetitions_come_to_an_end(unit):
    """A search that tries every beginning of a repetition anew would take minutes here."""
    text = (unit * (100_000 // len(unit))).encode()
    for reader in map(reader_of, READERS):
        for name in ("slurm-1.out", "tpu.json", "t.csv"):
            for start in (b"", b"JobId=1 JobName=CNN_MNIST\n", CSV.encode(), b'{"labels": '):
                source = RecordSource(name, start + text)
                if reader.recognises(source):
                    _read(reader, source)


def _read(reader: object, source: RecordSource) -> None:
    with contextlib.suppress(InputError):
        reader.read(source)  # type: ignore[attr-defined]  # a module of the table


def _mutated(text: str, seed: int) -> bytes:
    dice = random.Random(seed)  # noqa: S311  # not for secrets
    content = bytearray(text.encode())
    for _ in range(dice.randint(1, 30)):
        place = dice.randrange(len(content) + 1)
        kind = dice.randrange(4)
        if kind == 0:
            del content[place : place + dice.randint(1, 60)]
        elif kind == 1:
            content[place:place] = dice.choice(
                (
                    b"nan",
                    b"1e999",
                    b"-1",
                    b"0",
                    b"9" * 400,
                    b"\0",
                    b"\xff",
                    b'"',
                    b"\n",
                    b",",
                    b"[",
                    b"{}",
                )
            )
        elif kind == 2 and content:
            content[place % len(content)] = dice.randrange(256)
        else:
            content[place:place] = content[: dice.randint(0, 200)]
        if not content:
            break
    return bytes(content)


@every("name", GOOD)
def test_changed_files_give_records_or_reasons(name, tmp_path):
    for seed in range(150):
        path = tmp_path / name
        path.write_bytes(_mutated(GOOD[name], seed))
        found = read_path(path)
        assert found.records or found.unread
        for record in found.records:
            json.dumps(record_to_json(record), allow_nan=False)


@given(st.binary(max_size=300), st.sampled_from(sorted(GOOD)))
def test_any_bytes_under_any_name(content, name):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        found = read_path(path)
    assert found.records or found.unread or not content
